"""Reading msgpack with extensions: the errors that msgpack hides, and a bound to the depth."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import ormsgpack

from agent_ckpt.codec.gate import Gate, UnresolvedError
from agent_ckpt.codec.room import LEVELS, in_room

DEEPEST = 200


class Reader(ABC):
    """Reads one value. A subclass says what each extension means.

    Args:
        gate: which classes may be rebuilt.
    """

    options: int | None = None

    def __init__(self, gate: Gate) -> None:
        self.gate = gate
        self._depth = 0
        self._failure: Exception | None = None
        self._roomy = False

    @abstractmethod
    def part(self, code: int, data: bytes) -> Any:
        """The value of one extension."""

    def read(self, data: bytes) -> Any:
        """The value of these bytes.

        Raises:
            UnresolvedError: a class that isn't there.
            Exception: for bytes that are damaged.
        """
        return self._told(self.inner, data)

    def read_part(self, code: int, data: bytes) -> Any:
        """The value of one extension that stands alone; raises as `read` does."""
        return self._told(self._hook, code, data)

    def _told(self, read: Callable[..., Any], *given: Any) -> Any:
        try:
            return read(*given)
        except UnresolvedError:
            raise
        except Exception:
            failure, self._failure = self._failure, None
            if isinstance(failure, UnresolvedError):
                raise failure from None
            if not self._roomy:
                # msgpack hides a RecursionError, so that whatever failed is tried again where there is room.
                self._roomy = True
                return in_room(self._told, read, *given)
            if failure is not None:
                # msgpack tells only that an extension failed; the first failure is the innermost.
                raise failure from None
            raise

    def inner(self, data: bytes) -> Any:
        """The content of an extension."""
        return ormsgpack.unpackb(data, ext_hook=self._hook, option=self.options)

    def _hook(self, code: int, data: bytes) -> Any:
        self._depth += 1
        try:
            if self._depth > DEEPEST:
                raise ValueError("nested too deep")
            if self._roomy and self._depth % LEVELS == 0:
                return in_room(self.part, code, data)
            return self.part(code, data)
        except Exception as exc:
            if self._failure is None:
                self._failure = exc
            raise
        finally:
            self._depth -= 1
