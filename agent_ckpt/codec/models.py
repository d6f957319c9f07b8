"""Filling a pydantic model from what LangGraph's serializer kept of it: a dict, nested models as dicts too."""

from __future__ import annotations

import types
from collections.abc import Mapping
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel

from agent_ckpt.codec import kinds, messages

_new = object.__new__


def fill_model(cls: Any, given: Any, label: str) -> Any:
    """A model with these fields, nested ones by their annotations; no validator or constructor runs.

    Args:
        cls: a pydantic model, of version 2 or 1.
        given: field values by name.
        label: the class's stored name, for errors.

    Raises:
        UnresolvedError: when a required field is missing, or it is no model.
    """
    if not isinstance(given, dict):
        raise kinds.misfit(label, "its fields are not stored as such")
    if BaseModel not in cls.__mro__:
        slots = {"__fields_set__": set(given)} if hasattr(cls, "__fields__") else None
        return kinds.put_together(cls, kinds.FIELDS, [given, slots], label)
    fields: dict[str, Any] = {}
    for name, info in cls.model_fields.items():
        if name in given:
            fields[name] = _fit(info.annotation, given[name], label)
    others = {name: value for name, value in given.items() if name not in fields}
    extra: dict[str, Any] | None = None
    if cls.model_config.get("extra") == "allow":
        extra = {name: value for name, value in others.items() if name not in cls.model_computed_fields}
    number = messages.NUMBERS.get(cls)
    if number is not None:
        return messages.build(number, fields, [*fields, *(extra or ())], extra or None)
    state = [fields, [*fields, *(extra or ())], extra, {} if cls.__private_attributes__ else None, None]
    return kinds.put_together(cls, kinds.MODEL, state, label)


def _fit(annotation: Any, value: Any, label: str) -> Any:
    """A value as its annotation has it, where LangGraph's serializer flattened it."""
    origin = get_origin(annotation)
    if origin is Annotated:
        return _fit(get_args(annotation)[0], value, label)
    if origin in (Union, types.UnionType):
        return _fit(_choice(get_args(annotation), value), value, label)
    if isinstance(value, dict):
        return _fit_dict(annotation, origin, value, label)
    if isinstance(value, list):
        return _fit_list(annotation, origin, value, label)
    if isinstance(annotation, type) and BaseModel in annotation.__mro__ and annotation.__pydantic_root_model__:  # type: ignore[attr-defined]
        return fill_model(annotation, {"root": value}, label) if not isinstance(value, annotation) else value
    return value


def _fit_dict(annotation: Any, origin: Any, value: dict[Any, Any], label: str) -> Any:
    if isinstance(annotation, type) and BaseModel in annotation.__mro__:
        if annotation.__pydantic_root_model__:  # type: ignore[attr-defined]
            return fill_model(annotation, {"root": value}, label)
        return fill_model(annotation, value, label)
    if isinstance(annotation, type) and "__dataclass_fields__" in vars(annotation):
        return kinds.put_together(annotation, kinds.FIELDS, [value, None], label)
    if origin in (dict, Mapping) and len(get_args(annotation)) == 2:
        inside = get_args(annotation)[1]
        return {key: _fit(inside, part, label) for key, part in value.items()}
    return value


def _fit_list(annotation: Any, origin: Any, value: list[Any], label: str) -> Any:
    inside = get_args(annotation)
    if isinstance(annotation, type) and BaseModel in annotation.__mro__ and annotation.__pydantic_root_model__:  # type: ignore[attr-defined]
        return fill_model(annotation, {"root": value}, label)
    if annotation is tuple or origin is tuple:
        if len(inside) == 2 and inside[1] is Ellipsis:
            return tuple(_fit(inside[0], part, label) for part in value)
        if len(inside) == len(value):
            return tuple(_fit(kind, part, label) for kind, part in zip(inside, value, strict=True))
        return tuple(value)
    if origin is list and inside:
        return [_fit(inside[0], part, label) for part in value]
    return value


def _choice(options: tuple[Any, ...], value: Any) -> Any:
    """The member of a union that a stored value looks like: of models, the one whose fields fit best."""
    if isinstance(value, dict):
        models: list[Any] = [option for option in options if isinstance(option, type) and BaseModel in option.__mro__]
        fitting = [model for model in models if value.keys() <= model.model_fields.keys() | model.model_computed_fields]
        fitting = [model for model in fitting if _agrees(model, value)]
        if fitting:
            return max(fitting, key=lambda model: -len(model.model_fields.keys() - value.keys()))
        wanted: tuple[Any, ...] = (dict, Mapping)
    elif isinstance(value, list):
        wanted = (list, tuple)
    else:
        return None
    return next((option for option in options if (get_origin(option) or option) in wanted), None)


def _agrees(model: Any, value: dict[str, Any]) -> bool:
    """Whether the fields that are literals (a union's discriminator) hold one of their values."""
    from typing import Literal

    for name, info in model.model_fields.items():
        if get_origin(info.annotation) is Literal and name in value and value[name] not in get_args(info.annotation):
            return False
    return True
