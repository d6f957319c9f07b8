"""The benchmark's agent: a ReAct agent on MessagesState, 4 messages a turn, about 450 bytes of text a message.

A turn is: the user's text, an AI message with one tool call, the tool's JSON record, the AI's answer. All text, ids
and token counts follow from the seed and the number of the turn, so two savers are given the same messages.
"""

from __future__ import annotations

import asyncio
import json
import random
import uuid
from collections.abc import Sequence
from typing import Any

from langchain_core.messages import AIMessage, AnyMessage, BaseMessage, HumanMessage, ToolCall, ToolMessage
from langchain_core.messages.ai import UsageMetadata
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import tool

from tests.agents import Graph, Saver, ScriptedModel, react_graph
from tests.bench.text import sentences, token

MESSAGES_PER_TURN = 4
MODEL = "scripted-2026-01-15"


def user_message(seed: str, turn: int) -> HumanMessage:
    """The user's text of one turn, with the id that everything else of the turn follows from."""
    rng = random.Random(f"{seed}/{turn}/user")
    return HumanMessage(sentences(rng, 340), id=str(uuid.UUID(int=rng.getrandbits(128), version=4)))


def answer(messages: Sequence[BaseMessage]) -> AIMessage:
    """The model: calls the tool after a user's text, answers after a tool's result."""
    last = messages[-1]
    # A tool message gets a random id from LangGraph; its call's id is the reproducible one.
    rng = random.Random(f"{last.tool_call_id if isinstance(last, ToolMessage) else last.id}/ai")
    extras = _extras(rng, len(messages), bool(last.type == "human"))
    if last.type == "human":
        args = {"query": sentences(rng, 60), "account": token(rng, 10), "limit": rng.randrange(1, 20)}
        call = ToolCall(name="look_up", args=args, id=f"call_{token(rng, 24)}")
        return AIMessage(sentences(rng, 280), tool_calls=[call], **extras)
    return AIMessage(sentences(rng, 620), **extras)


def _extras(rng: random.Random, history: int, calls_tool: bool) -> dict[str, Any]:
    """Id, usage and response metadata in the shape that a hosted model's integration fills in."""
    usage = UsageMetadata(
        input_tokens=90 + history * 110 + rng.randrange(60),
        output_tokens=80 + rng.randrange(120),
        total_tokens=0,
        input_token_details={"audio": 0, "cache_read": history * 100},
        output_token_details={"audio": 0, "reasoning": rng.randrange(64)},
    )
    usage["total_tokens"] = usage["input_tokens"] + usage["output_tokens"]
    details = {
        "token_usage": {
            "completion_tokens": usage["output_tokens"],
            "prompt_tokens": usage["input_tokens"],
            "total_tokens": usage["total_tokens"],
        },
        "model_provider": "scripted",
        "model_name": MODEL,
        "system_fingerprint": f"fp_{token(rng, 10)}",
        "id": f"chatcmpl-{token(rng, 29)}",
        "finish_reason": "tool_calls" if calls_tool else "stop",
        "logprobs": None,
    }
    run = uuid.UUID(int=rng.getrandbits(128), version=4)
    return {"id": f"lc_run--{run}-0", "usage_metadata": usage, "response_metadata": details}


def record(query: str, account: str, limit: int) -> str:
    """The tool's result: a record as JSON text."""
    rng = random.Random(f"{account}/{query}")
    return json.dumps(
        {
            "account": account,
            "status": rng.choice(["open", "closed", "pending", "refunded"]),
            "amount": round(rng.uniform(5, 900), 2),
            "updated_at": f"2026-0{rng.randint(1, 9)}-{rng.randint(10, 28)}T{rng.randint(10, 23)}:"
            f"{rng.randint(10, 59)}",
            "items": [{"sku": token(rng, 8), "count": rng.randint(1, 9)} for _ in range(3)],
            "note": sentences(rng, 250),
        }
    )


@tool
def look_up(query: str, account: str, limit: int = 10) -> str:
    """Look up the record of an account."""
    return record(query, account, limit)


def build(saver: Saver | None) -> Graph:
    """The agent as a hand-built graph: StateGraph, ToolNode, a scripted model."""
    return react_graph(saver, ScriptedModel(script=answer), [look_up])


def build_created(saver: Saver | None) -> Graph:
    """The same agent by `langchain.agents.create_agent`, which costs more by itself."""
    from langchain.agents import create_agent

    return create_agent(ScriptedModel(script=answer), tools=[look_up], checkpointer=saver)


def config(thread_id: str) -> RunnableConfig:
    return {"configurable": {"thread_id": thread_id}}


def take_turns(graph: Graph, thread_id: str, first: int, count: int, seed: str = "bench") -> None:
    """Run turns `first` to `first + count - 1` of a thread."""
    for turn in range(first, first + count):
        graph.invoke({"messages": [user_message(seed, turn)]}, config(thread_id))


async def atake_turns(graph: Graph, thread_id: str, first: int, count: int, seed: str = "bench") -> None:
    """The same, on the running event loop."""
    for turn in range(first, first + count):
        await graph.ainvoke({"messages": [user_message(seed, turn)]}, config(thread_id))


async def take_turns_at_once(graph: Graph, thread_ids: Sequence[str], count: int) -> list[BaseException]:
    """Run `count` turns of every thread, all threads at once; return the errors that ended threads early."""
    tasks = [atake_turns(graph, thread_id, 0, count, thread_id) for thread_id in thread_ids]
    results = await asyncio.gather(*tasks, return_exceptions=True)
    return [each for each in results if each is not None]


def turn_messages(seed: str, turn: int, earlier: int) -> list[AnyMessage]:
    """The 4 messages of a turn without running a graph.

    Args:
        earlier: how many messages the thread holds before this turn.
    """
    user = user_message(seed, turn)
    ai = answer([*[user] * earlier, user])
    call = ai.tool_calls[0]
    rng = random.Random(f"{call['id']}/tool")
    result = ToolMessage(
        record(**call["args"]),
        name=call["name"],
        tool_call_id=str(call["id"]),
        id=str(uuid.UUID(int=rng.getrandbits(128), version=4)),
    )
    return [user, ai, result, answer([*[user] * (earlier + 2), result])]


def seed_thread(graph: Graph, thread_id: str, turns: int, seed: str = "bench") -> None:
    """Give a thread the messages of `turns` turns in one update: the same head, without the history behind it."""
    messages = [m for turn in range(turns) for m in turn_messages(seed, turn, turn * MESSAGES_PER_TURN)]
    graph.update_state(config(thread_id), {"messages": messages}, as_node="agent")


def text_bytes(messages: Sequence[BaseMessage]) -> int:
    """Bytes of text in the messages: contents and tool arguments, as a reader would count them."""
    total = 0
    for message in messages:
        total += len(str(message.content).encode())
        if isinstance(message, AIMessage):
            total += sum(len(json.dumps(call["args"]).encode()) for call in message.tool_calls)
    return total
