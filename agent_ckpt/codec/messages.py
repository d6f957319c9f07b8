"""LangChain messages, packed field by field.

A message is packed as its class's number, its `__dict__`, the names of the fields that were set,
and its extras: four to ten times faster than `model_dump` and a constructor call. The object that
comes back equals the packed one in type, fields, extras and set fields. A message that holds
anything but exact msgpack values, or private attributes, is left to the generic serializer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat
from operator import attrgetter, setitem
from typing import Any, NamedTuple

import ormsgpack
from langchain_core import messages as lc
from pydantic import BaseModel

from agent_ckpt.codec import frame
from agent_ckpt.codec.pack import EXACT, PackError, holds_bytes, may_hold_bytes, pack, refuse_other_bytes, unpack_joined

CLASSES: tuple[type[BaseModel], ...] = (
    lc.HumanMessage,
    lc.AIMessage,
    lc.ToolMessage,
    lc.SystemMessage,
    lc.FunctionMessage,
    lc.ChatMessage,
    lc.RemoveMessage,
    lc.HumanMessageChunk,
    lc.AIMessageChunk,
    lc.ToolMessageChunk,
    lc.SystemMessageChunk,
    lc.FunctionMessageChunk,
    lc.ChatMessageChunk,
)
"""Numbered by place: append only, the numbers are stored."""

NUMBERS: dict[type, int] = {cls: number for number, cls in enumerate(CLASSES)}

STRETCH = 64
"""How many messages are copied at once."""

PACKED = 128
"""How many messages are packed, or compared, at once."""

_FIELDS: tuple[int, ...] = tuple(len(cls.model_fields) for cls in CLASSES)
_ALLOWS_EXTRA: tuple[bool, ...] = tuple(cls.model_config.get("extra") == "allow" for cls in CLASSES)
_NAMES_AT_MOST = 48
_CUT_CONTENT = b"\xc1\xfe\xc1\xff" * 3 + b"\xc1"
"""Bytes that no text and no head of msgpack holds."""
_MARKS = {
    cls: ormsgpack.Ext(0, _CUT_CONTENT + bytes((frame.MESSAGE, 0x93, number))) for number, cls in enumerate(CLASSES)
}
_CUT = ormsgpack.packb(_MARKS[CLASSES[0]])[:-3]
_USUAL = {(number, count) for number, count in enumerate(_FIELDS) if _ALLOWS_EXTRA[number]}
"""By a class's number, how many fields a message of it has where nothing is missing."""
_fields_of = attrgetter("__dict__")
_assigned_of = attrgetter("__pydantic_fields_set__")
_extra_of = attrgetter("__pydantic_extra__")
_private_of = attrgetter("__pydantic_private__")
_new = object.__new__
_set = object.__setattr__
_set_assigned = BaseModel.__pydantic_fields_set__.__set__  # type: ignore[attr-defined]
_set_extra = BaseModel.__pydantic_extra__.__set__  # type: ignore[union-attr]
_set_private = BaseModel.__pydantic_private__.__set__  # type: ignore[union-attr]


def encode(message: Any, number: int) -> bytes | None:
    """Pack a message whose exact type is CLASSES[number].

    Returns:
        The packed bytes, or None when it must go through the generic serializer.
    """
    if message.__pydantic_private__ is not None:
        return None
    packed = [number, message.__dict__, sorted(message.__pydantic_fields_set__)]
    if message.__pydantic_extra__:
        packed.append(message.__pydantic_extra__)
    try:
        return pack(packed)
    except PackError:
        return None


def pack_stretch(values: Sequence[Any], *, like_no_bytes: bool = False) -> bytes | None:
    """Many messages in one call of msgpack: of each a mark, its fields and the names of those that were set.

    Equal bytes mean equal messages: types, fields, set fields, and no extras or private attributes.

    Args:
        like_no_bytes: what is given back is only compared with what holds no byte string. What equals that holds none
            either, so that what else would pack like one need not be looked for.

    Returns:
        The packed bytes, or None when not all of them are plain messages.
    """
    try:
        marks = list(map(_MARKS.__getitem__, map(type, values)))
    except KeyError:
        return None
    if not _is_plain(values):
        return None
    names = _names_of(values)
    if names is None:
        return None
    fields = list(map(_fields_of, values))
    marked: list[Any] = marks * 3
    marked[::3], marked[1::3], marked[2::3] = marks, fields, names
    try:
        packed = ormsgpack.packb(marked, option=EXACT)
        if not like_no_bytes and may_hold_bytes(packed):
            refuse_other_bytes(fields)
    except PackError:
        return None
    return packed


