"""The process whose I/O fails: runs a fixed workload on a fresh store and tells how each call of it ended."""

from __future__ import annotations

import asyncio
import faulthandler
import json
import random
import sys
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from langgraph.checkpoint.base import empty_checkpoint

from agent_ckpt import AgentSaver
from agent_ckpt.errors import CkptError, PoisonedError
from tests.conftest import Api
from tests.contests import steps_graph
from tests.faults import Faults

HANG_S = 100
BESIDE = 3
"""Threads that are put to at the same moment."""


def text_of(number: int) -> str:
    """A few kB that differ from number to number; one is large, so that its commit has many pages."""
    return random.Random(number).randbytes(60_000 if number == 3 else 800 + number * 90).hex()


def writes_of(number: int) -> list[tuple[str, Any]]:
    return [("a", number), ("b", text_of(number)[:700]), ("c", [number] * 5)]


def at(thread: str) -> Any:
    return {"configurable": {"thread_id": thread, "checkpoint_ns": ""}}


def checkpoint(number: int) -> Any:
    made = empty_checkpoint()
    made["channel_values"] = {"n": number, "text": text_of(number)}
    made["channel_versions"] = dict.fromkeys(made["channel_values"], number)
    return made, {"source": "loop", "step": number, "parents": {}}, made["channel_versions"]


class Workload:
    """Puts, writes, restores, listings and a prune, in two savers one after the other.

    Attributes:
        outcomes: of each call its name, thread, number, and "done", "refused" or "unknown".
        errors: of each call that raised its name, the error's type, message and whether it was typed.
    """

    def __init__(self, path: Path, form: str, synchronous: str) -> None:
        self.path, self.form, self.synchronous = path, form, synchronous
        self.outcomes: list[tuple[str, str, int, str]] = []
        self.errors: list[tuple[str, str, str, bool]] = []
        self.at: dict[str, Any] = {}
        self.open()

    def open(self) -> None:
        self.api = Api(AgentSaver(self.path, synchronous=self.synchronous, busy_timeout_s=0.5), self.form)

    def call(self, what: str, thread: str, number: int, action: Callable[[], Any]) -> Any:
        """Make one call and note how it ended."""
        try:
            found = action()
        except Exception as exc:
            self.failed(what, thread, number, exc)
            return None
        self.outcomes.append((what, thread, number, "done"))
        return found

    def failed(self, what: str, thread: str, number: int, exc: BaseException) -> None:
        typed = isinstance(exc, CkptError)
        text = str(exc) if typed else "".join(traceback.format_exception(exc))
        self.errors.append((what, type(exc).__name__, text, typed))
        unknown = isinstance(exc, PoisonedError)
        self.outcomes.append((what, thread, number, "unknown" if unknown else "refused"))
        if unknown:
            # As the error says: read the thread again.
            self.at.pop(thread, None)

    def config(self, thread: str) -> Any:
        if thread not in self.at:
            found = self.api.get_tuple(at(thread))
            self.at[thread] = at(thread) if found is None else found.config
        return self.at[thread]

    def put(self, thread: str, number: int) -> None:
        config = self.call("put", thread, number, lambda: self.api.put(self.config(thread), *checkpoint(number)))
        if config is not None:
            self.at[thread] = config

    def writes(self, thread: str, number: int) -> None:
        """Store writes to the checkpoint that was put last, if that is the one of this number."""
        if self.outcomes[-1] == ("put", thread, number, "done"):
            self.call("writes", thread, number, lambda: self.api.put_writes(self.at[thread], writes_of(number), "task"))

    def beside(self, number: int) -> None:
        """Put to several threads at once; async, they share a group commit."""
        if self.form == "sync":
            for each in range(BESIDE):
                self.put(f"beside {each}", number)
            return

        async def one(each: int) -> Any:
            thread = f"beside {each}"
            return await self.api.saver.aput(self.at.get(thread, at(thread)), *checkpoint(number))

        async def gather() -> list[Any]:
            return await asyncio.gather(*(one(each) for each in range(BESIDE)), return_exceptions=True)

        for each, found in enumerate(asyncio.run(gather())):
            if isinstance(found, BaseException):
                self.failed("put", f"beside {each}", number, found)
            else:
                self.outcomes.append(("put", f"beside {each}", number, "done"))
                self.at[f"beside {each}"] = found

    def read(self, thread: str) -> None:
        """Restore the head and list the thread; what is read must be what was written."""
        head = self.call("restore", thread, 0, lambda: self.api.get_tuple(at(thread)))
        found = self.call("list", thread, 0, lambda: self.api.list(at(thread)))
        for item in [each for each in [head, *(found or [])] if each is not None]:
            values = item.checkpoint["channel_values"]
            assert values["text"] == text_of(values["n"]), "a checkpoint is not what was put"

    def graph_run(self) -> None:
        """A run of a graph, which also tells other processes of itself."""
        self.call("run", "graph", 0, lambda: self.api.invoke(steps_graph(self.api.saver), {"who": 1}, at("graph")))

    def run(self) -> None:
        for number in (1, 2, 3):
            self.put("t", number)
            self.writes("t", number)
        self.read("t")
        self.graph_run()
        self.beside(1)
        self.call("close", "", 0, self.api.close)
        self.open()
        self.at = {}
        self.put("t", 4)
        self.writes("t", 4)
        self.call("prune", "t", 0, lambda: self.api.prune(["t"]))
        self.put("t", 5)
        self.beside(2)
        self.read("t")
        self.put("t", 6)
        self.graph_run()

    def afterwards(self) -> None:
        """With the same saver, once the cause is gone."""
        self.errors = []
        self.put("t", 7)
        self.writes("t", 7)
        self.beside(3)
        self.graph_run()
        report = self.call("verify", "", 0, self.api.verify)
        assert report is not None, self.errors
        assert not report.findings, report.findings
        self.read("t")
        self.call("close", "", 0, self.api.close)


def main() -> None:
    """Serve: a line asks for a run, another for what comes after it; each is answered by a line."""
    warnings.simplefilter("error")
    faults = Faults()
    for line in sys.stdin:
        asked = json.loads(line)
        faulthandler.dump_traceback_later(HANG_S, exit=True)
        path = Path(asked["path"])
        faults.watch(path)
        work = Workload(path, asked["form"], asked["synchronous"])
        faults.arm(asked["at"], asked["kind"], asked["sticky"])
        work.run()
        told = {"outcomes": work.outcomes, "errors": work.errors, "count": faults.count, "what": faults.what}
        print(json.dumps(told), flush=True)
        assert sys.stdin.readline() == "go on\n"
        faults.disarm()
        work.afterwards()
        print(json.dumps({"outcomes": work.outcomes, "errors": work.errors}), flush=True)
        faulthandler.cancel_dump_traceback_later()


if __name__ == "__main__":
    main()
