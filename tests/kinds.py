"""Kinds of threads for the tests of whole-thread operations: each is driven by named runs, then goes on."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, TypedDict

from langgraph.channels.delta import DeltaChannel
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, interrupt

from tests.agents import Graph, LogState, Saver, ScriptedModel, approval_graph, call_tool, nested_graph, react_graph
from tests.conftest import Api
from tests.looking import run

Turn = Callable[[Api, Graph, dict[str, Any]], Any]
"""One run of a thread: the caller, the graph, and the run's config."""


@dataclass(frozen=True)
class Kind:
    """One kind of thread.

    Attributes:
        build: makes its graph.
        turns: the runs that make the thread, in order.
        on: the run that follows an operation; it gives a result to compare with a twin's.
    """

    name: str
    build: Callable[[Saver | None], Graph]
    turns: tuple[Turn, ...]
    on: Turn

    def drive(self, api: Api, thread_id: str, turns: int | None = None) -> Graph:
        """Make the thread, or its first turns; run n is named `THREAD/n`."""
        graph = self.build(api.saver)
        for number, turn in enumerate(self.turns[:turns]):
            turn(api, graph, run(thread_id, f"{thread_id}/{number}"))
        return graph

    def go_on(self, api: Api, thread_id: str) -> Any:
        """Let the thread go on with a graph of its own, as another process would."""
        return self.on(api, self.build(api.saver), run(thread_id, f"{thread_id}/on"))


def say(text: str) -> Turn:
    return lambda api, graph, config: api.invoke(graph, {"log": [text]}, config)


def answer(value: Any) -> Turn:
    return lambda api, graph, config: api.invoke(graph, Command(resume=value), config)


def fork(back: int, value: dict[str, Any]) -> Turn:
    """Go back by some states, write a value there, and run on from it."""

    def turn(api: Api, graph: Graph, config: dict[str, Any]) -> Any:
        old = api.history(graph, {"configurable": config["configurable"]})[back]
        at = {"metadata": config["metadata"], "configurable": dict(old.config["configurable"])}
        new = api.update_state(graph, at, value)
        return api.invoke(graph, None, {"metadata": config["metadata"], "configurable": dict(new["configurable"])})

    return turn


def echo_graph(saver: Saver | None) -> Graph:
    """one -> two, each adding a line that tells how many there were, beside a big constant channel."""

    class State(TypedDict):
        log: Annotated[list[str], operator.add]
        constant: str
        count: int

    builder: StateGraph[Any, Any, Any, Any] = StateGraph(State)
    builder.add_node("one", lambda s: {"log": [f"one at {len(s['log'])}"], "constant": s.get("constant") or "c" * 9000})
    builder.add_node("two", lambda s: {"log": [f"two at {len(s['log'])}"], "count": s.get("count", 0) + 1})
    builder.add_edge(START, "one")
    builder.add_edge("one", "two")
    builder.add_edge("two", END)
    return builder.compile(checkpointer=saver)


def remembering_graph(saver: Saver | None) -> Graph:
    """A subgraph with memory of its own (checkpointer=True): its log grows over the outer graph's runs."""

    class Inner(TypedDict):
        mine: Annotated[list[str], operator.add]

    def think(state: Any) -> dict[str, Any]:
        return {"mine": [f"thought {len(state['mine'])}"]}

    inner: StateGraph[Any, Any, Any, Any] = StateGraph(Inner)
    inner.add_node("think", think)
    inner.add_edge(START, "think")
    compiled = inner.compile(checkpointer=True)

    def enter(state: LogState) -> dict[str, Any]:
        return {"log": [", ".join(compiled.invoke({"mine": [state["log"][-1]]})["mine"])]}

    builder: StateGraph[Any, Any, Any, Any] = StateGraph(LogState)
    builder.add_node("enter", enter)
    builder.add_edge(START, "enter")
    return builder.compile(checkpointer=saver)


def asking_subgraph(saver: Saver | None) -> Graph:
    """A subgraph added as a node, inheriting the checkpointer, that asks; two levels deep."""

    class Inner(TypedDict):
        log: Annotated[list[str], operator.add]
        answer: str

    def ask(state: Any) -> dict[str, Any]:
        return {"answer": interrupt({"question": "which?", "step": len(state["log"])})}

    middle: StateGraph[Any, Any, Any, Any] = StateGraph(Inner)
    middle.add_node("prepare", lambda s: {"answer": "none yet"})
    middle.add_node("ask", ask)
    middle.add_edge(START, "prepare")
    middle.add_edge("prepare", "ask")
    outer: StateGraph[Any, Any, Any, Any] = StateGraph(Inner)
    outer.add_node("middle", lambda s: {"answer": middle_compiled.invoke({"log": s["log"]})["answer"]})
    outer.add_node("note", lambda s: {"log": [f"noted {s['answer']}"]})
    outer.add_edge(START, "middle")
    outer.add_edge("middle", "note")
    middle_compiled = middle.compile()
    return outer.compile(checkpointer=saver)


