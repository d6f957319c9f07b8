"""What a config asks of a restore besides its place: `expected_revision` and `stale_checkpoint`.

Both are read once, at the restore that begins a run, an update_state or raw use. Restores inside a
run (subgraphs, LangGraph's second look at its start) go on with a session and don't ask again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, get_args

from langgraph.checkpoint.serde.types import INTERRUPT

from agent_ckpt.core.read import Restored
from agent_ckpt.core.session import Session
from agent_ckpt.errors import ThreadConflictError, UsageError
from agent_ckpt.model import Place

StaleCheckpoint = Literal["fork", "refuse_resume", "refuse"]

EXPECTED_REVISION = "expected_revision"
STALE_CHECKPOINT = "stale_checkpoint"
CALL_KEYS = (EXPECTED_REVISION, STALE_CHECKPOINT)
"""Keys of a config's `configurable` that are meant for the saver alone and are never stored."""

_RUN = "__pregel_runtime"
"""What LangGraph puts into the configurable of a run, and into that of no update_state or get_state."""


def is_run(config: Mapping[str, Any]) -> bool:
    """Whether a restore begins a run, so that nodes follow it."""
    return _RUN in config["configurable"]


def expected_revision_of(config: Mapping[str, Any]) -> int | None:
    """The revision that the caller saw the thread at, or None where it names none.

    Raises:
        UsageError: for anything but a whole number of at least 0.
    """
    value = config["configurable"].get(EXPECTED_REVISION)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise UsageError(
            f"{EXPECTED_REVISION} must be a whole number of at least 0, as saver.revision(thread_id) gives it; "
            f"got {value!r}"
        )
    return value


def stale_checkpoint_of(config: Mapping[str, Any], default: StaleCheckpoint) -> StaleCheckpoint:
    """What happens to a checkpoint_id that isn't the head: the config's word, or the saver's option.

    Raises:
        UsageError: for another word.
    """
    value = config["configurable"].get(STALE_CHECKPOINT)
    if value is None:
        return default
    if value not in get_args(StaleCheckpoint):
        words = ", ".join(map(repr, get_args(StaleCheckpoint)))
        raise UsageError(f"{STALE_CHECKPOINT} must be one of {words}; got {value!r}")
    return value  # type: ignore[no-any-return]


def refusal(
    place: Place,
    restored: Restored,
    expected: int | None,
    stale: StaleCheckpoint,
    run: bool,
    permit: Session | None,
    writes: bool,
) -> ThreadConflictError | None:
    """Why what follows a restore is refused, or None.

    Args:
        place: what the config addresses.
        restored: what was read there; with the head, where `stale` asks for it.
        expected, stale: what the config asks.
        run: whether nodes follow.
        permit: the session that the config carries: one of `AgentSaver.fork` may go on once from its checkpoint.
        writes: whether that is used up by this restore; by a mere read it is not.
    """
    found = restored.thread.revision if restored.thread is not None else 0
    if expected is not None and expected != found:
        return _moved_on(place, expected, found)
    named = place.checkpoint_id
    if stale == "fork" or named is None or named == restored.head:
        return None
    if stale == "refuse_resume":
        asks = restored.found is None or any(channel == INTERRUPT for _, channel, _ in restored.found.writes)
        if not run or not asks:
            return None
    if permit is not None and permit.fork_of == named:
        permit.fork_of = None if writes else named
        return None
    return _not_the_head(place, restored, stale)


def _moved_on(place: Place, expected: int, found: int) -> ThreadConflictError:
    now = f"is at revision {found}" if found else "is not stored"
    return ThreadConflictError(
        f"refused for thread {place.thread_id!r}: the caller saw revision {expected} (expected_revision), the thread "
        f"{now} now. No node ran and nothing was stored. Show the thread's present state and let the caller decide "
        f"again.",
        thread_id=place.thread_id,
        reason="expected_revision",
        expected=expected,
        found=found,
        wrote=False,
        checkpoint_id=place.checkpoint_id,
    )


def _not_the_head(place: Place, restored: Restored, stale: StaleCheckpoint) -> ThreadConflictError:
    named = f"checkpoint {place.checkpoint_id!r} of namespace {place.ns!r}"
    what = f"{named} is not the head (latest checkpoint), which is {restored.head!r}"
    if restored.found is None:
        what = f"{named} is not stored (deleted, pruned, or never there); the head is {restored.head!r}"
    return ThreadConflictError(
        f"refused for thread {place.thread_id!r}: {what}, and stale_checkpoint={stale!r} lets no run go on from "
        f"another one. No node ran and nothing was stored. Read the thread again; to go back on purpose, pass the "
        f"config that saver.fork(config) returns.",
        thread_id=place.thread_id,
        reason="stale" if restored.thread is not None else "deleted",
        expected=None,
        found=restored.thread.revision if restored.thread is not None else 0,
        wrote=False,
        checkpoint_id=place.checkpoint_id,
    )
