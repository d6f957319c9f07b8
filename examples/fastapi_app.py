"""A chat service and an approval page: every worker process serves every thread, on one database file.

    pip install "fastapi" "uvicorn"
    AGENT_CKPT_URL=agent.db uvicorn --app-dir examples fastapi_app:app --workers 2
    curl -X POST localhost:8000/threads/customer-42/messages -H 'content-type: application/json' -d '{"text": "hi"}'
    curl localhost:8000/threads/customer-42
    curl -X POST localhost:8000/payments/7 -H 'content-type: application/json' -d '{"to": "Ada", "cents": 1250}'
    open http://localhost:8000/payments/7 in two browsers, and decide in both

A second message while the first is being answered (say "look up ..." for a tool that takes 2 s) gets
status 409 at once, with the fields of the ThreadConflictError; the first is answered. Of two
reviewers who see one payment, the first one's decision counts and the second one's gets 409, since
the page sends back the revision that it showed (`expected_revision`). The client then reads the
thread again and decides. If `wrote` is false nothing of the refused request is stored.

CHAT_MODEL=provider:name puts a real model in place of the scripted one.
"""

from __future__ import annotations

import asyncio
import html
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any, TypedDict

from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import HTMLResponse, JSONResponse
from langchain_core.callbacks import CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import tool
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from langgraph.types import Command, interrupt
from pydantic import BaseModel, PositiveInt, StringConstraints

from agent_ckpt import AgentSaver, ThreadConflictError, UnavailableError, idempotency_key

LOOK_UP_S = 2.0


@tool
async def look_up(what: str) -> str:
    """Look something up, which takes a while."""
    await asyncio.sleep(LOOK_UP_S)
    return f"all about {what}"


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
        if isinstance(messages[-1], HumanMessage) and said[-1].startswith("look up "):
            call = {"name": "look_up", "args": {"what": said[-1].removeprefix("look up ")}, "id": f"call-{len(said)}"}
            asks = AIMessage(content="", tool_calls=[call])
            return ChatResult(generations=[ChatGeneration(message=asks)])
        if isinstance(messages[-1], ToolMessage):
            found = AIMessage(content=messages[-1].text)
            return ChatResult(generations=[ChatGeneration(message=found)])
        answer = f"That was your message number {len(said)}: {said[-1]}"
        return ChatResult(generations=[ChatGeneration(message=AIMessage(content=answer))])

    def bind_tools(self, tools: Any, **kwargs: Any) -> Any:
        return self


def build_agent(saver: AgentSaver) -> Any:
    model: BaseChatModel = ScriptedModel()
    if name := os.environ.get("CHAT_MODEL"):
        from langchain.chat_models import init_chat_model

        model = init_chat_model(name)

    with_tools = model.bind_tools([look_up])

    async def answer(state: MessagesState) -> dict[str, Any]:
        return {"messages": [await with_tools.ainvoke(state["messages"])]}

    graph = StateGraph(MessagesState)
    graph.add_node("model", answer)
    graph.add_node("tools", ToolNode([look_up]))
    graph.add_edge(START, "model")
    graph.add_conditional_edges("model", tools_condition)
    graph.add_edge("tools", "model")
    return graph.compile(checkpointer=saver)


class Payment(TypedDict, total=False):
    to: str
    cents: int
    approved: bool
    receipt: str


def build_payments(saver: AgentSaver) -> Any:
    async def approve(state: Payment) -> Payment:
        return {"approved": interrupt(f"Pay {state['cents'] / 100:.2f} to {state['to']}?")}

    # A node after the one that asks: with "sync" it runs only when the answer is stored.
    async def pay(state: Payment, config: RunnableConfig) -> Payment:
        if not state["approved"]:
            return {"receipt": "declined"}
        # A bank takes such a key and pays once, however often it is told.
        return {"receipt": f"paid, reference {idempotency_key(config, 'pay')}"}

    graph = StateGraph(Payment)
    graph.add_node("approve", approve)
    graph.add_node("pay", pay)
    graph.add_edge(START, "approve")
    graph.add_edge("approve", "pay")
    return graph.compile(checkpointer=saver)


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    async with AgentSaver(os.environ.get("AGENT_CKPT_URL", "agent.db")) as saver:
        app.state.saver = saver
        app.state.agent = build_agent(saver)
        app.state.payments = build_payments(saver)
        yield


app = FastAPI(title="Chat and payments", lifespan=lifespan)


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


class NewPayment(BaseModel):
    to: Annotated[str, StringConstraints(min_length=1)]
    cents: PositiveInt


class Decision(BaseModel):
    approve: bool
    expected_revision: int


@app.post("/payments/{number}")
async def ask_for_payment(number: str, payment: NewPayment, request: Request) -> dict[str, Any]:
    # Revision 0 is that of a thread that isn't stored: a payment is asked for once.
    asked = config(f"payment-{number}", expected_revision=0)
    await request.app.state.payments.ainvoke(payment.model_dump(), asked, durability="sync")
    return await payment_as_it_is(number, request)


@app.get("/payments/{number}", response_class=HTMLResponse)
async def review(number: str, request: Request) -> str:
    found = await payment_as_it_is(number, request)
    return REVIEW.format(
        number=html.escape(number),
        shown=html.escape(found["question"] or found["receipt"]),
        revision=found["revision"],
        buttons="" if found["question"] is None else BUTTONS,
    )


@app.post("/payments/{number}/decision")
async def decide(number: str, decision: Decision, request: Request) -> dict[str, Any]:
    seen = config(f"payment-{number}", expected_revision=decision.expected_revision)
    await request.app.state.payments.ainvoke(Command(resume=decision.approve), seen, durability="sync")
    return await payment_as_it_is(number, request)


async def payment_as_it_is(number: str, request: Request) -> dict[str, Any]:
    thread = config(f"payment-{number}")
    # The revision first: if the thread moves on between the two, the page's revision is too old, never too new.
    revision = await request.app.state.saver.arevision(thread)
    state = await request.app.state.payments.aget_state(thread)
    if not state.values:
        raise HTTPException(404, f"no payment {number!r}")
    question = state.interrupts[0].value if state.interrupts else None
    return {"revision": revision, "question": question, "receipt": state.values.get("receipt", "being made")}


BUTTONS = '<button onclick="decide(true)">Pay</button> <button onclick="decide(false)">Decline</button>'
REVIEW = """<!doctype html>
<title>Payment {number}</title>
<h1>Payment {number}</h1>
<p id="shown" data-revision="{revision}">{shown}</p>
{buttons}
<script>
async function decide(approve) {{
  const shown = document.getElementById("shown");
  const answer = await fetch(location.pathname + "/decision", {{
    method: "POST",
    headers: {{"content-type": "application/json"}},
    body: JSON.stringify({{approve, expected_revision: Number(shown.dataset.revision)}}),
  }});
  if (answer.status === 409) alert("Somebody else has decided meanwhile. This is the payment as it is now.");
  location.reload();
}}
</script>
"""


@app.exception_handler(ThreadConflictError)
async def conflict(request: Request, error: ThreadConflictError) -> JSONResponse:
    return JSONResponse({"error": "conflict", "message": error.message, **error.fields}, status_code=409)


@app.exception_handler(UnavailableError)
async def unavailable(request: Request, error: UnavailableError) -> JSONResponse:
    return JSONResponse({"error": "unavailable", "message": error.message}, 503, headers={"Retry-After": "1"})


def config(thread_id: str, **asked: int) -> Any:
    return {"configurable": {"thread_id": thread_id, **asked}}
