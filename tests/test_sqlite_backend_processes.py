"""The SQLite backend across processes: first opens, many writers, forks, kills, and locks that others cancel."""

from __future__ import annotations

import atexit
import ctypes
import functools
import multiprocessing
import os
import signal
import sqlite3
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from agent_ckpt.backend import Program, Statement
from agent_ckpt.errors import CkptError, UsageError
from agent_ckpt.sqlite import SqliteBackend, fork, schema
from tests.sqlite_backend import add, backend_on, count, finish, names, run_script, start

# Newer Pythons warn of any fork beside other threads, which is what is tested here.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")


@pytest.fixture
def backend(tmp_path: Path) -> Iterator[SqliteBackend]:
    made = backend_on(tmp_path / "a.db")
    yield made
    made.close()


def _assert_sound(path: Path) -> None:
    connection = sqlite3.connect(path)
    assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    connection.close()


def _in_child(work: Callable[[], object], *, leave: str = "_exit", timeout: float = 10.0) -> None:
    """Run work in a forked child; it must end well within `timeout` seconds."""
    _wait_for(_fork(work, leave), timeout)


def _fork(work: Callable[[], object], leave: str = "_exit") -> int:
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            work()
            status = 0
        except BaseException as exc:
            os.write(2, f"child: {exc!r}\n".encode())
        finally:
            if leave == "exit" and status == 0:
                # A normal end runs exit handlers, which must not touch what was inherited.
                atexit._run_exitfuncs()
            os._exit(status)
    return pid


def _wait_for(pid: int, timeout: float) -> None:
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            assert status == 0
            return
        time.sleep(0.005)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    raise AssertionError("the child hangs")


@needs_fork
def test_first_open_by_sixteen_processes(tmp_path: Path) -> None:
    """B31: 16 processes that make one fresh file at the same moment all succeed, in every round."""
    for round_ in range(6):
        path, go = tmp_path / f"{round_}.db", tmp_path / f"{round_}.go"

        def open_and_write(i: int, path: Path = path, go: Path = go) -> None:
            while not go.exists():
                time.sleep(0.001)
            backend = backend_on(path)
            backend.run(add(str(i)), write=True)
            backend.close()

        children = [_fork(functools.partial(open_and_write, i)) for i in range(16)]
        go.touch()
        for child in children:
            _wait_for(child, 30.0)
        check = backend_on(path)
        assert sorted(check.run(names), key=int) == [str(i) for i in range(16)]
        check.close()


def test_four_processes_of_many_writers(tmp_path: Path) -> None:
    """4 processes of 16 writers each, sync and async, with readers and WAL checkpoints beside them: no error,
    nothing lost, no group torn, and a sound file."""
    script = """
        from concurrent.futures import ThreadPoolExecutor
        backend = backend_on(sys.argv[1])
        me = sys.argv[2]
        def sync(i):
            for j in range(30):
                backend.run(add(f"{me}-{i}-{j}a", f"{me}-{i}-{j}b", blob=bytes(3000)), write=True)
                assert backend.run(count) % 2 == 0
        async def task(i):
            for j in range(30):
                await backend.arun(add(f"{me}-{i}-{j}a", f"{me}-{i}-{j}b", blob=bytes(3000)), write=True)
                assert await backend.arun(count) % 2 == 0
        async def main():
            await asyncio.gather(*(task(i) for i in range(8)))
        jobs = [lambda i=i: sync(100 + i) for i in range(8)] + [lambda: asyncio.run(main())]
        with ThreadPoolExecutor(9) as pool:
            list(pool.map(lambda job: job(), jobs))
    """
    backend_on(tmp_path / "a.db").close()
    for process in [start(script, tmp_path / "a.db", i) for i in range(4)]:
        finish(process, 60)
    check = backend_on(tmp_path / "a.db")
    assert check.run(count) == 4 * 16 * 30 * 2
    check.close()
    _assert_sound(tmp_path / "a.db")


