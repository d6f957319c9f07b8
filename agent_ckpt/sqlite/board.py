"""Where the processes that share a database see each other's runs: a side file per process.

A process that runs a graph keeps the file `DATABASE-run-TOKEN` locked while it lives: the lock is gone
the moment it dies. Each run that has written has a slot in it, emptied when the run ends, so that a run which stopped
at a breakpoint or failed holds nobody up. While a run can do something its slot is touched every `BEAT_S`
seconds; one whose slot was not touched for `FROZEN_S` is taken for frozen: its process is suspended, or its event loop
isn't turned. Times are the monotonic clock's,
which the processes of one machine share.

None of this decides who may write: the database does. It only tells whom to let finish.
"""

from __future__ import annotations

import contextlib
import logging
import os
import stat
import struct
import threading
import time
from collections.abc import Callable
from pathlib import Path

from agent_ckpt.model import FROZEN_S, Holder
from agent_ckpt.sqlite import files, fork

try:
    import fcntl
except ImportError:
    fcntl = None  # type: ignore[assignment]

log = logging.getLogger("agent_ckpt")

BEAT_S = 2.0

_MAGIC = b"ackptrun"
_HEAD = struct.Struct("<8sQ")
_SLOT = struct.Struct("<IIQQQQ")
"""A session's number, whether the slot is in use, when the run began, last wrote and was touched (ns), and its base."""
_TIME = struct.Struct("<Q")
_RENEWED_AT, _TOUCHED_AT = 16, 24
_SECOND = 1_000_000_000
_TOKEN_SIZE = 4
_LOOK_AT_MOST = 1 << 20


