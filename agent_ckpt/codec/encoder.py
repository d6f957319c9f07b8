"""Writing what the typed codec reads (`typed`): values that msgpack alone would change, exact at every depth."""

from __future__ import annotations

import struct
import sys
from collections.abc import Iterable
from typing import Any
from weakref import WeakKeyDictionary

import ormsgpack
from langgraph.checkpoint.serde.types import _DeltaSnapshot

from agent_ckpt.codec import generics, kinds, messages, numeric, registry, secrets, stdlib, typed
from agent_ckpt.codec.frameworks import is_framework
from agent_ckpt.codec.gate import Gate, Unresolved, UnresolvedError
from agent_ckpt.codec.pack import PackError, pack
from agent_ckpt.codec.room import LEVELS, in_room

DEEPEST = 150
TOO_DEEP = f"it contains itself, or is nested more than {DEEPEST} deep"
_TRIED_WHOLE = 16
_LONGEST_PATH = 240
_ATOMS = frozenset((type(None), bool, float, bytes))
PLAIN_TEXT: set[type] = set()
"""Subclasses of str that are stored, and come back, as plain text."""
_packb = ormsgpack.packb


class Unstorable(Exception):
    """A value that can't be kept, and where in the encoded one it stands.

    Attributes:
        kind: its type.
        reason: why it can't be kept.
        remedy: what to do.
        item: which of several values it stands in, set where several are encoded at once.
    """

    def __init__(self, value: Any, reason: str, remedy: str) -> None:
        super().__init__(reason)
        self.kind = f"{type(value).__module__}.{type(value).__qualname__}"
        self.reason = reason
        self.remedy = remedy
        self.item: int | None = None
        self._steps: list[str] = []

    @property
    def path(self) -> str:
        """Where, such as `['a'][0].x`; "" for the value itself."""
        return short("".join(reversed(self._steps)))

    def under(self, step: str) -> Unstorable:
        """The same, one step further out."""
        self._steps.append(step)
        return self


def short(path: str) -> str:
    """A path that a person can read: the middle of a very long one is left out."""
    return path if len(path) <= _LONGEST_PATH else f"{path[: _LONGEST_PATH // 2]} ... {path[-_LONGEST_PATH // 2 :]}"


_CODEC = "register a codec for its class, agent_ckpt.register_codec(...), or turn it into plain data"


def _extension(code: int, content: bytes) -> bytes:
    size = len(content)
    if size < 1 << 8:
        return struct.pack(">BBB", 0xC7, size, code) + content
    if size < 1 << 16:
        return struct.pack(">BHB", 0xC8, size, code) + content
    return struct.pack(">BIB", 0xC9, size, code) + content


def _array_head(size: int) -> bytes:
    return bytes((0x90 | size,)) if size < 16 else struct.pack(">BI", 0xDD, size)


def _map_head(size: int) -> bytes:
    return bytes((0x80 | size,)) if size < 16 else struct.pack(">BI", 0xDF, size)


