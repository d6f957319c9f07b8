"""Where a database stands, which SQLite opens it, and who else has tables in it."""

from __future__ import annotations

import ast
import json
import logging
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from langgraph.store.sqlite import SqliteStore

from agent_ckpt import AgentSaver, BusyError, UnavailableError, UsageError
from agent_ckpt.options import Options
from agent_ckpt.sqlite import SqliteBackend, engine, mounts, place, schema
from agent_ckpt.sqlite import wal as wal_module
from tests.conftest import Api
from tests.sqlite_backend import ROOT, add, backend_on, count, finish, run_script, start

CONFIG: Any = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}


def put(api: Any, n: int) -> None:
    checkpoint = {"v": 4, "id": f"{n:032x}", "ts": "2026-01-01T00:00:00+00:00", "channel_values": {"x": n},
                  "channel_versions": {"x": n + 1}, "versions_seen": {}, "updated_channels": None}  # fmt: skip
    api.put(CONFIG, checkpoint, {"source": "loop", "step": n, "parents": {}}, {"x": n + 1})


def head(api: Any) -> int:
    return int(api.get_tuple(CONFIG).checkpoint["channel_values"]["x"])


# The mount table


def mounted(*lines: tuple[str, str]) -> Callable[[], str]:
    """A mount table with these (type, mount point) pairs behind an ext4 root."""
    table = "\n".join(
        f"{30 + i} 1 0:{i} / {point} rw,relatime shared:{i} - {kind} somewhere rw"
        for i, (kind, point) in enumerate([("ext4", "/"), *lines])
    )
    return lambda: table


@pytest.mark.parametrize(
    ("kind", "safety"),
    [
        *((kind, "network") for kind in ("nfs", "nfs4", "cifs", "smb3", "smbfs")),
        *((kind, "shared") for kind in ("virtiofs", "9p", "fuse", "fuse.grpcfuse", "fuse.sshfs", "fuseblk", "vboxsf")),
        *((kind, "local") for kind in ("ext4", "xfs", "btrfs", "zfs", "overlay", "tmpfs", "apfs", "fusectl")),
    ],
)
def test_kinds_of_file_systems(kind: str, safety: str) -> None:
    """B68: which file systems count as network, shared with a host, and local."""
    found = mounts.find("/mnt/disk/agent.db", mounted((kind, "/mnt/disk")))
    assert (found.kind, found.point, found.safety) == (kind, "/mnt/disk", safety)


def test_the_mount_that_holds_a_path() -> None:
    """The deepest mount counts, whole names only, escapes undone, a later mount covers an earlier one."""
    table = mounted(
        ("nfs", "/mnt"), ("ext4", "/mnt/disk"), ("9p", "/mnt/my\\040disk"), ("cifs", "/two"), ("xfs", "/two")
    )
    for path, kind in (
        ("/home/a.db", "ext4"),
        ("/mnt/a.db", "nfs"),
        ("/mnt/disk/a.db", "ext4"),
        ("/mnt/diskette/a.db", "nfs"),
        ("/mnt/my disk/a.db", "9p"),
        ("/two/a.db", "xfs"),
    ):
        assert mounts.find(path, table).kind == kind, path
    assert mounts.find("/x", lambda: "") == mounts.Mount("", "", "local")
    assert mounts.find("/x", lambda: "garbage\n1 2 3 - ext4\n") == mounts.Mount("", "", "local")


def test_this_machines_own_table() -> None:
    """The real mount table names a file system for the tests' own folder (Linux)."""
    assert mounts.find(str(ROOT)).kind != "" or not sys.platform.startswith("linux")


def on(monkeypatch: pytest.MonkeyPatch, kind: str, path: Path) -> None:
    """Let the folder of a path be a mount of that kind."""
    monkeypatch.setattr(mounts, "read_table", mounted((kind, str(path.parent))))
    monkeypatch.setattr(place, "_told", set())


