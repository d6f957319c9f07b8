"""Rows as programs receive them, turned into the model's types."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from agent_ckpt.codec import ids
from agent_ckpt.model import CheckpointRow, Place, ThreadRow, WritesRow

_BLOB_BITS = 28


def first_blob(thread: int) -> int:
    """The row number that blob 0 of a thread would have: each thread has a range of its own."""
    return thread << _BLOB_BITS


def last_blob(thread: int) -> int:
    return ((thread + 1) << _BLOB_BITS) - 1


def thread_row(columns: Sequence[Any]) -> ThreadRow:
    return ThreadRow(*columns[:6])


def text(stored: Any) -> str | None:
    return None if stored is None else ids.expand(stored)


def checkpoint_row(thread_id: str, ns: str, columns: Sequence[Any]) -> CheckpointRow:
    """From seq, id, parent, run, frame, history."""
    seq, checkpoint_id, parent, run, frame, history = columns
    place = Place(thread_id, ns, ids.expand(checkpoint_id))
    return CheckpointRow(seq, place, text(parent), text(run), frame, history)


def writes_row(place: Place, columns: Sequence[Any]) -> WritesRow:
    """From seq, run, frame."""
    seq, run, frame = columns
    return WritesRow(seq, place, text(run), frame)
