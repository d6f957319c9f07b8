"""What a refused run's nodes have already done, per durability: the table in docs/conflicts.md."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from langgraph.graph import START, StateGraph
from langgraph.types import Command, interrupt

from agent_ckpt import AgentSaver, ThreadConflictError
from tests.conftest import Api, until
from tests.contests import MeetingSaver
from tests.test_timeline import State, config

BEFORE, AFTER = ["a", "b", "c"], ["d", "e"]


def effects_graph(saver: AgentSaver, done: list[str]) -> Any:
    """a -> b -> c -> ask -> d -> e: each node has an effect, `ask` once it is answered."""

    def effect(name: str) -> Callable[[State], State]:
        def node(state: State) -> State:
            done.append(name)
            return {"log": [name]}

        return node

    def ask(state: State) -> State:
        answer = interrupt("go on?")
        done.append("ask")
        return {"log": [answer]}

    built, last = StateGraph(State), START
    for name in [*BEFORE, "ask", *AFTER]:
        built.add_node(name, ask if name == "ask" else effect(name))
        built.add_edge(last, name)
        last = name
    return built.compile(checkpointer=saver)


@pytest.mark.parametrize("given", ["input", "answer"])
@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
def test_what_a_loser_has_done(durability: str, given: str, form: str, saver: AgentSaver, path: Path) -> None:
    """Refused right after its restore: with "sync" nothing, or the node that was answered; else up to everything."""
    whole = BEFORE if given == "input" else ["ask", *AFTER]
    send: Any = {"log": ["in"]} if given == "input" else Command(resume="yes")
    winner, done = effects_graph(saver, []), []
    if given == "answer":
        winner.invoke({"log": ["in"]}, config())

    def win() -> None:
        other = threading.Thread(target=winner.invoke, args=(send, config()))
        other.start()
        other.join(60)

    with MeetingSaver(path) as late:
        late.met = win
        with pytest.raises(ThreadConflictError) as caught:
            Api(late, form).invoke(effects_graph(late, done), send, config(), durability=durability)
    assert not caught.value.wrote
    assert winner.get_state(config()).values["log"] == [
        "in",
        *BEFORE,
        *(["yes", *AFTER] if given == "answer" else []),
    ]
    if durability == "sync":
        assert done == whole[: 0 if given == "input" else 1]
    elif durability == "async":
        assert done == whole[: len(done)]
    else:
        assert done == whole


@pytest.mark.parametrize("durability", ["sync", "async"])
def test_a_newcomer_beside_a_run_has_done_nothing(durability: str, api: Api) -> None:
    """While a run is in a node, another one is told before any node of it ran, whatever its durability."""
    inside, leave, done = threading.Event(), threading.Event(), []

    def slow(state: State) -> State:
        inside.set()
        leave.wait(60)
        return {"log": ["slow"]}

    graph = StateGraph(State).add_node("slow", slow).add_edge(START, "slow").compile(checkpointer=api.saver)
    run = threading.Thread(target=graph.invoke, args=({"log": ["in"]}, config()), kwargs={"durability": durability})
    run.start()
    assert inside.wait(60)
    # With "async" the run's first checkpoint is put beside its node.
    until(lambda: graph.get_state(config()).next == ("slow",))
    try:
        for theirs in ("sync", "async", "exit"):
            with pytest.raises(ThreadConflictError) as caught:
                api.invoke(effects_graph(api.saver, done), {"log": ["me too"]}, config(), durability=theirs)
            assert (caught.value.reason, caught.value.wrote, done) == ("busy", False, [])
    finally:
        leave.set()
        run.join(60)
    assert graph.get_state(config()).values["log"] == ["in", "slow"]
