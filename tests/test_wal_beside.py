"""A WAL that has become huge under a reader is folded beside the writers: none waits, and nobody starts it over.

`AGENT_CKPT_TEST_BESIDE_S=150` lets processes write, read and fold for so many seconds where CI takes 3.
"""

from __future__ import annotations

import os
import random
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from agent_ckpt.sqlite import SqliteBackend, beside, connect
from agent_ckpt.sqlite import backend as backend_module
from agent_ckpt.sqlite.group import Handle
from agent_ckpt.sqlite.tidy import Tidier
from tests.conftest import WATCHDOG_S
from tests.sqlite_backend import add, backend_on, count, finish, start
from tests.sqlite_backend import connect as connect_beside
from tests.test_wal import BLOB, becomes, reading, size, tidiers

SECONDS = float(os.environ.get("AGENT_CKPT_TEST_BESIDE_S", "3"))
SMALL = {"wal_autocheckpoint": 40}
"""Options with which a WAL of 340 KB is huge."""
HUGE = 600_000
ENDLESS = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT count(*), 0, 0 FROM n"

Folding = Callable[[sqlite3.Connection], sqlite3.Cursor]


class Folder:
    """A connection to fold with, that does something else in the place of folding."""

    def __init__(self, connection: sqlite3.Connection, instead: Folding) -> None:
        self._connection, self._instead = connection, instead

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    def execute(self, sql: str) -> sqlite3.Cursor:
        return self._instead(self._connection) if "wal_checkpoint" in sql else self._connection.execute(sql)


def fold(connection: sqlite3.Connection) -> sqlite3.Cursor:
    return connection.execute("PRAGMA wal_checkpoint(PASSIVE)")


@pytest.fixture
def instead(monkeypatch: pytest.MonkeyPatch) -> Callable[[Folding], None]:
    """Has the next backends do something else where they would fold beside the writers."""
    real = connect.open_folder

    def replace(folding: Folding) -> None:
        monkeypatch.setattr(backend_module.connect, "open_folder", lambda *args: Folder(real(*args), folding))

    return replace


@pytest.fixture
def huge(path: Path) -> Iterator[Callable[..., SqliteBackend]]:
    """Opens backends and lets the WAL become huge under a reader, which has ended then."""
    made: list[SqliteBackend] = []

    def make(**options: Any) -> SqliteBackend:
        made.append(backend_on(path, **SMALL, **options))
        with reading(path):
            fill(made[-1], path)
        return made[-1]

    yield make
    for backend in made:
        backend.close()
    assert becomes(lambda: tidiers() == 0)
    assert_whole(path)


def fill(backend: SqliteBackend, path: Path, name: str = "a") -> None:
    number = 0
    while size(path) < HUGE:
        backend.run(add(f"{name}{number}", blob=os.urandom(BLOB)), write=True)
        number += 1


