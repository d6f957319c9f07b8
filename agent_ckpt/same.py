"""Whether two checkpoints are equal: type and value, at every depth."""

from __future__ import annotations

import dataclasses
import decimal
import math
from collections import deque
from collections.abc import Mapping
from functools import partial
from typing import Any

from langgraph.checkpoint.base import CheckpointTuple

from agent_ckpt.codec import numeric
from agent_ckpt.codec.values import ValueCodec
from agent_ckpt.core import read
from agent_ckpt.core.hot import HotCache
from agent_ckpt.model import Place
from agent_ckpt.planning import Reading
from agent_ckpt.sources import Item
from agent_ckpt.steps import Call, Steps

_COMPARED_CACHE = 16 * 1024 * 1024
_EXTRA = ("__pydantic_extra__", "__pydantic_private__")
_DEEPEST = 8
"""To which depth lists in dicts are compared by their bytes."""

Pairs = list[tuple[Any, Any]]


class StoredReader:
    """Reads checkpoints with a memory of its own, so that what it gives has come from the file."""

    def __init__(self, codec: ValueCodec) -> None:
        # A class that isn't there is kept as it is on both sides.
        self._reading = Reading(codec.keeping())
        self._hot = HotCache(_COMPARED_CACHE)

    def read(self, place: Place) -> Steps[Any]:
        restored: read.Restored = yield Call(partial(read.get_tuple, place, self._hot.of))
        if restored.found is None or restored.thread is None:
            return None
        self._hot.keep(place.thread_id, self._hot.of(place.thread_id, restored.thread))
        return self._reading.checkpoint_tuple(restored.found, None)


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


def _equal(theirs: Any, ours: Any, codec: ValueCodec, depth: int = 0) -> bool:
    named = type(theirs) is dict and type(ours) is dict and depth < _DEEPEST
    if named and all(type(key) is str for key in theirs):
        return theirs.keys() == ours.keys() and all(
            _equal(theirs[name], ours[name], codec, depth + 1) for name in theirs
        )
    if type(theirs) is list and type(ours) is list:
        try:
            # Equal bytes are equal values; it is the common case, and faster than comparing.
            if codec.encode_many(theirs) == codec.encode_many(ours):
                return True
        except Exception:
            return same(theirs, ours)
    return same(theirs, ours)


def same(one: Any, other: Any) -> bool:
    """Whether two values are equal in type and value, NaN equal to NaN; to any depth, if one of them is a tree."""
    pairs: Pairs = [(one, other)]
    while pairs:
        parts = _parts(*pairs.pop())
        if parts is None:
            return False
        pairs += parts
    return True


def _parts(one: Any, other: Any) -> Pairs | None:
    """What is to be compared yet of two values, or None where they differ."""
    if one is other:
        return []
    if type(one) is not type(other):
        return None
    if isinstance(one, (float, complex, decimal.Decimal)):
        return [] if _same_number(one, other) else None
    if isinstance(one, Mapping):
        return _of_keys(one, other)
    if isinstance(one, (set, frozenset)):
        return _of_keys(dict.fromkeys(one), dict.fromkeys(other))
    if isinstance(one, (list, tuple, deque)):
        return list(zip(one, other, strict=True)) if len(one) == len(other) else None
    if isinstance(one, (str, bytes, int)):
        return [] if one == other else None
    if hasattr(one, "dtype") and hasattr(one, "tobytes"):
        return _of_array(one, other)
    fields, others = _fields(one), _fields(other)
    if fields or others:
        extra = [(getattr(one, name, None), getattr(other, name, None)) for name in _EXTRA]
        return [(fields, others), *extra]
    return [] if _by_equality(one, other) else None


def _same_number(one: Any, other: Any) -> bool:
    if isinstance(one, decimal.Decimal):
        # By digits: 1.0 is stored as another number than 1.00, and a signaling NaN can't be compared at all.
        return bool(one.as_tuple() == other.as_tuple())
    if isinstance(one, complex):
        return _same_number(one.real, other.real) and _same_number(one.imag, other.imag)
    return bool(one == other) or (math.isnan(one) and math.isnan(other))


def _of_keys(one: Mapping[Any, Any], other: Mapping[Any, Any]) -> Pairs | None:
    if len(one) != len(other):
        return None
    left = {key: (key, value) for key, value in other.items()}
    pairs: Pairs = []
    odd = []
    for key, value in one.items():
        twin = left.pop(key, None)
        if twin is None:
            odd.append((key, value))
        else:
            pairs += [(key, twin[0]), (value, twin[1])]
    # A key that is or holds NaN equals no other.
    unmatched = list(left.values())
    for entry in odd:
        at = next((at for at, twin in enumerate(unmatched) if same(entry, twin)), None)
        if at is None:
            return None
        del unmatched[at]
    return pairs


def _of_array(one: Any, other: Any) -> Pairs | None:
    if one.dtype != other.dtype or one.shape != other.shape:
        return None
    if getattr(one.dtype, "hasobject", False):
        return [(one.tolist(), other.tolist())]
    return [] if numeric.raw(one) == numeric.raw(other) else None


def _fields(value: Any) -> dict[str, Any]:
    fields = dict(getattr(value, "__dict__", None) or {})
    # Fields of a class with slots stand in no dict.
    declared = dataclasses.fields(value) if dataclasses.is_dataclass(value) else ()
    for field in (*declared, *getattr(type(value), "__attrs_attrs__", ())):
        if hasattr(value, field.name):
            fields[field.name] = getattr(value, field.name)
    return fields


def _by_equality(one: Any, other: Any) -> bool:
    try:
        return bool(one == other)
    except Exception:
        return False
