"""The payloads of rows: checkpoint bodies, task writes, history records; and their coordinates."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from agent_ckpt.codec import frame, ids
from agent_ckpt.codec.pack import PackError, UnpackError, pack, pack_own, unpack
from agent_ckpt.errors import ValueNotStorableError
from agent_ckpt.model import Body, CheckpointRow, History, Place, TaskWrites, WritesRow


def checkpoint_coordinates(place: Place, parent_id: str | None, seq: int, run_id: str | None) -> frame.Coordinates:
    return ("checkpoint", *place, parent_id, seq, run_id)


def writes_coordinates(place: Place, seq: int, run_id: str | None) -> frame.Coordinates:
    return ("writes", *place, seq, run_id)


def history_coordinates(place: Place, seq: int) -> frame.Coordinates:
    return ("history", *place, seq)


_SHORT_LIST = 0x90
"""With its size, of less than 16, the head of a msgpack array."""

Ends = tuple[bytes, bytes]
"""A packed body but for its channels: what stands before them and after them."""


def pack_ends(body: Body, versions: list[Any]) -> Ends:
    """Pack what is known of a checkpoint before its channels' references are.

    Args:
        versions: the versions of its channels, which are looked at here and packed with the channels.

    Raises:
        ValueNotStorableError: for names or versions that are no plain text or numbers.
    """
    _packed(versions, "the checkpoint")
    before = [body.v, _short_time(body.ts)]
    after = [body.versions_seen, body.updated, body.metadata, body.rest, *_given(body.state_version)]
    head = bytes((_SHORT_LIST | (len(before) + 1 + len(after)),))
    return head + _packed(before, "the checkpoint")[1:], _packed(after, "the checkpoint")[1:]


def pack_body(body: Body, ends: Ends | None = None) -> bytes:
    """Pack a checkpoint's body.

    Args:
        ends: what `pack_ends` gave for it.

    Raises:
        ValueNotStorableError: for names or versions that are no plain text or numbers.
    """
    before, after = ends or pack_ends(body, [version for _, version, _ in body.channels])
    try:
        # The byte strings in it are references, which are exact.
        channels = pack_own([list(channel) for channel in body.channels])
    except PackError as exc:
        raise _not_packed("the checkpoint", exc) from exc
    return before + channels + after


def _packed(parts: list[Any], what: str) -> bytes:
    try:
        return pack(parts)
    except PackError as exc:
        raise _not_packed(what, exc) from exc


def _not_packed(what: str, why: Exception) -> ValueNotStorableError:
    return ValueNotStorableError(
        f"the names or versions of {what} can't be stored ({why}): names must be valid text, versions text or "
        f"numbers. Nothing of this call was stored.",
        path=what,
    )


def open_body(row: CheckpointRow) -> Body:
    """Read a checkpoint's frame.

    Raises:
        FrameError: when it isn't what was stored there.
    """
    coordinates = checkpoint_coordinates(row.place, row.parent_id, row.seq, row.run_id)
    payload = frame.open_row(frame.CHECKPOINT_ROW, row.frame, coordinates, row.secret)
    v, ts, channels, *others = _list(payload, 7, 8)
    return Body(v, _long_time(ts), [(name, version, ref) for name, version, ref in channels], *others)


def pack_writes(writes: TaskWrites) -> bytes:
    """Pack the writes of a task.

    Raises:
        ValueNotStorableError: for names that are no plain text.
    """
    parts = [ids.shrink(writes.task_id), writes.task_path, [list(w) for w in writes.writes]]
    return _packed([*parts, *_given(writes.state_version)], "the writes")


def _given(state_version: int | None) -> list[int]:
    """A state version is the last element of a list, where there is one."""
    return [state_version] if state_version is not None else []


def open_writes(row: WritesRow) -> TaskWrites:
    """Read the frame of a put_writes call.

    Raises:
        FrameError: when it isn't what was stored there.
    """
    coordinates = writes_coordinates(row.place, row.seq, row.run_id)
    payload = frame.open_row(frame.WRITES_ROW, row.frame, coordinates, row.secret)
    task_id, task_path, writes, *version = _list(payload, 3, 4)
    return TaskWrites(ids.expand(task_id), task_path, [(idx, channel, ref) for idx, channel, ref in writes], *version)


def pack_history(history: History) -> bytes:
    channels = {
        name: [seeded, seed, [[task, ref, *_given(of)] for task, ref, of in ws], *_given(version)]
        for name, (seeded, seed, ws, version) in history.channels.items()
    }
    return pack([channels])


def open_history(row: CheckpointRow) -> History | None:
    """Read a checkpoint's history record, if it has one.

    Raises:
        FrameError: when it isn't what was stored there.
    """
    if row.history is None:
        return None
    coordinates = history_coordinates(row.place, row.seq)
    payload = frame.open_row(frame.HISTORY_ROW, row.history, coordinates, row.secret)
    (channels,) = _list(payload, 1, 1)
    made = {}
    for name, (seeded, seed, writes, *version) in channels.items():
        of_writes = [(task, ref, of[0] if of else None) for task, ref, *of in writes]
        made[name] = (seeded, seed, of_writes, version[0] if version else None)
    return History(made)


def _list(payload: bytes, least: int, most: int) -> list[Any]:
    try:
        found = unpack(payload)
    except UnpackError as exc:
        raise frame.FrameError("its payload is no msgpack") from exc
    if not isinstance(found, list) or not least <= len(found) <= most:
        raise frame.FrameError("its payload has another shape than format_version 1 says")
    return found


_EPOCH = datetime.fromtimestamp(0, UTC)
_USUAL_TIME = len("2026-01-01T00:00:00.000001+00:00")


def _short_time(ts: str) -> int | str:
    """Microseconds since 1970 where that gives the same text back: 9 bytes in place of 32."""
    try:
        if len(ts) != _USUAL_TIME or not ts.endswith("+00:00"):
            return ts
        moment = datetime.fromisoformat(ts)
        if moment.tzinfo is None:
            return ts
        since = moment - _EPOCH
        micros = (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds
        return micros if _long_time(micros) == ts else ts
    except (ValueError, OverflowError, TypeError):
        return ts


def _long_time(stored: int | str) -> str:
    if isinstance(stored, str):
        return stored
    seconds, micros = divmod(stored, 1_000_000)
    return datetime.fromtimestamp(seconds, UTC).replace(microsecond=micros).isoformat()
