"""Growth, counted in bytes, rows and statements: what is stored follows what is new (cases B49, B50, B59)."""

from __future__ import annotations

import gc
import math
import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage

from agent_ckpt import AgentSaver
from tests.agents import ScriptedModel, react_graph
from tests.conftest import Api
from tests.threads import Thread, blob_bytes, checkpoint_of, plain, query, row_bytes, values_at

MIB = 1 << 20


def blobs(path: Path) -> int:
    return int(query(path, "SELECT count(*) FROM blobs")[0][0])


def text(size: int, seed: int = 1) -> str:
    """Text of random letters: nothing in it repeats, so bytes stored say what was stored."""
    return "".join(
        random.Random(seed).choices("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789 ", k=size)
    )


def message(i: int) -> AnyMessage:
    return (AIMessage if i % 2 else HumanMessage)(f"{i} {text(80, i)}", id=f"m{i}")


class Cost:
    """What was stored within a span."""

    bytes = 0
    rows = 0
    blobs = 0


@pytest.fixture
def cost(path: Path) -> Callable[[], Any]:
    """Measures what is stored inside a `with`: bytes of all rows, bytes of the checkpoint rows alone, and blobs."""

    @contextmanager
    def measure() -> Iterator[Cost]:
        found = Cost()
        before = (row_bytes(path), blob_bytes(path), blobs(path))
        yield found
        found.bytes = row_bytes(path) - before[0]
        found.rows = found.bytes - (blob_bytes(path) - before[1])
        found.blobs = blobs(path) - before[2]

    return measure


@contextmanager
def statements(saver: AgentSaver) -> Iterator[list[str]]:
    """Collects every call into sqlite3."""
    seen: list[str] = []
    saver._backend.on_statement = seen.append
    try:
        yield seen
    finally:
        saver._backend.on_statement = None


# What is unchanged, appended, changed


def test_an_unchanged_channel_costs_a_reference(api: Api, cost: Any) -> None:
    """B49: forty unchanged channels of 4 KB each cost a step no blob and under 40 bytes a channel."""
    thread = Thread(api)
    thread.put(**{f"c{i}": text(4000, i) for i in range(40)}, step=0)
    thread.put(step=1)
    for step in range(2, 6):
        with cost() as found:
            thread.put(step=step)
        assert found.blobs == 0
        assert found.bytes < 40 * 40


def test_an_equal_value_in_a_new_object_is_not_stored_again(api: Api, cost: Any) -> None:
    """A channel that is named as changed but holds equal content costs a reference."""
    thread = Thread(api)
    thread.put(files={f"f{i}": text(3000, i) for i in range(20)})
    with cost() as found:
        thread.put(files={f"f{i}": text(3000, i) for i in range(20)})
    assert (found.blobs, found.bytes < 400) == (0, True)


def test_a_constant_mebibyte_over_a_hundred_steps(api: Api, path: Path) -> None:
    """B49: a constant 1 MiB channel over 100 steps that touch only a counter stays under 2 MiB in all."""
    thread = Thread(api)
    big = text(MIB)
    thread.put(blob=big, i=0)
    for i in range(1, 100):
        thread.put(i=i)
    api.saver.close()
    assert path.stat().st_size < 2 * MIB
    with AgentSaver(path) as again:
        api = Api(again, api.form)
        assert values_at(api, thread.config) == {"blob": big, "i": 99}


@pytest.mark.parametrize("warm", [True, False], ids=["warm", "cold"])
def test_a_message_appended_to_two_thousand(warm: bool, api: Api, cost: Any, open_saver: Any) -> None:
    """B50: appending one message to 2,000 costs that message and a few references, warm or after a reopening."""
    thread = Thread(api)
    history = [message(i) for i in range(2000)]
    thread.put(messages=history)
    if not warm:
        thread.api = Api(open_saver(), api.form)
        thread.config = thread.api.get_tuple(plain(thread.config)).config
    costs = []
    for i in range(2000, 2020):
        history = [*history, message(i)]
        with cost() as found:
            thread.put(messages=history)
        costs.append((found.bytes, found.blobs))
    assert sorted(costs)[10][0] < 600, costs
    assert max(costs)[0] < 2500, costs
    assert max(count for _, count in costs) <= 4, costs
    assert values_at(thread.api, thread.config)["messages"] == history


