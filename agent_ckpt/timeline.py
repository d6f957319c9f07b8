"""The steps behind what the saver offers about a thread's past: its revision, going back, forking on purpose."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.serde.types import INTERRUPT, RESUME

from agent_ckpt.carrier import SessionThreadId, config_for, place_of, thread_id_of
from agent_ckpt.core import manage
from agent_ckpt.core.session import Session
from agent_ckpt.errors import UsageError
from agent_ckpt.later import Later
from agent_ckpt.model import Place
from agent_ckpt.parts import Store, Thread
from agent_ckpt.planning import Reading
from agent_ckpt.steps import Call, Steps

if TYPE_CHECKING:
    from agent_ckpt.core import rollback as rolling
else:
    rolling = Later("agent_ckpt.core.rollback")


def revision(thread: Thread) -> Steps[int]:
    thread_id = thread_id_of(thread)
    row = yield Call(lambda: manage.find_thread(thread_id))
    return row.revision if row is not None else 0


def fork(store: Store, config: RunnableConfig) -> Steps[RunnableConfig]:
    place = _checkpoint_named(config, "fork")
    found: manage.Located | None = yield Call(lambda: manage.locate(place))
    if found is None:
        raise _not_stored(place, "fork from it")
    session = store.carrier.session(place.thread_id, found.thread.revision, store.runs.fresh_id())
    session.fork_of = place.checkpoint_id
    return _with_place(config, place, session)


def rollback(store: Store, config: RunnableConfig) -> Steps[RunnableConfig]:
    place = _checkpoint_named(config, "rollback")
    if place.ns:
        raise UsageError(
            f"rollback goes to a checkpoint of the root graph (checkpoint_ns ''), got namespace {place.ns!r}: what "
            f"subgraphs stored goes back with it"
        )
    parents = Reading(store.codec).parents
    factory = partial(rolling.rollback, place, parents, INTERRUPT, RESUME, store.rules(place.thread_id, None))
    if not (yield Call(factory, write=True)):
        raise _not_stored(place, "roll back to it")
    return config_for(place, None)


def rolled_back(thread: Thread, ns: str) -> Steps[list[str]]:
    thread_id = thread_id_of(thread)
    found: list[str] = yield Call(lambda: rolling.rolled_back(thread_id, ns))
    return found


def _checkpoint_named(config: RunnableConfig, what: str) -> Place:
    place = place_of(config)
    if place.checkpoint_id is None:
        raise UsageError(
            f"{what} needs the checkpoint to go back to: configurable.checkpoint_id. `list` and get_state_history "
            f"tell the ids of thread {place.thread_id!r}"
        )
    return place


def _not_stored(place: Place, what: str) -> UsageError:
    return UsageError(
        f"checkpoint {place.checkpoint_id!r} is not stored in namespace {place.ns!r} of thread {place.thread_id!r}, "
        f"so nothing can {what}; `list` and get_state_history tell the ids that are"
    )


def _with_place(config: RunnableConfig, place: Place, session: Session) -> RunnableConfig:
    """The same config, addressing a place and carrying a session; the caller's own stays as it is."""
    mine = dict(config["configurable"])
    mine.update(
        thread_id=SessionThreadId(place.thread_id, session),
        checkpoint_ns=place.ns,
        checkpoint_id=SessionThreadId(place.checkpoint_id or "", session),
    )
    return {**config, "configurable": mine}
