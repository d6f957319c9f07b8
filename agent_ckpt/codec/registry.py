"""Codecs that the user registers for classes of other libraries."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from agent_ckpt.codec import messages, stdlib
from agent_ckpt.errors import UsageError


class Registered(NamedTuple):
    """A registered codec."""

    cls: type
    name: str
    encode: Callable[[Any], Any]
    decode: Callable[[Any], Any]


_OWN = (type(None), bool, int, float, str, bytes, bytearray, list, dict, tuple, set, frozenset)

by_class: dict[type, Registered] = {}
by_name: dict[str, Registered] = {}


def register_codec(cls: type, *, name: str, encode: Callable[[Any], Any], decode: Callable[[Any], Any]) -> None:
    """Store objects of a class by functions of your own, in every saver of this process.

    Args:
        cls: the class; objects of just this class, not of its subclasses.
        name: the name that is stored with each value, such as `"pandas.DataFrame/1"`. A reader needs a codec of the
            same name, so change it when the payload changes, and keep the old one registered for old rows.
        encode: gives the payload of an object: bytes, or any value that can be stored.
        decode: gives the object of a payload. It must not run what the payload says: a row may be forged.

    Raises:
        UsageError: for a class that agent_ckpt stores itself, or a name or class that has another codec already.
    """
    if not isinstance(cls, type):
        raise UsageError(f"register_codec needs a class, got {type(cls).__name__}")
    if not isinstance(name, str) or not name or not name.isprintable() or len(name) > 200:
        raise UsageError("register_codec needs a printable name of 1 to 200 characters")
    if not callable(encode) or not callable(decode):
        raise UsageError(f"register_codec({name!r}) needs encode and decode to be callable")
    if cls in _OWN or cls in messages.NUMBERS or stdlib.number_of(cls) is not None:
        raise UsageError(f"register_codec({name!r}): {cls.__qualname__} is stored by agent_ckpt itself")
    other = by_name.get(name)
    if other is not None and _named(other.cls) != _named(cls):
        raise UsageError(f"register_codec({name!r}): the name is taken by {_named(other.cls)}; use another name")
    made = Registered(cls, name, encode, decode)
    by_name[name] = made
    by_class[cls] = made


def _named(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"
