"""Somebody who can write the file changes the rows of the credential store: nothing false is given out."""

from __future__ import annotations

import os
import random
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from agent_ckpt import AgentSaver, UsageError
from agent_ckpt.codec.pack import pack
from agent_ckpt.errors import SealError, WrongKeyError
from tests.conftest import Api
from tests.sealed import KEY, sealed_savers
from tests.test_credentials import CANARY, of

Rows = dict[str, list[tuple[Any, ...]]]


@pytest.fixture
def open_sealed(path: Path) -> Iterator[Callable[..., AgentSaver]]:
    with sealed_savers(path) as open_one:
        yield open_one


def edit(path: Path, sql: str, *params: Any) -> None:
    with closing(sqlite3.connect(path)) as db:
        assert db.execute(sql, params).rowcount
        db.commit()


def rows(path: Path) -> Rows:
    with closing(sqlite3.connect(path)) as db:
        return {
            "vaults": db.execute(
                "SELECT vault, thread_id, revision, keys, frame FROM vaults ORDER BY vault"
            ).fetchall(),
            "credential_uses": db.execute("SELECT use, vault, frame FROM credential_uses ORDER BY use").fetchall(),
        }


def put_back(path: Path, table: str, kept: Rows) -> None:
    edit(path, f"DELETE FROM {table}")
    for row in kept[table]:
        edit(path, f"INSERT INTO {table} VALUES ({', '.join('?' * len(row))})", *row)


def refused(path: Path, form: str, *threads: str, match: str = "credentials of thread") -> None:
    """Every way to the credentials of these threads is refused, verify tells of each, and clear() mends."""
    with AgentSaver(path, key=KEY) as saver:
        assert {each.thread_id for each in saver.verify().findings} >= set(threads)
        for thread in threads:
            here = of(saver, form, thread)
            for call in (lambda: here.get("github"), lambda: here.set("github", "x"), lambda: here.delete("github")):
                with pytest.raises(SealError, match=match) as error:
                    call()
                assert thread in str(error.value)
                assert CANARY not in str(error.value)
            with pytest.raises(SealError, match=match):
                here.names()
            assert here.clear()
            here.set("github", "new")
            assert here.get("github").reveal() == "new"
        assert saver.verify().findings == ()


@pytest.fixture
def two(open_sealed: Callable[..., AgentSaver], path: Path) -> Path:
    """Threads a and b, each with a credential and some uses."""
    saver = open_sealed()
    for thread in ("a", "b"):
        here = saver.credentials(thread)
        here.set("github", f"{CANARY} of {thread}")
        here.get("github")
    saver.close()
    return path


@pytest.mark.parametrize("columns", ["frame", "keys, frame", "revision, frame", "revision, keys, frame"])
def test_rows_swapped_between_threads(two: Path, form: str, columns: str) -> None:
    """B19: b's credentials in a's row, with or without its data key, are not a's."""
    edit(
        two,
        f"UPDATE vaults SET ({columns}) = (SELECT {columns} FROM vaults WHERE thread_id = 'b') WHERE thread_id = 'a'",
    )
    refused(two, form, "a")


def test_threads_renamed(two: Path, form: str) -> None:
    """A row under another thread's id doesn't open there."""
    edit(two, "UPDATE vaults SET thread_id = 'c' WHERE thread_id = 'b'")
    refused(two, form, "c")


def test_an_older_row_put_back(two: Path, form: str) -> None:
    """A revoked token that is put back from an older copy of the row is not given out."""
    old = rows(two)
    with AgentSaver(two, key=KEY) as saver:
        saver.credentials("a").set("github", "rotated")
    put_back(two, "vaults", old)
    refused(two, form, "a", match="record of use")


@pytest.mark.parametrize("forged", ["set back", "made newest"])
def test_an_older_frame_put_back(two: Path, form: str, forged: str) -> None:
    """The older frame under the newer revision doesn't open: the revision is bound into it."""
    old = next(row for row in rows(two)["vaults"] if row[1] == "a")
    with AgentSaver(two, key=KEY) as saver:
        saver.credentials("a").set("github", "rotated")
    if forged == "made newest":
        edit(two, "UPDATE vaults SET revision = revision + 1 WHERE thread_id = 'a'")
    else:
        edit(two, "UPDATE vaults SET frame = ? WHERE thread_id = 'a'", old[4])
    refused(two, form, "a")


def test_a_plaintext_row(two: Path, form: str) -> None:
    """B18: a row that isn't sealed is not read, in whatever frame it stands."""
    plain = pack({"github": [1, None, None, None, "forged"]})
    for header in (b"", b"\xac\x01\x20\x00\x01", b"\xac\x01\x20\x00\x00", b"\xac\x01\x01\x00\x00"):
        edit(two, "UPDATE vaults SET frame = ? WHERE thread_id = 'a'", header + plain)
        refused(two, form, "a")


