"""`transfer` and `atransfer`: threads of any checkpointer come into an AgentSaver as they are, or not at all."""

from __future__ import annotations

import asyncio
import pickle
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, ExitStack, closing
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy
import pytest
from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.types import Command
from pydantic import BaseModel

from agent_ckpt import (
    AgentSaver,
    CkptError,
    CorruptionError,
    ThreadConflictError,
    TransferError,
    TransferProgress,
    TransferReport,
    UsageError,
    ValueNotStorableError,
    atransfer,
    transfer,
)
from agent_ckpt.same import same
from tests import agents
from tests import official_graphs as graphs
from tests.conftest import Api, assert_sound
from tests.test_import import listing, seen, typed
from tests.threads import checkpoint_of

THREADS = (graphs.FINISHED, graphs.OPEN, graphs.FANNED)


def bring(form: str, source: Any, target: AgentSaver, **options: Any) -> TransferReport:
    """Transfer in the form under test."""
    if form == "sync":
        return transfer(source, target, **options)
    return asyncio.run(atransfer(source, target, **options))


class Plain(BaseCheckpointSaver[Any]):
    """A saver of somebody's own: it keeps objects, and tells of pending writes only their order, as put."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = InMemorySaver()
        self.limits: list[int | None] = []

    def get_next_version(self, current: Any, channel: None) -> Any:
        return self.inner.get_next_version(current, channel)

    def get_tuple(self, config: Any) -> CheckpointTuple | None:
        return self.inner.get_tuple(config)

    def list(self, config: Any, *, filter: Any = None, before: Any = None, limit: int | None = None) -> Iterator[Any]:
        """Newest first by id over all namespaces, as database savers do."""
        self.limits.append(limit)
        found = sorted(self.inner.list(config, filter=filter, before=before), key=lambda x: x.checkpoint["id"])
        return iter(found[::-1][:limit])

    def put(self, *args: Any) -> Any:
        return self.inner.put(*args)

    def put_writes(self, *args: Any) -> None:
        self.inner.put_writes(*args)

    async def aget_tuple(self, config: Any) -> CheckpointTuple | None:
        return self.get_tuple(config)

    async def alist(self, config: Any, **options: Any) -> AsyncIterator[Any]:
        for item in self.list(config, **options):
            yield item


class Fetching(Plain):
    """One that fetches each listing whole, as PostgresSaver does."""


Fetching.__module__ = "langgraph.checkpoint.postgres"


@pytest.fixture(params=["memory", "sqlite", "agent", "plain", "fetching"])
def source(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    """A saver of each kind, with a finished thread, one with an open interrupt, and one with a fork."""
    with ExitStack() as stack:
        saver: Any
        if request.param == "sqlite":
            connection = stack.enter_context(closing(sqlite3.connect(tmp_path / "s.sqlite", check_same_thread=False)))
            saver = SqliteSaver(connection)
        elif request.param == "agent":
            saver = stack.enter_context(AgentSaver(tmp_path / "source.db"))
        else:
            saver = {"memory": InMemorySaver, "plain": Plain, "fetching": Fetching}[request.param]()
        graphs.run_threads(saver)
        yield saver


def test_threads_of_any_saver_come_in_whole(source: Any, form: str, path: Path) -> None:
    """In both forms and from each kind of saver: what the target gives equals what the source gives, checkpoint for
    checkpoint in its order, in every namespace; and the source gives the same afterwards."""
    if form == "async" and isinstance(source, SqliteSaver):
        with pytest.raises(NotImplementedError), AgentSaver(path) as saver:
            bring(form, source, saver)
        return
    before = {thread_id: listing(source, thread_id) for thread_id in THREADS}
    with AgentSaver(path) as saver:
        report = bring(form, source, saver)
        assert (report.threads, report.already_there) == (3, 0)
        assert report.checkpoints == sum(map(len, before.values()))
    assert_sound(path)
    with AgentSaver(path) as saver:
        for thread_id in THREADS:
            namespaces = {item.config["configurable"]["checkpoint_ns"] for item in saver.list(graphs.config(thread_id))}
            for ns in namespaces:
                assert listing(saver, thread_id, ns) == listing(source, thread_id, ns)
                head = {"configurable": {"thread_id": thread_id, "checkpoint_ns": ns}}
                assert seen(saver.get_tuple(head)) == seen(source.get_tuple(head))
        for thread_id in THREADS:
            assert listing(source, thread_id) == before[thread_id]
            if not isinstance(source, InMemorySaver):  # which lists one namespace after another
                assert listing(saver, thread_id) == before[thread_id]
        answer = Api(saver, form).invoke(graphs.build(saver), Command(resume="no"), graphs.config(graphs.OPEN))
        assert answer == graphs.build(source).invoke(Command(resume="no"), graphs.config(graphs.OPEN))
        again = bring(form, source, saver, threads=[graphs.FINISHED])
        assert (again.already_there, again.threads) == (1, 1)
        with pytest.raises(TransferError, match="exists in the target already") as left_out:
            bring(form, source, saver)
        assert list(left_out.value.refused) == [graphs.OPEN]
        assert (left_out.value.threads, left_out.value.already_there) == (2, 2)


async def test_an_async_saver_is_read_by_its_async_methods(tmp_path: Path, path: Path) -> None:
    """AsyncSqliteSaver, which has no sync form on its own loop, is transferred by `atransfer`."""
    async with AsyncExitStack() as stack:
        source = await stack.enter_async_context(AsyncSqliteSaver.from_conn_string(str(tmp_path / "a.sqlite")))
        saver = await stack.enter_async_context(AgentSaver(path))
        graph = graphs.build(source)
        await graph.ainvoke({"log": ["start"]}, graphs.config("t"))
        report = await atransfer(source, saver)
        items = [seen(item) async for item in source.alist(graphs.config("t"))]
        assert [seen(item) async for item in saver.alist(graphs.config("t"))] == items
        assert report.checkpoints == len(items) > 3
    assert_sound(path)


def test_a_source_that_fetches_listings_whole_is_paged(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread of such a source is never listed without a limit, and nothing is lost where two namespaces share the
    ids at which pages end."""
    monkeypatch.setattr("agent_ckpt.sources._PAGE", 3)
    source = Fetching()
    for number in range(1, 12):
        for ns in ("", "a", "b", "c")[: 1 + number % 4]:
            put(source, "t", ns, f"{number:04}", f"{number - 1:04}" if number > 1 else None, {"n": number})
    with AgentSaver(path) as saver:
        source.limits.clear()
        report = transfer(source, saver, threads=["t"])
        assert None not in source.limits
        assert report.checkpoints == len(listing(source, "t")) == len(listing(saver, "t"))
        for ns in ("", "a", "b", "c"):
            assert listing(saver, "t", ns) == listing(source, "t", ns)
    assert_sound(path)


