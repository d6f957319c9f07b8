"""A run that is over holds nobody up, whatever is kept of it; with what is kept one can look, and write nothing."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from langchain_core.runnables import RunnableConfig
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.pregel import _loop as langgraph_loop

from agent_ckpt import AgentSaver, ThreadConflictError, runs
from agent_ckpt.sqlite import board
from tests.conftest import Api, until
from tests.flight_workers import CONFIG, assistant, finish, go_on, refused
from tests.race_workers import CONTEXT, WATCHDOG_S, Counter, Worker, counter_graph

FIRST = ["look first", "", "seen", "answer to seen"]


@pytest.fixture
def worker() -> Iterator[Worker]:
    """A process of its own."""
    made = Worker()
    yield made
    made.stop()


def at_a_breakpoint(saver: AgentSaver) -> None:
    assistant(saver)[0].invoke({"messages": [("user", "look first")]}, CONFIG, interrupt_before=["tools"])


def elsewhere(action: Callable[[], Any]) -> Any:
    """The result of an action on another OS thread, or what it raised."""
    told: list[Any] = []

    def work() -> None:
        try:
            told.append(action())
        except BaseException as exc:
            told.append(exc)

    worker = threading.Thread(target=work)
    worker.start()
    worker.join(WATCHDOG_S)
    assert not worker.is_alive(), "hangs"
    return told[0]


# What is kept of a run


def cancelled_in_a_node(saver: AgentSaver) -> tuple[Any, Any]:
    """A graph, and the config that a node of a cancelled run kept."""
    kept: list[Any] = []

    async def node(state: MessagesState, config: RunnableConfig) -> None:
        kept.append(config)
        await asyncio.sleep(WATCHDOG_S)

    graph = StateGraph(MessagesState).add_node("node", node).add_edge(START, "node").compile(checkpointer=saver)

    async def cancel() -> None:
        task = asyncio.create_task(graph.ainvoke({"messages": [("user", "hi")]}, CONFIG, durability="sync"))
        while not kept:
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(cancel())
    return graph, kept[0]


def test_a_config_of_a_cancelled_run_can_be_looked_with(api: Api, form: str) -> None:
    """Reading needs no right to write: get_tuple, list and get_state with a config that a node of a cancelled run kept
    show what is stored, and make nothing in their context a part of that run; what would write with it is refused."""
    graph, kept = cancelled_in_a_node(api.saver)
    root = {"configurable": {**kept["configurable"], "checkpoint_ns": ""}}
    for config in (root, {**kept, **root}):
        found = api.get_tuple(config)
        assert found is not None
        assert found.checkpoint["channel_values"]["messages"][0].content == "hi"
        assert len(api.list(config)) == 2
        assert graph.get_state(config).values["messages"][0].content == "hi"
        with pytest.raises(ThreadConflictError, match="cancelled"):
            api.put(found.config, {**found.checkpoint, "id": "late"}, {"source": "loop", "step": 5}, {})
        with pytest.raises(ThreadConflictError, match="cancelled"):
            api.put_writes({**kept, **found.config}, [("messages", "late")], "task")
    with pytest.raises(ThreadConflictError, match="cancelled"):
        graph.invoke({"messages": []}, kept)
    assert api.get_tuple(CONFIG).checkpoint["id"] == found.checkpoint["id"]
    graph.update_state(CONFIG, {"messages": [("user", "later")]}, as_node="node")
    assert len(graph.get_state(CONFIG).values["messages"]) == 2


def test_a_look_gives_no_right_back(open_saver: Callable[..., AgentSaver]) -> None:
    """A node of a run that was overtaken may look at its own thread; what its run writes is refused all the same."""
    saver, inside, go = open_saver(on_busy="preempt"), threading.Event(), threading.Event()
    seen: list[int] = []

    def node(state: MessagesState, config: RunnableConfig) -> dict[str, Any]:
        if inside.is_set():
            return {"messages": [("ai", "second")]}
        inside.set()
        assert go.wait(WATCHDOG_S)
        own = {**config, "configurable": {**config["configurable"], "checkpoint_ns": ""}}
        for _ in range(2):
            found = saver.get_tuple(own)
            seen.append(len(found.checkpoint["channel_values"]["messages"]))
            with pytest.raises(ThreadConflictError):
                saver.put_writes(found.config, [("messages", "x")], "task")
        return {"messages": [("ai", "late")]}

    graph = StateGraph(MessagesState).add_node("node", node).add_edge(START, "node").compile(checkpointer=saver)
    told: list[Any] = []

    def run() -> None:
        told.append(refused(lambda: graph.invoke({"messages": [("user", "hi")]}, CONFIG, durability="sync")))

    worker = threading.Thread(target=run)
    worker.start()
    assert inside.wait(WATCHDOG_S)
    graph.invoke({"messages": [("user", "again")]}, CONFIG)
    go.set()
    worker.join(WATCHDOG_S)
    assert told[0]["reason"] == "stale"
    assert seen == [3, 3]
    assert graph.get_state(CONFIG).values["messages"][-1].content == "second"


def _go_on_and_die(path: Path) -> None:
    with AgentSaver(path) as saver:
        go_on(assistant(saver, lambda: os._exit(0))[0], "sync")


@pytest.mark.parametrize("wrote", [False, True])
def test_a_claim_that_wrote_nothing_changes_nothing(path: Path, api: Api, wrote: bool) -> None:
    """A caller without a graph goes on with what it read, or wrote, also when a run made the thread its own meanwhile
    and died before it stored anything."""
    at_a_breakpoint(api.saver)
    found = api.get_tuple(CONFIG)
    config = found.config
    if wrote:
        config = api.put(config, {**found.checkpoint, "id": f"{1:032x}"}, {"source": "loop", "step": 5}, {})
    process = CONTEXT.Process(target=_go_on_and_die, args=(path,))
    process.start()
    process.join(WATCHDOG_S)
    assert process.exitcode == 0
    config = api.put(config, {**found.checkpoint, "id": f"{2:032x}"}, {"source": "loop", "step": 6}, {})
    assert api.get_tuple(CONFIG).config["configurable"]["checkpoint_id"] == f"{2:032x}"
    api.put(api.get_tuple(CONFIG).config, {**found.checkpoint, "id": f"{3:032x}"}, {"source": "loop", "step": 7}, {})
    with pytest.raises(ThreadConflictError, match="restored revision"):
        api.put(config, {**found.checkpoint, "id": f"{4:032x}"}, {"source": "loop", "step": 8}, {})


# Runs that fail while they are entered


class _StopError(Exception):
    """What LangGraph fails with in a test."""


def _fail(*_: Any, **__: Any) -> Any:
    raise _StopError


def _break_channels(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(langgraph_loop, "channels_from_checkpoint", _fail)
    patch.setattr(langgraph_loop, "achannels_from_checkpoint", _fail)


def _break_first(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(langgraph_loop.PregelLoop, "_first", _fail)


def _break_values(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("agent_ckpt.planning.Reading.checkpoint_tuple", _fail)


def _break_claim(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("agent_ckpt.core.flight.claim_what_is_left", _fail)


@pytest.mark.parametrize("broken", [_break_channels, _break_first, _break_values, _break_claim])
def test_a_kept_error_of_a_start_holds_nobody(
    path: Path, saver: AgentSaver, monkeypatch: pytest.MonkeyPatch, worker: Worker, form: str, broken: Any
) -> None:
    """A continuation that fails while it begins, in LangGraph's code or in ours, after it was made the owner or
    before, has ended when its call returns, here and for other processes, also while its error is kept."""
    at_a_breakpoint(saver)
    graph, _ = assistant(saver)
    with monkeypatch.context() as patch:
        broken(patch)
        with pytest.raises(_StopError) as kept:
            go_on(graph, form)
    assert not runs._going
    worker.ask(finish, path, form)
    assert worker.result() == FIRST
    assert isinstance(kept.value, _StopError)


# Runs whose event loop isn't turned any more


class Kept:
    """A run whose event loop was stopped while it was in its node, and is kept."""

    def __init__(self, saver: AgentSaver) -> None:
        self._inside, self._go = asyncio.Event(), asyncio.Event()
        self.graph = self._make(saver)
        self.loop = asyncio.new_event_loop()
        self.task = self.loop.create_task(self.graph.ainvoke({"n": 0}, CONFIG, durability="sync"))
        self.loop.run_until_complete(self._inside.wait())
        (self.run,) = runs._going.values()
        while self.run.pending:
            self.loop.run_until_complete(asyncio.sleep(0))

    def _make(self, saver: AgentSaver) -> Any:
        async def count(state: Counter) -> Counter:
            first = not self._inside.is_set()
            self._inside.set()
            if first:
                await self._go.wait()
            return {"n": 1}

        return StateGraph(Counter).add_node("count", count).add_edge(START, "count").compile(checkpointer=saver)

    def again(self) -> Any:
        """Another run, on another OS thread."""
        return elsewhere(lambda: asyncio.run(self.graph.ainvoke({"n": 0}, CONFIG)))

    def finish(self) -> Any:
        """Turn the loop again, to its end."""
        self._go.set()
        try:
            return self.loop.run_until_complete(self.task)
        finally:
            self.loop.run_until_complete(self.loop.shutdown_default_executor())
            self.loop.close()

    def lose_its_loop(self) -> None:
        """Have the run believe that its loop was closed: with a loop that was, LangGraph's coroutines die noisily."""
        self.run._turns = asyncio.new_event_loop()
        self.run._turns.close()


