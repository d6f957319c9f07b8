"""Metadata: what is kept of a config, and filters whose equality knows its types."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date, datetime
from typing import Any
from uuid import UUID

from langgraph.checkpoint.base import EXCLUDED_METADATA_KEYS

_ABSENT = object()
_PLAIN = (str, int, float, bool)
_OF_USER = (list, tuple, dict, UUID, datetime, date)
"""What of a config's own metadata is kept besides: what a user filters by, and no object that merely rides along."""
_OF_LANGCHAIN = "lc_versions"
"""A dict that LangChain adds to every run's metadata; LangGraph's own savers keep none."""
_KEPT_METADATA = _PLAIN + _OF_USER
_KEPT_CONFIGURABLE = (*_PLAIN, UUID)
_LEFT_OUT = frozenset((*EXCLUDED_METADATA_KEYS, _OF_LANGCHAIN))


def whole_metadata(config: Mapping[str, Any], metadata: Mapping[str, Any]) -> dict[str, Any]:
    """A checkpoint's metadata with what the config adds, as LangGraph's `get_checkpoint_metadata` does it.

    Ids, times, lists and dicts that the user put into the config's metadata are kept too.
    """
    full = {key: _clean(value) for key, value in metadata.items()}
    for source, kept in ((config.get("metadata"), _KEPT_METADATA), (config.get("configurable"), _KEPT_CONFIGURABLE)):
        for key, value in (source or {}).items():
            if isinstance(value, kept) and key not in full and key not in _LEFT_OUT and not str(key).startswith("__"):
                full[key] = _clean(value)
    return full


def _clean(value: Any) -> Any:
    return value.replace("\0", "") if isinstance(value, str) else value


def matches(metadata: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    """Whether every wanted key is there with an equal value.

    Equality is Python's, but True is not 1 and None is not an absent key; lists and dicts compare
    deep, dicts whatever their order; a tuple equals a list of the same items, and a UUID its text.
    """
    return all(_equal(metadata.get(key, _ABSENT), value) for key, value in wanted.items())


def _equal(found: Any, wanted: Any) -> bool:
    if isinstance(found, bool) or isinstance(wanted, bool):
        return isinstance(found, bool) and isinstance(wanted, bool) and found == wanted
    if isinstance(found, (list, tuple)) and isinstance(wanted, (list, tuple)):
        return len(found) == len(wanted) and all(map(_equal, found, wanted))
    if isinstance(found, Mapping) and isinstance(wanted, Mapping):
        return found.keys() == wanted.keys() and all(_equal(found[key], wanted[key]) for key in found)
    if isinstance(found, UUID) != isinstance(wanted, UUID):
        return (
            str(found) == str(wanted) if isinstance(found, (str, UUID)) and isinstance(wanted, (str, UUID)) else False
        )
    return bool(found == wanted)
