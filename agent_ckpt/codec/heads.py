"""The sealed head of a thread: what its newest rows are, so that a row put back from an older copy is noticed.

It stands sealed in the thread's row, bound to the thread's revision, and is written by every write that moves the
thread. It knows the namespaces written last (`SPACES_AT_MOST`), and of each its newest checkpoint, that one's history
record, and the rows of pending writes of that checkpoint and of those still to come; and of the whole thread, the sum
of its rows and how many frames its data key has sealed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import NamedTuple

from agent_ckpt.codec import frame
from agent_ckpt.codec.pack import pack, unpack
from agent_ckpt.errors import UnavailableError
from agent_ckpt.model import Secret

SPACES_AT_MOST = 8
FRAMES_AT_MOST = 1 << 32
_AHEAD_AT_MOST = 16
_HEADER = b"head:"
_MARK = 8
ROWS = 1 << 64

Key = bytes | str
"""A checkpoint's id as it stands in its row."""


@dataclass(slots=True)
class SpaceHead:
    """What is newest in one namespace.

    Attributes:
        newest: commit sequence of its newest checkpoint; 0 when it has only pending writes; None: not known.
        history: the end of that checkpoint's history record, or b"".
        writes: by checkpoint, a digest over the commit sequences of its rows of writes: of the newest one, and of
            those not stored yet. None: not known, since they were too many, or the namespace was not among those
            written last; it stays so until the thread is pruned.
    """

    newest: int | None = 0
    history: bytes = b""
    writes: dict[Key, bytes] | None = field(default_factory=dict)


class At(NamedTuple):
    """The namespace that a write goes to.

    Attributes:
        ns: its name.
        secret: the thread's secret.
        is_new: whether nothing was stored in it before.
    """

    ns: str
    secret: bytes
    is_new: bool


@dataclass(slots=True)
class Heads:
    """A thread's sealed head.

    Attributes:
        frames: how many frames its data key has sealed.
        rows: the sum, modulo 2^64, of `row_mark` of its rows.
        spaces: by the mark of a namespace's name, written last at the end.
    """

    frames: int = 0
    rows: int = 0
    spaces: dict[bytes, SpaceHead] = field(default_factory=dict)

    def space(self, ns: str, secret: bytes) -> SpaceHead | None:
        return self.spaces.get(_name(ns, secret))

    def put(self, at: At, key: Key, before: Key | None, seq: int, frames: int) -> None:
        """A checkpoint was stored as the newest of its namespace, in place of `before`."""
        space = self._touch(at)
        space.newest, space.history = seq, b""
        if space.writes is not None:
            if before is not None:
                space.writes.pop(before, None)
            space.writes.setdefault(key, b"")
        self._count(seq, at.secret, frames)

    def wrote(self, at: At, key: Key, seq: int, front: bool, frames: int) -> None:
        """Pending writes were stored; `front`: to the newest checkpoint or one not stored yet."""
        space = self._touch(at)
        if front and space.writes is not None:
            space.writes[key] = chained(space.writes.get(key, b""), seq)
            if len(space.writes) > _AHEAD_AT_MOST:
                space.writes = None
        self._count(seq, at.secret, frames)

    def _touch(self, at: At) -> SpaceHead:
        name = _name(at.ns, at.secret)
        space = self.spaces.pop(name, None) or (SpaceHead() if at.is_new else SpaceHead(None, b"", None))
        self.spaces[name] = space
        while len(self.spaces) > SPACES_AT_MOST:
            del self.spaces[next(iter(self.spaces))]
        return space

    def add(self, ns: str, secret: bytes, space: SpaceHead) -> None:
        """Set what is newest in a namespace, from what was read of it."""
        self.spaces[_name(ns, secret)] = space

    def _count(self, seq: int, secret: bytes, frames: int) -> None:
        self.rows = (self.rows + row_mark(seq, secret)) % ROWS
        self.frames += frames + 2
        if self.frames >= FRAMES_AT_MOST:
            raise UnavailableError(
                f"the thread's data key has sealed {self.frames} frames, and seals no more than {FRAMES_AT_MOST}; "
                f"nothing of this call was stored. `agent-ckpt keys rotate --compromised` gives every thread a new one"
            )


def chained(before: bytes, seq: int) -> bytes:
    """The digest over commit sequences, with one more."""
    return blake2b(before + seq.to_bytes(8, "big"), digest_size=_MARK).digest()


def over(seqs: Iterable[int]) -> bytes:
    """The digest over commit sequences, in order."""
    found = b""
    for seq in seqs:
        found = chained(found, seq)
    return found


def row_mark(seq: int, secret: bytes, undone: int = 0) -> int:
    """What a row adds to the sum of a thread's rows; `undone`: the mark of the rollback that undid it."""
    content = seq.to_bytes(8, "big") + undone.to_bytes(8, "big")
    return int.from_bytes(blake2b(content, digest_size=_MARK, key=secret).digest(), "big")


def history_mark(history: bytes | None) -> bytes:
    """What tells one history record from another: the end of its tag."""
    return history[-_MARK:] if history else b""


def _name(ns: str, secret: bytes) -> bytes:
    return blake2b(ns.encode("utf-8", "surrogatepass"), digest_size=_MARK, key=secret).digest()


def seal(secret: Secret, thread: int, revision: int, session: bytes | None, heads: Heads) -> bytes:
    """The sealed head of a thread at a revision, with the session that wrote it."""
    spaces = [
        [name, space.newest, space.history, None if space.writes is None else [list(w) for w in space.writes.items()]]
        for name, space in heads.spaces.items()
    ]
    payload = pack([session, heads.frames, heads.rows, spaces])
    return secret.cipher.seal(_HEADER, payload, ("head", thread, revision))


def open(secret: Secret, thread: int, revision: int, sealed: bytes | None) -> tuple[bytes | None, Heads]:
    """The session, and the head.

    Raises:
        UnsealError: when it isn't the head of that thread at that revision.
    """
    if sealed is None:
        raise frame.UnsealError("the thread's sealed head is missing", "plaintext")
    session, frames, rows, spaces = unpack(secret.cipher.open(_HEADER, sealed, ("head", thread, revision)))
    return session, Heads(
        frames,
        rows,
        {
            name: SpaceHead(newest, history, None if writes is None else {key: mark for key, mark in writes})
            for name, newest, history, writes in spaces
        },
    )
