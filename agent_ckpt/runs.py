"""The runs of this process: when each began, and that it has ended.

LangGraph tells a checkpointer when a run restores its thread, but not when the run ends. The loop
that executes a run unwinds an exit stack when the run is over, whichever way it ends: it returned,
stopped at a breakpoint or at the recursion limit, raised, was cancelled, or its half-read stream
was closed or collected. So the end is entered there, first, which makes it the last thing to be
unwound, after all that the run still had to store. A config, a state or a traceback that user code
keeps holds no run alive.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Protocol

from langgraph.types import Command

from agent_ckpt.core.flight import Rules, nobody
from agent_ckpt.core.session import Session, cancelled
from agent_ckpt.model import Holder

_ENTERING = frozenset(("__enter__", "__aenter__"))
_LOOPS = "langgraph.pregel"
_DRIVING = frozenset(("stream", "astream"))
_FRAMES_AT_MOST = 16
LAST_WRITE_S = 5.0
"""How long a run that is over is waited for to store what it has begun to store."""
_INTERRUPT_ID_SIZE = 32
_HEX = frozenset("0123456789abcdef")
_SHOWN_EVERY_S = 0.05
"""How often a run shows the other processes that it does something, at most."""

_going: dict[bytes, GoingRun] = {}
"""The runs of this process that are going, by their session's id, whichever saver they restored through."""


class Board(Protocol):
    """Where a store's other processes see the runs of this one."""

    def token(self) -> bytes:
        """Four bytes that begin the ids of this process's sessions."""

    def publish(self, number: int, base: int) -> int | None:
        """Show a run; returns its slot, or None where others can't be told."""

    def renew(self, slot: int) -> None: ...

    def withdraw(self, slot: int) -> None: ...

    def show_life(self) -> None:
        """Let other processes see that this one lives, though it runs nothing yet."""

    def alive(self, token: bytes) -> bool:
        """Whether the process lives whose sessions' ids begin so; True where that can't be told."""

    def look(self, session_id: bytes, ttl_s: float) -> Holder | None:
        """The run of another process that is going under this session's id, or None."""


def loop_around() -> Any:
    """The LangGraph loop that is entered right now further up this call stack, or None."""
    frame = sys._getframe(1)
    for _ in range(_FRAMES_AT_MOST):
        code = frame.f_code
        if code.co_name in _ENTERING and str(frame.f_globals.get("__name__", "")).startswith(_LOOPS):
            loop = frame.f_locals.get("self")
            return loop if hasattr(getattr(loop, "stack", None), "callback") else None
        if frame.f_back is None:
            return None
        frame = frame.f_back
    return None


def goes_on(loop: Any, run_id: str | None) -> bool:
    """Whether a run begins with the open tasks of its thread, and stores nothing before the first of them is done.

    Args:
        run_id: of the run that stored the checkpoint; LangGraph takes a run of the same id for its continuation.
    """
    given = loop.input
    if isinstance(given, Command):
        # The answers to interrupts that are named by their ids are not stored as writes; any other dict is one answer.
        answers = given.resume
        by_id = isinstance(answers, dict) and all(map(_is_interrupt_id, answers))
        return by_id and not given.update and not given.goto
    return given is None or (run_id is not None and loop.config.get("metadata", {}).get("run_id") == run_id)


def _is_interrupt_id(key: Any) -> bool:
    return isinstance(key, str) and len(key) == _INTERRUPT_ID_SIZE and set(key) <= _HEX


def position() -> tuple[int, int]:
    """Which OS thread, and which task of an event loop on it, is at work."""
    try:
        task = asyncio.current_task()
    except RuntimeError:
        task = None
    return threading.get_ident(), id(task) if task is not None else 0


