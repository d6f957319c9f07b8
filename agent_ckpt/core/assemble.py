"""Turning plans into references inside the transaction: find what is stored, number what is new."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from agent_ckpt.backend import Program, Statement
from agent_ckpt.codec import digest, frame, tree
from agent_ckpt.codec.messages import STRETCH
from agent_ckpt.core import packs
from agent_ckpt.core.rows import BLOBS_AT_MOST, first_blob, hidden, last_blob
from agent_ckpt.errors import UnavailableError
from agent_ckpt.model import Entry, Ref, ThreadRow


class Assembled(NamedTuple):
    """What a set of plans became.

    Attributes:
        refs: their references, in order.
        next_blob: the thread's next free number.
        stored: every entry with its number, to be remembered after the commit.
        new_frames: how many frames are new: of blobs and packs.
    """

    refs: list[Ref]
    next_blob: int
    stored: list[tuple[Entry, int]]
    new_frames: int


class _Numbering:
    """Numbers of blobs by address, within one run of the program."""

    def __init__(self, row: ThreadRow, known: int, frames: dict[bytes, bytes], method: str) -> None:
        self.row = row
        self._all_known = known == row.next_blob - 1
        self.next = row.next_blob
        self.by_address: dict[bytes, int] = {}
        self.inserts: list[tuple[int, bytes, bytes]] = []
        self.stored: list[tuple[Entry, int]] = []
        self.closed: list[tuple[Entry, list[tuple[Ref, bytes]]]] = []
        """Groups of lists, with their references and those's bodies."""
        self._frames = frames
        self._method = method

    def of(self, entry: Entry) -> int:
        return entry.number or self.by_address[entry.digest]

    def is_new(self, number: int) -> bool:
        return number >= self.row.next_blob

    def find(self, entries: Iterable[Entry], planned: bool = False) -> Program[None]:
        """Number entries: as they are stored, or anew.

        Args:
            planned: that they were looked for in memory; else, as groups that are made here, they were not.
        """
        asked = list(entries)
        wanted = {entry.digest: entry for entry in asked if entry.digest not in self.by_address}
        if wanted and self.row.next_blob > 1 and not (planned and self._all_known):
            base = first_blob(self.row.thread)
            marks = dict(zip(hidden(self.row.secret, list(wanted)), wanted, strict=True))
            found = yield Statement("blobs_by_digest", (b"".join(marks), base, last_blob(self.row.thread)))
            self.by_address.update({marks[mark]: number for mark, number in found})
        for address, entry in wanted.items():
            if address not in self.by_address:
                self.add(entry)
        # Several entries can stand for one address: two channels with one value, say.
        self.stored += [(entry, self.by_address[entry.digest]) for entry in asked]

    def add(self, entry: Entry) -> None:
        if self.next > BLOBS_AT_MOST:
            raise UnavailableError(
                f"the thread has used up its {BLOBS_AT_MOST} blob numbers; nothing of this call was stored. Go on in "
                f"a new thread"
            )
        number = self.by_address[entry.digest] = self.next
        self.next += 1
        sealed = self._frames.get(entry.digest) or frame.seal_blob(
            entry.body, self._method, self.row.secret, entry.digest
        )
        self.inserts.append((first_blob(self.row.thread) + number, entry.digest, sealed))
        self.stored.append((entry, number))


def assemble(
    plans: list[tree.Plan | Ref], row: ThreadRow, known: int, frames: dict[bytes, bytes], method: str
) -> Program[Assembled]:
    """Resolve plans to references and store the blobs that are new.

    Args:
        plans: plans, or references that stay as they are (None, or a parent's).
        row: the thread's row in this transaction.
        known: how many of its blobs the plans were made with.
        frames: frames made before, by address.
        method: compression of what is framed here.
    """
    numbering = _Numbering(row, known, frames, method)
    planned = [plan for plan in plans if isinstance(plan, (Entry, tree.Seq))]
    yield from numbering.find((e for plan in planned for e in tree.entries_of(plan) if not e.number), planned=True)
    by_depth: dict[int, list[tree.Seq]] = {}
    for plan in planned:
        for depth, seq in tree.sequences_of(plan):
            by_depth.setdefault(depth, []).append(seq)
    for depth in sorted(by_depth, reverse=True):
        yield from _close_groups(by_depth[depth], numbering)
    refs = [_ref(plan, numbering) for plan in plans]
    if numbering.inserts:
        marks = hidden(row.secret, [address for _, address, _ in numbering.inserts])
        inserts = [(blob, mark, framed) for (blob, _, framed), mark in zip(numbering.inserts, marks, strict=True)]
        yield Statement("insert_blob", inserts, many=True)
    packed = 0
    for group, items in numbering.closed:
        number = numbering.of(group)
        if numbering.is_new(number):
            packed += yield from packs.move(row.thread, row.secret, (number, group.digest), items, method)
    return Assembled(refs, numbering.next, numbering.stored, len(numbering.inserts) + packed)