@pytest.mark.parametrize("where", [0, 1, 1000, 1998])
@pytest.mark.parametrize("edit", ["change", "insert", "remove"])
def test_an_edit_within_a_list(where: int, edit: str, api: Api, cost: Any) -> None:
    """An edit anywhere in a list of 2,000 costs the new item and the groups beside it, not the list."""
    thread = Thread(api)
    history: list[Any] = [message(i) for i in range(2000)]
    thread.put(messages=history)
    new = message(5000)
    edited = {
        "change": [*history[:where], new, *history[where + 1 :]],
        "insert": [*history[:where], new, *history[where:]],
        "remove": [*history[:where], *history[where + 1 :]],
    }[edit]
    with cost() as found:
        thread.put(messages=edited)
    assert found.blobs <= 6, found.blobs
    assert found.bytes < 3000, found.bytes
    for config, value in zip(thread.configs, (history, edited), strict=True):
        assert values_at(api, config)["messages"] == value


def test_removal_at_the_front_step_by_step(api: Api, cost: Any) -> None:
    """A window that moves over a list (one off the front, one on the end) costs a step one item and a few groups."""
    thread = Thread(api)
    everything = [message(i) for i in range(1200)]
    thread.put(messages=everything[:1000])
    costs = []
    for i in range(1, 60):
        with cost() as found:
            thread.put(messages=everything[i : 1000 + i])
        costs.append(found.bytes)
    assert sum(costs) / len(costs) < 1500, costs
    assert values_at(api, thread.config)["messages"] == everything[59:1059]


def test_one_key_of_a_dict_of_files(api: Api, cost: Any) -> None:
    """200 files of 30 KB with one changed a step: what is stored follows the change; so for an edit inside a file."""
    thread = Thread(api)
    files = {f"dir/file{i}": text(30_000, i) for i in range(200)}
    thread.put(files=files)
    for step in range(5):
        files = {**files, f"dir/file{step * 7}": text(30_000, 1000 + step)}
        with cost() as found:
            thread.put(files=files)
        assert 20_000 < found.bytes < 34_000, found.bytes
    edited = files["dir/file100"]
    files = {**files, "dir/file100": edited[:15_000] + "!" + edited[15_001:]}
    with cost() as found:
        thread.put(files=files)
    assert found.bytes < 16_000, found.bytes
    with cost() as found:
        thread.put(files={name: content for name, content in files.items() if name != "dir/file3"})
    assert found.bytes < 6000, found.bytes


def test_a_whole_replacement_costs_the_new_value_once(open_saver: Any, form: str, cost: Any) -> None:
    """Replacing a list whole costs the new items; going back to the old one costs next to nothing."""
    # Uncompressed: where groups end follows from addresses, so that now more messages stand in packs, now fewer.
    thread = Thread(Api(open_saver(compression="none"), form))
    thread.put(start=1)
    old, new = ([message(i + at) for i in range(400)] for at in (0, 10_000))
    with cost() as first:
        thread.put(messages=old)
    with cost() as second:
        thread.put(messages=new)
    with cost() as third:
        thread.put(messages=old)
    assert 0.8 < second.bytes / first.bytes < 1.2
    assert third.bytes < first.bytes / 10
    assert third.blobs == 0