def bodies_of(packed: bytes, size: int) -> list[bytes] | None:
    """The bodies of a stretch of so many messages: the codec's byte, and what `encode` gives.

    A mark ends with how the body of its message starts, so that the stretch falls apart into bodies.

    Returns:
        None where a byte string in a message looks like a mark, which makes more pieces than messages.
    """
    pieces = packed.split(_CUT)
    return pieces[1:] if len(pieces) == size + 1 else None


class _Names(NamedTuple):
    """The sets of names that were met, and each of them sorted and packed, at the same place."""

    met: list[set[str]]
    packed: list[ormsgpack.Fragment]


_names = _Names([], [])


def _names_of(values: Sequence[Any]) -> list[ormsgpack.Fragment] | None:
    """The names of the fields that were set, packed: few sets of them occur, so that each is packed once."""
    global _names
    assigned = list(map(_assigned_of, values))
    names = _names
    while True:
        try:
            return list(map(names.packed.__getitem__, map(names.met.index, assigned)))
        except ValueError:
            new = next(each for each in assigned if each not in names.met)
        try:
            packed = ormsgpack.Fragment(pack(sorted(new)))
        except (PackError, TypeError):
            return None
        full = len(names.met) >= _NAMES_AT_MOST
        # Made anew, since other threads read it meanwhile.
        names = _Names([*names.met, set(new)], [*names.packed, packed]) if not full else _Names([], [])
        _names = names
        if full:
            return None


def rebuild(unpacked: list[Any]) -> list[Any]:
    """Messages of what was unpacked of them, which is taken over, without running their constructors.

    Raises:
        ValueError, TypeError, IndexError: when it is no packed messages.
    """
    if not _are_usual(unpacked):
        return [build(*each) for each in unpacked]
    numbers, fields, assigned = zip(*unpacked, strict=True)
    return _made(list(map(CLASSES.__getitem__, numbers)), fields, assigned, [{} for _ in unpacked])


def rebuild_apart(
    numbers: Sequence[int], fields: list[dict[str, Any]], assigned: Sequence[frozenset[str]]
) -> list[Any]:
    """`rebuild` for messages without extras whose classes, fields and names came apart; the fields are taken over.

    Raises:
        ValueError, TypeError, IndexError: when they are no messages'.
    """
    if not len(numbers) == len(fields) == len(assigned):
        raise ValueError("some are missing")
    if not _USUAL.issuperset(zip(numbers, map(len, fields), strict=True)):
        return [build(*each) for each in zip(numbers, fields, assigned, strict=True)]
    return _made(list(map(CLASSES.__getitem__, numbers)), fields, assigned, [{} for _ in fields])


def _are_usual(unpacked: list[Any]) -> bool:
    """Whether messages have all fields of their classes and no extras, though they may have them."""
    if set(map(len, unpacked)) != {3}:
        return False
    return _USUAL.issuperset({(number, len(fields)) for number, fields, _ in unpacked})


def _made(
    classes: list[type[BaseModel]],
    fields: Sequence[dict[str, Any]],
    assigned: Sequence[Iterable[str]],
    extras: list[dict[str, Any]],
) -> list[Any]:
    """Messages made without their constructors, by a pass for each of their parts.

    A call of C for many messages costs what ten lines of Python cost for one.
    """
    made = list(map(_new, classes))
    _exhaust(map(_set, made, repeat("__dict__"), fields))
    _exhaust(map(_set_assigned, made, map(set, assigned)))
    _exhaust(map(_set_extra, made, extras))
    _exhaust(map(_set_private, made, repeat(None)))
    return made


_exhaust = deque[Any](maxlen=0).extend
"""Drives an iterator to its end, at the speed of C."""


def build(number: int, fields: dict[str, Any], assigned: Iterable[str], extra: dict[str, Any] | None = None) -> Any:
    """The message of a class's number, made without its constructor."""
    cls = CLASSES[number]
    message = _new(cls)
    if len(fields) != _FIELDS[number]:
        _fill(cls, fields)
    _set(message, "__dict__", fields)
    _set_assigned(message, set(assigned))
    _set_extra(message, extra if extra is not None else {} if _ALLOWS_EXTRA[number] else None)
    _set_private(message, None)
    return message