def test_killed_writers_lose_nothing_acknowledged(tmp_path: Path) -> None:
    """B61: SIGKILL at any moment: what was acknowledged is there, no write is half there, the lock is free at once."""
    script = """
        backend = backend_on(sys.argv[1])
        start = backend.run(count)
        for i in range(100000):
            backend.run(add(f"{start + i}a", f"{start + i}b"), write=True)
            print(start + i, flush=True)
    """
    for round_ in range(4):
        process = start(script, tmp_path / "a.db")
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(0.05 + 0.03 * round_)
        process.kill()
        acknowledged = [int(line) for line in process.communicate()[0].split("\n") if line.strip()]
        check = backend_on(tmp_path / "a.db", busy_timeout_s=1.0)
        found = set(check.run(names))
        assert all(f"{i}a" in found and f"{i}b" in found for i in acknowledged[:-1])
        assert all(name[:-1] + "b" in found for name in found if name.endswith("a"))
        check.run(add(f"check{round_}", f"more{round_}"), write=True)
        check.close()
    _assert_sound(tmp_path / "a.db")


@needs_fork
@pytest.mark.parametrize("leave", ["_exit", "exit"])
def test_fork_and_go_on(backend: SqliteBackend, tmp_path: Path, leave: str) -> None:
    """B48: after a fork both sides go on with the same object, each on handles of its own, real locks included."""
    import asyncio

    backend.run(add("before"), write=True)
    asyncio.run(backend.arun(count))

    def child() -> None:
        backend.run(add("child"), write=True)
        assert backend.run(count) == 2
        assert asyncio.run(backend.arun(count)) == 2
        asyncio.run(backend.arun(add("child async"), write=True))
        # Another process opens and closes: it would delete the WAL if our locks were not real.
        run_script("backend_on(sys.argv[1]).run(count)", tmp_path / "a.db")
        backend.run(add("child later"), write=True)

    _in_child(child, leave=leave)
    backend.run(add("parent"), write=True)
    assert backend.run(names) == ["before", "child", "child async", "child later", "parent"]
    assert run_script("print(backend_on(sys.argv[1]).run(count))", tmp_path / "a.db").strip() == "5"
    _assert_sound(tmp_path / "a.db")


@needs_fork
def test_child_outlives_its_parents_handle(backend: SqliteBackend, tmp_path: Path) -> None:
    """A child that goes on after the parent has closed still holds locks of its own: its commits are everybody's."""
    backend.run(add("before"), write=True)
    go = tmp_path / "go"

    def child() -> None:
        backend.run(add("child"), write=True)
        while not go.exists():
            time.sleep(0.005)
        backend.run(add("after the parent"), write=True)
        assert run_script("print(backend_on(sys.argv[1]).run(count))", tmp_path / "a.db").strip() == "3"

    def close_and_open_elsewhere() -> None:
        backend.close()
        run_script("backend_on(sys.argv[1]).run(count)", tmp_path / "a.db")
        go.touch()

    watcher = threading.Timer(0.3, close_and_open_elsewhere)
    watcher.start()
    _in_child(child)
    watcher.join()


@needs_fork
@pytest.mark.parametrize("busy_with", ["sync", "async", "read"])
def test_fork_while_others_are_inside(backend: SqliteBackend, busy_with: str) -> None:
    """B48: a fork while other workers write or read doesn't hang the child, and loses nothing of theirs."""
    import asyncio

    stop = threading.Event()
    written: list[str] = []

    def work(i: int) -> None:
        async def main() -> None:
            while not stop.is_set():
                await backend.arun(add(name := f"{i}-{time.monotonic_ns()}"), write=True)
                written.append(name)

        if busy_with == "async":
            asyncio.run(main())
        while not stop.is_set():
            if busy_with == "read":
                backend.run(names)
            else:
                backend.run(add(name := f"{i}-{time.monotonic_ns()}"), write=True)
                written.append(name)

    workers = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for worker in workers:
        worker.start()
    try:
        for i in range(5):
            time.sleep(0.02)
            _in_child(functools.partial(backend.run, add(f"child{i}"), write=True), timeout=5.0)
    finally:
        stop.set()
        for worker in workers:
            worker.join(10)
    found = set(backend.run(names))
    assert set(written) <= found
    assert {f"child{i}" for i in range(5)} <= found


