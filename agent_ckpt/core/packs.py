"""Packs in the store: moving the bodies of a closed group's messages into one row, and finding them there.

A row of `blobs` whose body was moved keeps its number and its address; in place of a frame it says in which pack the
body is. A pack has the number of its group and goes when the group goes; so nothing that a reference says depends on
whether a body was moved.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

from agent_ckpt.backend import Program, Row, Statement
from agent_ckpt.codec import frame, packs
from agent_ckpt.codec.packs import Pack
from agent_ckpt.core.rows import damaged, first_blob, last_blob, shown
from agent_ckpt.model import Place, Ref, ThreadRow

_PAGE = 64


def move(
    thread: int, secret: bytes, group: tuple[int, bytes], items: Sequence[tuple[Ref, bytes]], method: str
) -> Program[bool]:
    """Move the bodies of a group's messages into a pack, where enough of them stand in rows of their own.

    Args:
        thread, secret: the thread's number and secret.
        group: the group's number and address.
        items: its references, and the bodies of those that are blobs.
        method: compression of the pack.

    Returns:
        Whether there is a pack now.
    """
    named = [(ref, body) for ref, body in items if type(ref) is int]
    parts = {
        ref: part
        for (ref, _), part in zip(named, packs.parts_of([body for _, body in named]), strict=True)
        if part is not None
    }
    if len(parts) < packs.ITEMS_AT_LEAST:
        return False
    first, (number, address) = first_blob(thread), group
    found = yield Statement("take_for_pack", (first, json.dumps(list(parts)), packs.ITEMS_AT_LEAST))
    if not found:
        return False
    moved = [ref for ref, _ in found]
    marks = b"".join(mark for _, mark in found)
    yield Statement("leave_in_pack", (first, json.dumps(moved), marks, number))
    payload = packs.make({ref: part for ref, part in parts.items() if ref in set(moved)})
    yield Statement("insert_pack", (first + number, len(moved), packs.seal(payload, address, method, secret)))
    return True


def read(thread: int, secret: bytes, numbers: Iterable[int]) -> Program[dict[int, tuple[int, Pack]]]:
    """Packs by number, as far as they are there, each with how many bodies are in it."""
    found = yield Statement("packs_by_number", (first_blob(thread), json.dumps(sorted(numbers))))
    return {number: (items, pack) for number, _, items, pack in _opened(secret, found)}


def _opened(secret: bytes, found: list[Row]) -> list[tuple[int, bytes, int, Pack]]:
    addresses = shown(secret, [mark or b"" for _, mark, _, _ in found])
    return [
        (number, address, items, Pack(number, address, framed, secret))
        for (number, _, items, framed), address in zip(found, addresses, strict=True)
    ]


def moved_bodies(thread: int, secret: bytes, moved: dict[int, int]) -> Program[dict[int, bytes | frame.FrameError]]:
    """The bodies of blobs that were moved, or why one can't be had.

    Args:
        thread: the thread's number.
        secret: its secret.
        moved: the number of each blob's pack, by the blob's.
    """
    if not moved:
        return {}
    there = yield from read(thread, secret, set(moved.values()))
    opened: dict[int, dict[int, bytes] | frame.FrameError] = {}
    for number in set(moved.values()):
        try:
            opened[number] = there[number][1].bodies() if number in there else _missing(number)
        except frame.FrameError as exc:
            opened[number] = exc
    return {blob: _body(blob, number, opened[number]) for blob, number in moved.items()}


def _missing(number: int) -> frame.FrameError:
    return frame.FrameError(f"the pack of group {number} is missing")


def _body(blob: int, number: int, bodies: dict[int, bytes] | frame.FrameError) -> bytes | frame.FrameError:
    if isinstance(bodies, frame.FrameError):
        return bodies
    return bodies.get(blob) or frame.FrameError(f"the pack of group {number} doesn't hold it")


def page(thread: int, secret: bytes, at: int, size: int) -> Program[list[tuple[int, bytes, bytes | frame.FrameError]]]:
    """So many blobs of a thread from a number on, wherever their bodies are: number, address, and body or fault."""
    found = yield Statement("blobs_page", (first_blob(thread), at, last_blob(thread), size))
    addresses = shown(secret, [mark for _, mark, _ in found])
    moved = {number: framed for number, _, framed in found if type(framed) is int}
    elsewhere = yield from moved_bodies(thread, secret, moved)
    bodies: list[tuple[int, bytes, bytes | frame.FrameError]] = []
    for (number, _, framed), address in zip(found, addresses, strict=True):
        if number in moved:
            bodies.append((number, address, elsewhere[number]))
            continue
        try:
            bodies.append((number, address, frame.open_blob(framed, secret, address)))
        except frame.FrameError as exc:
            bodies.append((number, address, exc))
    return bodies


def every(thread: int, secret: bytes) -> Program[list[tuple[int, bytes, int, Pack]]]:
    """Every pack of a thread: number, its group's address, how many bodies are in it, and itself."""
    found: list[Row] = []
    at = 0
    while True:
        some = yield Statement("packs_page", (first_blob(thread), at, last_blob(thread), _PAGE))
        found += some
        if len(some) < _PAGE:
            return _opened(secret, found)
        at = some[-1][0] + 1


