"""`agent-ckpt keys`: make keys, look what a file is sealed with, rotate, seal and unseal it."""

from __future__ import annotations

import os
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from agent_ckpt.cli import render
from agent_ckpt.cli.credentials import print_table
from agent_ckpt.cli.threads import AsJson, Database, Key
from agent_ckpt.errors import UsageError

if TYPE_CHECKING:
    from agent_ckpt.key_work import KeyStatus, Progress

app = typer.Typer(
    name="keys",
    help="Make keys, look what a file is sealed with, rotate keys, seal and unseal a file.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.command("new", short_help="Make a key.")
def new(
    file: Annotated[str | None, typer.Argument(metavar="[FILE]", help="A new file for it, mode 0600.")] = None,
) -> None:
    """Make 32 random bytes in text form, in a new file, or on stdout for a secret manager or a variable.

    The key is given to a saver as key="file:FILE" or "env:NAME", never on a command line.
    """
    from agent_ckpt import key_work
    from agent_ckpt.codec.keysource import new_key_text

    if file is None:
        print(new_key_text())
        return
    key_id = key_work.new_key_file(file)
    print(f"key {key_id} is in {file}; keep a copy of it elsewhere: what it seals is lost without it")


@app.command("list", short_help="List the keys of a keyring.")
def list_keys(key: Key = None) -> None:
    """List the ids of a keyring's keys, the active one first."""
    from agent_ckpt.codec.keyring import Keyring

    if key is None:
        raise UsageError("name the keyring: --key file:PATH or env:NAME, or AGENT_CKPT_KEY")
    for at, key_id in enumerate(Keyring.of(key).ids):
        print(f"{key_id}{'' if at else ' (active)'}")


@app.command("status", short_help="Show which keys a file is sealed with.")
def status(db: Database, key: Key = None, as_json: AsJson = False) -> None:
    """Show what stands under which key, and how much remains to be rotated. Needs no key."""
    from agent_ckpt import AgentSaver

    with AgentSaver(db, create=False, key=key) as saver:
        found = saver.key_status()
    if as_json:
        render.print_json({**asdict(found), "remaining": found.remaining})
        return
    _print_status(found)


def _print_status(found: KeyStatus) -> None:
    print(f"the file is {found.state}" + (", its thread ids too" if found.thread_ids_sealed else ""))
    ids = {*([found.store] if found.store else []), *found.threads, *found.credentials}
    rows = [
        (
            key_id or "(plaintext)",
            found.threads.get(key_id, 0),
            found.credentials.get(key_id, 0),
            "yes" if key_id == found.store else "",
            "active" if key_id and key_id == found.active else "",
        )
        for key_id in sorted(ids)
    ]
    columns = [("key", False), ("threads", True), ("threads' credentials", True), ("the store", False), ("", False)]
    render.console().print(render.table(columns, rows))
    if found.active is not None and found.state == "sealed":
        left = found.remaining
        print(f"{left} to rotate" if left else "nothing to rotate: older keys can be retired")


@app.command("rotate", short_help="Bring a file under a new key.")
def rotate(
    db: Database,
    key: Key = None,
    compromised: Annotated[
        bool, typer.Option("--compromised", help="The old key is in wrong hands: new data keys, all sealed anew.")
    ] = False,
) -> None:
    """Wrap every key of the file under the keyring's active key; a keyring in a file gets a new key first.

    Only wrapped keys are written, unless --compromised. Killed at any moment, it goes on when run again.
    """
    from agent_ckpt import AgentSaver

    _need_key(key)
    with AgentSaver(db, create=False, key=key) as saver:
        done = saver.rotate_keys(compromised=compromised, progress=_progress())
        found = saver.key_status()
        credentials = saver.list_credentials() if compromised else []
    _end_progress()
    print(f"{done.threads} threads are under key {done.active} now")
    if done.retired:
        ids = ", ".join(done.retired)
        print(f"nothing in the file needs key {ids} any more; backups from before this do, and it opens them")
        if compromised:
            print(f"delete those backups, or keep them where who has key {ids} can't read them")
    if compromised:
        print("what was stored before may have been read: revoke the credentials in it at their issuers")
        if credentials:
            print_table(credentials)
    if not done.wal_truncated:
        print(
            "the WAL could not be cut, since it is being read; it holds frames of before, and the file "
            "can't get shorter until then: `agent-ckpt wal truncate`"
        )
    if done.pages_left:
        print(
            f"{_pages(done.pages_left)} of the file could not be given back: others wrote all the time, or another "
            f"program made the file. They hold zeros; run this again, or VACUUM the file while nothing has it open"
        )
    if found.remaining:
        print(f"{found.remaining} remain: another saver still writes under an older key; give it the new keyring")


@app.command("seal-existing", short_help="Seal a plaintext file.")
def seal_existing(
    db: Database,
    key: Key = None,
    thread_ids: Annotated[bool, typer.Option("--thread-ids", help="Seal thread ids, too.")] = False,
) -> None:
    """Seal a plaintext file in place, thread by thread. Stop what uses the file first; backups stay plaintext.

    Killed at any moment, it goes on when run again.
    """
    from agent_ckpt import AgentSaver

    _need_key(key)
    with AgentSaver(db, create=False, key=key, seal_thread_ids=thread_ids) as saver:
        done = saver.seal_existing(progress=_progress())
    _end_progress()
    print(f"{done} threads were sealed; the file opens with the key only. Backups from before hold them in clear")


@app.command("unseal", short_help="Make a sealed file plaintext.")
def unseal(db: Database, key: Key = None) -> None:
    """Make a sealed file plaintext, thread by thread. Stop what uses the file first."""
    from agent_ckpt import AgentSaver

    _need_key(key)
    with AgentSaver(db, create=False, key=key) as saver:
        done = saver.unseal(progress=_progress())
    _end_progress()
    print(f"{done} threads were unsealed; the file opens without a key, to everybody who can read it")


def _pages(count: int) -> str:
    return "free pages" if count < 0 else f"{count} free pages"


def _need_key(key: str | None) -> None:
    if key is None:
        raise UsageError("this needs the key: --key file:PATH or env:NAME, or the variable AGENT_CKPT_KEY")


def _progress() -> Progress | None:
    """Counts on stderr, in place, where somebody looks at it."""
    if not sys.stderr.isatty() or os.environ.get("TERM") == "dumb":
        return None

    def show(done: int, remaining: int) -> None:
        print(f"\r{done} done, {remaining} remain ", end="", file=sys.stderr, flush=True)

    return show


def _end_progress() -> None:
    if _progress() is not None:
        print(file=sys.stderr)
