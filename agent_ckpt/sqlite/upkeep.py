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
from agent_ckpt.sqlite.beside import Outcome
from agent_ckpt.sqlite.fork import GATE
from agent_ckpt.sqlite.group import Handle
from agent_ckpt.sqlite.guard import PAUSE_MAX_S, Pauses
from agent_ckpt.sqlite.jobs import own_copy
from agent_ckpt.sqlite.tidy import POLL_S, SOON_S, Tidier
from agent_ckpt.sqlite.wal import Wal

SLICE_S = 0.5
SOON_WAIT_S = 0.5


class Upkeep:
    """The connection of a writer with the lock under which it is used."""

    def __init__(self, path: str, open_handle: Callable[[], Handle], busy_timeout_s: float) -> None:
        self._path = path
        self._open_handle = open_handle
        self._busy_timeout_s = busy_timeout_s
        self._handle: Handle | None = None
        self._poison: PoisonedError | None = None
        self._closing = False
        self._tidier = Tidier(self._cut_idle_wal, self.hurry)

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

    def _cut_idle_wal(self, idle: bool) -> float | None:
        """Cut the WAL when nothing is written, or when it has grown.

        Returns:
            After how many seconds to come again; None if nothing is left to do.
        """
        handle = self._handle
        if handle is not None and handle.wal is not None and not idle and not handle.wal.is_large:
            return POLL_S
        if handle is not None and handle.wal is not None and handle.wal.is_huge:
            with GATE:
                return self._cut_huge(handle, handle.wal)
        try:
            # Who writes just now looks at the WAL too.
            if not self._run.acquire(blocking=False):
                return POLL_S
            with GATE:
                done = self._closing or self._handle is None or self._cut(self._handle)
            if done:
                self._tidier.rest()
            return None if done else POLL_S
        finally:
            self._let_go()

    def _cut_huge(self, handle: Handle, watch: Wal) -> float | None:
        outcome = self._fold_beside(handle, watch)
        if outcome in (Outcome.PINNED, Outcome.LATER):
            return SOON_S

        def work(handle: Handle) -> bool:
            done = self._cut(handle, watch.patience_s())
            if done:
                self._tidier.rest()
            return done

        done = self._soon(work)
        if done and done[0]:
            return None
        return SOON_S if outcome is Outcome.NEARLY else POLL_S

    def _fold_beside(self, handle: Handle, watch: Wal) -> Outcome:
        """Fold a huge WAL while others write. The caller holds no lock, and nothing may fork meanwhile."""
        if handle.beside is None or not watch.is_in_place() or not watch.is_huge:
            return Outcome.UNABLE
        outcome = Outcome.UNABLE
        try:
            with watch.failing_logged():
                outcome = handle.beside.attempt(self._mark)
        except CkptError:
            # The next write, or the cut, says why.
            return Outcome.UNABLE
        if outcome is Outcome.PINNED:
            watch.note_reader(False)
        return outcome

    def _mark(self, then: Callable[[], None]) -> bool:
        """Commit something and do that, with the lock of all writers held; False if it was not to be had."""

        def work(handle: Handle) -> None:
            handle.commit_something()
            then()

        return bool(self._soon(work))

    def _soon(self, work: Callable[[Handle], T]) -> list[T]:
        """Run something with the lock of all writers held; nothing if others hold it for longer than usual.

        The caller may be in nobody's way meanwhile but a fork's.
        """
        wait = Pauses(time.monotonic() + SOON_WAIT_S)
        while not self._closing:
            try:
                # Blocked in it when a caller lets go: one that only looks in now and then finds the next caller inside.
                if self._run.acquire(timeout=SOON_WAIT_S) and self._handle is not None:
                    found = self._maintain(work)
                    if found:
                        return found
            except engine.ERRORS as exc:
                if not errors.is_busy(exc):
                    raise
            finally:
                self._let_go()
            if not wait.sleep():
                break
        return []

    def _cut(self, handle: Handle, wait_s: float = 0.0) -> bool:
        if handle.wal is None:
            return True
        done = False
        try:
            with handle.wal.failing_logged():
                done = handle.cut_wal(wait_s)
        except CkptError:
            # The side file can't be locked any more; the next write says why.
            done = True
        return done

    def hurry(self) -> None:
        """End the folding that goes on beside the writers; somebody waits for it."""
        handle = self._handle
        if handle is not None and handle.beside is not None:
            handle.beside.hurry()

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
