"""Many plain LangChain messages at once: packed in one call of msgpack, and found to be the ones that were packed last.

A plain message has no extras and no private attributes, and msgpack has a form for all that it holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from gc import get_referents
from operator import attrgetter
from threading import Lock
from typing import Any, NamedTuple

import ormsgpack

from agent_ckpt.codec import frame, messages
from agent_ckpt.codec.pack import EXACT, PackError, are_extensions_about, is_doubtful, look_through, pack

PACKED = 128
"""How many messages are packed, or compared, at once."""

_NAMES_AT_MOST = 64
_CUT_CONTENT = b"\xc1" * 23 + b"\xfe"
"""Bytes that no text and no head of msgpack holds."""
_START = bytes((frame.MESSAGE, 0x93))
"""How a body starts: the codec's byte, and a list of three."""
_MARKS = {cls: ormsgpack.Ext(0, _CUT_CONTENT + _START + bytes((number,))) for cls, number in messages.NUMBERS.items()}
_CUT = ormsgpack.packb(_MARKS[messages.CLASSES[0]])[: -len(_START) - 1]
_PARTS = tuple(map(attrgetter, ("__dict__", "__pydantic_fields_set__", "__pydantic_extra__", "__pydantic_private__")))


class Packed(NamedTuple):
    """A stretch of plain messages as they are stored.

    Attributes:
        types: their classes.
        shapes: of each the place of its set of names in the table.
        bodies: of each the codec's byte, and what `messages.encode` gives.
        holds_bytes: whether a byte string stands in one of them.
    """

    types: list[type]
    shapes: list[int]
    bodies: list[bytes]
    holds_bytes: bool


def pack_stretch(values: Sequence[Any]) -> Packed | None:
    """Pack many messages in one call of msgpack.

    Before each stands a mark, which ends with how its body starts: there what was packed falls apart into bodies.

    Returns:
        None when not all of them are plain messages, or when a byte string in one looks like a mark.
    """
    types = list(map(type, values))
    try:
        marked: list[Any] = list(map(_MARKS.__getitem__, types)) * 3
    except KeyError:
        return None
    parts = _parts_of(values, types)
    shapes = _shapes_of(parts[1]) if parts is not None else None
    if parts is None or shapes is None:
        return None
    marked[::3] = marked[: len(values)]
    marked[1::3] = map(_names.texts.__getitem__, shapes)
    marked[2::3] = parts[0]
    try:
        packed = ormsgpack.packb(marked, option=EXACT)
    except PackError:
        return None
    bodies = packed.split(_CUT)[1:]
    if len(bodies) != len(values):
        return None
    holds_bytes = is_doubtful(packed) and _holds_bytes(parts[0], bodies)
    return Packed(types, shapes, bodies, holds_bytes) if holds_bytes is not None else None


def _holds_bytes(fields: list[Any], bodies: list[bytes]) -> bool | None:
    """Whether there is a byte string in messages, or None for what only packs like one."""
    all_of_them = are_extensions_about()
    doubtful = [at for at, body in enumerate(bodies) if 0xC4 in body or 0xC5 in body or 0xC6 in body or all_of_them]
    try:
        return look_through([fields[at] for at in doubtful])
    except PackError:
        return None


def _parts_of(values: Sequence[Any], types: list[type]) -> tuple[list[Any], list[Any]] | None:
    """Of messages of these classes the fields, and the names of those that were set; None where they aren't plain."""
    parts: list[Any] = []
    if _PLACES is not None:
        # One call of C for all of them. pydantic makes each look at an attribute a slow one.
        found = get_referents(*values)
        if len(found) == 5 * len(values) and found[_PLACES[4] :: 5] == types:
            parts = [found[place::5] for place in _PLACES[:4]]
    try:
        fields, assigned, extras, privates = parts or [list(map(part_of, values)) for part_of in _PARTS]
    except AttributeError:
        return None
    return (fields, assigned) if not any(extras) and privates.count(None) == len(values) else None


def _places() -> list[int] | None:
    """Where the parts of a message, and last its class, stand in what Python's collector finds, if it is just these."""
    cls = messages.CLASSES[0]
    parts: list[Any] = [{"content": ""}, set(), {"more": 1}, {"_private": 1}]
    message = messages.new(cls)
    setters = (messages.set_fields, messages.set_assigned, messages.set_extra, messages.set_private)
    for set_part, part in zip(setters, parts, strict=True):
        set_part(message, part)
    found = [id(each) for each in get_referents(message)]
    wanted = [id(each) for each in (*parts, cls)]
    return list(map(found.index, wanted)) if sorted(found) == sorted(wanted) else None


