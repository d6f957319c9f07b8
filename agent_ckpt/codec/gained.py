"""What the parts of an object get that a class has gained since the object was stored."""

from __future__ import annotations

import copy
import dataclasses
import functools
import types
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from pydantic_core import PydanticUndefined

FACTORIES = (list, dict, set, frozenset, tuple, str, int, float, bool, bytes, bytearray)
_SLOT = types.MemberDescriptorType


class Gained(NamedTuple):
    """What parts get that aren't in the stored state.

    Attributes:
        makers: makes the default of each that has one, by name.
        required: those that have none which can be had without running code of the class.
        names: all of them.
    """

    makers: dict[str, Callable[[], Any]]
    required: frozenset[str]
    names: frozenset[str]

    @classmethod
    def of(cls, found: Iterator[tuple[str, Callable[[], Any] | None]] | tuple[()]) -> Gained:
        """Of names, and what makes the default of each or None."""
        named = dict(found)
        makers = {name: make for name, make in named.items() if make is not None}
        return cls(makers, frozenset(named.keys() - makers.keys()), frozenset(named))

    def missing(self, there: Any) -> str | None:
        """The first required one that isn't there, or None."""
        return None if self.required <= there else min(self.required - there)

    def lacking(self, there: Any) -> str | None:
        """The first that isn't there, or None: a reader would give it a default that it did not have."""
        return None if self.names <= there else min(self.names - there)


def fields_of(cls: Any) -> Iterator[tuple[str, Callable[[], Any] | None]]:
    """The fields that an object must have, or is given: the name, and what makes the default or None."""
    pydantic = getattr(cls, "__pydantic_fields__", None)
    if pydantic is not None:
        for name, info in pydantic.items():
            if not info.init_var:
                yield name, _maker(info.default, info.default_factory, PydanticUndefined)
    elif dataclasses.is_dataclass(cls):
        for field in dataclasses.fields(cls):
            if field.default_factory is not dataclasses.MISSING:
                yield field.name, _maker(None, field.default_factory, None)
            elif field.default is dataclasses.MISSING:
                if field.init:
                    yield field.name, None
            elif type(vars(cls).get(field.name)) is _SLOT:
                # Without a slot there, the default is found in the class. It is shared by all, as dataclasses do.
                yield field.name, functools.partial(_same, field.default)
    elif "__attrs_attrs__" in dir(cls):
        yield from _attrs(cls)


def _attrs(cls: Any) -> Iterator[tuple[str, Callable[[], Any] | None]]:
    import attr

    for field in cls.__attrs_attrs__:
        default: Any = field.default
        if isinstance(default, attr.Factory):  # type: ignore[arg-type]
            yield field.name, None if default.takes_self else _maker(None, default.factory, None)
        elif default is not attr.NOTHING:
            yield field.name, functools.partial(_same, default)
        elif field.init:
            yield field.name, None


def private_of(cls: Any) -> Iterator[tuple[str, Callable[[], Any] | None]]:
    for name, attribute in (cls.__private_attributes__ or {}).items():
        if attribute.default_factory is not None or attribute.default is not PydanticUndefined:
            yield name, _maker(attribute.default, attribute.default_factory, PydanticUndefined)


def _maker(default: Any, factory: Any, none: Any) -> Callable[[], Any] | None:
    """What makes a default: a copy, as pydantic gives one; or a factory that is one of Python's own."""
    if factory is not None:
        return factory if any(factory is known for known in FACTORIES) else None
    return None if default is none else functools.partial(copy.deepcopy, default)


def _same(value: Any) -> Any:
    return value
