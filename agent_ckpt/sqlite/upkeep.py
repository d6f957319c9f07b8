"""What a writer does besides writing: hold its connection alone, keep the WAL short, end.

Base of `Writer`, which adds the queue and the groups.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable

from agent_ckpt.backend import T
from agent_ckpt.errors import CkptError, ClosedError, PoisonedError, UnavailableError, UsageError
from agent_ckpt.sqlite import engine, errors
from agent_ckpt.sqlite.fork import GATE
from agent_ckpt.sqlite.group import Handle
from agent_ckpt.sqlite.guard import PAUSE_MAX_S, Pauses
from agent_ckpt.sqlite.jobs import own_copy
from agent_ckpt.sqlite.tidy import Tidier

SLICE_S = 0.5


class Upkeep:
    """The connection of a writer with the lock under which it is used."""

    def __init__(self, path: str, open_handle: Callable[[], Handle], busy_timeout_s: float) -> None:
        self._path = path
        self._open_handle = open_handle
        self._busy_timeout_s = busy_timeout_s
        self._handle: Handle | None = None
        self._poison: PoisonedError | None = None
        self._closing = False
        self._tidier = Tidier(self._cut_idle_wal)

    def _new_locks(self) -> None:
        self._run = threading.RLock()

    def _check_thread(self) -> None:
        if self._run._is_owned():  # type: ignore[attr-defined]
            raise UsageError(f"a write to {self._path} was called from inside another one (from a signal handler?)")
        if sys.is_finalizing():
            # A worker that held the run lock has been frozen with it.
            if not self._run.acquire(timeout=SLICE_S):
                raise UnavailableError(f"the interpreter is shutting down; a write to {self._path} was not made")
            self._run.release()

    def _let_go(self) -> None:
        if self._run._is_owned():  # type: ignore[attr-defined]
            self._run.release()

    def _raise_if_ended(self) -> None:
        if self._closing:
            raise ClosedError(f"the saver of {self._path} was closed; make a new one")
        if self._poison is not None:
            raise own_copy(self._poison)

    def _cut_idle_wal(self, idle: bool) -> bool:
        """Cut the WAL when nothing is written, or when it has grown; whether nothing is left to do."""
        handle = self._handle
        if handle is not None and handle.wal is not None and not idle and not handle.wal.is_large:
            return False
        try:
            # Who writes just now looks at the WAL too.
            if not self._run.acquire(blocking=False):
                return False
            with GATE:
                done = self._closing or self._handle is None or self._cut(self._handle)
            if done:
                self._tidier.rest()
            return done
        finally:
            self._let_go()

    def _cut(self, handle: Handle) -> bool:
        if handle.wal is None:
            return True
        done = False
        try:
            with handle.wal.failing_logged():
                done = handle.cut_wal()
        except CkptError:
            # The side file can't be locked any more; the next write says why.
            done = True
        return done

    def maintain(self, work: Callable[[Handle], T]) -> T:
        """Run something on the connection, with the lock of all writers held and outside a transaction.

        Raises:
            BusyError: if the lock was held for `busy_timeout_s`.
        """
        self._check_thread()
        wait = Pauses(time.monotonic() + self._busy_timeout_s)
        while True:
            self._raise_if_ended()
            try:
                if self._run.acquire(timeout=PAUSE_MAX_S):
                    with GATE:
                        found = self._maintain(work)
                    if found:
                        return found[0]
            except engine.ERRORS as exc:
                if not errors.is_busy(exc):
                    raise errors.translate(exc, self._path, "folding the WAL") from exc
            finally:
                self._let_go()
            if not wait.sleep():
                raise errors.busy(self._path, self._busy_timeout_s)

    def _maintain(self, work: Callable[[Handle], T]) -> list[T]:
        handle = self._handle = self._handle or self._open_handle()
        with handle.mutex:
            try:
                if handle.guard is None or handle.guard.lock_file():
                    return [work(handle)]
            finally:
                self._end(handle)
        return []

    def _end(self, handle: Handle) -> None:
        try:
            try:
                handle.end()
            finally:
                # Once more, since an interrupt can have struck in the first.
                handle.end()
        except engine.ERRORS:
            # A transaction that can't be rolled back ends with its connection.
            self.close_handle()

    def close_handle(self) -> None:
        handle, self._handle = self._handle, None
        if handle is not None:
            handle.close()
