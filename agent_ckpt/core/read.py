"""Reading one checkpoint, and pages of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import NamedTuple

from agent_ckpt.backend import Program, Row, Statement
from agent_ckpt.codec import frame, ids, rows
from agent_ckpt.codec.tree import State
from agent_ckpt.core.flight import lease_row
from agent_ckpt.core.hot import HotThread
from agent_ckpt.core.load import Blobs, load
from agent_ckpt.core.rebuild import at_hand, check_rows
from agent_ckpt.core.rows import check_newest, check_writes, checkpoint_row, damaged, thread_row, writes_row
from agent_ckpt.core.writes import Pending, in_order, merge
from agent_ckpt.errors import CorruptionError, SealError
from agent_ckpt.model import Body, CheckpointRow, LeaseRow, Place, Ref, ThreadRow, WritesRow

HotOf = Callable[[str, ThreadRow], HotThread]
PAGE = 32
FOREVER = (1 << 63) - 1


class Found:
    """A checkpoint as it was read, its values still packed.

    Attributes:
        thread: its thread's row.
        row, body: the checkpoint.
        writes: its pending writes in order.
        blobs: what the references lead to.
        states: channels whose value is known in memory; their references were not followed.
        fault: why it can't be given back, or None.
    """

    __slots__ = ("blobs", "body", "fault", "row", "states", "thread", "writes")

    def __init__(self, thread: ThreadRow, row: CheckpointRow) -> None:
        self.thread = thread
        self.row = row
        self.body: Body | None = None
        self.writes: list[Pending] = []
        self.blobs = Blobs()
        self.states: dict[str, State] = {}
        self.fault: CorruptionError | None = None


class Restored(NamedTuple):
    """What get_tuple read in one snapshot.

    Attributes:
        thread: the thread's row, or None: no such thread.
        found: the checkpoint, or None.
        lease: the lease on the thread, or None.
        head: the id of the namespace's head, where it was asked for.
    """

    thread: ThreadRow | None
    found: Found | None
    lease: LeaseRow | None = None
    head: str | None = None


def get_tuple(place: Place, hot_of: HotOf, *, with_head: bool = False) -> Program[Restored]:
    """Read a checkpoint, or the head where the place names none; `with_head`: tell the head's id too."""
    if place.checkpoint_id is None:
        found = yield Statement("head_of_space", (place.thread_id, place.ns))
    else:
        found = yield Statement("checkpoint_by_id", (place.thread_id, place.ns, ids.shrink(place.checkpoint_id)))
    if not found:
        return Restored(None, None)
    columns = found[0]
    thread = thread_row(columns, place.thread_id)
    thread = yield from at_hand(thread, place, columns[6])
    if place.checkpoint_id is None:
        check_newest(thread, place, columns[7])
    lease = lease_row(columns[13:19])
    head = None
    if with_head:
        newest = yield Statement("head_id", (columns[6],))
        head = ids.expand(newest[0][0]) if newest else None
    if columns[7] is None:
        return Restored(thread, None, lease, head)
    row = checkpoint_row(place.thread_id, place.ns, columns[7:13], thread.secret)
    written = yield Statement("writes_of_checkpoint", (columns[6], columns[8]))
    one = take(thread, row, [writes_row(row.place, w, thread.secret) for w in written])
    if not check_writes(thread, row.place, columns[8], (columns[7], *(w[0] for w in written))):
        yield from check_rows(thread, place.thread_id)
    hot = hot_of(place.thread_id, thread)
    hot.learn()
    if one.body is not None:
        known = ((name, hot.state_of(place.ns, name, ref)) for name, _, ref in one.body.channels)
        one.states = {name: state for name, state in known if state is not None}
    yield from load(thread, refs_of(one), hot, one.blobs)
    return Restored(thread, one, lease, head)


def take(thread: ThreadRow, row: CheckpointRow, written: list[WritesRow]) -> Found:
    """Open a row's frames; damage becomes a fault."""
    one = Found(thread, row)
    try:
        one.body = rows.open_body(row)
    except frame.FrameError as exc:
        one.fault = damaged(row.place, "the row", exc)
        return one
    try:
        one.writes = in_order(merge(written))
    except frame.FrameError as exc:
        one.fault = damaged(row.place, "a row of pending writes", exc)
    return one


def refs_of(one: Found) -> Iterator[Ref]:
    """Every reference of a checkpoint and its pending writes."""
    if one.body is not None:
        yield from (ref for name, _, ref in one.body.channels if name not in one.states)
    yield from (ref for _, _, ref, _ in one.writes)


class Page(NamedTuple):
    """A page of a listing.

    Attributes:
        found: the checkpoints that match, newest first.
        after: the commit sequence to go on below, or None at the end.
    """

    found: list[Found]
    after: int | None


class Query(NamedTuple):
    """What to list.

    Attributes:
        thread_id, ns, checkpoint_id: None for any.
        before: the id of a checkpoint: only older ones.
        before_ns: that checkpoint's namespace, where it is known.
        wants: whether a body's metadata matches the filter; None: no filter.
        parents_of: a body's `parents` metadata.
    """

    thread_id: str | None
    ns: str | None
    checkpoint_id: str | None
    before: str | None
    wants: Callable[[Body], bool] | None
    parents_of: Callable[[Body], dict[str, str]]


