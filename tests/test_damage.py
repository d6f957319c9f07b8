"""Damage: a changed byte, a moved row or a missing one is named, never returned as truth (cases B64, B65)."""

from __future__ import annotations

import logging
import random
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from langchain_core.messages import AIMessage, HumanMessage

from agent_ckpt import AgentSaver
from agent_ckpt.errors import CkptError, CorruptionError
from tests.conftest import Api
from tests.threads import Thread, checkpoint_of, plain, query, values_at

STEPS = 5
THREADS = ("t", "other")


def build(path: Path) -> dict[str, list[Any]]:
    """A store with two threads of five checkpoints each, with every kind of value, and pending writes on each one.

    Returns:
        The configs of each thread's checkpoints, oldest first.
    """
    configs: dict[str, list[Any]] = {}
    with AgentSaver(path) as saver:
        for thread_id in THREADS:
            thread = Thread(saver, thread_id)
            dice = np.random.default_rng(5)
            array = dice.normal(size=512)
            messages: list[Any] = []
            for step in range(STEPS):
                messages = [
                    *messages,
                    HumanMessage(f"{thread_id} AMOUNT=1000 of step {step}, and more text", id=f"m{step}"),
                ]
                array = array * (1 + 1e-12 * dice.normal(size=array.size))
                files = {f"f{i}": f"file {i} " * 40 + (str(step) if i == step else "") for i in range(30)}
                thread.put(
                    messages=messages, array=array, files=files, tiny=step, amount=f"AMOUNT={1000 + step} " * 10,
                    long=f"{step}" + "naïve text of some length " * 800,
                    ids=[f"item {i} of the list" for i in range(300)],
                )  # fmt: skip
                thread.writes(
                    ("messages", [AIMessage(f"answer {step} " * 9, id=f"a{step}")]), ("tiny", step), task=f"task-{step}"
                )
                thread.writes(("delta", f"written in step {step} " * 5), task=f"other-{step}", path="~path")
            configs[thread_id] = [plain(config) for config in thread.configs]
        run = Thread(saver, "t", "sub:1")
        run.put(inner="a value of the subgraph")
        configs["sub"] = [plain(run.config)]
    query(path, "PRAGMA wal_checkpoint(TRUNCATE)")
    return configs


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, list[Any]], dict[str, Any]]:
    """The undamaged store, its configs, and what each of its checkpoints gives back."""
    path = tmp_path_factory.mktemp("damage") / "agent.db"
    configs = build(path)
    with AgentSaver(path) as saver:
        assert saver.verify()
        truth = {key(c): shown(saver.get_tuple(c)) for of_thread in configs.values() for c in of_thread}
    return path, configs, truth


@pytest.fixture
def store(original: Any, path: Path) -> Path:
    """A copy of the undamaged store, to be damaged."""
    shutil.copy(original[0], path)
    return path


@pytest.fixture
def reopened(store: Path, form: str) -> Iterator[Callable[[], Api]]:
    """Opens the damaged store. No verify at the end: it is damaged."""
    opened: list[AgentSaver] = []

    def reopen() -> Api:
        opened.append(AgentSaver(store))
        return Api(opened[-1], form)

    yield reopen
    for saver in opened:
        saver.close()


def key(config: Any) -> tuple[str, ...]:
    conf = config["configurable"]
    return (conf["thread_id"], conf["checkpoint_ns"], conf["checkpoint_id"])


def shown(found: Any) -> Any:
    """All that a checkpoint tuple says, in a form that compares (arrays don't)."""
    if found is None:
        return None
    channels = {
        k: v.tobytes() if isinstance(v, np.ndarray) else v for k, v in found.checkpoint["channel_values"].items()
    }
    rest = {k: v for k, v in found.checkpoint.items() if k != "channel_values"}
    parent = plain(found.parent_config) if found.parent_config else None
    return plain(found.config), parent, rest, channels, dict(found.metadata), found.pending_writes


def flipped(value: Any, at: int, by: int) -> Any:
    """A column's value with one byte (or one bit of a number) changed."""
    if isinstance(value, int):
        return value ^ (1 << (by % 8))
    raw = value.encode() if isinstance(value, str) else value
    raw = raw[:at] + bytes((raw[at] ^ by,)) + raw[at + 1 :]
    return raw.decode("latin-1") if isinstance(value, str) else raw


