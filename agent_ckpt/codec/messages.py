"""LangChain messages, packed field by field.

A message is packed as its class's number, its `__dict__`, the names of the fields that were set,
and its extras: four to ten times faster than `model_dump` and a constructor call. The object that
comes back equals the packed one in type, fields, extras and set fields. A message that holds
anything but exact msgpack values, or private attributes, is left to the generic serializer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from itertools import repeat
from operator import setitem
from typing import Any

from langchain_core import messages as lc
from pydantic import BaseModel

from agent_ckpt.codec.pack import (
    PackError,
    pack,
    unpack_joined,
)

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

_FIELDS: tuple[int, ...] = tuple(len(cls.model_fields) for cls in CLASSES)
_ALLOWS_EXTRA: tuple[bool, ...] = tuple(cls.model_config.get("extra") == "allow" for cls in CLASSES)
_NAMES_AT_MOST = 48
_USUAL = {(number, count, str) for number, count in enumerate(_FIELDS) if _ALLOWS_EXTRA[number]}
"""By a class's number, how many fields a message of it has where nothing is missing, and how their names are told."""
new = object.__new__
set_fields = vars(BaseModel)["__dict__"].__set__
set_assigned = BaseModel.__pydantic_fields_set__.__set__  # type: ignore[attr-defined]
set_extra = BaseModel.__pydantic_extra__.__set__  # type: ignore[union-attr]
set_private = BaseModel.__pydantic_private__.__set__  # type: ignore[union-attr]


def encode(message: Any, number: int) -> bytes | None:
    """Pack a message whose exact type is CLASSES[number].

    Returns:
        The packed bytes, or None when it must go through the typed codec.
    """
    if message.__pydantic_private__ is not None:
        return None
    try:
        packed = [number, names_of(message), message.__dict__]
        if message.__pydantic_extra__:
            packed.append(message.__pydantic_extra__)
        return pack(packed)
    except PackError:
        return None


def names_of(message: Any) -> str | list[str]:
    """The names of the fields that were set, in one order: as one text where they can be told apart in it."""
    assigned = message.__pydantic_fields_set__
    try:
        return names_text(assigned)
    except TypeError:
        return sorted(assigned)


def names_text(assigned: set[str]) -> str:
    """Names as one text.

    Raises:
        TypeError: they can't be told apart in it.
    """
    names = sorted(assigned)
    text = " ".join(names)
    if text.split() != names:
        raise TypeError
    return text


class _Assigned(dict[str, frozenset[str]]):
    """The sets of names that texts stand for, as far as they are kept."""

    def __missing__(self, text: str) -> frozenset[str]:
        names = frozenset(text.split())
        if len(self) < _NAMES_AT_MOST:
            self[text] = names
        return names


_assigned = _Assigned()


def rebuild(unpacked: list[Any]) -> list[Any]:
    """Messages of what was unpacked of them, which is taken over, without running their constructors.

    Raises:
        ValueError, TypeError, IndexError: when it is no packed messages.
    """
    if not _are_usual(unpacked):
        return [build(*each) for each in unpacked]
    numbers, names, fields = zip(*unpacked, strict=True)
    assigned = list(map(_assigned.__getitem__, names))
    return _made(list(map(CLASSES.__getitem__, numbers)), fields, assigned, [{} for _ in unpacked])


def _are_usual(unpacked: list[Any]) -> bool:
    """Whether messages have all fields of their classes and no extras, though they may have them, and usual names."""
    if set(map(len, unpacked)) != {3}:
        return False
    return _USUAL.issuperset({(number, len(fields), type(names)) for number, names, fields in unpacked})


def _made(
    classes: list[type[BaseModel]],
    fields: Sequence[dict[str, Any]],
    assigned: Sequence[frozenset[str]],
    extras: list[dict[str, Any]],
) -> list[Any]:
    """Messages made without their constructors, by a pass for each of their parts.

    A call of C for many messages costs what ten lines of Python cost for one.
    """
    made = list(map(new, classes))
    _exhaust(map(set_fields, made, fields))
    _exhaust(map(set_assigned, made, map(set, assigned)))
    _exhaust(map(set_extra, made, extras))
    _exhaust(map(set_private, made, repeat(None)))
    return made


_exhaust = deque[Any](maxlen=0).extend
"""Drives an iterator to its end, at the speed of C."""


def build(number: int, names: str | list[str], fields: dict[str, Any], extra: dict[str, Any] | None = None) -> Any:
    """The message of a class's number, made without its constructor; of the names that `names_of` gives."""
    cls = CLASSES[number]
    message = new(cls)
    if len(fields) != _FIELDS[number]:
        _fill(cls, fields)
    set_fields(message, fields)
    set_assigned(message, set(_assigned[names] if type(names) is str else names))
    set_extra(message, extra if extra is not None else {} if _ALLOWS_EXTRA[number] else None)
    set_private(message, None)
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
        self._assigned = [_assigned[parts[1]] for parts in unpacked]
        roots: list[Any] = [parts[2] for parts in unpacked]
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


def _fill(cls: type[BaseModel], fields: dict[str, Any]) -> None:
    """Give fields that a newer langchain-core added their defaults."""
    for name, info in cls.model_fields.items():
        if name not in fields and not info.is_required():
            fields[name] = info.get_default(call_default_factory=True)
