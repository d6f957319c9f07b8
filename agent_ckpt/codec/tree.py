"""How a value is stored in parts, and put together again.

A value becomes a *plan*: a leaf (one blob, or inline where it is tiny), or a sequence of children.
Lists go by item, dicts by key, long texts by piece. A sequence's references are grouped where its
content says so (a group closes after a child whose address ends in six zero bits, or after 256),
and each closed group is a blob of its own, level upon level, as in a prolly tree. So a checkpoint
that appends one item holds a few dozen one-byte references, whatever the list's length, and an edit
in the middle closes at most a few groups anew. A group and a composite reference carry a check that
binds the addresses of what they refer to.

Composite reference: `[kind, count, check, refs]`, with numbers in `refs` as differences to the one
before; groups stand in the same list, oldest first, and are told from leaves by their codec.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from zlib import crc32

from agent_ckpt.codec import digest, frame, pieces
from agent_ckpt.codec.arrays import KnownArray, describe, smallest_body
from agent_ckpt.codec.pack import pack, unpack
from agent_ckpt.codec.values import DeltaSnapshot, ValueCodec
from agent_ckpt.model import Entry, Ref

LIST = 1
DICT = 2
TEXT = 3
BYTES = 4
SNAPSHOT = 5
OPAQUE = 6
LEAF = 7

INLINE_UP_TO = 48
"""A body of up to this many bytes stands in the row that refers to it."""
DICT_WHOLE_UP_TO = 1024
LIST_WHOLE_UP_TO = 256
SPLIT_ABOVE = pieces.CUT_ABOVE
GROUP_AT_MOST = 256
_CUT_MASK = 63
_DEEPEST = 16

Child = Any
"""Entry, bytes (an inline body), or Seq."""


class Seq:
    """A composite value in the making.

    Attributes:
        kind: LIST, DICT, TEXT, BYTES, SNAPSHOT or OPAQUE.
        keys: for DICT, the keys; else None.
        children: the planned parts, in order.
    """

    __slots__ = ("children", "keys", "kind")

    def __init__(self, kind: int, children: list[Child], keys: list[str] | None = None) -> None:
        self.kind = kind
        self.children = children
        self.keys = keys


Plan = Entry | bytes | Seq


class Planner:
    """Plans values for one thread; finds what is already known by its bytes.

    Args:
        codec: the value codec.
        entry_of: gives the Entry of a body, the known one or a new one.
        previous: gives the items of the list that stood under a path before, if known.
        array_before: the same for an array.

    Attributes:
        lists, arrays: what this plan leaves under each path, for the next one.
    """

    def __init__(
        self,
        codec: ValueCodec,
        entry_of: Callable[[bytes], Entry],
        previous: Callable[[str], list[Entry | bytes] | None],
        array_before: Callable[[str], KnownArray | None],
    ) -> None:
        self._codec = codec
        self._entry_of = entry_of
        self._previous = previous
        self._array_before = array_before
        self.lists: dict[str, list[Entry | bytes]] = {}
        self.arrays: dict[str, KnownArray] = {}

    def plan(self, value: Any, path: str, depth: int = 0) -> Plan:
        """Plan a value.

        Raises:
            ValueNotStorableError: naming the path of the part that can't be kept.
        """
        if not self._codec.splits:
            return self._plan_opaque(self._encode(value, path))
        kind = type(value)
        if kind is DeltaSnapshot:
            return Seq(SNAPSHOT, [self.plan(value.value, path, depth + 1)])
        if kind is list:
            return self._plan_list(value, path, depth)
        if kind is dict:
            return self._plan_dict(value, path, depth)
        if kind is str and len(value) > SPLIT_ABOVE:
            return self._plan_long(value, path)
        if kind is bytes and len(value) > SPLIT_ABOVE:
            return Seq(BYTES, [self._entry_of(_PIECE + piece) for piece in pieces.cut(value)])
        array = describe(value)
        if array is not None:
            return self._plan_array(*array, path)
        return self._plan_opaque(self._encode(value, path))

    def _encode(self, value: Any, path: str) -> bytes:
        try:
            return self._codec.encode(value)
        except Exception as exc:
            raise self._codec.refuse(value, path, exc) from exc

    def _leaf(self, body: bytes) -> Entry | bytes:
        return body if len(body) <= INLINE_UP_TO else self._entry_of(body)

    def _plan_opaque(self, body: bytes) -> Plan:
        """A body that can't be split by its structure, cut where it is long."""
        if len(body) <= SPLIT_ABOVE:
            return self._leaf(body)
        return Seq(OPAQUE, [self._entry_of(_PIECE + piece) for piece in pieces.cut(body)])

    def _plan_long(self, value: str, path: str) -> Plan:
        try:
            raw = value.encode()
        except UnicodeEncodeError:
            return self._leaf(self._encode(value, path))
        return Seq(TEXT, [self._entry_of(_PIECE + piece) for piece in pieces.cut(raw)])

    def _plan_array(self, shape: list[Any], raw: bytes, width: int, path: str) -> Entry:
        before = self._array_before(path)
        if before is not None and before.shape == shape and before.raw == raw:
            self.arrays[path] = before
            return before.entry
        body, chain = smallest_body(shape, raw, width, before)
        entry = self._entry_of(body)
        self.arrays[path] = KnownArray(entry, raw, shape, chain)
        return entry

    def _plan_list(self, value: list[Any], path: str, depth: int) -> Plan:
        try:
            bodies = self._codec.encode_many(value)
        except Exception as exc:
            raise self._codec.refuse(value, path, exc) from exc
        if sum(map(len, bodies)) <= LIST_WHOLE_UP_TO:
            return self._leaf(self._encode(value, path))
        before = self._previous(path) or []
        same = _same_start(before, bodies)
        children: list[Child] = before[:same]
        for at in range(same, len(bodies)):
            children.append(self._part(value[at], bodies[at], path, at, depth))
        if not any(type(child) is Seq for child in children):
            self.lists[path] = children
        return Seq(LIST, children)

    def _plan_dict(self, value: dict[Any, Any], path: str, depth: int) -> Plan:
        keys = list(value)
        if not all(type(key) is str for key in keys):
            return self._leaf(self._encode(value, path))
        bodies = [self._encode(item, f"{path}[{key!r:.60}]") for key, item in value.items()]
        if sum(map(len, bodies)) <= DICT_WHOLE_UP_TO:
            return self._leaf(self._encode(value, path))
        children = [
            self._part(value[key], body, path, key, depth) for key, body in zip(keys, bodies, strict=True)
        ]
        return Seq(DICT, children, keys)

    def _part(self, value: Any, body: bytes, path: str, at: int | str, depth: int) -> Child:
        if len(body) > SPLIT_ABOVE and depth < _DEEPEST and type(value) in (list, dict, str, bytes):
            return self.plan(value, f"{path}[{at!r:.60}]", depth + 1)
        return self._leaf(body) if type(at) is int else self._plan_opaque(body)


