"""The one writer of a backend: all its writes, sync and async, through one connection, in group commits.

Every write queues up. Whoever holds the run lock leads: it gets hold of the database's write lock (polling, with
nothing of the database held meanwhile), runs what is queued in one transaction, commits once and tells
everybody. A sync caller that finds the run lock free leads on its own OS thread, which saves two hand-overs; for
all others a daemon worker leads.

A signal can raise KeyboardInterrupt between any two steps of a sync caller. So jobs stay in the queue until they
are answered, whoever leads next finds everything that an interrupted one left, and what must be let go is let go
twice, in a `finally` of a `finally`. No loop stands directly in a `with`: from CPython 3.12 on, an interrupt at its
jump back would skip the `with`'s exit.
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue

from agent_ckpt.backend import Factory, T
from agent_ckpt.errors import CkptError, PoisonedError
from agent_ckpt.sqlite import errors, files
from agent_ckpt.sqlite.drive import Counter
from agent_ckpt.sqlite.fork import GATE
from agent_ckpt.sqlite.group import Handle, run_group
from agent_ckpt.sqlite.guard import PAUSE_MAX_S, Pauses
from agent_ckpt.sqlite.jobs import Job, announce, as_ours, own_copy
from agent_ckpt.sqlite.upkeep import SLICE_S, Upkeep

GROUP_JOBS = 64


class Writer(Upkeep):
    """Runs write programs. Every method may be called from any OS thread."""

    def __init__(
        self,
        path: str,
        open_handle: Callable[[], Handle],
        on_end: Callable[[], None],
        counter: Counter,
        busy_timeout_s: float,
        places: int,
    ) -> None:
        """
        Args:
            path: the database file, for messages.
            open_handle: opens the connection, at the first write and after a fork.
            on_end: called when the last handle is closed for good, maybe more than once; what the handle
                stands on may go then, and not before.
            counter: hears of each statement.
            busy_timeout_s: how long a call waits for a lock, or for a place.
            places: how many jobs may queue.
        """
        super().__init__(path, open_handle, busy_timeout_s)
        self._on_end = on_end
        self._counter = counter
        self._places = places
        self._unsettled = False
        self._new_locks()

    def _new_locks(self) -> None:
        # All reentrant, as a signal handler can write too. The owner of the run lock is looked at, so that it isn't
        # lost when an interrupt strikes at its taking, and a write from inside another one is told so.
        super()._new_locks()
        self._lock = threading.RLock()
        self._queue: deque[Job] = deque()
        self._tokens: SimpleQueue[bool] = SimpleQueue()
        self._worker: threading.Thread | None = None
        self._awake = False

    # The callers' side

    def call(self, factory: Factory[T]) -> T:
        """Run a write on behalf of an OS thread; durable when it returns."""
        self._check_thread()
        job = Job(factory, self._busy_timeout_s)
        wait: Pauses | None = None
        while not self._enqueue(job):
            wait = wait or Pauses(job.deadline)
            if not wait.sleep():
                raise self._queue_is_full(job)
        self._serve(job)
        result: T = job.outcome()
        return result

    async def acall(self, factory: Factory[T]) -> T:
        """Run a write on behalf of a task; a cancelled one is dropped if it has not begun, else seen through."""
        job = Job(factory, self._busy_timeout_s)
        job.loop = asyncio.get_running_loop()
        job.future = job.loop.create_future()
        while not self._enqueue(job):
            if time.monotonic() > job.deadline:
                raise self._queue_is_full(job)
            await asyncio.sleep(PAUSE_MAX_S)
        if not self._wake():
            self._serve(job)
        try:
            result: T = await job.future
        except asyncio.CancelledError:
            if not self._withdraw(job):
                await job.see_through()
            raise
        return result

    def _serve(self, job: Job) -> None:
        """Lead the group of this job, or wait for who leads."""
        try:
            while not self._lead_if_free(job):
                if time.monotonic() > job.deadline and self._withdraw(job):
                    raise errors.busy(self._path, job.waited_s)
        except BaseException:
            self._withdraw(job)
            raise

    def _lead_if_free(self, job: Job) -> bool:
        """Lead a group when nobody else leads any more; whether the job is answered.

        Who leads meanwhile has mostly run this job too, and then there is nothing left to lead. Waiting for the run
        lock takes one hand-over between OS threads, where waiting for an answer from the worker took two.
        """
        left = job.deadline - time.monotonic()
        try:
            if self._run.acquire(timeout=max(PAUSE_MAX_S, min(left, SLICE_S))) and not job.answered:
                self._lead(job)
        finally:
            try:
                self._let_go()
            finally:
                self._let_go()
        return job.answered

    # The queue

    def _enqueue(self, job: Job) -> bool:
        with self._lock:
            self._raise_if_ended()
            if len(self._queue) >= self._places:
                return False
            self._queue.append(job)
            return True

    def _withdraw(self, job: Job) -> bool:
        """Drop a job that has not begun; False if it has, and then it runs to its end."""
        with self._lock:
            if job.begun:
                return False
            job.answered = True
            return True

    def _queue_is_full(self, job: Job) -> CkptError:
        return errors.busy(self._path, job.waited_s, f"{self._places} writes were waiting for the writer already")

    def _wake(self) -> bool:
        """Have the worker lead what is queued; False if no worker can be started any more."""
        with self._lock:
            if self._awake and self._worker is not None and self._worker.is_alive():
                return True
            tokens = self._tokens
            if self._worker is None or not self._worker.is_alive():
                worker = threading.Thread(target=self._work, args=(tokens,), name="agent_ckpt-writer", daemon=True)
                try:
                    worker.start()
                except RuntimeError:
                    return False
                self._worker = worker
            # In this order: interrupted in between, the next caller only wakes it once more.
            tokens.put(True)
            self._awake = True
        return True

    def _work(self, tokens: SimpleQueue[bool]) -> None:
        while tokens.get():
            while self._has_work():
                with self._run:
                    self._lead(None)
        with self._run:
            self._end_for_good()

    def _has_work(self) -> bool:
        """Whether anything is queued; if not, the worker sleeps until it is woken."""
        with self._lock:
            self._awake = bool(self._queue)
            return self._awake

    def _take(self) -> list[Job]:
        """The next group: bounded in number, and a job that must run alone makes its own."""
        with self._lock:
            return self._take_locked()

    def _take_locked(self) -> list[Job]:
        group: list[Job] = []
        for job in self._queue:
            if job.answered:
                continue
            if job.alone and group:
                break
            job.begun = True
            group.append(job)
            if job.alone or len(group) == GROUP_JOBS:
                break
        return group

    def _tidy(self) -> bool:
        """Take what is answered from the front of the queue; whether any is left."""
        with self._lock:
            return self._tidy_locked()

    def _tidy_locked(self) -> bool:
        while self._queue and self._queue[0].answered:
            self._queue.popleft()
        return bool(self._queue)

    def _settle(self, jobs: list[Job], error: Callable[[Job], BaseException]) -> None:
        """Answer jobs with an error, each with its own instance."""
        with self._lock:
            settled = _settle_locked(jobs, error)
        announce(settled)

    # The leader's side

    def _lead(self, own: Job | None) -> None:
        """Run one group, or answer those whose time is up. The caller holds the run lock."""
        wait: Pauses | None = None
        while self._tidy() and not (own is not None and own.answered):
            with GATE:
                if self._attempt(own):
                    break
            wait = wait or Pauses(float("inf"))
            wait.sleep()
        self._tidy()
        if self._handle is not None and self._handle.wants_folding:
            self._tidier.note()

    def _attempt(self, own: Job | None) -> bool:
        """Try once to get the write lock and run a group; False if the lock is held by somebody else."""
        try:
            # Opening can meet a lock as well: that of another process which closes the file or recovers its WAL.
            if self._handle is None:
                # A -wal that was made while the file could not be written can't be written now.
                files.share_mode(self._path)
            handle = self._handle or self._open_handle()
            handle.unsettled = handle.unsettled or self._unsettled
            self._handle = handle
            with handle.mutex:
                try:
                    if handle.begin():
                        self._run_group(handle, self._take(), own)
                        self._renew_if_needed(handle)
                        return True
                finally:
                    self._end(handle)
        except Exception as exc:
            if not errors.is_busy(exc):
                # Whatever it is, its callers hear of it: on the worker nobody else would.
                self._fail(self._take(), exc)
                if self._handle is not None:
                    self._handle.read_only |= errors.code(exc) == sqlite3.SQLITE_READONLY
                    self._renew_if_needed(self._handle)
                return True
        self._expire()
        return False

    def _renew_if_needed(self, handle: Handle) -> None:
        """Drop a connection that can only read, or that knows not how its last COMMIT ended.

        SQLite opens a file that may not be written for reading only, and for good: also when the rights are given
        back.
        """
        self._unsettled = handle.unsettled
        if handle.read_only or handle.unsettled:
            self._end(handle)
            self._handle = None
            handle.connection.close()

    def _run_group(self, handle: Handle, group: list[Job], own: Job | None) -> None:
        try:
            run_group(handle, group, own)
        except PoisonedError as exc:
            self._poison = exc
            self._fail(list(self._queue), exc)
        except Exception as exc:
            self._fail(group, exc)
        except BaseException:
            if own is not None:
                own.answered = True
            raise

    def _expire(self) -> None:
        """Answer those who have waited for the lock for as long as they may."""
        now = time.monotonic()
        overdue = [job for job in list(self._queue) if job.deadline <= now]
        self._settle(overdue, lambda job: errors.busy(self._path, job.waited_s))

    def _fail(self, jobs: list[Job], error: BaseException) -> None:
        self._settle(jobs, lambda job: own_copy(as_ours(error, self._path, job)))

    # Life and death

    def close(self) -> None:
        """Refuse new writes, finish the accepted ones, close the connection. Idempotent."""
        self._check_thread()
        with self._lock:
            self._closing = True
        self._tidier.end()
        with self._run:
            self._finish()
        self._tidier.end()
        self._tokens.put(False)

    def _finish(self) -> None:
        while self._tidy():
            self._lead(None)
        self._end_for_good()

    def dispose(self) -> None:
        """Close without a promise to anybody, for a saver that was dropped or that outlives its program."""
        self._closing = True
        self.hurry()
        if not self._run._is_owned():  # type: ignore[attr-defined]
            try:
                if self._run.acquire(blocking=False):
                    self._end_for_good()
            finally:
                self._let_go()
        self._tidier.end(0.0)
        self._tokens.put(False)

    def _end_for_good(self) -> None:
        with GATE.for_closing():
            self.close_handle()
        self._on_end()

    def before_fork(self) -> None:
        """Close the connection, and end what works beside the callers. Called when no call is inside."""
        self._tidier.end()
        self.close_handle()

    def abandon(self) -> None:
        """Let go of the handle without closing it, for ever."""
        handle, self._handle = self._handle, None
        if handle is not None:
            handle.abandon()

    def after_in_child(self) -> None:
        """Forget the parent's callers and its worker, which does not exist here."""
        self._poison = None
        self._tidier.after_in_child()
        self._new_locks()


def _settle_locked(jobs: list[Job], error: Callable[[Job], BaseException]) -> list[Job]:
    settled = [job for job in jobs if not job.answered]
    for job in settled:
        job.result, job.error = None, error(job)
        job.answered = True
    return settled
