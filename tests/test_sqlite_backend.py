"""The SQLite backend: writes, group commits, failures and locks, in one process."""

from __future__ import annotations

import asyncio
import pickle
import random
import re
import sqlite3
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from agent_ckpt.backend import Program, Statement
from agent_ckpt.errors import (
    BusyError,
    CkptError,
    CorruptionError,
    DiskFullError,
    PoisonedError,
    ReadOnlyError,
    UnavailableError,
    UsageError,
)
from agent_ckpt.sqlite import SqliteBackend, engine, errors, group, queries, writer
from agent_ckpt.sqlite.jobs import Job
from tests.conftest import WATCHDOG_S
from tests.sqlite_backend import add, add_many, backend_on, both_ways, connect, count, names

BOTH = pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])


@pytest.fixture
def backend(tmp_path: Path) -> Iterator[SqliteBackend]:
    made = backend_on(tmp_path / "a.db")
    yield made
    _assert_free(tmp_path / "a.db")
    made.close()


def _assert_free(path: Path) -> None:
    """Nobody holds a transaction or lock (an idle WAL is just cut, at most), and the file is sound."""
    if not path.exists():
        return
    other = connect(path, timeout=5.0)
    other.execute("BEGIN IMMEDIATE")
    other.execute("ROLLBACK")
    assert other.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    other.close()


def _in_group(backend: SqliteBackend, factories: list[Any]) -> list[Any]:
    """Run writes as one group: they queue up while the run lock is held. Results or errors, in order."""

    async def main() -> list[Any]:
        run_lock = backend._store.writer._run
        with run_lock:
            tasks = [asyncio.create_task(backend.arun(factory, write=True)) for factory in factories]
            await asyncio.sleep(0.05)
        return await asyncio.gather(*tasks, return_exceptions=True)

    return asyncio.run(main())


@BOTH
def test_rows_results_and_executemany(backend: SqliteBackend, is_async: bool) -> None:
    """Rows come back as lists of tuples, a program's return value is the call's, executemany writes all."""
    assert both_ways(backend, add("a", "b"), is_async, write=True) == [1, 2]
    both_ways(backend, add_many(["c", "d"]), is_async, write=True)
    assert both_ways(backend, names, is_async) == ["a", "b", "c", "d"]
    assert both_ways(backend, count, is_async) == 4


@BOTH
def test_statement_counts(backend: SqliteBackend, is_async: bool) -> None:
    """A lone write costs BEGIN, its statements and COMMIT; executemany counts each execution; a read likewise."""
    both_ways(backend, count, is_async)
    backend.run(add("first"), write=True)
    seen: list[str] = []
    backend.on_statement = seen.append
    both_ways(backend, add("a", "b"), is_async, write=True)
    assert seen == ["BEGIN IMMEDIATE", "item_add", "item_add", "COMMIT"]
    seen.clear()
    both_ways(backend, add_many(["c", "d", "e"]), is_async, write=True)
    assert seen == ["BEGIN IMMEDIATE", *["item_add_many"] * 3, "COMMIT"]
    seen.clear()
    both_ways(backend, count, is_async)
    assert seen == ["BEGIN", "item_count", "COMMIT"]


@BOTH
def test_failed_write_is_undone_alone_and_frees_the_lock(
    backend: SqliteBackend, tmp_path: Path, is_async: bool
) -> None:
    """B40: what a failing program wrote is gone, its own error comes out, and the lock is free at once."""
    for error in (ValueError("mine"), UsageError("ours")):
        with pytest.raises(type(error)) as caught:
            both_ways(backend, add("x", "y", then=error), is_async, write=True)
        assert caught.value is error
        _assert_free(tmp_path / "a.db")
    with pytest.raises(CkptError, match="UNIQUE"):
        both_ways(backend, add("x", "x"), is_async, write=True)
    with pytest.raises(CkptError) as bad:
        both_ways(backend, add("x", blob=object()), is_async, write=True)  # type: ignore[arg-type]
    assert isinstance(bad.value.__cause__, engine.ERRORS)
    assert both_ways(backend, count, is_async) == 0


