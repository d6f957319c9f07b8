"""Writing what the typed codec reads (`typed`): values that msgpack alone would change, exact at every depth.

msgpack walks a value, and asks for an extension where it meets what it has no form for: that is the fast way. What it
can't walk (dicts whose keys are no plain text, texts with lone surrogates, deep values, and what can't be kept, whose
place is to be told) is walked here. Both ways give the same bytes.
"""

from __future__ import annotations

import datetime
import enum
import struct
import zoneinfo
from collections.abc import Iterable
from typing import Any, NoReturn

import ormsgpack
import pydantic_core

from agent_ckpt.codec import frame, kinds, typed
from agent_ckpt.codec.apart import FIELDS, Apart
from agent_ckpt.codec.gate import Gate
from agent_ckpt.codec.pack import EXACT, PackError, may_hold_bytes, refuse_other_bytes
from agent_ckpt.codec.room import LEVELS, in_room
from agent_ckpt.codec.unstorable import DEEPEST, TOO_DEEP, Unstorable

_TRIED_WHOLE = 16
"""How many extensions deep the fast way goes."""
_ATOMS = frozenset((type(None), bool, float, bytes))
_packb = ormsgpack.packb
_PLAIN = bytes((frame.PLAIN,))
_TYPED = bytes((frame.TYPED,))
_SAME = (datetime.timezone, zoneinfo.ZoneInfo, pydantic_core.TzInfo)
"""Types of immutable values of which one object stands in many places; so do members of enums."""


class _Between:
    """Stands before each of several values, to tell them apart."""


_BETWEEN = _Between()
_MARK = ormsgpack.Ext(0, b"\xc1\xfe\xc1\xff" * 3)
_CUT = _packb(_MARK)


