"""The SQLite backend: opens lazily, hands reads to readers and writes to the writer."""

from __future__ import annotations

import logging
import sqlite3
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Any

from agent_ckpt.backend import Factory, T
from agent_ckpt.errors import ClosedError, FormatError, UnavailableError, UsageError
from agent_ckpt.later import Later
from agent_ckpt.options import Options
from agent_ckpt.sqlite import connect, engine, errors, files, fork, guard, place, schema, target, versions, wal
from agent_ckpt.sqlite.aio import LoopReaders, in_thread
from agent_ckpt.sqlite.beside import Beside
from agent_ckpt.sqlite.board import RunBoard
from agent_ckpt.sqlite.drive import Counter, Hook
from agent_ckpt.sqlite.group import Handle
from agent_ckpt.sqlite.readers import ReaderPool
from agent_ckpt.sqlite.writer import Writer

if TYPE_CHECKING:
    from agent_ckpt.reports import Check, WalStatus
    from agent_ckpt.sqlite import care
else:
    care = Later("agent_ckpt.sqlite.care")

log = logging.getLogger("agent_ckpt")
CLOSING_S = 2.0
_looking = threading.RLock()
"""Held from the look at a file until it counts as open in this process: a look that takes it for a file that nobody
here has open closes a descriptor of it, which would drop the locks of another backend that opens it meanwhile."""


def _renew_lock() -> None:
    global _looking
    _looking = threading.RLock()


fork.on_child(_renew_lock)


class SqliteBackend:
    """A store in one SQLite file, or in this process's memory. See `agent_ckpt.backend.Backend`.

    Args:
        given: a path (str or PathLike), ":memory:" or a `sqlite:///` URL; `?mode=rw` refuses a missing file.
        options: see `Options`.

    Raises:
        UsageError: if `given` can't be a target. No file is touched before the first call.

    Attributes:
        on_statement: called with the name of each statement of a program, and with the text of each statement
            that controls a transaction ("BEGIN", "COMMIT", ...), once per call into sqlite3.
    """

    def __init__(self, given: Any, options: Options | None = None) -> None:
        self._options = options or Options()
        self._store = _Store(target.parse(given, self._options.create), self._options)
        fork.register(self._store)
        # A saver that is dropped without close must not leave a worker and open files behind.
        self._finalizer = weakref.finalize(self, self._store.dispose)

    @property
    def target(self) -> str:
        return self._store.target.path

    @property
    def board(self) -> RunBoard:
        """Where other processes see the runs of this one."""
        return self._store.board

    @property
    def on_statement(self) -> Hook | None:
        return self._store.counter.hook

    @on_statement.setter
    def on_statement(self, hook: Hook | None) -> None:
        self._store.counter.hook = hook

    def run(self, factory: Factory[T], *, write: bool = False) -> T:
        store = self._store
        store.ready()
        return store.writer.call(factory) if write else store.pool.call(factory)

    async def arun(self, factory: Factory[T], *, write: bool = False) -> T:
        store = self._store
        if store.needs_opening:
            await in_thread(store.ready)
        store.ready()
        return await (store.writer.acall(factory) if write else store.loops.call(factory))

    async def in_thread(self, work: Callable[[], T]) -> T:
        """Run something of this backend that may wait, beside the event loop."""
        return await in_thread(work)

    def wal_status(self) -> WalStatus:
        return care.status(self._store)

    def wal_truncate(self, wait_s: float) -> WalStatus:
        return care.truncate(self._store, wait_s)

    def give_back(self, wait_s: float) -> int:
        return care.give_back(self._store, wait_s)

    def doctor(self) -> list[Check]:
        return care.examine(self._store)

    def close(self) -> None:
        self._finalizer.detach()
        self._store.close()

    async def aclose(self) -> None:
        await in_thread(self.close)