def _ref(plan: tree.Plan | Ref, numbering: _Numbering) -> Ref:
    if isinstance(plan, Entry):
        return tree.leaf(numbering.of(plan), plan.digest, numbering.row.secret)
    if isinstance(plan, tree.Seq):
        return plan.state.ref if plan.state is not None else None
    if isinstance(plan, tree.Kept):
        return plan.ref
    return plan


def _close_groups(sequences: list[tree.Seq], numbering: _Numbering) -> Program[None]:
    """Close the groups of sequences that don't contain each other, level by level together."""
    secret = numbering.row.secret
    firsts = [tree.first_level(seq, numbering.of) for seq in sequences]
    levels = list(firsts)
    for seq, level in zip(sequences, levels, strict=True):
        seq.state = _state(seq, level)
    refs: list[list[Ref]] = [[] for _ in sequences]
    addresses: list[list[bytes]] = [[] for _ in sequences]
    open_ones = list(range(len(sequences)))
    while open_ones:
        unknown: list[Entry] = []
        for at in open_ones:
            level = levels[at]
            spans, rest = level.spans()
            refs[at][:0] = level.refs[rest:]
            addresses[at][:0] = level.addresses[rest:]
            bodies = _items(sequences[at]) if level is firsts[at] else None
            level.groups.extend((*span, _group(level, span, numbering, unknown, bodies)) for span in spans)
        yield from numbering.find(unknown)
        open_ones = [at for at in open_ones if levels[at].groups]
        for at in open_ones:
            above = tree.Level()
            for _, _, node in levels[at].groups:
                above.add(numbering.of(node), node.digest, tree.cuts_after(node.digest))
            levels[at] = above
    for at, seq in enumerate(sequences):
        if seq.state is not None:
            seq.state.ref = tree.composite(seq, refs[at], addresses[at], secret)


def _state(seq: tree.Seq, level: tree.Level) -> tree.State:
    before = seq.before
    nested = any(type(part) is tree.Seq for part in seq.parts) or (
        before is not None and before.nested and seq.same > 0
    )
    nested = nested or any(type(part) is tree.Kept and type(part.ref) is list for part in seq.parts)
    state = tree.State(seq.kind, seq.bodies, seq.keys, nested)
    if before is not None:
        state.reads, state.templates = before.reads, before.templates[: seq.same // STRETCH]
    state.run = seq.run
    state.refs, state.addresses, state.cuts, state.groups = level.refs, level.addresses, level.cuts, level.groups
    return state


def _items(seq: tree.Seq) -> list[Any] | None:
    """The bodies of a list's items, by which a group that closes over them is summed; None for anything else."""
    return seq.bodies if seq.kind == tree.LIST and len(seq.bodies) == seq.count else None


def _group(
    level: tree.Level, span: tuple[int, int], numbering: _Numbering, unknown: list[Entry], bodies: list[Any] | None
) -> Entry:
    start, end = span
    refs = level.refs[start:end]
    summed = bodies[start:end] if bodies is not None else None
    body = tree.group_body(refs, level.addresses[start:end], numbering.row.secret, summed)
    node = Entry(body, digest.address(body, numbering.row.secret))
    if summed is not None:
        numbering.closed.append((node, list(zip(refs, summed, strict=True))))
    if node.digest not in numbering.by_address:
        if any(type(ref) is int and numbering.is_new(ref) for ref in refs):
            numbering.add(node)
        else:
            unknown.append(node)
    else:
        numbering.stored.append((node, numbering.of(node)))
    return node
