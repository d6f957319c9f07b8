"""Keys of a whole store: wrapping them anew, and framing threads anew under other keys.

These programs see rows as they stand in the file, so they are never run translated.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from agent_ckpt.backend import Program, Row, Statement
from agent_ckpt.codec import frame, ids, rows
from agent_ckpt.codec.heads import Heads
from agent_ckpt.core.manage import reseal_blobs
from agent_ckpt.core.rebuild import check_whole, rebuilt
from agent_ckpt.core.rows import (
    SECRET_SIZE,
    checkpoint_row,
    damaged,
    next_sequence,
    session_column,
    stored_secret,
    thread_row,
    unsealed,
    writes_row,
)
from agent_ckpt.core.storekeys import StoreKeys, store_state
from agent_ckpt.core.translate import translated
from agent_ckpt.core.writes import task_key
from agent_ckpt.model import Place, ThreadRow

PAGE = 1000

ThreadKey = tuple[int, Any, bytes]
"""A thread's number, and its id and secret as they are stored."""


def set_first_seal(with_threads: bytes, empty: bytes) -> Program[bytes]:
    """Seal the row of a store that isn't sealed; what stands there then. Leases end: nobody else is on the file."""
    _, _, stored, threads = yield from store_state()
    if stored is None:
        stored = with_threads if threads else empty
        yield Statement("drop_leases")
        yield Statement("drop_waiters")
        yield Statement("set_seal", (stored,))
    return stored


def set_seal(before: bytes | None, after: bytes | None) -> Program[bool]:
    """Change the store's seal, if it is still the one before."""
    _, _, stored, _ = yield from store_state()
    if stored != before:
        return False
    yield Statement("set_seal", (after,))
    return True


def end_migration(before: bytes, after: bytes | None) -> Program[bool]:
    """Take the mark of a migration off the store's seal, if no thread is left to do."""
    _, _, stored, _ = yield from store_state()
    sealed = after is not None
    at = 0
    while True:
        page = yield Statement("thread_keys_page", (at, PAGE))
        if stored != before or any((len(secret) == SECRET_SIZE) == sealed for _, _, secret in page):
            return False
        if len(page) < PAGE:
            yield Statement("set_seal", (after,))
            yield Statement("drop_leases")
            yield Statement("drop_waiters")
            return True
        at = page[-1][0]


def thread_keys(after: int) -> Program[list[ThreadKey]]:
    """A page of the keys of threads, above a thread's number."""
    page = yield Statement("thread_keys_page", (after, PAGE))
    return [(thread, thread_id, secret) for thread, thread_id, secret in page]


def set_thread_keys(changes: list[tuple[int, bytes, bytes]]) -> Program[None]:
    """Change wrapped keys: thread, before, after. One that was changed meanwhile is left."""
    yield Statement("set_thread_key", changes, many=True)


def rename(before: StoreKeys, after: StoreKeys) -> Program[bool]:
    """Seal every name of the store anew, with the store's seal, in one transaction."""
    if not (yield from set_seal(before.stored, after.stored)):
        return False
    spaces = yield Statement("names_of_spaces")
    yield Statement("set_space_as_stored", _renamed("ns", spaces, before, after), many=True)
    threads = yield Statement("names_of_threads")
    yield Statement("set_thread_name", _renamed("thread", threads, before, after), many=True)
    vaults = yield Statement("names_of_vaults")
    yield Statement("rename_vault", _renamed("thread", vaults, before, after), many=True)
    runs = _renamed("run", (yield Statement("names_of_runs")), before, after)
    yield from _rename_leases(before, after)
    yield Statement("rename_run_of_checkpoints", runs, many=True)
    yield Statement("rename_run_of_writes", runs, many=True)
    return True


def _rename_leases(before: StoreKeys, after: StoreKeys) -> Program[None]:
    """Names of leases and of who waits for them."""
    changes = []
    for thread_id, label in (yield Statement("names_of_leases")):
        changes.append((thread_id, _name("thread", thread_id, before, after), _name("label", label, before, after)))
    yield Statement("rename_lease", changes, many=True)
    waiters = yield Statement("names_of_waiters")
    changed = [(thread_id, _name("thread", thread_id, before, after)) for (thread_id,) in waiters]
    yield Statement("rename_waiters", changed, many=True)


def _name(role: str, stored: Any, before: StoreKeys, after: StoreKeys) -> Any:
    """What is to stand for a name."""
    try:
        name = before.open_name(role, stored)
    except frame.UnsealError as exc:
        raise unsealed(Place("", "", None), f"a name ({role})", exc.detail or frame.NOT_HERE, exc.reason) from exc
    return after.seal_name(role, name)


def _renamed(role: str, found: list[Row], before: StoreKeys, after: StoreKeys) -> list[tuple[Any, Any]]:
    """What identifies a row, and the name that is to stand in it."""
    return [(columns[0], _name(role, columns[-1], before, after)) for columns in found]


