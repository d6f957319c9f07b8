"""Storing a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, NamedTuple

from agent_ckpt.backend import Program, Row, Statement
from agent_ckpt.codec import frame, heads, ids, rows, tree
from agent_ckpt.core.assemble import Assembled, assemble
from agent_ckpt.core.flight import Rules, admit, lease_of, lease_row
from agent_ckpt.core.rebuild import parked, taken_up, with_vault
from agent_ckpt.core.rows import (
    body_of,
    check_newest,
    following,
    next_sequence,
    sealed_meanwhile,
    session_column,
    stored_secret,
    thread_row,
)
from agent_ckpt.core.session import Session, parent_gone, stale_checkpoint, two_writers
from agent_ckpt.errors import ThreadConflictError
from agent_ckpt.model import CAPTURE, Body, CheckpointRow, Place, Ref, Secret, ThreadRow


class ReplanError(Exception):
    """The plan was made for another state of the thread's blobs; plan again for this row."""

    def __init__(self, row: ThreadRow | None) -> None:
        super().__init__("plan again")
        self.row = row


class ComparedError(Exception):
    """The checkpoint is stored already, some of its channels in other bytes, so that their values must be compared.

    An array is stored as the difference to the one before it, where that is known.

    Attributes:
        channels: the names of those channels.
        refused: the error, should a value of them differ.
    """

    def __init__(self, channels: list[str], refused: ThreadConflictError) -> None:
        super().__init__("compare values")
        self.channels = channels
        self.refused = refused


class Target(NamedTuple):
    """What a plan was made for.

    Attributes:
        thread: the thread's number (0: not stored).
        collected, secret: as in its row.
        known: how many of its blobs are known in memory; when that is all, what isn't known is new.
    """

    thread: int
    collected: int
    secret: bytes
    known: int

    def check(self, row: ThreadRow | None) -> None:
        """Raise ReplanError unless the row is the one that the plan was made for."""
        if row is None:
            if self.thread:
                raise ReplanError(None)
        elif row.thread != self.thread or row.collected != self.collected:
            raise ReplanError(row)


KEEP = object()
"""In place of a plan: the channel keeps the value that its parent has at the same version."""


class PutPlan(NamedTuple):
    """A checkpoint ready to be stored.

    Attributes:
        place, parent_id, run_id: where it goes.
        body, ends: everything but the channels; and packed.
        channels: name, channel_version, and a plan, a reference, None (no value) or KEEP.
        inherits: whether a channel has its parent's reference, so that the parent must be there.
        keeps: whether a channel is KEEP, so that the parent must be read.
        target, frames: what the plans were made with (`assemble`).
        compression: for what is framed in the transaction.
        session: the session it belongs to, if any.
        rules: what else decides whether it is let through.
        environment: the versions that it is written with, and the store's number for them if that is known.
    """

    place: Place
    parent_id: str | None
    run_id: str | None
    body: Body
    ends: rows.Ends
    channels: list[tuple[str, Any, Any]]
    inherits: bool
    keeps: bool
    target: Target
    frames: dict[bytes, bytes]
    compression: str
    session: Session | None
    rules: Rules
    environment: tuple[int | None, str]


class Written(NamedTuple):
    """What a write did, for the saver to remember after the commit.

    Attributes:
        row: the thread's row as it is now.
        stored: False when nothing changed, since it was stored already.
        assembled: the blobs.
        channels: for a put, the channel_version and reference of each channel by name.
        environment: for a put, the store's number for the versions that it was written with.
    """

    row: ThreadRow
    stored: bool
    assembled: Assembled | None = None
    channels: Mapping[str, tuple[Any, Ref]] = MappingProxyType({})
    environment: int | None = None


def put(plan: PutPlan) -> Program[Written]:
    """Store a checkpoint, or refuse it.

    Raises:
        ThreadConflictError: when the session lost the thread, or without a session when the parent
            isn't the head or the id is stored with other content.
        CorruptionError: when what it builds on isn't what was stored.
        ReplanError: when blobs were dropped or the thread was made anew meanwhile.
        ComparedError: when the id is stored with what may be the same content.
    """
    place = plan.place
    key = ids.shrink(place.checkpoint_id or "")
    parent_key = ids.shrink(plan.parent_id) if plan.parent_id else None
    found = yield Statement("put_begin", (place.thread_id, place.ns, key, parent_key, plan.keeps))
    state = found[0] if found else None
    row = thread_row(state, place.thread_id) if state else None
    lease = lease_row(state[17:23]) if state else (yield from lease_of(place.thread_id))
    yield from admit(place, row, lease, plan.session, plan.rules, "put")
    plan.target.check(row)
    existing = _checkpoint(place, state[9:13], row.secret) if state and row and state[9] is not None else None
    if row is not None and state is not None and existing is None:
        row = yield from taken_up(row, place, state[6])
        check_newest(row, place, state[8])
        _check_parent(plan, row, state)
    if row is None or state is None:
        sequence = yield from next_sequence(place)
        row = yield from _new_thread(plan, sequence)
        space = None
    else:
        sequence = following(place, row, state[23])
        space = state[6]
    assembled = yield from assemble(_kept(plan, state, row), row, plan.target.known, plan.frames, plan.compression)
    body = plan.body
    body.channels = [
        (name, version, ref) for (name, version, _), ref in zip(plan.channels, assembled.refs, strict=True)
    ]
    payload = rows.pack_body(body, plan.ends)
    if existing is not None:
        others = _others(existing, plan)
        if others == []:
            return Written(row, False, assembled)
        refused = _other_content(plan, row)
        raise ComparedError(others, refused) if others else refused
    if space is None:
        space = (yield Statement("insert_space", (row.thread, place.ns)))[0][0]
    framed = frame.seal_row(
        frame.CHECKPOINT_ROW,
        payload,
        rows.checkpoint_coordinates(place, plan.parent_id, sequence, plan.run_id),
        plan.compression,
        row.secret,
    )
    run = ids.shrink(plan.run_id) if plan.run_id else None
    environment, versions = plan.environment
    if environment is None:
        environment = (yield Statement("note_environment", (versions,)))[0][0]
    yield Statement("insert_own_checkpoint", (sequence, space, key, parent_key, run, framed, environment))
    owner = plan.session.id if plan.session is not None else None
    sealed = row.heads
    if sealed is not None and isinstance(row.secret, Secret):
        before = state[7] if state is not None else None
        sealed = sealed.put(heads.At(place.ns, space, row.secret), key, before, sequence, assembled.new_frames)
    row = ThreadRow(row.thread, sequence, owner, assembled.next_blob, row.collected, row.secret, sealed)
    row = yield from parked(row)
    yield Statement("update_thread", (row.thread, sequence, session_column(row), row.next_blob))
    channels = {name: (version, ref) for name, version, ref in body.channels}
    return Written(row, True, assembled, channels, environment)


