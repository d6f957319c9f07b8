"""A library that is preloaded into a process and makes its n-th I/O call on a database's files fail, or logs them.

apsw's VFS would not reach the sqlite3 module, which has a SQLite of its own; calls into the C library are the same for
every engine. The library is built by the tests, with the system's C compiler.
"""

from __future__ import annotations

import ctypes
import errno
import os
import subprocess
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
SOURCE = Path(__file__).parent / "iofault.c"

CALLS = {
    "open": 1,
    "read": 2,
    "write": 4,
    "sync": 8,
    "truncate": 16,
    "unlink": 32,
    "stat": 64,
    "lock": 128,
    "map": 256,
    "mode": 512,
}
EVERY_CALL = sum(CALLS.values())
SHORT = -1

KINDS = {
    "EIO": (errno.EIO, EVERY_CALL),
    "ENOSPC": (errno.ENOSPC, CALLS["open"] | CALLS["write"] | CALLS["sync"] | CALLS["truncate"] | CALLS["map"]),
    "short write": (SHORT, CALLS["write"]),
    "short read": (SHORT, CALLS["read"]),
}
"""What goes wrong: the errno, and the calls that it can strike."""


def in_memory() -> Path:
    """A new folder, on a file system in memory where there is one: what is tested with it needs no disk, and a sync of
    a disk costs more than all else."""
    return Path(tempfile.mkdtemp(prefix="agent_ckpt", dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None))


def build(folder: Path) -> Path:
    """Compile the library."""
    library = folder / "iofault.so"
    done = subprocess.run(
        ["cc", "-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", "-o", str(library), str(SOURCE), "-ldl"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, f"the C compiler failed: {done.stderr}"
    return library


def environment(library: Path) -> dict[str, str]:
    """The environment of a process that is to have the library."""
    return {**os.environ, "PYTHONPATH": str(ROOT), "LD_PRELOAD": str(library)}


class Faults:
    """The library, seen from inside the process that it was preloaded into."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL(os.environ["LD_PRELOAD"])
        self._library.iofault_what.restype = ctypes.c_char_p
        self._library.iofault_arm.argtypes = [ctypes.c_long, ctypes.c_int, ctypes.c_int, ctypes.c_int]
        self._library.iofault_mark.argtypes = [ctypes.c_long]
        self._library.iofault_count.restype = self._library.iofault_hits.restype = ctypes.c_long

    def watch(self, path: Path) -> None:
        """Look at the files of this database from now on, and at no others."""
        self._library.iofault_watch(os.fsencode(path))

    def arm(self, at: int, kind: str, sticky: bool, calls: int | None = None) -> None:
        """Make the `at`-th call fail, counted from 1, and all later ones if sticky; 0 counts and fails none."""
        number, mask = KINDS[kind]
        self._library.iofault_arm(at, number, sticky, mask if calls is None else calls)

    def disarm(self) -> None:
        self._library.iofault_disarm()

    @property
    def count(self) -> int:
        """Calls since `arm` that could have been made to fail."""
        return int(self._library.iofault_count())

    @property
    def hits(self) -> int:
        """Calls that failed."""
        return int(self._library.iofault_hits())

    @property
    def what(self) -> str:
        """The first call that failed, and on which file."""
        return bytes(self._library.iofault_what()).decode()

    def log(self, path: Path) -> None:
        """Log writes, syncs and the like to a file from now on."""
        self._library.iofault_log(os.fsencode(path))

    def mark(self, number: int) -> None:
        """Put a mark into the log."""
        self._library.iofault_mark(number)
