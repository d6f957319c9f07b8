"""Classes that are data: how an object of one is taken apart, and put together again without its code.

A class is of a data kind if it is an enum, a named tuple, a dataclass, an attrs class, a pydantic
model, or one of a few plain classes of LangGraph; and if neither it nor a base of its own defines
`__del__` or `__setstate__`. An object is rebuilt by filling its `__dict__` and slots.
"""

from __future__ import annotations

import dataclasses
import enum
import sys
import types
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

from pydantic import BaseModel

from agent_ckpt.codec.gained import Gained, fields_of, private_of
from agent_ckpt.codec.gate import UnresolvedError

FIELDS = 1
"""State: the `__dict__` or None, and the slots or None."""
NAMED_TUPLE = 2
"""State: names of the items, the items, the `__dict__` or None."""
ENUM = 3
"""State: the member's name and None, or None and the value of a combined flag."""
MODEL = 4
"""A pydantic model. State: `__dict__`, names of the fields that were set, extras, private attributes, further slots."""

_set_assigned: Any
_set_extra: Any
_set_private: Any
_set_assigned, _set_extra, _set_private = (
    getattr(BaseModel, name).__set__
    for name in ("__pydantic_fields_set__", "__pydantic_extra__", "__pydantic_private__")
)

_SLOT = types.MemberDescriptorType
_NOT_STORED = frozenset(("__orig_class__",))
"""What `typing` writes into an instance of a generic class, and is no part of its value."""
_CACHED_HASH = "_attrs_cached_hash"
_ODD = _NOT_STORED | {_CACHED_HASH}
PLAIN_CLASSES = {
    ("langgraph.types", "Send"),
    ("langgraph.store.base", "Item"),
    ("langgraph.store.base", "SearchItem"),
    ("pydantic.types", "SecretStr"),
    ("pydantic.types", "SecretBytes"),
}
_NO_DEFAULT = "which has no default, or one that only code of the class can make"
_new = object.__new__
_set = object.__setattr__


class NoDataError(Exception):
    """Why a class is not of a data kind."""


class Shape:
    """A class of a data kind.

    Attributes:
        kind: FIELDS, NAMED_TUPLE or ENUM.
        slots: the descriptors of its slots by name.
        fields: what fields get that aren't in the stored state.
        private: the same for a pydantic model's private attributes.
        simple: whether its objects are their `__dict__`, beside what every model has.
    """

    __slots__ = ("fields", "has_dict", "kind", "private", "simple", "slots")

    def __init__(self, cls: type, kind: int) -> None:
        self.kind = kind
        self.slots: dict[str, Any] = {}
        for base in reversed(cls.__mro__):
            if base is not BaseModel:
                self.slots.update({name: found for name, found in vars(base).items() if type(found) is _SLOT})
        self.has_dict = cls.__dictoffset__ != 0
        self.fields = Gained.of(fields_of(cls) if kind in (FIELDS, MODEL) else ())
        self.private = Gained.of(private_of(cls) if kind == MODEL else ())
        self.simple = kind in (FIELDS, MODEL) and self.has_dict and not self.slots and not self.private.names


_shapes: WeakKeyDictionary[type, Shape | str] = WeakKeyDictionary()


def shape_of(cls: type) -> Shape:
    """What kind of data a class is.

    Raises:
        NoDataError: it isn't.
    """
    found = _shapes.get(cls)
    if found is None:
        try:
            found = Shape(cls, _kind(cls))
        except NoDataError as exc:
            found = str(exc)
        _shapes[cls] = found
    if isinstance(found, str):
        raise NoDataError(found)
    return found


def _kind(cls: type) -> int:
    mro = cls.__mro__
    if isinstance(cls, enum.EnumMeta):
        kind = ENUM
    elif tuple in mro and any(_is_fields(vars(base).get("_fields")) for base in mro):
        kind = NAMED_TUPLE
    elif BaseModel in mro:
        kind = MODEL
    elif any(_is_data(vars(base)) for base in mro) or (cls.__module__, cls.__name__) in PLAIN_CLASSES:
        kind = FIELDS
    else:
        raise NoDataError("it is no model, dataclass, attrs class, enum or named tuple")
    for base in mro:
        if "__del__" in vars(base):
            raise NoDataError("its class has a __del__ method")
        setstate = vars(base).get("__setstate__")
        if setstate is not None and not _is_known(base, setstate):
            raise NoDataError("its class has a __setstate__ method, so its fields alone may not make it up")
    if kind in (FIELDS, MODEL):
        try:
            _new(cls)
        except TypeError as exc:
            raise NoDataError("its class is built on another builtin type") from exc
    return kind