def put(saver: Any, thread_id: str, ns: str, checkpoint_id: str, parent: str | None, values: dict[str, Any]) -> Any:
    config = {"configurable": {"thread_id": thread_id, "checkpoint_ns": ns, "checkpoint_id": parent}}
    checkpoint = {**checkpoint_of(values, dict.fromkeys(values, 1)), "id": checkpoint_id}
    return saver.put(config, checkpoint, {"source": "loop", "step": 1}, dict.fromkeys(values, 1))


# Order


@pytest.mark.parametrize("kind", [InMemorySaver, Plain, SqliteSaver])
def test_pending_writes_keep_order_tasks_and_special_writes(kind: Any, form: str, path: Path) -> None:
    """Writes of tasks whose paths and ids sort in different ways, an interrupt, an error and a resume: they come back
    in the source's order, and a write that the run stores again is still known."""
    connection = sqlite3.connect(":memory:", check_same_thread=False)
    source = kind(connection) if kind is SqliteSaver else kind()
    at = put(source, "t", "", "0001", None, {"a": 1})
    source.put_writes(at, [("a", 1), ("b", (2,))], "task-z", "~pull, 1")
    source.put_writes(at, [("a", 3)], "task-a", "~pull, 2")
    source.put_writes(at, [("__interrupt__", [{"q": 1}])], "task-z", "~pull, 1")
    source.put_writes(at, [("__error__", "boom"), ("c", 4)], "task-m", "~pull, 0")
    source.put_writes(at, [("__resume__", ["yes"])], "00000000-0000-0000-0000-000000000000", "")
    with closing(connection), AgentSaver(path) as saver:
        transfer(source, saver)
        found, theirs = saver.get_tuple(at), source.get_tuple(at)
        assert found is not None
        assert typed(found.pending_writes) == typed(theirs.pending_writes)
        saver.put_writes(at, [("a", "changed"), ("b", (2,))], "task-z", "~pull, 1")
        again = saver.get_tuple(at)
        assert again is not None
        assert typed(again.pending_writes) == typed(theirs.pending_writes)
    assert_sound(path)


