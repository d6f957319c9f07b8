"""Of several sessions that restored one thread, the first to write wins and each other is refused whole."""

from __future__ import annotations

import asyncio
import copy
import json
import operator
import os
import pickle
import subprocess
import sys
import textwrap
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Annotated, Any, TypedDict

import msgpack
import orjson
import ormsgpack
import pytest
import yaml
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.graph import START, StateGraph
from langgraph.types import Command

from agent_ckpt import AgentSaver, ThreadConflictError, UsageError
from tests.agents import approval_graph, delta_graph, nested_graph
from tests.conftest import Api, assert_sound
from tests.contests import CONTESTS, FIRST, MeetingSaver, assert_linear, contents, steps_graph

ROOT = Path(__file__).resolve().parent.parent
DURABILITIES = ["sync", "async", "exit"]

# Other graphs than the one that made a thread write it here, and are told so.
pytestmark = pytest.mark.filterwarnings("ignore::agent_ckpt.SchemaChangeWarning")


def config_of(thread_id: Any = "t", **more: Any) -> dict[str, Any]:
    return {"configurable": {"thread_id": thread_id, "checkpoint_ns": "", **more}}


def elsewhere(action: Callable[[], Any]) -> None:
    """Do something on another OS thread, with a context of its own, and wait for it."""
    failed: list[BaseException] = []

    def work() -> None:
        try:
            action()
        except BaseException as exc:
            failed.append(exc)

    worker = threading.Thread(target=work, daemon=True)
    worker.start()
    worker.join(30)
    assert not worker.is_alive(), "hangs"
    if failed:
        raise failed[0]


def checkpoint(number: int, **values: Any) -> dict[str, Any]:
    made = empty_checkpoint()
    made["channel_values"] = {"n": number, **values}
    made["channel_versions"] = dict.fromkeys(made["channel_values"], number + 1)
    return made


def put(api: Any, config: Any, made: dict[str, Any], step: int = 0) -> Any:
    return api.put(config, made, {"source": "loop", "step": step, "parents": {}}, made["channel_versions"])


def revision(saver: AgentSaver, thread_id: str = "t") -> int:
    return next(info.revision for info in saver.threads() if info.thread_id == thread_id)


# Two restores, one winner


@pytest.fixture
def late(path: Path) -> Iterator[MeetingSaver]:
    """A saver whose run can be held right after its restore."""
    with MeetingSaver(path) as saver:
        yield saver
    assert_sound(path)


@pytest.mark.parametrize("durability", DURABILITIES)
@pytest.mark.parametrize("kind", [kind for kind in CONTESTS if kind != "update_state"])
def test_first_to_write_wins(
    kind: str, durability: str, form: str, late: MeetingSaver, saver: AgentSaver, path: Path
) -> None:
    """B33: of two runs that restored one thread, the second to write is refused and leaves no row anywhere."""
    refused = lose(kind, durability, form, late, saver, path)
    assert "Read the thread again" in str(refused)


def test_update_state_loses_too(form: str, late: MeetingSaver, saver: AgentSaver, path: Path) -> None:
    """update_state restores and writes like a run: the later of two is refused."""
    lose("update_state", None, form, late, saver, path)


def lose(
    kind: str, durability: str | None, form: str, late: MeetingSaver, saver: AgentSaver, path: Path
) -> ThreadConflictError:
    contest = CONTESTS[kind]
    config = {"configurable": {"thread_id": "t"}}
    before = contest.prepare(saver, config)
    expected = 0 if contest.makes else revision(saver)
    stored: dict[str, list[Any]] = {}

    def win() -> None:
        elsewhere(lambda: contest.go(saver, config, 1, form, durability))
        stored.update(contents(path))

    late.met = win
    with pytest.raises(ThreadConflictError) as caught:
        contest.go(late, config, 2, form, durability)
    assert contents(path) == stored
    refused = caught.value
    assert isinstance(refused, RuntimeError)
    facts = (refused.thread_id, refused.reason, refused.expected, refused.found, refused.wrote, refused.retry)
    assert facts == ("t", "stale", expected, revision(saver), False, "after_reading")
    assert refused.checkpoint_id
    assert type(refused.thread_id) is str
    twin = pickle.loads(pickle.dumps(refused))
    assert (type(twin), str(twin), twin.fields) == (ThreadConflictError, str(refused), refused.fields)
    assert "'t'" in str(refused)
    assert str(refused.found) in str(refused)
    assert contest.state(saver, config) == [*before, 1]
    assert_linear(saver, "t")
    # A fresh restore goes on from the winner's state.
    more = contest.prepare(late, config, again=True)
    contest.go(late, config, 3, form, durability)
    assert contest.state(saver, config) == [*more, 3] == [*before, 1, 3]
    return refused


@pytest.mark.parametrize("durability", DURABILITIES)
def test_one_saver_object_is_no_excuse(durability: str, form: str, late: MeetingSaver) -> None:
    """Two runs of one saver object, in one process, are two sessions all the same."""
    contest = CONTESTS["new_input"]
    config = {"configurable": {"thread_id": "t"}}
    contest.prepare(late, config)
    late.met = lambda: elsewhere(lambda: contest.go(late, config, 1, form, durability))
    with pytest.raises(ThreadConflictError):
        contest.go(late, config, 2, form, durability)
    assert contest.state(late, config) == [FIRST, 1]


