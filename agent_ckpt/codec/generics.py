"""Names for classes, those of parametrised pydantic models (`Box[int]`) included.

A name is `[module, qualified name, arguments or None]`. A parametrised model that this process has
not made yet is made by pydantic itself, unless the class, or an argument, would run code of its own
while that happens.
"""

from __future__ import annotations

import datetime
import decimal
import functools
import operator
import pathlib
import types
import typing
import uuid
from typing import Any

from pydantic import BaseModel

from agent_ckpt.codec import kinds
from agent_ckpt.codec.gate import Gate, remember_local, stored_module

_ALIASES = ("List", "Dict", "Set", "FrozenSet", "Tuple", "Type", "Deque", "DefaultDict", "Sequence", "Mapping")
_BUILTINS = (
    int, float, str, bool, bytes, complex, list, dict, set, frozenset, tuple, bytearray, object, type(None),
    datetime.datetime, datetime.date, datetime.time, datetime.timedelta, decimal.Decimal, uuid.UUID, pathlib.Path,
)  # fmt: skip
_HOOKS = ("__init_subclass__", "__pydantic_init_subclass__", "__class_getitem__", "__get_pydantic_core_schema__")
_LITERALS = (str, int, bool, bytes, type(None))


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
        return [stored_module(origin), origin.__qualname__, [_tree(argument) for argument in generic["args"]]]
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
    if BaseModel not in cls.__mro__ or _runs_code(cls):
        raise kinds.misfit(label, "it can't be parametrised without running code of its own")
    given = tuple(_type(tree, gate, label) for tree in arguments)
    try:
        made = BaseModel.__class_getitem__.__func__(cls, given)  # type: ignore[attr-defined]
    except Exception as exc:
        raise kinds.misfit(label, f"pydantic can't parametrise it as it was ({type(exc).__name__})") from exc
    if not isinstance(made, type):
        raise kinds.misfit(label, "its parameters do not make a class")
    return made


def _runs_code(cls: type) -> bool:
    return any(
        hook in vars(base) for base in cls.__mro__ if base.__module__.split(".")[0] not in _LIBRARIES for hook in _HOOKS
    )


_LIBRARIES = frozenset(("pydantic", "builtins", "typing", "abc", "langchain_core", "langgraph", "enum"))


def _tree(argument: Any) -> list[Any]:
    if argument is Any:
        return ["any"]
    if argument is None or argument is type(None):
        return ["none"]
    if argument is Ellipsis:
        return ["..."]
    if isinstance(argument, types.GenericAlias):
        return ["of", _tree(argument.__origin__), [_tree(part) for part in argument.__args__]]
    if isinstance(argument, types.UnionType):
        return ["|", [_tree(part) for part in argument.__args__]]
    origin = typing.get_origin(argument)
    if origin is typing.Union:
        return ["union", [_tree(part) for part in argument.__args__]]
    if origin is typing.Literal:
        if all(type(part) in _LITERALS for part in argument.__args__):
            return ["literal", list(argument.__args__)]
    elif origin is not None and getattr(argument, "_name", None) in _ALIASES:
        return ["typing", argument._name, [_tree(part) for part in argument.__args__]]
    elif isinstance(argument, type):
        return ["class", *name_of(argument)]
    raise NoNameError(f"its parameter {argument!r:.80} has no name that leads back to it")


def _type(tree: Any, gate: Gate, label: str, depth: int = 0) -> Any:
    if type(tree) is not list or not tree or depth > 20:
        raise ValueError("a parameter of a class can't be read")
    kind, *rest = tree
    if type(kind) is not str or not all(type(part) in (list, str, type(None)) for part in rest):
        raise ValueError("a parameter of a class can't be read")
    if kind == "any":
        return Any
    if kind == "none":
        return type(None)
    if kind == "...":
        return Ellipsis
    if kind == "class":
        return _parameter(rest, gate, label)
    if kind == "literal":
        if type(rest[0]) is not list or not all(type(part) in _LITERALS for part in rest[0]):
            raise ValueError("a parameter of a class can't be read")
        return typing.Literal[tuple(rest[0])]
    parts = tuple(_type(part, gate, label, depth + 1) for part in rest[-1])
    if kind == "of":
        return types.GenericAlias(_type(rest[0], gate, label, depth + 1), parts)
    if kind == "|":
        return functools.reduce(operator.or_, parts)
    if kind == "union":
        return typing.Union[parts]  # noqa: UP007
    if kind == "typing" and rest[0] in _ALIASES:
        return getattr(typing, rest[0])[parts]
    raise ValueError("a parameter of a class can't be read")


def _parameter(name: list[Any], gate: Gate, label: str) -> type:
    for known in _BUILTINS:
        if name == [known.__module__, known.__qualname__, None]:
            return known
    cls = class_of(name, gate.under(None))
    try:
        kinds.shape_of(cls)
    except kinds.NoDataError as exc:
        raise kinds.misfit(label, f"its parameter {label_of(*name[:2])} is no class of data") from exc
    if _runs_code(cls):
        raise kinds.misfit(label, f"its parameter {label_of(*name[:2])} would run code of its own")
    return cls
