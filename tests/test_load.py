"""Many processes write one file at once: nobody is told that it is locked, and no call waits as long as it may.

AGENT_CKPT_TEST_LOAD=full takes 8 processes of 2,000 calls and 32 writers of 400 values of 20 kB; CI takes less.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import random
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from agent_ckpt import AgentSaver
from tests.conftest import assert_sound
from tests.race_workers import CONTEXT
from tests.test_lifecycle import made, thread

FULL = os.environ.get("AGENT_CKPT_TEST_LOAD", "") == "full"
BUSY_TIMEOUT_S = 30.0
WATCHDOG_S = 3600.0 if FULL else 120.0


def text_of(number: int, size: int) -> str:
    """Text that doesn't compress to less than half, another for each number."""
    return random.Random(number).randbytes(size // 2).hex()


class Timed:
    """A saver whose calls are timed."""

    def __init__(self, saver: AgentSaver) -> None:
        self.saver = saver
        self.worst = 0.0

    def __call__(self, call: Callable[[], Any]) -> Any:
        began = time.monotonic()
        try:
            return call()
        finally:
            self.worst = max(self.worst, time.monotonic() - began)

    def write(self, name: str, calls: int, size: int) -> None:
        """A thread of one's own: put and put_writes by turns, and now and then a restore."""
        config: Any = thread(name)
        for number in range(calls):
            if number % 2 == 0:
                checkpoint, metadata, versions = made(number)
                checkpoint["channel_values"]["text"] = text_of(number, size)
                checkpoint["channel_versions"]["text"] = versions["text"] = number + 1
                config = self(lambda: self.saver.put(config, checkpoint, metadata, versions))
            else:
                writes = [("n", number), ("text", text_of(number, size))]
                self(lambda: self.saver.put_writes(config, writes, f"task {number}"))
            if number % 10 == 9:
                found = self(lambda: self.saver.get_tuple(thread(name)))
                assert found.checkpoint["channel_values"]["n"] == number - 1
                assert found.pending_writes[-1][2] == text_of(number, size)

    async def awrite(self, name: str, calls: int, size: int) -> None:
        """Puts by the async form."""
        config: Any = thread(name)
        for number in range(calls):
            checkpoint, metadata, versions = made(number)
            checkpoint["channel_values"]["text"] = text_of(number, size)
            checkpoint["channel_versions"]["text"] = versions["text"] = number + 1
            began = time.monotonic()
            config = await self.saver.aput(config, checkpoint, metadata, versions)
            self.worst = max(self.worst, time.monotonic() - began)


def write(path: Path, who: int, threads: int, calls: int, size: int, connection: Connection) -> None:
    """One process: so many OS threads or, in every second process, tasks, which all write."""
    warnings.simplefilter("error")
    with AgentSaver(path, busy_timeout_s=BUSY_TIMEOUT_S) as saver:
        timed = Timed(saver)
        names = [f"{who}.{number}" for number in range(threads)]
        if threads > 1 and who % 2:

            async def main() -> None:
                await asyncio.gather(*(timed.awrite(name, calls, size) for name in names))

            asyncio.run(main())
        else:
            with ThreadPoolExecutor(threads) as pool:
                list(pool.map(lambda name: timed.write(name, calls, size), names))
        connection.send(timed.worst)


@pytest.mark.parametrize(
    ("processes", "threads", "calls", "size"),
    [
        (8, 1, 2000 if FULL else 40, 400),
        (4, 8, 400 if FULL else 8, 20_000),
        (32 if FULL else 10, 1, 400 if FULL else 4, 20_000),
    ],
    ids=["8 processes", "32 writers in 4 processes", "many processes"],
)
def test_many_writers_of_one_file(processes: int, threads: int, calls: int, size: int, path: Path) -> None:
    """B32: none of many writers of one file, in processes, OS threads and tasks, is told that it is locked; the worst
    call waits less than busy_timeout_s; everything is stored."""
    AgentSaver(path).close()
    began = time.monotonic()
    running = []
    for who in range(processes):
        ours, theirs = CONTEXT.Pipe(duplex=False)
        process = CONTEXT.Process(target=write, args=(path, who, threads, calls, size, theirs), daemon=True)
        process.start()
        theirs.close()
        running.append((process, ours))
    worst = [_result(process, ours) for process, ours in running]
    took = time.monotonic() - began
    print(f"{processes * threads * calls} calls in {took:.1f} s, the worst took {max(worst):.2f} s")
    assert max(worst) < BUSY_TIMEOUT_S
    with AgentSaver(path, create=False) as saver:
        assert len(list(saver.threads())) == processes * threads
        for who in range(processes):
            for number in range(threads):
                puts = calls if threads > 1 and who % 2 else (calls + 1) // 2
                assert len(list(saver.list(thread(f"{who}.{number}")))) == puts
    assert_sound(path)


def _result(process: multiprocessing.process.BaseProcess, connection: Connection) -> float:
    assert connection.poll(WATCHDOG_S), "it hangs"
    try:
        worst = connection.recv()
    except EOFError:
        raise AssertionError("a writer failed; its error stands in the output") from None
    process.join(WATCHDOG_S)
    assert process.exitcode == 0
    process.close()
    connection.close()
    return float(worst)