@pytest.mark.parametrize("who", ["a run that resumes", "update_state"])
def test_loser_of_another_kind(who: str, form: str, late: MeetingSaver, saver: AgentSaver, path: Path) -> None:
    """An answer to an interrupt is refused after update_state answered it, and the other way round."""
    contest = CONTESTS["resume"]
    config = {"configurable": {"thread_id": "t"}}
    contest.prepare(saver, config)
    graph, late_graph = contest.build(saver), contest.build(late)

    def update(target: Any) -> None:
        Api(None, form).update_state(target, config, {"log": [1], "who": 1}, as_node="ask")

    def resume(target: Any) -> None:
        Api(None, form).invoke(target, Command(resume=1), config)

    winner, loser = (update, resume) if who.startswith("a run") else (resume, update)
    late.met = lambda: elsewhere(lambda: winner(graph))
    with pytest.raises(ThreadConflictError) as caught:
        loser(late_graph)
    assert caught.value.reason == "stale"
    assert contest.state(saver, config) == [1]


def test_wrote_tells_what_a_run_had_stored(form: str, path: Path, open_saver: Callable[..., AgentSaver]) -> None:
    """A run that is overtaken after it stored steps is refused with `wrote`, and its earlier steps stay."""
    saver = open_saver()
    api = Api(saver, form)
    first = put(api, config_of(), checkpoint(0))
    found = api.get_tuple(config_of())
    own = put(api, found.config, checkpoint(1))
    other = open_saver()
    put(Api(other, form), Api(other, form).get_tuple(config_of()).config, checkpoint(2))
    before = contents(path)
    with pytest.raises(ThreadConflictError) as caught:
        put(api, own, checkpoint(3))
    assert caught.value.wrote
    assert "had already stored earlier steps" in str(caught.value)
    assert contents(path) == before
    assert [item.checkpoint["channel_values"]["n"] for item in api.list(config_of())] == [2, 1, 0]
    assert first == api.list(config_of())[-1].config


def test_session_stays_refused(api: Api, path: Path) -> None:
    """A session that was refused once is refused for ever, whatever it tries, until the thread is restored again."""
    put(api, config_of(), checkpoint(0))
    lost, won = api.get_tuple(config_of()).config, api.get_tuple(config_of()).config
    put(api, won, checkpoint(1))
    messages = set()
    for again in range(2):
        with pytest.raises(ThreadConflictError) as caught:
            put(api, lost, checkpoint(2))
        messages.add(str(caught.value))
        with pytest.raises(ThreadConflictError):
            api.put_writes(lost, [("n", 9)], "task")
        with pytest.raises(ThreadConflictError):
            api.put_writes(config_of(lost["configurable"]["thread_id"], checkpoint_id="new"), [("n", 9)], "task")
        if not again:
            # Not even when the thread is made anew under its feet.
            api.delete_thread("t")
            put(api, config_of(), checkpoint(5))
    assert len(messages) == 1, messages
    assert [item.checkpoint["channel_values"]["n"] for item in api.list(config_of())] == [5]
    assert not api.list(config_of())[0].pending_writes
    put(api, api.get_tuple(config_of()).config, checkpoint(6))
    assert api.get_tuple(config_of()).checkpoint["channel_values"]["n"] == 6


# What must not be refused


def test_replay_and_fork(api: Api) -> None:
    """B37a: running on from an old checkpoint, update_state on it, and a normal turn after each are all accepted."""
    graph = steps_graph(api.saver)
    config = {"configurable": {"thread_id": "t"}}
    for who in (1, 2):
        api.invoke(graph, {"who": who}, config)
    old = next(s for s in api.history(graph, config) if s.values.get("log") == [1] and s.next == ("finish",))
    api.invoke(graph, None, old.config)
    assert api.get_state(graph, config).values["log"] == [1]
    api.invoke(graph, {"who": 3}, config)
    assert api.get_state(graph, config).values["log"] == [1, 3]
    forked = api.update_state(graph, old.config, {"log": [50]}, as_node="note")
    assert api.get_state(graph, config).values["log"] == [1, 50]
    assert api.get_state(graph, forked).parent_config == old.config
    api.invoke(graph, None, forked)
    assert api.get_state(graph, config).values == {"log": [1, 50], "who": 1, "done": 1}
    api.invoke(graph, {"who": 4}, config)
    head = api.get_state(graph, config)
    assert head.values["log"] == [1, 50, 4], "the fork is not the head, or the run began again from its entry"
    lineage = []
    step: Any = head
    while step.parent_config is not None:
        step = api.get_state(graph, step.parent_config)
        lineage.append(step.config["configurable"]["checkpoint_id"])
    assert old.config["configurable"]["checkpoint_id"] in lineage