class Template:
    """A stretch of messages unpacked once, to make equal fresh ones from: a third of the cost of unpacking.

    Every container is copied for each; what is shared is immutable.
    """

    __slots__ = ("_assigned", "_classes", "_dicts", "_keys", "_lists", "_parents")

    def __init__(self, unpacked: list[list[Any]]) -> None:
        """
        Args:
            unpacked: the packed lists of the messages, which are taken over.
        """
        self._classes = [CLASSES[parts[0]] for parts in unpacked]
        self._assigned = [frozenset(parts[2]) for parts in unpacked]
        roots: list[Any] = [parts[1] for parts in unpacked]
        roots += [{} for _ in unpacked]
        # Fields first and then extras, so that the first copies are those of the messages themselves.
        inner = [each for root in roots for each in _inside(root)]
        self._dicts: list[dict[str, Any]] = roots + [value for _, _, value in inner if type(value) is dict]
        self._lists: list[list[Any]] = [value for _, _, value in inner if type(value) is list]
        places = {id(each): at for at, each in enumerate([*self._dicts, *self._lists])}
        inner.sort(key=lambda each: places[id(each[2])])
        self._keys = [key for _, key, _ in inner]
        self._parents = [places[id(parent)] for parent, _, _ in inner]

    def make(self) -> list[Any]:
        """Fresh messages."""
        size = len(self._classes)
        copies: list[Any] = [*map(dict.copy, self._dicts), *map(list.copy, self._lists)]
        _exhaust(map(setitem, map(copies.__getitem__, self._parents), self._keys, copies[2 * size :]))
        return _made(self._classes, copies[:size], self._assigned, copies[size : 2 * size])


def _inside(parent: Any) -> Iterator[tuple[Any, Any, Any]]:
    """Every container inside one, at any depth: what holds it, at which key or place, and itself."""
    for key, value in parent.items() if type(parent) is dict else enumerate(parent):
        if type(value) in (dict, list):
            yield parent, key, value
            yield from _inside(value)


def template(parts: list[bytes]) -> Template | None:
    """The template of packed messages; None where some must be built one by one (`build`).

    Raises:
        ValueError, TypeError, IndexError: when the bytes are no packed messages.
    """
    unpacked = unpack_joined(parts)
    return Template(unpacked) if _are_usual(unpacked) else None


class Run:
    """The leading messages of a list as they were packed last: tells how many of them are the same still.

    It is exact: what `pack_stretch` gives is compared byte for byte. It works stretch by stretch: what is packed to
    compare then stays in the processor's cache, where one pass over a megabyte fetches fresh pages from the system.
    """

    __slots__ = ("_size", "_stretches", "_with_bytes")

    def __init__(self, stretches: list[bytes], with_bytes: list[bool], size: int) -> None:
        self._stretches = stretches
        self._with_bytes = with_bytes
        self._size = size

    @classmethod
    def of(
        cls, values: list[Any], before: Run | None = None, known: int = 0, packed: Sequence[bytes] = ()
    ) -> Run | None:
        """The run of these messages as far as they are plain ones, or None where the first are not.

        Args:
            values: the messages.
            before, known: a run, and how many of its messages these ones start with.
            packed: the leading stretches, as far as they are packed already; for where nothing is known.
        """
        count = known // PACKED if before is not None else 0
        stretches = before._stretches[:count] if before is not None and known else list(packed)
        with_bytes = before._with_bytes[:count] if before is not None and known else []
        size = len(values)
        for at in range(len(stretches) * PACKED, size, PACKED):
            stretch = pack_stretch(values[at : at + PACKED])
            if stretch is None:
                size = at
                break
            stretches.append(stretch)
        for number in range(len(with_bytes), len(stretches)):
            part = values[number * PACKED : (number + 1) * PACKED]
            with_bytes.append(holds_bytes(list(map(_fields_of, part)), stretches[number]))
        return cls(stretches, with_bytes, size) if stretches else None

    def same(self, values: list[Any]) -> int:
        """How many leading messages of a list are the ones of this run, in whole stretches."""
        for number, stretch in enumerate(self._stretches):
            at = number * PACKED
            part = values[at : min(at + PACKED, self._size)]
            if pack_stretch(part, like_no_bytes=not self._with_bytes[number]) != stretch:
                return at
        return self._size


def _is_plain(values: Sequence[Any]) -> bool:
    """Whether no message has extras or private attributes."""
    return not any(map(_extra_of, values)) and list(map(_private_of, values)).count(None) == len(values)


def _fill(cls: type[BaseModel], fields: dict[str, Any]) -> None:
    """Give fields that a newer langchain-core added their defaults."""
    for name, info in cls.model_fields.items():
        if name not in fields and not info.is_required():
            fields[name] = info.get_default(call_default_factory=True)
