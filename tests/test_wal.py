"""The WAL: bounded while writing, cut when idle, what a reader does to it, and the calls and commands about it.

`AGENT_CKPT_WAL_MIB=100` writes 100 MiB where CI writes 12; `python -m tests.bench.wal` prints the figures.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import pickle
import re
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from agent_ckpt import AgentSaver, UsageError, WalPinnedError, WalStatus
from agent_ckpt.sqlite import SqliteBackend, connect, pins, wal
from tests.conftest import WATCHDOG_S, Api
from tests.sqlite_backend import ROOT, add, backend_on, count, finish, start

MIB = 1 << 20
VOLUME = int(os.environ.get("AGENT_CKPT_WAL_MIB", "12")) * MIB
BLOB = 40_000
GROUP = 60_000

READER = """
    import sqlite3
    reader = sqlite3.connect(sys.argv[1], isolation_level=None)
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM sqlite_schema").fetchall()
    print("reading", flush=True)
    sys.stdin.read()
"""


@contextmanager
def reading(path: Path) -> Iterator[int]:
    """A process with a read transaction on a database; its id."""
    process = subprocess.Popen(
        [sys.executable, "-c", "import sys\n" + re.sub("^    ", "", READER, flags=re.MULTILINE), str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdin is not None
    assert process.stdout.readline() == "reading\n"
    try:
        yield process.pid
    finally:
        process.stdin.close()
        process.wait(WATCHDOG_S)
        process.stdout.close()


def size(path: Path) -> int:
    try:
        return os.stat(f"{path}-wal").st_size
    except FileNotFoundError:
        return 0


def becomes(what: Callable[[], bool]) -> bool:
    """Whether something comes true before a watchdog barks."""
    deadline = time.monotonic() + WATCHDOG_S
    while not what():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def tidiers() -> int:
    return sum(thread.name == "agent_ckpt-wal" for thread in threading.enumerate())


def write(backend: SqliteBackend, name: str, volume: int) -> int:
    """Write blobs until it is that many bytes; the largest size that the WAL had."""
    largest = 0
    for i in range(volume // BLOB):
        backend.run(add(f"{name}{i}", blob=os.urandom(BLOB)), write=True)
        largest = max(largest, size(Path(backend.target)))
    return largest


def config_of(thread: str) -> Any:
    return {"configurable": {"thread_id": thread, "checkpoint_ns": ""}}


def put(api: Any, n: int, thread: str = "t") -> None:
    checkpoint = {"v": 4, "id": f"{n:032x}", "ts": "2026-01-01T00:00:00+00:00", "channel_values": {"x": f"{n}" * BLOB},
                  "channel_versions": {"x": n + 1}, "versions_seen": {}, "updated_channels": None}  # fmt: skip
    api.put(config_of(thread), checkpoint, {"source": "loop", "step": n, "parents": {}}, {"x": n + 1})


@pytest.fixture
def backend(path: Path) -> Iterator[SqliteBackend]:
    made = backend_on(path)
    yield made
    made.close()
    assert tidiers() == 0


# How large it gets


def test_bounded_while_writing(backend: SqliteBackend, path: Path) -> None:
    """P7: beside readers that come and go the WAL stays within 4.5 MiB and the largest group."""
    stop = threading.Event()

    def read() -> None:
        while not stop.is_set():
            backend.run(count)

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    largest = write(backend, "a", VOLUME)
    stop.set()
    for reader in readers:
        reader.join()
    assert MIB // 2 < largest <= 4.5 * MIB + GROUP


def test_cut_when_idle(backend: SqliteBackend, path: Path) -> None:
    """Nothing is written any more: the WAL is folded and cut to nothing, and no thread is left waiting."""
    write(backend, "a", 10 * BLOB)
    assert size(path) > 0
    assert becomes(lambda: size(path) == 0)
    assert becomes(lambda: tidiers() == 0)
    write(backend, "b", 2 * BLOB)
    assert becomes(lambda: size(path) == 0)
    assert backend.run(count) == 12


def test_cut_after_a_long_reader(backend: SqliteBackend, path: Path) -> None:
    """B52: under a reader that stays the WAL grows and every put goes through; when the reader ends, the WAL shrinks
    although nothing is written any more."""
    with reading(path):
        largest = write(backend, "a", VOLUME)
        assert largest > VOLUME
        time.sleep(1.0)
        # Each attempt at it makes it longer by a page or two.
        assert largest <= size(path) < largest + 20_000
        assert tidiers() == 1
    assert becomes(lambda: size(path) <= MIB)
    assert backend.run(count) == VOLUME // BLOB


def test_cut_after_a_long_reader_in_the_midst_of_writing(backend: SqliteBackend, path: Path) -> None:
    """B52: when the reader ends while writes go on, the WAL shrinks too."""
    with reading(path):
        assert write(backend, "a", VOLUME) > VOLUME
    backend.run(add("first after"), write=True)
    numbers = iter(range(10**6))

    def small() -> bool:
        backend.run(add(f"b{next(numbers)}"), write=True)
        return size(path) <= MIB

    assert becomes(small)


def test_two_savers_and_two_processes(backend: SqliteBackend, path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Several savers in several processes fold one WAL by turns: all that they wrote is there, and it ends empty."""
    other = start(
        """
        backend = backend_on(sys.argv[1])
        for i in range(60):
            backend.run(add(f"other{i}", blob=os.urandom(40_000)), write=True)
            time.sleep(0.01 if i % 20 else 0.7)
        wal = sys.argv[1] + "-wal"
        deadline = time.monotonic() + 20
        while os.stat(wal).st_size and time.monotonic() < deadline:
            time.sleep(0.01)
        print(os.stat(wal).st_size)
        """,
        path,
    )
    second = backend_on(path)
    for i in range(60):
        (backend, second)[i % 2].run(add(f"ours{i}", blob=os.urandom(BLOB)), write=True)
        time.sleep(0.01 if i % 15 else 0.7)
    assert finish(other, 60.0) == "0\n"
    assert becomes(lambda: size(path) == 0)
    assert backend.run(count) == 120
    second.close()
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


