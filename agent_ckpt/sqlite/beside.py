"""Folds a WAL that has become huge under a reader, beside the writers: none of them waits for it.

SQLite's WAL race takes a WAL that is folded to its end, a WAL checkpoint that begins then, and a commit that starts the
WAL over meanwhile. Here the third can't come: under the guard something small is committed, so the WAL isn't folded to
its end, and a read transaction is begun at that commit, before the guard is let go. For as long as it is open, SQLite
starts no WAL over, and what stands before it is folded while others append. It is only begun when nobody else's
transaction is in the way, so it keeps the WAL from being cut for no longer than the folding itself would.

What was appended meanwhile is folded in the same way, until so little is left that it can be folded under the guard.
"""

from __future__ import annotations

import enum
import os
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from typing import TYPE_CHECKING

from agent_ckpt.later import Later
from agent_ckpt.sqlite import connect, engine, errors

if TYPE_CHECKING:
    from agent_ckpt.sqlite import pins
else:
    pins = Later("agent_ckpt.sqlite.pins")


QUICK_S = 0.03
FEW_PAGES = 1000
AGAIN_S = 1.0
NEARLY_AGAIN_S = 0.2

Mark = Callable[[Callable[[], None]], bool]


class Outcome(enum.Enum):
    """How an attempt ended."""

    NEARLY = "all but a little is in the file"
    PINNED = "a reader is in the way"
    LATER = "the writers' lock was not to be had, or the attempt was to end"
    UNABLE = "it can't be told who is in the way, or an error came: only under the guard"


class Beside:
    """Attempts at one database; used by one OS thread, but for `hurry`."""

    def __init__(self, path: str, open_one: Callable[[], sqlite3.Connection]) -> None:
        """
        Args:
            path: the database file.
            open_one: opens another connection to it, which may fold.
        """
        self._path = path
        self._open_one = open_one
        self._folder: sqlite3.Connection | None = None
        self._hurried = False
        self.forget()

    def forget(self) -> None:
        """The WAL was cut: what was found out about its readers is over."""
        self._pids: set[int] = set()
        self._folded = -1
        self._stuck_since = 0.0
        self._not_before = 0.0
        self._unable = False

    def hurry(self) -> None:
        """End the attempt that is going on, from another OS thread; what it has copied is copied again later."""
        self._hurried = True
        folder = self._folder
        if folder is not None:
            try:
                folder.interrupt()
            except engine.ERRORS:
                # It was closed just now.
                return

    def attempt(self, mark: Mark) -> Outcome:
        """Fold what can be folded; takes as long as that takes.

        Args:
            mark: commits something, then calls what it is given, all under the guard; False if it can't be had soon.

        Raises:
            sqlite3.Error: for an I/O error or a full disk.
            CkptError: of `mark`, or when the file can't be opened any more.
        """
        if self._unable:
            return Outcome.UNABLE
        self._hurried = False
        now = time.monotonic()
        pids = {pin.pid for pin in pins.find(self._path)} - {os.getpid()}
        if pids and not self._pids:
            # Whoever is there may be gone in a moment, and each attempt makes the WAL longer by a page or two.
            self._pids, self._stuck_since, self._not_before = pids, now, now + AGAIN_S
        if now < self._not_before and pids >= self._pids:
            return Outcome.PINNED if pids else Outcome.LATER
        self._pids = pids
        try:
            found = self._fold(mark)
        except engine.ERRORS as exc:
            if errors.is_busy(exc) or errors.code(exc) == sqlite3.SQLITE_INTERRUPT:
                return Outcome.LATER
            self._unable = True
            raise
        now = time.monotonic()
        if found is Outcome.NEARLY:
            # If it can't be cut then, readers come and go; they are not to be met at each turn.
            self._not_before = now + NEARLY_AGAIN_S
        elif found is Outcome.PINNED:
            # By somebody whom the kernel's list doesn't name, if it names nobody: another container, or this process.
            self._unable = not pids
            self._not_before = now + max(AGAIN_S, (now - self._stuck_since) / 4)
        return found

    def _fold(self, mark: Mark) -> Outcome:
        with closing(self._open_one()) as folder, closing(self._open_one()) as keeper:
            # A connection that has read nothing yet doesn't know that there is a WAL.
            connect.begin_reading(folder)
            folder.execute("ROLLBACK")
            self._folder = folder
            try:
                return self._rounds(folder, keeper, mark)
            finally:
                self._folder = None

    def _rounds(self, folder: sqlite3.Connection, keeper: sqlite3.Connection, mark: Mark) -> Outcome:
        """Fold up to the last commit of the moment, again and again for as long as less is left each time."""
        last_s = float("inf")
        while not self._hurried and mark(lambda: connect.begin_reading(keeper)):
            began = time.monotonic()
            busy, pages, folded = folder.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
            keeper.execute("ROLLBACK")
            took_s = time.monotonic() - began
            if busy:
                # Somebody else folds just now.
                break
            if pages - folded <= FEW_PAGES:
                if took_s < QUICK_S or took_s > last_s / 2:
                    return Outcome.NEARLY
            elif folded == self._folded:
                return Outcome.PINNED
            last_s = took_s
            if folded != self._folded:
                self._folded, self._stuck_since = folded, time.monotonic()
        return Outcome.LATER
