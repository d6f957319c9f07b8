"""Listings: filters with typed equality, before and limit, hostile names, odd metadata, pages with work in between."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypedDict
from uuid import UUID, uuid4

import pytest
from langchain_core.messages import AIMessage
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph

from agent_ckpt import AgentSaver, UsageError, ValueNotStorableError
from tests.conftest import Api
from tests.looking import dump, seen, thread

ABSENT = object()
VALUES: Sequence[Any] = (
    True,
    False,
    1,
    0,
    1.0,
    2.5,
    "1",
    "",
    None,
    ABSENT,
    ["é", 1],
    ["é", True],
    [],
    {"b": 1, "a": 2},
    {"b": 1, "a": None},
    {},
    "naïve 🙂",
    2**60 + 1,
    float(2**60),
    -0.0,
)


def store(api: Api, thread_id: str, metadata: Sequence[dict[str, Any]], ns: str = "") -> list[str]:
    """A chain of checkpoints, one for each metadata; their ids, oldest first."""
    ids: list[str] = []
    config = thread(thread_id, checkpoint_ns=ns)
    for number, extra in enumerate(metadata):
        checkpoint = empty_checkpoint()
        checkpoint["channel_values"], checkpoint["channel_versions"] = {"n": number}, {"n": number + 1}
        full = {"source": "loop", "step": number, "parents": {}, **extra}
        config = api.put(config, checkpoint, full, {"n": number + 1})
        config = {"configurable": {**config["configurable"], "thread_id": thread_id}}
        ids.append(checkpoint["id"])
    return ids


def listed(api: Api, config: Any, **options: Any) -> list[str]:
    """The ids that a listing gives."""
    return [item.config["configurable"]["checkpoint_id"] for item in api.list(config, **options)]


def same(stored: Any, wanted: Any) -> bool:
    """Typed equality, spelled out apart from the code under test."""
    if stored is ABSENT or wanted is ABSENT:
        return False
    if isinstance(stored, bool) is not isinstance(wanted, bool):
        return False
    if isinstance(stored, list) and isinstance(wanted, list):
        return len(stored) == len(wanted) and all(same(a, b) for a, b in zip(stored, wanted, strict=True))
    if isinstance(stored, dict) and isinstance(wanted, dict):
        return set(stored) == set(wanted) and all(same(stored[key], wanted[key]) for key in stored)
    return bool(stored == wanted)


# Filters


def test_filters_know_types(api: Api) -> None:
    """B23: True is not 1, 1 is 1.0, None is not absent, lists and dicts are compared deep, big integers exactly."""
    ids = store(api, "t", [{} if value is ABSENT else {"f": value} for value in VALUES])
    for value in VALUES:
        if value is ABSENT:
            continue
        wanted = dict(reversed(value.items())) if isinstance(value, dict) else value
        expected = [i for i, stored in zip(ids, VALUES, strict=True) if same(stored, value)]
        assert listed(api, thread("t"), filter={"f": wanted}) == expected[::-1], value
        assert listed(api, None, filter={"f": wanted, "source": "loop"}) == expected[::-1], value
    assert listed(api, thread("t"), filter={"f": True}) == [ids[0]]
    assert listed(api, thread("t"), filter={"f": 1}) == [ids[4], ids[2]]
    assert listed(api, thread("t"), filter={"f": None}) == [ids[8]]
    assert listed(api, thread("t"), filter={"missing": None}) == []
    assert listed(api, thread("t"), filter={}) == ids[::-1]
    assert listed(api, thread("t"), filter={"f": "1", "step": 6}) == [ids[6]]
    assert listed(api, thread("t"), filter={"f": "1", "step": 7}) == []


def test_filters_agree_with_memory(api: Api) -> None:
    """B23: apart from True against 1 and None against absent, a filter finds what InMemorySaver's finds."""
    memory = Api(InMemorySaver(), api.form)
    values = [value for value in VALUES if value is not ABSENT and not isinstance(value, bool)]
    values.remove(["é", True])
    metadata = [{"f": value, "g": index % 3} for index, value in enumerate(values)]
    for one in (api, memory):
        store(one, "t", metadata)
    for value in values:
        if value is None:
            continue
        for wanted in ({"f": value}, {"f": value, "g": 1}, {"g": 2}):
            ours = [item.metadata["step"] for item in api.list(thread("t"), filter=wanted)]
            assert ours == [item.metadata["step"] for item in memory.list(thread("t"), filter=wanted)], wanted


