"""The sealed head of a thread beside what is stored of it: looking up, comparing, and making it anew.

Each program does nothing where the thread isn't sealed.
"""

from __future__ import annotations

from typing import Any, cast

from agent_ckpt.backend import Program, Statement
from agent_ckpt.codec import frame, heads
from agent_ckpt.codec.heads import Heads, Key, SpaceHead
from agent_ckpt.core.rows import replayed, session_column
from agent_ckpt.model import Place, Secret, ThreadRow


def at_hand(row: ThreadRow, place: Place, number: int | None) -> Program[ThreadRow]:
    """A thread's row whose head knows a namespace also where that is parked; to compare with, never to be sealed.

    Args:
        number: of the namespace's row; None where there is none.

    Raises:
        SealError: when a parked namespace was removed, or put back from an older copy.
    """
    found = yield from _parked_head(row, place, number)
    if found is None:
        return row
    return row._replace(heads=row.heads.with_space(found[0]))


def taken_up(row: ThreadRow, place: Place, number: int | None) -> Program[ThreadRow]:
    """`at_hand`, for a write that goes to the namespace: it is parked no longer.

    Raises:
        SealError: as `at_hand`.
    """
    found = yield from _parked_head(row, place, number)
    if found is None:
        return row
    space, mark = found
    yield Statement("park_space", (space.number, None))
    known: Heads = row.heads
    parked_sum = (known.parked_sum - mark) % heads.ROWS
    known = known._replace(parked=known.parked - 1, parked_sum=parked_sum)
    return row._replace(heads=known.with_space(space))


def _parked_head(row: ThreadRow, place: Place, number: int | None) -> Program[tuple[SpaceHead, int] | None]:
    """What a namespace's row holds of the head, and its mark; None where it isn't parked."""
    known: Heads | None = row.heads
    if known is None or not known.parked or known.space(place.ns, cast(Secret, row.secret)) is not None:
        return None
    sealed = (yield from _parked(row, place)).get(number or 0)
    if sealed is None:
        return None
    return _unparked(row, place, number or 0, sealed), heads.parked_mark(number or 0, sealed, cast(Secret, row.secret))


def _parked(row: ThreadRow, place: Place) -> Program[dict[int, bytes]]:
    """What stands in the rows of a thread's parked namespaces, compared with the sum in the head."""
    secret = cast(Secret, row.secret)
    found: dict[int, bytes] = dict((yield Statement("parked_of_thread", (row.thread,))))
    total = sum(heads.parked_mark(number, sealed, secret) for number, sealed in found.items()) % heads.ROWS
    if (len(found), total) != (row.heads.parked, row.heads.parked_sum):
        raise replayed(place, "the rows of its namespaces are not those that were sealed")
    return found


def _unparked(row: ThreadRow, place: Place, number: int, sealed: bytes) -> SpaceHead:
    secret = cast(Secret, row.secret)
    try:
        return heads.unpark(secret, row.thread, heads.space_name(place.ns, secret), number, sealed)
    except frame.UnsealError:
        raise replayed(place, "the row of a namespace is not the one that was sealed") from None


def parked(row: ThreadRow) -> Program[ThreadRow]:
    """A thread's row for sealing: what its head knows of too many namespaces goes into those's own rows."""
    known: Heads | None = row.heads
    if known is None or len(known.spaces) <= heads.SPACES_AT_MOST:
        return row
    secret, spaces = cast(Secret, row.secret), known.spaces[-heads.SPACES_AT_MOST :]
    total, count = known.parked_sum, known.parked
    for space in known.spaces[: -heads.SPACES_AT_MOST]:
        sealed = heads.park(secret, row.thread, space)
        total, count = (total + heads.parked_mark(space.number, sealed, secret)) % heads.ROWS, count + 1
        yield Statement("park_space", (space.number, sealed))
    return row._replace(heads=known._replace(parked=count, parked_sum=total, spaces=spaces))


def rebuilt(row: ThreadRow) -> Program[ThreadRow]:
    """A thread's row with the sealed head that fits what is stored of it, ready to be sealed."""
    if not isinstance(row.secret, Secret):
        return row
    yield Statement("unpark_spaces", (row.thread,))
    return (yield from parked(row._replace(heads=(yield from _rebuild(row, row.secret)))))


