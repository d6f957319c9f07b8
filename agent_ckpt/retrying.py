"""Running a graph again when another session was first: `invoke` and `ainvoke`."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Mapping
from typing import Any

from langgraph.types import Command

from agent_ckpt.errors import ThreadConflictError, UsageError
from agent_ckpt.restore_rules import EXPECTED_REVISION

ATTEMPTS = 20
_FIRST_S = 0.02
_LONGEST_S = 1.0
# Not the program's own generator: what a node draws must not depend on how long a lock was held.
_random = random.SystemRandom()


def invoke(graph: Any, input: Any, config: Mapping[str, Any], *, attempts: int = ATTEMPTS, **kwargs: Any) -> Any:
    """`graph.invoke`, tried again when another session wrote the thread first or is still going.

    Each try restores the thread anew, so it starts from the newest state. Between two tries it
    waits, holding nothing: a random time from 0 to 0.02 s, 0.04 s, 0.08 s, ..., 1 s at most.

    Tried again is only what stored nothing: not a run that had stored its input before it was
    overtaken (`wrote`), not on a thread that was deleted, not what `expected_revision` or
    `stale_checkpoint` refused, and not a fixed `Command(resume=...)`, whose question somebody else
    has answered. Nodes of a refused try may have run; see docs/conflicts.md, "Side effects".

    Args:
        graph: a compiled graph with a checkpointer.
        input: what `invoke` takes, or a callable that makes it from the thread's StateSnapshot at
            each try. With an AgentSaver the run is accepted only if the thread still stands where
            the callable saw it.
        config: names the thread.
        attempts: how often to try at most, the first time included.
        **kwargs: passed on to `graph.invoke`, such as `durability="sync"`.

    Returns:
        What `graph.invoke` returns.

    Raises:
        ThreadConflictError: the last one, with `attempts` among its fields: how often it was tried.
        UsageError: for `attempts` below 1.
    """
    tries = _Tries(graph, input, config, attempts)
    while True:
        try:
            if not tries.makes_input:
                return graph.invoke(input, config, **kwargs)
            saver = tries.saver
            expected = saver.revision(config) if saver is not None else None
            given = input(graph.get_state(config))
            return graph.invoke(given, tries.expecting(expected), **kwargs)
        except ThreadConflictError as lost:
            pause = tries.pause_after(lost)
        time.sleep(pause)


async def ainvoke(graph: Any, input: Any, config: Mapping[str, Any], *, attempts: int = ATTEMPTS, **kwargs: Any) -> Any:
    """`invoke`, async: with `graph.ainvoke`. A callable that makes the input may be a coroutine function."""
    tries = _Tries(graph, input, config, attempts)
    while True:
        try:
            if not tries.makes_input:
                return await graph.ainvoke(input, config, **kwargs)
            saver = tries.saver
            expected = await saver.arevision(config) if saver is not None else None
            given = input(await graph.aget_state(config))
            if asyncio.iscoroutine(given):
                given = await given
            return await graph.ainvoke(given, tries.expecting(expected), **kwargs)
        except ThreadConflictError as lost:
            pause = tries.pause_after(lost)
        await asyncio.sleep(pause)


class _Tries:
    """What the sync and the async form share: how often, how long to wait, and what is not tried again."""

    def __init__(self, graph: Any, input: Any, config: Mapping[str, Any], attempts: int) -> None:
        if isinstance(attempts, bool) or not isinstance(attempts, int) or attempts < 1:
            raise UsageError(f"attempts must be a whole number of at least 1, got {attempts!r}")
        self.makes_input = callable(input)
        saver = getattr(graph, "checkpointer", None)
        self.saver = saver if hasattr(saver, "revision") else None
        self._config = config
        self._attempts = attempts
        self._tried = 0
        self._answers = isinstance(input, Command) and input.resume is not None
        self._own_word = (config.get("configurable") or {}).get(EXPECTED_REVISION) is not None

    def expecting(self, revision: int | None) -> Mapping[str, Any]:
        """The config of a try whose input was made from the thread at a revision."""
        if revision is None or self._own_word:
            return self._config
        conf = {**self._config["configurable"], EXPECTED_REVISION: revision}
        return {**self._config, "configurable": conf}

    def pause_after(self, lost: ThreadConflictError) -> float:
        """Seconds to wait before the next try.

        Raises:
            ThreadConflictError: when there is none.
        """
        self._tried += 1
        if self._tried >= self._attempts or not self._can_help(lost):
            times = "once" if self._tried == 1 else f"{self._tried} times"
            raise ThreadConflictError(
                f"{lost.message} Tried {times}.", **{**lost.fields, "attempts": self._tried}
            ) from lost
        return _random.uniform(0, min(_LONGEST_S, _FIRST_S * 2 ** (self._tried - 1)))

    def _can_help(self, lost: ThreadConflictError) -> bool:
        if lost.wrote or self._answers:
            return False
        if lost.reason == "expected_revision":
            return self.makes_input and not self._own_word
        # A stale one that expected no revision named a checkpoint, which would be as old the next time.
        return lost.reason in ("busy", "leased") or (lost.reason == "stale" and lost.expected is not None)