HOSTILE = [
    "x') OR '1'='1",
    'x" OR 1=1 --',
    "a'; DROP TABLE checkpoints; --",
    "$.source",
    "source') = 'loop' OR json_extract(x, '$.y",
    "nul\x00in the middle",
    "k" * 10_000,
    "%",
    "_",
    "?1",
    ":x",
    "\u202e\x1b[31m",
    "",
]


def test_hostile_filters_find_nothing(api: Api) -> None:
    """B14: no filter key or value reaches SQL as text: each finds nothing, or exactly the row that holds it."""
    ids = store(api, "victim", [{"secret": "s"}])
    for text in HOSTILE:
        nested = {text: {text: [text]}}
        for wanted in ({text: "loop"}, {text: text}, {"source": text}, {"source": {text: text}}, nested):
            assert listed(api, None, filter=wanted) == []
            assert listed(api, thread("victim"), filter=wanted) == []
    own = store(api, "own", [{text: text, "nested": {text: [text]}} for text in HOSTILE if "\x00" not in text])
    for number, text in enumerate(text for text in HOSTILE if "\x00" not in text):
        assert listed(api, None, filter={text: text}) == [own[number]]
        assert listed(api, None, filter={"nested": {text: [text]}}) == [own[number]]
    assert listed(api, thread("victim")) == ids


def test_hostile_ids_and_namespaces(api: Api, path: Path) -> None:
    """B14, B25: thread ids, namespaces and checkpoint ids are data: each names itself and nothing else."""
    ids = store(api, "victim", [{}, {}])
    names = [text for text in HOSTILE if text]
    for text in names:
        assert listed(api, thread(text)) == []
        assert listed(api, thread("victim", checkpoint_ns=text)) == []
        assert listed(api, thread("victim", checkpoint_id=text)) == []
        assert api.get_tuple(thread("victim", checkpoint_ns=text, checkpoint_id=ids[0])) is None
        assert api.get_tuple(thread("victim", checkpoint_id=text)) is None
        api.delete_thread(text)
        api.delete_for_runs([text])
    for text in names:
        stored = store(api, text, [{}, {}], ns=text)
        assert listed(api, thread(text)) == listed(api, thread(text, checkpoint_ns=text)) == stored[::-1]
        checkpoint = {**empty_checkpoint(), "id": text}
        config = api.put(thread(text, checkpoint_ns="odd"), checkpoint, {"source": "loop"}, {})
        api.put_writes(config, [(text, text)], text, text)
        assert api.get_tuple(thread(text, checkpoint_ns="odd")).pending_writes == [(text, text, text)]
        assert listed(api, thread(text, checkpoint_id=text)) == [text]
    assert {info.thread_id for info in api.saver.threads()} == {"victim", *names}
    for text in names:
        api.delete_thread(text)
    assert listed(api, None) == ids[::-1]


# before, limit, namespaces


def test_before_and_limit(api: Api) -> None:
    """before is commit order; limit bounds what is given, filtered or not; 0 gives nothing."""
    ids = store(api, "t", [{"even": number % 2 == 0} for number in range(90)])
    newest = ids[::-1]
    for at in (0, 1, 31, 32, 33, 64, 89):
        before = thread("t", checkpoint_id=ids[at])
        assert listed(api, thread("t"), before=before) == ids[:at][::-1]
        assert listed(api, thread("t", checkpoint_ns=""), before=before) == ids[:at][::-1]
        for limit in (0, 1, 31, 32, 33, 200):
            assert listed(api, thread("t"), before=before, limit=limit) == ids[:at][::-1][:limit]
    for limit in (0, 1, 31, 32, 33, 89, 90, 91):
        assert listed(api, thread("t"), limit=limit) == newest[:limit]
        assert listed(api, None, limit=limit) == newest[:limit]
        assert listed(api, thread("t"), filter={"even": True}, limit=limit) == newest[1::2][:limit]
    assert listed(api, thread("t", checkpoint_id=ids[40])) == [ids[40]]
    assert listed(api, thread("t", checkpoint_id=ids[40]), limit=5) == [ids[40]]
    assert listed(api, thread("missing")) == []
    assert listed(api, thread("t", checkpoint_ns="missing")) == []