class RunBoard:
    """This process's side file, and the look at others'. `agent_ckpt.runs.Board` for a SQLite file.

    Args:
        path: the database file; None for a store in memory, which no other process shares.
    """

    def __init__(self, path: str | None) -> None:
        self._path = path
        self._lock = threading.RLock()
        self._token = os.urandom(_TOKEN_SIZE)
        self._descriptor: int | None = None
        self._free: list[int] = []
        self._slots = 0
        self._shown: dict[int, Callable[[], bool]] = {}
        self._works = path is not None and fcntl is not None
        self._told = False
        self._woken = threading.Event()
        fork.register(self)

    def token(self) -> bytes:
        """Four bytes that begin the ids of this process's sessions."""
        return self._token

    def publish(self, number: int, base: int, is_turned: Callable[[], bool]) -> int | None:
        """Show a run; returns its slot, or None where other processes can't be told.

        Args:
            is_turned: whether it can do anything just now; asked at each beat.
        """
        if not self._works:
            return None
        with self._lock:
            try:
                descriptor = self._open()
                slot = self._free.pop() if self._free else self._slots
                now = time.monotonic_ns()
                os.pwrite(descriptor, _SLOT.pack(number, 1, now, now, now, base), _offset(slot))
            except OSError as exc:
                self._tell(exc)
                return None
            self._told = False
            self._slots = max(self._slots, slot + 1)
            self._shown[slot] = is_turned
            self._woken.set()
            return slot

    def renew(self, slot: int) -> None:
        """The run in a slot does something."""
        with self._lock, contextlib.suppress(OSError):
            if self._descriptor is not None:
                os.pwrite(self._descriptor, _TIME.pack(time.monotonic_ns()), _offset(slot) + _RENEWED_AT)

    def withdraw(self, slot: int) -> None:
        """The run in a slot has ended."""
        with self._lock, contextlib.suppress(OSError):
            if self._descriptor is not None:
                os.pwrite(self._descriptor, bytes(_SLOT.size), _offset(slot))
                self._free.append(slot)
                self._shown.pop(slot, None)
                if not self._shown:
                    self._woken.clear()

    def show_life(self) -> None:
        """Let other processes see that this one lives, though it runs nothing yet."""
        if self._works:
            with self._lock:
                try:
                    self._open()
                except OSError as exc:
                    self._tell(exc)

    def _tell(self, exc: OSError) -> None:
        # A full disk, say: the next run, or the next write of this one, tries again.
        if not self._told:
            log.warning("other processes can't see the runs and leases of this one on %s: %s", self._path, exc.strerror)
        self._told = True

    def alive(self, token: bytes) -> bool:
        """Whether the process lives whose sessions' ids begin so; True where that can't be told."""
        if token == self._token or self._path is None or fcntl is None:
            return True
        try:
            descriptor = os.open(_file(self._path, token), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            return False
        try:
            return _is_locked(descriptor)
        finally:
            os.close(descriptor)

    def look(self, session_id: bytes, ttl_s: float) -> Holder | None:
        """The run of another process that is going under a session's id, or None."""
        token = session_id[:_TOKEN_SIZE]
        if self._path is None or fcntl is None or token == self._token or len(session_id) != 8:
            return None
        try:
            descriptor = os.open(_file(self._path, token), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            return None
        try:
            return None if not _is_locked(descriptor) else _find(descriptor, session_id[_TOKEN_SIZE:], ttl_s)
        finally:
            os.close(descriptor)

    def close(self) -> None:
        """Take the side file away: this process has no run here any more. The next run makes another."""
        with self._lock:
            descriptor, self._descriptor = self._descriptor, None
            if descriptor is None:
                return
            self._free, self._slots, self._shown = [], 0, {}
            self._woken.set()
            if self._path is not None:
                with contextlib.suppress(OSError):
                    os.unlink(_file(self._path, self._token))
            os.close(descriptor)
            self._token = os.urandom(_TOKEN_SIZE)

    # Forks: the parent's file stays locked for its runs, and the child begins with none.

    def hurry(self) -> None:
        """Nothing here takes long."""

    def close_handles(self) -> None:
        """Before a fork: nothing to do, runs go on."""

    def after_in_child(self, inherited: bool) -> None:  # noqa: ARG002
        """Close the inherited descriptor, which would keep the parent's runs alive after its death."""
        descriptor, self._descriptor = self._descriptor, None
        self._lock, self._woken = threading.RLock(), threading.Event()
        self._token = os.urandom(_TOKEN_SIZE)
        self._free, self._slots, self._shown = [], 0, {}
        if descriptor is not None:
            os.close(descriptor)

    def _open(self) -> int:
        if self._descriptor is not None:
            return self._descriptor
        assert self._path is not None
        _sweep(self._path)
        found = files.status(self._path)
        mode = (0o600 if found is None else stat.S_IMODE(found.st_mode)) & 0o660
        while True:
            name = _file(self._path, self._token)
            descriptor = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, mode)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            if os.fstat(descriptor).st_nlink:
                break
            # Another process swept it away before it was locked.
            os.close(descriptor)
        try:
            os.pwrite(descriptor, _HEAD.pack(_MAGIC, os.getpid()), 0)
        except OSError:
            os.unlink(name)
            os.close(descriptor)
            raise
        self._descriptor = descriptor
        threading.Thread(target=_beat, args=(self, descriptor), name="agent_ckpt-runs", daemon=True).start()
        return descriptor

    def beat(self, descriptor: int) -> bool:
        """Touch the slots of the runs that are going; False when it isn't this board's file any more."""
        if not self._woken.wait(FROZEN_S):
            return self._descriptor == descriptor
        with self._lock:
            shown = list(self._shown.items())
        # Not under the lock: a run that finds itself at its end withdraws, and has a lock of its own.
        turned = [(slot, is_turned) for slot, is_turned in shown if is_turned()]
        with self._lock:
            if self._descriptor != descriptor:
                return False
            with contextlib.suppress(OSError):
                for slot, is_turned in turned:
                    if self._shown.get(slot) is is_turned:
                        os.pwrite(descriptor, _TIME.pack(time.monotonic_ns()), _offset(slot) + _TOUCHED_AT)
        return True


def _beat(board: RunBoard, descriptor: int) -> None:
    while board.beat(descriptor):
        time.sleep(BEAT_S)


def _file(path: str, token: bytes) -> str:
    return f"{path}-run-{token.hex()}"


def _offset(slot: int) -> int:
    return _HEAD.size + slot * _SLOT.size


def _is_locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    fcntl.flock(descriptor, fcntl.LOCK_UN)
    return False


def _find(descriptor: int, number: bytes, ttl_s: float) -> Holder | None:
    data = os.pread(descriptor, _LOOK_AT_MOST, 0)
    if len(data) < _HEAD.size or data[:8] != _MAGIC:
        return None
    _, process = _HEAD.unpack_from(data)
    wanted = int.from_bytes(number, "big")
    now = time.monotonic_ns()
    for at in range(_HEAD.size, len(data) - _SLOT.size + 1, _SLOT.size):
        its_number, used, began, renewed, touched, base = _SLOT.unpack_from(data, at)
        if used and its_number == wanted:
            frozen = now - max(touched, renewed) > FROZEN_S * _SECOND
            idle = now - renewed > ttl_s * _SECOND
            return None if frozen or idle else Holder(process, (now - began) / _SECOND, base)
    return None


def _sweep(path: str) -> None:
    """Remove the side files of processes that died."""
    place = Path(path)
    for found in place.parent.glob(f"{_literal(place.name)}-run-*"):
        with contextlib.suppress(OSError):
            descriptor = os.open(found, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.unlink(found)
            finally:
                os.close(descriptor)


def _literal(name: str) -> str:
    return "".join(f"[{char}]" if char in "*?[" else char for char in name)