@pytest.mark.parametrize("durability", DURABILITIES)
def test_fork_of_nested_and_delta_graphs(api: Api, durability: str) -> None:
    """B37a: time travel is accepted with subgraphs and DeltaChannels too."""
    for name in ("nested", "delta", "fan_out"):
        contest = CONTESTS[name]
        graph = contest.build(api.saver)
        config = {"configurable": {"thread_id": name}}
        for who in (1, 2):
            api.invoke(graph, contest.move(who), config, durability=durability)
        old = next(s for s in api.history(graph, config) if contest.accepted(s.values) == [1] and not s.next)
        api.invoke(graph, contest.move(3), old.config, durability=durability)
        assert contest.state(api.saver, config) == [1, 3]
        api.invoke(graph, contest.move(4), config, durability=durability)
        assert contest.state(api.saver, config) == [1, 3, 4]


def test_late_writes_and_early_writes(api: Api) -> None:
    """B37b-d: writes of a checkpoint that has a child, writes before their checkpoint, and a repeated put."""
    one = put(api, config_of(), checkpoint(1))
    two = checkpoint(2)
    head = put(api, one, two)
    api.put_writes(one, [("n", "late")], "task")
    assert [w[2] for w in api.get_tuple(one).pending_writes] == ["late"]
    three = checkpoint(3)
    early = config_of(checkpoint_id=three["id"])
    api.put_writes(early, [("n", "early")], "task")
    assert api.get_tuple(early) is None
    put(api, head, three)
    assert [w[2] for w in api.get_tuple(early).pending_writes] == ["early"]
    put(api, head, three)
    assert [item.checkpoint["channel_values"]["n"] for item in api.list(config_of())] == [3, 2, 1]


def test_parallel_put_writes(api: Api) -> None:
    """B37e: the tasks of one run store their writes from eight OS threads at once."""
    put(api, config_of(), checkpoint(0))
    config = api.get_tuple(config_of()).config
    failed: list[BaseException] = []
    meet = threading.Barrier(8)

    def work(number: int) -> None:
        try:
            meet.wait(20)
            for part in range(5):
                api.put_writes(config, [("n", (number, part)), ("m", number)], f"task-{number}-{part}")
        except BaseException as exc:
            failed.append(exc)

    workers = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(30)
    assert not failed
    pending = api.get_tuple(config_of()).pending_writes
    assert len(pending) == 80
    assert [p[0] for p in pending] == sorted(p[0] for p in pending)
    put(api, config, checkpoint(1))


# Deleted threads stay deleted


def test_delete_ends_the_sessions_that_restored(api: Api, path: Path) -> None:
    """A session that restored or wrote a thread is refused after its deletion and can't bring it back."""
    put(api, config_of(), checkpoint(0))
    only_read = api.get_tuple(config_of()).config
    wrote = put(api, api.get_tuple(config_of()).config, checkpoint(1))
    api.delete_thread("t")
    before = contents(path)
    for config, expected_wrote in ((only_read, False), (wrote, True)):
        with pytest.raises(ThreadConflictError) as caught:
            put(api, config, checkpoint(2))
        assert (caught.value.reason, caught.value.found, caught.value.wrote) == ("deleted", 0, expected_wrote)
        with pytest.raises(ThreadConflictError):
            api.put_writes(config, [("n", 1)], "task")
    assert contents(path) == before
    assert not api.exists("t")
    put(api, config_of(), checkpoint(3))
    assert api.get_tuple(config_of()).checkpoint["channel_values"]["n"] == 3


@pytest.mark.parametrize("durability", ["sync", "async"])
@pytest.mark.parametrize("new", [False, True])
def test_run_outlives_the_deletion(
    new: bool, durability: str, form: str, saver: AgentSaver, open_saver: Callable[..., AgentSaver]
) -> None:
    """A run during which its thread is deleted ends with reason "deleted", and the thread stays away."""
    other = open_saver()
    config = {"configurable": {"thread_id": "t"}}
    if not new:
        CONTESTS["new_input"].prepare(saver, config)
    builder: StateGraph[Any, Any, Any, Any] = StateGraph(Counter)

    def delete() -> None:
        # With "async" the run's first checkpoint is put beside the node.
        deadline = time.monotonic() + 20
        while not other.exists("t") and time.monotonic() < deadline:
            time.sleep(0.005)
        other.delete_thread("t")

    builder.add_node("one", lambda state: elsewhere(delete) or {"n": 1})
    builder.add_node("two", lambda state: {"n": 1})
    builder.add_edge(START, "one")
    builder.add_edge("one", "two")
    graph = builder.compile(checkpointer=saver)
    with pytest.raises(ThreadConflictError) as caught:
        Api(saver, form).invoke(graph, {"n": 1}, config, durability=durability)
    assert caught.value.reason == "deleted"
    assert not saver.exists("t")


# Inside a node


class Counter(TypedDict):
    n: Annotated[int, operator.add]


def graph_with(saver: Any, node: Callable[..., Any]) -> Any:
    """A graph of one node, which is given the config, and a node after it."""
    builder: StateGraph[Any, Any, Any, Any] = StateGraph(Counter)
    builder.add_node("act", node)
    builder.add_node("after", lambda state: {"n": 100})
    builder.add_edge(START, "act")
    builder.add_edge("act", "after")
    return builder.compile(checkpointer=saver)


def add_one(saver: Any) -> Any:
    builder: StateGraph[Any, Any, Any, Any] = StateGraph(Counter)
    builder.add_node("add", lambda state: {"n": 10})
    builder.add_edge(START, "add")
    return builder.compile(checkpointer=saver)


