"""Which SQLite a saver runs on: the one that Python was built with, or the one that the package pysqlite3 carries.

Each has error classes of its own, so what catches a driver's error says `except engine.ERRORS`, by attribute: the
tuple grows when a second engine is loaded.
"""

from __future__ import annotations

import sqlite3
import sys
from typing import Any, Final, NamedTuple

from agent_ckpt.errors import UsageError

ERRORS: tuple[type[sqlite3.Error], ...] = (sqlite3.Error,)
DATABASE_ERRORS: tuple[type[sqlite3.DatabaseError], ...] = (sqlite3.DatabaseError,)
OF_DRIVER_OR_SYSTEM: tuple[type[sqlite3.Error] | type[OSError], ...] = (sqlite3.Error, OSError)
"""What `errors.translate` takes: the system's own errors come from looking at files and locking the side file."""

_CARRIERS = ("pysqlite3", "apsw")
"""Packages that bring an SQLite of their own into the process."""


class Engine(NamedTuple):
    """An SQLite library with its DB-API module.

    Attributes:
        name: the value of the option `engine`.
        module: `sqlite3`, or a module with the same interface.
        version: of the SQLite library.
    """

    name: str
    module: Any
    version: tuple[int, ...]

    @property
    def version_text(self) -> str:
        return ".".join(map(str, self.version))

    @property
    def is_affected(self) -> bool:
        """Whether this SQLite has the WAL corruption race."""
        return is_affected(self.version)


def is_affected(version: tuple[int, ...]) -> bool:
    """Whether an SQLite of that version has the WAL corruption race: 3.7.0 to 3.51.2, except where it was mended."""
    if version[:2] == (3, 44):
        return version < (3, 44, 6)
    if version[:2] == (3, 50):
        return version < (3, 50, 7)
    return (3, 7, 0) <= version < (3, 51, 3)


STANDARD: Final = Engine("sqlite3", sqlite3, sqlite3.sqlite_version_info)


def load(name: str) -> Engine:
    """The engine of that name.

    Raises:
        UsageError: if its package isn't installed.
    """
    global ERRORS, DATABASE_ERRORS, OF_DRIVER_OR_SYSTEM
    if name == STANDARD.name:
        return STANDARD
    try:
        import pysqlite3.dbapi2 as module
    except ImportError as exc:
        raise UsageError(
            f"engine={name!r} needs the package pysqlite3, which can't be imported ({exc}): "
            f"pip install 'agent-ckpt[sqlite]', or leave the option out"
        ) from exc
    if module.Error not in ERRORS:
        ERRORS = (*ERRORS, module.Error)
        DATABASE_ERRORS = (*DATABASE_ERRORS, module.DatabaseError)
        OF_DRIVER_OR_SYSTEM = (*ERRORS, OSError)
    return Engine(name, module, module.sqlite_version_info)


def others_loaded(ours: Engine) -> list[str]:
    """Which packages with an SQLite other than `ours` were imported in this process."""
    return [name for name in _CARRIERS if name in sys.modules and not _is_same(sys.modules[name], ours)]


def _is_same(module: Any, ours: Engine) -> bool:
    # Some programs put pysqlite3 in the place of sqlite3; then both names mean one library.
    return getattr(module, "connect", None) is ours.module.connect
