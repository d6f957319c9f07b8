"""Sessions: one restore of a thread and the run that follows.

The rule that keeps a thread from being forked or overwritten by two workers (docs/design.md,
"Conflicts"): a write is accepted if its session owns the thread, or if the thread still stands at
the revision that the session restored.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal, Protocol

from agent_ckpt.errors import MigrationError, ThreadConflictError
from agent_ckpt.model import Holder, LeaseRow, ThreadRow

_IN_A_TASK = (
    " Inside a node of that run: pass the node's `config` on instead of naming the thread again, give the inner "
    "graph a thread_id of its own, or return Command(update=...) instead of calling update_state."
)


class Run(Protocol):
    """A run that is going: how the rest of the world learns of it is up to what made it."""

    @property
    def ended(self) -> bool: ...


class HeldLease(Protocol):
    """A lease as its holder knows it."""

    @property
    def store(self) -> int: ...

    @property
    def thread_id(self) -> str: ...

    @property
    def id(self) -> bytes | None:
        """The id under which it is held; None once it was given back."""


@dataclass(slots=True, eq=False, repr=False, weakref_slot=True)
class Session:
    """One restore and what follows it.

    Attributes:
        id: eight random bytes.
        thread_id: the thread.
        base: the revision that it restored; 0 when the thread wasn't stored.
        store: identity of the store that it restored the thread from, in this process.
        outer: the session of the run inside whose node this one began, on the same thread.
        wrote: whether it has committed anything.
        refused: the error that ended it; every later write gets it again.
        superseded: whether a config that carries it was restored from again.
        fork_of: the checkpoint that one run may go on from although it isn't the head (`AgentSaver.fork`).
        run: the run that it began with, while that run is going; None for a session without one
            (a raw get_tuple, update_state) and for a run that has ended.
        lease: the lease that it began under, if any.
        claimed: whether it was made the thread's owner before it wrote; whoever is made that afterwards ends it.
        given: what its run was given, until code other than LangGraph's may have touched it.
    """

    id: bytes
    thread_id: str
    base: int
    store: int = 0
    outer: Session | None = None
    wrote: bool = False
    refused: ThreadConflictError | MigrationError | None = None
    superseded: bool = False
    fork_of: str | None = None
    run: Run | None = None
    lease: HeldLease | None = None
    claimed: bool = False
    given: Any = None
    _generation: int = field(default_factory=lambda: _forks)

    def alive(self) -> bool:
        """Whether this process began it: a forked child must restore the thread itself."""
        return self._generation == _forks


_forks = 0
"""How many forks this process is away from the first one that imported this module."""


def _count_fork() -> None:
    global _forks
    _forks += 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_count_fork)


def owns(row: ThreadRow | None, session: Session) -> bool:
    """Whether a session may write a thread now."""
    if _held_by_outer(row, session):
        return False
    if row is None:
        return session.base == 0 and not session.wrote
    return row.session == session.id or (row.revision == session.base and not session.claimed)


def _held_by_outer(row: ThreadRow | None, session: Session) -> bool:
    """Whether the run inside which a session began has the thread, or has not stored its first step yet."""
    outer = session.outer
    if outer is None or (outer.run is not None and outer.run.ended):
        return False
    return (row is not None and row.session == outer.id) or not (outer.wrote or outer.refused)


def conflict(row: ThreadRow | None, session: Session, checkpoint_id: str | None, doing: str) -> ThreadConflictError:
    """The error for a write of a session that may not."""
    found = row.revision if row is not None else 0
    reason: Literal["stale", "busy", "deleted"] = "stale"
    if _held_by_outer(row, session):
        reason = "busy"
        what = f"the run inside which this one began owns the thread, at revision {found} now"
    elif row is None:
        reason = "deleted"
        what = "the thread was deleted after this run restored it"
    else:
        what = f"this run restored revision {session.base}, the thread is now at revision {found}"
    own = " This run had already stored earlier steps." if session.wrote else ""
    hint = _IN_A_TASK if session.outer is not None else ""
    todo = "Read the thread again and decide whether to run again." if reason != "busy" else ""
    refused = f"{doing} refused for thread {session.thread_id!r}: {what}. Nothing of it was stored."
    return ThreadConflictError(
        f"{refused}{own} {todo}{hint}".strip(),
        thread_id=session.thread_id,
        reason=reason,
        expected=session.base,
        found=found,
        wrote=session.wrote,
        checkpoint_id=checkpoint_id,
    )


def busy(
    found: int, session: Session | None, holder: Holder, thread_id: str, checkpoint_id: str | None, doing: str
) -> ThreadConflictError:
    """The error for whoever would write a thread while a run on it is going."""
    return ThreadConflictError(
        f"{doing} refused for thread {thread_id!r}: {holder} is at work on it, at revision {found} now. Nothing "
        f"of it was stored. Wait until that run has ended, queue with saver.turn(...), or open the saver with "
        f'on_busy="preempt" to take the thread from a run that is going.',
        thread_id=thread_id,
        reason="busy",
        expected=session.base if session is not None else None,
        found=found,
        wrote=session.wrote if session is not None else False,
        checkpoint_id=checkpoint_id,
        holder=str(holder),
        age_s=holder.age_s,
    )


def leased(thread_id: str, lease: LeaseRow, doing: str, wrote: bool = False) -> ThreadConflictError:
    """The error for whoever meets another's lease."""
    until = datetime.fromtimestamp(lease.expires, UTC).isoformat(timespec="seconds")
    what = "a turn is going on it in" if lease.turn else "its lease is held by"
    return ThreadConflictError(
        f"{doing} refused for thread {thread_id!r}: {what} {lease.label} (fence {lease.fence}), until {until} unless "
        f"renewed. Nothing of it was stored. Queue for it (saver.turn(config, 'enqueue'), or lease(..., timeout=)), or "
        f"end it with saver.break_lease({thread_id!r}).",
        thread_id=thread_id,
        reason="busy" if lease.turn else "leased",
        expected=None,
        found=0,
        wrote=wrote,
        checkpoint_id=None,
        holder=lease.label,
        expires_at=lease.expires,
        fence=lease.fence,
    )


