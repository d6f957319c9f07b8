"""What can be told of LangGraph's loops, which execute runs, and of who drives them: from call stacks alone."""

from __future__ import annotations

import asyncio
import sys
import threading
from types import FrameType
from typing import Any

from langgraph.types import Command

_ENTERING = frozenset(("__enter__", "__aenter__"))
_LOOPS = "langgraph.pregel"
_DRIVING = frozenset(("stream", "astream"))
_FRAMES_AT_MOST = 16
_INTERRUPT_ID_SIZE = 32
_HEX = frozenset("0123456789abcdef")


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


def serves_many() -> bool:
    """Whether this is an OS thread of a pool, which may have been given to another caller since."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name == "_worker" and frame.f_globals.get("__name__") == "concurrent.futures.thread":
            return True
        frame = frame.f_back
    return False


def is_driven(loop: Any) -> bool:
    """Whether some OS thread is inside a loop's run right now."""
    for frame in list(sys._current_frames().values()):
        at: FrameType | None = frame
        while at is not None:
            drives = at.f_code.co_name in _DRIVING and str(at.f_globals.get("__name__", "")).startswith(_LOOPS)
            if drives and loop is not None and at.f_locals.get("loop") is loop:
                return True
            at = at.f_back
    return False