OUTER = {"configurable": {"thread_id": "t"}}


@pytest.mark.parametrize("what", ["update_state", "invoke"])
def test_node_that_names_its_own_thread_again(what: str, api: Api) -> None:
    """A node that writes its run's thread beside the run is refused, and told what to do in its place."""
    other = add_one(api.saver)
    errors: list[ThreadConflictError] = []

    def act(state: Counter) -> Any:
        call = other.invoke if what == "invoke" else partial(graph.update_state, as_node="act")
        given = [{"n": 1}, {"configurable": {"thread_id": "t"}}]
        with pytest.raises(ThreadConflictError) as caught:
            call(*(given if what == "invoke" else given[::-1]))
        errors.append(caught.value)
        return {"n": 1}

    async def aact(state: Counter) -> Any:
        call = other.ainvoke if what == "invoke" else partial(graph.aupdate_state, as_node="act")
        given = [{"n": 1}, {"configurable": {"thread_id": "t"}}]
        with pytest.raises(ThreadConflictError) as caught:
            await call(*(given if what == "invoke" else given[::-1]))
        errors.append(caught.value)
        return {"n": 1}

    graph = graph_with(api.saver, act if api.form == "sync" else aact)
    assert api.invoke(graph, {"n": 1}, OUTER)["n"] == 102, "the run itself must go on"
    [refused] = errors
    for words in ("`config`", "thread_id of its own", "Command(update=...)"):
        assert words in str(refused), refused
    assert (refused.reason, refused.thread_id) == ("busy", "t")
    assert api.get_state(graph, OUTER).values["n"] == 102
    assert_linear(api.saver, "t")


def test_unhandled_conflict_inside_a_node_ends_the_run(api: Api) -> None:
    """A node that lets the error pass fails its run, which can go on from its last step afterwards."""
    other = add_one(api.saver)
    tries: list[int] = []

    def act(state: Counter) -> Any:
        tries.append(1)
        if len(tries) == 1:
            other.invoke({"n": 1}, {"configurable": {"thread_id": "t"}})
        return {"n": 1}

    graph = graph_with(api.saver, act)
    with pytest.raises(ThreadConflictError, match="thread_id of its own"):
        api.invoke(graph, {"n": 1}, OUTER)
    assert len(tries) == 1, "it was retried, which can't help"
    assert api.invoke(graph, None, OUTER)["n"] == 102


@pytest.mark.parametrize("way", ["its config", "no config", "its own thread_id"])
def test_inner_graphs_that_work(way: str, api: Api) -> None:
    """An inner graph that is given the node's config, none, or a thread_id of its own runs in the same run."""
    other = add_one(None if way == "no config" else api.saver)
    apart = {"configurable": {"thread_id": "other"}}

    def act(state: Counter, config: RunnableConfig) -> Any:
        given = {"its config": config, "no config": None, "its own thread_id": apart}[way]
        return {"n": other.invoke({"n": 1}, given)["n"]}

    async def aact(state: Counter, config: RunnableConfig) -> Any:
        given = {"its config": config, "no config": None, "its own thread_id": apart}[way]
        return {"n": (await other.ainvoke({"n": 1}, given))["n"]}

    graph = graph_with(api.saver, act if api.form == "sync" else aact)
    for turn in (1, 2):
        value = api.invoke(graph, {"n": 1}, OUTER)
        if turn == 1:
            assert value["n"] == 112
    assert_linear(api.saver, "t")
    if way == "its own thread_id":
        assert api.get_state(other, apart).values["n"] == 22


# Raw calls, without a session


def test_raw_put(api: Api, path: Path) -> None:
    """Without a session a put needs the head as its parent, or none; a stored id may only be stored again as it is."""
    zero = checkpoint(0)
    first = put(api, config_of(), zero)
    plain = json.loads(json.dumps(first))
    made = checkpoint(1)
    second = json.loads(json.dumps(put(api, plain, made)))
    before = contents(path)
    # Only the counter of commits may move.
    counter = before.pop("this_store")
    assert put(api, plain, made) == second
    assert {**contents(path), "this_store": counter} == {**before, "this_store": counter}
    before = contents(path)
    other = copy.deepcopy(made)
    other["channel_values"]["n"] = "else"
    for config in (plain, second):
        with pytest.raises(ThreadConflictError) as caught:
            put(api, config, other)
        assert (caught.value.reason, caught.value.expected, caught.value.wrote) == ("stale", None, False)
        assert caught.value.found == revision(api.saver)
        assert made["id"] in str(caught.value)
    with pytest.raises(ThreadConflictError, match="as its parent") as caught:
        put(api, plain, checkpoint(2))
    assert (caught.value.reason, caught.value.expected, caught.value.found) == ("stale", None, revision(api.saver))
    assert contents(path) == before
    unparented = checkpoint(3)
    put(api, config_of(), unparented)
    assert api.get_tuple(config_of()).checkpoint["id"] == unparented["id"]
    assert api.get_tuple(config_of()).parent_config is None