@pytest.mark.parametrize("kind", ["nfs4", "cifs"])
def test_network_file_systems_are_refused(
    kind: str, form: str, path: Path, open_saver: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B68: on NFS and SMB nothing is made; the error names the mount and the choices, and each choice works."""
    on(monkeypatch, kind, path)
    with pytest.raises(UsageError, match=rf"{kind}.*local disk.*journal='wal'.*journal='rollback'") as caught:
        put(Api(open_saver(), form), 0)
    assert str(path.parent) in caught.value.message
    assert not path.exists()
    for n, journal in enumerate(("rollback", "wal")):
        saver = open_saver(journal=journal)
        put(Api(saver, form), n)
        assert saver.wal_status().journal == journal
        saver.close()
    monkeypatch.undo()


@pytest.mark.parametrize("kind", ["virtiofs", "9p", "fuse.grpcfuse"])
def test_shared_file_systems_get_a_rollback_journal(
    kind: str, path: Path, open_saver: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """B68: where a host may have the file too, a rollback journal is used, with one warning for the file; a store
    that was in WAL mode is switched."""
    with AgentSaver(path) as before:
        put(before, 0)
    on(monkeypatch, kind, path)
    for n in (1, 2):
        saver = open_saver()
        put(saver, n)
        assert head(saver) == n
        assert saver.wal_status().journal == "rollback"
        assert not path.with_name("agent.db-wal").exists()
        saver.close()
    told = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(told) == 1
    assert kind in told[0]


@pytest.mark.parametrize("kind", ["overlay", "tmpfs"])
def test_local_file_systems_get_a_wal(
    kind: str, path: Path, open_saver: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """B68: overlay and tmpfs, as containers have them, are local disks: WAL mode without a word."""
    on(monkeypatch, kind, path)
    saver = open_saver()
    put(saver, 0)
    assert saver.wal_status().journal == "wal"
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


# The journal mode


def test_a_store_stays_in_the_mode_that_it_was_set_to(path: Path, open_saver: Any) -> None:
    """A rollback journal that was chosen stays for all who come with "auto", also for a copy by VACUUM; WAL mode
    comes back by option, and a VACUUM copy of a WAL store is in WAL mode again when it is opened."""
    copies = {mode: path.with_name(f"{mode}.db") for mode in ("wal", "rollback")}
    for n, (journal, found) in enumerate(
        (("auto", "wal"), ("rollback", "rollback"), ("auto", "rollback"), ("wal", "wal"), ("auto", "wal"))
    ):
        saver = open_saver(journal=journal)
        put(saver, n)
        assert saver.wal_status().journal == found, n
        saver.close()
        copies[found].unlink(missing_ok=True)
        connection = sqlite3.connect(path)
        connection.execute("VACUUM INTO ?", (str(copies[found]),))
        connection.close()
    for mode, copy in copies.items():
        saver = open_saver(copy)
        put(saver, 9)
        assert saver.wal_status().journal == mode


def test_switching_waits_for_those_who_have_the_file_open(path: Path, open_saver: Any) -> None:
    """WAL mode can't be left under somebody's feet: a typed error after the timeout, and later it works."""
    first = open_saver()
    put(first, 0)
    with pytest.raises(BusyError):
        put(AgentSaver(path, journal="rollback", busy_timeout_s=0.3), 1)
    put(first, 1)
    first.close()
    second = open_saver(journal="rollback")
    put(second, 2)
    assert head(second) == 2


def test_switched_to_wal_by_somebody_else(path: Path) -> None:
    """A writer with a rollback journal doesn't write when another process has switched the file to WAL meanwhile."""
    backend = backend_on(path, journal="rollback")
    backend.run(add("1"), write=True)
    run_script("backend_on(sys.argv[1], journal='wal').run(add('2'), write=True)", path)
    with pytest.raises(UnavailableError, match="option journal"):
        backend.run(add("3"), write=True)
    backend.close()
    check = backend_on(path)
    assert check.run(count) == 2
    check.close()


def test_killed_writers_with_a_rollback_journal(path: Path, tmp_path: Path) -> None:
    """P1 with a rollback journal: what was acknowledged before a kill is there, nothing is half there."""
    for round_ in range(4):
        process = start(
            """
            backend = backend_on(sys.argv[1], journal="rollback", synchronous="full")
            for i in range(10_000):
                backend.run(add(f"{sys.argv[2]}-{i}a", f"{sys.argv[2]}-{i}b", blob=bytes(9_000)), write=True)
                print(i, flush=True)
            """,
            path,
            round_,
        )
        assert process.stdout is not None
        for _ in range(20 + 7 * round_):
            last = int(process.stdout.readline())
        process.kill()
        rest = process.communicate()[0].split()
        last = int(rest[-1]) if rest else last
        check = backend_on(path, journal="rollback")
        found = check.run(count)
        assert found % 2 == 0
        connection = sqlite3.connect(path)
        rows = connection.execute("SELECT count(*) FROM items WHERE name LIKE ?", (f"{round_}-%",)).fetchone()[0]
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        connection.close()
        assert last + 1 <= rows // 2 <= last + 2
        check.close()


def test_side_file_locks_are_missing(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """On a file system without `flock` a rollback journal works by SQLite's own locks; WAL mode on an affected engine
    is refused with the way out, and works on a fixed one."""

    def missing(*_: Any, **__: Any) -> bool:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr("filelock.lock_descriptor", missing)
    for options in ({"journal": "rollback"}, {"journal": "wal", "engine": "pysqlite3"}):
        backend = backend_on(path.with_name(f"{options}.db"), **options)
        backend.run(add("1"), write=True)
        assert backend.run(count) == 1
        backend.close()
    monkeypatch.setattr(engine.Engine, "is_affected", True)
    with pytest.raises(UnavailableError, match="journal='rollback'"):
        backend_on(path)


# Engines


def test_two_engines_on_one_file_are_refused(path: Path, open_saver: Any) -> None:
    """A file that this process has open with one engine is refused to the other, ours or anybody's, and left alone:
    the first goes on, and another process that comes and goes doesn't take its WAL away."""
    first = open_saver()
    put(first, 0)
    with pytest.raises(UsageError, match=r"engine='sqlite3'.*pysqlite3"):
        put(AgentSaver(path, engine="pysqlite3"), 1)
    inode = os.stat(f"{path}-wal").st_ino
    run_script("import sqlite3; c = sqlite3.connect(sys.argv[1]); c.execute('SELECT * FROM threads'); c.close()", path)
    assert os.stat(f"{path}-wal").st_ino == inode
    put(first, 1)
    first.close()
    second = open_saver(engine="pysqlite3")
    assert head(second) == 1
    put(second, 2)
    with pytest.raises(UsageError, match="engine='pysqlite3'"):
        put(AgentSaver(path), 3)
    second.close()


def test_a_file_that_others_here_opened_with_another_engine(path: Path) -> None:
    """A connection of the user's own is found by the process's descriptors: with the other engine the file is
    refused, with the standard one there is a warning if a second SQLite is loaded, since whose it is can't be told."""
    run_script(
        """
        import sqlite3
        from agent_ckpt.errors import UsageError
        path = sys.argv[1]
        backend_on(path).close()
        mine = sqlite3.connect(path)
        mine.execute("SELECT * FROM items").fetchall()
        backend_on(path).close()
        def refused(**options):
            try:
                backend_on(path, **options)
            except UsageError as exc:
                assert "most likely Python's sqlite3" in str(exc)
                return True
        assert refused(engine="pysqlite3")
        mine.close()
        backend_on(path, engine="pysqlite3").close()
        import logging, pysqlite3
        theirs = pysqlite3.connect(path)
        theirs.execute("SELECT * FROM items").fetchall()
        records = []
        handler = logging.Handler()
        handler.emit = records.append
        logging.getLogger("agent_ckpt").addHandler(handler)
        backend = backend_on(path)
        assert ["pysqlite3" in record.getMessage() for record in records] == [True], records
        backend.close()
        theirs.close()
        """,
        path,
    )


def test_engine_that_is_not_installed(monkeypatch: pytest.MonkeyPatch, path: Path) -> None:
    """Without its package the option says what to install, before any file is touched."""
    monkeypatch.setitem(sys.modules, "pysqlite3", None)
    monkeypatch.delitem(sys.modules, "pysqlite3.dbapi2", raising=False)
    with pytest.raises(UsageError, match=r"agent-ckpt\[sqlite\]"):
        AgentSaver(path, engine="pysqlite3")
    assert not path.exists()


def test_errors_of_the_engine_in_use_are_caught() -> None:
    """No module of the adapter catches the errors of one engine only, but the one that reads other savers' files,
    which always takes Python's."""
    for source in {*(ROOT / "agent_ckpt").rglob("*.py")} - {ROOT / "agent_ckpt" / "sqlite" / "official.py"}:
        for node in ast.walk(ast.parse(source.read_text("utf-8"))):
            if isinstance(node, ast.ExceptHandler) and node.type is not None:
                assert "sqlite3" not in ast.unparse(node.type), f"{source}:{node.lineno}"


def test_two_processes_with_two_engines(path: Path) -> None:
    """Processes with different engines share a file: the guard is one for all, nothing is lost."""
    script = """
        backend = backend_on(sys.argv[1], engine=sys.argv[2])
        for i in range(150):
            backend.run(add(f"{sys.argv[2]}{i}", blob=os.urandom(20_000)), write=True)
        """
    backend_on(path).close()
    for process in [start(script, path, name) for name in ("sqlite3", "pysqlite3")]:
        finish(process, 60.0)
    check = backend_on(path)
    assert check.run(count) == 300
    check.close()


# The doctor


def doctor(path: Path, *arguments: str) -> tuple[int, dict[str, list[dict[str, str]]]]:
    done = subprocess.run(
        [sys.executable, "-m", "agent_ckpt", "doctor", str(path), "--json", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.stderr == ""
    found: dict[str, list[dict[str, str]]] = {}
    for check in json.loads(done.stdout):
        found.setdefault(check["name"], []).append(check)
    return done.returncode, found


def test_doctor_of_a_sound_file(path: Path, saver: AgentSaver) -> None:
    """Beside a live saver the doctor names engine, version, mode, file system, rights and WAL, and finds nothing."""
    put(saver, 0)
    status, found = doctor(path)
    assert status == 0
    assert set(found) == {"engine", "file system", "rights", "mode", "WAL race", "WAL"}
    assert f"SQLite {sqlite3.sqlite_version}" in found["engine"][0]["text"]
    assert mounts.find(str(path)).kind in found["file system"][0]["text"]
    assert [check["text"].split()[1] for check in found["rights"]] == ["0600"] * 4
    assert {check["state"] for checks in found.values() for check in checks} <= {"ok", "note"}
    put(saver, 1)
    assert head(saver) == 1
    saver.close()
    status, found = doctor(path, "--engine", "pysqlite3")
    assert status == 0
    assert "pysqlite3" in found["engine"][0]["text"]


@pytest.mark.parametrize(
    ("version", "affected"), [((3, 51, 2), True), ((3, 51, 3), False), ((3, 50, 7), False), ((3, 44, 6), False)]
)
def test_doctor_tells_an_affected_engine(
    version: tuple[int, ...], affected: bool, saver: AgentSaver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B69: an engine with the WAL race is named with its mode and the fix; a mended one is said to be fixed."""
    monkeypatch.setattr(saver._backend._store, "engine", engine.Engine("sqlite3", sqlite3, version))
    (race,) = (check for check in saver.doctor() if check.name == "WAL race")
    assert race.state == ("note" if affected else "ok")
    assert ".".join(map(str, version)) in race.text
    assert ("guarded mode" in race.text and "agent-ckpt[sqlite]" in race.text) == affected


def test_doctor_of_what_is_wrong(form: str, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is wrong is said with what to do: rights of others, a network mount, a WAL that is too large, no store."""

    def wrong(target: Any = path, **options: Any) -> str:
        with AgentSaver(target, **options) as saver:
            return "\n".join(
                f"{check.name}: {check.text}" for check in Api(saver, form).doctor() if check.state == "wrong"
            )

    with AgentSaver(path) as saver:
        put(saver, 0)
    assert wrong() == ""
    path.chmod(0o644)
    assert "rights: agent.db 0644: other users" in wrong()
    path.chmod(0o600)
    on(monkeypatch, "nfs", path)
    assert "file system: nfs" in wrong()
    assert "opening: " in wrong()
    assert "uses WAL mode there" in wrong(journal="wal")
    monkeypatch.undo()
    (tmp_path / "text.db").write_text("no database " * 100)
    assert "is no SQLite database" in wrong(tmp_path / "text.db")
    limits = wal_module.Limits("wal", 10, 4096)
    with AgentSaver(path) as saver:
        for n in range(1, 30):
            put(saver, n)
        monkeypatch.setattr(saver._backend._store, "limits", limits)
        assert any("larger than it should be" in check.text for check in saver.doctor())
    assert wrong() == ""


def test_doctors_exit_code(path: Path) -> None:
    """The command's exit code is 1 where something is wrong, also where the file can't be opened at all."""
    with AgentSaver(path) as saver:
        put(saver, 0)
    path.chmod(0o646)
    status, found = doctor(path)
    assert status == 1
    assert "wrong" in {check["state"] for check in found["rights"]}
    path.with_name("text.db").write_text("no database " * 100)
    status, found = doctor(path.with_name("text.db"))
    assert (status, found["opening"][0]["state"]) == (1, "wrong")


# Tables of others


def test_langgraphs_store_in_the_same_file(form: str, path: Path, open_saver: Any) -> None:
    """SqliteStore's tables and ours live in one file: each works, reopens, and leaves the other's rows alone."""
    api = Api(open_saver(), form)
    put(api, 0)
    connection = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
    store = SqliteStore(connection)
    store.setup()
    for n in range(1, 5):
        store.put(("memories", "user"), f"key{n}", {"n": n})
        put(api, n)
    assert store.get(("memories", "user"), "key3").value == {"n": 3}
    assert head(api) == 4
    api.saver.close()
    again = Api(open_saver(), form)
    assert head(again) == 4
    again.delete_thread("t")
    assert not again.exists("t")
    assert len(store.search(("memories",))) == 4
    assert again.verify()
    connection.close()


def test_a_file_of_others_without_ours_stays_foreign(path: Path) -> None:
    """A file that holds only SqliteStore's tables is not ours to open, and stays as it is."""
    connection = sqlite3.connect(path, isolation_level=None)
    SqliteStore(connection).setup()
    connection.close()
    before = path.read_bytes()
    with pytest.raises(Exception, match="another program's"):
        SqliteBackend(path, Options()).run(count)
    assert path.read_bytes() == before
    assert schema.APPLICATION_ID.to_bytes(4, "big") == b"ACKP"


# Systems without fcntl and fork

BARE = """
import os, sys
sys.modules["fcntl"] = None
for name in ("fork", "forkpty", "register_at_fork"):
    delattr(os, name)
import warnings
warnings.simplefilter("error")
import agent_ckpt
agent_ckpt.AgentSaver
import pytest
from agent_ckpt import AgentSaver
saver = AgentSaver("agent.db")
config = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}
stored = saver.put(config, {"v": 4, "id": "1", "ts": "", "channel_values": {"x": 1}, "channel_versions": {"x": 1},
                            "versions_seen": {}, "updated_channels": None}, {}, {"x": 1})
assert saver.get_tuple(stored).checkpoint["channel_values"] == {"x": 1}
saver.close()
sys.exit(pytest.main(["-q", "-x", "-p", "no:cacheprovider", *sys.argv[1:]]))
"""


def test_systems_without_fcntl_and_fork(tmp_path: Path) -> None:
    """`import agent_ckpt`, a saver, and the tests of the pure parts work where there is neither fcntl nor fork."""
    chosen = [
        str(ROOT / "tests" / "test_codec.py"),
        "-k",
        "compression or whole or header or ids",
        "-W",
        "ignore::pytest.PytestAssertRewriteWarning",
    ]
    settings = ["--rootdir", str(ROOT), "-c", str(ROOT / "pyproject.toml")]
    done = subprocess.run(
        [sys.executable, "-c", BARE, *chosen, *settings],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert " passed" in done.stdout
