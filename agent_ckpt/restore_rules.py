"""What a config asks of a restore besides its place: `expected_revision` and `stale_checkpoint`.

Both are read once, at the restore that begins a run, an update_state or raw use. Restores inside a
run (subgraphs, LangGraph's second look at its start) go on with a session and don't ask again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, get_args

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


class Rules(NamedTuple):
    """What one config asks.

    Attributes:
        expected: the revision that the caller saw the thread at, or None where it names none.
        stale: what happens to a checkpoint_id that isn't the head.
        run: whether nodes follow the restore.
    """

    expected: int | None
    stale: StaleCheckpoint
    run: bool

    @classmethod
    def of(cls, config: Mapping[str, Any], default: StaleCheckpoint) -> Rules:
        """Read a config, with the saver's option for where it says nothing.

        Raises:
            UsageError: for a value that can't be right.
        """
        conf = config["configurable"]
        return cls(_expected(conf.get(EXPECTED_REVISION)), _stale(conf.get(STALE_CHECKPOINT), default), _RUN in conf)

    def asks_head(self, place: Place) -> bool:
        """Whether the id of the head has to be read too."""
        return self.stale != "fork" and place.checkpoint_id is not None

    def refusal(
        self, place: Place, restored: Restored, permit: Session | None, *, uses: bool
    ) -> ThreadConflictError | None:
        """Why what follows a restore is refused, or None.

        Args:
            place: what the config addresses.
            restored: what was read there.
            permit: the session that the config carries: one of `AgentSaver.fork` may go on once from its checkpoint.
            uses: whether that permit is used up now; by a mere read it is not.
        """
        found = restored.thread.revision if restored.thread is not None else 0
        if self.expected is not None and self.expected != found:
            return _moved_on(place, self.expected, found)
        named = place.checkpoint_id
        if self.stale == "fork" or named is None or named == restored.head:
            return None
        if self.stale == "refuse_resume":
            asks = restored.found is None or any(write[1] == INTERRUPT for write in restored.found.writes)
            if not self.run or not asks:
                return None
        if permit is not None and permit.fork_of == named:
            permit.fork_of = None if uses else named
            return None
        return _not_the_head(place, restored, self.stale)


def _expected(value: Any) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise UsageError(
            f"{EXPECTED_REVISION} must be a whole number of at least 0, as saver.revision(thread_id) gives it; "
            f"got {value!r}"
        )
    return value


def _stale(value: Any, default: StaleCheckpoint) -> StaleCheckpoint:
    if value is None:
        return default
    if not isinstance(value, str) or value not in get_args(StaleCheckpoint):
        words = ", ".join(map(repr, get_args(StaleCheckpoint)))
        raise UsageError(f"{STALE_CHECKPOINT} must be one of {words}; got {value!r}")
    return value  # type: ignore[return-value]


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
