"""Sync reads: a few read connections, borrowed per call."""

from __future__ import annotations

import random
import sqlite3
import threading
import time
from collections.abc import Callable

from agent_ckpt.backend import Factory, T
from agent_ckpt.sqlite import engine, errors, fork
from agent_ckpt.sqlite.drive import Counter, read
from agent_ckpt.sqlite.fork import GATE

CONNECTIONS = 8
# Not the program's own generator: what a node draws must not depend on how long a lock was held.
_random = random.SystemRandom()


class _Place:
    """One connection of the pool, and whose turn it is."""

    def __init__(self) -> None:
        # Reentrant so that a signal handler that reads gets an error from SQLite, and doesn't wait for itself.
        self.lock = threading.RLock()
        self.taken = False
        self.connection: sqlite3.Connection | None = None

    def close(self) -> None:
        connection, self.connection = self.connection, None
        if connection is not None:
            connection.close()


class ReaderPool:
    """Runs read programs on the caller's OS thread.

    A framework reads from hundreds of OS threads, so a connection per thread would never end; here a caller takes
    a place that is free, or queues for one. Locks are held by `with` alone, as a signal can interrupt any step.
    """

    def __init__(self, path: str, open_reader: Callable[[], sqlite3.Connection], counter: Counter) -> None:
        self._path = path
        self._open = open_reader
        self._counter = counter
        self._places = [_Place() for _ in range(CONNECTIONS)]
        self._closing = False

    def call(self, factory: Factory[T]) -> T:
        """
        Raises:
            BusyError: if the file stayed locked for `busy_timeout_s`.
        """
        began = time.monotonic()
        place = self._choose()
        with place.lock, GATE:
            place.taken = True
            try:
                return self._read(place, factory)
            except engine.OF_DRIVER_OR_SYSTEM as exc:
                if not errors.is_busy(exc):
                    place.close()
                raise errors.translate(exc, self._path, "a read", time.monotonic() - began) from exc
            finally:
                place.taken = False
                if self._closing:
                    place.close()

    def _choose(self) -> _Place:
        for place in self._places:
            if not place.taken:
                return place
        return _random.choice(self._places)

    def _read(self, place: _Place, factory: Factory[T]) -> T:
        if place.connection is not None and place.connection.in_transaction:
            # An interrupt has kept the last read from ending it.
            place.close()
        if place.connection is None:
            place.connection = self._open()
        return read(place.connection, factory(), self._counter)

    def give(self, connection: sqlite3.Connection) -> None:
        """Add a connection that was opened for something else."""
        place = self._places[0]
        with place.lock:
            place.close()
            place.connection = connection

    def close(self) -> None:
        """Close what is idle; a place that is taken is closed when its call ends."""
        self._closing = True
        with GATE.for_closing():
            for place in self._places:
                if not place.taken:
                    place.close()

    def close_handles(self) -> None:
        for place in self._places:
            place.close()

    def abandon(self) -> None:
        """Let go of all connections without closing them, for ever."""
        for place in self._places:
            connection, place.connection = place.connection, None
            if connection is not None:
                fork.abandon(connection)

    def after_in_child(self) -> None:
        for place in self._places:
            place.lock, place.taken = threading.RLock(), False
