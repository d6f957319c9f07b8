"""Names for classes, those of parametrised pydantic models (`Box[int]`) included, and for types that are values.

A name is `[module, qualified name, arguments or None]`. A parametrised model that this process has
not made yet is made by pydantic itself, unless the class, or an argument, would run code of its own
while that happens. An argument, and a type that is a value itself, is a tree: `["class", name ...]`,
`["of", tree, trees]` and so on.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import enum
import functools
import operator
import types
import typing
from typing import Any

import annotated_types
from langchain_core.messages import AnyMessage
from pydantic import BaseModel, StringConstraints

from agent_ckpt.codec import kinds, stdlib
from agent_ckpt.codec.frameworks import is_framework
from agent_ckpt.codec.gate import Gate, remember_local, stored_module

_ALIASES = ("List", "Dict", "Set", "FrozenSet", "Tuple", "Type", "Deque", "DefaultDict", "Sequence", "Mapping")
_ABSTRACT = (
    "Sequence", "MutableSequence", "Mapping", "MutableMapping", "Set", "MutableSet", "Iterable", "Iterator",
    "Collection", "Container", "Hashable", "Sized",
)  # fmt: skip
_BUILTINS: dict[tuple[str, str], Any] = {
    (known.__module__, known.__qualname__): known
    for known in (
        int, float, str, bool, bytes, list, dict, set, frozenset, tuple, bytearray, object, type, type(None),
        *stdlib.classes(), *(getattr(collections.abc, name) for name in _ABSTRACT),
    )
}  # fmt: skip
_NAMED = {"langchain_core.messages.AnyMessage": AnyMessage}
"""Types that are found by identity: what is in them can't be told."""
_SAID = (
    annotated_types.Gt, annotated_types.Ge, annotated_types.Lt, annotated_types.Le, annotated_types.Interval,
    annotated_types.MultipleOf, annotated_types.MinLen, annotated_types.MaxLen, annotated_types.Len,
    StringConstraints,
)  # fmt: skip
"""What may be said of a type in `Annotated`, beside plain values."""
_HOOKS = ("__init_subclass__", "__pydantic_init_subclass__", "__class_getitem__", "__get_pydantic_core_schema__")
_LITERALS = (str, int, bool, bytes, type(None))


REMEDY = "give it a name of its own, such as class NumberBox(Box[int]): pass, and use that"


class NoNameError(Exception):
    """Why a class has no name that leads back to it."""


def name_of(cls: type) -> list[Any]:
    """The name of a class that is being stored.

    Raises:
        NoNameError: when it has none.
    """
    remember(cls)
    generic = getattr(cls, "__pydantic_generic_metadata__", None)
    if generic and generic["origin"] is not None:
        origin = generic["origin"]
        return [stored_module(origin), origin.__qualname__, [tree_of(argument) for argument in generic["args"]]]
    return [stored_module(cls), cls.__qualname__, None]


def remember(cls: type) -> None:
    """Know a class, or the one that it is a parametrised form of, again where it was made inside a function."""
    generic = getattr(cls, "__pydantic_generic_metadata__", None)
    remember_local(generic["origin"] if generic and generic["origin"] is not None else cls)


def label_of(module: Any, qualname: Any) -> str:
    """How errors call a class."""
    return f"{module!s:.200}:{qualname!s:.200}"


def class_of(name: list[Any], gate: Gate, *, framework: bool = False) -> type:
    """The class of a name.

    Raises:
        UnresolvedError: when it isn't there or may not be used.
    """
    module, qualname, arguments = name
    if type(module) is not str or type(qualname) is not str:
        raise ValueError("a class is named by something else than text")
    label = label_of(module, qualname)
    parametrise = None if arguments is None else lambda cls: _parametrised(cls, arguments, gate, label)
    return gate.find(module, qualname, framework=framework, parametrise=parametrise)


