"""What a caller can say about the past: expected_revision, stale_checkpoint and fork, with real graphs."""

from __future__ import annotations

import asyncio
import json
import operator
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.runnables import RunnableConfig
from langgraph.graph import START, StateGraph
from langgraph.types import Command, interrupt

from agent_ckpt import AgentSaver, ThreadConflictError, UsageError
from tests.conftest import Api
from tests.contests import MeetingSaver

OpenSaver = Callable[..., AgentSaver]


class State(TypedDict, total=False):
    log: Annotated[list[str], operator.add]


class Payments:
    """plan -> approve (asks) -> pay, and which of its nodes ran."""

    def __init__(self, saver: AgentSaver) -> None:
        self.ran: list[str] = []
        inner = StateGraph(State).add_node("check", self.node("check")).add_edge(START, "check").compile()
        built = StateGraph(State).add_node("plan", self.node("plan")).add_node("check", inner)
        built = built.add_node("approve", self.approve).add_node("pay", self.node("pay")).add_edge(START, "plan")
        built = built.add_edge("plan", "check").add_edge("check", "approve").add_edge("approve", "pay")
        self.graph: Any = built.compile(checkpointer=saver)

    def node(self, name: str) -> Callable[[State], State]:
        def run(state: State) -> State:
            self.ran.append(name)
            return {"log": [name]}

        return run

    def approve(self, state: State) -> State:
        self.ran.append("approve")
        return {"log": [interrupt("pay?")]}


def config(**asked: Any) -> dict[str, Any]:
    return {"configurable": {"thread_id": "t", **asked}}


def at(state: Any, **asked: Any) -> dict[str, Any]:
    """A config that names a state's checkpoint as plain text, as one that came back from a browser does."""
    return {"configurable": {**json.loads(json.dumps(state.config["configurable"])), **asked}}


async def _drain(stream: Any) -> None:
    async for _ in stream:
        pass


def stream(api: Api, graph: Any, given: Any, conf: Any) -> None:
    if api.form == "sync":
        for _ in graph.stream(given, conf):
            pass
    else:
        asyncio.run(_drain(graph.astream(given, conf)))


ANSWER = Command(resume="yes")
CALLS: dict[str, Callable[[Api, Any, Any], Any]] = {
    "invoke": lambda api, graph, conf: api.invoke(graph, {"log": ["new"]}, conf),
    "resume": lambda api, graph, conf: api.invoke(graph, ANSWER, conf),
    "stream": lambda api, graph, conf: stream(api, graph, ANSWER, conf),
    "update_state": lambda api, graph, conf: api.update_state(graph, conf, {"log": ["edited"]}, as_node="plan"),
}


@pytest.fixture
def payments(api: Api) -> Payments:
    """A thread that waits for its approval."""
    made = Payments(api.saver)
    api.invoke(made.graph, {"log": ["in"]}, config())
    made.ran.clear()
    return made


# expected_revision


@pytest.mark.parametrize("call", CALLS)
def test_a_thread_that_moved_on_is_a_conflict(call: str, api: Api, payments: Payments) -> None:
    """What saw an older revision is refused before a node of it runs, and the right revision is accepted."""
    seen = api.revision("t")
    api.update_state(payments.graph, config(), {"log": ["somebody else"]}, as_node="check")
    now = api.revision(config())
    assert now > seen
    history = len(api.list(config()))
    with pytest.raises(ThreadConflictError) as caught:
        CALLS[call](api, payments.graph, config(expected_revision=seen))
    error = caught.value
    assert (error.reason, error.expected, error.found, error.wrote) == ("expected_revision", seen, now, False)
    assert payments.ran == []
    assert (api.revision("t"), len(api.list(config()))) == (now, history)
    CALLS[call](api, payments.graph, config(expected_revision=now))
    assert api.revision("t") > now
    assert payments.ran != [] or call == "update_state"


