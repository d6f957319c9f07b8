"""`agent-ckpt credentials`: which credentials the threads of a file have, never a value."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from agent_ckpt.cli import render
from agent_ckpt.cli.threads import AsJson, Database, Key

if TYPE_CHECKING:
    from agent_ckpt.vault import CredentialInfo

app = typer.Typer(
    name="credentials",
    help="Show which credentials threads have, never a value.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Thread = Annotated[str | None, typer.Argument(metavar="[THREAD]", help="The thread's id; all threads without one.")]


@app.callback()
def _group() -> None:
    """Without this, typer would take the only command for the group itself."""


@app.command("list", short_help="List names, expiry and last use.")
def list_credentials(db: Database, thread: Thread = None, key: Key = None, as_json: AsJson = False) -> None:
    """List names, revisions, expiry and last use of the credentials of one thread or of all; never a value.

    Listing is no use: it leaves no record in the audit.
    """
    from agent_ckpt import AgentSaver

    with AgentSaver(db, create=False, key=key) as saver:
        found = saver.list_credentials(thread)
    if as_json:
        render.print_json([as_told(info) for info in found])
        return
    print_table(found)


def print_table(found: Sequence[CredentialInfo]) -> None:
    """Print what can be told of credentials."""
    columns = [
        ("thread", False),
        ("name", False),
        ("revision", True),
        ("expires", False),
        ("last used", False),
        ("by", False),
    ]
    rows = []
    for line in map(as_told, found):
        expires = f"{line['expires_at']} (expired)" if line["expired"] else line["expires_at"]
        names = (line["thread_id"], line["name"], line["revision"])
        rows.append((*names, expires, line["last_used"], line["last_used_by"]))
    render.console().print(render.table(columns, rows) if rows else "no credentials")


def as_told(info: CredentialInfo) -> dict[str, Any]:
    """A credential's facts, its times as ISO 8601 text, and whether it has expired."""
    times = {name: _time(getattr(info, name)) for name in ("expires_at", "last_used")}
    expired = info.expires_at is not None and info.expires_at <= datetime.now(UTC)
    return {**asdict(info), **times, "expired": expired}


def _time(moment: datetime | None) -> str | None:
    return moment.isoformat(timespec="seconds") if moment is not None else None
