"""Dropping old checkpoints, and what runs stored, without breaking what stays."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from itertools import chain

from agent_ckpt.backend import Program, Statement
from agent_ckpt.codec import expand, frame, ids, rows
from agent_ckpt.core import packs
from agent_ckpt.core.delta import trails_of
from agent_ckpt.core.manage import delete_thread, find_thread
from agent_ckpt.core.rebuild import check_whole, reseal_head
from agent_ckpt.core.rows import (
    body_of,
    checkpoint_row,
    damaged,
    first_blob,
    last_blob,
    next_sequence,
    session_column,
    shown,
    writes_row,
)
from agent_ckpt.model import Body, CheckpointRow, Entry, History, Place, Ref, ThreadRow

DeltaChannels = Callable[[Body], set[str]]
"""The names of a checkpoint's DeltaChannels, from its metadata."""


def keep_latest(thread_id: str, delta_channels: DeltaChannels, compression: str) -> Program[None]:
    """Keep each namespace's newest checkpoint and its writes; raise no revision."""
    thread = yield from find_thread(thread_id)
    if thread is None:
        return
    yield from check_whole(thread, thread_id)
    for space, ns, *columns in (yield Statement("heads_of_thread", (thread.thread,))):
        head = checkpoint_row(thread_id, ns, columns, thread.secret)
        yield from _remember_ancestors(space, head, delta_channels, compression)
        yield Statement("drop_writes_but_of", (space, columns[1], head.seq))
        yield Statement("drop_checkpoints_but", (space, head.seq))
    yield Statement("drop_undone_writes", (thread.thread,))
    yield Statement("drop_undone_checkpoints", (thread.thread,))
    yield from reseal_head((yield from collect(thread_id, thread)))


def _remember_ancestors(
    space: int, row: CheckpointRow, delta_channels: DeltaChannels, compression: str
) -> Program[None]:
    """Give a checkpoint a history record of what its DeltaChannels are rebuilt from."""
    body = body_of(row)
    valued = {name for name, _, ref in body.channels if ref is not None}
    names = sorted(delta_channels(body) - valued)
    if not names:
        return
    trails = yield from trails_of(space, row, names)
    record = History({name: (one.seeded, one.seed, one.writes, one.seed_version) for name, one in trails.items()})
    coordinates = rows.history_coordinates(row.place, row.seq)
    framed = frame.seal_row(frame.HISTORY_ROW, rows.pack_history(record), coordinates, compression, row.secret)
    yield Statement("set_history", (row.seq, framed))


def delete_for_runs(run_ids: list[str], delta_channels: DeltaChannels, compression: str) -> Program[list[str]]:
    """Delete the checkpoints and writes of runs. The threads that lost something are given back.

    A kept checkpoint whose parent goes, or whose parent loses writes, gets a history record first.
    """
    runs = [ids.shrink(run_id) for run_id in run_ids]
    touched: set[str] = set()
    for run in runs:
        touched.update(thread_id for (thread_id,) in (yield Statement("threads_of_run", (run,))))
    for thread_id in sorted(touched):
        thread = yield from find_thread(thread_id)
        if thread is not None:
            yield from check_whole(thread, thread_id)
            yield from _prepare_children(
                thread_id, thread, {str(run_id) for run_id in run_ids}, delta_channels, compression
            )
    for run in runs:
        yield Statement("drop_writes_of_run_checkpoints", (run,))
        yield Statement("drop_writes_of_run", (run,))
        yield Statement("drop_checkpoints_of_run", (run,))
    for thread_id in sorted(touched):
        yield from settle(thread_id)
    return sorted(touched)


def _prepare_children(
    thread_id: str, thread: ThreadRow, run_ids: set[str], delta_channels: DeltaChannels, compression: str
) -> Program[None]:
    found = yield Statement("checkpoints_of_thread", (thread.thread,))
    written = yield Statement("writes_of_thread", (thread.thread,))
    losing = {
        (ns, columns[1])
        for _, _, ns, *columns in written
        if columns[3] is not None and ids.expand(columns[3]) in run_ids
    }
    rows_of = [
        (space, checkpoint_row(thread_id, ns, columns, thread.secret), columns) for _, space, ns, *columns in found
    ]
    losing |= {(row.place.ns, columns[1]) for _, row, columns in rows_of if row.run_id in run_ids}
    for space, row, columns in rows_of:
        if row.run_id not in run_ids and (row.place.ns, columns[2]) in losing:
            yield from _remember_ancestors(space, row, delta_channels, compression)