def assert_whole(path: Path) -> None:
    with closing(connect_beside(path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


def test_writers_do_not_wait_for_it(huge: Any, instead: Any, path: Path) -> None:
    """Puts of this process and of another go through while a huge WAL is being folded, and are folded in their turn."""
    begun, go_on = threading.Event(), threading.Event()

    def slowly(connection: sqlite3.Connection) -> sqlite3.Cursor:
        begun.set()
        assert go_on.wait(WATCHDOG_S)
        return fold(connection)

    instead(slowly)
    backend = huge()
    assert begun.wait(WATCHDOG_S)
    for number in range(5):
        backend.run(add(f"meanwhile {number}"), write=True)
    finish(
        start("backend = backend_on(sys.argv[1], wal_autocheckpoint=40)\nbackend.run(add('other'), write=True)", path)
    )
    before = backend.run(count)
    assert size(path) > HUGE
    go_on.set()
    assert becomes(lambda: size(path) == 0)
    assert backend.run(count) == before


def test_no_commit_folds_a_huge_one(huge: Any, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a COMMIT nor what follows it folds a huge WAL, also of a process that didn't write when it grew; once it
    was cut, COMMITs fold again."""
    monkeypatch.setattr(Tidier, "note", lambda self: None)
    backend = huge()
    folded = os.stat(path).st_size
    second = backend_on(path, table=False, **SMALL)
    for number in range(3):
        (backend, second)[number % 2].run(add(f"b{number}", blob=os.urandom(BLOB)), write=True)
    assert os.stat(path).st_size == folded, "a put has folded it"
    assert size(path) > HUGE
    second.close()
    assert os.stat(path).st_size > folded
    for number in range(20):
        backend.run(add(f"c{number}", blob=os.urandom(BLOB)), write=True)
        assert size(path) < HUGE


def test_nobody_starts_it_over_meanwhile(huge: Any, instead: Any, path: Path) -> None:
    """While it is folded beside the writers, no commit starts the WAL over, even if somebody else has folded it to the
    end: that is what SQLite's race takes."""
    seen: list[tuple[int, int]] = []
    backend: SqliteBackend | None = None

    def meanwhile(connection: sqlite3.Connection) -> sqlite3.Cursor:
        assert backend is not None
        with closing(connect_beside(path)) as other:
            assert other.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()[0] == 0
        before = size(path)
        backend.run(add(f"meanwhile {len(seen)}", blob=os.urandom(BLOB)), write=True)
        seen.append((before, size(path)))
        return fold(connection)

    instead(meanwhile)
    backend = backend_on(path, **SMALL)
    with reading(path):
        fill(backend, path)
    assert becomes(lambda: size(path) == 0)
    assert seen
    for before, after in seen:
        assert after > before, "the WAL was started over"
    backend.close()
    assert_whole(path)


@pytest.mark.parametrize("how", ["close", "fork"])
def test_it_ends_for_who_waits(how: str, huge: Any, instead: Any) -> None:
    """Folding that takes long is ended when the saver is closed or the process forks, and nothing is lost by that."""
    begun = threading.Event()

    def endless(connection: sqlite3.Connection) -> sqlite3.Cursor:
        begun.set()
        return connection.execute(ENDLESS)

    instead(endless)
    backend = huge()
    assert begun.wait(WATCHDOG_S)
    if how == "fork":
        pid = os.fork()
        if not pid:
            os._exit(int(threading.active_count() != 1))
        assert os.waitpid(pid, 0)[1] == 0
        backend.run(add("after"), write=True)
    backend.close()


def test_a_reader_in_this_process(path: Path) -> None:
    """A reader that the kernel's list can't tell from this saver's own: the WAL is cut once it has ended."""
    backend = backend_on(path, **SMALL)
    with closing(connect_beside(path)) as reader:
        connect.begin_reading(reader)
        fill(backend, path)
        time.sleep(0.6)
        assert size(path) > HUGE
    assert becomes(lambda: size(path) == 0)
    backend.close()


def test_a_disk_too_full_for_the_first_commit(huge: Any, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nothing more can be committed, which folding the WAL could change, it is folded under the guard."""

    def fail(self: Handle) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(Handle, "commit_something", fail)
    huge()
    assert becomes(lambda: size(path) == 0)


def test_a_second_reader_is_passed(huge: Any, path: Path) -> None:
    """When the first of two readers ends, the WAL is folded up to the second; when that ends, it is cut."""
    backend = backend_on(path, **SMALL)
    with reading(path):
        fill(backend, path)
        with reading(path):
            grown = os.stat(path).st_size
            backend.run(add("after the second"), write=True)
            assert os.stat(path).st_size == grown
            first_alone = size(path)
    with reading(path):
        pass
    assert first_alone > HUGE
    assert becomes(lambda: size(path) == 0)
    backend.close()


CROWD = """
    import random
    from agent_ckpt.sqlite import wal
    wal.WARN_LARGE_AFTER_S = wal.WARN_AFTER_S = 1e9  # of the readers here
    path, who, seconds = sys.argv[1], sys.argv[2], float(sys.argv[3])
    chance = random.Random(who)
    backend = backend_on(path, wal_autocheckpoint=40)
    end = time.monotonic() + seconds
    number = 0
    while time.monotonic() < end:
        if chance.random() < 0.02:
            reader = connect(path)
            reader.execute("BEGIN")
            reader.execute("SELECT count(*) FROM items").fetchone()
            time.sleep(chance.uniform(0.1, 0.5))
            reader.close()
        backend.run(add(f"{who} {number}", blob=bytes(chance.randrange(30_000))), write=True)
        number += 1
    backend.close()
    print(number)
"""


def test_a_crowd_of_writers_readers_and_folders(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes that write, read for long and fold one huge WAL after another leave a sound file with every row."""
    backend = backend_on(path, **SMALL)
    attempts: list[beside.Outcome] = []
    real = beside.Beside.attempt

    def noted(self: beside.Beside, mark: Any) -> beside.Outcome:
        attempts.append(real(self, mark))
        return attempts[-1]

    monkeypatch.setattr(beside.Beside, "attempt", noted)
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    others = [start(CROWD, path, f"{seed} {who}", SECONDS) for who in range(3)]
    number, deadline = 0, time.monotonic() + SECONDS
    while time.monotonic() < deadline or any(other.poll() is None for other in others):
        backend.run(add(f"ours {number}", blob=bytes(1000)), write=True)
        number += 1
    written = number + sum([int(out) for out in [finish(other) for other in others]])
    assert backend.run(count) == written
    assert becomes(lambda: size(path) == 0)
    backend.close()
    assert_whole(path)
    print(f"{written} rows, {attempts.count(beside.Outcome.NEARLY)} of {len(attempts)} attempts here were successful")