def _parametrised(cls: type, arguments: list[Any], gate: Gate, label: str) -> type:
    if BaseModel not in cls.__mro__:
        raise kinds.misfit(label, "it is no model that can be parametrised")
    met: list[type] = [cls]
    given = tuple(type_of(tree, gate.under(None), label, met=met) for tree in arguments)
    if any(map(_runs_code, met)):
        return _made_before(cls, given, label)
    try:
        made = BaseModel.__class_getitem__.__func__(cls, given)  # type: ignore[attr-defined]
    except Exception as exc:
        raise kinds.misfit(label, f"pydantic can't parametrise it as it was ({type(exc).__name__})") from exc
    if not isinstance(made, type):
        raise kinds.misfit(label, "its parameters do not make a class")
    return made


def _made_before(cls: type, given: tuple[Any, ...], label: str) -> type:
    """The parametrised form that this process has made itself, of a class that runs code when one is made."""
    subclasses: list[type] = type.__subclasses__(cls)
    for made in subclasses:
        generic = vars(made).get("__pydantic_generic_metadata__") or {}
        try:
            # By their names: types that differ in the order of their parts are equal.
            if generic.get("origin") is cls and list(map(tree_of, generic["args"])) == list(map(tree_of, given)):
                return made
        except NoNameError:
            continue
    raise kinds.misfit(
        label, "this process has not made it with these parameters, and making it would run code of the classes"
    )


def _runs_code(cls: type) -> bool:
    """Whether code that no library wrote runs while pydantic makes a class of it."""
    return _has_own_metaclass(cls) or any(
        hook in vars(base) for base in cls.__mro__ if base.__module__.split(".")[0] not in _LIBRARIES for hook in _HOOKS
    )


def _has_own_metaclass(cls: type) -> bool:
    return type(cls).__module__.split(".")[0] not in _LIBRARIES


_LIBRARIES = frozenset(("pydantic", "builtins", "typing", "abc", "langchain_core", "langgraph", "enum"))


def tree_of(argument: Any) -> list[Any]:
    """The tree of a type.

    Raises:
        NoNameError: when it can't be found again.
    """
    if argument is Any:
        return ["any"]
    if argument is None or argument is type(None):
        return ["none"]
    if argument is Ellipsis:
        return ["..."]
    for name, known in _NAMED.items():
        if argument is known:
            return ["named", name]
    if isinstance(argument, types.GenericAlias) and not argument.__unpacked__:
        return ["of", tree_of(argument.__origin__), list(map(tree_of, argument.__args__))]
    if isinstance(argument, types.UnionType):
        return ["|", list(map(tree_of, argument.__args__))]
    if isinstance(argument, type):
        return ["class", *_found_again(argument)]
    origin = typing.get_origin(argument)
    if origin is typing.Union:
        return ["union", list(map(tree_of, argument.__args__))]
    if origin is typing.Literal and all(map(_is_literal, argument.__args__)):
        return ["literal", list(argument.__args__)]
    if origin is typing.Annotated and all(map(_is_said, argument.__metadata__)):
        return ["annotated", tree_of(argument.__origin__), list(argument.__metadata__)]
    if origin is not None and getattr(argument, "_name", None) in _ALIASES:
        return ["typing", argument._name, list(map(tree_of, argument.__args__))]
    if type(argument) is _Generic and argument._name is None and isinstance(origin, type) and not _runs_code(origin):
        return ["generic", tree_of(origin), list(map(tree_of, argument.__args__))]
    raise NoNameError(f"the type {argument!r:.80} has no name that leads back to it")


_Generic = type(typing.Generic[typing.TypeVar("_T")])  # type: ignore[index]


def _is_literal(part: Any) -> bool:
    return type(part) in _LITERALS or isinstance(type(part), enum.EnumMeta)


def _is_said(said: Any) -> bool:
    """Whether something said of a type is plain: pydantic shows and compares it."""
    if type(said) in stdlib.PLAIN:
        return True
    if type(said) not in _SAID:
        return False
    return all(type(getattr(said, field.name, None)) in stdlib.PLAIN for field in dataclasses.fields(said))


