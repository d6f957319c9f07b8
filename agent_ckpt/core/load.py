"""Loading blobs: what a set of references needs, in as many rounds as references are deep."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field

from agent_ckpt.backend import Program, Row, Statement
from agent_ckpt.codec import digest, expand, frame
from agent_ckpt.core.hot import HotThread
from agent_ckpt.core.rows import first_blob, shown
from agent_ckpt.model import Entry, Ref, ThreadRow


@dataclass(slots=True, eq=False, repr=False)
class Blobs:
    """Blobs by number; and, for those that could not be loaded, why."""

    entries: dict[int, Entry] = field(default_factory=dict)
    faults: dict[int, Exception] = field(default_factory=dict)


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
    while wanted:
        fresh: list[int] = []
        reached: list[Entry] = []
        for number in wanted:
            if number in blobs.entries or number in blobs.faults:
                continue
            known = hot.by_number(number) if hot is not None else None
            if known is None:
                fresh.append(number)
            else:
                blobs.entries[number] = known
                reached.append(known)
        if fresh:
            rows = yield Statement("blobs_by_number", (first_blob(row.thread), json.dumps(sorted(fresh))))
            loaded = _take(rows, fresh, row.secret, blobs)
            reached += loaded
            if hot is not None:
                hot.take_in_later(loaded)
        wanted = set()
        for entry in reached:
            if entry.body[0] not in expand.REFERRING:
                continue
            try:
                wanted.update(expand.numbers_among(expand.children_of(entry)))
            except expand.DamagedRefError as exc:
                blobs.faults[entry.number] = exc
    return blobs


def _take(rows: list[Row], asked: list[int], secret: bytes, blobs: Blobs) -> list[Entry]:
    taken: list[Entry] = []
    addresses = shown(secret, [mark for _, mark, _ in rows])
    for (number, _, framed), address in zip(rows, addresses, strict=True):
        try:
            body = frame.open_blob(framed, secret, address)
        except frame.FrameError as exc:
            blobs.faults[number] = frame.FrameError(f"is damaged: {exc}", exc.reason)
            continue
        if digest.address(body, secret) != address:
            blobs.faults[number] = frame.FrameError("is damaged: its content does not match its address")
            continue
        entry = blobs.entries[number] = Entry(body, address, number)
        taken.append(entry)
    for number in asked:
        if number not in blobs.entries and number not in blobs.faults:
            blobs.faults[number] = frame.FrameError("is missing")
    return taken
