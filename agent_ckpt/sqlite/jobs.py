"""A write that waits for the writer, and how its caller hears of the outcome."""

from __future__ import annotations

import asyncio
import copy
import time
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from agent_ckpt.backend import Factory
from agent_ckpt.errors import CkptError
from agent_ckpt.sqlite import engine
from agent_ckpt.sqlite.errors import translate

SEE_THROUGH_S = 5.0


class Job:
    """One submitted program.

    Attributes:
        begun: some leader has taken it, so it is run to its end.
        alone: it must make a group of its own.
        answered: the outcome stands, or nobody wants it any more; the job is never run again.
        loop, future: where an async caller waits; None for a sync one.
        told: the caller's event loop has heard of the outcome.
    """

    __slots__ = (
        "alone",
        "answered",
        "begun",
        "deadline",
        "error",
        "factory",
        "future",
        "loop",
        "result",
        "submitted",
        "told",
    )

    def __init__(self, factory: Factory[Any], busy_timeout_s: float) -> None:
        self.factory = factory
        self.submitted = time.monotonic()
        self.deadline = self.submitted + busy_timeout_s
        self.begun = self.alone = self.answered = self.told = False
        self.result: Any = None
        self.error: BaseException | None = None
        self.loop: asyncio.AbstractEventLoop | None = None
        self.future: asyncio.Future[Any] | None = None

    @property
    def waited_s(self) -> float:
        return time.monotonic() - self.submitted

    def outcome(self) -> Any:
        if self.error is not None:
            try:
                raise self.error
            finally:
                # The traceback refers to this frame and so to the error: don't make a cycle of it.
                self.error = None
        return self.result

    async def see_through(self) -> None:
        """Wait for a write that has begun although its caller was cancelled, without hearing how it ended.

        When a cancelled run has ended nothing of it may be stored any more: whoever restores the thread then would
        be overtaken by it, and refused.
        """
        if self.told or self.loop is None:
            return
        # The cancellation has cancelled the first one.
        self.future = future = self.loop.create_future()
        try:
            await asyncio.wait({future}, timeout=SEE_THROUGH_S)
        finally:
            if not future.cancel() and not future.cancelled():
                future.exception()

    def _resolve(self) -> None:
        self.told = True
        if self.future is None or self.future.done():
            return
        if self.error is not None:
            self.future.set_exception(self.error)
        else:
            self.future.set_result(self.result)


def announce(jobs: Iterable[Job]) -> None:
    """Tell the async callers of answered jobs, each event loop once for all of its jobs. Idempotent."""
    by_loop: dict[asyncio.AbstractEventLoop, list[Job]] = {}
    for job in jobs:
        # A sync caller sees that its job is answered when it gets the run lock.
        if job.loop is not None:
            by_loop.setdefault(job.loop, []).append(job)
    for loop, settled in by_loop.items():
        # A loop that was closed while the write ran has nobody left to hear of it.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(_resolve_all, settled)


def _resolve_all(jobs: list[Job]) -> None:
    for job in jobs:
        job._resolve()


def own_copy(error: BaseException) -> BaseException:
    """An error for one caller: the same instance raised by several would mix up their tracebacks."""
    twin = copy.copy(error)
    twin.__cause__ = error.__cause__
    return twin


def as_ours(error: BaseException, path: str, job: Job | None = None) -> BaseException:
    """Translate an error of the driver or the system; others pass as they are."""
    if isinstance(error, engine.OF_DRIVER_OR_SYSTEM):
        ours: CkptError = translate(error, path, "a write", 0.0 if job is None else job.waited_s)
        ours.__cause__ = error
        return ours
    return error
