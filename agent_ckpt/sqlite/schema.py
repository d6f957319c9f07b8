"""Whose file it is, and whether its tables are ours.

An unknown file is looked at before anything is opened for real, and a foreign one stays untouched to the byte,
its -wal and -shm too.
"""

from __future__ import annotations

import functools
import logging
import os
import re
import sqlite3
from contextlib import closing

from agent_ckpt.errors import CorruptionError, FormatError
from agent_ckpt.sqlite import connect, engine, errors, files, versions
from agent_ckpt.sqlite.queries import QUERIES, execute, split

log = logging.getLogger("agent_ckpt")

APPLICATION_ID = 0x41434B50
"""Marks a database as ours; the letters ACKP."""

_SMALLEST = 512

_OFFICIAL = {
    "checkpoints": {"thread_id", "checkpoint_ns", "checkpoint_id", "parent_checkpoint_id", "checkpoint", "metadata"},
    "writes": {"thread_id", "checkpoint_ns", "checkpoint_id", "task_id", "idx", "channel"},
}

_MAKES = re.compile(r"CREATE (?:UNIQUE )?(TABLE|INDEX|TRIGGER|VIEW) (\w+)(?:[^(]*? ON (\w+))?")
_LET_BE = ("sqlite_", "_litestream_")

Objects = dict[tuple[str, str], tuple[str, str]]
"""By kind and name: the table that an object belongs to, and its text."""


def look(path: str, uri: str, using: engine.Engine = engine.STANDARD) -> bool:
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
    with closing(connect.connect(f"{uri}?{mode}", using)) as connection:
        connect.tolerate_half_folded(connection)
        return _judge(connection, path)


def _judge(connection: sqlite3.Connection, path: str) -> bool:
    application, version = connect.marks(connection)
    if application == APPLICATION_ID:
        versions.check_reader(path, version)
        return True
    names = _table_names(connection, path)
    if "checkpoints" in names and is_official(connection):
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
        names = [name for kind, name in _objects(connection) if kind == "table"]
        return [name for name in names if not name.startswith(_LET_BE)]
    except engine.DATABASE_ERRORS as exc:
        if errors.code(exc) != sqlite3.SQLITE_CORRUPT:
            raise
        # It isn't new. But whose it is can't be told, and SQLite says the same of a page that the disk can't read.
        raise CorruptionError(
            f"{path} has none of our marks, and its tables can't be read ({exc}): it is another program's, is damaged, "
            f"or lies on a disk that can't be read. It was left untouched; look at it with its own program.",
            path=path,
        ) from exc


def _refuse_wal(path: str) -> None:
    """A -wal beside a file without marks belongs to somebody, and opening the file would consume it."""
    found = files.status(path + "-wal")
    if found is not None and found.st_size:
        raise FormatError(
            f"{path} has no tables of ours, but {path}-wal stands beside it with {found.st_size} bytes of somebody's "
            f"data. Both were left untouched; name another file or move the -wal away.",
            path=path,
        )


def columns(connection: sqlite3.Connection, table: str) -> set[str]:
    """The names of a table's columns; none for a table that isn't there."""
    return {row[1] for row in connection.execute(f"PRAGMA table_info({table})")}


def is_official(connection: sqlite3.Connection) -> bool:
    """Whether a file has the tables of LangGraph's SqliteSaver."""
    return all(wanted <= columns(connection, table) for table, wanted in _OFFICIAL.items())


def _objects(connection: sqlite3.Connection) -> Objects:
    rows = connection.execute(QUERIES["schema_objects"])
    return {(kind, name): (table, sql or "") for kind, name, table, sql in rows}


@functools.cache
def _expected() -> Objects:
    """Our objects as SQLite will list them, read out of the statements: making them takes a millisecond more."""
    found: Objects = {}
    for statement in split(QUERIES["schema"]):
        made = _MAKES.match(statement)
        if made is not None:
            kind, name, table = made.groups()
            found[kind.lower(), name] = table or name, statement.rstrip(";")
    return found


def _run_schema(connection: sqlite3.Connection) -> None:
    for statement in split(QUERIES["schema"]):
        connection.execute(statement)


