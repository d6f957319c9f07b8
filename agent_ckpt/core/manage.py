"""Threads as a whole: find, list, delete, copy."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from agent_ckpt.backend import Program, Statement
from agent_ckpt.codec import frame, ids, rows
from agent_ckpt.core import packs
from agent_ckpt.core.put import ReplanError, insert_thread
from agent_ckpt.core.rows import (
    checkpoint_row,
    damaged,
    first_blob,
    hidden,
    last_blob,
    next_sequence,
    shown,
    text,
    thread_row,
)
from agent_ckpt.errors import UsageError
from agent_ckpt.later import Later
from agent_ckpt.model import CheckpointRow, Place, Secret, ThreadRow

if TYPE_CHECKING:
    from agent_ckpt import reports
    from agent_ckpt.core import rebuild as rebuilding
else:
    reports = Later("agent_ckpt.reports")
    rebuilding = Later("agent_ckpt.core.rebuild")

_PAGE = 1000


def touch() -> Program[None]:
    """Read something, so that the store is opened and checked."""
    yield Statement("store_row")


def find_thread(thread_id: str) -> Program[ThreadRow | None]:
    found = yield Statement("thread_row", (thread_id,))
    return thread_row(found[0], thread_id) if found else None


class Located(NamedTuple):
    """A checkpoint's row with its thread's, and the number of its namespace."""

    thread: ThreadRow
    space: int
    row: CheckpointRow


def locate(place: Place) -> Program[Located | None]:
    """Find a checkpoint by its id, without opening it."""
    found = yield Statement("checkpoint_by_id", (place.thread_id, place.ns, ids.shrink(place.checkpoint_id or "")))
    if not found or found[0][7] is None:
        return None
    columns = found[0]
    thread = thread_row(columns, place.thread_id)
    row = checkpoint_row(place.thread_id, place.ns, columns[7:13], thread.secret)
    return Located(thread, columns[6], row)


def list_threads() -> Program[list[reports.ThreadInfo]]:
    """Every thread with its counts and the time of its newest checkpoint."""
    infos = []
    found = yield Statement("all_threads")
    for thread_id, secret, revision, checkpoints, namespaces, ns, *columns in found:
        updated = None
        if columns[0] is not None:
            try:
                updated = rows.open_body(checkpoint_row(thread_id, ns, columns, secret)).ts
            except frame.FrameError:
                updated = None
        infos.append(reports.ThreadInfo(thread_id, revision, checkpoints, namespaces, updated))
    # In a file whose thread ids are sealed, they don't stand in their order.
    return sorted(infos, key=lambda info: info.thread_id)


def delete_thread(thread_id: str) -> Program[bool]:
    """Delete every row of a thread; False when it isn't stored."""
    row = yield from find_thread(thread_id)
    if row is None:
        return False
    yield Statement("delete_checkpoints_of_thread", (row.thread,))
    yield Statement("delete_writes_of_thread", (row.thread,))
    yield Statement("delete_blobs_of_thread", (first_blob(row.thread), last_blob(row.thread)))
    yield Statement("delete_packs_of_thread", (first_blob(row.thread), last_blob(row.thread)))
    yield Statement("delete_spaces_of_thread", (row.thread,))
    yield Statement("delete_thread", (row.thread,))
    return True


def copy_thread(source_id: str, target_id: str, secret: bytes, compression: str) -> Program[None]:
    """Copy every row of a thread under a new id.

    Blobs keep their numbers and addresses, so they are copied as they are, but sealed under a data key
    of the copy's own where the thread is sealed; rows are framed anew, since a frame is bound to the
    place where it stands.

    Args:
        secret: the copy's: the key of its addresses is the source's.

    Raises:
        UsageError: when the source isn't stored or the target exists.
        ReplanError: when the source was made anew meanwhile.
    """
    source = yield from find_thread(source_id)
    if source is None:
        raise not_stored(source_id)
    if bytes(secret) != bytes(source.secret):
        raise ReplanError(source)
    if (yield from find_thread(target_id)) is not None:
        raise UsageError(f"copy_thread: thread {target_id!r} exists already; delete it first or choose another id")
    yield from rebuilding.check_whole(source, source_id)
    thread = yield from next_sequence(Place(target_id, "", None))
    target = source._replace(thread=thread, session=None, collected=0, secret=secret)
    if isinstance(secret, Secret):
        yield from _copy_sealed_blobs(source, target, compression)
    else:
        ranges = (first_blob(source.thread), last_blob(source.thread), first_blob(thread))
        yield Statement("copy_blobs", ranges)
        yield Statement("copy_packs", ranges)
    spaces: dict[int, int] = {}
    for space, ns in (yield Statement("spaces_of_thread", (source.thread,))):
        spaces[space] = (yield Statement("insert_space", (thread, ns)))[0][0]
    yield from _copy_rows(source, source_id, target_id, spaces, Moving(source.secret, secret, compression))
    revision = yield from next_sequence(Place(target_id, "", None))
    target = yield from rebuilding.rebuilt(target._replace(revision=revision))
    yield from insert_thread(target, target_id)


def not_stored(thread_id: str) -> UsageError:
    return UsageError(f"copy_thread: thread {thread_id!r} is not stored")


