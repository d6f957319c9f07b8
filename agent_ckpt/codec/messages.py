"""LangChain messages, packed field by field.

A message is packed as its class's number, its `__dict__`, the names of the fields that were set,
and its extras: four to ten times faster than `model_dump` and a constructor call. The object that
comes back equals the packed one in type, fields, extras and set fields. A message that holds
anything but exact msgpack values, or private attributes, is left to the generic serializer.
"""

from __future__ import annotations

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
    fields = message.__dict__
    extra = message.__pydantic_extra__
    assigned = message.__pydantic_fields_set__
    if message.__pydantic_private__ is not None:
        return None
    names = [name for name in fields if name in assigned]
    try:
        if extra or len(names) != len(assigned):
            return pack([number, fields, names, extra or {}, sorted(assigned.difference(names))])
        return pack([number, fields, names])
    except PackError:
        return None


def decode(parts: list[bytes]) -> list[Any]:
    """Rebuild messages from their packed bytes, without running their constructors.

    Raises:
        ValueError, TypeError, IndexError: when the bytes are no packed messages.
    """
    built = []
    for number, fields, names, *rest in unpack_joined(parts):
        cls = CLASSES[number]
        message = cls.__new__(cls)
        if len(fields) != _FIELDS[number]:
            _fill(cls, fields)
        assigned = set(names)
        extra: dict[str, Any] | None = {} if _ALLOWS_EXTRA[number] else None
        if rest:
            extra = rest[0]
            assigned.update(rest[1])
        _set(message, "__dict__", fields)
        _set(message, "__pydantic_fields_set__", assigned)
        _set(message, "__pydantic_extra__", extra)
        _set(message, "__pydantic_private__", None)
        built.append(message)
    return built


def _fill(cls: type[BaseModel], fields: dict[str, Any]) -> None:
    """Give fields that a newer langchain-core added their defaults."""
    for name, info in cls.model_fields.items():
        if name not in fields and not info.is_required():
            fields[name] = info.get_default(call_default_factory=True)
