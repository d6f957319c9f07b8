"""The command line, on files that real graphs wrote: as a program of its own and through typer's runner."""

from __future__ import annotations

import io
import json
import os
import sqlite3
import subprocess
import sys
import unicodedata
from collections.abc import Iterator
from contextlib import closing, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import HumanMessage
from langgraph.graph import START, StateGraph
from langgraph.types import Command
from typer.testing import CliRunner

from agent_ckpt import AgentSaver
from agent_ckpt.cli import render
from agent_ckpt.cli.app import app, main
from agent_ckpt.cli.show import next_nodes
from tests import agents

ROOT = Path(__file__).parent.parent
# Clears the screen, sets the title, hides text, turns the writing direction, closes a rich tag, ends a line.
HOSTILE = "\x1b[2J\x1b]0;owned\x07\x9b31m\u202eabc\u2066\x00\x7f\r[red]markup[/red] [/nothing]\nfake row"


def config(thread: str) -> Any:
    return {"configurable": {"thread_id": thread}}


@pytest.fixture(scope="module")
def db(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = tmp_path_factory.mktemp("cli") / "agent.db"
    with AgentSaver(path) as saver:
        model = agents.ScriptedModel(script=[agents.call_tool("add", "call-1", a=1, b=2), "It is 3."])
        agents.react_graph(saver, model).invoke({"messages": [HumanMessage("1 + 2?")]}, config("sum"))
        agents.approval_graph(saver).invoke({"log": ["x" * 10_000]}, config("asks"))
        agents.approval_graph(saver).invoke({"log": [HOSTILE]}, config(f"evil{HOSTILE.replace(chr(0), '')}"))
        agents.nested_graph(saver, ask=True).invoke({"log": []}, config("nested"))
        agents.delta_graph(saver).invoke({"messages": [HumanMessage("hi")]}, config("delta"))
    yield path


def run(*args: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    return subprocess.run(
        [sys.executable, "-m", "agent_ckpt", *args],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": path, "PYTHONUTF8": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )


def call(*args: str) -> subprocess.CompletedProcess[str]:
    """What `run` does, in this process (an import of langgraph costs a second)."""
    out, err = io.StringIO(), io.StringIO()
    with patch.object(sys, "argv", ["agent-ckpt", *args]), redirect_stdout(out), redirect_stderr(err):
        try:
            main()
        except SystemExit as exit:
            return subprocess.CompletedProcess(args, int(exit.code or 0), out.getvalue(), err.getvalue())
    raise AssertionError("main() returned")


def run_json(*args: str) -> Any:
    done = CliRunner().invoke(app, [*args, "--json"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert done.output.isascii() and not any(unicodedata.category(c) == "Cc" for c in done.output.replace("\n", ""))
    return json.loads(done.output)


def test_threads_prints_a_table(db: Path) -> None:
    """The table has a row for each thread, with the counts and the time that the saver itself tells."""
    done = run("threads", str(db))
    assert (done.returncode, done.stderr) == (0, "")
    heading, _, *rows = done.stdout.splitlines()
    assert heading.split() == ["thread", "checkpoints", "namespaces", "revision", "updated"]
    assert len(rows) == 5
    found = {row.split()[0]: row.split()[1:] for row in rows}
    with AgentSaver(db, create=False) as saver:
        for thread in ("sum", "asks", "delta"):
            newest = saver.get_tuple(config(thread))
            count = len(list(saver.list(config(thread))))
            assert newest is not None
            assert found[thread][:2] == [str(count), "1"]
            assert found[thread][3][:19] == newest.checkpoint["ts"][:19]


def test_threads_as_json_and_limited(db: Path) -> None:
    """`--json` gives an object for each thread with five keys; `--limit` bounds the list."""
    found = run_json("threads", str(db))
    assert {"sum", "asks", "delta"} < {info["thread_id"] for info in found}
    assert all(set(info) == {"thread_id", "checkpoints", "namespaces", "revision", "updated"} for info in found)
    assert len(run_json("threads", str(db), "--limit", "2")) == 2


def test_threads_of_an_empty_file(tmp_path: Path) -> None:
    """A store without threads is told in words, with exit code 0."""
    with AgentSaver(tmp_path / "empty.db") as saver:
        saver.setup()
    done = call("threads", str(tmp_path / "empty.db"))
    assert (done.returncode, done.stdout) == (0, "no threads\n")


def test_show_tells_messages_and_history(db: Path) -> None:
    """A thread's messages, tool calls, next nodes and history are shown as they are stored."""
    done = call("show", str(db), "sum")
    assert (done.returncode, done.stderr) == (0, "")
    for text in ("1 + 2?", 'add {"a": 1, "b": 2}', "It is 3.", "next   none known", "history, newest first"):
        assert text in done.stdout
    report = run_json("show", str(db), "sum")
    assert [m["type"] for m in report["messages"]] == ["human", "ai", "tool", "ai"]
    assert report["messages"][1]["tool_calls"][0]["args"] == {"a": 1, "b": 2}
    with AgentSaver(db, create=False) as saver:
        stored = list(saver.list(config("sum")))
    assert [row["checkpoint_id"] for row in report["history"]] == [item.checkpoint["id"] for item in stored]
    assert [row["step"] for row in report["history"]] == sorted(
        (row["step"] for row in report["history"]), reverse=True
    )
    parents = [row["parent"] for row in report["history"]]
    assert parents == [*(row["checkpoint_id"] for row in report["history"][1:]), None]
    limited = run_json("show", str(db), "sum", "--limit", "2")
    assert limited["history"] == report["history"][:2]


def test_show_tells_an_open_interrupt_and_cuts_long_values(db: Path) -> None:
    """An open interrupt is shown as a pending write; the table cuts a long value, JSON has it whole."""
    report = run_json("show", str(db), "asks")
    assert report["next"] == ["approve"]
    (write,) = report["pending_writes"]
    assert write["channel"] == "__interrupt__"
    assert write["value"][0]["value"]["question"] == "go on?"
    assert report["values"]["log"] == ["x" * 10_000, "planned"]
    text = call("show", str(db), "asks").stdout
    assert "x" * 1000 not in text and "... (10,015 characters)" in text


def test_show_tells_a_subgraph_by_its_namespace(db: Path) -> None:
    """A wrong namespace is refused with the ones there are, and the right one shows the subgraph."""
    refused = call("show", str(db), "nested", "--ns", "?")
    assert refused.returncode == 2
    namespace = next(part for part in refused.stderr.split("'") if part.startswith("inner:"))
    report = run_json("show", str(db), "nested", "--ns", namespace)
    assert (report["namespace"], report["next"]) == (namespace, ["work"])
    assert f"thread nested, namespace {namespace}" in call("show", str(db), "nested", "--ns", namespace).stdout


def test_show_tells_delta_channels(db: Path) -> None:
    """Messages and values of DeltaChannels are shown, rebuilt from snapshot and writes."""
    report = run_json("show", str(db), "delta")
    assert [m["content"] for m in report["messages"]] == ["hi", "answer to hi"]
    assert "2 messages" in json.dumps(report["values"]["files"])
    assert report["errors"] == []


def test_stored_text_cannot_drive_the_terminal(db: Path) -> None:
    """No control or bidi character and no markup of stored text reaches the output, whoever wrote it."""
    (evil,) = [info["thread_id"] for info in run_json("threads", str(db)) if info["thread_id"].startswith("evil")]
    assert evil == f"evil{HOSTILE.replace(chr(0), '')}", "JSON keeps the id as it is, escaped"
    assert run_json("show", str(db), evil)["values"]["log"][0] == HOSTILE
    for args in (["threads", str(db)], ["show", str(db), evil], ["show", str(db), "no\x1b[2Jthread"]):
        done = call(*args)
        output = (done.stdout + done.stderr).replace("\n", "")
        assert not [c for c in output if unicodedata.category(c) in ("Cc", "Cf", "Zl", "Zp")]
        assert "\nfake row" not in done.stdout
    listing = run("threads", str(db)).stdout
    assert (
        "evil\\x1b[2J\\x1b]0;owned\\x07\\x9b31m\\u202eabc\\u2066\\x7f\\r[red]markup[/red] [/nothing]\\nfake row"
        in listing
    )


@given(st.text())
def test_safe_text_is_printable_and_says_its_length(text: str) -> None:
    """Any text becomes printable on one line, and a cut one says how long it is."""
    shown = render.safe(text, 20)
    assert all(c.isprintable() or c in "\u200c\u200d" or unicodedata.category(c) == "Zs" for c in shown)
    assert (f"({len(text):,} characters)" in shown) == (len(text) > 20)
    shown.encode()


class Opaque:
    def __repr__(self) -> str:
        raise RuntimeError("no repr")


def test_values_without_a_json_form_are_told_by_type() -> None:
    """Values that JSON can't hold, nested too deep or with a broken repr are told, and never raise."""
    deep: list[Any] = []
    for _ in range(3000):
        deep = [deep]
    told = render.to_jsonable({1: Opaque(), "n": float("nan"), "b": b"\x00\xff", "t": (1, True, None), "deep": deep})
    assert told["1"] == {"type": f"{__name__}.Opaque", "repr": "<repr raised RuntimeError>"}
    assert (told["n"], told["t"], told["b"]["base64"]) == ("nan", [1, True, None], "AP8=")
    json.dumps(told, allow_nan=False)


def test_a_missing_file_is_named_with_similar_ones_and_not_created(db: Path) -> None:
    """A mistyped path ends with code 2, one line, and the similar name; no file is made."""
    for done in (run("threads", "agnt.db", cwd=db.parent), call("show", str(db.parent / "agnt.db"), "sum")):
        assert done.returncode == 2
        assert done.stderr.count("\n") == 1 and "Traceback" not in done.stderr
        assert str(db.parent / "agnt.db") in done.stderr and "agent.db" in done.stderr
    assert not (db.parent / "agnt.db").exists()


def test_a_file_that_is_not_ours_is_left_untouched(tmp_path: Path) -> None:
    """Garbage ends with code 6 and one line, and keeps every byte."""
    garbage = tmp_path / "garbage.db"
    garbage.write_bytes(b"this is no database " * 500)
    before = garbage.read_bytes()
    done = run("threads", str(garbage))
    assert done.returncode == 6
    assert done.stderr.startswith("agent-ckpt: ") and done.stderr.count("\n") == 1
    assert garbage.read_bytes() == before
    assert list(tmp_path.iterdir()) == [garbage]


@pytest.mark.parametrize("position", [0, 2])
def test_a_damaged_checkpoint_does_not_stop_the_listing(tmp_path: Path, position: int) -> None:
    """The damaged checkpoint is named, the others are shown, and the exit code is 5."""
    path = tmp_path / "damaged.db"
    with AgentSaver(path) as saver:
        graph = agents.react_graph(saver, agents.ScriptedModel(script=["one", "two"]))
        for text in ("first", "second"):
            graph.invoke({"messages": [HumanMessage(text)]}, config("t"))
        ids = [item.checkpoint["id"] for item in saver.list(config("t"))]
    with closing(sqlite3.connect(path)) as connection, connection:
        seqs = [seq for (seq,) in connection.execute("SELECT seq FROM checkpoints ORDER BY seq DESC")]
        connection.execute("UPDATE checkpoints SET frame = zeroblob(64) WHERE seq = ?", (seqs[position],))
    done = call("show", str(path), "t", "--json")
    assert done.returncode == 5 and done.stderr == ""
    report = json.loads(done.stdout)
    assert [row["checkpoint_id"] for row in report["history"]] == [*ids[:position], *ids[position + 1 :]]
    assert report["errors"] and all(ids[position] in line for line in report["errors"])
    assert len(report["messages"]) == (0 if position == 0 else 4)
    table = call("show", str(path), "t")
    assert table.returncode == 5 and "can't be shown" in table.stdout and ids[position] in table.stdout
    assert call("threads", str(path)).returncode == 0


def test_an_unknown_thread_or_namespace_is_a_usage_error(db: Path) -> None:
    """What isn't there, or can't be right, ends with code 2 and no traceback."""
    for args in (["nobody"], ["sum", "--ns", "nowhere"], ["sum", "--limit", "0"]):
        done = call("show", str(db), *args)
        assert done.returncode == 2, done.stdout
        assert "Traceback" not in done.stderr and done.stdout == ""


WRITER = """
import select, sys
from agent_ckpt import AgentSaver
from langchain_core.messages import AIMessage, HumanMessage
from tests import agents

turns = 0
with AgentSaver(sys.argv[1]) as saver:
    graph = agents.react_graph(saver, agents.ScriptedModel(script=lambda messages: AIMessage("ok")))
    while not select.select([sys.stdin], [], [], 0)[0]:
        graph.invoke({"messages": [HumanMessage(f"turn {turns}")]}, {"configurable": {"thread_id": "live"}})
        turns += 1
        print(turns, flush=True)
"""


def test_beside_a_live_writer(tmp_path: Path) -> None:
    """Both commands read the newest commits while another process keeps the file open and writes."""
    path = tmp_path / "live.db"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))}
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path)],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert writer.stdout is not None and writer.stdout.readline() == "1\n"
        seen = []
        for _ in range(2):
            listed = run("threads", str(path), "--json")
            assert listed.returncode == 0, listed.stderr
            shown = run("show", str(path), "live", "--json", "--limit", "1")
            assert shown.returncode == 0, shown.stderr
            seen.append(len(json.loads(shown.stdout)["messages"]))
            assert json.loads(shown.stdout)["errors"] == []
        reported, _ = writer.communicate("stop\n", timeout=60)
    finally:
        writer.kill()
        writer.wait()
    assert writer.returncode == 0
    assert seen == sorted(seen) and seen[0] < seen[-1]
    with AgentSaver(path, create=False) as saver:
        head = saver.get_tuple(config("live"))
    assert head is not None and len(head.checkpoint["channel_values"]["messages"]) == 2 * int(reported.split()[-1])


