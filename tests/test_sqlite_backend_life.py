"""The SQLite backend's life in one process: the WAL's size, memory stores, closing, two backends on one file."""

from __future__ import annotations

import asyncio
import errno
import os
import sqlite3
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from agent_ckpt.errors import ClosedError
from agent_ckpt.sqlite import SqliteBackend, guard, wal
from tests.conftest import WATCHDOG_S
from tests.sqlite_backend import add, backend_on, both_ways, count, names

BOTH = pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])


@pytest.fixture
def backend(tmp_path: Path) -> Iterator[SqliteBackend]:
    made = backend_on(tmp_path / "a.db")
    yield made
    made.close()


def test_wal_stays_small_beside_a_reader(backend: SqliteBackend, tmp_path: Path) -> None:
    """P7: the WAL stays within 1 MiB plus a group; a reader that pins it makes it grow, stalls nobody, and
    afterwards it is small again."""
    wal = tmp_path / "a.db-wal"
    for i in range(200):
        backend.run(add(f"a{i}", blob=bytes(40_000)), write=True)
        assert wal.stat().st_size < 1_200_000
    reader = sqlite3.connect(tmp_path / "a.db", isolation_level=None)
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM items").fetchall()
    slowest = 0.0
    for i in range(300):
        began = time.monotonic()
        backend.run(add(f"b{i}", blob=bytes(40_000)), write=True)
        slowest = max(slowest, time.monotonic() - began)
    assert wal.stat().st_size > 9_000_000
    assert slowest < WATCHDOG_S
    reader.execute("COMMIT")
    deadline = time.monotonic() + WATCHDOG_S
    while wal.stat().st_size >= 1_200_000 and time.monotonic() < deadline:
        backend.run(add(f"c{time.monotonic()}"), write=True)
        time.sleep(0.01)
    assert wal.stat().st_size < 1_200_000
    reader.close()


def test_memory_database(tmp_path: Path) -> None:
    """`:memory:` works sync and async, with readers beside the writer, and is a new store for each backend."""
    backend, other = backend_on(":memory:"), backend_on(":memory:")
    assert backend.target == ":memory:"

    def one(i: int) -> None:
        backend.run(add(f"m{i}"), write=True)
        backend.run(count)

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(one, range(200)))
    asyncio.run(backend.arun(add("x"), write=True))
    assert asyncio.run(backend.arun(count)) == 201
    assert other.run(count) == 0
    backend.close()
    other.close()
    assert os.listdir(tmp_path) == []


@BOTH
def test_close_is_idempotent_and_final(tmp_path: Path, is_async: bool) -> None:
    """B46: closing twice is harmless, a closed backend says so and names the file; unused ones close too."""
    backend = backend_on(tmp_path / "a.db")
    backend.run(add("a"), write=True)
    for _ in range(2):
        if is_async:
            asyncio.run(backend.aclose())
        else:
            backend.close()
    for write in (False, True):
        with pytest.raises(ClosedError, match=r"a\.db"):
            both_ways(backend, count, is_async, write=write)
    assert {*os.listdir(tmp_path)} - {"a.db-journal"} == {"a.db", "a.db-lock"}
    backend_on(tmp_path / "never.db", table=False).close()
    assert not (tmp_path / "never.db").exists()


def test_close_when_the_side_file_cannot_be_looked_at(
    backend: SqliteBackend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An I/O error at the side file while closing keeps nothing open and raises nothing; what was stored is there."""
    backend.run(add("x"), write=True)

    def fail(*_: object) -> bool:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(guard.Guard, "_is_in_place", fail)
    backend.close()
    monkeypatch.undo()
    again = backend_on(tmp_path / "a.db", table=False)
    again.run(add("y"), write=True)
    assert again.run(names) == ["x", "y"]
    again.close()


def test_other_processes_may_write_as_soon_as_a_commit_is_done(
    backend: SqliteBackend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The side file is free again when the looks that follow a commit begin; it is held while a large WAL is folded."""
    free: list[bool] = []

    def note() -> None:
        descriptor = os.open(tmp_path / "a.db-lock", os.O_RDWR)
        try:
            free.append(guard.filelock.lock_descriptor(descriptor, blocking=False))
        finally:
            os.close(descriptor)

    check, cut = wal.Wal.check, wal.Wal.cut
    monkeypatch.setattr(wal.Wal, "check", lambda self: (note(), check(self))[1])
    backend.run(add("x"), write=True)
    assert free == [True]
    monkeypatch.setattr(wal.Wal, "check", check)
    monkeypatch.setattr(wal.Wal, "is_large", True)
    monkeypatch.setattr(wal.Wal, "cut", lambda self, *given: (note(), cut(self, *given))[1])
    backend.run(add("y"), write=True)
    assert free[1] is False


def test_close_finishes_accepted_writes(tmp_path: Path) -> None:
    """What was accepted before close is stored and answered; what comes later is refused."""
    backend = backend_on(tmp_path / "a.db")

    async def main() -> list[Any]:
        await backend.arun(count)
        with backend._store.writer._run:
            tasks = [asyncio.create_task(backend.arun(add(f"n{i}"), write=True)) for i in range(100)]
            await asyncio.sleep(0.05)
        await backend.aclose()
        return await asyncio.gather(*tasks, return_exceptions=True)

    results = asyncio.run(main())
    assert all(isinstance(result, list) for result in results)
    again = backend_on(tmp_path / "a.db")
    assert again.run(count) == 100
    again.close()


def test_dropped_backend_closes_itself(tmp_path: Path) -> None:
    """A backend that is dropped without close leaves no worker and no open file behind."""
    before = threading.active_count()
    backend = backend_on(tmp_path / "a.db")
    asyncio.run(backend.arun(add("a"), write=True))
    asyncio.run(backend.arun(count))
    del backend
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline and (threading.active_count() > before or (tmp_path / "a.db-wal").exists()):
        time.sleep(0.01)
    assert threading.active_count() <= before
    assert not (tmp_path / "a.db-wal").exists()


def test_two_backends_on_one_file(tmp_path: Path) -> None:
    """Two savers on one file in one process take turns, and see each other's commits."""
    one, two = backend_on(tmp_path / "a.db"), backend_on(tmp_path / "a.db")

    def write(job: tuple[SqliteBackend, str]) -> None:
        for i in range(50):
            job[0].run(add(f"{job[1]}{i}"), write=True)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, [(one, "a"), (two, "b"), (one, "c"), (two, "d")]))
    assert one.run(count) == two.run(count) == 200
    one.close()
    two.run(add("after"), write=True)
    assert two.run(count) == 201
    two.close()