def check(connection: sqlite3.Connection, path: str) -> bool:
    """Compare the file's tables with ours; False if nothing of it is made yet.

    What others keep in tables of their own is let be, with its indexes, triggers and views (LangGraph's SqliteStore,
    a replication tool): nothing of ours touches it.

    Raises:
        FormatError: naming a missing or changed object of ours, or a foreign object on a table of ours: it could
            run inside our statements, or make them fail.
    """
    application, version = connect.marks(connection)
    if application != APPLICATION_ID:
        return False
    versions.check_reader(path, version)
    found, expected = _objects(connection), _expected()
    if not any(key in found for key in expected):
        return False
    newer = versions.Versions.of(version).schema > versions.SCHEMA_VERSION
    # What a step added stands in a table's text in another way than in ours.
    grown = newer or bool(versions.STEPS)
    for key, made in expected.items():
        if found.get(key) != made and not (grown and key in found and _only_grew(connection, *key)):
            state = "was changed" if key in found else "is missing"
            raise FormatError(f"the {key[0]} {key[1]} of {path} {state}; restore a backup", path=path, object=key[1])
    ours = {name for kind, name in expected if kind == "table"}
    for (kind, name), (table, sql) in found.items():
        if (kind, name) not in expected and _touches(ours, kind, table, sql) and not (newer and kind == "index"):
            raise FormatError(
                f"{path} holds the {kind} {name}, which is not ours and would run inside our statements; "
                f"drop it and open the file again",
                path=path,
                object=name,
            )
    return True


def _only_grew(connection: sqlite3.Connection, kind: str, name: str) -> bool:
    """Whether a table of a newer release has all columns that this one knows; no other object may differ."""
    with closing(connect.connect("file::memory:")) as ours:
        _run_schema(ours)
        return kind == "table" and columns(ours, name) <= columns(connection, name)


def chosen_journal(connection: sqlite3.Connection) -> str:
    """The journal mode that the store was last set to, "wal" or "rollback".

    The file's own mode doesn't tell, since a copy that VACUUM makes is never in WAL mode.
    """
    row = connection.execute(QUERIES["journal_chosen"]).fetchone()
    return "rollback" if row == ("rollback",) else "wal"


def _touches(ours: set[str], kind: str, table: str, sql: str) -> bool:
    """Whether a foreign object has to do with our tables; a trigger or view also by naming one of them."""
    if kind == "table":
        return False
    if table in ours:
        return True
    return kind in ("trigger", "view") and not ours.isdisjoint(re.findall(r"\w+", sql.lower()))


def set_up(connection: sqlite3.Connection, path: str, wal: bool = True) -> None:
    """Turn a new file into a store, or finish what a killed process began. Running it twice is harmless.

    Raises:
        sqlite3.Error: SQLITE_BUSY too, when another process is just doing the same; call again.
    """
    if not _judge(connection, path):
        connect.page_size(connection)
        connect.auto_vacuum(connection)
        connect.set_marks(connection, APPLICATION_ID, versions.Versions.of_new_file().user_version)
    if not (connect.wal_mode(connection) if wal else connect.rollback_mode(connection)):
        name = "WAL mode" if wal else "a rollback journal"
        raise FormatError(f"{path} can't be switched to {name} on this file system", path=path)
    create(connection)
    execute(connection, QUERIES["journal_choose"], ("wal" if wal else "rollback",))


def create(connection: sqlite3.Connection) -> None:
    """Make our tables in one transaction, if they are not there."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        if not any(key in _objects(connection) for key in _expected()):
            _run_schema(connection)
            # One that an older release began is of this one now.
            connection.execute(f"PRAGMA user_version={versions.Versions.of_new_file().user_version}")
        connection.execute("COMMIT")
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")


def _is_behind(connection: sqlite3.Connection) -> bool:
    """Whether a file of an older release lacks only what steps add."""
    application, version = connect.marks(connection)
    if application != APPLICATION_ID or not versions.Versions.of(version).is_behind():
        return False
    found = _objects(connection)
    return any(key in found for key in _expected())


def catch_up(reader: sqlite3.Connection, path: str, uri: str, using: engine.Engine) -> None:
    """Add what an older file lacks, in one transaction; the lowest releases that may read and write it stay.

    Raises:
        sqlite3.Error: SQLITE_BUSY too, while another worker writes; call again.
    """
    if not _is_behind(reader):
        return
    with closing(connect.connect(f"{uri}?mode=rw", using)) as connection:
        connect.set_synchronous(connection, "full")
        connection.execute("BEGIN IMMEDIATE")
        if _is_behind(connection):
            make_steps(connection)
        connection.execute("COMMIT")
    log.info("added to %s what its older release did not have", path)


def make_steps(connection: sqlite3.Connection) -> None:
    """Make all steps from the file's schema_version to this release's, in the transaction that is open."""
    found = versions.Versions.of(connect.marks(connection)[1])
    while found.schema < versions.SCHEMA_VERSION:
        step = versions.STEPS[found.schema]
        step.make(connection)
        found = found.after(step)
    connection.execute(f"PRAGMA user_version={found.user_version}")
