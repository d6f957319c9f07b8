"""Rows as programs receive them, turned into the model's types."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from agent_ckpt.backend import Program, Statement
from agent_ckpt.codec import frame as framing
from agent_ckpt.codec import ids, rows
from agent_ckpt.errors import CorruptionError
from agent_ckpt.model import Body, CheckpointRow, Place, ThreadRow, WritesRow

_BLOB_BITS = 28
BLOBS_AT_MOST = (1 << _BLOB_BITS) - 1


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


def damaged(place: Place, what: str, why: str, channel: str | None = None) -> CorruptionError:
    """The error for a row that isn't what was stored."""
    return CorruptionError(
        f"{what} of checkpoint {place.checkpoint_id!r} in namespace {place.ns!r} of thread {place.thread_id!r} is not "
        f"what was stored: {why}. Older checkpoints can still be read by their id; verify() lists all damage.",
        thread_id=place.thread_id,
        checkpoint_ns=place.ns,
        checkpoint_id=place.checkpoint_id,
        channel=channel,
    )


def body_of(row: CheckpointRow) -> Body:
    """Open a checkpoint's frame.

    Raises:
        CorruptionError: when it isn't what was stored there.
    """
    try:
        return rows.open_body(row)
    except framing.FrameError as exc:
        raise damaged(row.place, "the row", str(exc)) from exc


def next_sequence(place: Place, row: ThreadRow | None = None) -> Program[int]:
    """Take a commit sequence. It stands above all that the thread has, or one of the two counters is damaged.

    Raises:
        CorruptionError
    """
    found = yield Statement("next_sequence")
    if not found:
        raise damaged(place, "the store's counter", "its row is missing")
    return checked_sequence(place, row, found[0][0])


def following(place: Place, row: ThreadRow, last: int | None) -> int:
    """The commit sequence after the last one, for a write that takes it with the revision it sets.

    Raises:
        CorruptionError
    """
    if last is None:
        raise damaged(place, "the store's counter", "its row is missing")
    return checked_sequence(place, row, last + 1)


def checked_sequence(place: Place, row: ThreadRow | None, sequence: int) -> int:
    if row is not None and sequence <= row.revision:
        raise damaged(place, "the commit sequence", f"the next is {sequence}, the thread is at {row.revision} already")
    return sequence