def test_help_does_not_import_langgraph() -> None:
    """The command line starts without LangGraph, and without arguments shows its help."""
    code = "import sys, agent_ckpt.cli.app; print(sorted(m for m in sys.modules if m.split('.')[0].startswith('lang')))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
    helped = run("--help")
    assert helped.returncode == 0 and "threads" in helped.stdout and "show" in helped.stdout
    assert call().returncode == 2


def test_next_nodes_equals_what_the_graph_says(tmp_path: Path) -> None:
    """The next nodes are told without the graph as `get_state` tells them with it."""

    def joined(saver: Any) -> Any:
        builder = StateGraph(agents.LogState)
        for name in ("left", "right", "end"):
            builder.add_node(name, lambda state, name=name: {"log": [name]})
        builder.add_edge(START, "left")
        builder.add_edge(START, "right")
        builder.add_edge(["left", "right"], "end")
        return builder.compile(checkpointer=saver, interrupt_before=["left", "right", "end"])

    def fail(item: int) -> int:
        raise ValueError("unlucky")

    with AgentSaver(tmp_path / "next.db") as saver:
        stopped = agents.approval_graph(saver)
        stopped.invoke({"log": []}, config("approval"))
        nested = agents.nested_graph(saver, 2, ask=True)
        nested.invoke({"log": []}, config("nested"))
        fan = agents.fan_out_graph(saver, fail)
        with pytest.raises(ValueError, match="unlucky"):
            fan.invoke({"items": [1]}, config("fan"))
        join = joined(saver)
        join.invoke({"log": []}, config("join"))
        graphs = {"approval": stopped, "nested": nested, "fan": fan, "join": join}
        for thread, graph in graphs.items():
            _same_next(saver, graph, thread)
            assert graph.get_state(config(thread)).next
        join.invoke(None, config("join"))
        _same_next(saver, join, "join")
        stopped.invoke(Command(resume="yes"), config("approval"))
        _same_next(saver, stopped, "approval")


def _same_next(saver: AgentSaver, graph: Any, thread: str) -> None:
    head = saver.get_tuple(config(thread))
    assert head is not None
    assert sorted(next_nodes(head.checkpoint)) == sorted(graph.get_state(config(thread)).next), thread