def _found_again(cls: type) -> list[Any]:
    """The name of a class, if it is one of data or of Python's own."""
    if _BUILTINS.get((cls.__module__, cls.__qualname__)) is cls:
        return [cls.__module__, cls.__qualname__, None]
    try:
        kinds.shape_of(cls)
    except kinds.NoDataError as exc:
        if not is_framework(cls.__module__) and not stdlib.is_url(cls):
            raise NoNameError(f"the class {cls.__qualname__} is none of data: {exc}") from exc
    return name_of(cls)


def type_of(tree: Any, gate: Gate, label: str, depth: int = 0, met: list[type] | None = None) -> Any:
    """The type of a tree.

    Args:
        met: takes the classes of the user's in it.

    Raises:
        UnresolvedError: when a class in it isn't there or may not be used.
        ValueError: it is none.
    """
    if type(tree) is not list or not tree or depth > 20 or type(tree[0]) is not str:
        raise ValueError("a parameter of a class can't be read")
    kind, *rest = tree
    if kind == "any":
        return Any
    if kind == "none":
        return type(None)
    if kind == "...":
        return Ellipsis
    if kind == "named" and type(rest[0]) is str:
        return _NAMED[rest[0]]
    if kind == "class":
        found = _parameter(rest, gate, label)
        if met is not None and found is not _BUILTINS.get((rest[0], rest[1])):
            met.append(found)
        if depth and _has_own_metaclass(found):
            raise kinds.misfit(label, f"its parameter {label_of(*rest[:2])} has a metaclass of its own")
        return found
    if type(rest[-1]) is not list:
        raise ValueError("a parameter of a class can't be read")
    if kind == "literal" and all(map(_is_literal, rest[0])):
        return typing.Literal[tuple(rest[0])]
    if kind == "annotated" and all(map(_is_said, rest[1])):
        return typing.Annotated[(type_of(rest[0], gate, label, depth + 1, met), *rest[1])]
    parts = tuple(type_of(part, gate, label, depth + 1, met) for part in rest[-1])
    if kind == "of":
        return types.GenericAlias(type_of(rest[0], gate, label, depth + 1, met), parts)
    if kind == "|":
        return functools.reduce(operator.or_, parts)
    if kind == "union":
        return typing.Union[parts]  # noqa: UP007
    if kind == "typing" and type(rest[0]) is str and rest[0] in _ALIASES:
        return getattr(typing, rest[0])[parts]
    if kind == "generic":
        origin = type_of(rest[0], gate, label, depth + 1, met)
        if typing.Generic in getattr(origin, "__mro__", ()) and not _runs_code(origin):
            return _parametrised_generic(origin, parts)
    raise ValueError("a parameter of a class can't be read")


def _parametrised_generic(origin: Any, parts: tuple[Any, ...]) -> Any:
    """What Generic itself makes of a class and parameters, whatever the class does when it is asked."""
    # From CPython 3.12 on Generic is written in C, and calls this function.
    in_python = getattr(typing, "_generic_class_getitem", None)
    return (in_python or typing.Generic.__class_getitem__.__func__)(origin, parts)  # type: ignore[attr-defined]


def _parameter(name: list[Any], gate: Gate, label: str) -> type:
    if len(name) != 3 or type(name[0]) is not str or type(name[1]) is not str:
        raise ValueError("a parameter of a class can't be read")
    known = _BUILTINS.get((name[0], name[1]))
    if known is not None and name[2] is None:
        return known  # type: ignore[no-any-return]
    cls = class_of(name, gate, framework=is_framework(name[0]))
    try:
        kinds.shape_of(cls)
    except kinds.NoDataError as exc:
        if not is_framework(name[0]) and not stdlib.is_url(cls):
            raise kinds.misfit(label, f"its parameter {label_of(*name[:2])} is no class of data") from exc
    return cls
