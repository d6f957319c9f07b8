"""Rows as programs receive them, turned into the model's types."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, cast

from agent_ckpt.backend import Program, Statement
from agent_ckpt.codec import frame as framing
from agent_ckpt.codec import heads, ids, rows
from agent_ckpt.codec.digest import DIGEST_SIZE
from agent_ckpt.errors import CorruptionError, SealError, SealReason, WrongKeyError
from agent_ckpt.model import Body, CheckpointRow, Place, Secret, ThreadRow, WritesRow

SECRET_SIZE = 16

_BLOB_BITS = 28
BLOBS_AT_MOST = (1 << _BLOB_BITS) - 1


def first_blob(thread: int) -> int:
    """The row number that blob 0 of a thread would have: each thread has a range of its own."""
    return thread << _BLOB_BITS


def last_blob(thread: int) -> int:
    return ((thread + 1) << _BLOB_BITS) - 1


def thread_row(columns: Sequence[Any], thread_id: str) -> ThreadRow:
    """From thread, revision, session, next_blob, collected, secret.

    Raises:
        SealError: when the thread's sealed head isn't what was sealed there.
        WrongKeyError: when the file was sealed after it was opened without a key.
    """
    thread, revision, session, next_blob, collected, secret = columns[:6]
    if not isinstance(secret, Secret):
        if len(secret) != SECRET_SIZE:
            raise sealed_meanwhile()
        return ThreadRow(thread, revision, session, next_blob, collected, secret)
    if type(secret.cipher) is framing.NoCipher:
        return ThreadRow(thread, revision, None, next_blob, collected, secret)
    try:
        owner, found = heads.open(secret, (thread, revision, next_blob, collected), session)
    except framing.UnsealError as exc:
        why = exc.detail or framing.NOT_HERE
        raise unsealed(Place(thread_id, "", None), "the sealed head", why, exc.reason) from None
    return ThreadRow(thread, revision, owner, next_blob, collected, secret, found)


def sealed_meanwhile() -> WrongKeyError:
    return WrongKeyError(
        "the file was sealed after this saver opened it without a key; nothing was read or stored. Make a new saver "
        "with key=...",
        needed="",
        given=(),
    )


def session_column(row: ThreadRow) -> bytes | None:
    """What stands in a thread's row for the session that wrote it: of a sealed thread, its sealed head."""
    return heads.seal(row.secret, row) if isinstance(row.secret, Secret) else row.session


def check_newest(thread: ThreadRow, place: Place, newest: int | None) -> None:
    """Compare the newest checkpoint that was found in a namespace with what the thread's sealed head says.

    Args:
        thread: its row, with the namespace at hand (`rebuild.at_hand`).

    Raises:
        SealError: when they differ: rows were removed, or older ones put back.
    """
    if thread.heads is None:
        return
    space = thread.heads.space(place.ns, thread.secret)
    sealed = space.newest if space is not None else 0
    if sealed != (newest or 0):
        raise replayed(place, f"its newest checkpoint is the one of commit {newest or 0}, and {sealed} was sealed")


def check_writes(thread: ThreadRow, place: Place, key: bytes | str, seqs: Iterable[int]) -> bool:
    """Compare the rows of a checkpoint and of its pending writes with what the thread's sealed head says of them.

    Args:
        seqs: of the checkpoint and of the writes.

    Returns:
        Whether that is known: of an older checkpoint, the head doesn't tell.

    Raises:
        SealError: when one was removed, or one put back.
    """
    if thread.heads is None:
        return True
    secret = cast(Secret, thread.secret)
    space = thread.heads.space(place.ns, secret)
    sealed = space.sum_of(key) if space is not None else None
    if sealed is not None and heads.total(seqs, secret) != sealed:
        raise replayed(place, "the rows of its pending writes are not those that were sealed")
    return sealed is not None


def replayed(place: Place, why: str) -> SealError:
    return unsealed(place, "the newest state", f"{why}. Rows were removed, or put back from an older copy", "replayed")


def stored_secret(secret: bytes) -> bytes:
    """What stands in a thread's row for its secret: of a sealed thread, its keys' envelope."""
    return secret.envelope if isinstance(secret, Secret) else secret


def hidden(secret: bytes, addresses: Sequence[bytes]) -> list[bytes]:
    """What stands in the file for addresses of a thread's blobs."""
    if not isinstance(secret, Secret) or not addresses:
        return list(addresses)
    joined = secret.cipher.hide(b"".join(addresses))
    return [joined[at : at + DIGEST_SIZE] for at in range(0, len(joined), DIGEST_SIZE)]


def shown(secret: bytes, marks: Sequence[bytes]) -> list[bytes]:
    """Undo `hidden`."""
    if not isinstance(secret, Secret) or not marks:
        return list(marks)
    joined = b"".join(marks)
    if len(joined) != DIGEST_SIZE * len(marks):
        # One was cut or made longer; it then leads nowhere.
        return [mark if len(mark) != DIGEST_SIZE else secret.cipher.show(mark) for mark in marks]
    joined = secret.cipher.show(joined)
    return [joined[at : at + DIGEST_SIZE] for at in range(0, len(joined), DIGEST_SIZE)]


def text(stored: Any) -> str | None:
    return None if stored is None else ids.expand(stored)


def checkpoint_row(thread_id: str, ns: str, columns: Sequence[Any], secret: bytes) -> CheckpointRow:
    """From seq, id, parent, run, frame, history; and the thread's secret."""
    seq, checkpoint_id, parent, run, frame, history = columns
    place = Place(thread_id, ns, ids.expand(checkpoint_id))
    return CheckpointRow(seq, place, text(parent), text(run), frame, history, secret)


def writes_row(place: Place, columns: Sequence[Any], secret: bytes) -> WritesRow:
    """From seq, run, frame; and the thread's secret."""
    seq, run, frame = columns
    return WritesRow(seq, place, text(run), frame, secret)


def unsealed(place: Place, what: str, why: str, reason: SealReason, channel: str | None = None) -> SealError:
    """The error for a row of a sealed thread that isn't what was sealed there."""
    where = f" of checkpoint {place.checkpoint_id!r} in namespace {place.ns!r}" if place.checkpoint_id else ""
    return SealError(
        f"{what}{where} of thread {place.thread_id!r} is refused: {why}. Nothing of it is given back; verify() lists "
        f"all such rows, and a backup from before still has what was there.",
        reason=reason,
        thread_id=place.thread_id,
        checkpoint_ns=place.ns,
        checkpoint_id=place.checkpoint_id,
        channel=channel,
    )


def damaged(place: Place, what: str, why: str | Exception, channel: str | None = None) -> CorruptionError:
    """The error for a row that isn't what was stored; a SealError where it isn't what was sealed."""
    reason = getattr(why, "reason", None)
    if reason is not None:
        return unsealed(place, what, str(why), reason, channel)
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
        raise damaged(row.place, "the row", exc) from exc


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
