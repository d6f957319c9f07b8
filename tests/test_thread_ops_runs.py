"""Deleting the rows of runs, and operations on a thread that a session holds or a run is writing."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from langchain_core.callbacks import BaseCallbackHandler
from langgraph.checkpoint.base import empty_checkpoint

from agent_ckpt import AgentSaver, ThreadConflictError
from tests.conftest import Api
from tests.kinds import KINDS, Kind, echo_graph, say
from tests.looking import dump, heads, plain, run, thread, view

every_kind = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)


def state(api: Api, kind: Kind, thread_id: str) -> Any:
    """The thread's state as a fresh graph sees it, its subgraphs' included."""
    return api.get_state(kind.build(api.saver), thread(thread_id), subgraphs=True)


@every_kind
def test_delete_the_last_run(api: Api, kind: Kind) -> None:
    """Deleting a thread's last run leaves it as that run found it, and it goes on from there."""
    undo_last_run(api, kind, 2)


@pytest.mark.parametrize("name", [name for name in KINDS if "waiting" in name or "asking" in name])
def test_delete_the_run_that_answered(api: Api, name: str) -> None:
    """Deleting the run that answered opens the interrupts again: its writes go from the earlier run's checkpoint on
    which they stand, and the earlier run's own writes stay."""
    undo_last_run(api, KINDS[name], 1)


def undo_last_run(api: Api, kind: Kind, last: int) -> None:
    kind.drive(api, "thread", last)
    was, before = dump(api, "thread"), view(state(api, kind, "thread"))
    kind.turns[last](api, kind.build(api.saver), run("thread", "gone"))
    assert dump(api, "thread") != was
    api.delete_for_runs(["gone"])
    assert dump(api, "thread") == was
    assert view(state(api, kind, "thread")) == before
    kind.drive(api, "twin", last + 1)
    kind.turns[last](api, kind.build(api.saver), run("thread", "again"))
    assert view(state(api, kind, "thread")) == view(state(api, kind, "twin"))
    if last == 2:
        assert plain(kind.go_on(api, "thread")) == plain(kind.go_on(api, "twin"))


@every_kind
@pytest.mark.parametrize("order", [[1, 0], [0]], ids=["middle, early", "early"])
def test_delete_an_earlier_run(api: Api, kind: Kind, order: list[int]) -> None:
    """Deleting earlier runs takes their checkpoints and no other's; every state left is as it was, and the thread
    goes on as its twin."""
    kind.drive(api, "thread")
    kind.drive(api, "twin")
    for number in order:
        before, head, name = dump(api, "thread"), heads(api, "thread"), f"thread/{number}"
        assert name in {item[4].get("run_id") for item in before}
        kept = [item for item in before if item[4].get("run_id") != name]
        states = {item[1]: at_checkpoint(api, kind, item) for item in kept if item[0] == ""}
        api.delete_for_runs([name])
        after = dump(api, "thread")
        assert [item[:5] for item in after] == [item[:5] for item in kept]
        assert after[0] == head[after[0][0]]
        assert {item[1]: at_checkpoint(api, kind, item) for item in after if item[0] == ""} == states
    assert plain(kind.go_on(api, "thread")) == plain(kind.go_on(api, "twin"))
    api.prune(["thread"])
    assert view(state(api, kind, "thread"))["values"] == view(state(api, kind, "twin"))["values"]


def at_checkpoint(api: Api, kind: Kind, item: tuple[Any, ...]) -> Any:
    """The values at one checkpoint of the thread, as get_state rebuilds them."""
    return plain(api.get_state(kind.build(api.saver), thread("thread", checkpoint_id=item[1])).values)


def test_other_threads_of_a_run_lose_theirs_too(api: Api) -> None:
    """A run id names its rows in every thread; threads without it are not touched, not even their revision."""
    graph = echo_graph(api.saver)
    for name in ("a", "b"):
        say("keep")(api, graph, run(name, "kept"))
        say("more")(api, graph, run(name, "gone"))
    say("keep")(api, graph, run("c", "kept"))
    was = {info.thread_id: info.revision for info in api.saver.threads()}
    api.delete_for_runs(["gone", "never was"])
    now = {info.thread_id: info.revision for info in api.saver.threads()}
    assert now["c"] == was["c"]
    assert now["a"] > was["a"]
    assert now["b"] > was["b"]
    for name in ("a", "b", "c"):
        assert {item[4]["run_id"] for item in dump(api, name)} == {"kept"}


