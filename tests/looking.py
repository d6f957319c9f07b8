"""What a test sees of a store: comparable forms of tuples, states and row counts."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

from langchain_core.messages import BaseMessage
from langgraph.types import StateSnapshot

from tests.conftest import Api

TABLES = ("threads", "spaces", "checkpoints", "writes", "blobs")


def thread(thread_id: str, **more: Any) -> dict[str, Any]:
    """The config of a thread; `more` goes into its configurable."""
    return {"configurable": {"thread_id": thread_id, **more}}


def run(thread_id: str, run_id: str, **more: Any) -> dict[str, Any]:
    """The config of one run of a thread, named in its metadata as LangGraph's server does."""
    return {**thread(thread_id, **more), "metadata": {"run_id": run_id}}


def counts(path: Path) -> dict[str, int]:
    """Rows of each table of a store."""
    with closing(sqlite3.connect(path)) as db:
        return {name: db.execute(f"SELECT count(*) FROM {name}").fetchone()[0] for name in TABLES}


def seen(item: Any) -> tuple[Any, ...]:
    """Everything of a checkpoint tuple but its thread."""
    conf = item.config["configurable"]
    parent = item.parent_config["configurable"]["checkpoint_id"] if item.parent_config else None
    return (
        conf["checkpoint_ns"],
        conf["checkpoint_id"],
        parent,
        dict(item.checkpoint),
        dict(item.metadata),
        list(item.pending_writes or []),
    )


def dump(api: Api, thread_id: str) -> list[tuple[Any, ...]]:
    """Every checkpoint of a thread, newest first."""
    return [seen(item) for item in api.list(thread(thread_id))]


def heads(api: Api, thread_id: str) -> dict[str, tuple[Any, ...]]:
    """The head of each namespace of a thread."""
    found: dict[str, tuple[Any, ...]] = {}
    for item in dump(api, thread_id):
        found.setdefault(item[0], item)
    return found


def plain(value: Any) -> Any:
    """A value with the random ids of its messages left out."""
    if isinstance(value, BaseMessage):
        return (value.type, value.content, plain(getattr(value, "tool_calls", None)), getattr(value, "name", None))
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value


def view(state: StateSnapshot) -> dict[str, Any]:
    """What a state tells, without ids and times: comparable between two threads or two savers."""
    metadata = dict(state.metadata or {})
    return {
        "values": plain(state.values),
        "next": state.next,
        "tasks": [
            (
                task.name,
                len(task.path),
                task.error and (type(task.error).__name__ if isinstance(task.error, BaseException) else task.error),
                [plain(each.value) for each in task.interrupts],
                view(task.state) if isinstance(task.state, StateSnapshot) else task.state is not None,
                plain(task.result),
            )
            for task in state.tasks
        ],
        "source": metadata.get("source"),
        "step": metadata.get("step"),
        "interrupts": [plain(each.value) for each in state.interrupts],
        "has_parent": state.parent_config is not None,
    }


def history(api: Api, graph: Any, config: dict[str, Any]) -> list[dict[str, Any]]:
    """A thread's states, newest first, and for each the distance to its parent in the list (None: not listed)."""
    states = api.history(graph, config)
    at = {state.config["configurable"]["checkpoint_id"]: index for index, state in enumerate(states)}
    shown = []
    for index, state in enumerate(states):
        parent = state.parent_config and at.get(state.parent_config["configurable"]["checkpoint_id"])
        shown.append({**view(state), "parent": parent - index if parent is not None else None})
    return shown
