"""Make the factory dictionary: `python -m tests.tools.train_dictionary OUT`.

The samples are the payloads that real graphs store: messages in the shapes that the common model
integrations fill in, task writes, and checkpoint bodies of several kinds of agent. Their texts are
made from a list of common words, so nobody's text is in the dictionary. A new dictionary gets a
new number (`codec/compress.py`); one that was released is never changed.
"""

from __future__ import annotations

import random
import sys
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, TypedDict

import zstandard
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, SystemMessage, ToolMessage
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import Command, Send, interrupt

from agent_ckpt import AgentSaver
from agent_ckpt.codec import compress, frame

SIZE = 64 * 1024
WORDS = """
the of and to in a is that for it as was with be by on not he this are or his from at which but have an they
you were her she there been one all we their has would what will so if can more when who out up no about them
then my into your time some could than its only other new like now over also me even most made after did many
before must well back through years where much way should because each people how very just first any those
day same us still own see get between long being work under never last while part here take come again however
right high large often want use thank please help need order account customer ticket issue request information
number status update change cancel refund payment card address email phone shipping delivery package item
product price total available delayed today tomorrow yesterday week month date flight booking reservation seat
ticket airport departure arrival passenger policy support agent message reply question answer result search
find found found show list check confirm confirmed complete completed pending failed error data file document
report summary analysis code function test value name user system model tool call response query query record
database table field type string integer true false null content text service company team project meeting
schedule calendar plan task next step review approve approved details note notes market growth revenue cost
rate percent increase decrease level average country city state region world government public history science
research study results method based different several important possible within without during would like
could you please let me know if there is anything else happy to assist great question here is what i found
based on the information provided according to our records I am sorry for the inconvenience your request has
been
""".split()


def sentence(rng: random.Random, size: int) -> str:
    parts: list[str] = []
    while sum(map(len, parts)) + len(parts) < size:
        words = rng.choices(WORDS, k=rng.randint(4, 16))
        parts.append(" ".join(words).capitalize() + rng.choice([".", ".", ".", "?", "!", ",", ":\n-", "\n\n"]))
    return " ".join(parts)[:size]


def token(rng: random.Random, size: int) -> str:
    return "".join(rng.choices("abcdefghijkmnopqrstuvwxyzABCDEFGHJKLMNPQRSTUVWXYZ0123456789", k=size))


