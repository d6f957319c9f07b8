"""Python's own types (and a few of pydantic's) that msgpack has no form for: a numbered table.

A type is taken apart into values that can be stored, and put together by a function of this table.
The numbers are stored: append only.
"""

from __future__ import annotations

import array
import datetime
import decimal
import fractions
import gc
import ipaddress
import pathlib
import re
import types
import uuid
import zoneinfo
from collections import ChainMap, Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import pydantic_core
from langchain_core.messages.base import TextAccessor
from langchain_core.runnables.utils import AddableDict

from agent_ckpt.codec.gate import Unresolved, UnresolvedError

FACTORIES: tuple[Any, ...] = (
    None, list, dict, set, frozenset, tuple, str, int, float, bool, bytes, bytearray, complex,
    deque, OrderedDict, Counter, decimal.Decimal, fractions.Fraction,
)  # fmt: skip
"""What a defaultdict may make, by number: append only."""
_PATHS: tuple[Any, ...] = (
    pathlib.PurePosixPath,
    pathlib.PureWindowsPath,
    pathlib.PosixPath,
    pathlib.WindowsPath,
)
_ADDRESSES: tuple[Any, ...] = (
    ipaddress.IPv4Address,
    ipaddress.IPv4Interface,
    ipaddress.IPv4Network,
    ipaddress.IPv6Address,
    ipaddress.IPv6Interface,
    ipaddress.IPv6Network,
)
_FLAGS = ~int(re.DEBUG)


class NotKeptError(Exception):
    """Why a value of a known type can't be kept.

    Attributes:
        remedy: what to do, where that is not what is usual.
    """

    def __init__(self, reason: str, remedy: str = "") -> None:
        super().__init__(reason)
        self.remedy = remedy


class Known(NamedTuple):
    """One type: how it is taken apart and put together."""

    cls: Any
    apart: Callable[[Any], list[Any]]
    together: Callable[..., Any]


def _flat(mapping: Any) -> list[Any]:
    return [part for pair in mapping.items() for part in pair]


def _bare(value: Any, *own: str) -> Any:
    """A value of which nothing but what it holds is to be kept."""
    more = value.__dict__.keys() - {*own, "__orig_class__"}
    if more:
        raise NotKeptError(
            f"it has an attribute of its own, {min(more)!r:.60}", "keep that beside it, or in a dataclass"
        )
    return value


def _behind(proxy: Any) -> Any:
    """The mapping that a read-only one shows, as it is."""
    (mapping,) = gc.get_referents(proxy)
    return mapping


def _pairs(parts: tuple[Any, ...]) -> Iterable[tuple[Any, Any]]:
    if len(parts) % 2:
        raise ValueError("a key without a value")
    return zip(parts[::2], parts[1::2], strict=True)


def _factory(value: Any) -> list[Any]:
    for number, factory in enumerate(FACTORIES):
        if value.default_factory is factory:
            return [number, *_flat(value)]
    raise NotKeptError("its default_factory is none of Python's own types", "turn it into a dict before it is stored")


def _zone(value: Any) -> list[Any]:
    if value.key is None:
        raise NotKeptError("it has no key that names it")
    return [value.key]


def _of(classes: tuple[Any, ...], at: int, text: str) -> Any:
    if type(text) is not str or type(at) is not int or at < 0:
        raise TypeError("text was expected")
    return classes[at](text)


def _deque(bound: Any, *items: Any) -> Any:
    if bound is not None and type(bound) is not int:
        raise TypeError("a deque's bound is no number")
    return deque(items, bound)


def _default(number: Any, *parts: Any) -> Any:
    if type(number) is not int:
        raise TypeError("a factory's number is none")
    return defaultdict(FACTORIES[number], _pairs(parts))


def zone(key: Any) -> zoneinfo.ZoneInfo:
    """The time zone of a name.

    Raises:
        UnresolvedError: when this machine does not have it.
    """
    if type(key) is not str:
        raise TypeError("text was expected")
    try:
        return zoneinfo.ZoneInfo(key)
    except Exception as exc:
        raise UnresolvedError(
            f"time zone {key!r:.100}",
            f"this machine has no such time zone ({type(exc).__name__})",
            "install the tzdata package, or the system's time zones, of a release that has it",
        ) from exc


