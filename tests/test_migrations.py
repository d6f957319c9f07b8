"""Stored state is brought to the version that the program expects when it is read, and stored so at the next put."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Annotated, Any, TypedDict

import pytest
from langgraph.graph import START, StateGraph
from langgraph.types import Command, interrupt

from agent_ckpt import AgentSaver, MigrationError, UsageError
from agent_ckpt.migrations import STATE_VERSION
from tests.conftest import Api

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
