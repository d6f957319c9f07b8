"""`agent-ckpt rollback`: make an older checkpoint of a thread its head."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from agent_ckpt.cli import render
from agent_ckpt.cli.threads import AsJson, Database, Key


def rollback(
    db: Database,
    thread: Annotated[str, typer.Argument(metavar="THREAD", help="The thread_id.")],
    checkpoint: Annotated[str, typer.Argument(metavar="CHECKPOINT", help="The checkpoint_id to go back to.")],
    as_json: AsJson = False,
    key: Key = None,
) -> None:
    """Make an older checkpoint the head (latest checkpoint) again. What came after it is kept, marked.

    Works although newer checkpoints are damaged. Runs that are going on the thread are refused from
    now on. `agent-ckpt show` lists the ids; a rollback to a newer checkpoint goes forward again.
    """
    from agent_ckpt import AgentSaver

    with AgentSaver(db, create=False, key=key) as saver:
        config: Any = {"configurable": {"thread_id": thread, "checkpoint_ns": "", "checkpoint_id": checkpoint}}
        saver.rollback(config)
        done: dict[str, Any] = {
            "thread_id": thread,
            "head": checkpoint,
            "revision": saver.revision(thread),
            "rolled_back": list(saver.rolled_back(thread)),
        }
    if as_json:
        render.print_json(done)
        return
    marked = len(done["rolled_back"])
    render.console().print(
        f"thread {render.safe(thread)}: the head is {render.safe(checkpoint)} now, {marked} checkpoints are marked "
        f"as rolled back",
        soft_wrap=True,
    )
