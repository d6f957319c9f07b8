"""The SQLite backend's files: targets, rights, and files that are not ours."""

from __future__ import annotations

import logging
import os
import shutil
import sqlite3
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiosqlite
import pytest

from agent_ckpt.errors import CkptError, FormatError, UsageError
from agent_ckpt.options import Options
from agent_ckpt.sqlite import SqliteBackend, connect, schema, versions
from tests.sqlite_backend import add, backend_on, count, run_script


def _bytes_around(path: Path) -> dict[str, tuple[bytes, int, int]]:
    """Content, time of change and rights of everything in the folder, of which nothing is open here."""
    found = {}
    for name in sorted(os.listdir(path.parent)):
        status = os.stat(path.parent / name)
        found[name] = ((path.parent / name).read_bytes(), status.st_mtime_ns, status.st_mode)
    return found


def _modes(folder: Path) -> set[int]:
    return {stat.S_IMODE(os.stat(folder / name).st_mode) for name in os.listdir(folder)}


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077, 0o177])
def test_new_files_have_the_mode_of_the_option(tmp_path: Path, umask: int) -> None:
    """B16: database, -wal, -shm and side file get exactly the option's mode, whatever the umask."""
    for mode in (0o600, 0o640):
        folder = tmp_path / oct(mode)
        folder.mkdir()
        before = os.umask(umask)
        try:
            backend = backend_on(folder / "a.db", file_mode=mode)
            backend.run(add("a"), write=True)
        finally:
            os.umask(before)
        assert sorted(os.listdir(folder)) == ["a.db", "a.db-lock", "a.db-shm", "a.db-wal"]
        assert _modes(folder) == {mode}
        backend.close()


def test_existing_files_lose_only_the_rights_of_others(tmp_path: Path) -> None:
    """B16: an existing file keeps its owner's and group's rights, also its -wal and -shm."""
    first = backend_on(tmp_path / "a.db")
    first.run(add("a"), write=True)
    for name in os.listdir(tmp_path):
        os.chmod(tmp_path / name, 0o664)
    second = backend_on(tmp_path / "a.db")
    second.run(count)
    assert _modes(tmp_path) == {0o660}
    first.close()
    second.close()


def test_settings_of_a_new_file(tmp_path: Path) -> None:
    """The file carries our marks (visible without its WAL), auto_vacuum, 4 KiB pages and WAL mode."""
    backend = backend_on(tmp_path / "a.db", synchronous="full")
    backend.run(add("a"), write=True)
    # Another process reads it: an open and close here would drop this process's locks (B66).
    script = "file = open(sys.argv[1], 'rb'); print(file.read(100).hex()); file.close()"
    header = bytes.fromhex(run_script(script, tmp_path / "a.db"))
    assert header[68:72] == b"ACKP"
    assert int.from_bytes(header[60:64], "big") == 1
    handle = backend._store.writer._handle
    assert handle is not None

    def setting(name: str) -> Any:
        return handle.connection.execute(f"PRAGMA {name}").fetchone()[0]

    assert [setting(n) for n in ("auto_vacuum", "page_size", "journal_mode", "synchronous")] == [2, 4096, "wal", 2]
    assert [setting(n) for n in ("trusted_schema", "secure_delete", "mmap_size", "busy_timeout")] == [0, 1, 0, 0]
    assert setting("journal_size_limit") == 1048576
    backend.close()
    normal = backend_on(tmp_path / "b.db")
    assert normal._store.writer._handle is not None
    assert normal._store.writer._handle.connection.execute("PRAGMA synchronous").fetchone()[0] == 1
    normal.close()


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ("sqlite:///a.db", "a.db"),
        ("sqlite:////{folder}/b.db", "b.db"),
        ("sqlite:///c%20d.db?mode=rwc", "c d.db"),
        ("odd ?#%&'\".db", "odd ?#%&'\".db"),
        ("ünï.db", "ünï.db"),
    ],
)
def test_targets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str, name: str) -> None:
    """Paths and URLs, relative and absolute, with characters that mean something in a URI."""
    monkeypatch.chdir(tmp_path)
    backend = backend_on(given.format(folder=str(tmp_path).lstrip("/")))
    assert backend.target == str(tmp_path / name)
    backend.close()
    assert (tmp_path / name).exists()


