"""Going back: rollback makes an older checkpoint the head, keeps and marks what came after, and needs none of it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from langgraph.types import Command, interrupt

from agent_ckpt import AgentSaver, CorruptionError, ThreadConflictError, UsageError
from tests.agents import delta_graph
from tests.conftest import Api
from tests.test_timeline import ANSWER, Payments, State, at, config, state_before
from tests.threads import checkpoint_of, plain, query

ROOT = Path(__file__).parent.parent


@pytest.fixture
def payments(api: Api) -> Payments:
    """A thread on which a payment was approved and made."""
    made = Payments(api.saver)
    api.invoke(made.graph, {"log": ["in"]}, config())
    api.invoke(made.graph, ANSWER, config())
    made.ran.clear()
    return made


def ids(states: list[Any]) -> list[str]:
    return [state.config["configurable"]["checkpoint_id"] for state in states]


def log(api: Api, graph: Any) -> list[str]:
    return api.get_state(graph, config()).values["log"]  # type: ignore[no-any-return]


def log_with(answer: str) -> list[str]:
    """What a whole payment leaves; its subgraph gives back all that it was given."""
    return ["in", "plan", "in", "plan", "check", answer, "pay"]


@pytest.mark.parametrize("node", ["plan", "check", "approve", "pay"])
def test_the_run_goes_on_from_there(node: str, api: Api, payments: Payments) -> None:
    """The head is the checkpoint that was named, its node runs again, and what came after is kept and marked."""
    states = api.history(payments.graph, config())
    target = state_before(states, node)
    revision = api.revision("t")
    assert api.rollback(at(target)) == plain(target.config)
    assert api.revision("t") > revision
    state = api.get_state(payments.graph, config())
    assert (state.config, state.values, state.next) == (target.config, target.values, (node,))
    assert ids(api.history(payments.graph, config())) == ids(states)
    newer = ids(states)[: ids(states).index(ids([target])[0])]
    assert api.rolled_back("t") == newer
    for old in states:
        assert api.get_state(payments.graph, at(old)).values == old.values
    result = api.invoke(payments.graph, None, config())
    if node != "pay":
        assert result["__interrupt__"]
        api.invoke(payments.graph, Command(resume="second thoughts"), config())
    assert payments.ran[0] == node
    said = "yes" if node == "pay" else "second thoughts"
    assert log(api, payments.graph) == log_with(said)
    assert api.rolled_back("t") == newer
    assert api.saver.verify()


def test_a_question_waits_again(api: Api, payments: Payments) -> None:
    """A checkpoint that waited for an answer waits again: it shows its question, and the old answer is gone."""
    target = state_before(api.history(payments.graph, config()), "approve")
    api.rollback(at(target))
    waiting = api.get_state(payments.graph, config())
    assert [question.value for question in waiting.interrupts] == ["pay?"]
    assert api.invoke(payments.graph, None, config())["__interrupt__"]
    assert api.get_state(payments.graph, config()).next == ("approve",)
    api.invoke(payments.graph, Command(resume="no"), config())
    assert log(api, payments.graph) == log_with("no")


def test_forward_again(api: Api, payments: Payments) -> None:
    """A rollback to a marked checkpoint takes its mark and its ancestors' away; nothing was lost on the way."""
    states = api.history(payments.graph, config())
    api.rollback(at(states[-1]))
    assert len(api.rolled_back("t")) == len(states) - 1
    api.invoke(payments.graph, None, config())
    other = api.get_state(payments.graph, config())
    api.rollback(at(states[0]))
    head = api.get_state(payments.graph, config())
    assert (head.config, head.values, head.next) == (states[0].config, states[0].values, ())
    assert not set(api.rolled_back("t")) & set(ids(states))
    assert set(api.rolled_back("t")) >= set(ids([other]))
    api.invoke(payments.graph, {"log": ["more"]}, config())
    assert log(api, payments.graph)[:8] == [*log_with("yes"), "more"]


