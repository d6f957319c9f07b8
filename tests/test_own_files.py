"""B66: nothing in this package opens a database, its -wal or its -shm other than through SQLite.

Closing any other descriptor of such a file drops all locks that the process has on it; another process that opens and
closes the database then deletes the live WAL, and what is committed after that is lost. Proven in two ways: an audit
hook hears of every file that Python code opens, and another process comes and goes after each call of a live writer.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import typer
from langgraph.graph import START, MessagesState, StateGraph

from agent_ckpt import AgentSaver, CkptError, PoisonedError
from agent_ckpt.cli.app import app
from tests.conftest import Api, assert_sound
from tests.sqlite_backend import ROOT

CONFIG: Any = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}
FILES = ("", "-wal", "-shm", "-journal")

_watched: dict[str, list[str]] = {}
_guarding = threading.local()


def _hear(event: str, arguments: tuple[Any, ...]) -> None:
    if event != "open" or not _watched or not isinstance(arguments[0], str | bytes):
        return
    name = os.path.abspath(os.fsdecode(arguments[0]))
    for path, opened in _watched.items():
        if name in {path + suffix for suffix in FILES}:
            opened.append("".join(f"{frame.filename}:{frame.lineno}\n" for frame in inspect.stack(0)[1:8]))


sys.addaudithook(_hear)


@contextmanager
def nothing_opened(path: Path) -> Iterator[None]:
    """No Python code opens the database's files meanwhile; SQLite's own opens aren't heard of."""
    opened = _watched[str(path)] = []
    try:
        yield
    finally:
        del _watched[str(path)]
    assert opened == []


VISITOR = """
import sqlite3, sys
c = sqlite3.connect(sys.argv[1])
print(c.execute("SELECT sequence FROM this_store").fetchone()[0])
c.close()
"""


