"""Contests for one thread: real graphs, and what each of several sessions does to it after its restore.

Shared by the conflict tests (in one process) and the races (many processes). A contestant is a number that its move
leaves in the state, so the final state tells whose move was accepted, and in which order.
"""

from __future__ import annotations

import asyncio
import itertools
import operator
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypedDict

from langchain_core.messages import HumanMessage
from langgraph.graph import START, StateGraph
from langgraph.types import Command, interrupt

from agent_ckpt import AgentSaver
from tests.agents import Graph, Saver, delta_graph, fan_out_graph

FIRST = 100
"""The contestant that makes the thread, where it is made before the contest."""


class MoveState(TypedDict, total=False):
    """Whose moves were accepted, whose turn it is, and whose move went through the work."""

    log: Annotated[list[int], operator.add]
    who: int
    done: int


def _chain(*nodes: tuple[str, Any]) -> StateGraph[Any, Any, Any, Any]:
    builder: StateGraph[Any, Any, Any, Any] = StateGraph(MoveState)
    last = START
    for name, node in nodes:
        builder.add_node(name, node)
        builder.add_edge(last, name)
        last = name
    return builder


def steps_graph(saver: Saver | None) -> Graph:
    """note -> finish."""
    return _chain(
        ("note", lambda state: {"log": [state["who"]]}), ("finish", lambda state: {"done": state["who"]})
    ).compile(checkpointer=saver)


def ask_graph(saver: Saver | None) -> Graph:
    """plan -> ask (interrupts; the answer is the contestant) -> finish."""

    def ask(state: MoveState) -> MoveState:
        answer = interrupt("who?")
        return {"log": [answer], "who": answer}

    return _chain(
        ("plan", lambda state: {"done": -1}), ("ask", ask), ("finish", lambda state: {"done": state["who"]})
    ).compile(checkpointer=saver)


def nested_graph(saver: Saver | None, *, ask: bool = False) -> Graph:
    """before -> inner -> after, where inner is a subgraph with a subgraph, each in a namespace of its own."""

    def work(state: MoveState) -> MoveState:
        return {"done": interrupt("who?") if ask else state["who"]}

    inner: Any = work
    for _ in range(2):
        builder: StateGraph[Any, Any, Any, Any] = StateGraph(SubState)
        builder.add_node("work", inner)
        builder.add_edge(START, "work")
        inner = builder.compile()
    return _chain(
        ("before", lambda state: {"done": -1}), ("inner", inner), ("after", lambda state: {"log": [state["done"]]})
    ).compile(checkpointer=saver)


class SubState(TypedDict, total=False):
    """What a subgraph shares with the graph around it."""

    who: int
    done: int


def _log(values: dict[str, Any]) -> list[int]:
    return list(values.get("log", []))


def _move(who: int) -> Any:
    return {"who": who}


def _answer(who: int) -> Any:
    return Command(resume=who)


@dataclass(frozen=True)
class Contest:
    """One kind of contest.

    Attributes:
        build: makes the graph.
        move: a contestant's input.
        accepted: whose moves a state holds, in order.
        asks: each move answers an interrupt, so a run up to one comes before each contest.
        makes: each contest is for a thread that doesn't exist yet.
        updates: a move is an update_state call.
    """

    build: Callable[[Saver | None], Graph]
    move: Callable[[int], Any] = _move
    accepted: Callable[[dict[str, Any]], list[int]] = _log
    asks: bool = False
    makes: bool = False
    updates: bool = False

    def prepare(self, saver: Saver, config: dict[str, Any], *, again: bool = False) -> list[int]:
        """Bring the thread where the contest begins; whose moves it holds then."""
        graph = self.build(saver)
        if self.asks:
            values = graph.invoke({"who": FIRST}, config)
            assert values["__interrupt__"], "no interrupt to answer"
        elif not (self.makes or again):
            graph.invoke(self.move(FIRST), config)
        return self.state(saver, config)

    def go(self, saver: Saver, config: dict[str, Any], who: int, form: str, durability: Any = None) -> None:
        """Make one contestant's move."""
        graph = self.build(saver)
        if self.updates:
            if form == "sync":
                graph.update_state(config, {"log": [who]}, as_node="note")
            else:
                asyncio.run(graph.aupdate_state(config, {"log": [who]}, as_node="note"))
        elif form == "sync":
            graph.invoke(self.move(who), config, durability=durability)
        else:
            asyncio.run(graph.ainvoke(self.move(who), config, durability=durability))

    def state(self, saver: Saver, config: dict[str, Any]) -> list[int]:
        """Whose moves the head holds."""
        return self.accepted(self.build(saver).get_state(config).values)


CONTESTS: dict[str, Contest] = {
    "new_input": Contest(steps_graph),
    "resume": Contest(ask_graph, _answer, asks=True),
    "new_thread": Contest(steps_graph, makes=True),
    "nested": Contest(nested_graph),
    "nested_resume": Contest(lambda saver: nested_graph(saver, ask=True), _answer, asks=True),
    "fan_out": Contest(
        lambda saver: fan_out_graph(saver, lambda item: item),
        lambda who: {"items": [who, who, who]},
        lambda values: values.get("results", [])[::3],
    ),
    "delta": Contest(
        lambda saver: delta_graph(saver, 4),
        lambda who: {"messages": [HumanMessage(str(who))]},
        lambda values: [int(m.content) for m in values.get("messages", []) if isinstance(m, HumanMessage)],
    ),
    "update_state": Contest(steps_graph, updates=True),
}


class MeetingSaver(AgentSaver):
    """An AgentSaver that calls `met` once, right after its first restore that is a run's own.

    What stands between the restore of a run and its first write is thereby in the test's hands.
    """

    met: Callable[[], None] | None = None

    def _meet(self) -> None:
        met, self.met = self.met, None
        if met is not None:
            met()

    def get_tuple(self, config: Any) -> Any:
        found = super().get_tuple(config)
        self._meet()
        return found

    async def aget_tuple(self, config: Any) -> Any:
        found = await super().aget_tuple(config)
        self._meet()
        return found


def assert_linear(saver: Saver, thread_id: str) -> None:
    """The head's chain of parents is the whole history, in the order of the list.

    Raises:
        AssertionError: when a checkpoint stands beside the chain, or a parent is missing.
    """
    found = list(saver.list({"configurable": {"thread_id": thread_id, "checkpoint_ns": ""}}))
    links = [(item.config, item.parent_config) for item in found]
    for (_, parent), (older, _) in itertools.pairwise(links):
        assert parent is not None, "a chain ends in the middle of the history"
        assert parent["configurable"]["checkpoint_id"] == older["configurable"]["checkpoint_id"], "the history forks"
    if links:
        assert links[-1][1] is None, "the oldest checkpoint's parent is missing"


def contents(path: Path) -> dict[str, list[Any]]:
    """Every row of every table of a store."""
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
        tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
        return {name: sorted(connection.execute(f'SELECT * FROM "{name}"'), key=repr) for name in tables}