def test_a_child_with_an_id_below_its_parents_comes_after_it(path: Path) -> None:
    """Where clocks disagreed, parents are committed before their children all the same, so that a DeltaChannel's
    history reaches them; the last child is the head."""
    source = InMemorySaver()
    put(source, "t", "", "0009", None, {"n": 1})
    put(source, "t", "", "0005", "0009", {"n": 2})
    put(source, "t", "", "0003", "0005", {"n": 3})
    with AgentSaver(path) as saver:
        transfer(source, saver)
        assert [item.checkpoint["id"] for item in saver.list(graphs.config("t"))] == ["0003", "0005", "0009"]
    assert_sound(path)


@pytest.mark.parametrize(("kind", "pruned"), [("memory", False), ("sqlite", False), ("agent", False), ("agent", True)])
def test_delta_channels_are_rebuilt_from_what_came_in(kind: str, pruned: bool, tmp_path: Path, path: Path) -> None:
    """A thread of DeltaChannels, with a fork, and from an AgentSaver also pruned: state at every checkpoint is the
    source's, and the next turn builds on it."""
    with ExitStack() as stack:
        connection = stack.enter_context(closing(sqlite3.connect(":memory:", check_same_thread=False)))
        made: dict[str, Callable[[], Any]] = {
            "memory": InMemorySaver,
            "sqlite": lambda: SqliteSaver(connection),
            "agent": lambda: stack.enter_context(AgentSaver(tmp_path / "source.db")),
        }
        source = made[kind]()
        graph = agents.delta_graph(source)
        for turn in range(7):
            graph.invoke({"messages": [agents.AIMessage(f"turn {turn}")]}, graphs.config("d"))
        older = list(graph.get_state_history(graphs.config("d")))[5].config
        graph.invoke({"messages": [agents.AIMessage("forked")]}, older)
        if pruned:
            source.prune(["d"])
        saver = stack.enter_context(AgentSaver(path))
        transfer(source, saver)
        ours = agents.delta_graph(saver)
        states = [typed(state.values) for state in graph.get_state_history(graphs.config("d"))]
        assert [typed(state.values) for state in ours.get_state_history(graphs.config("d"))] == states
        assert len(states) == (1 if pruned else len(listing(source, "d")))
        given = {"messages": [agents.AIMessage("next", id="next")]}
        assert len(ours.invoke(given, graphs.config("d"))["messages"]) == len(
            graph.invoke(given, graphs.config("d"))["messages"]
        )
    assert_sound(path)


# Refusals


def test_a_thread_with_other_content_is_left_alone_and_the_others_come_in(path: Path, form: str) -> None:
    """A target thread that went on, or holds other values under the same ids, is refused by name and stays what it is;
    the threads before and after it come in."""
    source = InMemorySaver()
    for thread_id in ("a", "b", "c"):
        put(source, thread_id, "", "0001", None, {"n": 1})
    with AgentSaver(path) as saver:
        put(saver, "b", "", "0001", None, {"n": 2})
        before = listing(saver, "b")
        with pytest.raises(UsageError, match=r"'b' exists in the target already: .* other content: .*'n'"):
            bring(form, source, saver, threads=["b"])
        put(saver, "b", "", "0002", "0001", {"n": 3})
        with pytest.raises(TransferError, match=r"it has 2 checkpoints, the source's has 1") as left_out:
            bring(form, source, saver)
        error = pickle.loads(pickle.dumps(left_out.value))
        assert [(name, type(each)) for name, each in error.refused.items()] == [("b", UsageError)]
        assert (error.threads, error.checkpoints, error.already_there) == (2, 2, 0)
        assert listing(saver, "b")[1:] == before
        for thread_id in ("a", "c"):
            assert listing(saver, thread_id) == listing(source, thread_id)
        assert bring(form, source, saver, rename={"b": "d"}).already_there == 2
        assert listing(saver, "d") == listing(source, "b")
    assert_sound(path)


