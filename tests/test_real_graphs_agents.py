"""Real agents of langchain and deepagents: everything observed equals what InMemorySaver gives, across restarts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from deepagents import create_deep_agent
from langchain.agents import create_agent
from langchain.agents.middleware import HumanInTheLoopMiddleware, TodoListMiddleware
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.tools import tool
from langgraph.types import Command, interrupt

from agent_ckpt import AgentSaver
from tests.agents import Saver, ScriptedModel, add, call_tool
from tests.conftest import Api, assert_sound
from tests.looking import thread
from tests.worlds import World, both

CONFIG = thread("customer-42")
Same = Callable[[Callable[[World], None]], list[Any]]


@pytest.fixture
def same(path: Path, form: str) -> Same:
    """Runs a script on both savers and compares."""
    return lambda script: both(path, form, script)


@tool
def ask_human(question: str) -> str:
    """Ask the human."""
    return f"the human said {interrupt({'question': question})}"


@tool
def send_mail(to: str, text: str) -> str:
    """Send a mail."""
    return f"sent to {to}: {text}"


def scripted(*turns: list[AIMessage | str]) -> ScriptedModel:
    """A model that goes through one script a turn; its messages carry ids, so that two runs compare."""

    def script(messages: list[BaseMessage]) -> AIMessage:
        humans = [at for at, message in enumerate(messages) if message.type == "human"]
        said = sum(message.type == "ai" for message in messages[humans[-1] :])
        entry = turns[(len(humans) - 1) % len(turns)][said]
        message = AIMessage(entry) if isinstance(entry, str) else entry
        return message.model_copy(update={"id": f"said-{len(messages)}"}, deep=True)

    return ScriptedModel(script=script, refuse_dangling=True)


def both_calls(one: AIMessage, two: AIMessage) -> AIMessage:
    """Two tool calls in one message."""
    return AIMessage("", tool_calls=[*one.tool_calls, *two.tool_calls])


def user(text: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text, "id": text}]}


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
def test_create_agent(same: Same, durability: str) -> None:
    """A tool-calling agent over five turns, each in a new process: every state of its history."""

    def build(saver: Saver | None) -> Any:
        model = scripted(
            [call_tool("add", "c1", a=1, b=2), call_tool("add", "c2", a=3, b=4), "seven"],
            [both_calls(call_tool("add", "c3", a=5, b=6), call_tool("send_mail", "c4", to="a", text="é🙂")), "sent"],
        )
        return create_agent(model, [add, send_mail], checkpointer=saver, system_prompt="Be brief.")

    def script(world: World) -> None:
        for turn in range(5):
            world.note_call(build(world.saver), user(f"turn {turn}"), CONFIG, durability=durability)
            world.restart()
        world.note_history(build(world.saver), CONFIG)

    assert len(same(script)[-2]["values"]["messages"]) == 3 * 6 + 2 * 5


def test_create_agent_interrupted_in_tools(same: Same) -> None:
    """Two tools that ask at once beside one that doesn't; answered one by one, in new processes, by id."""

    def build(saver: Saver | None) -> Any:
        calls = both_calls(call_tool("ask_human", "c1", question="a?"), call_tool("ask_human", "c2", question="b?"))
        calls.tool_calls.append(call_tool("add", "c3", a=1, b=1).tool_calls[0])
        return create_agent(scripted([calls, "thanks"]), [add, ask_human], checkpointer=saver)

    def script(world: World) -> None:
        # What invoke returns lists the interrupts in the order in which the parallel tools came to ask: any.
        world.invoke(build(world.saver), user("go"), CONFIG)
        for question in ("b?", "a?"):
            world.restart()
            graph = build(world.saver)
            state = world.note(world.get_state(graph, CONFIG))
            answers = {i.id: f"yes to {question}" for i in state.interrupts if i.value["question"] == question}
            world.invoke(graph, Command(resume=answers), CONFIG)
        world.note_history(build(world.saver), CONFIG)

    same(script)


