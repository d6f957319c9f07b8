"""Keys for side effects: the same for the same task at the same checkpoint, another one for anything else."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from langchain_core.runnables import RunnableConfig
from langgraph.func import entrypoint, task
from langgraph.graph import START, StateGraph
from langgraph.types import Command, RetryPolicy, Send, interrupt

from agent_ckpt import AgentSaver, UsageError, idempotency_key
from tests.conftest import Api
from tests.test_timeline import State, at, config, state_before

ROOT = Path(__file__).parent.parent


class Keys:
    """begin -> charge -> mail, where `charge` asks, or fails, as often as it is told; the keys that each node made."""

    def __init__(
        self, saver: Any, *, asks: bool = False, fails: int = 0, retries: bool = False, sub: Any = None
    ) -> None:
        self.made: dict[str, list[str]] = {"charge": [], "mail": []}
        self.asks, self.fails = asks, fails
        policy = RetryPolicy(max_attempts=5, initial_interval=0.0, jitter=False, retry_on=OSError) if retries else None
        charge: Any = StateGraph(State).add_node("charge", self.charge).add_edge(START, "charge")
        built = StateGraph(State).add_node("begin", lambda state: {"log": ["begin"]})
        if sub is None:
            built = built.add_node("charge", self.charge, retry_policy=policy)
        else:
            built = built.add_node("charge", charge.compile(**sub))
        built = built.add_node("mail", self.mail).add_edge(START, "begin").add_edge("begin", "charge")
        self.graph: Any = built.add_edge("charge", "mail").compile(checkpointer=saver)

    def charge(self, state: State, config: RunnableConfig) -> State:
        self.made["charge"].append(idempotency_key(config, "charge", 12))
        if self.asks:
            interrupt("charge?")
        if self.fails:
            self.fails -= 1
            raise OSError("the bank is closed")
        return {"log": ["charged"]}

    def mail(self, state: State, config: RunnableConfig) -> State:
        self.made["mail"].append(idempotency_key(config, "charge", 12))
        return {"log": ["mailed"]}


def test_every_step_and_thread_has_its_own(api: Api) -> None:
    """Two nodes, two turns and two threads make four and eight different keys with the same parts."""
    keys = Keys(api.saver)
    for thread in ("t", "u"):
        for _ in range(2):
            api.invoke(keys.graph, {"log": ["in"]}, {"configurable": {"thread_id": thread}})
    made = keys.made["charge"] + keys.made["mail"]
    assert len(made) == len(set(made)) == 8
    assert all(len(key) == 40 and set(key) <= set("0123456789abcdef") for key in made)


def test_a_retried_task_keeps_its_key(api: Api) -> None:
    """LangGraph's retry policy runs the task again: the same key."""
    keys = Keys(api.saver, fails=2, retries=True)
    api.invoke(keys.graph, {"log": ["in"]}, config())
    assert len(keys.made["charge"]) == 3
    assert len(set(keys.made["charge"])) == 1


@pytest.mark.parametrize("sub", [None, {}, {"checkpointer": True}], ids=["node", "subgraph", "lasting subgraph"])
def test_a_task_that_goes_on_keeps_its_key(sub: Any, api: Api) -> None:
    """After an interrupt that is answered, and after a failure, the task runs again from its checkpoint: the same."""
    keys = Keys(api.saver, asks=True, sub=sub)
    api.invoke(keys.graph, {"log": ["in"]}, config())
    keys.fails = 1
    with pytest.raises(OSError, match="bank"):
        api.invoke(keys.graph, Command(resume="yes"), config())
    api.invoke(keys.graph, None, config())
    assert len(keys.made["charge"]) == 3
    assert len(set(keys.made["charge"])) == 1
    assert len(keys.made["mail"]) == 1


def test_a_subgraph_that_stores_nothing(api: Api) -> None:
    """With checkpointer=False a subgraph begins anew, and its tasks have new keys: documented, so it is told here."""
    keys = Keys(api.saver, sub={"checkpointer": False}, fails=1)
    with pytest.raises(OSError, match="bank"):
        api.invoke(keys.graph, {"log": ["in"]}, config())
    api.invoke(keys.graph, None, config())
    assert len(set(keys.made["charge"])) == 2


