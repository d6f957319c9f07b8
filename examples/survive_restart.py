"""An agent that is killed in the middle of a tool call, resumed, and answered by two workers at once.

    python examples/survive_restart.py                                       # offline, with a scripted model
    python examples/survive_restart.py --model anthropic:claude-sonnet-4-5   # any model LangChain knows

The agent books a trip. It may call `book_flight` and `book_hotel` by itself; before each payment it
interrupts and waits for a person. Every tool appends one line to `effects.log` when it is done, so
that file shows what has really happened, and how often.

Each step runs in a worker process of its own, which knows nothing but the database file and the
thread id. The checks at the end of a step are real: the script exits with 1 when one fails.
"""

from __future__ import annotations

import argparse
import json
import operator
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

from langchain_core.callbacks import CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, SystemMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.runnables import Runnable, RunnableConfig
from langchain_core.tools import BaseTool, tool
from langgraph.checkpoint.base import CheckpointTuple
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.types import Command, Send, interrupt

from agent_ckpt import AgentSaver, ThreadConflictError

CONFIG: RunnableConfig = {"configurable": {"thread_id": "trip-42"}}
NEEDS_APPROVAL = {"pay_deposit", "pay_balance"}
REQUEST = "Book me a flight and a hotel in Lisbon and pay for them."
PROMPT = """You book trips. First call book_flight and book_hotel, both in one turn. When both are booked,
call pay_deposit alone. After its result, paid or declined, call pay_balance alone. Then say in one
sentence what was done. Never call a tool twice; never ask back."""
PATIENCE_S = 45.0


# --- the agent ---------------------------------------------------------------------------------


class TripState(MessagesState):
    """The conversation, and who answered which payment: tool call id -> answer."""

    approvals: Annotated[dict[str, dict[str, Any]], operator.or_]


class ScriptedModel(BaseChatModel):
    """Plays the model's part without a network: the next tool call follows from the results so far."""

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Sequence[Any], **kwargs: Any) -> Runnable[Any, AIMessage]:
        return self

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        done = {m.name for m in messages if isinstance(m, ToolMessage)}
        plan = [("book_flight", "book_hotel"), ("pay_deposit",), ("pay_balance",)]
        names = next((names for names in plan if not done.issuperset(names)), ())
        calls = [{"name": name, "args": {}, "id": f"call_{name}"} for name in names]
        text = "" if calls else "Your trip to Lisbon is booked."
        return ChatResult(generations=[ChatGeneration(message=AIMessage(content=text, tool_calls=calls))])


def make_tools(folder: Path) -> list[BaseTool]:
    def has_happened(what: str) -> str:
        with (folder / "effects.log").open("a") as effects:
            effects.write(what + "\n")
        return what

    @tool
    def book_flight() -> str:
        """Book the flight to Lisbon."""
        return has_happened("flight booked")

    @tool
    def book_hotel() -> str:
        """Book the hotel in Lisbon. The hotel's service can be slow."""
        (folder / "hotel-called").touch()
        time.sleep(float(os.environ.get("HOTEL_TAKES_S", "0.1")))
        return has_happened("hotel booked")

    @tool
    def pay_deposit() -> str:
        """Pay the deposit of 80 EUR. A person must approve."""
        return has_happened("deposit paid")

    @tool
    def pay_balance() -> str:
        """Pay the balance of 420 EUR. A person must approve."""
        return has_happened("balance paid")

    return [book_flight, book_hotel, pay_deposit, pay_balance]


