"""`agent-ckpt check`: whether a graph can go on from every thread of a file."""

from __future__ import annotations

import importlib
import sys
from dataclasses import asdict
from typing import Annotated, Any

import typer

from agent_ckpt.cli import render
from agent_ckpt.cli.threads import AsJson, Database, Key
from agent_ckpt.errors import SchemaChangeError, UsageError


def check(
    graph: Annotated[str, typer.Argument(metavar="MODULE:GRAPH", help="A graph, or a function that makes one.")],
    db: Database,
    thread: Annotated[str | None, typer.Option("--thread", help="Check this thread only.")] = None,
    as_json: AsJson = False,
    key: Key = None,
) -> None:
    """Check for each thread whether its head (latest checkpoint) can be gone on from by the graph.

    The module is imported from the current folder or the environment. Exit code 0: every thread can;
    10: one can't, since a class, a node that a task waits for or a channel is gone. Channels that are
    only new or no longer used are told, and are no failure.
    """
    from agent_ckpt import AgentSaver

    made = _graph(graph)
    with AgentSaver(db, create=False, key=key, on_schema_change="ignore") as saver:
        report = saver.check(made, thread)
    if as_json:
        render.print_json({"ok": bool(report), "threads": [{"ok": bool(one), **asdict(one)} for one in report.threads]})
    else:
        _print(report)
    if not report:
        raise typer.Exit(SchemaChangeError.exit_code)


def _graph(name: str) -> Any:
    """The compiled graph that a `module:name` names.

    Raises:
        UsageError: when it can't be had.
    """
    module, _, path = name.partition(":")
    if not module or not path:
        raise UsageError(f"{name!r} names no graph: write module:graph, such as my_app.agents:agent")
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        found: Any = importlib.import_module(module)
        for part in path.split("."):
            found = getattr(found, part)
        if not hasattr(found, "nodes") and callable(found):
            found = found()
    except Exception as exc:
        raise UsageError(f"{name!r} can't be had: {type(exc).__name__}: {exc}") from exc
    return found if hasattr(found, "channels") and not hasattr(found, "compile") else _compiled(found, name)


def _compiled(found: Any, name: str) -> Any:
    if not hasattr(found, "compile"):
        raise UsageError(f"{name!r} is a {type(found).__name__}, which is no graph")
    return found.compile()


def _print(report: Any) -> None:
    out = render.console()
    columns = [("thread", False), ("checkpoint", False), ("", False), ("what differs", False)]
    rows: list[tuple[Any, ...]] = []
    for one in report.threads:
        told = [change.detail for change in one.changes if change.kind != "channel_added"]
        new = [change.name for change in one.changes if change.kind == "channel_added"]
        told += [f"new: {', '.join(new)}"] if new else []
        state = "ok" if one else "can't go on"
        rows.append((one.thread_id, one.checkpoint_id, state, one.error or "; ".join(told)))
    out.print(render.table(columns, rows) if rows else "no threads")
    bad = sum(not one for one in report.threads)
    out.print(f"{len(report.threads)} threads, {bad} of which the graph can't go on from", soft_wrap=True)
