"""Operations on whole threads, each on every kind of thread: delete, copy, prune."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.serde.types import _DeltaSnapshot
from langgraph.types import Overwrite

from agent_ckpt import UsageError
from tests.conftest import Api
from tests.kinds import KINDS, Kind, delta_lines, echo_graph
from tests.looking import counts, dump, heads, history, plain, seen, thread, view

every_kind = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
METADATA = {"source": "loop", "step": 0, "parents": {}}


def state(api: Api, kind: Kind, thread_id: str) -> Any:
    """The thread's state as a fresh graph sees it, its subgraphs' included."""
    return api.get_state(kind.build(api.saver), thread(thread_id), subgraphs=True)


@every_kind
def test_copy(api: Api, kind: Kind, path: Path) -> None:
    """A copy lists as its source does, the source doesn't change, and both go on apart as an uncopied twin does."""
    kind.drive(api, "source")
    before, rows = dump(api, "source"), counts(path)
    api.copy_thread("source", "copy")
    assert dump(api, "copy") == before
    assert dump(api, "source") == before
    assert counts(path) == {name: 2 * number for name, number in rows.items()}
    assert view(state(api, kind, "copy")) == view(state(api, kind, "source"))
    kind.drive(api, "twin")
    wanted = plain(kind.go_on(api, "twin"))
    assert plain(kind.go_on(api, "copy")) == wanted
    assert dump(api, "source") == before
    after = dump(api, "copy")
    assert plain(kind.go_on(api, "source")) == wanted
    assert view(state(api, kind, "copy")) == view(state(api, kind, "twin"))
    api.delete_thread("source")
    assert dump(api, "copy") == after


def test_copy_refusals(api: Api, path: Path) -> None:
    """A missing source, an existing target and a copy onto itself are refused, and nothing changes."""
    for name in ("one", "two"):
        KINDS["plain"].drive(api, name)
    before, rows = dump(api, "two"), counts(path)
    for source, target in (("missing", "new"), ("one", "two"), ("one", "one")):
        with pytest.raises(UsageError, match=source if source == "missing" else target):
            api.copy_thread(source, target)
    assert not api.exists("new")
    assert (dump(api, "two"), counts(path)) == (before, rows)


