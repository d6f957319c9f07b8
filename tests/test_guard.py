"""Graphs that changed since their threads were stored: what guards, checks and the saver itself say about it."""

from __future__ import annotations

import json
import operator
import pickle
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, TypedDict

import pytest
from langgraph.channels import DeltaChannel
from langgraph.graph import START, StateGraph
from langgraph.types import Command, Send, interrupt

from agent_ckpt import AgentSaver, SchemaChangeError, SchemaChangeWarning, UnresolvedTypeError, UsageError, environment
from tests.conftest import Api
from tests.threads import query

CONFIG: Any = {"configurable": {"thread_id": "t"}}
ROOT = Path(__file__).parent.parent


class State(TypedDict, total=False):
    """The state of the graphs before and after."""

    log: Annotated[list[str], operator.add]
    note: Any


class Without(TypedDict, total=False):
    """The same without `note`."""

    log: Annotated[list[str], operator.add]


class Retyped(TypedDict, total=False):
    """The same with `note` as a text."""

    log: Annotated[list[str], operator.add]
    note: str


def chain(
    saver: Any, names: str, *, asks: str = "", state: Any = State, note: Any = 1, ran: list[str] | None = None
) -> Any:
    """Nodes one after the other; those in `asks` wait for an answer."""
    builder = StateGraph(state)
    before = START
    for name in names:

        def node(_: Any, name: str = name) -> dict[str, Any]:
            if ran is not None:
                ran.append(name)
            if name in asks:
                interrupt(name)
            return {"log": [name], "note": note} if "note" in state.__annotations__ else {"log": [name]}

        builder.add_node(name, node)
        builder.add_edge(before, name)
        before = name
    return builder.compile(checkpointer=saver)


def fan(saver: Any, workers: str, *, join: str = "z", sends: bool = False) -> Any:
    """Workers side by side and a join; the worker `b` waits for an answer."""
    builder = StateGraph(State)
    builder.add_node("a", lambda _: {"log": ["a"]})
    builder.add_edge(START, "a")

    def work(name: str) -> Callable[[Any], dict[str, Any]]:
        def node(_: Any) -> dict[str, Any]:
            if name == "b":
                interrupt(name)
            return {"log": [name], "note": 1} if name == "c" else {"log": [name]}

        return node

    for name in workers:
        builder.add_node(name, work(name))
    builder.add_node(join, lambda _: {"log": [join]})
    if sends:
        builder.add_conditional_edges("a", lambda _: [Send(name, {}) for name in workers], list(workers))
    else:
        for name in workers:
            builder.add_edge("a", name)
    builder.add_edge(list(workers), join)
    return builder.compile(checkpointer=saver)


def delta_chain(saver: Any, *, delta: bool) -> Any:
    kind: Any = DeltaChannel(lambda old, new: [*old, *(item for part in new for item in part)], list)
    channel: Any = Annotated[list[str], kind if delta else operator.add]
    return chain(saver, "ab", asks="b", state=TypedDict("Deltas", {"log": channel}, total=False))  # type: ignore[operator]


def nested(saver: Any, name: str) -> Any:
    """A graph whose only node is a graph with one node that asks."""
    inner = chain(None, name, asks=name)
    builder = StateGraph(State)
    builder.add_node("sub", inner)
    builder.add_edge(START, "sub")
    return builder.compile(checkpointer=saver)


