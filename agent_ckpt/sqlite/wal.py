"""The WAL's size and place, and the WAL checkpoints that keep it small.

Here, and only here, "checkpoint" means SQLite's: folding the WAL into the database file.

SQLite folds by itself, inside a COMMIT of ours and so inside the guard, once the WAL holds `FOLD_PAGES`. That many
pages just fit into the size at which SQLite cuts the file, so the WAL is written over and over in place: a commit
that makes the file longer costs about twice the sync. Only a WAL that readers have kept from being started over
grows past that; then it is folded here.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import time
from collections.abc import Callable

from agent_ckpt.errors import PoisonedError
from agent_ckpt.sqlite import connect, errors

log = logging.getLogger("agent_ckpt")

FILE_BYTES = 1024 * 1024
FRAME_BYTES = connect.PAGE_SIZE + 24
FOLD_PAGES = (FILE_BYTES - 32) // FRAME_BYTES
LIMIT_BYTES = 32 + 1000 * FRAME_BYTES

PATIENT_WAIT_S = 0.05
RETRY_S = 0.1
PATIENT_RETRY_S = 1.0


class Wal:
    """Watches the -wal of one database for its writer."""

    def __init__(self, path: str, on_lost: Callable[[], None]) -> None:
        """
        Args:
            path: the database file.
            on_lost: called when the WAL is found deleted; the open handles must not be used or closed after that.
        """
        self._path = path
        self._wal = path + "-wal"
        self._on_lost = on_lost
        self._inodes: tuple[int, int] | None = None
        self._bytes = 0
        self._not_before = 0.0

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
            found = os.stat(self._wal)
            inodes = os.stat(self._path).st_ino, found.st_ino
        except FileNotFoundError:
            return False
        except OSError:
            # It can't be told now; the next commit looks again.
            return True
        self._bytes = found.st_size
        if self._inodes is None:
            self._inodes = inodes
        return self._inodes == inodes

    def fold_if_large(self, connection: sqlite3.Connection) -> None:
        """Fold a WAL that has passed 1,000 pages; the caller holds the guard and no transaction.

        Doesn't wait for readers at first, and no longer than `PATIENT_WAIT_S` once the WAL is twice that;
        if a reader is still in the way it tries again at a later commit.
        """
        if self._bytes <= LIMIT_BYTES or time.monotonic() < self._not_before:
            return
        patient = self._bytes > 2 * LIMIT_BYTES
        try:
            done = truncate(connection, PATIENT_WAIT_S if patient else 0.0)
        except sqlite3.Error as exc:
            done = False
            log.warning("folding the WAL of %s failed, it is tried again later: %s", self._path, exc)
        if not done:
            self._not_before = time.monotonic() + (PATIENT_RETRY_S if patient else RETRY_S)


def truncate(connection: sqlite3.Connection, wait_s: float) -> bool:
    """Fold the whole WAL and cut it to nothing; False if a reader or writer was in the way.

    Raises:
        sqlite3.Error: for an I/O error or a full disk; the WAL is as it was.
    """
    if wait_s:
        connect.wait_for_locks(connection, wait_s)
    try:
        row = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    except sqlite3.Error as exc:
        if errors.is_busy(exc):
            return False
        raise
    finally:
        if wait_s:
            connect.wait_for_locks(connection, 0.0)
    return bool(row[0] == 0)