class Encoder:
    """Encodes values, in one call.

    Args:
        gate: tells whether a class can be found again under its name.
        lenient: put a text in the place of what can't be kept, in place of an error: for metadata.
        secrets_allowed: whether a SecretStr or SecretBytes may be kept.
    """

    __slots__ = ("_apart", "_extended", "_flags", "_inside", "_same", "_stopped")

    def __init__(self, gate: Gate, *, lenient: bool = False, secrets_allowed: bool = True) -> None:
        self._apart = Apart(gate.under(None), lenient, secrets_allowed)
        self._inside = 0
        self._extended = False
        self._flags: list[bool] = []
        self._same: dict[int, tuple[Any, Any]] = {}
        self._stopped: BaseException | None = None

    def encode(self, value: Any) -> bytes:
        """The msgpack of a value.

        Raises:
            Unstorable: naming the innermost part that can't be kept.
        """
        packed = self._tried(value)
        return packed if packed is not None else self._walk(value, 0, tried=True)

    def body(self, value: Any) -> bytes:
        """The body of a value: of the codec PLAIN where msgpack alone has a form for all of it, else TYPED.

        Raises:
            Unstorable: as `encode`.
        """
        packed = self._tried(value)
        if packed is None:
            return _TYPED + self._walk(value, 0, tried=True)
        return (_TYPED if self._extended else _PLAIN) + packed

    def bodies(self, values: Iterable[Any]) -> list[bytes] | None:
        """The bodies of many values in one call of msgpack, or None where that can't be."""
        marked = [part for value in values for part in (_BETWEEN, value)]
        self._flags = []
        packed = self._tried(marked)
        if packed is None:
            return None
        pieces = packed.split(_CUT)[1:]
        flags = [*self._flags[1:], self._extended]
        if len(pieces) != len(flags):
            return None
        return [(_TYPED if flag else _PLAIN) + piece for flag, piece in zip(flags, pieces, strict=True)]

    # The fast way

    def _tried(self, value: Any) -> bytes | None:
        self._inside = 0
        try:
            return self._pack(value)
        except (PackError, RecursionError):
            if self._stopped is not None:
                # msgpack makes an error of its own of whatever is raised under it, an interrupt too.
                raise self._stopped from None
            return None

    def _pack(self, value: Any) -> bytes:
        packed = _packb(value, default=self._extension, option=EXACT)
        if may_hold_bytes(packed):
            refuse_other_bytes(value)
        return packed

    def _extension(self, value: Any) -> Any:
        cls = type(value)
        if cls is _Between:
            self._flags.append(self._extended)
            self._extended = False
            return _MARK
        self._extended = True
        same = self._same.get(id(value))
        if same is not None:
            return same[1]
        self._inside += 1
        try:
            if self._inside > _TRIED_WHOLE:
                raise RecursionError
            made = self._made(value, cls)
        except Exception:
            raise
        except BaseException as exc:
            self._stopped = exc
            raise
        self._inside -= 1
        if cls in _SAME or isinstance(cls, enum.EnumMeta):
            self._same[id(value)] = value, made
        return made

    def _made(self, value: Any, cls: type) -> Any:
        taken = self._apart.take(value, cls)
        if type(taken) is not tuple:
            return taken
        code, content, _ = taken
        if type(content) is list:
            if code == typed.SET or code == typed.FROZEN_SET:
                content = _in_order([self._pack(item) for item in content])
            else:
                content = self._pack(content[0] if code == typed.SNAPSHOT else content)
        return ormsgpack.Ext(code, content)

    # The slow way

    def _walk(self, value: Any, depth: int, *, tried: bool = False) -> bytes:
        cls = type(value)
        if cls in _ATOMS:
            return _packb(value)
        if cls is str:
            return _text(value)
        if cls is int and -(1 << 63) <= value < 1 << 64:
            return _packb(value)
        if depth > DEEPEST:
            return self._walk(self._apart.refuse(value, TOO_DEEP, "break the cycle, or flatten it"), 0)
        if depth < _TRIED_WHOLE and not tried:
            packed = self._tried(value)
            if packed is not None:
                return packed
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
            return _joined(self._items(value, depth, "[{}]"))
        taken = self._apart.take(value, cls)
        if type(taken) is not tuple:
            return self._walk(taken, depth)
        code, content, step = taken
        if type(content) is list:
            if step is FIELDS:
                content = _joined(self._parts(code, content, depth))
            else:
                items = self._items(content, depth, step)
                if code == typed.SNAPSHOT:
                    content = items[0]
                else:
                    content = _in_order(items) if code in (typed.SET, typed.FROZEN_SET) else _joined(items)
        return _packb(ormsgpack.Ext(code, content))

    def _items(self, items: Iterable[Any], depth: int, step: str) -> list[bytes]:
        encoded = []
        for at, item in enumerate(items):
            try:
                encoded.append(self._walk(item, depth + 1))
            except Unstorable as exc:
                _further_out(exc, step.format(at))
        return encoded

    def _parts(self, code: int, content: list[Any], depth: int) -> list[bytes]:
        """What stands in an object or a message: the steps into it are named by its fields."""
        if code == typed.OBJECT and content[3] == kinds.NAMED_TUPLE:
            *head, names, items, fields = content
            members = _array_head(len(items)) + self._named(dict(zip(names, items, strict=True)), depth, ".{}")
            return [*map(_packb, head), _packb(names), members, self._walk(fields, depth + 1)]
        return [self._fields(part, depth) if type(part) is dict else self._walk(part, depth + 1) for part in content]

    def _fields(self, fields: dict[Any, Any], depth: int) -> bytes:
        keys = _packed_keys(fields)
        if keys is None:
            return self._dict(fields, depth)
        return _map_head(len(keys)) + self._named(fields, depth, ".{}", keys)

    def _dict(self, value: dict[Any, Any], depth: int) -> bytes:
        keys = _packed_keys(value)
        if keys is None:
            return _packb(ormsgpack.Ext(typed.MAP, self._pairs(value, depth)))
        return _map_head(len(keys)) + self._named(value, depth, "[{!r:.60}]", keys)

    def _named(self, named: dict[str, Any], depth: int, step: str, keys: list[bytes] | None = None) -> bytes:
        """The values of a dict one after the other, each behind its packed key where these are given."""
        encoded = []
        for at, (key, item) in enumerate(named.items()):
            if keys is not None:
                encoded.append(keys[at])
            try:
                encoded.append(self._walk(item, depth + 1))
            except Unstorable as exc:
                _further_out(exc, step.format(key))
        return b"".join(encoded)

    def _pairs(self, value: dict[Any, Any], depth: int) -> bytes:
        encoded = []
        for key, item in value.items():
            try:
                encoded.append(self._walk(key, depth + 1))
            except Unstorable as exc:
                _further_out(exc, ".<key>")
            try:
                encoded.append(self._walk(item, depth + 1))
            except Unstorable as exc:
                _further_out(exc, f"[{key!r:.60}]" if type(key) in (str, int, float, bool) else ".<value>")
        return _joined(encoded)


def _further_out(exc: Unstorable, step: str) -> NoReturn:
    raise exc.under(step) from exc.__cause__


def _packed_keys(value: dict[Any, Any]) -> list[bytes] | None:
    """The keys of a dict, or None where not all of them are plain text."""
    try:
        keys = [_packb(key) for key in value if type(key) is str]
    except PackError:
        return None
    return keys if len(keys) == len(value) else None


def _text(value: str) -> bytes:
    try:
        return _packb(value)
    except PackError:
        return _packb(ormsgpack.Ext(typed.TEXT, value.encode("utf-8", "surrogatepass")))


def _array_head(size: int) -> bytes:
    if size < 1 << 4:
        return bytes((0x90 | size,))
    return struct.pack(">BH", 0xDC, size) if size < 1 << 16 else struct.pack(">BI", 0xDD, size)


def _map_head(size: int) -> bytes:
    if size < 1 << 4:
        return bytes((0x80 | size,))
    return struct.pack(">BH", 0xDE, size) if size < 1 << 16 else struct.pack(">BI", 0xDF, size)


def _joined(items: list[bytes]) -> bytes:
    return _array_head(len(items)) + b"".join(items)


def _in_order(items: list[bytes]) -> bytes:
    # In the order of their bytes: a set of texts has another order in each process.
    items.sort()
    return _joined(items)
