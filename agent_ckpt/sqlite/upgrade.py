"""Bringing a file of an older release to this one's tables, after a backup."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from typing import NamedTuple

from agent_ckpt.errors import FormatError, UsageError
from agent_ckpt.sqlite import connect, engine, errors, files, schema, target, versions
from agent_ckpt.sqlite.versions import Versions

_WHOLE = ("ok",)


class Upgrade(NamedTuple):
    """What `upgrade` did.

    Attributes:
        path: the file.
        found, now: its schema_version before and after; equal when there was nothing to do.
        backup: the copy that was made first, or None.
    """

    path: str
    found: int
    now: int
    backup: str | None


def upgrade(given: str | os.PathLike[str], backup: str | None = None) -> Upgrade:
    """Bring a file to this release's schema_version, all steps in one transaction, after a backup.

    Args:
        given: a path or a sqlite:/// URL.
        backup: where the backup goes; a name beside the file that tells the version, if None.

    Raises:
        UsageError: for a missing file, or a backup's name that is taken.
        FormatError: for a file that isn't ours, is newer, or that no step leads on from. It was left untouched.
        BusyError: when another process has the file open.
    """
    where = target.parse(given, create=False)
    if where.memory:
        raise UsageError("a store in memory is always of this release; name a file")
    target.check_place(where)
    try:
        with closing(connect.connect(f"{where.uri}?mode=ro&immutable=1")) as connection:
            connect.tolerate_half_folded(connection)
            application, version = connect.marks(connection)
        found = Versions.of(version).schema
        if application != schema.APPLICATION_ID or found >= versions.SCHEMA_VERSION:
            # Says what is wrong, if anything is.
            if not schema.look(where.path, where.uri):
                raise UsageError(f"{where.path} is empty; a saver makes a store of it by itself", path=where.path)
            return Upgrade(where.path, found, found, None)
        _check_steps(where.path, found)
        copy = backup or f"{where.path}.schema{found}.backup"
        with closing(connect.connect(f"{where.uri}?mode=rw")) as connection:
            _back_up(connection, where.path, copy)
            _step_up(connection, found)
    except engine.OF_DRIVER_OR_SYSTEM as exc:
        raise errors.translate(exc, where.path, "upgrading") from exc
    return Upgrade(where.path, found, versions.SCHEMA_VERSION, copy)


def _check_steps(path: str, found: int) -> None:
    missing = [number for number in range(found, versions.SCHEMA_VERSION) if number not in versions.STEPS]
    if missing:
        raise FormatError(
            f"{path} has schema_version {found}, and this agent_ckpt has no step from {missing[0]}: upgrade it with an "
            f"older release first, or restore a backup. It was left untouched.",
            path=path,
            expected=versions.SCHEMA_VERSION,
            found=found,
        )


def _back_up(connection: sqlite3.Connection, path: str, copy: str) -> None:
    if not files.make(copy, os.stat(path).st_mode & 0o777):
        raise UsageError(f"{copy} is there already; name another file for the backup with --backup", path=copy)
    with closing(connect.connect(target.parse(copy, create=False).uri)) as made:
        connection.backup(made)
        connect.rollback_mode(made)
        if made.execute("PRAGMA quick_check").fetchone() != _WHOLE:
            raise FormatError(f"the backup {copy} of {path} isn't whole, so nothing was upgraded", path=path)


def _step_up(connection: sqlite3.Connection, found: int) -> None:
    wal = connect.in_wal_mode(connection)
    # Only a connection that is alone can leave WAL mode, and no old worker may go on with the old tables.
    connect.rollback_mode(connection)
    connect.set_synchronous(connection, "full")
    connection.execute("BEGIN EXCLUSIVE")
    try:
        if Versions.of(connect.marks(connection)[1]).schema != found:
            raise UsageError("another process upgraded the file meanwhile; look again")
        schema.make_steps(connection)
        connection.execute("COMMIT")
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        if wal:
            connect.wal_mode(connection)