def _new_thread(plan: PutPlan, sequence: int) -> Program[ThreadRow]:
    return (yield from new_thread(plan.place.thread_id, plan.target.secret, sequence))


def new_thread(thread_id: str, secret: bytes, sequence: int) -> Program[ThreadRow]:
    """Make the row of a thread whose first write has this commit sequence."""
    return (yield from insert_thread(ThreadRow(sequence, sequence, None, 1, 0, secret), thread_id))


def insert_thread(row: ThreadRow, thread_id: str) -> Program[ThreadRow]:
    """Insert a thread's row, sealed where the store is; the row, with its sealed head.

    Raises:
        WrongKeyError: when the store was sealed after it was opened without a key.
    """
    row = yield from with_vault(row, thread_id)
    column, secret = session_column(row), stored_secret(row.secret)
    columns = (row.thread, thread_id, row.revision, column, row.next_blob, row.collected, secret)
    if not (yield Statement("insert_thread", columns)):
        raise sealed_meanwhile()
    return row


def _checkpoint(place: Place, columns: Row, secret: bytes) -> CheckpointRow:
    seq, parent, run, framed = columns
    return CheckpointRow(
        seq, place, ids.expand(parent) if parent is not None else None, run and ids.expand(run), framed, None, secret
    )


def _check_parent(plan: PutPlan, row: ThreadRow, state: Row) -> None:
    """Refuse a put that would hide the head.

    Without a session, the parent must be the head, or not be named at all. A session may fork from
    an older checkpoint; what it has put itself since (only it can have put a head after its base)
    it must build on, or two writers in one run would hide each other's.
    """
    if state[7] is None:
        return
    head = ids.expand(state[7])
    if plan.session is None:
        if plan.parent_id and plan.parent_id != head:
            raise stale_checkpoint(plan.place.thread_id, row, plan.parent_id, head, "put")
    elif state[8] > plan.session.base and plan.parent_id != head:
        raise two_writers(plan.session, row, plan.place.ns, plan.parent_id, head)


def _kept(plan: PutPlan, state: Row | None, row: ThreadRow) -> list[tree.Plan | Ref]:
    """The plans, with the parent's reference where a channel keeps its value."""
    parts = [part for _, _, part in plan.channels]
    if not plan.keeps and not plan.inherits:
        return parts
    before: dict[str, tuple[Any, Ref]] = {}
    if state is None or state[13] is None:
        if plan.parent_id is not None and (plan.session is not None or plan.inherits):
            raise parent_gone(plan.place.thread_id, plan.session, row, plan.parent_id)
    elif plan.keeps:
        parent = _checkpoint(plan.place._replace(checkpoint_id=plan.parent_id), state[13:17], row.secret)
        body = body_of(parent)
        if body.state_version == plan.body.state_version:
            before = {name: (version, ref) for name, version, ref in body.channels}
    return [_inherit(before.get(name), version) if part is KEEP else part for name, version, part in plan.channels]


def _inherit(before: tuple[Any, Ref] | None, version: Any) -> Ref:
    return before[1] if before is not None and before[0] == version else None


def _others(existing: CheckpointRow, plan: PutPlan) -> list[str] | None:
    """The channels whose references differ in a stored checkpoint, or None where anything else does."""
    if existing.parent_id != plan.parent_id or existing.run_id != plan.run_id:
        return None
    stored, body = body_of(existing), plan.body
    theirs, ours = _of_state(stored), _of_state(body)
    if [part[:2] for part in theirs] != [part[:2] for part in ours]:
        return None
    if rows.pack_body(replace(stored, channels=[])) != rows.pack_body(replace(body, channels=[])):
        return None
    return [name for (name, _, ref), (_, _, other) in zip(ours, theirs, strict=True) if ref != other]


def _of_state(body: Body) -> list[tuple[str, Any, Ref]]:
    """The channels but for what is captured: random generators that have moved on make no other checkpoint."""
    return [tuple(part) for part in body.channels if part[1] is not None or not part[0].startswith(CAPTURE)]


def _other_content(plan: PutPlan, row: ThreadRow) -> ThreadConflictError:
    place = plan.place
    return ThreadConflictError(
        f"put refused for thread {place.thread_id!r}: checkpoint {place.checkpoint_id!r} of namespace {place.ns!r} is "
        f"stored already with other content, and a stored checkpoint is never changed. Use a new checkpoint id.",
        thread_id=place.thread_id,
        reason="stale",
        expected=plan.session.base if plan.session else None,
        found=row.revision,
        wrote=plan.session.wrote if plan.session else False,
        checkpoint_id=place.checkpoint_id,
    )