def _is_fields(found: Any) -> bool:
    return type(found) is tuple and all(type(name) is str for name in found)


def _is_data(names: Any) -> bool:
    return "__dataclass_fields__" in names or "__attrs_attrs__" in names or "__fields_set__" in names


def _is_known(base: type, setstate: Any) -> bool:
    """Whether a `__setstate__` is one that a library generates or inherits, and means the fields alone."""
    if base.__module__ == "enum" or base.__module__.startswith("pydantic."):
        return True
    if setstate is getattr(dataclasses, "_dataclass_setstate", None):
        return True
    attrs = sys.modules.get("attr._make")
    code = getattr(setstate, "__code__", None)
    return attrs is not None and code is not None and bool(code.co_filename == attrs.__file__)


def take_apart(value: Any, shape: Shape) -> list[Any]:
    """The state of an object.

    Raises:
        NoDataError: when it can't be rebuilt as it is.
    """
    if shape.kind == ENUM:
        return _enum_state(value)
    fields: Any = value.__dict__ if shape.has_dict else None
    if shape.simple and _ODD.isdisjoint(fields) and shape.fields.names <= fields.keys():
        if shape.kind == FIELDS:
            return [fields, None]
        assigned = _assigned(value)
        return [fields, assigned, value.__pydantic_extra__, value.__pydantic_private__, None]
    if fields and not _NOT_STORED.isdisjoint(fields):
        fields = {name: part for name, part in fields.items() if name not in _NOT_STORED}
    if fields and _CACHED_HASH in fields:
        fields = {**fields, _CACHED_HASH: None}
    if shape.kind == NAMED_TUPLE:
        if len(value) != len(value._fields):
            raise NoDataError("it has another number of items than its class has fields")
        return [list(value._fields), list(tuple.__iter__(value)), fields or None]
    slots = {}
    for name, slot in shape.slots.items():
        try:
            slots[name] = slot.__get__(value)
        except AttributeError:
            continue
    if _CACHED_HASH in slots:
        slots[_CACHED_HASH] = None
    lacks = shape.fields.lacking((fields or {}).keys() | slots.keys() if slots else (fields or {}).keys())
    if lacks is None and shape.private.names:
        lacks = shape.private.lacking((value.__pydantic_private__ or {}).keys())
    if lacks is not None:
        raise NoDataError(f"it lacks its field {lacks!r}")
    if shape.kind == MODEL:
        assigned = _assigned(value)
        return [fields, assigned, value.__pydantic_extra__, value.__pydantic_private__, slots or None]
    return [fields, slots or None]


def _assigned(value: Any) -> list[str]:
    try:
        return sorted(value.__pydantic_fields_set__)
    except TypeError as exc:
        raise NoDataError("not all names of the fields that were set are texts") from exc


def _enum_state(value: Any) -> list[Any]:
    cls = type(value)
    if cls._member_map_.get(value._name_) is value:
        return [value._name_, None]
    if isinstance(value, enum.Flag) and type(value._value_) is int and _flag(cls, value._value_) is value:
        return [None, value._value_]
    raise NoDataError("it is no member of its enum")


def _flag(cls: Any, value: int) -> Any:
    found = cls._value2member_map_.get(value)
    # Python's own way to make a combined flag, whatever `_missing_` the class defines.
    return found if found is not None else enum.Flag._missing_.__func__(cls, value)  # type: ignore[attr-defined]


def put_together(cls: Any, kind: int, state: list[Any], name: str) -> Any:
    """Rebuild an object from its state, running no code of its class.

    Raises:
        UnresolvedError: when the class is no data, or has changed so that the state doesn't fit.
    """
    _check(kind, state)
    try:
        shape = shape_of(cls)
    except NoDataError as exc:
        raise misfit(name, str(exc)) from exc
    if shape.kind != kind:
        raise misfit(name, "it is another kind of class than when it was stored")
    if kind == ENUM:
        return _member(cls, state, name)
    if kind == NAMED_TUPLE:
        return _named_tuple(cls, state, name)
    made = _new(cls)
    given, own = _fitted(shape, state[0] or {}, state[-1] or {}, name)
    if shape.has_dict:
        _set(made, "__dict__", given)
    for field, part in own.items():
        shape.slots[field].__set__(made, part)
    if kind == MODEL:
        _set_assigned(made, set(state[1]))
        _set_extra(made, state[2])
        _set_private(made, _private(shape, state[3], name))
    return made


