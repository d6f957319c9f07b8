"""A thread driven through a saver's own methods, as LangGraph drives it, and looks into the file beside it."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

from langgraph.checkpoint.base import Checkpoint, empty_checkpoint


def checkpoint_of(values: dict[str, Any], versions: dict[str, Any], **fields: Any) -> Checkpoint:
    """A checkpoint with a new id that holds these values."""
    made: dict[str, Any] = {**empty_checkpoint(), "channel_values": dict(values), "channel_versions": dict(versions)}
    made.update(fields)
    return made  # type: ignore[return-value]


class Thread:
    """Puts one checkpoint after the other on one thread and namespace.

    Attributes:
        config: the config of the newest one.
        configs: the configs of all, oldest first.
        values, versions: the channels as they stand.
    """

    def __init__(self, api: Any, thread_id: str = "t", ns: str = "") -> None:
        self.api = api
        self.at = {"configurable": {"thread_id": thread_id, "checkpoint_ns": ns}}
        self.config: Any = self.at
        self.configs: list[Any] = []
        self.values: dict[str, Any] = {}
        self.versions: dict[str, int] = {}

    def put(self, **values: Any) -> Any:
        """Store the next checkpoint, in which these channels changed."""
        self.values.update(values)
        changed = {name: self.versions.get(name, 0) + 1 for name in values}
        self.versions.update(changed)
        metadata = {"source": "loop", "step": len(self.configs), "parents": {}}
        made = checkpoint_of(self.values, self.versions)
        self.config = self.api.put(self.config, made, metadata, changed)
        self.configs.append(self.config)
        return self.config

    def writes(self, *writes: tuple[str, Any], task: str = "task-1", path: str = "") -> None:
        """Store a task's writes to the newest checkpoint."""
        self.api.put_writes(self.config, list(writes), task, path)


def plain(config: Any) -> dict[str, Any]:
    """A config as a user would write it: the same place, without a session."""
    return {"configurable": {key: str(value) for key, value in config["configurable"].items()}}


def values_at(api: Any, config: Any) -> dict[str, Any]:
    """The channel values that are stored at a config's place."""
    found = api.get_tuple(plain(config))
    assert found is not None, f"nothing is stored at {config}"
    return found.checkpoint["channel_values"]  # type: ignore[no-any-return]


def query(path: Path, sql: str, *params: Any) -> list[tuple[Any, ...]]:
    """Run one statement on the file beside the saver, and commit it."""
    with closing(sqlite3.connect(path)) as connection, connection:
        return connection.execute(sql, params).fetchall()


def blob_bytes(path: Path) -> int:
    """Bytes of all stored blobs, and of the packs that some stand in."""
    (total,) = query(
        path,
        "SELECT (SELECT coalesce(sum(length(frame)), 0) FROM blobs)"
        " + (SELECT coalesce(sum(length(frame)), 0) FROM packs)",
    )[0]
    return int(total)


def row_bytes(path: Path) -> int:
    """Bytes of all stored rows: blobs, packs, checkpoints and writes."""
    (total,) = query(
        path,
        "SELECT (SELECT coalesce(sum(length(frame) + 24), 0) FROM blobs)"
        " + (SELECT coalesce(sum(length(frame) + 24), 0) FROM packs)"
        " + (SELECT coalesce(sum(length(frame) + 40), 0) FROM checkpoints)"
        " + (SELECT coalesce(sum(length(frame) + 40), 0) FROM writes)",
    )[0]
    return int(total)
