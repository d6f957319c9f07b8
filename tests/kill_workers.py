"""Processes to be killed: one that writes and tells of each call that returned, and one that kills itself in a node."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import warnings
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Annotated, Any, TypedDict

from langgraph.checkpoint.base import empty_checkpoint
from langgraph.graph import START, StateGraph

from agent_ckpt import AgentSaver

THREAD = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}


def text_of(number: int) -> str:
    """A few kB that differ from number to number, so that a commit has several pages."""
    return random.Random(number).randbytes(1500 + number % 7 * 400).hex()


def writes_of(number: int) -> list[tuple[str, Any]]:
    return [("a", number), ("b", text_of(number)), ("c", [number] * 5)]


def write_on(saver: AgentSaver, tell: Callable[[str, int], Any], stop_at: int | None = None) -> None:
    """Put checkpoints with their writes for ever, one numbered higher than the other; tell of each that is stored."""
    found = saver.get_tuple(THREAD)
    number = found.checkpoint["channel_values"]["n"] if found is not None else 0
    config: Any = found.config if found is not None else THREAD
    log = list(found.checkpoint["channel_values"]["log"]) if found is not None else []
    while stop_at is None or number < stop_at:
        number += 1
        log.append(f"entry {number}")
        made = empty_checkpoint()
        made["channel_values"] = {"n": number, "text": text_of(number), "log": log}
        made["channel_versions"] = dict.fromkeys(made["channel_values"], number)
        metadata: Any = {"source": "loop", "step": number, "parents": {}}
        config = saver.put(config, made, metadata, made["channel_versions"])
        tell("put", number)
        saver.put_writes(config, writes_of(number), f"task {number}")
        tell("writes", number)


def writer(path: Path, options: dict[str, Any], connection: Connection, stop_at: int | None = None) -> None:
    """`write_on` in a process of its own, that tells over a pipe."""
    warnings.simplefilter("error")
    connection.send(("started", 1))
    saver = AgentSaver(path, **options)
    write_on(saver, lambda what, number: connection.send((what, number)), stop_at)
    # Without close, and without the interpreter's own ends.
    os._exit(0)


class Log(TypedDict):
    log: Annotated[list[str], lambda old, new: old + new]


def crash_graph(saver: Any, effects: Path, crash: bool) -> Any:
    """a writes a line to a file; b kills its process the first time; c ends."""

    def effect(name: str) -> dict[str, Any]:
        with effects.open("a") as lines:
            lines.write(name + "\n")
        return {"log": [name]}

    def b(state: Log) -> Any:
        if crash:
            os.kill(os.getpid(), signal.SIGKILL)
        return effect("b")

    builder: StateGraph[Any, Any, Any, Any] = StateGraph(Log)
    builder.add_node("a", lambda state: effect("a"))
    builder.add_node("b", b)
    builder.add_node("c", lambda state: effect("c"))
    builder.add_edge(START, "a")
    builder.add_edge("a", "b")
    builder.add_edge("b", "c")
    return builder.compile(checkpointer=saver)


def crash_in_b(path: Path, effects: Path, form: str) -> None:
    graph = crash_graph(AgentSaver(path), effects, crash=True)
    if form == "sync":
        graph.invoke({"log": []}, THREAD, durability="sync")
    else:
        asyncio.run(graph.ainvoke({"log": []}, THREAD, durability="sync"))
