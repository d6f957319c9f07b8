"""LangChain messages, packed field by field.

A message is packed as its class's number, its `__dict__`, the names of the fields that were set,
and its extras: four to ten times faster than `model_dump` and a constructor call. The object that
comes back equals the packed one in type, fields, extras and set fields. A message that holds
anything but exact msgpack values, or private attributes, is left to the generic serializer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from functools import cache, lru_cache
from itertools import repeat
from operator import attrgetter, setitem
from typing import Any, NamedTuple

from langchain_core import messages as lc
from pydantic import BaseModel

from agent_ckpt.codec.pack import PackError, holds_bytes, pack, pack_own, unpack_joined

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
"""How many messages are compared, or copied, at once."""

_FIELDS: tuple[int, ...] = tuple(len(cls.model_fields) for cls in CLASSES)
_ALLOWS_EXTRA: tuple[bool, ...] = tuple(cls.model_config.get("extra") == "allow" for cls in CLASSES)
_MARK = "\x00end of message"
_PACKED_MARK = pack(_MARK)
_TAILS_KEPT = 256
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


def encode_all(values: Sequence[Any], prefix: bytes) -> list[bytes] | None:
    """`encode` for many messages, in one call of msgpack.

    A mark is packed after each message's fields, so that the whole falls apart at the marks. A text
    like the mark in a message makes more pieces than messages, and is noticed.

    Returns:
        For each the prefix and its packed bytes, or None when not all of them are plain messages.
    """
    size = len(values)
    numbers = list(map(NUMBERS.get, map(type, values)))
    if None in numbers or not _is_plain(values):
        return None
    marked: list[Any] = [_MARK] * (2 * size)
    marked[::2] = map(_fields_of, values)
    try:
        packed = pack(marked)
    except PackError:
        return None
    pieces = packed[_head_size(2 * size) :].split(_PACKED_MARK)
    if len(pieces) != size + 1:
        return None
    heads = map(_heads(prefix).__getitem__, numbers)  # type: ignore[arg-type]
    tails = map(_tail, map(frozenset, map(_assigned_of, values)))
    return list(map(b"".join, zip(heads, pieces, tails)))  # noqa: B905


@cache
def _heads(prefix: bytes) -> list[bytes]:
    """What stands before a packed message's fields, by its class's number."""
    return [prefix + b"\x93" + bytes((number,)) for number in range(len(CLASSES))]


@lru_cache(_TAILS_KEPT)
def _tail(assigned: frozenset[str]) -> bytes:
    """What stands after them: the names of the fields that were set."""
    return pack(sorted(assigned))


def decode(parts: list[bytes]) -> list[Any]:
    """Rebuild messages from their packed bytes, without running their constructors.

    Raises:
        ValueError, TypeError, IndexError: when the bytes are no packed messages.
    """
    unpacked = unpack_joined(parts)
    if not all(map(_is_usual, unpacked)):
        return [build(*each) for each in unpacked]
    classes, fields, assigned = [], [], []
    for number, values, names in unpacked:
        classes.append(CLASSES[number])
        fields.append(values)
        assigned.append(names)
    return _made(classes, fields, assigned, [{} for _ in unpacked])


def _is_usual(unpacked: list[Any]) -> bool:
    """Whether a message has all fields of its class and no extras, though it may have them."""
    return len(unpacked) == 3 and len(unpacked[1]) == _FIELDS[unpacked[0]] and _ALLOWS_EXTRA[unpacked[0]]


def _made(
    classes: list[type[BaseModel]],
    fields: list[dict[str, Any]],
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
    return Template(unpacked) if all(map(_is_usual, unpacked)) else None


class _Stretch(NamedTuple):
    """Some messages in a row.

    Attributes:
        types, assigned: their classes, and the fields that were set.
        fields: their fields, packed together.
        holds_bytes: whether a byte string is among them. If not, equal packed fields hold none either, and what else
            would pack like one need not be looked for.
    """

    types: list[type]
    assigned: list[frozenset[str]]
    fields: bytes
    holds_bytes: bool


class Run:
    """A run of messages as they were packed last: tells how many of them are the same still.

    It is exact: the packed fields are compared byte for byte, and types, set fields, extras and
    private attributes besides. It works stretch by stretch: what is packed to compare then stays in
    the processor's cache, where one pass over a megabyte fetches fresh pages from the system.
    """

    __slots__ = ("_stretches",)

    def __init__(self, stretches: list[_Stretch]) -> None:
        self._stretches = stretches

    @classmethod
    def of(cls, values: list[Any], before: Run | None = None, known: int = 0) -> Run | None:
        """The run of these messages, or None when not all of them are plain messages.

        Args:
            values: the messages.
            before, known: a run, and how many of its messages these ones start with.
        """
        stretches = before._stretches[: known // STRETCH] if before is not None else []
        for at in range(len(stretches) * STRETCH, len(values), STRETCH):
            part = values[at : at + STRETCH]
            types = list(map(type, part))
            if not NUMBERS.keys() >= set(types) or not _is_plain(part):
                return None
            fields = list(map(_fields_of, part))
            try:
                packed = pack(fields)
            except PackError:
                return None
            assigned = list(map(frozenset, map(_assigned_of, part)))
            stretches.append(_Stretch(types, assigned, packed, holds_bytes(fields, packed)))
        return cls(stretches) if stretches else None

    def same(self, values: list[Any]) -> int:
        """How many leading messages of a list are the ones of this run, in whole stretches."""
        at = 0
        for types, assigned, fields, has_bytes in self._stretches:
            part = values[at : at + len(types)]
            if list(map(type, part)) != types or not _is_plain(part):
                return at
            now = list(map(_fields_of, part))
            try:
                packed = pack(now) if has_bytes else pack_own(now)
            except PackError:
                return at
            if packed != fields or list(map(_assigned_of, part)) != assigned:
                return at
            at += len(types)
        return at


def _is_plain(values: Sequence[Any]) -> bool:
    """Whether no message has extras or private attributes."""
    return not any(map(_extra_of, values)) and list(map(_private_of, values)).count(None) == len(values)


def _head_size(size: int) -> int:
    """How many bytes msgpack puts before the items of a list of this size."""
    return 1 if size < 16 else 3 if size < 1 << 16 else 5


def _fill(cls: type[BaseModel], fields: dict[str, Any]) -> None:
    """Give fields that a newer langchain-core added their defaults."""
    for name, info in cls.model_fields.items():
        if name not in fields and not info.is_required():
            fields[name] = info.get_default(call_default_factory=True)