def test_a_rollback_to_the_head_only_ends_runs(api: Api, payments: Payments) -> None:
    """Nothing is marked; what restored the thread before is refused."""
    found = api.get_tuple(config())
    api.rollback(at(api.get_state(payments.graph, config())))
    assert api.rolled_back("t") == []
    with pytest.raises(ThreadConflictError) as caught:
        api.put(found.config, {**found.checkpoint, "id": "zzz"}, found.metadata, {})
    assert (caught.value.reason, caught.value.expected) == ("stale", api.revision("t") - 1)


def test_a_run_that_is_going_is_refused(api: Api) -> None:
    """A rollback doesn't wait for a run: that one is refused at its next write, and stores nothing more."""
    rolled: list[Any] = []

    def act(state: State) -> State:
        first = list(api.saver.list({"configurable": {"thread_id": "t"}}))[-1]
        rolled.append(api.saver.rollback(plain(first.config)))
        return {"log": ["acted"]}

    built = StateGraph(State).add_node("act", act).add_node("after", lambda state: {"log": ["after"]})
    graph = built.add_edge(START, "act").add_edge("act", "after").compile(checkpointer=api.saver)
    with pytest.raises(ThreadConflictError) as caught:
        api.invoke(graph, {"log": ["in"]}, config(), durability="sync")
    assert caught.value.wrote
    assert api.get_state(graph, config()).config == rolled[0]
    assert "acted" not in api.get_state(graph, config()).values.get("log", [])


def turns_graph(saver: Any, lasting: bool, asks: bool) -> Any:
    """before -> sub (first -> work) -> after; `work` asks or not, and the subgraph remembers earlier turns or not."""

    def work(state: State) -> State:
        return {"log": [interrupt("inner?")] if asks else ["worked"]}

    inner = StateGraph(State).add_node("first", lambda state: {"log": ["first"]}).add_node("work", work)
    sub = inner.add_edge(START, "first").add_edge("first", "work").compile(checkpointer=True if lasting else None)
    built = StateGraph(State).add_node("before", lambda state: {"log": ["before"]}).add_node("sub", sub)
    built = built.add_node("after", lambda state: {"log": ["after"]}).add_edge(START, "before")
    return built.add_edge("before", "sub").add_edge("sub", "after").compile(checkpointer=saver)


def as_from_a_breakpoint(lasting: bool) -> list[str]:
    """What LangGraph gives when a second turn stops before the subgraph and goes on from there.

    It takes a subgraph with a memory of its own for one to resume then, and runs nothing in it.
    """
    graph = turns_graph(InMemorySaver(), lasting, False)
    graph.invoke({"log": ["one"]}, config())
    graph.invoke({"log": ["two"]}, config(), interrupt_before=["sub"])
    return graph.invoke(None, config())["log"]  # type: ignore[no-any-return]


@pytest.mark.parametrize("asks", [True, False], ids=["asks", "runs through"])
@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
@pytest.mark.parametrize("lasting", [False, True], ids=["per step", "lasting"])
def test_subgraphs_go_back_too(lasting: bool, durability: str, asks: bool, api: Api) -> None:
    """A subgraph's state is what it was at the root's checkpoint: empty where the step begins anew, waiting where it
    waited, and in one with a memory of its own (checkpointer=True) what the earlier steps left."""
    graph = turns_graph(api.saver, lasting, asks)

    def turn(text: str, given: Any) -> None:
        api.invoke(graph, given, config(), durability=durability)
        if asks:
            api.invoke(graph, Command(resume=f"{text} answer"), config(), durability=durability)

    turn("one", {"log": ["one"]})
    one = log(api, graph)
    turn("two", {"log": ["two"]})
    two = log(api, graph)
    states = api.history(graph, config())

    # To the end of the first turn: the second one gives what it gave.
    api.rollback(at(next(state for state in states if state.values["log"] == one)))
    assert log(api, graph) == one
    turn("two", {"log": ["two"]})
    assert log(api, graph) == two
    if durability == "exit" and not asks:
        return  # nothing is stored in the middle of a turn

    # To where the subgraph begins in the second turn: it begins anew, or waits where it waited.
    api.rollback(at(state_before(states, "sub")))
    again = api.invoke(graph, None, config(), durability=durability)
    if asks:
        assert again["__interrupt__"]
        api.invoke(graph, Command(resume="two answer"), config(), durability=durability)
    assert log(api, graph) == (two if asks else as_from_a_breakpoint(lasting))
    assert api.saver.verify()


