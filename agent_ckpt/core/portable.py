"""A thread out of a store as a whole, and into one."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from agent_ckpt.backend import Program, Statement
from agent_ckpt.codec import digest, expand, frame, ids, rows
from agent_ckpt.codec.portable import CHECKPOINT, ROLLBACK, WRITES, Blob, Portable, Row
from agent_ckpt.core import packs
from agent_ckpt.core.flight import Rules, check_lease, lease_of
from agent_ckpt.core.manage import find_thread
from agent_ckpt.core.put import insert_thread
from agent_ckpt.core.rebuild import check_whole, rebuilt
from agent_ckpt.core.rows import checkpoint_row, damaged, first_blob, hidden, next_sequence, text
from agent_ckpt.core.verify import verify_thread
from agent_ckpt.core.writes import task_key
from agent_ckpt.errors import CorruptionError, UsageError
from agent_ckpt.model import Entry, Place, Secret, ThreadRow, WritesRow

_PAGE = 1000
_ROLLBACK = Row(ROLLBACK, 0, "", None, None, b"", None)
_MALFORMED = (TypeError, ValueError, KeyError, IndexError, AttributeError, RecursionError, OverflowError)


def collect(thread_id: str) -> Program[Portable]:
    """Read a thread whole, in one snapshot, and check every frame and address of it.

    Raises:
        UsageError: when it isn't stored.
        CorruptionError: when anything of it isn't what was stored.
    """
    thread = yield from find_thread(thread_id)
    if thread is None:
        raise UsageError(f"thread {thread_id!r} is not stored", thread_id=thread_id)
    yield from check_whole(thread, thread_id)
    spaces = yield Statement("spaces_of_thread", (thread.thread,))
    made = Portable(thread_id, bytes(thread.secret), thread.next_blob, [ns for _, ns in spaces])
    yield from _collect_blobs(thread_id, thread, made)
    index = {space: at for at, (space, _) in enumerate(spaces)}
    checkpoints = yield Statement("checkpoints_of_thread", (thread.thread,))
    written = yield Statement("writes_of_thread", (thread.thread,))
    undone: dict[int, int] = dict((yield Statement("undone_of_thread", (thread.thread,))))
    stored = {columns[0]: columns for columns in (*checkpoints, *written)}
    order = sorted({*stored, *undone.values()})
    at = {seq: number for number, seq in enumerate(order)}
    for seq in order:
        if seq not in stored:
            made.rows.append(_ROLLBACK)
            continue
        _, space, ns, *columns = stored[seq]
        opened = _open_checkpoint if len(columns) == 6 else _open_writes
        row = opened(thread_id, ns, index[space], columns, seq, thread.secret)
        made.rows.append(row._replace(undone=at[undone[seq]]) if seq in undone else row)
    return made


def _collect_blobs(thread_id: str, thread: ThreadRow, made: Portable) -> Program[None]:
    at = 0
    while True:
        page = yield from packs.page(thread.thread, thread.secret, at, _PAGE)
        for number, address, body in page:
            if isinstance(body, frame.FrameError):
                raise damaged(Place(thread_id, "", None), f"blob {number}", body) from body
            if digest.address(body, thread.secret) != address:
                raise _damaged_blob(thread_id, number, "its content does not match its address")
            made.blobs.append(Blob(number, address, body))
        if len(page) < _PAGE:
            return
        at = page[-1][0] + 1


def _damaged_blob(thread_id: str, number: int, why: str) -> CorruptionError:
    return CorruptionError(
        f"blob {number} of thread {thread_id!r} is not what was stored: {why}. The thread can't be taken out whole; "
        f"verify() lists all damage.",
        thread_id=thread_id,
    )


def _open_checkpoint(thread_id: str, ns: str, space: int, columns: Sequence[Any], seq: int, secret: bytes) -> Row:
    row = checkpoint_row(thread_id, ns, columns, secret)
    here = rows.checkpoint_coordinates(row.place, row.parent_id, seq, row.run_id)
    history = None
    try:
        payload = frame.open_row(frame.CHECKPOINT_ROW, row.frame, here, secret)
        if row.history is not None:
            here = rows.history_coordinates(row.place, seq)
            history = frame.open_row(frame.HISTORY_ROW, row.history, here, secret)
    except frame.FrameError as exc:
        raise damaged(row.place, "the row", exc) from exc
    return Row(CHECKPOINT, space, columns[1], columns[2], columns[3], payload, history)


def _open_writes(thread_id: str, ns: str, space: int, columns: Sequence[Any], seq: int, secret: bytes) -> Row:
    _, checkpoint, _, run, framed = columns
    place = Place(thread_id, ns, ids.expand(checkpoint))
    try:
        payload = frame.open_row(frame.WRITES_ROW, framed, rows.writes_coordinates(place, seq, text(run)), secret)
    except frame.FrameError as exc:
        raise damaged(place, "a row of pending writes", exc) from exc
    # A sealed thread's keys of tasks are its own; a file has those of a thread that isn't sealed.
    task = task_key(rows.open_writes(WritesRow(seq, place, text(run), framed, secret)).task_id, b"")
    return Row(WRITES, space, checkpoint, task, run, payload, None)


def store(made: Portable, thread_id: str, secret: bytes, compression: str, rules: Rules, name: str) -> Program[None]:
    """Store a thread under an id that no thread has, and check it where it stands.

    Args:
        made: the thread.
        thread_id: its id here.
        secret: the one it gets here, with its own key of addresses.
        compression: for its frames.
        rules: what decides whether that id may be written.
        name: what it came from, for messages.

    Raises:
        UsageError: when a thread of that id exists.
        ThreadConflictError: when another holds the lease of that id.
        CorruptionError: when something that it refers to is missing or another; nothing is stored.
    """
    check_lease(Place(thread_id, "", None), (yield from lease_of(thread_id)), None, rules, "the import was")
    if (yield from find_thread(thread_id)) is not None:
        raise UsageError(
            f"thread {thread_id!r} exists already. Nothing was changed; delete it first or choose another id",
            thread_id=thread_id,
        )
    thread = yield from next_sequence(Place(thread_id, "", None))
    base = first_blob(thread)
    marks = hidden(secret, [blob.address for blob in made.blobs])
    framed = [
        (base + blob.number, mark, frame.seal_blob(blob.body, compression, secret, blob.address))
        for blob, mark in zip(made.blobs, marks, strict=True)
    ]
    if framed:
        yield Statement("insert_blob", framed, many=True)
    yield from _pack(made, thread, secret, compression)
    spaces = []
    for ns in made.spaces:
        spaces.append((yield Statement("insert_space", (thread, ns)))[0][0])
    revision, seqs = thread, []
    for row in made.rows:
        revision = yield from next_sequence(Place(thread_id, "", None))
        seqs.append(revision)
        if row.kind != ROLLBACK:
            at = Place(thread_id, made.spaces[row.space], None)
            yield from _store_row(row, at, spaces, revision, compression, secret)
    for row, seq in zip(made.rows, seqs, strict=True):
        if row.undone is not None:
            yield Statement("undo_checkpoints", (json.dumps([seq]), seqs[row.undone]))
            yield Statement("undo_writes", (json.dumps([seq]), seqs[row.undone]))
    stored = ThreadRow(thread, revision, None, made.next_blob, 0, secret)
    yield from insert_thread((yield from rebuilt(stored)), thread_id)
    try:
        report = yield from verify_thread(thread_id, _Unread())  # type: ignore[arg-type]
    except _MALFORMED as exc:
        raise _inconsistent(name, f"{type(exc).__name__} in a row's payload") from exc
    wrong = [finding.detail for finding in report.findings if finding.kind in ("damaged", "missing")]
    if wrong:
        raise _inconsistent(name, f"{wrong[0]} ({len(wrong)} findings)")


def _pack(made: Portable, thread: int, secret: bytes, compression: str) -> Program[None]:
    """Move the messages of groups into packs, as a put that closes a group does."""
    bodies = {blob.number: blob.body for blob in made.blobs}
    for blob in made.blobs:
        if blob.body[:1] != bytes((frame.NODE,)):
            continue
        group = Entry(blob.body, blob.address, blob.number)
        try:
            refs = expand.children_of(group)
        except expand.DamagedRefError:
            continue  # the thread is verified at the end, which tells of it
        if expand.sum_of(group):
            items = [(ref, bodies[ref]) for ref in refs if type(ref) is int and ref in bodies]
            yield from packs.move(thread, secret, (blob.number, blob.address), items, compression)


def store_equal(
    made: Portable, thread_id: str, secret: bytes, compression: str, rules: Rules, name: str
) -> Program[None]:
    """`store`, and in the same transaction read back and compare.

    Raises:
        UsageError, CorruptionError: as `store`; also when what is read back is another thread.
    """
    yield from store(made, thread_id, secret, compression, rules, name)
    if not (yield from collect(thread_id)).equals(made):
        raise _inconsistent(name, "what was read back is not what was stored")


def _inconsistent(name: str, why: str) -> CorruptionError:
    return CorruptionError(f"{name} holds a thread that is not whole: {why:.300}. Nothing of it was stored.", path=name)


def _store_row(row: Row, at: Place, spaces: list[int], seq: int, compression: str, secret: bytes) -> Program[None]:
    place = at._replace(checkpoint_id=ids.expand(row.id))
    run = text(row.run)
    if row.kind == WRITES:
        there = rows.writes_coordinates(place, seq, run)
        framed = frame.seal_row(frame.WRITES_ROW, row.payload, there, compression, secret)
        task = row.parent
        if isinstance(secret, Secret):
            task = task_key(rows.open_writes(WritesRow(seq, place, run, framed, secret)).task_id, secret)
        yield Statement("insert_writes", (seq, spaces[row.space], row.id, task, row.run, framed))
        return
    parent = text(row.parent)
    there = rows.checkpoint_coordinates(place, parent, seq, run)
    framed = frame.seal_row(frame.CHECKPOINT_ROW, row.payload, there, compression, secret)
    yield Statement("insert_checkpoint", (seq, spaces[row.space], row.id, row.parent, row.run, framed))
    if row.history is not None:
        there = rows.history_coordinates(place, seq)
        framed = frame.seal_row(frame.HISTORY_ROW, row.history, there, compression, secret)
        yield Statement("set_history", (seq, framed))


class _Unread:
    """In place of a codec: values are not looked into, so that no class is needed."""

    def decode(self, body: bytes) -> None:
        """Nothing."""
