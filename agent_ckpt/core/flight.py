"""Runs in flight: whoever would write a thread while a run on it is going is refused.

"The first to write wins" holds for a thread at rest. A run that is going owns its thread, and a
newcomer that restored it in mid-run would otherwise win at the run's next pause: the run that has
already sent the mail would be refused, with its tool call left unanswered.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from agent_ckpt.backend import Program, Row, Statement
from agent_ckpt.core.rebuild import own
from agent_ckpt.core.rows import body_of, checkpoint_row, thread_row
from agent_ckpt.core.session import Session, busy, conflict, lease_lost, leased, owns
from agent_ckpt.errors import CorruptionError, ThreadConflictError
from agent_ckpt.model import Body, Holder, LeaseRow, Place, Ref, ThreadRow

Life = Callable[[bytes], Holder | None]
"""Tells of a session's id whether a run of it is going, here or in another process."""

_TRIGGERS = ("__start__", "branch:to:", "join:")
"""Channels in which LangGraph keeps what a graph's next step starts with."""
_TASKS = "__pregel_tasks"


class Rules(NamedTuple):
    """What decides beside the revision whether a write is let through.

    Attributes:
        life: tells of runs in flight.
        alive: tells of a holder's id whether its process lives.
        now: the clock, in seconds since the epoch.
        lease: the id under which the caller holds the thread's lease, if it does.
    """

    life: Life
    alive: Callable[[bytes], bool]
    now: Callable[[], float]
    lease: bytes | None = None

    def holds(self, lease: LeaseRow) -> bool:
        """Whether a lease still holds: it has not expired, and its process lives."""
        return lease.expires > self.now() and self.alive(lease.holder)


def lease_row(columns: Sequence[Any]) -> LeaseRow | None:
    """From fence, holder, label, since, expires; None where there is no lease."""
    return LeaseRow(*columns) if columns and columns[0] is not None else None


def lease_of(thread_id: str) -> Program[LeaseRow | None]:
    """The lease of a thread that may not be stored yet."""
    found = yield Statement("lease_of_thread", (thread_id,))
    return lease_row(found[0]) if found else None


def nobody(_: bytes) -> Holder | None:
    """The life of runs for whoever takes a thread regardless."""
    return None


def admit(
    place: Place, row: ThreadRow | None, lease: LeaseRow | None, session: Session | None, rules: Rules, doing: str
) -> Program[None]:
    """Let a write through whose session may write the thread now, or refuse it before anything of it is stored.

    Raises:
        ThreadConflictError: when another holds the thread's lease or the caller lost it, when the
            session lost the thread, or when a run in flight owns it.
    """
    check_lease(place, lease, session, rules, doing)
    if session is not None and not owns(row, session):
        # A run restored the thread at rest, and lost a race; a bare read may have met a run in flight.
        if session.run is None and session.outer is None:
            yield from refuse_in_flight(place, row, session, rules.life, doing)
        raise conflict(row, session, place.checkpoint_id, doing)
    yield from refuse_in_flight(place, row, session, rules.life, doing)


def check_lease(place: Place, lease: LeaseRow | None, session: Session | None, rules: Rules, doing: str) -> None:
    """Refuse whoever writes a thread that another holds the lease of, or has lost the lease that it held."""
    if lease is not None and lease.holder == rules.lease:
        return
    wrote = session is not None and session.wrote
    if rules.lease is not None:
        raise lease_lost(place.thread_id, doing, wrote)
    if lease is not None and rules.holds(lease):
        raise leased(place.thread_id, lease, doing, wrote)


def refuse_leased(thread_id: str, rules: Rules, doing: str) -> Program[None]:
    """Refuse what is done to a whole thread that another holds the lease of."""
    check_lease(Place(thread_id, "", None), (yield from lease_of(thread_id)), None, rules, doing)


def refuse_in_flight(
    place: Place, row: ThreadRow | None, session: Session | None, life: Life, doing: str
) -> Program[None]:
    """Refuse a write where a run in flight owns the thread."""
    if row is None or (session is not None and session.id == row.session):
        return
    run = yield from in_flight(place.thread_id, row, life)
    if run is not None:
        raise busy(row.revision, session, run, place.thread_id, place.checkpoint_id, doing)


def in_flight(thread_id: str, row: ThreadRow, life: Life) -> Program[Holder | None]:
    """The run in flight that owns a thread, if there is one."""
    run = life(row.session) if row.session is not None else None
    if run is None:
        return None
    found = yield Statement("head_of_space", (thread_id, ""))
    # One whose last step is stored is over but for its caller: a stream that nobody reads to its end holds no thread.
    return run if not found or _has_next_step(thread_id, found[0], row.secret) else None


def look(thread_id: str, session: Session, rules: Rules, doing: str) -> Program[ThreadConflictError | None]:
    """What would refuse a session that has just restored: a lease, a run in flight, a commit since; or nothing."""
    place = Place(thread_id, "", None)
    lease = yield from lease_of(thread_id)
    found = yield Statement("thread_row", (thread_id,))
    row = thread_row(found[0], thread_id) if found else None
    try:
        yield from admit(place, row, lease, session, rules, doing)
    except ThreadConflictError as refused:
        return refused
    return None


class Claim(NamedTuple):
    """What became of a claim: why it was refused, or whether there was anything to claim."""

    refused: ThreadConflictError | None
    made: bool = False


def claim_what_is_left(thread_id: str, session: Session, rules: Rules) -> Program[Claim]:
    """Make a session that goes on with its thread's open tasks the thread's owner, or tell why it can't be.

    Such a run stores nothing before its first node has finished.
    """
    refused = yield from look(thread_id, session, rules, "the run was")
    if refused is not None:
        return Claim(refused)
    found = yield Statement("thread_row", (thread_id,))
    head = yield Statement("head_of_space", (thread_id, ""))
    row = thread_row(found[0], thread_id) if found else None
    if row is None or not head or not _has_next_step(thread_id, head[0], row.secret):
        return Claim(None)
    yield from own(row, session.id)
    return Claim(None, made=True)


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
        yield from own(row, session_id)
