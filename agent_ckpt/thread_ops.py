"""What the saver does with whole threads: look, delete, copy, prune, verify."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from agent_ckpt.later import Later
from agent_ckpt.parts import Thread
from agent_ckpt.plumbing import Plumbing

if TYPE_CHECKING:
    from agent_ckpt import credential_work, thread_work
    from agent_ckpt.reports import ThreadInfo, VerifyReport
else:
    credential_work = Later("agent_ckpt.credential_work")
    thread_work = Later("agent_ckpt.thread_work")


class ThreadOps(Plumbing):
    """The part of AgentSaver that is about whole threads."""

    def exists(self, thread: Thread) -> bool:
        """Whether anything is stored of a thread (an id or a config)."""
        return self._run(thread_work.exists(thread))

    async def aexists(self, thread: Thread) -> bool:
        """`exists`, async."""
        return await self._arun(thread_work.exists(thread))

    def threads(self) -> Iterator[ThreadInfo]:
        """Every thread, by id."""
        return iter(self._run(thread_work.threads()))

    async def athreads(self) -> Sequence[ThreadInfo]:
        """`threads`, async."""
        return await self._arun(thread_work.threads())

    def delete_thread(self, thread_id: Thread) -> None:
        """Delete a thread whole: checkpoints, writes, values and credentials, in one transaction.

        A run that restored it before can't bring it back. A thread that isn't stored is no error.
        """
        self._run(thread_work.delete_thread(self._store, thread_id))

    async def adelete_thread(self, thread_id: Thread) -> None:
        """`delete_thread`, async."""
        await self._arun(thread_work.delete_thread(self._store, thread_id))

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Delete what runs stored: their checkpoints, and their writes wherever they stand.

        What later checkpoints of other runs need for their DeltaChannels is kept for them.
        """
        self._run(thread_work.delete_for_runs(self._store, run_ids))

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        """`delete_for_runs`, async."""
        await self._arun(thread_work.delete_for_runs(self._store, run_ids))

    def copy_thread(self, source_thread_id: Thread, target_thread_id: Thread, *, credentials: bool = False) -> None:
        """Copy a thread whole to a new id.

        Args:
            source_thread_id, target_thread_id: ids or configs.
            credentials: copy the thread's credentials too; without it they stay behind.

        Raises:
            UsageError: when the source isn't stored, the target exists, or, with `credentials`, the
                saver has no key or the target has credentials.
            ThreadConflictError: when another holds the lease of the target.
        """
        self._run(credential_work.copy_thread(self._store, source_thread_id, target_thread_id, credentials))

    async def acopy_thread(
        self, source_thread_id: Thread, target_thread_id: Thread, *, credentials: bool = False
    ) -> None:
        """`copy_thread`, async."""
        await self._arun(credential_work.copy_thread(self._store, source_thread_id, target_thread_id, credentials))

    def prune(self, thread_ids: Sequence[Thread], *, strategy: str = "keep_latest") -> None:
        """Drop old checkpoints.

        Args:
            thread_ids: the threads; one that isn't stored is no error.
            strategy: `"keep_latest"` keeps each namespace's newest checkpoint with its pending
                writes, and for its DeltaChannels what they are rebuilt from. `"delete"` and
                `"delete_all"` delete the threads.

        Raises:
            UsageError: for another strategy.
            ThreadConflictError: when another holds the lease of one of them; the others are pruned.
        """
        self._run(thread_work.prune(self._store, thread_ids, strategy))

    async def aprune(self, thread_ids: Sequence[Thread], *, strategy: str = "keep_latest") -> None:
        """`prune`, async."""
        await self._arun(thread_work.prune(self._store, thread_ids, strategy))

    def verify(self) -> VerifyReport:
        """Check the whole store, reading only: the file, every row, reference, address and value.

        Returns:
            A report that is true when nothing is wrong, with a finding for each fault.
        """
        return self._run(credential_work.verify(self._store))

    async def averify(self) -> VerifyReport:
        """`verify`, async."""
        return await self._arun(credential_work.verify(self._store))
