"""A graph that `agent-ckpt check` can import: one channel, one node."""

from __future__ import annotations

from typing import TypedDict

from langgraph.graph import START, StateGraph

State = TypedDict("State", {"x": int})
graph = StateGraph(State).add_node("one", lambda state: state).add_edge(START, "one").compile()
