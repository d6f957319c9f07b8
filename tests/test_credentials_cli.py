"""`agent-ckpt credentials list`: names, expiry and last use, and never a value."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from agent_ckpt import AgentSaver
from agent_ckpt.cli.app import app
from tests.sealed import KEY, sealed_savers
from tests.test_cli import HOSTILE
from tests.test_cli import run as run_program

CANARY = "ghp_CANARY-9f2c71e6"
ENV = {"CKPT_TEST_KEY": KEY.hex()}
WITH_KEY = ("--key", "env:CKPT_TEST_KEY")


@pytest.fixture
def db(path: Path) -> Iterator[Path]:
    with sealed_savers(path) as open_one:
        saver = open_one()
        here = saver.credentials("customer-42", actor="operator ann")
        here.set("github", {"token": CANARY}, expires_at=4e9)
        here.set("old", CANARY, expires_at=1e9)
        here.get("github")
        saver.credentials(HOSTILE.replace("\0", "")).set("[red]x[/red]", CANARY)
        saver.close()
        yield path


def lines(*arguments: str) -> str:
    done = CliRunner().invoke(app, ["credentials", "list", *arguments], env={**ENV, "COLUMNS": "300"})
    assert done.exit_code == 0, done.output
    assert CANARY not in done.output
    return done.output


def test_the_table(db: Path) -> None:
    """Each credential has a line with its expiry and last use; an expired one is marked; hostile text is escaped."""
    shown = lines(str(db), *WITH_KEY)
    github = next(line for line in shown.splitlines() if "github" in line)
    assert "2096-10-02T07:06:40+00:00" in github
    assert "operator ann, process" in github
    assert "2001-09-09T01:46:40+00:00 (expired)" in next(line for line in shown.splitlines() if " old" in line)
    assert "[red]x[/red]" in shown
    assert "\x1b" not in shown
    assert len(lines(str(db), "customer-42", *WITH_KEY).splitlines()) == len(shown.splitlines()) - 1
    assert lines(str(db), "nobody", *WITH_KEY).strip() == "no credentials"


def test_as_json(db: Path) -> None:
    """--json has the same, for programs; listing leaves no record of use."""
    (github, old) = json.loads(lines(str(db), "customer-42", "--json", *WITH_KEY))
    assert (github["thread_id"], github["name"], github["expired"]) == ("customer-42", "github", False)
    assert (old["expired"], old["last_used"], old["last_used_by"]) == (True, None, None)
    assert github["revision"] < old["revision"]
    (again, _) = json.loads(lines(str(db), "customer-42", "--json", *WITH_KEY))
    assert again == github


def test_without_the_key_nothing_is_listed(db: Path) -> None:
    """As a program: no key, or none where it is said to be, is one line on stderr and an exit code; no traceback."""
    for arguments in ((), ("--key", "env:NOT_SET_ANYWHERE"), ("--key", KEY.hex())):
        done = run_program("credentials", "list", str(db), *arguments)
        assert done.returncode in (2, 9), done.stderr
        assert done.stdout == ""
        assert "Traceback" not in done.stderr
        assert KEY.hex() not in done.stderr
        assert len(done.stderr.strip().splitlines()) == 1


def test_a_compromised_key_names_what_to_revoke(db: Path, tmp_path: Path) -> None:
    """`keys rotate --compromised` prints thread, name and last use of each credential; `keys status` counts them."""
    keyring = tmp_path / "keyring"
    keyring.write_text(KEY.hex())
    keyring.chmod(0o600)
    where = ("--key", f"file:{keyring}")
    done = CliRunner().invoke(app, ["keys", "rotate", str(db), "--compromised", *where], env={"COLUMNS": "300"})
    assert done.exit_code == 0, done.output
    assert "revoke the credentials" in done.output
    assert "customer-42" in next(line for line in done.output.splitlines() if "github" in line and "ann" in line)
    assert CANARY not in done.output
    done = CliRunner().invoke(app, ["keys", "status", str(db), "--json", *where])
    found = json.loads(done.output)
    assert found["credentials"] == {found["active"]: 2}
    assert found["remaining"] == 0
    with AgentSaver(db, key=f"file:{keyring}") as saver:
        assert saver.verify().findings == ()
    # The fixture verifies with the key of before.
    db.unlink()
