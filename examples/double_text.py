"""A user presses Send twice: what three checkpointers make of a second message while the first run is in a tool.

Run it: `python examples/double_text.py`. It needs langgraph-checkpoint-sqlite beside agent_ckpt, to compare with.
"""

from __future__ import annotations

import tempfile
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, ToolMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import END, START, MessagesState, StateGraph

from agent_ckpt import AgentSaver, ThreadConflictError

CONFIG: Any = {"configurable": {"thread_id": "customer-42"}}
WAIT_S = 30.0


class Desk:
    """An assistant that books what the user asks for; the booking takes until `confirm` is set."""

    def __init__(self, saver: Any) -> None:
        self.asked = 0
        self.booking, self.confirm = threading.Event(), threading.Event()
        builder = StateGraph(MessagesState)
        builder.add_node("agent", self.agent)
        builder.add_node("book", self.book)
        builder.add_edge(START, "agent")
        builder.add_conditional_edges("agent", lambda state: "book" if calls(state["messages"][-1]) else END)
        builder.add_edge("book", "agent")
        self.graph = builder.compile(checkpointer=saver)

    def agent(self, state: MessagesState) -> dict[str, Any]:
        self.asked += 1
        last = state["messages"][-1]
        if isinstance(last, HumanMessage) and "book" in str(last.content):
            return {"messages": [AIMessage("", tool_calls=[{"name": "book", "args": {}, "id": "call-1"}])]}
        return {"messages": [AIMessage(f"About {str(last.content)!r}: done.")]}

    def book(self, state: MessagesState) -> dict[str, Any]:
        self.booking.set()
        self.confirm.wait(WAIT_S)
        return {"messages": [ToolMessage("booked, 120 EUR charged", tool_call_id="call-1")]}

    def say(self, text: str) -> str:
        """Send one message; what came of it."""
        before = self.asked
        try:
            self.graph.invoke({"messages": [HumanMessage(text)]}, CONFIG, durability="sync")
        except ThreadConflictError as refused:
            return f"refused ({refused.reason}), model asked {self.asked - before} times"
        return "answered"


def calls(message: AnyMessage) -> list[Any]:
    return message.tool_calls if isinstance(message, AIMessage) else []


def open_calls(messages: list[AnyMessage]) -> int:
    """How many tool calls have no result right behind them: a provider refuses such a history."""
    return sum(
        not isinstance(after, ToolMessage)
        for message, after in zip(messages, [*messages[1:], None], strict=True)
        if calls(message)
    )


def send_twice(saver: Any) -> dict[str, str]:
    """Two messages, the second while the first is being booked; what everybody saw, and what the thread holds."""
    desk = Desk(saver)
    told: dict[str, str] = {}
    first = threading.Thread(target=lambda: told.update(first=desk.say("book the trip")))
    first.start()
    desk.booking.wait(WAIT_S)
    told["second"] = desk.say("and a taxi")
    desk.confirm.set()
    first.join(WAIT_S)
    messages = desk.graph.get_state(CONFIG).values["messages"]
    texts = [str(message.content) for message in messages]
    told["the charge is in the thread"] = "yes" if any("charged" in text for text in texts) else "NO"
    lost = told["second"] == "answered" and "and a taxi" not in texts
    told["the second message"] = "LOST, though it was answered" if lost else "kept" if "and a taxi" in texts else "told"
    told["tool calls without result"] = str(open_calls(messages))
    return told


def main() -> None:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        savers = {
            "SqliteSaver": stack.enter_context(SqliteSaver.from_conn_string(str(folder / "official.db"))),
            "InMemorySaver": InMemorySaver(),
            "AgentSaver": stack.enter_context(AgentSaver(folder / "agent.db")),
        }
        seen = {name: send_twice(saver) for name, saver in savers.items()}
    for question in seen["AgentSaver"]:
        print(f"{question}:")
        for name, told in seen.items():
            print(f"    {name:14} {told[question]}")


if __name__ == "__main__":
    main()