def test_a_new_thread_is_at_revision_zero(api: Api) -> None:
    """0 stands for a thread that isn't stored; another number is refused there and makes no thread."""
    payments = Payments(api.saver)
    assert api.revision("t") == 0
    with pytest.raises(ThreadConflictError) as caught:
        api.invoke(payments.graph, {"log": ["in"]}, config(expected_revision=7))
    assert (caught.value.expected, caught.value.found, payments.ran) == (7, 0, [])
    assert not api.exists("t")
    api.invoke(payments.graph, {"log": ["in"]}, config(expected_revision=0))
    with pytest.raises(ThreadConflictError):
        api.invoke(payments.graph, {"log": ["in"]}, config(expected_revision=0))


def test_it_is_neither_stored_nor_shown(api: Api, payments: Payments) -> None:
    """No metadata, no StateSnapshot and no config that comes back holds what was said to the saver alone."""
    asked = {"expected_revision": api.revision("t"), "stale_checkpoint": "refuse", "own_mark": "kept"}
    api.invoke(payments.graph, ANSWER, config(**asked))
    states = api.history(payments.graph, config())
    assert len(states) >= 5
    assert any(state.metadata.get("own_mark") == "kept" for state in states)
    for state in [*states, api.get_state(payments.graph, config(**asked))]:
        for part in (state.metadata, state.config["configurable"], (state.parent_config or {}).get("configurable", {})):
            assert not {"expected_revision", "stale_checkpoint"} & part.keys()
    for item in api.list({"configurable": {"thread_id": "t"}}):
        assert not {"expected_revision", "stale_checkpoint"} & item.metadata.keys()


def test_reading_is_never_refused(api: Api, payments: Payments) -> None:
    """get_state, its history and get_tuple take no notice, also with a config that LangGraph filled in."""
    asked = config(expected_revision=1, stale_checkpoint="refuse")
    old = api.history(payments.graph, config())[-1]
    full = {"tags": [], "metadata": {}, "callbacks": None, "recursion_limit": 9}
    for more in ({}, full):
        assert api.get_state(payments.graph, {**asked, **more}).next == ("approve",)
        assert api.get_tuple({**asked, **more}) is not None
        there = {**at(old, expected_revision=1, stale_checkpoint="refuse"), **more}
        assert api.get_state(payments.graph, there).config == old.config
    assert api.history(payments.graph, asked)
    # The state that was read with it is as good as any other.
    state = api.get_state(payments.graph, {**asked, **full})
    api.invoke(payments.graph, ANSWER, state.config)
    assert payments.ran == ["approve", "pay"]


def test_what_was_read_can_not_be_written_to(api: Api, payments: Payments) -> None:
    """A raw put with the session of such a read is refused: the caller had seen another revision."""
    found = api.get_tuple(config(expected_revision=1))
    with pytest.raises(ThreadConflictError) as caught:
        api.put(found.config, {**found.checkpoint, "id": "zzz"}, found.metadata, {})
    assert (caught.value.reason, caught.value.expected) == ("expected_revision", 1)


def test_it_counts_at_the_first_restore_only(api: Api) -> None:
    """Subgraphs, and a graph called in a node without a thread of its own, go on although the run has written."""
    payments = Payments(api.saver)
    other = StateGraph(State).add_node("log", lambda state: {"log": ["other"]}).add_edge(START, "log").compile()

    def calls(state: State, config: RunnableConfig) -> State:
        return other.invoke({"log": []}, config)  # type: ignore[return-value]

    built = StateGraph(State).add_node("sub", payments.graph).add_node("calls", calls)
    graph = built.add_edge(START, "sub").add_edge("sub", "calls").compile(checkpointer=api.saver)
    api.invoke(graph, {"log": ["in"]}, config(expected_revision=0), durability="sync")
    api.invoke(graph, ANSWER, config(expected_revision=api.revision("t")), durability="sync")
    assert api.get_state(graph, config()).values["log"][-1] == "other"


