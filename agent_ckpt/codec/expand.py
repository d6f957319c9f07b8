"""Putting stored values together again (the other direction of `tree`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agent_ckpt.codec import arrays, digest, frame, tree
from agent_ckpt.codec.collector import collector_held_off
from agent_ckpt.codec.pack import UnpackError
from agent_ckpt.codec.packs import Pack
from agent_ckpt.codec.values import DecodeError, DeltaSnapshot, ValueCodec
from agent_ckpt.model import Entry, Ref

_ARRAYS = (frame.ARRAY, frame.ARRAY_DIFF)
REFERRING = (frame.NODE, frame.ARRAY_DIFF)
"""The codecs of blobs that refer to others."""


class MissingBlobError(Exception):
    """A reference to a blob that isn't there, or can't be opened.

    Attributes:
        reason: as of the FrameError that says why.
    """

    def __init__(self, message: str, reason: Any = None) -> None:
        super().__init__(message)
        self.reason = reason


class DamagedRefError(Exception):
    """A reference that leads to other blobs than the ones it was made of."""


def numbers_in(ref: Ref) -> list[int]:
    """Every blob number that a reference names directly."""
    if type(ref) is int:
        return [ref]
    return numbers_among(tree.numbers(ref[3])) if type(ref) is list else []


def numbers_among(refs: list[Ref]) -> list[int]:
    """`numbers_in` of absolute references."""
    if tree.INT.issuperset(map(type, refs)):
        return refs  # type: ignore[return-value]
    found: list[int] = []
    for ref in refs:
        if type(ref) is int:
            found.append(ref)
        elif type(ref) is list:
            found += numbers_in(ref)
    return found


def children_of(entry: Entry) -> list[Ref]:
    """What a blob refers to: a group's references, a difference's base, else nothing. Opened once.

    Raises:
        DamagedRefError: when its payload can't be read.
    """
    if entry.children is None:
        try:
            if entry.body[0] == frame.NODE:
                entry.check, entry.children = tree.open_group(entry.body)
            elif entry.body[0] == frame.ARRAY_DIFF:
                entry.children = [arrays.base_of(entry.body)[0]]
            else:
                entry.children = []
        except (UnpackError, ValueError, TypeError) as exc:
            raise DamagedRefError("a group of references can't be read") from exc
    return entry.children


def sum_of(entry: Entry) -> bytes:
    """Of a group that was opened, the sum over the bodies that it names; b"" where it has none."""
    return entry.check[digest.CHECK_SIZE :]


class Expander:
    """Builds values from blobs that were loaded before.

    Args:
        codec: the value codec.
        blobs: the loaded blobs by number.
        secret: the thread's secret, to compare checks.
        faults: why blobs could not be loaded, by number.
        packs: packs that hold all items of a group, by the group's number.
    """

    def __init__(
        self,
        codec: ValueCodec,
        blobs: Mapping[int, Entry],
        secret: bytes,
        faults: Mapping[int, Exception] | None = None,
        packs: Mapping[int, Pack] | None = None,
    ) -> None:
        self._codec = codec
        self._blobs = blobs
        self._secret = secret
        self._faults = faults or {}
        self._packs = packs or {}

    def value(self, ref: Ref) -> Any:
        """The value behind a reference; a fresh object at every call.

        Raises:
            MissingBlobError, DamagedRefError, DecodeError
        """
        if type(ref) is bytes:
            return self._codec.decode(ref)
        if type(ref) is int:
            return self._of_entry(self._entry(ref))
        if type(ref) is not list or len(ref) != 4:
            raise DamagedRefError("a reference has an unknown shape")
        return self._composite(*ref)

    def state(self, ref: Ref) -> tree.State | None:
        """A plain LIST or DICT as it is stored, for the next plan; None for anything else."""
        if type(ref) is not list or ref[0] not in (tree.LIST, tree.DICT):
            return None
        state = tree.State(ref[0], [], [] if ref[0] == tree.DICT else None, False)
        state.ref = ref
        return state if self._walk(tree.numbers(ref[3]), state) else None

    def _walk(self, refs: list[Ref], state: tree.State) -> bool:
        for ref in refs:
            entry = self._entry(ref) if type(ref) is int else None
            if entry is None or entry.body[0] != frame.NODE:
                if type(ref) is list:
                    return False
                state.add(ref, entry)
                continue
            start = len(state.refs)
            if not self._walk(self._group(entry), state):
                return False
            if not state.groups or state.groups[-1][1] <= start:
                state.groups.append((start, len(state.refs), entry))
        return True

    def array(self, ref: Ref) -> arrays.KnownArray | None:
        """The array behind a reference, to build the next difference on."""
        number = ref[3][0] if type(ref) is list and ref[0] == tree.LEAF else ref
        entry = self._blobs.get(number) if type(number) is int else None
        if entry is None or entry.body[0] not in _ARRAYS:
            return None
        shape, raw, chain = self._restore(entry)
        return arrays.KnownArray(entry, raw, shape, chain)

    def _entry(self, number: int) -> Entry:
        entry = self._blobs.get(number)
        if entry is None:
            fault = self._faults.get(number)
            reason = getattr(fault, "reason", None)
            raise MissingBlobError(f"blob {number}: {'is missing' if fault is None else fault}", reason)
        return entry

    def _of_entry(self, entry: Entry) -> Any:
        if entry.body[0] in _ARRAYS:
            shape, raw, _ = self._restore(entry)
            return arrays.build(shape, raw)
        return self._codec.decode(entry.body)

    def _restore(self, entry: Entry, left: int = arrays.CHAIN_AT_MOST + 1) -> tuple[list[Any], bytes, int]:
        try:
            if entry.body[0] == frame.ARRAY:
                return arrays.restore(entry.body, None)
            number, address = arrays.base_of(entry.body)
            base = self._entry(number)
            if base.digest != address or not left:
                raise DamagedRefError(f"blob {number} is not the array that the difference builds on")
            return arrays.restore(entry.body, self._restore(base, left - 1)[1])
        except (UnpackError, ValueError, TypeError, IndexError) as exc:
            raise DecodeError("a stored array can't be rebuilt") from exc

    def _composite(self, kind: int, count: int, check: bytes, refs: list[Ref]) -> Any:
        absolute = tree.numbers(refs)
        self._compare(absolute, check)
        if kind == tree.LEAF and len(absolute) == 1:
            return self.value(absolute[0])
        if kind == tree.DICT:
            return self._dict(absolute, count)
        if kind == tree.LIST and self._packs:
            return self._packed_list(absolute, count)
        leaves = self._leaves(absolute)
        if len(leaves) != count:
            raise DamagedRefError(f"a value has {len(leaves)} parts where {count} were stored")
        if kind == tree.SNAPSHOT and count == 1:
            # Its one part can stand in a group of its own, where its address closes one.
            return DeltaSnapshot(self.value(leaves[0]))
        if kind == tree.LIST:
            return self._list(leaves)
        joined = b"".join(self._piece(leaf) for leaf in leaves)
        if kind == tree.TEXT:
            return joined.decode("utf-8")
        if kind == tree.BYTES:
            return joined
        if kind == tree.OPAQUE:
            return self._codec.decode(joined)
        raise DamagedRefError(f"a reference of unknown kind {kind}")

    def _packed_list(self, refs: list[Ref], count: int) -> list[Any]:
        """A list of whose groups some are in packs: those by pack, and what stands between them as it is."""
        parts: list[list[Ref] | Entry] = []
        self._part(refs, parts)
        values: list[Any] = []
        with collector_held_off():
            for part in parts:
                if type(part) is list:
                    values += self._list(part)
                else:
                    values += self._in_pack(part)  # type: ignore[arg-type]
        if len(values) != count:
            raise DamagedRefError(f"a value has {len(values)} parts where {count} were stored")
        return values

    def _part(self, refs: list[Ref], parts: list[list[Ref] | Entry]) -> None:
        """Part references into groups that are in packs, and the leaves between them."""
        for ref in refs:
            entry = self._blobs[ref] if type(ref) is int else None
            if entry is not None and entry.number in self._packs:
                parts.append(entry)
            elif entry is not None and entry.body[0] == frame.NODE:
                self._part(self._group(entry), parts)
            elif parts and type(parts[-1]) is list:
                parts[-1].append(ref)
            else:
                parts.append([ref])

    def _in_pack(self, group: Entry) -> list[Any]:
        try:
            return self._codec.decode_pack(self._packs[group.number], children_of(group))
        except frame.FrameError as exc:
            raise MissingBlobError(str(exc), exc.reason) from exc

    def _list(self, leaves: list[Ref]) -> list[Any]:
        blobs = self._blobs
        found = [blobs[leaf].body if type(leaf) is int else leaf for leaf in leaves]
        if set(map(type, found)) == {bytes} and not {body[0] for body in found}.intersection(_ARRAYS):  # type: ignore[index]
            return self._codec.decode_many(found)  # type: ignore[arg-type]
        return self._mixed_list(leaves)

    def _mixed_list(self, leaves: list[Ref]) -> list[Any]:
        """A list in which some items are sequences or arrays."""
        bodies: list[bytes] = []
        others: list[tuple[int, Ref]] = []
        for at, leaf in enumerate(leaves):
            body = self._blobs[leaf].body if type(leaf) is int else b""
            if body and body[0] not in _ARRAYS:
                bodies.append(body)
            elif type(leaf) is bytes:
                bodies.append(leaf)
            else:
                others.append((at, leaf))
        values = self._codec.decode_many(bodies) if bodies else []
        for at, leaf in others:
            values.insert(at, self.value(leaf))
        return values

    def _dict(self, refs: list[Ref], count: int) -> dict[str, Any]:
        leaves = self._leaves(refs)
        keys, parts = leaves[::2], leaves[1::2]
        if len(keys) != count or len(parts) != count or not all(type(key) is str for key in keys):
            raise DamagedRefError(f"a dict has {len(keys)} keys where {count} were stored")
        return dict(zip(keys, self._list(parts), strict=True))  # type: ignore[arg-type]

    def _leaves(self, refs: list[Ref]) -> list[Ref]:
        """The references that groups hold in the end, after `_compare` has found all that they name."""
        blobs = self._blobs
        groups = [at for at, ref in enumerate(refs) if type(ref) is int and blobs[ref].body[0] == frame.NODE]
        if not groups:
            return refs
        leaves, last = [], 0
        for at in groups:
            leaves += refs[last:at]
            group = blobs[refs[at]]  # type: ignore[index]
            below = self._group(group)
            leaves += below if sum_of(group) else self._leaves(below)  # a group with a sum names a list's items alone
            last = at + 1
        return leaves + refs[last:]

    def _group(self, entry: Entry) -> list[Ref]:
        refs = children_of(entry)
        self._compare(refs, entry.check[: digest.CHECK_SIZE])
        return refs

    def _compare(self, refs: list[Ref], check: bytes) -> None:
        blobs = self._blobs
        numbers = [ref for ref in refs if type(ref) is int]
        try:
            addresses = [blobs[number].digest for number in numbers]
        except KeyError as exc:
            addresses = [self._entry(exc.args[0]).digest]
        if digest.combined(addresses, self._secret) != check:
            raise DamagedRefError("a value refers to other blobs than those it was made of")

    def _piece(self, leaf: Ref) -> bytes:
        body = self._entry(leaf).body if type(leaf) is int else leaf
        if type(body) is not bytes or body[0] != frame.PIECE:
            raise DamagedRefError("a piece of a long value is something else")
        return body[1:]
