"""Sync reads: a few read connections, borrowed per call."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable

from agent_ckpt.backend import Factory, T
from agent_ckpt.sqlite import errors, fork
from agent_ckpt.sqlite.drive import Counter, read
from agent_ckpt.sqlite.fork import GATE

CONNECTIONS = 8


class ReaderPool:
    """Runs read programs on the caller's OS thread.

    A framework reads from hundreds of OS threads, so a connection per thread would never end; a borrowed one goes
    back after each call, and callers wait for one where all are lent.
    """

    def __init__(
        self, path: str, open_reader: Callable[[], sqlite3.Connection], counter: Counter, busy_timeout_s: float
    ) -> None:
        self._path = path
        self._open = open_reader
        self._counter = counter
        self._busy_timeout_s = busy_timeout_s
        self._idle: list[sqlite3.Connection] = []
        self._lent: set[sqlite3.Connection] = set()
        self._places = threading.BoundedSemaphore(CONNECTIONS)
        self._closing = False

    def call(self, factory: Factory[T]) -> T:
        """
        Raises:
            BusyError: if no connection came free, or the file stayed locked, for `busy_timeout_s`.
        """
        began = time.monotonic()
        places = self._places
        if not places.acquire(timeout=self._busy_timeout_s):
            raise errors.busy(self._path, time.monotonic() - began, "all its read connections were in use")
        try:
            with GATE:
                return self._read(factory, began)
        finally:
            places.release()

    def _read(self, factory: Factory[T], began: float) -> T:
        connection = None
        sound = False
        try:
            connection = self._borrow()
            self._lent.add(connection)
            result = read(connection, factory(), self._counter)
            sound = True
            return result
        except sqlite3.Error as exc:
            raise errors.translate(exc, self._path, "a read", time.monotonic() - began) from exc
        except Exception:
            # The program's own error: the connection has nothing to do with it.
            sound = True
            raise
        finally:
            if connection is not None:
                self._lent.discard(connection)
                if sound and not self._closing and not connection.in_transaction:
                    self._idle.append(connection)
                else:
                    connection.close()

    def _borrow(self) -> sqlite3.Connection:
        try:
            return self._idle.pop()
        except IndexError:
            return self._open()

    def give(self, connection: sqlite3.Connection) -> None:
        """Add a connection that was opened for something else."""
        self._idle.append(connection)

    def close(self) -> None:
        """Close the idle connections; those that are lent are closed when they come back."""
        self._closing = True
        with GATE:
            self.close_handles()

    def close_handles(self) -> None:
        while self._idle:
            self._idle.pop().close()

    def abandon(self) -> None:
        """Let go of all connections without closing them, for ever."""
        for connection in (*self._idle, *self._lent):
            fork.abandon(connection)
        self._idle, self._lent = [], set()

    def after_in_child(self) -> None:
        self._lent = set()
        self._places = threading.BoundedSemaphore(CONNECTIONS)
