"""Work that takes more than one program: written once, driven for a sync or an async caller."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Generator
from typing import Any, NamedTuple, Protocol, TypeVar

from agent_ckpt.backend import Factory

T = TypeVar("T")


class Ask(NamedTuple):
    """A question to somebody else than the database, in place of a program: a method's name and arguments."""

    name: str
    args: tuple[Any, ...]


class Call(NamedTuple):
    """A program to run, or a question to ask, as a step of larger work."""

    factory: Factory[Any] | Ask
    write: bool = False


class Outside(NamedTuple):
    """Work that may wait for something outside the store (a key service), and so never runs on an event loop."""

    work: Callable[[], Any]


class Pause(NamedTuple):
    """A wait that holds nothing, as a step of larger work."""

    seconds: float


Steps = Generator[Call | Pause | Outside, Any, T]


class Runner(Protocol):
    """What steps are driven on: a backend, or something in front of one."""

    def run(self, factory: Any, *, write: bool = False) -> Any: ...

    async def arun(self, factory: Any, *, write: bool = False) -> Any: ...


def run(backend: Runner, steps: Steps[T]) -> T:
    """Drive steps on the caller's thread."""
    answer: Any = None
    failure: BaseException | None = None
    while True:
        try:
            call = steps.send(answer) if failure is None else steps.throw(failure)
        except StopIteration as done:
            return done.value  # type: ignore[no-any-return]
        answer, failure = None, None
        try:
            if isinstance(call, Pause):
                time.sleep(call.seconds)
            elif isinstance(call, Outside):
                answer = call.work()
            else:
                answer = backend.run(call.factory, write=call.write)
        except BaseException as exc:
            failure = exc


async def arun(backend: Runner, steps: Steps[T]) -> T:
    """Drive steps on the caller's event loop."""
    answer: Any = None
    failure: BaseException | None = None
    while True:
        try:
            call = steps.send(answer) if failure is None else steps.throw(failure)
        except StopIteration as done:
            return done.value  # type: ignore[no-any-return]
        answer, failure = None, None
        try:
            if isinstance(call, Pause):
                await asyncio.sleep(call.seconds)
            elif isinstance(call, Outside):
                answer = await asyncio.to_thread(call.work)
            else:
                answer = await backend.arun(call.factory, write=call.write)
        except BaseException as exc:
            failure = exc