def test_order_is_that_of_commits(api: Api) -> None:
    """B26 (a): ids that don't rise: the head, the list and `before` follow the commits."""
    config = thread("t", checkpoint_ns="")
    for name in ("z-first", "a-second", "m-third"):
        config = api.put(config, {**empty_checkpoint(), "id": name}, {"source": "loop"}, {})
    assert listed(api, thread("t")) == ["m-third", "a-second", "z-first"]
    assert listed(api, thread("t"), before=thread("t", checkpoint_id="a-second")) == ["z-first"]
    assert api.get_tuple(thread("t")).checkpoint["id"] == "m-third"


def test_unknown_before(api: Api) -> None:
    """An id that isn't stored bounds by the order of the ids, as the docstring says."""
    ids = store(api, "t", [{} for _ in range(5)])
    assert listed(api, thread("t"), before=thread("t", checkpoint_id="00000000")) == []
    assert listed(api, thread("t"), before=thread("t", checkpoint_id="ffffffff")) == ids[::-1]
    assert listed(api, None, before=thread("t", checkpoint_id="ffffffff"), limit=2) == ids[::-1][:2]


@pytest.mark.parametrize("limit", [-1, -100, True, 1.5, "3"])
def test_bad_limits(api: Api, limit: Any) -> None:
    """A negative limit, and one that is no whole number, are refused rather than taken for no limit."""
    store(api, "t", [{}])
    with pytest.raises(UsageError, match="limit"):
        api.list(thread("t"), limit=limit)


def test_bad_configs(api: Api) -> None:
    """A config without a usable thread_id is refused; only None means every thread."""
    for config in ({}, {"configurable": {}}, thread(""), {"configurable": {"thread_id": None}}, thread(1.5)):
        with pytest.raises(UsageError, match="thread_id"):
            api.list(config)
    with pytest.raises(UsageError, match="checkpoint_ns"):
        api.list(thread("t", checkpoint_ns=7))


def test_across_namespaces_and_threads(api: Api) -> None:
    """A config without a namespace lists all of the thread's, one with it only that; None lists all threads."""
    wanted: dict[tuple[str, str], list[str]] = {}
    for thread_id in ("a", "b"):
        for ns in ("", "x", "x|y:1"):
            wanted[thread_id, ns] = store(api, thread_id, [{} for _ in range(3)], ns)
    for (thread_id, ns), ids in wanted.items():
        assert listed(api, thread(thread_id, checkpoint_ns=ns)) == ids[::-1]
    for thread_id in ("a", "b"):
        own = [i for (t, _), ids in wanted.items() if t == thread_id for i in ids]
        assert listed(api, thread(thread_id)) == own[::-1]
        assert listed(api, thread(thread_id), limit=4) == own[::-1][:4]
    every = [i for ids in wanted.values() for i in ids]
    assert listed(api, None) == every[::-1]
    assert listed(api, None, limit=7) == every[::-1][:7]


# Odd metadata


ODD = {
    "messages": {"writes": {"a": {"messages": [AIMessage("hi", id="m")]}}},
    "uuid": {"user": UUID(int=7)},
    "datetime": {"at": datetime(2026, 1, 2, tzinfo=UTC)},
    "nested nul": {"k": {"x": "a\x00b"}},
    "nan": {"score": math.nan},
    "infinity": {"score": -math.inf},
    "surrogate": {"text": "a\ud800"},
    "set": {"tags": {"a", "b"}},
    "bytes": {"raw": b"\x00\xff"},
    "big": {"n": 2**63},
    "tuple": {"pair": (1, (2, 3))},
    "deep": {"d": [[[[[[[[{"x": [1]}]]]]]]]]},
}


def plain_lists(value: Any) -> Any:
    """The value with a list for each tuple."""
    if isinstance(value, dict):
        return {key: plain_lists(item) for key, item in value.items()}
    return [plain_lists(item) for item in value] if isinstance(value, (list, tuple)) else value


