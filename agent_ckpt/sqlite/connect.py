"""Connections: one small function per setting, each saying why it is set."""

from __future__ import annotations

import sqlite3
from typing import cast

from agent_ckpt.sqlite.engine import STANDARD, Engine
from agent_ckpt.sqlite.queries import QUERIES

PAGE_SIZE = 4096
CACHE_KIB = 8 * 1024
STATEMENTS_KEPT = 256


def connect(uri: str, engine: Engine = STANDARD) -> sqlite3.Connection:
    """Open a connection that begins no transaction by itself and may be used by any OS thread, one at a time.

    It also waits for no lock by itself until `wait_for_locks` says so.
    """
    connection = engine.module.connect(
        uri, uri=True, timeout=0.0, isolation_level=None, check_same_thread=False, cached_statements=STATEMENTS_KEPT
    )
    return cast(sqlite3.Connection, connection)


def open_writer(
    uri: str, synchronous: str, fold_pages: int, wal_bytes: int, *, wal: bool = True, engine: Engine = STANDARD
) -> sqlite3.Connection:
    """Open the connection through which all writes of a backend go."""
    connection = connect(uri, engine)
    try:
        _guard_reads(connection)
        set_synchronous(connection, synchronous)
        secure_delete(connection)
        if not wal:
            rollback_mode(connection)
        set_wal_autocheckpoint(connection, fold_pages)
        limit_wal_file(connection, wal_bytes)
    except BaseException:
        connection.close()
        raise
    return connection


def open_reader(uri: str, wait_s: float, engine: Engine = STANDARD) -> sqlite3.Connection:
    """Open a connection that can't write."""
    connection = connect(uri, engine)
    try:
        wait_for_locks(connection, wait_s)
        _guard_reads(connection)
        set_wal_autocheckpoint(connection, 0)
        query_only(connection)
    except BaseException:
        connection.close()
        raise
    return connection


def open_folder(uri: str, synchronous: str, engine: Engine = STANDARD) -> sqlite3.Connection:
    """Open a connection that folds the WAL and writes nothing."""
    connection = connect(uri, engine)
    try:
        _guard_reads(connection)
        set_synchronous(connection, synchronous)
        set_wal_autocheckpoint(connection, 0)
    except BaseException:
        connection.close()
        raise
    return connection


def begin_reading(connection: sqlite3.Connection) -> None:
    """Begin a read transaction at the last commit; BEGIN alone would leave it to the first read."""
    connection.execute("BEGIN")
    connection.execute("PRAGMA schema_version").fetchone()


def _guard_reads(connection: sqlite3.Connection) -> None:
    distrust_schema(connection)
    no_mmap(connection)
    cache_size(connection)


def distrust_schema(connection: sqlite3.Connection) -> None:
    """A schema that somebody changed in the file must not be able to call functions with side effects."""
    connection.execute("PRAGMA trusted_schema=OFF")


def no_mmap(connection: sqlite3.Connection) -> None:
    """With mmap an I/O error is a signal that kills the process, and a stray pointer writes into the file."""
    connection.execute("PRAGMA mmap_size=0")


def cache_size(connection: sqlite3.Connection) -> None:
    """Enough to keep the inner pages of all trees; the default of 2 MB reads them again and again."""
    connection.execute(f"PRAGMA cache_size=-{CACHE_KIB}")


def query_only(connection: sqlite3.Connection) -> None:
    """Readers must not be able to write: all writes go through the writer and its lock."""
    connection.execute("PRAGMA query_only=ON")


def wait_for_locks(connection: sqlite3.Connection, wait_s: float) -> None:
    """SQLite's own wait for a lock; the writer keeps it at 0, it polls without holding anything meanwhile."""
    connection.execute(f"PRAGMA busy_timeout={int(wait_s * 1000)}")


def set_synchronous(connection: sqlite3.Connection, level: str) -> None:
    """FULL syncs the WAL at each commit, so an acknowledged write survives a power loss; NORMAL doesn't."""
    connection.execute(f"PRAGMA synchronous={'FULL' if level == 'full' else 'NORMAL'}")


