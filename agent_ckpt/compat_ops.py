"""What the saver does about code that changed: guard a graph, check a store, give back what was captured."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from langchain_core.runnables import RunnableConfig

from agent_ckpt.changes import OnChange, View, Watch
from agent_ckpt.errors import UsageError
from agent_ckpt.later import Later
from agent_ckpt.parts import Thread
from agent_ckpt.plumbing import Plumbing

if TYPE_CHECKING:
    from agent_ckpt import compat
    from agent_ckpt.reports import Captured, CheckReport
else:
    compat = Later("agent_ckpt.compat")


class Guard:
    """A guard that `AgentSaver.guard` set up; it stands until `remove()`, or the end of its `with` block.

    Attributes:
        on_change: what happens to a run that would lose a task.
    """

    def __init__(self, watch: Watch, view: View, on_change: OnChange) -> None:
        self.on_change = on_change
        self._watch = watch
        self._entry = (view, on_change)
        watch.guards.append(self._entry)

    def remove(self) -> None:
        """Take the guard away. Harmless when it is away already."""
        self._watch.guards[:] = [one for one in self._watch.guards if one is not self._entry]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        self.remove()


class CompatOps(Plumbing):
    """The part of AgentSaver that is about changes of the program."""

    def guard(self, graph: Any, *, on_change: OnChange = "raise") -> Guard:
        """Check each run that restores a thread through this saver, before a node of it runs.

        Each run is checked against the graph that runs (a subgraph against its own); `graph` counts
        where that can't be seen. Refused are a task that waits for a node which is gone (LangGraph would
        end the thread without a word), a finished task's write to a channel that is gone, and a stored
        value that its channel can't take. Other differences are told once each by SchemaChangeWarning:
        channels and nodes that are gone, and values of another kind than their channel declares.

        Args:
            graph: the compiled graph.
            on_change: `"raise"` SchemaChangeError for those three, `"warn"` of them too, or `"ignore"`
                them, so that only `on_schema_change` counts.

        Raises:
            UsageError: for something that is no compiled graph.
        """
        if on_change not in ("raise", "warn", "ignore"):
            raise UsageError(f"guard: on_change must be 'raise', 'warn' or 'ignore', got {on_change!r}")
        return Guard(self._store.code.watch, compat.view_of(graph, "guard"), on_change)

    def check(self, graph: Any, thread_id: Thread | None = None) -> CheckReport:
        """Whether a graph can go on from the head of each thread, and what differs. Reads only.

        Subgraphs are checked where the head goes on inside them.

        Args:
            graph: the compiled graph.
            thread_id: one thread, or a config that holds it; None for all.

        Raises:
            UsageError: for something that is no compiled graph, or a thread that isn't stored.
        """
        return self._run(compat.check(self._store, graph, thread_id))

    async def acheck(self, graph: Any, thread_id: Thread | None = None) -> CheckReport:
        """`check`, async."""
        return await self._arun(compat.check(self._store, graph, thread_id))

    def written_by(self, config: RunnableConfig) -> dict[str, str | None]:
        """The versions that a checkpoint, or the head, was written with.

        Returns:
            Package names and `"python"` to versions; empty for a checkpoint that was brought in from
            elsewhere, or isn't stored.
        """
        return self._run(compat.written_by(config))

    async def awritten_by(self, config: RunnableConfig) -> dict[str, str | None]:
        """`written_by`, async."""
        return await self._arun(compat.written_by(config))

    def restore_captured(self, config: RunnableConfig) -> Captured:
        """Put back what was captured with a checkpoint (option `capture`), before going on from it.

        Generators' states and the variables named by `env:NAME` are set in this process; functions are
        called with what they gave. The values of `env:*` are only told. What is declared and not stored,
        and the reverse, is told by CaptureWarning and in the result.

        Args:
            config: names the checkpoint, or only the thread for its head.

        Raises:
            UsageError: when there is no such checkpoint, or a stored state is refused.
        """
        return self._run(compat.restore_captured(self._store, config))

    async def arestore_captured(self, config: RunnableConfig) -> Captured:
        """`restore_captured`, async. A random generator's state belongs to the process, not to the task."""
        return await self._arun(compat.restore_captured(self._store, config))
