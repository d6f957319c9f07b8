"""Threads of LangGraph's PostgresSaver come into an AgentSaver, from a PostgreSQL server that the tests start."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from langgraph.types import Command

from agent_ckpt import AgentSaver, TransferError, atransfer, transfer
from tests import agents
from tests import official_graphs as graphs
from tests.conftest import assert_sound
from tests.postgres import server
from tests.test_import import listing, seen, typed

THREADS = (graphs.FINISHED, graphs.OPEN, graphs.FANNED)


@pytest.fixture(scope="module")
def running() -> Iterator[str]:
    """A PostgreSQL server."""
    with server() as found:
        yield found


@pytest.fixture
def address(running: str, request: pytest.FixtureRequest) -> Iterator[str]:
    """An empty database on it."""
    with psycopg.connect(running, autocommit=True) as connection:
        connection.execute("DROP DATABASE IF EXISTS one WITH (FORCE)")
        connection.execute("CREATE DATABASE one")
    yield running.replace("dbname=postgres", "dbname=one")


@pytest.fixture
def source(address: str) -> Iterator[PostgresSaver]:
    """A PostgresSaver with its tables."""
    with PostgresSaver.from_conn_string(address) as saver:
        saver.setup()
        yield saver


def rows_of(address: str) -> Any:
    """All that stands in the saver's tables."""
    with psycopg.connect(address) as connection:
        tables = ("checkpoints", "checkpoint_blobs", "checkpoint_writes")
        return [sorted(map(repr, connection.execute(f"SELECT * FROM {name}").fetchall())) for name in tables]


def test_threads_of_postgres_come_in_whole(
    source: PostgresSaver, address: str, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A finished thread, one with an open interrupt in a subgraph and one with a fork: each checkpoint in each
    namespace is what PostgresSaver gives, its tables stay as they were, and the interrupt is answered in the target."""
    monkeypatch.setattr("agent_ckpt.sources._PAGE", 4)
    graphs.run_threads(source)
    before = rows_of(address)
    with AgentSaver(path) as saver:
        report = transfer(source, saver)
        assert (report.threads, report.already_there) == (3, 0)
        assert report.checkpoints == sum(len(listing(source, thread_id)) for thread_id in THREADS)
        for thread_id in THREADS:
            assert listing(saver, thread_id) == listing(source, thread_id)
            namespaces = {item.config["configurable"]["checkpoint_ns"] for item in saver.list(graphs.config(thread_id))}
            assert len(namespaces) > 1
            for ns in namespaces:
                head = {"configurable": {"thread_id": thread_id, "checkpoint_ns": ns}}
                assert seen(saver.get_tuple(head)) == seen(source.get_tuple(head))
        assert rows_of(address) == before
        again = transfer(source, saver)
        assert (again.threads, again.already_there) == (3, 3)
        answer = graphs.build(saver).invoke(Command(resume="no"), graphs.config(graphs.OPEN))
        assert answer == graphs.build(source).invoke(Command(resume="no"), graphs.config(graphs.OPEN))
        with pytest.raises(TransferError, match="exists in the target already") as refused:
            transfer(source, saver)
        assert list(refused.value.refused) == [graphs.OPEN]
    assert_sound(path)


async def test_an_async_postgres_saver_is_read_by_its_async_methods(address: str, path: Path) -> None:
    """AsyncPostgresSaver, which runs on its own loop, is transferred by `atransfer`."""
    async with AsyncPostgresSaver.from_conn_string(address) as source, AgentSaver(path) as saver:
        await source.setup()
        graph = graphs.build(source)
        await graph.ainvoke({"log": ["start"]}, graphs.config("t"))
        report = await atransfer(source, saver)
        items = [seen(item) async for item in source.alist(graphs.config("t"))]
        assert [seen(item) async for item in saver.alist(graphs.config("t"))] == items
        assert report.checkpoints == len(items) > 3
        answer = await graphs.build(saver).ainvoke(Command(resume="yes"), graphs.config("t"))
        assert answer == await graph.ainvoke(Command(resume="yes"), graphs.config("t"))
    assert_sound(path)


def test_delta_channels_of_postgres_are_rebuilt(source: PostgresSaver, path: Path) -> None:
    """A thread of DeltaChannels with a fork: state at every checkpoint is the source's, and the next turn builds on
    it."""
    graph = agents.delta_graph(source)
    for turn in range(7):
        graph.invoke({"messages": [agents.AIMessage(f"turn {turn}")]}, graphs.config("d"))
    older = list(graph.get_state_history(graphs.config("d")))[5].config
    graph.invoke({"messages": [agents.AIMessage("forked")]}, older)
    with AgentSaver(path) as saver:
        transfer(source, saver)
        ours = agents.delta_graph(saver)
        states = [typed(state.values) for state in graph.get_state_history(graphs.config("d"))]
        assert [typed(state.values) for state in ours.get_state_history(graphs.config("d"))] == states
        assert len(states) > 7
        given = {"messages": [agents.AIMessage("next", id="next")]}
        assert typed(ours.invoke(given, graphs.config("d"))["messages"][-1].content) == typed(
            graph.invoke(given, graphs.config("d"))["messages"][-1].content
        )
    assert_sound(path)
