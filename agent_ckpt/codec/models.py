"""Filling a pydantic model from what LangGraph's serializer kept of it: a dict, nested models as dicts too."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from agent_ckpt.codec import hints, kinds, messages

_MESSAGES = {cls.model_fields["type"].default: cls for cls in messages.CLASSES}
"""Message classes by the `type` that their fields hold."""


def fill_model(cls: Any, given: Any, label: str) -> Any:
    """A model with these fields, nested ones by their annotations; no validator or constructor runs.

    Args:
        cls: a pydantic model, of version 2 or 1.
        given: field values by name; of a root model, its root.
        label: the class's stored name, for errors.

    Raises:
        UnresolvedError: when a required field is missing, it is no model, or nested objects can't be told.
    """
    if BaseModel in cls.__mro__ and cls.__pydantic_root_model__:
        given = {"root": given}
    if not isinstance(given, dict):
        raise kinds.misfit(label, "its fields are not stored as such")
    if BaseModel not in cls.__mro__:
        return _fill_old(cls, given, label)
    fields: dict[str, Any] = {}
    for name, info in cls.model_fields.items():
        if name in given:
            fields[name] = fit(info.annotation, given[name], label)
    others = {name: value for name, value in given.items() if name not in fields}
    extra: dict[str, Any] | None = None
    if cls.model_config.get("extra") == "allow":
        extra = {name: value for name, value in others.items() if name not in cls.model_computed_fields}
    number = messages.NUMBERS.get(cls)
    if number is not None:
        return messages.build(number, [*fields, *(extra or ())], fields, extra or None)
    state = [fields, [*fields, *(extra or ())], extra, {} if cls.__private_attributes__ else None, None]
    return kinds.put_together(cls, kinds.MODEL, state, label)


def _fill_old(cls: Any, given: dict[str, Any], label: str) -> Any:
    """A model of pydantic.v1, or another class of fields."""
    described = vars(cls).get("__fields__")
    if not isinstance(described, dict):
        return kinds.put_together(cls, kinds.FIELDS, [given, None], label)
    fields = {
        name: fit(described[name].outer_type_, value, label) if name in described else value
        for name, value in given.items()
    }
    return kinds.put_together(cls, kinds.FIELDS, [fields, {"__fields_set__": set(given)}], label)


def fit(annotation: Any, value: Any, label: str) -> Any:
    """A value as its annotation has it, where LangGraph's serializer flattened it.

    Raises:
        UnresolvedError: when the annotation speaks of classes of data in a form that isn't known.
    """
    if not isinstance(value, hints.CONTAINERS) and not hints.is_root(annotation):
        return value
    meant = hints.meant(annotation, value)
    if meant is None:
        return value
    if isinstance(meant, type):
        return _fit_class(meant, value, label)
    origin, inside = hints.taken_apart(meant)
    if isinstance(value, dict) and origin in hints.MAPPINGS and len(inside) == 2:
        pairs = ((fit(inside[0], key, label), fit(inside[1], part, label)) for key, part in value.items())
        return hints.mapping(origin, inside[1], pairs)
    if origin is tuple and isinstance(value, (list, tuple)):
        each = inside[:1] * len(value) if len(inside) == 2 and inside[1] is Ellipsis else inside
        return tuple(map(fit, each, value, [label] * len(value))) if len(each) == len(value) else tuple(value)
    if not isinstance(value, dict) and origin in hints.COLLECTIONS and len(inside) == 1:
        parts = [fit(inside[0], part, label) for part in value]
        return hints.collection(value, parts)
    if hints.speaks_of_data(meant):
        raise kinds.misfit(label, f"its file does not tell the objects of a field that is annotated {meant!r:.100}")
    return value


def _fit_class(cls: Any, value: Any, label: str) -> Any:
    if BaseModel in cls.__mro__:
        if isinstance(value, cls):
            return value
        if isinstance(value, dict) and not cls.__pydantic_root_model__:
            told = _MESSAGES.get(value["type"]) if type(value.get("type")) is str else None
            return fill_model(told if told is not None and issubclass(told, cls) else cls, value, label)
        return fill_model(cls, value, label) if cls.__pydantic_root_model__ else value
    if isinstance(value, dict):
        if hints.is_typed_dict(cls):
            return _fit_named(cls, value, label)
        if isinstance(vars(cls).get("__fields__"), dict):
            return fill_model(cls, value, label)
        if "__dataclass_fields__" in vars(cls):
            return kinds.put_together(cls, kinds.FIELDS, [_fit_named(cls, value, label), None], label)
        return hints.mapping(cls, None, value.items()) if cls in hints.MAPPINGS else value
    if cls is tuple:
        return tuple(value)
    if hints.is_named_tuple(cls) and isinstance(value, (list, tuple)) and len(value) == len(cls._fields):
        named = _fit_named(cls, dict(zip(cls._fields, value, strict=True)), label)
        return kinds.put_together(cls, kinds.NAMED_TUPLE, [list(named), list(named.values()), None], label)
    return value


def _fit_named(cls: Any, value: dict[str, Any], label: str) -> dict[str, Any]:
    told = hints.hints_of(cls)
    return {name: fit(told[name], part, label) if name in told else part for name, part in value.items()}
