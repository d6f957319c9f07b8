"""Sealed state: nothing in clear, nothing forged, moved or put back is accepted (B15, B18, B19, B20, B64).

`SEALING_MUTATIONS=100000` mutates that many frames (5,000 by default).
"""

from __future__ import annotations

import io
import logging
import os
import pickle
import random
import re
import shutil
import sqlite3
import traceback
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Command, interrupt

from agent_ckpt import (
    AgentSaver,
    CkptError,
    CorruptionError,
    NotSealedError,
    SealError,
    ThreadConflictError,
    WrongKeyError,
    transfer,
)
from agent_ckpt.codec import frame, heads, seal
from agent_ckpt.codec.keyring import Keyring
from agent_ckpt.core.storekeys import SHAPES
from agent_ckpt.model import ThreadRow
from agent_ckpt.sqlite.queries import QUERIES
from tests.conftest import Api

KEY = bytes(range(140, 172))
OTHER = bytes(range(190, 222))
CANARY = "cAnArY"


@pytest.fixture
def open_sealed(path: Path) -> Iterator[Callable[..., AgentSaver]]:
    """Opens savers with the test's key; closes them, and verifies the store with the key at the end."""
    opened: list[AgentSaver] = []

    def open_one(where: Path | None = None, key: Any = KEY, **options: Any) -> AgentSaver:
        opened.append(AgentSaver(where or path, key=key, **options))
        return opened[-1]

    yield open_one
    for saver in opened:
        saver.close()
    with AgentSaver(path, key=KEY, create=False) as saver:
        report = saver.verify()
    assert not report.findings, report.findings


def config(thread_id: str = "t", ns: str = "", checkpoint_id: str | None = None) -> Any:
    conf = {"thread_id": thread_id, "checkpoint_ns": ns}
    return {"configurable": conf if checkpoint_id is None else {**conf, "checkpoint_id": checkpoint_id}}


def put(saver: Any, at: Any, number: int, metadata: Any = None, **values: Any) -> Any:
    """Put a checkpoint whose channels all have this version."""
    checkpoint = empty_checkpoint()
    checkpoint["channel_values"] = values
    checkpoint["channel_versions"] = dict.fromkeys(values, number)
    return saver.put(
        at, checkpoint, {"source": "loop", "step": number, **(metadata or {})}, dict.fromkeys(values, number)
    )


def edit(path: Path, *statements: tuple[str, tuple[Any, ...]]) -> None:
    """Write rows past the saver, as somebody could who can write the file."""
    with closing(sqlite3.connect(path)) as connection, connection:
        for sql, params in statements:
            connection.execute(sql, params)


def rows_of(path: Path, sql: str, *params: Any) -> list[Any]:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(sql, params).fetchall()


def raw_of(folder: Path) -> bytes:
    return b"".join(found.read_bytes() for found in sorted(folder.rglob("*")) if found.is_file())


# Nothing in clear


def canary_graph(saver: Any) -> Any:
    """A graph whose every name and text holds the canary: nodes, channels, a subgraph, an interrupt."""

    class Inner(MessagesState):
        cAnArY_channel: str

    def inner_node(_: Inner) -> Any:
        return {"messages": [("ai", f"{CANARY} answer")], "cAnArY_channel": interrupt(f"{CANARY} question")}

    inner = StateGraph(Inner)
    inner.add_node("cAnArY_inner", inner_node)
    inner.add_edge(START, "cAnArY_inner")
    outer = StateGraph(Inner)
    outer.add_node("cAnArY_outer", inner.compile())
    outer.add_edge(START, "cAnArY_outer")
    return outer.compile(checkpointer=saver)