_PLACES = _places()


class _Names:
    """The sets of names that were met: few occur, so that what is made of one is kept.

    Attributes:
        met: the sets.
        texts: at the same place, the text of the set.
        rests: at the same place, where in a body with this text the fields begin.
    """

    __slots__ = ("_lock", "met", "rests", "texts")

    def __init__(self) -> None:
        self._lock = Lock()
        self.met: list[set[str]] = []
        self.texts: list[str] = []
        self.rests: list[slice] = []

    def add(self, assigned: set[str]) -> bool:
        """Make those of one more set, if it can be done."""
        try:
            text = messages.names_text(assigned)
            size = len(pack(text))
        except (PackError, TypeError):
            return False
        with self._lock:
            if len(self.met) >= _NAMES_AT_MOST:
                return False
            self.texts.append(text)
            self.rests.append(slice(len(_START) + 1 + size, None))
            # Last, since what other threads find here they look for in the others.
            self.met.append(set(assigned))
        return True


_names = _Names()


def _shapes_of(assigned: list[set[str]]) -> list[int] | None:
    while True:
        try:
            return list(map(_names.met.index, assigned))
        except ValueError:
            unmet = next((each for each in assigned if each not in _names.met), None)
        if unmet is not None and not _names.add(unmet):
            return None


class _Known:
    """A stretch as it was packed last: equal to another one if all of it is, and neither or both hold byte strings."""

    __slots__ = ("_assigned", "_fields", "_holds_bytes", "_stretch", "_types")

    def __init__(self, stretch: Packed) -> None:
        self._types = stretch.types
        self._holds_bytes = stretch.holds_bytes
        self._assigned = list(map(_names.met.__getitem__, stretch.shapes))
        self._stretch: Packed | None = stretch
        self._fields = b""

    def is_same(self, values: list[Any]) -> bool:
        types = list(map(type, values))
        parts = _parts_of(values, types) if types == self._types else None
        if parts is None or parts[1] != self._assigned:
            return False
        try:
            if ormsgpack.packb(parts[0], option=EXACT) != self._packed_fields():
                return False
            # What equals a stretch without byte strings has none itself, so that no other one needs a look.
            all_of_them = self._holds_bytes or are_extensions_about()
            return not all_of_them or look_through(parts[0]) == self._holds_bytes
        except PackError:
            return False

    def _packed_fields(self) -> bytes:
        """The fields of all of them in one list; made when it is first compared, which many never are."""
        stretch = self._stretch
        if stretch is not None:
            size = len(stretch.bodies)
            head = ormsgpack.packb([None] * size)[:-size]
            rests = map(_names.rests.__getitem__, stretch.shapes)
            # Set before the other is taken away, since two may come here at once.
            self._fields = head + b"".join(map(bytes.__getitem__, stretch.bodies, rests))
            self._stretch = None
        return self._fields


class Run:
    """The leading messages of a list as they were packed last: tells how many of them are the same still.

    It is exact: what msgpack makes of the fields is compared byte for byte. It works stretch by stretch: what is packed
    to compare then stays in the processor's cache, where one pass over a megabyte fetches fresh pages from the system.
    """

    __slots__ = ("_size", "_stretches")

    def __init__(self, stretches: list[_Known], size: int) -> None:
        self._stretches = stretches
        self._size = size

    @classmethod
    def of(
        cls, values: list[Any], before: Run | None = None, known: int = 0, packed: Sequence[Packed] = ()
    ) -> Run | None:
        """The run of these messages as far as they are plain ones, or None where the first are not.

        Args:
            values: the messages.
            before, known: a run, and how many of its messages these ones start with.
            packed: the leading stretches, as far as they are packed already; for where nothing is known.
        """
        same = before._stretches[: known // PACKED] if before is not None and known else None
        stretches = same if same is not None else list(map(_Known, packed))
        size = len(values)
        for at in range(len(stretches) * PACKED, size, PACKED):
            stretch = pack_stretch(values[at : at + PACKED])
            if stretch is None:
                size = at
                break
            stretches.append(_Known(stretch))
        return cls(stretches, size) if stretches else None

    def same(self, values: list[Any]) -> int:
        """How many leading messages of a list are the ones of this run, in whole stretches."""
        for number, stretch in enumerate(self._stretches):
            at = number * PACKED
            if not stretch.is_same(values[at : min(at + PACKED, self._size)]):
                return at
        return self._size
