"""A chat service: every worker process serves every thread, on one database file.

    pip install "fastapi" "uvicorn"
    AGENT_CKPT_URL=agent.db uvicorn --app-dir examples fastapi_app:app --workers 2
    curl -X POST localhost:8000/threads/customer-42/messages -H 'content-type: application/json' -d '{"text": "hi"}'
    curl localhost:8000/threads/customer-42

Two requests for one thread at the same time: one is answered, the other gets status 409 with the
fields of the ThreadConflictError. The client then reads the thread again and decides. If `wrote` is
false nothing of the refused request is stored; if it is true, its message had been stored before
another request took the thread over.

CHAT_MODEL=provider:name puts a real model in place of the scripted one.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any

from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import JSONResponse
from langchain_core.callbacks import CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langgraph.graph import START, MessagesState, StateGraph
from pydantic import BaseModel, StringConstraints

from agent_ckpt import AgentSaver, ThreadConflictError, UnavailableError


class ScriptedModel(BaseChatModel):
    """Answers without a network, from the whole conversation that it was given."""

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        said = [m.text for m in messages if isinstance(m, HumanMessage)]
        answer = f"That was your message number {len(said)}: {said[-1]}"
        return ChatResult(generations=[ChatGeneration(message=AIMessage(content=answer))])


def build_agent(saver: AgentSaver) -> Any:
    model: BaseChatModel = ScriptedModel()
    if name := os.environ.get("CHAT_MODEL"):
        from langchain.chat_models import init_chat_model

        model = init_chat_model(name)

    async def answer(state: MessagesState) -> dict[str, Any]:
        return {"messages": [await model.ainvoke(state["messages"])]}

    graph = StateGraph(MessagesState)
    graph.add_node("model", answer)
    graph.add_edge(START, "model")
    return graph.compile(checkpointer=saver)


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    async with AgentSaver(os.environ.get("AGENT_CKPT_URL", "agent.db")) as saver:
        app.state.agent = build_agent(saver)
        yield


app = FastAPI(title="Chat", lifespan=lifespan)


class NewMessage(BaseModel):
    text: Annotated[str, StringConstraints(min_length=1)]


@app.post("/threads/{thread_id}/messages")
async def send(thread_id: str, message: NewMessage, request: Request) -> dict[str, Any]:
    # "sync": a step is stored before the next one begins, so a refused request stops early.
    result = await request.app.state.agent.ainvoke(
        {"messages": [HumanMessage(message.text)]}, config(thread_id), durability="sync"
    )
    return {"thread_id": thread_id, "answer": result["messages"][-1].text}


@app.get("/threads/{thread_id}")
async def show(thread_id: str, request: Request) -> dict[str, Any]:
    state = await request.app.state.agent.aget_state(config(thread_id))
    if not state.values:
        raise HTTPException(404, f"no thread {thread_id!r}")
    messages = [{"type": m.type, "id": m.id, "text": m.text} for m in state.values["messages"]]
    return {"thread_id": thread_id, "messages": messages}


@app.exception_handler(ThreadConflictError)
async def conflict(request: Request, error: ThreadConflictError) -> JSONResponse:
    return JSONResponse({"error": "conflict", "message": error.message, **error.fields}, status_code=409)


@app.exception_handler(UnavailableError)
async def unavailable(request: Request, error: UnavailableError) -> JSONResponse:
    return JSONResponse({"error": "unavailable", "message": error.message}, 503, headers={"Retry-After": "1"})


def config(thread_id: str) -> Any:
    return {"configurable": {"thread_id": thread_id}}