@pytest.mark.parametrize("kind", ["text", "wide text", "bytes", "few words"])
@pytest.mark.parametrize("edit", ["change", "insert", "remove"])
@pytest.mark.parametrize("where", [10, MIB // 2 + 7])
def test_one_byte_of_a_mebibyte(kind: str, edit: str, where: int, api: Api, cost: Any) -> None:
    """B49: one byte of 1 MiB text or bytes changed, inserted or removed costs a few pieces."""
    value: Any = {
        "text": lambda: text(MIB),
        "wide text": lambda: "".join(random.Random(2).choices("абвгдежзиклмнопрст🙂 ", k=MIB // 2)),
        "bytes": lambda: random.Random(3).randbytes(MIB),
        "few words": lambda: " ".join(random.Random(4).choices(["ok", "error", "12", "warn"], k=MIB // 4)),
    }[kind]()
    where = min(where, len(value) // 2)
    new = value[:0] + (b"!" if kind == "bytes" else "!")
    edited = {
        "change": value[:where] + new + value[where + 1 :],
        "insert": value[:where] + new + value[where:],
        "remove": value[:where] + value[where + 1 :],
    }[edit]
    thread = Thread(api)
    thread.put(value=value)
    with cost() as found:
        thread.put(value=edited)
    assert found.bytes < 70_000, found.bytes
    assert found.blobs <= 6
    for config, expected in zip(thread.configs, (value, edited), strict=True):
        assert values_at(api, config)["value"] == expected


# Shared and kept apart


def test_a_message_that_a_task_wrote_is_stored_once(api: Api, path: Path, cost: Any) -> None:
    """A message in the input, in a task's write and in the channel is one blob."""
    thread = Thread(api)
    history = [message(i) for i in range(50)]
    thread.put(messages=history)

    def messages() -> int:
        # Those of a closed group stand in its pack.
        mine = "substr(frame, 3, 1) = x'02' OR typeof(frame) = 'integer'"
        return int(query(path, f"SELECT count(*) FROM blobs WHERE {mine}")[0][0])

    for i in range(50, 60):
        answer = message(i)
        before = messages()
        thread.writes(("messages", [answer]), ("branch:to:x", None), task=f"task{i}")
        assert messages() == before + 1
        history = [*history, answer]
        with cost() as joined:
            thread.put(messages=history)
        assert messages() == before + 1, "the message was stored again"
        assert joined.blobs <= 2, "only closed groups may be new"
        assert joined.bytes < 900


def test_equal_values_of_two_channels_and_namespaces_are_stored_once(api: Api, cost: Any) -> None:
    """Content is stored once within its thread, whichever channel or namespace holds it; another thread has its own."""
    Thread(api).put(a=text(4000), b=[text(4000)], c={"k": text(4000)})
    with cost() as found:
        Thread(api, ns="sub:1").put(other=text(4000))
    assert found.blobs == 0
    with cost() as found:
        Thread(api, "another").put(a=text(4000))
    assert found.blobs == 1


def test_forks_with_equal_versions_and_other_bytes(api: Api, open_saver: Any, form: str) -> None:
    """B59: two forks with equal channel versions and different bytes stay apart, also when one is deleted."""
    thread = Thread(api)
    base = thread.put(shared=text(2000), messages=[message(i) for i in range(20)], untouched={"a": 1})
    tips = []
    for branch in ("left", "right"):
        restored = api.get_tuple(plain(base))
        values = restored.checkpoint["channel_values"]
        values["shared"] = branch * 200
        values["messages"] = [*values["messages"], HumanMessage(branch * 30, id="fork")]
        versions = {"shared": 2, "messages": 2, "untouched": 1}
        made = checkpoint_of(values, versions)
        metadata = {"source": "fork", "step": 1, "parents": {}, "run_id": branch}
        tip = api.put(restored.config, made, metadata, {"shared": 2, "messages": 2})
        tips.append((branch, tip))
    for fresh in (api, Api(open_saver(), form)):
        for branch, tip in tips:
            found = values_at(fresh, tip)
            assert found["shared"] == branch * 200
            assert found["messages"] == [*(message(i) for i in range(20)), HumanMessage(branch * 30, id="fork")]
            assert found["untouched"] == {"a": 1}
        assert values_at(fresh, base)["shared"] == text(2000)
    api.delete_for_runs(["left"])
    assert api.get_tuple(plain(tips[0][1])) is None
    assert values_at(Api(open_saver(), form), tips[1][1])["shared"] == "right" * 200
    assert values_at(api, base)["shared"] == text(2000)


def test_a_channel_without_a_value_keeps_its_parents_or_not(api: Api, open_saver: Any, form: str) -> None:
    """A channel at its parent's version with no value given keeps the parent's; at another version it has none."""
    thread = Thread(api)
    thread.put(a=text(500), b=[1, 2], c="c")
    made = checkpoint_of({"c": "new"}, {"a": 1, "b": 2, "c": 2})
    tip = api.put(thread.config, made, {"source": "loop", "step": 1, "parents": {}}, {"c": 2})
    assert values_at(api, tip) == {"a": text(500), "c": "new"}
    made = checkpoint_of({}, {"a": 1, "b": 2, "c": 3})
    tip = api.put(tip, made, {"source": "loop", "step": 2, "parents": {}}, {"c": 3})
    assert values_at(Api(open_saver(), form), tip) == {"a": text(500)}


# Over a whole conversation


def conversation(api: Api, path: Path, turns: int) -> int:
    """Bytes on disk after so many turns of a chat with tool calls, the way LangGraph stores them."""
    thread = Thread(api)
    history: list[Any] = []
    for turn in range(turns):
        for at in range(4):
            new = message(turn * 4 + at)
            if thread.configs:
                thread.writes(("messages", [new]), ("branch:to:agent", None), task=f"task-{turn}-{at}")
            history = [*history, new]
            thread.put(messages=history, turn=turn)
    api.saver.close()
    return path.stat().st_size


def test_a_chat_grows_with_its_text(tmp_path: Path) -> None:
    """B50: over 50, 100 and 200 turns the exponent of the file's growth is at most 1.05."""
    sizes = {}
    for turns in (50, 100, 200):
        path = tmp_path / f"{turns}.db"
        with AgentSaver(path, synchronous="normal") as saver:
            sizes[turns] = conversation(Api(saver, "sync"), path, turns)
        with AgentSaver(path) as saver:
            assert saver.verify()
    for one, other in ((50, 100), (100, 200)):
        exponent = math.log(sizes[other] / sizes[one]) / math.log(other / one)
        assert exponent <= 1.05, sizes
    assert sizes[200] < 200 * 4 * 1100, sizes


# Statements


def test_statements_of_a_put(api: Api, saver: AgentSaver) -> None:
    """A put with k new blobs makes at most 8 + k calls into sqlite3, whatever the thread's length."""
    thread = Thread(api)
    history = [message(i) for i in range(600)]
    thread.put(messages=history, other=text(2000))
    for count in (0, 1, 1, 3, 20):
        history = [*history, *(message(len(history) + i) for i in range(count))]
        with statements(saver) as seen:
            thread.put(messages=history, step=count)
        new = Counter(seen)["insert_blob"]
        assert len(seen) <= 8 + new, seen
        assert new <= count + 3
        with statements(saver) as seen:
            thread.writes(("messages", [message(len(history) + 1000)]), ("branch:to:x", None), task=f"t{len(history)}")
        assert len(seen) <= 8 + Counter(seen)["insert_blob"], seen


def test_a_turn_leaves_nothing_of_ours_to_the_collector(api: Api) -> None:
    """Calls that leave cycles behind make Python's collector go through the whole program's young objects, each
    time that a few hundred have gathered."""
    graph = react_graph(api.saver, ScriptedModel(script=lambda messages: AIMessage(f"{len(messages)}")))
    at: Any = {"configurable": {"thread_id": "t"}}
    for turn in range(2):
        api.invoke(graph, {"messages": [("user", f"{turn}")]}, at)
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        api.invoke(graph, {"messages": [("user", "2")]}, at)
        gc.collect()
        left = {type(each).__qualname__ for each in gc.garbage if type(each).__module__.startswith("agent_ckpt")}
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
    assert left == set()


def test_the_first_write_of_a_new_thread_looks_up_nothing(saver: AgentSaver) -> None:
    """A run that found its thread not stored doesn't ask for it again before it writes."""
    graph = react_graph(saver, ScriptedModel(script=["hello"]), [])
    with statements(saver) as seen:
        graph.invoke({"messages": [HumanMessage("hi")]}, {"configurable": {"thread_id": "new"}})
    assert "insert_thread" in seen
    assert "thread_row" not in seen


@pytest.mark.parametrize("warm", [True, False], ids=["warm", "cold"])
def test_statements_of_a_get_tuple_and_a_page(
    warm: bool, api: Api, saver: AgentSaver, open_saver: Any, form: str
) -> None:
    """get_tuple and a page of list make the same few calls for 5 messages and 3,000, for 1 pending write and 30."""
    counts = []
    for thread_id, size, writes in (("small", 5, 1), ("large", 3000, 30)):
        thread = Thread(api, thread_id)
        for step in range(4):
            thread.put(messages=[message(i) for i in range(size)], step=step)
        for i in range(writes):
            thread.writes(("messages", [message(9000 + i)]), task=f"t{i}")
        reader = saver if warm else open_saver()
        if not warm:
            Api(reader, form).exists("nothing")
        with statements(reader) as got:
            Api(reader, form).get_tuple(plain(thread.config))
        with statements(reader) as listed:
            assert len(Api(reader, form).list(thread.at)) == 4
        counts.append((len(got), len(listed)))
    # Groups of groups take one more round each; a thread this long has one level more at most.
    assert counts[1][0] - counts[0][0] <= 2, counts
    assert counts[1][1] - counts[0][1] <= 2, counts
    assert max(counts)[0] <= 8, counts
    assert max(page for _, page in counts) <= 9, counts


def test_a_list_reads_page_by_page(api: Api, saver: AgentSaver) -> None:
    """B43: a listing of 100 checkpoints makes a few calls a page of 32, and a limit reads no more than it needs."""
    thread = Thread(api)
    for step in range(100):
        thread.put(step=step)
    with statements(saver) as seen:
        assert len(api.list(thread.at)) == 100
    pages = Counter(seen)["page_of_space"]
    assert pages == 4, Counter(seen)
    assert len(seen) <= 6 * pages, Counter(seen)
    with statements(saver) as seen:
        assert len(api.list(thread.at, limit=3)) == 3
    assert Counter(seen)["page_of_space"] == 1
