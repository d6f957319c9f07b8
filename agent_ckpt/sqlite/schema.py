"""Whose file it is, and whether its tables are ours.

An unknown file is looked at before anything is opened for real, and a foreign one stays untouched to the byte,
its -wal and -shm too.
"""

from __future__ import annotations

import functools
import os
import sqlite3
from contextlib import closing

from agent_ckpt.errors import CorruptionError, FormatError
from agent_ckpt.sqlite import connect, errors, files
from agent_ckpt.sqlite.queries import QUERIES, split

APPLICATION_ID = 0x41434B50
"""Marks a database as ours; the letters ACKP."""

SCHEMA_VERSION = 1

_SMALLEST = 512

_OFFICIAL = {
    "checkpoints": {"thread_id", "checkpoint_ns", "checkpoint_id", "parent_checkpoint_id", "checkpoint", "metadata"},
    "writes": {"thread_id", "checkpoint_ns", "checkpoint_id", "task_id", "idx", "channel"},
}

Objects = dict[tuple[str, str], str]


def look(path: str, uri: str) -> bool:
    """Look at an existing file; True if it is ours, False if it is new (empty).

    Raises:
        FormatError, CorruptionError: if it is neither; it was left untouched.
        sqlite3.Error: if it can't be read, or is damaged.
    """
    found = files.status(path)
    if found is None or found.st_size == 0:
        _refuse_wal(path)
        return False
    if found.st_size < _SMALLEST and files.status(path + "-journal") is None:
        # SQLite takes so short a file for an empty one, and would write over it.
        raise FormatError(
            f"{path} is no SQLite database: it has {found.st_size} bytes. It was left untouched.", path=path
        )
    # A plain read-only open can recover a WAL and write its -shm. An immutable one writes nothing, but doesn't
    # see what stands in the WAL; where this process has the file open already, the -shm is in use anyhow.
    mode = "mode=ro" if files.held_by_this_process(files.inode_of(found)) else "mode=ro&immutable=1"
    with closing(connect.connect(f"{uri}?{mode}")) as connection:
        connect.tolerate_half_folded(connection)
        return _judge(connection, path)


def _judge(connection: sqlite3.Connection, path: str) -> bool:
    application, version = connect.marks(connection)
    if application == APPLICATION_ID:
        _check_version(path, version)
        return True
    names = _table_names(connection, path)
    if _is_official(connection, names):
        raise FormatError(
            f"{path} was written by langgraph's SqliteSaver. It was left untouched; bring its threads over with "
            f"`agent-ckpt import {os.path.basename(path)} NEW.db` and open NEW.db.",
            path=path,
        )
    if application or version or names:
        tables = f"tables {', '.join(sorted(names)[:5])}" if names else "no tables"
        raise FormatError(
            f"{path} is another program's SQLite database (application_id {application}, user_version {version}, "
            f"{tables}). It was left untouched; name another file.",
            path=path,
        )
    _refuse_wal(path)
    return False


def _table_names(connection: sqlite3.Connection, path: str) -> list[str]:
    try:
        return [name for kind, name in _objects(connection) if kind == "table"]
    except sqlite3.DatabaseError as exc:
        if errors.code(exc) != sqlite3.SQLITE_CORRUPT:
            raise
        # It isn't new. But whose it is can't be told, and SQLite says the same of a page that the disk can't read.
        raise CorruptionError(
            f"{path} has none of our marks, and its tables can't be read ({exc}): it is another program's, is damaged, "
            f"or lies on a disk that can't be read. It was left untouched; look at it with its own program.",
            path=path,
        ) from exc


def _check_version(path: str, version: int) -> None:
    if version == SCHEMA_VERSION:
        return
    advice = "upgrade agent_ckpt" if version > SCHEMA_VERSION else "its marks were changed; restore a backup"
    raise FormatError(
        f"{path} has schema_version {version}, this agent_ckpt knows {SCHEMA_VERSION}: {advice}. "
        f"It was left untouched.",
        path=path,
        expected=SCHEMA_VERSION,
        found=version,
    )


def _refuse_wal(path: str) -> None:
    """A -wal beside a file without marks belongs to somebody, and opening the file would consume it."""
    found = files.status(path + "-wal")
    if found is not None and found.st_size:
        raise FormatError(
            f"{path} has no tables of ours, but {path}-wal stands beside it with {found.st_size} bytes of somebody's "
            f"data. Both were left untouched; name another file or move the -wal away.",
            path=path,
        )


def _is_official(connection: sqlite3.Connection, names: list[str]) -> bool:
    def columns(table: str) -> set[str]:
        return {row[1] for row in connection.execute(f"PRAGMA table_info({table})")}

    return all(table in names and wanted <= columns(table) for table, wanted in _OFFICIAL.items())


def _objects(connection: sqlite3.Connection) -> Objects:
    return {(kind, name): sql or "" for kind, name, sql in connection.execute(QUERIES["schema_objects"])}


@functools.cache
def _expected() -> Objects:
    with closing(connect.connect("file::memory:")) as connection:
        _run_schema(connection)
        return _objects(connection)


def _run_schema(connection: sqlite3.Connection) -> None:
    for statement in split(QUERIES["schema"]):
        connection.execute(statement)


def check(connection: sqlite3.Connection, path: str) -> bool:
    """Compare the file's tables with ours; False if nothing of it is made yet.

    Foreign tables and their indexes are let be (`sqlite_*`, a replication tool's); nothing of ours calls them.

    Raises:
        FormatError: naming a missing or changed object of ours, or a foreign trigger or view: both would run
            inside our statements.
    """
    application, version = connect.marks(connection)
    if application != APPLICATION_ID:
        return False
    _check_version(path, version)
    found, expected = _objects(connection), _expected()
    if not any(key in found for key in expected):
        return False
    for key, sql in expected.items():
        if found.get(key) != sql:
            state = "was changed" if key in found else "is missing"
            raise FormatError(f"the {key[0]} {key[1]} of {path} {state}; restore a backup", path=path, object=key[1])
    for kind, name in found:
        if kind in ("trigger", "view") and (kind, name) not in expected:
            raise FormatError(
                f"{path} holds the {kind} {name}, which is not ours and would run inside our statements; "
                f"drop it and open the file again",
                path=path,
                object=name,
            )
    return connect.in_wal_mode(connection)


def set_up(connection: sqlite3.Connection, path: str) -> None:
    """Turn a new file into a store, or finish what a killed process began. Running it twice is harmless.

    Raises:
        sqlite3.Error: SQLITE_BUSY too, when another process is just doing the same; call again.
    """
    if not _judge(connection, path):
        connect.page_size(connection)
        connect.auto_vacuum(connection)
        connect.set_marks(connection, APPLICATION_ID, SCHEMA_VERSION)
    if not connect.wal_mode(connection):
        raise FormatError(f"{path} can't be switched to WAL mode on this file system", path=path)
    create(connection)


def create(connection: sqlite3.Connection) -> None:
    """Make our tables in one transaction, if they are not there."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        if not any(key in _objects(connection) for key in _expected()):
            _run_schema(connection)
        connection.execute("COMMIT")
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