def settle(thread_id: str) -> Program[None]:
    """After a thread lost rows: raise its revision, drop what nothing refers to any more."""
    thread = yield from find_thread(thread_id)
    if thread is None:
        return
    yield Statement("drop_empty_spaces", (thread.thread,))
    if not (yield Statement("spaces_of_thread", (thread.thread,))):
        yield from delete_thread(thread_id)
        return
    sequence = yield from next_sequence(Place(thread_id, "", None))
    thread = thread._replace(revision=sequence, session=None)
    yield Statement("update_thread", (thread.thread, sequence, session_column(thread), thread.next_blob))
    yield from reseal_head((yield from collect(thread_id, thread)))


def collect(thread_id: str, thread: ThreadRow) -> Program[ThreadRow]:
    """Drop the blobs that no row of the thread leads to; the thread's row after that, its sealed head as it was."""
    refs: list[Ref] = []
    for _, _, ns, *columns in (yield Statement("checkpoints_of_thread", (thread.thread,))):
        row = checkpoint_row(thread_id, ns, columns, thread.secret)
        refs.extend(ref for _, _, ref in body_of(row).channels)
        refs.extend(_of_history(row))
    for _, _, ns, seq, checkpoint, _, run, framed in (yield Statement("writes_of_thread", (thread.thread,))):
        place = Place(thread_id, ns, ids.expand(checkpoint))
        try:
            task = rows.open_writes(writes_row(place, (seq, run, framed), thread.secret))
            refs.extend(ref for _, _, ref in task.writes)
        except frame.FrameError as exc:
            raise damaged(place, "a row of pending writes", exc) from exc
    kept = yield from reachable(thread_id, thread, refs)
    first, last = first_blob(thread.thread), last_blob(thread.thread)
    before = (yield Statement("count_blobs", (first, last)))[0][0]
    if before != len(kept):
        yield from packs.put_back(thread_id, thread, kept)
        yield Statement("drop_blobs_but", (first, last, json.dumps(sorted(kept))))
        sequence = yield from next_sequence(Place(thread_id, "", None))
        yield Statement("set_collected", (thread.thread, sequence))
        thread = thread._replace(collected=sequence)
    return thread


def _of_history(row: CheckpointRow) -> Iterator[Ref]:
    try:
        record = rows.open_history(row)
    except frame.FrameError as exc:
        raise damaged(row.place, "the history record", exc) from exc
    for _, seed, writes, _ in record.channels.values() if record is not None else ():
        yield from chain([seed], (ref for _, ref, _ in writes))


def reachable(thread_id: str, thread: ThreadRow, refs: Iterable[Ref]) -> Program[set[int]]:
    """The numbers of every blob that references lead to.

    Raises:
        CorruptionError: when a group of references is damaged: then nothing may be dropped.
    """
    kept: set[int] = set()
    wanted = {number for ref in refs for number in expand.numbers_in(ref)}
    while wanted:
        asked, wanted = wanted, set()
        kept |= asked
        found = yield Statement("refs_of_blobs", (first_blob(thread.thread), json.dumps(sorted(asked))))
        addresses = shown(thread.secret, [mark for _, mark, _ in found])
        for (number, _, framed), address in zip(found, addresses, strict=True):
            if framed is None:
                continue
            try:
                body = frame.open_blob(framed, thread.secret, address)
                for ref in expand.children_of(Entry(body, address, number)):
                    wanted.update(expand.numbers_in(ref))
            except (frame.FrameError, expand.DamagedRefError) as exc:
                raise damaged(Place(thread_id, "", None), f"blob {number}", exc) from exc
        wanted -= kept
    return kept
