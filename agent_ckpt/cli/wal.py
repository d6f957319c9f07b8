"""`agent-ckpt wal` and `agent-ckpt doctor`: the WAL's size, cutting it, and the file's circumstances."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from agent_ckpt.cli import render
from agent_ckpt.cli.threads import AsJson, Database

if TYPE_CHECKING:
    from agent_ckpt import WalStatus

WRONG_EXIT = 1

Engine = Annotated[str, typer.Option("--engine", help="The SQLite to use: sqlite3 or pysqlite3.")]
Journal = Annotated[str, typer.Option("--journal", help="As the option journal: auto, wal, rollback, litestream.")]

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Look at the WAL of a file, or cut it.")


@app.command("status", short_help="Tell the WAL's size and who reads it.")
def status(db: Database, as_json: AsJson = False, engine: Engine = "sqlite3", journal: Journal = "auto") -> None:
    """Tell the WAL's size, how many of its pages are not in the file yet, and who reads it now."""
    from agent_ckpt import AgentSaver

    with AgentSaver(db, create=False, engine=engine, journal=journal) as saver:
        _print(saver.wal_status(), as_json)


@app.command("truncate", short_help="Fold the WAL into the file and cut it to nothing.")
def truncate(
    db: Database,
    wait: Annotated[float, typer.Option("--wait", min=0.0, help="Seconds to wait for readers.")] = 1.0,
    as_json: AsJson = False,
    engine: Engine = "sqlite3",
    journal: Journal = "auto",
) -> None:
    """Fold the WAL into the file and cut it to nothing.

    If a reader is in the way for longer than --wait, the exit code is 8 and the WAL stays as it was.
    """
    from agent_ckpt import AgentSaver

    with AgentSaver(db, create=False, engine=engine, journal=journal) as saver:
        _print(saver.wal_truncate(wait), as_json)


def doctor(db: Database, as_json: AsJson = False, engine: Engine = "sqlite3", journal: Journal = "auto") -> None:
    """Tell engine, journal mode, file system, rights and WAL of a file, and what to change.

    The exit code is 1 if something is wrong.
    """
    from agent_ckpt import AgentSaver

    with AgentSaver(db, create=False, engine=engine, journal=journal) as saver:
        found = saver.doctor()
    if as_json:
        render.print_json([asdict(check) for check in found])
    else:
        rows: list[tuple[Any, ...]] = [(check.name, check.state, check.text) for check in found]
        render.console().print(render.table([("check", False), ("state", False), ("found", False)], rows))
    if any(check.state == "wrong" for check in found):
        raise typer.Exit(WRONG_EXIT)


def _print(found: WalStatus, as_json: bool) -> None:
    if as_json:
        render.print_json(asdict(found))
        return
    readers = ", ".join(f"{pin.pid} ({pin.command})" for pin in found.pinned_by)
    rows: list[tuple[Any, ...]] = [
        ("journal", found.journal),
        ("bytes on disk", found.bytes),
        ("pages", found.pages),
        ("pages not in the file yet", found.pages_left),
        ("read now by process", readers or "none"),
    ]
    render.console().print(render.table([("", False), ("", False)], rows))
