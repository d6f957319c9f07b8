"""The sealed head of a thread: what its rows are, so that a row that was removed or put back is noticed.

It stands sealed in the thread's row, bound to the numbers there, and is written by every write that moves the thread.
Of each namespace it knows the newest checkpoint, that one's history record, and the rows of pending writes of that
checkpoint and of those still to come. What it knows of the namespaces written last (`SPACES_AT_MOST`) stands in it;
of each other one it is *parked*: sealed in the namespace's own row, and summed up in the head, which so doesn't grow.
Of the whole thread it knows the sum of the rows, how many frames the data key has sealed, and the revision of the
credentials.

A Heads and a SpaceHead are never changed: who writes makes new ones, so that what was opened once can be kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
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


@dataclass(frozen=True, slots=True)
class SpaceHead:
    """What is newest in one namespace.

    Attributes:
        number: the number of the namespace's row.
        newest: commit sequence of its newest checkpoint; 0 when it has only pending writes.
        history: the end of that checkpoint's history record, or b"".
        writes: by checkpoint, a digest over the commit sequences of its rows of writes: of the newest one, and of
            those not stored yet. None: not known, since they were too many; it stays so until the thread is pruned.
    """

    number: int
    newest: int = 0
    history: bytes = b""
    writes: Mapping[Key, bytes] | None = field(default_factory=dict)

    def packed(self) -> tuple[Any, ...]:
        return self.number, self.newest, self.history, None if self.writes is None else list(self.writes.items())

    @classmethod
    def unpacked(cls, parts: list[Any]) -> SpaceHead:
        number, newest, history, writes = parts
        return cls(number, newest, history, None if writes is None else {key: mark for key, mark in writes})


class At(NamedTuple):
    """The namespace that a write goes to: its name, the number of its row, and the thread's secret."""

    ns: str
    number: int
    secret: Secret


@dataclass(frozen=True, slots=True)
class Heads:
    """A thread's sealed head.

    Attributes:
        frames: how many frames its data key has sealed.
        rows: the sum, modulo 2^64, of `row_mark` of its rows.
        parked: how many namespaces are parked.
        parked_sum: the sum, modulo 2^64, of `parked_mark` of those.
        vault: the revision of the thread's credentials; 0: it has none.
        spaces: by the mark of a namespace's name, written last at the end.
    """

    frames: int = 0
    rows: int = 0
    parked: int = 0
    parked_sum: int = 0
    vault: int = 0
    spaces: Mapping[bytes, SpaceHead] = field(default_factory=dict)

    def space(self, ns: str, secret: Secret) -> SpaceHead | None:
        return self.spaces.get(space_name(ns, secret))

    def put(self, at: At, key: Key, before: Key | None, seq: int, frames: int) -> Heads:
        """The head when a checkpoint was stored as the newest of its namespace, in place of `before`."""
        name = space_name(at.ns, at.secret)
        space = self.spaces.get(name)
        writes: Mapping[Key, bytes] | None = {key: b""}
        if space is not None and space.writes is not None:
            writes = {**space.writes}
            if before is not None:
                writes.pop(before, None)
            writes.setdefault(key, b"")
        elif space is not None:
            writes = None
        return self._after(name, SpaceHead(at.number, seq, b"", writes), seq, at.secret, frames)

    def wrote(self, at: At, key: Key, seq: int, front: bool, frames: int) -> Heads:
        """The head when pending writes were stored; `front`: to the newest checkpoint or one not stored yet."""
        name = space_name(at.ns, at.secret)
        space = self.spaces.get(name) or SpaceHead(at.number)
        if front and space.writes is not None:
            writes = {**space.writes, key: chained(space.writes.get(key, b""), seq)}
            known = None if len(writes) > _AHEAD_AT_MOST else writes
            space = SpaceHead(space.number, space.newest, space.history, known)
        return self._after(name, space, seq, at.secret, frames)

    def _after(self, name: bytes, space: SpaceHead, seq: int, secret: Secret, frames: int) -> Heads:
        spaces = {**self.spaces}
        spaces.pop(name, None)
        spaces[name] = space
        sealed = self.frames + frames + 2
        if sealed >= FRAMES_AT_MOST:
            raise UnavailableError(
                f"the thread's data key has sealed {sealed} frames, and seals no more than {FRAMES_AT_MOST}; "
                f"nothing of this call was stored. `agent-ckpt keys rotate --compromised` gives every thread a new one"
            )
        rows = (self.rows + row_mark(seq, secret)) % ROWS
        return Heads(sealed, rows, self.parked, self.parked_sum, self.vault, spaces)


def chained(before: bytes, seq: int) -> bytes:
    """The digest over commit sequences, with one more."""
    return blake2b(before + seq.to_bytes(8, "big"), digest_size=_MARK).digest()


def over(seqs: Iterable[int]) -> bytes:
    """The digest over commit sequences, in order."""
    found = b""
    for seq in seqs:
        found = chained(found, seq)
    return found


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


def park(secret: Secret, thread: int, name: bytes, space: SpaceHead) -> bytes:
    """A namespace's part of the head, as it stands in the namespace's own row."""
    return secret.cipher.seal(_HEADER, pack_made(space.packed()), ("parked", thread, space.number, name))


def unpark(secret: Secret, thread: int, name: bytes, number: int, sealed: bytes) -> SpaceHead:
    """Undo `park`.

    Raises:
        UnsealError: when it isn't that namespace's.
    """
    return SpaceHead.unpacked(unpack(secret.cipher.open(_HEADER, sealed, ("parked", thread, number, name))))


def seal(secret: Secret, row: ThreadRow) -> bytes:
    """The sealed head of a thread at the numbers in its row, with the session that wrote it."""
    found: Heads = row.heads if row.heads is not None else Heads()
    spaces = [(name, space.packed()) for name, space in found.spaces.items()]
    payload = pack_made((row.session, found.frames, found.rows, found.parked, found.parked_sum, found.vault, spaces))
    here = ("head", row.thread, row.revision, row.next_blob, row.collected)
    sealed = secret.cipher.seal(_HEADER, payload, here)
    secret.last_head = (sealed, here, row.session, found)
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
    payload = unpack(secret.cipher.open(_HEADER, sealed, here))
    session, frames, rows, parked, parked_sum, vault, spaces = payload
    by_name = {name: SpaceHead.unpacked(parts) for name, parts in spaces}
    found = Heads(frames, rows, parked, parked_sum, vault, by_name)
    secret.last_head = (sealed, here, session, found)
    return session, found
