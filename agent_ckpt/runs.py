"""The runs of this process: when each began, and that it has ended.

LangGraph tells a checkpointer when a run restores its thread, but not when the run ends. The loop
that executes a run unwinds an exit stack when the run is over, whichever way it ends: it returned,
stopped at a breakpoint or at the recursion limit, raised, was cancelled, or its half-read stream
was closed or collected. So the end is entered there, first, which makes it the last thing to be
unwound, after all that the run still had to store. A loop that fails while it is entered never
unwinds it; such an error reaches the run's callback manager, where the end is entered too. A config,
a state or a traceback that user code keeps holds no run alive.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from langchain_core.callbacks import BaseCallbackHandler

from agent_ckpt import loops
from agent_ckpt.core.flight import Rules, nobody
from agent_ckpt.core.session import Session, cancelled
from agent_ckpt.model import FROZEN_S, Holder

LAST_WRITE_S = 5.0
"""How long a run that is over is waited for to store what it has begun to store."""
_SHOWN_EVERY_S = 0.05
"""How often a run shows the other processes that it does something, at most."""

_going: dict[bytes, GoingRun] = {}
"""The runs of this process that are going, by their session's id, whichever saver they restored through."""


class Board(Protocol):
    """Where a store's other processes see the runs of this one."""

    def token(self) -> bytes:
        """Four bytes that begin the ids of this process's sessions."""

    def publish(self, number: int, base: int, is_turned: Callable[[], bool]) -> int | None:
        """Show a run; returns its slot, or None where others can't be told.

        Args:
            is_turned: whether it can do anything just now; asked now and then, on any OS thread.
        """

    def renew(self, slot: int) -> None: ...

    def withdraw(self, slot: int) -> None: ...

    def show_life(self) -> None:
        """Let other processes see that this one lives, though it runs nothing yet."""

    def alive(self, token: bytes) -> bool:
        """Whether the process lives whose sessions' ids begin so; True where that can't be told."""

    def look(self, session_id: bytes, ttl_s: float) -> Holder | None:
        """The run of another process that is going under this session's id, or None."""


class _Failure(BaseCallbackHandler):
    """Ends a run whose loop raised before it was entered; of one that was left it has nothing to do."""

    run_inline = True

    def __init__(self, run: GoingRun) -> None:
        self._run = run

    def on_chain_error(self, error: BaseException, **_: Any) -> None:  # noqa: ARG002
        self._run.drop()


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
        self.position = loops.position()
        self.slot: int | None = None
        self.writing = False
        self.pending = 0
        self._shown = 0.0
        self.board = board
        self._pid = os.getpid()
        self._loop = weakref.ref(loop, lambda _: self.drop())
        self._turns: asyncio.AbstractEventLoop | None = (
            asyncio.get_running_loop() if hasattr(loop, "__aenter__") else None
        )
        self._turned = self.began
        self._over, self._over_since = False, 0.0
        # Re-entrant, as a collected loop may end its run at any moment.
        self._lock = threading.RLock()
        _going[session.id] = self
        loop.stack.push(self._left)
        manager = getattr(loop, "manager", None)
        if manager is not None:
            # A list of its own: LangChain lets others that were made from one manager share one.
            manager.handlers = [*manager.handlers, _Failure(self)]

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
            slot, self.slot, self._turns = self.slot, None, None
        _going.pop(self.session_id, None)
        if slot is not None:
            self.board.withdraw(slot)

    def _left(self, kind: type[BaseException] | None, exc: BaseException | None, trace: object) -> None:  # noqa: ARG002
        # LangGraph waits for what it stores, unless that wait is cancelled as well.
        if kind is not None and not issubclass(kind, Exception):
            self._refuse_the_late()
        self.end()

    def drop(self) -> None:
        """It is over without having been left: it failed or was cancelled while it was entered, or was collected."""
        # What it has handed to a worker may come late, and finds its end here.
        if not self._over:
            self._refuse_the_late()
            self.end()

    def _refuse_the_late(self) -> None:
        session = self._session()
        if session is not None:
            session.refused = session.refused or cancelled(session)

    def begin_write(self) -> None:
        """It is about to write: show it to the other processes, and that it does something."""
        self.renewed = self._turned = now = time.monotonic()
        self.writing = True
        with self._lock:
            self.pending += 1
            if self.slot is not None:
                if now - self._shown > _SHOWN_EVERY_S:
                    self._shown = now
                    self.board.renew(self.slot)
            elif not self._over:
                self.slot = self.board.publish(int.from_bytes(self.session_id[4:], "big"), self.base, self.is_turned)

    def end_write(self) -> None:
        """That write is done, or was refused."""
        with self._lock:
            self.pending -= 1
            last = self._over and not self.pending
        if last:
            self.end()

    def is_turned(self) -> bool:
        """Whether it can do anything just now; one whose event loop was closed never can again, and has ended."""
        turns = self._turns
        if turns is None:
            return True
        if turns.is_closed():
            self.drop()
        if not turns.is_running():
            return False
        self._turned = time.monotonic()
        return True

    def holds(self, ttl_s: float) -> bool:
        """Whether it keeps newcomers out."""
        frozen = not self.is_turned() and time.monotonic() - self._turned > FROZEN_S
        return not (self.ended or frozen or time.monotonic() - self.renewed > ttl_s)

    def channel(self, name: str) -> Any:
        """LangGraph's channel of a name, or None where there is none, or the loop is gone."""
        return (getattr(self._loop(), "channels", None) or {}).get(name)

    @property
    def loop(self) -> Any:
        """LangGraph's loop, or None once it is gone."""
        return self._loop()

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
        here = loops.position()
        if not isinstance(run, GoingRun) or run.ended or run.position != here or loops.is_driven(run.loop):
            return None
        if here[1] == 0 and loops.serves_many():
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
            other = run.session_id != session.id and run.position != loops.position()
            if same and other and run.writing and run.holds(self._ttl_s):
                return run.holder()
        return None

    def life(self, session_id: bytes) -> Holder | None:
        """The run that is going under a session's id, in this process or another; None: none is."""
        run = _going.get(session_id)
        if run is not None:
            return run.holder() if run.holds(self._ttl_s) else None
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