class Broken(InMemorySaver):
    """A saver of whose threads some can't be read."""

    broken: tuple[str, ...] = ()

    def get_tuple(self, config: Any) -> CheckpointTuple | None:
        if config["configurable"]["thread_id"] in self.broken:
            raise LookupError("a row that its serializer doesn't know")
        return super().get_tuple(config)

    async def aget_tuple(self, config: Any) -> CheckpointTuple | None:
        return self.get_tuple(config)


def test_threads_that_cannot_be_read_do_not_keep_the_others_away(path: Path, form: str) -> None:
    """The first thread and one in the middle can't be read: all others come in, the error has the source's own
    exception for each; where none can be read, no database is made."""
    source = Broken()
    for thread_id in ("a", "b", "c", "d"):
        put(source, thread_id, "", "0001", None, {"n": 1})
    source.broken = ("a", "b", "c", "d")
    with AgentSaver(path) as saver, pytest.raises(LookupError):
        bring(form, source, saver)
    assert not path.exists()
    source.broken = ("a", "c")
    with AgentSaver(path) as saver:
        with pytest.raises(TransferError, match=r"2 of 4 threads were not brought: '[ac]', '[ac]'\.") as left_out:
            bring(form, source, saver)
        assert {name: type(each) for name, each in left_out.value.refused.items()} == dict.fromkeys("ac", LookupError)
        assert "serializer" not in left_out.value.message
        assert [info.thread_id for info in saver.threads()] == ["b", "d"]
        with pytest.raises(LookupError):
            bring(form, source, saver, threads=["c"])
    assert_sound(path)


def test_what_a_callback_raises_ends_a_transfer(path: Path) -> None:
    """An exception of the progress callback comes through as it is, and no further thread is begun."""
    source = InMemorySaver()
    for thread_id in ("a", "b"):
        put(source, thread_id, "", "0001", None, {"n": 1})

    def fail(now: TransferProgress) -> None:
        raise CkptError(f"stop at {now.step}")

    with AgentSaver(path) as saver:
        with pytest.raises(CkptError, match=r"^stop at copying"):
            transfer(source, saver, progress=fail)
        (begun,) = saver.threads()
        assert begun.thread_id.startswith("\x01")
    assert_sound(path)


def test_a_thread_without_an_id_is_named_and_the_others_come_in(path: Path, form: str) -> None:
    """A source thread whose id is empty is refused by name, the others come in; under another id it comes in too."""
    source = InMemorySaver()
    for thread_id in ("", "b"):
        put(source, thread_id, "", "0001", None, {"n": 1})
    with AgentSaver(path) as saver:
        with pytest.raises(TransferError, match=r"thread '' can't keep its id") as left_out:
            bring(form, source, saver)
        assert list(left_out.value.refused) == [""]
        assert [info.thread_id for info in saver.threads()] == ["b"]
        assert bring(form, source, saver, threads=[""], rename={"": "a"}).checkpoints == 1
        assert [item[1] for item in listing(saver, "a")] == [item[1] for item in listing(source, "")]
    assert_sound(path)


def test_a_value_that_cannot_be_kept_is_named_and_its_thread_not_stored(path: Path) -> None:
    """The error names checkpoint and path; nothing of the thread is left, nor of the checkpoints before it."""

    class Holding(InMemorySaver):
        def get_tuple(self, config: Any) -> CheckpointTuple | None:
            found = super().get_tuple(config)
            assert found is not None
            if found.checkpoint["id"] == "0002":
                found.checkpoint["channel_values"]["bad"] = {"deep": [lambda: None]}
            return found

    source = Holding()
    for number in (1, 2):
        put(source, "t", "", f"000{number}", "0001" if number > 1 else None, {"good": 1, "bad": 1})
    with AgentSaver(path) as saver:
        with pytest.raises(ValueNotStorableError, match="'0002'") as refused:
            transfer(source, saver)
        assert refused.value.path == "channel_values.bad['deep'][0]"
        assert list(saver.threads()) == []
    assert_sound(path)