_DICT = (dict, type(None))
_STATES: dict[int, tuple[tuple[type, ...], ...]] = {
    FIELDS: (_DICT, _DICT),
    NAMED_TUPLE: ((list,), (list,), _DICT),
    MODEL: (_DICT, (list,), _DICT, _DICT, _DICT),
}


def _check(kind: Any, state: list[Any]) -> None:
    """Refuse a state whose parts are objects of other classes, since these could make their methods run."""
    if type(kind) is not int or kind not in (ENUM, *_STATES):
        raise ValueError("an object of an unknown kind")
    wanted = _STATES.get(kind)
    if wanted is not None and (len(state) != len(wanted) or any(map(_is_no, state, wanted))):
        raise TypeError("a part of an object's state is of another type than it has")
    if kind in (NAMED_TUPLE, MODEL) and not all(type(each) is str for each in state[0 if kind == NAMED_TUPLE else 1]):
        raise TypeError("a field is named by something else than text")


def _is_no(part: Any, wanted: tuple[type, ...]) -> bool:
    return type(part) not in wanted


def _fitted(
    shape: Shape, given: dict[str, Any], own: dict[str, Any], name: str
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The stored `__dict__` and slots as the class has its places now, with defaults for fields that it has gained."""
    # Where a class took slots, or gave them up, since, each field goes where it has its place now.
    if shape.slots or own:
        for field in given.keys() & shape.slots.keys():
            own[field] = given.pop(field)
        for field in own.keys() - shape.slots.keys():
            given[field] = own.pop(field)
    if given and not shape.has_dict:
        raise misfit(name, f"its class has no field {min(given)!r} any more")
    lacks = shape.fields.missing(given.keys() | own.keys())
    if lacks is not None:
        raise misfit(name, f"its class has gained the field {lacks!r}, {_NO_DEFAULT}")
    for field, make in shape.fields.makers.items():
        if field not in given and field not in own:
            (own if field in shape.slots else given)[field] = _made(make, field, name)
    return given, own


def _private(shape: Shape, given: dict[str, Any] | None, name: str) -> dict[str, Any] | None:
    """The stored private attributes, with defaults for those that the class has gained."""
    there = {} if given is None else given
    lacks = shape.private.missing(there.keys())
    if lacks is not None:
        raise misfit(name, f"its class has gained the private attribute {lacks!r}, {_NO_DEFAULT}")
    made = {key: _made(make, key, name) for key, make in shape.private.makers.items() if key not in there}
    return {**there, **made} if made else given


def _made(make: Callable[[], Any], field: str, name: str) -> Any:
    try:
        return make()
    except Exception as exc:
        raise misfit(name, f"the default of its field {field!r} can't be copied ({type(exc).__name__})") from exc


def _member(cls: Any, state: list[Any], name: str) -> Any:
    member, value = state
    if type(member) is str and member in cls._member_map_:
        return cls._member_map_[member]
    if member is None and type(value) is int and issubclass(cls, enum.Flag):
        try:
            return _flag(cls, value)
        except (KeyError, ValueError, TypeError):
            pass
    told = member if type(member) is str else value if type(value) in (int, str) else type(value).__name__
    raise misfit(name, f"the enum has no member {told!r:.100} any more")


def _named_tuple(cls: Any, state: list[Any], name: str) -> Any:
    names, items, fields = state
    if tuple(names) != cls._fields:
        stored = dict(zip(names, items, strict=True))
        stored = {**cls._field_defaults, **stored}
        if stored.keys() != set(cls._fields):
            raise misfit(name, "its class has other fields now")
        items = [stored[field] for field in cls._fields]
    made = tuple.__new__(cls, items)
    if fields:
        _set(made, "__dict__", dict(fields))
    return made


def change_fields(value: Any, change: Callable[[Any], Any]) -> None:
    """Change each attribute of an object that was just put together, running no code of its class."""
    shape = shape_of(type(value))
    if shape.has_dict:
        _set(value, "__dict__", {name: change(part) for name, part in value.__dict__.items()})
    for slot in shape.slots.values():
        try:
            slot.__set__(value, change(slot.__get__(value)))
        except (AttributeError, TypeError):
            continue


def misfit(name: str, reason: str) -> UnresolvedError:
    """The error for a class that is there but does not fit what is stored."""
    return UnresolvedError(
        name,
        reason,
        f"give the class as it was under another name and map it, AgentSaver(aliases={{{name!r}: OldClass}}), or read "
        f'with on_unresolved="keep", which leaves what is stored as it is',
    )
