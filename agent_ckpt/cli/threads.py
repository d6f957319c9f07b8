"""`agent-ckpt threads`: the threads of a file."""

from __future__ import annotations

import itertools
from dataclasses import asdict
from typing import Annotated

import typer

from agent_ckpt.cli import render

Database = Annotated[str, typer.Argument(metavar="DB", help="The database file, or its sqlite:/// URL.")]
Key = Annotated[
    str | None,
    typer.Option(
        "--key",
        metavar="SOURCE",
        envvar="AGENT_CKPT_KEY",
        help="Where the key is: file:PATH or env:NAME, never itself.",
    ),
]
TargetKey = Annotated[
    str | None,
    typer.Option(
        "--db-key", metavar="SOURCE", envvar="AGENT_CKPT_KEY", help="Where DB's key is: file:PATH or env:NAME."
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]


def threads(
    db: Database,
    as_json: AsJson = False,
    key: Key = None,
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="Show at most this many threads.")] = None,
) -> None:
    """List the threads with their number of checkpoints and namespaces, revision and last update."""
    from agent_ckpt import AgentSaver

    with AgentSaver(db, create=False, key=key) as saver:
        found = list(itertools.islice(saver.threads(), limit))
    if as_json:
        render.print_json([asdict(info) for info in found])
        return
    columns = [("thread", False), ("checkpoints", True), ("namespaces", True), ("revision", True), ("updated", False)]
    rows = [(info.thread_id, info.checkpoints, info.namespaces, info.revision, info.updated) for info in found]
    render.console().print(render.table(columns, rows) if rows else "no threads")
