"""How a session travels through LangGraph, and what a config addresses.

LangGraph merges the `configurable` that get_tuple returns into every later put and put_writes of
the run, so the session rides on the thread_id: a `str` subclass that equals, hashes, pickles and is
stored as the plain text. In a config that is LangGraph's own copy it is put in place too, for new
threads (get_tuple returns None) and for subgraphs. Where LangGraph copies the config first, a
context variable serves the tasks of the run.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextvars import ContextVar
from types import FrameType
from typing import Any
from uuid import UUID

from langchain_core.runnables.config import RunnableConfig, var_child_runnable_config

from agent_ckpt import yaml_text
from agent_ckpt.codec import apart
from agent_ckpt.core.session import HeldLease, Session
from agent_ckpt.errors import UsageError
from agent_ckpt.model import STATE_VERSION, Place

_TASK_ID = "__pregel_task_id"
_FILLED_IN = frozenset(("tags", "metadata", "callbacks", "recursion_limit"))
"""What LangGraph fills in where it copies a config for a run; a config of the user's seldom has them all."""
_SESSIONS_KEPT = 16
_GRAPHS = "langgraph.pregel"
_LARGEST_VERSION = (1 << 31) - 1
_WHERE = 'pass it as {"configurable": {"thread_id": "..."}}'

_leases: ContextVar[Mapping[tuple[int, str], HeldLease]] = ContextVar("agent_ckpt_leases", default={})  # noqa: B039
_sessions: ContextVar[Mapping[tuple[int, str], Session]] = ContextVar("agent_ckpt_sessions", default={})  # noqa: B039


class SessionThreadId(str):
    """A thread_id that carries the session which restored the thread; from `fork`, a checkpoint_id too."""

    session: Session | None
    lease: HeldLease | None

    def __new__(cls, thread_id: str, session: Session | None, lease: HeldLease | None = None) -> SessionThreadId:
        made = super().__new__(cls, thread_id)
        made.session, made.lease = session, lease
        return made

    def __eq__(self, other: object) -> bool:
        # As for a plain str, another subclass's own comparison goes first.
        if type(other) is str or type(other) is SessionThreadId:
            return str.__eq__(self, other)
        return NotImplemented

    __hash__ = str.__hash__

    def __reduce__(self) -> tuple[Any, ...]:
        return str, (str.__str__(self),)

    def __copy__(self) -> SessionThreadId:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> SessionThreadId:
        return self

    def __str__(self) -> str:
        # update_state and get_state turn the thread_id of their config to text; a lease outlives that, and only that.
        if (lease := self.any_lease) is not None and _is_langgraph(sys._getframe(1)):
            return SessionThreadId(str.__str__(self), None, lease)
        return str.__str__(self)

    @property
    def any_lease(self) -> HeldLease | None:
        """The lease that it carries, itself or by its session."""
        return self.lease or (self.session.lease if self.session is not None else None)


