"""Work that takes more than one program: written once, driven for a sync or an async caller."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Generator
from typing import Any, NamedTuple, TypeVar

from agent_ckpt.backend import Backend, Factory

T = TypeVar("T")


class Call(NamedTuple):
    """A program to run, as a step of larger work."""

    factory: Factory[Any]
    write: bool = False


class Outside(NamedTuple):
    """Work that may wait for something outside the store (a key service), and so never runs on an event loop."""

    work: Callable[[], Any]


class Pause(NamedTuple):
    """A wait that holds nothing, as a step of larger work."""

    seconds: float


Steps = Generator[Call | Pause | Outside, Any, T]


def run(backend: Backend, steps: Steps[T]) -> T:
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


async def arun(backend: Backend, steps: Steps[T]) -> T:
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