def list_page(query: Query, below: int, size: int, hot_of: HotOf) -> Program[Page]:
    """Read the page of checkpoints below a commit sequence, newest first."""
    from_head = below == FOREVER and query.before is None and query.checkpoint_id is None
    bound = yield from _bound(query)
    if query.ns in bound.seqs:
        below = min(below, bound.seqs[query.ns])
    found = yield _page_statement(query, below, size)
    kept: list[Found] = []
    begun: set[tuple[str, str]] = set()
    in_space: dict[tuple[str, str], ThreadRow | SealError] = {}
    for thread_id, *columns in found:
        thread = thread_row(columns, thread_id)
        at = (thread_id, columns[6])
        if at not in in_space:
            in_space[at] = yield from _at_hand(thread, Place(*at, None), columns[13])
        known = in_space[at]
        thread = thread if isinstance(known, SealError) else known
        one = take(thread, checkpoint_row(thread_id, columns[6], columns[7:13], thread.secret), [])
        if isinstance(known, SealError):
            one.fault = one.fault or known
        elif from_head and at not in begun and not _is_undone(one):
            begun.add(at)
            _check_first(one)
        if (yield from bound.admits(one)) and (one.body is None or query.wants is None or query.wants(one.body)):
            kept.append(one)
    yield from _add_writes(kept)
    by_thread: dict[str, list[Found]] = {}
    for one in kept:
        by_thread.setdefault(one.row.place.thread_id, []).append(one)
    for thread_id, own in by_thread.items():
        shared = Blobs()
        thread = own[0].thread
        yield from load(thread, (ref for one in own for ref in refs_of(one)), hot_of(thread_id, thread), shared)
        for one in own:
            one.blobs = shared
    return Page(kept, found[-1][8] if len(found) == size else None)


def _at_hand(thread: ThreadRow, place: Place, number: int) -> Program[ThreadRow | SealError]:
    """The thread's row with what its sealed head knows of a namespace, or why that is refused."""
    try:
        return (yield from at_hand(thread, place, number))
    except SealError as exc:
        return exc


def _is_undone(one: Found) -> bool:
    """Whether a row is newer than its namespace's head, so that it was rolled back."""
    space = one.thread.heads.space(one.row.place.ns, one.thread.secret) if one.thread.heads is not None else None
    return space is not None and space.newest is not None and one.row.seq > space.newest


def _check_first(one: Found) -> None:
    """Of a namespace's first row in a listing that wasn't rolled back, check that it is the newest."""
    try:
        check_newest(one.thread, one.row.place, one.row.seq)
    except SealError as exc:
        one.fault = one.fault or exc


def _page_statement(query: Query, below: int, size: int) -> Statement:
    if query.thread_id is None:
        return Statement("page_of_store", (below, size))
    if query.checkpoint_id is not None:
        return Statement("page_by_id", (query.thread_id, ids.shrink(query.checkpoint_id), below, size))
    if query.ns is None:
        return Statement("page_of_thread", (query.thread_id, below, size))
    return Statement("page_of_space", (query.thread_id, query.ns, below, size))


class _Bound:
    """Decides what is older than the checkpoint that `before` names.

    Within a namespace that is commit order. In another namespace it is the order of the
    checkpoints that the rows name as their parents: a subgraph's may be committed before its
    parent's or after it.

    Attributes:
        seqs: commit sequences of the checkpoints with that id, by namespace; none: it isn't stored.
        undone: for rows that were rolled back, the sequence of the rollback.
    """

    def __init__(self, query: Query, seqs: dict[str, int]) -> None:
        self.query = query
        self.seqs = seqs
        self.undone: dict[int, int] = {}
        self.parents: dict[str, int | None] = {}

    def admits(self, one: Found) -> Program[bool]:
        query, place = self.query, one.row.place
        if query.ns is not None and place.ns != query.ns:
            return False
        if query.checkpoint_id is not None and place.checkpoint_id != query.checkpoint_id:
            return False
        if query.before is None:
            return True
        if not self.seqs:
            return (place.checkpoint_id or "") < query.before
        if place.ns in self.seqs:
            return one.row.seq < self.seqs[place.ns]
        bound_ns, bound = next(iter(self.seqs.items()))
        parent = query.parents_of(one.body).get(bound_ns) if one.body is not None else None
        if self.undone.get(one.row.seq, FOREVER) < bound:
            return False  # rolled back before that checkpoint was made: no part of its past
        if parent is None:
            return one.row.seq < bound
        if parent not in self.parents:
            found = yield Statement("seqs_of_ids", (place.thread_id, ids.shrink(parent)))
            self.parents[parent] = next((seq for ns, seq in found if ns == bound_ns), None)
        seq = self.parents[parent]
        return seq < bound if seq is not None else parent < query.before


def _bound(query: Query) -> Program[_Bound]:
    if query.before is None or query.thread_id is None:
        return _Bound(query, {})
    seqs = yield Statement("seqs_of_ids", (query.thread_id, ids.shrink(query.before)))
    bound = _Bound(query, {ns: seq for ns, seq in seqs})
    if seqs and query.ns not in bound.seqs:
        thread = (yield Statement("thread_row", (query.thread_id,)))[0][0]
        bound.undone = dict((yield Statement("undone_of_thread", (thread,))))
    return bound


def _add_writes(kept: list[Found]) -> Program[None]:
    wanted = {one.row.seq: one for one in kept if one.body is not None}
    if not wanted:
        return
    found = yield Statement("writes_of_page", (json.dumps(list(wanted)),))
    by_seq: dict[int, list[Row]] = {}
    for seq, *columns in found:
        by_seq.setdefault(seq, []).append(tuple(columns))
    for seq, one in wanted.items():
        columns_of = by_seq.get(seq, [])
        try:
            key = ids.shrink(one.row.place.checkpoint_id or "")
            check_writes(one.thread, one.row.place, key, (seq, *(columns[0] for columns in columns_of)))
            one.writes = in_order(merge(writes_row(one.row.place, columns, one.row.secret) for columns in columns_of))
        except frame.FrameError as exc:
            one.fault = damaged(one.row.place, "a row of pending writes", exc)
        except SealError as exc:
            one.fault = one.fault or exc
