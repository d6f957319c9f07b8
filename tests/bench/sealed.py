"""What sealing costs: the saver's processor time and bytes on the agent benchmark, with a key beside without.

The calls of an agent's run are recorded once and replayed on both savers, call by call and in turns of who is first,
so that whatever else the machine does disturbs both alike.
"""

from __future__ import annotations

import gc
import secrets
import statistics
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from agent_ckpt import AgentSaver
from tests.bench.agents import build, take_turns
from tests.bench.heads import GROWN, Run
from tests.bench.report import Table, bytes_on_disk
from tests.bench.savers import NullSaver

TURNS = 25
ROUNDS = 9
ROUNDS_OF_MANY_TURNS = 3

Recorded = tuple[str, tuple[Any, ...]]
"""A method's name and its arguments; the first one is the config."""


class Recorder(NullSaver):
    """Notes every call that an agent's run makes."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Recorded] = []

    def get_tuple(self, config: Any) -> Any:
        self.calls.append(("get_tuple", (config,)))
        return super().get_tuple(config)

    def put(self, config: Any, *args: Any) -> Any:
        self.calls.append(("put", (config, *args)))
        return super().put(config, *args)

    def put_writes(self, config: Any, writes: Any, task_id: str, task_path: str = "") -> None:
        self.calls.append(("put_writes", (config, list(writes), task_id, task_path)))
        super().put_writes(config, writes, task_id, task_path)


def recorded(turns: int) -> list[Recorded]:
    """The calls of an agent's run."""
    recorder = Recorder()
    take_turns(build(recorder), "bench", 0, turns)
    return recorder.calls


def on_thread(call: Recorded, thread_id: str) -> Callable[[AgentSaver], Any]:
    """One recorded call, on another thread."""
    name, (config, *rest) = call
    conf = {key: config["configurable"].get(key) for key in ("checkpoint_ns", "checkpoint_id")}
    conf = {
        "thread_id": thread_id,
        "checkpoint_ns": conf["checkpoint_ns"] or "",
        "checkpoint_id": conf["checkpoint_id"],
    }
    given = {"configurable": {key: value for key, value in conf.items() if value is not None}}
    return lambda saver: getattr(saver, name)(given, *rest)


def measured(run: Run, turns: int, rounds: int) -> tuple[dict[str, list[list[float]]], dict[str, int], list[str]]:
    """Seconds of processor time by saver, round and call; bytes by saver; and the calls' names."""
    calls = recorded(turns)
    paths = {name: run.path(name) for name in ("plain", "sealed")}
    taken: dict[str, list[list[float]]] = {name: [] for name in paths}
    with ExitStack() as stack:
        savers = {
            "plain": stack.enter_context(AgentSaver(paths["plain"])),
            "sealed": stack.enter_context(AgentSaver(paths["sealed"], key=secrets.token_bytes(32))),
        }
        for number in range(rounds + 1):
            times: dict[str, list[float]] = {name: [] for name in savers}
            gc.collect()
            gc.disable()
            for at, call in enumerate(calls):
                act = on_thread(call, f"thread-{number}")
                for name in list(savers)[:: 1 if (at + number) % 2 else -1]:
                    begin = time.process_time()
                    act(savers[name])
                    times[name].append(time.process_time() - begin)
            gc.enable()
            for name in savers if number else ():  # the first round warms up
                taken[name].append(times[name])
    sizes = {name: bytes_on_disk(path) for name, path in paths.items()}
    return taken, sizes, [name for name, _ in calls]


def tables(run: Run) -> list[Table]:
    turns = run.turns or (GROWN if run.full else TURNS)
    rounds = ROUNDS if turns <= 2 * TURNS else ROUNDS_OF_MANY_TURNS
    taken, sizes, names = measured(run, turns, rounds)
    table = Table(
        "sealed",
        f"what sealing costs: the calls of {turns} turns of the agent, {rounds} interleaved rounds, sync",
        ["call", "calls", "plain CPU us", "sealed CPU us", "more, %"],
    )
    for name in (*sorted(set(names)), "all"):
        wanted = [at for at, each in enumerate(names) if name in ("all", each)]
        plain, sealed = (
            sum(statistics.median(times[at] for times in taken[who]) for at in wanted) / len(wanted)
            for who in ("plain", "sealed")
        )
        table.add(name, len(wanted), plain * 1e6, sealed * 1e6, (sealed / plain - 1) * 100)
    more = (sizes["sealed"] / sizes["plain"] - 1) * 100
    table.add("bytes on disk", 1, sizes["plain"], sizes["sealed"], more)
    table.budget("sealing, % of the saver's CPU time", float(table.rows[-2][-1]), 10)
    table.budget("sealing, % of bytes", more, 20)
    table.notes.append("CPU time of the whole process, medians by call over the rounds, then summed")
    return [table]
