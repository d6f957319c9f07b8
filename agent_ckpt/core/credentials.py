"""Credentials: one sealed row per thread, and a record of each use. They move no thread's revision."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from agent_ckpt.backend import Factory, Program, Statement
from agent_ckpt.codec import vaults
from agent_ckpt.core import manage
from agent_ckpt.core.rows import next_sequence, session_column
from agent_ckpt.errors import CredentialConflictError, SealError, UsageError
from agent_ckpt.model import Place, Sealer, ThreadRow
from agent_ckpt.vault import Action, CredentialUse, Hidden, Stored, VaultRow

T = TypeVar("T")

_PAGE = 1000
USES_KEPT = 1000
"""Records of use that are kept of each thread."""


class VaultChangedError(Exception):
    """The thread's credentials have another data key than the one that the call was made with: look again."""


class Use(NamedTuple):
    """Who uses credentials, when (seconds since 1970), and with what the thread's row is sealed.

    Attributes:
        fresh: whether the data key was made for this call, since the thread has no credentials yet.
    """

    store_id: bytes
    thread_id: str
    cipher: Sealer
    envelope: bytes
    fresh: bool
    at: float
    by: str


Held = dict[str, Stored]
Done = list[tuple[Action, str, int]]
"""What was done, for the audit: action, name, revision."""


def find_vault(thread_id: str) -> Program[VaultRow | None]:
    found = yield Statement("vault_of_thread", (thread_id,))
    return VaultRow(*found[0]) if found else None


def look(thread_id: str) -> Program[tuple[VaultRow | None, bytes]]:
    """The row, and the store's id, which the data key is bound to.

    Raises:
        SealError: when there is no row, and there was one.
    """
    row = yield from find_vault(thread_id)
    if row is None:
        yield from _bound(thread_id, row)
    return row, (yield Statement("store_row"))[0][0]


def _bound(thread_id: str, row: VaultRow | None) -> Program[ThreadRow | None]:
    """The row of the thread whose credentials these are, which knows their revision; None where it isn't stored.

    Raises:
        SealError: when credentials were removed, or put back from an older copy.
    """
    thread = yield from manage.find_thread(thread_id)
    if thread is None or thread.heads is None:
        return thread
    found = row.revision if row is not None else 0
    if found != thread.heads.vault:
        what = f"they are at revision {found}, and {thread.heads.vault} was sealed" if found else "they were removed"
        raise broken(thread_id, what, replayed=True)
    return thread


def _bind(thread: ThreadRow | None, revision: int) -> Program[None]:
    """Make the sealed head of a thread know its credentials' revision; the thread's own stays as it is."""
    if thread is not None and thread.heads is not None:
        thread = thread._replace(heads=thread.heads._replace(vault=revision))
        columns = (thread.thread, thread.revision, session_column(thread), thread.next_blob)
        yield Statement("update_thread", columns)


def open_vault(thread_id: str, cipher: Sealer, row: VaultRow) -> Held:
    """The credentials in a row.

    Raises:
        SealError: when they are not what was stored there last.
    """
    try:
        held = vaults.open_vault(cipher, row.vault, row.revision, row.frame)
    except vaults.VaultError as exc:
        raise broken(thread_id, str(exc)) from None
    if row.newest != row.revision:
        raise broken(thread_id, "its newest record of use is not the one that belongs to it", replayed=True)
    return held


def broken(thread_id: str, why: str, *, replayed: bool = False) -> SealError:
    """The error for credentials that don't open."""
    return SealError(
        f"the credentials of thread {thread_id!r} are not what was stored: {why}. Nothing of them is given out. "
        f"Restore a backup; or revoke them at their issuers, drop them with saver.credentials(thread_id).clear() and "
        f"set new ones.",
        reason="replayed" if replayed else "altered",
        thread_id=thread_id,
    )


