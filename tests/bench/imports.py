"""What importing the package adds to a program that has LangGraph, and how soon the command line answers."""

from __future__ import annotations

import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

from tests.bench.child import ROOT
from tests.bench.heads import Run
from tests.bench.report import Table, spread

TIMED = """
import time, langgraph.graph, langgraph.checkpoint.base, langgraph.checkpoint.memory
begin = time.perf_counter()
{statement}
print((time.perf_counter() - begin) * 1e3)
"""
RUNS = 7


def import_ms(statement: str) -> float:
    """Milliseconds that an import statement takes in a fresh process which has imported LangGraph."""
    done = subprocess.run(
        [sys.executable, "-c", TIMED.format(statement=statement)], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return float(done.stdout)


def command_ms(*command: str) -> float:
    """Milliseconds from starting a command to its end, the interpreter's own start included."""
    begin = time.perf_counter()
    subprocess.run(command, cwd=ROOT, capture_output=True, check=True)
    return (time.perf_counter() - begin) * 1e3


def help_command() -> list[str]:
    """The installed `agent-ckpt`, or the module where the package runs from its folder."""
    beside = Path(sys.executable).with_name("agent-ckpt")
    script = str(beside) if beside.exists() else shutil.which("agent-ckpt")
    return [script, "--help"] if script else [sys.executable, "-m", "agent_ckpt", "--help"]


def tables(run: Run) -> list[Table]:
    # The package imports its parts on first use, so the class is what must be imported to see the whole cost.
    statements = {
        "ours": "from agent_ckpt import AgentSaver",
        "official": "from langgraph.checkpoint.sqlite import SqliteSaver",
    }
    wanted = {name: statement for name, statement in statements.items() if name in run.names()}
    table = Table("imports", f"start-up, {RUNS} fresh processes each, ms", ["what", "median", "min", "max"])
    taken: dict[str, list[float]] = {}
    for _ in range(RUNS):
        for statement in wanted.values():
            taken.setdefault(statement, []).append(import_ms(statement))
        taken.setdefault("python -c pass", []).append(command_ms(sys.executable, "-c", "pass"))
        if "ours" in wanted:
            taken.setdefault("agent-ckpt --help", []).append(command_ms(*help_command()))
    for what, values in taken.items():
        table.add(what, *spread(values))
    if "ours" in wanted:
        table.budget(f"{statements['ours']}, ms", statistics.median(taken[statements["ours"]]), 50)
        table.budget("agent-ckpt --help, ms", statistics.median(taken["agent-ckpt --help"]), 250)
    table.notes.append("import times are on top of langgraph.graph and its base and in-memory savers")
    return [table]
