"""A graph whose nodes draw random numbers, and a process that is killed in the middle of it."""

from __future__ import annotations

import operator
import os
import random
import signal
import sys
import time
from typing import Annotated, Any, TypedDict

import numpy as np
from langgraph.graph import START, StateGraph

from agent_ckpt import AgentSaver

CONFIG: Any = {"configurable": {"thread_id": "t"}}
NODES = "abcdef"


class State(TypedDict, total=False):
    """The numbers drawn."""

    drawn: Annotated[list[Any], operator.add]


def draw() -> list[Any]:
    return [random.random(), random.gauss(0, 1), float(np.random.random())]


def graph_of(saver: Any, killed_in: str = "", pause_s: float = 0.0) -> Any:
    """A chain of nodes that draw; one may kill its process, after drawing, when what was before it is stored."""
    builder = StateGraph(State)
    before = START
    for name in NODES:

        def node(_: Any, name: str = name) -> dict[str, Any]:
            made = draw()
            if name == killed_in:
                time.sleep(pause_s)
                os.kill(os.getpid(), signal.SIGKILL)
            return {"drawn": made}

        builder.add_node(name, node)
        builder.add_edge(before, name)
        before = name
    return builder.compile(checkpointer=saver)


def seed() -> None:
    random.seed(7)
    np.random.seed(7)


if __name__ == "__main__":
    seed()
    saver = AgentSaver(sys.argv[1], capture=("random", "numpy"))
    # durability="async", LangGraph's default: checkpoints are stored beside the next node, which draws meanwhile.
    graph_of(saver, "d", 1.0).invoke({"drawn": []}, CONFIG, durability=sys.argv[2])  # type: ignore[arg-type]
