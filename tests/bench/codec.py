"""The value codec against LangGraph's serializer on one list of messages: `python -m tests.bench.codec [messages]`.

CPU time, the least of many interleaved rounds, so that other work on the machine counts little. Once for short
messages, and once for such as model integrations make, with all that the provider tells of an answer.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

from langchain_core import messages as lc
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from agent_ckpt.codec.values import ValueCodec

ROUNDS = 25


def conversation(size: int) -> list[Any]:
    """A ReAct conversation of this many short messages."""
    made: list[Any] = []
    for i in range(size // 4):
        call: Any = {"name": "search", "args": {"q": f"query {i}", "n": 3}, "id": f"c{i}", "type": "tool_call"}
        usage: Any = {"input_tokens": i, "output_tokens": 3, "total_tokens": i + 3}
        made.append(lc.HumanMessage(f"question {i}: " + "some words of a usual text " * 4, id=f"h{i}"))
        made.append(lc.AIMessage("", id=f"a{i}", tool_calls=[call], usage_metadata=usage))
        made.append(lc.ToolMessage("found " * 20, tool_call_id=f"c{i}", id=f"t{i}"))
        made.append(lc.AIMessage("some words of a usual answer " * 4, id=f"b{i}", response_metadata={"model": "m"}))
    return made


def provided(size: int) -> list[Any]:
    """The same as a model integration makes it: long ids, and all that the provider tells of each answer."""
    made = conversation(size)
    for i, message in enumerate(made):
        message.id = f"run--7d9c0f5e-{i:012d}-0"
        if type(message) is lc.AIMessage:
            told = {
                "prompt_tokens": 1180 + i * 7,
                "completion_tokens": 60 + i % 200,
                "total_tokens": 1240 + i * 7 + i % 200,
            }
            inputs: Any = {"audio": 0, "cache_read": 1024}
            message.usage_metadata = lc.ai.UsageMetadata(
                input_tokens=told["prompt_tokens"],
                output_tokens=told["completion_tokens"],
                total_tokens=told["total_tokens"],
                input_token_details=inputs,
                output_token_details={"audio": 0, "reasoning": 0},
            )
            message.response_metadata = {
                "token_usage": {**told, "prompt_tokens_details": {"audio_tokens": 0, "cached_tokens": 1024}},
                "model_provider": "openai",
                "model_name": "gpt-4o-mini-2024-07-18",
                "system_fingerprint": "fp_34a54ae93c",
                "id": f"chatcmpl-B{i:08d}",
                "service_tier": "default",
                "finish_reason": "stop",
                "logprobs": None,
            }
            message.additional_kwargs = {"refusal": None}
    return made


def least(work: dict[str, Callable[[], Any]]) -> dict[str, float]:
    """Per name the least CPU time of a call, in seconds."""
    found = dict.fromkeys(work, float("inf"))
    for _ in range(ROUNDS):
        for name, call in work.items():
            began = time.process_time()
            call()
            found[name] = min(found[name], time.process_time() - began)
    return found


def compare(kind: str, values: list[Any]) -> None:
    """Print what both take to encode and to decode these messages."""
    generic, ours = JsonPlusSerializer(), ValueCodec(JsonPlusSerializer())
    theirs, bodies = generic.dumps_typed(values), ours.encode_many(values)
    assert ours.decode_many(bodies) == generic.loads_typed(theirs) == values
    took = least(
        {
            "encode, generic": lambda: generic.dumps_typed(values),
            "encode": lambda: ours.encode_many(values),
            "decode, generic": lambda: generic.loads_typed(theirs),
            "decode": lambda: ours.decode_many(bodies),
        }
    )
    for name in ("encode", "decode"):
        one, other = took[name], took[f"{name}, generic"]
        times = f"{one * 1e3:.2f} ms, generic {other * 1e3:.2f} ms: 1/{other / one:.1f}"
        print(f"{name} {len(values)} {kind} messages: {times}")


def main() -> None:
    size = int(sys.argv[1]) if len(sys.argv) > 1 else 2000
    compare("short", conversation(size))
    compare("provided", provided(size))


if __name__ == "__main__":
    main()