def test_sizes_of_the_options(path: Path) -> None:
    """`wal_autocheckpoint` and `journal_size_limit` set when the WAL is folded, and how large its file stays."""
    for options, least, most in (
        ({"wal_autocheckpoint": 40}, 100_000, 400_000),
        ({"journal_size_limit": 0}, 50_000, 300_000),
        ({"journal_size_limit": 8 * MIB}, 3.5 * MIB, 4.5 * MIB),
        ({"journal_size_limit": 8 * MIB, "wal_autocheckpoint": 500}, 1.8 * MIB, 2.3 * MIB),
    ):
        backend = backend_on(path, **options)
        assert least < write(backend, f"{options}", 10 * MIB) < most, options
        backend.close()


# Who pins it


def test_a_reader_that_stays_is_told_once(
    backend: SqliteBackend, path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One warning names the process and the age of a reader that keeps the WAL from being cut; the next one comes
    much later; a new reader is told of anew."""
    monkeypatch.setattr(wal, "WARN_AFTER_S", 0.6)

    def told() -> list[str]:
        return [record.getMessage() for record in caplog.records if "can't be folded" in record.getMessage()]

    with reading(path) as pid:
        write(backend, "a", 5 * BLOB)
        assert becomes(lambda: bool(told()))
        time.sleep(1.0)
        assert len(told()) == 1
        assert re.search(rf"for \d+ s or longer a read transaction has been open in process {pid} \(python", told()[0])
        assert str(path) in told()[0]
    assert becomes(lambda: size(path) == 0)
    assert backend.wal_status().pinned_for_s is None
    with reading(path):
        write(backend, "b", 5 * BLOB)
        assert becomes(lambda: len(told()) == 2)


def test_readers_are_found_by_the_kernels_list(tmp_path: Path) -> None:
    """Only read locks on SQLite's read marks of this database count, ranges too; nothing is opened to find them."""
    (tmp_path / "a.db-shm").touch()
    inode = os.stat(tmp_path / "a.db-shm").st_ino
    table = "\n".join(
        [
            f"1: POSIX  ADVISORY  READ 11 fe:00:{inode} 124 124",
            f"2: POSIX  ADVISORY  READ 12 fe:00:{inode} 120 123",
            f"3: POSIX  ADVISORY  READ 13 fe:00:{inode} 128 128",
            f"4: POSIX  ADVISORY  WRITE 14 fe:00:{inode} 124 124",
            f"5: POSIX  ADVISORY  READ 15 fe:00:{inode + 1} 124 124",
            f"6: FLOCK  ADVISORY  READ 16 fe:00:{inode} 0 EOF",
            f"6: -> POSIX  ADVISORY  READ 17 fe:00:{inode} 124 124",
            f"7: POSIX  ADVISORY  READ 18 fe:00:{inode} 0 EOF",
            "nonsense",
        ]
    )
    assert [pin.pid for pin in pins.find(str(tmp_path / "a.db"), lambda: table)] == [11, 12, 18]
    assert pins.find(str(tmp_path / "b.db"), lambda: table) == ()


def test_a_half_read_list_pins_nothing(path: Path, open_saver: Callable[..., AgentSaver]) -> None:
    """B43: with a sync and an async listing left after their first item, another saver's WAL stays small and can be
    cut; calls inside the loop body go through."""
    saver, other = open_saver(), open_saver()
    for n in range(80):
        put(saver, n)
    half_read = saver.list(config_of("t"))
    item = next(half_read)
    saver.put_writes(item.config, [("x", 1)], "task")

    async def beside() -> None:
        listing = saver.alist(config_of("t"))
        await anext(listing)
        assert await saver.aget_tuple(config_of("t"))
        for n in range(60):
            await other.aput(
                config_of("u"), {**item.checkpoint, "id": f"{n:032x}", "channel_values": {"y": os.urandom(BLOB)},
                                 "channel_versions": {"y": n}}, {}, {"y": n}
            )  # fmt: skip
            assert size(path) < 2 * MIB
        assert (await other.awal_truncate()).bytes == 0
        await listing.aclose()

    asyncio.run(beside())
    assert len([item, *half_read]) == 80


# The calls


def test_status_and_truncate(form: str, saver: AgentSaver, path: Path) -> None:
    """The status counts what is in the WAL and names its readers; truncate does it, or says that it could not."""
    api = Api(saver, form)
    for n in range(5):
        put(api, n)
    found = api.wal_status()
    assert (found.journal, found.bytes) == ("wal", size(path))
    assert 10 < found.pages <= found.bytes // 4096
    assert found.pinned_by == ()
    assert api.wal_truncate() == WalStatus("wal", 0, 0, 0)
    assert size(path) == 0
    with reading(path) as pid:
        put(api, 5)
        found = api.wal_status()
        assert [pin.pid for pin in found.pinned_by] == [pid]
        assert found.pages_left > 0
        with pytest.raises(WalPinnedError) as caught:
            api.wal_truncate(0.2)
        error = pickle.loads(pickle.dumps(caught.value))
        assert error.pids == (pid,)
        assert error.bytes == size(path) > 0
        assert error.pages_left > 0
        assert error.waited_s >= 0.2
        assert str(path) in error.message
        assert (error.retry, error.exit_code) == ("after_wait", 8)
        put(api, 6)
    assert api.wal_truncate(WATCHDOG_S).bytes == 0
    assert api.get_tuple(config_of("t")).checkpoint["channel_values"] == {"x": "6" * BLOB}


def test_an_error_while_folding_is_shown(saver: AgentSaver, monkeypatch: pytest.MonkeyPatch) -> None:
    """B69: an I/O error of a WAL checkpoint is never taken for "done", nor for a reader in the way."""
    put(saver, 0)

    def fail(*_: Any) -> bool:
        raise sqlite3.OperationalError("disk I/O error")

    monkeypatch.setattr(wal, "truncate", fail)
    with pytest.raises(Exception, match="disk I/O error") as caught:
        saver.wal_truncate()
    assert not isinstance(caught.value, WalPinnedError)
    monkeypatch.undo()
    assert saver.wal_truncate().bytes == 0


def test_memory_and_rollback_stores_have_no_wal(form: str, tmp_path: Path) -> None:
    """Where there is no WAL, the status says so and truncate has nothing to do."""
    for target, options, mode in ((":memory:", {}, "memory"), (tmp_path / "r.db", {"journal": "rollback"}, "rollback")):
        with AgentSaver(target, **options) as saver:
            api = Api(saver, form)
            put(api, 0)
            assert api.wal_status() == WalStatus(mode, 0, 0, 0)
            assert api.wal_truncate() == WalStatus(mode, 0, 0, 0)


def command(*arguments: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "agent_ckpt", *map(str, arguments)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_commands(saver: AgentSaver, path: Path) -> None:
    """`wal status` and `wal truncate` beside a live saver: a reader in the way is exit code 8, never success."""
    put(saver, 0)
    with reading(path) as pid:
        put(saver, 1)
        done = command("wal", "status", path, "--json")
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout)
        assert found["bytes"] == size(path) > 0
        assert [pin["pid"] for pin in found["pinned_by"]] == [pid]
        done = command("wal", "truncate", path, "--wait", "0.1")
        assert (done.returncode, done.stdout) == (8, "")
        assert "was not cut" in done.stderr
        assert str(pid) in done.stderr
    put(saver, 2)
    done = command("wal", "truncate", path)
    assert done.returncode == 0, done.stderr
    assert size(path) == 0
    put(saver, 3)
    assert saver.get_tuple(config_of("t")).checkpoint["id"] == f"{3:032x}"


# The thread that cuts an idle WAL


def test_a_program_ends_while_the_wal_is_pinned(path: Path) -> None:
    """A script that never closes its saver ends at once although the WAL can't be cut, and its data is there."""
    backend_on(path).close()
    with reading(path):
        out = finish(
            start(
                """
                backend = backend_on(sys.argv[1])
                for i in range(20):
                    backend.run(add(str(i), blob=bytes(40_000)), write=True)
                time.sleep(0.7)
                print([thread.name for thread in threading.enumerate()][1:])
                """,
                path,
            )
        )
    assert out == "['agent_ckpt-wal']\n"
    backend = backend_on(path)
    assert backend.run(count) == 20
    backend.close()


def test_fork_beside_the_tidying_thread(path: Path) -> None:
    """Parent and child both go on after a fork while the WAL waits to be cut; each cuts it, no thread is forked."""
    out = finish(
        start(
            """
            import subprocess
            backend = backend_on(sys.argv[1])
            def idle():
                deadline = time.monotonic() + 20
                while os.stat(sys.argv[1] + "-wal").st_size and time.monotonic() < deadline:
                    time.sleep(0.01)
                return os.stat(sys.argv[1] + "-wal").st_size
            for i in range(8):
                backend.run(add(f"before{i}", blob=bytes(40_000)), write=True)
                time.sleep(0.1 * i)
                assert sum(thread.name == "agent_ckpt-wal" for thread in threading.enumerate()) <= 1
                pid = os.fork()
                if not pid:
                    assert threading.active_count() == 1
                    backend.run(add(f"child{i}", blob=bytes(40_000)), write=True)
                    assert idle() == 0
                    os._exit(0)
                backend.run(add(f"parent{i}", blob=bytes(40_000)), write=True)
                assert os.waitpid(pid, 0)[1] == 0
            assert idle() == 0
            print(backend.run(count))
            """,
            path,
        ),
        60.0,
    )
    assert out == "24\n"


def test_dropped_saver_leaves_no_thread(path: Path) -> None:
    """A backend that is collected while its WAL is pinned leaves no thread behind."""
    with reading(backend_path(path)):
        backend = backend_on(path)
        write(backend, "a", 3 * BLOB)
        assert tidiers() == 1
        del backend
        assert becomes(lambda: tidiers() == 0)


def backend_path(path: Path) -> Path:
    """The path, with a store made there."""
    backend_on(path).close()
    return path


# Litestream


def test_litestream_owns_the_wal(path: Path) -> None:
    """With `journal="litestream"` the WAL is never folded by us, nor cut when idle; who owns it folds it, and we go
    on."""
    saver = AgentSaver(path, journal="litestream")
    backend = saver._backend
    put(saver, 0)
    replicator = sqlite3.connect(path, isolation_level=None)
    replicator.execute("CREATE TABLE IF NOT EXISTS _litestream_seq (id INTEGER PRIMARY KEY, seq INTEGER)")
    for n in range(1, 200):
        put(saver, n, thread=f"t{n}")
    for n in range(6 * MIB // BLOB):
        saver.put_writes(
            {"configurable": {"thread_id": "t", "checkpoint_ns": "", "checkpoint_id": "0" * 32}},
            [("x", os.urandom(BLOB))],
            f"task{n}",
        )
    assert size(path) > 5 * MIB
    time.sleep(1.2)
    assert size(path) > 5 * MIB
    assert tidiers() == 0
    with pytest.raises(UsageError, match="Litestream"):
        saver.wal_truncate()
    assert saver.wal_status().journal == "litestream"
    assert replicator.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0] == 0
    assert size(path) == 0
    put(saver, 300)
    assert saver.get_tuple(config_of("t")).checkpoint["id"] == f"{300:032x}"
    assert backend.target == str(path)
    saver.close()
    assert path.with_name("agent.db-wal").exists()
    replicator.close()


# Engines before 3.51 know no NOOP


def test_a_look_at_the_wal_writes_nothing_new(path: Path) -> None:
    """What a status finds doesn't depend on whether the engine can look without folding."""
    backend = backend_on(path)
    write(backend, "a", 5 * BLOB)
    with reading(path):
        write(backend, "b", 3 * BLOB)
        connection = connect.connect(f"file:{path}?mode=rw")
        busy, pages, folded = wal.look(connection)
        connection.close()
        assert (busy, folded < pages) == (0, True)
        assert pages * 4096 < size(path)
    backend.close()
