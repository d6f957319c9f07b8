"""Bytes on disk: a growing conversation, and channels of which little changes from step to step."""

from __future__ import annotations

import operator
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, TypedDict

from langchain_core.messages import AIMessage, HumanMessage, RemoveMessage
from langgraph.graph import END, START, MessagesState, StateGraph

from tests.agents import Graph, Saver
from tests.bench.agents import build, config, take_turns, text_bytes, turn_messages
from tests.bench.heads import Run
from tests.bench.report import Table, bytes_on_disk, exponent
from tests.bench.savers import OFFICIAL, OURS, Contender
from tests.bench.text import sentences

MIB = 1024 * 1024


def growth(run: Run, contender: Contender, lengths: Sequence[int]) -> tuple[list[tuple[int, int]], int]:
    """Grow one thread to each length, closing the saver at each.

    Returns:
        (turns, bytes on disk after closing) per length, and the bytes of text in the messages at the end.
    """
    path = run.path(f"size-{contender.name}")
    sizes, done, text = [], 0, 0
    for turns in lengths:
        with contender.open(path) as saver:
            graph = build(saver)
            take_turns(graph, "bench", done, turns - done)
            text = text_bytes(graph.get_state(config("bench")).values["messages"])
        done = turns
        sizes.append((turns, bytes_on_disk(path)))
    return sizes, text


class StepState(TypedDict, total=False):
    """What a stepping graph keeps: a counter, one large text, a dict of files."""

    step: int
    until: int
    text: str
    files: Annotated[dict[str, str], operator.or_]


class MessageSteps(MessagesState):
    """Messages and a counter."""

    step: int
    until: int


Change = Callable[[Any], dict[str, Any]]


def stepping_graph(saver: Saver, change: Change, schema: type[Any] = StepState) -> Graph:
    """A graph of one node that changes the state until `step` reaches `until`: one checkpoint a step."""

    def node(state: Any) -> dict[str, Any]:
        return {"step": state["step"] + 1, **change(state)}

    builder: StateGraph[Any, Any, Any, Any] = StateGraph(schema)
    builder.add_node("node", node)
    builder.add_edge(START, "node")
    builder.add_conditional_edges("node", lambda state: "node" if state["step"] < state["until"] else END)
    return builder.compile(checkpointer=saver)


@dataclass(frozen=True)
class Case:
    """A state of which little changes per step.

    Attributes:
        title: row heading.
        start: makes the first state.
        change: what the node returns for a state.
        steps: how many steps ours takes; the official saver takes 5 of them, with --full all.
        limit: bytes a step may take at most: what changed, and some for its rows and pages.
        schema: the state's type.
    """

    title: str
    start: Callable[[], dict[str, Any]]
    change: Change
    steps: int
    limit: int
    schema: type[Any] = StepState


def stepped(run: Run, contender: Contender, case: Case, steps: int) -> tuple[int, int]:
    """Bytes on disk after the first state alone, and after `steps` more steps."""
    path = run.path(f"case-{contender.name}")
    with contender.open(path) as saver:
        graph = stepping_graph(saver, case.change, case.schema)
        graph.invoke({**case.start(), "step": 0, "until": 1}, config("t"))
    before = bytes_on_disk(path)
    with contender.open(path) as saver:
        graph = stepping_graph(saver, case.change, case.schema)
        graph.invoke({"step": 0, "until": steps}, {**config("t"), "recursion_limit": steps + 10})
    return before, bytes_on_disk(path)


def _large_text() -> dict[str, Any]:
    return {"text": sentences(random.Random("large"), MIB)}


def _one_byte(state: Any) -> dict[str, Any]:
    text, position = state["text"], random.Random(state["step"]).randrange(len(state["text"]))
    return {"text": text[:position] + "#" + text[position + 1 :]}


def _files() -> dict[str, Any]:
    rng = random.Random("files")
    return {"files": {f"src/module_{number}.py": sentences(rng, 30_000) for number in range(200)}}


