"""Runs that go on with their thread's open tasks store nothing at their start, and own their thread all the same."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Command, interrupt

from agent_ckpt import AgentSaver, ThreadConflictError, runs
from agent_ckpt.core import flight
from tests.flight_workers import CONFIG, assistant, intrude, refused, say, update
from tests.race_workers import WATCHDOG_S, Worker, counter_graph

FIRST = ["look first", "", "seen", "answer to seen"]


def go_on(graph: Any, given: Any, form: str) -> Any:
    """A run that LangGraph takes for a continuation."""
    if form == "sync":
        return graph.invoke(given, CONFIG, durability="sync")
    return asyncio.run(graph.ainvoke(given, CONFIG, durability="sync"))


class Beside:
    """A run on another OS thread that stays where `inside` is called until it is told to finish."""

    def __init__(self, make: Callable[[Callable[[], None]], Callable[[], Any]]) -> None:
        self._inside, self._go = threading.Event(), threading.Event()
        self.result: Any = None
        work = make(self._stay)

        def run() -> None:
            try:
                self.result = work()
            except BaseException as exc:
                self.result = exc

        self._thread = threading.Thread(target=run, daemon=True)
        self._thread.start()
        assert self._inside.wait(WATCHDOG_S), "the node was not reached"

    def _stay(self) -> None:
        self._inside.set()
        assert self._go.wait(WATCHDOG_S)

    def finish(self) -> Any:
        self._go.set()
        self._thread.join(WATCHDOG_S)
        assert not self._thread.is_alive(), "hangs"
        return self.result


def at_a_breakpoint(saver: AgentSaver) -> None:
    graph, _ = assistant(saver)
    graph.invoke({"messages": [("user", "look first")]}, CONFIG, interrupt_before=["tools"])


def contents(state: dict[str, Any]) -> list[str]:
    return [str(message.content) for message in state["messages"]]


@pytest.mark.parametrize("kind", ["message", "update_state", "go on"])
def test_after_a_breakpoint(saver: AgentSaver, form: str, kind: str) -> None:
    """A run that goes on from a breakpoint survives a message, an update_state and a second continuation while its tool
    runs, each told "busy" before a node of its own ran; the thread works afterwards."""
    at_a_breakpoint(saver)

    def make(stay: Callable[[], None]) -> Callable[[], Any]:
        graph, _ = assistant(saver, stay)
        return lambda: contents(go_on(graph, None, form))

    run = Beside(make)
    ran: list[int] = []
    graph, model = assistant(saver, lambda: ran.append(1))
    actions: dict[str, Callable[[], Any]] = {
        "message": lambda: say(graph, "second", form, "sync"),
        "update_state": lambda: update(graph),
        "go on": lambda: go_on(graph, None, form),
    }
    told = refused(actions[kind])
    assert told is not None
    assert (told["reason"], told["wrote"], model.calls, ran) == ("busy", False, 0, [])
    assert run.finish() == FIRST
    assert say(graph, "third", form, "sync") == [*FIRST, "third", "answer to third"]


def test_after_a_breakpoint_across_processes(path: Path, saver: AgentSaver, form: str) -> None:
    """The same, where the newcomer is another process; and it is let in once the run has failed."""
    at_a_breakpoint(saver)

    def make(stay: Callable[[], None]) -> Callable[[], Any]:
        def fail() -> None:
            stay()
            raise KeyError("the tool broke")

        graph, _ = assistant(saver, fail)
        return lambda: go_on(graph, None, form)

    run = Beside(make)
    worker = Worker()
    try:
        worker.ask(intrude, path, "message", form, "sync", {})
        told, calls = worker.result()
        assert told is not None
        assert (told["reason"], calls) == ("busy", 0)
        assert isinstance(run.finish(), KeyError)
        worker.ask(intrude, path, "update_state", form, "sync", {})
        assert worker.result() == (None, 0)
    finally:
        worker.stop()


def test_an_interrupt_answered_by_its_id(saver: AgentSaver, form: str) -> None:
    """Of two answers to an interrupt that is named by its id, the second is told so before its node runs, and the first
    counts."""
    done: list[str] = []

    def graph_with(inside: Callable[[], None]) -> Any:
        def ask(state: MessagesState) -> Any:
            answer = interrupt("pay?")
            inside()
            done.append(answer)
            return {"messages": [("ai", f"paid: {answer}")]}

        builder: StateGraph[Any, Any, Any, Any] = StateGraph(MessagesState)
        builder.add_node("ask", ask)
        builder.add_edge(START, "ask")
        return builder.compile(checkpointer=saver)

    graph = graph_with(lambda: None)
    asked = graph.invoke({"messages": [("user", "pay")]}, CONFIG)["__interrupt__"][0].id

    def make(stay: Callable[[], None]) -> Callable[[], Any]:
        first = graph_with(stay)
        return lambda: contents(go_on(first, Command(resume={asked: "once"}), form))

    run = Beside(make)
    told = refused(lambda: go_on(graph, Command(resume={asked: "twice"}), form))
    assert told is not None
    assert told["reason"] == "busy"
    assert run.finish() == ["pay", "paid: once"]
    assert done == ["once"]


@pytest.mark.parametrize("answer", [{"approved": True}, "yes"])
def test_an_answer_is_stored_at_once(
    saver: AgentSaver, form: str, answer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any other answer than one by ids, a dict too, is a write at the start of the run, so that nothing is claimed: who
    restored the thread at the same moment is refused when it writes."""

    def ask(state: MessagesState) -> Any:
        return {"messages": [("ai", str(interrupt("pay?")))]}

    builder: StateGraph[Any, Any, Any, Any] = StateGraph(MessagesState)
    builder.add_node("ask", ask)
    builder.add_edge(START, "ask")
    graph = builder.compile(checkpointer=saver)
    graph.invoke({"messages": [("user", "pay")]}, CONFIG)
    claims: list[Any] = []
    real = flight.claim_what_is_left
    monkeypatch.setattr(flight, "claim_what_is_left", lambda *args: claims.append(args) or real(*args))
    assert contents(go_on(graph, Command(resume=answer), form)) == ["pay", str(answer)]
    assert claims == []


