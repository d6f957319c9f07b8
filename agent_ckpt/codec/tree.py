"""How a value stands in parts: sequences, the groups they close into, and references.

A list is stored by item, a dict by key, a long text by piece. A sequence's references are grouped
where its content says so (a group closes after a part whose address ends in six zero bits, or after
256 references), and each closed group is a blob of its own, level upon level, as in a prolly tree.
So a checkpoint that appends one item holds a few dozen one-byte references, whatever the list's
length, and an edit in the middle closes at most a few groups anew. A group and a composite
reference carry a check that binds the addresses of what they refer to. A group of a list's
items has a sum over their bodies besides, so that who reads it whole need not take each one's address.

Composite reference: `[kind, count, check, refs]`, with numbers in `refs` as differences to the one
before; groups stand in the same list, oldest first, and are told from leaves by their codec.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from zlib import crc32

from agent_ckpt.codec import digest, frame
from agent_ckpt.codec.messages import Template
from agent_ckpt.codec.pack import pack, unpack
from agent_ckpt.codec.stretches import Run
from agent_ckpt.model import Entry, Ref

LIST = 1
DICT = 2
TEXT = 3
BYTES = 4
SNAPSHOT = 5
OPAQUE = 6
LEAF = 7

GROUP_AT_MOST = 256
_CUT_MASK = 63

Part = Any
"""Entry, bytes (an inline body), or Seq."""


class State:
    """A sequence as it is stored, for the next plan and the next read.

    Attributes:
        kind: its kind.
        keys: for DICT, the keys in order.
        bodies: the body of each part; for a long text or byte string, the value alone.
        nested: whether a part is a sequence itself.
        refs, addresses, cuts: the first level, as in Level.
        groups: the closed groups of the first level: start, end, entry.
        ref: the reference of the whole.
        reads: how often it was read from memory.
        templates: of the leading stretches of a LIST that was read more than once.
        run: of a LIST of messages that was planned before, to see quickly that it is the same.
    """

    __slots__ = (
        "addresses", "bodies", "cuts", "groups", "keys", "kind", "nested", "reads", "ref", "refs", "run", "templates",
    )  # fmt: skip

    def __init__(self, kind: int, bodies: list[Any], keys: list[str] | None, nested: bool) -> None:
        self.kind = kind
        self.keys = keys
        self.bodies = bodies
        self.nested = nested
        self.refs: list[Ref] = []
        self.addresses: list[bytes] = []
        self.cuts: list[bool] = []
        self.groups: list[tuple[int, int, Entry]] = []
        self.ref: Ref = None
        self.reads = 0
        self.templates: list[Template | None] = []
        self.run: Run | None = None

    def add(self, ref: Ref, entry: Entry | None) -> None:
        """Add a reference of the first level, as `first_level` does."""
        cut = False
        if type(ref) is str and self.keys is not None:
            self.keys.append(ref)
        else:
            body = entry.body if entry is not None else ref
            self.bodies.append(body)
            if self.keys:
                cut = cuts_after_key(self.keys[-1])
            elif entry is not None:
                cut = cuts_after(entry.digest)
            else:
                cut = cuts_after_inline(body)
        self.refs.append(ref)
        self.addresses.append(entry.digest if entry is not None else b"")
        self.cuts.append(cut)


class Kept:
    """A part or value that is stored as it is, so that its reference is all that is needed."""

    __slots__ = ("address", "ref")

    def __init__(self, ref: Ref, address: bytes = b"") -> None:
        self.ref = ref
        self.address = address


class Seq:
    """A sequence to be stored.

    Attributes:
        kind, keys: as in State.
        bodies: as in State; empty where no state is to be kept.
        same: how many leading parts stand as in `before`.
        before: the state that those are taken from.
        parts: the parts after them.
        run: as in State.
        state: what it became, set when it is assembled.
    """

    __slots__ = ("before", "bodies", "keys", "kind", "parts", "run", "same", "state")

    def __init__(
        self,
        kind: int,
        parts: list[Part],
        keys: list[str] | None = None,
        bodies: list[Any] | None = None,
        before: State | None = None,
        same: int = 0,
    ) -> None:
        self.kind = kind
        self.parts = parts
        self.keys = keys
        self.bodies = bodies if bodies is not None else []
        self.before = before
        self.same = same
        self.run: Run | None = None
        self.state: State | None = None

    @property
    def count(self) -> int:
        return self.same + len(self.parts)


Plan = Entry | bytes | Seq | Kept


def entries_of(plan: Plan) -> Iterator[Entry]:
    """Every blob that a plan may have to store, groups aside."""
    stack: list[Part] = [plan]
    while stack:
        part = stack.pop()
        if type(part) is Entry:
            yield part
        elif type(part) is Seq:
            stack.extend(part.parts)


def sequences_of(plan: Plan) -> Iterator[tuple[int, Seq]]:
    """Every sequence of a plan with its depth."""
    stack: list[tuple[int, Part]] = [(0, plan)]
    while stack:
        depth, part = stack.pop()
        if type(part) is Seq:
            yield depth, part
            stack.extend((depth + 1, inner) for inner in part.parts if type(inner) is Seq)


class Level:
    """A sequence's references while its groups are being closed.

    Attributes:
        refs: absolute references; in a DICT's first level, key and reference in turn.
        addresses: for each reference that is a number, its address; else b"".
        cuts: whether a group closes after the reference.
        groups: groups that are closed already, from the front.
    """

    __slots__ = ("addresses", "cuts", "groups", "refs")

    def __init__(self) -> None:
        self.refs: list[Ref] = []
        self.addresses: list[bytes] = []
        self.cuts: list[bool] = []
        self.groups: list[tuple[int, int, Entry]] = []

    def add(self, ref: Ref, address: bytes, cut: bool) -> None:
        self.refs.append(ref)
        self.addresses.append(address)
        self.cuts.append(cut)

    def spans(self) -> tuple[list[tuple[int, int]], int]:
        """The groups to close after the closed ones, as (start, end); and where the open rest starts."""
        closed: list[tuple[int, int]] = []
        start = self.groups[-1][1] if self.groups else 0
        size = len(self.cuts)
        while True:
            try:
                end = self.cuts.index(True, start) + 1
            except ValueError:
                end = size + 1
            while end - start > GROUP_AT_MOST and size - start >= GROUP_AT_MOST:
                closed.append((start, start + GROUP_AT_MOST))
                start += GROUP_AT_MOST
            if end > size:
                return closed, start
            if end > start:
                closed.append((start, end))
                start = end


def cuts_after(address: bytes) -> bool:
    return address[-1] & _CUT_MASK == 0


def cuts_after_inline(body: Any) -> bool:
    return crc32(body) & _CUT_MASK == 0


def cuts_after_key(key: str) -> bool:
    return crc32(key.encode("utf-8", "surrogatepass")) & _CUT_MASK == 0


def first_level(seq: Seq, number_of: Callable[[Entry], int]) -> Level:
    """The references of a sequence's own parts; sequences among them were assembled before."""
    level = Level()
    before, same = seq.before, seq.same
    if before is not None and same:
        level.refs = before.refs[:same]
        level.addresses = before.addresses[:same]
        level.cuts = before.cuts[:same]
        level.groups = [group for group in before.groups if group[1] <= same]
    for at, part in enumerate(seq.parts):
        address = b""
        if type(part) is Entry:
            ref: Ref = number_of(part)
            address = part.digest
            cut = cuts_after(address)
        elif type(part) is bytes:
            ref, cut = part, cuts_after_inline(part)
        elif type(part) is Kept:
            ref, address, cut = part.ref, part.address, False
        else:
            ref = part.state.ref
            cut = cuts_after_inline(pack(ref))
        if seq.keys is not None:
            key = seq.keys[at]
            level.add(key, b"", False)
            cut = cuts_after_key(key)
        level.add(ref, address, cut)
    return level