class Encoder:
    """Encodes one value.

    Args:
        gate: tells whether a class can be found again under its name.
        lenient: put a text in the place of what can't be kept, in place of an error: for metadata.
        secrets_allowed: whether a SecretStr or SecretBytes may be kept.
    """

    __slots__ = ("_gate", "_lenient", "_secrets_allowed")

    def __init__(self, gate: Gate, *, lenient: bool = False, secrets_allowed: bool = True) -> None:
        self._gate = gate.under(None)
        self._lenient = lenient
        self._secrets_allowed = secrets_allowed

    def encode(self, value: Any, depth: int = 0) -> bytes:
        """The msgpack of a value.

        Raises:
            Unstorable: naming the innermost part that can't be kept.
        """
        cls = type(value)
        if cls in _ATOMS:
            return _packb(value)
        if cls is str:
            return self._text(value)
        if cls is int:
            return self._int(value)
        if depth > DEEPEST:
            return self._refuse(value, TOO_DEEP, "break the cycle, or flatten it")
        if depth % LEVELS:
            return self._container(value, cls, depth)
        try:
            return self._container(value, cls, depth)
        except RecursionError:
            return in_room(self._container, value, cls, depth)  # type: ignore[no-any-return]

    def _container(self, value: Any, cls: type, depth: int) -> bytes:
        if cls is dict:
            return self._dict(value, depth)
        if cls is list:
            return self._list(value, depth)
        if cls is tuple:
            return _extension(typed.TUPLE, self._items(value, depth))
        if cls is set or cls is frozenset:
            return self._set(value, typed.SET if cls is set else typed.FROZEN_SET, depth)
        return self._other(value, cls, depth)

    def _refuse(self, value: Any, reason: str, remedy: str = _CODEC) -> bytes:
        if self._lenient:
            if isinstance(value, str):
                return self._text(str.__str__(value))
            if isinstance(value, int):
                return self._int(int.__int__(value))
            return self._text(f"<{type(value).__module__}.{type(value).__qualname__}>")
        raise Unstorable(value, reason, remedy)

    def _text(self, value: str) -> bytes:
        try:
            return _packb(value)
        except PackError:
            return _extension(typed.TEXT, value.encode("utf-8", "surrogatepass"))

    def _int(self, value: int) -> bytes:
        if -(1 << 63) <= value < 1 << 64:
            return _packb(value)
        return _extension(typed.BIG_INT, value.to_bytes(value.bit_length() // 8 + 1, "big", signed=True))

    def _list(self, value: list[Any], depth: int) -> bytes:
        if depth < _TRIED_WHOLE:
            try:
                return pack(value)
            except (PackError, RecursionError):
                pass
        return self._items(value, depth)

    def _items(self, items: Iterable[Any], depth: int, what: str = "[{}]") -> bytes:
        encoded = []
        for at, item in enumerate(items):
            try:
                encoded.append(self.encode(item, depth + 1))
            except Unstorable as exc:
                raise exc.under(what.format(at)) from exc.__cause__
        return _array_head(len(encoded)) + b"".join(encoded)

    def _set(self, value: Iterable[Any], code: int, depth: int) -> bytes:
        encoded = []
        for item in value:
            try:
                encoded.append(self.encode(item, depth + 1))
            except Unstorable as exc:
                raise exc.under(".<element>") from exc.__cause__
        # In the order of their bytes: a set of texts has another order in each process.
        encoded.sort()
        return _extension(code, _array_head(len(encoded)) + b"".join(encoded))

    def _dict(self, value: dict[Any, Any], depth: int) -> bytes:
        if depth < _TRIED_WHOLE:
            try:
                return pack(value)
            except (PackError, RecursionError):
                pass
        try:
            keys: list[bytes] | None = [_packb(key) for key in value if type(key) is str]
        except PackError:
            keys = None
        if keys is None or len(keys) != len(value):
            return _extension(typed.MAP, self._pairs(value, depth))
        return self._entries(keys, value, depth, "[{!r:.60}]")

    def _entries(self, keys: list[bytes], value: dict[str, Any], depth: int, what: str) -> bytes:
        encoded = []
        for packed, (key, item) in zip(keys, value.items(), strict=True):
            encoded.append(packed)
            try:
                encoded.append(self.encode(item, depth + 1))
            except Unstorable as exc:
                raise exc.under(what.format(key)) from exc.__cause__
        return _map_head(len(keys)) + b"".join(encoded)

    def _pairs(self, value: dict[Any, Any], depth: int) -> bytes:
        encoded = []
        for key, item in value.items():
            try:
                encoded.append(self.encode(key, depth + 1))
            except Unstorable as exc:
                raise exc.under(".<key>") from exc.__cause__
            try:
                encoded.append(self.encode(item, depth + 1))
            except Unstorable as exc:
                raise exc.under(
                    f"[{key!r:.60}]" if type(key) in (str, int, float, bool) else ".<value>"
                ) from exc.__cause__
        return _array_head(len(encoded)) + b"".join(encoded)

    def _other(self, value: Any, cls: type, depth: int) -> bytes:
        if cls in _plans and cls not in registry.by_class:
            return self._object(value, cls, depth)
        if cls is bytearray:
            return _extension(typed.BYTE_ARRAY, bytes(value))
        number = messages.NUMBERS.get(cls)
        if number is not None and value.__pydantic_private__ is None:
            return self._message(value, number, depth)
        known = stdlib.number_of(cls)
        if known is not None:
            return self._known(value, known, depth)
        if cls in registry.by_class:
            return self._registered(value, registry.by_class[cls], depth)
        if cls is _DeltaSnapshot:
            return _extension(typed.SNAPSHOT, self.encode(value.value, depth + 1))
        if cls is Unresolved:
            return _extension(value._code, value._data)
        if cls in PLAIN_TEXT:
            return self._text(str.__str__(value))
        if numeric.is_numpy(value):
            return self._numpy(value, depth)
        if isinstance(value, BaseException):
            # As LangGraph stores them.
            return self._text(_told(value))
        return self._object(value, cls, depth)

    def _message(self, value: Any, number: int, depth: int) -> bytes:
        packed = messages.encode(value, number)
        if packed is not None:
            return _extension(typed.MESSAGE, packed)
        parts = [
            _packb(number),
            self._fields(value.__dict__, depth),
            _packb(sorted(value.__pydantic_fields_set__)),
        ]
        if value.__pydantic_extra__:
            parts.append(self._fields(value.__pydantic_extra__, depth))
        return _extension(typed.MESSAGE, _array_head(len(parts)) + b"".join(parts))

    def _fields(self, fields: dict[Any, Any], depth: int) -> bytes:
        try:
            keys: list[bytes] = [_packb(key) for key in fields if type(key) is str]
        except PackError:
            keys = []
        if len(keys) != len(fields):
            return self._dict(fields, depth)
        return self._entries(keys, fields, depth, ".{}")

    def _known(self, value: Any, number: int, depth: int) -> bytes:
        try:
            parts = stdlib.KNOWN[number].apart(value)
        except stdlib.NotKeptError as exc:
            return self._refuse(value, str(exc))
        except RecursionError:
            raise
        except Exception as exc:
            return self._refuse(value, f"it can't be taken apart ({type(exc).__name__})")
        return _extension(typed.KNOWN, self._items([number, *parts], depth, ".<part {}>"))

    def _registered(self, value: Any, codec: registry.Registered, depth: int) -> bytes:
        try:
            payload = codec.encode(value)
        except RecursionError:
            raise
        except Exception as exc:
            if self._lenient:
                return self._refuse(value, "")
            raise Unstorable(
                value, f"its codec {codec.name!r} failed ({type(exc).__name__})", "mend the codec's encode function"
            ) from exc
        return _extension(typed.REGISTERED, self._items([codec.name, payload], depth, ".<payload>"))

    def _numpy(self, value: Any, depth: int) -> bytes:
        try:
            if numeric.is_array(value):
                return _extension(typed.ARRAY, self._items(numeric.take_apart(value), depth, ".<part {}>"))
            return _extension(typed.SCALAR, self._items(numeric.scalar_apart(value), depth))
        except numeric.NoArrayError as exc:
            return self._refuse(value, str(exc))

    def _object(self, value: Any, cls: type, depth: int) -> bytes:
        if not self._secrets_allowed and secrets.is_secret(value):
            return self._refuse(value, secrets.IN_CLEAR, secrets.REMEDY)
        try:
            plan = _plan_of(cls)
            state = kinds.take_apart(value, plan.shape)
        except (kinds.NoDataError, generics.NoNameError) as exc:
            return self._refuse(value, str(exc))
        if not plan.stands(cls, self._gate):
            module, qualname = plan.name[:2]
            return self._refuse(
                value,
                f"its class is not what is to be found as {module}.{qualname}",
                "make the object anew with the class that stands there, or register a codec for its class",
            )
        head = _array_head(4 + len(state)) + plan.head
        if depth < _TRIED_WHOLE:
            try:
                return _extension(typed.OBJECT, head + pack(state)[1:])
            except PackError:
                pass
        return _extension(typed.OBJECT, head + b"".join(self._state(plan.shape.kind, state, depth)))

    def _state(self, kind: int, state: list[Any], depth: int) -> list[bytes]:
        if kind == kinds.NAMED_TUPLE:
            names, items, fields = state
            return [_packb(names), self._members(names, items, depth), self.encode(fields, depth + 1)]
        if kind == kinds.ENUM:
            return [self.encode(part, depth + 1) for part in state]
        return [self._fields(part, depth) if type(part) is dict else self.encode(part, depth + 1) for part in state]

    def _members(self, names: list[str], items: list[Any], depth: int) -> bytes:
        encoded = []
        for name, item in zip(names, items, strict=True):
            try:
                encoded.append(self.encode(item, depth + 1))
            except Unstorable as exc:
                raise exc.under(f".{name}") from exc.__cause__
        return _array_head(len(encoded)) + b"".join(encoded)


class _Plan:
    """How objects of a class are stored, as far as it is the same for all of them.

    Attributes:
        shape: the kind of data that it is.
        name: its stored name.
        head: its packed name and kind.
    """

    __slots__ = ("head", "name", "shape")

    def __init__(self, cls: type) -> None:
        self.shape = kinds.shape_of(cls)
        self.name = generics.name_of(cls)
        self.head = b"".join(map(_packb, (*self.name, self.shape.kind)))

    def stands(self, cls: type, gate: Gate) -> bool:
        """Whether the class is found again under its name, now."""
        module, qualname, arguments = self.name
        home = sys.modules.get(module)
        if arguments is None and home is not None and home.__dict__.get(qualname) is cls:
            return True
        generics.remember(cls)
        try:
            return generics.class_of(self.name, gate, framework=is_framework(module)) is cls
        except UnresolvedError:
            return False


_plans: WeakKeyDictionary[type, _Plan] = WeakKeyDictionary()


def _plan_of(cls: type) -> _Plan:
    found = _plans.get(cls)
    if found is None:
        found = _plans[cls] = _Plan(cls)
    return found


def _told(exc: BaseException) -> str:
    try:
        return repr(exc)
    except Exception:
        return f"{type(exc).__name__}()"
