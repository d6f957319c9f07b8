"""Metadata filters: equality that knows its types."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_ABSENT = object()


def matches(metadata: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    """Whether every wanted key is there with an equal value.

    Equality is Python's, but True is not 1 and None is not an absent key; lists and dicts compare
    deep, dicts whatever their order, and a tuple equals the list it is stored as.
    """
    return all(_equal(metadata.get(key, _ABSENT), value) for key, value in wanted.items())


def _equal(found: Any, wanted: Any) -> bool:
    if isinstance(found, bool) or isinstance(wanted, bool):
        return isinstance(found, bool) and isinstance(wanted, bool) and found == wanted
    if isinstance(found, (list, tuple)) and isinstance(wanted, (list, tuple)):
        return len(found) == len(wanted) and all(map(_equal, found, wanted))
    if isinstance(found, Mapping) and isinstance(wanted, Mapping):
        return found.keys() == wanted.keys() and all(_equal(found[key], wanted[key]) for key in found)
    return bool(found == wanted)
