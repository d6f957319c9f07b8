"""Graphs for official savers, also of old releases: `python -m tests.official_graphs PLAIN ENCRYPTED KEY`.

It runs in the environment of the release that is to write the two files, so it imports nothing of ours, and only what
all those releases have. KEY is the AES key of the second one's EncryptedSerializer.
"""

from __future__ import annotations

import operator
import sqlite3
import sys
from contextlib import closing
from datetime import UTC, datetime
from decimal import Decimal
from typing import Annotated, Any, TypedDict
from uuid import UUID

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import Command, interrupt

FINISHED, OPEN, FANNED = "finished", "open \u00e9'\"%", "fanned"
QUESTION = {"refund": 12, "to": ("a", 1)}


class State(TypedDict):
    messages: Annotated[list[AnyMessage], add_messages]
    log: Annotated[list[str], operator.add]
    kept: dict[str, Any]


def think(state: State) -> dict[str, Any]:
    kept = {"id": UUID(int=7), "at": datetime(2026, 1, 2, tzinfo=UTC), "sum": Decimal("1.50"), "set": {1, 2}}
    call = {"name": "refund", "args": {"n": 1}, "id": "call_1"}
    return {"messages": [AIMessage("I ask first.", tool_calls=[call], id="ai-1")], "kept": kept, "log": ["think"]}


def ask(state: State) -> dict[str, Any]:
    return {"log": [f"answered {interrupt(QUESTION)}"]}


def build(saver: Any) -> Any:
    """think, then a subgraph that asks a person, then done; `left` and `right` run beside it."""
    inner = StateGraph(State)
    inner.add_node("ask", ask)
    inner.add_edge(START, "ask")
    outer = StateGraph(State)
    outer.add_node("think", think)
    outer.add_node("sub", inner.compile())
    outer.add_node("left", lambda state: {"log": ["left"]})
    outer.add_node("right", lambda state: {"log": ["right"]})
    outer.add_node("done", lambda state: {"messages": [AIMessage("Done.", id="ai-2")], "log": ["done"]})
    outer.add_edge(START, "think")
    for name in ("right", "left", "sub"):
        outer.add_edge("think", name)
    outer.add_edge("sub", "done")
    outer.add_edge("done", END)
    return outer.compile(checkpointer=saver)


def config(thread_id: str) -> dict[str, Any]:
    return {"configurable": {"thread_id": thread_id}}


def run_threads(saver: Any) -> None:
    """One thread that was answered, one whose interrupt is open, and one with three turns and a fork."""
    graph = build(saver)
    start = {"messages": [HumanMessage("Please refund me.", id="user-1")], "log": ["start"]}
    for thread_id in (FINISHED, OPEN, FANNED):
        graph.invoke(start, config(thread_id))
    graph.invoke(Command(resume="yes"), config(FINISHED))
    graph.invoke(Command(resume="first"), config(FANNED))
    older = list(graph.get_state_history(config(FANNED)))[-2].config
    graph.update_state(older, {"log": ["forked"]}, as_node="think")
    graph.invoke(None, config(FANNED))


def write(path: str, key: str | None = None) -> None:
    """Let the official saver write a file, encrypted where there is a key."""
    from langgraph.checkpoint.sqlite import SqliteSaver

    serde = None
    if key is not None:
        from langgraph.checkpoint.serde.encrypted import EncryptedSerializer

        serde = EncryptedSerializer.from_pycryptodome_aes(key=key.encode())
    with closing(sqlite3.connect(path, check_same_thread=False)) as connection:
        run_threads(SqliteSaver(connection, serde=serde))


if __name__ == "__main__":
    write(sys.argv[1])
    write(sys.argv[2], sys.argv[3])
