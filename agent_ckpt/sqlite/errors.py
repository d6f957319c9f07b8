"""The one place where errors of the sqlite3 driver and of the system become errors of this package.

driver code                          error
BUSY, LOCKED                         BusyError
FULL                                 DiskFullError
READONLY, PERM, AUTH                 ReadOnlyError
CANTOPEN                             ReadOnlyError; UnavailableError where the rights are there
CORRUPT                              CorruptionError
NOTADB                               FormatError
IOERR                                UnavailableError (DiskFullError where no space is left)
PROTOCOL, NOMEM, INTERRUPT           UnavailableError
TOOBIG                               UsageError
anything else                        CkptError

Of the system: ENOSPC and EDQUOT are DiskFullError, EACCES, EPERM and EROFS ReadOnlyError, others UnavailableError.
"""

from __future__ import annotations

import errno
import os
import sqlite3

from agent_ckpt.errors import (
    BusyError,
    CkptError,
    CorruptionError,
    DiskFullError,
    FormatError,
    ReadOnlyError,
    UnavailableError,
    UsageError,
)
from agent_ckpt.sqlite import engine

_UNWRITABLE = {sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_AUTH}
_PASSING = {sqlite3.SQLITE_PROTOCOL, sqlite3.SQLITE_NOMEM, sqlite3.SQLITE_INTERRUPT}
_NO_SPACE_BYTES = 64 * 1024


def code(exc: BaseException) -> int:
    """The primary result code of a driver error; SQLITE_ERROR where the driver gives none, 0 for others."""
    if not isinstance(exc, engine.ERRORS):
        return 0
    return int(getattr(exc, "sqlite_errorcode", sqlite3.SQLITE_ERROR)) & 0xFF


def is_busy(exc: BaseException) -> bool:
    return code(exc) in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def free_bytes(path: str) -> int | None:
    """Bytes that this user may still write on the disk of `path`, None where that can't be told."""
    try:
        found = os.statvfs(os.path.dirname(path) or ".")
    except (AttributeError, OSError, ValueError):
        return None
    return found.f_bavail * found.f_frsize


def busy(path: str, waited_s: float, held: str = "another process or connection holds its write lock") -> BusyError:
    return BusyError(
        f"{path} stayed busy for {waited_s:.1f} s: {held}. Nothing was changed; call again, "
        f"or raise the option busy_timeout_s.",
        waited_s=waited_s,
        path=path,
    )


def disk_full(path: str, what: str) -> DiskFullError:
    free = free_bytes(path)
    hint = "" if free is None else f" ({free // 1024} KiB are free there)"
    return DiskFullError(
        f"no space left for {what} on {path}{hint}. It was undone and what was stored before is intact; "
        f"free some space and call again.",
        path=path,
    )


def _of_system(exc: OSError, path: str, what: str) -> CkptError:
    if exc.errno in (errno.ENOSPC, errno.EDQUOT):
        return disk_full(path, what)
    file = exc.filename or path
    kind = ReadOnlyError if exc.errno in (errno.EACCES, errno.EPERM, errno.EROFS) else UnavailableError
    return kind(f"{what} on {path} failed: {exc.strerror} ({file}). Call again once it can be used.", path=path)


def _may_write(path: str) -> bool:
    return os.access(path, os.R_OK | os.W_OK) and os.access(os.path.dirname(path), os.R_OK | os.W_OK | os.X_OK)


def translate(exc: sqlite3.Error | OSError, path: str, what: str, waited_s: float = 0.0) -> CkptError:
    """Make the package's error of an error of the driver or the system.

    Args:
        exc: what was raised; the caller raises the result `from` it.
        path: the database file, for the message.
        what: the operation, such as "a write" or "opening".
        waited_s: how long the call has waited, for BusyError.
    """
    if isinstance(exc, OSError):
        return _of_system(exc, path, what)
    found = code(exc)
    name = getattr(exc, "sqlite_errorname", type(exc).__name__)
    if is_busy(exc):
        return busy(path, waited_s)
    if found == sqlite3.SQLITE_FULL:
        return disk_full(path, what)
    if found == sqlite3.SQLITE_IOERR:
        free = free_bytes(path)
        if free is not None and free < _NO_SPACE_BYTES:
            return disk_full(path, what)
        return UnavailableError(f"{what} on {path} failed with an I/O error ({name}): {exc}", path=path)
    if found == sqlite3.SQLITE_CANTOPEN and _may_write(path):
        return UnavailableError(
            f"{what} on {path} failed ({name}: {exc}), though this process may write the file and its folder: an I/O "
            f"error, or too many open files. Call again.",
            path=path,
        )
    if found in _UNWRITABLE:
        return ReadOnlyError(
            f"{what} on {path} was refused ({name}: {exc}): this process can't write the file or its folder. "
            f"Check the rights of both; WAL mode needs to write the folder too.",
            path=path,
        )
    if found in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_CONSTRAINT):
        # Numbers are handed out by counters inside the transaction: one that is taken means a damaged counter.
        return CorruptionError(
            f"{what} found damage in {path} ({name}: {exc}), or a page that the disk can't read. Copy the file and its "
            f"-wal before anything else, then check the disk, and restore a backup or read what can still be read.",
            path=path,
        )
    if found == sqlite3.SQLITE_NOTADB:
        return FormatError(f"{path} is no SQLite database: {exc}. It was left untouched.", path=path)
    if found in _PASSING:
        return UnavailableError(f"{what} on {path} failed ({name}): {exc}. Call again.", path=path)
    if found == sqlite3.SQLITE_TOOBIG:
        return UsageError(f"{what} on {path} holds a value larger than SQLite can store ({name}).", path=path)
    if found == sqlite3.SQLITE_ERROR:
        # Our statements fit the tables that opening checked, so the tables are not those any more.
        return CorruptionError(
            f"{what} on {path} failed ({name}: {exc}): its tables were changed or lost after it was opened. Copy the "
            f"file and its -wal before anything else, then restore a backup.",
            path=path,
        )
    return CkptError(f"{what} on {path} failed ({name}): {exc}", path=path)
