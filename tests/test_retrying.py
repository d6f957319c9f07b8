"""Running again after a conflict: `agent_ckpt.invoke` and `ainvoke`."""

from __future__ import annotations

import asyncio
import itertools
import pickle
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from langgraph.graph import START, StateGraph
from langgraph.types import Command, interrupt

import agent_ckpt
from agent_ckpt import AgentSaver, ThreadConflictError, UsageError, retrying
from tests.contests import assert_linear
from tests.race_workers import Worker, all_meet, count_with_retries, counter_graph, results
from tests.test_timeline import State, config


def call(form: str, graph: Any, given: Any, conf: Any, **kwargs: Any) -> Any:
    if form == "sync":
        return agent_ckpt.invoke(graph, given, conf, **kwargs)
    return asyncio.run(agent_ckpt.ainvoke(graph, given, conf, **kwargs))


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[tuple[float, float]]:
    """The ranges that the waits were drawn from; the waits themselves are none."""
    drawn: list[tuple[float, float]] = []

    def uniform(low: float, high: float) -> float:
        drawn.append((low, high))
        return 0.0

    monkeypatch.setattr(retrying._random, "uniform", uniform)
    return drawn


class Refusing:
    """A graph that is refused so many times before it answers; it keeps what it was called with."""

    checkpointer = None

    def __init__(self, times: int, **fields: Any) -> None:
        self.left = times
        self.calls: list[tuple[Any, Any, Any]] = []
        facts = {"thread_id": "t", "reason": "stale", "expected": 3, "found": 4, "wrote": False, "checkpoint_id": None}
        self.error = ThreadConflictError("refused.", **{**facts, **fields})

    def invoke(self, given: Any, conf: Any, **kwargs: Any) -> str:
        self.calls.append((given, conf, kwargs))
        if self.left:
            self.left -= 1
            raise self.error
        return "answer"

    async def ainvoke(self, given: Any, conf: Any, **kwargs: Any) -> str:
        return self.invoke(given, conf, **kwargs)


def test_it_tries_again_and_waits_longer_each_time(form: str, pauses: list[tuple[float, float]]) -> None:
    """Full jitter: from 0 to a bound that doubles up to 1 s; everything is passed on as it was given."""
    graph = Refusing(10, reason="busy")
    assert call(form, graph, {"n": 1}, config(), durability="sync") == "answer"
    assert graph.calls == [({"n": 1}, config(), {"durability": "sync"})] * 11
    assert pauses == [(0, min(1.0, 0.02 * 2**tried)) for tried in range(10)]


def test_a_lease_is_waited_for(form: str, pauses: list[Any]) -> None:
    """Another's lease ends some time; it is no reason to give up at once."""
    assert call(form, Refusing(3, reason="leased"), {}, config()) == "answer"


def test_it_gives_up_with_the_last_conflict(form: str, pauses: list[tuple[float, float]]) -> None:
    """After so many attempts the last error is raised, and tells how many there were."""
    graph = Refusing(1000)
    with pytest.raises(ThreadConflictError, match=r"refused\. Tried 4 times\.") as caught:
        call(form, graph, {}, config(), attempts=4)
    error: Any = caught.value
    assert (error.attempts, len(graph.calls), len(pauses), error.found) == (4, 4, 3, 4)
    assert caught.value.__cause__ is graph.error
    assert pickle.loads(pickle.dumps(error)).fields == error.fields


@pytest.mark.parametrize(
    "fields",
    [{"wrote": True}, {"reason": "deleted"}, {"reason": "expected_revision"}, {"expected": None}],
    ids=["wrote", "deleted", "expected_revision", "named a checkpoint"],
)
def test_what_is_not_tried_again(fields: dict[str, Any], form: str) -> None:
    """A run that had stored its input, a thread that was deleted, an old form, an old checkpoint."""
    graph = Refusing(1, **fields)
    with pytest.raises(ThreadConflictError, match="Tried once"):
        call(form, graph, {}, config())
    assert len(graph.calls) == 1


def test_an_answer_is_not_given_twice(form: str) -> None:
    """A Command that answers isn't sent again: the question may be another one by now. Other Commands are."""
    for given, times in ((Command(resume="yes"), 1), (Command(resume=False), 1), (Command(goto="n"), 2)):
        graph = Refusing(1)
        if times == 1:
            with pytest.raises(ThreadConflictError):
                call(form, graph, given, config())
        else:
            call(form, graph, given, config())
        assert len(graph.calls) == times