def test_raw_put_refuses_sessions_before_it(api: Api) -> None:
    """A raw put moves the thread like any other: sessions that restored it before are refused."""
    put(api, config_of(), checkpoint(0))
    session = api.get_tuple(config_of()).config
    put(api, config_of(), checkpoint(1))
    with pytest.raises(ThreadConflictError):
        put(api, session, checkpoint(2))


def test_raw_writes_of_a_checkpoint_with_a_child(api: Api) -> None:
    """Late raw writes raise no revision, so no session is refused for them, and no delta history takes them."""
    made = checkpoint(0, d=None)
    made["channel_values"].pop("d")
    root = put(api, config_of(), made)
    api.put_writes(root, [("d", "in time")], "task-1")
    child = put(api, root, checkpoint(1))
    session = api.get_tuple(config_of()).config
    at = revision(api.saver)
    plain = json.loads(json.dumps(root))
    api.put_writes(plain, [("d", "too late")], "task-2")
    assert revision(api.saver) == at
    history = api.get_delta_channel_history(config=child, channels=["d"])
    assert [w[2] for w in history["d"]["writes"]] == ["in time"]
    assert [w[2] for w in api.get_tuple(plain).pending_writes] == ["in time", "too late"]
    put(api, session, checkpoint(2))
    # Those of the head do move the thread.
    session = api.get_tuple(config_of()).config
    api.put_writes(json.loads(json.dumps(session)), [("d", "now")], "task-3")
    assert revision(api.saver) > at
    with pytest.raises(ThreadConflictError):
        put(api, session, checkpoint(3))


# thread_id rules


UUID = uuid.UUID("6f1c2c0e-2d55-4f0c-9a36-0d6c1f2f7a01")


class Named(str):
    """Somebody's own kind of text."""


@pytest.mark.parametrize("given", [7, "7", 2**70, -1, UUID, str(UUID), Named("n")], ids=repr)
def test_ids_are_one_text_everywhere(given: Any, api: Api) -> None:
    """B25: an int, a UUID and its text are the same thread in every call."""
    text = str(given)
    other = int(text) if text.lstrip("-").isdigit() else (UUID if text == str(UUID) else text)
    put(api, config_of(given), checkpoint(0))
    for name in (text, given, other):
        config = config_of(name)
        found = api.get_tuple(config)
        assert found.config["configurable"]["thread_id"] == text
        assert isinstance(found.config["configurable"]["thread_id"], str)
        assert len(api.list(config)) == 1
        assert api.exists(name)
        assert api.exists(config)
    put(api, api.get_tuple(config_of(other)).config, checkpoint(1))
    api.put_writes(config_of(other, checkpoint_id=found.checkpoint["id"]), [("d", 1)], "task")
    assert set(api.get_delta_channel_history(config=config_of(given), channels=["d"])) == {"d"}
    api.copy_thread(other, f"copy of {text}")
    api.copy_thread(config_of(given), config_of(f"another of {text}"))
    api.prune([given], strategy="keep_latest")
    assert len(api.list(config_of(other))) == 1
    assert sorted(info.thread_id for info in api.threads()) == sorted([text, f"copy of {text}", f"another of {text}"])
    api.prune([config_of(f"another of {text}")], strategy="delete")
    api.delete_thread(given)
    assert [info.thread_id for info in api.threads()] == [f"copy of {text}"]
    graph = steps_graph(api.saver)
    api.invoke(graph, {"who": 1}, {"configurable": {"thread_id": given}})
    api.invoke(graph, {"who": 2}, {"configurable": {"thread_id": other}})
    assert api.get_state(graph, {"configurable": {"thread_id": text}}).values["log"] == [1, 2]


@pytest.mark.parametrize("given", [None, "", True, False, 1.5, b"t", ("t",), "a\ud800"], ids=repr)
def test_ids_that_are_none(given: Any, api: Api) -> None:
    """B25: None, empty and other kinds are refused in every call, with the place where an id goes."""
    config = config_of(given)
    calls: list[Callable[[], Any]] = [
        lambda: api.get_tuple(config),
        lambda: put(api, config, checkpoint(0)),
        lambda: api.put_writes(config_of(given, checkpoint_id="c"), [("n", 1)], "task"),
        lambda: api.put_writes(config_of(given, checkpoint_id="c"), [], "task"),
        lambda: api.list(config),
        lambda: api.get_delta_channel_history(config=config, channels=["n"]),
        lambda: api.exists(config),
        lambda: api.delete_thread(config),
        lambda: api.copy_thread(config, "x"),
        lambda: api.copy_thread("x", config),
        lambda: api.prune([config]),
        lambda: api.exists(given),
        lambda: api.delete_thread(given),
        lambda: api.prune([given]),
    ]
    if given in (None, "", "a\ud800"):
        # LangGraph turns any other kind into text before a saver sees it.
        calls.append(lambda: api.invoke(steps_graph(api.saver), {"who": 1}, {"configurable": {"thread_id": given}}))
    for number, call in enumerate(calls):
        with pytest.raises(UsageError) as caught:
            call()
        assert "thread_id" in str(caught.value), number
        if given != "a\ud800":
            assert '{"configurable": {"thread_id": "..."}}' in str(caught.value), number
    assert list(api.threads()) == []


