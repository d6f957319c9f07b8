"""Secrets inside state: pydantic's SecretStr and SecretBytes, which a store without a key refuses.

A serializer writes what such an object hides. Sealed that is what its user wants; in clear it is not.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any

IN_CLEAR = "a secret, and this store has no key, so it would stand in the file in clear"
REMEDY = (
    "give AgentSaver a key (key=...), keep the secret in saver.credentials(thread_id), or accept it in clear with "
    'plaintext_secrets="allow"'
)
_LEAVES = frozenset((type(None), bool, int, float, str, bytes, bytearray))


class SecretInClearError(TypeError):
    """A secret would be stored in clear. Raised while encoding; the caller adds the path."""

    def __init__(self) -> None:
        super().__init__(IN_CLEAR)


def is_secret(value: Any) -> bool:
    """Whether a value is a SecretStr, SecretBytes or another of pydantic's secrets, of whichever version."""
    return type(value) not in _LEAVES and callable(getattr(type(value), "get_secret_value", None))


def refuse_secrets(value: Any) -> None:
    """Look through a value, into containers and objects.

    Raises:
        SecretInClearError: when it is or holds a secret.
    """
    seen: set[int] = set()
    waiting: list[Any] = [value]
    while waiting:
        one = waiting.pop()
        if type(one) in _LEAVES or id(one) in seen:
            continue
        if is_secret(one):
            raise SecretInClearError
        seen.add(id(one))
        waiting.extend(_parts(one))


def _parts(value: Any) -> Iterable[Any]:
    if isinstance(value, Mapping):
        yield from value.keys()
        yield from value.values()
    elif isinstance(value, (list, tuple, set, frozenset, deque)):
        yield from value
    elif not isinstance(value, type):
        yield from _attributes(value)


def _attributes(value: Any) -> Iterable[Any]:
    fields = getattr(value, "__dict__", None)
    if isinstance(fields, dict):
        yield from fields.values()
    for kind in type(value).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            private = name.startswith("__") and not name.endswith("__")
            # A slot that isn't set has no value.
            yield getattr(value, f"_{kind.__name__.lstrip('_')}{name}" if private else name, None)
