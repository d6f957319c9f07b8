"""How many statements one put, one get_tuple and one page of list run, by the length of the thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from langchain_core.messages import BaseMessage, HumanMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import Checkpoint, empty_checkpoint
from langgraph.checkpoint.base.id import uuid6

from tests.agents import Saver
from tests.bench.heads import Run
from tests.bench.report import Table
from tests.bench.savers import OURS

LENGTHS = (10, 100, 1000)
ADDED = (1, 8, 32)
PAGE = 10


@contextmanager
def statements(saver: Any) -> Iterator[list[str]]:
    """Collect the names of the statements that calls of our saver run, executemany once per execution."""
    seen: list[str] = []
    backend = saver._backend
    before = backend.on_statement

    def note(name: str) -> None:
        # What folds the WAL in the background belongs to no call.
        if threading.current_thread().name != "agent_ckpt-wal":
            seen.append(name)

    backend.on_statement = note
    try:
        yield seen
    finally:
        backend.on_statement = before


class Chain:
    """A thread grown through the saver's own calls, one checkpoint per message or more."""

    def __init__(self, saver: Saver, thread_id: str) -> None:
        self.saver = saver
        self.config: RunnableConfig = {"configurable": {"thread_id": thread_id, "checkpoint_ns": ""}}
        self.messages: list[BaseMessage] = []
        self.version: str | None = None
        self.step = -1

    def put(self, new: int) -> None:
        """Put a checkpoint whose messages have `new` more items than the last one's."""
        self.step += 1
        for _ in range(new):
            number = len(self.messages)
            self.messages = [*self.messages, HumanMessage(f"message {number} of the thread", id=f"m{number}")]
        self.version = self.saver.get_next_version(self.version, None)
        assert self.version is not None
        checkpoint: Checkpoint = {
            **empty_checkpoint(),
            "id": str(uuid6(clock_seq=self.step)),
            "channel_values": {"messages": self.messages},
            "channel_versions": {"messages": self.version},
        }
        versions: dict[str, str | int | float] = {"messages": self.version}
        metadata: Any = {"source": "loop", "step": self.step, "parents": {}}
        self.config = self.saver.put(self.config, checkpoint, metadata, versions)


def counts(saver: Saver, length: int) -> dict[str, int]:
    """Statements per call on a thread of `length` checkpoints: put by number of new items, get_tuple, list page."""
    chain = Chain(saver, f"calls-{length}")
    for _ in range(length):
        chain.put(1)
    thread: RunnableConfig = {"configurable": {"thread_id": f"calls-{length}"}}

    def counted(call: Callable[[], Any]) -> int:
        with statements(saver) as seen:
            call()
        return len(seen)

    found = {f"put {new}": counted(lambda new=new: chain.put(new)) for new in ADDED}  # type: ignore[misc]
    found["get_tuple"] = counted(lambda: saver.get_tuple(thread))
    found["list page"] = counted(lambda: list(saver.list(thread, limit=PAGE)))
    return found


def tables(run: Run) -> list[Table]:
    if OURS not in run.contenders:
        return []
    table = Table(
        "calls",
        f"statements of ours per call (executemany counts each execution); a list page is {PAGE} checkpoints",
        ["checkpoints in the thread", *[f"put of {new} new" for new in ADDED], "get_tuple", "list page"],
    )
    found: dict[int, dict[str, int]] = {}
    with OURS.open(run.path("calls")) as saver:
        for length in LENGTHS:
            found[length] = counts(saver, length)
            table.add(length, *found[length].values())
    table.budget(
        "put: statements beyond the new items", max(f[f"put {new}"] - new for f in found.values() for new in ADDED), 8
    )
    for name in ("get_tuple", "list page"):
        each = [f[name] for f in found.values()]
        table.budget(f"{name}: difference between thread lengths", max(each) - min(each), 0)
    return [table]
