"""Writing what the typed codec reads (`typed`): values that msgpack alone would change, exact at every depth.

msgpack walks a value, and asks for an extension where it meets what it has no form for: that is the fast way. What it
can't walk (dicts whose keys are no plain text, texts with lone surrogates, deep values, and what can't be kept, whose
place is to be told) is walked here. Both ways give the same bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Any, NoReturn

import ormsgpack

from agent_ckpt.codec import frame, kinds, typed
from agent_ckpt.codec.apart import PLAIN_PARTS, SAME, Apart
from agent_ckpt.codec.gate import Gate
from agent_ckpt.codec.pack import EXACT, PackError, are_extensions_about, is_doubtful, look_through
from agent_ckpt.codec.room import LEVELS, in_room
from agent_ckpt.codec.unstorable import DEEPEST, TOO_DEEP, Unstorable

_TRIED_WHOLE = 16
"""How many extensions deep the fast way goes."""
_ATOMS = frozenset((type(None), bool, float, bytes))
_packb = ormsgpack.packb
_Ext = ormsgpack.Ext
_TEXT = frozenset((str,))
_SETS = (typed.SET, typed.FROZEN_SET)
_SNAPSHOT = typed.SNAPSHOT
_PLAIN = bytes((frame.PLAIN,))
_TYPED = bytes((frame.TYPED,))
_WALKED = frozenset((list, dict, bytes, bytearray, memoryview, str, int, float, bool, type(None)))
"""Types that msgpack has a form for, if not always the right one."""
_LOOKED_AT = _WALKED | {ormsgpack.Ext, ormsgpack.Fragment}


class _Between:
    """Stands before each of several values, to tell them apart."""


_BETWEEN = _Between()
_CUT_CONTENT = b"\xc1\xfe\xc1\xff" * 4
_CUT = b"\xc7\x11\x00" + _CUT_CONTENT
_MARK = ormsgpack.Ext(0, _CUT_CONTENT + b"\x00")
_MARK_PLAIN = ormsgpack.Ext(0, _CUT_CONTENT + _PLAIN)
_MARK_TYPED = ormsgpack.Ext(0, _CUT_CONTENT + _TYPED)
"""Marks end with how the body that follows starts, so that what stands between two cuts is a body."""


class Encoder:
    """Encodes values, in one call.

    Args:
        gate: tells whether a class can be found again under its name.
        lenient: put a text in the place of what can't be kept, in place of an error: for metadata.
        secrets_allowed: whether a SecretStr or SecretBytes may be kept.
    """

    __slots__ = ("_all_doubtful", "_apart", "_extended", "_flags", "_inside", "_many", "_same", "_stopped", "_ways")

    def __init__(self, gate: Gate, *, lenient: bool = False, secrets_allowed: bool = True) -> None:
        self._apart = Apart(gate.under(None), lenient, secrets_allowed)
        self._inside = 0
        self._all_doubtful = False
        self._extended = False
        self._flags: list[bool] = []
        self._same: dict[int, tuple[Any, Any]] = {}
        self._stopped: BaseException | None = None
        # A method of its own in here would leave every encoder to the collector.
        self._ways: dict[type, Callable[[Any, type], Any]] = {}
        self._many: set[type] = {_Between}

    def encode(self, value: Any) -> bytes:
        """The msgpack of a value.

        Raises:
            Unstorable: naming the innermost part that can't be kept.
        """
        packed = self._tried(value) if _has_way(value) else None
        return packed if packed is not None else self._walk(value, 0, tried=True)

    def body(self, value: Any) -> bytes:
        """The body of a value: of the codec PLAIN where msgpack alone has a form for all of it, else TYPED.

        Raises:
            Unstorable: as `encode`.
        """
        packed = self._tried(value) if _has_way(value) else None
        if packed is None:
            return _TYPED + self._walk(value, 0, tried=True)
        return (_TYPED if self._extended else _PLAIN) + packed

    def bodies(self, values: Sequence[Any]) -> list[bytes] | None:
        """The bodies of many values in one call of msgpack, or None where that can't be."""
        marked: list[Any] = [None] * (2 * len(values))
        marked[1::2] = values
        if _WALKED.isdisjoint(map(type, values)):
            marked[::2] = [_MARK_TYPED] * len(values)
            return _pieces(self._tried(marked, values), len(values))
        marked[::2] = [_MARK_PLAIN] * len(values)
        try:
            packed = _packb(marked, option=EXACT)
        except PackError:
            pass
        else:
            return None if is_doubtful(packed) and not _looked_through(values) else _pieces(packed, len(values))
        marked[::2] = [_BETWEEN] * len(values)
        self._flags = []
        pieces = _pieces(self._tried(marked, values), len(values))
        if pieces is None:
            return None
        flags = [*self._flags[1:], self._extended]
        return [(_TYPED if flag else _PLAIN) + piece[1:] for flag, piece in zip(flags, pieces, strict=True)]

    # The fast way

    def _tried(self, value: Any, values: Sequence[Any] | None = None) -> bytes | None:
        self._inside = 0
        self._extended = False
        self._all_doubtful = are_extensions_about()
        try:
            packed = _packb(value, default=self._extension, option=EXACT)
        except (PackError, RecursionError):
            if self._stopped is not None:
                # msgpack makes an error of its own of whatever is raised under it, an interrupt too.
                raise self._stopped from None
            return None
        doubtful = 0xC4 in packed or 0xC5 in packed or 0xC6 in packed or self._all_doubtful
        if doubtful and not _looked_through((value,) if values is None else values):
            return None
        return packed

    def _extension(self, value: Any) -> Any:
        """What msgpack writes in the place of a value that it has no form for."""
        cls = type(value)
        try:
            if cls in self._many:
                taken = self._between() if cls is _Between else self._one_for_many(value, cls)
            else:
                way = self._ways.get(cls)
                if way is None:
                    way = self._ways[cls] = self._apart.way(value, cls)
                taken = way(value, cls)
            if type(taken) is not tuple:
                self._extended = taken is not _MARK
                return taken
            code, content, step = taken
            if type(content) is list:
                content = self._packed(code, content, step)
        except Exception:
            raise
        except BaseException as exc:
            self._stopped = exc
            raise
        self._extended = True
        if step is not SAME:
            return _Ext(code, content)
        made = _Ext(code, content)
        self._same[id(value)] = value, made
        self._many.add(cls)
        return made

    def _packed(self, code: int, content: list[Any], step: str) -> bytes:
        self._inside += 1
        if self._inside > _TRIED_WHOLE:
            raise RecursionError
        if code in _SETS:
            packed = _in_order([_packb(item, default=self._extension, option=EXACT) for item in content])
        else:
            whole = content[0] if code == _SNAPSHOT else content
            packed = _packb(whole, default=self._extension, option=EXACT)
            doubtful = 0xC4 in packed or 0xC5 in packed or 0xC6 in packed or self._all_doubtful
            if doubtful and step is not PLAIN_PARTS:
                look_through(content)
        self._inside -= 1
        return packed

    def _one_for_many(self, value: Any, cls: type) -> Any:
        """The way of a type whose objects stand in many places: what one of them became is kept."""
        same = self._same.get(id(value))
        return same[1] if same is not None else self._apart.way(value, cls)(value, cls)

    def _between(self) -> Any:
        self._flags.append(self._extended)
        return _MARK

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
        if depth < _TRIED_WHOLE and not tried and _has_way(value):
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
        taken = self._apart.way(value, cls)(value, cls)
        if type(taken) is not tuple:
            return self._walk(taken, depth)
        code, content, step = taken
        if type(content) is list:
            if code in (typed.OBJECT, typed.MESSAGE):
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
            packed = self._tried(list(chain.from_iterable(value.items()))) if depth < _TRIED_WHOLE else None
            return _packb(_Ext(typed.MAP, packed if packed is not None else self._pairs(value, depth)))
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


def _has_way(value: Any) -> bool:
    """Whether msgpack may have a form for a value, as far as a look at its keys tells."""
    return type(value) is not dict or _TEXT.issuperset(map(type, value))


def _pieces(packed: bytes | None, size: int) -> list[bytes] | None:
    """What stands between the marks, where these make so many pieces."""
    pieces = packed.split(_CUT) if packed is not None else []
    return pieces[1:] if len(pieces) == size + 1 else None


def _looked_through(values: Sequence[Any]) -> bool:
    """Whether nothing stands in values that msgpack has walked that it packs like something else."""
    # Of everything else what is in it was looked at where it was packed.
    if _LOOKED_AT.isdisjoint(map(type, values)):
        return True
    try:
        look_through(list(values))
    except PackError:
        return False
    return True


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
