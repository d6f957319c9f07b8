"""Stored state is brought to the version that the program expects when it is read, and stored so at the next put."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Annotated, Any, TypedDict

import numpy as np
import pytest
from langgraph.channels.delta import DeltaChannel
from langgraph.graph import START, StateGraph
from langgraph.types import Command, Send, interrupt

from agent_ckpt import AgentSaver, MigrationError, UsageError
from agent_ckpt.migrations import STATE_VERSION
from tests.conftest import Api
from tests.threads import checkpoint_of

CONFIG: Any = {"configurable": {"thread_id": "t"}}


class First(TypedDict, total=False):
    """The state of version 1."""

    log: Annotated[list[str], operator.add]
    name: str


class Third(TypedDict, total=False):
    """The state of version 3: `name` became `person`, and `count` is new."""

    log: Annotated[list[str], operator.add]
    person: dict[str, str]
    count: int


def graph_of(saver: AgentSaver, state: Any, step: Callable[[Any], dict[str, Any]]) -> Any:
    """A node that waits for an answer, and one that runs after it."""

    def ask(_: Any) -> dict[str, Any]:
        return {"log": [interrupt("go on?")]}

    builder = StateGraph(state)
    builder.add_node("ask", ask)
    builder.add_node("step", step)
    builder.add_edge(START, "ask")
    builder.add_edge("ask", "step")
    return builder.compile(checkpointer=saver)


def first_graph(saver: AgentSaver) -> Any:
    return graph_of(saver, First, lambda _: {"log": ["first"]})


def third_graph(saver: AgentSaver) -> Any:
    return graph_of(saver, Third, lambda s: {"log": [f"{s['person']['name']} {s['count']}"], "count": s["count"] + 1})


def to_2(values: dict[str, Any]) -> None:
    if "name" in values:
        values["person"] = {"name": values.pop("name")}


def to_3(values: dict[str, Any]) -> dict[str, Any]:
    return {**values, "count": 10} if "person" in values else values


NEW: dict[str, Any] = {"state_version": 3, "migrations": {1: to_2, 2: to_3}}


@pytest.fixture
def old_thread(open_saver: Callable[..., AgentSaver]) -> None:
    """A thread of version 1 that waits for an answer."""
    with open_saver() as saver:
        first_graph(saver).invoke({"log": ["in"], "name": "Zoë"}, CONFIG)


@pytest.mark.usefixtures("old_thread")
def test_an_old_thread_goes_on_in_the_new_state(open_saver: Callable[..., AgentSaver], form: str) -> None:
    """Values are migrated on reading, in history too, and the next put stores them, without what was taken away."""
    with open_saver(**NEW) as saver:
        api = Api(saver, form)
        graph = third_graph(saver)
        state = api.get_state(graph, CONFIG)
        assert state.values == {"log": ["in"], "person": {"name": "Zoë"}, "count": 10}
        assert STATE_VERSION not in state.metadata
        assert api.check(graph)
        with saver.guard(graph):
            done = api.invoke(graph, Command(resume="yes"), CONFIG)
        assert done == {"log": ["in", "yes", "Zoë 10"], "person": {"name": "Zoë"}, "count": 11}
        assert api.history(graph, CONFIG)[-2].values == {"log": ["in"], "person": {"name": "Zoë"}, "count": 10}
    with open_saver() as saver:
        head, *_, oldest = Api(saver, form).list(CONFIG)
        assert head.metadata[STATE_VERSION] == 3
        assert "name" not in head.checkpoint["channel_versions"]
        assert head.checkpoint["channel_values"]["count"] == 11
        assert "person" not in oldest.checkpoint["channel_values"]


@pytest.mark.usefixtures("old_thread")
def test_what_cannot_be_migrated_is_a_typed_error(open_saver: Callable[..., AgentSaver], form: str) -> None:
    """A missing step, one that raises, one that gives no dict, and a newer state: each refused before a node runs."""

    def bad(_: Any) -> None:
        raise KeyError("secret")

    for migrations, why in (
        ({1: to_2}, "no migration from 2"),
        ({1: bad, 2: to_3}, "migration from 1 raised KeyError"),
        ({1: lambda _: 5, 2: to_3}, "gave int"),
    ):
        with open_saver(state_version=3, migrations=migrations) as saver:
            with pytest.raises(MigrationError, match=why) as caught:
                Api(saver, form).invoke(third_graph(saver), Command(resume="yes"), CONFIG)
            assert "secret" not in str(caught.value)
            report = Api(saver, form).check(third_graph(saver))
            assert not report and why in (report.threads[0].error or "")
    with open_saver(**NEW) as saver:
        Api(saver, form).invoke(third_graph(saver), Command(resume="yes"), CONFIG)
    with open_saver(state_version=2, migrations={1: to_2}) as saver:
        with pytest.raises(MigrationError, match="newer program") as caught:
            Api(saver, form).get_state(first_graph(saver), CONFIG)
        assert (caught.value.expected, caught.value.found) == (2, 3)


def test_subgraphs_are_migrated_by_functions_that_take_the_namespace(
    open_saver: Callable[..., AgentSaver], form: str
) -> None:
    """A function of the values alone sees the root's; one that takes the namespace sees each."""
    seen: list[tuple[str, set[str]]] = []

    def everywhere(values: dict[str, Any], namespace: str) -> dict[str, Any]:
        seen.append((namespace.partition(":")[0], set(values) & {"name", "log"}))
        if namespace:
            values["log"] = ["moved"]
        return values

    def outer(saver: AgentSaver) -> Any:
        builder = StateGraph(First)
        builder.add_node("sub", first_graph(None))  # type: ignore[arg-type]
        builder.add_edge(START, "sub")
        return builder.compile(checkpointer=saver)

    with open_saver() as saver:
        Api(saver, form).invoke(outer(saver), {"log": ["in"], "name": "n"}, CONFIG)
    with open_saver(state_version=3, migrations={1: everywhere, 2: to_3}) as saver:
        done = Api(saver, form).invoke(outer(saver), Command(resume="yes"), CONFIG)
        assert ("", {"name", "log"}) in seen and ("sub", {"name", "log"}) in seen
        assert done["log"] == ["in", "moved", "yes", "first"]