@pytest.mark.parametrize("attempts", [0, -1, 1.5, True, None])
def test_attempts_that_are_none(attempts: Any, form: str) -> None:
    """attempts is a whole number of at least 1."""
    graph = Refusing(0)
    with pytest.raises(UsageError, match="attempts"):
        call(form, graph, {}, config(), attempts=attempts)
    assert graph.calls == []


def overtaking(saver: AgentSaver, times: int) -> Callable[[], None]:
    """Moves thread t on, so many times, from another OS thread."""
    left = iter(range(times))
    graph = StateGraph(State).add_node("n", lambda state: {}).add_edge(START, "n").compile(checkpointer=saver)

    def overtake() -> None:
        if next(left, None) is not None:
            other = threading.Thread(target=graph.update_state, args=(config(), {"log": ["other"]}, "n"))
            other.start()
            other.join(60)

    return overtake


def test_an_input_made_from_the_state(saver: AgentSaver, form: str, pauses: list[Any]) -> None:
    """A callable sees the newest state at each try, and a run is accepted only for the state that it saw."""
    graph = StateGraph(State).add_node("n", lambda state: {"log": ["done"]}).add_edge(START, "n")
    app = graph.compile(checkpointer=saver)
    app.invoke({"log": ["in"]}, config())
    overtake, seen = overtaking(saver, 2), []

    def make(state: Any) -> Any:
        seen.append(list(state.values["log"]))
        overtake()
        return {"log": [f"saw {len(state.values['log'])}"]}

    async def amake(state: Any) -> Any:
        return make(state)

    result = call(form, app, make if form == "sync" else amake, config())
    assert result["log"] == ["in", "done", "other", "other", "saw 4", "done"]
    assert [len(log) for log in seen] == [2, 3, 4]
    assert len(pauses) == 2
    with pytest.raises(ThreadConflictError):
        call(form, app, make, config(expected_revision=1))


def test_an_answer_made_from_the_state(saver: AgentSaver, form: str) -> None:
    """A callable may answer, since it has seen what is asked; after a conflict it looks again."""

    def ask(state: State) -> State:
        return {"log": [interrupt("pay?")]}

    app = StateGraph(State).add_node("ask", ask).add_edge(START, "ask").compile(checkpointer=saver)
    app.invoke({"log": []}, config())

    def answer(state: Any) -> Any:
        overtake()
        return Command(resume=f"yes to {state.interrupts[0].value}") if state.interrupts else None

    def approve_elsewhere() -> None:
        other = threading.Thread(target=app.invoke, args=(Command(resume="no"), config()))
        other.start()
        other.join(60)

    left = iter([approve_elsewhere])

    def overtake() -> None:
        next(left, lambda: None)()

    assert call(form, app, answer, config())["log"] == ["no"]


@pytest.fixture(scope="module")
def workers() -> Iterator[list[Worker]]:
    started = [Worker() for _ in range(8)]
    yield started
    for worker in started:
        worker.stop()


@pytest.mark.parametrize(("how", "form"), [("sync", "sync"), ("async", "async"), ("exit", "sync")])
def test_eight_processes_count_to_eighty(
    how: str, form: str, workers: list[Worker], saver: AgentSaver, path: Path
) -> None:
    """B34: 8 processes add 1 ten times each with `invoke`; all 80 are there, on one line, in bounded tries."""
    saver.setup()
    for worker in workers:
        worker.ask(count_with_retries, path, 10, form, how, how == "async")
    all_meet(workers)
    runs = list(itertools.chain.from_iterable(results(workers)))
    assert len(runs) == 80
    assert counter_graph(saver).get_state(config()).values["n"] == 80
    assert_linear(saver, "t")
    print(f"80 increments, the node ran {sum(runs)} times")


def test_eight_threads_count_to_eighty(saver: AgentSaver) -> None:
    """B34 with OS threads on one saver, half of them with an event loop each."""
    graph = counter_graph(saver)
    failed: list[BaseException] = []

    def count(form: str) -> None:
        try:
            for _ in range(10):
                call(form, graph, {"n": 0}, config(), attempts=60, durability="sync")
        except BaseException as exc:
            failed.append(exc)

    threads = [threading.Thread(target=count, args=(form,)) for form in ("sync", "async") * 4]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not failed, failed
    assert graph.get_state(config()).values["n"] == 80
    assert_linear(saver, "t")
