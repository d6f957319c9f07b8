"""Loading blobs: what a set of references needs, in as many rounds as references are deep."""

from __future__ import annotations

import json
from collections.abc import Iterable

from agent_ckpt.backend import Program, Row, Statement
from agent_ckpt.codec import digest, expand, frame
from agent_ckpt.core.hot import HotThread
from agent_ckpt.core.rows import first_blob, shown
from agent_ckpt.model import Entry, Ref, ThreadRow


class Blobs:
    """Blobs by number; and, for those that could not be loaded, why."""

    __slots__ = ("entries", "faults")

    def __init__(self) -> None:
        self.entries: dict[int, Entry] = {}
        self.faults: dict[int, Exception] = {}


def load(row: ThreadRow, refs: Iterable[Ref], hot: HotThread | None, into: Blobs | None = None) -> Program[Blobs]:
    """Load every blob that references lead to. A damaged one becomes a fault, never an error here.

    Args:
        row: the thread's row.
        refs: the references.
        hot: what is known in memory of the thread, which needs no statement; it is given the rest to learn.
        into: blobs loaded before, to add to.
    """
    blobs = into if into is not None else Blobs()
    if hot is not None:
        hot.learn()
    wanted = {number for ref in refs for number in expand.numbers_in(ref)}
    summed: list[_Group] = []
    while wanted:
        reached: list[Entry] = []
        fresh = wanted.difference(blobs.entries, blobs.faults)
        if hot is not None and hot.count:
            known = list(filter(None, map(hot.by_number, fresh)))
            blobs.entries.update((entry.number, entry) for entry in known)
            reached += known
            fresh.difference_update(entry.number for entry in known)
        if fresh:
            rows = yield Statement("blobs_by_number", (first_blob(row.thread), json.dumps(sorted(fresh))))
            loaded = _take(rows, fresh, row.secret, blobs, summed)
            reached += loaded
            if hot is not None:
                hot.take_in_later(loaded)
        wanted, summed = set(), []
        for entry in reached:
            if entry.body[0] not in expand.REFERRING:
                continue
            try:
                below = expand.numbers_among(expand.children_of(entry))
            except expand.DamagedRefError as exc:
                blobs.faults[entry.number] = exc
                continue
            wanted.update(below)
            if together := expand.sum_of(entry):
                summed.append((together, below))
    return blobs


_Group = tuple[bytes, list[int]]
"""Of a group, the sum of the bodies that it names, and their numbers."""


def _take(rows: list[Row], asked: set[int], secret: bytes, blobs: Blobs, summed: list[_Group]) -> list[Entry]:
    """Open blobs that were read, and compare what they hold with their groups' sums, or with their addresses."""
    addresses = shown(secret, [mark for _, mark, _ in rows])
    opened, unreadable = frame.open_blobs([framed for _, _, framed in rows], secret, addresses)
    read = [number for number, _, _ in rows]
    taken = dict(zip(read, map(Entry, opened, addresses, read), strict=True))
    for at, fault in unreadable.items():
        blobs.faults[read[at]] = frame.FrameError(f"is damaged: {fault}", fault.reason)
        del taken[read[at]]
    blobs.entries.update(taken)
    unproven = set(taken)
    for together, numbers in summed:
        try:
            right = digest.summed([blobs.entries[number].body for number in numbers]) == together
        except KeyError:
            continue  # one of them can't be read, so the others are looked at one by one
        if right:
            unproven.difference_update(numbers)
    for number in unproven:
        if digest.address(taken[number].body, secret) != taken[number].digest:
            blobs.faults[number] = frame.FrameError("is damaged: its content does not match its address")
            del blobs.entries[number], taken[number]
    for number in asked.difference(blobs.entries, blobs.faults):
        blobs.faults[number] = frame.FrameError("is missing")
    return list(taken.values())
