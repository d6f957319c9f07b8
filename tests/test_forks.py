"""Programs that fork with a saver in hand, and many OS threads and event loops on one saver.

AGENT_CKPT_TEST_FORKS sets the forks for each way (CI: 2; 50 take about two minutes).
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agent_ckpt import AgentSaver
from tests.conftest import Api
from tests.contests import steps_graph
from tests.faults import ROOT
from tests.fork_workers import started_by_multiprocessing
from tests.test_lifecycle import made, thread

FORKS = int(os.environ.get("AGENT_CKPT_TEST_FORKS", "2"))
MANY = 2000
WATCHDOG_S = 60.0

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")


def program(path: Path, what: str, count: int) -> list[tuple[str, int]]:
    """Run a program of fork_workers; what it was told is stored."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "tests.fork_workers", str(path), what, str(count)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        timeout=WATCHDOG_S * (1 + FORKS),
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert not done.stderr.strip(), done.stderr[-4000:]
    lines = (path.parent / "journal").read_text().splitlines()
    return [tuple(json.loads(line)) for line in lines]


def assert_stored(saver: AgentSaver, told: list[tuple[str, int]]) -> None:
    for name, number in told:
        found = saver.get_tuple(thread(name))
        assert found is not None, f"{name} was acknowledged and is lost"
        assert found.checkpoint["channel_values"]["n"] == number


@needs_fork
@pytest.mark.parametrize("when", ["before", "between", "during"])
def test_forks(when: str, path: Path, open_saver: Callable[..., AgentSaver]) -> None:
    """B48: a fork before the first use, between uses, or while other OS threads write: child and parent both go on,
    also where the parent closes first; nobody hangs, nothing that was acknowledged is lost."""
    told = program(path, when, FORKS)
    assert len(told) >= FORKS * 3
    assert_stored(open_saver(), told)


@needs_fork
def test_preloaded_server(path: Path, open_saver: Callable[..., AgentSaver]) -> None:
    """B48, B45: an app that was built and used before its workers were forked (gunicorn --preload) serves in all of
    them, with a new event loop for each request; one is killed and replaced, the master closes first."""
    told = program(path, "preload", 3)
    saver = open_saver()
    assert_stored(saver, told)
    graph = steps_graph(saver)
    assert graph.get_state(thread("master")).values["log"] == [0, 1]
    names = {name.rpartition(" ")[0] for name, _ in told}
    assert {"worker 0", "worker 1", "replacement"} <= names, "some worker served nothing, so this proves little"
    for name in ("worker 0", "worker 1", "replacement"):
        last = max(number for told_name, number in told if told_name == f"{name} {number}")
        for kind in ("graph", "sync graph"):
            log = graph.get_state(thread(f"{name} {kind}")).values["log"]
            assert log == list(range(len(log)))
            assert len(log) > last


@pytest.mark.parametrize("method", multiprocessing.get_all_start_methods())
def test_multiprocessing(method: str, saver: AgentSaver, path: Path) -> None:
    """B48: processes of each start method run graphs on savers of their own beside an open one."""
    graph = steps_graph(saver)
    graph.invoke({"who": 0}, thread("parent"))
    context = multiprocessing.get_context(method)
    processes = [context.Process(target=started_by_multiprocessing, args=(path, f"child {each}")) for each in range(2)]
    for process in processes:
        process.start()
    graph.invoke({"who": 1}, thread("parent"))
    for process in processes:
        process.join(WATCHDOG_S)
        assert process.exitcode == 0
        process.close()
    assert graph.get_state(thread("parent")).values["log"] == [0, 1]
    for each in range(2):
        assert graph.get_state(thread(f"child {each}")).values["log"] == [1, 2]


# Many at once


def test_two_thousand_os_threads(saver: AgentSaver) -> None:
    """2,000 OS threads put and restore at the same moment on one saver: all are answered, with few connections."""
    go, failed = threading.Event(), []
    threading.stack_size(256 * 1024)

    def work(number: int) -> None:
        go.wait(WATCHDOG_S)
        try:
            saver.put(thread(f"t{number}"), *made(number))
            found = saver.get_tuple(thread(f"t{number}"))
            assert found is not None
            assert found.checkpoint["channel_values"]["n"] == number
        except BaseException as exc:
            failed.append(exc)

    try:
        workers = [threading.Thread(target=work, args=(number,)) for number in range(MANY)]
        for worker in workers:
            worker.start()
    finally:
        threading.stack_size(0)
    go.set()
    for worker in workers:
        worker.join(2 * WATCHDOG_S)
        assert not worker.is_alive(), "it hangs"
    assert failed == []
    assert len(list(saver.threads())) == MANY
    assert _connections(saver) < 20


def test_two_thousand_tasks(saver: AgentSaver) -> None:
    """2,000 tasks of one event loop put and restore threads of their own at once; their puts share commits."""
    commits: list[str] = []
    saver._backend.on_statement = lambda said: commits.append(said) if said == "BEGIN IMMEDIATE" else None

    async def work(number: int) -> None:
        config = await saver.aput(thread(f"t{number}"), *made(number))
        await saver.aput_writes(config, [("n", number)], "task")

    async def main() -> None:
        await asyncio.gather(*(work(number) for number in range(MANY)))
        assert len(commits) < MANY, "no put shared a commit"
        found = await asyncio.gather(*(saver.aget_tuple(thread(f"t{number}")) for number in range(MANY)))
        for number, item in enumerate(found):
            assert item is not None
            assert item.checkpoint["channel_values"]["n"] == number
            assert item.pending_writes == [("task", "n", number)]

    asyncio.run(main())
    assert len(list(saver.threads())) == MANY


def test_scripts_that_are_run_again(form: str, saver: AgentSaver) -> None:
    """As Streamlit does: a saver that is kept for the process, and for each rerun a new OS thread, which is stopped in
    the middle of its stream by an exception; connections and workers don't pile up, and each rerun goes on."""
    graph: Any = steps_graph(saver)

    class Stop(BaseException):
        pass

    def rerun(number: int, stop: bool) -> None:
        async def astream() -> None:
            async for _ in graph.astream({"who": number}, thread()):
                if stop:
                    raise Stop

        try:
            if form == "async":
                asyncio.run(astream())
            for _ in graph.stream({"who": number}, thread()) if form == "sync" else ():
                if stop:
                    raise Stop
        except Stop:
            pass

    for number in range(40):
        worker = threading.Thread(target=rerun, args=(number, number % 2 == 0))
        worker.start()
        worker.join(WATCHDOG_S)
        assert not worker.is_alive(), "it hangs"
    log = Api(saver, form).get_state(graph, thread()).values["log"]
    # A run that was stopped may or may not have stored its step; the others have all done.
    assert [number for number in log if number % 2] == list(range(1, 40, 2))
    assert len(set(log)) == len(log)
    assert _connections(saver) < 20
    assert sum(worker.is_alive() for worker in threading.enumerate()) < 30


def _connections(saver: AgentSaver) -> int:
    """Descriptors of this process on the store's database file."""
    count = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            count += os.readlink(f"/proc/self/fd/{name}") == saver._backend.target
        except OSError:
            continue
    return count