def test_a_loop_that_stands_still(saver: AgentSaver, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run whose event loop isn't turned keeps newcomers out for FROZEN_S, like a frozen process; if it is turned
    again before anybody came, the run goes on, and is refused if somebody did."""
    monkeypatch.setattr(runs, "FROZEN_S", WATCHDOG_S)
    kept = Kept(saver)
    assert kept.again().reason == "busy"
    assert kept.finish() == {"n": 1}
    kept = Kept(saver)
    monkeypatch.setattr(runs, "FROZEN_S", 0.0)
    assert kept.again() == {"n": 2}
    with pytest.raises(ThreadConflictError):
        kept.finish()


def test_a_loop_that_stands_still_seen_from_elsewhere(
    path: Path, saver: AgentSaver, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other processes see it too: what shows them that a run lives is its loop's turning, not its process."""
    monkeypatch.setattr(board, "BEAT_S", 0.01)
    kept = Kept(saver)
    monkeypatch.setattr(board, "FROZEN_S", 1.0)
    other = board.RunBoard(str(path))
    until(lambda: other.look(kept.run.session_id, WATCHDOG_S) is None)
    turning = kept.loop.create_task(asyncio.sleep(WATCHDOG_S))
    turner = threading.Thread(
        target=lambda: kept.loop.run_until_complete(asyncio.gather(turning, return_exceptions=True))
    )
    turner.start()
    until(lambda: other.look(kept.run.session_id, WATCHDOG_S) is not None)
    kept.loop.call_soon_threadsafe(turning.cancel)
    turner.join(WATCHDOG_S)
    assert kept.finish() == {"n": 1}


@pytest.mark.parametrize("how", ["asked", "beat"])
def test_a_loop_that_was_closed(saver: AgentSaver, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    """A run whose event loop was closed under it has ended, also while its task is kept: for a newcomer here, and by
    the beat that shows this process's runs to others. Should it write after all, that is refused."""
    monkeypatch.setattr(board, "BEAT_S", WATCHDOG_S if how == "asked" else 0.01)
    kept = Kept(saver)
    kept.lose_its_loop()
    if how == "beat":
        until(lambda: not runs._going)
    assert kept.again() == {"n": 1}
    assert not runs._going
    with pytest.raises(ThreadConflictError):
        kept.finish()


def test_a_pools_thread_serves_many_callers(saver: AgentSaver) -> None:
    """A stream of which an OS thread of a pool has read the first part isn't left by its caller when that thread serves
    another one: this one is told, and the stream can be read to its end elsewhere."""
    graph = counter_graph(saver)
    with ThreadPoolExecutor(1) as pool:
        stream = graph.stream({"n": 0}, CONFIG, stream_mode="values", durability="sync")
        first = pool.submit(next, stream).result(WATCHDOG_S)
        told = pool.submit(lambda: refused(lambda: graph.invoke({"n": 0}, CONFIG))).result(WATCHDOG_S)
    assert told is not None
    assert told["reason"] == "busy"
    assert [first, *stream] == [{"n": 0}, {"n": 1}]
