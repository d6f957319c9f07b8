"""Leases: the right to write a thread for longer than one run, and turns, which queue for it."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from agent_ckpt.carrier import SessionThreadId, thread_id_of
from agent_ckpt.entry import give_way
from agent_ckpt.errors import ClosedError, UsageError
from agent_ckpt.later import Later
from agent_ckpt.loops import position
from agent_ckpt.model import LeaseRow
from agent_ckpt.parts import Store, Thread
from agent_ckpt.plumbing import Plumbing
from agent_ckpt.steps import Call, Pause, Steps

if TYPE_CHECKING:
    from agent_ckpt.core import lease as leasing
    from agent_ckpt.reports import LeaseInfo
else:
    leasing = Later("agent_ckpt.core.lease")

log = logging.getLogger("agent_ckpt")

_PAUSE_MIN_S = 0.01
_PAUSE_MAX_S = 0.1
_ASKS_EVERY_S = 5.0
_TTL_MIN_S = 0.1
_SECONDS_MAX = 366 * 24 * 3600
_GIVING_BACK: set[asyncio.Future[None]] = set()
"""Leases that are being given back; the event loop holds its tasks only weakly."""


class Lease:
    """The right to write a thread, across processes, while its block runs.

    Made by `AgentSaver.lease`. Renewed in the background while held; it expires by itself when its
    process dies. What is called inside the block, in this context, writes under the lease; pass
    `config` on where the work happens in another context, such as a thread pool's.

    Attributes:
        thread_id: the thread.
        ttl: seconds for which it holds without renewal.
        fence: its number, larger than that of every earlier lease; None before it is held.
        position: the OS thread and the task that entered its block.
    """

    def __init__(self, plumbing: Plumbing, thread: Thread, ttl: float, timeout: float | None) -> None:
        _check_seconds("ttl", ttl, _TTL_MIN_S)
        if timeout is not None:
            _check_seconds("timeout", timeout, 0)
        self.thread_id = thread_id_of(thread)
        self.ttl = float(ttl)
        self.fence: int | None = None
        self.store = plumbing._carrier.store
        self._config: Mapping[str, Any] = thread if isinstance(thread, Mapping) else {}
        self._plumbing = plumbing
        self._timeout = timeout
        self._asked: bytes | None = None
        self._id: bytes | None = None
        self._pid = os.getpid()
        self._expires = 0.0
        self.position: tuple[int, int] | None = None

    @property
    def id(self) -> bytes | None:
        """The id under which it is held; None before it was taken and once it was given back."""
        return self._id if self._pid == os.getpid() else None

    @property
    def expires_at(self) -> float:
        """Until when it holds unless renewed, in seconds since the epoch."""
        return self._expires

    @property
    def config(self) -> dict[str, Any]:
        """The config that the lease was made with, or one of its thread, carrying the lease."""
        conf = {**self._config.get("configurable", {}), "thread_id": SessionThreadId(self.thread_id, None, self)}
        return {**self._config, "configurable": conf}

    def __repr__(self) -> str:
        return f"Lease(thread_id={self.thread_id!r}, fence={self.fence}, held={self.id is not None})"

    def __enter__(self) -> Self:
        try:
            self._plumbing._run(self._take())
            return self._begin()
        except BaseException:
            self._give_back()
            raise

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        self._give_back()

    async def __aenter__(self) -> Self:
        try:
            await self._plumbing._arun(self._take())
            return self._begin()
        except BaseException:
            await self._agive_back()
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self._agive_back()

    def _give_back(self) -> None:
        asked = self._end()
        if asked is None:
            return
        try:
            self._plumbing._run(_give_back(self.thread_id, asked))
        except ClosedError:
            log.debug("the lease of thread %r ends by itself: its saver was closed first", self.thread_id)
        except KeyboardInterrupt:
            # It may have come before the commit; giving back twice does no harm.
            self._plumbing._run(_give_back(self.thread_id, asked))
            raise

    async def _agive_back(self) -> None:
        asked = self._end()
        if asked is None:
            return
        # A task of its own, since whatever cancels the block must not cancel this.
        task = asyncio.ensure_future(self._plumbing._arun(_give_back(self.thread_id, asked)))
        _GIVING_BACK.add(task)
        task.add_done_callback(_GIVING_BACK.discard)
        try:
            await asyncio.shield(task)
        except ClosedError:
            log.debug("the lease of thread %r ends by itself: its saver was closed first", self.thread_id)

    def renew(self) -> bool:
        """Hold it for another `ttl` seconds from now; False if it was lost. The background does this by itself."""
        return self._plumbing._run(self._renewal())

    async def arenew(self) -> bool:
        """`renew`, async."""
        return await self._plumbing._arun(self._renewal())

    def _renewal(self) -> Steps[bool]:
        held = self.id
        if held is None:
            return False
        until = time.time() + self.ttl
        kept: bool = yield Call(partial(leasing.renew, self.thread_id, held, until), write=True)
        if kept:
            self._expires = until
        return kept

    def _begin(self) -> Self:
        self.position = position()
        self._plumbing._carrier.hold(self)
        _RENEWER.add(self)
        return self

    def _end(self) -> bytes | None:
        asked, self._asked, self._id = self._asked, None, None
        self._plumbing._carrier.let_go(self)
        _RENEWER.drop(self)
        return asked if self._pid == os.getpid() else None

    def _take(self) -> Steps[None]:
        store = self._plumbing._store
        outer, held = store.carrier.outer(self.thread_id), store.carrier.lease_of(self.thread_id)
        nested = isinstance(held, Lease) and (held.position == position() or outer is not None)
        if self._asked is not None or nested:
            raise UsageError(
                f"this caller holds the lease of thread {self.thread_id!r} already, or is in a turn on it: go on with "
                f"that one's config in place of asking for another, which would wait for itself"
            )
        yield from give_way(store, self.thread_id, None, outer)
        ask = ask_for(store, self.thread_id, self.ttl, self._turn)
        self._asked, self._pid = ask.holder, os.getpid()
        self._taken(ask.holder, (yield from self._acquire(ask)))

    _turn = False

    def _acquire(self, ask: leasing.Ask) -> Steps[LeaseRow]:
        return (yield from wait_for(ask, self._timeout))

    def _taken(self, holder: bytes, row: LeaseRow) -> None:
        self._id, self.fence, self._expires, self._pid = holder, row.fence, row.expires, os.getpid()


def ask_for(store: Store, thread_id: str, ttl: float, turn: bool) -> leasing.Ask:
    """What this caller would ask of a thread."""
    store.runs.show_life()
    outer = store.carrier.outer(thread_id)
    label = f"process {os.getpid()} on {socket.gethostname()}"
    rules = store.runs.rules(True, None)
    return leasing.Ask(
        thread_id, store.runs.fresh_id(), label, ttl, rules, outer.id if outer is not None else None, turn
    )


def wait_for(ask: leasing.Ask, timeout: float | None) -> Steps[LeaseRow]:
    """Take a lease, first come first served.

    Args:
        timeout: seconds to queue for it; 0 to give up at once, None to wait for as long as it takes.

    Raises:
        ThreadConflictError: when it could not be had within the timeout.
    """
    deadline = None if timeout is None else time.monotonic() + timeout
    pause, asked = _PAUSE_MIN_S, time.monotonic()
    answer: leasing.Answer = yield Call(partial(leasing.acquire, ask, timeout != 0), write=True)
    if answer.refused is not None:
        # A stream that nobody holds any more may only wait for the cyclic collector.
        gc.collect()
        ask = replace(ask, place=answer.place)
        answer = yield Call(partial(leasing.acquire, ask, timeout != 0), write=True)
    while answer.refused is not None:
        left = None if deadline is None else deadline - time.monotonic()
        if left is not None and left <= 0:
            raise answer.refused
        yield Pause(pause if left is None else min(pause, left))
        pause = min(pause * 1.5, _PAUSE_MAX_S)
        ask = replace(ask, place=answer.place)
        refused = yield Call(partial(leasing.refusal, ask))
        if refused is None or time.monotonic() - asked > _ASKS_EVERY_S:
            asked = time.monotonic()
            answer = yield Call(partial(leasing.acquire, ask, True), write=True)
    assert answer.lease is not None
    return answer.lease


def _check_seconds(name: str, given: Any, least: float) -> None:
    number = isinstance(given, (int, float)) and not isinstance(given, bool)
    if not number or not least <= given <= _SECONDS_MAX:
        raise UsageError(f"{name} must be a number of seconds from {least} to {_SECONDS_MAX}, got {given!r}")


def _give_back(thread_id: str, holder: bytes) -> Steps[None]:
    yield Call(partial(leasing.release, thread_id, holder), write=True)


class _Renewer:
    """Renews the leases of this process, each at a third of its time, on one daemon thread while there are any."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._held: dict[Lease, float] = {}
        self._works = False

    def add(self, lease: Lease) -> None:
        with self._changed:
            self._held[lease] = time.monotonic() + lease.ttl / 3
            if self._works:
                self._changed.notify()
                return
            self._works = True
        threading.Thread(target=self._work, name="agent_ckpt-leases", daemon=True).start()

    def drop(self, lease: Lease) -> None:
        with self._changed:
            self._held.pop(lease, None)

    def _work(self) -> None:
        while True:
            with self._changed:
                if not self._held:
                    self._changed.wait(_ASKS_EVERY_S)
                if not self._held:
                    self._works = False
                    return
                lease, due = min(self._held.items(), key=lambda item: item[1])
                wait = due - time.monotonic()
                if wait > 0:
                    self._changed.wait(min(wait, _ASKS_EVERY_S))
                    continue
                self._held[lease] = time.monotonic() + lease.ttl / 3
            self._renew(lease)

    def _renew(self, lease: Lease) -> None:
        try:
            kept = lease.renew()
        except Exception as exc:
            log.warning("the lease of thread %r could not be renewed: %s", lease.thread_id, exc)
            return
        if not kept and lease.id is not None:
            log.warning("the lease of thread %r was taken over or broken; its writes are refused", lease.thread_id)
            self.drop(lease)

    def forget(self) -> None:
        self.__init__()  # type: ignore[misc]