@pytest.mark.parametrize("name", ODD)
def test_odd_metadata_breaks_no_listing(api: Api, name: str) -> None:
    """B24: put takes odd metadata; every listing of the store goes on working and the row comes back whole."""
    plain = store(api, "plain", [{}, {}])
    odd = store(api, "odd", [ODD[name]])
    memory = Api(InMemorySaver(), api.form)
    assert listed(api, None, filter={"source": "loop"}) == [*odd, *plain[::-1]]
    assert listed(api, thread("odd"), filter={"step": 0}) == odd
    assert listed(api, None, filter={"score": 1, "text": "x", "k": {}}) == []
    assert api.get_tuple(thread("odd")).checkpoint["id"] == odd[0]
    got = api.get_tuple(thread("odd")).metadata
    assert got["source"] == "loop"
    if name not in ("surrogate", "nan"):
        store(memory, "odd", [ODD[name]])
        # InMemorySaver's serializer makes lists of tuples.
        assert plain_lists(got) == memory.get_tuple(thread("odd")).metadata
    if name == "nan":
        assert math.isnan(got["score"])
    for key, value in ODD[name].items():
        if name not in ("nan", "surrogate"):
            assert listed(api, None, filter={key: value}) == odd


def test_odd_metadata_in_a_run(api: Api) -> None:
    """B24: a UUID given as a run's metadata is kept and can be filtered for; so is its text form if that is stored."""

    class State(TypedDict):
        n: int

    builder = StateGraph(State)
    builder.add_node("one", lambda state: {"n": state["n"] + 1})
    builder.add_edge(START, "one")
    graph, user = builder.compile(checkpointer=api.saver), uuid4()
    config = {**thread("t"), "metadata": {"user": user, "tags": ["a"], "plain": "p"}}
    api.invoke(graph, {"n": 1}, config)
    assert api.get_state(graph, thread("t")).values == {"n": 2}
    assert len(listed(api, None, filter={"plain": "p"})) == 3
    kept = api.get_tuple(thread("t")).metadata
    assert (kept["user"], kept["tags"]) == (user, ["a"])
    for wanted in ({"user": user}, {"user": str(user)}, {"tags": ["a"]}):
        assert len(listed(api, None, filter=wanted)) == 3


@pytest.mark.parametrize("text", ["\x00", "a\x00b", "\u202e", "\U0001f642", "\ufffd"])
def test_odd_text_in_state(api: Api, text: str) -> None:
    """B24: state text with NUL and other odd characters comes back as it was, as value, item and key."""
    checkpoint = empty_checkpoint()
    checkpoint["channel_values"] = {"x": text, "list": [text, 1], "dict": {text: text}, "long": [f"{text}{'y' * 9000}"]}
    checkpoint["channel_versions"] = dict.fromkeys(checkpoint["channel_values"], 1)
    api.put(thread("t", checkpoint_ns=""), checkpoint, {"source": "loop"}, checkpoint["channel_versions"])
    assert api.get_tuple(thread("t")).checkpoint["channel_values"] == checkpoint["channel_values"]


def test_lone_surrogates_in_state_break_nothing(api: Api) -> None:
    """B24: a lone surrogate in a value or a key is stored, or refused by a typed error; other rows are as they were."""
    ids = store(api, "plain", [{}])
    for number, value in enumerate(("a\ud800", ["\udcff" * 300], {"k\ud800": 1}, {"k\ud800": AIMessage("x" * 2000)})):
        checkpoint = empty_checkpoint()
        checkpoint["channel_values"], checkpoint["channel_versions"] = {"x": value}, {"x": 1}
        try:
            api.put(thread(f"t{number}", checkpoint_ns=""), checkpoint, {"source": "loop"}, {"x": 1})
        except ValueNotStorableError as exc:
            assert exc.path.startswith("channel_values.x")
        else:
            assert type(api.get_tuple(thread(f"t{number}")).checkpoint["channel_values"]["x"]) is type(value)
    assert listed(api, None)[-1:] == ids
    assert len(listed(api, None, filter={"source": "loop"})) == 1 + sum(api.exists(f"t{n}") for n in range(4))


# Pages with work in between


COUNT = 230