def secure_delete(connection: sqlite3.Connection) -> None:
    """What was deleted must not be readable in free pages; not every SQLite is built with this on."""
    connection.execute("PRAGMA secure_delete=ON")


def set_wal_autocheckpoint(connection: sqlite3.Connection, pages: int) -> None:
    """Fold the WAL in the COMMIT that fills it to this; only the writer commits, and holds the guard then."""
    connection.execute(f"PRAGMA wal_autocheckpoint={pages}")


def limit_wal_file(connection: sqlite3.Connection, size: int) -> None:
    """Without it a WAL that has once grown keeps its size on disk for ever."""
    connection.execute(f"PRAGMA journal_size_limit={size}")


def page_size(connection: sqlite3.Connection) -> None:
    """The size of the operating system's pages; fixed once a page is written."""
    connection.execute(f"PRAGMA page_size={PAGE_SIZE}")


def auto_vacuum(connection: sqlite3.Connection) -> None:
    """Lets `compact` give pages back without copying the file; only a file without pages can take it."""
    connection.execute("PRAGMA auto_vacuum=INCREMENTAL")
    if connection.execute("PRAGMA auto_vacuum").fetchone() != (2,):
        connection.execute(QUERIES["vacuum"])


def give_back(connection: sqlite3.Connection, pages: int) -> int:
    """Give up to so many free pages back to the file system; how many free ones are left then.

    In WAL mode the file gets shorter when the WAL is folded.
    """
    # It gives a row without columns for each page, after the first of which `execute` stops.
    connection.executescript(f"PRAGMA incremental_vacuum({pages})")
    return int(connection.execute("PRAGMA freelist_count").fetchone()[0])


def set_marks(connection: sqlite3.Connection, application_id: int, user_version: int) -> None:
    """Say whose file it is, in one transaction and before WAL mode.

    After the switch the marks would stand in the WAL, where a look at the file alone doesn't find them.
    """
    connection.execute("BEGIN IMMEDIATE")
    try:
        connection.execute(f"PRAGMA application_id={application_id}")
        connection.execute(f"PRAGMA user_version={user_version}")
        connection.execute("COMMIT")
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")


def marks(connection: sqlite3.Connection) -> tuple[int, int]:
    """application_id and user_version of the file."""
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    return int(application), int(version)


def tolerate_half_folded(connection: sqlite3.Connection) -> None:
    """Let a look past the WAL read page 1 of a file into which a WAL is being folded, or was when its process died.

    Page 1 is written first and then counts pages that the file doesn't have yet, which SQLite takes for damage
    unless the schema is writable. The connection itself can't write.
    """
    connection.execute("PRAGMA writable_schema=ON")


def wal_mode(connection: sqlite3.Connection) -> bool:
    """Switch to WAL: readers don't wait for the writer, and a commit is one append and one sync."""
    return in_wal_mode(connection) or connection.execute("PRAGMA journal_mode=WAL").fetchone() == ("wal",)


def rollback_mode(connection: sqlite3.Connection) -> bool:
    """Switch to a rollback journal: slower, but it needs no memory that all who open the file share.

    The journal is cut, not deleted: with `synchronous=FULL` SQLite then syncs the cut, while a deleted journal can
    come back after a power loss and undo the last commit.
    """
    return bool(connection.execute("PRAGMA journal_mode=TRUNCATE").fetchone() == ("truncate",))


def keep_wal_at_close(connection: sqlite3.Connection) -> None:
    """Don't fold the WAL when the last connection closes, where the driver can say so (CPython 3.12 and later)."""
    if hasattr(connection, "setconfig") and hasattr(sqlite3, "SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE"):
        connection.setconfig(sqlite3.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, True)


def in_wal_mode(connection: sqlite3.Connection) -> bool:
    return bool(connection.execute("PRAGMA journal_mode").fetchone() == ("wal",))