@pytest.mark.parametrize("seal_thread_ids", [False, True])
def test_no_text_of_the_user_stands_in_the_files(
    tmp_path: Path, open_sealed: Callable[..., AgentSaver], form: str, caplog: Any, seal_thread_ids: bool
) -> None:
    """B15, B20: a canary in every field is in no file, log at DEBUG, repr or pickle; the graph still resumes."""
    caplog.set_level(logging.DEBUG)
    thread_id = f"{CANARY}-thread" if seal_thread_ids else "t"
    saver = open_sealed(seal_thread_ids=seal_thread_ids)
    api = Api(saver, form)
    graph = canary_graph(saver)
    run = {
        "configurable": {"thread_id": thread_id, "user": f"{CANARY} user"},
        "metadata": {"email": f"{CANARY}@example.org", f"{CANARY}_key": 1, "run_id": f"{CANARY} run"},
    }
    api.invoke(graph, {"messages": [("user", f"{CANARY} hello {CANARY * 40}")]}, run)
    assert api.get_state(graph, run).next
    raw = raw_of(tmp_path)
    assert len(raw) > 10_000 and CANARY.encode() not in raw
    saver.close()
    reopened = open_sealed(seal_thread_ids=seal_thread_ids)
    ended = Api(reopened, form).invoke(canary_graph(reopened), Command(resume=f"{CANARY} resumed"), run)
    assert ended["cAnArY_channel"] == f"{CANARY} resumed"
    assert [info.thread_id for info in reopened.threads()] == [thread_id]
    put(reopened, config(thread_id, f"{CANARY} ns"), 1, value=f"{CANARY} raw")
    reopened.put_writes(
        config(thread_id, f"{CANARY} ns", "x"), [(f"{CANARY} channel", "v")], f"{CANARY} task", f"{CANARY} path"
    )
    reopened.copy_thread(thread_id, thread_id + "-copy")
    reopened.prune([thread_id + "-copy"])
    assert CANARY.encode() not in raw_of(tmp_path)
    told = caplog.text + repr(reopened) + repr(reopened._options) + repr(reopened._sealing.keyring)
    assert CANARY not in told
    assert KEY.hex() not in told and repr(KEY)[2:-1] not in told
    with pytest.raises(CkptError):
        pickle.dumps(reopened._sealing.keyring)
    reopened.delete_for_runs([f"{CANARY} run"])
    assert not list(reopened.list({"configurable": {"thread_id": thread_id}}, filter={"run_id": f"{CANARY} run"}))


def test_a_plain_saver_leaves_the_canary_in_clear(tmp_path: Path, open_saver: Callable[..., AgentSaver]) -> None:
    """The search finds what is in clear: without a key the canary is there."""
    put(open_saver(), config(), 1, value=CANARY)
    assert CANARY.encode() in raw_of(tmp_path)


def test_every_statement_with_a_name_is_translated() -> None:
    """A statement that takes or gives a thread_id, a namespace, a run or a thread's secret is in the table."""
    as_stored = {
        name for name in QUERIES if name.startswith(("set_thread", "set_space", "rename_", "names_of_", "official_"))
    }
    as_stored |= {
        "schema",
        "thread_keys_page",
        "vaults_page",
        "thread_as_stored",
        "set_checkpoint_as_stored",
        "set_writes_as_stored",
    }
    named = re.compile(r"\bthread_id\b|\bns\b|\brun\b|\bsecret\b")
    missing = {
        name
        for name, sql in QUERIES.items()
        if named.search(re.sub(r"--.*", "", sql)) and name not in SHAPES and name not in as_stored
    }
    assert not missing


# Opening


def test_a_sealed_file_needs_its_key(path: Path, open_sealed: Callable[..., AgentSaver], form: str) -> None:
    """B21: without the key, or with another one, there is one error before anything is read; it names key ids."""
    sealed = open_sealed()
    put(sealed, config(), 1, value="v")
    needed = sealed._sealing.keyring.active_id  # type: ignore[union-attr]
    for key in (None, OTHER):
        with AgentSaver(path, key=key) as saver:
            api = Api(saver, form)
            for call in (
                lambda api=api: api.get_tuple(config()),
                lambda api=api: api.list(None),
                lambda api=api: api.threads(),
            ):
                with pytest.raises(WrongKeyError) as caught:
                    call()
                assert caught.value.needed == needed and needed in str(caught.value)
            with pytest.raises(WrongKeyError):
                put(api, config("new"), 1, value="v")
    assert [info.thread_id for info in sealed.threads()] == ["t"]