def test_every_byte_of_the_row(two: Path, form: str) -> None:
    """Each bit flipped alone, and each shorter frame, is refused; so is random garbage."""
    with AgentSaver(two, key=KEY) as saver:
        (frame,) = [row[4] for row in rows(two)["vaults"] if row[1] == "a"]
        chance = random.Random(4)
        wrong = [
            frame[:at] + bytes((frame[at] ^ 1 << chance.randrange(8),)) + frame[at + 1 :] for at in range(len(frame))
        ]
        wrong += [frame[:at] for at in range(0, len(frame), 7)] + [chance.randbytes(60) for _ in range(20)]
        here = of(saver, form, "a")
        for one in wrong:
            edit(two, "UPDATE vaults SET frame = ? WHERE thread_id = 'a'", one)
            with pytest.raises(SealError):
                here.get("github")
        edit(two, "UPDATE vaults SET frame = ? WHERE thread_id = 'a'", frame)
        assert here.get("github").reveal() == f"{CANARY} of a"


def test_the_wrapped_key_altered(two: Path, form: str) -> None:
    """A data key that was changed, or is another thread's, is refused before anything is opened with it."""
    (keys,) = [row[3] for row in rows(two)["vaults"] if row[1] == "a"]
    for wrong in (keys[:-1] + bytes((keys[-1] ^ 1,)), b"", keys[:20], os.urandom(len(keys))):
        edit(two, "UPDATE vaults SET keys = ? WHERE thread_id = 'a'", wrong)
        with AgentSaver(two, key=KEY) as saver:
            with pytest.raises((SealError, WrongKeyError)):
                of(saver, form, "a").get("github")
            assert [each.thread_id for each in saver.verify().findings] == ["a"]
    edit(two, "UPDATE vaults SET keys = ? WHERE thread_id = 'a'", keys)


def test_records_of_use_altered(two: Path, form: str) -> None:
    """A record that was changed, exchanged or moved to another thread is told by audit() and verify()."""
    kept = rows(two)
    first, second = kept["credential_uses"][:2]
    for sql, params in (
        ("UPDATE credential_uses SET frame = ? WHERE use = ?", (second[2], first[0])),
        ("UPDATE credential_uses SET frame = ? WHERE use = ?", (b"\xac\x01\x21\x00\x00" + first[2][5:], first[0])),
        ("UPDATE credential_uses SET frame = substr(frame, 1, 40) WHERE use = ?", (first[0],)),
    ):
        edit(two, sql, *params)
        with AgentSaver(two, key=KEY) as saver:
            with pytest.raises(SealError, match="record of use"):
                of(saver, form, "a").audit()
            assert [each.thread_id for each in saver.verify().findings] == ["a"]
        put_back(two, "credential_uses", kept)


def test_the_newest_record_deleted(two: Path, form: str) -> None:
    """Who deletes the newest record of a use is noticed at the next one."""
    edit(two, "DELETE FROM credential_uses WHERE use = (SELECT revision FROM vaults WHERE thread_id = 'a')")
    refused(two, form, "a", match="record of use")


def test_rows_that_belong_to_nothing(two: Path) -> None:
    """verify tells of records without a thread, and of numbers beyond the store's counter."""
    kept = rows(two)
    edit(two, "DELETE FROM vaults WHERE thread_id = 'a'")
    with AgentSaver(two, key=KEY) as saver:
        assert [each.kind for each in saver.verify().findings] == ["orphan"]
    put_back(two, "vaults", kept)
    edit(two, "UPDATE this_store SET sequence = 1")
    with AgentSaver(two, key=KEY) as saver:
        assert any("commit sequence" in each.detail for each in saver.verify().findings)
    edit(two, "UPDATE this_store SET sequence = 1000")


def test_another_key(two: Path, form: str) -> None:
    """A saver with another key is told which one it needs; the message holds no key."""
    other = os.urandom(32)
    with pytest.raises(WrongKeyError) as error, AgentSaver(two, key=other) as saver:
        of(saver, form, "a").get("github")
    assert error.value.needed
    assert error.value.needed not in error.value.given
    assert other.hex() not in str(error.value)
    assert KEY.hex() not in str(error.value)


def test_damaged_credentials_leave_the_thread_usable(two: Path, form: str) -> None:
    """The thread's checkpoints are read and written on, and delete_thread deletes also what doesn't open."""
    edit(two, "UPDATE vaults SET frame = x'00' WHERE thread_id = 'a'")
    with AgentSaver(two, key=KEY) as saver:
        api = Api(saver, form)
        config = {"configurable": {"thread_id": "a", "checkpoint_ns": ""}}
        checkpoint: Any = {
            "v": 1,
            "id": "1",
            "ts": "",
            "channel_values": {},
            "channel_versions": {},
            "versions_seen": {},
        }
        api.put(config, checkpoint, {}, {})
        assert api.get_tuple(config).checkpoint["id"] == "1"
        with pytest.raises((SealError, UsageError)):
            api.copy_thread("a", "c", credentials=True)
        api.delete_thread("a")
        assert of(saver, form, "a").names() == []