class _Store:
    """All that is open of a backend; apart from it, so that a dropped backend can be collected."""

    def __init__(self, where: target.Target, options: Options) -> None:
        self.target = where
        self.options = options
        self.engine = engine.load(options.engine)
        self.limits = wal.Limits.of(options, "memory" if where.memory else "wal")
        self.counter = Counter()
        self._opening = threading.RLock()
        self._is_open = False
        self._closed = False
        self._refused: str | None = None
        self._keeper: sqlite3.Connection | None = None
        self._inode: fork.Inode | None = None
        self._guard: guard.Guard | None = None
        self.board = RunBoard(None if where.memory else where.path)
        wait_s = options.busy_timeout_s
        self.writer = Writer(where.path, self._open_writer, self._close_rest, self.counter, wait_s, options.queue_size)
        self.pool = ReaderPool(where.path, self._open_reader, self.counter)
        self.loops = LoopReaders(where.path, self._open_reader, self.counter)

    @property
    def needs_opening(self) -> bool:
        return not self._is_open

    def ready(self) -> None:
        """Open what is not open yet.

        Raises:
            ClosedError, UsageError, FormatError, CorruptionError, UnavailableError: and nothing is open.
        """
        fork.check_process()
        if self._closed:
            raise self._closed_error()
        if self._refused is not None:
            raise UsageError(f"{self.target.path} can't be used in this process: {self._refused}")
        if self._is_open:
            return
        if self._opening._is_owned():  # type: ignore[attr-defined]
            raise UsageError(f"{self.target.path} was used from inside its own opening (from a signal handler?)")
        with self._opening:
            if not self._is_open:
                self._open()
                self._is_open = True

    def _open(self) -> None:
        path = self.target.path
        try:
            with fork.GATE:
                if self.target.memory:
                    self._open_memory()
                else:
                    self._open_file()
        except engine.OF_DRIVER_OR_SYSTEM as exc:
            raise errors.translate(exc, path, "opening", self.options.busy_timeout_s) from exc

    def _open_memory(self) -> None:
        # It lives for as long as one connection is open.
        self._keeper = connect.connect(self.target.uri, self.engine)
        schema.create(self._keeper)

    def _open_file(self) -> None:
        path = self.target.path
        is_there = target.check_place(self.target)
        self.limits = wal.Limits.of(self.options, place.journal_mode(path, self.options))
        if not is_there and files.make(path, self.options.file_mode):
            log.info("made a new database: %s", path)
        found = files.status(path)
        if found is None:
            raise UsageError(f"{path} was deleted while it was being opened", path=path)
        inode = files.inode_of(found)
        fork.check_refused(inode, path)
        guard.tell_once(self.engine)
        wait = guard.Pauses(time.monotonic() + self.options.busy_timeout_s)
        while (ours := self._look(inode, bool(found.st_size))) is None:
            if not wait.sleep():
                raise errors.busy(path, self.options.busy_timeout_s)
        try:
            self._complete(ours)
        except BaseException:
            self._release_file()
            raise

    def _look(self, inode: fork.Inode, narrow: bool) -> bool | None:
        """Look at the file and count it as open; None while another backend of this process is setting it up."""
        path = self.target.path
        with _looking:
            self._check_engine(inode)
            try:
                ours = schema.look(path, self.target.uri, self.engine)
            except engine.ERRORS as exc:
                if errors.is_busy(exc):
                    return None
                raise
            if narrow:
                files.narrow(path)
            self._inode, self._guard = inode, guard.share(path, inode)
            self._guard.needed = self.limits.mode != "rollback" and self.engine.is_affected
            fork.opened(inode, self.engine.name)
            return ours

    def _check_engine(self, inode: fork.Inode) -> None:
        # A reader of a backend that was closed just now may still be closing.
        wait = guard.Pauses(time.monotonic() + CLOSING_S)
        while (why := place.other_engine(self.target.path, inode, self.engine)) is not None:
            if fork.is_open_here(inode) or not wait.sleep():
                raise UsageError(why, path=self.target.path)

    def _complete(self, ours: bool) -> None:
        """Check the tables of a file that is ours, and finish one that is new or half made."""
        wait = guard.Pauses(time.monotonic() + self.options.busy_timeout_s)
        while True:
            try:
                if ours and self._is_complete():
                    return
                if self._set_up():
                    ours = True
                elif not wait.sleep():
                    raise errors.busy(self.target.path, self.options.busy_timeout_s)
            except engine.ERRORS as exc:
                if not errors.is_busy(exc) or not wait.sleep():
                    raise

    def _is_complete(self) -> bool:
        reader = self._open_reader()
        complete = False
        try:
            schema.catch_up(reader, self.target.path, self.target.uri, self.engine)
            if schema.check(reader, self.target.path):
                self._follow_choice(reader)
                complete = connect.in_wal_mode(reader) == (self.limits.mode != "rollback")
        finally:
            if complete:
                self.pool.give(reader)
            else:
                reader.close()
        return complete

    def _follow_choice(self, reader: sqlite3.Connection) -> None:
        """A store that somebody keeps with a rollback journal may be reached from where WAL mode isn't safe."""
        if self.options.journal == "auto" and self.limits.mode == "wal" and schema.chosen_journal(reader) == "rollback":
            self.limits = wal.Limits.of(self.options, "rollback")
            assert self._guard is not None
            self._guard.needed = False
            log.info("%s is kept with a rollback journal, as it was before; journal='wal' changes it", self.target.path)

    def _set_up(self) -> bool:
        """Finish the file, if no other process is just doing so: sixteen that make one fresh file take turns."""
        assert self._guard is not None
        with self._guard.mutex:
            try:
                if not self._guard.lock_file():
                    return False
                with closing(connect.connect(f"{self.target.uri}?mode=rw", self.engine)) as connection:
                    connect.set_synchronous(connection, "full")
                    schema.set_up(connection, self.target.path, self.limits.mode != "rollback")
                return True
            finally:
                self._guard.unlock_file()

    def _release_file(self) -> None:
        inode, self._inode, self._guard = self._inode, None, None
        if inode is not None:
            fork.closed(inode)
            guard.give_back(inode)

    def _check_inode(self) -> None:
        """A file that was replaced is another store; going on would write half a run into each."""
        found = files.status(self.target.path)
        if found is None or files.inode_of(found) != self._inode:
            raise UnavailableError(
                f"{self.target.path} was deleted or replaced while this saver had it open; make a new saver",
                path=self.target.path,
            )

    def _open_reader(self) -> sqlite3.Connection:
        if self._closed:
            raise self._closed_error()
        if self.target.memory:
            return connect.open_reader(self.target.uri, self.options.busy_timeout_s, self.engine)
        self._check_inode()
        reader = connect.open_reader(f"{self.target.uri}?mode=rw", self.options.busy_timeout_s, self.engine)
        if self.limits.mode == "litestream":
            connect.keep_wal_at_close(reader)
        return reader

    def _open_writer(self) -> Handle:
        path, level = self.target.path, self.options.synchronous
        uri = self.target.uri
        if not self.target.memory:
            self._check_inode()
            uri += "?mode=rw"
        limits = self.limits
        connection = connect.open_writer(
            uri, level, limits.fold_pages, limits.file_bytes, wal=limits.mode != "rollback", engine=self.engine
        )
        try:
            versions.check_writer(path, connect.marks(connection)[1])
        except FormatError:
            connection.close()
            raise
        if limits.mode == "litestream":
            connect.keep_wal_at_close(connection)
        if self.target.memory:
            return Handle(connection, path, self.counter, self._guard)
        # It must not refer to this object, which could not be collected then.
        folding = Beside(path, partial(connect.open_folder, uri, level, self.engine))
        return Handle(connection, path, self.counter, self._guard, wal.Wal(path, limits, self._wal_lost), folding)

    def _wal_lost(self) -> None:
        """Never use or close these handles again: closing would fold a WAL that is nobody's into the file."""
        assert self._inode is not None
        self._refused = fork.REPLACED
        fork.refuse(self._inode, self._refused)
        self.writer.abandon()
        self.pool.abandon()
        self.loops.abandon()

    def _closed_error(self) -> ClosedError:
        return ClosedError(f"the saver of {self.target.path} was closed; make a new one")

    # Ends

    def close(self) -> None:
        """Finish accepted writes and close every handle. Idempotent."""
        fork.check_process()
        self._closed = True
        self.pool.close()
        self.loops.stop()
        self.writer.close()
        self.board.close()

    def dispose(self) -> None:
        """Close what can be closed without waiting: the saver was dropped, or the program ends."""
        fork.check_process()
        self._closed = True
        self.pool.close()
        self.loops.stop(0.0)
        self.writer.dispose()
        self.board.close()

    def _close_rest(self) -> None:
        """After the writer, which may still be at work when a dropped saver is collected."""
        keeper, self._keeper = self._keeper, None
        if keeper is not None:
            keeper.close()
        self._release_file()

    def hurry(self) -> None:
        """Before a fork, which waits for what is inside the database."""
        self.writer.hurry()

    def close_handles(self) -> None:
        """Before a fork: nothing of a file may be open. What is in memory would be lost, and is refused after it."""
        if self.target.memory:
            return
        self.pool.close_handles()
        self.loops.close_handles()
        self.writer.before_fork()
        if self._guard is not None:
            self._guard.close()

    def after_in_child(self, inherited: bool) -> None:
        self._opening = threading.RLock()
        if inherited or self.target.memory:
            self.writer.abandon()
            self.pool.abandon()
            self.loops.abandon()
        self.writer.after_in_child()
        self.pool.after_in_child()
        self.loops.after_in_child()
        if self._keeper is not None:
            fork.abandon(self._keeper)
            self._refused = "it is in the memory of the process that made it; a forked child can't share it"
        elif inherited and self._is_open:
            self._refused = fork.INHERITED
