"""Files of official SqliteSavers come in: `agent-ckpt import`, and OfficialFile with `transfer`.

The files are written by the official packages, old releases in throw-away environments. Two larger runs:
`AGENT_CKPT_IMPORT_TURNS=300` imports a file of so many turns (the default is 30), and the figures are printed with -s.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import closing, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.types import Command

from agent_ckpt import (
    AgentSaver,
    CkptError,
    CorruptionError,
    FormatError,
    OfficialFile,
    Unresolved,
    UnresolvedTypeError,
    UsageError,
    transfer,
)
from agent_ckpt.cli.app import main
from tests import official_graphs as graphs
from tests.bench.agents import build as build_bench
from tests.bench.agents import take_turns
from tests.conftest import Api, assert_sound

ROOT = Path(__file__).parent.parent
WATCHDOG_S = 300.0
AES_KEY = "0123456789abcdef0123456789abcdef"
TURNS = int(os.environ.get("AGENT_CKPT_IMPORT_TURNS", "30"))
RELEASES = {
    "2.0": [
        "langgraph==0.6.11",
        "langgraph-checkpoint==2.1.2",
        "langgraph-checkpoint-sqlite==2.0.11",
        "langgraph-prebuilt==0.6.5",
        "langgraph-sdk==0.2.15",
    ],
    "3.0": [
        "langgraph==1.0.10",
        "langgraph-checkpoint==3.0.1",
        "langgraph-checkpoint-sqlite==3.0.3",
        "langgraph-prebuilt==1.0.13",
        "langgraph-sdk==0.3.15",
    ],
    "installed": [],
}


def environment(folder: Path, packages: list[str]) -> Path:
    """A throw-away environment with these packages, and behind them what is installed here; its python."""
    done = [subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], timeout=WATCHDOG_S)]
    python = folder / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "-q", "--no-deps", *packages]
    done.append(subprocess.run(pip, capture_output=True, text=True, timeout=WATCHDOG_S))
    assert [one.returncode for one in done] == [0, 0], done[1].stderr
    (site,) = folder.glob("lib/python*/site-packages")
    (site / "behind.pth").write_text("\n".join({sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}))
    return python


@pytest.fixture(scope="module", params=list(RELEASES))
def files(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A plain and an encrypted file, written by one release of the official saver."""
    folder = tmp_path_factory.mktemp("official")
    packages = RELEASES[request.param]
    python = environment(folder / "venv", packages) if packages else Path(sys.executable)
    made = {"plain": folder / "plain.sqlite", "encrypted": folder / "encrypted.sqlite"}
    command = [str(python), "-W", "ignore", "-m", "tests.official_graphs", *map(str, made.values()), AES_KEY]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=WATCHDOG_S)
    assert done.returncode == 0, done.stderr
    return made


@dataclass
class Done:
    """What a command did."""

    returncode: int
    stdout: str
    stderr: str


def cli(*args: str, **environ: str) -> Done:
    """Run the command in this process, as `agent-ckpt` does."""
    out, err, code = io.StringIO(), io.StringIO(), 0
    with redirect_stdout(out), redirect_stderr(err), patch.dict(os.environ, environ):
        with patch.object(sys, "argv", ["agent-ckpt", *args]):
            try:
                main()
            except SystemExit as done:
                code = int(done.code or 0)
    return Done(code, out.getvalue(), err.getvalue())


def bytes_of(path: Path) -> dict[str, str]:
    """What stands beside a file under its name, by digest; the -shm, an index without data, left out."""
    there = (found for found in path.parent.glob(path.name + "*") if not found.name.endswith("-shm"))
    return {found.name: hashlib.sha256(found.read_bytes()).hexdigest() for found in there}


def official(path: Path, key: str | None = None) -> Any:
    """The installed official saver on a file."""
    serde = EncryptedSerializer.from_pycryptodome_aes(key=key.encode()) if key else None
    return SqliteSaver(sqlite3.connect(path, check_same_thread=False), serde=serde)


def listing(saver: Any, thread_id: str, ns: str | None = None) -> list[Any]:
    """A thread's checkpoints newest first, in a form that can be compared: type and value at every depth."""
    conf = {"thread_id": thread_id} if ns is None else {"thread_id": thread_id, "checkpoint_ns": ns}
    return [seen(item) for item in saver.list({"configurable": conf})]