def test_a_plaintext_file_is_refused_with_a_key(path: Path, form: str) -> None:
    """A saver with a key refuses a plaintext file, naming the command; with seal_existing=True it seals it first."""
    with AgentSaver(path) as plain:
        put(plain, config(), 1, value=CANARY)
    before = rows_of(path, "SELECT * FROM checkpoints")
    with AgentSaver(path, key=KEY) as saver, pytest.raises(NotSealedError, match="keys seal-existing"):
        Api(saver, form).get_tuple(config())
    assert rows_of(path, "SELECT * FROM checkpoints") == before
    with AgentSaver(path, key=KEY, seal_existing=True) as saver:
        assert Api(saver, form).get_tuple(config()).checkpoint["channel_values"] == {"value": CANARY}
        assert saver.verify()
    with AgentSaver(path, key=KEY) as saver:
        assert Api(saver, form).get_tuple(config()).checkpoint["channel_values"] == {"value": CANARY}
    assert CANARY.encode() not in path.read_bytes()


def test_a_plain_saver_that_was_open_writes_nothing_into_a_sealed_file(path: Path) -> None:
    """A saver that was opened before the file was sealed is refused at its next read and write, new threads too."""
    with AgentSaver(path) as plain:
        put(plain, config(), 1, value="v")
        with AgentSaver(path, key=KEY, seal_existing=True) as sealed:
            assert sealed.exists("t")
            for call in (lambda: plain.get_tuple(config()), lambda: put(plain, config("new"), 1, value=CANARY)):
                with pytest.raises(WrongKeyError):
                    call()
            assert [info.thread_id for info in sealed.threads()] == ["t"] and sealed.verify()
    assert CANARY.encode() not in path.read_bytes()


# Forged, moved and replayed rows


def two_threads(saver: AgentSaver) -> None:
    """Two threads with three checkpoints each and writes, in two namespaces, with values that are blobs."""
    for thread_id, role in (("alice", "admin"), ("bob", "guest")):
        for ns in ("", "sub:1"):
            at = config(thread_id, ns)
            for step in range(3):
                at = put(saver, at, step, {"role": role}, role=f"{role} {step} " + "x" * 100, other=f"{role} other")
                saver.put_writes(at, [("role", f"{role} write {step} " + "y" * 100)], f"task-{step}", "path")


def whole(saver: AgentSaver) -> dict[Any, Any]:
    """Everything that can be read of a store, by where it stands."""
    return {
        (one.config["configurable"]["thread_id"], one.config["configurable"]["checkpoint_ns"], one.checkpoint["id"]): (
            one.checkpoint,
            one.metadata,
            one.pending_writes,
        )
        for one in saver.list(None)
    }


def everything(path: Path) -> tuple[dict[Any, Any], int]:
    """What can still be read of every checkpoint and head, and how many refusals there were; all typed."""
    seen: dict[Any, Any] = {}
    refused = 0
    with AgentSaver(path, key=KEY) as saver:
        for thread_id in ("alice", "bob"):
            for ns in ("", "sub:1"):
                try:
                    found = saver.get_tuple(config(thread_id, ns))
                    seen[(thread_id, ns, "head")] = None if found is None else found.checkpoint
                except SealError as exc:
                    assert exc.reason in ("plaintext", "altered", "replayed", "unknown_key")
                    refused += 1
        try:
            for one in saver.list(None, on_damage="skip"):
                conf = one.config["configurable"]
                seen[(conf["thread_id"], conf["checkpoint_ns"], one.checkpoint["id"])] = (
                    one.checkpoint,
                    one.pending_writes,
                )
        except SealError:
            refused += 1
        refused += len(saver.verify().findings)
    return seen, refused


def is_part(seen: Any, known: Any) -> bool:
    """Whether this is what was stored, or that without some writes of an older checkpoint: `verify` tells of those."""
    if seen == known or not isinstance(seen, tuple) or known is None:
        return bool(seen == known)
    return seen[0] == known[0] and all(write in known[1] for write in seen[1])