@pytest.mark.parametrize("given", [":memory:", "sqlite://", "sqlite:///:memory:", "sqlite:///"])
def test_memory_targets(given: str) -> None:
    """The ways to say that nothing is to be kept."""
    backend = backend_on(given)
    assert backend.target == ":memory:"
    backend.close()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("", "empty"),
        ("  ", "empty"),
        ("a\0b", "NUL"),
        ("postgresql://host/db", "unknown URL scheme 'postgresql'"),
        ("sqlite:///a.db?cache=shared", "cache=shared"),
        ("sqlite:///a.db?mode=memory", "mode=memory"),
        ("sqlite://host/a.db", "no host"),
        ("file:a.db?mode=ro", "file: URIs"),
        (7, "got int"),
        (None, "got NoneType"),
    ],
)
def test_wrong_targets(given: Any, said: str) -> None:
    """What can't be a target is refused at once, saying what can."""
    with pytest.raises(UsageError, match=said):
        SqliteBackend(given, Options())


def test_connections_as_target(tmp_path: Path) -> None:
    """An open connection is refused, naming the path to pass instead; it is left open."""
    connection = sqlite3.connect(tmp_path / "a.db")
    with pytest.raises(UsageError, match=r"a\.db"):
        SqliteBackend(connection, Options())
    connection.execute("SELECT 1")
    connection.close()
    memory = sqlite3.connect(":memory:")
    with pytest.raises(UsageError, match=":memory:"):
        SqliteBackend(memory, Options())
    memory.close()
    with pytest.raises(UsageError, match="path"):
        SqliteBackend(aiosqlite.connect("a.db"), Options())


def test_missing_files_and_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing file that must not be made: absolute path, working folder and similar names are named."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "agents.db").touch()
    for backend in (
        SqliteBackend("agent.db", Options(create=False)),
        SqliteBackend("sqlite:///agent.db?mode=rw", Options()),
    ):
        with pytest.raises(UsageError) as caught:
            backend.run(count)
        assert str(tmp_path / "agent.db") in str(caught.value)
        assert "agents.db" in str(caught.value)
        assert f"working folder: {tmp_path}" in str(caught.value)
    assert os.listdir(tmp_path) == ["agents.db"]
    with pytest.raises(UsageError, match=r"nowhere .*does not exist"):
        SqliteBackend("nowhere/agent.db", Options()).run(count)
    with pytest.raises(UsageError, match="is a folder"):
        SqliteBackend(tmp_path, Options()).run(count)
    with pytest.raises(UsageError, match="no regular file"):
        SqliteBackend("/dev/null", Options()).run(count)