@every_kind
def test_prune(api: Api, kind: Kind, path: Path) -> None:
    """B51: keep_latest leaves each namespace's head as it was (values, pending writes, interrupts), the rows shrink,
    and the thread goes on as its unpruned twin: pruned once or twice, before or after a copy."""
    kind.drive(api, "thread")
    before, was, rows = heads(api, "thread"), state(api, kind, "thread"), counts(path)
    api.copy_thread("thread", "copied first")
    api.delete_thread("copied first")
    assert counts(path) == rows
    api.copy_thread("thread", "copied first")
    api.prune(["thread"], strategy="keep_latest")
    assert heads(api, "thread") == before
    pruned = dump(api, "thread")
    assert len(pruned) == len(before)
    assert state(api, kind, "thread") == was
    api.prune(["copied first", "thread"])
    api.copy_thread("thread", "pruned first")
    assert dump(api, "copied first") == dump(api, "pruned first") == dump(api, "thread") == pruned
    after = {name: number // 3 for name, number in counts(path).items()}
    assert after["checkpoints"] == len(before) < rows["checkpoints"]
    assert after["writes"] < rows["writes"]
    assert after["blobs"] <= rows["blobs"]
    kind.drive(api, "twin")
    wanted = plain(kind.go_on(api, "twin"))
    for name in ("copied first", "pruned first", "thread"):
        assert plain(kind.go_on(api, name)) == wanted
        assert view(state(api, kind, name)) == view(state(api, kind, "twin"))
    api.prune(["thread"])
    assert view(state(api, kind, "thread"))["values"] == view(state(api, kind, "twin"))["values"]


@every_kind
def test_delete(api: Api, kind: Kind, path: Path) -> None:
    """B29: every way to delete a thread leaves no row of it, and other threads as they were."""
    kind.drive(api, "other")
    before, rows = dump(api, "other"), counts(path)
    kind.drive(api, "thread")
    whole = dump(api, "thread")
    for name in ("copy", "copy of it", "another", "last"):
        api.copy_thread("thread", name)
    api.delete_thread("thread")
    api.prune(["copy"], strategy="delete")
    api.prune(["copy of it"], strategy="delete_all")
    assert dump(api, "another") == dump(api, "last") == whole
    api.delete_for_runs([f"thread/{number}" for number in range(len(kind.turns))])
    for name in ("thread", "copy", "copy of it", "another", "last"):
        assert dump(api, name) == []
        assert not api.exists(name)
    assert (dump(api, "other"), counts(path)) == (before, rows)
    again = kind.drive(api, "thread")
    assert view(api.get_state(again, thread("thread"))) == view(api.get_state(again, thread("other")))


def test_delete_reaches_exactly_its_thread(api: Api, path: Path) -> None:
    """B29: of ids that hold one another, or SQL's wildcards, only the one named goes, all its namespaces with it."""
    ids = ["a", "a:b", "a%", "a_", "A", "ab"]
    for thread_id in ids:
        for ns in ("", "sub:1"):
            checkpoint = {**empty_checkpoint(), "channel_values": {"x": [thread_id]}, "channel_versions": {"x": 1}}
            config = thread(thread_id, checkpoint_ns=ns)
            stored = api.put(config, checkpoint, {"source": "loop", "step": 0, "parents": {}}, {"x": 1})
            api.put_writes(stored, [("branch:to:x", thread_id), ("x", [ns])], "task")
    before = {thread_id: dump(api, thread_id) for thread_id in ids}
    rows = counts(path)
    api.delete_thread("a")
    assert dump(api, "a") == []
    assert {thread_id: dump(api, thread_id) for thread_id in ids[1:]} == {t: before[t] for t in ids[1:]}
    assert {name: rows[name] // 6 * 5 for name in ("threads", "spaces", "checkpoints", "writes")} == {
        name: number for name, number in counts(path).items() if name != "blobs"
    }
    for missing in ("a", "never was"):
        api.delete_thread(missing)
        api.prune([missing])
        api.prune([missing], strategy="delete_all")
        api.delete_for_runs([missing])
    assert {thread_id: dump(api, thread_id) for thread_id in ids[1:]} == {t: before[t] for t in ids[1:]}


def test_bad_calls_are_refused(api: Api) -> None:
    """An unknown strategy and a single text in place of a list are refused, and nothing is dropped."""
    KINDS["plain"].drive(api, "thread")
    before = dump(api, "thread")
    for strategy in ("keep_last", "", "KEEP_LATEST", None):
        with pytest.raises(UsageError, match="strategy"):
            api.prune(["thread"], strategy=strategy)
    for call in (api.prune, api.delete_for_runs):
        with pytest.raises(UsageError, match="list"):
            call("thread")
    with pytest.raises(UsageError):
        api.prune([None])
    with pytest.raises(UsageError):
        api.delete_thread("")
    api.prune([])
    api.delete_for_runs([])
    assert dump(api, "thread") == before


def test_ids_configs_and_uuids_name_the_same_thread(api: Api) -> None:
    """Every method that takes a thread takes its id or a config of it, and an int as its text."""
    KINDS["plain"].drive(api, "7")
    before = dump(api, "7")
    api.copy_thread(thread("7"), 8)
    assert dump(api, "8") == before
    api.prune([thread("8")])
    assert len(dump(api, "8")) == 1
    api.delete_thread(thread("8"))
    assert not api.exists(8)
    assert api.exists(7)


def test_prune_keeps_writes_of_a_checkpoint_to_come(api: Api) -> None:
    """Pending writes that arrived before their checkpoint, even before its parent, outlive a prune (B37 c)."""
    first, second, third = empty_checkpoint(), empty_checkpoint(), empty_checkpoint()
    for number, checkpoint in enumerate((first, second, third)):
        checkpoint["channel_values"] = {"x": [number]}
        checkpoint["channel_versions"] = {"x": number + 1}
    api.put(thread("t", checkpoint_ns=""), first, METADATA, {"x": 1})
    restored = api.get_tuple(thread("t"))

    def at(checkpoint: Any) -> dict[str, Any]:
        conf = restored.config["configurable"]
        return {"configurable": {**conf, "checkpoint_id": checkpoint["id"]}}

    api.put_writes(at(third), [("x", "early")], "task of the third")
    api.put(at(first), second, METADATA, {"x": 2})
    api.put_writes(at(second), [("x", "late")], "task of the second")
    api.copy_thread("t", "copy")
    api.prune(["t"])
    assert [item[1] for item in dump(api, "t")] == [second["id"]]
    assert dump(api, "t")[0][5] == [("task of the second", "x", "late")]
    assert api.get_tuple(at(third)) is None
    api.put(at(second), third, METADATA, {"x": 3})
    assert seen(api.get_tuple(at(third)))[5] == [("task of the third", "x", "early")]
    api.put(thread("copy", checkpoint_ns="", checkpoint_id=second["id"]), third, METADATA, {"x": 3})
    assert dump(api, "copy")[0] == dump(api, "t")[0]
    api.prune(["t"])
    assert [item[1] for item in dump(api, "t")] == [third["id"]]


def test_pruned_history_lists_what_is_left(api: Api) -> None:
    """get_state_history of a pruned thread gives its head, and after the next run that and the new states."""
    kind = KINDS["plain"]
    graph = kind.drive(api, "thread")
    full = history(api, graph, thread("thread"))
    api.prune(["thread"])
    assert [{**item, "parent": None} for item in history(api, graph, thread("thread"))] == [{**full[0], "parent": None}]
    kind.go_on(api, "thread")
    after = history(api, graph, thread("thread"))
    assert len(after) == 5
    assert [item["parent"] for item in after] == [1, 1, 1, 1, None]


def test_grouped_snapshots(api: Api) -> None:
    """B56: a DeltaChannel's snapshot comes back whatever its bytes are, also where they close a group of references."""
    checkpoint = empty_checkpoint()
    checkpoint["channel_values"] = {f"c{n}": _DeltaSnapshot([f"line {n}"] * (n % 40 + 1)) for n in range(400)}
    checkpoint["channel_versions"] = dict.fromkeys(checkpoint["channel_values"], 1)
    api.put(thread("t", checkpoint_ns=""), checkpoint, METADATA, checkpoint["channel_versions"])
    assert api.get_tuple(thread("t")).checkpoint["channel_values"] == checkpoint["channel_values"]
    asked = [*checkpoint["channel_values"]]
    following = {**checkpoint, "id": empty_checkpoint()["id"], "channel_values": {}}
    following["channel_versions"] = dict.fromkeys(asked, 2)
    api.put(thread("t", checkpoint_ns="", checkpoint_id=checkpoint["id"]), following, METADATA, dict.fromkeys(asked, 2))
    found = api.get_delta_channel_history(config=thread("t"), channels=asked)
    assert {name: entry["seed"] for name, entry in found.items()} == checkpoint["channel_values"]


def test_late_writes_reach_no_child(api: Api) -> None:
    """B37 b: writes put on a checkpoint that has a child already are kept there and change no history of the child,
    nor does a prune or a copy make them count."""
    first, second = empty_checkpoint(), empty_checkpoint()
    metadata = {**METADATA, "counters_since_delta_snapshot": {"x": (1, 1)}}
    first["channel_versions"], second["channel_versions"] = {"x": 1}, {"x": 2}
    one = api.put(thread("t", checkpoint_ns=""), first, metadata, {"x": 1})
    api.put_writes(one, [("x", "in time")], "task a")
    two = api.put(one, second, metadata, {"x": 2})
    api.put_writes(one, [("x", "late")], "task b")

    def trail(thread_id: str) -> list[Any]:
        return api.get_delta_channel_history(config=thread(thread_id), channels=["x", "y"])["x"]["writes"]

    assert trail("t") == [("task a", "x", "in time")]
    assert [write[2] for write in api.get_tuple(one).pending_writes] == ["in time", "late"]
    api.copy_thread("t", "copy")
    assert trail("copy") == trail("t")
    api.put_writes(two, [("x", "pending")], "task c")
    for name in ("t", "copy"):
        api.prune([name])
        assert trail(name) == [("task a", "x", "in time")]
    api.copy_thread("t", "pruned copy")
    third = {**empty_checkpoint(), "channel_versions": {"x": 3}}
    api.put(thread("pruned copy", checkpoint_ns="", checkpoint_id=second["id"]), third, metadata, {"x": 3})
    assert trail("pruned copy") == [("task a", "x", "in time"), ("task c", "x", "pending")]


def test_long_delta_trail(api: Api) -> None:
    """B56: a DeltaChannel that is rebuilt from 600 ancestors: whole, in order, before and after prune and copy."""
    config = thread("t", checkpoint_ns="")
    for number in range(600):
        checkpoint = {**empty_checkpoint(), "channel_versions": {"x": number + 1}}
        metadata = {**METADATA, "step": number, "counters_since_delta_snapshot": {"x": (number, number)}}
        config = api.saver.put(config, checkpoint, metadata, {"x": number + 1})
        api.saver.put_writes(config, [("x", number), ("y", -number), ("x", [number])], f"task {number}")

    def trail(thread_id: str, channel: str) -> list[Any]:
        found = api.get_delta_channel_history(config=thread(thread_id), channels=[channel, "never"])
        assert found["never"] == {"writes": []}
        return found[channel]["writes"]

    wanted = [(f"task {n}", "x", value) for n in range(599) for value in (n, [n])]
    assert trail("t", "x") == wanted
    assert trail("t", "y") == [(f"task {n}", "y", -n) for n in range(599)]
    api.copy_thread("t", "copy")
    api.prune(["t"])
    for name in ("t", "copy"):
        assert trail(name, "x") == wanted


@pytest.mark.filterwarnings("ignore::agent_ckpt.errors.SchemaChangeWarning")  # the graph does lose a channel
@pytest.mark.parametrize("durability", ["sync", "exit"])
@pytest.mark.parametrize("frequency", [2, 1000])
def test_prune_delta_threads_of_every_origin(api: Api, frequency: int, durability: str) -> None:
    """B51, B56: DeltaChannels after runs in other durability modes, updates by hand, an Overwrite, and after a change
    from a plain channel: pruned after each step, a thread holds what its twin holds."""
    delta = delta_lines(frequency)
    steps: list[Any] = [
        lambda config: api.invoke(echo_graph(api.saver), {"log": ["plain"]}, config, durability=durability),
        lambda config: api.invoke(delta(api.saver), {"log": ["delta"]}, config, durability=durability),
        lambda config: api.update_state(delta(api.saver), config, {"log": ["by hand"]}, as_node="last"),
        lambda config: api.invoke(delta(api.saver), {"log": ["more"]}, config, durability=durability),
        lambda config: api.update_state(delta(api.saver), config, {"log": Overwrite(["reset"])}, as_node="set"),
        lambda config: api.update_state(delta(api.saver), config, {"keys": {"k": "v"}}, as_node="set"),
        lambda config: api.invoke(delta(api.saver), None, config, durability=durability),
        lambda config: api.invoke(delta(api.saver), {"log": ["end"]}, config, durability=durability),
    ]
    for step in steps:
        for name in ("pruned", "twin"):
            step(thread(name))
        wanted = view(api.get_state(delta(api.saver), thread("twin")))
        api.prune(["pruned"])
        assert view(api.get_state(delta(api.saver), thread("pruned"))) == wanted
    assert wanted["values"]["log"][0] == "reset"
    assert wanted["values"]["keys"]["k"] == "v"