def swaps(path: Path) -> list[tuple[str, list[tuple[str, tuple[Any, ...]]]]]:
    """Edits that put a sealed frame, or a whole row's content, where another one stood."""
    made: list[tuple[str, list[tuple[str, tuple[Any, ...]]]]] = []
    for table, key, columns in (
        ("checkpoints", "seq", ("frame", "id", "parent")),
        ("writes", "seq", ("frame", "checkpoint", "space")),
        ("blobs", "blob", ("frame", "digest")),
        ("threads", "thread", ("secret", "session", "revision")),
        ("spaces", "space", ("thread", "ns")),
    ):
        for column in columns:
            found = rows_of(path, f"SELECT {key}, {column} FROM {table} ORDER BY {key}")
            for (one, mine), (other, its) in [(a, b) for a in found for b in found if a[0] < b[0]]:
                if mine != its and (table != "spaces" or column == "ns"):
                    update = f"UPDATE {table} SET {column} = ? WHERE {key} = ?"
                    made.append((f"{table}.{column} of {other} over {one}", [(update, (its, one))]))
    for seq, raw in rows_of(path, "SELECT seq, frame FROM checkpoints"):
        made.append(
            (
                f"plaintext flag on checkpoint {seq}",
                [("UPDATE checkpoints SET frame = ? WHERE seq = ?", (raw[:4] + b"\x00" + raw[5:], seq))],
            )
        )
        made.append((f"checkpoint {seq} removed", [("DELETE FROM checkpoints WHERE seq = ?", (seq,))]))
    for (seq,) in rows_of(path, "SELECT seq FROM writes"):
        made.append((f"writes {seq} removed", [("DELETE FROM writes WHERE seq = ?", (seq,))]))
    return made


def test_no_row_can_be_swapped(tmp_path: Path, path: Path, open_sealed: Callable[..., AgentSaver]) -> None:
    """B18, B19: whatever column of a row is put over another row's, nothing else than what was stored is given back."""
    saver = open_sealed()
    two_threads(saver)
    saver.close()
    known, refused = everything(path)
    assert not refused and len(known) == 16
    accepted = []
    tried = random.Random(7).sample(swaps(path), 60)
    for name, edits in tried:
        copy = tmp_path / "copy" / "c.db"
        copy.parent.mkdir(exist_ok=True)
        shutil.copy(path, copy)
        try:
            edit(copy, *edits)
        except sqlite3.IntegrityError:  # a UNIQUE index refused it already
            continue
        seen, refused = everything(copy)
        wrong = {place for place, value in seen.items() if value is not None and not is_part(value, known.get(place))}
        if wrong or not refused:
            accepted.append((name, wrong, refused))
    assert not accepted


