"""Checking a whole store: the file, every row, every reference, every blob's content."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from agent_ckpt.backend import Program, Statement
from agent_ckpt.codec import arrays, digest, expand, frame, ids, rows, tree
from agent_ckpt.codec.values import DecodeError, ValueCodec
from agent_ckpt.core import packs
from agent_ckpt.core.manage import find_thread
from agent_ckpt.core.rebuild import mismatches
from agent_ckpt.core.rows import checkpoint_row, writes_row
from agent_ckpt.core.writes import task_key
from agent_ckpt.model import CheckpointRow, Entry, Place, Ref, ThreadRow
from agent_ckpt.reports import Finding, VerifyReport

_PAGE = 1000
_VALUES = (frame.PLAIN, frame.MESSAGE, frame.SERDE, frame.TYPED)


@dataclass(slots=True)
class _Known:
    """What is known of a blob once its content was checked.

    Attributes:
        address: its address.
        codec: what it is.
        refs: what it refers to.
        bound: for a group, the check over what it refers to; for a difference, its base's address.
        leaves: for a group, how many parts it holds in all.
        seen: whether a row leads to it.
    """

    address: bytes
    codec: int
    refs: list[Ref]
    bound: bytes | None = None
    leaves: int | None = None
    seen: bool = False


@dataclass(slots=True)
class Check:
    """One thread being checked."""

    thread_id: str
    thread: ThreadRow
    codec: ValueCodec
    blobs: dict[int, _Known] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    checkpoints: int = 0
    writes: int = 0

    def note(self, kind: str, place: Place | None, detail: str) -> None:
        ns, checkpoint_id = (place.ns, place.checkpoint_id) if place is not None else (None, None)
        self.findings.append(Finding(kind, self.thread_id, ns, checkpoint_id, detail))


def verify_file() -> Program[tuple[list[str], list[Finding]]]:
    """Check the file's pages and rows that belong to nothing; the thread ids to check next."""
    findings = [
        Finding("file", None, None, None, str(line)) for (line,) in (yield Statement("check_file")) if line != "ok"
    ]
    for what, count in (yield Statement("stray_rows")):
        if count:
            findings.append(Finding("orphan", None, None, None, f"{count} rows of kind {what} belong to nothing"))
    for what, count in (yield Statement("counters_behind")):
        if count:
            findings.append(Finding("damaged", None, None, None, f"{what}: {count} rows are beyond it"))
    thread_ids = [thread_id for (thread_id,) in (yield Statement("all_thread_ids"))]
    return thread_ids, findings


def verify_thread(thread_id: str, codec: ValueCodec) -> Program[VerifyReport]:
    """Check one thread in one snapshot."""
    thread = yield from find_thread(thread_id)
    if thread is None:
        return VerifyReport(0, 0, 0, 0, ())
    check = Check(thread_id, thread, codec)
    yield from _blobs(check)
    for _, _, ns, *columns in (yield Statement("checkpoints_of_thread", (thread.thread,))):
        _checkpoint(check, checkpoint_row(thread_id, ns, columns, thread.secret))
    for _, _, ns, seq, checkpoint, task, run, framed in (yield Statement("writes_of_thread", (thread.thread,))):
        _writes(check, Place(thread_id, ns, ids.expand(checkpoint)), (seq, run, framed, task))
    for seq, mark in (yield Statement("undone_of_thread", (thread.thread,))):
        if not seq < mark <= thread.revision:
            check.note("damaged", None, f"row {seq} is marked as rolled back at {mark}, which can't be")
    for number, known in check.blobs.items():
        if not known.seen:
            check.note("orphan", None, f"no row leads to blob {number}")
        if number >= thread.next_blob:
            check.note("damaged", None, f"blob {number} is beyond the thread's next number {thread.next_blob}")
    yield from _head(check)
    return VerifyReport(1, check.checkpoints, check.writes, len(check.blobs), tuple(check.findings))


def _head(check: Check) -> Program[None]:
    """Compare a sealed thread's rows with its sealed head."""
    for problem in (yield from mismatches(check.thread)):
        check.note("damaged", None, problem)
    known = check.thread.heads
    found = (yield Statement("vault_of_thread", (check.thread_id,))) if known is not None else []
    if known is not None and known.vault != (found[0][1] if found else 0):
        check.note("damaged", None, "its credentials were removed, or put back from an older copy")