@needs_fork
def test_fork_in_the_middle_of_a_call_is_refused_in_the_child(
    backend: SqliteBackend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fork that can't wait for a call to end leaves the child without safe handles: it says so at once, for the
    old object and a new one, and the parent is untouched."""
    monkeypatch.setattr(fork, "FORK_WAIT_S", 0.05)

    def child() -> None:
        for refused in (backend, backend_on(tmp_path / "a.db", table=False)):
            for write in (False, True):
                with pytest.raises(UsageError, match="forked"):
                    refused.run(count, write=write)
            refused.close()

    def slow() -> Program[None]:
        yield Statement("item_add", ("slow", None))
        _in_child(child)

    backend.run(slow, write=True)
    backend.run(add("after"), write=True)
    assert backend.run(names) == ["slow", "after"]


@needs_fork
@pytest.mark.skipif(sys.version_info >= (3, 13), reason="Python itself doesn't survive it")
@pytest.mark.parametrize("tells_python", [True, False])
def test_fork_by_an_extension(backend: SqliteBackend, tells_python: bool) -> None:
    """A fork by an extension, which runs no hook before it and maybe none after it, is refused rather than unsafe;
    also after an earlier fork that went well."""
    backend.run(add("a"), write=True)
    _in_child(functools.partial(backend.run, count))
    backend.run(count)
    pid = ctypes.PyDLL(None).fork()
    if pid == 0:
        status = 1
        try:
            if tells_python:
                ctypes.pythonapi.PyOS_AfterFork_Child()
            with pytest.raises(UsageError, match="forked"):
                backend.run(add("b"), write=True)
            status = 0
        finally:
            os._exit(status)
    _wait_for(pid, 10.0)
    backend.run(add("c"), write=True)
    assert backend.run(names) == ["a", "c"]


@needs_fork
def test_memory_store_in_a_forked_child(tmp_path: Path) -> None:
    """What is in the parent's memory is refused in a child, not silently copied; the parent keeps it."""
    backend = backend_on(":memory:")
    backend.run(add("a"), write=True)

    def child() -> None:
        with pytest.raises(UsageError, match="memory"):
            backend.run(count)
        backend.close()

    _in_child(child)
    assert backend.run(count) == 1
    backend.close()


def _pool_worker(arguments: tuple[str, int]) -> int:
    path, i = arguments
    own = backend_on(path)
    own.run(add(f"w{i}"), write=True)
    own.close()
    return i


@pytest.mark.parametrize("method", multiprocessing.get_all_start_methods())
def test_multiprocessing(backend: SqliteBackend, tmp_path: Path, method: str) -> None:
    """multiprocessing's start methods all work beside an open backend."""
    backend.run(add("parent"), write=True)
    with multiprocessing.get_context(method).Pool(2) as pool:
        assert sorted(pool.map(_pool_worker, [(str(tmp_path / "a.db"), i) for i in range(6)])) == list(range(6))
    assert backend.run(count) == 7


def test_another_process_opens_and_closes(backend: SqliteBackend, tmp_path: Path) -> None:
    """B66: nothing that opening, checking and narrowing do drops our locks: another process that opens and closes
    the file between two writes leaves the -wal in place, and sees both."""
    backend.run(add("1"), write=True)
    inode = os.stat(tmp_path / "a.db-wal").st_ino
    os.chmod(tmp_path / "a.db", 0o604)
    second = backend_on(tmp_path / "a.db")
    second.run(count)
    with pytest.raises(CkptError):
        SqliteBackend(tmp_path / "a.db" / "x").run(count)
    second.close()
    schema.look(str(tmp_path / "a.db"), f"file:{tmp_path}/a.db")
    script = "c = __import__('sqlite3').connect(sys.argv[1]); c.execute('SELECT * FROM items').fetchall(); c.close()"
    run_script(script, tmp_path / "a.db")
    assert os.stat(tmp_path / "a.db-wal").st_ino == inode
    backend.run(add("2"), write=True)
    assert run_script("print(backend_on(sys.argv[1]).run(count))", tmp_path / "a.db").strip() == "2"


def test_locks_cancelled_by_somebody_else_are_noticed(tmp_path: Path) -> None:
    """B66: when other code of this process opens and closes the file and the -wal is then deleted, the next write
    is not acknowledged: PoisonedError, and the file is left alone by this process."""
    run_script(
        """
        import subprocess
        from agent_ckpt.errors import PoisonedError, UsageError
        path = sys.argv[1]
        backend = backend_on(path)
        backend.run(add("1"), write=True)
        open(path, "rb").close()
        other = "import sqlite3, sys; c = sqlite3.connect(sys.argv[1]); c.execute(sys.argv[2]); c.commit(); c.close()"
        insert = "INSERT INTO items (name) VALUES ('other')"
        subprocess.run([sys.executable, "-c", other, path, "SELECT 1 FROM items"], check=True)
        subprocess.run([sys.executable, "-c", other, path, insert], check=True)
        try:
            backend.run(add("2"), write=True)
        except PoisonedError as exc:
            assert "deleted" in str(exc)
        else:
            raise AssertionError("acknowledged a lost write")
        for later in (backend, backend_on(path, table=False)):
            try:
                later.run(count)
            except UsageError as exc:
                assert "-wal was deleted or replaced" in str(exc)
            else:
                raise AssertionError("went on")
        backend.close()
        """,
        tmp_path / "a.db",
    )
    check = backend_on(tmp_path / "a.db")
    assert check.run(names) == ["1", "other"]
    check.close()
    _assert_sound(tmp_path / "a.db")


def test_interrupts_at_any_moment(tmp_path: Path) -> None:
    """Hundreds of KeyboardInterrupts at random moments of sync writes on the main thread: nobody hangs, nothing
    acknowledged is lost, nothing is half there, and no other writer gets an error."""
    out = run_script(
        """
        import random, signal
        from tests.sqlite_backend import names
        backend = backend_on(sys.argv[1])
        stop, done, mine, hits, i = threading.Event(), [], [], 0, 0
        def other(me):
            while not stop.is_set():
                name = f"{me}-{time.monotonic_ns()}"
                backend.run(add(name + "a", name + "b"), write=True)
                backend.run(count)
                done.append(name)
        workers = [threading.Thread(target=other, args=(me,)) for me in range(3)]
        for worker in workers:
            worker.start()
        signal.signal(signal.SIGALRM, signal.default_int_handler)
        end = time.monotonic() + 2
        while time.monotonic() < end:
            try:
                signal.setitimer(signal.ITIMER_REAL, random.uniform(0.0001, 0.003))
                while True:
                    i += 1
                    backend.run(add(f"m{i}a", f"m{i}b"), write=True)
                    mine.append(f"m{i}")
                    backend.run(count)
            except KeyboardInterrupt:
                hits += 1
        signal.setitimer(signal.ITIMER_REAL, 0)
        stop.set()
        for worker in workers:
            worker.join(10)
            assert not worker.is_alive()
        found = set(backend.run(names))
        assert all(name + end in found for name in done + mine for end in "ab")
        assert all(name[:-1] + "b" in found for name in found if name.endswith("a"))
        assert done
        print(hits)
        """,
        tmp_path / "a.db",
    )
    assert int(out) > 100


def test_system_without_flock(tmp_path: Path) -> None:
    """Where there is no flock everything still works, and a log record says which promise needs one."""
    run_script(
        """
        import logging
        sys.modules["fcntl"] = None
        for name in [name for name in sys.modules if name.startswith(("agent_ckpt.sqlite", "filelock"))]:
            del sys.modules[name]
        records = []
        handler = logging.Handler()
        handler.emit = records.append
        logging.getLogger("agent_ckpt").addHandler(handler)
        del sys.modules["tests.sqlite_backend"]
        from tests.sqlite_backend import add, backend_on, count
        backend = backend_on(sys.argv[1])
        backend.run(add("a"), write=True)
        assert backend.run(count) == 1
        warned = [record for record in records if "let one process write" in record.getMessage()]
        assert len(warned) == 1, records
        backend.close()
        """,
        tmp_path / "a.db",
    )
    assert sorted(os.listdir(tmp_path)) == ["a.db", "a.db-lock"]


def test_side_file_that_was_tidied_away(backend: SqliteBackend, tmp_path: Path) -> None:
    """A deleted side file is made anew, so that later writers meet at one file again."""
    backend.run(add("1"), write=True)
    os.unlink(tmp_path / "a.db-lock")
    backend.run(add("2"), write=True)
    assert (tmp_path / "a.db-lock").exists()
    run_script("backend_on(sys.argv[1]).run(add('3'), write=True)", tmp_path / "a.db")
    assert backend.run(count) == 3


def test_lock_of_a_stopped_process(backend: SqliteBackend, tmp_path: Path) -> None:
    """A process that is frozen in the middle of a write holds others back no longer than their own timeout."""
    process = start(
        """
        backend = backend_on(sys.argv[1])
        def program():
            yield from add("frozen")()
            print("inside", flush=True)
            time.sleep(60)
        backend.run(program, write=True)
        """,
        tmp_path / "a.db",
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "inside\n"
    process.send_signal(signal.SIGSTOP)
    other: Any = backend_on(tmp_path / "a.db", table=False, busy_timeout_s=0.2)
    with pytest.raises(CkptError, match="busy"):
        other.run(add("x"), write=True)
    assert backend.run(count) == 0
    process.kill()
    process.communicate()
    other.run(add("y"), write=True)
    assert backend.run(names) == ["y"]
    other.close()
