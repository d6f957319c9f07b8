"""The SQL of the adapter: named blocks of `queries.sql`, read once.

A block starts with a line `-- name: NAME` and ends where the next one starts. SQL stands nowhere else, so
that one file can be read, searched and reviewed as the whole of what is ever sent to the database.

Its placeholders are numbered, so that one value may stand in several places. The driver of Python 3.12.0 to 3.12.3
takes such a number for a name, and warns of each statement: what is sent has plain placeholders, and the values in
their order.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from importlib import resources
from operator import itemgetter
from typing import Any

_MARK = "-- name:"
_NUMBERED = re.compile(r"\?(\d+)")


def _parse(text: str) -> dict[str, str]:
    blocks: dict[str, list[str]] = {}
    current: list[str] = []
    for line in text.splitlines():
        if line.startswith(_MARK):
            name = line[len(_MARK) :].strip()
            if name in blocks:
                raise ValueError(f"queries.sql names the block {name!r} twice")
            current = blocks[name] = []
        elif not line.lstrip().startswith("--"):
            current.append(line)
    return {name: "\n".join(lines).strip() for name, lines in blocks.items()}


def split(script: str) -> Iterator[str]:
    """Yield the single statements of a block that holds several.

    `executescript` would commit the open transaction first, so a schema can't be made in one with it.
    """
    statement = ""
    for line in script.splitlines():
        statement += line + "\n"
        if sqlite3.complete_statement(statement):
            yield statement.strip()
            statement = ""
    if statement.strip():
        yield statement.strip()


@cache
def _plain(sql: str) -> tuple[str, Callable[[Sequence[Any]], Sequence[Any]] | None]:
    """SQL with plain placeholders, and what puts the values in their order; None where they are."""
    order = [int(number) - 1 for number in _NUMBERED.findall(sql)]
    return _NUMBERED.sub("?", sql), itemgetter(*order) if order != list(range(len(order))) else None


def execute(connection: sqlite3.Connection, sql: str, params: Sequence[Any] = ()) -> sqlite3.Cursor:
    """Execute a block whose placeholders are numbered."""
    plain, ordered = _plain(sql)
    return connection.execute(plain, params if ordered is None else ordered(params))


def execute_many(connection: sqlite3.Connection, sql: str, params: Sequence[Sequence[Any]]) -> None:
    """Execute a block once for each sequence of values."""
    plain, ordered = _plain(sql)
    connection.executemany(plain, params if ordered is None else map(ordered, params))


QUERIES: dict[str, str] = _parse(resources.files(__package__).joinpath("queries.sql").read_text("utf-8"))
"""SQL text by block name; an unknown name is a KeyError that names it."""