def damage(store: Path, table: str, column: str, rowid: int, by: int = 1, at: float = 0.5) -> Any:
    """Change one byte of a column of one row; what stood there before."""
    ((value,),) = query(store, f"SELECT {column} FROM {table} WHERE rowid = ?", rowid)
    place = int(at * (len(value) - 1)) if not isinstance(value, int) else 0
    query(store, f"UPDATE {table} SET {column} = ? WHERE rowid = ?", flipped(value, place, by), rowid)
    return value


def rowids(store: Path, table: str, where: str = "1") -> list[int]:
    return [row for (row,) in query(store, f"SELECT rowid FROM {table} WHERE {where} ORDER BY rowid")]


def seq_of(store: Path, config: Any) -> int:
    thread_id, ns, checkpoint_id = key(config)
    found = query(
        store,
        "SELECT c.seq, c.id FROM checkpoints c JOIN spaces s ON s.space = c.space JOIN threads t ON t.thread = s.thread"
        " WHERE t.thread_id = ? AND s.ns = ?",
        thread_id,
        ns,
    )
    wanted = bytes.fromhex(checkpoint_id.replace("-", ""))
    return next(seq for seq, stored in found if stored == wanted)


def names(error: CorruptionError, config: Any) -> None:
    """The error says which thread, namespace and checkpoint, as fields and in its text."""
    assert (error.thread_id, error.checkpoint_ns, error.checkpoint_id) == key(config)
    for part in (error.thread_id, error.checkpoint_id):
        assert repr(part) in str(error)


def never_wrong(
    api: Api, configs: dict[str, list[Any]], truth: dict[Any, Any], writes_may_be_lost: bool = False
) -> set[tuple[str, ...]]:
    """Read everything in every way: each answer is the truth, CorruptionError that names the place, or "not stored".

    Args:
        writes_may_be_lost: rows of pending writes may be missing, since what they are found by was changed.

    Returns:
        The places that gave an error or nothing.
    """
    lost: set[tuple[str, ...]] = set()
    for config in [c for of_thread in configs.values() for c in of_thread]:
        try:
            found = shown(api.get_tuple(config))
            if found is not None and writes_may_be_lost:
                assert set(map(repr, found[-1])) <= set(map(repr, truth[key(config)][-1]))
                found = (*found[:-1], truth[key(config)][-1])
            assert found in (truth[key(config)], None)
            if found is None:
                lost.add(key(config))
        except CorruptionError as exc:
            names(exc, config)
            lost.add(key(config))
    for thread_id in THREADS:
        try:
            api.list({"configurable": {"thread_id": thread_id}})
        except CorruptionError as exc:
            assert exc.thread_id == thread_id
            assert exc.checkpoint_id
        for found in api.list({"configurable": {"thread_id": thread_id}}, on_damage="skip"):
            if key(found.config) in truth and not writes_may_be_lost:
                assert shown(found) == truth[key(found.config)]
    return lost


# A changed byte


def test_an_amount_is_never_given_back_changed(
    original: Any, store: Path, reopened: Callable[[], Api], caplog: pytest.LogCaptureFixture
) -> None:
    """B64: AMOUNT=1000 made 9000 in a stored value is CorruptionError naming thread, namespace, checkpoint, channel."""
    uncompressed = store.with_name("plain.db")
    with AgentSaver(uncompressed, compression="none") as saver:
        thread = Thread(saver)
        thread.put(note="first")
        thread.put(amount="AMOUNT=1000 " + "x" * 60)
        thread.put(tiny="AMOUNT=1000", amount="another amount that fills a blob of its own, for sure")
        thread.writes(("amount", "AMOUNT=1000 " + "y" * 60))
    for table in ("blobs", "checkpoints"):
        for row, framed in query(uncompressed, f"SELECT rowid, frame FROM {table}"):
            query(
                uncompressed, f"UPDATE {table} SET frame = ? WHERE rowid = ?", framed.replace(b"=1000", b"=9000"), row
            )
    with AgentSaver(uncompressed) as saver:
        api = Api(saver, reopened().form)
        with pytest.raises(CorruptionError) as caught:
            api.get_tuple(plain(thread.configs[1]))
        names(caught.value, thread.configs[1])
        assert caught.value.channel == "amount"
        assert "AMOUNT" not in str(caught.value)
        with pytest.raises(CorruptionError) as caught:
            api.get_tuple(plain(thread.configs[2]))
        names(caught.value, thread.configs[2])
        assert values_at(api, thread.configs[0]) == {"note": "first"}
        kinds = {finding.kind for finding in saver.verify().findings}
        assert "damaged" in kinds


