"""Sessions that meet in one context: no run is refused for its own reads, no two runs share a session."""

import asyncio
import contextvars
import operator
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.runnables import RunnableConfig
from langgraph.graph import START, StateGraph

from agent_ckpt import AgentSaver, ThreadConflictError

OpenSaver = Callable[..., AgentSaver]


class State(TypedDict):
    xs: Annotated[list[str], operator.add]


def parent_graph(saver: AgentSaver) -> Any:
    """A graph with a node, a subgraph and a node."""
    inner = StateGraph(State).add_node("inner", lambda state: {"xs": ["inner"]}).add_edge(START, "inner").compile()
    graph = StateGraph(State).add_node("first", lambda state: {"xs": ["first"]})
    graph.add_node("sub", inner).add_node("last", lambda state: {"xs": ["last"]})
    graph.add_edge(START, "first").add_edge("first", "sub").add_edge("sub", "last")
    return graph.compile(checkpointer=saver)


def config(**more: Any) -> dict[str, Any]:
    return {"configurable": {"thread_id": "t"}, **more}


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
def test_reading_the_thread_while_it_streams(saver: AgentSaver, durability: str) -> None:
    """get_state between the chunks of a stream, with a config that sets a recursion limit, leaves the run alone."""
    graph = parent_graph(saver)
    own = config(recursion_limit=50)
    for _ in range(2):
        for _ in graph.stream({"xs": ["in"]}, own, durability=durability):
            graph.get_state(own)
            saver.get_tuple(own)
    assert len(graph.get_state(own).values["xs"]) >= 8
    assert type(own["configurable"]["thread_id"]) is str, "the user's config was changed"


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
def test_a_look_before_two_runs_at_once(saver: AgentSaver, durability: str) -> None:
    """Two runs started from the context of one get_state are two sessions: one wins, or one comes after the other."""
    graph = parent_graph(saver)
    own = config(recursion_limit=50)

    async def race() -> list[Any]:
        await graph.aget_state(own)
        runs = [graph.ainvoke({"xs": [who]}, own, durability=durability) for who in "ab"]
        return await asyncio.gather(*runs, return_exceptions=True)

    graph.invoke({"xs": ["before"]}, own)
    for _ in range(5):
        results = asyncio.run(race())
        refused = [result for result in results if isinstance(result, BaseException)]
        assert all(isinstance(error, ThreadConflictError) for error in refused), refused
        assert len(refused) <= 1, "both runs lost"
    parents = [item.parent_config for item in saver.list({"configurable": {"thread_id": "t", "checkpoint_ns": ""}})]
    ids = [parent["configurable"]["checkpoint_id"] for parent in parents if parent]
    assert len(ids) == len(set(ids)), "the history forks"


def test_a_stream_that_is_read_in_other_contexts(saver: AgentSaver) -> None:
    """A stream whose chunks are fetched in fresh context copies, after an earlier run in the context, is one run."""
    graph = parent_graph(saver)
    graph.invoke({"xs": ["before"]}, config())
    chunks = graph.stream({"xs": ["in"]}, config(), durability="sync")
    while contextvars.copy_context().run(next, chunks, None) is not None:
        pass
    assert graph.get_state(config()).values["xs"][-3:] == ["first", "inner", "last"]


def test_a_stream_with_heartbeats(saver: AgentSaver) -> None:
    """Fetching each chunk in a task of its own (wait_for does so on Python 3.11) doesn't change the run's session."""
    graph = parent_graph(saver)

    async def turns() -> None:
        for _ in range(3):
            await graph.ainvoke({"xs": ["in"]}, config())
            chunks = graph.astream({"xs": ["in"]}, config(), durability="sync")
            while await asyncio.wait_for(anext(chunks, None), 30) is not None:
                pass

    asyncio.run(turns())
    assert graph.get_state(config()).values["xs"][-3:] == ["first", "inner", "last"]


