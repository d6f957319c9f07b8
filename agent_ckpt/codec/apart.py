"""Taking a value that msgpack has no form for apart by one level: its extension, and what stands in that."""

from __future__ import annotations

import datetime
import sys
import types
import typing
import zoneinfo
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

import ormsgpack
import pydantic_core
from langgraph.checkpoint.serde.types import _DeltaSnapshot

from agent_ckpt.codec import generics, kinds, messages, numeric, registry, secrets, stdlib, typed
from agent_ckpt.codec.frameworks import is_framework
from agent_ckpt.codec.gate import Gate, Unresolved, UnresolvedError
from agent_ckpt.codec.unstorable import Unstorable

PLAIN_TEXT: set[type] = set()
"""Subclasses of str that are stored, and come back, as plain text."""
_packb = ormsgpack.packb
_ALIASES = (types.GenericAlias, types.UnionType, type(typing.List[int]), type(typing.Literal[1]))  # noqa: UP006
_ONE_FOR_MANY = (datetime.timezone, zoneinfo.ZoneInfo, pydantic_core.TzInfo)
FIELDS = ""
"""The step of what stands in an object: its fields have names."""
PLAIN_PARTS = ".<own part {}>"
"""The step of what stands in one of Python's own values that hold none of the user's."""
SAME = ".<its {}>"
"""The step of what stands in an immutable value of which one object stands in many places, as a time zone."""
REMEDY = "register a codec for its class, agent_ckpt.register_codec(...), or turn it into plain data"

Taken = Any
"""`(extension, content, step)`: the content is bytes, or a list of values; the step tells where in the value each of
these stands. Or a plain value that takes its place."""


class Apart:
    """Takes values apart, for one call.

    Args:
        gate: tells whether a class can be found again under its name.
        lenient: put a text in the place of what can't be kept, in place of an error: for metadata.
        secrets_allowed: whether a SecretStr or SecretBytes may be kept.
    """

    __slots__ = ("_gate", "_lenient", "_secrets_allowed", "_standing")

    def __init__(self, gate: Gate, lenient: bool, secrets_allowed: bool) -> None:
        self._gate = gate
        self._lenient = lenient
        self._secrets_allowed = secrets_allowed
        self._standing: dict[type, _Plan] = {}

    def refuse(self, value: Any, reason: str, remedy: str = REMEDY) -> Any:
        """A text in the place of a value that can't be kept, where that is wanted; else the error."""
        if not self._lenient:
            raise Unstorable(value, reason, remedy)
        if isinstance(value, str):
            return str.__str__(value)
        if isinstance(value, int):
            return int.__int__(value)
        return f"<{type(value).__module__}.{type(value).__qualname__}>"

    def way(self, value: Any, cls: type) -> Callable[[Any, type], Taken]:
        """What takes values of this type apart, such as this one; it raises Unstorable for one that can't be kept."""
        made = _WAYS.get(cls)
        if made is not None:
            return made
        if cls in messages.NUMBERS:
            return self._message
        number = stdlib.number_of(cls)
        if number is not None:
            return self._known(number, cls)
        if cls in registry.by_class:
            return self._registered
        if cls in PLAIN_TEXT:
            return _plain_text
        if numeric.is_numpy(value):
            return self._numpy
        if issubclass(cls, (type, *_ALIASES)):
            return self._type
        return _told if issubclass(cls, BaseException) else self._object

    def _message(self, value: Any, cls: type) -> Taken:
        if value.__pydantic_private__ is not None:
            return self._object(value, cls)
        content = [messages.NUMBERS[cls], messages.names_of(value), value.__dict__]
        if value.__pydantic_extra__:
            content.append(value.__pydantic_extra__)
        return typed.MESSAGE, content, FIELDS

    def _known(self, number: int, cls: type) -> Callable[[Any, type], Taken]:
        apart = stdlib.KNOWN[number].apart
        if cls in stdlib.OF_ATOMS:
            return lambda value, _: (typed.KNOWN, _packb([number, *apart(value)]), "")
        step = ".<item {}>" if stdlib.holds_values(number) else SAME if cls in _ONE_FOR_MANY else PLAIN_PARTS

        def take(value: Any, _: type) -> Taken:
            try:
                return typed.KNOWN, [number, *apart(value)], step
            except stdlib.NotKeptError as exc:
                return self.refuse(value, str(exc), exc.remedy or REMEDY)
            except RecursionError:
                raise
            except Exception as exc:
                return self.refuse(value, f"it can't be taken apart ({type(exc).__name__})")

        return take

    def _registered(self, value: Any, cls: type) -> Taken:
        codec = registry.by_class[cls]
        try:
            return typed.REGISTERED, [codec.name, codec.encode(value)], ".<payload>"
        except RecursionError:
            raise
        except Exception as exc:
            if self._lenient:
                return self.refuse(value, "")
            raise Unstorable(
                value, f"its codec {codec.name!r} failed ({type(exc).__name__})", "mend the codec's encode function"
            ) from exc

    def _type(self, value: Any, cls: type) -> Taken:  # noqa: ARG002
        remedy = "store its name, and look it up where it is used"
        try:
            tree = generics.tree_of(value)
            if generics.type_of(tree, self._gate, "a type") == value:
                return typed.TYPE, tree, ".<part {}>"
        except generics.NoNameError as exc:
            return self.refuse(value, str(exc), remedy)
        except UnresolvedError as exc:
            return self.refuse(value, f"it can't be found again: {exc.reason}", remedy)
        return self.refuse(value, "what is found under its name is another type", remedy)

    def _numpy(self, value: Any, cls: type) -> Taken:  # noqa: ARG002
        try:
            if numeric.is_array(value):
                return typed.ARRAY, numeric.take_apart(value), ".<part {}>"
            return typed.SCALAR, numeric.scalar_apart(value), "[{}]"
        except numeric.NoArrayError as exc:
            return self.refuse(value, str(exc))

    def _object(self, value: Any, cls: type) -> Taken:
        plan = self._standing.get(cls)
        try:
            if plan is None:
                if not self._secrets_allowed and secrets.is_secret(value):
                    return self.refuse(value, secrets.IN_CLEAR, secrets.REMEDY)
                plan = _plan_of(cls)
            state = kinds.take_apart(value, plan.shape)
        except generics.NoNameError as exc:
            return self.refuse(value, str(exc), generics.REMEDY)
        except kinds.NoDataError as exc:
            return self.refuse(value, str(exc), _remedy(cls))
        if cls not in self._standing:
            if not plan.stands(cls, self._gate):
                module, qualname = plan.named[:2]
                return self.refuse(
                    value,
                    f"its class is not what is to be found as {module}.{qualname}",
                    "make the object anew with the class that stands there, or register a codec for its class",
                )
            self._standing[cls] = plan
        return typed.OBJECT, plan.named + state, SAME if plan.shape.kind == kinds.ENUM else FIELDS


