"""Programs that fork with a saver in hand, run as programs of their own; each prints what was acknowledged to it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from agent_ckpt import AgentSaver
from tests.contests import steps_graph
from tests.test_lifecycle import made, thread

CHILD_S = 60.0


class Journal:
    """What was acknowledged: one line of a file for each, appended by whichever process it was told to."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def wait_for(self, name: str) -> None:
        """Wait until something whose name begins so was acknowledged, in whichever process."""
        deadline = time.monotonic() + CHILD_S
        while f'["{name} ' not in self._path.read_text():
            assert time.monotonic() < deadline, f"{name} has done nothing"
            time.sleep(0.01)

    def put(self, saver: AgentSaver, name: str, number: int) -> None:
        saver.put(thread(name), *made(number))
        os.write(self._file, (json.dumps([name, number]) + "\n").encode())


def in_child(action: Callable[[], None]) -> int:
    """Fork, run the action in the child, and leave it without cleaning up."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            action()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    return pid


def finish(pid: int) -> None:
    """Wait for a child to end well.

    Raises:
        AssertionError: when it hangs or failed.
    """
    deadline = time.monotonic() + CHILD_S
    while time.monotonic() < deadline:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            assert status == 0, f"the child ended with {status}"
            return
        time.sleep(0.002)
    os.kill(pid, signal.SIGKILL)
    raise AssertionError("the child hangs")


def fork_rounds(path: Path, journal: Journal, when: str, rounds: int) -> None:
    """Fork before the first use, between uses, or while other OS threads write; child and parent both go on.

    In every third round the parent closes first, and the child outlives its saver.
    """
    for number in range(rounds):
        with ExitStack() as stack:
            saver = AgentSaver(path)
            name = f"{when} {number}"
            if when != "before":
                journal.put(saver, f"{name} first", 0)
                asyncio.run(saver.aget_tuple(thread(f"{name} first")))
            if when == "during":
                stack.enter_context(Busy(saver, journal, name))
            gate, opened = os.pipe()
            closes_first = number % 3 == 2

            def child(
                saver: AgentSaver = saver,
                name: str = name,
                gate: int = gate,
                opened: int = opened,
                wait: bool = closes_first,
            ) -> None:
                os.close(opened)
                journal.put(saver, f"{name} child", 1)
                if wait:
                    assert os.read(gate, 1) == b"", "the parent has closed"
                journal.put(saver, f"{name} child again", 2)
                asyncio.run(saver.aput(thread(f"{name} child async"), *made(3)))
                assert saver.get_tuple(thread(f"{name} child")) is not None
                if number % 2:
                    saver.close()

            pid = in_child(child)
            os.close(gate)
            journal.put(saver, f"{name} parent", 4)
            if closes_first:
                stack.close()
                saver.close()
            os.close(opened)
            finish(pid)
            if not closes_first:
                journal.put(saver, f"{name} parent again", 5)
                assert saver.get_tuple(thread(f"{name} child again")) is not None
                stack.close()
                saver.close()


class Busy:
    """Two OS threads that put without a pause, one of them by the async form."""

    def __init__(self, saver: AgentSaver, journal: Journal, name: str) -> None:
        self._saver, self._journal, self._name = saver, journal, name
        self._stop = threading.Event()
        self._workers = [
            threading.Thread(target=self._puts),
            threading.Thread(target=asyncio.run, args=(self._aputs(),)),
        ]

    def _puts(self) -> None:
        number = 0
        while not self._stop.is_set():
            self._journal.put(self._saver, f"{self._name} busy {number}", number)
            number += 1

    async def _aputs(self) -> None:
        number = 0
        while not self._stop.is_set():
            await self._saver.aput(thread(f"{self._name} abusy {number % 5}"), *made(number))
            number += 1

    def __enter__(self) -> None:
        for worker in self._workers:
            worker.start()
        time.sleep(0.01)

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for worker in self._workers:
            worker.join(CHILD_S)
            assert not worker.is_alive(), "it hangs"


def preload(path: Path, journal: Journal, workers: int) -> None:
    """A server that builds its app, and uses it, before it forks its workers; one is killed and replaced."""
    saver = AgentSaver(path)
    graph = steps_graph(saver)
    graph.invoke({"who": 0}, thread("master"))

    def serve(name: str) -> Callable[[], None]:
        def requests() -> None:
            signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
            try:
                signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
                for number in range(1_000_000):
                    # As Celery's tasks do: a new event loop for each.
                    asyncio.run(graph.ainvoke({"who": number}, thread(f"{name} graph")))
                    graph.invoke({"who": number}, thread(f"{name} sync graph"))
                    journal.put(saver, f"{name} {number}", number)
            except SystemExit:
                saver.close()

        return requests

    # A worker that isn't ready for it yet hears of it later.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    running = [in_child(serve(f"worker {number}")) for number in range(workers)]
    for number in range(workers):
        journal.wait_for(f"worker {number}")
    killed = running.pop()
    os.kill(killed, signal.SIGKILL)
    os.waitpid(killed, 0)
    graph.invoke({"who": 1}, thread("master"))
    running.append(in_child(serve("replacement")))
    journal.wait_for("replacement")
    journal.put(saver, "master at the end", 1)
    saver.close()
    # They go on after the master has closed.
    time.sleep(0.2)
    for pid in running:
        os.kill(pid, signal.SIGTERM)
    for pid in running:
        finish(pid)


def main(path: Path, what: str, count: int) -> None:
    warnings.simplefilter("error")
    if sys.version_info >= (3, 12):
        # Python warns of every fork beside other OS threads; what happens then is what this is about.
        warnings.filterwarnings("ignore", message=".*multi-threaded.*fork.*", category=DeprecationWarning)
    journal = Journal(path.parent / "journal")
    if what == "preload":
        preload(path, journal, count)
    else:
        fork_rounds(path, journal, what, count)


def started_by_multiprocessing(path: Path, name: str) -> None:
    """What a process of multiprocessing does: a saver of its own, sync and async."""
    with AgentSaver(path) as saver:
        graph: Any = steps_graph(saver)
        graph.invoke({"who": 1}, thread(name))
        asyncio.run(graph.ainvoke({"who": 2}, thread(name)))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