def test_delta_channels(api: Api) -> None:
    """What a DeltaChannel is rebuilt from is the chain of the head, and of each marked checkpoint still its own."""
    graph = delta_graph(api.saver, 4)

    def say(text: str) -> None:
        api.invoke(graph, {"messages": [HumanMessage(text, id=text)]}, config(), durability="sync")

    def texts(at_config: Any) -> list[str]:
        return [m.text for m in api.get_state(graph, at_config).values["messages"]]

    for number in range(7):
        say(f"turn {number}")
    states = api.history(graph, config())
    before = {state.config["configurable"]["checkpoint_id"]: texts(at(state)) for state in states}
    for target in (states[4], states[9], states[2]):
        api.rollback(at(target))
        assert texts(config()) == before[ids([target])[0]]
        api.invoke(graph, None, config(), durability="sync")
        say("anew")
        assert texts(config())[-2:][0] == "anew" or "anew" in texts(config())
        assert texts(config()).count("anew") == 1
        for state in states:
            assert texts(at(state)) == before[ids([state])[0]], "a marked checkpoint changed"
    head = texts(config())
    api.prune(["t"])
    assert texts(config()) == head
    assert len(api.list(config())) == 1
    assert api.saver.verify()


@pytest.mark.parametrize("command", [False, True], ids=["api", "command"])
def test_newer_rows_are_damaged(command: bool, api: Api, payments: Payments, path: Path) -> None:
    """B65: the head and all else that is newer can't be read, and the thread still goes back to what can."""
    states = api.history(payments.graph, config())
    target = state_before(states, "check")
    seq = query(path, "SELECT seq FROM checkpoints WHERE space = 1 ORDER BY seq LIMIT 1 OFFSET 2")[0][0]
    query(path, "UPDATE checkpoints SET frame = x'c1c1' WHERE seq > ?", seq)
    query(path, "UPDATE writes SET frame = x'c1c1' WHERE seq > ?", seq)
    with pytest.raises(CorruptionError):
        api.get_tuple(config())
    if command:
        report = run_command(path, "t", ids([target])[0], "--json")
        assert json.loads(report)["head"] == ids([target])[0]
    else:
        api.rollback(at(target))
    assert api.get_state(payments.graph, config()).values == target.values
    api.invoke(payments.graph, None, config())
    api.invoke(payments.graph, Command(resume="after all"), config())
    assert log(api, payments.graph) == log_with("after all")
    # The damaged rows are kept, and named; pruning drops them.
    assert not api.saver.verify()
    api.prune(["t"])
    assert api.saver.verify()


def run_command(path: Path, *arguments: str, status: int = 0) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "agent_ckpt", "rollback", str(path), *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=ROOT,
    )
    assert done.returncode == status, done.stderr
    return done.stdout + done.stderr


def test_the_command(saver: AgentSaver, path: Path) -> None:
    """`agent-ckpt rollback` tells what it did; `show` shows the new head and which checkpoints are marked."""
    graph = Payments(saver).graph
    graph.invoke({"log": ["in"]}, config())
    states = list(graph.get_state_history(config()))
    out = run_command(path, "t", ids(states)[-1])
    assert f"the head is {ids(states)[-1]} now" in out
    assert f"{len(states) - 1} checkpoints are marked" in out
    shown = subprocess.run(
        [sys.executable, "-m", "agent_ckpt", "show", str(path), "t"], capture_output=True, text=True, cwd=ROOT
    ).stdout
    assert f"head   {ids(states)[-1]}" in shown
    assert shown.count("rolled back") == len(states) - 1
    assert "not stored" in run_command(path, "t", "nothing", status=2)
    assert "not stored" in run_command(path, "nobody", ids(states)[0], status=2)


