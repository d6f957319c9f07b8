"""Storing checkpoints that another saver made: as they are, under their own ids, in a given order.

A thread is brought under a name of its own (`staged_name`) and takes its real one in one
transaction when it is whole, so that nobody ever restores half of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from agent_ckpt.backend import Program, Statement
from agent_ckpt.codec import frame, heads, ids, rows
from agent_ckpt.core.assemble import assemble
from agent_ckpt.core.flight import Rules, check_lease, lease_of
from agent_ckpt.core.manage import Moving, find_thread, moved, reseal_blobs
from agent_ckpt.core.put import PutPlan, Written, new_thread
from agent_ckpt.core.rebuild import check_whole, parked, rebuilt, taken_up, with_vault
from agent_ckpt.core.rows import checkpoint_row, next_sequence, session_column, text, thread_row
from agent_ckpt.core.writes import WritesPlan, task_key
from agent_ckpt.errors import ThreadConflictError, UsageError
from agent_ckpt.model import Place, Secret, TaskWrites, ThreadRow

_STAGED = "\x01agent_ckpt being transferred: "


def staged_name(thread_id: str) -> str:
    """The name that a thread has until it is whole. No real one begins so: it holds a control character."""
    return _STAGED + thread_id


def is_staged(thread_id: str) -> bool:
    """Whether a thread has the name of one that isn't whole yet."""
    return thread_id.startswith(_STAGED)


@dataclass(slots=True)
class BringPlan:
    """A checkpoint of another saver with its pending writes, ready to be stored.

    Attributes:
        put: the checkpoint.
        tasks: its pending writes, in their order.
        revision: of the thread before it; 0 for the first. Two transfers of one thread meet here.
    """

    put: PutPlan
    tasks: list[WritesPlan]
    revision: int


def bring(plan: BringPlan) -> Program[Written]:
    """Store a checkpoint and its writes behind all that the thread has.

    Raises:
        ThreadConflictError: when the thread isn't at the plan's revision: another transfer writes it.
        ReplanError: as for a put.
    """
    put = plan.put
    place = put.place
    key = ids.shrink(place.checkpoint_id or "")
    parent = ids.shrink(put.parent_id) if put.parent_id else None
    run = ids.shrink(put.run_id) if put.run_id else None
    found = yield Statement("put_begin", (place.thread_id, place.ns, key, parent, False))
    row = thread_row(found[0], place.thread_id) if found else None
    if (row.revision if row is not None else 0) != plan.revision:
        raise _two_transfers(plan, row)
    put.target.check(row)
    sequence = yield from next_sequence(place, row)
    if row is None:
        row = yield from new_thread(place.thread_id, put.target.secret, sequence)
    space = found[0][6] if found else None
    if space is None:
        space = (yield Statement("insert_space", (row.thread, place.ns)))[0][0]
    parts = [part for _, _, part in put.channels] + [part for task in plan.tasks for _, _, part in task.writes]
    frames = dict(put.frames)
    for task in plan.tasks:
        frames.update(task.frames)
    assembled = yield from assemble(parts, row, put.target.known, frames, put.compression)
    refs = iter(assembled.refs)
    body = put.body
    body.channels = [(name, version, next(refs)) for name, version, _ in put.channels]
    coordinates = rows.checkpoint_coordinates(place, put.parent_id, sequence, put.run_id)
    framed = frame.seal_row(frame.CHECKPOINT_ROW, rows.pack_body(body), coordinates, put.compression, row.secret)
    row = yield from taken_up(row, place, space)
    sealed = row.heads
    if sealed is not None and isinstance(row.secret, Secret):
        before = found[0][7] if found else None
        sealed = sealed.put(heads.At(place.ns, space, row.secret), key, before, sequence, assembled.new_frames)
    yield Statement("insert_checkpoint", (sequence, space, key, parent, run, framed))
    for task in plan.tasks:
        sequence = yield from next_sequence(place)
        writes = TaskWrites(task.task_id, task.task_path, [(idx, name, next(refs)) for idx, name, _ in task.writes])
        coordinates = rows.writes_coordinates(place, sequence, None)
        framed = frame.seal_row(frame.WRITES_ROW, rows.pack_writes(writes), coordinates, put.compression, row.secret)
        if sealed is not None and isinstance(row.secret, Secret):
            sealed = sealed.wrote(heads.At(place.ns, space, row.secret), key, sequence, True, 0)
        yield Statement("insert_writes", (sequence, space, key, task_key(task.task_id, row.secret), None, framed))
    row = ThreadRow(row.thread, sequence, None, assembled.next_blob, row.collected, row.secret, sealed)
    row = yield from parked(row)
    yield Statement("update_thread", (row.thread, sequence, session_column(row), row.next_blob))
    return Written(row, True, assembled, {name: (version, ref) for name, version, ref in body.channels})


