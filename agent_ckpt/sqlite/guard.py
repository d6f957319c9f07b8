"""The lock that all our writers of one database hold during each commit.

SQLite 3.7.0 to 3.51.2 (not 3.50.7 and later of its line, nor 3.44.6 and later) can make the file malformed when
one connection folds the WAL into it while another commits. So every commit, and with it the fold that a commit may
start, holds this lock. It is taken on a fixed engine too, since a process with an older one may share the file;
it costs a few microseconds.

It is a mutex between the backends of this process, and a lock on the side file `DATABASE-lock` between processes
(`flock`, or what the library filelock has for the system); never a lock on the database file itself, which would meet
SQLite's. The descriptor is ours and stays open: filelock's own lock objects open and close the file each time, which
took 281 microseconds a commit against 3. The side file is never deleted.
"""

from __future__ import annotations

import errno
import logging
import os
import random
import stat
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from agent_ckpt.errors import ReadOnlyError, UnavailableError
from agent_ckpt.later import Later
from agent_ckpt.sqlite import files, fork
from agent_ckpt.sqlite.engine import Engine

if TYPE_CHECKING:
    import filelock
else:
    # Without flock it warns of its own lock objects, which aren't used here; what is missing then is said below.
    filelock = Later("filelock", quietly=True)

log = logging.getLogger("agent_ckpt")

PAUSE_MIN_S = 0.0001
PAUSE_MAX_S = 0.005
# Not the program's own generator: what a node draws must not depend on how long a lock was held.
_random = random.SystemRandom()

_NOT_SUPPORTED = {errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EINVAL, errno.ENOLCK}

_told: set[str] = set()


def tell_once(using: Engine) -> None:
    """Log that an affected engine runs guarded; INFO, since with most installed versions it is everybody."""
    if using.is_affected and using.name not in _told:
        _told.add(using.name)
        log.info("SQLite %s has a WAL race; guarded mode: all writers share a side lock", using.version_text)


class Pauses:
    """Short growing sleeps with jitter up to a deadline, for whoever polls a lock. Sleep while holding nothing."""

    def __init__(self, deadline: float) -> None:
        self.deadline = deadline
        self._next = PAUSE_MIN_S

    def sleep(self) -> bool:
        """Sleep once; False, at once, if the deadline has passed."""
        left = self.deadline - time.monotonic()
        if left <= 0:
            return False
        time.sleep(min(left, self._next * _random.uniform(0.5, 1.5)))
        self._next = min(self._next * 1.5, PAUSE_MAX_S)
        return True


class Guard:
    """The write lock of one database; every backend of this process on that inode shares one.

    Attributes:
        mutex: keeps the writers of this process apart; hold it around `lock_file` and `unlock_file`.
        held: whether the side file may be locked by us; set before the lock is taken and unset after it was let go, so
            that an interrupt in between loses nothing.
        needed: whether only this lock keeps the WAL race away. With a rollback journal, or a fixed engine alone,
            there is no such race, and where there are no such locks SQLite's own ones do.
    """

    def __init__(self, path: str) -> None:
        self._path = path + "-lock"
        self._database = path
        self.mutex = threading.RLock()
        self.needed = True
        self._descriptor: int | None = None
        self._unlockable = False
        self.held = False

    def lock_file(self) -> bool:
        """Keep the writers of other processes out; False if one of them is inside.

        Raises:
            ReadOnlyError, UnavailableError: if the side file can't be made or locked.
        """
        if self._unlockable:
            return True
        if self._descriptor is None:
            self._descriptor = self._open()
        self.held = True
        try:
            if not filelock.lock_descriptor(self._descriptor, blocking=False):
                self.held = False
                return False
        except OSError as exc:
            self._can_do_without(exc)
            return True
        if self._is_in_place(self._descriptor):
            return True
        self.close()
        return False

    def unlock_file(self) -> None:
        """Let the others in; harmless if the lock isn't held."""
        if self.held and self._descriptor is not None and not self._unlockable:
            filelock.unlock_descriptor(self._descriptor)
            self.held = False

    def _can_do_without(self, exc: OSError) -> None:
        """Go on without the side file's lock, where the system or the file system has none.

        Raises:
            UnavailableError: where it has one, and it failed.
        """
        if exc.errno not in _NOT_SUPPORTED or (self.needed and exc.errno != errno.ENOSYS):
            raise UnavailableError(
                f"can't lock the side file {self._path}: {exc.strerror}. Keep the database on a local file system, "
                f"or open it with journal='rollback'.",
                path=self._path,
            ) from exc
        self._unlockable = True
        if self.needed:
            log.warning(
                "%s can't be locked (%s), which keeps the writing processes of a WAL database apart: let one process "
                "write it, or use SQLite 3.51.3 or later",
                self._path,
                exc.strerror,
            )

    def close(self) -> None:
        """Close the side file, which drops the lock where this process held it."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)
        self.held = False

    def after_in_child(self) -> None:
        """Close the inherited descriptor and never unlock it: the lock behind it is the parent's."""
        self.mutex = threading.RLock()
        self.close()

    def _is_in_place(self, descriptor: int) -> bool:
        # Someone who tidied the side file away has split us from those who open a new one.
        try:
            return os.path.samestat(os.fstat(descriptor), os.stat(self._path))
        except FileNotFoundError:
            return False

    def _open(self) -> int:
        found = files.status(self._database)
        mode = (0o600 if found is None else stat.S_IMODE(found.st_mode)) & 0o660
        flags = os.O_RDWR | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0)
        try:
            try:
                descriptor = os.open(self._path, flags | os.O_CREAT | os.O_EXCL, mode)
            except FileExistsError:
                return os.open(self._path, flags)
            # Where that fails the umask stands, which can only have taken rights away.
            with suppress(OSError):
                if hasattr(os, "fchmod"):
                    os.fchmod(descriptor, mode)
        except OSError as exc:
            raise ReadOnlyError(
                f"can't open the side file {self._path}: {exc.strerror}. Writers of one database lock it; "
                f"check its rights and its folder's.",
                path=self._path,
            ) from exc
        return descriptor


_guards: dict[fork.Inode, tuple[Guard, int]] = {}
_registry = threading.RLock()


def share(path: str, inode: fork.Inode) -> Guard:
    """The guard of that inode, made at first use and shared until `give_back`."""
    with _registry:
        guard, users = _guards.get(inode) or (Guard(path), 0)
        _guards[inode] = (guard, users + 1)
        return guard


def give_back(inode: fork.Inode) -> None:
    with _registry:
        guard, users = _guards.pop(inode, (None, 0))
        if guard is None:
            return
        if users > 1:
            _guards[inode] = (guard, users - 1)
        else:
            guard.close()


def _replace_locks() -> None:
    global _registry
    _registry = threading.RLock()
    for guard, _ in _guards.values():
        guard.after_in_child()


fork.on_child(_replace_locks)