def test_without_the_option_nothing_is_recorded(saver: AgentSaver) -> None:
    """No key of ours is in the metadata; and options that can't be right are refused."""
    first_graph(saver).invoke({"log": ["in"], "name": "n"}, CONFIG)
    assert all(STATE_VERSION not in item.metadata for item in saver.list(CONFIG))
    for options in (
        {"state_version": -1},
        {"migrations": {1: to_2}},
        {"state_version": 2, "migrations": {2: to_2}},
        {"state_version": 2, "migrations": {1: "to_2"}},
        {"state_version": 2, "migrations": {"1": to_2}},
    ):
        with pytest.raises(UsageError, match=r"state_version|migrations"):
            AgentSaver(":memory:", **options)  # type: ignore[arg-type]


# What is on its way into channels


class Old(TypedDict, total=False):
    """Version 1: names are text."""

    log: Annotated[list[str], operator.add]
    name: str
    names: Annotated[list[str], operator.add]


class New(TypedDict, total=False):
    """Version 2: `name` became `person`, and each of the names a dict."""

    log: Annotated[list[str], operator.add]
    person: dict[str, str]
    names: Annotated[list[dict[str, str]], operator.add]


def fan_graph(saver: AgentSaver, state: Any, is_new: bool) -> Any:
    """A node that names somebody beside two that ask; Sends to `greet`, which asks too; and a node at the end."""

    def shaped(name: str) -> Any:
        return {"name": name} if is_new else name

    def ask(which: str) -> Callable[[Any], dict[str, Any]]:
        return lambda _: {"log": [f"{which} {interrupt(which)}"], "names": [shaped(which)]}

    def greet(given: Any) -> dict[str, Any]:
        name = given["person"]["name"] if is_new else given["name"]
        return {"log": [f"{name}, {interrupt('greet')}"]}

    builder = StateGraph(state)
    builder.add_node("call", lambda _: {"person": {"name": "Zoë"}} if is_new else {"name": "Zoë"})
    builder.add_node("left", ask("left"))
    builder.add_node("right", ask("right"))
    builder.add_node("greet", greet)
    builder.add_node("end", lambda s: {"log": [s["person"]["name"] if is_new else s["name"]]})
    for name in ("call", "left", "right"):
        builder.add_edge(START, name)
        builder.add_edge(name, "end")
    sent = {"person": {"name": "Ann"}} if is_new else {"name": "Ann"}
    builder.add_conditional_edges("end", lambda _: [Send("greet", sent)], ["greet"])
    return builder.compile(checkpointer=saver)


