"""What LangGraph's own serializer wrote, read through our gate.

Its bytes name classes, constructors and methods to call. Here none is called because a row names
it: Python's own types are made by a table, messages and other classes of data are filled in field
by field (`kinds`), and whatever else a row asks for is refused, or kept as it is.

    decode("msgpack", data)     the value, for any type but "pickle"
"""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import ipaddress
import json
import pathlib
import re
import uuid
from collections import deque
from collections.abc import Callable
from typing import Any

import ormsgpack
from langgraph.checkpoint.serde.types import _DeltaSnapshot
from pydantic import BaseModel

from agent_ckpt.codec import kinds, messages, numeric, stdlib
from agent_ckpt.codec.frameworks import is_framework
from agent_ckpt.codec.gate import Gate, Unresolved, UnresolvedError
from agent_ckpt.codec.models import fill_model
from agent_ckpt.codec.reader import Reader

SINGLE, POSITIONAL, KEYWORDS, METHOD, PYDANTIC_1, PYDANTIC_2, NUMPY, DELTA = range(8)
JSON = 8
"""Ours, for a kept part of the older form "json": the code of an object in it."""

_KEPT = 15
"""The code under which our own codec stores such bytes (`typed.FOREIGN`)."""
_DEFAULT = Gate()
_MESSAGES = {(cls.__module__, cls.__name__): cls for cls in messages.CLASSES}
_MESSAGE_NAMES = {cls.__name__: cls for cls in messages.CLASSES}


def decode(type_: str, data: bytes, gate: Gate = _DEFAULT) -> Any:
    """The value that LangGraph's JsonPlusSerializer wrote as (type_, data).

    Args:
        type_: "null", "bytes", "bytearray", "msgpack" or "json".
        gate: which classes may be rebuilt. `Gate(on_unresolved="keep")` never asks for a class: what can't be
            rebuilt becomes an `Unresolved` that keeps its bytes, and is stored again as those.

    Raises:
        UnresolvedError: a class that isn't there, or a type of another serializer (pickle, encrypted).
        ValueError, TypeError, ...: for bytes that are damaged.
    """
    if type_ == "null":
        return None
    if type_ == "bytes":
        return bytes(data)
    if type_ == "bytearray":
        return bytearray(data)
    if type_ == "msgpack":
        return ForeignReader(gate).read(data)
    if type_ == "json":
        return _revive(json.loads(data), gate)
    raise UnresolvedError(
        f"serializer type {type_!r:.60}",
        "it was written by another serializer than LangGraph's own",
        "open the store with that serializer, AgentSaver(serde=...); pickled values are never read",
    )


class ForeignReader(Reader):
    """Reads msgpack as LangGraph's serializer writes it."""

    options = ormsgpack.OPT_NON_STR_KEYS

    def part(self, code: int, data: bytes) -> Any:
        """The value of one extension."""
        try:
            return self._part(code, data)
        except UnresolvedError as exc:
            return self.gate.keep(exc, _KEPT, bytes((code,)) + data)

    def _part(self, code: int, data: bytes) -> Any:
        if code == JSON:
            return _revive(json.loads(data), self.gate)
        inside = self.inner(data)
        if code == DELTA:
            return _DeltaSnapshot(inside)
        if code == NUMPY:
            dtype, shape, order, raw = inside
            return _attempt("numpy:ndarray", numeric.build, dtype, shape, order, raw)
        module, name, given, *method = inside
        if type(module) is not str or type(name) is not str:
            raise ValueError("a class is named by something else than text")
        return construct(code, module, name, given, method[0] if method else None, self.gate)


def construct(code: int, module: str, name: str, given: Any, method: Any, gate: Gate) -> Any:
    """What a named class and its arguments stand for.

    Raises:
        UnresolvedError: when the class is not there, is none of data, or doesn't take what is stored.
    """
    return _attempt(f"{module}:{name}", _construct, code, module, name, given, method, gate)


def _attempt(label: str, make: Callable[..., Any], *given: Any) -> Any:
    """Make a value of parts that could be read; if that fails its bytes are whole all the same."""
    try:
        return make(*given)
    except (UnresolvedError, RecursionError, MemoryError):
        raise
    except Exception as exc:
        raise UnresolvedError(
            label,
            f"it can't be made of what is stored ({type(exc).__name__})",
            'read with on_unresolved="keep", which leaves what is stored as it is',
        ) from exc