def _one_line(state: Any) -> dict[str, Any]:
    rng = random.Random(state["step"])
    name = f"src/module_{rng.randrange(200)}.py"
    text, position = state["files"][name], rng.randrange(20_000)
    return {"files": {name: text[:position] + sentences(rng, 60) + text[position + 60 :]}}


def _one_file(state: Any) -> dict[str, Any]:
    rng = random.Random(state["step"])
    return {"files": {f"src/module_{rng.randrange(200)}.py": sentences(rng, 30_000)}}


def _messages() -> dict[str, Any]:
    return {"messages": [m for turn in range(500) for m in turn_messages("list", turn, turn * 4)]}


def _edit_middle(state: Any) -> dict[str, Any]:
    rng = random.Random(state["step"])
    old = state["messages"][rng.randrange(100, len(state["messages"]) - 100)]
    kind = AIMessage if old.type == "ai" else HumanMessage
    return {"messages": [kind(sentences(rng, 450), id=old.id)]}


def _remove_middle(state: Any) -> dict[str, Any]:
    rng = random.Random(state["step"])
    return {"messages": [RemoveMessage(id=state["messages"][rng.randrange(100, len(state["messages"]) - 100)].id)]}


CONSTANT = Case("1 MiB text, unchanged", _large_text, lambda state: {}, 100, 2_000)
CASES = [
    CONSTANT,
    Case("1 MiB text, one byte changed a step", _large_text, _one_byte, 100, 8_000),
    Case("200 files x 30 KB, 60 bytes of one changed", _files, _one_line, 50, 12_000),
    Case("200 files x 30 KB, one rewritten", _files, _one_file, 50, 30_000),
    Case("2,000 messages, one edited in the middle", _messages, _edit_middle, 50, 4_000, MessageSteps),
    Case("2,000 messages, one removed in the middle", _messages, _remove_middle, 50, 4_000, MessageSteps),
]


def _growth_table(run: Run) -> Table:
    last = run.turns or (1000 if run.full else 400)
    plan = {"ours": [n for n in (50, 100, 200, 300, 400, 1000) if n <= last] or [last]}
    plan["official"] = [n for n in ((50, 100, 200, 300) if run.full else (25, 50, 100)) if n <= last] or [last]
    table = Table(
        "size",
        "bytes on disk of one ReAct thread after its saver was closed (database, WAL and side files)",
        ["saver", "turns", "bytes", "bytes a turn", "bytes per byte of text", "growth exponent"],
    )
    for contender in run.contenders:
        if not contender.on_disk:
            continue
        sizes, text = growth(run, contender, plan[contender.name])
        power = exponent([each for each in sizes if each[0] >= 100] if contender is OURS and last >= 200 else sizes)
        for turns, size in sizes:
            final = turns == sizes[-1][0]
            row_text = text * turns // sizes[-1][0]
            table.add(contender.name, turns, size, size // turns, size / row_text, power if final else "")
        if contender is OURS:
            for turns, size in sizes:
                if turns == 300:
                    table.budget("ours at 300 turns, MB", size / 1e6, 1.6)
            table.budget("ours, growth exponent", power, 1.05)
    table.notes.append("growth exponent: slope of log bytes over log turns (ours: from 100 turns on)")
    return table


def _case_table(run: Run) -> Table:
    table = Table(
        "size",
        "bytes on disk as a state is stepped on and little of it changes",
        ["state", "saver", "steps", "bytes of the first state", "bytes a step", "bytes in all"],
    )
    for case in CASES:
        for contender in (OURS, OFFICIAL):
            if contender not in run.contenders:
                continue
            # The official saver stores the whole state every step: a few steps show it.
            steps = case.steps if contender is OURS else case.steps if run.full else 5
            before, after = stepped(run, contender, case, steps)
            table.add(case.title, contender.name, steps, before, (after - before) // steps, after)
            if contender is OURS:
                table.budget(f"{case.title}: bytes a step", (after - before) // steps, case.limit)
            if case is CONSTANT and contender is OURS:
                table.budget(f"{case.title}, {steps} steps, MiB in all", after / MIB, 2)
    return table


def tables(run: Run) -> list[Table]:
    return [_growth_table(run), _case_table(run)]
