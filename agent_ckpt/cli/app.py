"""The `agent-ckpt` command: its subcommands, and how an error becomes a line and an exit code."""

from __future__ import annotations

import sys

import typer

from agent_ckpt.cli import bring, check, credentials, export, keys, render, rollback, show, threads, upgrade, wal
from agent_ckpt.errors import CkptError

app = typer.Typer(
    name="agent-ckpt",
    help="Look into the checkpoints of LangGraph agents that an AgentSaver keeps in a file.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
app.command("threads", short_help="List the threads of a file.")(threads.threads)
app.command("show", short_help="Show one thread: its head, history and what is next.")(show.show)
app.command("check", short_help="Check whether a graph can go on from every thread of a file.")(check.check)
app.command("doctor", short_help="Tell whether a file and its place are in order.")(wal.doctor)
app.add_typer(wal.app, name="wal", short_help="Look at the WAL of a file, or cut it.")
app.command("upgrade", short_help="Bring a file of an older release to this one's tables.")(upgrade.upgrade)
app.command("rollback", short_help="Make an older checkpoint of a thread the head again.")(rollback.rollback)
app.command("import", short_help="Bring threads in from a SqliteSaver's file or a portable file.")(bring.bring)
app.command("export", short_help="Write one thread to a portable file.")(export.export)

app.add_typer(keys.app)
app.add_typer(credentials.app)


def main() -> None:
    """Run the command line and exit.

    A CkptError ends it with the exit code of its kind (`errors.py`: 2 for a wrong call or a missing
    file, 4 busy, 5 corrupt, 6 not our file) and its message as one line on stderr.
    """
    for stream in (sys.stdout, sys.stderr):
        # A terminal that can't show a character gets its escape, never a UnicodeEncodeError.
        getattr(stream, "reconfigure", lambda **_: None)(errors="backslashreplace")
    try:
        app()
    except CkptError as error:
        print(f"agent-ckpt: {render.one_line(error)}", file=sys.stderr)
        sys.exit(error.exit_code)
