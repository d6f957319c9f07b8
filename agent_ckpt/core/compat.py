"""What a check of a store against a graph reads, beside checkpoints."""

from __future__ import annotations

from agent_ckpt.backend import Program, Statement
from agent_ckpt.codec import ids
from agent_ckpt.model import Place


def thread_ids() -> Program[list[str]]:
    """The ids of all threads."""
    return [columns[0] for columns in (yield Statement("all_thread_ids"))]


def namespaces(thread: int) -> Program[list[str]]:
    """The namespaces of a thread, by its number."""
    return [ns for _, ns in (yield Statement("spaces_of_thread", (thread,)))]


def environment(place: Place) -> Program[str | None]:
    """The versions that a checkpoint, or the head, was written with, as JSON."""
    key = ids.shrink(place.checkpoint_id) if place.checkpoint_id is not None else None
    found = yield Statement("environment_of_checkpoint", (place.thread_id, place.ns, key))
    return found[0][0] if found else None