@pytest.mark.parametrize("config", [{}, {"configurable": {}}, {"configurable": None}, None], ids=repr)
def test_config_without_an_id(config: Any, api: Api) -> None:
    """A config that names no thread is refused, saying where the id goes; only list takes None for all threads."""
    for call in (lambda: api.get_tuple(config), lambda: put(api, config, checkpoint(0)), lambda: api.exists(config)):
        with pytest.raises(UsageError, match=r'"configurable": \{"thread_id"'):
            call()
    if config is not None:
        with pytest.raises(UsageError):
            api.list(config)
    else:
        assert api.list(config) == []


ODD_IDS = [
    "a:b", "a%", "a_", "%", "'", '"', "a'; DROP TABLE threads; --", "a\x00b", "x" * 4096, "naïve 🙂 中文", " ", "\n",
    "..", "NULL", "e\u0301", "é", "-1", "1e3", "a|b",
]  # fmt: skip


def test_odd_ids(api: Api) -> None:
    """B25: ids with delimiters, wildcards, quotes, NUL, 4 kB and any script are each a thread of its own."""
    for number, name in enumerate(ODD_IDS):
        put(api, config_of(name), checkpoint(number))
    for number, name in enumerate(ODD_IDS):
        found = api.get_tuple(config_of(name))
        assert found.checkpoint["channel_values"]["n"] == number
        assert found.config["configurable"]["thread_id"] == name
        assert len(api.list(config_of(name))) == 1
    assert {info.thread_id for info in api.threads()} == set(ODD_IDS)
    for name in ODD_IDS[::2]:
        api.delete_thread(name)
    assert {info.thread_id for info in api.threads()} == set(ODD_IDS[1::2])


def test_delete_reaches_exactly_its_thread(api: Api, path: Path) -> None:
    """B29: deleting `a` leaves every row of threads whose ids look like it, and no row of its own anywhere."""
    names = ["a", "a:b", "a%", "a_", "A", "ab", "a\x00", " a"]

    def fill(name: str) -> None:
        config = {"configurable": {"thread_id": name}}
        for ns in ("", "sub:1"):
            made = checkpoint(1, text=f"{name} {ns} " * 50)
            stored = put(api, {"configurable": {**config["configurable"], "checkpoint_ns": ns}}, made)
            api.put_writes(stored, [("branch:to:x", name), ("n", [name] * 20)], "task")

    for name in names[1:]:
        fill(name)
    without = {table: rows for table, rows in contents(path).items() if table != "this_store"}
    read = {name: [item._asdict() for item in api.list({"configurable": {"thread_id": name}})] for name in names[1:]}
    fill("a")
    grown = {table for table, rows in without.items() if len(contents(path)[table]) > len(rows)}
    assert grown == {"threads", "spaces", "checkpoints", "writes", "blobs"}
    api.delete_thread("a")
    assert {table: rows for table, rows in contents(path).items() if table != "this_store"} == without
    for name in names[1:]:
        assert [item._asdict() for item in api.list({"configurable": {"thread_id": name}})] == read[name]
    api.delete_thread("a")
    api.delete_thread("never stored")
    assert api.get_tuple(config_of("a")) is None
    assert not api.exists("a")


# Latest is commit order


def test_latest_is_commit_order(api: Api) -> None:
    """B26a: head, list and `before` follow the order of the commits, whatever the ids say."""
    config = config_of()
    ids = ["z-first", "a-second", "m-third"]
    for number, name in enumerate(ids):
        config = put(api, config, {**checkpoint(number), "id": name})
    assert api.get_tuple(config_of()).checkpoint["id"] == "m-third"
    assert [item.checkpoint["id"] for item in api.list(config_of())] == ids[::-1]
    before = config_of(checkpoint_id="a-second")
    assert [item.checkpoint["id"] for item in api.list(config_of(), before=before)] == ["z-first"]
    assert [item.checkpoint["id"] for item in api.list(config_of(), limit=1)] == ["m-third"]


def test_same_time_stamp(api: Api) -> None:
    """B26c: two checkpoints with one ts keep the order of their commits."""
    config = config_of()
    for number in range(5):
        made = checkpoint(number)
        made["ts"] = "2026-01-01T00:00:00+00:00"
        config = put(api, config, made)
    assert [item.checkpoint["channel_values"]["n"] for item in api.list(config_of())] == [4, 3, 2, 1, 0]
    assert api.get_tuple(config_of()).checkpoint["channel_values"]["n"] == 4


def test_clock_an_hour_back(api: Api, path: Path) -> None:
    """B26b: a second process whose clock is an hour back goes on from the head, and its result is the head."""
    graph = steps_graph(api.saver)
    api.invoke(graph, {"who": 1}, OUTER)
    first = api.get_tuple(config_of()).checkpoint["id"]
    script = """
        import sys, time
        real_ns, real = time.time_ns, time.time
        time.time_ns = lambda: real_ns() - 3600 * 10**9
        time.time = lambda: real() - 3600
        import asyncio
        from agent_ckpt import AgentSaver
        from tests.contests import steps_graph
        with AgentSaver(sys.argv[1], create=False) as saver:
            graph = steps_graph(saver)
            config = {"configurable": {"thread_id": "t"}}
            if sys.argv[2] == "sync":
                values = graph.invoke({"who": 2}, config)
            else:
                values = asyncio.run(graph.ainvoke({"who": 2}, config))
            print(values["log"], saver.get_tuple(config).checkpoint["id"])
    """
    out = run_script(script, path, api.form)
    assert out.startswith("[1, 2] ")
    head = api.get_tuple(config_of()).checkpoint["id"]
    assert head == out.split()[-1]
    assert head < first, "the clock did not step back, so this proves nothing"
    assert api.get_state(graph, OUTER).values["log"] == [1, 2]
    assert api.invoke(graph, {"who": 3}, OUTER)["log"] == [1, 2, 3]
    assert_linear(api.saver, "t")