def values_to_2(values: dict[str, Any]) -> None:
    if "name" in values:
        values["person"] = {"name": values.pop("name")}
    values["names"] = [{"name": name} for name in values.get("names", [])]


def write_to_2(channel: str, value: Any) -> tuple[str, Any]:
    if channel == "name":
        return "person", {"name": value}
    if channel == "names":
        return channel, [{"name": name} for name in value]
    if isinstance(value, Send):
        return channel, Send(value.node, {"person": {"name": value.arg["name"]}})
    return channel, value


VALUES: dict[str, Any] = {"state_version": 2, "migrations": {1: values_to_2}}
WHOLE: dict[str, Any] = {**VALUES, "write_migrations": {1: write_to_2}}


def answers(api: Api, graph: Any, *texts: str) -> Any:
    """Answer the open interrupts one after another."""
    done = None
    for text in texts:
        first = api.get_state(graph, CONFIG).interrupts[0]
        done = api.invoke(graph, Command(resume={first.id: text}), CONFIG)
    return done


@pytest.mark.parametrize("answered", [0, 1, 2])
def test_pending_writes_and_sends_are_migrated_once(
    open_saver: Callable[..., AgentSaver], form: str, answered: int
) -> None:
    """Stopped at an interrupt beside finished tasks, or with a Send under way, at each place: the thread goes on in
    the new state; writes that the new program adds to an old checkpoint are not migrated again."""
    with open_saver() as saver:
        api, old = Api(saver, form), fan_graph(saver, Old, False)
        api.invoke(old, {"log": ["in"]}, CONFIG)
        answers(api, old, *["a", "b"][:answered])
    with open_saver(**WHOLE) as saver:
        api, new = Api(saver, form), fan_graph(saver, New, True)
        assert api.check(new)
        done = answers(api, new, *["a", "b", "c"][answered:])
    texts = sorted(done["log"])
    assert texts == ["Ann, c", "Zoë", "in", "left a", "right b"]
    assert (done["person"], done["names"]) == ({"name": "Zoë"}, [{"name": "left"}, {"name": "right"}])


@pytest.mark.parametrize("answered", [0, 2])
def test_writes_without_a_function_reach_no_graph(
    open_saver: Callable[..., AgentSaver], form: str, answered: int
) -> None:
    """Without write_migrations neither a run nor get_state takes an old write or Send: the error says what to give,
    check tells it beforehand, history can be looked at, nothing is stored, and the old program goes on."""
    with open_saver() as saver:
        api, old = Api(saver, form), fan_graph(saver, Old, False)
        api.invoke(old, {"log": ["in"]}, CONFIG)
        answers(api, old, *["a", "b"][:answered])
    with open_saver(**VALUES) as saver:
        api, new = Api(saver, form), fan_graph(saver, New, True)
        before = len(api.list(CONFIG))
        for call in (
            lambda: api.invoke(new, Command(resume="yes"), CONFIG),
            lambda: api.get_state(new, CONFIG),
            lambda: api.update_state(new, CONFIG, {"log": ["by hand"]}, as_node="call"),
        ):
            with pytest.raises(MigrationError, match=r"write_migrations=\{1: function\}") as refused:
                call()
            assert refused.value.found == 1
        (checked,) = api.check(new).threads
        assert not checked and "write_migrations" in str(checked.error)
        older = api.history(new, CONFIG)[-1].config
        assert api.get_state(new, older).config == older
        with pytest.raises(MigrationError):
            api.invoke(new, None, older)
        assert len(api.list(CONFIG)) == before
    with open_saver() as saver:
        api, old = Api(saver, form), fan_graph(saver, Old, False)
        assert answers(api, old, *["a", "b", "c"][answered:])["log"][-1] == "Ann, c"


