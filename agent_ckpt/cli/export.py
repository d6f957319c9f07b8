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
) -> None:
    """Write a thread to a portable file, whole, checked and without credentials; `agent-ckpt import` reads it."""
    from agent_ckpt import AgentSaver

    with AgentSaver(db, create=False, key=key) as saver:
        report = saver.export_thread(thread, out)
    facts = {"thread": report.thread_id, "checkpoints": report.checkpoints, "task writes": report.writes}
    print_facts({**facts, "bytes": report.size}, "checked, whole", as_json)