@pytest.mark.parametrize("durability", ["sync", "async"])
def test_a_killed_process(durability: str, path: Path, saver: AgentSaver) -> None:
    """The process is killed in the node; another one finishes the thread with the same key."""
    script = """
        import os, sys, time
        from agent_ckpt import AgentSaver
        from tests.test_idempotency import Keys
        from tests.test_timeline import config
        saver = AgentSaver(sys.argv[1])
        keys = Keys(saver)
        charge = keys.charge
        def killed(state, config):
            charge(state, config)
            print(keys.made["charge"][0], flush=True)
            while len(list(saver.list({"configurable": {"thread_id": "t"}}))) < 2:
                pass
            time.sleep(1)  # what the steps before it still store beside it ("async")
            os.kill(os.getpid(), 9)
        keys.graph.nodes["charge"].bound.func = killed
        keys.graph.invoke({"log": ["in"]}, config(), durability=sys.argv[2])
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), str(path), durability],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == -9, done.stderr
    keys = Keys(saver)
    keys.graph.invoke(None, config(), durability=durability)
    assert keys.made["charge"] == [done.stdout.strip()]


def test_a_new_run_has_new_keys(api: Api) -> None:
    """Forking, and sending the input again, are other tasks; a rollback runs the same one again."""
    keys = Keys(api.saver)
    api.invoke(keys.graph, {"log": ["in"]}, config())
    states = api.history(keys.graph, config())
    api.invoke(keys.graph, None, at(state_before(states, "charge")))
    api.invoke(keys.graph, {"log": ["in"]}, config())
    assert len(set(keys.made["charge"])) == 3
    api.rollback(at(state_before(states, "charge")))
    api.invoke(keys.graph, None, config())
    assert keys.made["charge"][3] == keys.made["charge"][0]


def test_tasks_of_one_step(api: Api) -> None:
    """Each Send of a fan-out has a key of its own, the same when it runs again; parts tell effects apart."""
    made: list[dict[int, str]] = []
    fails = [True]

    def work(item: int, config: RunnableConfig) -> State:
        made[-1][item] = idempotency_key(config)
        if fails and item == 2:
            fails.clear()
            raise OSError
        return {"log": [str(item)]}

    built = StateGraph(State).add_node("work", work)
    built = built.add_conditional_edges(START, lambda state: [Send("work", item) for item in range(4)], ["work"])
    graph = built.compile(checkpointer=api.saver)
    made.append({})
    with pytest.raises(OSError):
        api.invoke(graph, {"log": []}, config())
    made.append({})
    api.invoke(graph, None, config())
    assert len(set(made[0].values())) == len(made[0])
    assert made[1] and all(made[0].get(item, key) == key for item, key in made[1].items())
    assert 2 in made[1]


def test_functional_api(saver: AgentSaver) -> None:
    """In an entrypoint's tasks too."""
    made: list[str] = []
    fails = [True]

    @task
    def charge(amount: int, config: RunnableConfig) -> int:
        made.append(idempotency_key(config, amount))
        if fails and amount == 2:
            fails.clear()
            raise OSError
        return amount

    @entrypoint(checkpointer=saver)
    def pay(amounts: list[int]) -> int:
        return sum(charge(amount).result() for amount in amounts)

    with pytest.raises(OSError):
        pay.invoke([1, 2], config())
    assert pay.invoke(None, config()) == 3
    assert len(made) == 3
    assert made[0] != made[1] == made[2]


def node_config(**more: Any) -> dict[str, Any]:
    return {"configurable": {"thread_id": "t", "checkpoint_ns": "n:1", "__pregel_task_id": "1", **more}}


def test_parts() -> None:
    """Parts are told apart by kind, order and length; what has no fixed text is refused."""
    each = [(), ("a",), ("a", "b"), ("ab",), ("b", "a"), ("",), (1,), ("1",), (UUID(int=1),), (str(UUID(int=1)),)]
    assert len({idempotency_key(node_config(), *parts) for parts in each}) == len(each)
    assert idempotency_key(node_config(), "a", 1) == idempotency_key(node_config(), "a", 1)
    for wrong in (1.0, True, None, b"a", ["a"]):
        with pytest.raises(UsageError, match="parts"):
            idempotency_key(node_config(), wrong)


def test_outside_a_node() -> None:
    """Without a task, or without a thread, there is nothing to make a key from."""
    with pytest.raises(UsageError, match="RunnableConfig"):
        idempotency_key(config())
    with pytest.raises(UsageError, match="thread_id"):
        idempotency_key({"configurable": {"__pregel_task_id": "1"}})
