"""A restore with nothing in memory: what it computes for a long list, and that its short cuts miss no damage."""

from __future__ import annotations

import random
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from langchain_core.messages import HumanMessage

from agent_ckpt import AgentSaver, CorruptionError
from agent_ckpt.codec import digest, frame, packs, tree
from agent_ckpt.codec.tree import GROUP_AT_MOST
from agent_ckpt.sqlite import connect, schema
from tests.conftest import Api
from tests.threads import Thread, checkpoint_of, query

MANY = 300
MESSAGES = [
    HumanMessage(f"message {number} of a long thread, whose text is its own", id=f"m{number}") for number in range(MANY)
]
AT = {"configurable": {"thread_id": "t"}}


@pytest.fixture
def unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every message stands in a row of its own."""
    monkeypatch.setattr(packs, "ITEMS_AT_LEAST", MANY + 1)


@pytest.fixture
def store(path: Path, form: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A closed store with one thread of many messages, in groups of 40 at most, so that there are several packs."""
    monkeypatch.setattr(tree, "GROUP_AT_MOST", 40)
    with AgentSaver(path) as saver:
        Thread(Api(saver, form)).put(messages=MESSAGES)
    return path


def blobs_of_messages(path: Path) -> list[int]:
    """The blobs that are messages in rows of their own."""
    read = "SELECT blob FROM blobs WHERE substr(frame, 3, 1) = ?"
    return [blob for (blob,) in query(path, read, bytes((frame.MESSAGE,)))]


def moved(path: Path) -> int:
    """How many blobs stand in packs."""
    return int(query(path, "SELECT count(*) FROM blobs WHERE typeof(frame) = 'integer'")[0][0])