def test_a_session_belongs_to_its_store(open_saver: OpenSaver, tmp_path: Path) -> None:
    """A config that carries a session of one store is as good as plain text at another."""
    one, other = open_saver(), open_saver(tmp_path / "other.db")
    for saver in (one, other):
        parent_graph(saver).invoke({"xs": ["x"]}, config())
    restored = one.get_tuple(config())
    assert restored is not None
    fresh = {**restored.checkpoint, "id": "zzz"}
    with pytest.raises(ThreadConflictError) as caught:
        other.put(restored.config, fresh, restored.metadata, {})  # type: ignore[arg-type]
    assert caught.value.expected is None
    one.put(restored.config, fresh, restored.metadata, {})  # type: ignore[arg-type]


def test_two_channels_with_one_value(saver: AgentSaver) -> None:
    """Two channels that hold the same long list share its blobs and grow apart afterwards."""

    class Twice(TypedDict):
        a: Annotated[list[str], operator.add]
        b: Annotated[list[str], operator.add]

    graph = StateGraph(Twice).add_node("n", lambda state: {"a": ["end"], "b": ["end"]}).add_edge(START, "n")
    app = graph.compile(checkpointer=saver)
    items = [f"item {i} " + "x" * 60 for i in range(400)]
    app.invoke({"a": items, "b": items}, config())
    for turn in range(3):
        app.invoke({"a": [f"a{turn}"], "b": [f"b{turn}"]}, config())
    values = app.get_state(config()).values
    assert values["a"][:400] == values["b"][:400] == items
    assert values["a"][400:] == ["end", "a0", "end", "a1", "end", "a2", "end"]
    assert values["b"][400:] == ["end", "b0", "end", "b1", "end", "b2", "end"]


def test_a_node_that_reads_its_own_thread(saver: AgentSaver) -> None:
    """A node reads its thread by the id it was given, in a stream with heartbeats: the run keeps its session."""

    async def look(state: State, config: RunnableConfig) -> Any:
        own = {"configurable": {"thread_id": config["configurable"]["thread_id"]}}
        await graph.aget_state(own)
        await saver.aget_tuple(own)  # type: ignore[arg-type]
        return {"xs": ["looked"]}

    inner = StateGraph(State).add_node("inner", lambda state: {"xs": ["inner"]}).add_edge(START, "inner").compile()
    built = StateGraph(State).add_node("look", look).add_node("sub", inner)
    graph = built.add_edge(START, "look").add_edge("look", "sub").compile(checkpointer=saver)

    async def turns() -> None:
        for _ in range(2):
            await graph.ainvoke({"xs": ["in"]}, config())
            chunks = graph.astream({"xs": ["in"]}, config(), durability="sync")
            while await asyncio.wait_for(anext(chunks, None), 30) is not None:
                pass

    asyncio.run(turns())
    assert graph.get_state(config()).values["xs"][-2:] == ["looked", "inner"]


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
def test_a_thread_id_taken_out_of_a_nodes_config(saver: AgentSaver, durability: Any, asynchronous: bool) -> None:
    """A run that a node starts on its own thread, with the very thread_id of its config, is another run: it is refused
    as busy, and the run that is going finishes, also where that has not stored anything yet."""
    told: list[str] = []

    def inner_config(outer: RunnableConfig) -> Any:
        return {"configurable": {"thread_id": outer["configurable"]["thread_id"]}}

    def node(state: State, config: RunnableConfig) -> State:
        with pytest.raises(ThreadConflictError) as caught:
            inner.invoke({"xs": ["inner"]}, inner_config(config), durability=durability)
        told.append(caught.value.reason)
        return {"xs": ["outer"]}

    async def anode(state: State, config: RunnableConfig) -> State:
        with pytest.raises(ThreadConflictError) as caught:
            await inner.ainvoke({"xs": ["inner"]}, inner_config(config), durability=durability)
        told.append(caught.value.reason)
        return {"xs": ["outer"]}

    inner = parent_graph(saver)
    builder: StateGraph[Any, Any, Any, Any] = StateGraph(State).add_node("node", anode if asynchronous else node)
    outer: Any = builder.add_edge(START, "node").compile(checkpointer=saver)
    for number in range(8):
        own: Any = {"configurable": {"thread_id": f"t{number}"}}
        if asynchronous:
            done = asyncio.run(outer.ainvoke({"xs": ["in"]}, own, durability=durability))
        else:
            done = outer.invoke({"xs": ["in"]}, own, durability=durability)
        assert done == {"xs": ["in", "outer"]}
    assert told == ["busy"] * 8