@dataclass(frozen=True, slots=True)
class Recast:
    """How one thread is framed anew.

    Attributes:
        thread, thread_id: the thread.
        stored: its secret as it stood when this was made; a thread that has another one is left.
        old, new: the secrets before and after.
        old_keys, new_keys: the store's keys before and after; None for plaintext.
        compression: of the new frames.
    """

    thread: int
    thread_id: str
    stored: bytes
    old: bytes
    new: bytes
    old_keys: StoreKeys | None
    new_keys: StoreKeys | None
    compression: str

    def name(self, role: str, stored: Any) -> tuple[Any, Any]:
        """A name, and what will stand for it."""
        try:
            name = self.old_keys.open_name(role, stored) if self.old_keys is not None else stored
        except frame.UnsealError as exc:
            place = Place(self.thread_id, "", None)
            raise unsealed(place, f"a name ({role})", exc.detail or frame.NOT_HERE, exc.reason) from exc
        return name, self.new_keys.seal_name(role, name) if self.new_keys is not None else name


def recast(job: Recast) -> Program[bool]:
    """Frame everything of a thread anew, in one transaction; False when it was changed meanwhile.

    Raises:
        CorruptionError: when something of it isn't what was stored; nothing is changed then.
    """
    found = yield Statement("thread_as_stored", (job.thread,))
    if not found or found[0][5] != job.stored:
        return False
    row = thread_row((*found[0][:5], job.old), job.thread_id)
    yield from _check_head(row, job)
    yield from reseal_blobs(job.thread_id, job.thread, job.old, job.new, job.compression)
    spaces = yield Statement("spaces_of_thread", (job.thread,))
    names = {stored: job.name("ns", stored) for _, stored in spaces}
    yield from _checkpoints(job, {stored: name for stored, (name, _) in names.items()})
    yield from _writes(job, {stored: name for stored, (name, _) in names.items()})
    yield Statement("set_space_as_stored", [(space, names[stored][1]) for space, stored in spaces], many=True)
    collected = yield from next_sequence(Place(job.thread_id, "", None))
    stored_id = job.name("thread", found[0][6])[1]
    yield Statement("unpark_spaces", (job.thread,))
    # Under a new data key the count of its frames begins anew.
    fresh = Heads(row.next_blob, vault=row.heads.vault if row.heads is not None else 0)
    row = row._replace(secret=job.new, collected=collected, heads=fresh)
    if job.new_keys is not None:
        row = yield from translated(partial(rebuilt, row), job.new_keys)
    columns = (job.thread, stored_id, session_column(row), collected, stored_secret(job.new))
    yield Statement("set_thread_as_stored", columns)
    return True


def _check_head(row: ThreadRow, job: Recast) -> Program[None]:
    """What was put back from an older copy must not be sealed anew as if it were right."""
    if job.old_keys is not None:
        yield from translated(partial(check_whole, row, job.thread_id), job.old_keys)


def _checkpoints(job: Recast, names: dict[Any, str]) -> Program[None]:
    changes = []
    for _, _, ns, *columns in (yield Statement("checkpoints_of_thread", (job.thread,))):
        columns[3], run = job.name("run", columns[3])
        row = checkpoint_row(job.thread_id, names[ns], columns, job.old)
        here = rows.checkpoint_coordinates(row.place, row.parent_id, row.seq, row.run_id)
        framed = _again(job, frame.CHECKPOINT_ROW, row.frame, row.place, here)
        history = None
        if row.history is not None:
            here = rows.history_coordinates(row.place, row.seq)
            history = _again(job, frame.HISTORY_ROW, row.history, row.place, here)
        changes.append((row.seq, run, framed, history))
    yield Statement("set_checkpoint_as_stored", changes, many=True)


def _writes(job: Recast, names: dict[Any, str]) -> Program[None]:
    changes = []
    for _, _, ns, seq, checkpoint, _, stored, framed in (yield Statement("writes_of_thread", (job.thread,))):
        name, run = job.name("run", stored)
        row = writes_row(Place(job.thread_id, names[ns], ids.expand(checkpoint)), (seq, name, framed), job.old)
        here = rows.writes_coordinates(row.place, seq, row.run_id)
        again = _again(job, frame.WRITES_ROW, framed, row.place, here)
        changes.append((seq, task_key(rows.open_writes(row).task_id, job.new), run, again))
    yield Statement("set_writes_as_stored", changes, many=True)


def _again(job: Recast, codec: int, framed: bytes, place: Place, here: frame.Coordinates) -> bytes:
    try:
        payload = frame.open_row(codec, framed, here, job.old)
    except frame.FrameError as exc:
        raise damaged(place, "a row", exc) from exc
    return frame.seal_row(codec, payload, here, job.compression, job.new)