def test_a_damaged_target(api: Api, payments: Payments, path: Path) -> None:
    """What can't be read is no head: refused, and nothing changed."""
    states = api.history(payments.graph, config())
    revision = api.revision("t")
    oldest = "SELECT min(seq) FROM checkpoints JOIN spaces USING (space) WHERE ns = ''"
    query(path, f"UPDATE checkpoints SET frame = x'c1c1' WHERE seq = ({oldest})")
    with pytest.raises(CorruptionError):
        api.rollback(at(states[-1]))
    assert api.get_state(payments.graph, config()).config == states[0].config
    assert api.revision("t") == revision
    api.delete_thread("t")


def test_another_ones_lease(api: Api, payments: Payments, open_saver: Callable[..., AgentSaver]) -> None:
    """Who holds the thread's lease may roll back; others may not until it is given back."""
    first = at(api.history(payments.graph, config())[-1])
    other = Api(open_saver(), api.form)
    with api.saver.lease("t"):
        with pytest.raises(ThreadConflictError) as caught:
            in_a_thread(lambda: other.rollback(first))
        assert caught.value.reason == "leased"
        assert api.rolled_back("t") == []
    other.rollback(first)
    assert len(api.rolled_back("t")) == 5


def in_a_thread(call: Callable[[], Any]) -> Any:
    """Call in an OS thread of its own, whose context has no lease."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(call).result(60)


def test_what_is_no_target(api: Api, payments: Payments) -> None:
    """No id, an unknown id, another thread's, and a subgraph's are UsageErrors."""
    (inner, *_) = [
        i for i in api.list({"configurable": {"thread_id": "t"}}) if i.config["configurable"]["checkpoint_ns"]
    ]
    head = ids([api.get_state(payments.graph, config())])[0]
    for wrong in (config(), config(checkpoint_id="x"), plain(inner.config)):
        with pytest.raises(UsageError):
            api.rollback(wrong)
    with pytest.raises(UsageError, match="not stored"):
        api.rollback({"configurable": {"thread_id": "other", "checkpoint_id": head}})
    assert api.rolled_back("other") == []


@pytest.mark.filterwarnings("ignore::agent_ckpt.SchemaChangeWarning")  # another graph writes a copy
def test_copies_deletions_and_reopening(api: Api, payments: Payments, open_saver: Callable[..., AgentSaver]) -> None:
    """Marks survive reopening and copying, with what they mean for DeltaChannels; a deletion takes them along."""
    graph = delta_graph(api.saver, 3)
    for number in range(5):
        api.invoke(graph, {"messages": [HumanMessage(f"turn {number}", id=str(number))]}, config(), durability="sync")
    states = [s for s in api.history(graph, config()) if "messages" in s.values]
    api.rollback(at(states[5]))
    api.invoke(graph, None, config(), durability="sync")
    api.saver.close()
    again = Api(open_saver(), api.form)
    graph = delta_graph(again.saver, 3)
    again.copy_thread("t", "copy")
    copied = {"configurable": {"thread_id": "copy"}}
    assert again.rolled_back("copy") == again.rolled_back("t") != []

    def all_texts(where: dict[str, Any]) -> list[list[str]]:
        return [[m.text for m in s.values.get("messages", [])] for s in again.history(graph, where)]

    assert all_texts(copied) == all_texts(config())
    assert again.get_state(graph, copied).values == again.get_state(graph, config()).values
    assert again.saver.verify()
    again.delete_thread("copy")
    assert again.rolled_back("copy") == []


def test_raw_checkpoints(api: Api) -> None:
    """Pending writes of the checkpoint gone back to: none where something was built on it, all where nothing was."""
    first = api.put(
        {"configurable": {"thread_id": "t", "checkpoint_ns": ""}},
        checkpoint_of({"n": 1}, {"n": 1}, id="a"),
        {"step": 0},
        {"n": 1},
    )
    api.put_writes(plain(first), [("n", 2)], "task")
    second = api.put(plain(first), checkpoint_of({"n": 2}, {"n": 2}, id="b"), {"step": 1}, {"n": 2})
    api.put_writes(plain(second), [("n", 3)], "task")
    api.rollback(plain(first))
    assert api.get_tuple(config()).pending_writes == []
    api.put_writes(plain(first), [("n", 20)], "task")
    assert api.get_tuple(config()).pending_writes == [("task", "n", 20)]
    api.rollback(plain(second))
    assert api.get_tuple(config()).pending_writes == [("task", "n", 3)]
    assert [i.checkpoint["id"] for i in api.list(config())] == ["b", "a"]
    assert api.get_tuple(plain(first)).pending_writes == [("task", "n", 20)]
    with pytest.raises(ThreadConflictError):
        api.put(plain(first), checkpoint_of({"n": 9}, {"n": 3}, id="c"), {"step": 1}, {"n": 3})
    api.put(plain(second), checkpoint_of({"n": 9}, {"n": 3}, id="c"), {"step": 1}, {"n": 3})
    assert next(api.saver.threads()).checkpoints == 3


def test_the_history_of_deltas(api: Api) -> None:
    """What was written to a checkpoint before it was gone back to counts for what was built on it then, and not for
    what is built on it now; the same task's new write takes the place of its old one."""
    first = api.put(
        {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}, checkpoint_of({}, {"d": 1}, id="a"), {}, {}
    )
    api.put_writes(plain(first), [("d", "old")], "task")
    second = api.put(plain(first), checkpoint_of({}, {"d": 2}, id="b"), {}, {})
    api.rollback(plain(first))
    api.put_writes(plain(first), [("d", "new")], "task")
    third = api.put(plain(first), checkpoint_of({}, {"d": 2}, id="c"), {}, {})

    def writes(where: Any) -> list[Any]:
        found = api.get_delta_channel_history(config=plain(where), channels=["d"])
        return [value for _, _, value in found["d"]["writes"]]

    assert (writes(third), writes(second)) == (["new"], ["old"])
    api.copy_thread("t", "u")
    for where, expected in ((third, ["new"]), (second, ["old"])):
        assert writes({"configurable": {**where["configurable"], "thread_id": "u"}}) == expected
    api.rollback(plain(second))
    fourth = api.put(plain(second), checkpoint_of({}, {"d": 3}, id="d"), {}, {})
    assert writes(fourth) == ["old"]


