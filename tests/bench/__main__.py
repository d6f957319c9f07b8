"""`python -m tests.bench`: measure and print the tables, all of them or the ones named."""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import sqlite3
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tests.bench import calls, imports, load, restore, sealed, size, turns, wal
from tests.bench.heads import Run, contenders
from tests.bench.report import Table
from tests.bench.savers import CONTENDERS

TABLES: dict[str, tuple[Callable[[Run], list[Table]], str]] = {
    "size": (size.tables, "bytes on disk: a growing thread, and states of which little changes"),
    "turns": (turns.tables, "added wall time per turn at 300 turns (--full: and at 1,000)"),
    "restore": (restore.tables, "restore of that head, cold in a fresh process and warm"),
    "threads": (load.at_once, "64 threads at once, async"),
    "processes": (load.processes, "4 processes x 16 threads on one file"),
    "calls": (calls.tables, "statements per put, get_tuple and list page"),
    "sealed": (sealed.tables, "what sealing costs: processor time and bytes, with a key beside without"),
    "imports": (imports.tables, "import time and `agent-ckpt --help`"),
    "wal": (
        wal.tables,
        "the WAL's size under 100 MiB of puts, idle, and after a long reader (--full: by what is written)",
    ),
}


def parser() -> argparse.ArgumentParser:
    listed = "\n".join(f"  {name:10} {what}" for name, (_, what) in TABLES.items())
    made = argparse.ArgumentParser(
        prog="python -m tests.bench",
        description="Measure the saver beside the official SQLite saver and InMemorySaver, in one run.",
        epilog=f"tables:\n{listed}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("tables", nargs="*", metavar="TABLE", help="tables to print; none: all")
    made.add_argument("--turns", type=int, help="length of the long thread in size, turns and restore")
    made.add_argument("--full", action="store_true", help="the sizes of the budgets; takes much longer")
    made.add_argument("--savers", default=",".join(CONTENDERS), help="savers to compare (default: %(default)s)")
    made.add_argument("--folder", type=Path, help="where the files go (default: a temporary folder, removed after)")
    made.add_argument("--json", type=Path, metavar="FILE", help="write the tables to FILE as well")
    return made


def environment() -> dict[str, Any]:
    """What the figures depend on."""
    packages = ("langgraph", "langgraph-checkpoint", "langgraph-checkpoint-sqlite", "langchain-core")
    return {
        "python": platform.python_version(),
        "system": platform.platform(),
        "cores": os.cpu_count(),
        "sqlite": sqlite3.sqlite_version,
        **{name: version(name) for name in packages},
    }


def main() -> int:
    options = parser().parse_args()
    names = options.tables or list(TABLES)
    if unknown := [name for name in names if name not in TABLES]:
        parser().error(f"unknown table {', '.join(unknown)}; known: {', '.join(TABLES)}")
    if options.turns is not None and options.turns < 1:
        parser().error("--turns must be at least 1")
    for folder in (options.folder, options.json and options.json.absolute().parent):
        if folder and not folder.is_dir():
            parser().error(f"no such folder: {folder}")
    try:
        chosen = contenders(options.savers.split(","))
    except ValueError as exc:
        parser().error(str(exc))
    # A run that is stopped must still remove its folder, which can hold gigabytes.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    # Notices of beta features would stand between the tables.
    warnings.simplefilter("ignore")
    print(", ".join(f"{key} {value}" for key, value in environment().items()), end="\n\n", flush=True)
    done: list[Table] = []
    with tempfile.TemporaryDirectory(prefix="agent-ckpt-bench-", dir=options.folder) as folder:
        run = Run(Path(folder), chosen, options.turns, options.full)
        for name in names:
            begin = time.perf_counter()
            for table in TABLES[name][0](run):
                print(table.text(), end="\n\n", flush=True)
                done.append(table)
            print(f"  ({name} took {time.perf_counter() - begin:.0f} s)", end="\n\n", flush=True)
    missed = [each for table in done for each in table.budgets if not each.met]
    kept = sum(len(table.budgets) for table in done) - len(missed)
    print(f"{kept} budgets met, {len(missed)} missed")
    if options.json:
        options.json.write_text(
            json.dumps({"environment": environment(), "tables": [t.data() for t in done]}, indent=1)
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
