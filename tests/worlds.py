"""The same script on InMemorySaver and on AgentSaver: what it observes must be equal, ids numbered by appearance."""

from __future__ import annotations

import asyncio
import dataclasses
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from langchain_core.messages import BaseMessage
from langgraph.checkpoint.memory import InMemorySaver

from agent_ckpt import AgentSaver
from tests.agents import Graph
from tests.conftest import Api, assert_sound

_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|[0-9a-f]{32}")
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(\+00:00|Z)?")
_PLACE = ("thread_id", "checkpoint_ns", "checkpoint_id")


class Numbered:
    """Makes values comparable between two runs: every random id becomes the number of its first appearance."""

    def __init__(self) -> None:
        self._ids: dict[str, str] = {}

    def __call__(self, value: Any) -> Any:
        if isinstance(value, str):
            text = _TIME.sub("TIME", str(value))
            return _ID.sub(lambda found: self._ids.setdefault(found[0], f"#{len(self._ids)}"), text)
        if isinstance(value, BaseMessage):
            return [type(value).__name__, self(value.model_dump())]
        if isinstance(value, dict):
            if "configurable" in value:
                return {key: self(value["configurable"].get(key)) for key in _PLACE}
            return {self(key): self(item) for key, item in value.items()}
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return {name: self(getattr(value, name)) for name in value._fields}
        if isinstance(value, (list, tuple)):
            return [self(item) for item in value]
        if isinstance(value, (set, frozenset)):
            return {"set": sorted(map(repr, value))}
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return {field.name: self(getattr(value, field.name)) for field in dataclasses.fields(value)}
        if hasattr(value, "__slots__") and type(value).__module__.startswith("langgraph"):
            return {name: self(getattr(value, name)) for name in value.__slots__ if hasattr(value, name)}
        if isinstance(value, BaseException):
            return [type(value).__name__, self(str(value))]
        return value


class World(Api):
    """One of the two savers, and everything that a script does with it.

    Attributes:
        seen: what the script observed, ids numbered.
    """

    def __init__(self, saver: Any, form: str, path: Path | None = None) -> None:
        super().__init__(saver, form)
        self._path = path
        self._numbered = Numbered()
        self.seen: list[Any] = []

    def restart(self) -> None:
        """Close the saver and open its file with a new one; in memory nothing happens."""
        if self._path is not None:
            self.saver.close()
            self.saver = AgentSaver(self._path, create=False)

    def note(self, value: Any) -> Any:
        """Observe a value."""
        self.seen.append(self._numbered(value))
        return value

    def note_history(self, graph: Graph, config: Any) -> list[Any]:
        """Observe a thread's whole history, what is stored of it, and its current state with its subgraphs'."""
        for item in self.list({"configurable": {**config["configurable"], "checkpoint_ns": ""}}):
            stored = {key: item.checkpoint.get(key) for key in ("id", "ts", "channel_values", "updated_channels")}
            self.note([stored, item.metadata, item.pending_writes, item.parent_config])
        self.note(self.get_state(graph, config, subgraphs=True))
        return self.note(self.history(graph, config))

    def note_call(self, graph: Graph, *args: Any, **kwargs: Any) -> Any:
        """Observe what invoke returns or raises."""
        try:
            return self.note(self.invoke(graph, *args, **kwargs))
        except Exception as exc:
            self.note(exc)
            return exc

    def stream(self, graph: Graph, *args: Any, **kwargs: Any) -> list[Any]:
        if self.form == "sync":
            return list(graph.stream(*args, **kwargs))

        async def collect() -> list[Any]:
            return [item async for item in graph.astream(*args, **kwargs)]

        return asyncio.run(collect())

    def bulk_update(self, graph: Graph, *args: Any) -> Any:
        if self.form == "sync":
            return graph.bulk_update_state(*args)
        return asyncio.run(graph.abulk_update_state(*args))


def both(path: Path, form: str, script: Callable[[World], None]) -> list[Any]:
    """Run a script on InMemorySaver and on an AgentSaver, check that it observed the same, verify the store."""
    memory = World(InMemorySaver(), form)
    script(memory)
    ours = World(AgentSaver(path), form, path)
    try:
        script(ours)
    finally:
        ours.saver.close()
    assert_sound(path)
    assert memory.seen, "the script observed nothing"
    assert ours.seen == memory.seen, _difference(ours.seen, memory.seen, "seen")
    return ours.seen


def _difference(ours: Any, theirs: Any, path: str) -> str:
    """Where two observations differ first."""
    if type(ours) is type(theirs) and isinstance(ours, dict) and ours.keys() == theirs.keys():
        parts = [(f"{path}[{key!r}]", ours[key], theirs[key]) for key in ours]
    elif isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        parts = [(f"{path}[{at}]", one, other) for at, (one, other) in enumerate(zip(ours, theirs, strict=True))]
    else:
        return f"{path}: ours {ours!r:.700}, InMemorySaver's {theirs!r:.700}"
    return next((_difference(one, other, at) for at, one, other in parts if one != other), path)