def _counter(*parts: Any) -> Any:
    made: Any = Counter()
    dict.update(made, _pairs(parts))
    return made


def _addable(*parts: Any) -> Any:
    made: Any = AddableDict()
    dict.update(made, _pairs(parts))
    return made


def _proxy(mapping: Any) -> Any:
    if not hasattr(type(mapping), "keys"):
        raise TypeError("a view of something else than a mapping")
    return types.MappingProxyType(mapping)


def _mapping(*maps: Any) -> Any:
    if not all(hasattr(type(each), "keys") for each in maps):
        raise TypeError("a ChainMap of something else than mappings")
    return ChainMap(*maps)


def _namespace(fields: dict[str, Any]) -> Any:
    if type(fields) is not dict:
        raise TypeError("a namespace without a dict")
    made = types.SimpleNamespace()
    made.__dict__.update(fields)
    return made


def _array(typecode: str, size: int, raw: bytes) -> Any:
    made = array.array(typecode)
    if made.itemsize != size:
        raise ValueError("an array whose items have another size on this machine")
    made.frombytes(raw)
    return made


def _pattern(pattern: Any, flags: int) -> Any:
    return re.compile(pattern, flags & _FLAGS)


def _url(name: str, text: str) -> Any:
    # Here, since it takes longer to import than all of agent_ckpt.
    from pydantic import networks

    found = vars(networks).get(name)
    if found is None or not is_url(found):
        raise ValueError("no URL type of pydantic's")
    many = getattr(networks, "_BaseMultiHostUrl", ())
    inner = pydantic_core.MultiHostUrl if issubclass(found, many) else pydantic_core.Url
    made = object.__new__(found)
    object.__setattr__(made, "_url", inner(text))
    return made


def is_url(cls: Any) -> bool:
    """Whether a class is one of pydantic's URL types."""
    return isinstance(cls, type) and cls.__module__ == "pydantic.networks" and cls.__name__.endswith(("Url", "Dsn"))


def _time_parts(value: Any) -> list[Any]:
    return [value.hour, value.minute, value.second, value.microsecond, value.tzinfo, value.fold]


def _uuid(value: uuid.UUID) -> list[Any]:
    safe = value.is_safe
    return [value.bytes] if safe is uuid.SafeUUID.unknown else [value.bytes, safe.value]


def _moment(value: datetime.datetime) -> list[Any]:
    if value.tzinfo is None and not value.fold:
        return [value.isoformat()]
    return [value.replace(tzinfo=None).isoformat(), value.tzinfo, value.fold]


def _datetime(text: str, zone: Any = None, fold: int = 0) -> datetime.datetime:
    made = datetime.datetime.fromisoformat(text)
    if made.tzinfo is not None:
        raise ValueError("a time that tells its zone twice")
    return made if zone is None and not fold else made.replace(tzinfo=zone, fold=fold)


