"""The typed codec's extensions, and reading them.

A value is msgpack, in which these extensions stand for what msgpack has no form for. An extension's
content is msgpack again, unless it says bytes. The numbers are stored: append only.
"""

from __future__ import annotations

from typing import Any

from langgraph.checkpoint.serde.types import _DeltaSnapshot

from agent_ckpt.codec import generics, kinds, messages, numeric, registry, stdlib
from agent_ckpt.codec.foreign import ForeignReader
from agent_ckpt.codec.frameworks import is_framework
from agent_ckpt.codec.gate import Gate, UnresolvedError
from agent_ckpt.codec.reader import Reader

BIG_INT = 1
"""Bytes: a two's complement, big-endian."""
TEXT = 2
"""Bytes: a str with lone surrogates, as UTF-8 that lets them pass."""
TUPLE = 3
SET = 4
FROZEN_SET = 5
MAP = 6
"""A dict whose keys are not all plain text: keys and values in turn."""
BYTE_ARRAY = 7
"""Bytes."""
KNOWN = 8
"""`[number, parts ...]` of a type in `stdlib.KNOWN`."""
OBJECT = 9
"""`[module, qualified name, type arguments or None, kind, state ...]` (`kinds`)."""
MESSAGE = 10
"""As the codec MESSAGE, with any value in it."""
ARRAY = 11
"""`[dtype, shape, order, bytes or items]` of a numpy array."""
SCALAR = 12
"""`[dtype, bytes]` of a numpy scalar."""
REGISTERED = 13
"""`[name, payload]` of a registered codec."""
SNAPSHOT = 14
"""LangGraph's `_DeltaSnapshot`: what is in it."""
FOREIGN = 15
"""Bytes: an extension of LangGraph's serializer, its code and its content."""
TYPE = 16
"""A type that is a value itself: its tree (`generics`)."""


class TypedReader(Reader):
    """Reads what `encoder.Encoder` wrote."""

    def __init__(self, gate: Gate) -> None:
        super().__init__(gate)
        self._classes: dict[tuple[str, str], type] = {}

    def part(self, code: int, data: bytes) -> Any:
        """The value of one extension."""
        try:
            return self._part(code, data)
        except UnresolvedError as exc:
            return self.gate.keep(exc, code, data)

    def _part(self, code: int, data: bytes) -> Any:
        if code in (OBJECT, REGISTERED, FOREIGN, TYPE):
            return self._from_elsewhere(code, data)
        if code == BIG_INT:
            return int.from_bytes(data, "big", signed=True)
        if code == TEXT:
            return data.decode("utf-8", "surrogatepass")
        if code == BYTE_ARRAY:
            return bytearray(data)
        return self._built(code, self.inner(data))

    def _built(self, code: int, inside: Any) -> Any:
        if code == SNAPSHOT:
            return _DeltaSnapshot(inside)
        if type(inside) is not list:
            raise ValueError(f"extension {code} holds no list")
        if code == TUPLE:
            return tuple(inside)
        if code == SET:
            return _hashed(inside, set, inside)
        if code == FROZEN_SET:
            return _hashed(inside, frozenset, inside)
        if code == MAP:
            return _hashed(inside[::2], dict, zip(inside[::2], inside[1::2], strict=True))
        if code == KNOWN:
            return stdlib.put_together(inside[0], inside[1:])
        if code == MESSAGE:
            number, names, *others = map(type, inside)
            if number is not int or names not in (str, list) or others not in ([dict], [dict, dict]):
                raise TypeError("a part of a message is of another type than it has")
            return messages.build(*inside)
        if code == ARRAY:
            return numeric.build(*inside)
        if code == SCALAR:
            return numeric.scalar(*inside)
        raise ValueError(f"extension {code} is not known to this release")

    def _from_elsewhere(self, code: int, data: bytes) -> Any:
        if code == FOREIGN:
            return ForeignReader(self.gate).read_part(data[0], data[1:])
        inside = self.inner(data)
        if code == TYPE:
            return generics.type_of(inside, self.gate, "a type")
        if code == OBJECT:
            module, qualname, arguments, kind, *state = inside
            if type(module) is not str or type(qualname) is not str or type(arguments) not in (list, type(None)):
                raise ValueError("a class is named by something else than text")
            cls = self._classes.get((module, qualname)) if arguments is None else None
            if cls is None:
                cls = generics.class_of([module, qualname, arguments], self.gate, framework=is_framework(str(module)))
                if arguments is None:
                    self._classes[(module, qualname)] = cls
            return kinds.put_together(cls, kind, state, generics.label_of(module, qualname))
        name, payload = inside
        return self._by_codec(name, payload)

    def _by_codec(self, name: Any, payload: Any) -> Any:
        codec = registry.by_name.get(name) if self.gate.resolves and type(name) is str else None
        if type(name) is not str:
            raise ValueError("a codec is named by something else than text")
        label = f"codec {name!r:.200}"
        if codec is None:
            raise UnresolvedError(
                label,
                "no codec of this name is registered in this process",
                f"call agent_ckpt.register_codec(..., name={name!r:.200}) before reading; with "
                f'on_unresolved="keep" it is read as an Unresolved value that keeps what is stored',
            )
        try:
            return codec.decode(payload)
        except RecursionError:
            raise
        except Exception as exc:
            raise UnresolvedError(
                label,
                f"its decode function failed ({type(exc).__name__})",
                "mend the function, or register the codec that wrote the value under this name",
            ) from exc


def _hashed(keys: list[Any], make: Any, given: Any) -> Any:
    """A set or dict of these keys; unresolved where an object among them is not hashable any more."""
    try:
        return make(given)
    except RecursionError:
        raise
    except Exception as exc:
        cls = next(filter(None, map(_unhashable, keys)), None)
        if cls is None:
            raise
        name = generics.label_of(cls.__module__, cls.__qualname__)
        raise kinds.misfit(
            name, f"it stands in a set, or as a key, and can't be hashed or compared any more ({type(exc).__name__})"
        ) from exc


def _unhashable(key: Any) -> type | None:
    """The class of data that makes a key one that can't be hashed, or None."""
    if type(key) in (tuple, frozenset):
        return next(filter(None, map(_unhashable, key)), None)
    try:
        kinds.shape_of(type(key))
    except kinds.NoDataError:
        return None
    try:
        hash(key)
    except Exception:
        return type(key)
    return None