FRAMES = ["checkpoints.frame", "writes.frame", "blobs.frame", "blobs.digest"]


@pytest.mark.parametrize("column", FRAMES)
def test_a_changed_byte_is_found_and_older_checkpoints_stay_readable(
    column: str, original: Any, store: Path, reopened: Callable[[], Api]
) -> None:
    """B64, P5: one byte of one row, sampled over rows and bytes: an error with the place, and verify() lists it."""
    _, configs, truth = original
    table, name = column.split(".")
    dice = random.Random(column)
    for row in dice.sample(rowids(store, table), 6):
        before = damage(store, table, name, row, by=dice.choice([1, 0x80, 0xFF]), at=dice.random())
        api = reopened()
        lost = never_wrong(api, configs, truth)
        assert len(lost) < len(truth), "one row took everything down"
        report = api.verify()
        assert not report, f"verify() missed row {row} of {column}"
        assert lost or table == "blobs", f"row {row} of {column} was read as if nothing had happened"
        query(store, f"UPDATE {table} SET {name} = ? WHERE rowid = ?", before, row)
    assert reopened().verify()


@pytest.mark.parametrize("table", ["checkpoints", "writes", "spaces", "threads", "blobs", "this_store"])
def test_a_changed_byte_in_any_column(table: str, original: Any, store: Path, reopened: Callable[[], Api]) -> None:
    """B64: every column of every table: what is read is the truth, an error, or "not stored"; never another value.

    verify() lists each, but for those that no reader can tell from another right value: the owner's id, what only
    voids caches, and the store's own id.
    """
    _, configs, truth = original
    untold = {"threads.session", "threads.collected", "threads.revision", "threads.next_blob", "this_store.store_id",
              "this_store.journal",
              "this_store.sequence", "writes.task"}  # fmt: skip
    pristine = original[0]
    columns = [name for _, name, *_ in query(pristine, f"PRAGMA table_info({table})") if name != "one"]
    for column in columns:
        dice = random.Random(column)
        rows = rowids(pristine, table, f"{column} IS NOT NULL AND length({column}) > 0")
        for row in dice.sample(rows, min(2, len(rows))):
            shutil.copy(pristine, store)
            try:
                damage(store, table, column, row, by=dice.choice([1, 2, 4]), at=dice.random())
            except sqlite3.IntegrityError:
                continue
            api = reopened()
            never_wrong(
                api, configs, truth, writes_may_be_lost=f"{table}.{column}" in ("writes.checkpoint", "writes.space")
            )
            report = api.verify()
            if f"{table}.{column}" not in untold:
                assert not report, f"verify() missed {table}.{column} of row {row}"
            api.saver.close()


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE this_store SET sequence = 3",
        "UPDATE threads SET next_blob = 2",
        "UPDATE this_store SET sequence = (SELECT max(revision) - 1 FROM threads)",
        "UPDATE threads SET revision = 1",
    ],
)
def test_a_counter_that_went_astray(change: str, original: Any, store: Path, reopened: Callable[[], Api]) -> None:
    """B64: verify() finds a counter below what it has numbered; a put then is refused or becomes the head."""
    _, configs, truth = original
    query(store, change)
    api = reopened()
    assert "damaged" in {finding.kind for finding in api.verify().findings}
    never_wrong(api, configs, truth)
    made = checkpoint_of({"tiny": 99, "new": "a value of some length, new in this one " * 9}, {"tiny": 100, "new": 1})
    try:
        config = api.put(configs["t"][-1], made, {"source": "loop", "step": 9, "parents": {}}, {"tiny": 100, "new": 1})
        assert key(api.get_tuple({"configurable": {"thread_id": "t"}}).config) == key(config)
    except CorruptionError:
        assert shown(api.get_tuple({"configurable": {"thread_id": "t"}})) == truth[key(configs["t"][-1])]