_RENEWER = _Renewer()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_RENEWER.forget)


class LeaseOps(Plumbing):
    """The part of AgentSaver that is about leases."""

    def lease(self, thread: Thread, *, ttl: float = 30.0, timeout: float | None = 0) -> Lease:
        """The right to write a thread, for a `with` or `async with` block.

        While it is held, writes of all others, in this process too, are refused with
        ThreadConflictError (reason `"leased"`), and a run of theirs before its nodes run. It is
        renewed while the block runs, and ends with the block, with its process, or `ttl` seconds
        after the last renewal of a process that is frozen; a late holder's writes are refused
        (reason `"lease_lost"`).

        Args:
            thread: an id or a config; the thread needn't be stored yet.
            ttl: seconds.
            timeout: seconds to queue for it, first come first served; None for as long as it takes.

        Raises:
            ThreadConflictError: on entering, when it can't be had within the timeout.
            UsageError: for a ttl or a timeout that can't be right.
        """
        return Lease(self, thread, ttl, timeout)

    def leases(self) -> Sequence[LeaseInfo]:
        """The leases that are held now, by thread."""
        return self._run(_leases(self._store))

    async def aleases(self) -> Sequence[LeaseInfo]:
        """`leases`, async."""
        return await self._arun(_leases(self._store))

    def break_lease(self, thread: Thread) -> bool:
        """End the lease of a thread, whoever holds it; False if nobody does. Its holder's writes are refused then."""
        return self._run(_break(thread_id_of(thread)))

    async def abreak_lease(self, thread: Thread) -> bool:
        """`break_lease`, async."""
        return await self._arun(_break(thread_id_of(thread)))


def _leases(store: Store) -> Steps[list[LeaseInfo]]:
    held: list[LeaseInfo] = yield Call(partial(leasing.leases, store.runs.rules(True, None)))
    return held


def _break(thread_id: str) -> Steps[bool]:
    broken: bool = yield Call(partial(leasing.break_lease, thread_id), write=True)
    return broken
