"""Async reads: one aiosqlite connection per running event loop."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from agent_ckpt.backend import Factory, T
from agent_ckpt.later import Later
from agent_ckpt.sqlite import engine, errors, fork
from agent_ckpt.sqlite.drive import Counter, read
from agent_ckpt.sqlite.fork import GATE

if TYPE_CHECKING:
    import aiosqlite
else:
    aiosqlite = Later("aiosqlite")

_ROWS_AT_ONCE = 64
_JOIN_S = 2.0


class _LoopReader:
    """The reader of one event loop: an aiosqlite connection, opened on its worker by the first hop.

    aiosqlite has no public call that runs several statements in one hop, nor one that opens without an await
    (which a cancellation can leave half done), so some of its private parts are used here, and only here. Its
    `_execute` would do for the hop, but ties it to a future of the loop, and the worker dies of a loop that was
    closed meanwhile.
    """

    def __init__(self, open_reader: Callable[[], sqlite3.Connection], on_end: Callable[[_LoopReader], None]) -> None:
        self._open = open_reader
        self._on_end = on_end
        self._submitting = threading.RLock()
        self._stopped = False
        self.shared = aiosqlite.Connection(open_reader, _ROWS_AT_ONCE)
        self.worker: threading.Thread = self.shared._thread
        # A worker that is no daemon keeps the program of somebody who never closes from ending.
        self.worker.daemon = True
        self.worker.start()

    def connection(self) -> sqlite3.Connection:
        """The open connection; called on the worker."""
        if self.shared._connection is None:
            self.shared._connection = self._open()
        return self.shared._connection

    def submit(self, work: Callable[[], Any]) -> bool:
        """Queue a hop; False if the worker is to end, when nobody would ever run it."""
        with self._submitting:
            # A hop that is given to a dead worker would be waited for for ever.
            if self._stopped or not self.worker.is_alive():
                return False
            self.shared._tx.put_nowait((None, work))
            return True

    def close_connection(self) -> None:
        connection, self.shared._connection = self.shared._connection, None
        if connection is not None:
            connection.close()

    def stop(self) -> None:
        """Close and end the worker; may be called from anywhere, waits for nothing."""
        with self._submitting:
            queued = self.submit(self._close_and_stop)
            self._stopped = True
        if not queued and not self.worker.is_alive():
            self._end()

    def _end(self) -> None:
        with GATE.for_closing():
            self.close_connection()
            self._on_end(self)

    def _close_and_stop(self) -> None:
        self._end()
        # On this thread there is no event loop that `stop` could tie a future to.
        self.shared.stop()

    def abandon(self) -> None:
        connection, self.shared._connection = self.shared._connection, None
        if connection is not None:
            fork.abandon(connection)


class LoopReaders:
    """Runs read programs for tasks: the whole program in one hop to the loop's worker."""

    def __init__(self, path: str, open_reader: Callable[[], sqlite3.Connection], counter: Counter) -> None:
        self._path = path
        self._open = open_reader
        self._counter = counter
        self._lock = threading.RLock()
        self._readers: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _LoopReader] = weakref.WeakKeyDictionary()
        # Until its connection is closed: a reader whose loop is gone may still wait for its worker to close it, and
        # a fork must not inherit that one.
        self._open_ones: set[_LoopReader] = set()

    async def call(self, factory: Factory[T]) -> T:
        loop = asyncio.get_running_loop()
        began = time.monotonic()
        reader = self._reader(loop)
        future: asyncio.Future[T] = loop.create_future()

        def work() -> T:
            with GATE:
                return read(reader.connection(), factory(), self._counter)

        def hop() -> None:
            if not future.cancelled():
                _tell(loop, future, work)

        while not reader.submit(hop):
            self._forget(loop, reader)
            reader = self._reader(loop)
        try:
            return await future
        except engine.OF_DRIVER_OR_SYSTEM as exc:
            if not errors.is_busy(exc):
                self._forget(loop, reader)
            raise errors.translate(exc, self._path, "a read", time.monotonic() - began) from exc

    def _reader(self, loop: asyncio.AbstractEventLoop) -> _LoopReader:
        with self._lock:
            self._drop_closed_loops()
            reader = self._readers.get(loop)
            if reader is None:
                reader = self._readers[loop] = _LoopReader(self._open, self._open_ones.discard)
                self._open_ones.add(reader)
                weakref.finalize(loop, reader.stop).atexit = False
            return reader

    def _drop_closed_loops(self) -> None:
        for loop in [loop for loop in self._readers if loop.is_closed()]:
            self._readers.pop(loop).stop()

    def _forget(self, loop: asyncio.AbstractEventLoop, reader: _LoopReader) -> None:
        with self._lock:
            if self._readers.get(loop) is reader:
                del self._readers[loop]
        reader.stop()

    def stop(self, wait_s: float = _JOIN_S) -> None:
        """End all workers, and wait a little for them."""
        readers = list(self._open_ones)
        self._readers.clear()
        for reader in readers:
            reader.stop()
        for reader in readers:
            if reader.worker is not threading.current_thread():
                reader.worker.join(wait_s)

    def close_handles(self) -> None:
        """Close the connections under the workers, which open anew at their next call."""
        for reader in list(self._open_ones):
            reader.close_connection()

    def abandon(self) -> None:
        """Let go of all connections without closing them, for ever."""
        for reader in list(self._open_ones):
            reader.abandon()

    def after_in_child(self) -> None:
        self._lock = threading.RLock()
        self._readers = weakref.WeakKeyDictionary()
        self._open_ones = set()


async def in_thread(work: Callable[[], T]) -> T:
    """Run something that may wait on an OS thread of its own, and wait for it; its result.

    The loop's executor could be full of callers that wait for us, and the loop's end waits for it.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()
    worker = threading.Thread(target=_tell, args=(loop, future, work), daemon=True)
    try:
        worker.start()
    except RuntimeError:
        # The interpreter is shutting down and starts no more threads.
        return work()
    return await future


def _tell(loop: asyncio.AbstractEventLoop, future: asyncio.Future[Any], work: Callable[[], Any]) -> None:
    """Run work on this thread, and settle the loop's future with its outcome."""
    settle: Callable[[Any], None]
    try:
        outcome: Any = work()
        settle = future.set_result
    except BaseException as exc:
        # The task that waits is told whatever it is; nobody else would hear of it.
        outcome, settle = exc, future.set_exception
    # A loop that was closed meanwhile has nobody waiting on it any more.
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(_settle, future, settle, outcome)


def _settle(future: asyncio.Future[Any], settle: Callable[[Any], None], outcome: Any) -> None:
    if not future.done():
        settle(outcome)