def _rebuild(row: ThreadRow, secret: Secret) -> Program[Heads]:
    """What the sealed head of a thread says when all of its rows are right, with no namespace parked."""
    total = 0
    stored: dict[str, dict[Key, tuple[int, bytes | None]]] = {}
    written: dict[str, dict[Key, list[int]]] = {}
    last: dict[str, tuple[int, int]] = {}
    undone: dict[int, int] = dict((yield Statement("undone_of_thread", (row.thread,))))
    for seq, number, ns, _, checkpoint, _, _, _, history in (yield Statement("checkpoints_of_thread", (row.thread,))):
        total += heads.row_mark(seq, secret, undone.get(seq), history)
        stored.setdefault(ns, {})[checkpoint] = 0 if seq in undone else seq, history
        last[ns] = max(last.get(ns, (0, 0)), (seq, number))
    for seq, number, ns, _, checkpoint, *_ in (yield Statement("writes_of_thread", (row.thread,))):
        total += heads.row_mark(seq, secret, undone.get(seq))
        last[ns] = max(last.get(ns, (0, 0)), (seq, number))
        if seq not in undone:
            written.setdefault(ns, {}).setdefault(checkpoint, []).append(seq)
    spaces = tuple(
        _space(ns, last[ns][1], secret, stored.get(ns, {}), written.get(ns, {}))
        for ns in sorted(last, key=lambda ns: last[ns])
    )
    known: Heads = row.heads if row.heads is not None else Heads(row.next_blob)
    return Heads(known.frames, total % heads.ROWS, vault=known.vault, spaces=spaces)


def _space(
    ns: str, number: int, secret: Secret, stored: dict[Key, tuple[int, bytes | None]], written: dict[Key, list[int]]
) -> SpaceHead:
    newest = max(stored, key=lambda key: stored[key][0], default=None)
    if newest is not None and not stored[newest][0]:
        newest = None  # all of them were rolled back
    marked = {key: seqs for key, seqs in written.items() if key not in stored}
    seq, history = 0, None
    if newest is not None:
        seq, history = stored[newest]
        marked[newest] = [seq, *written.get(newest, ())]
    writes = tuple((key, heads.total(seqs, secret)) for key, seqs in marked.items())
    return SpaceHead(heads.space_name(ns, secret), number, seq, heads.history_mark(history), writes)


def mismatches(row: ThreadRow) -> Program[list[str]]:
    """What of a sealed thread's rows isn't as its sealed head says."""
    known: Heads | None = row.heads
    if known is None or not isinstance(row.secret, Secret):
        return []
    found = yield from _rebuild(row, row.secret)
    wrong = []
    if found.rows != known.rows:
        wrong.append("rows were removed, or put back from an older copy: they aren't those that were sealed")
    spaces = {space.name: space for space in known.spaces}
    if known.parked:
        nowhere = Place("", "", None)
        sealed = yield from _parked(row, nowhere)
        for number, ns in (yield Statement("spaces_of_thread", (row.thread,))):
            if number in sealed:
                space = _unparked(row, nowhere._replace(ns=ns), number, sealed[number])
                spaces[space.name] = space
    stored = {space.name: space for space in found.spaces}
    for name in {*spaces, *stored}:
        if not _agree(spaces.get(name), stored.get(name)):
            wrong.append("the newest rows of a namespace aren't those that were sealed")
    return wrong


def _agree(sealed: SpaceHead | None, found: SpaceHead | None) -> bool:
    sealed, found = sealed or SpaceHead(b"", 0), found or SpaceHead(b"", 0)
    same = (sealed.newest, sealed.history) == (found.newest, found.history)
    return same and (sealed.writes is None or dict(sealed.writes) == dict(found.writes or ()))


def check_whole(row: ThreadRow, thread_id: str) -> Program[None]:
    """Before a head is made anew from what is stored: what was put back from an older copy must not become right.

    Raises:
        SealError: when a row of the thread was removed, or put back.
    """
    for why in (yield from mismatches(row)):
        raise replayed(Place(thread_id, "", None), why)


def check_rows(row: ThreadRow, thread_id: str) -> Program[None]:
    """Compare a thread's rows, their marks of rollbacks and their history records with the sum in its sealed head.

    Raises:
        SealError: when one was removed, put back, or has another mark.
    """
    if row.heads is None or not isinstance(row.secret, Secret):
        return
    found: list[tuple[Any, ...]] = yield Statement("marks_of_thread", (row.thread,))
    total = sum(heads.row_mark(seq, row.secret, undone, history) for seq, undone, history in found)
    if total % heads.ROWS != row.heads.rows:
        raise replayed(
            Place(thread_id, "", None), "its older rows, or the marks of its rollbacks, are not those that were sealed"
        )


def reseal_head(row: ThreadRow) -> Program[None]:
    """After rows of a thread were dropped: seal its head anew, at the revision and session that it has."""
    if isinstance(row.secret, Secret):
        row = yield from rebuilt(row)
        yield Statement("update_thread", (row.thread, row.revision, session_column(row), row.next_blob))


def with_vault(row: ThreadRow, thread_id: str) -> Program[ThreadRow]:
    """The row of a thread that gets this id, its sealed head bound to the credentials that stand under it."""
    if not isinstance(row.secret, Secret):
        return row
    found = yield Statement("vault_of_thread", (thread_id,))
    known: Heads = row.heads if row.heads is not None else Heads(row.next_blob)
    return row._replace(heads=known._replace(vault=found[0][1] if found else 0))


def own(row: ThreadRow, session_id: bytes) -> Program[None]:
    """Make a session the owner of a thread, at the revision that it has."""
    column = session_column(row._replace(session=session_id))
    yield Statement("update_thread", (row.thread, row.revision, column, row.next_blob))