@pytest.mark.parametrize(
    "column", ["checkpoints.frame", "checkpoints.parent", "checkpoints.seq", "writes.frame", "blobs.frame"]
)
def test_a_write_onto_damage_is_refused_or_right(
    column: str, original: Any, store: Path, reopened: Callable[[], Api]
) -> None:
    """B64: put (a channel kept from a damaged parent) and put_writes give CorruptionError or store what is right."""
    _, configs, truth = original
    table, name = column.split(".")
    config = configs["t"][-1]
    seq = seq_of(store, config)
    if table == "writes":
        wanted = bytes.fromhex(key(config)[2].replace("-", ""))
        rows = [
            r
            for r in rowids(store, "writes")
            if query(store, "SELECT checkpoint FROM writes WHERE seq = ?", r) == [(wanted,)]
        ]
    else:
        rows = rowids(store, "blobs") if table == "blobs" else [seq]
    for row in rows[:2] if table != "blobs" else rows[-3:]:
        damage(store, table, name, row)
    if name == "seq":
        query(store, "UPDATE this_store SET sequence = sequence + 10")
    api = reopened()
    versions = truth[key(config)][2]["channel_versions"]
    made = checkpoint_of({"tiny": 99}, {**versions, "tiny": versions["tiny"] + 1})
    for write in (
        lambda: api.put(config, made, {"source": "loop", "step": 9, "parents": {}}, {"tiny": versions["tiny"] + 1}),
        lambda: api.put_writes(config, [("tiny", 1)], f"task-{STEPS - 1}"),
        lambda: api.put_writes(config, [("tiny", 1), ("more", "y" * 100)], "a new task"),
    ):
        try:
            write()
        except CorruptionError as exc:
            assert exc.thread_id == "t"
        except CkptError as exc:
            assert name in ("seq", "parent"), exc
    others = {place: what for place, what in truth.items() if place != key(config)}
    never_wrong(api, {**configs, "t": configs["t"][:-1]}, others)


# Rows in the wrong place


def test_swapped_blobs(original: Any, store: Path, reopened: Callable[[], Api]) -> None:
    """B64: two blobs of one thread that changed places, each whole with its digest, are not taken for each other."""
    _, configs, truth = original
    dice = random.Random(1)
    blobs = [r for r in rowids(store, "blobs") if r >> 28 == min(rowids(store, "threads"))]
    for _ in range(12):
        one, other = dice.sample(blobs, 2)
        swap(store, "blobs", "digest, frame", one, other)
        api = reopened()
        never_wrong(api, configs, truth)
        assert not api.verify(), f"verify() missed that blobs {one} and {other} changed places"
        swap(store, "blobs", "digest, frame", one, other)
    assert reopened().verify()


def test_blobs_from_another_thread(original: Any, store: Path, reopened: Callable[[], Api]) -> None:
    """B64: a blob put in the place of another thread's is refused, since addresses are keyed per thread."""
    _, configs, truth = original
    mine, others = (
        [r for r in rowids(store, "blobs") if r >> 28 == thread] for thread in sorted(rowids(store, "threads"))
    )
    for one, other in zip(mine[:4], others[:4], strict=True):
        swap(store, "blobs", "digest, frame", one, other)
    api = reopened()
    assert never_wrong(api, configs, truth)
    assert {f.thread_id for f in api.verify().findings} == set(THREADS)


@pytest.mark.parametrize("table", ["checkpoints", "writes"])
@pytest.mark.parametrize("what", ["frame", "all"])
def test_swapped_rows(table: str, what: str, original: Any, store: Path, reopened: Callable[[], Api]) -> None:
    """B64: frames of two rows exchanged, or two rows exchanged whole within the commit order, are refused."""
    _, configs, truth = original
    columns = {
        ("checkpoints", "frame"): "frame", ("writes", "frame"): "frame",
        ("checkpoints", "all"): "id, parent, run, frame", ("writes", "all"): "checkpoint, task, run, frame",
    }[table, what]  # fmt: skip
    one, other = rowids(store, table)[1:3]
    swap(store, table, columns, one, other)
    api = reopened()
    lost = never_wrong(api, configs, truth)
    assert lost
    assert len([f for f in api.verify().findings if f.kind == "damaged"]) >= 2