def _construct(code: int, module: str, name: str, given: Any, method: Any, gate: Gate) -> Any:
    make = _TABLE.get((code, module, name))
    if make is not None and (code != METHOD or method == "fromisoformat"):
        if not _is_plain(given) and (type(given) is not list or name not in _HOLDERS):
            raise TypeError("an argument is of another type than such a value has")
        return make(given)
    label = f"{module}:{name}"
    if code == METHOD:
        raise UnresolvedError(
            label,
            f"the row asks to call its method {method!r:.60}, which is never done",
            'read with on_unresolved="keep", which leaves what is stored as it is; or load the value with the saver '
            "that wrote it, and put it here",
        )
    if code == PYDANTIC_2 and (module, name) in _MESSAGES:
        return fill_model(_MESSAGES[(module, name)], given, label)
    cls = _class_of(module, name, gate)
    try:
        kind = kinds.shape_of(cls).kind
    except kinds.NoDataError as exc:
        raise kinds.misfit(label, str(exc)) from exc
    if kind == kinds.ENUM:
        return _member(cls, given, label)
    if code in (PYDANTIC_1, PYDANTIC_2) and kind == kinds.MODEL:
        return fill_model(cls, given, label)
    if not isinstance(given, dict):
        given = _positional(cls, given, label)
    if module == "langgraph.types" and name == "Interrupt":
        return _interrupt(given)
    if module == "langgraph.store.base" and name in ("Item", "SearchItem"):
        # LangGraph's own class turns its times back from text, and goes through the namespace.
        if not all(type(given.get(key)) in types for key, types in _ITEM.items()) or not _is_plain(given["namespace"]):
            raise TypeError("an argument is of another type than an item has")
        return cls(**{key: given[key] for key in given.keys() & kinds.shape_of(cls).slots.keys()})
    if code in (PYDANTIC_1, PYDANTIC_2) or hasattr(cls, "model_fields"):
        return fill_model(cls, given, label)
    if kind == kinds.NAMED_TUPLE:
        return kinds.put_together(cls, kind, [list(given), list(given.values()), None], label)
    return kinds.put_together(cls, kind, [given, None], label)


def _class_of(module: str, name: str, gate: Gate) -> type:
    try:
        return gate.find(module, name, framework=is_framework(module))
    except UnresolvedError:
        if "[" not in name:
            raise
    # A parametrised model was stored by what it is called, "Box[int]": it is found where this process has made it.
    return gate.find(module, name.partition("[")[0], parametrise=lambda origin: _made_before(origin, module, name))


def _made_before(origin: Any, module: str, name: str) -> Any:
    found: list[Any] = [cls for cls in type.__subclasses__(origin) if cls.__name__ == name and cls.__module__ == module]
    found = [cls for cls in found if (vars(cls).get("__pydantic_generic_metadata__") or {}).get("origin") is origin]
    if len(found) != 1:
        what = f"several classes are called {name} here" if found else f"this process has not made {name}"
        raise kinds.misfit(f"{module}:{name}", what)
    return found[0]


_HOLDERS = ("set", "frozenset", "deque")


def _is_plain(given: Any) -> bool:
    """Whether arguments hold no object of another class, which could make its methods run."""
    parts = given if type(given) is list else given.values() if type(given) is dict else (given,)
    return all(type(part) in stdlib.PLAIN for part in parts)


_TIMES = (str, datetime.datetime)
_ITEM = {"key": (str,), "namespace": (list,), "created_at": _TIMES, "updated_at": _TIMES}


def _positional(cls: Any, given: Any, label: str) -> dict[str, Any]:
    if cls.__module__ == "langgraph.types" and cls.__name__ == "Send" and type(given) is list:
        return dict(zip(("node", "arg", "timeout"), (*given, None)[:3], strict=True))
    if cls.__module__ == "pydantic.types" and cls.__name__ in ("SecretStr", "SecretBytes"):
        return {"_secret_value": given}
    raise kinds.misfit(label, "the row asks to call its constructor, which is never done")


def _interrupt(given: dict[str, Any]) -> Any:
    """An Interrupt, also one of the layouts before LangGraph 1.0 (value, resumable, ns, when)."""
    from langgraph.types import Interrupt

    if "id" in given or "ns" not in given:
        known = {key: given[key] for key in ("value", "id", "response_schema") if key in given}
        if "id" not in known and given.get("interrupt_id"):
            known["id"] = given["interrupt_id"]
        return Interrupt(**known)
    old: Any = Interrupt
    if not _is_plain(given["ns"]):
        raise TypeError("a namespace is of another type than it has")
    return old(given.get("value"), ns=given["ns"])


def _member(cls: Any, value: Any, label: str) -> Any:
    for member in cls._member_map_.values():
        if type(member._value_) is type(value) and member._value_ == value:
            return member
    for member in cls._member_map_.values():
        # A tuple value was stored as a list.
        if isinstance(value, list) and member._value_ == tuple(value):
            return member
    return kinds.put_together(cls, kinds.ENUM, [None, value], label)