def visited(path: Path) -> int:
    """The commit sequence that another process finds, which opens the file and closes it again."""
    done = subprocess.run([sys.executable, "-c", VISITOR, str(path)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


def put(api: Any, n: int) -> Any:
    checkpoint = {"v": 4, "id": f"{n:032x}", "ts": "2026-01-01T00:00:00+00:00", "channel_values": {"x": n},
                  "channel_versions": {"x": n + 1}, "versions_seen": {}, "updated_channels": None}  # fmt: skip
    return api.put(CONFIG, checkpoint, {"source": "loop", "step": n, "parents": {}}, {"x": n + 1})


class Live:
    """A saver with a WAL of its own, which is checked after each call of something."""

    def __init__(self, path: Path, api: Api) -> None:
        self.path = path
        self.api = api
        self.n = 0
        self.write()
        self.inode = os.stat(f"{path}-wal").st_ino

    def write(self) -> None:
        self.n += 1
        put(self.api, self.n)

    def still_whole(self) -> None:
        """Another process opens and closes the file; the WAL stays, and what is written then is seen by a third."""
        before = visited(self.path)
        assert os.stat(f"{self.path}-wal").st_ino == self.inode
        self.write()
        assert visited(self.path) > before
        assert self.api.get_tuple(CONFIG).checkpoint["channel_values"] == {"x": self.n}


@pytest.fixture
def live(path: Path, open_saver: Any, form: str) -> Live:
    """A live writer on the test's store."""
    return Live(path, Api(open_saver(), form))


def _calls() -> dict[str, Callable[[Api, Path], Any]]:
    """One call of each public method of a saver that touches the store (in the form under test), and opening one."""

    def open_another(api: Api, path: Path) -> None:
        other = Api(AgentSaver(path), api.form)
        other.get_tuple(CONFIG)
        other.setup()
        other.saver.close()

    def open_badly(api: Api, path: Path) -> None:
        for target, options in ((path / "x", {}), (path, {"engine": "pysqlite3"}), (path, {"journal": "rollback"})):
            with pytest.raises(CkptError):
                Api(AgentSaver(target, busy_timeout_s=0.1, **options), api.form).get_tuple(CONFIG)

    def narrow(api: Api, path: Path) -> None:
        path.chmod(0o604)
        open_another(api, path)
        assert path.stat().st_mode & 0o777 == 0o600

    def hold_a_lease(api: Api, path: Path) -> None:
        with api.saver.lease("leased", ttl=5.0):
            assert [lease.thread_id for lease in api.leases()] == ["leased"]
            assert api.break_lease("leased")

    def take_a_turn(api: Api, path: Path) -> None:
        with api.saver.turn({"configurable": {"thread_id": "leased"}}):
            pass

    def go_back(api: Api, path: Path) -> None:
        api.rollback({"configurable": {**CONFIG["configurable"], "checkpoint_id": f"{1:032x}"}})
        api.rolled_back("t")

    def carry(api: Api, path: Path) -> None:
        api.export_thread("t", path.with_name("t.portable"))
        api.import_thread(path.with_name("t.portable"), thread_id="carried")

    def change_keys(api: Api, path: Path) -> None:
        for call in (api.key_status, api.rotate_keys, api.seal_existing, api.unseal):
            with suppress(CkptError):
                call()

    def look_at_credentials(api: Api, path: Path) -> None:
        with suppress(CkptError):
            api.saver.credentials("t").names()
        with suppress(CkptError):
            api.list_credentials()

    def compare(api: Api, path: Path) -> None:
        builder = StateGraph(MessagesState)
        builder.add_node("one", lambda state: state)
        builder.add_edge(START, "one")
        graph = builder.compile(checkpointer=api.saver)
        api.check(graph)
        with api.saver.guard(graph):
            api.written_by(CONFIG)
        with suppress(CkptError):
            api.restore_captured(CONFIG)

    return {
        "key_status": change_keys,
        "credentials": look_at_credentials,
        "check": compare,
        "open another saver": open_another,
        "fail to open": open_badly,
        "narrow the rights": narrow,
        "put": lambda api, path: put(api, 1000),
        "put_writes": lambda api, path: api.put_writes(api.get_tuple(CONFIG).config, [("x", 1)], "task"),
        "get_tuple": lambda api, path: api.get_tuple(CONFIG),
        "list": lambda api, path: api.list(CONFIG),
        "get_delta_channel_history": lambda api, path: api.get_delta_channel_history(
            config=api.get_tuple(CONFIG).config, channels=["x"]
        ),
        "exists": lambda api, path: api.exists("t"),
        "threads": lambda api, path: list(api.threads()),
        "copy_thread": lambda api, path: api.copy_thread("t", "copy"),
        "delete_thread": lambda api, path: api.delete_thread("copy"),
        "rollback": go_back,
        "delete_for_runs": lambda api, path: api.delete_for_runs(["no such run"]),
        "prune": lambda api, path: api.prune(["t"]),
        "export_thread": carry,
        "lease": hold_a_lease,
        "turn": take_a_turn,
        "fork": lambda api, path: api.fork(api.get_tuple(CONFIG).config),
        "revision": lambda api, path: api.revision("t"),
        "verify": lambda api, path: api.verify(),
        "wal_status": lambda api, path: api.wal_status(),
        "wal_truncate": lambda api, path: api.wal_truncate(),
        "doctor": lambda api, path: api.doctor(),
        "setup": lambda api, path: api.setup(),
    }


NOT_A_CALL = {
    "rotate_keys",
    "seal_existing",
    "unseal",
    "list_credentials",
    "guard",
    "written_by",
    "restore_captured",
    "leases",
    "break_lease",
    "rolled_back",
    "import_thread",
    "close",
    "with_allowlist",
    "get_next_version",
    "from_conn_string",
    "from_env",
    "config_specs",
    "get",
}
"""Public names that are called within others of the list, that touch no store, or that end the saver."""


def test_every_method_of_a_saver_is_tried() -> None:
    """The list above names each public method, so that a new one can't be forgotten."""
    names = {name for name, value in inspect.getmembers(AgentSaver) if callable(value) and not name.startswith("_")}
    sync = {name for name in names if not (name.startswith("a") and name[1:] in names)}
    assert sync - NOT_A_CALL - set(_calls()) == set()


def test_no_method_opens_the_files(live: Live) -> None:
    """Each call of a saver, beside others that open and close the file: nothing opened, the WAL stays, nothing is
    lost."""
    for name, call in _calls().items():
        with nothing_opened(live.path):
            call(live.api, live.path)
            live.write()
        if name != "put":
            live.still_whole()


def test_a_second_saver_that_closes(live: Live, open_saver: Any) -> None:
    """Savers that come and go in the same process take no lock from the one that stays."""
    for _ in range(3):
        other = open_saver()
        with nothing_opened(live.path):
            put(Api(other, live.api.form), 2000 + live.n)
            asyncio.run(other.aget_tuple(CONFIG))
            other.close()
        live.api.get_tuple(CONFIG)
        assert os.stat(f"{live.path}-wal").st_ino == live.inode
        visited(live.path)
        assert os.stat(f"{live.path}-wal").st_ino == live.inode


def test_the_watch_hears_of_an_open(live: Live) -> None:
    """The two checks above do notice it: an open is heard of, and the locks that its close drops cost the WAL."""
    with pytest.raises(AssertionError), nothing_opened(live.path):
        live.path.open("rb").close()
    with pytest.raises((AssertionError, FileNotFoundError, PoisonedError)):
        live.still_whole()


# Commands, each in a process of its own beside a live writer


def commands(command: Any = None, prefix: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    group = command or typer.main.get_command(app)
    for name, each in group.commands.items():
        if hasattr(each, "commands"):
            yield from commands(each, (*prefix, name))
        else:
            yield (*prefix, name)


ARGUMENTS: dict[tuple[str, ...], list[str]] = {
    ("show",): ["DB", "t"],
    ("keys", "new"): ["KEY"],
    ("check",): ["tests.any_graph:graph", "DB"],
    ("rollback",): ["DB", "t", f"{1:032x}"],
    ("import",): ["PORTABLE", "DB", "--as", "imported"],
    ("export",): ["DB", "t", "OUT"],
}
"""What follows a command; the file alone where nothing is said. DB stands for the file, PORTABLE for one to import."""

AUDITED = """
import json, os, sys
opened, path = [], sys.argv[1]
files = {path + suffix for suffix in ("", "-wal", "-shm", "-journal")}
def hear(event, arguments):
    if event == "open" and isinstance(arguments[0], (str, bytes)):
        if os.path.abspath(os.fsdecode(arguments[0])) in files:
            opened.append(os.fsdecode(arguments[0]))
sys.addaudithook(hear)
from agent_ckpt.cli.app import main
sys.argv = ["agent-ckpt", *sys.argv[2:]]
status = 0
try:
    main()
except SystemExit as exc:
    status = exc.code or 0
print(json.dumps([status, opened]))
"""


def test_no_command_opens_the_files(path: Path, open_saver: Any) -> None:
    """Every command beside a live writer, in a process of its own: it opens the files through SQLite only, the WAL
    stays the writer's, and what is written during and after it is seen by all."""
    live = Live(path, Api(open_saver(), "sync"))
    portable = path.with_name("before.portable")
    live.api.export_thread("t", portable)
    words = {"DB": str(path), "PORTABLE": str(portable), "OUT": str(path.with_name("out.portable"))}
    words["KEY"] = str(path.with_name("new.key"))
    for command in commands():
        given = [words.get(word, word) for word in ARGUMENTS.get(command, ["DB"])]
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(AUDITED), str(live.path), *command, *given],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr
        status, opened = json.loads(done.stdout.splitlines()[-1])
        # What is about keys ends with an error on a plaintext file, and that is not what is looked at here.
        assert status == 0 or command[0] in ("keys", "credentials"), (command, done.stdout, done.stderr)
        assert opened == [], command
        assert os.stat(f"{live.path}-wal").st_ino == live.inode, command
        live.write()
    live.still_whole()
    assert_sound(live.path)
