"""What is kept with each checkpoint beside the channels: random generators' states, environment values.

LangGraph may store a checkpoint beside the next step's nodes (durability="async"), which draw numbers
meanwhile. But it asks for the next channel_versions in between, in the run's own context: the capture
is taken there, and travels to the put in a context variable.
"""

from __future__ import annotations

import importlib
import inspect
import os
import random
import re
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from typing import Any

from agent_ckpt import metadata
from agent_ckpt.errors import UsageError, ValueNotStorableError

_ENV = "env:"
_CALL = "call:"
_ALL = "env:*"

_SECRET_PARTS = frozenset("secret password passwd passphrase pass token key credential credentials auth dsn".split())
"""Words that make a secret of a variable wherever they stand in its name: the whole environment is searched."""
_USER_IN_URL = re.compile(r"://[^/\s@]*:[^/\s@]*@")


def is_secret(name: str, value: str | None = None, patterns: tuple[str, ...] = ()) -> bool:
    """Whether an environment variable looks like a secret: by its name, or as a URL with a password in it.

    Args:
        patterns: the option `mask_keys`.
    """
    by_name = metadata.is_secret(name, patterns) or bool(_SECRET_PARTS & set(name.lower().split("_")))
    return by_name or (value is not None and _USER_IN_URL.search(value) is not None)


class _Taken:
    """A capture on its way to the put that stores it."""

    __slots__ = ("failure", "of", "used", "values")

    def __init__(self, of: Captures, values: dict[str, Any], failure: Exception | None) -> None:
        self.of, self.values, self.failure = of, values, failure
        self.used = False


_on_its_way: ContextVar[_Taken | None] = ContextVar("agent_ckpt_capture", default=None)


class Captures:
    """The captures of one saver.

    Args:
        declared: the option `capture`.
        sealed: whether the store has a key, so that secrets may be kept.
        patterns: the option `mask_keys`.

    Raises:
        UsageError: for a capture that isn't known or can't be kept.
    """

    def __init__(
        self, declared: Sequence[str | Callable[..., Any]], sealed: bool = False, patterns: tuple[str, ...] = ()
    ) -> None:
        self._sealed, self._patterns = sealed, patterns
        self._calls: dict[str, Callable[..., Any]] = {}
        self.names: tuple[str, ...] = ()
        for one in declared:
            name = self._declare(one)
            if name in self.names:
                raise UsageError(f"option capture holds {name!r} twice")
            self.names += (name,)

    def _declare(self, one: str | Callable[..., Any]) -> str:
        if isinstance(one, str):
            self._check(one)
            return one
        name = getattr(one, "__qualname__", "<")
        if not callable(one) or "<lambda>" in name or name == "<":
            raise UsageError(
                f"option capture holds {type(one).__name__}: give 'random', 'numpy', 'env:NAME', 'env:*', or a "
                f"function with a name, under which its value is kept"
            )
        self._calls[_CALL + name] = one
        return _CALL + name

    def _check(self, name: str) -> None:
        if name == "numpy":
            _numpy()
        elif name == "torch":
            raise UsageError("option capture knows no 'torch': docs/changes.md has the function to give in its place")
        elif name.startswith(_ENV) and len(name) > len(_ENV):
            variable = name[len(_ENV) :]
            if not self._sealed and is_secret(variable, os.environ.get(variable), self._patterns):
                raise UsageError(
                    f"option capture: {name} looks like a secret, and this store has no key, so it would stand in the "
                    f"file in clear; open the store with a key, or leave it out"
                )
        elif name != "random":
            raise UsageError(
                f"option capture holds {name!r}: known are 'random', 'numpy', 'env:NAME', 'env:*' and functions"
            )

    def note(self) -> None:
        """Take the capture of the step that ends now, for the put that follows; never raises."""
        if self.names:
            try:
                _on_its_way.set(_Taken(self, self._now(), None))
            except Exception as exc:
                _on_its_way.set(_Taken(self, {}, exc))

    def take(self, checkpoint_id: str) -> Mapping[str, Any]:
        """What to store with a checkpoint: the capture noted for it, else that of this moment.

        Raises:
            ValueNotStorableError: when a function among the captures failed.
        """
        if not self.names:
            return {}
        noted = _on_its_way.get()
        if noted is not None and noted.of is self and not noted.used:
            noted.used = True
            if noted.failure is not None:
                raise self._failed(noted.failure) from noted.failure
            if "random" in noted.values:
                return {**noted.values, "random": _after_id(noted.values["random"], checkpoint_id)}
            return noted.values
        try:
            return self._now()
        except Exception as exc:
            raise self._failed(exc) from exc

    def _failed(self, cause: Exception) -> ValueNotStorableError:
        return ValueNotStorableError(
            f"a function of the option capture failed with {type(cause).__name__}, so the checkpoint was not stored; "
            f"mend it, or leave it out of capture",
            path="capture",
        )

    def _now(self) -> dict[str, Any]:
        return {name: self._state(name) for name in self.names}

    def _state(self, name: str) -> Any:
        if name == "random":
            return random.getstate()
        if name == "numpy":
            return _numpy().get_state()
        if name == _ALL:
            return {
                key: value for key, value in sorted(os.environ.items()) if not is_secret(key, value, self._patterns)
            }
        if name.startswith(_ENV):
            value = os.environ.get(name[len(_ENV) :])
            if not self._sealed and is_secret("", value):
                raise ValueError("a URL with a password in it, and the store has no key")
            return value
        return self._calls[name]()

    def restore(self, stored: Mapping[str, Any]) -> tuple[str, ...]:
        """Put back what is declared; returns the names of what was.

        The values of `env:*` are not: a file that anybody could have written must not set any variable.

        Raises:
            UsageError: when a stored state isn't one that its generator takes.
        """
        done = [name for name in self.names if name in stored and self._put_back(name, stored[name])]
        note = _on_its_way.get()
        if note is not None:
            note.used = True
        return tuple(done)

    def _put_back(self, name: str, state: Any) -> bool:
        try:
            if name == "random":
                random.setstate(state)
            elif name == "numpy":
                _numpy().set_state(state)
            elif name == _ALL:
                return False
            elif name.startswith(_ENV):
                _set_variable(name[len(_ENV) :], state)
            else:
                return _hand_over(self._calls[name], state)
        except (TypeError, ValueError, IndexError, KeyError) as exc:
            raise UsageError(f"the stored state of capture {name!r} is refused ({type(exc).__name__})") from exc
        return True


def _after_id(state: Any, checkpoint_id: str) -> Any:
    """The state of `random` after LangGraph drew a checkpoint's id from it, as it does between note and put.

    The last 48 bits of such an id are the number drawn; of any other id they aren't, and nothing was drawn.
    """
    generator = random.Random()
    generator.setstate(state)
    drawn = generator.getrandbits(48)
    return generator.getstate() if checkpoint_id.replace("-", "").endswith(f"{drawn:012x}") else state


def _numpy() -> Any:
    try:
        return importlib.import_module("numpy").random
    except ImportError as exc:
        raise UsageError("option capture holds 'numpy', which isn't installed here") from exc


def _set_variable(name: str, value: Any) -> None:
    if value is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = value


def _hand_over(function: Callable[..., Any], state: Any) -> bool:
    """Give a function its stored state, where it takes one."""
    try:
        inspect.signature(function).bind(state)
    except TypeError:
        return False
    function(state)
    return True
