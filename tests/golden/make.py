"""Makes the golden store of this release's format: `python -m tests.golden.make`, from the project's root.

Made once per stored format and never again: what a release wrote must be read by every later one. `EXPECTED` is what
the store must give back; the checkpoint ids and times in it are fixed, so that a second run writes the same values.
"""

from __future__ import annotations

import sqlite3
import sys
from contextlib import closing
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np
from langchain_core import messages as lc
from langgraph.checkpoint.serde.types import _DeltaSnapshot

from agent_ckpt import AgentSaver
from agent_ckpt.codec.frame import FORMAT_VERSION
from agent_ckpt.sqlite.versions import SCHEMA_VERSION
from tests import typed_kinds

HERE = Path(__file__).parent
NAME = f"format{FORMAT_VERSION}-schema{SCHEMA_VERSION}.db"
TIME = "2026-01-02T03:04:05.678901+00:00"


def number_text(size: int) -> str:
    """A long text that is the same everywhere and always."""
    return " ".join(str(i * i * 7919 % 10_007) for i in range(size))


def conversation(upto: int) -> list[Any]:
    made: list[Any] = []
    for i in range(upto):
        made.append(lc.HumanMessage(f"question {i}: naïve 🙂?", id=f"h{i}"))
        call: Any = {"name": "search", "args": {"q": f"q{i}"}, "id": f"c{i}", "type": "tool_call"}
        made.append(lc.AIMessage("", id=f"a{i}", tool_calls=[call], usage_metadata=None))
        made.append(lc.ToolMessage(f"found {i}", tool_call_id=f"c{i}", id=f"t{i}", artifact={"rows": [i, None]}))
    return made


def states() -> list[dict[str, Any]]:
    """The channel values of each checkpoint of the main thread, oldest first: one of every way to be stored."""
    array = np.arange(600.0).reshape(20, 30) / 7
    first: dict[str, Any] = {
        "messages": conversation(60),
        "files": {f"dir/file{i}.txt": f"content {i} " * 100 for i in range(40)},
        "text": number_text(20_000),
        "raw": number_text(9_000).encode(),
        "array": array,
        "tiny": 1,
        "none": None,
        "plain": {"a": [1, 2.5, True, None, b"\x00\xff", "é"], "b": {}},
        "id": UUID(int=7),
        "set": {3},
        "snapshot": _DeltaSnapshot([f"item {i} of a snapshot" for i in range(100)]),
        "system": [lc.SystemMessage("be kind"), lc.AIMessageChunk("part", id="x"), lc.RemoveMessage(id="h0")],
    }
    changed = np.nextafter(array, np.inf)
    second = {**first, "messages": conversation(61), "array": changed, "tiny": 2, "text": "!" + first["text"]}
    third = {**second, "files": {**second["files"], "dir/file7.txt": "changed"}, "tiny": 3}
    return [first, second, third]


def writes() -> list[tuple[str, list[tuple[str, Any]], str, str]]:
    """Pending writes of the newest checkpoint: config run id, writes, task id, task path."""
    return [
        ("run-1", [("messages", [lc.AIMessage("written", id="w")]), ("branch:to:x", None)], "task-b", "~b"),
        ("", [("__interrupt__", ["stop?"]), ("__error__", "boom " * 20)], "0e3f6c8e-1111-4222-8333-444455556666", "~a"),
    ]


def checkpoint(number: int, values: dict[str, Any], versions: dict[str, Any]) -> Any:
    return {
        "v": 4,
        "id": f"1f0e8c00-0000-6000-8000-{number:012}",
        "ts": TIME,
        "channel_values": values,
        "channel_versions": versions,
        "versions_seen": {"agent": {"messages": 1}, "__input__": {}},
        "updated_channels": ["messages", "tiny"],
    }


def versions_of(states: list[dict[str, Any]]) -> dict[str, Any]:
    """Channel versions at the last of these states: how far each channel's newest change is from the start."""
    versions: dict[str, Any] = {}
    before: dict[str, Any] = {}
    for number, values in enumerate(states, 1):
        versions.update({name: number for name, value in values.items() if before.get(name, versions) is not value})
        before = values
    return versions


def build(path: Path) -> None:
    """Write the golden store."""
    with AgentSaver(path, plaintext_secrets="allow") as saver:
        config: Any = {"configurable": {"thread_id": "golden", "checkpoint_ns": ""}}
        all_states = states()
        for number, values in enumerate(all_states, 1):
            made = checkpoint(number, values, versions_of(all_states[:number]))
            metadata = {"source": "loop", "step": number, "parents": {}, "user": "Zoë", "run_id": f"run-{number}"}
            config = saver.put(config, made, metadata, made["channel_versions"])  # type: ignore[arg-type]
        for run_id, items, task_id, task_path in writes():
            conf = {**config["configurable"], **({"run_id": run_id} if run_id else {})}
            saver.put_writes({"configurable": conf}, items, task_id, task_path)
        inner = {"configurable": {"thread_id": "golden", "checkpoint_ns": "sub:1"}}
        saver.put(
            inner,
            checkpoint(9, {"inner": "x" * 100}, {"inner": "0001.5"}),
            {"source": "input", "step": -1},
            {"inner": 1},
        )
        delta: Any = {"configurable": {"thread_id": "pruned", "checkpoint_ns": ""}}
        for number in range(1, 4):
            made = checkpoint(number, {"x": number}, {"x": number, "d": number})
            counters = {"counters_since_delta_snapshot": {"d": (number, number)}}
            delta = saver.put(delta, made, {"source": "loop", "step": number, **counters}, {"x": number})  # type: ignore[typeddict-unknown-key]
            saver.put_writes(delta, [("d", f"delta {number} " * 9)], f"task-{number}")
        saver.prune(["pruned"])
        kinds = checkpoint(1, typed_kinds.PORTABLE, dict.fromkeys(typed_kinds.PORTABLE, 1))
        saver.put({"configurable": {"thread_id": "kinds", "checkpoint_ns": ""}}, kinds, {}, kinds["channel_versions"])
        assert saver.verify(), saver.verify().findings
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("VACUUM")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    path.with_name(path.name + "-lock").unlink(missing_ok=True)


def main() -> None:
    target = HERE / NAME
    if target.exists():
        sys.exit(f"{target} exists: a golden store is never made again. Raise format_version or schema_version first.")
    build(target)


if __name__ == "__main__":
    main()