def test_group_isolates_failures(backend: SqliteBackend) -> None:
    """Of one group commit, only the failing programs fail; the others are stored by one COMMIT.

    The two that had written before they failed are undone with the transaction, and the others run again.
    """
    seen: list[str] = []
    backend.on_statement = seen.append
    results = _in_group(backend, [add("a"), add("b", "b"), add("c", then=ValueError("no")), add("d"), add("a")])
    assert isinstance(results[1], CkptError)
    assert isinstance(results[2], ValueError)
    assert isinstance(results[4], CkptError)
    backend.on_statement = None
    assert backend.run(names) == ["a", "d"]
    assert seen.count("COMMIT") == 1
    assert seen.count("ROLLBACK") == 2


def test_group_is_bounded_by_count_and_bytes(backend: SqliteBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    """A group takes at most GROUP_JOBS programs, and stops taking more after GROUP_BYTES."""
    seen: list[str] = []
    backend.on_statement = seen.append
    _in_group(backend, [add(f"n{i}") for i in range(writer.GROUP_JOBS + 1)])
    assert seen.count("COMMIT") == 2
    seen.clear()
    monkeypatch.setattr(group, "GROUP_BYTES", 1000)
    _in_group(backend, [add(f"b{i}", blob=bytes(600)) for i in range(4)])
    assert seen.count("COMMIT") == 2
    assert backend.run(count) == writer.GROUP_JOBS + 5


def test_disk_full_hits_only_the_large_write(backend: SqliteBackend) -> None:
    """B63: a full disk undoes the group; the others of it run again, alone; the next write works."""
    backend.run(add("start"), write=True)
    handle = backend._store.writer._handle
    assert handle is not None
    pages = handle.connection.execute("PRAGMA page_count").fetchone()[0]
    handle.connection.execute(f"PRAGMA max_page_count={pages + 4}")
    small, large, last = _in_group(backend, [add("a"), add("big", "big2", blob=bytes(200_000)), add("b")])
    assert isinstance(large, DiskFullError)
    assert "KiB are free" in str(large)
    assert isinstance(small, list)
    assert isinstance(last, list)
    with pytest.raises(DiskFullError):
        backend.run(add("big", blob=bytes(200_000)), write=True)
    assert backend.run(names) == ["start", "a", "b"]
    handle.connection.execute(f"PRAGMA max_page_count={pages + 1000}")
    backend.run(add("big", blob=bytes(200_000)), write=True)


@BOTH
def test_busy_writes_wait_then_raise(tmp_path: Path, is_async: bool) -> None:
    """B32: a write waits for another connection's lock up to the option, then BusyError with the wait; reads go on."""
    backend = backend_on(tmp_path / "a.db", busy_timeout_s=0.3)
    backend.run(add("first"), write=True)
    other = connect(tmp_path / "a.db", check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")
    began = time.monotonic()
    with pytest.raises(BusyError) as caught:
        both_ways(backend, add("x"), is_async, write=True)
    assert 0.25 < time.monotonic() - began < WATCHDOG_S
    assert 0.25 < caught.value.waited_s < WATCHDOG_S
    assert caught.value.path == str(tmp_path / "a.db")
    assert pickle.loads(pickle.dumps(caught.value)).waited_s == caught.value.waited_s
    assert both_ways(backend, count, is_async) == 1
    timer = threading.Timer(0.1, lambda: other.execute("ROLLBACK"))
    timer.start()
    both_ways(backend, add("x"), is_async, write=True)
    timer.join()
    other.close()
    backend.close()


def test_queued_writes_share_the_deadline(tmp_path: Path) -> None:
    """Every call gets its own BusyError in its own time, also those queued behind others; none hangs."""
    backend = backend_on(tmp_path / "a.db", busy_timeout_s=0.3)
    backend.run(add("first"), write=True)
    other = sqlite3.connect(tmp_path / "a.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")

    def one(i: int) -> float:
        began = time.monotonic()
        with pytest.raises(BusyError):
            backend.run(add(f"n{i}"), write=True)
        return time.monotonic() - began

    with ThreadPoolExecutor(20) as pool:
        waits = list(pool.map(one, range(20)))
    assert all(0.25 < wait < 1.2 for wait in waits), waits
    other.execute("ROLLBACK")
    assert backend.run(count) == 1
    other.close()
    backend.close()


def test_full_queue_waits_then_raises(tmp_path: Path) -> None:
    """With every place of the queue taken a caller waits for one, then gets BusyError; sync and async."""
    backend = backend_on(tmp_path / "a.db", busy_timeout_s=0.2, queue_size=1)
    backend.run(add("first"), write=True)

    async def main() -> list[Any]:
        with backend._store.writer._run:
            tasks = [asyncio.create_task(backend.arun(add(f"n{i}"), write=True)) for i in range(3)]
            while sum(task.done() for task in tasks) < 2:
                await asyncio.sleep(0.01)
        return await asyncio.gather(*tasks, return_exceptions=True)

    results = asyncio.run(main())
    assert sum(isinstance(result, BusyError) for result in results) == 2, results
    assert backend.run(count) == 2
    backend.close()


def _io_error(*_: Any) -> None:
    error = sqlite3.OperationalError("disk I/O error")
    error.sqlite_errorcode = sqlite3.SQLITE_IOERR_FSYNC
    raise error


def test_io_error_at_commit_is_settled(backend: SqliteBackend, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """After an I/O error at COMMIT another commit takes its place: all callers hear that nothing is stored, and the
    next write of the same backend works."""
    backend.run(add("kept"), write=True)
    with monkeypatch.context() as patched:
        patched.setattr(group, "commit", _io_error)
        results = _three_in_a_group(backend)
    assert all(type(result) is UnavailableError and "COMMIT" in str(result) for result in results), results
    _assert_free(tmp_path / "a.db")
    backend.run(add("later"), write=True)
    assert backend.run(names) == ["kept", "later"]


def test_io_error_at_commit_that_lasts(backend: SqliteBackend, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """While nothing else can be committed either the outcome is unknown and later writes are refused, reads go on;
    after that the same backend opens anew by itself, and commits something else before the next write."""
    backend.run(add("kept"), write=True)
    with monkeypatch.context() as patched:
        patched.setattr(group, "commit", _io_error)
        patched.setattr(group.Handle, "settle", _io_error)
        results = _three_in_a_group(backend)
        assert all(isinstance(result, PoisonedError) for result in results), results
        with pytest.raises(UnavailableError):
            backend.run(add("refused"), write=True)
        assert backend.run(names) == ["kept"]
    _assert_free(tmp_path / "a.db")
    said: list[str] = []
    backend.on_statement = said.append
    backend.run(add("later"), write=True)
    assert said == ["BEGIN IMMEDIATE", "next_sequence", "COMMIT", "BEGIN IMMEDIATE", "item_add", "COMMIT"]
    assert backend.run(names) == ["kept", "later"]
    assert not backend._store.writer._unsettled


def _three_in_a_group(backend: SqliteBackend) -> list[Any]:
    async def main() -> list[Any]:
        with backend._store.writer._run:
            tasks = [asyncio.create_task(backend.arun(add(f"n{i}"), write=True)) for i in range(3)]
            await asyncio.sleep(0.05)
        return await asyncio.gather(*tasks, return_exceptions=True)

    return asyncio.run(main())


def test_full_disk_at_commit_is_undone(backend: SqliteBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    """SQLITE_FULL at COMMIT is known not to be stored: DiskFullError, and the writer lives on."""
    error = sqlite3.OperationalError("database or disk is full")
    error.sqlite_errorcode = sqlite3.SQLITE_FULL
    commit = group.commit

    def fail_once(handle: Any, deadline: float) -> None:
        monkeypatch.setattr(group, "commit", commit)
        raise error

    monkeypatch.setattr(group, "commit", fail_once)
    with pytest.raises(DiskFullError):
        backend.run(add("x"), write=True)
    backend.run(add("y"), write=True)
    assert backend.run(names) == ["y"]


def test_interrupt_on_the_callers_thread(backend: SqliteBackend) -> None:
    """A KeyboardInterrupt in a sync caller's program rolls back, passes through, and the others of its group
    are stored all the same."""
    backend.run(add("first"), write=True)
    others: list[Any] = []

    def interrupted() -> Program[None]:
        yield Statement("item_add", ("gone", None))
        for i in range(3):
            task = threading.Thread(target=lambda i=i: others.append(backend.run(add(f"o{i}"), write=True)))
            task.start()
            tasks.append(task)
        time.sleep(0.05)
        raise KeyboardInterrupt

    tasks: list[threading.Thread] = []
    with pytest.raises(KeyboardInterrupt):
        backend.run(interrupted, write=True)
    for task in tasks:
        task.join(5)
    assert len(others) == 3
    assert sorted(backend.run(names)) == ["first", "o0", "o1", "o2"]


def test_interrupted_leader_leaves_its_group_to_others(backend: SqliteBackend) -> None:
    """A signal that strikes while the leader runs somebody else's program undoes the group; the others run again."""
    main_thread = threading.current_thread()

    def victim() -> Program[str]:
        yield Statement("item_add", (f"v{random.random()}", None))
        if threading.current_thread() is main_thread:
            raise KeyboardInterrupt
        return "done"

    async def main() -> None:
        # While this thread holds the run lock the victim can only queue; then this thread leads the group itself,
        # since nobody wakes the worker.
        inner = backend._store.writer
        with inner._run:
            task = asyncio.create_task(asyncio.to_thread(backend.run, victim, write=True))
            while not inner._queue:
                await asyncio.sleep(0.01)
            mine = Job(add("mine"), 5.0)
            inner._enqueue(mine)
            with pytest.raises(KeyboardInterrupt):
                inner._lead(mine)
        assert await asyncio.wait_for(task, 5) == "done"

    asyncio.run(main())
    assert [name[0] for name in backend.run(names)] == ["v"]


def test_write_inside_a_write_is_refused(backend: SqliteBackend) -> None:
    """A signal handler that writes while its thread is in a write gets an error; it can't wait for itself."""

    def nested() -> Program[None]:
        yield Statement("item_count")
        backend.run(add("inner"), write=True)

    with pytest.raises(UsageError, match="inside another"):
        backend.run(nested, write=True)
    assert backend.run(count) == 0


def test_many_threads_lose_nothing(backend: SqliteBackend) -> None:
    """100 OS threads read and write at once: nothing is lost, and few connections are opened."""

    def one(i: int) -> None:
        for j in range(5):
            backend.run(add(f"{i}-{j}"), write=True)
            assert backend.run(count) > 0

    with ThreadPoolExecutor(100) as pool:
        list(pool.map(one, range(100)))
    assert backend.run(count) == 500
    assert sum(place.connection is not None for place in backend._store.pool._places) <= 8


def test_read_is_one_snapshot(backend: SqliteBackend) -> None:
    """A read sees the store as it was at its first statement, whatever is committed meanwhile."""
    backend.run(add("a"), write=True)

    def twice() -> Program[tuple[int, int]]:
        first = yield Statement("item_count")
        backend.run(add("b"), write=True)
        second = yield Statement("item_count")
        return first[0][0], second[0][0]

    assert backend.run(twice) == (1, 1)
    assert backend.run(count) == 2


def test_readers_cannot_write(backend: SqliteBackend) -> None:
    """A read program can't change anything."""
    with pytest.raises(ReadOnlyError):
        backend.run(add("x"))
    assert backend.run(count) == 0


def test_unknown_statement_names_itself(backend: SqliteBackend) -> None:
    """A block that isn't there is a KeyError with its name, and nothing stays open."""

    def program() -> Program[None]:
        yield Statement("no_such_block")

    for write in (False, True):
        with pytest.raises(KeyError, match="no_such_block"):
            backend.run(program, write=write)


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (sqlite3.SQLITE_BUSY_SNAPSHOT, BusyError),
        (sqlite3.SQLITE_LOCKED, BusyError),
        (sqlite3.SQLITE_FULL, DiskFullError),
        (sqlite3.SQLITE_READONLY_DBMOVED, ReadOnlyError),
        (sqlite3.SQLITE_CANTOPEN, ReadOnlyError),
        (sqlite3.SQLITE_CORRUPT_INDEX, CorruptionError),
        (sqlite3.SQLITE_IOERR_READ, UnavailableError),
        (sqlite3.SQLITE_TOOBIG, UsageError),
        (sqlite3.SQLITE_ERROR, CorruptionError),
    ],
)
def test_driver_errors_are_translated(code: int, expected: type[CkptError], tmp_path: Path) -> None:
    """Each class of driver error has its own error of ours, which names the file and survives pickling."""
    driver = sqlite3.OperationalError("text")
    driver.sqlite_errorcode = code
    ours = errors.translate(driver, str(tmp_path / "a.db"), "a write")
    assert type(ours) is expected
    assert "a.db" in str(ours)
    assert str(pickle.loads(pickle.dumps(ours))) == str(ours)


@pytest.mark.parametrize(
    ("version", "affected"),
    [
        ((3, 6, 23), False),
        ((3, 7, 0), True),
        ((3, 40, 1), True),
        ((3, 44, 5), True),
        ((3, 44, 6), False),
        ((3, 45, 0), True),
        ((3, 50, 6), True),
        ((3, 50, 7), False),
        ((3, 51, 2), True),
        ((3, 51, 3), False),
        ((3, 53, 4), False),
    ],
)
def test_affected_engines(version: tuple[int, int, int], affected: bool) -> None:
    """B69: which SQLite versions have the WAL race."""
    assert engine.is_affected(version) is affected


def test_queries_have_no_unnamed_text() -> None:
    """Every block of queries.sql has a name and text, and is a complete statement or several."""
    for name, text in queries.QUERIES.items():
        assert "" not in (name, text.strip()), name
        assert list(queries.split(text)), name


def test_placeholders_reach_the_driver_without_a_name() -> None:
    """Python 3.12.0 to 3.12.3 warn of numbered placeholders at each statement: what is sent has plain ones, with a
    value for each in its place, in one statement and in many."""
    sent: list[tuple[str, Any]] = []

    class Connection:
        def execute(self, sql: str, params: Any) -> None:
            sent.append((sql, tuple(params)))

        def executemany(self, sql: str, params: Any) -> None:
            sent.extend((sql, tuple(row)) for row in params)

    connection: Any = Connection()
    for text in queries.QUERIES.values():
        queries.execute(connection, text, tuple(range(1, 20)) if "?" in text else ())
        assert not re.search(r"\?\d", sent[-1][0])
        numbers = [int(number) for number in re.findall(r"\?(\d+)", text)]
        assert list(sent[-1][1][: len(numbers)]) == numbers
    queries.execute_many(connection, "UPDATE t SET a = ?2, b = ?1 WHERE c = ?2", [(1, 2), (3, 4)])
    assert sent[-2:] == [("UPDATE t SET a = ?, b = ? WHERE c = ?", row) for row in ((2, 1, 2), (4, 3, 4))]


def test_lock_met_while_opening_the_writer(tmp_path: Path) -> None:
    """A writer whose connection meets a lock as it is opened waits for it, as for any other."""
    backend = backend_on(tmp_path / "a.db")
    open_handle, met = backend._store.writer._open_handle, []

    def locked_at_first() -> group.Handle:
        met.append(True)
        if len(met) < 3:
            error = sqlite3.OperationalError("database is locked")
            error.sqlite_errorcode = sqlite3.SQLITE_BUSY_RECOVERY
            raise error
        return open_handle()

    backend._store.writer.close_handle()
    backend._store.writer._open_handle = locked_at_first
    backend.run(add("a"), write=True)
    assert len(met) == 3
    backend.close()
