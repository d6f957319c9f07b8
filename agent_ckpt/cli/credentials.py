"""`agent-ckpt credentials`: which credentials the threads of a file have, never a value."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from agent_ckpt.cli import render
from agent_ckpt.cli.threads import AsJson, Database

app = typer.Typer(
    help="Show which credentials threads have, never a value.", no_args_is_help=True, rich_markup_mode=None
)

Key = Annotated[
    str | None, typer.Option("--key", envvar="AGENT_CKPT_KEY", help="Where the file's key is: env:NAME or file:PATH.")
]
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
    now = datetime.now(UTC)
    lines = [{**asdict(info), "expired": info.expires_at is not None and info.expires_at <= now} for info in found]
    for line in lines:
        for name in ("expires_at", "last_used"):
            line[name] = _time(line[name])
    if as_json:
        render.print_json(lines)
        return
    columns = [
        ("thread", False),
        ("name", False),
        ("revision", True),
        ("expires", False),
        ("last used", False),
        ("by", False),
    ]
    rows: list[tuple[Any, ...]] = [
        (
            line["thread_id"],
            line["name"],
            line["revision"],
            f"{line['expires_at']} (expired)" if line["expired"] else line["expires_at"],
            line["last_used"],
            line["last_used_by"],
        )
        for line in lines
    ]
    render.console().print(render.table(columns, rows) if rows else "no credentials")


def _time(moment: datetime | None) -> str | None:
    return moment.isoformat(timespec="seconds") if moment is not None else None
