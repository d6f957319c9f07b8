"""An agent whose tool calls an HTTP API with a token that no checkpoint, log or file shows.

    python examples/credentials.py

The API (a server of this script's own, on a free local port) wants a bearer token that is good for a short
time, and gives a new one for a refresh token. Both tokens stand in the saver's credential store: sealed,
outside the agent's state. The script shows, and checks,

1. an agent whose tool gets the token by the config of its run, and refreshes it when it has expired,
2. two workers, processes of their own, that find the token expired at the same moment: one refreshes it,
   the other one is told and goes on with what the first has stored; no turn is refused,
3. who used the token, and when,
4. that none of the tokens is anywhere in the raw files.

The script exits with 1 when a check fails.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.runnables import Runnable, RunnableConfig
from langchain_core.tools import tool
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition

from agent_ckpt import AgentSaver, Credential, CredentialConflictError

THREAD = "customer-42"
NAME = "orders-api"
KEY_VARIABLE = "EXAMPLE_CKPT_KEY"


# --- the API -----------------------------------------------------------------------------------


class Api(ThreadingHTTPServer):
    """`GET /orders` for a bearer token that is still good; `POST /token` gives one for the refresh token."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.refresh_token = secrets.token_urlsafe(24)
        self.issued: dict[str, float] = {}
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def issue(self, good_for_s: float) -> dict[str, Any]:
        token, until = secrets.token_urlsafe(24), time.time() + good_for_s
        self.issued[token] = until
        return {"access_token": token, "expires_at": until}


class _Handler(BaseHTTPRequestHandler):
    server: Api

    def do_GET(self) -> None:
        token = self.headers.get("Authorization", "").removeprefix("Bearer ")
        good = self.server.issued.get(token, 0) > time.time()
        self._answer(200 if good else 401, ["a kettle", "two cups"] if good else "the token has expired")

    def do_POST(self) -> None:
        given = self.rfile.read(int(self.headers["Content-Length"])).decode()
        time.sleep(0.3)  # long enough for two workers to ask at once
        good = given == self.server.refresh_token
        self._answer(200 if good else 401, self.server.issue(60) if good else "not the refresh token")

    def _answer(self, status: int, document: Any) -> None:
        raw = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)

    def log_message(self, *args: Any) -> None:
        """Print nothing."""


def ask(url: str, *, token: str | None = None, data: str | None = None) -> Any:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    request = urllib.request.Request(url, data=data.encode() if data else None, headers=headers)
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer)


# --- the agent ---------------------------------------------------------------------------------


def fresh_token(saver: AgentSaver, config: RunnableConfig, url: str) -> tuple[Credential, str]:
    """The run's token, refreshed if it has expired; and what was done."""
    credentials = saver.credentials(config)
    found = credentials.get(NAME)
    if found is None:
        raise RuntimeError(f"nobody has set {NAME!r} for this thread")
    if not found.expired:
        return found, "used as it is"
    value = found.reveal()
    new = ask(f"{url}/token", data=value["refresh_token"])
    try:
        credentials.set(
            NAME,
            {**value, "access_token": new["access_token"]},
            expires_at=new["expires_at"],
            if_revision=found.revision,  # another worker may be doing the same
        )
        done = "refreshed"
    except CredentialConflictError:
        done = "another worker has refreshed it"
    again = credentials.get(NAME)
    assert again is not None
    return again, done


class ScriptedModel(BaseChatModel):
    """Plays the model's part without a network: asks for the orders, then tells them."""

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Sequence[Any], **kwargs: Any) -> Runnable[Any, AIMessage]:
        return self

    def _generate(
        self, messages: list[BaseMessage], stop: list[str] | None = None, run_manager: Any = None, **kwargs: Any
    ) -> ChatResult:
        last = messages[-1]
        if isinstance(last, ToolMessage):
            message = AIMessage(f"You ordered {last.content}.")
        else:
            message = AIMessage("", tool_calls=[{"name": "list_orders", "args": {}, "id": f"call-{len(messages)}"}])
        return ChatResult(generations=[ChatGeneration(message=message)])


def build_agent(saver: AgentSaver, url: str, report: list[str]) -> Any:
    @tool
    def list_orders(config: RunnableConfig) -> str:
        """What the customer has ordered."""
        found, done = fresh_token(saver, config, url)
        report.append(f"{done}, revision {found.revision}")
        # The only place that has the token in clear. Never return it: what a tool returns is stored as state.
        return ", ".join(ask(f"{url}/orders", token=found.reveal()["access_token"]))

    model = ScriptedModel().bind_tools([list_orders])
    graph = StateGraph(MessagesState)
    graph.add_node("model", lambda state: {"messages": [model.invoke(state["messages"])]})
    graph.add_node("tools", ToolNode([list_orders]))
    graph.add_edge(START, "model").add_conditional_edges("model", tools_condition).add_edge("tools", "model")
    return graph.compile(checkpointer=saver)