@pytest.mark.parametrize("value", [-1, "3", 2.0, True])
def test_a_revision_that_is_none(value: Any, api: Api, payments: Payments) -> None:
    """Anything but a whole number of at least 0 is a UsageError."""
    with pytest.raises(UsageError, match="expected_revision"):
        api.invoke(payments.graph, ANSWER, config(expected_revision=value))
    assert payments.ran == []


def test_moved_on_between_the_check_and_the_first_write(saver: AgentSaver, path: Path, form: str) -> None:
    """Who passes the check and is overtaken before its first write is refused there like anybody else."""
    graph = Payments(saver).graph
    graph.invoke({"log": ["in"]}, config())

    def overtake() -> None:
        other = threading.Thread(target=graph.update_state, args=(config(), {"log": ["x"]}, "check"))
        other.start()
        other.join(60)

    with MeetingSaver(path) as late:
        late.met = overtake
        asked = config(expected_revision=saver.revision("t"))
        with pytest.raises(ThreadConflictError) as caught:
            Api(late, form).update_state(Payments(late).graph, asked, {"log": ["y"]}, as_node="check")
    assert (caught.value.reason, caught.value.wrote) == ("stale", False)


# stale_checkpoint and fork


@pytest.fixture
def answered(api: Api, payments: Payments) -> list[Any]:
    """The states of a thread whose approval was given, newest first: end, pay, approve, check, plan, input."""
    api.invoke(payments.graph, ANSWER, config())
    payments.ran.clear()
    return api.history(payments.graph, config())


def state_before(states: list[Any], node: str) -> Any:
    return next(state for state in states if state.next == (node,))


def test_fork_is_the_default(api: Api, payments: Payments, answered: list[Any]) -> None:
    """Without a word, an old checkpoint is gone on from, as LangGraph does with any saver."""
    api.invoke(payments.graph, None, at(state_before(answered, "pay")))
    assert payments.ran == ["pay"]


@pytest.mark.parametrize("by", ["option", "call"])
@pytest.mark.parametrize("call", CALLS)
def test_refuse(call: str, by: str, api: Api, open_saver: OpenSaver, answered: list[Any]) -> None:
    """With "refuse" nothing goes on from a checkpoint that isn't the head, and no node runs; the head is fine."""
    refusing = Api(open_saver(stale_checkpoint="refuse" if by == "option" else "fork"), api.form)
    asked = {} if by == "option" else {"stale_checkpoint": "refuse"}
    payments = Payments(refusing.saver)
    old, revision = state_before(answered, "approve"), api.revision("t")
    assert refusing.get_state(payments.graph, at(old, **asked)).next == ("approve",)
    with pytest.raises(ThreadConflictError) as caught:
        CALLS[call](refusing, payments.graph, at(old, **asked))
    error = caught.value
    assert (error.reason, error.expected, error.found) == ("stale", None, revision)
    assert error.checkpoint_id == old.config["configurable"]["checkpoint_id"]
    assert (payments.ran, api.revision("t")) == ([], revision)
    api.invoke(payments.graph, {"log": ["on"]}, at(answered[0], **asked))
    assert payments.ran[0] == "plan"


def test_a_call_can_allow_what_the_saver_refuses(api: Api, open_saver: OpenSaver, answered: list[Any]) -> None:
    """The call's word counts more than the saver's option."""
    payments = Payments(open_saver(stale_checkpoint="refuse"))
    api.invoke(payments.graph, None, at(state_before(answered, "pay"), stale_checkpoint="fork"))
    assert payments.ran == ["pay"]