def _remedy(cls: type) -> str:
    """What to do with an object of a class that is none of data."""
    for base in cls.__mro__[1:-1]:
        if base in _WAYS or base in (str, float, list, dict, bytes) or stdlib.number_of(base) is not None:
            return f"turn it into a plain {base.__qualname__}, or register a codec, agent_ckpt.register_codec(...)"
    return REMEDY


class _Plan:
    """How objects of a class are stored, as far as it is the same for all of them.

    Attributes:
        shape: the kind of data that it is.
        named: its stored name, and the number of its kind.
    """

    __slots__ = ("named", "shape")

    def __init__(self, cls: type) -> None:
        self.shape = kinds.shape_of(cls)
        self.named = [*generics.name_of(cls), self.shape.kind]

    def stands(self, cls: type, gate: Gate) -> bool:
        """Whether the class is found again under its name, now."""
        module, qualname, arguments, _ = self.named
        home = sys.modules.get(module)
        if arguments is None and home is not None and home.__dict__.get(qualname) is cls:
            return True
        generics.remember(cls)
        try:
            return generics.class_of(self.named[:3], gate, framework=is_framework(module)) is cls
        except UnresolvedError:
            return False


_plans: WeakKeyDictionary[type, _Plan] = WeakKeyDictionary()


def _plan_of(cls: type) -> _Plan:
    found = _plans.get(cls)
    if found is None:
        found = _plans[cls] = _Plan(cls)
    return found


def _told(exc: BaseException, cls: type) -> str:  # noqa: ARG001
    """An exception's repr, as LangGraph stores them."""
    try:
        return repr(exc)
    except Exception:
        return f"{type(exc).__name__}()"


def _plain_text(value: str, cls: type) -> str:  # noqa: ARG001
    return str.__str__(value)


def _big(value: int, cls: type) -> Taken:  # noqa: ARG001
    return typed.BIG_INT, value.to_bytes(value.bit_length() // 8 + 1, "big", signed=True), ""


_WAYS: dict[type, Callable[[Any, type], Taken]] = {
    tuple: lambda value, _: (typed.TUPLE, list(value), "[{}]"),
    set: lambda value, _: (typed.SET, list(value), ".<element>"),
    frozenset: lambda value, _: (typed.FROZEN_SET, list(value), ".<element>"),
    int: _big,
    bytearray: lambda value, _: (typed.BYTE_ARRAY, bytes(value), ""),
    _DeltaSnapshot: lambda value, _: (typed.SNAPSHOT, [value.value], ".value"),
    Unresolved: lambda value, _: (value._code, value._data, ""),
}
