"""Workers that append to a list per thread, and the check that what they did is one history.

Each worker restores a thread, appends a token that nobody else uses, stores that, and tells how it ended. From what all
were told, and what the store holds in the end, the check decides whether the threads were what they are promised to be:
one chain, in which each accepted append follows the one before it and nothing is missing.
"""

from __future__ import annotations

import itertools
import random
import time
import warnings
from collections import defaultdict
from collections.abc import Generator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.sqlite import SqliteSaver

from agent_ckpt import AgentSaver, ThreadConflictError
from agent_ckpt.core import put as core_put
from tests.contests import steps_graph

PUTS = ("put 0", "put 1")
GRAPHS = ("graph",)
"""Threads that are driven by the saver's own methods, and by a graph."""


def at(thread: str) -> Any:
    return {"configurable": {"thread_id": thread, "checkpoint_ns": ""}}


def admit_all(*_: Any) -> Generator[Any, Any, None]:
    """In place of the rule that decides who may write."""
    yield from ()


def begin(saver: Any, told: Told) -> None:
    """Make the threads: a raw put that names no parent is always accepted, so they would have several beginnings."""
    for number, thread in enumerate(PUTS):
        told.hear("tried", thread, number)
        _append(saver, thread, number)
        told.hear("done", thread, number)


def _append(saver: Any, thread: str, token: int) -> None:
    found = saver.get_tuple(at(thread))
    log = [] if found is None else list(found.checkpoint["channel_values"]["log"])
    made = empty_checkpoint()
    made["channel_values"] = {"log": [*log, token]}
    made["channel_versions"] = {"log": len(log) + 1}
    metadata: Any = {"source": "loop", "step": len(log), "parents": {}}
    config = at(thread) if found is None else found.config
    # A little time between restore and put, for the others.
    time.sleep(random.uniform(0, 0.01))
    saver.put(config, made, metadata, {"log": len(log) + 1})


def append(path: Path, kind: str, number: int, connection: Connection) -> None:
    """Append until killed, telling ("tried" | "done" | "refused", thread, token) of each."""
    warnings.simplefilter("error")
    chance = random.Random(number)
    if kind == "official":
        with SqliteSaver.from_conn_string(str(path)) as saver:
            _go_on(saver, number, connection, chance)
        return
    if kind == "no compare":
        core_put.admit = admit_all
        core_put._check_parent = lambda *_: None
    with AgentSaver(path) as own:
        _go_on(own, number, connection, chance)


def _go_on(saver: Any, number: int, connection: Connection, chance: random.Random) -> None:
    graph = steps_graph(saver)
    for count in itertools.count():
        token, thread = number * 1_000_000 + count, chance.choice(PUTS + GRAPHS)
        connection.send(("tried", thread, token))
        try:
            if thread in GRAPHS:
                graph.invoke({"who": token}, at(thread))
            else:
                _append(saver, thread, token)
        except ThreadConflictError as refused:
            # A graph's run may have stored its first steps before it was overtaken.
            connection.send(("unknown" if refused.wrote else "refused", thread, token))
        else:
            connection.send(("done", thread, token))


@dataclass
class Told:
    """What the workers were told, by thread."""

    tried: dict[str, set[int]] = field(default_factory=lambda: defaultdict(set))
    done: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    refused: dict[str, set[int]] = field(default_factory=lambda: defaultdict(set))

    def hear(self, what: str, thread: str, token: int) -> None:
        if what == "tried":
            self.tried[thread].add(token)
        elif what == "done":
            self.done[thread].append(token)
        elif what == "refused":
            self.refused[thread].add(token)


def check(saver: Any, told: Told) -> int:
    """Check each thread; how many appends stand in them.

    Raises:
        AssertionError: for a fork, a gap, an append that was lost, is there twice, or is there though refused.
    """
    return sum(_check_thread(saver, thread, told) for thread in told.tried)


def _check_thread(saver: Any, thread: str, told: Told) -> int:
    chain = list(saver.list(at(thread)))[::-1]
    links = [None, *(item.config["configurable"]["checkpoint_id"] for item in chain)]
    before: list[int] = []
    for item, parent in zip(chain, links, strict=False):
        found = item.parent_config and item.parent_config["configurable"]["checkpoint_id"]
        assert found == parent, f"{thread} forks: {item.config} was put on {found}, the one before it is {parent}"
        log = list(item.checkpoint["channel_values"].get("log", []))
        assert log[: len(before)] == before, f"{thread}: what was appended is gone again: {before} became {log}"
        assert len(log) <= len(before) + 1, f"{thread} has a gap: {before} became {log}"
        before = log
    assert len(set(before)) == len(before), f"{thread}: an append is there twice"
    lost = set(told.done[thread]) - set(before)
    assert not lost, f"{thread}: {len(lost)} acknowledged appends are lost: {sorted(lost)[:5]}"
    ghosts = set(before) & told.refused[thread]
    assert not ghosts, f"{thread}: appends are there though refused: {sorted(ghosts)[:5]}"
    assert set(before) <= told.tried[thread], f"{thread}: nobody appended {set(before) - told.tried[thread]}"
    # Of one worker's appends the earlier ones come first, as it waited for each.
    by_worker: dict[int, int] = {}
    for token in before:
        assert by_worker.get(token // 1_000_000, -1) < token, f"{thread}: appends of one worker changed places"
        by_worker[token // 1_000_000] = token
    return len(before)
