"""Which class a stored name stands for: the one place where a name in a row becomes a class.

A class is found only where this process has its module imported already; a module that is not is
imported only if the user named the class in `allowed_types` or as the target of an alias. Names are
looked up in the dictionaries of modules and classes, so that no code of theirs runs.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable, Mapping
from types import ModuleType
from typing import Any, Literal, NoReturn
from weakref import WeakValueDictionary

from agent_ckpt.errors import UsageError

OnUnresolved = Literal["raise", "keep"]
Names = Iterable[str | type]
Aliases = Mapping[str, str | type]

_LOCAL = "<locals>"
_MAINS = ("__main__", "__mp_main__")


class UnresolvedError(Exception):
    """A stored class, codec or serializer that this process can't give. The reader adds where.

    Attributes:
        name: `module:qualified.name` of the class, or the name of a codec.
        reason: why not.
        remedy: what to do.
    """

    def __init__(self, name: str, reason: str, remedy: str) -> None:
        super().__init__(f"{name}: {reason}")
        self.name = name
        self.reason = reason
        self.remedy = remedy


class Unresolved:
    """A stored value whose class is not there; it keeps the stored bytes and is stored again as just those.

    Attributes:
        type_name: `module:qualified.name` of the class.
        reason: why it could not be rebuilt.
    """

    __slots__ = ("_code", "_data", "reason", "type_name")

    def __init__(self, type_name: str, reason: str, code: int, data: bytes) -> None:
        self.type_name = type_name
        self.reason = reason
        self._code = code
        self._data = data

    def __eq__(self, other: object) -> bool:
        if type(other) is not Unresolved:
            return NotImplemented
        return self._code == other._code and self._data == other._data

    def __hash__(self) -> int:
        return hash((self._code, self._data))

    def __repr__(self) -> str:
        return f"<Unresolved {self.type_name}, {len(self._data)} bytes: {self.reason}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return Unresolved, (self.type_name, self.reason, self._code, self._data)


_locals: WeakValueDictionary[tuple[str, str], type] = WeakValueDictionary()
"""Classes made inside functions, which no module holds, as they were stored last by this process."""


def remember_local(cls: type) -> None:
    """Know a class again that was made inside a function, as long as this process has it."""
    if _LOCAL in cls.__qualname__:
        _locals[(stored_module(cls), cls.__qualname__)] = cls


def stored_module(cls: type) -> str:
    """The name under which a class's module is stored: of the main module its real one, where it has one."""
    if cls.__module__ not in _MAINS:
        return cls.__module__
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return spec.name if spec is not None else "__main__"


def _loaded(module: str) -> ModuleType | None:
    found = sys.modules.get("__main__" if module in _MAINS else module)
    if found is None:
        main = sys.modules.get("__main__")
        spec = getattr(main, "__spec__", None)
        return main if spec is not None and spec.name == module else None
    return found