def build_agent(saver: AgentSaver, folder: Path, model_name: str | None) -> Any:
    tools = make_tools(folder)
    chat: BaseChatModel = ScriptedModel()
    if model_name:
        from langchain.chat_models import init_chat_model

        chat = init_chat_model(model_name)
    model = chat.bind_tools(tools)

    def call_model(state: TripState) -> dict[str, Any]:
        return {"messages": [model.invoke([SystemMessage(PROMPT), *state["messages"]])]}

    def approve(state: TripState) -> dict[str, Any]:
        # Only the answer is noted here. The payment is made in the node after it: a worker that loses
        # the race below may have run this node, but it is refused before the next one.
        calls = _calls(state)
        answer = interrupt({"approve": [call["name"] for call in calls]})
        declined = [
            ToolMessage(f"declined by {answer['by']}", tool_call_id=call["id"], name=call["name"])
            for call in calls
            if not answer["approved"]
        ]
        return {"approvals": {call["id"]: answer for call in calls}, "messages": declined}

    def after_model(state: TripState) -> str | list[Send]:
        calls = _calls(state)
        if any(call["name"] in NEEDS_APPROVAL for call in calls):
            return "approve"
        return _run_each(calls) or END

    def after_approval(state: TripState) -> str | list[Send]:
        return _run_each(_calls(state)) or "model"

    graph = StateGraph(TripState)
    graph.add_node("model", call_model)
    graph.add_node("approve", approve)
    graph.add_node("tools", ToolNode(tools))
    graph.add_edge(START, "model")
    graph.add_conditional_edges("model", after_model, ["approve", "tools", END])
    graph.add_conditional_edges("approve", after_approval, ["tools", "model"])
    graph.add_edge("tools", "model")
    return graph.compile(checkpointer=saver)


def _calls(state: TripState) -> list[Any]:
    last = state["messages"][-1]
    return list(last.tool_calls) if isinstance(last, AIMessage) else []


def _run_each(calls: list[Any]) -> list[Send]:
    # A task for each call: what one call gave is stored when it is done, whatever becomes of the others.
    return [Send("tools", [call]) for call in calls]


# --- a worker process: one call of the agent, the outcome as a line of JSON -----------------------


class MeetingSaver(AgentSaver):
    """For the race only: waits, after it restored the thread, until the other worker has restored it too."""

    folder: Path
    who: str

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        restored = super().get_tuple(config)
        (self.folder / f"restored-by-{self.who}").touch()
        wait_until(lambda: len(list(self.folder.glob("restored-by-*"))) == 2, "both workers restored the thread")
        return restored


def worker(args: argparse.Namespace) -> None:
    folder = Path(args.folder)
    saver = (MeetingSaver if args.worker == "race" else AgentSaver)(folder / "agent.db")
    if isinstance(saver, MeetingSaver):
        saver.folder, saver.who = folder, args.who
    answer: Command[Any] = Command(resume={"approved": args.say == "yes", "by": args.who})
    given: Any = {"start": {"messages": [("user", REQUEST)]}, "resume": None}.get(args.worker, answer)
    with saver:
        agent = build_agent(saver, folder, args.model)
        try:
            result = agent.invoke(given, CONFIG, durability="sync")
        except ThreadConflictError as conflict:
            print(json.dumps({"conflict": conflict.fields, "message": str(conflict)}))
            return
        asked = [pending.value for pending in result.get("__interrupt__", ())]
        print(json.dumps({"asks": asked, "says": str(result["messages"][-1].text)}))


# --- the story ----------------------------------------------------------------------------------