def test_answers_of_several_questions(api: Api) -> None:
    """Of a node with two questions that were answered, the first one is asked again (B54: with no old answer left)."""

    def ask(state: State) -> State:
        return {"log": [interrupt("one?"), interrupt("two?")]}

    graph = StateGraph(State).add_node("ask", ask).add_edge(START, "ask").compile(checkpointer=api.saver)
    api.invoke(graph, {"log": []}, config())
    for answer in ("first", "second"):
        api.invoke(graph, Command(resume=answer), config())
    api.rollback(at(state_before(api.history(graph, config()), "ask")))
    assert [q.value for q in api.get_state(graph, config()).interrupts] == ["one?"]
    assert [q.value for q in api.invoke(graph, None, config())["__interrupt__"]] == ["one?"]
    assert [q.value for q in api.invoke(graph, Command(resume="1"), config())["__interrupt__"]] == ["two?"]
    api.invoke(graph, Command(resume="2"), config())
    assert log(api, graph) == ["1", "2"]


def test_messages_of_an_agent(api: Api) -> None:
    """A thread of messages goes back before a bad answer, and goes on from there."""
    from langgraph.graph import MessagesState

    said = iter(["fine", "bad", "better"])
    built = StateGraph(MessagesState).add_node("model", lambda state: {"messages": [AIMessage(next(said))]})
    graph = built.add_edge(START, "model").compile(checkpointer=api.saver)
    api.invoke(graph, {"messages": [HumanMessage("hi")]}, config())
    good = api.get_state(graph, config())
    api.invoke(graph, {"messages": [HumanMessage("more")]}, config())
    api.rollback(at(good))
    api.invoke(graph, {"messages": [HumanMessage("more, please")]}, config())
    assert [m.text for m in api.get_state(graph, config()).values["messages"]] == [
        "hi",
        "fine",
        "more, please",
        "better",
    ]