def test_human_in_the_loop_middleware(same: Same) -> None:
    """langchain's approval middleware: approve, edit and reject, each decided in a new process."""

    def build(saver: Saver | None) -> Any:
        model = scripted([call_tool("send_mail", "c1", to="a@b", text="hello"), "done"])
        middleware = [HumanInTheLoopMiddleware(interrupt_on={"send_mail": True}), TodoListMiddleware()]
        return create_agent(model, [send_mail], checkpointer=saver, middleware=middleware)

    edited = {"name": "send_mail", "args": {"to": "c@d", "text": "edited"}}
    decisions = ({"type": "approve"}, {"type": "edit", "edited_action": edited}, {"type": "reject", "message": "no"})

    def script(world: World) -> None:
        for number, decision in enumerate(decisions):
            world.note_call(build(world.saver), user(f"mail {number}"), CONFIG)
            world.restart()
            world.note(world.get_state(build(world.saver), CONFIG))
            world.note_call(build(world.saver), Command(resume={"decisions": [decision]}), CONFIG)
        world.note_history(build(world.saver), CONFIG)

    texts = [m[1]["content"] for m in same(script)[-2]["values"]["messages"] if m[0] == "ToolMessage"]
    assert texts[0] == "sent to a@b: hello"
    assert texts[1].endswith("sent to c@d: edited")
    assert texts[2].endswith("no")


TODOS = [{"content": "look", "status": "in_progress"}, {"content": "write", "status": "pending"}]


def deep_agent(saver: Saver | None) -> Any:
    """A deep agent that plans, writes, edits and reads files, and hands work to a subagent."""
    model = scripted(
        [
            call_tool("write_todos", "c1", todos=TODOS),
            call_tool("write_file", "c2", file_path="/notes.txt", content="first line\n" * 50),
            call_tool("task", "c3", description="add one and two", subagent_type="adder"),
            call_tool("edit_file", "c4", file_path="/notes.txt", old_string="first line\n" * 50, new_string="edited"),
            call_tool("ask_human", "c5", question="go on?"),
            "finished",
        ],
        [call_tool("read_file", "c6", file_path="/notes.txt"), "read it"],
        [call_tool("write_file", "c7", file_path="/more.txt", content="more"), "wrote more"],
    )
    adder = {
        "name": "adder",
        "description": "adds",
        "system_prompt": "Add.",
        "model": scripted([call_tool("add", "s1", a=1, b=2), "three"]),
        "tools": [add],
    }
    return create_deep_agent(
        model=model, tools=[ask_human], subagents=[adder], middleware=[TodoListMiddleware()], checkpointer=saver
    )


def without_times(value: Any) -> Any:
    """Values without what the clock gives."""
    if isinstance(value, dict):
        return {key: without_times(item) for key, item in value.items() if not key.endswith("_at")}
    if isinstance(value, list):
        return [without_times(item) for item in value]
    return value


def test_deep_agent(path: Path, form: str) -> None:
    """deepagents: files and todos in the state, a subagent, an interrupt, turns in new processes (DeltaChannels)."""

    def script(world: World) -> None:
        world.note_call(deep_agent(world.saver), user("turn one"), CONFIG)
        world.restart()
        world.note(world.get_state(deep_agent(world.saver), CONFIG))
        world.note_call(deep_agent(world.saver), Command(resume="yes"), CONFIG)
        for turn in range(2):
            world.restart()
            world.note_call(deep_agent(world.saver), user(f"turn {turn + 2}"), CONFIG)
        world.note_history(deep_agent(world.saver), CONFIG)

    final = both(path, form, script)[-2]["values"]
    assert final["files"]["/notes.txt"]["content"] == "edited"
    assert without_times(final["todos"]) == TODOS
    assert len(final["messages"]) == 12 + 4 + 4


def test_deep_agent_pruned(path: Path, form: str) -> None:
    """B51 on a deep agent: pruned between its turns and copied at the end, it holds what an unpruned one holds."""
    saver = AgentSaver(path)
    api = Api(saver, form)
    for name in ("pruned", "twin"):
        for given in (user("turn one"), Command(resume="yes"), user("turn two"), user("turn three")):
            api.invoke(deep_agent(saver), given, thread(name))
            if name == "pruned":
                api.prune([name])
                assert len(api.list(thread(name, checkpoint_ns=""))) == 1
    api.copy_thread("pruned", "copy")
    twin = api.get_state(deep_agent(saver), thread("twin")).values
    for name in ("pruned", "copy"):
        values = api.get_state(deep_agent(saver), thread(name)).values
        assert without_times(values["files"]) == without_times(twin["files"])
        assert values["todos"] == twin["todos"]
        assert [(m.type, m.content) for m in values["messages"]] == [(m.type, m.content) for m in twin["messages"]]
    saver.close()
    assert_sound(path)