def test_work_inside_the_loop(saver: AgentSaver) -> None:
    """B43: get_tuple, put_writes, put and another listing work inside a listing's loop, which isn't disturbed."""
    api = Api(saver, "sync")
    ids = store(api, "t", [{} for _ in range(COUNT)])
    found = []
    for number, item in enumerate(saver.list(thread("t"))):
        found.append(item.config["configurable"]["checkpoint_id"])
        got = saver.get_tuple(item.config)
        assert got is not None
        assert seen(got)[:5] == seen(item)[:5]
        if number % 20 == 0:
            saver.put_writes(item.config, [("seen", number)], f"task {number}")
            saver.put(thread("beside", checkpoint_ns=""), empty_checkpoint(), {"source": "loop"}, {})
            assert len(listed(api, thread("t"), limit=3)) == 3
    assert found == ids[::-1]
    again = {item.config["configurable"]["checkpoint_id"]: item.pending_writes for item in saver.list(thread("t"))}
    assert {i: writes for i, writes in again.items() if writes} == {
        ids[::-1][number]: [(f"task {number}", "seen", number)] for number in range(0, COUNT, 20)
    }


def test_work_inside_the_async_loop(saver: AgentSaver) -> None:
    """B43, async: the same inside `async for`, with several listings under way at once."""
    ids = store(Api(saver, "async"), "t", [{} for _ in range(COUNT)])

    async def walk(name: str) -> list[str]:
        found = []
        async for item in saver.alist(thread("t")):
            found.append(item.config["configurable"]["checkpoint_id"])
            if len(found) % 40 == 1:
                got = await saver.aget_tuple(item.config)
                assert got is not None
                await saver.aput_writes(item.config, [("seen", name)], name)
                saver.put(thread(name, checkpoint_ns=""), empty_checkpoint(), {"source": "loop"}, {})
        return found

    async def main() -> list[list[str]]:
        async with asyncio.timeout(60):
            return await asyncio.gather(*(walk(f"walker {number}") for number in range(4)))

    assert asyncio.run(main()) == [ids[::-1]] * 4


@pytest.mark.parametrize("how", ["delete_thread", "prune", "delete_for_runs", "put"])
def test_changes_between_pages(saver: AgentSaver, form: str, how: str) -> None:
    """Deletions, prunes and puts between two pages: what is listed was stored, in order, once; nothing new appears."""
    api = Api(saver, form)
    ids = store(api, "t", [{"run_id": "gone" if number < 100 else "kept"} for number in range(COUNT)])
    store(api, "other", [{}])

    def change() -> None:
        if how == "delete_thread":
            saver.delete_thread("t")
        elif how == "prune":
            saver.prune(["t"])
        elif how == "delete_for_runs":
            saver.delete_for_runs(["gone"])
        else:
            store(Api(saver, "sync"), "t2", [{} for _ in range(40)])
            saver.put(thread("t", checkpoint_ns="", checkpoint_id=ids[-1]), empty_checkpoint(), {"source": "loop"}, {})

    def walk() -> list[str]:
        found = []
        for item in saver.list(thread("t")):
            found.append(item.config["configurable"]["checkpoint_id"])
            if len(found) == 40:
                change()
        return found

    async def awalk() -> list[str]:
        found = []
        async for item in saver.alist(thread("t")):
            found.append(item.config["configurable"]["checkpoint_id"])
            if len(found) == 40:
                change()
        return found

    found = walk() if form == "sync" else asyncio.run(awalk())
    assert found == ids[::-1][: len(found)]
    assert 40 <= len(found) < 40 + 32 if how in ("delete_thread", "prune") else len(found) >= COUNT - 100
    assert len(found) == COUNT or how != "put"
    assert len(dump(api, "other")) == 1


def test_half_read_listings_hold_nothing(saver: AgentSaver, path: Path) -> None:
    """B43: with iterators left half-read, another saver writes, prunes and folds the WAL away."""
    ids = store(Api(saver, "sync"), "t", [{} for _ in range(COUNT)])
    left = [saver.list(thread("t")) for _ in range(5)]
    for each in left:
        assert next(each).config["configurable"]["checkpoint_id"] == ids[-1]
    with AgentSaver(path) as other:
        for number in range(60):
            checkpoint = empty_checkpoint()
            checkpoint["channel_values"] = {"x": str(number) * 40_000}
            checkpoint["channel_versions"] = {"x": 1}
            other.put(thread(f"beside {number}", checkpoint_ns=""), checkpoint, {"source": "loop"}, {"x": 1})
        other.delete_thread("t")
    assert len(list(left[0])) < 32
    wal = Path(f"{path}-wal")
    assert not wal.exists() or wal.stat().st_size < 8 << 20