def config(run_id: str) -> RunnableConfig:
    # An API key in a config, as people pass them: the saver masks it before it reaches a checkpoint's metadata.
    return {"configurable": {"thread_id": THREAD, "model_api_key": os.environ["MODEL_API_KEY"], "run_id": run_id}}


def open_saver(db: Path) -> AgentSaver:
    # The key's place is named, never the key. In production: `agent-ckpt keys new FILE` and key="file:FILE".
    return AgentSaver(db, key=f"env:{KEY_VARIABLE}", compression="none")


def work(db: Path, url: str, name: str) -> None:
    """One worker process: waits until both are there, then asks the API as the tool does."""
    with open_saver(db) as saver:
        (db.parent / f"{name}-is-ready").touch()
        while len(list(db.parent.glob("*-is-ready"))) < 2:
            time.sleep(0.01)
        found, done = fresh_token(saver, config(name), url)
        orders = ask(f"{url}/orders", token=found.reveal()["access_token"])
        print(f"{name}: {done}, revision {found.revision}, {len(orders)} orders", flush=True)


# --- the demonstration -------------------------------------------------------------------------

failed: list[str] = []


def check(what: str, holds: bool) -> None:
    print(f"   {'ok  ' if holds else 'FAIL'} {what}")
    if not holds:
        failed.append(what)


def demonstrate(folder: Path) -> None:
    db, api = folder / "agent.db", Api()
    os.environ[KEY_VARIABLE], os.environ["MODEL_API_KEY"] = secrets.token_hex(32), f"sk-{secrets.token_hex(12)}"
    saver = open_saver(db)

    print("1. The agent lists the customer's orders; its token has expired meanwhile.")
    first = api.issue(good_for_s=0)
    given = {"access_token": first["access_token"], "refresh_token": api.refresh_token}
    saver.credentials(THREAD, actor="setup").set(NAME, given, expires_at=first["expires_at"])
    report: list[str] = []
    agent = build_agent(saver, api.url, report)
    state = agent.invoke({"messages": [("user", "What did I order?")]}, config("first"))
    print(f"   {state['messages'][-1].content}")
    check("the tool refreshed the token", report[-1].startswith("refreshed"))
    state = agent.invoke({"messages": [("user", "And what else?")]}, config("second"))
    check("the next turn used it as it was", report[-1].startswith("used as it is"))

    print("2. The token expires again, and two workers find it so at the same moment.")
    found = saver.credentials(THREAD).get(NAME)
    assert found is not None
    print(f"   what print shows: {found}")
    expired = saver.credentials(THREAD, actor="setup").set(NAME, found.reveal(), expires_at=time.time() - 1)
    before = next(iter(saver.threads())).revision
    command = [sys.executable, __file__, "--db", str(db), "--url", api.url, "--worker"]
    workers = [subprocess.Popen([*command, name], stdout=subprocess.PIPE, text=True) for name in ("anna", "ben")]
    said = [worker.communicate(timeout=60)[0].strip() for worker in workers]
    print("\n".join(f"   {line}" for line in said))
    check("both workers got their orders", all(line.endswith("2 orders") for line in said))
    check("one of them refreshed the token", sum(": refreshed" in line for line in said) == 1)
    check(
        "the other one was told, or came later",
        sum("another worker" in line or "as it is" in line for line in said) == 1,
    )
    now = saver.credentials(THREAD).get(NAME)
    assert now is not None
    check("the token was set once", now.revision > expired and all(f"revision {now.revision}" in line for line in said))
    check("the thread's own revision did not move", next(iter(saver.threads())).revision == before)

    print("3. Who used the token, newest first.")
    uses = saver.credentials(THREAD).audit()
    for use in uses:
        print(f"   {use.at:%H:%M:%S} {use.action:<4} revision {use.revision} by {use.by}")
    check("the tool's uses name its node", any("node tools" in use.by for use in uses))

    print("4. The raw files, searched for every token that there ever was.")
    hidden = [api.refresh_token, *api.issued, os.environ["MODEL_API_KEY"], os.environ[KEY_VARIABLE]]
    searched(folder, hidden, "with the saver open")
    saver.close()
    searched(folder, hidden, "with the saver closed")
    api.shutdown()


def searched(folder: Path, hidden: list[str], when: str) -> None:
    files = [each for each in folder.iterdir() if each.is_file()]
    # By another process: a second handle of this one on a database that is open would drop SQLite's locks.
    raw = subprocess.run(["cat", *map(str, files)], capture_output=True, check=True).stdout
    check(f"{when}: the search finds the thread's id, which stands in clear", THREAD.encode() in raw)
    check(
        f"{when}: none of {len(hidden)} secrets in {len(files)} files", not any(text.encode() in raw for text in hidden)
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--db", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--url", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker:
        work(given.db, given.url, given.worker)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        demonstrate(Path(folder))
    print(f"{len(failed)} checks failed." if failed else "All checks passed.")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
