"""A run in flight survives: whoever comes while it is going is told so, and the thread works afterwards."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from langchain_core.messages import HumanMessage
from langgraph.errors import GraphRecursionError
from langgraph.graph import START, MessagesState, StateGraph

from agent_ckpt import AgentSaver, ThreadConflictError, runs
from agent_ckpt.sqlite import board
from tests.conftest import assert_sound, until
from tests.flight_workers import (
    CONFIG,
    assistant,
    intrude,
    look_and_stay,
    refused,
    say,
    stop_at_breakpoint,
    update,
)
from tests.race_workers import WATCHDOG_S, Worker

INTRUDERS = ["message", "update_state"]


@pytest.fixture
def worker() -> Iterator[Worker]:
    """A process of its own."""
    made = Worker()
    yield made
    made.stop()


class Run:
    """A run on another OS thread, held inside its tool."""

    def __init__(self, saver: AgentSaver, form: str, how: str | None) -> None:
        self._inside, self._go = threading.Event(), threading.Event()
        self.result: Any = None
        graph, _ = assistant(saver, self._stay)
        self._thread = threading.Thread(target=self._work, args=(graph, form, how), daemon=True)
        self._thread.start()
        assert self._inside.wait(WATCHDOG_S), "the tool was not reached"
        # With "async" the checkpoints before it are put beside it.
        until(lambda: graph.get_state(CONFIG).next == ("tools",))

    def _stay(self) -> None:
        self._inside.set()
        assert self._go.wait(WATCHDOG_S)

    def _work(self, graph: Any, form: str, how: str | None) -> None:
        try:
            self.result = say(graph, "look first", form, how)
        except BaseException as exc:
            self.result = exc

    def finish(self) -> Any:
        self._go.set()
        self._thread.join(WATCHDOG_S)
        assert not self._thread.is_alive(), "hangs"
        return self.result


FIRST = ["look first", "", "seen", "answer to seen"]


@pytest.mark.parametrize("how", ["sync", "async"])
@pytest.mark.parametrize("kind", INTRUDERS)
def test_the_run_survives_a_newcomer(saver: AgentSaver, form: str, kind: str, how: str) -> None:
    """B36: a second message and an update_state, while a tool runs, get "busy" before the model is called; the run
    finishes and a third turn works, with a model that refuses unanswered tool calls."""
    run = Run(saver, form, how)
    graph, model = assistant(saver)
    told = refused(lambda: update(graph) if kind == "update_state" else say(graph, "second", form, how))
    assert told is not None
    assert (told["reason"], told["wrote"], model.calls) == ("busy", False, 0)
    assert f"process {os.getpid()}" in told["holder"]
    assert told["age_s"] >= 0
    assert run.finish() == FIRST
    assert say(graph, "third", form, how) == [*FIRST, "third", "answer to third"]


@pytest.mark.parametrize("how", ["sync", "async"])
@pytest.mark.parametrize("kind", INTRUDERS)
def test_the_run_survives_another_process(
    path: Path, saver: AgentSaver, worker: Worker, form: str, kind: str, how: str
) -> None:
    """B36: the same, where the newcomer is another process."""
    run = Run(saver, form, how)
    worker.ask(intrude, path, kind, form, how, {})
    told, calls = worker.result()
    assert told is not None
    assert (told["reason"], told["wrote"], calls) == ("busy", False, 0)
    assert run.finish() == FIRST
    worker.ask(intrude, path, "message", form, how, {})
    assert worker.result() == (None, 1)


def test_a_summarizer_of_the_runs_own_node(saver: AgentSaver, form: str) -> None:
    """A summarizer that a node starts on its own run's thread, beside the run, is refused; the run goes on."""
    told: list[Any] = []

    def summarize() -> None:
        worker = threading.Thread(target=lambda: told.append(refused(lambda: say(assistant(saver)[0], "sum up", form))))
        worker.start()
        worker.join(WATCHDOG_S)

    graph, _ = assistant(saver, summarize)
    assert say(graph, "look first", form, "sync") == FIRST
    assert [fields["reason"] for fields in told] == ["busy"]
    assert say(graph, "third", form)[-1] == "answer to third"


def test_a_killed_run_is_replaced_at_once(path: Path, saver: AgentSaver, worker: Worker, form: str) -> None:
    """A crashed holder is taken over at once: no waiting, and its side file is swept away."""
    worker.ask(look_and_stay, path, form, "sync")
    assert worker.answer() == ("met", None)
    graph, _ = assistant(saver)
    told = refused(lambda: say(graph, "second", form))
    assert told is not None
    assert told["reason"] == "busy"
    worker.kill()
    assert graph.invoke(None, CONFIG)["messages"][-1].content == "answer to seen"
    assert len(list(path.parent.glob("*-run-*"))) == 1