def _blobs(check: Check) -> Program[None]:
    at = 0
    while True:
        page = yield from packs.page(check.thread.thread, check.thread.secret, at, _PAGE)
        for number, address, body in page:
            try:
                check.blobs[number] = _blob(check, number, address, body)
            except (frame.FrameError, expand.DamagedRefError) as exc:
                check.note("damaged", None, f"blob {number}: {exc}")
                check.blobs[number] = _Known(address, 0, [], seen=True)
            except DecodeError as exc:
                check.note("undecodable", None, f"blob {number}: {exc}")
                check.blobs[number] = _Known(address, 0, [])
        if len(page) < _PAGE:
            break
        at = page[-1][0] + 1
    for problem in (yield from packs.problems(check.thread.thread, check.thread.secret)):
        check.note("damaged", None, problem)


def _blob(check: Check, number: int, address: bytes, body: bytes | frame.FrameError) -> _Known:
    if isinstance(body, frame.FrameError):
        raise body
    if digest.address(body, check.thread.secret) != address:
        raise frame.FrameError("its content does not match its address")
    if body[0] in _VALUES:
        check.codec.decode(body)
    return _Known(address, body[0], expand.children_of(Entry(body, address, number)), _bound(body))


def _bound(body: bytes) -> bytes | None:
    if body[0] == frame.NODE:
        return tree.open_group(body)[0][: digest.CHECK_SIZE]
    return arrays.base_of(body)[1] if body[0] == frame.ARRAY_DIFF else None


def _checkpoint(check: Check, row: CheckpointRow) -> None:
    check.checkpoints += 1
    try:
        body = rows.open_body(row)
        record = rows.open_history(row)
    except frame.FrameError as exc:
        check.note("damaged", row.place, str(exc))
        return
    try:
        check.codec.decode(body.metadata)
    except DecodeError as exc:
        check.note("undecodable", row.place, f"metadata: {exc}")
    for name, _, ref in body.channels:
        _follow(check, row.place, f"channel {name!r}", ref)
    for name, (_, seed, writes, _) in record.channels.items() if record is not None else ():
        for ref in (seed, *(ref for _, ref, _ in writes)):
            _follow(check, row.place, f"the history of channel {name!r}", ref)


def _writes(check: Check, place: Place, columns: tuple[Any, ...]) -> None:
    check.writes += 1
    try:
        task = rows.open_writes(writes_row(place, columns[:3], check.thread.secret))
    except frame.FrameError as exc:
        check.note("damaged", place, f"a row of pending writes: {exc}")
        return
    if columns[3] != task_key(task.task_id, check.thread.secret):
        check.note("damaged", place, "a row of pending writes stands under another task than its own")
    for _, channel, ref in task.writes:
        _follow(check, place, f"a pending write of channel {channel!r}", ref)


def _follow(check: Check, place: Place, what: str, ref: Ref) -> None:
    """Check that a reference leads where it was made to."""
    if type(ref) is bytes:
        try:
            check.codec.decode(ref)
        except DecodeError as exc:
            check.note("undecodable", place, f"{what}: {exc}")
        return
    for problem in _problems(check, ref):
        check.note("missing" if "missing" in problem else "damaged", place, f"{what}: {problem}")


def _problems(check: Check, ref: Ref) -> Iterator[str]:
    if type(ref) is not list:
        return
    kind, count, bound, differences = ref
    refs = tree.numbers(differences)
    addresses = []
    for number in (part for part in refs if type(part) is int):
        known = check.blobs.get(number)
        if known is None:
            yield f"blob {number} is missing"
            continue
        addresses.append(known.address)
        yield from _reach(check, known)
    if digest.combined(addresses, check.thread.secret) != bound:
        yield "it refers to other blobs than those it was made of"
    elif (leaves := _leaves(check, refs)) != (count * 2 if kind == tree.DICT else count):
        yield f"it has {leaves} parts where {count} were stored"
    for part in refs:
        yield from _problems(check, part)


def _reach(check: Check, known: _Known) -> Iterator[str]:
    """Mark a blob and all that it leads to, each only once."""
    stack = [known]
    while stack:
        one = stack.pop()
        if one.seen:
            continue
        one.seen = True
        addresses = []
        for part in one.refs:
            if type(part) is not int:
                yield from _problems(check, part)
                continue
            below = check.blobs.get(part)
            if below is None:
                yield f"blob {part} is missing"
                continue
            addresses.append(below.address)
            stack.append(below)
        if one.bound is not None and len(addresses) == sum(type(part) is int for part in one.refs):
            found = addresses[0] if one.codec == frame.ARRAY_DIFF else digest.combined(addresses, check.thread.secret)
            if found != one.bound:
                yield "a group or difference refers to other blobs than those it was made of"


def _leaves(check: Check, refs: list[Ref]) -> int:
    total = 0
    for ref in refs:
        known = check.blobs.get(ref) if type(ref) is int else None
        if known is None or known.codec != frame.NODE:
            total += 1
            continue
        if known.leaves is None:
            known.leaves = _leaves(check, known.refs)
        total += known.leaves
    return total