def run_script(script: str, *arguments: Any, env: dict[str, str] | None = None, timeout: float = 60.0) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(script), *map(str, arguments)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=timeout,
        env={**os.environ, "PYTHONPATH": str(ROOT), **(env or {})},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert not done.stderr.strip(), done.stderr[-3000:]
    return done.stdout


# Configs that users get


def _yaml(config: Any) -> Any:
    return yaml.safe_load(yaml.safe_dump(config))


TRIPS: dict[str, Callable[[Any], Any]] = {
    "json": lambda config: json.loads(json.dumps(config)),
    "orjson": lambda config: orjson.loads(orjson.dumps(config)),
    "msgpack": lambda config: msgpack.unpackb(msgpack.packb(config)),
    "ormsgpack": lambda config: ormsgpack.unpackb(ormsgpack.packb(config)),
    "pickle": lambda config: pickle.loads(pickle.dumps(config)),
    "pickle 2": lambda config: pickle.loads(pickle.dumps(config, protocol=2)),
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "yaml": _yaml,
    "yaml dump": lambda config: yaml.safe_load(yaml.dump(config, Dumper=yaml.SafeDumper)),
}


YAML_LATER = """
import sys
from agent_ckpt import AgentSaver
from langgraph.checkpoint.base import empty_checkpoint

saver = AgentSaver(":memory:")
saver.put({"configurable": {"thread_id": "t", "checkpoint_ns": ""}}, empty_checkpoint(), {}, {})
config = saver.get_tuple({"configurable": {"thread_id": "t"}}).config
assert "yaml" not in sys.modules
import yaml
for dumper in (yaml.SafeDumper, yaml.CSafeDumper):
    assert yaml.safe_load(yaml.dump(config, Dumper=dumper)) == config
"""


