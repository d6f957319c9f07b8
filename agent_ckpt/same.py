"""Whether two checkpoints are equal: type and value, at every depth."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from typing import Any

from langgraph.checkpoint.base import CheckpointTuple

from agent_ckpt.codec.values import ValueCodec
from agent_ckpt.sources import Item

_DEEPEST = 200


def difference(item: Item, found: CheckpointTuple, codec: ValueCodec) -> str | None:
    """Where a stored checkpoint differs from its source, or None where it is equal."""
    parent = found.parent_config["configurable"]["checkpoint_id"] if found.parent_config else None
    if parent != item.key.parent_id:
        return f"parent {item.key.parent_id!r} became {parent!r}"
    # A key that an older layout doesn't have is None today.
    theirs: dict[str, Any] = {"updated_channels": None, "versions_seen": {}, **item.checkpoint}
    ours: dict[str, Any] = dict(found.checkpoint)
    theirs.setdefault("channel_values", {})
    for key in sorted(theirs.keys() | ours.keys()):
        if key not in ours or key not in theirs:
            return f"checkpoint[{key!r}] stands on one side only"
        if not _equal(theirs[key], ours[key], codec):
            return _inside(key, theirs[key], ours[key], codec)
    if not same(item.metadata, dict(found.metadata)):
        return "metadata"
    writes = [(write.task_id, write.channel, write.value) for write in item.writes]
    pending = list(found.pending_writes or [])
    if len(writes) != len(pending):
        return f"{len(writes)} pending writes became {len(pending)}"
    for at, (theirs_, ours_) in enumerate(zip(writes, pending, strict=True)):
        if theirs_[:2] != ours_[:2] or not _equal(theirs_[2], ours_[2], codec):
            return f"pending write {at} ({theirs_[1]})"
    return None


def _inside(key: str, theirs: Any, ours: Any, codec: ValueCodec) -> str:
    if isinstance(theirs, Mapping) and isinstance(ours, Mapping):
        for name in sorted(theirs.keys() | ours.keys(), key=str):
            if name not in theirs or name not in ours or not _equal(theirs[name], ours[name], codec):
                return f"checkpoint[{key!r}][{name!r}]"
    return f"checkpoint[{key!r}]"


def _equal(theirs: Any, ours: Any, codec: ValueCodec) -> bool:
    if isinstance(theirs, dict) and isinstance(ours, dict) and type(theirs) is type(ours) is dict:
        return theirs.keys() == ours.keys() and all(_equal(theirs[name], ours[name], codec) for name in theirs)
    if type(theirs) is list and type(ours) is list:
        try:
            # Equal bytes are equal values; it is the common case, and faster than comparing.
            if codec.encode_many(theirs) == codec.encode_many(ours):
                return True
        except Exception:
            return same(theirs, ours)
    return same(theirs, ours)


def same(one: Any, other: Any, depth: int = 0) -> bool:
    """Whether two values are equal in type and value, NaN equal to NaN."""
    if one is other:
        return True
    if type(one) is not type(other) or depth > _DEEPEST:
        return False
    if isinstance(one, float):
        return one == other or (math.isnan(one) and math.isnan(other))
    if isinstance(one, Mapping):
        return one.keys() == other.keys() and all(same(one[key], other[key], depth + 1) for key in one)
    if isinstance(one, (list, tuple, deque)):
        return len(one) == len(other) and all(same(a, b, depth + 1) for a, b in zip(one, other, strict=True))
    if isinstance(one, (str, bytes, int, set, frozenset)):
        return bool(one == other)
    fields = getattr(one, "__dict__", None)
    if isinstance(fields, dict) and fields:
        extra = ("__pydantic_extra__", "__pydantic_private__")
        return same(fields, other.__dict__, depth + 1) and all(
            same(getattr(one, name, None), getattr(other, name, None), depth + 1) for name in extra
        )
    return _by_equality(one, other)


def _by_equality(one: Any, other: Any) -> bool:
    try:
        return bool(one == other)
    except Exception:
        if not hasattr(one, "tobytes"):
            return False
        # An array: its comparison has no truth of its own.
        return bool(one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes())
