"""The SQL of the adapter: named blocks of `queries.sql`, read once.

A block starts with a line `-- name: NAME` and ends where the next one starts. SQL stands nowhere else, so
that one file can be read, searched and reviewed as the whole of what is ever sent to the database.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from importlib import resources

_MARK = "-- name:"


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


QUERIES: dict[str, str] = _parse(resources.files(__package__).joinpath("queries.sql").read_text("utf-8"))
"""SQL text by block name; an unknown name is a KeyError that names it."""
