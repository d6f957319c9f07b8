"""Fork safety: no SQLite handle ever crosses a fork.

SQLite keeps its file locks per process in tables that a fork copies while the kernel's locks stay behind. A child
that has inherited an open handle, even one that it never touches, therefore gets no real locks on that file from
any new handle either: another process may then delete the live WAL under it. So the parent closes everything
first: a fork waits until no call is inside SQLite, every backend closes its handles, and parent and child
both open anew at their next call. That also makes sure that no mutex of SQLite is held by another worker at
the moment of the fork, which would hang the child for ever.

Where that isn't possible (a call stays inside for longer than `FORK_WAIT_S`, or a C extension forks without
Python's hooks) the inherited files are remembered and refused in the child with a UsageError.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Protocol

from agent_ckpt.errors import UsageError
from agent_ckpt.later import Later

if TYPE_CHECKING:
    import ctypes
else:
    ctypes = Later("ctypes")

log = logging.getLogger("agent_ckpt")

FORK_WAIT_S = 5.0
HURRY_S = 0.02

INHERITED = (
    "it was forked while a call was inside the database, or past Python's fork hooks, and SQLite can't lock the file "
    "here any more. Fork when no call is running, or start the process with the spawn or forkserver method"
)
REPLACED = "the file or its -wal was deleted or replaced under this process. Start a new process"

Inode = tuple[int, int]


class Participant(Protocol):
    """What has handles that must not cross a fork."""

    def close_handles(self) -> None:
        """Close every handle; the next call opens anew. Called when no call is inside."""

    def hurry(self) -> None:
        """End what takes long: a fork waits for it."""

    def after_in_child(self, inherited: bool) -> None:
        """Replace all locks and forget every caller. With `inherited`, abandon the handles unclosed."""


class Gate:
    """Knows the OS threads that are inside SQLite, and holds new ones back while the process forks.

    It isn't counted how often a thread has entered: an interrupt between two steps could leave it inside, which its
    next time through puts right.
    """

    def __init__(self) -> None:
        self._mutex = threading.RLock()
        self._free = threading.Condition(self._mutex)
        self._inside: set[int] = set()
        self._frozen = False

    def __enter__(self) -> None:
        with self._mutex:
            self._enter(threading.get_ident())

    def _enter(self, me: int) -> None:
        while self._frozen and me not in self._inside:
            self._free.wait()
        self._inside.add(me)

    def __exit__(self, *_: object) -> None:
        with self._mutex:
            self._inside.discard(threading.get_ident())
            if self._frozen:
                self._free.notify_all()

    def for_closing(self) -> AbstractContextManager[None]:
        """Enter, unless this thread is inside: a backend may be collected, and then closes, at any moment."""
        return nullcontext() if threading.get_ident() in self._inside else self

    def freeze(self, wait_s: float, hurry: Callable[[], None] = lambda: None) -> bool:
        """Hold new calls back, hurry those inside and wait for them; False if some are still there."""
        deadline = time.monotonic() + wait_s
        with self._mutex:
            self._frozen = True
            hurry()
            if threading.get_ident() in self._inside:
                return False
            while self._inside and (left := deadline - time.monotonic()) > 0:
                self._free.wait(min(left, HURRY_S))
                hurry()
            return not self._inside

    def thaw(self) -> None:
        with self._mutex:
            self._frozen = False
            self._free.notify_all()

    def reset(self) -> None:
        self.__init__()  # type: ignore[misc]


GATE = Gate()
_participants: weakref.WeakSet[Participant] = weakref.WeakSet()
_open_inodes: dict[Inode, int] = {}
_engines: dict[Inode, str] = {}
_refused: dict[Inode, str] = {}
_pid = os.getpid()
_clean = False
_in_child_first: list[Callable[[], None]] = []


def on_child(replace_locks: Callable[[], None]) -> None:
    """Have a module's own locks replaced in every forked child."""
    _in_child_first.append(replace_locks)


def register(participant: Participant) -> None:
    # Through the gate, so that nobody is added while a fork closes all.
    with GATE:
        _participants.add(participant)


def opened(inode: Inode, engine: str) -> None:
    """Count an open handle on a database file of this process."""
    _open_inodes[inode] = _open_inodes.get(inode, 0) + 1
    _engines[inode] = engine


def closed(inode: Inode) -> None:
    left = _open_inodes.get(inode, 0) - 1
    if left > 0:
        _open_inodes[inode] = left
    else:
        _open_inodes.pop(inode, None)
        _engines.pop(inode, None)


def is_open_here(inode: Inode) -> bool:
    return inode in _open_inodes


def engine_of(inode: Inode) -> str | None:
    """The engine with which backends of this process have a file open; None if none has."""
    return _engines.get(inode)


def check_process() -> None:
    """Notice a fork that went past Python's hooks; to be called before each use of a handle."""
    if os.getpid() != _pid:
        _in_child()


def refuse(inode: Inode, why: str) -> None:
    """Never open that file in this process again: SQLite's idea of its locks is wrong here."""
    _refused[inode] = why


def check_refused(inode: Inode, path: str) -> None:
    """
    Raises:
        UsageError: if the file can't be opened safely in this process.
    """
    if inode in _refused:
        raise UsageError(f"{path} can't be used in this process: {_refused[inode]}", path=path)


def abandon(connection: sqlite3.Connection) -> None:
    """Keep an inherited connection from ever being closed, also not at the end of the interpreter.

    Closing it would fold and delete the WAL with what this process wrongly believes about the locks.
    """
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(connection))


def _hurry_all() -> None:
    for participant in list(_participants):
        participant.hurry()


def _before() -> None:
    global _clean
    _clean = False
    if not GATE.freeze(FORK_WAIT_S, _hurry_all):
        return
    try:
        for participant in list(_participants):
            participant.close_handles()
        _clean = True
    except Exception:
        # The fork can't be stopped here; the child will be told that it has inherited something.
        log.exception("closing a database before a fork failed")


def _in_parent() -> None:
    global _clean
    # An extension may run only the hook of the child next time.
    _clean = False
    GATE.thaw()


def _in_child() -> None:
    global _pid, _clean
    _pid = os.getpid()
    inherited, _clean = not _clean, False
    GATE.reset()
    for replace_locks in _in_child_first:
        replace_locks()
    if inherited:
        for inode in _open_inodes:
            refuse(inode, INHERITED)
    for participant in list(_participants):
        participant.after_in_child(inherited)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)
