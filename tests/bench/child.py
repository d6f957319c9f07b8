"""What the benchmark runs in fresh processes: one cold restore, or one process's share of a common load.

Talks in JSON lines: prints one when ready, waits for a line on standard input, works, prints the result.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


def start(*arguments: str) -> subprocess.Popen[str]:
    """Start a child and wait until it has imported what it needs."""
    child = subprocess.Popen(
        [sys.executable, "-m", "tests.bench.child", *arguments],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    if not child.stdout.readline():
        raise RuntimeError(f"the child process for {' '.join(arguments)} ended with {child.wait()} before it was ready")
    return child


def go(child: subprocess.Popen[str]) -> None:
    """Let a waiting child work."""
    assert child.stdin is not None
    child.stdin.write("go\n")
    child.stdin.flush()


def result(child: subprocess.Popen[str]) -> dict[str, Any]:
    """Wait for a child's result.

    Raises:
        RuntimeError: the child died instead.
    """
    out, _ = child.communicate(timeout=300)
    if child.returncode != 0:
        raise RuntimeError(f"a child process of the benchmark ended with {child.returncode}")
    parsed: dict[str, Any] = json.loads(out.splitlines()[-1])
    return parsed


def restore(name: str, path: str, thread_id: str) -> dict[str, Any]:
    """Time the first restore of a thread, opening included, and later ones on the same saver, in milliseconds."""
    from tests.bench.agents import build, config
    from tests.bench.savers import CONTENDERS, warm_up

    warm_up(name)
    _ready()
    begin = time.perf_counter()
    with CONTENDERS[name].open(Path(path)) as saver:
        found = saver.get_tuple(config(thread_id))
        cold = time.perf_counter() - begin
        assert found is not None
        warm = []
        for _ in range(9):
            begin = time.perf_counter()
            saver.get_tuple(config(thread_id))
            warm.append((time.perf_counter() - begin) * 1e3)
        graph = build(saver)
        graph.get_state(config(thread_id))
        begin = time.perf_counter()
        graph.get_state(config(thread_id))
        state = (time.perf_counter() - begin) * 1e3
    messages = len(found.checkpoint["channel_values"]["messages"])
    return {"cold": cold * 1e3, "warm": sorted(warm)[len(warm) // 2], "state": state, "messages": messages}


def load(name: str, path: str, prefix: str, threads: str, turns: str) -> dict[str, Any]:
    """Run turns of several threads at once on a shared file; tell when it began and ended, and what failed."""
    from tests.bench.agents import build, take_turns_at_once
    from tests.bench.savers import CONTENDERS, warm_up

    async def work() -> dict[str, Any]:
        async with CONTENDERS[name].aopen(Path(path)) as saver:
            graph = build(saver)
            await take_turns_at_once(graph, [f"{prefix}-warm"], 1)
            _ready()
            begin = time.time()
            ids = [f"{prefix}-{number}" for number in range(int(threads))]
            errors = await take_turns_at_once(graph, ids, int(turns))
            kinds = [f"{type(each).__name__}: {each}" for each in errors]
            return {"begin": begin, "end": time.time(), "errors": kinds}

    warm_up(name)
    return asyncio.run(work())


def _ready() -> None:
    print(json.dumps({"ready": True}), flush=True)
    sys.stdin.readline()


if __name__ == "__main__":
    work = restore(*sys.argv[2:]) if sys.argv[1] == "restore" else load(*sys.argv[2:])
    print(json.dumps(work), flush=True)
