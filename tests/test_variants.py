"""The contract of the backend, once more with a rollback journal and with the other engine; and a graph on each.

The tests are those of `test_sqlite_backend*.py`, imported: the fixture below changes what `backend_on` opens, in this
process and in those that a test starts. Not among them is what only WAL mode promises: that a read of many statements
and a write don't wait for each other.
"""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.messages import AnyMessage
from langgraph.graph import START, StateGraph
from langgraph.graph.message import add_messages

from agent_ckpt import AgentSaver
from tests import test_sqlite_backend as base
from tests import test_sqlite_backend_async as base_async
from tests import test_sqlite_backend_life as base_life
from tests import test_sqlite_backend_processes as base_processes
from tests.conftest import Api
from tests.sqlite_backend import VARIANT, backend_on

VARIANTS = {
    "rollback": {"journal": "rollback"},
    "pysqlite3": {"engine": "pysqlite3"},
    "pysqlite3-rollback": {"engine": "pysqlite3", "journal": "rollback"},
}


@pytest.fixture(autouse=True, params=["rollback", "pysqlite3"])
def variant(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What every backend of a test is opened with."""
    monkeypatch.setenv(VARIANT, json.dumps(VARIANTS[request.param]))
    return VARIANTS[request.param]


backend = base.backend

test_rows_results_and_executemany = base.test_rows_results_and_executemany
test_statement_counts = base.test_statement_counts
test_failed_write_is_undone_alone_and_frees_the_lock = base.test_failed_write_is_undone_alone_and_frees_the_lock
test_group_isolates_failures = base.test_group_isolates_failures
test_group_is_bounded_by_count_and_bytes = base.test_group_is_bounded_by_count_and_bytes
test_disk_full_hits_only_the_large_write = base.test_disk_full_hits_only_the_large_write
test_busy_writes_wait_then_raise = base.test_busy_writes_wait_then_raise
test_interrupted_leader_leaves_its_group_to_others = base.test_interrupted_leader_leaves_its_group_to_others
test_many_threads_lose_nothing = base.test_many_threads_lose_nothing
test_readers_cannot_write = base.test_readers_cannot_write

test_loops_one_after_the_other = base_async.test_loops_one_after_the_other
test_loops_at_the_same_time = base_async.test_loops_at_the_same_time
test_loop_closed_in_the_middle_of_a_call = base_async.test_loop_closed_in_the_middle_of_a_call
test_script_that_never_closes_ends = base_async.test_script_that_never_closes_ends

test_memory_database = base_life.test_memory_database
test_close_is_idempotent_and_final = base_life.test_close_is_idempotent_and_final
test_two_backends_on_one_file = base_life.test_two_backends_on_one_file

test_first_open_by_sixteen_processes = base_processes.test_first_open_by_sixteen_processes
test_four_processes_of_many_writers = base_processes.test_four_processes_of_many_writers
test_killed_writers_lose_nothing_acknowledged = base_processes.test_killed_writers_lose_nothing_acknowledged
test_fork_and_go_on = base_processes.test_fork_and_go_on
test_fork_while_others_are_inside = base_processes.test_fork_while_others_are_inside
test_lock_of_a_stopped_process = base_processes.test_lock_of_a_stopped_process


class State(TypedDict):
    messages: Annotated[list[AnyMessage], add_messages]


def _graph(saver: AgentSaver) -> Any:
    graph = StateGraph(State)
    graph.add_node("answer", lambda state: {"messages": [("ai", f"answer {len(state['messages'])}")]})
    graph.add_edge(START, "answer")
    return graph.compile(checkpointer=saver)


@pytest.mark.parametrize("name", sorted(VARIANTS))
def test_a_graph_on_each_variant(name: str, form: str, path: Path) -> None:
    """A conversation goes on over a reopened store, with each engine and journal mode; the file is sound, and is in
    the mode that was asked for."""
    config: Any = {"configurable": {"thread_id": "t"}}
    for turn in range(3):
        with AgentSaver(path, **VARIANTS[name]) as saver:
            api = Api(saver, form)
            found = api.invoke(_graph(saver), {"messages": [("user", f"question {turn}")]}, config)
            assert len(found["messages"]) == 2 * turn + 2
            assert len(api.history(_graph(saver), config)) == 3 * turn + 3
            assert not api.verify().findings
            assert path.with_name("agent.db-wal").exists() == ("rollback" not in name)
    check = sqlite3.connect(path)
    assert check.execute("PRAGMA journal_mode").fetchone() == ("delete" if "rollback" in name else "wal",)
    check.close()


def test_variants_are_what_they_say(variant: dict[str, Any], tmp_path: Path) -> None:
    """The fixture above does change the engine and the journal mode of the imported tests' backends."""
    made = backend_on(tmp_path / "a.db")
    store = made._store
    assert store.engine.name == variant.get("engine", "sqlite3")
    assert store.limits.mode == variant.get("journal", "wal")
    made.close()
