"""PyYAML's safe dumpers take exact types only; this has them write a `str` subclass of ours as plain text.

PyYAML is not imported for that, since it takes longer than all of this package and few programs use it: the dumpers
are told when they are there, or when somebody imports them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

_YAML = "yaml"


def dump_as_text(kind: type[str]) -> None:
    """Have `yaml.safe_dump` write instances of a `str` subclass as plain text, whenever yaml is imported."""
    loaded = sys.modules.get(_YAML)
    if loaded is not None and hasattr(loaded, "SafeDumper"):
        _register(loaded, kind)
    else:
        sys.meta_path.insert(0, _Watcher(lambda module: _register(module, kind)))


def _register(yaml: ModuleType, kind: type[str]) -> None:
    def represent(dumper: Any, data: str) -> Any:
        return dumper.represent_str("".join(data))

    for name in ("SafeDumper", "CSafeDumper"):
        dumper = getattr(yaml, name, None)
        if dumper is not None:
            dumper.add_representer(kind, represent)


class _Watcher:
    """Finds yaml as Python itself would, and does something more once it has been imported."""

    def __init__(self, then: Callable[[ModuleType], None]) -> None:
        self._then = then

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != _YAML:
            return None
        sys.meta_path.remove(self)
        spec = PathFinder.find_spec(name, path, target)
        loader: Any = spec.loader if spec is not None else None
        if loader is None:
            return None
        load = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            load(module)
            self._then(module)

        loader.exec_module = exec_module
        return spec
