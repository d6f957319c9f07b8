"""What a sealed file's commands print, and what tracebacks show with their local variables: no key, no secret."""

from __future__ import annotations

import base64
import io
import re
import sqlite3
import traceback
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from rich.traceback import Traceback
from typer.main import get_command
from typer.testing import CliRunner

from agent_ckpt import AgentSaver, CkptError, Keyring
from agent_ckpt.cli.app import app
from tests.conftest import Api
from tests.sealed import KEY
from tests.test_own_files import ARGUMENTS, commands
from tests.test_sealing import OTHER, config, edit, put

STATE, CREDENTIAL = "STATE-cAnArY-51", "CREDENTIAL-cAnArY-52"
ENV = {"CKPT_TEST_KEY": KEY.hex(), "CKPT_OTHER_KEY": OTHER.hex(), "COLUMNS": "300"}


def forms(key: bytes) -> list[str]:
    """The ways in which a key may be told."""
    text = base64.b64encode(key).decode()
    return [key.hex(), text, text.rstrip("="), base64.urlsafe_b64encode(key).decode(), bytes.__repr__(key)[2:-1]]


def filled(saver: AgentSaver) -> None:
    """A thread of which every field that a caller gives holds the canary, with a credential and a lease."""
    at = put(
        saver,
        config("t", f"{STATE} ns"),
        1,
        {"run_id": f"{STATE} run", f"{STATE} key": f"{STATE} value", "nested": [{f"{STATE}": STATE}]},
        **{f"{STATE} channel": [f"{STATE} item", {"deep": STATE}]},
    )
    put(saver, config("t"), 1, value=STATE)
    saver.put_writes(at, [("__interrupt__", STATE), ("__error__", STATE)], f"{STATE} task", f"{STATE} path")
    saver.credentials("t", actor=f"{STATE} actor").set("github", {"token": CREDENTIAL})
    saver.credentials("t").get("github")


@pytest.fixture
def sealed(path: Path) -> Iterator[Path]:
    with AgentSaver(path, key=KEY) as saver:
        filled(saver)
        with saver.lease("t"):
            saver.wal_truncate()
        saver.export_thread("t", path.with_name("in.portable"))
    yield path
    with AgentSaver(path, key=Keyring(OTHER, KEY), create=False) as saver:
        assert saver.verify()


def options(command: tuple[str, ...]) -> set[str]:
    """The options that a command has."""
    found: Any = get_command(app)
    for word in command:
        found = found.commands[word]
    return {name for parameter in found.params for name in parameter.opts}


def printed(db: Path, command: tuple[str, ...], *more: str) -> str:
    words = {"DB": str(db), "OUT": str(db.with_name("out.portable")), "PORTABLE": str(db.with_name("in.portable"))}
    words["KEY"] = str(db.with_name("new.key"))
    given = [words.get(word, word) for word in ARGUMENTS.get(command, ["DB"])]
    done = CliRunner().invoke(app, [*command, *given, *more], env=ENV)
    assert done.exception is None or isinstance(done.exception, (CkptError, SystemExit)), (command, done.exception)
    return f"{done.output}{done.exception}"


def test_no_command_tells_a_secret(sealed: Path) -> None:
    """Every command, as text and as JSON: without the key nothing of a sealed file is told; with it no credential's
    value and no key, by any command."""
    asked = 0
    for command in commands():
        known = options(command)
        for json_option in [[], ["--json"]] if "--json" in known else [[]]:
            told = printed(sealed, command, *json_option)
            secrets = [STATE, CREDENTIAL, *forms(KEY)]
            assert not [text for text in secrets if text in told], (command, told)
            if "--key" in known and command not in (("keys", "unseal"), ("keys", "rotate")):
                told = printed(sealed, command, *json_option, "--key", "env:CKPT_TEST_KEY")
                assert not [text for text in (CREDENTIAL, *forms(KEY)) if text in told], (command, told)
                asked += 1
    assert asked >= 10


def altered(path: Path) -> Any:
    """The envelope of a thread's key with another byte."""
    with closing(sqlite3.connect(path)) as connection:
        (envelope,) = connection.execute("SELECT secret FROM threads").fetchone()
    edit(path, ("UPDATE threads SET secret = ?", (envelope[:40] + bytes([envelope[40] ^ 1]) + envelope[41:],)))
    with AgentSaver(path, key=KEY) as saver:
        return saver.get_tuple(config())