def swap(store: Path, table: str, columns: str, one: int, other: int) -> None:
    """Exchange columns of two rows."""
    count = columns.count(",") + 1
    ((*first,),) = query(store, f"SELECT {columns} FROM {table} WHERE rowid = ?", one)
    ((*second,),) = query(store, f"SELECT {columns} FROM {table} WHERE rowid = ?", other)
    sets = ", ".join(f"{name} = ?" for name in columns.split(", "))
    assert len(first) == count
    if "id, " in columns:
        query(store, f"UPDATE {table} SET id = 'elsewhere' WHERE rowid = ?", one)
    query(store, f"UPDATE {table} SET {sets} WHERE rowid = ?", *first, other)
    query(store, f"UPDATE {table} SET {sets} WHERE rowid = ?", *second, one)


# Rows that are missing, or too many


def test_missing_blobs(original: Any, store: Path, reopened: Callable[[], Api]) -> None:
    """B64: a blob that is gone is CorruptionError where it is needed, "missing" in verify(), and nothing elsewhere."""
    _, configs, truth = original
    blobs = [r for r in rowids(store, "blobs") if r >> 28 == min(rowids(store, "threads"))]
    pristine = store.with_name("pristine.db")
    shutil.copy(store, pristine)
    for row in random.Random(2).sample(blobs, 8):
        shutil.copy(pristine, store)
        query(store, "DELETE FROM blobs WHERE blob = ?", row)
        query(store, "PRAGMA wal_checkpoint(TRUNCATE)")
        api = reopened()
        assert never_wrong(api, configs, truth)
        assert "missing" in {finding.kind for finding in api.verify().findings}
        for config in configs["other"]:
            assert shown(api.get_tuple(config)) == truth[key(config)]
        api.saver.close()


def test_rows_that_belong_to_nothing_are_found(original: Any, store: Path, reopened: Callable[[], Api]) -> None:
    """verify() tells of blobs that no row leads to, and of rows without a thread or a namespace."""
    (blob, *_), *_ = query(store, "SELECT max(blob) FROM blobs")
    (thread,) = rowids(store, "threads", "thread_id = 't'")
    query(store, "INSERT INTO blobs SELECT ?, digest, frame FROM blobs WHERE blob = ?", (thread << 28) + 5000, blob)
    query(store, "UPDATE threads SET next_blob = 6000 WHERE thread = ?", thread)
    query(store, "INSERT INTO blobs SELECT (900 << 28) + 1, digest, frame FROM blobs WHERE blob = ?", blob)
    query(store, "INSERT INTO writes SELECT 9001, 700, checkpoint, task, run, undone, frame FROM writes LIMIT 1")
    query(
        store,
        "INSERT INTO checkpoints SELECT 9002, 700, id, parent, run, undone, frame, history, environment "
        "FROM checkpoints LIMIT 1",
    )
    query(store, "INSERT INTO spaces (space, thread, ns) VALUES (800, 900, 'nowhere')")
    query(store, "UPDATE this_store SET sequence = 9100")
    details = [f.detail for f in reopened().verify().findings if f.kind == "orphan"]
    for what in ("checkpoint", "writes row", "namespace", "blob"):
        assert any(f"1 rows of kind {what}" in detail for detail in details), (what, details)
    reread = [f for f in reopened().verify().findings if "5000" in f.detail]
    assert reread


# Listings


def test_one_bad_checkpoint_does_not_take_the_thread_down(
    original: Any, store: Path, reopened: Callable[[], Api], caplog: pytest.LogCaptureFixture
) -> None:
    """B65: with the third of five rows damaged the newest loads, list names the bad id, or skips it with a warning."""
    _, configs, truth = original
    bad = configs["t"][2]
    query(store, "UPDATE checkpoints SET frame = x'c1c1' WHERE seq = ?", seq_of(store, bad))
    api = reopened()
    assert shown(api.get_tuple({"configurable": {"thread_id": "t"}})) == truth[key(configs["t"][-1])]
    with pytest.raises(CorruptionError) as caught:
        api.list({"configurable": {"thread_id": "t", "checkpoint_ns": ""}})
    names(caught.value, bad)
    with caplog.at_level(logging.WARNING, logger="agent_ckpt"):
        kept = api.list({"configurable": {"thread_id": "t", "checkpoint_ns": ""}}, on_damage="skip")
    assert [key(found.config) for found in kept] == [key(c) for c in reversed(configs["t"]) if c is not bad]
    assert [shown(found) for found in kept] == [truth[key(found.config)] for found in kept]
    (record,) = caplog.records
    assert key(bad)[2] in record.getMessage()
    filtered = api.list({"configurable": {"thread_id": "t"}}, filter={"step": 4}, on_damage="skip")
    assert [found.metadata["step"] for found in filtered] == [4]
    (finding,) = api.verify().findings[:1]
    assert (finding.thread_id, finding.checkpoint_ns, finding.checkpoint_id) == key(bad)
    assert len(api.list(None, on_damage="skip")) == len(truth) - 1