def test_what_reads_back_otherwise_is_not_brought(path: Path) -> None:
    """A source that changes between copying and comparing: CorruptionError names the difference, nothing is left."""

    class Restless(InMemorySaver):
        reads = 0

        def get_tuple(self, config: Any) -> CheckpointTuple | None:
            found = super().get_tuple(config)
            assert found is not None
            self.reads += 1
            found.checkpoint["channel_values"]["n"] = 1 if self.reads < 4 else True
            return found

    source = Restless()
    for number in (1, 2):
        put(source, "t", "", f"000{number}", "0001" if number > 1 else None, {"n": 1})
    with AgentSaver(path) as saver:
        with pytest.raises(CorruptionError, match=r"'0001' in namespace '': checkpoint\['channel_values'\]\['n'\]"):
            transfer(source, saver)
        assert list(saver.threads()) == []
    assert_sound(path)


def test_two_transfers_of_one_thread_make_one(path: Path) -> None:
    """A second transfer overtakes the first in mid-thread: the first is told, and the thread is there once, whole."""
    source = InMemorySaver()
    for number in range(1, 8):
        put(source, "t", "", f"000{number}", f"000{number - 1}" if number > 1 else None, {"n": number})
    with AgentSaver(path) as saver, AgentSaver(path) as other:
        reports = []

        def overtake(now: TransferProgress) -> None:
            if now.done == 3 and not reports:
                reports.append(None)
                reports[0] = transfer(source, other)

        with pytest.raises(ThreadConflictError, match="overtaken"):
            transfer(source, saver, progress=overtake)
        assert reports[0] is not None
        assert listing(saver, "t") == listing(source, "t")
        assert len(list(saver.threads())) == 1
    assert_sound(path)


def test_calls_that_can_not_be_right(path: Path) -> None:
    """Unknown threads and renames, two threads for one id, a single text, the wrong target: typed, before any store."""
    source = InMemorySaver()
    for thread_id in ("a", "b"):
        put(source, thread_id, "", "0001", None, {"n": 1})
    with AgentSaver(path) as saver:
        wrong: list[tuple[Any, dict[str, Any]]] = [
            (source, {"threads": ["zz"]}),
            (source, {"threads": "ab"}),
            (source, {"rename": {"zz": "y"}}),
            (source, {"rename": {"a": "b"}}),
            (source, {"rename": {"a": ""}}),
            (saver, {}),
        ]
        for given, options in wrong:
            with pytest.raises(UsageError):
                transfer(given, saver, **options)
        with pytest.raises(UsageError, match="goes into an AgentSaver"):
            transfer(source, source)  # type: ignore[arg-type]
        assert list(saver.threads()) == []
        assert transfer(InMemorySaver(), saver).threads == 0


def test_progress_is_told_step_by_step(path: Path) -> None:
    """Copying, then comparing, each checkpoint counted; an exception from the callback ends the transfer, and the
    next one goes on."""
    source = InMemorySaver()
    for number in (1, 2, 3):
        put(source, "t", "", f"000{number}", f"000{number - 1}" if number > 1 else None, {"n": number})

    def stop(now: TransferProgress) -> None:
        if now.done == 2:
            raise KeyboardInterrupt

    told: list[TransferProgress] = []
    with AgentSaver(path) as saver:
        with pytest.raises(KeyboardInterrupt):
            transfer(source, saver, progress=stop)
        assert not saver.exists("t")
        transfer(source, saver, progress=told.append)
    steps = [(now.step, now.done) for now in told]
    assert steps == [("copying", 3), ("comparing", 1), ("comparing", 2), ("comparing", 3)]
    assert {(now.thread_id, now.thread, now.threads, now.total) for now in told} == {("t", 1, 1, 3)}
    assert_sound(path)


def test_metadata_of_every_kind_comes_in(path: Path) -> None:
    """B24: messages, UUIDs, times, NaN and NUL in the metadata of a source don't stop a transfer, and come back."""
    source = InMemorySaver()
    metadata = {
        "source": "loop",
        "writes": {"a": {"messages": [agents.AIMessage("hi", id="m")]}},
        "user": graphs.UUID(int=3),
        "at": graphs.datetime(2026, 1, 2, tzinfo=graphs.UTC),
        "odd": [float("nan"), "a\0b", None, True],
    }
    config = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}
    source.put(config, checkpoint_of({"n": 1}, {"n": 1}), metadata, {"n": 1})  # type: ignore[arg-type]
    with AgentSaver(path) as saver:
        transfer(source, saver)
        found = saver.get_tuple(graphs.config("t"))
        assert found is not None
        assert repr(typed(found.metadata)) == repr(typed(source.get_tuple(config).metadata))  # type: ignore[union-attr]
        assert len(list(saver.list(None, filter={"source": "loop"}))) == 1
    assert_sound(path)