def altered_store(path: Path) -> Any:
    """The envelope of the store's key with another byte."""
    with closing(sqlite3.connect(path)) as connection:
        (stored,) = connection.execute("SELECT seal FROM this_store").fetchone()
    edit(path, ("UPDATE this_store SET seal = ?", (stored[:40] + bytes([stored[40] ^ 1]) + stored[41:],)))
    return AgentSaver(path, key=KEY).get_tuple(config())


def wrong_service(path: Path) -> Any:
    """A key service whose answers are other keys than those that were wrapped."""

    def service(operation: str, key_id: str, data: bytes) -> Any:
        return (key_id or "k", data[::-1]) if operation == "wrap" else data

    other = path.with_name("service.db")
    with AgentSaver(other, key=Keyring(service=service)) as saver:
        put(saver, config(), 1, value=STATE)
    with AgentSaver(other, key=Keyring(service=service)) as saver:
        return saver.get_tuple(config())


REFUSED: list[Callable[[Path], Any]] = [
    lambda path: AgentSaver(path, key=OTHER).get_tuple(config()),
    lambda path: AgentSaver(path, key=Keyring(OTHER)).credentials("t").get("github"),
    lambda path: AgentSaver(path, key=KEY[:31]),
    lambda path: AgentSaver(path, key=KEY.hex()),
    lambda path: AgentSaver(path, key="env:CKPT_TEST_KEYS"),
    lambda path: AgentSaver(path).get_tuple(config()),
    lambda path: AgentSaver(path, key=KEY, no_such_option=True),
    lambda path: AgentSaver(path.parent, key=KEY).get_tuple(config()),
    lambda path: Keyring(KEY[:31]),
    lambda path: AgentSaver.from_env({"AGENT_CKPT_URL": str(path), "K": KEY.hex(), "AGENT_CKPT_KEY": KEY.hex()}),
    lambda path: AgentSaver.from_env({"AGENT_CKPT_URL": str(path), "K": KEY.hex()[1:], "AGENT_CKPT_KEY": "env:K"}),
    altered,
    altered_store,
    wrong_service,
]


@pytest.mark.parametrize("number", range(len(REFUSED)))
def test_no_traceback_shows_a_key(path: Path, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Errors about keys, reported with the local variables of all frames of ours, by the standard library and by rich:
    neither a master key nor a data key nor a cut one is shown."""
    made: list[bytes] = []
    with monkeypatch.context() as watched:
        import agent_ckpt.codec.seal as sealing

        new_keys = sealing.new_keys
        watched.setattr(sealing, "new_keys", lambda size: made.append(new_keys(size)) or made[-1])
        monkeypatch.setenv("CKPT_TEST_KEYS", f"{KEY.hex()},{KEY.hex()[:40]}")
        with AgentSaver(path, key=KEY) as saver:
            put(saver, config(), 1, value=STATE)
            saver.credentials("t").set("github", CREDENTIAL)
        with pytest.raises(CkptError) as refused:
            REFUSED[number](path)
    secrets = [text for key in (KEY, KEY[:31], *made) for text in forms(key)]
    assert len(made) >= 4
    for told in (told_by_stdlib(refused.value), told_by_rich(refused.value)):
        assert not [text for text in secrets if text in told]
        assert CREDENTIAL not in told


def told_by_stdlib(error: BaseException | None) -> str:
    told = ""
    while error is not None:
        shown = traceback.TracebackException.from_exception(error, capture_locals=True)
        ours = [frame.locals for frame in shown.stack if "/agent_ckpt/" in frame.filename]
        told += "locals: " + repr(ours) + "".join(shown.format_exception_only())
        error = error.__cause__ or error.__context__
    assert "locals: [{" in told
    return told.replace("\\\\", "\\")


def told_by_rich(error: BaseException) -> str:
    """As rich prints it, which shows 80 characters of a text unless it is told otherwise."""
    out = io.StringIO()
    found = Traceback.extract(type(error), error, error.__traceback__, show_locals=True, locals_max_string=10_000)
    for stack in found.stacks:
        stack.frames = [frame for frame in stack.frames if "/agent_ckpt/" in frame.filename]
    Console(file=out, width=10_000).print(Traceback(found, show_locals=True, width=10_000, locals_max_string=10_000))
    told = re.sub(r"\s+", " ", out.getvalue())
    assert "locals" in told
    return told


def test_the_reports_do_show_local_variables(path: Path) -> None:
    """What the test above looks into has the texts that stand in local variables: of a saver's path, for one."""
    with pytest.raises(CkptError) as refused, AgentSaver(path, key=KEY) as saver:
        Api(saver, "sync").credentials("")
    for told in (told_by_stdlib(refused.value), told_by_rich(refused.value)):
        assert "thread" in told