def group_body(refs: list[Ref], addresses: list[bytes], secret: bytes, bodies: list[Any] | None = None) -> bytes:
    """The body of a closed group.

    Args:
        refs, addresses: as in Level.
        secret: the thread's.
        bodies: of a list's items, their bodies.
    """
    check = digest.combined(filter(None, addresses), secret)
    if bodies is not None:
        check += digest.summed(body for ref, body in zip(refs, bodies, strict=True) if type(ref) is int)
    return bytes((frame.NODE,)) + pack([check, differences(refs)])


def leaf(number: int, address: bytes, secret: bytes) -> Ref:
    """The reference of a value that is one blob."""
    return [LEAF, 1, digest.combined((address,), secret), [number]]


def composite(seq: Seq, refs: list[Ref], addresses: list[bytes], secret: bytes) -> Ref:
    """The reference of a whole sequence."""
    return [seq.kind, seq.count, digest.combined(filter(None, addresses), secret), differences(refs)]


def differences(refs: list[Ref]) -> list[Ref]:
    """Numbers as differences to the one before: mostly a byte each."""
    out: list[Ref] = []
    last = 0
    for ref in refs:
        if type(ref) is int:
            out.append(ref - last)
            last = ref
        else:
            out.append(ref)
    return out


def numbers(refs: list[Ref]) -> list[Ref]:
    """Undo `differences`."""
    out: list[Ref] = []
    last = 0
    for ref in refs:
        if type(ref) is int:
            last += ref
            out.append(last)
        else:
            out.append(ref)
    return out


def open_group(body: bytes) -> tuple[bytes, list[Ref]]:
    """The check of a group's body, which the sum follows where there is one, and its absolute references."""
    check, refs = unpack(body[1:])
    return check, numbers(refs)
