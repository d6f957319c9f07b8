"""What is done to the database's files without SQLite: make them, narrow their rights, tell their inode.

An existing database, -wal or -shm is never opened here. Closing any descriptor of a file drops all POSIX locks
that the process has on it, those of SQLite included; another process may then delete the live WAL, and commits
that were acknowledged are gone. So: `os.stat` and `os.chmod` by path only.
"""

from __future__ import annotations

import logging
import os
import stat
import threading
from contextlib import suppress

from agent_ckpt.errors import ReadOnlyError
from agent_ckpt.sqlite import fork

log = logging.getLogger("agent_ckpt")

OTHERS = 0o007
SIDE_FILES = ("-wal", "-shm", "-journal", "-lock")

_creating = threading.RLock()


def _replace_locks() -> None:
    global _creating
    _creating = threading.RLock()


fork.on_child(_replace_locks)


def status(path: str) -> os.stat_result | None:
    """`os.stat` of a file, None if it isn't there.

    Waits for a file that this process is just making: nobody may open it before its first descriptor is closed.
    """
    with _creating:
        try:
            return os.stat(path)
        except FileNotFoundError:
            return None


def inode_of(found: os.stat_result) -> fork.Inode:
    return found.st_dev, found.st_ino


def make(path: str, mode: int) -> bool:
    """Make an empty file with exactly these rights, whatever the umask; False if another made it first.

    SQLite gives -wal, -shm and -journal the rights of the database, so all are closed from their first byte.

    Raises:
        ReadOnlyError: if the folder can't be written.
        OSError: if it fails otherwise.
    """
    with _creating:
        try:
            descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | getattr(os, "O_CLOEXEC", 0), mode)
        except FileExistsError:
            return False
        except PermissionError as exc:
            raise ReadOnlyError(f"can't make {path}: {exc.strerror}. Check the folder's rights.", path=path) from exc
        try:
            # Where that fails the umask stands, which can only have taken rights away.
            with suppress(OSError):
                if hasattr(os, "fchmod"):
                    os.fchmod(descriptor, mode)
        finally:
            os.close(descriptor)
    return True


def narrow(path: str) -> None:
    """Take the rights of others from an existing database and the files beside it; group rights stay."""
    for name in (path, *(path + suffix for suffix in SIDE_FILES)):
        found = status(name)
        if found is None or not found.st_mode & OTHERS:
            continue
        try:
            os.chmod(name, stat.S_IMODE(found.st_mode) & ~OTHERS)
        except OSError as exc:
            log.warning("%s can be used by other users of this machine, and its rights can't be changed: %s", name, exc)


def held_by_this_process(inode: fork.Inode) -> bool:
    """Whether some descriptor of this process refers to that file, ours or anybody's."""
    return fork.is_open_here(inode) or has_descriptor(inode)


def has_descriptor(inode: fork.Inode) -> bool:
    """Whether a descriptor of this process refers to that file; told without opening anything but a folder."""
    try:
        names = os.listdir("/proc/self/fd")
    except OSError:
        return False
    for name in names:
        try:
            if inode_of(os.stat(f"/proc/self/fd/{name}")) == inode:
                return True
        except OSError:
            continue
    return False


def share_mode(path: str) -> None:
    """Give -wal and -shm the file's own permission bits, where they are there and it can be done; by path only."""
    with suppress(OSError):
        mode = stat.S_IMODE(os.stat(path).st_mode)
        for suffix in ("-wal", "-shm"):
            with suppress(OSError):
                os.chmod(path + suffix, mode)
