"""The sealed head of a thread: what its rows are, so that a row that was removed or put back is noticed.

It stands sealed in the thread's row, bound to the numbers there, and is written by every write that moves the thread.
It must not be readable: who saw the sums grow would know each row's mark, and could look for rows whose marks cancel.
Of each namespace it knows the newest checkpoint, that one's history record, and the rows of pending writes of that
checkpoint and of those still to come. What it knows of the namespaces written last (`SPACES_AT_MOST`) stands in it;
of each other one it is *parked*: sealed in the namespace's own row, and summed up in the head, which so doesn't grow.
Of the whole thread it knows the sum of the rows, how many frames the data key has sealed, and the revision of the
credentials.

A Heads and a SpaceHead are never changed: who writes makes new ones, so that what was opened once can be kept.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b
from typing import Any, NamedTuple

from agent_ckpt.codec import frame
from agent_ckpt.codec.pack import pack_made, unpack
from agent_ckpt.errors import UnavailableError
from agent_ckpt.model import Secret, ThreadRow

SPACES_AT_MOST = 8
FRAMES_AT_MOST = 1 << 32
_AHEAD_AT_MOST = 16
_HEADER = b"head:"
_MARK = 8
ROWS = 1 << 64

Numbers = tuple[int, int, int, int]
Key = bytes | str
"""A checkpoint's id as it stands in its row."""
Writes = tuple[tuple[Key, int], ...]


class SpaceHead(NamedTuple):
    """What is newest in one namespace.

    Attributes:
        name: the mark of its name.
        number: the number of the namespace's row.
        newest: commit sequence of its newest checkpoint; 0 when it has only pending writes.
        history: the end of that checkpoint's history record, or b"".
        writes: by checkpoint, the sum of `row_mark` of its row, where it is the newest one, and of its rows of writes:
            of the newest one, and of those not stored yet. None: not known, since they were too many; it stays so
            until the thread is pruned.
    """

    name: bytes
    number: int
    newest: int = 0
    history: bytes = b""
    writes: Writes | None = ()

    def sum_of(self, key: Key) -> int | None:
        """The sum of a checkpoint's marks; None where it isn't known."""
        for known, total in self.writes or ():
            if known == key:
                return total
        return None


class At(NamedTuple):
    """The namespace that a write goes to: its name, the number of its row, and the thread's secret."""

    ns: str
    number: int
    secret: Secret


class Heads(NamedTuple):
    """A thread's sealed head.

    Attributes:
        frames: how many frames its data key has sealed.
        rows: the sum, modulo 2^64, of `row_mark` of its rows.
        parked: how many namespaces are parked.
        parked_sum: the sum, modulo 2^64, of `parked_mark` of those.
        vault: the revision of the thread's credentials; 0: it has none.
        spaces: what is newest in its namespaces, the one written last at the end.
    """

    frames: int = 0
    rows: int = 0
    parked: int = 0
    parked_sum: int = 0
    vault: int = 0
    spaces: tuple[SpaceHead, ...] = ()

    def space(self, ns: str, secret: Secret) -> SpaceHead | None:
        return self.named(space_name(ns, secret))

    def named(self, name: bytes) -> SpaceHead | None:
        """The namespace with that mark of its name."""
        for space in self.spaces:
            if space.name == name:
                return space
        return None

    def put(self, at: At, key: Key, before: Key | None, seq: int, frames: int) -> Heads:
        """The head when a checkpoint was stored as the newest of its namespace, in place of `before`."""
        return self._after(at, key, seq, frames, seq, before)

    def wrote(self, at: At, key: Key, seq: int, front: bool, frames: int) -> Heads:
        """The head when pending writes were stored; `front`: to the newest checkpoint or one not stored yet."""
        return self._after(at, key if front else None, seq, frames, None, None)

    def _after(self, at: At, key: Key | None, seq: int, frames: int, newest: int | None, before: Key | None) -> Heads:
        """The head with one more row; one function for both, since each write runs it with a cold processor cache.

        Args:
            key: the checkpoint whose sum the row is added to, or None.
            newest: the row's commit sequence when it is a checkpoint.
            before: the checkpoint that isn't the newest any longer.
        """
        ns, number, secret = at
        all_frames, rows, parked, parked_sum, vault, spaces = self
        all_frames += frames + 2
        if all_frames >= FRAMES_AT_MOST:
            raise _used_up(all_frames)
        name, mark = secret.names.get(ns) or space_name(ns, secret), row_mark(seq, secret)
        if not spaces or spaces[-1][0] != name:
            found = self.named(name) or SpaceHead(name, number)
            spaces = (*(space for space in spaces if space[0] != name), found)
        _, number, stored, history, writes = spaces[-1]
        if key is not None and writes is not None:
            writes = _added(writes, key, mark, before)
        if newest is not None:
            stored, history = newest, b""
        space = SpaceHead(name, number, stored, history, writes)
        return Heads(all_frames, (rows + mark) % ROWS, parked, parked_sum, vault, (*spaces[:-1], space))

    def with_space(self, space: SpaceHead) -> Heads:
        """The head with what is newest in a namespace, as the one written last."""
        return self._replace(spaces=(*(each for each in self.spaces if each.name != space.name), space))