def test_errors_of_the_source_come_through(path: Path) -> None:
    """A checkpoint that is listed and then gone is a typed error that names it."""

    class Forgetful(InMemorySaver):
        def get_tuple(self, config: Any) -> CheckpointTuple | None:
            return None

    source = Forgetful()
    put(source, "t", "", "0001", None, {"n": 1})
    with AgentSaver(path) as saver, pytest.raises(CkptError, match="lists checkpoint '0001'"):
        transfer(source, saver)


def test_a_leased_id_is_not_taken(tmp_path: Path, path: Path) -> None:
    """While somebody holds the lease of a thread_id, neither a transfer nor an import brings a thread under it; the
    transfer goes on when the lease is released."""
    source = InMemorySaver()
    put(source, "t", "", "0001", None, {"n": 1})
    with AgentSaver(path) as saver, AgentSaver(path) as other:
        with other.lease("t"):
            with pytest.raises(ThreadConflictError):
                transfer(source, saver)
            assert not saver.exists("t")
        assert transfer(source, saver).threads == 1
        saver.export_thread("t", tmp_path / "t.ackpt")
        with other.lease("u"), pytest.raises(ThreadConflictError):
            saver.import_thread(tmp_path / "t.ackpt", thread_id="u")
        assert saver.import_thread(tmp_path / "t.ackpt", thread_id="u").checkpoints == 1
    assert_sound(path)


@dataclass(frozen=True, slots=True)
class Slotted:
    """A class of data without a __dict__."""

    value: Any


class Inner(BaseModel):
    """A model that holds others."""

    inside: Any = None


def chain(length: int, end: Any) -> Any:
    made = end
    for _ in range(length):
        made = Inner(inside=made)
    return made


ODD: dict[str, tuple[Callable[[], Any], Any]] = {
    "quiet NaN": (lambda: Decimal("NaN"), Decimal("-NaN")),
    "signaling NaN": (lambda: Decimal("sNaN"), Decimal("NaN")),
    "NaN key": (lambda: {float("nan"): 1, "k": 2}, {float("nan"): 2, "k": 2}),
    "NaN members": (lambda: {float("nan"), 1}, {float("nan"), 2}),
    "NaN in slots": (lambda: Slotted(float("nan")), Slotted(1.0)),
    "array of one NaN": (lambda: numpy.array([float("nan")]), numpy.array([float("nan")], dtype=numpy.float32)),
    "objects": (lambda: numpy.array([float("nan"), (1,)], dtype=object), numpy.array([1, (1,)], dtype=object)),
    "bool key": (lambda: {1: "a"}, {True: "a"}),
    "bool member": (lambda: {1, 2}, {True, 2}),
    "digits": (lambda: Decimal("1.0"), Decimal("1.00")),
    "complex": (lambda: complex(float("nan"), 1), complex(float("nan"), 2)),
    "chain": (lambda: chain(400, 1), chain(400, True)),
}


@pytest.mark.parametrize("name", list(ODD))
def test_equal_is_told_from_unequal_also_where_python_does_not(name: str) -> None:
    """NaN in each place it can stand in, deep chains, and what Python takes for equal though its type differs: two
    separate equal values are the same, and a value that differs a little isn't."""
    made, other = ODD[name]
    assert same(made(), made())
    assert not same(made(), other)
    assert not same(other, made())


@pytest.mark.parametrize("name", ["quiet NaN", "signaling NaN", "NaN key", "NaN members", "NaN in slots"])
def test_values_that_equal_nothing_come_in(name: str, path: Path) -> None:
    """A source that gives a new object at each read, with NaN in it: it is transferred, and found there again."""
    made, _ = ODD[name]

    class Giving(InMemorySaver):
        def get_tuple(self, config: Any) -> CheckpointTuple | None:
            found = super().get_tuple(config)
            assert found is not None
            found.checkpoint["channel_values"]["n"] = made()
            return found

    source = Giving()
    put(source, "t", "", "0001", None, {"n": 1})
    with AgentSaver(path) as saver:
        assert transfer(source, saver).already_there == 0
        assert transfer(source, saver).already_there == 1
    assert_sound(path)
