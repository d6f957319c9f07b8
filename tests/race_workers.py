"""Long-lived worker processes that restore one thread at the same moment and go on.

They are forked from a server that has imported LangGraph once, so a worker costs milliseconds. A worker runs one
operation at a time; in the middle of one it can `meet`: it tells the test that it is there and waits for the word.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import operator
import os
import random
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Annotated, Any, TypedDict

from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import START, StateGraph

import agent_ckpt
from agent_ckpt import AgentSaver, ThreadConflictError
from tests.agents import Graph, Saver
from tests.contests import CONTESTS, MeetingSaver

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["tests.race_workers", "tests.kill_workers"])
WATCHDOG_S = 60.0

Meet = Callable[[], None]


class Counter(TypedDict):
    n: Annotated[int, operator.add]


def counter_graph(saver: Saver | None, inside: Callable[[], None] = lambda: None) -> Graph:
    """One node that adds 1 to n, after `inside` was called in it."""

    def count(state: Counter) -> Counter:
        inside()
        return {"n": 1}

    builder: StateGraph[Any, Any, Any, Any] = StateGraph(Counter)
    builder.add_node("count", count)
    builder.add_edge(START, "count")
    return builder.compile(checkpointer=saver)


class OfficialMeetingSaver(SqliteSaver):
    """The official saver, that meets after its first restore: to show that the checks see lost updates."""

    met: Callable[[], None] | None = None

    def get_tuple(self, config: Any) -> Any:
        found = super().get_tuple(config)
        met, self.met = self.met, None
        if met is not None:
            met()
        return found


@contextmanager
def _opened(path: Path, official: bool) -> Iterator[Any]:
    if official:
        with OfficialMeetingSaver.from_conn_string(str(path)) as saver:
            yield saver
    else:
        with MeetingSaver(path, create=False) as saver:
            yield saver


def _run(graph: Graph, given: Any, config: Any, form: str, durability: Any = None) -> Any:
    if form == "sync":
        return graph.invoke(given, config, durability=durability)
    return asyncio.run(graph.ainvoke(given, config, durability=durability))


# Operations: each is given the worker's `meet` and what the test sends


def contest(meet: Meet, path: Path, kind: str, thread_id: str, who: int, form: str, how: Any, official: bool) -> bool:
    """Restore, meet, go on; True if that was accepted."""
    with _opened(path, official) as saver:
        saver.met = meet
        try:
            CONTESTS[kind].go(saver, {"configurable": {"thread_id": thread_id}}, who, form, how)
        except ThreadConflictError as refused:
            if (refused.thread_id, refused.reason, refused.wrote) != (thread_id, "stale", False):
                raise
            return False
    return True


def count_once(meet: Meet, path: Path, form: str, how: str) -> bool:
    """Add 1, meeting inside the node; True if that was accepted."""
    with AgentSaver(path, create=False) as saver:
        try:
            _run(counter_graph(saver, meet), {"n": 0}, {"configurable": {"thread_id": "t"}}, form, how)
        except ThreadConflictError:
            return False
    return True


def count_up(meet: Meet, path: Path, times: int, form: str, how: str, seed: int) -> list[int]:
    """Add 1 so many times, each with the retry loop that the documentation tells; the tries that each took."""
    chance = random.Random(seed)
    config = {"configurable": {"thread_id": "t"}}
    tries = []
    with AgentSaver(path, create=False) as saver:
        graph = counter_graph(saver)
        meet()
        for _ in range(times):
            for attempt in range(1, 1000):
                try:
                    _run(graph, {"n": 0}, config, form, how)
                    break
                except ThreadConflictError:
                    # Outside of any lock, and longer the more others are there; invoke restores the head anew.
                    time.sleep(chance.uniform(0, min(0.25, 0.005 * 2**attempt)))
            tries.append(attempt)
    return tries


def count_with_retries(meet: Meet, path: Path, times: int, form: str, how: str, reads: bool) -> list[int]:
    """Add 1 so many times with `agent_ckpt.invoke`; the node's runs that each took."""
    config = {"configurable": {"thread_id": "t"}}
    runs = 0

    def inside() -> None:
        nonlocal runs
        runs += 1

    given = (lambda state: {"n": 0}) if reads else {"n": 0}
    counted = []
    with AgentSaver(path, create=False) as saver:
        graph = counter_graph(saver, inside)
        meet()
        for _ in range(times):
            runs = 0
            if form == "sync":
                agent_ckpt.invoke(graph, given, config, attempts=60, durability=how)
            else:
                asyncio.run(agent_ckpt.ainvoke(graph, given, config, attempts=60, durability=how))
            counted.append(runs)
    return counted


