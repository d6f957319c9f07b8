"""The sealed head of a thread, from what is stored of it: after rows were dropped, or copied."""

from __future__ import annotations

from agent_ckpt.backend import Program, Statement
from agent_ckpt.codec import heads
from agent_ckpt.codec.heads import Heads, Key, SpaceHead
from agent_ckpt.core.rows import session_column
from agent_ckpt.model import Secret, ThreadRow


def rebuild(row: ThreadRow) -> Program[Heads | None]:
    """What the sealed head of a thread says when all of its rows are right; None where it isn't sealed."""
    if not isinstance(row.secret, Secret):
        return None
    found = Heads(row.heads.frames if row.heads is not None else row.next_blob)
    stored: dict[str, dict[Key, tuple[int, bytes | None]]] = {}
    written: dict[str, dict[Key, list[int]]] = {}
    last: dict[str, int] = {}
    undone: dict[int, int] = dict((yield Statement("undone_of_thread", (row.thread,))))
    for seq, _, ns, _, checkpoint, _, _, _, history in (yield Statement("checkpoints_of_thread", (row.thread,))):
        found.rows += heads.row_mark(seq, row.secret, undone.get(seq, 0))
        stored.setdefault(ns, {})[checkpoint] = 0 if seq in undone else seq, history
        last[ns] = max(last.get(ns, 0), seq)
    for seq, _, ns, _, checkpoint, *_ in (yield Statement("writes_of_thread", (row.thread,))):
        found.rows += heads.row_mark(seq, row.secret, undone.get(seq, 0))
        last[ns] = max(last.get(ns, 0), seq)
        if seq not in undone:
            written.setdefault(ns, {}).setdefault(checkpoint, []).append(seq)
    found.rows %= heads.ROWS
    for ns in sorted(last, key=lambda ns: last[ns])[-heads.SPACES_AT_MOST :]:
        found.add(ns, row.secret, _space(stored.get(ns, {}), written.get(ns, {})))
    return found


def _space(stored: dict[Key, tuple[int, bytes | None]], written: dict[Key, list[int]]) -> SpaceHead:
    newest = max(stored, key=lambda key: stored[key][0], default=None)
    if newest is not None and not stored[newest][0]:
        newest = None  # all of them were rolled back
    writes = {key: heads.over(seqs) for key, seqs in written.items() if key not in stored or key == newest}
    if newest is None:
        return SpaceHead(0, b"", writes)
    writes.setdefault(newest, b"")
    seq, history = stored[newest]
    return SpaceHead(seq, heads.history_mark(history), writes)


def mismatches(row: ThreadRow) -> Program[list[str]]:
    """What of a sealed thread's rows isn't as its sealed head says."""
    sealed, found = row.heads, (yield from rebuild(row))
    if sealed is None or found is None:
        return []
    wrong = []
    if found.rows != sealed.rows:
        wrong.append("rows were removed, or put back from an older copy: they aren't those that were sealed")
    for name, space in sealed.spaces.items():
        now = found.spaces.get(name)
        if now is not None and (
            space.newest not in (None, now.newest)
            or (space.newest is not None and space.history != now.history)
            or (space.writes is not None and space.writes != now.writes)
        ):
            wrong.append("the newest rows of a namespace aren't those that were sealed")
    return wrong


def reseal_head(row: ThreadRow) -> Program[None]:
    """After rows of a thread were dropped: seal its head anew, at the revision and session that it has."""
    found = yield from rebuild(row)
    if found is not None:
        column = session_column(row._replace(heads=found), row.revision, row.session)
        yield Statement("update_thread", (row.thread, row.revision, column, row.next_blob))


def own(row: ThreadRow, session_id: bytes) -> Program[None]:
    """Make a session the owner of a thread, at the revision that it has."""
    column = session_column(row, row.revision, session_id)
    yield Statement("update_thread", (row.thread, row.revision, column, row.next_blob))