def usage(rng: random.Random) -> dict[str, Any]:
    given, made = rng.randint(20, 20_000), rng.randint(1, 900)
    return {
        "input_tokens": given,
        "output_tokens": made,
        "total_tokens": given + made,
        "input_token_details": rng.choice([{"cache_read": 0}, {"audio": 0, "cache_read": given // 2}, {}]),
        "output_token_details": rng.choice([{"reasoning": 0}, {"audio": 0, "reasoning": made // 3}, {}]),
    }


def response_metadata(rng: random.Random, calls: bool) -> dict[str, Any]:
    made, given = rng.randint(1, 900), rng.randint(20, 20_000)
    chat = {
        "token_usage": {
            "completion_tokens": made,
            "prompt_tokens": given,
            "total_tokens": made + given,
            "completion_tokens_details": {
                "accepted_prediction_tokens": 0,
                "audio_tokens": 0,
                "reasoning_tokens": 0,
                "rejected_prediction_tokens": 0,
            },
            "prompt_tokens_details": {"audio_tokens": 0, "cached_tokens": 0},
        },
        "model_provider": "openai",
        "model_name": rng.choice(["gpt-4o-2024-08-06", "gpt-4.1-mini-2025-04-14", "gpt-5-mini"]),
        "system_fingerprint": f"fp_{token(rng, 10)}",
        "id": f"chatcmpl-{token(rng, 29)}",
        "service_tier": "default",
        "finish_reason": "tool_calls" if calls else "stop",
        "logprobs": None,
    }
    blocks = {
        "id": f"msg_{token(rng, 24)}",
        "model": rng.choice(["claude-sonnet-4-5", "claude-opus-4-1-20250805"]),
        "stop_reason": "tool_use" if calls else "end_turn",
        "stop_sequence": None,
        "usage": {"cache_creation_input_tokens": 0, "cache_read_input_tokens": 0, "input_tokens": given},
        "model_name": "claude-sonnet-4-5",
        "model_provider": "anthropic",
    }
    parts = {
        "finish_reason": "STOP",
        "model_name": "gemini-2.5-flash",
        "safety_ratings": [],
        "prompt_feedback": {"block_reason": 0, "safety_ratings": []},
    }
    return rng.choice([chat, chat, blocks, blocks, parts, {}])


def exchange(rng: random.Random) -> list[AnyMessage]:
    """A user's text, an AI message with a call, its result, an answer."""
    name = rng.choice(["search", "get_weather", "lookup_order", "read_file", "run_query", "send_email"])
    args = {
        rng.choice(["query", "path", "order_id", "city", "user_id"]): rng.choice([token(rng, 8), sentence(rng, 30)]),
        rng.choice(["limit", "offset", "date", "reason"]): rng.choice([rng.randint(1, 50), "2025-06-01"]),
    }
    call = {"name": name, "args": args, "id": rng.choice(["call_", "toolu_"]) + token(rng, 24), "type": "tool_call"}
    said = {
        "id": rng.choice(
            [f"lc_run--{uuid.UUID(int=rng.getrandbits(128))}-0", f"run--{uuid.UUID(int=rng.getrandbits(128))}"]
        ),
        "usage_metadata": usage(rng),
    }
    record = (
        '{"id": "%s", "status": "%s", "amount": %d, "items": [{"name": "%s"}], "created_at": "2025-06-01T10:00:00"}'
    )
    found = rng.choice(
        [
            sentence(rng, rng.randint(20, 600)),
            record % (token(rng, 9), "pending", rng.randint(1, 999), sentence(rng, 90)),
        ]
    )
    return [
        HumanMessage(sentence(rng, rng.randint(10, 400)), id=str(uuid.UUID(int=rng.getrandbits(128), version=4))),
        AIMessage(
            rng.choice(["", sentence(rng, rng.randint(10, 300))]),
            tool_calls=[call],
            response_metadata=response_metadata(rng, True),
            additional_kwargs=rng.choice([{}, {"refusal": None}]),
            **said,
        ),
        ToolMessage(found, name=name, tool_call_id=call["id"], id=str(uuid.UUID(int=rng.getrandbits(128), version=4))),
        AIMessage(sentence(rng, rng.randint(30, 800)), response_metadata=response_metadata(rng, False), **said),
    ]


class Wide(TypedDict, total=False):
    messages: Annotated[list[AnyMessage], add_messages]
    summary: str
    todos: list[dict[str, str]]
    files: dict[str, Any]
    remaining_steps: int
    context: dict[str, Any]
    documents: list[str]
    question: str
    generation: str


def run_graphs(saver: AgentSaver, rng: random.Random) -> None:
    """Run several kinds of agent, so that the store holds their rows."""
    for number in range(12):
        said = iter([m for _ in range(30) for m in exchange(rng)])

        def model(state: Any, said: Iterator[AnyMessage] = said) -> Any:
            return {"messages": [next(said)]}

        graph = StateGraph(MessagesState)
        graph.add_node("agent", model)
        graph.add_node("tools", model)
        graph.add_edge(START, "agent")
        graph.add_conditional_edges(
            "agent", lambda s: "tools" if getattr(s["messages"][-1], "tool_calls", None) else END
        )
        graph.add_edge("tools", "agent")
        app = graph.compile(checkpointer=saver)
        for _ in range(10):
            config = {"configurable": {"thread_id": f"react-{number}"}, "metadata": {"user_id": token(rng, 6)}}
            app.invoke({"messages": exchange(rng)[:1]}, config)
    for number in range(12):
        _run_wide(saver, rng, f"wide-{number}")


def _run_wide(saver: AgentSaver, rng: random.Random, thread_id: str) -> None:
    def plan(state: Wide) -> Any:
        todos = [{"content": sentence(rng, 40), "status": rng.choice(["pending", "in_progress", "completed"])}]
        return {"summary": sentence(rng, 120), "todos": todos, "messages": exchange(rng)[-1:]}

    def write(state: Wide) -> Any:
        return {"files": {f"/{token(rng, 5)}.md": {"content": sentence(rng, 200)}}, "documents": [sentence(rng, 80)]}

    def ask(state: Wide) -> Any:
        return Command(update={"generation": str(interrupt({"question": sentence(rng, 30)}))}, goto="model")

    inner = StateGraph(Wide).add_node("retrieve", write).add_edge(START, "retrieve").compile()
    graph = StateGraph(Wide)
    for name, node in (("planner", plan), ("executor", write), ("human", ask), ("model", plan), ("subgraph", inner)):
        graph.add_node(name, node)
    graph.add_edge(START, "planner")
    graph.add_edge("planner", "subgraph")
    graph.add_conditional_edges("subgraph", lambda s: [Send("executor", {"question": "a"}), Send("human", s)])
    app = graph.compile(checkpointer=saver)
    config = {"configurable": {"thread_id": thread_id, "user_id": token(rng, 6), "assistant_id": "agent"}}
    for _ in range(6):
        app.invoke({"messages": [SystemMessage(sentence(rng, 60)), *exchange(rng)[:1]], "question": "q"}, config)
        app.invoke(Command(resume=sentence(rng, 20)), config)


def payloads(path: Path) -> list[bytes]:
    """Every small payload of a store, uncompressed."""
    import sqlite3

    connection = sqlite3.connect(path)
    found: list[bytes] = []
    for table, tail in (("blobs", 0), ("checkpoints", 8), ("writes", 8)):
        column = connection.execute(f"SELECT frame FROM {table}")
        for (framed,) in column:
            raw = framed[frame.HEADER_SIZE : len(framed) - tail]
            found.append(compress.decompress(framed[3], raw))
    connection.close()
    return [payload for payload in found if 32 < len(payload) < 8192]


def main(out: str) -> None:
    rng = random.Random(20260101)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "train.db"
        with AgentSaver(path, compression="none") as saver:
            run_graphs(saver, rng)
        samples = payloads(path)
    rng.shuffle(samples)
    made = zstandard.train_dictionary(SIZE, samples, k=256, d=8, threads=1)
    Path(out).write_bytes(made.as_bytes())
    print(f"{len(samples)} samples of {sum(map(len, samples))} bytes made a dictionary of {len(made.as_bytes())}")


if __name__ == "__main__":
    main(sys.argv[1])
