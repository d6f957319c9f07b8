"""What each method of the saver does, as steps that serve its sync and its async form."""

from __future__ import annotations

import gc
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    DeltaChannelHistory,
)

from agent_ckpt import restore_rules, runs
from agent_ckpt.carrier import Carrier, config_for, is_a_run, is_filled_in, place_of
from agent_ckpt.codec.keyring import Keyring
from agent_ckpt.codec.values import ValueCodec
from agent_ckpt.core import flight, manage, read
from agent_ckpt.core import put as putting
from agent_ckpt.core import writes as writing
from agent_ckpt.core.hot import HotCache, HotThread
from agent_ckpt.core.put import ReplanError, Written
from agent_ckpt.core.session import Session, busy, overtaken
from agent_ckpt.errors import ThreadConflictError, UnavailableError, UsageError
from agent_ckpt.metadata import metadata_of
from agent_ckpt.model import Place
from agent_ckpt.options import Options
from agent_ckpt.planning import Planning, Reading
from agent_ckpt.running_code import RunningCode
from agent_ckpt.runs import Runs
from agent_ckpt.seldom import delta
from agent_ckpt.steps import Call, Pause, Steps

log = logging.getLogger("agent_ckpt")

Thread = Any
"""A thread_id (str, int or UUID) or a config that holds one."""
PLANS_AT_MOST = 16
_ENDING_S = 0.2
"""How long a newcomer waits for a run that may be ending just now: its caller has seen its last step already."""
_PAUSE_S = 0.01


class Store(NamedTuple):
    """What the steps of one call need of their saver."""

    codec: ValueCodec
    hot: HotCache
    carrier: Carrier
    runs: Runs
    options: Options
    code: RunningCode
    fresh: Callable[..., Steps[bytes]]
    keyring: Keyring | None = None

    def rules(self, thread_id: str, session: Session | None) -> flight.Rules:
        """What decides whether a write of a thread is let through."""
        lease = session.lease if session is not None and session.lease is not None else self.carrier.lease_of(thread_id)
        return self.runs.rules(self.options.on_busy == "reject", lease.id if lease is not None else None)


def touch() -> Steps[None]:
    """Open the store."""
    yield Call(manage.touch)


# Restoring


def get_tuple(store: Store, config: RunnableConfig) -> Steps[CheckpointTuple | None]:
    place = place_of(config)
    session = store.carrier.inherited(config)
    rules = restore_rules.Rules.of(config, store.options.stale_checkpoint) if session is None else None
    asks_head = rules is not None and rules.asks_head(place)
    restored: read.Restored = yield Call(lambda: read.get_tuple(place, store.hot.of, with_head=asks_head))
    if rules is not None:
        session, restored = yield from _begin(store, config, place, restored, rules)
    assert session is not None
    store.carrier.plant(config, session)
    if restored.found is None or restored.thread is None:
        return None
    kept: dict[str, str] = {}
    reading = Reading(store.codec, kept)
    hot = store.hot.of(place.thread_id, restored.thread)
    hot.learn_later(partial(reading.learn, restored.found, hot))
    store.hot.keep(place.thread_id, hot)
    found = store.code.migrations.apply(reading.checkpoint_tuple(restored.found, session))
    if kept:
        store.code.watch.unresolved(found, kept)
    if store.code.watch.looks and is_filled_in(config):
        store.code.watch.restored(found, runs.loop_around())
    return found


