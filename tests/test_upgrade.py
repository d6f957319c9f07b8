"""Files of older and newer releases: which are opened, and how one is brought up. One schema_version exists so far,
so older and newer ones are made by changing numbers.
"""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from agent_ckpt import AgentSaver, BusyError, FormatError, UsageError
from agent_ckpt.sqlite import schema, upgrade, versions
from agent_ckpt.sqlite.versions import Step, Versions
from tests.conftest import Api
from tests.threads import checkpoint_of

CONFIG: Any = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}
ROOT = Path(__file__).parent.parent


@pytest.fixture
def store(path: Path) -> Path:
    """A store with one checkpoint."""
    with AgentSaver(path) as saver:
        saver.put(CONFIG, checkpoint_of({"n": 1}, {"n": 1}), {}, {"n": 1})
    return path


def execute(path: Path, *statements: str) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for statement in statements:
            connection.execute(statement)


def user_version(path: Path) -> int:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute("PRAGMA user_version").fetchone()[0]  # type: ignore[no-any-return]


NEWER_TABLES = (
    "ALTER TABLE checkpoints ADD COLUMN later TEXT",
    "CREATE INDEX checkpoints_later ON checkpoints (later)",
    "CREATE TABLE of_a_later_release (x INTEGER)",
)


def marked(schema: int, reader: int, writer: int) -> str:
    return f"PRAGMA user_version={schema | reader << 8 | writer << 16}"


def test_old_and_new_workers_share_a_file_of_a_minor_release(store: Path, form: str) -> None:
    """A newer file whose lowest reader and writer are ours is read and written, with what the newer one added."""
    execute(store, *NEWER_TABLES, marked(2, 1, 1))
    with AgentSaver(store, create=False) as saver:
        api = Api(saver, form)
        assert api.get_tuple(CONFIG).checkpoint["channel_values"] == {"n": 1}
        api.put(api.get_tuple(CONFIG).config, checkpoint_of({"n": 2}, {"n": 2}), {}, {"n": 2})
        assert api.get_tuple(CONFIG).checkpoint["channel_values"] == {"n": 2}
        assert api.verify()
    assert user_version(store) == 2 | 1 << 8 | 1 << 16


def test_a_file_that_only_newer_releases_write_is_still_read(store: Path, form: str) -> None:
    """Writing is refused with what to do, reading goes on, and nothing changes."""
    execute(store, *NEWER_TABLES, marked(2, 1, 2))
    before = store.read_bytes()
    with AgentSaver(store, create=False) as saver:
        api = Api(saver, form)
        found = api.get_tuple(CONFIG)
        assert found.checkpoint["channel_values"] == {"n": 1}
        with pytest.raises(FormatError, match="written by releases from schema_version 2 on: upgrade agent_ckpt"):
            api.put(found.config, checkpoint_of({"n": 2}, {"n": 2}), {}, {"n": 2})
        assert api.get_tuple(CONFIG).checkpoint["channel_values"] == {"n": 1}
    assert store.read_bytes() == before


def test_what_only_newer_releases_read_is_refused(store: Path) -> None:
    """A raised lowest reader, a newer trigger, a lost column, and marks that say nothing: refused, and untouched."""
    for statements, why in (
        ((marked(2, 2, 2),), "read by releases from schema_version 2 on: upgrade agent_ckpt"),
        (("PRAGMA user_version=2",), "upgrade agent_ckpt"),
        (("PRAGMA user_version=256",), "restore a backup"),
        (("CREATE TRIGGER x AFTER INSERT ON checkpoints BEGIN SELECT 1; END", marked(2, 1, 1)), "the trigger x"),
        (("DROP TRIGGER x", "ALTER TABLE checkpoints RENAME COLUMN run TO ran", marked(2, 1, 1)), "was changed"),
    ):
        execute(store, *statements)
        before = store.read_bytes()
        with AgentSaver(store, create=False) as saver, pytest.raises(FormatError, match=why):
            saver.get_tuple(CONFIG)
        assert store.read_bytes() == before