def problems(thread: int, secret: bytes) -> Program[list[str]]:
    """What is wrong with a thread's packs beside what stands in the bodies that its blobs have there."""
    moved: dict[int, set[int]] = {}
    for blob, number in (yield Statement("moved_blobs", (first_blob(thread), last_blob(thread)))):
        moved.setdefault(number, set()).add(blob)
    found = []
    for number, _, items, pack in (yield from every(thread, secret)):
        try:
            held = set(pack.bodies())
        except frame.FrameError as exc:
            found.append(str(exc))
            continue
        if held != moved.get(number, set()) or len(held) != items:
            found.append(f"the pack of group {number} holds other items than those that were moved into it")
    return found


def reseal(thread_id: str, source: tuple[int, bytes], target: tuple[int, bytes], method: str) -> Program[None]:
    """Frame a thread's packs anew under another secret: in place, or into another thread.

    Args:
        thread_id: for messages.
        source, target: number and secret of the threads.
        method: compression of the new frames.
    """
    made: list[tuple[int, int, bytes]] = []
    for number, _, items, pack in (yield from every(*source)):
        try:
            made.append((first_blob(target[0]) + number, items, pack.again(method, target[1])))
        except frame.FrameError as exc:
            raise damaged(Place(thread_id, "", None), f"blob {number}", exc) from exc
    if not made:
        return
    if source[0] == target[0]:
        yield Statement("set_pack_as_stored", [(pack, framed) for pack, _, framed in made], many=True)
    else:
        yield Statement("insert_pack", made, many=True)


def put_back(thread_id: str, row: ThreadRow, kept: set[int]) -> Program[None]:
    """Drop the packs whose groups aren't kept; what is kept of their blobs gets rows of its own again.

    Raises:
        CorruptionError: when a pack isn't what was stored.
    """
    first, last, numbers = first_blob(row.thread), last_blob(row.thread), json.dumps(sorted(kept))
    dying = yield Statement("packs_but", (first, last, numbers))
    if not dying:
        return
    live: dict[int, tuple[bytes, str]] = {}
    for number, _, _, pack in _opened(row.secret, [(number, mark, 0, framed) for number, mark, framed in dying]):
        try:
            live.update((blob, (body, pack.method)) for blob, body in pack.bodies().items() if blob in kept)
        except frame.FrameError as exc:
            raise damaged(Place(thread_id, "", None), f"blob {number}", exc) from exc
    if live:
        found = yield Statement("blobs_by_number", (first, json.dumps(sorted(live))))
        addresses = shown(row.secret, [mark for _, mark, *_ in found])
        framed = [
            (first + number, mark, frame.seal_blob(live[number][0], live[number][1], row.secret, address))
            for (number, mark, *_), address in zip(found, addresses, strict=True)
        ]
        yield Statement("set_blob_as_stored", framed, many=True)
    yield Statement("drop_packs_but", (first, last, numbers))