def test_a_frozen_run_is_replaced_and_refused(
    path: Path, saver: AgentSaver, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A frozen holder keeps newcomers out for FROZEN_S and no longer; when it wakes up it is refused."""
    monkeypatch.setattr(board, "FROZEN_S", 4.0)
    worker.ask(look_and_stay, path, "sync", "sync")
    assert worker.answer() == ("met", None)
    assert worker.process.pid is not None
    os.kill(worker.process.pid, signal.SIGSTOP)
    try:
        graph, _ = assistant(saver)
        first = refused(lambda: say(graph, "second", "sync"))
        assert first is not None
        time.sleep(board.FROZEN_S + 0.5)
        assert graph.invoke(None, CONFIG)["messages"][-1].content == "answer to seen"
    finally:
        os.kill(worker.process.pid, signal.SIGCONT)
    worker.connection.send(None)
    assert worker.result()["reason"] == "stale"


def test_preempt(path: Path, open_saver: Callable[..., AgentSaver], form: str) -> None:
    """on_busy="preempt": the newcomer takes the thread at its restore, and the run in flight is refused."""
    run = Run(open_saver(), form, "sync")
    other = open_saver(on_busy="preempt")
    assert other.get_tuple(CONFIG) is not None
    assert refused(lambda: assistant(other)[0].invoke(None, CONFIG)) is None
    lost = run.finish()
    assert isinstance(lost, ThreadConflictError)
    assert (lost.reason, lost.wrote) == ("stale", True)


def test_a_run_is_shown_at_work_now_and_then(
    path: Path, open_saver: Callable[..., AgentSaver], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each write is the run's last sign of life in its process; other processes are shown one in 50 ms at most."""
    shown: list[float] = []
    run = Run(open_saver(), "sync", "sync")
    (going,) = runs._going.values()
    clock = time.monotonic() + 100
    monkeypatch.setattr(board.RunBoard, "renew", lambda self, slot: shown.append(clock))
    monkeypatch.setattr(runs, "time", SimpleNamespace(monotonic=lambda: clock, time=time.time))
    for step in (0.0, 0.01, 0.03, 0.02, 0.06):
        clock += step
        going.begin_write()
        assert going.renewed == clock
        going.end_write()
    monkeypatch.undo()
    assert len(shown) == 3
    assert run.finish() == FIRST


def test_busy_ttl_ends_a_claim(path: Path, open_saver: Callable[..., AgentSaver], worker: Worker) -> None:
    """A run that has stored nothing for `busy_ttl_s` keeps nobody out, in this process and from another."""
    saver = open_saver(busy_ttl_s=0.5)
    run = Run(saver, "sync", "sync")
    time.sleep(0.6)
    worker.ask(intrude, path, "update_state", "sync", "sync", {"busy_ttl_s": 0.5})
    assert worker.result() == (None, 0)
    assert isinstance(run.finish(), ThreadConflictError)
    run = Run(open_saver(path.with_name("other.db"), busy_ttl_s=0.5), "sync", "sync")
    time.sleep(0.6)
    assert refused(lambda: update(assistant(open_saver(path.with_name("other.db"), busy_ttl_s=0.5))[0])) is None
    assert isinstance(run.finish(), ThreadConflictError)


# A run has ended when its call returns, whichever way


def loop_graph(saver: AgentSaver, fail: bool = False) -> Any:
    def node(state: MessagesState) -> dict[str, Any]:
        if fail:
            raise ValueError("the node failed")
        return {"messages": []}

    builder = StateGraph(MessagesState)
    builder.add_node("a", node)
    builder.add_node("b", node)
    builder.add_edge(START, "a")
    builder.add_edge("a", "b")
    builder.add_edge("b", "a")
    return builder.compile(checkpointer=saver)


GIVEN = {"messages": [HumanMessage("x")]}


def stops(saver: AgentSaver, how: str, kept: list[Any]) -> None:
    """Make a run stop in one of the ways that leave the next step undone, and keep all that it leaves."""
    graph = loop_graph(saver, fail=how == "error")
    if how == "recursion":
        with pytest.raises(GraphRecursionError) as caught:
            graph.invoke(GIVEN, {**CONFIG, "recursion_limit": 3})
        kept.append(caught.value)
    elif how in ("interrupt_before", "interrupt_after"):
        kept.append(graph.invoke(GIVEN, CONFIG, **{how: ["b"] if how == "interrupt_before" else ["a"]}))
    elif how == "error":
        with pytest.raises(ValueError, match="failed") as failed:
            graph.invoke(GIVEN, CONFIG)
        kept.append(failed.value.__traceback__)
    elif how == "closed":
        stream = graph.stream(GIVEN, CONFIG)
        next(stream)
        stream.close()
        kept.append(stream)
    elif how == "collected":
        stream = graph.stream(GIVEN, CONFIG)
        kept.append(next(stream))
        del stream
    elif how == "cell":
        # A notebook cell that is interrupted while it works with what the stream gave.
        with pytest.raises(KeyboardInterrupt) as cell:
            for _ in graph.stream(GIVEN, CONFIG):
                raise KeyboardInterrupt
        kept.append(cell.value.__traceback__)
    elif how == "cancelled":
        kept.append(asyncio.run(_cancelled(saver)))
    kept.append(graph.get_state(CONFIG))


async def _cancelled(saver: AgentSaver) -> Any:
    started = asyncio.Event()

    async def node(state: MessagesState) -> dict[str, Any]:
        started.set()
        await asyncio.sleep(WATCHDOG_S)
        return {}

    builder = StateGraph(MessagesState)
    builder.add_node("a", node)
    builder.add_edge(START, "a")
    task = asyncio.create_task(builder.compile(checkpointer=saver).ainvoke(GIVEN, CONFIG))
    await asyncio.wait_for(started.wait(), WATCHDOG_S)
    task.cancel()
    with pytest.raises(asyncio.CancelledError) as caught:
        await task
    return caught.value


WAYS = ["interrupt_before", "interrupt_after", "recursion", "error", "closed", "collected", "cell", "cancelled"]


@pytest.mark.parametrize("way", WAYS)
def test_a_run_that_stopped_has_ended(path: Path, saver: AgentSaver, worker: Worker, way: str) -> None:
    """A run that stops without finishing has ended when its call returns, also where user code keeps its config,
    state, stream or traceback: the next one starts at once, on another OS thread and in another process."""
    kept: list[Any] = []
    stops(saver, way, kept)
    outcome: list[Any] = []

    def next_run() -> None:
        outcome.append(refused(lambda: loop_graph(saver).invoke(None, CONFIG, interrupt_after="*")))

    other = threading.Thread(target=next_run)
    other.start()
    other.join(WATCHDOG_S)
    assert outcome == [None]
    worker.ask(intrude, path, "update_state", "sync", "sync", {})
    assert worker.result()[0] is None
    assert kept


def test_a_breakpoint_in_another_process(path: Path, saver: AgentSaver, worker: Worker) -> None:
    """A run of another process that stopped at a breakpoint holds nothing, while that process lives on."""
    worker.ask(stop_at_breakpoint, path)
    assert worker.answer() == ("met", None)
    graph, _ = assistant(saver)
    assert graph.invoke(None, CONFIG)["messages"][-1].content == "answer to seen"
    worker.connection.send(None)
    assert worker.answer() == ("done", None)


def test_a_half_read_stream_of_the_same_caller(saver: AgentSaver) -> None:
    """Whoever left a stream half-read and runs again from the same place has come back from it: a notebook cell."""
    graph = loop_graph(saver)
    stream = graph.stream(GIVEN, CONFIG, durability="sync")
    next(stream)
    assert refused(lambda: loop_graph(saver).invoke(None, CONFIG, interrupt_after="*")) is None
    with pytest.raises(ThreadConflictError):
        list(stream)


def test_a_read_ends_nothing(saver: AgentSaver) -> None:
    """get_state between two items of a stream takes nothing from its run: others are still kept out."""
    graph = loop_graph(saver)
    stream = graph.stream(GIVEN, CONFIG)
    next(stream)
    graph.get_state(CONFIG)
    told: list[Any] = []
    other = threading.Thread(target=lambda: told.append(refused(lambda: update(assistant(saver)[0]))))
    other.start()
    other.join(WATCHDOG_S)
    assert told[0]["reason"] == "busy"
    stream.close()


def test_a_collected_cycle(saver: AgentSaver) -> None:
    """A half-read stream that only the cyclic collector can free holds nobody up."""
    gc.disable()
    try:
        holder: dict[str, Any] = {}
        holder["stream"] = loop_graph(saver).stream(GIVEN, CONFIG, durability="sync")
        holder["self"] = holder
        started = threading.Thread(target=next, args=(holder["stream"],))
        started.start()
        started.join(WATCHDOG_S)
        del holder, started
        outcome: list[Any] = []
        other = threading.Thread(
            target=lambda: outcome.append(refused(lambda: loop_graph(saver).invoke(None, CONFIG, interrupt_after="*")))
        )
        other.start()
        other.join(WATCHDOG_S)
    finally:
        gc.enable()
    assert outcome == [None]


def test_the_end_of_a_run_is_seen(saver: AgentSaver, form: str) -> None:
    """With the installed LangGraph the end of a run is entered in its loop: a run leaves nothing that is going."""
    from agent_ckpt import runs

    seen: list[int] = []
    graph, _ = assistant(saver, lambda: seen.append(len(runs._going)))
    say(graph, "look first", form, "sync")
    assert seen == [1]
    assert not runs._going


def test_a_fan_in_is_not_finished(saver: AgentSaver, form: str) -> None:
    """While the node runs that several branches join at, the run is in flight: a newcomer is told, and it survives."""
    inside, go = threading.Event(), threading.Event()

    def join(state: MessagesState) -> dict[str, Any]:
        inside.set()
        assert go.wait(WATCHDOG_S)
        return {"messages": [HumanMessage("joined")]}

    def graph(last: Callable[[MessagesState], Any]) -> Any:
        builder = StateGraph(MessagesState)
        for name in "ab":
            builder.add_node(name, lambda state: {"messages": []})
            builder.add_edge(START, name)
        builder.add_node("c", last)
        builder.add_edge(["a", "b"], "c")
        return builder.compile(checkpointer=saver)

    outcome: list[Any] = []
    first = threading.Thread(target=lambda: outcome.append(graph(join).invoke(GIVEN, CONFIG, durability="sync")))
    first.start()
    assert inside.wait(WATCHDOG_S)
    ran: list[int] = []
    second = graph(lambda state: ran.append(1) or {"messages": []})
    told = refused(
        lambda: second.invoke(GIVEN, CONFIG) if form == "sync" else asyncio.run(second.ainvoke(GIVEN, CONFIG))
    )
    go.set()
    first.join(WATCHDOG_S)
    assert told is not None
    assert (told["reason"], ran) == ("busy", [])
    assert outcome[0]["messages"][-1].content == "joined"


@pytest.mark.parametrize("how", ["sync", "async"])
def test_an_answer_as_soon_as_the_question_is_seen(saver: AgentSaver, how: str) -> None:
    """B54: a caller that answers an interrupt inside the loop over the stream that shows it gets it answered; with
    "async" as soon as it is stored, which LangGraph does beside the stream."""
    from langgraph.types import Command, interrupt

    builder = StateGraph(MessagesState)
    builder.add_node("ask", lambda state: {"messages": [HumanMessage(interrupt("who?"))]})
    builder.add_edge(START, "ask")
    graph = builder.compile(checkpointer=saver)
    for number in range(10):
        config = {"configurable": {"thread_id": f"answer {number}"}}
        answered = None
        for chunk in graph.stream(GIVEN, config, durability=how):
            if "__interrupt__" in chunk:
                if how == "async":
                    until(lambda: bool(graph.get_state(config).interrupts))
                answered = graph.invoke(Command(resume="anna"), config)
                break
        assert answered is not None
        assert [message.content for message in answered["messages"]] == ["x", "anna"]


def test_a_stream_that_is_read_elsewhere_is_not_left(saver: AgentSaver) -> None:
    """A stream that began on one OS thread and is being read on another is in flight for a newcomer on the first."""
    inside, go = threading.Event(), threading.Event()

    def stay(state: MessagesState) -> dict[str, Any]:
        inside.set()
        assert go.wait(WATCHDOG_S)
        return {"messages": []}

    builder = StateGraph(MessagesState)
    builder.add_node("a", lambda state: {"messages": []})
    builder.add_node("b", stay)
    builder.add_edge(START, "a")
    builder.add_edge("a", "b")
    stream = builder.compile(checkpointer=saver).stream(GIVEN, CONFIG, durability="sync")
    next(stream)
    rest: list[Any] = []
    reader = threading.Thread(target=lambda: rest.extend(stream))
    reader.start()
    assert inside.wait(WATCHDOG_S)
    told = refused(lambda: loop_graph(saver).invoke(GIVEN, CONFIG, interrupt_after="*"))
    go.set()
    reader.join(WATCHDOG_S)
    assert told is not None
    assert told["reason"] == "busy"
    assert rest == [{"b": {"messages": []}}]


def test_a_forked_child_claims_nothing(path: Path, saver: AgentSaver) -> None:
    """A child forked in mid-run neither ends the parent's run nor keeps it alive after the parent's death."""
    status: list[int] = []

    def fork() -> None:
        pid = os.fork()
        if pid == 0:
            try:
                with AgentSaver(path, create=False) as own:
                    told = refused(lambda: update(assistant(own)[0]))
                os._exit(0 if told is not None and told["reason"] == "busy" else 1)
            except BaseException:
                os._exit(2)
        status.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))

    graph, _ = assistant(saver, fork)
    assert say(graph, "look first", "sync") == FIRST
    assert status == [0]
    assert_sound(path)