def test_a_damaged_filter_page_goes_on(original: Any, store: Path, reopened: Callable[[], Api]) -> None:
    """B65: a limit counts what was given back, not what was skipped."""
    _, configs, _ = original
    query(store, "UPDATE checkpoints SET frame = x'c1c1' WHERE seq = ?", seq_of(store, configs["t"][-1]))
    api = reopened()
    kept = api.list({"configurable": {"thread_id": "t", "checkpoint_ns": ""}}, on_damage="skip", limit=2)
    assert [key(found.config) for found in kept] == [key(configs["t"][3]), key(configs["t"][2])]


# DeltaChannels


@pytest.mark.parametrize("column", ["checkpoints.frame", "writes.frame", "blobs.frame", "checkpoints.history"])
def test_a_damaged_delta_history_is_never_shorter(column: str, path: Path, form: str) -> None:
    """B64: a DeltaChannel's history over a damaged ancestor, write, value or record is an error, not a shorter one."""
    with AgentSaver(path) as saver:
        thread = Thread(saver)
        for step in range(4):
            metadata = {
                "source": "loop",
                "step": step,
                "parents": {},
                "counters_since_delta_snapshot": {"d": (step, step)},
            }
            made = checkpoint_of({"x": step}, {"x": step + 1, "d": step + 1})
            thread.config = saver.put(thread.config, made, metadata, {"x": step + 1})  # type: ignore[arg-type]
            thread.configs.append(thread.config)
            thread.writes(("d", f"delta of step {step}, long enough for a blob of its own"), task=f"t{step}")
        if column == "checkpoints.history":
            saver.prune(["t"])
        truth = saver.get_delta_channel_history(config=plain(thread.config), channels=["d"])
        assert len(truth["d"]["writes"]) == 3
    table, name = column.split(".")
    # What stands on the head itself is pending, and no part of its history.
    rows = [r for r in rowids(path, table, f"{name} IS NOT NULL")]
    for row in rows:
        before = damage(path, table, name, row, at=0.7)
        with AgentSaver(path) as saver:
            api = Api(saver, form)
            try:
                assert api.get_delta_channel_history(config=plain(thread.config), channels=["d"]) == truth
                assert row == rows[-1], f"row {row} of {column} was not noticed"
                assert column != "checkpoints.history"
            except CorruptionError as exc:
                assert exc.thread_id == "t"
                assert exc.checkpoint_id
            assert not api.verify()
        query(path, f"UPDATE {table} SET {name} = ? WHERE rowid = ?", before, row)


@pytest.mark.parametrize("call", ["prune", "copy_thread", "delete_for_runs"])
def test_maintenance_over_damage_changes_nothing(
    call: str, original: Any, store: Path, reopened: Callable[[], Api]
) -> None:
    """B64: prune, copy_thread and delete_for_runs over a damaged row raise CorruptionError and leave all as it was."""
    _, configs, truth = original
    query(store, "UPDATE checkpoints SET run = ? WHERE seq = ?", "run-1", seq_of(store, configs["t"][0]))
    damage(store, "checkpoints", "frame", seq_of(store, configs["t"][-1]))
    before = query(store, "SELECT * FROM checkpoints ORDER BY seq"), query(store, "SELECT count(*) FROM blobs")
    api = reopened()
    with pytest.raises(CorruptionError) as caught:
        {
            "prune": lambda: api.prune(["t"]),
            "copy_thread": lambda: api.copy_thread("t", "copy"),
            "delete_for_runs": lambda: api.delete_for_runs(["run-1"]),
        }[call]()
    assert caught.value.thread_id == "t"
    assert before == (
        query(store, "SELECT * FROM checkpoints ORDER BY seq"),
        query(store, "SELECT count(*) FROM blobs"),
    )
    api.delete_thread("t")
    assert not api.exists("t")
    for config in configs["other"]:
        assert shown(api.get_tuple(config)) == truth[key(config)]
    assert api.verify()