def lease_lost(thread_id: str, doing: str, wrote: bool) -> ThreadConflictError:
    """The error for a holder that is late."""
    return ThreadConflictError(
        f"{doing} refused for thread {thread_id!r}: the lease that this caller held has expired or was broken. Nothing "
        f"of it was stored. Take the lease again, and read the thread again, before you go on.",
        thread_id=thread_id,
        reason="lease_lost",
        expected=None,
        found=0,
        wrote=wrote,
        checkpoint_id=None,
    )


def base_pruned(thread_id: str, row: ThreadRow, revision: int) -> ThreadConflictError:
    """The error for a turn that would undo a run whose beginning is gone."""
    return ThreadConflictError(
        f'turn("rollback") refused for thread {thread_id!r}: the state that the run in flight restored (revision '
        f"{revision}) was pruned meanwhile, so there is nothing to go back to. Nothing was changed. Use "
        f'"enqueue" or "interrupt".',
        thread_id=thread_id,
        reason="deleted",
        expected=revision,
        found=row.revision,
        wrote=False,
        checkpoint_id=None,
    )


def overtaken(session: Session) -> ThreadConflictError:
    """The error for a run whose caller left it in the middle and began another on the thread."""
    why = (
        f"the caller of this run (restored at revision {session.base}) left it in the middle and has begun another one "
        f"on the thread. Nothing of it was stored. Read a stream to its end, or close it, before the next run."
    )
    return _over(session, why)


def cancelled(session: Session) -> ThreadConflictError:
    """The error for what a run would store that was cancelled before."""
    why = (
        f"its run (restored at revision {session.base}) was cancelled before the write began. Nothing of it was "
        "stored. The next run goes on from what was."
    )
    return _over(session, why)


def _over(session: Session, why: str) -> ThreadConflictError:
    return ThreadConflictError(
        f"a write was refused for thread {session.thread_id!r}: {why}",
        thread_id=session.thread_id,
        reason="stale",
        expected=session.base,
        found=session.base,
        wrote=session.wrote,
        checkpoint_id=None,
    )


def stale_checkpoint(
    thread_id: str, row: ThreadRow, checkpoint_id: str | None, head: str | None, doing: str
) -> ThreadConflictError:
    """The error for a put without a session whose parent isn't the head."""
    return ThreadConflictError(
        f"{doing} refused for thread {thread_id!r}: it names checkpoint {checkpoint_id!r} as its parent, the head "
        f"(latest checkpoint) is {head!r} at revision {row.revision}. Nothing of it was stored. Read the thread again; "
        f"to fork from an older checkpoint on purpose, restore it with get_tuple and put with the config that gives.",
        thread_id=thread_id,
        reason="stale",
        expected=None,
        found=row.revision,
        wrote=False,
        checkpoint_id=checkpoint_id,
    )


def parent_gone(thread_id: str, session: Session | None, row: ThreadRow, parent_id: str | None) -> ThreadConflictError:
    """The error for a put whose parent was pruned or deleted after it was restored."""
    return ThreadConflictError(
        f"put refused for thread {thread_id!r}: checkpoint {parent_id!r}, which this run restored, was pruned "
        f"or deleted meanwhile, and the new one would build on it. Nothing of it was stored. Read the thread again.",
        thread_id=thread_id,
        reason="deleted",
        expected=session.base if session is not None else None,
        found=row.revision,
        wrote=session.wrote if session is not None else False,
        checkpoint_id=parent_id,
    )


def two_writers(session: Session, row: ThreadRow, ns: str, parent_id: str | None, head: str) -> ThreadConflictError:
    """The error for a put that would hide another one of the same run."""
    return ThreadConflictError(
        f"put refused for thread {session.thread_id!r}: it names checkpoint {parent_id!r} as its parent, but this run "
        f"(restored at revision {session.base}) has since put {head!r} in namespace {ns!r}, which it would hide. "
        f"Nothing of it was stored. Two writers share this run's restore: let each restore the thread itself; parallel "
        f"calls of one subgraph with checkpointer=True need a node each.",
        thread_id=session.thread_id,
        reason="stale",
        expected=session.base,
        found=row.revision,
        wrote=session.wrote,
        checkpoint_id=parent_id,
    )
