"""The port between the logic and a database: what a backend must do.

The logic (`core`) is written as *programs*: generators that yield named statements and receive
rows. A program does no I/O, knows no event loop and holds no SQL, so one program serves the sync
and the async call, and every backend. (psycopg's generator core is the model of this shape.)
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

T = TypeVar("T")

Row = tuple[Any, ...]


class Statement(NamedTuple):
    """One step of a program: a named block of the backend's SQL, with its parameters.

    Attributes:
        name: the block's name.
        params: bound parameters by position; with `many`, a list of parameter tuples.
        many: execute once per parameter tuple and return no rows.
    """

    name: str
    params: Sequence[Any] = ()
    many: bool = False


Program = Generator[Statement, list[Row], T]
Factory = Callable[[], Program[T]]


class Backend(Protocol):
    """Runs programs. Every method may be called from any OS thread and any event loop.

    Contract:
        - A *read* sees one snapshot of the store from its first to its last statement, and holds
          nothing (transaction, cursor, lock) once the call has returned or raised.
        - A *write* is all or nothing, and durable when the call returns. A program that raises is
          undone alone; others that share its group commit are not touched. A program may be run
          more than once before the call returns, so it is handed over as a factory and keeps no
          state outside its generator.
        - A cancelled `arun` drops a write that has not begun, and never half-commits one: it ends when one that
          has begun is done.
        - Driver errors surface as the package's own errors, `raise ... from` the driver's.
        - In a forked child the backend opens anew by itself and never touches inherited handles.
    """

    @property
    def target(self) -> str:
        """What is stored where, for messages: a file's absolute path, or ":memory:"."""
        ...

    def run(self, factory: Factory[T], *, write: bool = False) -> T: ...

    async def arun(self, factory: Factory[T], *, write: bool = False) -> T: ...

    def close(self) -> None:
        """Finish accepted writes and close every handle. Idempotent."""
        ...

    async def aclose(self) -> None: ...
