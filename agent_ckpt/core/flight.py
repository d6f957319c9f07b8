"""Runs in flight: whoever would write a thread while a run on it is going is refused.

"The first to write wins" holds for a thread at rest. A run that is going owns its thread, and a
newcomer that restored it in mid-run would otherwise win at the run's next pause: the run that has
already sent the mail would be refused, with its tool call left unanswered.
"""

from __future__ import annotations

from collections.abc import Callable

from agent_ckpt.backend import Program, Row, Statement
from agent_ckpt.core.rows import body_of, checkpoint_row, session_column, thread_row
from agent_ckpt.core.session import Session, busy, conflict, owns
from agent_ckpt.errors import CorruptionError, ThreadConflictError
from agent_ckpt.model import Body, Holder, Place, Ref, ThreadRow

Life = Callable[[bytes], Holder | None]
"""Tells of a session's id whether a run of it is going, here or in another process."""

_TRIGGERS = ("__start__", "branch:to:")
"""Channels in which LangGraph keeps what a graph's next step starts with."""
_TASKS = "__pregel_tasks"


def nobody(_: bytes) -> Holder | None:
    """The life of runs for whoever takes a thread regardless."""
    return None


def admit(place: Place, row: ThreadRow | None, session: Session | None, life: Life, doing: str) -> Program[None]:
    """Let a write through whose session may write the thread now, or refuse it before anything of it is stored.

    Raises:
        ThreadConflictError: when the session lost the thread, or a run in flight owns it.
    """
    if session is not None and not owns(row, session):
        # A run restored the thread at rest, and lost a race; a bare read may have met a run in flight.
        if session.run is None and session.outer is None:
            yield from _refuse_in_flight(place, row, session, life, doing)
        raise conflict(row, session, place.checkpoint_id, doing)
    yield from _refuse_in_flight(place, row, session, life, doing)


def _refuse_in_flight(
    place: Place, row: ThreadRow | None, session: Session | None, life: Life, doing: str
) -> Program[None]:
    if row is None or row.session is None or (session is not None and session.id == row.session):
        return
    holder = life(row.session)
    if holder is None:
        return
    found = yield Statement("head_of_space", (place.thread_id, ""))
    # One whose last step is stored is not in the way: a stream that nobody reads to its end holds no finished thread.
    if found and not _has_next_step(place.thread_id, found[0], row.secret):
        return
    raise busy(row.revision, session, holder, place.thread_id, place.checkpoint_id, doing)


def look(thread_id: str, session: Session, life: Life, doing: str) -> Program[ThreadConflictError | None]:
    """What would refuse a session now that has just restored: a run in flight, or nothing."""
    found = yield Statement("thread_row", (thread_id,))
    row = thread_row(found[0], thread_id) if found else None
    if session.outer is not None and not owns(row, session):
        return conflict(row, session, None, doing)
    try:
        yield from _refuse_in_flight(Place(thread_id, "", None), row, session, life, doing)
    except ThreadConflictError as refused:
        return refused
    return None


def _has_next_step(thread_id: str, columns: Row, secret: bytes) -> bool:
    if columns[7] is None:
        return True
    try:
        body = body_of(checkpoint_row(thread_id, "", columns[7:13], secret))
    except CorruptionError:
        return True
    return has_triggers(body)


def has_triggers(body: Body) -> bool:
    """Whether a root checkpoint says that something is left to run; True where it can't be told.

    A graph of nodes and edges keeps a channel for its input and for each node's trigger, with a
    value until that has been taken. Another Pregel graph's channels are its own.
    """
    triggers = [ref for name, _, ref in body.channels if name.startswith(_TRIGGERS)]
    if not triggers:
        return True
    tasks = next((ref for name, _, ref in body.channels if name == _TASKS), None)
    return any(ref is not None for ref in triggers) or not _is_empty(tasks)


def _is_empty(tasks: Ref) -> bool:
    # Inline, an empty list is one byte behind that of its codec, and a Send never is.
    return tasks is None or (isinstance(tasks, list) and tasks[1] == 0) or (isinstance(tasks, bytes) and len(tasks) < 3)


def claim(thread_id: str, held_by: bytes, session_id: bytes) -> Program[None]:
    """Make a session the owner of a thread that another one owns; that one is refused from now on."""
    found = yield Statement("thread_row", (thread_id,))
    row = thread_row(found[0], thread_id) if found else None
    if row is not None and row.session == held_by:
        column = session_column(row, row.revision, session_id)
        yield Statement("update_thread", (row.thread, row.revision, column, row.next_blob))
