"""Small real graphs and a scripted chat model, shared by the tests, the benchmark and the examples' tests.

Every builder returns a fresh graph, compiled with the given checkpointer; nothing here needs a network or a key.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Annotated, Any, TypedDict

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel, LanguageModelInput
from langchain_core.messages import AIMessage, AnyMessage, BaseMessage, ToolCall, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.runnables import Runnable, RunnableLambda
from langchain_core.tools import BaseTool, tool
from langchain_core.utils.function_calling import convert_to_openai_tool
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.graph.state import CompiledStateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from langgraph.types import Send, interrupt
from pydantic import PrivateAttr, SkipValidation

Saver = BaseCheckpointSaver[Any]
Graph = CompiledStateGraph[Any, Any, Any, Any]
Script = Sequence[AIMessage | str] | Callable[[list[BaseMessage]], AIMessage]


class ScriptedModel(BaseChatModel):
    """A real chat model that answers from a script, offline.

    A sequence is indexed by the number of AI messages in the history it is shown, not by a counter, so the same
    history gets the same answer in every process, after every restart and in a replay. A function of the messages
    answers for itself.

    Attributes:
        script: the answers, in order (text or whole messages), or a function of the history.
        refuse_dangling: raise ValueError for a history in which an AI message's tool calls are not answered by the
            tool messages that follow it, as the providers' services do.
    """

    script: SkipValidation[Script]
    refuse_dangling: bool = False
    _calls: int = PrivateAttr(default=0)

    @property
    def _llm_type(self) -> str:
        return "scripted"

    @property
    def calls(self) -> int:
        """How often this object was asked (a model made by `bind_tools` counts on the object it was bound from)."""
        return self._calls

    def bind_tools(
        self, tools: Sequence[Any], *, tool_choice: str | None = None, **kwargs: Any
    ) -> Runnable[LanguageModelInput, AIMessage]:
        return self.bind(tools=[convert_to_openai_tool(each) for each in tools], **kwargs)

    def _answer(self, messages: list[BaseMessage]) -> ChatResult:
        self._calls += 1
        if self.refuse_dangling:
            refuse_dangling(messages)
        if callable(self.script):
            message = self.script(messages)
        else:
            position = sum(isinstance(m, AIMessage) for m in messages)
            if position >= len(self.script):
                raise ValueError(f"the script has {len(self.script)} answers; answer {position + 1} was asked for")
            entry = self.script[position]
            # A copy, since LangGraph and LangChain set ids on the message they are given.
            message = AIMessage(entry) if isinstance(entry, str) else entry.model_copy(deep=True)
        return ChatResult(generations=[ChatGeneration(message=message)])

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        return self._answer(messages)

    async def _agenerate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        return self._answer(messages)


def refuse_dangling(messages: Sequence[BaseMessage]) -> None:
    """Check that each AI message's tool calls are answered right after it.

    Raises:
        ValueError: naming the first tool call without its tool message.
    """
    open_calls: list[str] = []
    for message in messages:
        if isinstance(message, ToolMessage):
            if message.tool_call_id not in open_calls:
                raise ValueError(f"tool message for {message.tool_call_id!r} without its tool call before it")
            open_calls.remove(message.tool_call_id)
            continue
        if open_calls:
            break
        if isinstance(message, AIMessage):
            open_calls = [str(call["id"]) for call in message.tool_calls]
    if open_calls:
        raise ValueError(f"an AI message with tool calls must be followed by tool messages; {open_calls[0]!r} has none")


def call_tool(name: str, call_id: str, /, **args: Any) -> AIMessage:
    """An AI message that calls one tool."""
    return AIMessage("", tool_calls=[ToolCall(name=name, args=args, id=call_id)])


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def react_graph(saver: Saver | None, model: BaseChatModel, tools: Sequence[BaseTool] = (add,)) -> Graph:
    """agent -> tools -> agent on MessagesState, until the model calls no tool."""
    bound = model.bind_tools(tools)

    def agent(state: MessagesState) -> dict[str, Any]:
        return {"messages": [bound.invoke(state["messages"])]}

    async def aagent(state: MessagesState) -> dict[str, Any]:
        return {"messages": [await bound.ainvoke(state["messages"])]}

    builder = StateGraph(MessagesState)
    builder.add_node("agent", RunnableLambda(agent, afunc=aagent))
    builder.add_node("tools", ToolNode(list(tools)))
    builder.add_edge(START, "agent")
    builder.add_conditional_edges("agent", tools_condition)
    builder.add_edge("tools", "agent")
    return builder.compile(checkpointer=saver)


class LogState(TypedDict):
    """A log that every node adds a line to, and the answer to an interrupt."""

    log: Annotated[list[str], operator.add]
    answer: str


def approval_graph(saver: Saver | None, act: Callable[[str], None] | None = None) -> Graph:
    """plan -> approve (interrupts with a question) -> act.

    Args:
        act: called with the answer by the last node; the side effect that must not be repeated.
    """

    def plan(state: LogState) -> dict[str, Any]:
        return {"log": ["planned"]}

    def approve(state: LogState) -> dict[str, Any]:
        answer = interrupt({"question": "go on?", "after": state["log"][-1]})
        return {"log": [f"answered {answer}"], "answer": answer}

    def perform(state: LogState) -> dict[str, Any]:
        if act is not None:
            act(state["answer"])
        return {"log": ["acted"]}

    builder = StateGraph(LogState)
    builder.add_node("plan", plan)
    builder.add_node("approve", approve)
    builder.add_node("act", perform)
    builder.add_edge(START, "plan")
    builder.add_edge("plan", "approve")
    builder.add_edge("approve", "act")
    builder.add_edge("act", END)
    return builder.compile(checkpointer=saver)


def nested_graph(saver: Saver | None, depth: int = 2, *, ask: bool = False) -> Graph:
    """before -> inner -> after, where inner is such a graph again, `depth` levels in all.

    Args:
        depth: number of levels; 1 is a plain graph of one working node.
        ask: the innermost node interrupts with a question and logs the answer.
    """

    def innermost(state: LogState) -> dict[str, Any]:
        if not ask:
            return {"log": ["worked"]}
        answer = interrupt({"question": "which way?"})
        return {"log": [f"went {answer}"], "answer": answer}

    def level(number: int) -> StateGraph[Any, Any, Any, Any]:
        builder = StateGraph(LogState)
        if number == depth:
            builder.add_node("work", innermost)
            builder.add_edge(START, "work")
            return builder
        builder.add_node("before", lambda state: {"log": [f"before {number}"]})
        # The inner state starts from the outer log, so only what is new goes back through the adding reducer.
        inner = level(number + 1).compile()

        def enter(state: LogState) -> dict[str, Any]:
            result = inner.invoke({"log": [], "answer": ""})
            return {"log": result["log"], "answer": result["answer"]}

        builder.add_node("inner", enter)
        builder.add_node("after", lambda state: {"log": [f"after {number}"]})
        builder.add_edge(START, "before")
        builder.add_edge("before", "inner")
        builder.add_edge("inner", "after")
        return builder

    return level(1).compile(checkpointer=saver)


class FanState(TypedDict):
    """Items to work on and the results, in task order."""

    items: list[int]
    results: Annotated[list[int], operator.add]


def fan_out_graph(saver: Saver | None, work: Callable[[int], int] = lambda item: item * item) -> Graph:
    """One `Send` to "work" per item, then "join"; results keep the order of the items."""

    def run(state: Any) -> dict[str, Any]:
        return {"results": [work(state["item"])]}

    builder: StateGraph[Any, Any, Any, Any] = StateGraph(FanState)
    builder.add_node("work", run)
    builder.add_node("join", lambda state: {"items": []})
    builder.add_conditional_edges(START, lambda state: [Send("work", {"item": i}) for i in state["items"]], ["work"])
    builder.add_edge("work", "join")
    builder.add_edge("join", END)
    return builder.compile(checkpointer=saver)


def extend_messages(state: list[AnyMessage] | None, writes: Sequence[Any]) -> list[AnyMessage]:
    """Delta reducer: append messages; one with a known id replaces it."""
    merged: dict[Any, AnyMessage] = {m.id: m for m in state or []}
    for write in writes:
        for message in write if isinstance(write, list) else [write]:
            merged[message.id or id(message)] = message
    return list(merged.values())


def merge_files(state: dict[str, str] | None, writes: Sequence[dict[str, str | None]]) -> dict[str, str]:
    """Delta reducer: set files by name; None removes one."""
    files: dict[str, str] = dict(state or {})
    for write in writes:
        for name, text in write.items():
            if text is None:
                files.pop(name, None)
            else:
                files[name] = text
    return files


def delta_graph(saver: Saver | None, snapshot_frequency: int = 5) -> Graph:
    """answer -> file, on two DeltaChannels: messages, and a dict of files, as deepagents keeps them.

    The first node answers the last message, the second writes a file whose name and text tell the number of messages.
    """
    messages = DeltaChannel(extend_messages, list, snapshot_frequency=snapshot_frequency)
    files = DeltaChannel(merge_files, dict, snapshot_frequency=snapshot_frequency)
    DeltaState = TypedDict(
        "DeltaState", {"messages": Annotated[list[AnyMessage], messages], "files": Annotated[dict[str, str], files]}
    )

    def answer(state: Any) -> dict[str, Any]:
        return {"messages": [AIMessage(f"answer to {state['messages'][-1].content}")]}

    def file(state: Any) -> dict[str, Any]:
        count = len(state["messages"])
        return {"files": {f"note-{count % 3}.txt": f"{count} messages"}}

    builder: StateGraph[Any, Any, Any, Any] = StateGraph(DeltaState)
    builder.add_node("answer", answer)
    builder.add_node("file", file)
    builder.add_edge(START, "answer")
    builder.add_edge("answer", "file")
    builder.add_edge("file", END)
    return builder.compile(checkpointer=saver)