_PIECE = bytes((frame.PIECE,))


def _same_start(before: list[Entry | bytes], bodies: list[bytes]) -> int:
    """How many leading items are the same bytes as before."""
    same = 0
    for known, body in zip(before, bodies, strict=False):
        if (known if type(known) is bytes else known.body) != body:  # type: ignore[union-attr]
            break
        same += 1
    return same


def entries_of(plan: Plan) -> Iterator[Entry]:
    """Every blob that a plan needs, groups aside."""
    stack: list[Child] = [plan]
    while stack:
        part = stack.pop()
        if type(part) is Entry:
            yield part
        elif type(part) is Seq:
            stack.extend(part.children)


def sequences_of(plan: Plan) -> Iterator[tuple[int, Seq]]:
    """Every composite of a plan with its depth."""
    stack: list[tuple[int, Child]] = [(0, plan)]
    while stack:
        depth, part = stack.pop()
        if type(part) is Seq:
            yield depth, part
            stack.extend((depth + 1, child) for child in part.children)


class Level:
    """A sequence's references while its groups are being closed.

    Attributes:
        refs: absolute references; in a DICT's first level, key and reference in turn.
        addresses: for each reference that is a number, its address; else b"".
        cuts: whether a group closes after the reference.
    """

    __slots__ = ("addresses", "cuts", "refs")

    def __init__(self) -> None:
        self.refs: list[Ref] = []
        self.addresses: list[bytes] = []
        self.cuts: list[bool] = []

    def add(self, ref: Ref, address: bytes, cut: bool) -> None:
        self.refs.append(ref)
        self.addresses.append(address)
        self.cuts.append(cut)

    def groups(self) -> tuple[list[tuple[int, int]], int]:
        """The closed groups as (start, end), and where the open rest starts."""
        closed: list[tuple[int, int]] = []
        start, cuts, size = 0, self.cuts, len(self.cuts)
        while True:
            try:
                end = cuts.index(True, start) + 1
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


def first_level(seq: Seq, number_of: Callable[[Entry], int], built: dict[int, Ref]) -> Level:
    """The references of a sequence's own children.

    Args:
        number_of: the number of an entry.
        built: references of the composites among the children, by id().
    """
    level = Level()
    for at, child in enumerate(seq.children):
        if type(child) is Entry:
            ref: Ref = number_of(child)
            address = child.digest
            cut = cuts_after(address)
        elif type(child) is bytes:
            ref, address, cut = child, b"", crc32(child) & _CUT_MASK == 0
        else:
            ref, address = built[id(child)], b""
            cut = crc32(pack(ref)) & _CUT_MASK == 0
        if seq.keys is None:
            level.add(ref, address, cut)
        else:
            key = seq.keys[at]
            level.add(key, b"", False)
            level.add(ref, address, crc32(key.encode("utf-8", "surrogatepass")) & _CUT_MASK == 0)
    return level


def group_body(refs: list[Ref], addresses: list[bytes], secret: bytes) -> bytes:
    """The body of a closed group."""
    return bytes((frame.NODE,)) + pack([digest.combined(filter(None, addresses), secret), differences(refs)])


def leaf(number: int, address: bytes, secret: bytes) -> Ref:
    """The reference of a value that is one blob."""
    return [LEAF, 1, digest.combined((address,), secret), [number]]


def composite(seq: Seq, refs: list[Ref], addresses: list[bytes], secret: bytes) -> Ref:
    """The reference of a whole sequence."""
    return [seq.kind, len(seq.children), digest.combined(filter(None, addresses), secret), differences(refs)]


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
    """The check and the absolute references of a group's body."""
    check, refs = unpack(body[1:])
    return check, numbers(refs)
