"""Loading blobs: what a set of references needs, in as many rounds as references are deep."""

from __future__ import annotations

import json
from collections.abc import Iterable

from agent_ckpt.backend import Program, Row, Statement
from agent_ckpt.codec import digest, expand, frame
from agent_ckpt.codec.packs import Pack
from agent_ckpt.core import packs
from agent_ckpt.core.hot import HotThread
from agent_ckpt.core.rows import first_blob, shown
from agent_ckpt.model import Entry, Ref, ThreadRow


class Blobs:
    """Blobs by number; for those that could not be loaded, why; and packs that hold all items of their groups."""

    __slots__ = ("entries", "faults", "packs")

    def __init__(self) -> None:
        self.entries: dict[int, Entry] = {}
        self.faults: dict[int, Exception] = {}
        self.packs: dict[int, Pack] = {}

    def unpack(self, packs: Iterable[Pack], secret: bytes) -> list[Entry]:
        """The blobs in packs, which are among the entries from now on; none of a pack that can't be read."""
        made: list[Entry] = []
        for pack in packs:
            try:
                bodies = pack.bodies()
            except frame.FrameError:
                continue
            made += [Entry(body, digest.address(body, secret), number) for number, body in bodies.items()]
        for entry in made:
            self.entries.setdefault(entry.number, entry)
        return made


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
            found = yield Statement("blobs_by_number", (first_blob(row.thread), json.dumps(sorted(fresh))))
            moved = {number: at for number, _, at, *_ in found if type(at) is int}
            elsewhere = yield from packs.moved_bodies(row.thread, row.secret, moved)
            loaded = _take(found, elsewhere, fresh, row.secret, blobs, summed)
            reached += loaded
            if hot is not None:
                hot.take_in_later(loaded)
            _take_packs(found, row.secret, hot, blobs)
        wanted, summed = set(), []
        for entry in reached:
            if entry.body[0] not in expand.REFERRING or entry.number in blobs.packs:
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


def _take_packs(found: list[Row], secret: bytes, hot: HotThread | None, blobs: Blobs) -> None:
    """Take the packs that hold all items of a group which was read; those need no rows of their own then."""
    taken: list[Pack] = []
    for number, _, _, items, framed in found:
        if items is None or number not in blobs.entries:
            continue
        group = blobs.entries[number]
        try:
            refs = expand.children_of(group)
        except expand.DamagedRefError:
            continue  # `load` notes it
        if items == len(refs):
            blobs.packs[number] = Pack(number, group.digest, framed, secret)
            taken.append(blobs.packs[number])
    if hot is not None and taken:
        hot.take_in_packs_later(taken, blobs)


_Group = tuple[bytes, list[int]]
"""Of a group, the sum of the bodies that it names, and their numbers."""


def _take(
    rows: list[Row],
    elsewhere: dict[int, bytes | frame.FrameError],
    asked: set[int],
    secret: bytes,
    blobs: Blobs,
    summed: list[_Group],
) -> list[Entry]:
    """Open blobs that were read, and compare what they hold with their groups' sums, or with their addresses."""
    addresses = shown(secret, [mark for _, mark, *_ in rows])
    read = [number for number, *_ in rows]
    if elsewhere:
        opened, unreadable = _open_all(rows, addresses, elsewhere, secret)
    else:
        opened, unreadable = frame.open_blobs([framed for _, _, framed, *_ in rows], secret, addresses)
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


def _open_all(
    rows: list[Row], addresses: list[bytes], elsewhere: dict[int, bytes | frame.FrameError], secret: bytes
) -> tuple[list[bytes], dict[int, frame.FrameError]]:
    """`open_blobs` where some bodies were found elsewhere."""
    own = [at for at, (number, *_) in enumerate(rows) if number not in elsewhere]
    found, faults = frame.open_blobs([rows[at][2] for at in own], secret, [addresses[at] for at in own])
    opened = dict(zip(own, found, strict=True))
    unreadable = {own[at]: fault for at, fault in faults.items()}
    for at, (number, *_) in enumerate(rows):
        body = elsewhere.get(number)
        if isinstance(body, frame.FrameError):
            unreadable[at] = body
        elif body is not None:
            opened[at] = body
    return [opened.get(at, b"") for at in range(len(rows))], unreadable
