"""What the annotation of a field tells about a value that was flattened to lists and dicts."""

from __future__ import annotations

import collections
import types
import typing
from collections.abc import (
    Collection,
    Container,
    Iterable,
    Mapping,
    MutableMapping,
    MutableSequence,
    MutableSet,
    Sequence,
)
from collections.abc import Set as AbstractSet
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel

from agent_ckpt.codec import gained, kinds

CONTAINERS = (dict, list, tuple, set, frozenset, collections.deque)
"""What the objects of a flattened value may stand in."""
MAPPINGS = frozenset((dict, Mapping, MutableMapping, collections.OrderedDict, collections.defaultdict))
COLLECTIONS = frozenset(
    (
        list, Sequence, MutableSequence, Collection, Container, Iterable, collections.deque,
        set, frozenset, AbstractSet, MutableSet,
    )
)  # fmt: skip
_SETS = frozenset((set, frozenset, AbstractSet, MutableSet))
_WRAPPED = (Annotated, typing.Required, typing.NotRequired, typing.Final, typing.ClassVar)


def _bare(annotation: Any) -> Any:
    """An annotation without what only wraps it."""
    while True:
        if get_origin(annotation) in _WRAPPED:
            annotation = get_args(annotation)[0]
        elif type(annotation).__name__ == "TypeAliasType":
            annotation = annotation.__value__
        elif isinstance(annotation, typing.NewType):
            annotation = annotation.__supertype__
        else:
            return annotation


def meant(annotation: Any, value: Any) -> Any:
    """The class or generic that a value stands for, chosen among a union's; None where anything may stand."""
    annotation = _bare(annotation)
    if get_origin(annotation) in (Union, types.UnionType):
        return _choice(list(_options(annotation)), value)
    if annotation in (Any, object) or isinstance(annotation, (TypeVar, str, typing.ForwardRef)):
        return None
    origin = get_origin(annotation)
    # A generic dataclass: its fields are those of the class, whatever it is parametrised with.
    return origin if isinstance(origin, type) and "__dataclass_fields__" in vars(origin) else annotation


def _options(annotation: Any) -> Iterable[Any]:
    for option in map(_bare, get_args(annotation)):
        if get_origin(option) in (Union, types.UnionType):
            yield from _options(option)
        else:
            yield option


def taken_apart(annotation: Any) -> tuple[Any, tuple[Any, ...]]:
    """A generic's origin and arguments."""
    return get_origin(annotation), get_args(annotation)


def _choice(options: list[Any], value: Any) -> Any:
    """The member of a union that a stored value looks like: of models, the one whose fields fit best."""
    classes: list[Any] = [option for option in options if isinstance(option, type)]
    if isinstance(value, dict):
        fitting = [cls for cls in classes if _has_fields(cls, value)]
        if fitting:
            return max(fitting, key=lambda cls: _likeness(cls, value))
        wanted: Any = MAPPINGS
    elif isinstance(value, (set, frozenset)):
        wanted = _SETS
    else:
        wanted = COLLECTIONS - _SETS | {tuple}
    for option in options:
        if (get_origin(option) or option) in wanted:
            return option
    named = [cls for cls in classes if is_named_tuple(cls) and isinstance(value, (list, tuple))]
    named = [cls for cls in named if len(cls._fields) == len(value)]
    return next(iter(named), next((cls for cls in classes if is_root(cls)), None))


def _has_fields(cls: Any, value: dict[Any, Any]) -> bool:
    """Whether a dict may be what is left of an object of this class."""
    if BaseModel in cls.__mro__:
        if cls.__pydantic_root_model__:
            return False
        known = cls.model_fields.keys() | cls.model_computed_fields
        return (value.keys() <= known or cls.model_config.get("extra") == "allow") and _agrees(cls, value)
    if "__dataclass_fields__" in vars(cls) or is_typed_dict(cls):
        return value.keys() <= hints_of(cls).keys()
    return False


def _likeness(cls: Any, value: dict[Any, Any]) -> tuple[int, int]:
    names = cls.model_fields.keys() if BaseModel in cls.__mro__ else hints_of(cls).keys()
    return -len(value.keys() - names), -len(names - value.keys())


def _agrees(model: Any, value: dict[Any, Any]) -> bool:
    """Whether the fields that are literals (a union's discriminator) hold one of their values."""
    for name, info in model.model_fields.items():
        if get_origin(info.annotation) is Literal and name in value and value[name] not in get_args(info.annotation):
            return False
    return True


def is_root(annotation: Any) -> bool:
    """Whether it is, or may be, a root model, which anything may be left of."""
    if isinstance(annotation, type):
        return BaseModel in annotation.__mro__ and bool(annotation.__pydantic_root_model__)  # type: ignore[attr-defined]
    bare = _bare(annotation)
    return bare is not annotation and is_root(bare)


def is_typed_dict(cls: Any) -> bool:
    """Whether a class is a TypedDict."""
    return dict in getattr(cls, "__mro__", ()) and "__required_keys__" in vars(cls)


def is_named_tuple(cls: Any) -> bool:
    """Whether a class is a named tuple."""
    return tuple in cls.__mro__ and hasattr(cls, "_fields")


def hints_of(cls: Any) -> dict[str, Any]:
    """The annotations of a class's fields; Any for those that can't be told."""
    try:
        return typing.get_type_hints(cls, include_extras=True)
    except Exception:
        return {name: Any for base in reversed(cls.__mro__) for name in vars(base).get("__annotations__", ())}


def mapping(origin: Any, value_type: Any, pairs: Iterable[tuple[Any, Any]]) -> Any:
    """The mapping that pydantic makes for such an annotation."""
    if origin is collections.OrderedDict:
        return collections.OrderedDict(pairs)
    made = get_origin(value_type) or value_type
    if origin is collections.defaultdict and made in gained.FACTORIES:
        return collections.defaultdict(made, pairs)
    return dict(pairs)


def collection(value: Any, parts: list[Any]) -> Any:
    """The parts in a container like the one that they stood in."""
    if isinstance(value, collections.deque):
        return collections.deque(parts, value.maxlen)
    return type(value)(parts) if type(value) in (set, frozenset) else parts


def speaks_of_data(annotation: Any) -> bool:
    """Whether an annotation names a class of data anywhere."""
    if isinstance(annotation, type) and get_origin(annotation) is None:
        try:
            kinds.shape_of(annotation)
        except kinds.NoDataError:
            return False
        return True
    return any(speaks_of_data(_bare(part)) for part in get_args(annotation))
