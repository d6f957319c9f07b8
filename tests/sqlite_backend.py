"""A small table and programs on it, to test the SQLite backend apart from the checkpointer's logic.

The programs use named blocks like all others; the blocks are added to the adapter's at import, so that processes
that are started anew get them too.
"""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
import subprocess
import sys
import textwrap
from collections.abc import Generator
from pathlib import Path
from typing import Any, cast

from agent_ckpt.backend import Factory, Program, Row, Statement
from agent_ckpt.options import Options
from agent_ckpt.sqlite import SqliteBackend, engine, queries

VARIANT = "AGENT_CKPT_TEST_VARIANT"
ROOT = Path(__file__).resolve().parent.parent

queries.QUERIES.update(
    item_table="CREATE TABLE IF NOT EXISTS items (item INTEGER PRIMARY KEY, name TEXT UNIQUE, b BLOB)",
    item_add="INSERT INTO items (name, b) VALUES (?1, ?2) RETURNING item",
    item_add_many="INSERT INTO items (name) VALUES (?1)",
    item_count="SELECT count(*) FROM items",
    item_names="SELECT name FROM items ORDER BY item",
    item_crawl="SELECT count(*) FROM items AS a, items AS b, items AS c, items AS d",
)


def add(*names: str, blob: bytes | None = None, then: BaseException | None = None) -> Factory[list[int]]:
    """A write that adds names one statement after the other, and then raises `then`."""

    def program() -> Program[list[int]]:
        found: list[int] = []
        for name in names:
            rows = yield Statement("item_add", (name, blob))
            found.append(rows[0][0])
        if then is not None:
            raise then
        return found

    return program


def connect(path: Path, **options: Any) -> sqlite3.Connection:
    """A connection beside the backend's, by the same engine: a second one would cancel its locks."""
    variant = json.loads(os.environ.get(VARIANT, "{}"))
    driver = engine.load(variant.get("engine", "sqlite3")).module
    return cast(sqlite3.Connection, driver.connect(path, isolation_level=None, **options))


def add_many(names: list[str]) -> Factory[None]:
    def program() -> Generator[Statement, list[Row], None]:
        rows = yield Statement("item_add_many", [(name,) for name in names], many=True)
        assert rows == []

    return program


def count() -> Program[int]:
    rows = yield Statement("item_count")
    return int(rows[0][0])


def names() -> Program[list[str]]:
    rows = yield Statement("item_names")
    return [row[0] for row in rows]


def both_ways(backend: SqliteBackend, factory: Factory[Any], is_async: bool, *, write: bool = False) -> Any:
    """Run a program through the sync or the async call."""
    if not is_async:
        return backend.run(factory, write=write)
    return asyncio.run(backend.arun(factory, write=write))


def crawl() -> Program[int]:
    """A read that takes as long as the table is large, to the fourth power."""
    rows = yield Statement("item_crawl")
    return int(rows[0][0])


def make_table() -> Program[None]:
    yield Statement("item_table")


def backend_on(path: Path | str, *, table: bool = True, **options: Any) -> SqliteBackend:
    """A backend, with the table of these tests in its file; without `table` it is not opened yet.

    The options in the environment variable `VARIANT` (JSON) come first, in processes that a test starts too.
    """
    variant = json.loads(os.environ.get(VARIANT, "{}"))
    made = SqliteBackend(path, Options(**{"synchronous": "normal", **variant, **options}))
    if table:
        made.run(make_table, write=True)
    return made


def start(script: str, *arguments: Any) -> subprocess.Popen[str]:
    """Start a script in a new process, with these helpers imported and warnings made errors."""
    head = "import asyncio, os, sys, time, threading\nfrom tests.sqlite_backend import *\n"
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-c", head + textwrap.dedent(script), *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )


def finish(process: subprocess.Popen[str], timeout: float = 60.0) -> str:
    """Wait for a script to end well; its output."""
    try:
        out, err = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
        raise AssertionError(f"hangs: {out[-2000:]}{err[-2000:]}") from None
    assert (process.returncode, err.strip()) == (0, ""), f"{process.returncode} {out[-2000:]}{err[-2000:]}"
    return out


def run_script(script: str, *arguments: Any, timeout: float = 60.0) -> str:
    return finish(start(script, *arguments), timeout)