def _begin(
    store: Store, config: RunnableConfig, place: Place, restored: read.Restored, rules: restore_rules.Rules
) -> Steps[tuple[Session, read.Restored]]:
    """Begin a session, or go on with the one just begun; a run that may not go on is told before its nodes."""
    base = restored.thread.revision if restored.thread is not None else 0
    carried = store.carrier.carried(config)
    session = store.carrier.begin(config, str(place.thread_id), base, store.runs.fresh_id())
    permit = store.carrier.permit(config)
    refused = rules.refusal(place, restored, permit, uses=False) if session is not carried else None
    if refused is not None and rules.run:
        raise refused
    loop = runs.loop_around() if is_a_run(config) else None
    if loop is not None:
        restored = yield from _let_in(store, place, restored, session)
    if session is not carried:
        refused = rules.refusal(place, restored, permit, uses=is_a_run(config))
        if refused is not None and rules.run:
            raise refused
        # What isn't a run may only want to read: it is told when it writes.
        session.refused = refused
    if loop is not None:
        store.runs.begin(session, loop)
    return session, restored


def _let_in(store: Store, place: Place, restored: read.Restored, session: Session) -> Steps[read.Restored]:
    """Refuse a run on a thread that another run is still at work on, before any node of it runs.

    Returns:
        What was restored; anew where the thread was taken from a run in flight.
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
            if time.monotonic() > until:
                raise busy(session.base, session, ahead, session.thread_id, None, "the run was")
            restored = yield from _after_a_while(store, place, session)
            row = restored.thread
    runs_on = row.session if row is not None and row.session is not None and store.runs.life(row.session) else None
    if runs_on is None and restored.lease is None and rules.lease is None:
        return restored
    look = partial(flight.look, place.thread_id, session, store.runs.rules(True, rules.lease), "the run was")
    refused: ThreadConflictError | None = yield Call(look)
    if refused is not None:
        gc.collect()
    until = time.monotonic() + _ENDING_S
    while refused is not None:
        waits = refused.reason == "busy" and session.outer is None
        if not waits or time.monotonic() > until:
            break
        restored = yield from _after_a_while(store, place, session)
        refused = yield Call(look)
    else:
        return restored
    if store.options.on_busy == "reject" or session.outer is not None or refused.reason != "busy" or runs_on is None:
        raise refused
    return (yield from _take_over(store, place, runs_on, session))


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


# Storing


def put(
    store: Store,
    config: RunnableConfig,
    checkpoint: Checkpoint,
    metadata: CheckpointMetadata,
    new_versions: Mapping[str, Any],
) -> Steps[RunnableConfig]:
    parent = place_of(config)
    session = _writing_session(store, config)
    stored = store.code.migrations.stamped(metadata_of(config, metadata, store.options))
    captured = store.code.captures.take(str(checkpoint.get("id")))
    versions = store.code.environment

    def plan(planning: Planning) -> Any:
        writer = (versions.number, versions.content)
        made = planning.put(parent, config, checkpoint, stored, new_versions, session, writer, captured)
        return lambda: putting.put(made)

    yield from write(store, str(parent.thread_id), session, plan)
    return config_for(Place(parent.thread_id, parent.ns, checkpoint["id"]), session)


def put_writes(
    store: Store, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str
) -> Steps[None]:
    place = place_of(config)
    session = _writing_session(store, config)
    if place.checkpoint_id is None:
        raise UsageError("put_writes needs the checkpoint that the writes belong to: configurable.checkpoint_id")
    if not writes:
        return
    _check_writes(writes, task_id, task_path)

    def plan(planning: Planning) -> Any:
        made = planning.writes(place, config, writes, task_id, task_path, session)
        return lambda: writing.put_writes(made)

    yield from write(store, str(place.thread_id), session, plan)


def _check_writes(writes: Sequence[tuple[str, Any]], task_id: str, task_path: str) -> None:
    if not isinstance(task_id, str) or not isinstance(task_path, str):
        raise UsageError(
            f"task_id and task_path must be text, got {type(task_id).__name__}, {type(task_path).__name__}"
        )
    for at, write in enumerate(writes):
        if not isinstance(write, (tuple, list)) or len(write) != 2 or not isinstance(write[0], str):
            raise UsageError(f"writes[{at}] must be a pair of channel name and value")


def _writing_session(store: Store, config: RunnableConfig) -> Session | None:
    session = store.carrier.session_of(config)
    if session is not None and session.refused is not None:
        raise session.refused
    return session


def write(store: Store, thread_id: str, session: Session | None, plan: Callable[[Planning], Any]) -> Steps[Written]:
    """Plan with what is known of the thread, write, and remember; plan again if that was outdated."""
    if session is None or not session.wrote:
        outer = session.outer if session is not None else store.carrier.outer(thread_id)
        yield from give_way(store, thread_id, session, outer)
    run = runs.of(session)
    if run is None:
        return (yield from _write(store, thread_id, session, plan))
    run.begin_write()
    try:
        return (yield from _write(store, thread_id, session, plan))
    finally:
        run.end_write()


def _write(store: Store, thread_id: str, session: Session | None, plan: Callable[[Planning], Any]) -> Steps[Written]:
    hot = store.hot.find(thread_id)
    # Of a thread that its restore found not stored there is nothing to look up; the write itself finds a newer one.
    if hot is None and (session is None or session.base or session.wrote):
        row = yield Call(lambda: manage.find_thread(thread_id))
        hot = store.hot.of(thread_id, row) if row is not None else None
    for _ in range(PLANS_AT_MOST):
        known = hot or (yield from _new_thread(store, thread_id))
        planning = Planning(store.codec, known, store.options.compression, store.rules(thread_id, session))
        factory = plan(planning)
        try:
            written: Written = yield Call(factory, write=True)
        except ReplanError as again:
            hot = store.hot.of(thread_id, again.row) if again.row is not None else None
            if hot is None:
                store.hot.forget(thread_id)
            continue
        except ThreadConflictError as refused:
            if session is not None:
                session.refused = refused
            raise
        _remember(store, thread_id, planning, written)
        if session is not None and written.stored:
            session.wrote = True
        return written
    raise replanned(thread_id)


def replanned(thread_id: str) -> UnavailableError:
    return UnavailableError(
        f"thread {thread_id!r} was pruned or made anew {PLANS_AT_MOST} times while one write was tried; "
        f"nothing was stored, try again",
    )


def _new_thread(store: Store, thread_id: str) -> Steps[HotThread]:
    return HotThread(0, 0, (yield from store.fresh(thread_id)))


def _remember(store: Store, thread_id: str, planning: Planning, written: Written) -> None:
    if written.environment is not None:
        store.code.environment.number = written.environment
    if written.assembled is None:
        return
    hot: HotThread = planning.hot
    if hot.thread == 0:
        hot.thread, hot.collected = written.row.thread, written.row.collected
    planning.remember(written)
    store.hot.keep(thread_id, hot)


def next_version(current: Any) -> Any:
    """The next channel_version after `current`.

    A text one (LangGraph's official savers write `"0000...0007.0.123"`) keeps its style: the
    number before the first dot rises, so it sorts after the one before.
    """
    if current is None:
        return 1
    if isinstance(current, str):
        return f"{int(current.split('.')[0]) + 1:032}.{0:016}"
    return int(current) + 1


def delta_history(
    store: Store, config: RunnableConfig, channels: Sequence[str]
) -> Steps[Mapping[str, DeltaChannelHistory]]:
    place = place_of(config)
    if not channels:
        return {}
    made: delta.Histories = yield Call(lambda: delta.history(place, channels, store.hot.of))
    if made.thread is not None:
        store.hot.keep(place.thread_id, store.hot.of(place.thread_id, made.thread))
    histories: dict[str, DeltaChannelHistory] = {}
    for channel in channels:
        trail = made.trails[channel]
        if made.thread is None:
            histories[channel] = {"writes": []}
            continue
        value = Reading(store.codec).values(made.thread, made.place, made.blobs)
        entry: DeltaChannelHistory = {
            "writes": [(task_id, channel, value(ref, channel)) for task_id, ref in trail.writes]
        }
        if trail.seeded:
            entry["seed"] = value(trail.seed, channel)
        histories[channel] = entry
    return histories
