"""A lock that is held, a disk that is full, files that can't be written: typed errors, and the old head stays."""

from __future__ import annotations

import ctypes
import os
import random
import sqlite3
import struct
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.base import empty_checkpoint

from agent_ckpt import AgentSaver, BusyError, DiskFullError
from tests.conftest import Api, assert_sound
from tests.contests import contents, steps_graph

ROOT = Path(__file__).resolve().parent.parent
THREAD = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}


def put(api: Any, number: int, size: int = 0, config: Any = None) -> Any:
    """Put a checkpoint on the head, with so many bytes of text that doesn't compress."""
    made = empty_checkpoint()
    made["channel_values"] = {"n": number, "text": random.Random(number).randbytes(size // 2).hex()}
    made["channel_versions"] = {"n": number + 1, "text": number + 1}
    if config is None:
        found = api.get_tuple(THREAD)
        config = found.config if found is not None else THREAD
    return api.put(config, made, {"source": "loop", "step": number, "parents": {}}, made["channel_versions"])


def head(api: Any) -> int:
    return int(api.get_tuple(THREAD).checkpoint["channel_values"]["n"])


# Locks (B32)


@contextmanager
def held(path: Path) -> Iterator[Callable[[], None]]:
    """Another connection holds the write lock; the callable lets go."""
    with closing(sqlite3.connect(path, isolation_level=None, check_same_thread=False)) as connection:
        connection.execute("BEGIN IMMEDIATE")

        def let_go() -> None:
            if connection.in_transaction:
                connection.execute("COMMIT")

        yield let_go
        let_go()


def test_put_waits_for_a_lock(form: str, path: Path, open_saver: Callable[..., AgentSaver]) -> None:
    """B32: while another connection holds the write lock, put, put_writes and a whole run wait, and then work."""
    saver = open_saver(busy_timeout_s=30)
    api = Api(saver, form)
    config = put(api, 0)
    graph = steps_graph(saver)
    calls = [
        lambda: put(api, 1, config=config),
        lambda: api.put_writes(api.get_tuple(THREAD).config, [("n", 5)], "task"),
        lambda: api.invoke(graph, {"who": 1}, {"configurable": {"thread_id": "graph"}}),
        lambda: api.delete_thread("other"),
    ]
    for call in calls:
        with held(path) as let_go:
            timer = threading.Timer(0.5, let_go)
            timer.start()
            started = time.monotonic()
            call()
            waited = time.monotonic() - started
            timer.join()
        assert waited > 0.3, "it did not meet the lock, so this proves nothing"
    assert head(api) == 1
    assert len(api.get_tuple(THREAD).pending_writes) == 1
    assert graph.get_state({"configurable": {"thread_id": "graph"}}).values["log"] == [1]


def test_longer_than_the_drivers_default(path: Path, open_saver: Callable[..., AgentSaver]) -> None:
    """B32: a lock of more than five seconds, where the driver's default gives up, is waited for too."""
    saver = open_saver()
    put(saver, 0)
    with held(path) as let_go:
        timer = threading.Timer(5.5, let_go)
        timer.start()
        put(saver, 1)
        timer.join()
    assert head(saver) == 1


def test_lock_past_the_limit(form: str, path: Path, open_saver: Callable[..., AgentSaver]) -> None:
    """B32: past busy_timeout_s each write raises BusyError with the time it waited; reads work, the next write too."""
    saver = open_saver(busy_timeout_s=0.3)
    api = Api(saver, form)
    config = put(api, 0)
    before = contents(path)
    with held(path):
        for call in (
            lambda: put(api, 1, config=config),
            lambda: api.put_writes(config, [("n", 1)], "task"),
            lambda: api.delete_thread("t"),
            lambda: api.invoke(steps_graph(saver), {"who": 1}, {"configurable": {"thread_id": "g"}}),
        ):
            started = time.monotonic()
            with pytest.raises(BusyError) as caught:
                call()
            waited = time.monotonic() - started
            assert 0.25 <= caught.value.waited_s <= waited + 0.1
            assert caught.value.retry == "after_wait"
            assert caught.value.path == str(path)
            assert "busy_timeout_s" in str(caught.value)
            assert head(api) == 0
    assert contents(path) == before
    # The session that met the lock goes on.
    put(api, 1, config=config)
    assert head(api) == 1
    api.invoke(steps_graph(saver), {"who": 1}, {"configurable": {"thread_id": "g"}})


def test_first_open_meets_a_lock(form: str, path: Path, open_saver: Callable[..., AgentSaver]) -> None:
    """A saver that opens while another connection holds the write lock reads at once and waits to write."""
    put(open_saver(), 0)
    with held(path) as let_go:
        late = Api(open_saver(busy_timeout_s=30), form)
        assert head(late) == 0
        timer = threading.Timer(0.4, let_go)
        timer.start()
        put(late, 1)
        timer.join()
    assert head(late) == 1


# A full disk (B63)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A folder on a file system of 1 MiB of its own."""
    folder = tmp_path / "small"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m,mode=0700", "tmpfs", str(folder)], capture_output=True, text=True
    )
    if mounted.returncode:
        pytest.skip(f"this user can't mount a tmpfs ({mounted.stderr.strip()}); test_file_size_limit stands in")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def free(folder: Path) -> int:
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize


@contextmanager
def filled(folder: Path) -> Iterator[Callable[[], None]]:
    """A file system that is full but for some kB; the callable makes room."""
    ballast = folder / "ballast"
    with ballast.open("wb", buffering=0) as file:
        while (left := free(folder) - 150_000) > 0:
            file.write(bytes(min(left, 65536)))
    yield lambda: ballast.unlink(missing_ok=True)


def test_full_disk(form: str, small_disk: Path) -> None:
    """B63: on a full file system put and put_writes raise DiskFullError, leave nothing, and work once there is room."""
    path = small_disk / "agent.db"
    with AgentSaver(path) as saver:
        api = Api(saver, form)
        config = put(api, 0, 2000)
        api.put_writes(config, [("n", 1)], "task 0")
        with filled(small_disk) as make_room:
            before = contents(path)
            for _ in range(2):
                with pytest.raises(DiskFullError) as caught:
                    put(api, 1, 400_000, config)
                assert caught.value.path == str(path)
                assert caught.value.retry == "after_wait"
                assert "free" in str(caught.value)
                with pytest.raises(DiskFullError):
                    api.put_writes(config, [("text", random.Random(5).randbytes(400_000))] * 2, "task 1")
                assert contents(path) == before
                assert head(api) == 0
            # What still fits is stored, by the session that met the full disk.
            config = put(api, 2, 100, config)
            make_room()
        put(api, 3, 200_000, config)
        assert head(api) == 3
    assert_sound(path)


def test_disk_that_fills_up(form: str, small_disk: Path) -> None:
    """B63: putting until nothing fits loses nothing that was acknowledged, whatever the size of a put."""
    path = small_disk / "agent.db"
    stored = []
    with AgentSaver(path) as saver:
        api = Api(saver, form)
        config: Any = THREAD
        for size in (40_000, 5000, 200):
            with pytest.raises(DiskFullError):
                while True:
                    config = put(api, len(stored), size, config)
                    stored.append(len(stored))
            assert head(api) == stored[-1]
        assert [item.checkpoint["channel_values"]["n"] for item in api.list(THREAD)] == stored[::-1]
        assert len(stored) > 10
    assert_sound(path)
    with AgentSaver(path, create=False) as saver:
        assert [item.checkpoint["channel_values"]["n"] for item in saver.list(THREAD)] == stored[::-1]


def test_run_on_a_full_disk(form: str, small_disk: Path) -> None:
    """A graph's run that meets a full disk raises DiskFullError and can be run again when there is room."""
    path = small_disk / "agent.db"
    config = {"configurable": {"thread_id": "g"}}
    with AgentSaver(path) as saver:
        api = Api(saver, form)
        graph = steps_graph(saver)
        api.invoke(graph, {"who": 1}, config)
        large = random.Random(1).randbytes(400_000).hex()
        with filled(small_disk) as make_room:
            with pytest.raises(DiskFullError):
                api.invoke(graph, {"who": large}, config, durability="sync")
            assert api.get_state(graph, config).values["log"] == [1]
            make_room()
        assert api.invoke(graph, {"who": 2}, config)["log"] == [1, 2]
    assert_sound(path)


def script(text: str, *arguments: Any) -> str:
    """Run a script in a new process with the helpers of this module."""
    head = "import logging, os, sys\nfrom agent_ckpt import *\nfrom tests.test_disk import *\nlogging.disable()\n"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", head + textwrap.dedent(text), *map(str, arguments)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=60,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert not done.stderr.strip(), done.stderr[-3000:]
    return done.stdout


def test_file_size_limit(form: str, path: Path) -> None:
    """B63: where writing fails in mid-commit the error is typed, the old head intact, and a later put works.

    The limit of a process on the size of its files stands in for a full disk where none can be mounted.
    """
    script(
        """
        import resource
        path, form = Path(sys.argv[1]), sys.argv[2]
        saver = AgentSaver(path)
        api = Api(saver, form)
        config = put(api, 0, 2000)
        before = contents(path)
        limit = os.stat(f"{path}-wal").st_size + 100_000
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
        try:
            put(api, 1, 400_000, config)
        except (UnavailableError, PoisonedError) as exc:
            assert exc.retry in ("after_wait", "after_reading"), exc.retry
            assert exc.path == str(path)
            print(type(exc).__name__)
        else:
            raise AssertionError("stored beyond the limit")
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        assert head(api) == 0
        # Nothing is there but the sequence number of a commit that may have had to settle another.
        assert {**contents(path), "this_store": 0} == {**before, "this_store": 0}
        put(api, 2, 400_000)
        assert head(api) == 2
        assert len(api.list(THREAD)) == 2
        saver.close()
        """,
        path,
        form,
    )
    assert_sound(path)


# Files that can't be written


def obey_file_modes() -> None:
    """Give up root's right to pass by the modes of files, for this OS thread and those that it starts."""
    libc = ctypes.CDLL(None, use_errno=True)
    header = struct.pack("Ii", 0x20080522, 0)
    data = ctypes.create_string_buffer(24)
    assert libc.capget(header, data) == 0
    fields = list(struct.unpack("6I", data.raw))
    passing_by_modes = 1 << 1 | 1 << 2
    for number in (0, 1):
        fields[number] &= ~passing_by_modes
    assert libc.capset(header, struct.pack("6I", *fields)) == 0, os.strerror(ctypes.get_errno())


@pytest.mark.parametrize("what", ["file", "folder", "both", "new file"])
def test_not_writable(what: str, form: str, tmp_path: Path) -> None:
    """A file or a folder that can't be written: ReadOnlyError, the old head intact, and the next put works."""
    folder = tmp_path / "folder"
    folder.mkdir()
    path = folder / "agent.db"
    if what != "new file":
        with AgentSaver(path) as saver:
            put(saver, 0)
    script(
        """
        path, form, what = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
        obey_file_modes()
        if what in ("file", "both"):
            path.chmod(0o400)
        if what != "file":
            path.parent.chmod(0o500)
        names = sorted(os.listdir(path.parent))
        saver = AgentSaver(path)
        api = Api(saver, form)
        for _ in range(2):
            try:
                put(api, 1, config=THREAD)
            except ReadOnlyError as exc:
                assert str(path) in str(exc), exc
                assert exc.retry == "after_wait"
            else:
                raise AssertionError("stored")
        path.parent.chmod(0o700)
        if what != "new file":
            path.chmod(0o600)
            assert head(api) == 0
        put(api, 2)
        assert head(api) == 2
        saver.close()
        """,
        path,
        form,
        what,
    )
    assert_sound(path)


def test_reader_beside_a_writer(form: str, tmp_path: Path) -> None:
    """A process that may only read the file reads the head of a live store, and its puts raise ReadOnlyError."""
    path = tmp_path / "agent.db"
    with AgentSaver(path) as saver:
        put(saver, 7)
        out = script(
            """
            path, form = Path(sys.argv[1]), sys.argv[2]
            obey_file_modes()
            for suffix in ("", "-wal", "-shm", "-lock"):
                os.chmod(f"{path}{suffix}", 0o400)
            api = Api(AgentSaver(path, create=False), form)
            print(head(api))
            try:
                put(api, 8)
            except ReadOnlyError as exc:
                print("refused")
            api.saver.close()
            """,
            path,
            form,
        )
        assert out.split() == ["7", "refused"]
        put(saver, 9)
        assert head(saver) == 9
    assert_sound(path)
