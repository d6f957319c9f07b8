"""What the saver does with a thread's past: tell its revision, fork on purpose, roll back."""

from __future__ import annotations

from collections.abc import Sequence

from langchain_core.runnables import RunnableConfig

from agent_ckpt import timeline
from agent_ckpt.parts import Thread
from agent_ckpt.plumbing import Plumbing


class TimelineOps(Plumbing):
    """The part of AgentSaver that is about revisions and older checkpoints."""

    def revision(self, thread: Thread) -> int:
        """The revision that a thread is at now: it rises with every accepted write and is never used twice.

        A form or page reads it, then the state, and sends it back as `expected_revision` in the
        `configurable` of the run that it starts: if the thread moved on since, the run gets
        ThreadConflictError (`reason="expected_revision"`) before a node of it runs.

        Args:
            thread: a thread_id, or a config that holds one.

        Returns:
            0 for a thread that isn't stored.
        """
        return self._run(timeline.revision(thread))

    async def arevision(self, thread: Thread) -> int:
        """`revision`, async."""
        return await self._arun(timeline.revision(thread))

    def fork(self, config: RunnableConfig) -> RunnableConfig:
        """Say that the next run from an older checkpoint is meant, where `stale_checkpoint` refuses such runs.

        Args:
            config: names the checkpoint, as `StateSnapshot.config` does.

        Returns:
            The config to pass to `invoke`, `stream` or `update_state`. It is accepted once, in this
            process; after a trip as JSON or pickle it is an ordinary config. The caller's own is
            left as it is.

        Raises:
            UsageError: when it names no checkpoint, or one that isn't stored.
        """
        return self._run(timeline.fork(self._store, config))

    async def afork(self, config: RunnableConfig) -> RunnableConfig:
        """`fork`, async."""
        return await self._arun(timeline.fork(self._store, config))

    def rollback(self, config: RunnableConfig) -> RunnableConfig:
        """Make an older checkpoint of the root graph the head again; durable when this returns.

        What came after it is kept and marked: `list` still shows it, a config that names it still
        reads it, `rolled_back` tells its ids, and a rollback to it takes the mark away. Nothing of
        it is decoded, so newer rows may be damaged. Subgraphs go back with the root.

        The checkpoint's tasks run again, with one exception: where it waited for answers it waits
        again, as it did at first. A checkpoint that nothing was built on keeps its pending writes.
        Runs that restored the thread before are refused from now on.

        Args:
            config: names the checkpoint.

        Returns:
            The config that addresses the new head.

        Raises:
            UsageError: when it names no checkpoint, one that isn't stored, or one of a subgraph.
            ThreadConflictError: when another holds the thread's lease.
            CorruptionError: when the checkpoint itself is damaged; nothing changed.
        """
        return self._run(timeline.rollback(self._store, config))

    async def arollback(self, config: RunnableConfig) -> RunnableConfig:
        """`rollback`, async."""
        return await self._arun(timeline.rollback(self._store, config))

    def rolled_back(self, thread: Thread, *, checkpoint_ns: str = "") -> Sequence[str]:
        """The ids of a namespace's checkpoints that a rollback went back over, newest first."""
        return self._run(timeline.rolled_back(thread, checkpoint_ns))

    async def arolled_back(self, thread: Thread, *, checkpoint_ns: str = "") -> Sequence[str]:
        """`rolled_back`, async."""
        return await self._arun(timeline.rolled_back(thread, checkpoint_ns))
