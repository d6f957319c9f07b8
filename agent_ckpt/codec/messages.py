"""LangChain messages, packed field by field.

A message is packed as its class's number, its `__dict__`, the names of the fields that were set,
and its extras: four to ten times faster than `model_dump` and a constructor call. The object that
comes back equals the packed one in type, fields, extras and set fields. A message that holds
anything but exact msgpack values, or private attributes, is left to the generic serializer.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from langchain_core import messages as lc
from pydantic import BaseModel

from agent_ckpt.codec.pack import PackError, pack, unpack_joined

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
_set = object.__setattr__


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


def decode(parts: list[bytes]) -> list[Any]:
    """Rebuild messages from their packed bytes, without running their constructors.

    Raises:
        ValueError, TypeError, IndexError: when the bytes are no packed messages.
    """
    return [_build(*unpacked) for unpacked in unpack_joined(parts)]


def _build(number: int, fields: dict[str, Any], assigned: Iterable[str], extra: dict[str, Any] | None = None) -> Any:
    cls = CLASSES[number]
    message = cls.__new__(cls)
    if len(fields) != _FIELDS[number]:
        _fill(cls, fields)
    _set(message, "__dict__", fields)
    _set(message, "__pydantic_fields_set__", set(assigned))
    _set(message, "__pydantic_extra__", extra if extra is not None else {} if _ALLOWS_EXTRA[number] else None)
    _set(message, "__pydantic_private__", None)
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
        self._extra = extra
        self._containers = tuple(key for key, value in fields.items() if type(value) in (dict, list))

    def make(self) -> Any:
        """A fresh message."""
        fields = self._fields.copy()
        for key in self._containers:
            fields[key] = _copied(fields[key])
        return _build(self._number, fields, self._assigned, None if self._extra is None else _copied(self._extra))


def templates(parts: list[bytes]) -> list[Template]:
    """Templates of packed messages.

    Raises:
        ValueError, TypeError, IndexError: when the bytes are no packed messages.
    """
    return [Template(*unpacked) for unpacked in unpack_joined(parts)]


def _copied(value: Any) -> Any:
    if type(value) is dict:
        return {key: _copied(item) if type(item) in (dict, list) else item for key, item in value.items()}
    return [_copied(item) if type(item) in (dict, list) else item for item in value]


def _fill(cls: type[BaseModel], fields: dict[str, Any]) -> None:
    """Give fields that a newer langchain-core added their defaults."""
    for name, info in cls.model_fields.items():
        if name not in fields and not info.is_required():
            fields[name] = info.get_default(call_default_factory=True)
