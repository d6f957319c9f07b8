"""`agent-ckpt export`: one thread as one portable file."""

from __future__ import annotations

from typing import Annotated

import typer

from agent_ckpt.cli.bring import print_facts
from agent_ckpt.cli.threads import AsJson, Database, Key


def export(
    db: Database,
    thread: Annotated[str, typer.Argument(metavar="THREAD", help="The thread's id.")],
    out: Annotated[str, typer.Argument(metavar="OUT", help="The file to write; it must not be there yet.")],
    as_json: AsJson = False,
    key: Key = None,
    file_key: Annotated[
        str | None,
        typer.Option("--file-key", metavar="SOURCE", help="Seal OUT with this key: file:PATH or env:NAME."),
    ] = None,
    plain: Annotated[bool, typer.Option("--plain", help="Let OUT stand in clear, though DB is sealed.")] = False,
) -> None:
    """Write a thread to a portable file, whole, checked and without credentials; `agent-ckpt import` reads it.

    The file is sealed with DB's key where there is one, or with --file-key; else it stands in clear.
    """
    from agent_ckpt import AgentSaver

    with AgentSaver(db, create=False, key=key) as saver:
        report = saver.export_thread(thread, out, key=file_key, plain=plain)
    facts = {"thread": report.thread_id, "checkpoints": report.checkpoints, "task writes": report.writes}
    verdict = "in clear" if plain or not (file_key or key) else "sealed"
    print_facts({**facts, "bytes": report.size}, f"checked, whole, {verdict}", as_json)
