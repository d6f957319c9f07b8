"""The one writer of a backend: all its writes, sync and async, through one connection, in group commits.

Who leads a group holds the run lock. A sync caller leads on its own OS thread where the lock is free; the others,
and all async callers, queue, and a daemon worker leads what is left. The leader first gets hold of the write lock
(polling, with nothing held meanwhile), then takes what has queued up, runs each program in a savepoint, commits
once and tells everybody.
"""

from __future__ import annotations

import asyncio
import sqlite3
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue

from agent_ckpt.backend import Factory, T
from agent_ckpt.errors import CkptError, ClosedError, PoisonedError, UnavailableError, UsageError
from agent_ckpt.sqlite import errors
from agent_ckpt.sqlite.drive import Counter
from agent_ckpt.sqlite.fork import GATE
from agent_ckpt.sqlite.group import Handle, run_group
from agent_ckpt.sqlite.guard import PAUSE_MAX_S, Pauses
from agent_ckpt.sqlite.jobs import Job, announce, as_ours, own_copy

GROUP_JOBS = 64
_SLICE_S = 0.5


class Writer:
    """Runs write programs. Every method may be called from any OS thread."""

    def __init__(
        self, path: str, open_handle: Callable[[], Handle], counter: Counter, busy_timeout_s: float, places: int
    ) -> None:
        self._path = path
        self._open_handle = open_handle
        self._counter = counter
        self._busy_timeout_s = busy_timeout_s
        self._places = places
        self._handle: Handle | None = None
        self._poison: PoisonedError | None = None
        self._closing = False
        self._new_locks()

    def _new_locks(self) -> None:
        # Reentrant only to know its owner: release must not be missed when a signal raises between two steps.
        self._run = threading.RLock()
        self._lock = threading.Lock()
        self._queue: deque[Job] = deque()
        self._tokens: SimpleQueue[bool] = SimpleQueue()
        self._worker: threading.Thread | None = None

    # The callers' side

    def call(self, factory: Factory[T]) -> T:
        """Run a write on behalf of an OS thread; durable when it returns."""
        if self._run._is_owned():  # type: ignore[attr-defined]
            raise UsageError(f"a write to {self._path} was called from inside another one (from a signal handler?)")
        job = Job(factory, self._busy_timeout_s)
        wait = Pauses(job.deadline)
        while not self._enqueue(job):
            if not wait.sleep():
                raise self._queue_is_full(job)
        try:
            self._serve(job)
        except BaseException:
            self._withdraw(job)
            raise
        result: T = job.outcome()
        return result

    async def acall(self, factory: Factory[T]) -> T:
        """Run a write on behalf of a task; a cancelled one is dropped if it has not begun."""
        job = Job(factory, self._busy_timeout_s)
        job.loop = asyncio.get_running_loop()
        job.future = job.loop.create_future()
        while not self._enqueue(job):
            if time.monotonic() > job.deadline:
                raise self._queue_is_full(job)
            await asyncio.sleep(PAUSE_MAX_S)
        if not self._wake():
            self._lead_on_this_thread(job)
        try:
            result: T = await job.future
        except asyncio.CancelledError:
            self._withdraw(job)
            raise
        return result

    def _serve(self, job: Job) -> None:
        """Lead the group of this job, or wait for who leads."""
        if self._lead_on_this_thread(job):
            return
        worker = self._wake()
        while not job.wait(max(PAUSE_MAX_S, min(_SLICE_S, job.deadline - time.monotonic())) if worker else PAUSE_MAX_S):
            if not worker and self._lead_on_this_thread(job):
                return
            if time.monotonic() > job.deadline and self._withdraw(job):
                raise errors.busy(self._path, job.waited_s)
            if sys.is_finalizing():
                # A worker that held the run lock has been frozen with it.
                raise UnavailableError(f"the interpreter is shutting down; a write to {self._path} was not made")
            worker = self._wake()

    def _lead_on_this_thread(self, job: Job) -> bool:
        """Lead a group, if nobody else leads; False if the job isn't answered yet."""
        try:
            if self._run.acquire(blocking=False):
                self._lead(job)
        finally:
            if self._run._is_owned():  # type: ignore[attr-defined]
                self._run.release()
                if self._queue:
                    self._wake()
        return job.answered

    # The queue

    def _enqueue(self, job: Job) -> bool:
        with self._lock:
            if self._closing:
                raise ClosedError(f"the saver of {self._path} was closed; make a new one")
            if self._poison is not None:
                raise own_copy(self._poison)
            if len(self._queue) >= self._places:
                return False
            self._queue.append(job)
            return True

    def _withdraw(self, job: Job) -> bool:
        """Take a job that has not begun out of the queue; False if it has, and then it runs to its end."""
        with self._lock:
            try:
                self._queue.remove(job)
            except ValueError:
                return False
            return True

    def _queue_is_full(self, job: Job) -> BaseException:
        return errors.busy(self._path, job.waited_s, f"{self._places} writes were waiting for the writer already")

    def _wake(self) -> bool:
        """Have the worker lead what is queued; False if no worker can be started any more."""
        with self._lock:
            tokens = self._tokens
            if self._worker is None or not self._worker.is_alive():
                worker = threading.Thread(target=self._work, args=(tokens,), name="agent_ckpt-writer", daemon=True)
                try:
                    worker.start()
                except RuntimeError:
                    return False
                self._worker = worker
        tokens.put(True)
        return True

    # The leader's side

    def _lead(self, own: Job | None) -> None:
        """Run one group, or answer those whose time is up. The caller holds the run lock."""
        wait = Pauses(float("inf"))
        while self._queue and not (own is not None and own.answered):
            with GATE:
                if self._attempt(own):
                    return
            wait.sleep()

    def _attempt(self, own: Job | None) -> bool:
        """Try once to get the write lock and run a group; False if the lock is held by somebody else."""
        try:
            handle = self._handle or self._open_handle()
            self._handle = handle
            begun = handle.begin()
        except (CkptError, sqlite3.Error) as exc:
            if not errors.is_busy(exc):
                self._fail(self._take(), exc)
                return True
            begun = False
        if not begun:
            self._expire()
            return False
        self._run_group(handle, self._take(), own)
        return True

    def _run_group(self, handle: Handle, group: list[Job], own: Job | None) -> None:
        interrupted: Job | None = None
        try:
            run_group(handle, group, own)
        except PoisonedError as exc:
            self._poison = exc
            self._fail([*group, *self._take_all()], exc)
        except sqlite3.Error as exc:
            self._fail(group, exc)
        except BaseException:
            interrupted = own
            raise
        finally:
            self._end(handle)
            self._put_back([job for job in group if not job.answered and job is not interrupted])

    def _end(self, handle: Handle) -> None:
        try:
            handle.end()
        except sqlite3.Error:
            # A transaction that can't be rolled back ends with its connection.
            self.close_handle()

    def _take(self) -> list[Job]:
        """The next group: bounded in number, and a job that must run alone makes its own."""
        with self._lock:
            group: list[Job] = []
            while self._queue and len(group) < GROUP_JOBS:
                if self._queue[0].alone and group:
                    break
                group.append(self._queue.popleft())
                if group[-1].alone:
                    break
            return group

    def _take_all(self) -> list[Job]:
        with self._lock:
            jobs = list(self._queue)
            self._queue.clear()
            return jobs

    def _put_back(self, jobs: list[Job]) -> None:
        with self._lock:
            self._queue.extendleft(reversed(jobs))

    def _expire(self) -> None:
        """Answer those who have waited for the lock for as long as they may."""
        now = time.monotonic()
        with self._lock:
            overdue = [job for job in self._queue if job.deadline <= now]
            for job in overdue:
                self._queue.remove(job)
        for job in overdue:
            job.settle(error=errors.busy(self._path, job.waited_s))
        announce(overdue)

    def _fail(self, jobs: list[Job], error: BaseException) -> None:
        settled = [job for job in jobs if not job.answered]
        for job in settled:
            job.settle(error=own_copy(as_ours(error, self._path, job)))
        announce(settled)

    def _work(self, tokens: SimpleQueue[bool]) -> None:
        while tokens.get():
            while self._queue:
                with self._run:
                    self._lead(None)
        with self._run, GATE:
            self.close_handle()

    # Life and death

    def close(self) -> None:
        """Refuse new writes, finish the accepted ones, close the connection. Idempotent."""
        with self._lock:
            self._closing = True
        with self._run:
            while self._queue:
                self._lead(None)
            with GATE:
                self.close_handle()
        self._tokens.put(False)

    def dispose(self) -> None:
        """Close without a promise to anybody, for a saver that was dropped or that outlives its program."""
        self._closing = True
        try:
            if self._run.acquire(blocking=False):
                with GATE:
                    self.close_handle()
        finally:
            if self._run._is_owned():  # type: ignore[attr-defined]
                self._run.release()
            self._tokens.put(False)

    def close_handle(self) -> None:
        handle, self._handle = self._handle, None
        if handle is not None:
            handle.close()

    def abandon(self) -> None:
        """Let go of the handle without closing it, for ever."""
        handle, self._handle = self._handle, None
        if handle is not None:
            handle.abandon()

    def after_in_child(self) -> None:
        """Forget the parent's callers and its worker, which does not exist here."""
        self._poison = None
        self._new_locks()