def wait_until(ready: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not ready():
        if time.monotonic() > deadline:
            raise SystemExit(f"gave up after {PATIENCE_S:.0f} s waiting for this: {what}")
        time.sleep(0.005)


def check(holds: bool, what: str) -> None:
    print(f"   {'ok  ' if holds else 'FAIL'} {what}")
    if not holds:
        raise SystemExit(1)


class Story:
    """Starts the workers and looks at what they left behind."""

    def __init__(self, folder: Path, model_name: str | None) -> None:
        self.folder = folder
        self.model_name = model_name

    def start(self, kind: str, **options: str) -> subprocess.Popen[str]:
        command = [sys.executable, os.path.abspath(__file__), "--worker", kind, "--folder", str(self.folder)]
        for name, value in options.items():
            command += [f"--{name}", value]
        if self.model_name:
            command += ["--model", self.model_name]
        slow_hotel = "60" if kind == "start" else "0.1"
        return subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, env={**os.environ, "HOTEL_TAKES_S": slow_hotel}
        )

    def outcome(self, process: subprocess.Popen[str]) -> dict[str, Any]:
        try:
            said, _ = process.communicate(timeout=PATIENCE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            raise SystemExit(f"worker {process.pid} did not end within {PATIENCE_S:.0f} s") from None
        check(process.returncode == 0, f"worker {process.pid} ended by itself")
        return dict(json.loads(said))

    def effects(self, what: str) -> int:
        log = self.folder / "effects.log"
        return log.read_text().splitlines().count(what) if log.exists() else 0

    def kill_in_the_middle(self, saver: AgentSaver) -> None:
        process = self.start("start")
        print(f"1. Worker {process.pid} starts thread trip-42: {REQUEST!r}")

        def flight_is_stored() -> bool:
            head = saver.get_tuple(CONFIG)
            writes = head.pending_writes or [] if head else []
            return any("flight booked" in str(value) for _, _, value in writes)

        try:
            wait_until(lambda: process.poll() is not None or (self.folder / "hotel-called").exists(), "the hotel call")
            check(process.poll() is None, "book_flight and book_hotel run in parallel, the hotel is slow")
            wait_until(flight_is_stored, "the flight's result is stored")
        finally:
            process.kill()
            process.communicate()
        print(f"2. Worker {process.pid} was killed (SIGKILL) in the middle of book_hotel; book_flight had finished.")
        check(self.effects("flight booked") == 1, "effects.log: the flight is booked once")
        check(self.effects("hotel booked") == 0, "effects.log: the hotel is not booked yet")

    def resume(self) -> None:
        process = self.start("resume")
        print(f"3. Worker {process.pid} knows only agent.db and the thread id, and goes on.")
        outcome = self.outcome(process)
        check(self.effects("flight booked") == 1, "the finished tool did not run again: one line 'flight booked'")
        check(self.effects("hotel booked") == 1, "the interrupted tool ran to its end: one line 'hotel booked'")
        check(outcome.get("asks") == [{"approve": ["pay_deposit"]}], "the agent asks a person: approve pay_deposit?")

    def answer(self) -> None:
        process = self.start("answer", who="anna", say="yes")
        print(f"4. Worker {process.pid} brings anna's answer: yes.")
        outcome = self.outcome(process)
        check(self.effects("deposit paid") == 1, "the deposit is paid once")
        check(outcome.get("asks") == [{"approve": ["pay_balance"]}], "the agent asks again: approve pay_balance?")

    def race(self, saver: AgentSaver) -> None:
        racers = {who: self.start("race", who=who, say=say) for who, say in (("anna", "yes"), ("ben", "no"))}
        names = " and ".join(f"{process.pid} ({who})" for who, process in racers.items())
        print(f"5. Workers {names} answer this one interrupt at the same moment: anna yes, ben no.")
        outcomes = {who: self.outcome(process) for who, process in racers.items()}
        winners = [who for who, outcome in outcomes.items() if "conflict" not in outcome]
        losers = [who for who, outcome in outcomes.items() if "conflict" in outcome]
        check(len(winners) == 1 and len(losers) == 1, "exactly one of them got through")
        winner, loser = winners[0], losers[0]
        print(f"   winner: {winner}")
        print(f"   loser:  {loser}, ThreadConflictError: {outcomes[loser]['message']}")
        print(f"           {outcomes[loser]['conflict']}")

        values = build_agent(saver, self.folder, self.model_name).get_state(CONFIG).values
        balance = [call for m in values["messages"] for call in getattr(m, "tool_calls", ()) if m.type == "ai"]
        answer = values["approvals"][next(call["id"] for call in balance if call["name"] == "pay_balance")]
        check(answer == {"approved": winner == "anna", "by": winner}, f"the stored state holds {winner}'s answer alone")
        paid, fate = (1, "paid once") if winner == "anna" else (0, "not paid")
        check(self.effects("balance paid") == paid, f"effects.log: the balance is {fate}, as {winner} said")
        print(f"   {loser}'s approve node may have run before the refusal; the payment stands in the node after it.")
        print(f"6. The agent says: {outcomes[winner]['says']}")


def main() -> None:
    parser = argparse.ArgumentParser(description="Kill an agent in the middle of a tool call, resume it, race it.")
    parser.add_argument("--model", metavar="PROVIDER:NAME", help="a real chat model instead of the scripted one")
    parser.add_argument("--worker", choices=("start", "resume", "answer", "race"), help=argparse.SUPPRESS)
    for hidden in ("--folder", "--who", "--say"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        worker(args)
        return
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="survive-restart-") as folder:
        story = Story(Path(folder), args.model)
        with AgentSaver(Path(folder) / "agent.db") as saver:
            story.kill_in_the_middle(saver)
            story.resume()
            story.answer()
            story.race(saver)
    print(f"All checks passed in {time.monotonic() - started:.1f} s.")


if __name__ == "__main__":
    main()