@pytest.fixture
def next_release(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """This code as a release with schema_version 2 and a step to it."""

    def step(connection: sqlite3.Connection) -> None:
        connection.execute("CREATE TABLE of_2 (x INTEGER)")

    monkeypatch.setattr(versions, "SCHEMA_VERSION", 2)
    monkeypatch.setitem(versions.STEPS, 1, Step(step, reader=2, writer=2))


@pytest.fixture
def minor() -> Callable[[], AbstractContextManager[None]]:
    """Turns this code into a later release, which adds a table and a column and lets older ones go on."""

    def step(connection: sqlite3.Connection) -> None:
        connection.execute("CREATE TABLE of_2 (x INTEGER)")
        connection.execute("ALTER TABLE checkpoints ADD COLUMN later TEXT")

    @contextmanager
    def as_later_release() -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(versions, "SCHEMA_VERSION", 2)
            patch.setitem(versions.STEPS, 1, Step(step))
            yield

    return as_later_release


MINOR = 2 | 1 << 8 | 1 << 16


def test_a_minor_release_adds_to_an_older_file_and_shares_it(store: Path, minor: Any, form: str) -> None:
    """Opening adds what the release needs and never raises the lowest reader and writer: a worker of the older release
    that has the file open goes on writing, and one that opens it afterwards reads and writes too."""

    def step_on(saver: AgentSaver, value: int) -> None:
        api = Api(saver, form)
        api.put(api.get_tuple(CONFIG).config, checkpoint_of({"n": value}, {"n": value}), {}, {"n": value})

    with AgentSaver(store, create=False) as older:
        step_on(older, 2)
        with minor(), AgentSaver(store, create=False) as newer:
            step_on(newer, 3)
            assert user_version(store) == MINOR
            step_on(older, 4)
            step_on(newer, 5)
            assert newer.verify()
        step_on(older, 6)
    with AgentSaver(store, create=False) as older:
        step_on(older, 7)
        assert older.verify()
        assert [each.checkpoint["channel_values"]["n"] for each in older.list(CONFIG)] == [7, 6, 5, 4, 3, 2, 1]
    with minor(), AgentSaver(store, create=False) as newer:
        assert newer.verify()
    assert user_version(store) == MINOR
    with closing(sqlite3.connect(store)) as connection:
        assert connection.execute("SELECT count(*) FROM of_2").fetchone() == (0,)


def test_a_file_that_a_minor_release_makes_is_shared(path: Path, minor: Any, form: str) -> None:
    """It says from the start that older releases may read and write it; also one that an older release only began."""
    for began in (False, True):
        if began:
            path.unlink()
            execute(path, f"PRAGMA application_id={schema.APPLICATION_ID}", "PRAGMA user_version=1")
        with minor(), AgentSaver(path) as newer:
            Api(newer, form).put(CONFIG, checkpoint_of({"n": 1}, {"n": 1}), {}, {"n": 1})
        assert user_version(path) == MINOR
        with AgentSaver(path, create=False) as older:
            assert Api(older, form).get_tuple(CONFIG).checkpoint["channel_values"] == {"n": 1}


@pytest.mark.parametrize(("reader", "writer"), [(0, 2), (1, 2), (2, 2)])
def test_a_step_that_raises_is_made_by_upgrade_alone(
    store: Path, reader: int, writer: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Opening refuses it with the command; afterwards the file says who may read and write it, and older ones abide."""
    with monkeypatch.context() as patch:
        patch.setattr(versions, "SCHEMA_VERSION", 2)
        patch.setitem(versions.STEPS, 1, Step(lambda connection: None, reader, writer))
        with AgentSaver(store, create=False) as newer, pytest.raises(FormatError, match="agent-ckpt upgrade"):
            newer.get_tuple(CONFIG)
        assert user_version(store) == 1
        upgrade.upgrade(store)
        assert Versions.of(user_version(store)) == Versions(2, max(reader, 1), 2)
    with AgentSaver(store, create=False) as older:
        if reader == 2:
            with pytest.raises(FormatError, match="read by releases from schema_version 2"):
                older.get_tuple(CONFIG)
            return
        found = older.get_tuple(CONFIG)
        assert found is not None
        with pytest.raises(FormatError, match="written by releases from schema_version 2"):
            older.put(found.config, checkpoint_of({"n": 2}, {"n": 2}), {}, {"n": 2})


@pytest.mark.usefixtures("next_release")
def test_an_older_file_is_brought_up_after_a_backup(store: Path) -> None:
    """Until then it is refused with the command to run; the backup is the file as it was, and nothing is lost."""
    with AgentSaver(store, create=False) as saver, pytest.raises(FormatError, match="agent-ckpt upgrade"):
        saver.get_tuple(CONFIG)
    done = upgrade.upgrade(store)
    assert (done.found, done.now) == (1, 2)
    assert done.backup is not None and user_version(Path(done.backup)) == 1
    assert Path(done.backup).stat().st_mode & 0o777 == 0o600
    assert user_version(store) == 2
    with AgentSaver(store, create=False) as saver:
        found = saver.get_tuple(CONFIG)
        assert found is not None and found.checkpoint["channel_values"] == {"n": 1}
        assert saver.verify()
    with closing(sqlite3.connect(store)) as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert upgrade.upgrade(store).backup is None
    execute(store, "DROP TABLE of_2", "PRAGMA user_version=1")
    with pytest.raises(UsageError, match="is there already"):
        upgrade.upgrade(store)


@pytest.mark.usefixtures("next_release")
def test_an_upgrade_that_cannot_be_made_changes_nothing(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While another has the file open, when a step fails, and where a step is missing."""
    with closing(sqlite3.connect(store)) as other:
        other.execute("SELECT count(*) FROM checkpoints").fetchone()
        with pytest.raises(BusyError):
            upgrade.upgrade(store, f"{store}.first")
    assert user_version(store) == 1

    def fails(connection: sqlite3.Connection) -> None:
        connection.execute("CREATE TABLE half (x INTEGER)")
        raise RuntimeError("the step failed")

    monkeypatch.setitem(versions.STEPS, 1, Step(fails, reader=2, writer=2))
    with pytest.raises(RuntimeError, match="the step failed"):
        upgrade.upgrade(store, f"{store}.second")
    with closing(sqlite3.connect(store)) as connection:
        assert connection.execute("SELECT count(*) FROM sqlite_schema WHERE name = 'half'").fetchone() == (0,)
    monkeypatch.delitem(versions.STEPS, 1)
    with pytest.raises(FormatError, match="no step from 1"):
        upgrade.upgrade(store)
    assert user_version(store) == 1


def test_the_command_says_that_there_is_nothing_to_do(store: Path, open_saver: Callable[..., AgentSaver]) -> None:
    """`agent-ckpt upgrade` on a file of this release leaves it as it is; a newer and a foreign one are refused."""

    def command(*arguments: str) -> subprocess.CompletedProcess[str]:
        line = [sys.executable, "-m", "agent_ckpt", "upgrade", *arguments]
        return subprocess.run(line, cwd=ROOT, capture_output=True, text=True, timeout=120)

    before = store.read_bytes()
    assert "nothing to do" in command(str(store)).stdout
    told = json.loads(command(str(store), "--json").stdout)
    assert (told["found"], told["now"], told["backup"]) == (1, 1, None)
    assert store.read_bytes() == before
    open_saver()
    execute(store, marked(2, 2, 2))
    assert command(str(store)).returncode == FormatError.exit_code
    execute(store, "PRAGMA user_version=1")