def hashable(value: Any) -> Any:
    """A list that stands where only something hashable can have stood was a tuple, one in an object there too."""
    if isinstance(value, list):
        return tuple(map(hashable, value))
    if isinstance(value, tuple):
        items = tuple(map(hashable, value))
        return items if type(value) is tuple else tuple.__new__(type(value), items)
    if isinstance(value, Unresolved) or type(value).__hash__ is None:
        return value
    if dataclasses.is_dataclass(value) or hasattr(type(value), "__attrs_attrs__") or isinstance(value, BaseModel):
        kinds.change_fields(value, lambda part: hashable(part) if isinstance(part, (list, tuple)) else part)
    return value


def _set_of(make: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda items: make(map(hashable, items))


def _pattern(given: Any) -> re.Pattern[Any]:
    pattern, flags = given
    return re.compile(pattern, flags & ~re.DEBUG)


def _of_text(make: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def made(given: Any) -> Any:
        if type(given) is not str:
            raise TypeError("text was expected")
        return make(given)

    return made


def _spread(make: Callable[..., Any]) -> Callable[[Any], Any]:
    return lambda given: make(*given)


_TABLE: dict[tuple[int, str, str], Callable[[Any], Any]] = {
    (SINGLE, "uuid", "UUID"): _of_text(uuid.UUID),
    (SINGLE, "decimal", "Decimal"): _of_text(decimal.Decimal),
    (SINGLE, "builtins", "set"): _set_of(set),
    (SINGLE, "builtins", "frozenset"): _set_of(frozenset),
    (SINGLE, "collections", "deque"): deque,
    (SINGLE, "zoneinfo", "ZoneInfo"): stdlib.zone,
    (POSITIONAL, "re", "compile"): _pattern,
    (POSITIONAL, "datetime", "timedelta"): _spread(datetime.timedelta),
    (POSITIONAL, "datetime", "date"): _spread(datetime.date),
    (POSITIONAL, "datetime", "timezone"): _spread(datetime.timezone),
    (KEYWORDS, "datetime", "time"): lambda given: datetime.time(**given),
    (METHOD, "datetime", "datetime"): _of_text(datetime.datetime.fromisoformat),
}
for _cls in (
    ipaddress.IPv4Address,
    ipaddress.IPv4Interface,
    ipaddress.IPv4Network,
    ipaddress.IPv6Address,
    ipaddress.IPv6Interface,
    ipaddress.IPv6Network,
):
    _TABLE[(SINGLE, "ipaddress", _cls.__name__)] = _of_text(_cls)
for _path in (pathlib.Path, pathlib.PosixPath, pathlib.WindowsPath):
    for _home in ("pathlib", "pathlib._local"):
        _TABLE[(POSITIONAL, _home, _path.__name__)] = _spread(_path)


# The form of the releases before msgpack


def _revive(value: Any, gate: Gate, depth: int = 0) -> Any:
    if depth > 200:
        raise ValueError("nested too deep")
    if isinstance(value, list):
        return [_revive(item, gate, depth + 1) for item in value]
    if not isinstance(value, dict):
        return value
    marked = value.get("lc") in (1, 2) and type(value.get("lc")) is int and value.get("type") == "constructor"
    path = value.get("id")
    if not marked or not isinstance(path, list) or len(path) < 2 or not all(type(part) is str for part in path):
        return {key: _revive(item, gate, depth + 1) for key, item in value.items()}
    try:
        return _revived(value, path, gate, depth)
    except UnresolvedError as exc:
        return gate.keep(exc, _KEPT, bytes((JSON,)) + json.dumps(value).encode())


def _revived(value: dict[str, Any], path: list[str], gate: Gate, depth: int) -> Any:
    module, name = ".".join(path[:-1]), path[-1]
    args = _revive(value.get("args") or [], gate, depth + 1)
    kwargs = _revive(value.get("kwargs") or {}, gate, depth + 1)
    if value["lc"] == 1:
        cls = _MESSAGE_NAMES.get(name)
        if cls is not None:
            return fill_model(cls, kwargs, f"{module}:{name}")
        if name == "Document":
            module = "langchain_core.documents.base"
        return construct(PYDANTIC_2, module, name, kwargs, None, gate)
    if (module, name) in _MESSAGES:
        return fill_model(_MESSAGES[(module, name)], kwargs, f"{module}:{name}")
    if args and not kwargs:
        code = SINGLE if (SINGLE, module, name) in _TABLE and len(args) == 1 else POSITIONAL
        given = args[0] if code == SINGLE else args
        if value.get("method") == "fromisoformat" or (module, name) == ("datetime", "datetime"):
            return construct(METHOD, module, name, args[0], "fromisoformat", gate)
        return construct(code, module, name, given, None, gate)
    if not args and (SINGLE, module, name) in _TABLE and not kwargs:
        return construct(SINGLE, module, name, [], None, gate)
    return construct(KEYWORDS, module, name, kwargs, None, gate)