def _is_langgraph(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__", "")).startswith(_GRAPHS)


apart.PLAIN_TEXT.add(SessionThreadId)
yaml_text.dump_as_text(SessionThreadId)


def thread_id_of(thread: Any) -> str:
    """The thread's id as text: from an id, or from a config that holds one.

    Text stays as it is; an int or a UUID is turned to text by `str`, the same way in every call.

    Raises:
        UsageError: for anything else, for an empty text, and where there is none.
    """
    if type(thread) is dict or isinstance(thread, Mapping):
        thread = _configurable(thread).get("thread_id")
        if thread is None:
            raise UsageError(f"no thread_id in the config: {_WHERE}")
    if type(thread) is SessionThreadId:
        # Its text was looked at when it was made.
        return str.__str__(thread)
    if isinstance(thread, str):
        if not thread:
            raise UsageError(f"thread_id is empty: {_WHERE}")
        try:
            thread.encode()
        except UnicodeEncodeError:
            raise UsageError("thread_id holds a lone surrogate, which is no valid text: use another id") from None
        return _exact(thread)
    if isinstance(thread, UUID) or (isinstance(thread, int) and not isinstance(thread, bool)):
        return str(thread)
    raise UsageError(
        f"thread_id must be text (an int or a UUID is turned to text), got {type(thread).__name__}: {_WHERE}"
    )


def place_of(config: Mapping[str, Any]) -> Place:
    """What a config addresses; the namespace is "" where it names none.

    Raises:
        UsageError: for a config without a usable thread_id, namespace or checkpoint_id.
    """
    conf = _configurable(config)
    thread_id = conf.get("thread_id")
    return Place(
        thread_id_of(thread_id if thread_id is not None else config),
        _text(conf, "checkpoint_ns") or "",
        _text(conf, "checkpoint_id") or None,
    )


def namespace_of(config: Mapping[str, Any]) -> str | None:
    """The namespace that a config names, or None where it names none."""
    return _text(_configurable(config), "checkpoint_ns")


def checkpoint_id_of(config: Mapping[str, Any] | None) -> str | None:
    """The checkpoint id that a config names, or None."""
    return (_text(_configurable(config), "checkpoint_id") or None) if config is not None else None


def _configurable(config: Any) -> Mapping[str, Any]:
    conf = config.get("configurable") if type(config) is dict or isinstance(config, Mapping) else None
    if type(conf) is not dict and not isinstance(conf, Mapping):
        raise UsageError(f"no thread_id in the config: {_WHERE}")
    return conf


def _exact(text: str) -> str:
    """The plain text of a `str` subclass: a row's checksum is over exact types."""
    return text if type(text) is str else str.__str__(text)


def _text(conf: Mapping[str, Any], key: str) -> str | None:
    value = conf.get(key)
    if value is None or (type(value) is str and value.isascii()):
        return value
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            raise UsageError(f"{key} holds a lone surrogate, which is no valid text") from None
        return _exact(value)
    if isinstance(value, UUID):
        return str(value)
    raise UsageError(f"{key} must be text, got {type(value).__name__}")


def run_id_of(config: Mapping[str, Any], metadata: Mapping[str, Any]) -> str | None:
    """The run's id as text: from the metadata, the configurable, or the config itself."""
    for source in (metadata, config.get("metadata"), config.get("configurable"), config):
        value = source.get("run_id") if source is not None else None
        if value is not None and value != "":
            return str(value)
    return None


class Carrier:
    """Finds and plants the sessions of one store.

    Args:
        store: identity of the store, so that two stores in one process don't share sessions.

    Attributes:
        store: the same.
    """

    def __init__(self, store: int) -> None:
        self.store = store

    def session_of(self, config: Mapping[str, Any]) -> Session | None:
        """The session that a config belongs to, if any."""
        conf = config["configurable"]
        thread_id = conf.get("thread_id")
        carried = self._carried(thread_id)
        if _TASK_ID in conf and (carried is None or carried.superseded):
            # A task's config can carry what the user's config carried, where LangGraph copied it before the restore.
            return self._in_context(thread_id_of(thread_id)) or carried
        return carried

    def inherited(self, config: Mapping[str, Any]) -> Session | None:
        """The session of the run whose task a restore happens in, if it is inside one."""
        return self.session_of(config) if _TASK_ID in config["configurable"] else None

    def last_begun(self, thread_id: str) -> Session | None:
        """The session last begun in this context on a thread."""
        return self._in_context(thread_id)

    def begin(self, config: Mapping[str, Any], thread_id: str, base: int, fresh_id: bytes) -> Session:
        """Begin the session of a restore outside a task, or go on with the one just begun.

        LangGraph restores twice at the start of some runs: the second look comes in the same
        context, with the config that the first one planted its session in, and finds the thread as
        the first one did. Any other carried session is another restore's.
        """
        carried = self._carried(config["configurable"].get("thread_id"))
        outer = self.outer(thread_id)
        if carried is not None:
            # A node that takes the thread_id out of its config begins another run, also before its own has written.
            fresh = carried is not outer and carried.base == base and not carried.wrote and carried.refused is None
            if fresh and carried is self._in_context(thread_id):
                return carried
            # A mere read, or a run inside the run that carries it, takes nothing from that one.
            carried.superseded = carried.superseded or (is_filled_in(config) and carried is not outer)
        lease = self._lease_on(config["configurable"].get("thread_id")) or self.lease_of(thread_id)
        return Session(fresh_id, thread_id, base, self.store, outer, lease=lease)

    def lease_of(self, thread_id: str) -> HeldLease | None:
        """The lease of a thread that is held in this context, if any."""
        lease = _leases.get().get((self.store, thread_id))
        return lease if lease is not None and lease.id is not None else None

    def hold(self, lease: HeldLease) -> None:
        """Have what is called from here on, in this context, write under a lease."""
        _leases.set({**_leases.get(), (self.store, lease.thread_id): lease})

    def let_go(self, lease: HeldLease) -> None:
        """Undo `hold`."""
        key = (self.store, lease.thread_id)
        _leases.set({held: other for held, other in _leases.get().items() if held != key or other is not lease})

    def plant(self, config: Mapping[str, Any], session: Session) -> None:
        """Put the session into a config that is LangGraph's own copy; leave any other alone."""
        conf = config["configurable"]
        if _TASK_ID not in conf and not is_filled_in(config):
            return
        if type(conf) is dict and isinstance(conf.get("thread_id"), str):
            conf["thread_id"] = SessionThreadId(session.thread_id, session)
        known = dict(_sessions.get())
        known.pop((self.store, session.thread_id), None)
        while len(known) >= _SESSIONS_KEPT:
            del known[next(iter(known))]
        known[(self.store, session.thread_id)] = session
        _sessions.set(known)

    def session(self, thread_id: str, base: int, fresh_id: bytes) -> Session:
        """A session of a caller that read no checkpoint."""
        return Session(fresh_id, thread_id, base, self.store)

    def permit(self, config: Mapping[str, Any]) -> Session | None:
        """The session of `fork` that a config's checkpoint_id carries: update_state makes plain text of thread_ids."""
        return self._carried(config["configurable"].get("checkpoint_id"))

    def carried(self, config: Mapping[str, Any]) -> Session | None:
        """The session that a config's thread_id carries, whoever's it is."""
        return self._carried(config["configurable"].get("thread_id"))

    def _carried(self, thread_id: Any) -> Session | None:
        """The session on a thread_id, if it is one of this store and this process."""
        if not isinstance(thread_id, SessionThreadId):
            return None
        session = thread_id.session
        return session if session is not None and session.store == self.store and session.alive() else None

    def _lease_on(self, thread_id: Any) -> HeldLease | None:
        lease = thread_id.any_lease if isinstance(thread_id, SessionThreadId) else None
        return lease if lease is not None and lease.store == self.store and lease.id is not None else None

    def _in_context(self, thread_id: str) -> Session | None:
        session = _sessions.get().get((self.store, thread_id))
        return session if session is not None and session.alive() else None

    def outer(self, thread_id: str) -> Session | None:
        """The session of the run inside whose node we are, when that run is on the same thread."""
        around: RunnableConfig | None = var_child_runnable_config.get()
        conf = (around or {}).get("configurable") or {}
        if _TASK_ID not in conf or conf.get("thread_id") != thread_id:
            return None
        return self.session_of({"configurable": conf})


def state_version_of(metadata: Mapping[str, Any]) -> int | None:
    """The state version that a checkpoint's metadata say; None for none, or for what can't be one."""
    found = metadata.get(STATE_VERSION)
    return found if type(found) is int and 0 < found <= _LARGEST_VERSION else None


def is_a_run(config: Mapping[str, Any]) -> bool:
    """Whether a config comes from the beginning of a run: LangGraph's own copy, outside a task."""
    return is_filled_in(config) and _TASK_ID not in config["configurable"]


def is_filled_in(config: Mapping[str, Any]) -> bool:
    """Whether LangGraph made this config for a run, of a graph or of a subgraph."""
    return config.keys() >= _FILLED_IN


def config_for(place: Place, session: Session | None) -> RunnableConfig:
    """The config that addresses a checkpoint, carrying a session."""
    thread_id = SessionThreadId(place.thread_id, session) if session is not None else str(place.thread_id)
    return {
        "configurable": {
            "thread_id": thread_id,
            "checkpoint_ns": place.ns,
            "checkpoint_id": place.checkpoint_id,
        }
    }