def _copy_sealed_blobs(source: ThreadRow, target: ThreadRow, compression: str) -> Program[None]:
    old, new = (source.thread, source.secret), (target.thread, target.secret)
    yield from _reseal_blobs("", old, new, compression)
    yield from packs.reseal("", old, new, compression)


def reseal_blobs(thread_id: str, thread: int, old: bytes, new: bytes, compression: str) -> Program[None]:
    """Frame every blob of a thread anew, in place, under another secret with the same key of addresses."""
    yield from _reseal_blobs(thread_id, (thread, old), (thread, new), compression)
    yield from packs.reseal(thread_id, (thread, old), (thread, new), compression)


def _reseal_blobs(
    thread_id: str, source: tuple[int, bytes], target: tuple[int, bytes], compression: str
) -> Program[None]:
    """Frame the blobs that have rows of their own, as `packs.reseal` does packs; others keep their pack's number."""
    (thread, old), (into, new) = source, target
    at = 0
    while True:
        page = yield Statement("blobs_page", (first_blob(thread), at, last_blob(thread), _PAGE))
        addresses = shown(old, [mark for _, mark, _ in page])
        changes = []
        marks = hidden(new, addresses)
        for (number, _, framed), address, mark in zip(page, addresses, marks, strict=True):
            again = framed
            if type(framed) is bytes:
                try:
                    body = frame.open_blob(framed, old, address)
                except frame.FrameError as exc:
                    raise damaged(Place(thread_id, "", None), f"blob {number}", exc) from exc
                again = frame.seal_blob(body, compression, new, address)
            changes.append((first_blob(into) + number, mark, again))
        if into == thread:
            yield Statement("set_blob_as_stored", changes, many=True)
        else:
            yield Statement("insert_blob", changes, many=True)
        if len(page) < _PAGE:
            return
        at = page[-1][0] + 1


class Moving(NamedTuple):
    """How rows are framed anew.

    Attributes:
        old, new: the secrets they were and will be framed with.
        compression: of the new frame.
    """

    old: bytes
    new: bytes
    compression: str


def _copy_rows(
    source: ThreadRow, source_id: str, target_id: str, spaces: dict[int, int], moving: Moving
) -> Program[None]:
    """Copy checkpoints and writes in the order they were committed in, which is their meaning."""
    checkpoints = yield Statement("checkpoints_of_thread", (source.thread,))
    written = yield Statement("writes_of_thread", (source.thread,))
    undone = yield Statement("undone_of_thread", (source.thread,))
    # A rollback's sequence has no row of its own, and its place in the order is what its marks mean.
    order = sorted({columns[0] for columns in (*checkpoints, *written)} | {mark for _, mark in undone})
    last = (yield Statement("advance_sequence", (len(order),)))[0][0]
    moved = {old: new for new, old in enumerate(order, last - len(order) + 1)}
    for old, space, ns, *columns in sorted([*checkpoints, *written], key=lambda columns: columns[0]):
        seq = moved[old]
        if len(columns) == 6:
            yield from _copy_checkpoint(source_id, target_id, ns, columns, spaces[space], seq, moving)
        else:
            yield from _copy_writes(source_id, target_id, ns, columns, spaces[space], seq, moving)
    for old, mark in undone:
        yield Statement("undo_checkpoints", (json.dumps([moved[old]]), moved[mark]))
        yield Statement("undo_writes", (json.dumps([moved[old]]), moved[mark]))


def _copy_checkpoint(
    source_id: str, target_id: str, ns: str, columns: Sequence[Any], space: int, seq: int, moving: Moving
) -> Program[None]:
    row = checkpoint_row(source_id, ns, columns, moving.old)
    place = row.place._replace(thread_id=target_id)
    here = rows.checkpoint_coordinates(row.place, row.parent_id, row.seq, row.run_id)
    there = rows.checkpoint_coordinates(place, row.parent_id, seq, row.run_id)
    framed = moved(frame.CHECKPOINT_ROW, row.frame, row.place, here, there, moving)
    parts = (seq, space, columns[1], columns[2], columns[3], framed, row.seq)
    yield Statement("insert_copied_checkpoint", parts)
    if row.history is not None:
        here, there = rows.history_coordinates(row.place, row.seq), rows.history_coordinates(place, seq)
        framed = moved(frame.HISTORY_ROW, row.history, row.place, here, there, moving)
        yield Statement("set_history", (seq, framed))


def _copy_writes(
    source_id: str, target_id: str, ns: str, columns: Sequence[Any], space: int, seq: int, moving: Moving
) -> Program[None]:
    old_seq, checkpoint, task, run, framed = columns
    place = Place(source_id, ns, ids.expand(checkpoint))
    run_id = text(run)
    here = rows.writes_coordinates(place, old_seq, run_id)
    there = rows.writes_coordinates(place._replace(thread_id=target_id), seq, run_id)
    framed = moved(frame.WRITES_ROW, framed, place, here, there, moving)
    yield Statement("insert_writes", (seq, space, checkpoint, task, run, framed))


def moved(
    codec: int, framed: bytes, place: Place, here: frame.Coordinates, there: frame.Coordinates, moving: Moving
) -> bytes:
    """A row's frame, framed anew for another place."""
    try:
        payload = frame.open_row(codec, framed, here, moving.old)
    except frame.FrameError as exc:
        raise damaged(place, "a row", exc) from exc
    return frame.seal_row(codec, payload, there, moving.compression, moving.new)