def change(use: Use, act: Callable[[Held, int], tuple[T, Done]], *, create: bool = False) -> Program[T]:
    """Do something with a thread's credentials, and record it; if nothing is done nothing is written.

    Args:
        act: is given the credentials, which it may change, and the number that this use gets.
        create: whether a thread without credentials gets a row; else `act` is given none.

    Raises:
        VaultChangedError: when the row's data key is not that of `use`.
        SealError: when what is stored doesn't open.
    """
    row = yield from find_vault(use.thread_id)
    thread = yield from _bound(use.thread_id, row)
    if row is None and not create:
        return act({}, 0)[0]
    if (row is None and not use.fresh) or (row is not None and row.envelope != use.envelope):
        raise VaultChangedError
    held = open_vault(use.thread_id, use.cipher, row) if row is not None else {}
    # The store's counter, so no number is ever used twice, not even by a thread that is made anew.
    number = (yield Statement("store_row"))[0][1] + 1
    result, done = act(held, number)
    if done:
        number = yield from _record(use, row.vault if row is not None else number, held, done, new=row is None)
        yield from _bind(thread, number)
    return result


def _record(use: Use, vault: int, held: Held, done: Done, *, new: bool) -> Program[int]:
    """Store what is held now and the records of what was done; the revision that this gives."""
    number = 0
    for action, name, revision in done:
        number = yield from next_sequence(Place(use.thread_id, "", None))
        framed = vaults.seal_use(use.cipher, vault, number, use.at, (action, name, revision, use.by))
        yield Statement("insert_use", (number, vault, framed))
    framed = vaults.seal_vault(use.cipher, vault, number, held)
    if new:
        yield Statement("insert_vault", (vault, use.thread_id, number, use.envelope, framed))
    else:
        yield Statement("update_vault", (vault, number, framed))
    yield Statement("drop_uses", (vault, USES_KEPT))
    return number


def get(use: Use, name: str) -> Program[Stored | None]:
    """A credential; its use is recorded in the same transaction."""

    def act(held: Held, _: int) -> tuple[Stored | None, Done]:
        found = held.get(name)
        if found is None:
            return None, []
        held[name] = found._replace(used=use.at, used_by=use.by)
        return found, [("get", name, found.revision)]

    return change(use, act)


def put(use: Use, name: str, value: Hidden, expires: float | None, if_revision: int | None) -> Program[int]:
    """Set a credential; its new revision.

    Raises:
        CredentialConflictError: when `if_revision` is given and isn't the revision it has (0: it isn't set).
    """

    def act(held: Held, number: int) -> tuple[int, Done]:
        before = held.get(name)
        _compare(use.thread_id, name, before, if_revision)
        used = (before.used, before.used_by) if before is not None else (None, None)
        held[name] = Stored(number, expires, *used, value)
        return number, [("set", name, number)]

    return change(use, act, create=True)


def delete(use: Use, name: str, if_revision: int | None) -> Program[bool]:
    """Delete a credential; whether it was there.

    Raises:
        CredentialConflictError: as `put`.
    """

    def act(held: Held, _: int) -> tuple[bool, Done]:
        _compare(use.thread_id, name, held.get(name), if_revision)
        gone = held.pop(name, None)
        return gone is not None, [("delete", name, gone.revision)] if gone is not None else []

    return change(use, act)


def _compare(thread_id: str, name: str, before: Stored | None, if_revision: int | None) -> None:
    found = before.revision if before is not None else 0
    if if_revision is None or if_revision == found:
        return
    stands = f"it is at revision {found}" if found else "it isn't set"
    raise CredentialConflictError(
        f"credential {name!r} of thread {thread_id!r} was not changed: the call names revision {if_revision}, and "
        f"{stands}. Another worker was first: get it again and use what it has stored.",
        thread_id=thread_id,
        name=name,
        expected=if_revision,
        found=found,
    )


def held_by(use: Use) -> Program[Held]:
    """All credentials of a thread, to tell their names; no use is recorded."""
    row = yield from _vault_for(use)
    return open_vault(use.thread_id, use.cipher, row)


def uses(use: Use, limit: int) -> Program[list[CredentialUse]]:
    """The newest records of use, newest first."""
    row = yield from _vault_for(use)
    found = yield Statement("uses_of_vault", (row.vault, limit))
    return [_opened_use(use, row.vault, number, framed) for number, framed in found]


def _opened_use(use: Use, vault: int, number: int, framed: bytes) -> CredentialUse:
    try:
        return vaults.open_use(use.cipher, vault, number, framed)
    except vaults.VaultError as exc:
        raise broken(use.thread_id, f"a record of use: {exc}") from None