def test_an_older_copy_of_a_row_is_refused(path: Path, open_sealed: Callable[..., AgentSaver], tmp_path: Path) -> None:
    """B19: rows of the file as it was before, put back one kind at a time, are not accepted as the newest."""
    saver = open_sealed()
    at = put(saver, config(), 1, approved=False)
    saver.put_writes(at, [("approved", True)], "task")
    saver.close()
    old = tmp_path / "old.db"
    shutil.copy(path, old)
    later = open_sealed()
    newest = put(later, at, 2, approved=True)
    later.close()
    good = tmp_path / "good.db"
    shutil.copy(path, good)
    (session,) = rows_of(old, "SELECT revision, session FROM threads")
    attacks: dict[str, list[tuple[str, tuple[Any, ...]]]] = {
        "the newest checkpoint removed": [
            ("DELETE FROM checkpoints WHERE seq = (SELECT max(seq) FROM checkpoints)", ())
        ],
        "the thread's row from before": [("UPDATE threads SET revision = ?, session = ?", session)],
        "the sealed head removed": [("UPDATE threads SET session = NULL", ())],
        "the namespace removed": [("DELETE FROM spaces", ())],
        "writes of the newest checkpoint made up": [
            (
                "INSERT INTO writes (seq, space, checkpoint, task, run, frame) SELECT 99, space, "
                "(SELECT id FROM checkpoints ORDER BY seq DESC LIMIT 1), task, run, frame FROM writes",
                (),
            ),
        ],
    }
    for name, edits in attacks.items():
        shutil.copy(good, path)
        edit(path, *edits)
        with AgentSaver(path, key=KEY) as saver:
            with pytest.raises(SealError) as caught:
                saver.get_tuple(config())
            assert caught.value.reason in ("replayed", "altered", "plaintext"), name
            if "made up" not in name:
                with pytest.raises(SealError):
                    put(saver, newest, 3, approved=True)
    for suffix in ("-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
    shutil.copy(good, path)


def test_a_plaintext_row_is_a_downgrade(path: Path, tmp_path: Path) -> None:
    """B18: rows of a plaintext store, whole and as they are, are refused in a sealed one, and verify names them."""
    plain = tmp_path / "plain.db"
    with AgentSaver(plain) as saver:
        put(saver, config(), 1, approved=True)
    with AgentSaver(path, key=KEY) as saver:
        put(saver, config(), 1, approved=False)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("ATTACH ? AS plain", (str(plain),))
        connection.execute("UPDATE checkpoints SET (id, frame) = (SELECT id, frame FROM plain.checkpoints)")
        connection.commit()
        with AgentSaver(path, key=KEY) as saver:
            with pytest.raises(SealError) as caught:
                saver.get_tuple(config())
            assert caught.value.reason == "plaintext" and caught.value.thread_id == "t"
            assert any("plaintext" in finding.detail for finding in saver.verify().findings)
        connection.execute("UPDATE threads SET (secret, session) = (SELECT secret, session FROM plain.threads)")
        connection.commit()
    with AgentSaver(path, key=KEY) as saver:
        with pytest.raises(SealError) as caught:
            saver.get_tuple(config())
        assert caught.value.reason == "plaintext"
        assert not saver.verify()


def test_one_thread_under_an_unknown_key_leaves_the_others(path: Path, form: str, open_sealed: Any) -> None:
    """B21 (d): of ten threads one is under a key that isn't given: the others are listed on request."""
    saver = open_sealed()
    for number in range(10):
        put(saver, config(f"t{number}"), 1, value=number)
    good = rows_of(path, "SELECT secret FROM threads WHERE thread_id = 't3'")[0][0]
    with AgentSaver(path.with_name("other.db"), key=OTHER) as other:
        put(other, config("t3"), 1, value=3)
    (foreign,) = rows_of(path.with_name("other.db"), "SELECT secret FROM threads")[0]
    edit(path, ("UPDATE threads SET secret = ? WHERE thread_id = 't3'", (foreign,)))
    with AgentSaver(path, key=KEY) as again:
        api = Api(again, form)
        assert len(api.list(None, on_damage="skip")) == 9
        with pytest.raises(SealError) as caught:
            api.list(None)
        assert caught.value.reason == "unknown_key" and "t3" in str(caught.value)
        assert [finding.thread_id for finding in again.verify().findings if "not among" in finding.detail]
    edit(path, ("UPDATE threads SET secret = ? WHERE thread_id = 't3'", (good,)))


def test_a_changed_bit_is_always_noticed(path: Path, tmp_path: Path, caplog: Any) -> None:
    """B64: mutated frames give typed errors or what was stored, and no key or text in a traceback."""
    caplog.set_level(logging.CRITICAL)
    with AgentSaver(path, key=KEY) as saver:
        at = config()
        for step in range(3):
            at = put(saver, at, step, {"note": CANARY}, text=f"{CANARY} {step} " * 30, items=[CANARY * 20] * 3)
            saver.put_writes(at, [("text", f"{CANARY} write" * 20)], "task")
        stored = whole(saver)
    chance = random.Random(11)
    frames = [
        (table, key, column, number, raw)
        for table, key, column in (
            ("checkpoints", "seq", "frame"),
            ("writes", "seq", "frame"),
            ("blobs", "blob", "frame"),
            ("blobs", "blob", "digest"),
            ("threads", "thread", "session"),
            ("threads", "thread", "secret"),
        )
        for number, raw in rows_of(path, f"SELECT {key}, {column} FROM {table}")
    ]
    with closing(sqlite3.connect(path)) as connection, AgentSaver(path, key=KEY, cache_bytes=0) as saver:
        for _ in range(100):
            table, key, column, number, raw = chance.choice(frames)
            update = f"UPDATE {table} SET {column} = ? WHERE {key} = ?"
            changed = mutated(raw, chance)
            connection.execute(update, (changed, number))
            connection.commit()
            try:
                assert whole(saver) == stored
                saver.get_tuple(config())
            except CorruptionError as exc:
                text = io.StringIO()
                traceback.print_exception(exc, file=text)
                assert CANARY not in text.getvalue() and repr(KEY)[2:-1] not in text.getvalue()
            assert changed == raw or not saver.verify(), (table, column)
            connection.execute(update, (raw, number))
            connection.commit()
        assert whole(saver) == stored


def test_mutated_frames_give_frame_errors_only() -> None:
    """Rows, blobs, sealed heads and envelopes with changed, cut, joined or shuffled bytes: a typed error each time."""
    keyring = Keyring(KEY)
    context = seal.thread_context(b"s" * 16, "t")
    keys = seal.new_keys(seal.THREAD_KEYS_SIZE)
    secret = seal.thread_secret(keys, context, keyring.wrap(keys, context))
    row, blob = ("checkpoint", "t", "", "id", None, 7, None), bytes(16)
    thread = ThreadRow(3, 9, b"session", 4, 0, secret, heads.Heads())
    parked = heads.SpaceHead(b"name", 5, 8, b"", (("id", 7),))
    opened: list[tuple[bytes, Callable[[bytes], Any]]] = [
        (frame.seal_row(16, b"payload" * 40, row, "zstd", secret), lambda raw: frame.open_row(16, raw, row, secret)),
        (frame.seal_blob(b"\x01" + b"body" * 90, "zstd", secret, blob), lambda raw: frame.open_blob(raw, secret, blob)),
        (heads.seal(secret, thread), lambda raw: heads.open(secret, (3, 9, 4, 0), raw)),
        (heads.park(secret, 3, parked), lambda raw: heads.unpark(secret, 3, b"name", 5, raw)),
        (secret.envelope, lambda raw: keyring.unwrap(raw, context, "thread 't'")),
    ]
    chance = random.Random(13)
    for _ in range(int(os.environ.get("SEALING_MUTATIONS", "5000"))):
        raw, open_one = chance.choice(opened)
        changed = mutated(raw, chance)
        if changed != raw:
            with pytest.raises((frame.FrameError, frame.UnsealError, SealError, WrongKeyError)):
                open_one(changed)
    for raw, open_one in opened:
        assert open_one(raw)


def mutated(raw: bytes, chance: random.Random) -> bytes:
    kind, at = chance.randrange(6), chance.randrange(len(raw))
    if kind == 0:
        return raw[:at]
    if kind == 1:
        return raw + chance.randbytes(1 + chance.randrange(40))
    if kind == 2:
        return raw[at:] + raw[:at]
    if kind == 3:
        return chance.randbytes(len(raw))
    changed = bytearray(raw)
    changed[at] ^= 1 << chance.randrange(8)
    return bytes(changed)


# Filters, deleting, copying


def random_value(chance: random.Random, depth: int = 0) -> Any:
    kinds: list[Callable[[], Any]] = [
        lambda: chance.choice([True, False]),
        lambda: chance.choice([0, 1, -1, 2]),
        lambda: chance.choice([0.0, 1.0, 2.5]),
        lambda: None,
        lambda: chance.choice(["", "a", "1", "True", "é"]),
    ]
    if depth < 2:
        kinds += [
            lambda: [random_value(chance, depth + 1) for _ in range(chance.randrange(3))],
            lambda: {key: random_value(chance, depth + 1) for key in chance.sample("abc", chance.randrange(3))},
        ]
    return chance.choice(kinds)()


def test_filters_give_the_same_sealed_and_unsealed(path: Path, tmp_path: Path, open_sealed: Any, form: str) -> None:
    """B23 on a sealed file: 100 random typed filters give equal ids sealed and unsealed."""
    chance = random.Random(5)
    plain = AgentSaver(tmp_path / "plain.db")
    savers = (open_sealed(), plain)
    ids = [empty_checkpoint()["id"] for _ in range(60)]
    metadata = [{key: random_value(chance) for key in chance.sample("klm", 2)} for _ in ids]
    for saver in savers:
        for checkpoint_id, one in zip(ids, metadata, strict=True):
            saver.put(config(checkpoint_id[-1]), {**empty_checkpoint(), "id": checkpoint_id}, one, {})
    matched = 0
    for _ in range(100):
        wanted = (
            {chance.choice("klm"): random_value(chance)}
            if chance.random() < 0.5
            else dict([chance.choice(list(chance.choice(metadata).items()))])
        )
        sealed, unsealed = (
            [one.checkpoint["id"] for one in Api(saver, form).list(None, filter=wanted)] for saver in savers
        )
        assert sealed == unsealed
        matched += bool(sealed)
    assert matched > 30
    plain.close()


def test_a_deleted_thread_can_not_be_opened_any_more(path: Path, tmp_path: Path, open_sealed: Any, form: str) -> None:
    """After delete_thread and the end of the WAL, no byte of the thread's wrapped key is left in the live files."""
    saver = open_sealed()
    put(saver, config("kept"), 1, value="kept")
    put(saver, config("gone"), 1, value=CANARY * 50)
    (envelope,) = rows_of(path, "SELECT secret FROM threads WHERE thread_id = 'gone'")[0]
    (framed,) = rows_of(path, "SELECT frame FROM checkpoints ORDER BY seq DESC LIMIT 1")[0]
    saver.close()
    assert envelope in raw_of(tmp_path)
    saver = open_sealed()
    Api(saver, form).delete_thread("gone")
    Api(saver, form).wal_truncate()
    raw = raw_of(tmp_path)
    for piece in (envelope[20:60], framed[-40:]):
        assert piece not in raw
    again = open_sealed()
    assert again.get_tuple(config("gone")) is None and again.get_tuple(config("kept")) is not None


def test_a_copy_has_a_key_of_its_own(path: Path, open_sealed: Any, form: str) -> None:
    """copy_thread gives the copy a new data key: no frame and no address of the source stands in it."""
    saver = open_sealed()
    two_threads(saver)
    Api(saver, form).copy_thread("alice", "copy")
    secrets = dict(rows_of(path, "SELECT thread_id, secret FROM threads"))
    assert len(set(secrets.values())) == 3
    for table, column in (("checkpoints", "frame"), ("writes", "frame"), ("blobs", "frame"), ("blobs", "digest")):
        found = [raw for (raw,) in rows_of(path, f"SELECT {column} FROM {table}")]
        assert len(found) == len(set(found))
    source, copy = (whole_of(saver, thread_id) for thread_id in ("alice", "copy"))
    assert source == copy and len(source) == 6
    saver.delete_thread("alice")
    assert whole_of(open_sealed(), "copy") == copy


def whole_of(saver: AgentSaver, thread_id: str) -> list[Any]:
    return [
        (one.config["configurable"]["checkpoint_ns"], one.checkpoint, one.metadata, one.pending_writes)
        for one in saver.list({"configurable": {"thread_id": thread_id}})
    ]


def test_a_sealed_head_follows_prunes_and_deletes(open_sealed: Any, form: str) -> None:
    """Rows that the saver itself drops are no replay: after prune and delete_for_runs everything reads and verifies."""
    saver = open_sealed()
    api = Api(saver, form)
    at = config()
    for step in range(6):
        at = put(api, at, step, {"run_id": f"run {step // 2}"}, value=step)
        api.put_writes(at, [("value", step)], f"task {step}")
    api.delete_for_runs(["run 2"])
    assert api.get_tuple(config()).checkpoint["channel_values"] == {"value": 3} and saver.verify()
    api.prune(["t"])
    assert len(api.list(config())) == 1 and saver.verify()
    at = put(api, at=api.get_tuple(config()).config, number=9, value=9)
    assert api.get_tuple(config()).checkpoint["channel_values"] == {"value": 9} and saver.verify()


def test_a_rollback_on_a_sealed_file(path: Path, open_sealed: Any, form: str) -> None:
    """After a rollback the older checkpoint is the sealed head; a mark that is removed is noticed."""
    saver = open_sealed()
    api = Api(saver, form)
    places = [put(api, config(), 0, value=0)]
    for step in range(1, 4):
        places.append(put(api, places[-1], step, value=step))
        api.put_writes(places[-1], [("value", step)], f"task {step}")
    api.rollback(places[1])
    assert api.get_tuple(config()).checkpoint["channel_values"] == {"value": 1}
    assert len(api.list(config())) == 4 and saver.verify()
    for table in ("checkpoints", "writes"):
        marks = rows_of(path, f"SELECT undone, seq FROM {table} WHERE undone IS NOT NULL")
        edit(path, (f"UPDATE {table} SET undone = NULL", ()))
        with AgentSaver(path, key=KEY) as other:
            if table == "checkpoints":
                assert len(marks) == 2
                with pytest.raises(SealError):
                    other.get_tuple(config())
            assert not marks or not other.verify()
        edit(path, *[(f"UPDATE {table} SET undone = ? WHERE seq = ?", mark) for mark in marks])
    put(api, api.get_tuple(config()).config, 9, value=9)
    assert api.get_tuple(config()).checkpoint["channel_values"] == {"value": 9}


def test_threads_go_in_and_out_of_sealed_files(path: Path, tmp_path: Path, open_sealed: Any) -> None:
    """A thread goes from a plaintext file into a sealed one and on: by transfer, as a portable file, and from another
    saver; it is sealed there, is written on, and verifies."""
    saver = open_sealed(seal_thread_ids=True)
    with AgentSaver(tmp_path / "plain.db") as plain:
        two_threads(plain)
        before = {thread_id: whole_of(plain, thread_id) for thread_id in ("alice", "bob")}
        transfer(plain, saver, threads=["alice"])
        plain.export_thread("bob", tmp_path / "bob.ackpt")
    saver.import_thread(tmp_path / "bob.ackpt")
    memory = InMemorySaver()
    at = put(memory, config("mem"), 1, value="m" * 100)
    memory.put_writes(at, [("value", "w" * 100)], "task")
    transfer(memory, saver)
    assert {thread_id: whole_of(saver, thread_id) for thread_id in ("alice", "bob")} == before
    assert saver.get_tuple(config("mem")).pending_writes == [("task", "value", "w" * 100)]
    assert saver.verify() and not any(name in path.read_bytes() for name in (b"alice", b"admin", b"mem", b"mmmm"))
    for thread_id in ("alice", "bob", "mem"):
        at = put(saver, saver.get_tuple(config(thread_id)).config, 9, value="later")
        saver.put_writes(at, [("value", 1)], "task-9")
        assert saver.get_tuple(config(thread_id)).checkpoint["channel_values"] == {"value": "later"}
    saver.export_thread("alice", tmp_path / "alice.ackpt", plain=True)
    with AgentSaver(tmp_path / "second.db") as second:
        second.import_thread(tmp_path / "alice.ackpt")
        assert whole_of(second, "alice") == whole_of(saver, "alice") and second.verify()


def test_leases_on_a_sealed_file(path: Path, tmp_path: Path, open_sealed: Any, form: str) -> None:
    """Who holds a lease stands sealed, and its thread id where thread ids do; it keeps others out."""
    saver = open_sealed(seal_thread_ids=True)
    put(saver, config(CANARY), 1, value="v")
    with saver.lease(CANARY):
        raw = raw_of(tmp_path)
        assert CANARY.encode() not in raw and f"process {os.getpid()} on".encode() not in raw
        ((thread_id, holder),) = [(one.thread_id, one.holder) for one in Api(saver, form).leases()]
        assert thread_id == CANARY and f"process {os.getpid()} on" in holder
        with AgentSaver(path, key=KEY) as other:
            with pytest.raises(ThreadConflictError, match=f"process {os.getpid()}"):
                put(other, other.get_tuple(config(CANARY)).config, 2, value="w")
    put(saver, saver.get_tuple(config(CANARY)).config, 2, value="w")


def test_more_namespaces_than_the_head_remembers(open_sealed: Any) -> None:
    """Namespaces that fell out of the sealed head, and come back, are read as before."""
    saver = open_sealed()
    places = {f"ns {number}": config("t", f"ns {number}") for number in range(12)}
    for step in range(3):
        for ns in places:
            ahead = empty_checkpoint()
            saver.put_writes(
                {"configurable": {**places[ns]["configurable"], "checkpoint_id": ahead["id"]}}, [("a", step)], f"{step}"
            )
            conf = places[ns]
            places[ns] = saver.put(conf, ahead, {"step": step}, {})
            saver.put_writes(places[ns], [("b", step)], f"later {step}")
    for ns in places:
        found = saver.get_tuple(config("t", ns))
        assert found.metadata["step"] == 2 and [value for _, _, value in found.pending_writes] == [2, 2]
