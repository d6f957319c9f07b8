"""Going back: an older checkpoint becomes the head again, and what came after it stays, marked.

A rollback is a commit of its own: it takes a commit sequence, and that number is the mark. A marked
checkpoint is listed and can be read by its id, but is never a head; a marked write is pending for
nobody, and is still part of the history of checkpoints that were committed before the mark.

Rows newer than the target may be damaged: the root's are marked by their sequence, and of a
subgraph's only the metadata is looked at, to learn which step of the root it belongs to.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field

from agent_ckpt.backend import Program, Row, Statement
from agent_ckpt.codec import frame, ids, rows
from agent_ckpt.core.flight import Rules, check_lease, lease_of
from agent_ckpt.core.manage import Located, find_thread, locate
from agent_ckpt.core.read import FOREVER
from agent_ckpt.core.rebuild import check_rows, check_whole, rebuilt
from agent_ckpt.core.rows import body_of, checkpoint_row, next_sequence, session_column, writes_row
from agent_ckpt.errors import CorruptionError
from agent_ckpt.model import Body, CheckpointRow, Place

ParentsOf = Callable[[Body], dict[str, str]]
"""The `parents` metadata of a subgraph's checkpoint: namespace to checkpoint id; empty if unreadable."""


@dataclass(slots=True)
class _Rollback:
    """What a rollback decided so far.

    Attributes:
        target: the checkpoint that becomes the head.
        lineage: ids of its ancestors.
        until: what was written to it, or below it by subgraphs, from this sequence on is undone.
        checkpoints, writes: sequences of the rows to mark.
        again: sequences of the checkpoints whose mark goes.
    """

    target: CheckpointRow
    lineage: set[str]
    until: int
    checkpoints: list[int] = field(default_factory=list)
    writes: list[int] = field(default_factory=list)
    again: list[int] = field(default_factory=list)


def rollback(place: Place, parents_of: ParentsOf, interrupt: str, resume: str, rules: Rules) -> Program[bool]:
    """Make a checkpoint of the root the head again; False when it isn't stored.

    Args:
        parents_of: reads the metadata of a subgraph's checkpoint.
        interrupt, resume: the channels of questions and answers among pending writes.
        rules: tell whether another holds the thread's lease.

    Raises:
        ThreadConflictError: when another holds the lease.
        CorruptionError: when the target itself is damaged, or a row of a sealed thread was removed or put back;
            nothing changed.
    """
    found = yield from locate(place)
    if found is None:
        return False
    check_lease(place, (yield from lease_of(place.thread_id)), None, rules, "rollback")
    body_of(found.row)
    yield from check_whole(found.thread, place.thread_id)
    sequence = yield from next_sequence(place, found.thread)
    key = ids.shrink(place.checkpoint_id or "")
    newest = yield Statement("head_id", (found.space,))
    if not newest or newest[0][0] != key:
        going = yield from _root(found, key, interrupt, resume)
        for space, ns in (yield Statement("spaces_of_thread", (found.thread.thread,))):
            if space != found.space:
                yield from _subgraph(going, space, ns, parents_of)
        yield Statement("undo_newer", (found.space, found.row.seq, sequence))
        yield Statement("undo_checkpoints", (json.dumps(going.checkpoints), sequence))
        yield Statement("undo_writes", (json.dumps(going.writes), sequence))
        yield Statement("redo_checkpoints", (json.dumps(going.again),))
    thread = found.thread._replace(revision=sequence, session=None)
    thread = yield from rebuilt(thread)
    yield Statement("update_thread", (thread.thread, sequence, session_column(thread), thread.next_blob))
    return True


def rolled_back(thread_id: str, ns: str) -> Program[list[str]]:
    """The ids of a namespace's marked checkpoints, newest first."""
    thread = yield from find_thread(thread_id)
    if thread is not None:
        yield from check_rows(thread, thread_id)
    return [ids.expand(key) for (key,) in (yield Statement("undone_ids", (thread_id, ns)))]


def _root(found: Located, key: bytes | str, interrupt: str, resume: str) -> Program[_Rollback]:
    """Decide for the root: the lineage, and which pending writes of the target stay.

    A checkpoint that nothing was built on keeps them all. One that waited for answers keeps what it
    had when it began to wait. The tasks of any other run again.
    """
    chain = yield Statement("lineage", (found.space, key))
    going = _Rollback(found.row, {ids.expand(parent) for _, parent in chain[1:]}, FOREVER)
    going.again = [seq for seq, _ in chain]
    if not (yield Statement("has_child", (found.space, key))):
        return going
    written = yield Statement("writes_of_checkpoint", (found.space, key))
    channels = {row[0]: _channels(found.row, row) for row in written}
    asked = [seq for seq, named in channels.items() if interrupt in named]
    answered = [seq for seq, named in channels.items() if resume in named]
    # With durability="exit" an answer is stored as what came of it, and nowhere else.
    going.until = min(answered, default=max(found.row.seq, *asked) + 1) if asked else 0
    # One that can't be read could not be handed out either.
    going.writes = [seq for seq, named in channels.items() if seq >= going.until or not named]
    return going


def _channels(target: CheckpointRow, columns: Row) -> set[str]:
    try:
        return {channel for _, channel, _ in rows.open_writes(writes_row(target.place, columns, target.secret)).writes}
    except frame.FrameError:
        return set()


def _subgraph(going: _Rollback, space: int, ns: str, parents_of: ParentsOf) -> Program[None]:
    """Decide for a subgraph's namespace.

    One with a task's id in its name belongs to one step of the root, and is undone with what the
    target's tasks did. One without (compiled with checkpointer=True) is carried from step to step,
    and goes back to what it was in the target's lineage.
    """
    lasting = ":" not in ns
    target = going.target
    # In a lasting namespace, what an earlier step's checkpoint got after the target was stored is undone.
    later = going.until if 0 < going.until < FOREVER else target.seq
    for columns in (yield Statement("checkpoints_of_space", (space,))):
        row = checkpoint_row(target.place.thread_id, ns, columns, target.secret)
        parent = _root_parent(row, parents_of)
        bound = FOREVER
        if parent is None:
            undone, bound = row.seq > target.seq, target.seq
        elif parent == target.place.checkpoint_id:
            undone, bound = row.seq >= going.until, going.until
        elif not lasting:
            continue
        else:
            undone, bound = parent not in going.lineage and row.seq > target.seq, later
        (going.checkpoints if undone else going.again).append(row.seq)
        if not undone and bound < FOREVER:
            written = yield Statement("writes_of_checkpoint", (space, columns[1]))
            going.writes += [seq for seq, *_ in written if seq >= bound]


def _root_parent(row: CheckpointRow, parents_of: ParentsOf) -> str | None:
    try:
        return parents_of(body_of(row)).get("")
    except CorruptionError:
        return None