@pytest.mark.parametrize("where", ["metadata", "configurable", "config"])
def test_a_run_is_known_wherever_its_id_stands(api: Api, where: str) -> None:
    """The run id is read from the metadata, the configurable or the config, as a UUID or as text."""
    graph, run_id = echo_graph(api.saver), uuid4()
    say("keep")(api, graph, thread("t"))
    was = dump(api, "t")
    config = thread("t")
    if where == "config":
        config["run_id"] = run_id
    elif where == "metadata":
        config["metadata"] = {"run_id": str(run_id)}
    else:
        config["configurable"]["run_id"] = str(run_id)
    say("more")(api, graph, config)
    assert len(dump(api, "t")) > len(was)
    api.delete_for_runs([str(run_id)])
    assert dump(api, "t") == was


# Sessions and runs in flight


def test_prune_raises_no_revision(api: Api) -> None:
    """A session that restored the thread before a prune can still write it; channels given without a value keep
    the parent's."""
    KINDS["plain"].drive(api, "thread")
    revision = next(info.revision for info in api.saver.threads())
    restored = api.get_tuple({**thread("thread"), "recursion_limit": 9})
    api.prune(["thread"])
    assert next(info.revision for info in api.saver.threads()) == revision
    following = {**restored.checkpoint, "id": empty_checkpoint()["id"], "channel_values": {}}
    stored = api.put(restored.config, following, {"source": "update", "step": 99, "parents": {}}, {})
    got = api.get_tuple(stored)
    assert set(got.checkpoint["channel_values"]) == {"log", "constant", "count"}
    assert got.checkpoint["channel_values"] == restored.checkpoint["channel_values"]


@pytest.mark.parametrize("wrote", [False, True])
def test_delete_for_runs_raises_the_revision(api: Api, wrote: bool) -> None:
    """A session that restored the thread before a run of it was deleted is refused, though the checkpoint that it
    restored is still there, and though it owned the thread; deleting a run that isn't there refuses nobody."""
    graph = echo_graph(api.saver)
    say("one")(api, graph, run("thread", "gone"))
    say("two")(api, graph, run("thread", "kept"))
    restored = api.get_tuple(thread("thread"))
    following = {**restored.checkpoint, "id": empty_checkpoint()["id"]}
    api.delete_for_runs(["never was"])
    if wrote:
        api.put_writes(restored.config, [("x", 1)], "a task")
    api.delete_for_runs(["gone"])
    before = dump(api, "thread")
    with pytest.raises(ThreadConflictError) as caught:
        api.put(restored.config, following, {"source": "loop", "step": 9, "parents": {}}, {})
    assert (caught.value.thread_id, caught.value.wrote) == ("thread", wrote)
    assert dump(api, "thread") == before
    say("three")(api, graph, thread("thread"))


class Pruner(BaseCallbackHandler):
    """Prunes a thread through another saver whenever a node begins or ends."""

    raise_error = True
    run_inline = True

    def __init__(self, other: AgentSaver) -> None:
        self.other = other

    def on_chain_start(self, *args: Any, **kwargs: Any) -> None:
        self.other.prune(["thread"])

    def on_chain_end(self, *args: Any, **kwargs: Any) -> None:
        self.other.prune(["thread"])


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
@pytest.mark.parametrize("name", ["plain", "delta, often", "delta, seldom", "nested", "remembering"])
def test_prune_beside_a_run(api: Api, name: str, durability: str, path: Path) -> None:
    """A run that is under way while its thread is pruned goes on, and ends as a run that nobody disturbed does."""
    kind = KINDS[name]
    for thread_id in ("thread", "twin"):
        kind.drive(api, thread_id)
    with AgentSaver(path) as other:
        for thread_id in ("thread", "twin"):
            graph = kind.build(api.saver)
            config = run(thread_id, f"{thread_id}/on")
            if thread_id == "thread":
                config["callbacks"] = [Pruner(other)]
            api.invoke(graph, {"log": ["on"]}, config, durability=durability)
    assert view(state(api, kind, "thread")) == view(state(api, kind, "twin"))
    assert plain(kind.go_on(api, "thread")) == plain(kind.go_on(api, "twin"))
