"""Competing workers, killed at random, append to lists; what the store holds is one history of what they were told.

AGENT_CKPT_TEST_HISTORY_S sets for how many seconds the workers run (CI: 3).
"""

from __future__ import annotations

import itertools
import os
import random
import signal
import time
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.sqlite import SqliteSaver

from agent_ckpt import AgentSaver
from tests.conftest import assert_sound
from tests.histories import Told, append, begin, check
from tests.race_workers import CONTEXT

SECONDS = float(os.environ.get("AGENT_CKPT_TEST_HISTORY_S", "3"))
WORKERS = 4
WATCHDOG_S = 60.0


def compete(path: Path, kind: str, seconds: float, refused: int, kills: random.Random | None) -> tuple[Told, int]:
    """Let workers append for so long, and on until so many appends were refused; then kill them all.

    With `kills`, one is killed now and then before that, and another takes its place.
    """
    told, numbers, killed = Told(), itertools.count(1), 0
    with SqliteSaver.from_conn_string(str(path)) if kind == "official" else AgentSaver(path) as saver:
        begin(saver, told)
    began = time.monotonic()
    running: dict[Connection, Any] = {}

    def start() -> None:
        ours, theirs = CONTEXT.Pipe(duplex=False)
        process = CONTEXT.Process(target=append, args=(path, kind, next(numbers), theirs), daemon=True)
        process.start()
        theirs.close()
        running[ours] = process

    def hear(connection: Connection) -> None:
        try:
            told.hear(*connection.recv())
        except EOFError:
            process = running.pop(connection)
            process.join(WATCHDOG_S)
            assert process.exitcode == -signal.SIGKILL
            process.close()
            connection.close()

    next_kill = began + 1.0
    while (lasted := time.monotonic() - began) < seconds or sum(map(len, told.refused.values())) < refused:
        assert lasted < seconds + WATCHDOG_S, "the workers hang, or never meet"
        while len(running) < WORKERS:
            start()
        for connection in wait(list(running), 0.05):
            hear(connection)  # type: ignore[arg-type]
        if kills and running and time.monotonic() > next_kill:
            next_kill = time.monotonic() + kills.uniform(0.2, 0.6)
            kills.choice(list(running.values())).kill()
            killed += 1
    for process in running.values():
        process.kill()
    while running:
        hear(next(iter(running)))
    return told, killed


def test_one_history_under_kills(path: Path) -> None:
    """B33, B61: four workers at a time compete for five threads and are killed at random: each thread is one chain
    without fork or gap, each acknowledged append is in it once, no refused one is."""
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    told, killed = compete(path, "ours", SECONDS, 20, random.Random(seed))
    assert_sound(path)
    with AgentSaver(path, create=False) as saver:
        stored = check(saver, told)
    refused = sum(map(len, told.refused.values()))
    print(f"{stored} appends stand, {refused} were refused, {killed} workers were killed")
    assert stored > 20, "they hardly wrote, so this proves little"
    assert killed > 2


@pytest.mark.parametrize("kind", ["official", "no compare"])
def test_the_check_catches_a_wrong_saver(kind: str, path: Path) -> None:
    """The same competition with the official saver, and with ours without its compare: the check finds it."""
    told, _ = compete(path, kind, 3.0, 0, None)
    with SqliteSaver.from_conn_string(str(path)) if kind == "official" else AgentSaver(path) as wrong:
        with pytest.raises(AssertionError, match=r"forks|lost|gone again|gap"):
            check(wrong, told)