def test_a_continuation_costs_one_commit(saver: AgentSaver, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a run that has something to go on with claims its thread."""
    claims: list[str] = []
    real = flight.own

    def counted(row: Any, session_id: bytes) -> Any:
        claims.append("claimed")
        return (yield from real(row, session_id))

    monkeypatch.setattr(flight, "own", counted)
    graph, _ = assistant(saver)
    say(graph, "zero", "sync")
    go_on(graph, None, "sync")
    assert claims == []
    at_a_breakpoint(saver)
    assert claims == []
    go_on(graph, None, "sync")
    assert claims == ["claimed"]


@pytest.mark.parametrize("how", ["preempt", "interrupt"])
def test_a_claim_that_is_taken_over_is_lost(open_saver: Callable[..., AgentSaver], form: str, how: str) -> None:
    """Who takes the thread from a run that goes on and has stored nothing yet, by on_busy="preempt" or by a turn that
    only looks, ends that run: it is refused at its next write."""
    saver = open_saver(on_busy="preempt" if how == "preempt" else "reject")
    at_a_breakpoint(saver)

    def make(stay: Callable[[], None]) -> Callable[[], Any]:
        graph, _ = assistant(saver, stay)
        return lambda: go_on(graph, None, form)

    run = Beside(make)
    graph, _ = assistant(saver)
    if how == "preempt":
        assert contents(go_on(graph, None, form)) == FIRST
    else:
        with saver.turn(CONFIG, "interrupt") as config:
            assert graph.get_state(config).next == ("tools",)
    assert isinstance(run.finish(), ThreadConflictError)
    assert contents(graph.get_state(CONFIG).values)[:2] == FIRST[:2]


def test_a_kept_error_of_a_restore_holds_nobody(saver: AgentSaver, monkeypatch: pytest.MonkeyPatch) -> None:
    """A continuation whose values can't be read has ended with its error, also while that is kept."""
    at_a_breakpoint(saver)
    graph, _ = assistant(saver)

    def broken(*_: Any) -> Any:
        raise KeyError("unreadable")

    with monkeypatch.context() as patch:
        patch.setattr("agent_ckpt.planning.Reading.checkpoint_tuple", broken)
        with pytest.raises(KeyError, match="unreadable") as kept:
            go_on(graph, None, "sync")
    assert contents(go_on(graph, None, "sync")) == FIRST
    assert kept.value.args == ("unreadable",)


def test_a_run_whose_loop_is_not_turned_any_more(saver: AgentSaver, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that is over, and whose last write never tells that it is done, is waited for only so long."""
    monkeypatch.setattr(runs, "LAST_WRITE_S", 0.5)
    graph = counter_graph(saver)
    real = runs.GoingRun.end_write
    late: list[runs.GoingRun] = []
    monkeypatch.setattr(runs.GoingRun, "end_write", lambda run: late.append(run))
    graph.invoke({"n": 0}, CONFIG, durability="sync")
    monkeypatch.setattr(runs.GoingRun, "end_write", real)
    assert graph.invoke({"n": 0}, CONFIG, durability="sync") == {"n": 2}
    for run in late:
        run.end_write()


def test_a_claim_refused_by_an_expected_revision_holds_nobody(saver: AgentSaver) -> None:
    """A continuation whose caller expected another revision is refused, and the thread is free at once."""
    at_a_breakpoint(saver)
    graph, _ = assistant(saver)
    config = {"configurable": {"thread_id": "t", "expected_revision": 1}}
    told = refused(lambda: graph.invoke(None, config))
    assert told is not None
    assert told["reason"] == "expected_revision"
    assert contents(go_on(graph, None, "sync")) == FIRST


@pytest.mark.parametrize("how", ["sync", "async"])
def test_the_run_after_a_cancelled_one(saver: AgentSaver, how: Any) -> None:
    """A run that begins when a cancelled one has just ended goes on from all that this one still stored, and is never
    refused for it."""
    chance = random.Random(7)

    async def rounds() -> None:
        graph = counter_graph(saver)
        for number in range(60):
            config = {"configurable": {"thread_id": str(number % 3)}}
            task = asyncio.create_task(graph.ainvoke({"n": 0}, config, durability=how))
            await asyncio.sleep(chance.random() * 0.02)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await graph.ainvoke({"n": 0}, config, durability=how)

    asyncio.run(rounds())
    assert not saver.verify().findings


def test_a_thread_that_moves_on_while_a_run_is_let_in(saver: AgentSaver, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run whose predecessor stores its last step between this one's restore and its look goes on from that step."""
    graph, _ = assistant(saver)
    real, met = flight.look, threading.Event()

    def make(stay: Callable[[], None]) -> Callable[[], Any]:
        return lambda: say(assistant(saver, stay)[0], "look first", "sync", "sync")

    run = Beside(make)

    def look_late(*args: Any) -> Any:
        if not met.is_set():
            met.set()
            run.finish()
        return (yield from real(*args))

    monkeypatch.setattr(flight, "look", look_late)
    try:
        told = say(graph, "second", "sync", "sync")
    except ThreadConflictError as exc:
        pytest.fail(str(exc))
    assert told == [*FIRST, "second", "answer to second"]
