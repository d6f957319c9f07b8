"""What worker processes do to a thread on which a run is going: operations for `tests.race_workers.Worker`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.tools import tool

from agent_ckpt import AgentSaver, ThreadConflictError
from tests.agents import Graph, ScriptedModel, call_tool, react_graph
from tests.race_workers import WATCHDOG_S, Meet

CONFIG: dict[str, Any] = {"configurable": {"thread_id": "t"}}


def answer(messages: list[BaseMessage]) -> AIMessage:
    """A tool call for what a user says that begins with "look", else an answer that names it."""
    last = messages[-1]
    if isinstance(last, HumanMessage) and str(last.content).startswith("look"):
        return call_tool("look", f"call-{len(messages)}")
    return AIMessage(f"answer to {last.content}")


def assistant(saver: Any, inside: Callable[[], None] = lambda: None) -> tuple[Graph, ScriptedModel]:
    """A ReAct agent whose tool calls `inside`, and whose model refuses unanswered tool calls as services do."""

    @tool
    def look() -> str:
        """Look."""
        inside()
        return "seen"

    model = ScriptedModel(script=answer, refuse_dangling=True)
    return react_graph(saver, model, [look]), model


def say(graph: Graph, text: str, form: str, how: str | None = None, config: dict[str, Any] = CONFIG) -> list[str]:
    """One message; the contents of all messages after it."""
    given = {"messages": [HumanMessage(text)]}
    if form == "sync":
        state = graph.invoke(given, config, durability=how)
    else:
        state = asyncio.run(graph.ainvoke(given, config, durability=how))
    return [str(message.content) for message in state["messages"]]


def refused(action: Callable[[], Any]) -> dict[str, Any] | None:
    """The fields of the conflict that an action ended with, or None where it was accepted."""
    try:
        action()
    except ThreadConflictError as exc:
        return exc.fields
    return None


def update(graph: Graph) -> None:
    graph.update_state(CONFIG, {"messages": [HumanMessage("note")]}, as_node="tools")


def intrude(meet: Meet, path: Path, kind: str, form: str, how: str, options: dict[str, Any]) -> tuple[Any, int]:
    """A second message or an update_state: why it was refused (None: accepted), and how often the model was asked."""
    with AgentSaver(path, create=False, **options) as saver:
        graph, model = assistant(saver)
        action = (lambda: update(graph)) if kind == "update_state" else (lambda: say(graph, "second", form, how))
        return refused(action), model.calls


def look_and_stay(meet: Meet, path: Path, form: str, how: str) -> Any:
    """A run that meets inside its tool and then finishes; why it was refused, or its messages."""
    with AgentSaver(path) as saver:
        graph, _ = assistant(saver, meet)
        try:
            return say(graph, "look first", form, how)
        except ThreadConflictError as exc:
            return exc.fields


def go_on(graph: Graph, form: str) -> list[str]:
    """Go on with the thread's open tasks; the contents of all messages after it."""
    if form == "sync":
        state = graph.invoke(None, CONFIG, durability="sync")
    else:
        state = asyncio.run(graph.ainvoke(None, CONFIG, durability="sync"))
    return [str(message.content) for message in state["messages"]]


def finish(meet: Meet, path: Path, form: str) -> list[str]:
    """Go on with the thread's open tasks."""
    with AgentSaver(path, create=False) as saver:
        return go_on(assistant(saver)[0], form)


def stop_at_breakpoint(meet: Meet, path: Path) -> None:
    """A run that stops before its tool, and a process that lives on with all that the run left."""
    with AgentSaver(path) as saver:
        graph, _ = assistant(saver)
        state = graph.invoke({"messages": [HumanMessage("look first")]}, CONFIG, interrupt_before=["tools"])
        kept = [state, graph.get_state(CONFIG)]
        meet()
        assert kept


def hold_lease(meet: Meet, path: Path, ttl: float) -> tuple[int, Any]:
    """Take the lease, meet, write: the fence, and why the write was refused (None: accepted)."""
    with AgentSaver(path) as saver, saver.lease("t", ttl=ttl) as lease:
        graph, _ = assistant(saver)
        meet()
        assert lease.fence is not None
        return lease.fence, refused(lambda: say(graph, "from the holder", "sync"))


def queue_for_turn(meet: Meet, path: Path, text: str, form: str) -> list[str]:
    """Enqueue one message; tells `meet` when it is about to queue."""
    with AgentSaver(path) as saver:
        graph, _ = assistant(saver)
        meet()
        if form == "sync":
            with saver.turn(CONFIG, "enqueue", timeout=WATCHDOG_S) as config:
                return say(graph, text, form, config=config)

        async def turn() -> list[str]:
            async with saver.turn(CONFIG, "enqueue", timeout=WATCHDOG_S) as config:
                state = await graph.ainvoke({"messages": [HumanMessage(text)]}, config)
                return [str(message.content) for message in state["messages"]]

        return asyncio.run(turn())


def turn_and_stay(meet: Meet, path: Path, strategy: str) -> Any:
    """A turn whose run meets inside its tool; why it was refused, or its messages."""
    with AgentSaver(path) as saver:
        graph, _ = assistant(saver, meet)
        try:
            with saver.turn(CONFIG, strategy) as config:  # type: ignore[arg-type]
                return say(graph, "look first", "sync", "sync", config)
        except ThreadConflictError as exc:
            return exc.fields


def contend(meet: Meet, path: Path, rounds: int, ttl: float) -> list[tuple[int, int, int]]:
    """Take a short lease so many times; the fence, and the counter's value before and after each, as written."""
    seen = []
    config = {"configurable": {"thread_id": "counter", "checkpoint_ns": ""}}
    with AgentSaver(path) as saver:
        meet()
        for _ in range(rounds):
            try:
                with saver.lease("counter", ttl=ttl, timeout=WATCHDOG_S) as lease:
                    assert lease.fence is not None
                    found = saver.get_tuple(config)
                    before = found.checkpoint["channel_values"]["n"] if found else 0
                    made = {**_EMPTY, "id": f"{lease.fence:08}", "channel_values": {"n": before + 1}}
                    made["channel_versions"] = {"n": before + 1}
                    at = found.config if found else config
                    saver.put(at, made, {"source": "loop", "step": before}, {"n": before + 1})  # type: ignore[arg-type]
                    seen.append((lease.fence, before, before + 1))
            except ThreadConflictError as lost:
                assert lost.reason in ("lease_lost", "leased", "stale"), lost
            time.sleep(0.001)
    return seen


_EMPTY: dict[str, Any] = {"v": 4, "ts": "2026-01-01T00:00:00+00:00", "versions_seen": {}, "updated_channels": None}
