"""Storing the writes of a task (put_writes)."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b
from typing import NamedTuple

import xxhash

from agent_ckpt.backend import Program, Row, Statement
from agent_ckpt.codec import frame, heads, ids, rows, tree
from agent_ckpt.core.assemble import assemble
from agent_ckpt.core.flight import Rules, admit, lease_of, lease_row
from agent_ckpt.core.put import Target, Written, new_thread
from agent_ckpt.core.rebuild import parked, taken_up
from agent_ckpt.core.rows import damaged, following, next_sequence, session_column, thread_row, writes_row
from agent_ckpt.core.session import Session
from agent_ckpt.model import Place, Ref, Secret, TaskWrites, ThreadRow, WritesRow

Merged = dict[tuple[str, int], tuple[str, str, Ref, int | None]]
"""(task_id, index) to (task_path, channel, reference, state version)."""
Pending = tuple[str, str, Ref, int | None]
"""A write in its order: task id, channel, reference, and the state version of the program that wrote it."""


class WritesPlan(NamedTuple):
    """The writes of one put_writes call, ready to be stored.

    Attributes:
        place, run_id, task_id, task_path: where they go.
        writes: index, channel, plan of the value.
        target, frames, compression, session, rules: as for a PutPlan.
        state_version: of the program that writes them, or None.
    """

    place: Place
    run_id: str | None
    task_id: str
    task_path: str
    writes: list[tuple[int, str, tree.Plan]]
    target: Target
    frames: dict[bytes, bytes]
    compression: str
    session: Session | None
    rules: Rules
    state_version: int | None = None


def task_key(task_id: str, secret: bytes) -> int:
    """The 64-bit key that finds a task's rows; the id itself stands in the frame."""
    if isinstance(secret, Secret):
        keyed = blake2b(task_id.encode("utf-8", "surrogatepass"), digest_size=8, key=secret).digest()
        return int.from_bytes(keyed, "big", signed=True)
    return xxhash.xxh3_64_intdigest(task_id.encode("utf-8", "surrogatepass")) - (1 << 63)


def put_writes(plan: WritesPlan) -> Program[Written]:
    """Store a task's writes, or refuse them.

    A regular write whose (task, index) is stored already is left as it is; a special one (error,
    scheduled, interrupt, resume) takes the place of the one before.

    Raises:
        ThreadConflictError: when the session lost the thread.
        CorruptionError: when the task's stored writes aren't what was stored.
        ReplanError: when blobs were dropped or the thread was made anew meanwhile.
    """
    place = plan.place
    key, task = ids.shrink(place.checkpoint_id or ""), task_key(plan.task_id, plan.target.secret)
    found = yield Statement("writes_begin", (place.thread_id, place.ns, key, task))
    state = found[0] if found else None
    row = thread_row(state, place.thread_id) if state else None
    raises_revision = plan.session is not None or _at_the_front(state, key)
    if raises_revision:
        lease = lease_row(state[10:16]) if state else (yield from lease_of(place.thread_id))
        yield from admit(place, row, lease, plan.session, plan.rules, "put_writes")
    plan.target.check(row)
    if row is not None and state is not None and raises_revision:
        sequence = following(place, row, state[16])
    else:
        sequence = yield from next_sequence(place, row)
    if row is None:
        row = yield from new_thread(place.thread_id, plan.target.secret, sequence)
    space = state[6] if state is not None else None
    row = yield from taken_up(row, place, space)
    stored: Merged = {}
    if state is not None and row is not None and state[9]:
        found = yield Statement("writes_of_task", (space, key, task))
        try:
            stored = merge(writes_row(place, columns, row.secret) for columns in found)
        except frame.FrameError as exc:
            raise damaged(place, "a row of pending writes", exc) from exc
    planned = [w for w in plan.writes if w[0] < 0 or (plan.task_id, w[0]) not in stored]
    assembled = yield from assemble(
        [part for _, _, part in planned], row, plan.target.known, plan.frames, plan.compression
    )
    writes = [
        (idx, channel, ref)
        for (idx, channel, _), ref in zip(planned, assembled.refs, strict=True)
        if stored.get((plan.task_id, idx), ())[:3] != (plan.task_path, channel, ref)
    ]
    if not writes:
        return Written(row, False, assembled)
    if space is None:
        space = (yield Statement("insert_space", (row.thread, place.ns)))[0][0]
    payload = rows.pack_writes(TaskWrites(plan.task_id, plan.task_path, writes, plan.state_version))
    coordinates = rows.writes_coordinates(place, sequence, plan.run_id)
    framed = frame.seal_row(frame.WRITES_ROW, payload, coordinates, plan.compression, row.secret)
    run = ids.shrink(plan.run_id) if plan.run_id else None
    yield Statement("insert_writes", (sequence, space, key, task, run, framed))
    owner = plan.session.id if plan.session is not None else None
    sealed = row.heads
    if sealed is not None and isinstance(row.secret, Secret):
        at = heads.At(place.ns, space, row.secret)
        sealed = sealed.wrote(at, key, sequence, _at_the_front(state, key), assembled.new_frames)
    if raises_revision or sealed is not None:
        revision, owner = (sequence, owner) if raises_revision else (row.revision, row.session)
        row = ThreadRow(row.thread, revision, owner, assembled.next_blob, row.collected, row.secret, sealed)
        row = yield from parked(row)
        yield Statement("update_thread", (row.thread, revision, session_column(row), row.next_blob))
    else:
        yield Statement("update_next_blob", (row.thread, assembled.next_blob))
    return Written(row, True, assembled)


def _at_the_front(state: Row | None, key: bytes | str) -> bool:
    """Whether the checkpoint is the head, or isn't stored yet: then its writes move the thread."""
    return state is None or state[8] is None or state[7] == key


def merge(found: Iterable[WritesRow]) -> Merged:
    """What stands at each (task_id, index) of a checkpoint, given its rows in commit order.

    Returns:
        What stands there: the first for a regular write, the last for a special one.
    """
    merged: Merged = {}
    for row in found:
        task = rows.open_writes(row)
        for idx, channel, ref in task.writes:
            if idx < 0 or (task.task_id, idx) not in merged:
                merged[(task.task_id, idx)] = (task.task_path, channel, ref, task.state_version)
    return merged


def in_order(merged: Merged) -> list[Pending]:
    """The writes sorted by (task_path, task_id, index)."""
    keys = sorted(merged, key=lambda key: (merged[key][0], *key))
    return [(task_id, *merged[(task_id, idx)][1:]) for task_id, idx in keys]
