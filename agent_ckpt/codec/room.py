"""Room on the stack: whether a deep value is read or stored must not depend on how deep its caller stands."""

from __future__ import annotations

import _thread
import contextvars
from collections.abc import Callable
from typing import Any

LEVELS = 32
"""After how many levels of nesting more room may be taken; few enough for half of Python's usual limit."""


def in_room(work: Callable[..., Any], *given: Any) -> Any:
    """What `work(*given)` gives, run in the caller's context on a thread of its own, whose stack is empty.

    Raises:
        RecursionError: when no thread can be had, or that room does not do either.
        BaseException: what it raises.
    """
    context = contextvars.copy_context()
    made: list[Any] = []
    failed: list[BaseException] = []
    # Not a threading.Thread: starting one takes some of the room that there isn't.
    done = _thread.allocate_lock()
    done.acquire()

    def run() -> None:
        try:
            made.append(context.run(work, *given))
        except BaseException as exc:
            failed.append(exc)
        finally:
            done.release()

    try:
        _thread.start_new_thread(run, ())
    except RuntimeError as exc:
        raise RecursionError("no thread for a deeply nested value can be had") from exc
    done.acquire()
    if failed:
        raise failed[0]
    return made[0]
