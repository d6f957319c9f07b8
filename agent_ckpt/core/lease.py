"""Leases: the time-bound right to write a thread, taken in turn and fenced by a rising number."""

from __future__ import annotations

from dataclasses import dataclass

from agent_ckpt.backend import Program, Statement
from agent_ckpt.core.flight import Rules, in_flight, lease_of, lease_row, refuse_in_flight
from agent_ckpt.core.manage import delete_thread, find_thread
from agent_ckpt.core.prune import settle
from agent_ckpt.core.rebuild import check_whole, own
from agent_ckpt.core.rows import next_sequence, thread_row
from agent_ckpt.core.session import base_pruned, leased
from agent_ckpt.errors import ThreadConflictError
from agent_ckpt.model import LeaseRow, Place, ThreadRow
from agent_ckpt.reports import LeaseInfo

WAITER_TTL_S = 30.0
"""A waiter that has not asked for so long has given up, or its process is frozen."""


@dataclass(frozen=True, slots=True)
class Ask:
    """What a caller wants of a thread.

    Attributes:
        thread_id: the thread, stored or not.
        holder, label: the caller's id, and what others are told of it.
        ttl_s: seconds for which the lease holds.
        rules: what is known of runs in flight and living processes, and the clock.
        outer: the id of the session of the run inside whose node the caller is, if any.
        turn: whether it is for a turn on the thread.
        place: the caller's place in the queue, once it has one.
    """

    thread_id: str
    holder: bytes
    label: str
    ttl_s: float
    rules: Rules
    outer: bytes | None
    turn: bool = False
    place: int | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """Either the lease or why there is none, and then perhaps a place in the queue."""

    lease: LeaseRow | None = None
    refused: ThreadConflictError | None = None
    place: int | None = None


def refusal(ask: Ask) -> Program[ThreadConflictError | None]:
    """Why a thread can't be leased now: somebody's lease, an earlier waiter, or a run in flight; None: it can."""
    lease = yield from lease_of(ask.thread_id)
    if lease is not None and lease.holder != ask.holder and ask.rules.holds(lease):
        return leased(ask.thread_id, lease, "the lease was")
    ahead = 0
    for place, waiter, expires in (yield Statement("waiters_of_thread", (ask.thread_id,))):
        if place == ask.place:
            break
        ahead += expires > ask.rules.now() and ask.rules.alive(waiter)
    if ahead:
        return _queued(ask.thread_id, ahead)
    found = yield Statement("thread_row", (ask.thread_id,))
    row = thread_row(found[0], ask.thread_id) if found else None
    if row is None or row.session == ask.outer:
        return None
    try:
        yield from refuse_in_flight(Place(ask.thread_id, "", None), row, None, ask.rules.life, "the lease was")
    except ThreadConflictError as busy:
        return busy
    return None


def acquire(ask: Ask, queues: bool) -> Program[Answer]:
    """Take the lease if it is free, or else, with `queues`, a place in the queue for it."""
    refused = yield from refusal(ask)
    if refused is None:
        return Answer((yield from _grant(ask)))
    if not queues:
        return Answer(refused=refused)
    until = ask.rules.now() + WAITER_TTL_S
    if ask.place is not None:
        renewed = yield Statement("renew_waiter", (ask.place, ask.holder, until))
        if renewed:
            return Answer(refused=refused, place=ask.place)
    place = (yield Statement("insert_waiter", (ask.thread_id, ask.holder, until)))[0][0]
    return Answer(refused=refused, place=place)


def take_over(ask: Ask, rolls_back: bool) -> Program[Answer]:
    """Take the lease from whoever has it, and the thread from the run in flight.

    Args:
        rolls_back: undo what that run has stored, so that the thread is as it restored it.
    """
    found = yield Statement("thread_row", (ask.thread_id,))
    row = thread_row(found[0], ask.thread_id) if found else None
    lease = yield from _grant(ask)
    if row is not None and row.session is not None and row.session != ask.outer:
        run = (yield from in_flight(ask.thread_id, row, ask.rules.life)) if rolls_back else None
        if run is not None:
            yield from undo_since(ask.thread_id, row, run.base)
        left = yield from find_thread(ask.thread_id)
        if left is not None:
            yield from own(left, ask.holder)
    return Answer(lease)


def undo_since(thread_id: str, row: ThreadRow, revision: int) -> Program[None]:
    """Delete every checkpoint and write of a thread that was committed after a revision."""
    if not revision:
        yield from delete_thread(thread_id)
        return
    if not (yield Statement("stored_until", (row.thread, revision)))[0][0]:
        raise base_pruned(thread_id, row, revision)
    yield from check_whole(row, thread_id)
    yield Statement("drop_checkpoints_since", (row.thread, revision))
    yield Statement("drop_writes_since", (row.thread, revision))
    yield from settle(thread_id)


def _grant(ask: Ask) -> Program[LeaseRow]:
    fence = yield from next_sequence(Place(ask.thread_id, "", None))
    now = ask.rules.now()
    row = LeaseRow(fence, ask.holder, ask.label, int(ask.turn), now, now + ask.ttl_s)
    yield Statement("put_lease", (ask.thread_id, *row))
    yield Statement("drop_waiter", (ask.thread_id, ask.holder))
    yield Statement("drop_dead_waiters", (ask.thread_id, now))
    return row


def renew(thread_id: str, holder: bytes, until: float) -> Program[bool]:
    """Hold a lease longer; False if it isn't the holder's any more."""
    return bool((yield Statement("renew_lease", (thread_id, holder, until))))


def release(thread_id: str, holder: bytes) -> Program[None]:
    """Give a lease or a place in the queue back; harmless if there is none."""
    yield Statement("drop_lease", (thread_id, holder))
    yield Statement("drop_waiter", (thread_id, holder))


def leases(rules: Rules) -> Program[list[LeaseInfo]]:
    """Every lease that is held, by thread."""
    found = yield Statement("all_leases")
    rows = [(thread_id, lease_row(columns)) for thread_id, *columns in found]
    return [_info(thread_id, row) for thread_id, row in rows if row is not None and rules.holds(row)]


def break_lease(thread_id: str) -> Program[bool]:
    """End whatever lease a thread has; False if there is none."""
    return bool((yield Statement("break_lease", (thread_id,))))


def _info(thread_id: str, row: LeaseRow) -> LeaseInfo:
    return LeaseInfo(thread_id, row.fence, row.label, row.since, row.expires)


def _queued(thread_id: str, ahead: int) -> ThreadConflictError:
    return ThreadConflictError(
        f"the lease was refused for thread {thread_id!r}: {ahead} earlier caller(s) are waiting for it. Wait "
        f"longer, or try again.",
        thread_id=thread_id,
        reason="busy",
        expected=None,
        found=0,
        wrote=False,
        checkpoint_id=None,
    )
