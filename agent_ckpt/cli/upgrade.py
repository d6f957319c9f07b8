"""`agent-ckpt upgrade`: bring a file of an older release to this one's tables."""

from __future__ import annotations

from typing import Annotated

import typer

from agent_ckpt.cli import render
from agent_ckpt.cli.threads import AsJson, Database


def upgrade(
    db: Database,
    backup: Annotated[str | None, typer.Option("--backup", help="Where the backup goes.")] = None,
    as_json: AsJson = False,
) -> None:
    """Bring a file to this release's tables, in one transaction, after a backup beside it.

    Needs no key, and no other process may have the file open. A file that is in order stays as it is.
    """
    from agent_ckpt.sqlite.upgrade import upgrade as bring_up

    done = bring_up(db, backup)
    if as_json:
        render.print_json(done._asdict())
        return
    if done.backup is None:
        told = f"schema_version {done.found}: nothing to do"
    else:
        told = f"schema_version {done.found} became {done.now}; the backup is {render.safe(done.backup)}"
    render.console().print(f"{render.safe(done.path)}: {told}", soft_wrap=True)