class GoingRun:
    """A run from its restore to its end, and to the end of the last write that it began.

    Attributes:
        session_id, thread_id, base: its session's.
        began, renewed: monotonic seconds: when it restored, when it last wrote.
        position: the OS thread and the task that it began in.
        board: where other processes see it, once it writes.
        slot: its place there.
        writing: whether it has begun to write.
        pending: how many writes of it are under way.
    """

    def __init__(self, session: Session, loop: Any, board: Board) -> None:
        # Weak, as the session refers to it. Whatever may still write holds the session.
        self._session = weakref.ref(session)
        self.session_id, self.thread_id, self.base = session.id, session.thread_id, session.base
        self.began = self.renewed = time.monotonic()
        self.position = position()
        self.slot: int | None = None
        self.writing = False
        self.pending = 0
        self._shown = 0.0
        self.board = board
        self._pid = os.getpid()
        self._loop = weakref.ref(loop, lambda _: self._dropped())
        self._over, self._over_since = False, 0.0
        # Re-entrant, as a collected loop may end its run at any moment.
        self._lock = threading.RLock()
        _going[session.id] = self
        loop.stack.push(self._left)

    @property
    def ended(self) -> bool:
        """Whether it is over: its loop was left, or dropped before it was entered, and no write is under way.

        One whose event loop isn't turned any more never hears that its last write is done.
        """
        return self._over and (not self.pending or time.monotonic() - self._over_since > LAST_WRITE_S)

    @property
    def is_ending(self) -> bool:
        """Whether it is over but for a write that is under way."""
        return self._over and not self.ended

    def end(self) -> None:
        """It is over; nobody has to wait for it any more, once its last write is done."""
        if os.getpid() != self._pid:
            return
        with self._lock:
            self._over_since = self._over_since if self._over else time.monotonic()
            self._over = True
            if self.pending:
                return
            slot, self.slot = self.slot, None
        _going.pop(self.session_id, None)
        if slot is not None:
            self.board.withdraw(slot)

    def _left(self, kind: type[BaseException] | None, exc: BaseException | None, trace: object) -> None:  # noqa: ARG002
        # LangGraph waits for what it stores, unless that wait is cancelled as well.
        if kind is not None and not issubclass(kind, Exception):
            self._refuse_the_late()
        self.end()

    def _dropped(self) -> None:
        # Cancelled while it was entered, say: what it has handed to a worker may come late, and finds its end here.
        if not self._over:
            self._refuse_the_late()
            self.end()

    def _refuse_the_late(self) -> None:
        session = self._session()
        if session is not None:
            session.refused = session.refused or cancelled(session)

    def begin_write(self) -> None:
        """It is about to write: show it to the other processes, and that it does something."""
        self.renewed = now = time.monotonic()
        self.writing = True
        with self._lock:
            self.pending += 1
            if self.slot is not None:
                if now - self._shown > _SHOWN_EVERY_S:
                    self._shown = now
                    self.board.renew(self.slot)
            elif not self._over:
                self.slot = self.board.publish(int.from_bytes(self.session_id[4:], "big"), self.base)

    def end_write(self) -> None:
        """That write is done, or was refused."""
        with self._lock:
            self.pending -= 1
            last = self._over and not self.pending
        if last:
            self.end()

    def channel(self, name: str) -> Any:
        """LangGraph's channel of a name, or None where there is none, or the loop is gone."""
        return (getattr(self._loop(), "channels", None) or {}).get(name)

    def is_executing(self) -> bool:
        """Whether some OS thread is inside it right now."""
        loop = self._loop()
        for frame in list(sys._current_frames().values()):
            at: FrameType | None = frame
            while at is not None:
                drives = at.f_code.co_name in _DRIVING and str(at.f_globals.get("__name__", "")).startswith(_LOOPS)
                if drives and loop is not None and at.f_locals.get("loop") is loop:
                    return True
                at = at.f_back
        return False

    def holder(self) -> Holder:
        return Holder(self._pid, time.monotonic() - self.began, self.base)


class Runs:
    """What one saver knows of runs in flight.

    Args:
        board: how they are seen from other processes.
        ttl_s: seconds after its last write for which a run keeps newcomers out.
    """

    def __init__(self, board: Board, ttl_s: float) -> None:
        self._board = board
        self._ttl_s = ttl_s

    def rules(self, rejects: bool, lease: bytes | None) -> Rules:
        """What decides whether a write is let through, as things stand."""
        return Rules(self.life if rejects else nobody, self.alive, time.time, lease)

    def alive(self, holder: bytes) -> bool:
        """Whether the process lives that a session or a holder belongs to, by its id."""
        return self._board.alive(holder[:4])

    def show_life(self) -> None:
        """Let other processes see that this one lives."""
        self._board.show_life()

    def fresh_id(self) -> bytes:
        """An id for a new session, which tells this process's sessions from others'."""
        return self._board.token() + os.urandom(4)

    def begin(self, session: Session, loop: Any) -> None:
        """A run begins with a session."""
        if session.run is None:
            session.run = GoingRun(session, loop, self._board)

    def left_behind(self, left: Session | None, own: Session | None, outer: Session | None) -> GoingRun | None:
        """A run that its caller has come back from, if there is one.

        Whoever calls from the OS thread, the task and the context in which a run began isn't inside
        it any more, unless it is a node of it: it left a stream half-read.

        Args:
            left: the session last begun in this context, on the thread that is written now.
            own: the session that writes; its run is the caller's.
            outer: the session of the run inside whose node we are, if any.
        """
        run = left.run if left is not None and left is not own and left is not outer else None
        if not isinstance(run, GoingRun) or run.ended or run.position != position() or run.is_executing():
            return None
        return run

    def is_moving(self, thread_id: str) -> bool:
        """Whether a run of this process has a write of a thread under way."""
        return any(run.pending and run.thread_id == thread_id for run in list(_going.values()))

    def is_ending(self, thread_id: str) -> bool:
        """Whether a run of this process is over but for a write of the thread that is under way."""
        return any(run.is_ending and run.thread_id == thread_id for run in list(_going.values()))

    def about_to_write(self, session: Session) -> Holder | None:
        """The run of this process whose first write is on its way, on the thread as a session has just restored it.

        LangGraph stores a run's first step beside its first nodes (durability="async"), so a
        newcomer may restore before the commit and would only lose at its own first write.
        """
        for run in list(_going.values()):
            same = run.thread_id == session.thread_id and run.base == session.base and run.board is self._board
            if same and run.writing and not run.ended and run.session_id != session.id and run.position != position():
                return run.holder()
        return None

    def life(self, session_id: bytes) -> Holder | None:
        """The run that is going under a session's id, in this process or another; None: none is."""
        run = _going.get(session_id)
        if run is not None:
            return None if run.ended or time.monotonic() - run.renewed > self._ttl_s else run.holder()
        return self._board.look(session_id, self._ttl_s)


def abandon(session: Session) -> None:
    """A run that was not let in has ended."""
    run, session.run = session.run, None
    if isinstance(run, GoingRun):
        run.end()


@contextmanager
def writing(session: Session | None) -> Iterator[None]:
    """While a session writes."""
    run = session.run if session is not None else None
    if not isinstance(run, GoingRun):
        yield
        return
    run.begin_write()
    try:
        yield
    finally:
        run.end_write()


def _forget() -> None:
    _going.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