def test_refuse_resume(api: Api, payments: Payments, answered: list[Any]) -> None:
    """With "refuse_resume" an old question can't be answered or asked again; other old checkpoints can be run from,
    and the question's can be edited."""
    asked = {"stale_checkpoint": "refuse_resume"}
    question = state_before(answered, "approve")
    for given in (Command(resume="no"), None, {"log": ["again"]}):
        with pytest.raises(ThreadConflictError):
            api.invoke(payments.graph, given, at(question, **asked))
    assert payments.ran == []
    api.invoke(payments.graph, None, at(state_before(answered, "plan"), **asked))
    assert payments.ran == ["plan", "check", "approve"]
    edited = api.update_state(payments.graph, at(question, **asked), {"log": ["edited"]}, as_node="check")
    api.invoke(payments.graph, Command(resume="late yes"), edited)
    assert api.get_state(payments.graph, config()).values["log"][-2:] == ["late yes", "pay"]


@pytest.mark.parametrize("word", ["refuse", "refuse_resume"])
def test_a_checkpoint_that_is_gone(word: str, api: Api, payments: Payments, answered: list[Any]) -> None:
    """One that was pruned can't be told from any other, so an answer to it is refused; LangGraph would begin anew."""
    old = state_before(answered, "approve")
    api.prune(["t"])
    with pytest.raises(ThreadConflictError, match="not stored"):
        api.invoke(payments.graph, ANSWER, at(old, stale_checkpoint=word))
    api.delete_thread("t")
    with pytest.raises(ThreadConflictError) as caught:
        api.invoke(payments.graph, ANSWER, at(old, stale_checkpoint=word))
    assert (caught.value.reason, payments.ran) == ("deleted", [])


def test_a_word_that_is_none(api: Api, payments: Payments, open_saver: OpenSaver) -> None:
    """Another word is a UsageError, as an option and in a call."""
    for word in ("deny", 1, ["fork"]):
        with pytest.raises(UsageError, match="stale_checkpoint"):
            api.invoke(payments.graph, ANSWER, config(stale_checkpoint=word))
    with pytest.raises(UsageError, match="stale_checkpoint"):
        open_saver(stale_checkpoint="never")


@pytest.mark.parametrize("call", ["invoke", "stream", "update_state"])
def test_a_fork_is_accepted_once(call: str, api: Api, open_saver: OpenSaver, answered: list[Any]) -> None:
    """fork says that going back is meant: reads don't use that up, one run or update_state does."""
    refusing = Api(open_saver(stale_checkpoint="refuse"), api.form)
    payments = Payments(refusing.saver)
    old = at(state_before(answered, "check"))
    given = {**old, "tags": ["kept"]}
    forked = refusing.fork(given)
    assert (given, forked["tags"]) == ({**old, "tags": ["kept"]}, ["kept"])
    assert forked["configurable"] == old["configurable"]
    assert refusing.get_state(payments.graph, forked).next == ("check",)
    CALLS[call](refusing, payments.graph, forked)
    assert refusing.get_state(payments.graph, config()).parent_config is not None
    with pytest.raises(ThreadConflictError):
        CALLS[call](refusing, payments.graph, forked)
    sent = json.loads(json.dumps(refusing.fork(old)))
    with pytest.raises(ThreadConflictError, match=r"saver\.fork"):
        CALLS[call](refusing, payments.graph, sent)


def test_a_fork_of_nothing(api: Api, payments: Payments) -> None:
    """fork needs a checkpoint that is stored."""
    with pytest.raises(UsageError, match="checkpoint_id"):
        api.fork(config())
    with pytest.raises(UsageError, match="not stored"):
        api.fork(config(checkpoint_id="nothing"))


def test_time_travel_of_nested_graphs_with_a_fork(api: Api, open_saver: OpenSaver, answered: list[Any]) -> None:
    """Only the run's own restore is asked: its subgraphs are restored at old checkpoints too, and go on."""
    refusing = Api(open_saver(stale_checkpoint="refuse"), api.form)
    payments = Payments(refusing.saver)
    refusing.invoke(payments.graph, None, refusing.fork(at(state_before(answered, "check"))))
    assert payments.ran == ["check", "approve"]
    refusing.invoke(payments.graph, ANSWER, config())
    assert payments.ran[-1] == "pay"