CHANGES: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any], set[tuple[str, str]]]] = {
    "node renamed": (
        lambda saver: chain(saver, "abc", asks="b"),
        lambda saver: chain(saver, "axc", asks="x"),
        {("pending_node_gone", "b")},
    ),
    "target of a Send gone": (
        lambda saver: fan(saver, "bc", sends=True),
        lambda saver: fan(saver, "dc", sends=True),
        {("pending_node_gone", "b"), ("pending_write_gone", "join:b+c:z")},
    ),
    "join after a renamed node": (
        lambda saver: fan(saver, "bc", join="z"),
        lambda saver: fan(saver, "bc", join="y"),
        {("pending_write_gone", "join:b+c:z")},
    ),
    "channel of a finished task gone": (
        lambda saver: fan(saver, "bc"),
        lambda saver: chain(saver, "abcz", asks="b", state=Without),
        {("pending_write_gone", "note"), ("pending_write_gone", "join:b+c:z")},
    ),
    "DeltaChannel made an ordinary one": (
        lambda saver: delta_chain(saver, delta=True),
        lambda saver: delta_chain(saver, delta=False),
        {("unloadable", "log")},
    ),
    "node inside a subgraph renamed": (
        lambda saver: nested(saver, "p"),
        lambda saver: nested(saver, "q"),
        {("pending_node_gone", "p")},
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_guard_refuses_what_would_be_lost(open_saver: Callable[..., AgentSaver], form: str, change: str) -> None:
    """B03: with each change the run is refused before a node runs, nothing is stored, and the old graph goes on."""
    before, after, expected = CHANGES[change]
    with open_saver() as first:
        Api(first, form).invoke(before(first), {"log": ["in"]}, CONFIG)
    with open_saver() as saver:
        api = Api(saver, form)
        graph = after(saver)
        report = api.check(graph)
        named = {(one.kind, one.name.rpartition("|")[2]) for one in report.threads[0].changes if one.fatal}
        assert not report
        assert named == expected
        revision = saver.revision(CONFIG)
        with saver.guard(graph), pytest.raises(SchemaChangeError) as caught:
            api.invoke(graph, Command(resume="yes"), CONFIG)
        assert expected <= set(caught.value.changes)
        assert pickle.loads(pickle.dumps(caught.value)).changes == caught.value.changes
        # The graph around a subgraph has stored the answer when the subgraph restores.
        assert saver.revision(CONFIG) == revision or caught.value.checkpoint_ns
    with open_saver(on_schema_change="raise") as saver:
        old = before(saver)
        assert Api(saver, form).check(old)
        with saver.guard(old):
            done = Api(saver, form).invoke(old, Command(resume="yes"), CONFIG)
        assert "__interrupt__" not in done


def test_a_guard_says_once_what_else_changed(open_saver: Callable[..., AgentSaver], form: str) -> None:
    """A node and a channel that are gone and one that holds another kind are told once; what is new is not."""
    with open_saver() as first:
        Api(first, form).invoke(chain(first, "ab"), {"log": ["in"]}, CONFIG)
    with open_saver() as saver:
        api = Api(saver, form)
        graph = chain(saver, "an", state=Retyped, note="x")
        saver.guard(graph)
        with pytest.warns(SchemaChangeWarning) as told:
            api.invoke(graph, {"log": ["more"]}, CONFIG)
        assert len(told) == 1
        assert "node 'b' ran before and is gone" in str(told[0].message)
        assert "channel 'note' holds a int, and is declared str" in str(told[0].message)
        assert "'n'" not in str(told[0].message)
        api.invoke(graph, {"log": ["again"]}, CONFIG)


def test_a_guard_may_only_warn_and_can_be_taken_away(open_saver: Callable[..., AgentSaver], form: str) -> None:
    """With on_change="warn" a lost task is told; without the guard a removed node's task is told by the option."""
    with open_saver() as saver:
        api = Api(saver, form)
        api.invoke(chain(saver, "ab", asks="b"), {"log": ["in"]}, CONFIG)
        graph = chain(saver, "ax")
        guard = saver.guard(graph, on_change="warn")
        with pytest.warns(SchemaChangeWarning, match="node 'b' is gone, and a task for it is pending"):
            api.invoke(graph, None, CONFIG)
        guard.remove()
        guard.remove()
        api.invoke(graph, {"log": ["more"]}, CONFIG)
    with pytest.raises(UsageError, match="compiled"):
        saver.guard(StateGraph(State))
    with pytest.raises(UsageError, match="on_change"):
        saver.guard(graph, on_change="shout")  # type: ignore[arg-type]


@pytest.mark.parametrize("option", ["ignore", "warn", "raise"])
def test_a_removed_channel_is_told_as_the_option_says(
    open_saver: Callable[..., AgentSaver], form: str, option: str
) -> None:
    """Without a guard: a stored channel that the graph lacks; never a node or channel that is new."""
    with open_saver() as first:
        Api(first, form).invoke(chain(first, "a", state=Without), {"log": ["in"]}, CONFIG)
        Api(first, form).invoke(chain(first, "ab"), {"log": ["in"]}, CONFIG)
    with open_saver(on_schema_change=option) as saver:
        ran: list[str] = []
        graph = chain(saver, "abc", state=Without, ran=ran)
        api = Api(saver, form)
        if option == "raise":
            with pytest.raises(SchemaChangeError, match="channel 'note' has a stored value and is gone"):
                api.invoke(graph, {"log": ["more"]}, CONFIG)
            assert ran == []
            return
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            api.invoke(graph, {"log": ["more"]}, CONFIG)
            api.invoke(graph, {"log": ["more"]}, CONFIG)
        assert [type(one.message) for one in told] == ([SchemaChangeWarning] if option == "warn" else [])
        assert ran == ["a", "b", "c"] * 2


@pytest.fixture
def module() -> Any:
    """A module with a class that can be taken away."""
    made = sys.modules["compat_classes"] = ModuleType("compat_classes")
    exec("from dataclasses import dataclass\n@dataclass\nclass Thing:\n    x: int\n", made.__dict__)
    yield made
    del sys.modules["compat_classes"]


def test_a_class_that_is_gone_is_told(open_saver: Callable[..., AgentSaver], form: str, module: Any) -> None:
    """B03: by default an error; kept as Unresolved it is told once, or refused, and never lost; check lists it."""
    with open_saver() as first:
        Api(first, form).invoke(chain(first, "ab", asks="b", note=module.Thing(3)), {"log": ["in"]}, CONFIG)
    thing = module.__dict__.pop("Thing")
    with open_saver() as saver:
        api = Api(saver, form)
        graph = chain(saver, "ab")
        report = api.check(graph, "t")
        assert not report and report.threads[0].unresolved == ("compat_classes:Thing",)
        with pytest.raises(UnresolvedTypeError):
            api.invoke(graph, Command(resume="yes"), CONFIG)
    with open_saver(on_unresolved="keep", on_schema_change="raise") as saver:
        with pytest.raises(SchemaChangeError, match="compat_classes:Thing"):
            Api(saver, form).invoke(chain(saver, "ab"), Command(resume="yes"), CONFIG)
    with open_saver(on_unresolved="keep") as saver:
        graph = chain(saver, "ab", state=State)
        with pytest.warns(SchemaChangeWarning, match="compat_classes:Thing") as told:
            Api(saver, form).get_state(graph, CONFIG)
            Api(saver, form).update_state(graph, CONFIG, {"log": ["kept"]})
        assert len(told) == 1
    module.Thing = thing
    with open_saver() as saver:
        assert Api(saver, form).get_state(chain(saver, "ab"), CONFIG).values["note"] == thing(3)


def test_a_class_that_is_gone_from_a_delta_channel_is_told(
    open_saver: Callable[..., AgentSaver], form: str, module: Any
) -> None:
    """What a DeltaChannel is rebuilt from stands in older checkpoints: check lists its class too, reading is refused,
    and where it is kept as Unresolved that is told once."""

    def delta(saver: AgentSaver) -> Any:
        channel = DeltaChannel(lambda state, writes: [*state, *(one for write in writes for one in write)])
        builder = StateGraph(TypedDict("Notes", {"notes": Annotated[list[Any], channel]}))  # type: ignore[operator]
        builder.add_node("a", lambda _: {"notes": ["noted"]})
        builder.add_edge(START, "a")
        return builder.compile(checkpointer=saver)

    with open_saver() as first:
        Api(first, form).invoke(delta(first), {"notes": [module.Thing(3)]}, CONFIG)
    thing = module.__dict__.pop("Thing")
    with open_saver() as saver:
        api, graph = Api(saver, form), delta(saver)
        report = api.check(graph)
        assert not report and report.threads[0].unresolved == ("compat_classes:Thing",)
        with pytest.raises(UnresolvedTypeError):
            api.get_state(graph, CONFIG)
    with open_saver(on_unresolved="keep") as saver:
        with pytest.warns(SchemaChangeWarning, match="compat_classes:Thing") as told:
            for _ in range(2):
                Api(saver, form).invoke(delta(saver), {"notes": ["more"]}, CONFIG)
        assert len(told) == 1
    module.Thing = thing
    with open_saver() as saver:
        assert Api(saver, form).check(delta(saver))
        notes = Api(saver, form).get_state(delta(saver), CONFIG).values["notes"]
        assert notes == [thing(3), "noted", *["more", "noted"] * 2]


def test_check_tells_all_threads(open_saver: Callable[..., AgentSaver], form: str) -> None:
    """Threads that can go on and that can't, missing and extra channels; an unknown thread is an error."""
    with open_saver() as saver:
        api = Api(saver, form)
        api.invoke(chain(saver, "a", state=Without), {"log": ["in"]}, {"configurable": {"thread_id": "old"}})
        api.invoke(chain(saver, "ab", asks="b"), {"log": ["in"]}, CONFIG)
        graph = chain(saver, "ac", state=State)
        report = api.check(graph)
        by_id = {one.thread_id: one for one in report.threads}
        assert by_id["old"] and by_id["old"].missing == ("note",)
        assert not by_id["t"] and by_id["t"].pending == ("b",)
        assert not report
        assert api.check(graph, "old")
        assert api.check(chain(saver, "ab", state=Without), CONFIG).threads[0].extra == ("note",)
        with pytest.raises(UsageError, match="nobody"):
            api.check(graph, "nobody")


PROGRAM = """
import operator
from typing import Annotated, TypedDict
from langgraph.graph import START, StateGraph

class State(TypedDict, total=False):
    log: Annotated[list, operator.add]

def build(name):
    builder = StateGraph(State)
    builder.add_node("a", lambda _: {"log": ["a"]})
    builder.add_node(name, lambda _: {"log": [name]})
    builder.add_edge(START, "a")
    builder.add_edge("a", name)
    return builder

graph = build("b").compile(interrupt_before=["b"])
changed = build("c")
"""


def command(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "agent_ckpt", *arguments],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=120,
        env={"PYTHONPATH": str(ROOT), "PATH": ""},
    )


def test_the_command_checks_a_file(path: Path, tmp_path: Path, open_saver: Callable[..., AgentSaver]) -> None:
    """`agent-ckpt check`: exit code 0, 10 and 2, table and JSON; and `show` tells the versions."""
    (tmp_path / "my_app.py").write_text(PROGRAM)
    with open_saver() as saver:
        chain(saver, "ab", asks="b", state=Without).invoke({"log": ["in"]}, CONFIG)
    good = command("check", "my_app:graph", str(path), cwd=tmp_path)
    assert good.returncode == 0, good.stderr
    bad = command("check", "my_app:changed", str(path), "--json", cwd=tmp_path)
    assert bad.returncode == 10, bad.stderr
    told = json.loads(bad.stdout)
    assert told["ok"] is False
    assert [(one["kind"], one["name"]) for one in told["threads"][0]["changes"]] == [("pending_node_gone", "b")]
    assert "node 'b' is gone" in command("check", "my_app:changed", str(path), cwd=tmp_path).stdout.replace("\n", " ")
    assert command("check", "my_app:nothing", str(path), cwd=tmp_path).returncode == 2
    assert command("check", "my_app", str(path), cwd=tmp_path).returncode == 2
    shown = command("show", str(path), "t", cwd=tmp_path)
    assert "stored by agent_ckpt" in shown.stdout and "python 3." in shown.stdout


def test_each_checkpoint_knows_the_versions_it_was_written_with(
    open_saver: Callable[..., AgentSaver], path: Path, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Versions are stored once for each distinct set, referred to by each checkpoint, and copied with a thread."""
    for release in ("1.0", "1.0", "2.0"):
        monkeypatch.setattr(environment, "_version", lambda _, release=release: release)
        with open_saver() as saver:
            Api(saver, form).invoke(chain(saver, "ab"), {"log": [release]}, CONFIG)
    with open_saver() as saver:
        api = Api(saver, form)
        history = [api.written_by(item.config)["langgraph"] for item in api.list(CONFIG)]
        assert history == ["2.0"] * 4 + ["1.0"] * 8
        assert set(api.written_by(CONFIG)) == {
            "agent_ckpt",
            "langgraph",
            "langgraph-checkpoint",
            "langchain-core",
            "python",
        }
        api.copy_thread("t", "copy")
        assert api.written_by({"configurable": {"thread_id": "copy"}})["langgraph"] == "2.0"
        assert api.written_by({"configurable": {"thread_id": "nobody"}}) == {}
    assert len(query(path, "SELECT * FROM environments")) == 2