def _used_up(frames: int) -> UnavailableError:
    return UnavailableError(
        f"the thread's data key has sealed {frames} frames, and seals no more than {FRAMES_AT_MOST}; nothing of this "
        f"call was stored. `agent-ckpt keys rotate --compromised` gives every thread a new one"
    )


def _added(known: Writes, key: Key, mark: int, without: Key | None = None) -> Writes | None:
    """What is known of a namespace's writes, with one more mark at a checkpoint, and without another checkpoint.

    Its size hardly changes from write to write, so that SQLite overwrites the thread's row in place.
    """
    if len(known) == 1:
        ((only, sum_of_it),) = known
        if only == key:
            return ((key, (sum_of_it + mark) % ROWS),)
        if only == without:
            return ((key, mark),)
    before = next((sum_of_it for each, sum_of_it in known if each == key), 0)
    kept = (each for each in known if each[0] not in (key, without))
    made = (*kept, (key, (before + mark) % ROWS))
    return made if len(made) <= _AHEAD_AT_MOST else None


def total(seqs: Iterable[int], secret: Secret) -> int:
    """The sum, modulo 2^64, of the marks of rows."""
    return sum(row_mark(seq, secret) for seq in seqs) % ROWS


def row_mark(seq: int, secret: Secret, undone: int | None = None, history: bytes | None = None) -> int:
    """What a row adds to the sum of a thread's rows.

    Args:
        undone: the mark of the rollback that undid it.
        history: its history record, or the end of it.
    """
    content = seq.to_bytes(8, "big")
    if undone or history:
        content += (undone or 0).to_bytes(8, "big") + history_mark(history)
    return int.from_bytes(blake2b(content, digest_size=_MARK, key=secret).digest(), "big")


def parked_mark(number: int, sealed: bytes, secret: Secret) -> int:
    """What a parked namespace adds to their sum."""
    content = b"parked" + number.to_bytes(8, "big") + sealed
    return int.from_bytes(blake2b(content, digest_size=_MARK, key=secret).digest(), "big")


def history_mark(history: bytes | None) -> bytes:
    """What tells one history record from another: the end of its tag."""
    return history[-_MARK:] if history else b""


def space_name(ns: str, secret: Secret) -> bytes:
    """What a namespace is known by in a sealed head."""
    found = secret.names.get(ns)
    if found is None:
        if len(secret.names) >= _NAMES_KEPT:
            secret.names.clear()
        raw = ns.encode("utf-8", "surrogatepass")
        found = secret.names[ns] = blake2b(raw, digest_size=_MARK, key=secret).digest()
    return found


_NAMES_KEPT = 256


def park(secret: Secret, thread: int, space: SpaceHead) -> bytes:
    """A namespace's part of the head, as it stands in the namespace's own row."""
    here = ("parked", thread, space.number, space.name)
    return secret.cipher.seal(_HEADER, pack_made(tuple(space)), here)


def unpark(secret: Secret, thread: int, name: bytes, number: int, sealed: bytes) -> SpaceHead:
    """Undo `park`.

    Raises:
        UnsealError: when it isn't that namespace's.
    """
    return _space(unpack(secret.cipher.open(_HEADER, sealed, ("parked", thread, number, name))))


def seal(secret: Secret, row: ThreadRow) -> bytes:
    """The sealed head of a thread at the numbers in its row, with the session that wrote it."""
    thread, revision, session, next_blob, collected, _, found = row
    if found is None:
        found = Heads()
    frames, rows, parked, parked_sum, vault, spaces = found
    payload = pack_made((session, frames, rows, parked, parked_sum, vault, [tuple(space) for space in spaces]))
    here = ("head", thread, revision, next_blob, collected)
    sealed = secret.cipher.seal(_HEADER, payload, here)
    secret.last_head = (sealed, here, session, found)
    return sealed


def open(secret: Secret, at: Numbers, sealed: bytes | None) -> tuple[bytes | None, Heads]:
    """The session, and the head.

    Args:
        at: the numbers in the thread's row: thread, revision, next_blob, collected.

    Raises:
        UnsealError: when it isn't the head of that thread at those numbers.
    """
    if sealed is None:
        raise frame.UnsealError("the thread's sealed head is missing", "plaintext")
    here, known = ("head", *at), secret.last_head
    if known is not None and known[0] == sealed and known[1] == here:
        return known[2], known[3]
    session, frames, rows, parked, parked_sum, vault, spaces = unpack(secret.cipher.open(_HEADER, sealed, here))
    found = Heads(frames, rows, parked, parked_sum, vault, tuple(map(_space, spaces)))
    secret.last_head = (sealed, here, session, found)
    return session, found


def _space(parts: list[Any]) -> SpaceHead:
    name, number, newest, history, writes = parts
    known = None if writes is None else tuple((key, sum_of_it) for key, sum_of_it in writes)
    return SpaceHead(name, number, newest, history, known)