def count_and_stay(meet: Meet, path: Path, form: str, how: str) -> None:
    """Add 1, and stay in the node for good: to be killed there."""
    with AgentSaver(path, create=False) as saver:

        def inside() -> None:
            meet()
            time.sleep(WATCHDOG_S)

        _run(counter_graph(saver, inside), {"n": 0}, {"configurable": {"thread_id": "t"}}, form, how)


def go_on(meet: Meet, path: Path, given: Any, form: str) -> int:
    """Run with this input, None to finish what was begun; n at the end."""
    with AgentSaver(path, create=False) as saver:
        return int(_run(counter_graph(saver), given, {"configurable": {"thread_id": "t"}}, form)["n"])


def serve(connection: Connection) -> None:
    """Run operations until the test closes the connection."""
    warnings.simplefilter("error")

    def meet() -> None:
        connection.send(("met", None))
        connection.recv()

    while True:
        try:
            operation, arguments = connection.recv()
        except EOFError:
            return
        try:
            connection.send(("done", operation(meet, *arguments)))
        except Exception as exc:
            connection.send(("failed", exc))


class Worker:
    """A worker process, seen from the test."""

    def __init__(self) -> None:
        self.connection, theirs = CONTEXT.Pipe()
        self.process = CONTEXT.Process(target=serve, args=(theirs,), daemon=True)
        self.process.start()
        theirs.close()

    def ask(self, operation: Callable[..., Any], *arguments: Any) -> None:
        self.connection.send((operation, arguments))

    def answer(self) -> tuple[str, Any]:
        """The next ("met", None) or ("done", result).

        Raises:
            AssertionError: when nothing comes.
            BaseException: what the operation raised.
        """
        assert self.connection.poll(WATCHDOG_S), f"worker {self.process.pid} hangs"
        kind, value = self.connection.recv()
        if kind == "failed":
            raise value
        return kind, value

    def result(self) -> Any:
        """The operation's result; a meeting on the way is answered at once."""
        while True:
            kind, value = self.answer()
            if kind == "done":
                return value
            self.connection.send(None)

    def kill(self) -> None:
        """SIGKILL."""
        self.process.kill()
        self.process.join(WATCHDOG_S)

    def stop(self) -> None:
        self.connection.close()
        self.process.join(5)
        if self.process.is_alive():
            self.kill()
        self.process.close()


def all_meet(workers: list[Worker]) -> None:
    """Wait until each worker is at its meeting, then let all go on."""
    for worker in workers:
        assert worker.answer() == ("met", None)
    for worker in workers:
        worker.connection.send(None)


def results(workers: list[Worker], wait_s: float = WATCHDOG_S) -> list[Any]:
    """What the operations of all workers gave; it is a hang if none of them ends for `wait_s` seconds."""
    found: dict[int, Any] = {}
    left = {worker.connection: (number, worker) for number, worker in enumerate(workers)}
    while left:
        ready = wait(list(left), wait_s)
        assert ready, f"workers {[w.process.pid for _, w in left.values()]} hang"
        for connection in ready:
            number, worker = left.pop(connection)  # type: ignore[index]
            found[number] = worker.result()
    return [found[number] for number in sorted(found)]


def rounds(default: int) -> int:
    """How many rounds to run: AGENT_CKPT_TEST_ROUNDS times the default."""
    return default * int(os.environ.get("AGENT_CKPT_TEST_ROUNDS", "1"))