class Gate:
    """What may be rebuilt when a row is read.

    Args:
        allowed: classes, or their dotted names, that may be imported and pass LangGraph's strict mode.
        aliases: `"old.module:Old"` to the class that it is now, or its `"new.module:New"`.
        on_unresolved: what a class that isn't there gives: an error, or an `Unresolved` value.
        strict: the (module, name) pairs that LangGraph's strict mode lets through, None where it is off.
        structural: resolve nothing: classes and codecs all give `Unresolved`.

    Attributes:
        keeps: whether a class that isn't there gives `Unresolved`.
        kept: for each name that gave one, the reason; shared with the gates that are made of this one.

    Raises:
        UsageError: for a name that can't be one.
    """

    __slots__ = ("_aliases", "_allowed", "_strict", "_structural", "keeps", "kept")

    def __init__(
        self,
        allowed: Names = (),
        aliases: Aliases | None = None,
        on_unresolved: OnUnresolved = "raise",
        strict: frozenset[tuple[str, ...]] | None = None,
        structural: bool = False,
    ) -> None:
        self._allowed = frozenset(_dotted(name) for name in allowed)
        self._aliases = {_colon(old): _target(new) for old, new in (aliases or {}).items()}
        self._strict = strict
        self._structural = structural
        self.keeps = on_unresolved == "keep" or structural
        self.kept: dict[str, str] = {}

    @property
    def resolves(self) -> bool:
        """Whether classes and codecs are looked up at all."""
        return not self._structural

    def under(self, strict: frozenset[tuple[str, ...]] | None) -> Gate:
        """The same gate under LangGraph's strict mode."""
        return self._copy(strict=strict)

    def keeping(self, kept: dict[str, str] | None = None) -> Gate:
        """The same gate, giving `Unresolved` in place of an error; `kept`: where to note what gave one."""
        return self._copy(keeps=True, kept=self.kept if kept is None else kept)

    def structure_only(self) -> Gate:
        """A gate that resolves nothing."""
        return self._copy(keeps=True, structural=True, kept={})

    def keep(self, missing: UnresolvedError, code: int, data: bytes) -> Unresolved:
        """An Unresolved value in the place of one that can't be given, where this gate keeps; else the error."""
        if not self.keeps:
            raise missing
        self.kept[missing.name] = missing.reason
        return Unresolved(missing.name, missing.reason, code, data)

    def _copy(self, **changed: Any) -> Gate:
        made = Gate.__new__(Gate)
        made._allowed, made._aliases = self._allowed, self._aliases
        made._strict = changed.get("strict", self._strict)
        made._structural = changed.get("structural", self._structural)
        made.keeps = changed.get("keeps", self.keeps)
        made.kept = changed.get("kept", self.kept)
        return made

    def lets_through(self, cls: type) -> bool:
        """Whether LangGraph's strict mode is off, or lets a class through."""
        return self._strict is None or (cls.__module__, cls.__name__) in self._strict

    def find(self, module: str, qualname: str, *, framework: bool = False, parametrise: Any = None) -> type:
        """The class of a stored name.

        Args:
            framework: it is one of LangGraph's or LangChain's own, which need no leave.
            parametrise: makes the class that is meant of the one that is named, for strict mode to look at both.

        Raises:
            UnresolvedError: when it isn't there or may not be used.
        """
        name = f"{module}:{qualname}"
        if self._structural:
            raise UnresolvedError(name, "classes are not looked up here", "read it with a saver")
        target = self._aliases.get(name)
        if isinstance(target, type):
            return target if parametrise is None else parametrise(target)
        if target is not None:
            module, qualname = target
        explicit = framework or target is not None or f"{module}.{qualname}" in self._allowed
        home = _loaded(module)
        if home is None and explicit:
            home = _imported(module, name)
        if home is None:
            _refuse(name, "its module is not imported in this process")
        found = _locals.get((module, qualname)) if _LOCAL in qualname else _walk(home, qualname)
        if found is None and _LOCAL in qualname:
            _refuse(name, "it was made inside a function of another process, or is no more")
        if found is None:
            _refuse(name, "the module has no such class")
        meant: type = found if parametrise is None else parametrise(found)
        if not explicit and not self.lets_through(found) and not self.lets_through(meant):
            _refuse(name, "LangGraph's strict mode does not let it through")
        return meant


def _refuse(name: str, reason: str) -> NoReturn:
    module, _, qualname = name.partition(":")
    raise UnresolvedError(
        name,
        reason,
        f"import {module!r} before reading, or name the class in AgentSaver(allowed_types=[{f'{module}.{qualname}'!r}])"
        f"; if it was renamed or moved, AgentSaver(aliases={{{name!r}: NewClass}}). "
        f'With on_unresolved="keep" it is read as an Unresolved value that keeps what is stored',
    )


def _imported(module: str, name: str) -> ModuleType:
    try:
        return importlib.import_module(module)
    except Exception as exc:
        _refuse(name, f"importing its module failed ({type(exc).__name__})")


def _walk(home: ModuleType, qualname: str) -> type | None:
    try:
        # Not vars(): a module that is loaded when it is first asked for anything would be, by the row.
        names: Mapping[str, Any] = object.__getattribute__(home, "__dict__")
    except AttributeError:
        return None
    found: Any = None
    for part in qualname.split("."):
        found = names.get(part)
        # Not isinstance(): a proxy would be asked what it stands for.
        if not issubclass(type(found), type):
            return None
        names = type.__getattribute__(found, "__dict__")
    return found  # type: ignore[no-any-return]


def _dotted(name: str | type) -> str:
    if isinstance(name, type):
        return f"{stored_module(name)}.{name.__qualname__}"
    if not isinstance(name, str) or "." not in name.replace(":", ".") or name.startswith((".", ":")):
        raise UsageError(f"allowed_types holds {name!r}: give classes, or names such as 'package.module.Class'")
    return name.replace(":", ".")


def _colon(name: Any) -> str:
    if isinstance(name, type):
        return f"{stored_module(name)}:{name.__qualname__}"
    if not isinstance(name, str) or name.count(":") != 1 or not all(name.split(":")):
        raise UsageError(f"aliases holds {name!r}: write the stored class as 'old.module:Old'")
    return name


def _target(new: Any) -> type | tuple[str, str]:
    if isinstance(new, type):
        return new
    module, _, qualname = _colon(new).partition(":")
    return module, qualname
