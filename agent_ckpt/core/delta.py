"""What DeltaChannels are rebuilt from: a seed and the writes since, along the chain of parents."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field

from agent_ckpt.backend import Program, Row, Statement
from agent_ckpt.codec import frame, ids, rows
from agent_ckpt.core.load import Blobs, load
from agent_ckpt.core.read import HotOf
from agent_ckpt.core.rebuild import check_rows
from agent_ckpt.core.rows import checkpoint_row, damaged, thread_row, writes_row
from agent_ckpt.core.writes import in_order, merge
from agent_ckpt.model import CheckpointRow, Place, Ref, ThreadRow

PAGE = 256
"""Ancestors read at once."""


@dataclass(slots=True)
class Trail:
    """What one channel's value is rebuilt from.

    Attributes:
        seeded: whether an ancestor stored a value; else it starts empty.
        seed: that value's reference.
        writes: task id, reference and state version, newest first while walking, oldest first when done.
        seed_version: the state version of the seed's checkpoint, or None.
        seed_id: that checkpoint; None where it is known only from a history record.
    """

    seeded: bool = False
    seed: Ref = None
    writes: list[tuple[str, Ref, int | None]] = field(default_factory=list)
    seed_version: int | None = None
    seed_id: str | None = None


@dataclass(slots=True)
class Histories:
    """The trails of channels at one checkpoint, and the blobs that they need."""

    thread: ThreadRow | None
    place: Place
    trails: dict[str, Trail]
    blobs: Blobs = field(default_factory=Blobs)


def history(place: Place, channels: Sequence[str], hot_of: HotOf) -> Program[Histories]:
    """Collect what channels are rebuilt from at a checkpoint (the head where none is named).

    The checkpoint's own writes are pending and don't count. Of an ancestor's writes those count
    that were committed before the child on this chain: later ones belong to a later fork.
    """
    found = yield _target(place)
    if not found or found[0][7] is None:
        return Histories(None, place, {channel: Trail() for channel in channels})
    thread = thread_row(found[0], place.thread_id)
    yield from check_rows(thread, place.thread_id)
    row = checkpoint_row(place.thread_id, place.ns, found[0][7:13], thread.secret)
    trails = yield from trails_of(found[0][6], row, channels)
    made = Histories(thread, row.place, trails)
    refs = [ref for trail in trails.values() for ref in (trail.seed, *(ref for _, ref, _ in trail.writes))]
    yield from load(thread, refs, hot_of(place.thread_id, thread), made.blobs)
    return made


def _target(place: Place) -> Statement:
    if place.checkpoint_id is None:
        return Statement("head_of_space", (place.thread_id, place.ns))
    return Statement("checkpoint_by_id", (place.thread_id, place.ns, ids.shrink(place.checkpoint_id)))


def trails_of(space: int, target: CheckpointRow, channels: Sequence[str]) -> Program[dict[str, Trail]]:
    """Walk from a checkpoint to its root, a page of ancestors at a time."""
    trails = {channel: Trail() for channel in channels}
    wanted = set(channels)
    child = target
    _remember(target, trails, wanted)
    while wanted:
        found = yield Statement("ancestors", (space, ids.shrink(child.place.checkpoint_id or ""), PAGE))
        chain = [
            checkpoint_row(target.place.thread_id, target.place.ns, columns, target.secret) for columns in found[1:]
        ]
        written = yield from _writes_of(chain)
        for row in chain:
            _visit(row, child.seq, written.get(row.seq, []), trails, wanted)
            _remember(row, trails, wanted)
            child = row
        if len(chain) < PAGE:
            break
    for trail in trails.values():
        trail.writes.reverse()
    return trails


def _writes_of(chain: list[CheckpointRow]) -> Program[dict[int, list[Row]]]:
    by_seq: dict[int, list[Row]] = {}
    if chain:
        for seq, *columns in (yield Statement("writes_of_ancestors", (json.dumps([row.seq for row in chain]),))):
            by_seq.setdefault(seq, []).append(tuple(columns))
    return by_seq


def _visit(row: CheckpointRow, child_seq: int, written: list[Row], trails: dict[str, Trail], wanted: set[str]) -> None:
    """Take one ancestor's writes and, where it stored a value, the seed that ends a trail."""
    try:
        counting = (columns[:3] for columns in written if _counts(columns, child_seq))
        before = (writes_row(row.place, columns, row.secret) for columns in counting)
        writes = in_order(merge(before))
        body = rows.open_body(row)
    except frame.FrameError as exc:
        raise damaged(row.place, "a row that a DeltaChannel is rebuilt from", exc) from exc
    for task_id, channel, ref, version in reversed(writes):
        if channel in wanted:
            trails[channel].writes.append((task_id, ref, version))
    for channel, _, ref in body.channels:
        if channel in wanted and ref is not None:
            trail = trails[channel]
            trail.seeded, trail.seed = True, ref
            trail.seed_version, trail.seed_id = body.state_version, row.place.checkpoint_id
            wanted.discard(channel)


def _counts(columns: Row, child_seq: int) -> bool:
    """Whether a write stood on its checkpoint when a child of that was committed."""
    seq, _, _, undone = columns
    return seq < child_seq and (undone is None or undone > child_seq)


def _remember(row: CheckpointRow, trails: dict[str, Trail], wanted: set[str]) -> None:
    """Where a checkpoint has a history record, that stands for all its ancestors."""
    try:
        record = rows.open_history(row)
    except frame.FrameError as exc:
        raise damaged(row.place, "the history record", exc) from exc
    if record is None:
        return
    for channel in wanted & set(record.channels):
        trail = trails[channel]
        trail.seeded, trail.seed, writes, trail.seed_version = record.channels[channel]
        trail.writes.extend(reversed(writes))
        wanted.discard(channel)