def seen(item: Any) -> Any:
    parent = item.parent_config["configurable"]["checkpoint_id"] if item.parent_config else None
    checkpoint = {"updated_channels": None, **item.checkpoint}
    place = item.config["configurable"]
    at = (place["checkpoint_ns"], place["checkpoint_id"], parent)
    return typed((at, checkpoint, dict(item.metadata), list(item.pending_writes or [])))


def typed(value: Any) -> Any:
    """A value with the type of each part."""
    if isinstance(value, dict):
        return "dict", {key: typed(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value).__name__, [typed(part) for part in value]
    return type(value), value


@pytest.mark.parametrize("name", ["plain", "encrypted"])
def test_an_official_file_comes_in_whole(files: dict[str, Path], name: str, tmp_path: Path) -> None:
    """Each release's file, plain and encrypted: the command says all equal, every checkpoint is what the official
    saver gives, in its order, and the source keeps every byte."""
    source, db = files[name], tmp_path / "agent.db"
    before = bytes_of(source)
    options = ["--key", "env:OFFICIAL_KEY"] if name == "encrypted" else []
    done = cli("import", str(source), str(db), *options, OFFICIAL_KEY=AES_KEY)
    assert done.returncode == 0, done.stderr
    facts = dict(line.rsplit(maxsplit=1) for line in done.stdout.splitlines())
    assert facts["threads"] == "3"
    assert facts["bytes before"] == f"{source.stat().st_size:,}"
    assert facts["bytes after"] == f"{db.stat().st_size:,}"
    assert done.stdout.splitlines()[-1] == "all equal"
    assert bytes_of(source) == before
    copy = shutil.copy(source, tmp_path / "copy.sqlite")
    saver = official(Path(copy), AES_KEY if name == "encrypted" else None)
    with closing(saver.conn), AgentSaver(db) as ours:
        count = 0
        for thread_id in (graphs.FINISHED, graphs.OPEN, graphs.FANNED):
            assert listing(ours, thread_id) == listing(saver, thread_id)
            namespaces = {item.config["configurable"]["checkpoint_ns"] for item in saver.list(graphs.config(thread_id))}
            assert len(namespaces) >= 2
            for ns in namespaces:
                at = {"configurable": {"thread_id": thread_id, "checkpoint_ns": ns}}
                assert seen(ours.get_tuple(at)) == seen(saver.get_tuple(at))
            count += len(listing(saver, thread_id))
    assert facts["checkpoints"] == str(count)
    assert_sound(db)


def test_an_open_interrupt_is_answered_after_the_import(files: dict[str, Path], form: str, path: Path) -> None:
    """The imported thread goes on: its interrupt in a subgraph is answered, with the result that the official saver
    gives, and a finished thread takes another turn."""
    with OfficialFile(files["plain"]) as source, AgentSaver(path) as saver:
        transfer(source, saver)
    copy = shutil.copy(files["plain"], path.parent / "copy.sqlite")
    theirs = official(Path(copy))
    with closing(theirs.conn), AgentSaver(path) as saver:
        api, graph = Api(saver, form), graphs.build(saver)
        state = api.get_state(graph, graphs.config(graphs.OPEN))
        assert [each.value for each in state.interrupts] == [json.loads(json.dumps(graphs.QUESTION))]
        for thread_id, given in ((graphs.OPEN, Command(resume="no")), (graphs.FINISHED, {"log": ["again"]})):
            ours = api.invoke(graph, given, graphs.config(thread_id))
            expected = graphs.build(theirs).invoke(given, graphs.config(thread_id))
            # A new turn asks anew, under an id of its own.
            asked = [[each.value for each in found.pop("__interrupt__", ())] for found in (ours, expected)]
            assert (ours, asked[0]) == (expected, asked[1])
        assert "answered no" in api.get_state(graph, graphs.config(graphs.OPEN)).values["log"]
    assert_sound(path)


# Layouts and rows of older releases


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A file of the installed official saver, with one finished and one open thread, and a fork."""
    path = tmp_path / "source.sqlite"
    graphs.write(str(path))
    return path


def change(path: Path, sql: str, *params: Any) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(sql, params)


def test_json_rows_of_the_first_releases_are_read(source: Path, path: Path) -> None:
    """Rows of type "json", as releases before msgpack wrote them, with a message and a UUID in LangChain's form."""
    message = {
        "lc": 1,
        "type": "constructor",
        "id": ["langchain", "schema", "messages", "HumanMessage"],
        "kwargs": {"content": "hi", "type": "human", "id": "m"},
    }
    unique = {"lc": 2, "type": "constructor", "id": ["uuid", "UUID"], "args": ["0" * 31 + "7"], "kwargs": {}}
    checkpoint = {
        "v": 1,
        "id": "1ef4f797-8335-6428-8001-8a1503f9b875",
        "ts": "2024-08-01T00:00:00+00:00",
        "channel_values": {"messages": [message], "id": unique},
        "channel_versions": {"messages": 2, "id": 2},
        "versions_seen": {},
        "pending_sends": [],
    }
    change(
        source,
        "INSERT INTO checkpoints VALUES ('old', '', ?, NULL, 'json', ?, ?)",
        checkpoint["id"],
        json.dumps(checkpoint).encode(),
        b'{"source": "loop", "writes": {"a": 1}}',
    )
    with OfficialFile(source) as file, AgentSaver(path) as saver:
        assert transfer(file, saver, threads=["old"]).checkpoints == 1
        found = saver.get_tuple(graphs.config("old"))
    assert found is not None
    assert typed(found.checkpoint["channel_values"]["id"]) == typed(graphs.UUID(int=7))
    assert typed(found.checkpoint["channel_values"]["messages"]) == typed([graphs.HumanMessage("hi", id="m")])
    assert found.checkpoint["pending_sends"] == []
    assert found.metadata == {"source": "loop", "writes": {"a": 1}}
    assert_sound(path)


def test_a_pickled_row_is_refused(source: Path, path: Path) -> None:
    """A pickled checkpoint is refused by name, nothing of its thread is stored, and the file is as it was."""
    change(
        source, "UPDATE checkpoints SET type = 'pickle', checkpoint = ? WHERE thread_id = 'finished'", b"cos\nmkdir\n"
    )
    before = bytes_of(source)
    with AgentSaver(path) as saver:
        with OfficialFile(source) as file, pytest.raises(FormatError, match="pickled") as refused:
            transfer(file, saver, threads=[graphs.FINISHED])
        assert (refused.value.thread_id, saver.exists(graphs.FINISHED)) == (graphs.FINISHED, False)
    assert bytes_of(source) == before


def test_threads_that_cannot_be_read_are_named_and_the_others_come_in(tmp_path: Path, path: Path) -> None:
    """One thread with a pickled row, a damaged one, bad metadata, an empty id, and one that the target has with other
    content: the command brings the others, lists each with its reason, and ends with 1; with the code of the reason
    where all are of a kind."""
    source = tmp_path / "five.sqlite"
    saver = official(source)
    with closing(saver.conn):
        for thread_id in ("bad", "fine", "metadata", "moved on", "pickled", "unnamed", "well"):
            config = {"configurable": {"thread_id": thread_id, "checkpoint_ns": ""}}
            saver.put(config, {**empty_checkpoint(), "id": "0001"}, {}, {})
    change(source, "UPDATE checkpoints SET checkpoint = x'c1c1' WHERE thread_id = 'bad'")
    change(source, "UPDATE checkpoints SET metadata = '{bad' WHERE thread_id = 'metadata'")
    change(source, "UPDATE checkpoints SET type = 'pickle' WHERE thread_id = 'pickled'")
    change(source, "UPDATE checkpoints SET thread_id = '' WHERE thread_id = 'unnamed'")
    with AgentSaver(path) as ours:
        ours.put({"configurable": {"thread_id": "moved on", "checkpoint_ns": ""}}, empty_checkpoint(), {}, {})
    done = cli("import", str(source), str(path))
    assert done.returncode == 1
    assert done.stdout.splitlines()[-1] == "not all: 5 left out, the others are equal"
    told = sorted(line.split(": ")[2] for line in done.stderr.splitlines())
    assert told == ["''", "'bad'", "'metadata'", "'moved on'", "'pickled'"], done.stderr
    for reason in ("it is damaged", "it is pickled", "no JSON", "can't keep its id", "exists in the target already"):
        assert reason in done.stderr
    with AgentSaver(path) as ours:
        assert [info.thread_id for info in ours.threads() if info.thread_id != "moved on"] == ["fine", "well"]
    assert_sound(path)
    facts = json.loads(cli("import", str(source), str(path), "--json").stdout)
    assert (facts["threads"], facts["already_there"], facts["not_brought"]) == (2, 2, 5)
    assert {each["thread"] for each in facts["refused"]} == {"", "bad", "metadata", "moved on", "pickled"}
    two = ["--thread", "bad", "--thread", "fine"]
    assert cli("import", str(source), str(path), *two).returncode == CorruptionError.exit_code == 5
    for thread_id, code in (("bad", 5), ("metadata", 5), ("pickled", 6), ("moved on", 2)):
        assert cli("import", str(source), str(path), "--thread", thread_id).returncode == code
    assert cli("import", str(source), str(path), "--thread", "", "--as", "named").returncode == 0


def test_a_database_in_memory_is_no_place_to_import_into(source: Path) -> None:
    """What is brought into memory would be gone when the command ends: refused before the source is read."""
    for db in (":memory:", "sqlite:///:memory:", "sqlite://"):
        done = cli("import", str(source), db)
        assert (done.returncode, done.stdout) == (2, ""), done.stderr
        assert "name a file" in done.stderr


def test_a_url_names_the_database_as_a_path_does(source: Path, path: Path) -> None:
    """A sqlite:/// URL as the target: the size that is told is the file's."""
    facts = json.loads(cli("import", str(source), f"sqlite:///{path}", "--json").stdout)
    assert facts["bytes_after"] == path.stat().st_size


@pytest.mark.parametrize("table", ["checkpoints", "writes"])
def test_a_row_that_names_a_callable_runs_nothing(source: Path, path: Path, tmp_path: Path, table: str) -> None:
    """B13: an ext of code 0 that names os.mkdir, in a checkpoint and in pending writes, is never called."""
    import ormsgpack

    marker = tmp_path / "made"
    call = ormsgpack.Ext(0, ormsgpack.packb(("os", "mkdir", str(marker))))
    column, value = ("value", call)
    if table == "checkpoints":
        with closing(official(source).conn) as connection:
            saver = SqliteSaver(connection)
            found = saver.get_tuple(graphs.config(graphs.FINISHED))
        assert found is not None
        column, value = "checkpoint", {**found.checkpoint, "channel_values": {"log": call}}
    change(
        source,
        f"UPDATE {table} SET type = 'msgpack', {column} = ? WHERE thread_id = 'finished' AND checkpoint_id = "
        f"(SELECT max(checkpoint_id) FROM {table} WHERE thread_id = 'finished' AND checkpoint_ns = '')",
        ormsgpack.packb(value),
    )
    with AgentSaver(path) as saver, OfficialFile(source) as file:
        try:
            transfer(file, saver, threads=[graphs.FINISHED])
            saver.get_tuple(graphs.config(graphs.FINISHED))
        except CkptError:
            pass
    assert not marker.exists()


def test_values_that_cannot_be_made_again_come_in_as_their_bytes(tmp_path: Path, path: Path) -> None:
    """An array of objects, whose official form is addresses, a pattern that doesn't compile, a set of what can't be
    hashed: the thread comes in with their bytes, in values and pending writes; reading names what they are, and
    "keep" gives them beside the other values. Where an extension isn't even msgpack, the row is damaged."""
    import ormsgpack

    source = tmp_path / "odd.sqlite"
    odd = {
        "numpy:ndarray": ormsgpack.Ext(6, ormsgpack.packb(("|O", (2,), "C", b"\0" * 16))),
        "re:compile": ormsgpack.Ext(1, ormsgpack.packb(("re", "compile", ("(", 0)))),
        "builtins:set": ormsgpack.Ext(0, ormsgpack.packb(("builtins", "set", [{"a": 1}]))),
        "uuid:UUID": ormsgpack.Ext(0, ormsgpack.packb(("uuid", "UUID", "none"))),
    }
    broken = ormsgpack.Ext(0, b"\xc1")
    saver = official(source)
    with closing(saver.conn):
        for name in (*odd, "broken"):
            put = saver.put({"configurable": {"thread_id": name, "checkpoint_ns": ""}}, empty_checkpoint(), {}, {})
            saver.put_writes(put, [("v", 1)], "task")
    for name, value in (*odd.items(), ("broken", broken)):
        values = {"v": {"deep": [value]}, "n": 1}
        row = {**empty_checkpoint(), "channel_values": values, "channel_versions": {"v": 1, "n": 1}}
        with closing(sqlite3.connect(source)) as connection:
            sql = "SELECT checkpoint_id FROM checkpoints WHERE thread_id = ?"
            (row["id"],) = connection.execute(sql, (name,)).fetchone()
        change(source, "UPDATE checkpoints SET checkpoint = ? WHERE thread_id = ?", ormsgpack.packb(row), name)
        change(source, "UPDATE writes SET value = ? WHERE thread_id = ?", ormsgpack.packb([value]), name)
    done = cli("import", str(source), str(path))
    assert (done.returncode, done.stderr.count("\n")) == (5, 1), done.stderr
    assert "'broken': the row" in done.stderr
    assert_sound(path)
    keep: dict[str, Any] = {"on_unresolved": "keep", "on_schema_change": "ignore"}
    with AgentSaver(path) as strict, AgentSaver(path, **keep) as keeping:
        for name in odd:
            with pytest.raises(UnresolvedTypeError, match="can't be made of what is stored") as refused:
                strict.get_tuple(graphs.config(name))
            assert refused.value.type_name == name
            found = keeping.get_tuple(graphs.config(name))
            assert found is not None
            assert found.checkpoint["channel_values"]["n"] == 1
            kept = (found.checkpoint["channel_values"]["v"]["deep"][0], found.pending_writes[0][2][0])
            assert [type(each) for each in kept] == [Unresolved, Unresolved]
    assert cli("import", str(source), str(path), "--thread", "re:compile").stdout.splitlines()[-1] == "all equal"


# What is no official file


def test_other_files_are_refused_and_left_alone(tmp_path: Path, path: Path) -> None:
    """A missing file, text, a short one, another program's database, ours, and the layout of langgraph 0.1 are told
    apart by typed errors; none of them changes, and no database is made."""
    with AgentSaver(tmp_path / "ours.db") as saver:
        saver.setup()
    (tmp_path / "text.txt").write_text("no database " * 100)
    (tmp_path / "short").write_bytes(b"SQLite format 3\0")
    with closing(sqlite3.connect(tmp_path / "other.db")) as connection:
        connection.execute("CREATE TABLE notes (note)")
    with closing(sqlite3.connect(tmp_path / "old.db")) as connection:
        connection.execute("CREATE TABLE checkpoints (thread_id TEXT, thread_ts TEXT, parent_ts TEXT, checkpoint BLOB)")
    expected = {
        "missing": (UsageError, "no file"),
        "text.txt": (FormatError, "no SQLite database"),
        "short": (FormatError, "16 bytes"),
        "other.db": (FormatError, "its tables are others"),
        "old.db": (FormatError, "langgraph before 0.2"),
        "ours.db": (UsageError, "database of agent_ckpt"),
    }
    for name, (kind, told) in expected.items():
        before = bytes_of(tmp_path / name)
        with pytest.raises(kind, match=told):
            OfficialFile(tmp_path / name)
        done = cli("import", str(tmp_path / name), str(path))
        assert (done.returncode, told in done.stderr) == (kind.exit_code, True), done.stderr
        assert bytes_of(tmp_path / name) == before
    assert not path.exists()


def test_keys_are_read_from_where_they_are_and_never_shown(source: Path, tmp_path: Path, path: Path) -> None:
    """Without a key, with a wrong one, with one on the command line: exit code 2, no database, no key in the message;
    from a file, with its line end, it works."""
    locked = tmp_path / "locked.sqlite"
    graphs.write(str(locked), AES_KEY)
    key_file = tmp_path / "key"
    key_file.write_text(AES_KEY + "\n")
    wrong = AES_KEY[::-1]
    cases = [[], ["--key", AES_KEY], ["--key", "env:NOT_THERE"], ["--key", "env:WRONG"], ["--key", "env:SHORT"]]
    for options in cases:
        done = cli("import", str(locked), str(path), *options, WRONG=wrong, SHORT="abc")
        assert done.returncode == 2, done.stderr
        assert AES_KEY not in done.stderr + done.stdout
        assert wrong not in done.stderr + done.stdout
        assert not path.exists()
    done = cli("import", str(locked), str(path), "--key", f"file:{key_file}")
    assert done.stdout.splitlines()[-1] == "all equal", done.stderr


def test_the_refusal_of_an_official_file_names_a_command_that_works(source: Path) -> None:
    """Given to AgentSaver, the official file is refused; the command that the error names, as it stands, imports."""
    with pytest.raises(FormatError) as refused, AgentSaver(source) as saver:
        saver.setup()
    command = refused.value.message.split("`")[1].split()
    assert command[:2] == ["agent-ckpt", "import"]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    again = [sys.executable, "-m", "agent_ckpt", *command[1:]]
    done = subprocess.run(again, cwd=source.parent, env=env, capture_output=True, text=True, timeout=WATCHDOG_S)
    assert done.stdout.splitlines()[-1] == "all equal", done.stderr
    assert_sound(source.parent / command[-1])


# A file in use


def test_a_file_in_use_is_read_with_what_stands_in_its_wal(source: Path, path: Path) -> None:
    """While the official saver has the file open, in this very process, with commits in the -wal: they come in, file
    and -wal keep their bytes, and the saver writes on."""
    with closing(sqlite3.connect(source, check_same_thread=False)) as connection:
        theirs = SqliteSaver(connection)
        theirs.setup()
        connection.execute("PRAGMA wal_autocheckpoint=0")
        graph = graphs.build(theirs)
        graph.invoke(Command(resume="now"), graphs.config(graphs.OPEN))
        before = bytes_of(source)
        assert len(before) == 2
        with OfficialFile(source) as file, AgentSaver(path) as saver:
            transfer(file, saver)
            assert listing(saver, graphs.OPEN) == listing(theirs, graphs.OPEN)
        assert bytes_of(source) == before
        graph.invoke({"log": ["more"]}, graphs.config(graphs.OPEN))
    with closing(sqlite3.connect(source)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_a_file_that_is_written_while_it_is_read_unguarded_is_told(source: Path, path: Path) -> None:
    """Opened as nobody had it open, and then written by somebody: the import says that it can't be relied on."""
    file = OfficialFile(source)
    change(source, "DELETE FROM writes")
    with pytest.raises(FormatError, match="was written while it was read"):
        file.close()


# Killed, and run again

KILLED = """
import os, signal, sys
from agent_ckpt.cli.app import main
from agent_ckpt import AgentSaver, OfficialFile, transfer
source, target, step, at = sys.argv[1:]
def progress(now):
    if now.step == step and now.done == int(at):
        os.kill(os.getpid(), signal.SIGKILL)
with OfficialFile(source) as file, AgentSaver(target) as saver:
    transfer(file, saver, threads=["finished"], progress=progress)
"""


def test_a_killed_import_is_continued(source: Path, path: Path) -> None:
    """Killed at a checkpoint, at several ones in turn, while copying and while comparing: the thread can't be seen,
    the next run goes on where this one was, and at the end everything is there once."""
    total = 0
    with closing(official(source).conn) as connection:
        total = len(listing(SqliteSaver(connection), graphs.FINISHED))
    for step, at in (("copying", 2), ("copying", total), ("comparing", 2)):
        command = [sys.executable, "-c", KILLED, str(source), str(path), step, str(at)]
        done = subprocess.run(command, cwd=ROOT, timeout=WATCHDOG_S)
        assert done.returncode == -signal.SIGKILL
        with AgentSaver(path) as saver:
            assert not saver.exists(graphs.FINISHED)
            assert saver.get_tuple(graphs.config(graphs.FINISHED)) is None
            (left,) = saver.threads()
            assert left.checkpoints == (at if step == "copying" else total)
        assert_sound(path)
    copied = []
    with OfficialFile(source) as file, AgentSaver(path) as saver:
        report = transfer(file, saver, progress=lambda now: copied.append((now.thread_id, now.step)))
        assert (graphs.FINISHED, "copying") not in copied
        assert report.threads == 3
        assert len(list(saver.threads())) == 3
        with closing(official(source).conn) as connection:
            for thread_id in (graphs.FINISHED, graphs.OPEN, graphs.FANNED):
                assert listing(saver, thread_id) == listing(SqliteSaver(connection), thread_id)
    assert_sound(path)


# Size


@pytest.fixture(scope="module")
def long_file(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A ReAct thread of the benchmark on the official saver."""
    path = tmp_path_factory.mktemp("long") / "long.sqlite"
    with SqliteSaver.from_conn_string(str(path)) as saver:
        take_turns(build_bench(saver), "bench", 0, TURNS)
    yield path
    path.unlink()


def test_a_long_thread_shrinks_and_stays_equal(long_file: Path, path: Path) -> None:
    """A thread of many turns: every checkpoint equal, and a small part of the size (at 300 turns at most 1.6 MB)."""
    done = cli("import", str(long_file), str(path), "--json")
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    print(facts)
    assert (facts["verdict"], facts["checkpoints"]) == ("all equal", TURNS * 5)
    assert facts["bytes_before"] == long_file.stat().st_size
    assert facts["bytes_after"] == path.stat().st_size <= 100_000 + TURNS * 5_000
    with closing(official(long_file).conn) as connection, AgentSaver(path) as saver:
        theirs = SqliteSaver(connection).list(graphs.config("bench"))
        for mine, other in zip(saver.list(graphs.config("bench")), theirs, strict=True):
            assert seen(mine) == seen(other)


def test_checkpoints_without_the_official_package(source: Path, path: Path) -> None:
    """Reading needs no langgraph-checkpoint-sqlite: with its import made impossible the import works."""
    code = (
        "import sys\nsys.modules['langgraph.checkpoint.sqlite'] = None\n"
        "from agent_ckpt import AgentSaver, OfficialFile, transfer\n"
        f"with OfficialFile({str(source)!r}) as f, AgentSaver({str(path)!r}) as s: print(transfer(f, s).threads)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=WATCHDOG_S)
    assert done.stdout == "3\n", done.stderr


OWN_CLASSES = """
import sys
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.sqlite import SqliteSaver
import own_module
from agent_ckpt import AgentSaver
step, path = sys.argv[1:]
config = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}
values = own_module.values()
if step == "write":
    with SqliteSaver.from_conn_string(path) as saver:
        checkpoint = {**empty_checkpoint(), "channel_values": values, "channel_versions": dict.fromkeys(values, 1)}
        config = saver.put(config, checkpoint, {}, {})
        saver.put_writes(config, list(values.items()), "task")
else:
    with AgentSaver(path) as saver:
        found = saver.get_tuple(config)
        written = [value for _, _, value in found.pending_writes]
        print(found.checkpoint["channel_values"] == values, written == list(values.values()))
"""
OWN_MODULE = """
from dataclasses import dataclass
from enum import Enum
from pydantic import BaseModel
@dataclass
class Point:
    x: int
    y: list
class Model(BaseModel):
    p: dict[str, int]
class Colour(Enum):
    RED = "red"
def values():
    models = [Model(p={"a": n}) for n in range(30)]
    return {"point": Point(1, [2]), "model": models, "colour": {"k": Colour.RED}, "n": 1}
"""


def test_values_of_classes_that_are_not_there_come_in_as_they_are(tmp_path: Path) -> None:
    """The command doesn't have the user's dataclass, model and enum: their values come in with the bytes they had, and
    are equal where the classes are."""
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "own_module.py").write_text(OWN_MODULE)
    source, db = tmp_path / "own.sqlite", tmp_path / "own.db"

    def run(*command: str) -> str:
        env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(tmp_path / "home")])}
        command = (sys.executable, "-W", "ignore", *command)
        done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=WATCHDOG_S)
        assert done.returncode == 0, done.stderr
        return done.stdout

    run("-c", OWN_CLASSES, "write", str(source))
    done = cli("import", str(source), str(db))
    assert "own_module" not in sys.modules
    assert done.stdout.splitlines()[-1] == "all equal", done.stderr
    assert run("-c", OWN_CLASSES, "read", str(db)) == "True True\n"
    assert_sound(db)