KNOWN: tuple[Known, ...] = (
    Known(complex, lambda v: [v.real, v.imag], complex),
    Known(range, lambda v: [v.start, v.stop, v.step], range),
    Known(slice, lambda v: [v.start, v.stop, v.step], slice),
    Known(deque, lambda v: [v.maxlen, *v], _deque),
    Known(OrderedDict, lambda v: _flat(_bare(v)), lambda *parts: OrderedDict(_pairs(parts))),
    Known(defaultdict, _factory, _default),
    Known(Counter, lambda v: _flat(_bare(v)), _counter),
    Known(ChainMap, lambda v: list(_bare(v, "maps").maps), _mapping),
    Known(datetime.date, lambda v: [v.year, v.month, v.day], datetime.date),
    Known(datetime.time, _time_parts, lambda *parts: datetime.time(*parts[:5], fold=parts[5])),
    Known(datetime.datetime, _moment, _datetime),
    Known(datetime.timedelta, lambda v: [v.days, v.seconds, v.microseconds], datetime.timedelta),
    Known(datetime.timezone, lambda v: list(v.__getinitargs__()), datetime.timezone),
    Known(zoneinfo.ZoneInfo, _zone, zone),
    Known(decimal.Decimal, lambda v: [str(v)], decimal.Decimal),
    Known(fractions.Fraction, lambda v: [v.numerator, v.denominator], fractions.Fraction),
    Known(uuid.UUID, _uuid, lambda raw, safe=None: uuid.UUID(bytes=raw, is_safe=uuid.SafeUUID(safe))),
    Known(type(Ellipsis), lambda _: [], lambda: Ellipsis),
    Known(type(NotImplemented), lambda _: [], lambda: NotImplemented),
    Known(re.Pattern, lambda v: [v.pattern, v.flags & _FLAGS], _pattern),
    Known(types.SimpleNamespace, lambda v: [dict(vars(v))], _namespace),
    Known(types.MappingProxyType, lambda v: [_behind(v)], _proxy),
    Known(array.array, lambda v: [v.typecode, v.itemsize, v.tobytes()], _array),
    Known(pydantic_core.TzInfo, lambda v: [int(v.utcoffset(None).total_seconds())], pydantic_core.TzInfo),
    Known(pydantic_core.Url, lambda v: [str(v)], pydantic_core.Url),
    Known(pydantic_core.MultiHostUrl, lambda v: [str(v)], pydantic_core.MultiHostUrl),
    Known(None, lambda v: [_PATHS.index(type(v)), str(v)], lambda at, text: _of(_PATHS, at, text)),
    Known(None, lambda v: [_ADDRESSES.index(type(v)), str(v)], lambda at, text: _of(_ADDRESSES, at, text)),
    Known(None, lambda v: [type(v).__name__, str(v._url)], _url),
    Known(AddableDict, lambda v: _flat(_bare(v)), _addable),
    Known(TextAccessor, lambda v: [str.__str__(v)], TextAccessor),
)
_PATH, _ADDRESS, _URL = 26, 27, 28

OF_ATOMS = frozenset((uuid.UUID, decimal.Decimal, datetime.date, datetime.timedelta))
"""Types whose parts are what msgpack has a form for, always."""

PLAIN: frozenset[type] = frozenset(
    (
        type(None), bool, int, float, str, bytes,
        datetime.timedelta, datetime.timezone, zoneinfo.ZoneInfo, pydantic_core.TzInfo,
    )
)  # fmt: skip
"""What the parts are, exactly, of types that hold no values of the user's: an object of another class among them
could make its methods run."""
_HOLDERS = (
    slice, deque, OrderedDict, defaultdict, Counter, ChainMap, types.SimpleNamespace, types.MappingProxyType,
    AddableDict,
)  # fmt: skip
_FREE = frozenset(number for number, known in enumerate(KNOWN) if known.cls in _HOLDERS)

_NUMBERS: dict[Any, int] = {known.cls: number for number, known in enumerate(KNOWN) if known.cls is not None}
_NUMBERS.update(dict.fromkeys(_PATHS, _PATH) | dict.fromkeys(_ADDRESSES, _ADDRESS))


def number_of(cls: type) -> int | None:
    """A type's number in the table, or None."""
    found = _NUMBERS.get(cls)
    return _URL if found is None and is_url(cls) else found


def classes() -> list[Any]:
    """The types of the table."""
    return [*_NUMBERS]


def holds_values(number: int) -> bool:
    """Whether the parts of a numbered type are, or hold, values of the user's."""
    return number in _FREE


def put_together(number: Any, parts: list[Any]) -> Any:
    """The value of a numbered type.

    Raises:
        Exception: for parts that make none.
    """
    if type(number) is not int or not 0 <= number < len(KNOWN):
        raise ValueError("a value of an unknown type number")
    if number not in _FREE and not all(type(part) in PLAIN for part in parts):
        for part in parts:
            if type(part) is Unresolved:
                raise UnresolvedError(part.type_name, part.reason, "mend that, and read it again")
        raise TypeError("a part is of another type than such a value has")
    return KNOWN[number].together(*parts)