def _two_transfers(plan: BringPlan, row: ThreadRow | None) -> ThreadConflictError:
    found = row.revision if row is not None else 0
    return ThreadConflictError(
        f"the transfer of thread {plan.put.place.thread_id.removeprefix(_STAGED)!r} was overtaken: another one stores "
        f"the same thread. Nothing of this checkpoint was stored; let the other one finish.",
        thread_id=plan.put.place.thread_id,
        reason="stale",
        expected=plan.revision,
        found=found,
        wrote=plan.revision > 0,
        checkpoint_id=plan.put.place.checkpoint_id,
    )


def keys_of(thread_id: str) -> Program[tuple[int, list[tuple[str, str, str | None]]]]:
    """A thread's revision (0: not stored), and namespace, id and parent of its checkpoints in commit order."""
    row = yield from find_thread(thread_id)
    if row is None:
        return 0, []
    found = yield Statement("keys_of_thread", (row.thread,))
    return row.revision, [(ns, ids.expand(checkpoint), text(parent)) for ns, checkpoint, parent in found]


def adopt(staged_id: str, target_id: str, secret: bytes, compression: str, rules: Rules) -> Program[None]:
    """Give a staged thread its real name; all its rows keep their order.

    Args:
        secret: the one under the real name: a data key of its own where it is sealed, and the same key of addresses.

    Raises:
        UsageError: when a thread of that name is there by now.
        ThreadConflictError: when another holds the lease of that name.
    """
    place = Place(target_id, "", None)
    check_lease(place, (yield from lease_of(target_id)), None, rules, "the transfer was")
    if (yield from find_thread(target_id)) is not None:
        raise exists_already(target_id, "somebody stored it during the transfer")
    row = yield from find_thread(staged_id)
    if row is None:
        raise UsageError(f"the transfer of thread {target_id!r} was finished or given up by another one")
    yield from check_whole(row, staged_id)
    moving = Moving(row.secret, secret, compression)
    if isinstance(secret, Secret):
        yield from reseal_blobs(staged_id, row.thread, row.secret, secret, compression)
    for _, _, ns, *columns in (yield Statement("checkpoints_of_thread", (row.thread,))):
        yield from _rename_checkpoint(staged_id, target_id, ns, columns, moving)
    for _, _, ns, seq, checkpoint, _, run, framed in (yield Statement("writes_of_thread", (row.thread,))):
        at = Place(staged_id, ns, ids.expand(checkpoint))
        here = rows.writes_coordinates(at, seq, text(run))
        there = rows.writes_coordinates(at._replace(thread_id=target_id), seq, text(run))
        yield Statement("set_writes_frame", (seq, moved(frame.WRITES_ROW, framed, at, here, there, moving)))
    revision = yield from next_sequence(place, row)
    yield Statement("rename_thread", (row.thread, target_id, revision))
    if isinstance(secret, Secret):
        renamed = row._replace(revision=revision, session=None, collected=revision, secret=secret)
        renamed = yield from with_vault((yield from rebuilt(renamed)), target_id)
        yield Statement("set_thread_keys", (row.thread, secret.envelope, session_column(renamed), revision))


def _rename_checkpoint(
    staged_id: str, target_id: str, ns: str, columns: Sequence[Any], moving: Moving
) -> Program[None]:
    row = checkpoint_row(staged_id, ns, columns, moving.old)
    here = rows.checkpoint_coordinates(row.place, row.parent_id, row.seq, row.run_id)
    there = rows.checkpoint_coordinates(row.place._replace(thread_id=target_id), row.parent_id, row.seq, row.run_id)
    framed = moved(frame.CHECKPOINT_ROW, row.frame, row.place, here, there, moving)
    yield Statement("set_checkpoint_frame", (row.seq, framed))
    if row.history is not None:
        here, there = (
            rows.history_coordinates(row.place._replace(thread_id=name), row.seq) for name in (staged_id, target_id)
        )
        framed = moved(frame.HISTORY_ROW, row.history, row.place, here, there, moving)
        yield Statement("set_history", (row.seq, framed))


def exists_already(thread_id: str, what: str) -> UsageError:
    return UsageError(
        f"thread {thread_id!r} exists in the target already: {what}. It was left as it is. Delete it there first, "
        f"or bring the thread under another id.",
        thread_id=thread_id,
    )
