"""`agent-ckpt import`: threads from an official SqliteSaver's file, or one from a portable file."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from agent_ckpt.cli import render
from agent_ckpt.cli.threads import AsJson, TargetKey
from agent_ckpt.errors import CkptError, TransferError, UsageError

if TYPE_CHECKING:
    from agent_ckpt.reports import TransferReport
    from agent_ckpt.transfers import Progress

_KEY_SIZES = (16, 24, 32)
_LARGEST_KEY_FILE = 4096

Key = Annotated[
    str | None,
    typer.Option("--key", metavar="KEY", help="Where the key of an encrypted SOURCE is: env:NAME or file:PATH."),
]


def bring(
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="A SqliteSaver's file, or a portable file.")],
    db: Annotated[str, typer.Argument(metavar="DB", help="The database file to bring it into; made if missing.")],
    threads: Annotated[
        list[str] | None, typer.Option("--thread", metavar="ID", help="Only this thread; may be repeated.")
    ] = None,
    as_id: Annotated[
        str | None, typer.Option("--as", metavar="ID", help="The id that the thread gets, where it is a single one.")
    ] = None,
    key: Key = None,
    db_key: TargetKey = None,
    as_json: AsJson = False,
) -> None:
    """Bring threads in, compare every checkpoint with the source, and print what was brought.

    The source is only read. A run that was interrupted is continued by the same command. A thread that is in DB
    already is left as it is, whether it is equal or not. A thread that can't be brought is named with the reason, all
    others are brought, and the exit code is that of the reason, 1 where there are several kinds.
    """
    from agent_ckpt.sqlite import target

    if not os.path.isfile(source):
        raise UsageError(f"there is no file {source}", path=source)
    into = target.parse(db, create=True)
    if into.memory:
        raise UsageError(f"{db} would be gone when the command ends; name a file for DB")
    if os.path.exists(into.path) and os.path.samefile(source, into.path):
        raise UsageError(f"{source} and {db} are the same file; name another one for DB")
    if _is_portable(source):
        if threads:
            raise UsageError(f"{source} holds one thread: --thread doesn't apply to it")
        _bring_portable(source, db, db_key, as_id, key, as_json, into.path)
    else:
        _bring_official(source, db, db_key, threads, as_id, key, as_json, into.path)


def read_key(spec: str | None) -> bytes | None:
    """The key that `env:NAME` or `file:PATH` leads to; a line end behind the key in a file is not part of it.

    Raises:
        UsageError: when there is none of 16, 24 or 32 bytes. The key itself is never in the message.
    """
    if spec is None:
        return None
    kind, _, where = spec.partition(":")
    if kind == "env" and where:
        found = os.environb.get(os.fsencode(where))
    elif kind == "file" and where:
        try:
            with open(where, "rb") as file:
                found = file.read(_LARGEST_KEY_FILE)
        except OSError as exc:
            raise UsageError(f"--key {kind}:{where} can't be read: {exc.strerror}") from exc
        if len(found) not in _KEY_SIZES:
            found = found.rstrip(b"\r\n")
    else:
        raise UsageError("--key says where the key is, never the key: env:NAME or file:PATH")
    if found is None:
        raise UsageError(f"--key {spec}: the variable is not set")
    if len(found) not in _KEY_SIZES:
        raise UsageError(f"--key {spec}: an AES key has 16, 24 or 32 bytes, this one has {len(found)}")
    return found


def _is_portable(path: str) -> bool:
    """Whether a file begins as a portable one. No other part of this process has it open yet."""
    from agent_ckpt.codec.portable import MAGIC

    with open(path, "rb") as file:
        return file.read(len(MAGIC)) == MAGIC


def _bring_portable(
    source: str, db: str, db_key: str | None, as_id: str | None, key: str | None, as_json: bool, path: str
) -> None:
    from agent_ckpt import AgentSaver

    with AgentSaver(db, key=db_key) as saver:
        report = saver.import_thread(source, thread_id=as_id, key=key)
    facts = {"thread": report.thread_id, "checkpoints": report.checkpoints, "task writes": report.writes}
    print_facts({**facts, "bytes before": report.size, "bytes after": _size(path)}, "checked, whole", as_json)


def _bring_official(
    source: str,
    db: str,
    db_key: str | None,
    threads: list[str] | None,
    as_id: str | None,
    key: str | None,
    as_json: bool,
    path: str,
) -> None:
    from agent_ckpt import AgentSaver, OfficialFile
    from agent_ckpt.transfers import transfer

    with OfficialFile(source, key=read_key(key)) as file:
        if as_id is not None:
            threads = threads or list(dict.fromkeys(found for found, _ in file.listed(None, None, None)))
            if len(threads) != 1:
                raise UsageError(f"--as names one thread, {len(threads)} are to be brought; choose one with --thread")
        rename = {threads[0]: as_id} if threads and as_id is not None else None
        before = file.size
        report: TransferReport | TransferError
        with AgentSaver(db, key=db_key) as saver, _progress() as progress:
            try:
                report = transfer(file, saver, threads=threads, rename=rename, progress=progress)
            except TransferError as exc:
                report = exc
    facts: dict[str, Any] = {
        "threads": report.threads,
        "checkpoints": report.checkpoints,
        "pending writes": report.writes,
        "already there": report.already_there,
        "bytes before": before,
        "bytes after": _size(path),
    }
    if isinstance(report, TransferError):
        _tell_refused(report, facts, as_json)
    print_facts(facts, "all equal", as_json)


def _tell_refused(error: TransferError, facts: dict[str, Any], as_json: bool) -> NoReturn:
    """Print what was brought, and each thread that wasn't with its reason; end with the code of the reason."""
    reasons = {thread_id: _reason(exc) for thread_id, exc in error.refused.items()}
    facts["not brought"] = len(reasons)
    verdict = f"not all: {len(reasons)} left out, the others are equal"
    if as_json:
        listed = [{"thread": thread_id, "reason": reason} for thread_id, reason in reasons.items()]
        print_facts({**facts, "refused": listed}, verdict, as_json)
    else:
        print_facts(facts, verdict, as_json)
    for thread_id, reason in reasons.items():
        print(f"agent-ckpt: not brought: {render.safe(repr(thread_id), 200)}: {reason}", file=sys.stderr)
    codes = {exc.exit_code if isinstance(exc, CkptError) else 1 for exc in error.refused.values()}
    raise typer.Exit(codes.pop() if len(codes) == 1 else 1)


def _reason(exc: Exception) -> str:
    return render.one_line(exc) if isinstance(exc, CkptError) else type(exc).__name__


def _size(path: str) -> int:
    return sum(os.path.getsize(path + suffix) for suffix in ("", "-wal") if os.path.exists(path + suffix))


def print_facts(facts: dict[str, Any], verdict: str, as_json: bool) -> None:
    """Print what was done, a fact a line, and the verdict."""
    if as_json:
        render.print_json({**{name.replace(" ", "_"): value for name, value in facts.items()}, "verdict": verdict})
        return
    out = render.console()
    for name, value in facts.items():
        out.print(f"{name:<14} {value:,}" if isinstance(value, int) else f"{name:<14} {render.safe(value)}")
    out.print(verdict)


@contextmanager
def _progress() -> Iterator[Progress | None]:
    """A bar on stderr, where that is a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True, markup=False, highlight=False, emoji=False)
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("reading", total=None)

        def show(at: Any) -> None:
            name = render.safe(at.thread_id, 40)
            told = f"{at.step} {name} ({at.thread} of {at.threads})"
            bar.update(task, description=told, completed=at.done, total=at.total)

        yield show