def test_a_list_in_closed_groups_needs_no_address_of_each_item(
    store: Path, form: str, open_saver: Callable[..., AgentSaver], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cold restore takes the addresses of groups and of the open rest alone, and still gives back what was stored."""
    computed: list[bytes] = []
    address = digest.address
    monkeypatch.setattr(digest, "address", lambda body, secret: computed.append(body) or address(body, secret))
    found = Api(open_saver(store), form).get_tuple(AT)
    assert found.checkpoint["channel_values"]["messages"] == MESSAGES
    items = [body for body in computed if body[0] == frame.MESSAGE]
    assert len(items) < GROUP_AT_MOST < MANY, "the addresses of messages in closed groups were computed"


def test_content_in_another_items_place_is_noticed_wherever_it_stands(unpacked: None, store: Path, form: str) -> None:
    """A message whose row holds another message's whole frame is named, in closed groups and in the open rest."""
    blobs = blobs_of_messages(store)
    assert len(blobs) == MANY
    for blob in [blobs[0], blobs[-1], *random.Random(7).sample(blobs, 6)]:
        other = blobs[blobs.index(blob) - 1]
        with closing(sqlite3.connect(store, isolation_level=None)) as connection:
            read = "SELECT frame FROM blobs WHERE blob = ?"
            before = connection.execute(read, (blob,)).fetchone()
            connection.execute(f"UPDATE blobs SET frame = ({read}) WHERE blob = ?", (other, blob))
        with AgentSaver(store) as saver:
            with pytest.raises(CorruptionError, match=f"blob {blob & (1 << 28) - 1}: is damaged"):
                Api(saver, form).get_tuple(AT)
            assert saver.verify().findings
        with closing(sqlite3.connect(store, isolation_level=None)) as connection:
            connection.execute("UPDATE blobs SET frame = ? WHERE blob = ?", (*before, blob))
    with AgentSaver(store) as saver:
        assert not saver.verify().findings


@pytest.mark.parametrize("what", ["frame", "items"])
def test_a_changed_pack_is_named(store: Path, form: str, what: str) -> None:
    """A pack of which a byte, the place or the count changed is CorruptionError that names it, and a finding."""
    rows = query(store, "SELECT pack, items, frame FROM packs ORDER BY pack")
    assert len(rows) > 1
    number = rows[0][0] & (1 << 28) - 1
    changes: list[object] = [rows[0][1] - 1, rows[0][1] + 1]
    if what == "frame":
        framed = rows[0][2]
        places = [0, 2, 3, 5, len(framed) // 2, len(framed) - 1]
        changes = [framed[:at] + bytes((framed[at] ^ 1,)) + framed[at + 1 :] for at in places] + [rows[1][2], b""]
    for changed in changes:
        query(store, f"UPDATE packs SET {what} = ? WHERE pack = ?", changed, rows[0][0])
        with AgentSaver(store) as saver:
            api = Api(saver, form)
            if what == "frame":
                with pytest.raises(CorruptionError, match=f"pack of group {number} is damaged"):
                    api.get_tuple(AT)
            else:
                assert api.get_tuple(AT).checkpoint["channel_values"]["messages"] == MESSAGES
            assert any(f"group {number}" in finding.detail for finding in saver.verify().findings)
        query(store, f"UPDATE packs SET {what} = ? WHERE pack = ?", rows[0][1 if what == "items" else 2], rows[0][0])
    query(store, "DELETE FROM packs WHERE pack = ?", rows[0][0])
    with AgentSaver(store) as saver:
        with pytest.raises(CorruptionError, match=f"the pack of group {number} is missing"):
            Api(saver, form).get_tuple(AT)
        assert saver.verify().findings


def test_an_older_checkpoint_finds_what_was_moved(
    store: Path, form: str, open_saver: Callable[..., AgentSaver]
) -> None:
    """Bodies that a later checkpoint's group took into its pack are still there for the checkpoints before it."""
    api = Api(open_saver(store.with_name("steps.db")), form)
    thread, ids, count = Thread(api), [], 150
    for size in range(1, count + 1):
        ids.append(thread.put(messages=MESSAGES[:size]))
    fresh = Api(open_saver(store.with_name("steps.db")), form)
    assert moved(store.with_name("steps.db")) >= 16
    for size in (1, 17, 64, 65, 128, count):
        found = fresh.get_tuple(ids[size - 1])
        assert found.checkpoint["channel_values"]["messages"] == MESSAGES[:size]


def test_pruning_puts_back_what_a_dropped_group_had(
    store: Path, form: str, open_saver: Callable[..., AgentSaver]
) -> None:
    """A pack goes with its group: what is kept of it has rows of its own again, and nothing else of it is left. Groups
    of the list as it is now keep theirs."""
    api = Api(open_saver(store), form)
    kept = [each for at, each in enumerate(MESSAGES) if at % 3]
    found = api.get_tuple(AT)
    api.put(found.config, checkpoint_of({"messages": kept}, {"messages": 2}), {}, {"messages": 2})
    before = {pack for (pack,) in query(store, "SELECT pack FROM packs")}
    assert before
    api.prune(["t"], strategy="keep_latest")
    assert {pack for (pack,) in query(store, "SELECT pack FROM packs")} < before
    assert Api(open_saver(store), form).get_tuple(AT).checkpoint["channel_values"]["messages"] == kept


def test_a_restored_list_is_appended_to_by_what_is_new(
    store: Path, form: str, open_saver: Callable[..., AgentSaver]
) -> None:
    """After a cold restore the next put stores the new message, and closes the same groups as one saver would have."""
    api = Api(open_saver(store), form)
    found = api.get_tuple(AT)
    longer = [*found.checkpoint["channel_values"]["messages"], HumanMessage("one more of them, the last", id="last")]
    before = len(blobs_of_messages(store)) + moved(store)
    api.put(found.config, checkpoint_of({"messages": longer}, {"messages": 2}), {}, {"messages": 2})
    assert len(blobs_of_messages(store)) + moved(store) == before + 1
    assert Api(open_saver(store), form).get_tuple(AT).checkpoint["channel_values"]["messages"] == longer


def test_the_expected_tables_are_what_sqlite_makes_of_the_schema() -> None:
    """What opening compares a file with is read from the text of the statements, and is what SQLite lists of them."""
    with closing(connect.connect("file::memory:")) as connection:
        schema._run_schema(connection)
        assert schema._expected() == schema._objects(connection)


SELDOM = ("cryptography", "ctypes", "aiosqlite", "filelock", "agent_ckpt.reports", "agent_ckpt.codec.keyring")
FRESH = """
import sys, langgraph.graph, langgraph.checkpoint.memory, langgraph.checkpoint.base
before = set(sys.modules)
from agent_ckpt import AgentSaver
print(*(set(sys.modules) - before))
with AgentSaver(sys.argv[1]) as saver:
    assert saver.get_tuple({"configurable": {"thread_id": "t"}}) is not None
print(*(set(sys.modules) - before))
"""


def test_importing_and_reading_load_nothing_that_few_programs_need(store: Path) -> None:
    """What keys, credentials, reports, async calls and writes need comes neither with the class nor with a restore."""
    done = subprocess.run([sys.executable, "-c", FRESH, store], capture_output=True, text=True, check=True, timeout=120)
    for line in done.stdout.splitlines():
        loaded = set(line.split())
        assert "agent_ckpt.saver" in loaded
        assert not loaded.intersection(SELDOM)
