"""Workers without a memory: any of them goes on with any thread, knowing nothing but its id.

    python examples/stateless_worker.py

Thread ids wait in a queue (a small SQLite file of this example's own; yours may be Redis, SQS or a
table). Two worker processes take ids from it. A worker takes one, runs the thread to its end from
wherever it stands, and takes the id off the queue. A worker that dies gives nothing back: its claim
runs out, and any other takes the thread over from its last checkpoint.

One worker is killed in the middle of a step, and the other finishes its thread. The checks at the
end are real: the script exits with 1 when one fails.
"""

from __future__ import annotations

import operator
import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path
from typing import Annotated, Any, TypedDict

from langchain_core.runnables import RunnableConfig
from langgraph.graph import START, StateGraph

from agent_ckpt import AgentSaver, ThreadConflictError

ORDERS = [f"order-{number}" for number in range(1, 7)]
STEPS = ("check", "reserve", "charge", "ship")
CLAIM_S = 5.0
"""How long a claim lasts. A worker that lives and is slower than that is no danger: the store refuses it."""
PATIENCE_S = 60.0
WORKERS = 2


# --- the graph: four steps, each of which leaves one line in a file ---------------------------------------


class Order(TypedDict):
    done: Annotated[list[str], operator.add]


def build(saver: AgentSaver, folder: Path, dies_in: str = "") -> Any:
    """The same graph in every worker; one of them dies in the middle of a step."""

    def step(name: str) -> Any:
        def work(state: Order, config: RunnableConfig) -> Order:
            order = config["configurable"]["thread_id"]
            if dies_in == name:
                os.kill(os.getpid(), signal.SIGKILL)
            with (folder / "effects.log").open("a") as effects:
                effects.write(f"{order} {name} by {os.getpid()}\n")
            time.sleep(0.02)
            return {"done": [name]}

        return work

    builder = StateGraph(Order)
    last = START
    for name in STEPS:
        builder.add_node(name, step(name))
        builder.add_edge(last, name)
        last = name
    return builder.compile(checkpointer=saver)


# --- the queue: ids, and until when somebody has claimed them -----------------------------------------------


class Queue:
    """Thread ids that wait for a worker."""

    def __init__(self, path: Path) -> None:
        self._db = sqlite3.connect(path, timeout=30, isolation_level=None)
        self._db.execute("CREATE TABLE IF NOT EXISTS waiting (id TEXT PRIMARY KEY, claimed_until REAL NOT NULL)")

    def add(self, thread_id: str) -> None:
        self._db.execute("INSERT INTO waiting VALUES (?, 0)", (thread_id,))

    def take(self) -> str | None:
        """Claim an id that nobody holds."""
        found = self._db.execute(
            "UPDATE waiting SET claimed_until = ?1 + ?2 WHERE id = "
            "(SELECT id FROM waiting WHERE claimed_until < ?1 ORDER BY id LIMIT 1) RETURNING id",
            (time.time(), CLAIM_S),
        ).fetchall()
        return found[0][0] if found else None

    def done(self, thread_id: str) -> None:
        self._db.execute("DELETE FROM waiting WHERE id = ?", (thread_id,))

    def is_empty(self) -> bool:
        return self._db.execute("SELECT count(*) FROM waiting").fetchone() == (0,)

    def close(self) -> None:
        self._db.close()


# --- a worker ----------------------------------------------------------------------------------------------


def work(folder: Path, dies_in: str) -> None:
    """Take ids until none is left."""
    (folder / f"ready {os.getpid()}").touch()
    while len(list(folder.glob("ready *"))) < WORKERS:
        time.sleep(0.01)
    with AgentSaver(folder / "agent.db") as saver, closing(Queue(folder / "queue.db")) as queue:
        graph = build(saver, folder, dies_in)
        while not queue.is_empty():
            thread_id = queue.take()
            if thread_id is None:
                time.sleep(0.05)
                continue
            config = {"configurable": {"thread_id": thread_id}}
            state = graph.get_state(config)
            begun = state.values.get("done", [])
            print(f"   worker {os.getpid()} takes {thread_id}" + (f" after {', '.join(begun)}" if begun else ""))
            try:
                # None goes on from the last checkpoint; a new thread gets its input.
                graph.invoke(None if state.created_at else {"done": []}, config, durability="sync")
            except ThreadConflictError:
                # Somebody else took it over while this worker was slow; it is theirs now.
                continue
            queue.done(thread_id)


def start(folder: Path, dies_in: str = "") -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, __file__, "--worker", str(folder), dies_in])


# --- the show ----------------------------------------------------------------------------------------------


def check(holds: bool, what: str) -> bool:
    print(f"   {'ok  ' if holds else 'FAIL'} {what}")
    return holds


def main() -> int:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with closing(Queue(folder / "queue.db")) as queue:
            for order in ORDERS:
                queue.add(order)
        print(f"1. {len(ORDERS)} thread ids wait; two workers start, one of which dies in a step.", flush=True)
        doomed, other = start(folder, "charge"), start(folder)
        killed = doomed.wait(PATIENCE_S) == -signal.SIGKILL
        print(f"2. Worker {doomed.pid} was killed (SIGKILL) in `charge`. The other takes what is left.", flush=True)
        ended = other.wait(PATIENCE_S) == 0
        print("3. What is stored, and what was done:")
        effects = [line.split(" by ") for line in (folder / "effects.log").read_text().splitlines()]
        done = [what for what, _ in effects]
        by_doomed = {what.split()[0] for what, pid in effects if int(pid) == doomed.pid}
        handed_over = {what.split()[0] for what, pid in effects if int(pid) == other.pid} & by_doomed
        with AgentSaver(folder / "agent.db", create=False) as saver:
            graph = build(saver, folder)
            finished = [
                graph.get_state({"configurable": {"thread_id": order}}).values["done"] == list(STEPS)
                for order in ORDERS
            ]
            sound = not saver.verify().findings
        once = sorted(done) == sorted(f"{order} {step}" for order in ORDERS for step in STEPS)
        passed = " and ".join(handed_over) or "none"
        checks = [
            check(killed and ended, "one worker was killed, the other ended by itself"),
            check(all(finished), f"all {len(ORDERS)} threads went through {', '.join(STEPS)}"),
            check(once, "each step was done once"),
            check(len(handed_over) == 1, f"{passed} was begun by one and finished by the other"),
            check(sound, "the store is sound"),
        ]
    print("All checks passed." if all(checks) else "Some checks failed.")
    return 0 if all(checks) else 1


if __name__ == "__main__":
    if "--worker" in sys.argv:
        where, dies = sys.argv[2:4]
        work(Path(where), dies)
    else:
        sys.exit(main())