def test_an_input_that_no_node_has_seen_is_migrated(open_saver: Callable[..., AgentSaver], form: str) -> None:
    """A run that was killed as it began: its input, of whatever kind, goes through write_migrations, or is refused."""
    given = np.arange(3)
    with open_saver() as saver:
        made = checkpoint_of({"__start__": given, "__pregel_tasks": []}, {"__start__": 1, "__pregel_tasks": 1})
        Api(saver, form).put({"configurable": {"thread_id": "t", "checkpoint_ns": ""}}, made, {}, {"__start__": 1})
    with open_saver(**VALUES) as saver:
        with pytest.raises(MigrationError, match="a write to '__start__' would reach the graph as it is"):
            Api(saver, form).get_tuple(CONFIG)
    doubled = {1: lambda channel, value: (channel, value * 2)}
    with open_saver(**VALUES, write_migrations=doubled) as saver:
        values = Api(saver, form).get_tuple(CONFIG).checkpoint["channel_values"]
        assert values["__start__"].tolist() == [0, 2, 4] and values["__pregel_tasks"] == []


def test_an_old_program_takes_no_new_writes(open_saver: Callable[..., AgentSaver], form: str) -> None:
    """B11: in a rolling deploy, an old worker that meets a newer worker's pending writes is told so."""
    with open_saver(state_version=1) as saver:
        Api(saver, form).invoke(fan_graph(saver, Old, False), {"log": ["in"]}, CONFIG)
    with open_saver(**WHOLE) as saver:
        answers(Api(saver, form), fan_graph(saver, New, True), "a")
    with open_saver(state_version=1) as saver:
        with pytest.raises(MigrationError, match="stored by a newer program"):
            Api(saver, form).invoke(fan_graph(saver, Old, False), Command(resume="b"), CONFIG)


def folded(state: list[Any], writes: list[list[Any]]) -> list[Any]:
    return [*state, *(item for write in writes for item in write)]


def delta_graph(saver: AgentSaver, is_new: bool, channel: Any) -> Any:
    """A node that adds a name and tells what it found, in channels of the given kind."""
    shape: Any = TypedDict("shape", {"names": Annotated[list[Any], channel], "seen": list[Any]})

    def step(state: Any) -> dict[str, Any]:
        number = len(state["names"])
        return {"names": [{"name": f"n{number}"} if is_new else f"n{number}"], "seen": list(state["names"])}

    builder = StateGraph(shape)
    builder.add_node("step", step)
    builder.add_edge(START, "step")
    return builder.compile(checkpointer=saver)


def delta_values_to_2(values: dict[str, Any]) -> None:
    for name in ("names", "seen"):
        if name in values:
            values[name] = [{"name": one} for one in values[name]]


DELTA: dict[str, Any] = {"state_version": 2, "migrations": {1: delta_values_to_2}}


@pytest.mark.parametrize("pruned", [False, True])
@pytest.mark.parametrize("frequency", [1, 3, 1000])
def test_delta_channels_are_migrated(
    open_saver: Callable[..., AgentSaver], form: str, frequency: int, pruned: bool
) -> None:
    """Rebuilt from a snapshot or from writes alone, of a whole thread and of a pruned one: state, history and further
    turns are in the new shape, each item migrated once. Without a function each reading of it is refused."""
    channel = DeltaChannel(folded, snapshot_frequency=frequency)
    with open_saver() as saver:
        api, old = Api(saver, form), delta_graph(saver, False, channel)
        for _ in range(4):
            api.invoke(old, {"names": ["in"]}, CONFIG)
        names = api.get_state(old, CONFIG).values["names"]
        if pruned:
            saver.prune(["t"])
    expected = [{"name": name} for name in names]
    with open_saver(**DELTA) as saver:
        api, new = Api(saver, form), delta_graph(saver, True, channel)
        for call in (lambda: api.get_state(new, CONFIG), lambda: api.invoke(new, {"names": []}, CONFIG)):
            with pytest.raises(MigrationError, match="DeltaChannel 'names' is rebuilt from would reach"):
                call()
        (checked,) = api.check(new).threads
        assert not checked and "write_migrations" in str(checked.error)
    with open_saver(**DELTA, write_migrations={1: write_to_2}) as saver:
        api, new = Api(saver, form), delta_graph(saver, True, channel)
        assert api.check(new)
        assert api.get_state(new, CONFIG).values["names"] == expected
        assert all(type(one) is dict for state in api.history(new, CONFIG) for one in state.values.get("names", ()))
        done = {}
        for number in range(3):
            done = api.invoke(new, {"names": [{"name": f"new {number}"}]}, CONFIG)
        more = [{"name": f"new {number // 2}" if number % 2 == 0 else f"n{8 + number}"} for number in range(6)]
        assert done["names"] == [*expected, *more]
        if pruned:
            saver.prune(["t"])
        assert api.get_state(new, CONFIG).values["names"] == [*expected, *more]


