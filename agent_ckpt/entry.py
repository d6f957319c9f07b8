"""How a session begins, and how a run is let in on a thread, or told that another one is at work there."""

from __future__ import annotations

import gc
import time
from functools import partial
from typing import Any

from langchain_core.runnables import RunnableConfig

from agent_ckpt import loops, restore_rules, runs
from agent_ckpt.carrier import is_a_run
from agent_ckpt.core import flight, read
from agent_ckpt.core.session import Session, busy, overtaken
from agent_ckpt.errors import ThreadConflictError
from agent_ckpt.model import Place
from agent_ckpt.parts import PLANS_AT_MOST, Store
from agent_ckpt.steps import Call, Pause, Steps

_ENDING_S = 0.2
"""How long a newcomer waits for a run that may be ending just now: its caller has seen its last step already. One that
is known to be over is waited for until its last write is done, for `runs.LAST_WRITE_S` at most."""
_PAUSE_S = 0.01
_PASSING = ("busy", "stale", "deleted")
"""Why a restore can be in vain that the next one mends."""


def begin(
    store: Store,
    config: RunnableConfig,
    place: Place,
    restored: read.Restored,
    rules: restore_rules.Rules,
    moving: bool,
) -> Steps[tuple[Session, read.Restored]]:
    """Begin a session, or go on with the one just begun; a run that may not go on is told before its nodes.

    Args:
        moving: whether a write of a run was under way in this process while the thread was restored.
    """
    base = restored.thread.revision if restored.thread is not None else 0
    carried = store.carrier.carried(config)
    session = store.carrier.begin(config, str(place.thread_id), base, store.runs.fresh_id())
    permit = store.carrier.permit(config)
    refused = rules.refusal(place, restored, permit, uses=False) if session is not carried else None
    if refused is not None and rules.run:
        raise refused
    loop = loops.loop_around() if is_a_run(config) else None
    if loop is not None:
        restored = yield from _start(store, place, restored, session, loop, moving)
    if session is not carried:
        refused = rules.refusal(place, restored, permit, uses=is_a_run(config))
        if refused is not None and rules.run:
            raise refused
        # What isn't a run may only want to read: it is told when it writes.
        session.refused = refused
    return session, restored


def _let_in(
    store: Store, place: Place, restored: read.Restored, session: Session, moving: bool
) -> Steps[read.Restored]:
    """Refuse a run on a thread that another run is still at work on, before any node of it runs.

    Returns:
        What was restored; anew where the thread was taken from a run in flight, or has moved on.
    """
    row = restored.thread
    left = yield from give_way(store, session.thread_id, session, session.outer)
    if left is not None:
        return (yield from _take_over(store, place, left.id, session))
    rules = store.rules(session.thread_id, session)
    if store.options.on_busy == "reject" and rules.lease is None and session.outer is None:
        until = time.monotonic() + _ENDING_S
        if store.runs.about_to_write(session) is not None:
            # A stream that nobody holds any more may only wait for the cyclic collector, here and below.
            gc.collect()
        while (ahead := store.runs.about_to_write(session)) is not None:
            if time.monotonic() > until and not store.runs.is_ending(session.thread_id):
                raise busy(session.base, session, ahead, session.thread_id, None, "the run was")
            restored = yield from _after_a_while(store, place, session)
            row, moving = restored.thread, True
    runs_on = row.session if row is not None and row.session is not None and store.runs.life(row.session) else None
    if runs_on is None and not moving and restored.lease is None and rules.lease is None:
        return restored
    look = partial(flight.look, place.thread_id, session, store.runs.rules(True, rules.lease), "the run was")
    restored, refused = yield from _look_until_let_in(store, place, session, restored, Call(look))
    if refused is None:
        return restored
    if store.options.on_busy == "reject" or session.outer is not None or refused.reason != "busy" or runs_on is None:
        raise refused
    return (yield from _take_over(store, place, runs_on, session))


def _look_until_let_in(
    store: Store, place: Place, session: Session, restored: read.Restored, look: Call
) -> Steps[tuple[read.Restored, ThreadConflictError | None]]:
    """Ask whether a session may go on; for a short while again, restoring anew what a run that ends still stores."""
    refused: ThreadConflictError | None = yield look
    if refused is not None:
        gc.collect()
    until, again = time.monotonic() + _ENDING_S, 0
    while refused is not None and session.outer is None and refused.reason in _PASSING:
        # What has moved on meanwhile is restored once more however long that took; nothing of the run has begun.
        if refused.reason == "busy":
            over = time.monotonic() > until and not store.runs.is_ending(session.thread_id)
        else:
            over = again == PLANS_AT_MOST
        if over:
            break
        again += refused.reason != "busy"
        restored = yield from _after_a_while(store, place, session)
        refused = yield look
    return restored, refused


def _start(
    store: Store, place: Place, restored: read.Restored, session: Session, loop: Any, moving: bool
) -> Steps[read.Restored]:
    """Let a run in, and show that it is going; one that goes on with open tasks owns its thread before they run."""
    refused: ThreadConflictError | None = None
    for _ in range(PLANS_AT_MOST):
        restored = yield from _let_in(store, place, restored, session, moving)
        store.runs.begin(session, loop)
        if not loops.goes_on(loop, restored.found.row.run_id if restored.found is not None else None):
            return restored
        rules = store.rules(session.thread_id, session)
        claim = Call(partial(flight.claim_what_is_left, place.thread_id, session, rules), write=True)
        with runs.writing(session):
            answer: flight.Claim = yield claim
        refused = answer.refused
        if refused is None:
            session.claimed = answer.made
            return restored
        runs.abandon(session)
        if refused.reason not in _PASSING or session.outer is not None:
            break
        restored, moving = (yield from _after_a_while(store, place, session)), True
    assert refused is not None
    raise refused


def _after_a_while(store: Store, place: Place, session: Session) -> Steps[read.Restored]:
    """Restore again what a run that is just ending still stores."""
    yield Pause(_PAUSE_S)
    return (yield from _restore_again(store, place, session))


def give_way(store: Store, thread_id: str, own: Session | None, outer: Session | None) -> Steps[Session | None]:
    """End the run that the caller left half-read on a thread, once what it has begun to store is stored.

    Returns:
        Its session, which is refused from now on; None where there is none.
    """
    left = store.carrier.last_begun(thread_id)
    run = store.runs.left_behind(left, own, outer)
    if run is None or left is None:
        return None
    until = time.monotonic() + _ENDING_S
    yield Pause(_PAUSE_S)
    while run.pending and time.monotonic() < until:
        yield Pause(_PAUSE_S)
    left.refused = left.refused or overtaken(left)
    run.end()
    return left


def _take_over(store: Store, place: Place, held_by: bytes, session: Session) -> Steps[read.Restored]:
    """Make a session that has restored a thread its owner in place of a run, which is refused from now on."""
    yield Call(partial(flight.claim, place.thread_id, held_by, session.id), write=True)
    return (yield from _restore_again(store, place, session))


def _restore_again(store: Store, place: Place, session: Session) -> Steps[read.Restored]:
    restored: read.Restored = yield Call(lambda: read.get_tuple(place, store.hot.of, with_head=True))
    session.base = restored.thread.revision if restored.thread is not None else 0
    return restored
