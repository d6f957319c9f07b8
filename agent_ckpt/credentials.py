"""Credentials of threads: sealed, outside the state, on a counter of their own, every use recorded."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from agent_ckpt.carrier import thread_id_of
from agent_ckpt.later import Later
from agent_ckpt.parts import Thread
from agent_ckpt.plumbing import Plumbing

if TYPE_CHECKING:
    from agent_ckpt import credential_work, vault
    from agent_ckpt.vault import Credential, CredentialInfo, CredentialUse
else:
    credential_work = Later("agent_ckpt.credential_work")
    vault = Later("agent_ckpt.vault")


class Credentials:
    """The credentials of one thread; made by `AgentSaver.credentials`.

    They stand in the saver's file, sealed, and in no checkpoint: not in state, listings, exports or
    logs. A thread can have them before its first checkpoint, and pruning leaves them alone.
    """

    def __init__(self, saver: Plumbing, thread: Thread, actor: str | None) -> None:
        self._saver = saver
        self._owner = credential_work.owner_of(thread, actor)

    def __repr__(self) -> str:
        return f"Credentials(thread_id={self._owner.thread_id!r})" if hasattr(self, "_owner") else "Credentials(...)"

    def set(
        self,
        name: str,
        value: str | dict[str, Any],
        expires_at: datetime | float | None = None,
        if_revision: int | None = None,
    ) -> int:
        """Set a credential; durable when this returns.

        Args:
            name: printable text of 1 to 200 characters.
            value: text, or a dict of plain JSON values.
            expires_at: a datetime with a time zone, or seconds since 1970. It is told, not enforced.
            if_revision: set it only if it still has this revision; 0: only if it isn't set.

        Returns:
            Its new revision. The thread's own revision doesn't move: no running turn is refused.

        Raises:
            CredentialConflictError: when `if_revision` doesn't fit; nothing was stored.
            UsageError: without a key, or for arguments that can't be right.
            ValueNotStorableError: for another value, naming where in it.
            UnavailableError: locked for longer than `busy_timeout_s`, disk full, read-only.
        """
        hidden = vault.Hidden(value)
        del value
        return self._saver._run(
            credential_work.put(self._saver._store, self._owner, name, hidden, expires_at, if_revision)
        )

    async def aset(
        self,
        name: str,
        value: str | dict[str, Any],
        expires_at: datetime | float | None = None,
        if_revision: int | None = None,
    ) -> int:
        """`set`, async."""
        hidden = vault.Hidden(value)
        del value
        return await self._saver._arun(
            credential_work.put(self._saver._store, self._owner, name, hidden, expires_at, if_revision)
        )

    def get(self, name: str) -> Credential | None:
        """A credential, or None; the use is recorded, durably, before this returns.

        Raises:
            UsageError: without a key.
            SealError: when what is stored was altered, moved or put back.
            UnavailableError: when the use can't be recorded.
        """
        return self._saver._run(credential_work.get(self._saver._store, self._owner, name))

    async def aget(self, name: str) -> Credential | None:
        """`get`, async."""
        return await self._saver._arun(credential_work.get(self._saver._store, self._owner, name))

    def names(self) -> list[str]:
        """The names of the thread's credentials, sorted."""
        return [info.name for info in self._saver._run(self._infos())]

    async def anames(self) -> list[str]:
        """`names`, async."""
        return [info.name for info in await self._saver._arun(self._infos())]

    def delete(self, name: str, if_revision: int | None = None) -> bool:
        """Delete a credential; whether it was there. Durable when this returns.

        Raises:
            CredentialConflictError: when `if_revision` is given and it has another revision.
        """
        return self._saver._run(credential_work.delete(self._saver._store, self._owner, name, if_revision))

    async def adelete(self, name: str, if_revision: int | None = None) -> bool:
        """`delete`, async."""
        return await self._saver._arun(credential_work.delete(self._saver._store, self._owner, name, if_revision))

    def clear(self) -> bool:
        """Delete all credentials of the thread, their data key and their audit; whether there were any.

        Works without a key too, and where the credentials don't open. The thread itself stays.
        """
        return self._saver._run(credential_work.clear(self._owner))

    async def aclear(self) -> bool:
        """`clear`, async."""
        return await self._saver._arun(credential_work.clear(self._owner))

    def audit(self, limit: int = 1000) -> list[CredentialUse]:
        """Who set, got, deleted or copied which credential, and when; newest first, never a value.

        The newest 1,000 records of a thread are kept.
        """
        return self._saver._run(credential_work.audit(self._saver._store, self._owner, limit))

    async def aaudit(self, limit: int = 1000) -> list[CredentialUse]:
        """`audit`, async."""
        return await self._saver._arun(credential_work.audit(self._saver._store, self._owner, limit))

    def _infos(self) -> Any:
        return credential_work.infos(self._saver._store, self._owner.thread_id)


class CredentialOps(Plumbing):
    """The part of AgentSaver that is about credentials."""

    def credentials(self, thread: Thread, *, actor: str | None = None) -> Credentials:
        """The credentials of a thread; nothing is read yet.

        Args:
            thread: an id, or a config: inside a node or a tool, the one it was given.
            actor: who uses them, for the audit; a node's config tells the node and the run by itself.

        Raises:
            UsageError: for a config without a usable thread_id.
        """
        return Credentials(self, thread, actor)

    def list_credentials(self, thread: Thread | None = None) -> Sequence[CredentialInfo]:
        """Name, revision, expiry and last use of the credentials of one thread, or of all; never a value.

        Raises:
            UsageError: without a key.
            SealError: when what is stored was altered, moved or put back.
        """
        return self._run(credential_work.infos(self._store, thread_id_of(thread) if thread is not None else None))

    async def alist_credentials(self, thread: Thread | None = None) -> Sequence[CredentialInfo]:
        """`list_credentials`, async."""
        thread_id = thread_id_of(thread) if thread is not None else None
        return await self._arun(credential_work.infos(self._store, thread_id))