@pytest.mark.parametrize("pruned", [False, True])
def test_a_channel_may_become_a_delta_channel(open_saver: Callable[..., AgentSaver], form: str, pruned: bool) -> None:
    """The value that it had as an ordinary channel stays migrated when the thread goes on, also where it stands in an
    ancestor; where that was pruned, and no migration can see it whole, it is refused."""
    channel = DeltaChannel(folded, snapshot_frequency=1000)
    with open_saver() as saver:
        old = delta_graph(saver, False, operator.add)
        Api(saver, form).invoke(old, {"names": ["in"]}, CONFIG)
    with open_saver(**DELTA, write_migrations={1: write_to_2}) as saver:
        api, new = Api(saver, form), delta_graph(saver, True, channel)
        expected = [{"name": name} for name in ("in", "n1", "again", "n3")]
        assert api.invoke(new, {"names": [{"name": "again"}]}, CONFIG)["names"] == expected
        assert api.get_state(new, CONFIG).values["names"] == expected
        if pruned:
            saver.prune(["t"])
            with pytest.raises(MigrationError, match="was pruned"):
                api.get_state(new, CONFIG)


def test_write_migrations_that_cannot_be_right(open_saver: Callable[..., AgentSaver], form: str) -> None:
    """One that raises, one that gives no pair, and one that renames a DeltaChannel: each named; an unknown version."""
    channel = DeltaChannel(folded, snapshot_frequency=1000)
    with open_saver() as saver:
        Api(saver, form).invoke(delta_graph(saver, False, channel), {"names": ["in"]}, CONFIG)
    cases: dict[str, Callable[[str, Any], Any]] = {
        "write migration from 1 raised ZeroDivisionError": lambda channel, value: 1 // 0,
        "write migration from 1 gave list: return channel and value": lambda channel, value: value,
        "'names' became 'others'": lambda channel, value: ("others", value),
    }
    for match, function in cases.items():
        with open_saver(**DELTA, write_migrations={1: function}) as saver:
            with pytest.raises(MigrationError, match=match):
                Api(saver, form).get_state(delta_graph(saver, True, channel), CONFIG)
    with pytest.raises(UsageError, match="option write_migrations holds 2"):
        open_saver(state_version=2, write_migrations={2: write_to_2})


def test_writes_of_subgraphs_go_to_functions_that_take_the_namespace(
    open_saver: Callable[..., AgentSaver], form: str
) -> None:
    """An interrupt in a subgraph beside its finished task: what takes no namespace is for the root alone."""

    def nested(saver: AgentSaver, state: Any, is_new: bool) -> Any:
        inner = StateGraph(state)
        inner.add_node("call", lambda _: {"person": {"name": "Zoë"}} if is_new else {"name": "Zoë"})
        inner.add_node("ask", lambda _: {"log": [interrupt("who?")]})
        inner.add_node("end", lambda s: {"log": [s["person"]["name"] if is_new else s["name"]]})
        for name in ("call", "ask"):
            inner.add_edge(START, name)
            inner.add_edge(name, "end")
        outer = StateGraph(state)
        outer.add_node("sub", inner.compile())
        outer.add_edge(START, "sub")
        return outer.compile(checkpointer=saver)

    def values(values: dict[str, Any], namespace: str) -> None:
        values_to_2(values)

    seen = []

    def writes(channel: str, value: Any, namespace: str) -> tuple[str, Any]:
        seen.append(namespace.partition(":")[0])
        return write_to_2(channel, value)

    with open_saver() as saver:
        Api(saver, form).invoke(nested(saver, Old, False), {"log": ["in"]}, CONFIG)
    with open_saver(state_version=2, migrations={1: values}) as saver:
        with pytest.raises(MigrationError, match="namespace 'sub:"):
            Api(saver, form).invoke(nested(saver, New, True), Command(resume="me"), CONFIG)
    with open_saver(state_version=2, migrations={1: values}, write_migrations={1: writes}) as saver:
        done = Api(saver, form).invoke(nested(saver, New, True), Command(resume="me"), CONFIG)
    assert done["log"] == ["in", "in", "me", "Zoë"]
    assert set(seen) == {"sub"}
