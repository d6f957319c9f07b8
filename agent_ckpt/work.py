"""What each method of the saver does, as steps that serve its sync and its async form."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
)

from agent_ckpt import loops, restore_rules, runs
from agent_ckpt.carrier import config_for, is_filled_in, place_of
from agent_ckpt.core import manage, read
from agent_ckpt.core import put as putting
from agent_ckpt.core import writes as writing
from agent_ckpt.core.hot import HotThread
from agent_ckpt.core.put import ReplanError, Written
from agent_ckpt.core.session import Session
from agent_ckpt.entry import begin, give_way
from agent_ckpt.errors import ThreadConflictError, UnavailableError, UsageError
from agent_ckpt.given import Given
from agent_ckpt.later import Later
from agent_ckpt.metadata import metadata_of
from agent_ckpt.model import Place
from agent_ckpt.parts import PLANS_AT_MOST, Store
from agent_ckpt.planning import Planning, Reading
from agent_ckpt.steps import Call, Steps

if TYPE_CHECKING:
    from agent_ckpt import same as comparing
else:
    comparing = Later("agent_ckpt.same")

log = logging.getLogger("agent_ckpt")


def touch() -> Steps[None]:
    """Open the store."""
    yield Call(manage.touch)


# Restoring


def get_tuple(store: Store, config: RunnableConfig) -> Steps[CheckpointTuple | None]:
    place = place_of(config)
    session = store.carrier.inherited(config)
    if session is not None and session.refused is not None and loops.loop_around() is not None:
        # Nodes would follow. Who only looks, perhaps long after the run, is shown what is stored.
        raise session.refused
    rules = restore_rules.Rules.of(config, store.options.stale_checkpoint) if session is None else None
    asks_head = rules is not None and rules.asks_head(place)
    moving = rules is not None and store.runs.is_moving(str(place.thread_id))
    restored: read.Restored = yield Call(lambda: read.get_tuple(place, store.hot.of, with_head=asks_head))
    if rules is not None:
        session, restored = yield from begin(store, config, place, restored, rules, moving)
    assert session is not None
    return _given_back(store, config, place, session, restored, begun=rules is not None)


def _given_back(
    store: Store, config: RunnableConfig, place: Place, session: Session, restored: read.Restored, *, begun: bool
) -> CheckpointTuple | None:
    if begun or session.refused is None:
        # A look with a config of a run that is over makes nothing in this context a part of that run.
        store.carrier.plant(config, session)
    if restored.found is None or restored.thread is None:
        return None
    kept: dict[str, str] = {}
    reading = Reading(store.codec, kept)
    hot = store.hot.of(place.thread_id, restored.thread)
    hot.learn_later(partial(reading.learn, restored.found, hot))
    store.hot.keep(place.thread_id, hot)
    versions = [write[3] for write in restored.found.writes]
    found = store.code.migrations.apply(reading.checkpoint_tuple(restored.found, session), versions)
    stuck = store.code.migrations.stuck(found, versions)
    if stuck is not None:
        if place.checkpoint_id is None or loops.loop_around() is not None:
            raise stuck
        # A look into the past may show old writes; what would go on with them is told when it writes.
        if begun and not session.wrote:
            session.refused = session.refused or stuck
    # A subgraph's loop has channels of its own.
    if begun and isinstance(session.run, runs.GoingRun) and store.code.migrations.current is None:
        session.given = Given(place.ns, found.checkpoint, restored.found.states, session.run)
    if kept:
        store.code.watch.unresolved(found.config, kept)
    if store.code.watch.looks and is_filled_in(config):
        store.code.watch.restored(found, loops.loop_around())
    return found


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

    place = Place(parent.thread_id, parent.ns, checkpoint["id"])
    try:
        yield from write(store, str(parent.thread_id), session, plan)
    except putting.ComparedError as stored_otherwise:
        yield from _compare(store, place, checkpoint, stored_otherwise, session)
    return config_for(place, session)


def _compare(
    store: Store, place: Place, checkpoint: Checkpoint, found: putting.ComparedError, session: Session | None
) -> Steps[None]:
    """Let a put pass whose checkpoint is stored with the same values in other bytes; else raise the conflict."""
    stored = yield from comparing.StoredReader(store.codec).read(place)
    ours = checkpoint["channel_values"]
    theirs = stored.checkpoint["channel_values"] if stored is not None else {}
    if not all(name in ours and name in theirs and comparing.same(ours[name], theirs[name]) for name in found.channels):
        if session is not None:
            session.refused = found.refused
        raise found.refused


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
        made = planning.writes(place, config, writes, task_id, task_path, session, store.code.migrations.current)
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
    with runs.writing(session):
        return (yield from _write(store, thread_id, session, plan))


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
            if session.run is None:
                session.base = max(session.base, written.row.revision)
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
