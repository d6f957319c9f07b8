"""The WAL's size and place, and the WAL checkpoints that keep it small.

Here, and only here, "checkpoint" means SQLite's: folding the WAL into the database file.

SQLite folds by itself, inside a COMMIT of ours and so inside the guard, once the WAL fills the size to which SQLite
cuts the file; so the WAL is written over and over in place, as a commit that makes the file longer costs about twice
the sync. Only a WAL that readers have kept from being started over grows past that; then it is folded here, after a
commit or, when nothing is written any more, by `tidy`. One that has become huge is folded in no COMMIT any more, nor
after one, but by `beside`.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from agent_ckpt.errors import PoisonedError
from agent_ckpt.later import Later
from agent_ckpt.options import Options
from agent_ckpt.sqlite import connect, engine, errors, files

if TYPE_CHECKING:
    from agent_ckpt import reports
    from agent_ckpt.sqlite import pins
else:
    reports = Later("agent_ckpt.reports")
    pins = Later("agent_ckpt.sqlite.pins")

log = logging.getLogger("agent_ckpt")

FRAME_BYTES = connect.PAGE_SIZE + 24
_HEADER_BYTES = 32
_FEWEST_PAGES = 16

PATIENT_WAIT_S = 0.05
RETRY_S = 0.1
PATIENT_RETRY_S = 1.0

WARN_AFTER_S = 10.0
WARN_LARGE_AFTER_S = 1.0
WARN_AGAIN_S = 60.0


class Limits(NamedTuple):
    """How large the WAL may grow, and who folds it.

    Attributes:
        mode: "wal"; "litestream", where nothing is folded by us; "rollback", where there is no WAL.
        pages: the WAL is folded and cut once it holds more than this.
        file_bytes: what the file keeps while it is written over.
    """

    mode: str
    pages: int
    file_bytes: int

    @classmethod
    def of(cls, options: Options, mode: str) -> Limits:
        return cls(mode, options.wal_autocheckpoint, options.journal_size_limit)

    @property
    def fold_pages(self) -> int:
        """At how many pages SQLite folds inside a COMMIT: as many as fit the file that it then writes over."""
        if self.mode != "wal":
            return 0
        return min(self.pages, max(_FEWEST_PAGES, (self.file_bytes - _HEADER_BYTES) // FRAME_BYTES))

    @property
    def most_bytes(self) -> int:
        """Past this a WAL checkpoint waits a little for readers."""
        return _HEADER_BYTES + self.pages * FRAME_BYTES

    @property
    def calm_bytes(self) -> int:
        """Up to this, readers and large commits can bring it in passing."""
        return (self.most_bytes + _HEADER_BYTES + self.fold_pages * FRAME_BYTES) // 2

    @property
    def huge_bytes(self) -> int:
        """Past this, folding it would hold up those who write for too long."""
        return 2 * self.most_bytes


class Wal:
    """Watches the file and the -wal of one database for its writer."""

    def __init__(self, path: str, limits: Limits, on_lost: Callable[[], None]) -> None:
        """
        Args:
            path: the database file.
            limits: its journal mode, and the sizes of its WAL.
            on_lost: called when the WAL is found deleted; the open handles must not be used or closed after that.
        """
        self._path = path
        self._wal = path + "-wal"
        self.limits = limits
        self._on_lost = on_lost
        self._inodes: tuple[int, int] | None = None
        self._bytes = 0
        self._folds_in_commit = True
        self._not_before = self._patient_not_before = 0.0
        self._pinned_since: float | None = None
        self._warn_at = self._failed_warn_at = 0.0

    def check(self) -> None:
        """Look, after a commit, that the file and the WAL that took it are still in their places.

        The WAL is deleted under us when something in this process opens and closes the database file by other means
        than SQLite, since that drops our locks on it; what is committed after that is lost to everybody else.

        Raises:
            PoisonedError: if they aren't.
        """
        if self.is_in_place():
            return
        self._on_lost()
        raise PoisonedError(
            f"{self._path} or its -wal was deleted or replaced under this process, so the write is probably lost. "
            f"Something opened and closed the file directly in this process, or moved it. Start a new process "
            f"and read the thread again.",
            path=self._path,
        )

    def is_in_place(self) -> bool:
        """Whether the file and its -wal are those of the first commit; notes the WAL's size."""
        try:
            inodes = os.stat(self._path).st_ino, self._look()
        except FileNotFoundError:
            return False
        except OSError:
            # It can't be told now; the next commit looks again.
            return True
        if self._inodes is None:
            self._inodes = inodes
        return self._inodes == inodes

    def _look(self) -> int:
        if self.limits.mode == "rollback":
            return 0
        found = os.stat(self._wal)
        self._bytes = found.st_size
        return found.st_ino

    @property
    def is_ours_to_fold(self) -> bool:
        return self.limits.mode == "wal"

    @property
    def is_large(self) -> bool:
        """Whether it has grown so much, at the last look, that it is folded in the midst of writing."""
        return self._bytes > self.limits.calm_bytes

    @property
    def is_huge(self) -> bool:
        """Whether it has grown so much, at the last look, that writers must not wait for its folding."""
        return self._bytes > self.limits.huge_bytes and self.is_ours_to_fold

    def before_commit(self, connection: sqlite3.Connection) -> None:
        """Keep SQLite from folding a huge WAL in the next COMMIT; the caller is in no transaction."""
        if not self.is_ours_to_fold:
            return
        # Others can have let it grow, or have cut it, since this process looked last.
        found = files.status(self._wal)
        folds = found is None or found.st_size <= self.limits.huge_bytes
        if folds != self._folds_in_commit:
            connect.set_wal_autocheckpoint(connection, self.limits.fold_pages if folds else 0)
            self._folds_in_commit = folds

    def fold_if_large(self, connection: sqlite3.Connection) -> None:
        """Fold a WAL that readers have let grow; the caller holds the guard and no transaction.

        Doesn't wait for readers at first, and no longer than `PATIENT_WAIT_S`, once a second, when the WAL has
        passed its limit; if a reader is still in the way it tries again at a later commit. A huge one is left to
        `tidy`.
        """
        now = time.monotonic()
        if not self.is_large or self.is_huge or not self.is_ours_to_fold or now < self._not_before:
            return
        self._not_before = now + RETRY_S
        with self.failing_logged():
            self.cut(connection, self.patience_s())

    def patience_s(self) -> float:
        """How long to wait for readers this time: a little, once a second, when the WAL has passed its limit."""
        now = time.monotonic()
        if self._bytes <= self.limits.most_bytes or now < self._patient_not_before:
            return 0.0
        self._patient_not_before = now + PATIENT_RETRY_S
        return PATIENT_WAIT_S

    @contextmanager
    def failing_logged(self) -> Iterator[None]:
        """Log an error of the driver, now and then, where nobody waits for the outcome."""
        try:
            yield
        except engine.ERRORS as exc:
            if time.monotonic() < self._failed_warn_at:
                return
            self._failed_warn_at = time.monotonic() + WARN_AGAIN_S
            log.warning("folding the WAL of %s failed, it is tried again later: %s", self._path, exc)

    def cut(self, connection: sqlite3.Connection, wait_s: float = 0.0) -> bool:
        """Fold the WAL and cut it to nothing; the caller holds the guard and no transaction.

        Returns:
            False if a reader or a writer without the guard was in the way. Who stays in the way is logged, with
            its age, now and then.

        Raises:
            sqlite3.Error: for an I/O error or a full disk; the WAL is as it was.
        """
        if not self.is_in_place() or not self._bytes:
            return True
        done = truncate(connection, wait_s)
        self.note_reader(done)
        return done

    def note_reader(self, gone: bool) -> None:
        """Log who stays in the way, with its age, now and then."""
        now = time.monotonic()
        if gone:
            self._pinned_since = None
            return
        if self._pinned_since is None:
            self._pinned_since = now
            self._warn_at = 0.0
        age = now - self._pinned_since
        soon = self._bytes > self.limits.most_bytes
        if age < (WARN_LARGE_AFTER_S if soon else WARN_AFTER_S) or now < self._warn_at:
            return
        self._warn_at = now + max(WARN_AGAIN_S, age)
        log.warning(
            "the WAL of %s holds %d KiB and can't be folded: for %.0f s or longer a read transaction has been open in "
            "%s. End it, or the file goes on growing with each write",
            self._path,
            self._bytes // 1024,
            age,
            pins.describe(pins.find(self._path)),
        )

    def status(self, connection: sqlite3.Connection) -> reports.WalStatus:
        """Look at the WAL; the caller holds the guard and no transaction."""
        found = None if self.limits.mode == "rollback" else files.status(self._wal)
        size = 0 if found is None else found.st_size
        pages = left = max(0, size - _HEADER_BYTES) // FRAME_BYTES
        if size and self.is_ours_to_fold:
            _, pages, folded = look(connection)
            left = pages - folded
        since = self._pinned_since
        return reports.WalStatus(
            journal=self.limits.mode,
            bytes=size,
            pages=pages,
            pages_left=left,
            pinned_by=pins.find(self._path) if size else (),
            pinned_for_s=None if since is None else time.monotonic() - since,
        )


def look(connection: sqlite3.Connection) -> tuple[int, int, int]:
    """Whether it was busy, the pages in the WAL, and how many of them are in the file.

    SQLite 3.51 and later only looks. An older one knows no NOOP and folds what it can without waiting.
    """
    try:
        busy, pages, folded = connection.execute("PRAGMA wal_checkpoint(NOOP)").fetchone()
    except engine.ERRORS as exc:
        if errors.is_busy(exc):
            return 1, 0, 0
        raise
    return int(busy), max(0, int(pages)), max(0, int(folded))


def truncate(connection: sqlite3.Connection, wait_s: float) -> bool:
    """Fold the whole WAL and cut it to nothing; False if a reader or writer was in the way.

    Raises:
        sqlite3.Error: for an I/O error or a full disk; the WAL is as it was.
    """
    if wait_s:
        connect.wait_for_locks(connection, wait_s)
    try:
        row = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    except engine.ERRORS as exc:
        if errors.is_busy(exc):
            return False
        raise
    finally:
        if wait_s:
            connect.wait_for_locks(connection, 0.0)
    return bool(row[0] == 0)
