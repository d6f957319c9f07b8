"""LangChain messages, packed field by field.

A message is packed as its class's number, its `__dict__`, the names of the fields that were set,
and its extras: four to ten times faster than `model_dump` and a constructor call. The object that
comes back equals the packed one in type, fields, extras and set fields. A message that holds
anything but exact msgpack values, or private attributes, is left to the generic serializer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import Any

from langchain_core import messages as lc
from pydantic import BaseModel

from agent_ckpt.codec.pack import PackError, pack, unpack, unpack_joined

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

_FIELDS: tuple[int, ...] = tuple(len(cls.model_fields) for cls in CLASSES)
_ALLOWS_EXTRA: tuple[bool, ...] = tuple(cls.model_config.get("extra") == "allow" for cls in CLASSES)
_MARK = "\x00end of message"
_PACKED_MARK = pack(_MARK)
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
    tails: dict[frozenset[str], bytes] = {}
    assigned = list(map(frozenset, map(_assigned_of, values)))
    for each in set(assigned):
        tails[each] = pack(sorted(each))
    heads = [prefix + b"\x93" + bytes((number,)) for number in range(len(CLASSES))]
    return [heads[number] + piece + tails[each] for number, piece, each in zip(numbers, pieces, assigned)]  # type: ignore[index]  # noqa: B905


def decode(parts: list[bytes]) -> list[Any]:
    """Rebuild messages from their packed bytes, without running their constructors.

    Raises:
        ValueError, TypeError, IndexError: when the bytes are no packed messages.
    """
    return [build(*unpacked) for unpacked in unpack_joined(parts)]


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
    """A message unpacked once, to make equal fresh ones from: a third of the cost of unpacking.

    Every container is copied for each; what is shared is immutable.
    """

    __slots__ = ("_assigned", "_containers", "_extra", "_fields", "_number")

    def __init__(
        self, number: int, fields: dict[str, Any], assigned: list[str], extra: dict[str, Any] | None = None
    ) -> None:
        self._number = number
        self._fields = fields
        self._assigned = frozenset(assigned)
        # Packed, since unpacking copies nested containers faster than Python code does.
        self._extra = pack(extra) if extra is not None else None
        self._containers = pack({key: value for key, value in fields.items() if type(value) in (dict, list)})

    def make(self) -> Any:
        """A fresh message."""
        fields = self._fields.copy()
        fields.update(unpack(self._containers))
        return build(self._number, fields, self._assigned, None if self._extra is None else unpack(self._extra))


def templates(parts: list[bytes]) -> list[Template]:
    """Templates of packed messages.

    Raises:
        ValueError, TypeError, IndexError: when the bytes are no packed messages.
    """
    return [Template(*unpacked) for unpacked in unpack_joined(parts)]


class Run:
    """A run of messages as they were packed last: tells whether they are the same, in one call of msgpack.

    It is exact: the packed fields are compared byte for byte, and types, set fields, extras and
    private attributes besides.
    """

    __slots__ = ("_assigned", "_fields", "_types")

    def __init__(self, types: list[type], assigned: list[frozenset[str]], fields: bytes) -> None:
        self._types = types
        self._assigned = assigned
        self._fields = fields

    def __len__(self) -> int:
        return len(self._types)

    @classmethod
    def of(cls, values: list[Any]) -> Run | None:
        """The run of these messages, or None when not all of them are plain messages."""
        if not values or not all(type(value) in NUMBERS for value in values) or not _is_plain(values):
            return None
        try:
            fields = pack([value.__dict__ for value in values])
        except PackError:
            return None
        assigned = [frozenset(value.__pydantic_fields_set__) for value in values]
        return cls(list(map(type, values)), assigned, fields[_head_size(len(values)) :])

    def followed_by(self, values: list[Any]) -> Run | None:
        """The run of these messages after the ones of this run."""
        more = Run.of(values)
        if more is None:
            return None
        return Run(self._types + more._types, self._assigned + more._assigned, self._fields + more._fields)

    def starts(self, values: list[Any]) -> bool:
        """Whether a list starts with just these messages."""
        size = len(self._types)
        head = values if len(values) == size else values[:size]
        if list(map(type, head)) != self._types or not _is_plain(head):
            return False
        try:
            packed = pack([value.__dict__ for value in head])
        except PackError:
            return False
        if len(packed) != _head_size(size) + len(self._fields) or not packed.endswith(self._fields):
            return False
        return [value.__pydantic_fields_set__ for value in head] == self._assigned


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