def test_new_file_is_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A new file is logged with its absolute path, an existing one is not."""
    caplog.set_level(logging.INFO, "agent_ckpt")
    for _ in range(2):
        backend = backend_on(tmp_path / "a.db")
        backend.run(count)
        backend.close()
    assert sum(str(tmp_path / "a.db") in record.message for record in caplog.records) == 1


def test_symbolic_link(tmp_path: Path) -> None:
    """A link is followed, so that the -wal stands beside the real file, whoever opens it."""
    (tmp_path / "real").mkdir()
    (tmp_path / "link.db").symlink_to(tmp_path / "real" / "a.db")
    backend = backend_on(tmp_path / "link.db")
    assert backend.target == str(tmp_path / "real" / "a.db")
    backend.close()


def _garbage(path: Path) -> None:
    path.write_bytes(b"not a database, but longer than a header" * 100)


def _short(path: Path) -> None:
    path.write_bytes(b"x")


def _other_program(path: Path) -> None:
    _sql(path, "CREATE TABLE notes (t)", "INSERT INTO notes VALUES (1)")


def _other_marks(path: Path) -> None:
    _sql(path, "PRAGMA application_id=77", "PRAGMA user_version=3")


def _other_in_wal_mode(path: Path) -> None:
    run_script(
        """
        import sqlite3
        c = sqlite3.connect(sys.argv[1], isolation_level=None)
        for sql in ("PRAGMA journal_mode=WAL", "CREATE TABLE notes (t)", "INSERT INTO notes VALUES (1)"):
            c.execute(sql)
        os._exit(0)
        """,
        path,
    )
    assert Path(f"{path}-wal").stat().st_size


def _wal_beside_an_empty_file(path: Path) -> None:
    path.touch()
    Path(f"{path}-wal").write_bytes(b"somebody's frames")


def _newer(path: Path) -> None:
    backend = backend_on(path)
    backend.run(count)
    backend.close()
    _sql(path, "PRAGMA user_version=7", "PRAGMA wal_checkpoint(TRUNCATE)")


def _official(path: Path) -> None:
    run_script(
        """
        from langgraph.checkpoint.sqlite import SqliteSaver
        with SqliteSaver.from_conn_string(sys.argv[1]) as saver:
            saver.setup()
        """,
        path,
    )


def _sql(path: Path, *statements: str) -> None:
    run_script(
        """
        import sqlite3
        c = sqlite3.connect(sys.argv[1], isolation_level=None)
        for sql in sys.argv[2:]:
            c.execute(sql).fetchall()
        c.close()
        """,
        path,
        *statements,
    )


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (_garbage, "no SQLite database"),
        (_short, "no SQLite database"),
        (_other_program, "notes"),
        (_other_marks, "application_id 77"),
        (_other_in_wal_mode, "another program's|stands beside it"),
        (_wal_beside_an_empty_file, "stands beside it"),
        (_newer, "schema_version 7.* knows 1.*upgrade agent_ckpt"),
        (_official, r"SqliteSaver.*agent-ckpt import a\.db NEW\.db"),
    ],
)
def test_files_that_are_not_ours_stay_untouched(tmp_path: Path, make: Callable[[Path], None], said: str) -> None:
    """A garbage, foreign, newer or official file is refused, and stays the same to the byte, its -wal, its times
    and rights too; nothing is made beside it."""
    path = tmp_path / "a.db"
    make(path)
    (tmp_path / "a.db-lock").unlink(missing_ok=True)
    os.chmod(path, 0o644)
    before = _bytes_around(path)
    backend = SqliteBackend(path, Options())
    for write in (False, True):
        with pytest.raises(FormatError, match=said):
            backend.run(count, write=write)
    backend.close()
    assert _bytes_around(path) == before


def test_foreign_file_that_this_process_has_open(tmp_path: Path) -> None:
    """A look at a file that somebody in this process has open in WAL mode leaves his locks and his -wal alone."""
    path = tmp_path / "a.db"
    mine = sqlite3.connect(path, isolation_level=None)
    mine.execute("PRAGMA journal_mode=WAL")
    mine.execute("CREATE TABLE notes (t)")
    with pytest.raises(FormatError, match="notes"):
        SqliteBackend(path, Options()).run(count)
    _sql(path, "SELECT * FROM notes")
    mine.execute("INSERT INTO notes VALUES (1)")
    assert Path(f"{path}-wal").exists()
    _sql(path, "INSERT INTO notes VALUES (2)")
    assert mine.execute("SELECT count(*) FROM notes").fetchone() == (2,)
    mine.close()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("DROP TABLE blobs", "table blobs .*is missing"),
        ("DROP INDEX blobs_digest", "index blobs_digest .*is missing"),
        ("ALTER TABLE blobs ADD COLUMN more TEXT", "table blobs .*was changed"),
        ("CREATE TRIGGER spy AFTER INSERT ON blobs BEGIN SELECT 1; END", "trigger spy"),
        ("CREATE VIEW peek AS SELECT * FROM Blobs", "view peek"),
        ("CREATE INDEX fast ON blobs (length(frame))", "index fast"),
        ("CREATE TRIGGER spy AFTER INSERT ON items BEGIN DELETE FROM blobs; END", "trigger spy"),
    ],
)
def test_changed_schema_is_refused(tmp_path: Path, change: str, said: str) -> None:
    """An object of ours that is gone or changed, or a foreign object that touches our tables, is refused by name."""
    backend_on(tmp_path / "a.db").close()
    _sql(tmp_path / "a.db", change)
    backend = SqliteBackend(tmp_path / "a.db", Options())
    for write in (False, True):
        with pytest.raises(FormatError, match=said):
            backend.run(count, write=write)
    backend.close()


def test_foreign_tables_are_let_be(tmp_path: Path) -> None:
    """Statistics, a replication tool's tables, and tables of others with what belongs to them don't matter."""
    backend_on(tmp_path / "a.db").close()
    _sql(
        tmp_path / "a.db",
        "CREATE TABLE _litestream_seq (id INTEGER PRIMARY KEY, seq INTEGER)",
        "CREATE TABLE mine (a)",
        "CREATE INDEX mine_a ON mine (a)",
        "CREATE VIEW their_view AS SELECT a FROM mine",
        "CREATE TRIGGER their_trigger AFTER INSERT ON mine BEGIN DELETE FROM mine WHERE a = 1; END",
        "ANALYZE",
    )
    backend = SqliteBackend(tmp_path / "a.db", Options())
    assert backend.run(count) == 0
    backend.close()


def test_half_made_files_are_finished(tmp_path: Path) -> None:
    """Whatever a set-up that was killed has left behind, the next open finishes it."""
    path = tmp_path / "a.db"
    marks = [f"PRAGMA application_id={schema.APPLICATION_ID}", f"PRAGMA user_version={versions.SCHEMA_VERSION}"]
    stages: list[list[str]] = [
        [],
        ["PRAGMA auto_vacuum=INCREMENTAL", "VACUUM"],
        ["BEGIN", *marks, "COMMIT"],
        ["BEGIN", *marks, "COMMIT", "PRAGMA journal_mode=WAL"],
    ]
    for stage in stages:
        _sql(path, *stage)
        backend = backend_on(path)
        backend.run(add("a"), write=True)
        backend.close()
        check = connect.connect(f"file:{path}?mode=ro")
        assert check.execute("PRAGMA auto_vacuum").fetchone()[0] in (0, 2)
        assert schema.check(check, str(path))
        check.close()
        for name in os.listdir(tmp_path):
            os.unlink(tmp_path / name)


def test_wal_that_was_half_folded_at_a_kill(tmp_path: Path) -> None:
    """A file of ours whose process was killed while the WAL was folded into it (page 1 is there, the pages that it
    counts are not) is opened like any other."""
    path, folded = tmp_path / "a.db", tmp_path / "folded.db"
    run_script(
        """
        backend = backend_on(sys.argv[1], table=False)
        backend.run(make_table, write=True)
        backend._store.writer._handle.connection.execute("PRAGMA wal_autocheckpoint=0")
        for i in range(50):
            backend.run(add(str(i), blob=bytes(9000)), write=True)
        os._exit(0)
        """,
        path,
    )
    for suffix in ("", "-wal"):
        shutil.copy(f"{path}{suffix}", f"{folded}{suffix}")
    _sql(folded, "PRAGMA wal_checkpoint(TRUNCATE)")
    content = path.read_bytes()
    path.write_bytes(folded.read_bytes()[:4096] + content[4096:])
    backend = backend_on(path, table=False)
    assert backend.run(count) == 50
    backend.close()


def test_failed_open_can_be_repeated(tmp_path: Path) -> None:
    """A backend that could not open opens once the cause is gone."""
    backend = SqliteBackend(tmp_path / "folder" / "a.db", Options())
    with pytest.raises(CkptError):
        backend.run(count)
    (tmp_path / "folder").mkdir()
    backend.run(lambda: _nothing(), write=True)
    backend.close()


def _nothing() -> Any:
    return
    yield


def test_file_replaced_while_open(tmp_path: Path) -> None:
    """A file that was swapped under an open backend is never written by it."""
    backend = backend_on(tmp_path / "a.db")
    backend.run(add("a"), write=True)
    os.rename(tmp_path / "a.db", tmp_path / "old.db")
    os.rename(tmp_path / "a.db-wal", tmp_path / "old.db-wal")
    with pytest.raises(CkptError, match="deleted or replaced"):
        backend.run(add("b"), write=True)
    with pytest.raises(CkptError):
        backend.run(add("c"), write=True)
    backend.close()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_rights_that_are_missing() -> None:
    """A user who may not write gets a typed error; the file stays as it is."""
    with tempfile.TemporaryDirectory() as name:
        _another_user_tries(Path(name))


def _another_user_tries(folder: Path) -> None:
    backend_on(folder / "a.db").close()
    os.chmod(folder / "a.db", 0o644)
    os.chmod(folder, 0o755)
    run_script(
        """
        import logging
        from agent_ckpt.errors import CkptError, ReadOnlyError
        logging.disable()
        os.setuid(65534)
        for target in (sys.argv[1], sys.argv[2]):
            try:
                SqliteBackend(target, Options()).run(add("x"), write=True)
            except ReadOnlyError as exc:
                assert exc.path.startswith(target), exc.path
            else:
                raise AssertionError("stored")
        """,
        folder / "a.db",
        folder / "new.db",
    )
    assert sorted(os.listdir(folder)) == ["a.db", "a.db-lock"]
