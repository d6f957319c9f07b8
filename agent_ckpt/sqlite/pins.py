"""Who keeps the WAL from being started over: the processes that read it now, by the kernel's list of locks.

SQLite's readers hold a shared lock on one of five bytes of the -shm file. The kernel tells of it in /proc/locks, so
nothing of the database has to be opened to see it.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from agent_ckpt.reports import WalPin
from agent_ckpt.sqlite import files

TABLE = "/proc/locks"

# Where SQLite's wal.c has its read marks: WAL_READ_LOCK(0) to WAL_READ_LOCK(4), behind 120 bytes of header.
_FIRST_MARK, _LAST_MARK = 123, 127


def read_table() -> str:
    """The kernel's list of locks; "" where there is none."""
    try:
        with open(TABLE, encoding="ascii", errors="replace") as table:
            return table.read()
    except OSError:
        return ""


def find(path: str, table: Callable[[], str] | None = None) -> tuple[WalPin, ...]:
    """The processes with a read transaction on a database in WAL mode; empty where the system doesn't tell.

    Args:
        path: the database file.
        table: gives the text of the list, for tests; the kernel's if None.
    """
    found = files.status(path + "-shm")
    if found is None:
        return ()
    pids: set[int] = set()
    for line in (table or read_table)().splitlines():
        fields = line.split()
        if len(fields) != 8 or fields[1] != "POSIX" or fields[3] != "READ":
            continue
        # Not compared by device: that of stat isn't the kernel's own on every file system.
        inode, first, last = fields[5].rpartition(":")[2], int(fields[6]), fields[7]
        if inode == str(found.st_ino) and first <= _LAST_MARK and (last == "EOF" or int(last) >= _FIRST_MARK):
            pids.add(int(fields[4]))
    return tuple(WalPin(pid, _command(pid)) for pid in sorted(pids))


def describe(pins: tuple[WalPin, ...]) -> str:
    """Name the readers in a sentence."""
    names = [f"process {pin.pid}" + (f" ({pin.command})" if pin.command else "") for pin in pins]
    return ", ".join(names) or "a reader that this system doesn't name"


def _command(pid: int) -> str:
    if pid == os.getpid():
        return "this one"
    try:
        with open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as name:
            return name.read().strip()
    except OSError:
        return ""
