"""Planning what a transfer stores: whole checkpoints with their writes, as another saver gave them."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby
from typing import Any

from agent_ckpt.core.bring import BringPlan
from agent_ckpt.core.writes import WritesPlan
from agent_ckpt.errors import ValueNotStorableError
from agent_ckpt.model import Place
from agent_ckpt.planning import Planning
from agent_ckpt.sources import Item

_CONFIG: Mapping[str, Any] = {"configurable": {}}


def plan_bringing(planning: Planning, of_writes: Planning, thread_id: str, item: Item, revision: int) -> BringPlan:
    """Plan a checkpoint and its writes for the thread as it is known in memory.

    Args:
        planning, of_writes: two for the same state of the thread: what tasks wrote is no channel's value, to be
            compared with the next one's.
        thread_id: where it is stored.
        item: what the source gave.
        revision: of the thread before it.

    Raises:
        ValueNotStorableError: naming checkpoint and path of the value.
    """
    key = item.key
    at = Place(thread_id, key.ns, key.parent_id)
    versions = item.checkpoint.get("channel_versions") or {}
    try:
        # With all versions named as new, a channel without a value has none: nothing is taken from a parent.
        put = planning.put(at, _CONFIG, item.checkpoint, item.metadata, versions, None)  # type: ignore[arg-type]
        tasks = [
            _task(of_writes, put.place, task_id, path, list(own))
            for (path, task_id), own in groupby(item.writes, key=lambda write: write[:2])
        ]
    except ValueNotStorableError as exc:
        raise ValueNotStorableError(
            f"checkpoint {key.checkpoint_id!r} in namespace {key.ns!r} can't be transferred: {exc.message}",
            path=exc.path,
            checkpoint_id=key.checkpoint_id,
        ) from exc
    return BringPlan(put, tasks, revision)


def _task(planning: Planning, place: Place, task_id: str, path: str, own: list[Any]) -> WritesPlan:
    pairs = [(write.channel, write.value) for write in own]
    plan = planning.writes(place, _CONFIG, pairs, task_id, path, None)
    writes = [(write.idx, channel, part) for write, (_, channel, part) in zip(own, plan.writes, strict=True)]
    return plan._replace(writes=writes)