def test_yaml_may_be_imported_after_the_config_was_given() -> None:
    """The package imports no yaml, which would take longer than all of it; a config still can be dumped."""
    done = subprocess.run([sys.executable, "-c", YAML_LATER], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr[-3000:]


def configs_of_a_run(api: Api) -> dict[str, Any]:
    """Every kind of config that a user is handed, by name."""
    saver, form = api.saver, api.form
    graph = approval_graph(saver)
    config = {"configurable": {"thread_id": "t"}}
    found: dict[str, Any] = {}

    def collect(name: str, given: Any) -> None:
        if given is not None:
            found[f"{name} {len(found)}"] = given

    async def astream() -> list[Any]:
        modes = ["debug", "checkpoints"]
        return [part async for part in graph.astream({"log": [], "answer": ""}, config, stream_mode=modes)]

    if form == "sync":
        parts = list(graph.stream({"log": [], "answer": ""}, config, stream_mode=["debug", "checkpoints"]))
    else:
        parts = asyncio.run(astream())
    for mode, part in parts:
        payload = part["payload"] if mode == "debug" else part
        if isinstance(payload, dict):
            collect(mode, payload.get("config"))
            collect(mode, payload.get("parent_config"))
    assert any(name.startswith("debug") for name in found)
    assert any(name.startswith("checkpoints") for name in found)
    state = api.get_state(graph, config)
    assert state.interrupts
    collect("get_state", state.config)
    collect("parent", state.parent_config)
    collect("get_state of it", api.get_state(graph, state.config).config)
    for task in state.tasks:
        collect("task state", task.state)
        for each in task.interrupts:
            collect("interrupt", {"id": each.id, "value": each.value})
    for item in api.history(graph, config):
        collect("history", item.config)
        collect("history parent", item.parent_config)
    nested = nested_graph(saver, 2, ask=True)
    sub = {"configurable": {"thread_id": "nested"}}
    api.invoke(nested, {"log": [], "answer": ""}, sub)
    for task in api.get_state(nested, sub, subgraphs=True).tasks:
        collect("subgraph", task.state if isinstance(task.state, dict) else getattr(task.state, "config", None))
    collect("update_state", api.update_state(graph, config, {"log": ["noted"]}, as_node="plan"))
    tuple_ = api.get_tuple(config_of())
    collect("get_tuple", tuple_.config)
    collect("get_tuple parent", tuple_.parent_config)
    collect("put", put(api, tuple_.config, checkpoint(9)))
    for item in api.list(config_of()):
        collect("list", item.config)
        collect("list parent", item.parent_config)
    return found


def plain(value: Any) -> Any:
    """The same with plain built-in types only."""
    if isinstance(value, dict):
        return {str.__str__(key): plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    return "".join(value) if isinstance(value, str) else value


def plain_types(value: Any) -> bool:
    if isinstance(value, dict):
        return type(value) is dict and all(type(k) is str and plain_types(v) for k, v in value.items())
    if isinstance(value, list):
        return all(plain_types(each) for each in value)
    return type(value) in (str, int, float, bool, type(None))


def test_configs_survive_every_trip(api: Api) -> None:
    """Configs that carry a session equal plain ones, and come through every usual serializer as plain ones."""
    for where, config in configs_of_a_run(api).items():
        wanted = plain(config)
        assert config == wanted, where
        assert wanted == config, where
        assert repr(config) == repr(wanted), where
        assert str(config) == str(wanted), where
        for name, trip in TRIPS.items():
            came = trip(config)
            assert came == wanted, (where, name)
            if name not in ("copy", "deepcopy"):
                assert plain_types(came), (where, name)
        thread_id = config.get("configurable", {}).get("thread_id", "")
        assert hash(thread_id) == hash(plain(thread_id))
        assert {plain(thread_id): 1}[thread_id] == 1
        assert f"{thread_id}" == plain(thread_id)
        assert type(thread_id.upper()) is str
        assert sorted([thread_id, "a"]) == sorted([plain(thread_id), "a"])


def test_configs_work_after_a_trip(api: Api) -> None:
    """A config that went through a serializer addresses the same checkpoint as before."""
    graph = steps_graph(api.saver)
    api.invoke(graph, {"who": 1}, OUTER)
    for name, trip in TRIPS.items():
        config = trip(api.get_state(graph, OUTER).config)
        state = api.get_state(graph, config)
        assert state.config == config, name
        api.invoke(graph, {"who": 2}, config)
        found = trip(api.get_tuple(config_of()).config)
        put(api, found, checkpoint(3, who=3, log=[1, 2]))


# Copies of the saver


def test_with_allowlist_shares_the_store(api: Api) -> None:
    """A clone that LangGraph makes for its allow-list reads, writes and conflicts like the saver itself."""
    clone = api.saver.with_allowlist([("tests.contests", "MoveState")])
    assert type(clone) is type(api.saver)
    twin = Api(clone, api.form)
    put(api, config_of(), checkpoint(0))
    session = twin.get_tuple(config_of()).config
    put(api, api.get_tuple(config_of()).config, checkpoint(1))
    with pytest.raises(ThreadConflictError):
        put(twin, session, checkpoint(2))
    put(api, twin.get_tuple(config_of()).config, checkpoint(3))
    assert twin.get_tuple(config_of()).checkpoint["channel_values"]["n"] == 3
    clone.close()
    with pytest.raises(UsageError, match="closed"):
        api.get_tuple(config_of())


def test_strict_mode(path: Path, form: str) -> None:
    """With LANGGRAPH_STRICT_MSGPACK a real graph of messages runs, restores and conflicts as without it."""
    script = """
        import asyncio, sys
        from langchain_core.messages import AIMessage
        from langgraph.types import Command
        from agent_ckpt import AgentSaver, ThreadConflictError
        from tests.agents import ScriptedModel, call_tool, react_graph
        path, form = sys.argv[1:]
        script = [call_tool("add", "c1", a=1, b=2), "three", "again"]
        config = {"configurable": {"thread_id": "t"}}
        def invoke(graph, given):
            return graph.invoke(given, config) if form == "sync" else asyncio.run(graph.ainvoke(given, config))
        with AgentSaver(path) as saver:
            invoke(react_graph(saver, ScriptedModel(script=script)), {"messages": [("user", "1 + 2?")]})
        with AgentSaver(path) as saver:
            graph = react_graph(saver, ScriptedModel(script=script))
            values = invoke(graph, {"messages": [("user", "once more")]})
            print([type(m).__name__ for m in values["messages"]])
            print(values["messages"][1].tool_calls[0]["name"], values["messages"][2].content)
            lost = saver.get_tuple(config).config
            graph.update_state(config, {"messages": [AIMessage("x")]})
            try:
                saver.put_writes(lost, [("messages", [])], "task")
            except ThreadConflictError as exc:
                print(exc.reason)
            assert not saver.verify().findings
    """
    out = run_script(script, path, form, env={"LANGGRAPH_STRICT_MSGPACK": "true"}).splitlines()
    assert out == [
        "['HumanMessage', 'AIMessage', 'ToolMessage', 'AIMessage', 'HumanMessage', 'AIMessage']",
        "add 3",
        "stale",
    ]
    assert_sound(path)


def test_deltas_of_a_loser_never_show(form: str, late: MeetingSaver, saver: AgentSaver) -> None:
    """What a refused run wanted to write is in no rebuilt DeltaChannel, from no checkpoint of the thread."""
    contest = CONTESTS["delta"]
    config = {"configurable": {"thread_id": "t"}}
    contest.prepare(saver, config)
    for turn in range(1, 6):
        late.met = lambda turn=turn: elsewhere(lambda: contest.go(saver, config, turn, form))
        with pytest.raises(ThreadConflictError):
            contest.go(late, config, 1000 + turn, form)
    graph = delta_graph(saver, 4)
    for state in graph.get_state_history(config):
        assert all(who < 1000 for who in contest.accepted(state.values))
    assert contest.state(saver, config) == [FIRST, 1, 2, 3, 4, 5]