def _vault_for(use: Use) -> Program[VaultRow]:
    row = yield from find_vault(use.thread_id)
    yield from _bound(use.thread_id, row)
    if row is None or row.envelope != use.envelope:
        raise VaultChangedError
    return row


def copy(source: Use, target: Use) -> Program[None]:
    """Copy all credentials of a thread to one that has none; both threads' records tell it.

    Raises:
        UsageError: when the target has credentials.
    """
    if (yield from find_vault(target.thread_id)) is not None:
        raise UsageError(
            f"copy_thread: thread {target.thread_id!r} has credentials already; delete_thread deletes them, or leave "
            f"out credentials=True"
        )
    held = yield from change(
        source, lambda held, _: (held, [("copy", name, one.revision) for name, one in held.items()])
    )
    if not held:
        return

    def act(empty: Held, number: int) -> tuple[None, Done]:
        empty.update({name: Stored(number, one.expires, None, None, one.value) for name, one in held.items()})
        return None, [("copy", name, number) for name in held]

    yield from change(target, act, create=True)


def one_after_the_other(first: Factory[None], then: Factory[None] | None) -> Program[None]:
    """Two programs in one transaction."""
    yield from first()
    if then is not None:
        yield from then()


def delete_thread(thread_id: str) -> Program[None]:
    """Delete a thread with its credentials, their data key and the records of their use."""
    yield from manage.delete_thread(thread_id)
    yield from delete_all(thread_id)


def delete_all(thread_id: str) -> Program[bool]:
    """Delete a thread's credentials alone, also where they don't open or were removed; whether there were any."""
    row = yield from find_vault(thread_id)
    try:
        thread = yield from manage.find_thread(thread_id)
    except SealError:
        thread = None  # its own head doesn't open, and stays as it is
    if thread is not None and thread.heads is not None and thread.heads.vault:
        yield from _bind(thread, 0)
    if row is not None:
        yield Statement("delete_uses", (row.vault,))
        yield Statement("delete_vault", (row.vault,))
    return row is not None


def owners() -> Program[list[str]]:
    """The threads that have credentials, by id."""
    return [thread_id for (thread_id,) in (yield Statement("vault_owners"))]


def damage(use: Use) -> Program[list[str]]:
    """What is wrong with a thread's credentials, for `verify`."""
    row = yield from _vault_for(use)
    found = []
    try:
        open_vault(use.thread_id, use.cipher, row)
    except SealError as exc:
        found.append(exc.message)
    for number, framed in (yield Statement("uses_of_vault", (row.vault, USES_KEPT + 1))):
        try:
            vaults.open_use(use.cipher, row.vault, number, framed)
        except vaults.VaultError as exc:
            found.append(f"record {number} of a use: {exc}")
    return found


VaultKey = tuple[int, Any, bytes]
"""A vault's number, and its thread's id and its keys as they are stored."""


def keys_page(after: int) -> Program[list[VaultKey]]:
    """A page of wrapped keys, above a vault's number."""
    return [(vault, stored, keys) for vault, stored, keys in (yield Statement("vaults_page", (after, _PAGE)))]


def set_keys(changes: list[tuple[int, bytes, bytes]]) -> Program[None]:
    """Change wrapped keys: vault, before, after. One that was changed meanwhile is left."""
    yield Statement("set_vault_key", changes, many=True)


def reseal(vault: int, before: Use, after: Use) -> Program[bool]:
    """Seal a thread's credentials and all records of their use anew; False when they were changed meanwhile.

    Raises:
        SealError: when something isn't what was stored; nothing is changed then.
    """
    found = yield Statement("vault_as_stored", (vault,))
    row = VaultRow(*found[0]) if found else None
    if row is None or row.envelope != before.envelope:
        return False
    held = open_vault(before.thread_id, before.cipher, row)
    changes = []
    for number, framed in (yield Statement("uses_of_vault", (vault, -1))):
        use = _opened_use(before, vault, number, framed)
        parts = (use.action, use.name, use.revision, use.by)
        changes.append((number, vaults.seal_use(after.cipher, vault, number, use.at.timestamp(), parts)))
    yield Statement("set_use_as_stored", changes, many=True)
    yield Statement("set_vault_key", (vault, before.envelope, after.envelope))
    yield Statement("update_vault", (vault, row.revision, vaults.seal_vault(after.cipher, vault, row.revision, held)))
    return True