def parallel_asking(saver: Saver | None) -> Graph:
    """Two nodes that ask in the same step, and a third that has finished beside them."""

    def ask(name: str) -> Callable[[Any], dict[str, Any]]:
        return lambda state: {"log": [f"{name}: {interrupt(f'{name}?')}"]}

    builder: StateGraph[Any, Any, Any, Any] = StateGraph(LogState)
    builder.add_node("left", ask("left"))
    builder.add_node("right", ask("right"))
    builder.add_node("quick", lambda s: {"log": ["quick was done"]})
    builder.add_node("join", lambda s: {"log": ["joined"]})
    for name in ("left", "right", "quick"):
        builder.add_edge(START, name)
        builder.add_edge(name, "join")
    return builder.compile(checkpointer=saver)


def answer_all(api: Api, graph: Graph, config: dict[str, Any]) -> Any:
    """Answer every open interrupt by its id."""
    state = api.get_state(graph, {"configurable": config["configurable"]})
    return api.invoke(graph, Command(resume={each.id: f"yes to {each.value}" for each in state.interrupts}), config)


def join_lines(state: list[str] | None, writes: Any) -> list[str]:
    """Delta reducer: append lines."""
    return [*(state or []), *(line for write in writes for line in write)]


def set_keys(state: dict[str, str] | None, writes: Any) -> dict[str, str]:
    """Delta reducer: set keys."""
    merged = dict(state or {})
    for write in writes:
        merged.update(write)
    return merged


def delta_lines(frequency: int, *, ask: bool = False) -> Callable[[Saver | None], Graph]:
    """Two DeltaChannels beside a plain one; three nodes write lines in parallel, one sets keys.

    Args:
        frequency: snapshot_frequency of both.
        ask: the last node asks before it adds its line.
    """

    def build(saver: Saver | None) -> Graph:
        lines = DeltaChannel(join_lines, list, snapshot_frequency=frequency)
        keys = DeltaChannel(set_keys, dict, snapshot_frequency=frequency)
        # Made by call: in the class form the annotations would be looked up as names of this module.
        fields = {"log": Annotated[list[str], lines], "keys": Annotated[dict[str, str], keys], "count": int}
        State: Any = TypedDict("State", fields)  # type: ignore[misc]

        def last(state: Any) -> dict[str, Any]:
            reply = interrupt("go?") if ask else "done"
            return {"log": [f"{reply} at {len(state['log'])}"], "count": state.get("count", 0) + 1}

        builder: StateGraph[Any, Any, Any, Any] = StateGraph(State)
        for name in ("c", "a", "b"):
            builder.add_node(name, lambda s, name=name: {"log": [f"{name} at {len(s['log'])}"]})
            builder.add_edge(START, name)
            builder.add_edge(name, "set")
        builder.add_node("set", lambda s: {"keys": {f"k{len(s['log']) % 4}": s["log"][-1]}})
        builder.add_node("last", last)
        builder.add_edge("set", "last")
        return builder.compile(checkpointer=saver)

    return build


def tool_agent(saver: Saver | None) -> Graph:
    """A ReAct agent whose every turn calls a tool twice."""

    def reply(messages: list[Any]) -> Any:
        done = 0
        for message in reversed(messages):
            if message.type == "human":
                break
            done += message.type == "tool"
        number = len(messages)
        return call_tool("add", f"call-{number}", a=number, b=done) if done < 2 else "the answer is there"

    def script(messages: list[Any]) -> Any:
        said = reply(messages)
        return (
            said
            if not isinstance(said, str)
            else call_tool("add", "x", a=0, b=0).model_copy(update={"content": said, "tool_calls": []})
        )

    return react_graph(saver, ScriptedModel(script=script))


def tell(text: str) -> Turn:
    return lambda api, graph, config: api.invoke(graph, {"messages": [("user", text)]}, config)


KINDS = {
    kind.name: kind
    for kind in (
        Kind("plain", echo_graph, (say("first"), say("second"), say("third")), say("on")),
        Kind("agent", tool_agent, (tell("first"), tell("second"), tell("third")), tell("on")),
        Kind("fork", echo_graph, (say("first"), say("second"), fork(4, {"log": ["forked"]})), say("on")),
        Kind("nested", lambda s: nested_graph(s, 3), (say("first"), say("second"), say("third")), say("on")),
        Kind("remembering", remembering_graph, (say("first"), say("second"), say("third")), say("on")),
        Kind("waiting", approval_graph, (say("first"), answer("yes"), say("second")), answer("sure")),
        Kind("asking inside", asking_subgraph, (say("first"), answer("this"), say("second")), answer("that")),
        Kind("asking below", lambda s: nested_graph(s, 3, ask=True), (say("a"), answer("up"), say("b")), answer("no")),
        Kind("asking twice", parallel_asking, (say("first"), answer_all, say("second")), answer_all),
        Kind("delta, often", delta_lines(2), (say("first"), say("second"), say("third")), say("on")),
        Kind("delta, always", delta_lines(1), (say("first"), say("second"), say("third")), say("on")),
        Kind("delta, seldom", delta_lines(1000), (say("first"), say("second"), say("third")), say("on")),
        Kind("delta fork", delta_lines(1000), (say("first"), say("second"), fork(5, {"log": ["forked"]})), say("on")),
        Kind("delta waiting", delta_lines(7, ask=True), (say("first"), answer("x"), say("second")), answer("y")),
    )
}
