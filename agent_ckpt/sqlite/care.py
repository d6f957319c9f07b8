"""Looking after an open store: the WAL's status, cutting it by hand, and what the doctor says."""

from __future__ import annotations

import time
from typing import Protocol

from agent_ckpt.errors import CkptError, UsageError, WalPinnedError
from agent_ckpt.options import Options
from agent_ckpt.reports import Check, WalStatus
from agent_ckpt.sqlite import connect, doctor, pins
from agent_ckpt.sqlite.engine import Engine
from agent_ckpt.sqlite.group import Handle
from agent_ckpt.sqlite.guard import Pauses
from agent_ckpt.sqlite.target import Target
from agent_ckpt.sqlite.wal import PATIENT_WAIT_S, Limits
from agent_ckpt.sqlite.writer import Writer

_STRETCH = 1000
"""Pages that are given back in one transaction."""


class Store(Protocol):
    """What is needed of a backend."""

    target: Target
    options: Options
    engine: Engine
    limits: Limits
    writer: Writer

    def ready(self) -> None: ...


def status(store: Store) -> WalStatus:
    """The WAL's status."""
    store.ready()
    if store.limits.mode == "memory":
        return WalStatus("memory", 0, 0, 0)
    return store.writer.maintain(_look)


def _look(handle: Handle) -> WalStatus:
    assert handle.wal is not None
    return handle.wal.status(handle.connection)


def truncate(store: Store, wait_s: float) -> WalStatus:
    """Cut the WAL, trying for `wait_s` seconds with pauses in which others write.

    Raises:
        UsageError, WalPinnedError
    """
    store.ready()
    if store.limits.mode == "litestream":
        raise UsageError(
            f"{store.target.path} was opened with journal='litestream': its WAL is folded by Litestream alone, and "
            f"cutting it would make Litestream begin a new generation. Stop Litestream and open the file without it"
        )
    began = time.monotonic()
    pauses = Pauses(began + wait_s)
    while store.limits.mode == "wal":
        if store.writer.maintain(lambda handle: handle.cut_wal(PATIENT_WAIT_S)):
            break
        if not pauses.sleep():
            raise _pinned(status(store), store.target.path, time.monotonic() - began)
    return status(store)


def give_back(store: Store, wait_s: float) -> int:
    """Give free pages back to the file system, a stretch at a time between which others write; how many are left.

    Some are where the file can't give pages back (it was made by another program), or others held its lock.
    """
    store.ready()
    pauses = Pauses(time.monotonic() + wait_s)
    left, before = store.writer.maintain(lambda handle: connect.give_back(handle.connection, _STRETCH)), -1
    while left and left != before and pauses.sleep():
        left, before = store.writer.maintain(lambda handle: connect.give_back(handle.connection, _STRETCH)), left
    return left


def _pinned(found: WalStatus, path: str, waited_s: float) -> WalPinnedError:
    who = pins.describe(found.pinned_by)
    return WalPinnedError(
        f"the WAL of {path} was not cut: {found.pages_left} of its pages are not in the file yet ({found.bytes} bytes "
        f"on disk), and after {waited_s:.1f} s it is still read by {who}. Nothing is lost; end that read transaction "
        f"and call again.",
        waited_s=waited_s,
        path=path,
        bytes=found.bytes,
        pages_left=found.pages_left,
        pids=tuple(pin.pid for pin in found.pinned_by),
    )


def examine(store: Store) -> list[Check]:
    """Everything that the doctor says."""
    if store.target.memory:
        text = f"in this process's memory, {store.engine.name}, SQLite {store.engine.version_text}"
        return [Check("engine", doctor.OK, text)]
    found = list(doctor.before_opening(store.target.path, store.engine, store.options))
    try:
        store.ready()
        found += doctor.mode(store.engine, store.limits)
        found.append(doctor.wal_state(status(store), store.limits))
    except CkptError as exc:
        found.append(Check("opening", doctor.WRONG, exc.message))
    return found
