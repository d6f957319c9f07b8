"""Many threads at once: 64 on one event loop, and 4 processes of 16 on one file."""

from __future__ import annotations

import asyncio
import gc
import time
from collections import Counter

from tests.bench import child
from tests.bench.agents import build, take_turns_at_once
from tests.bench.heads import Run
from tests.bench.report import Table, fsync_ms, ratio, spread
from tests.bench.savers import NULL, Contender, warm_up

THREADS = 64
PROCESSES = 4


async def _rate(run: Run, contender: Contender, turns: int) -> tuple[float, list[BaseException]]:
    """Turns per second of all threads at once on a new store, and the errors."""
    async with contender.aopen(run.path(f"load-{contender.name}")) as saver:
        graph = build(saver)
        await take_turns_at_once(graph, ["warm-1", "warm-2"], 1)
        gc.collect()
        begin = time.perf_counter()
        errors = await take_turns_at_once(graph, [f"t{number}" for number in range(THREADS)], turns)
        return THREADS * turns / (time.perf_counter() - begin), errors


def at_once(run: Run) -> list[Table]:
    turns, runs = (10, 5) if run.full else (3, 3)
    table = Table(
        "threads",
        f"{THREADS} threads at once, async, {turns} turns each, {runs} interleaved runs, turns per second",
        ["saver", "turns/s (median)", "min", "max", "of memory", "errors"],
    )
    rates: dict[str, list[float]] = {}
    errors: Counter[str] = Counter()
    everyone = [*run.contenders, NULL]
    for contender in everyone:
        warm_up(contender.name)
    for number in range(runs):
        turned = number % len(everyone)
        for contender in [*everyone[turned:], *everyone[:turned]]:
            rate, failed = asyncio.run(_rate(run, contender, turns))
            rates.setdefault(contender.name, []).append(rate)
            errors[contender.name] += len(failed)
    for contender in everyone:
        mine = rates[contender.name]
        against = ratio(mine, rates["memory"]) if "memory" in rates else "-"
        table.add(contender.name, *spread(mine), against, errors[contender.name])
    if "ours" in rates and "memory" in rates:
        table.budget("ours / memory", ratio(rates["ours"], rates["memory"]), 0.8, at_least=True)
    table.notes.append(f"one fsync in this folder: {fsync_ms(run.folder):.3f} ms (median)")
    return [table]


def processes(run: Run) -> list[Table]:
    threads, turns, runs = 16, 10 if run.full else 3, 3
    table = Table(
        "processes",
        f"{PROCESSES} processes x {threads} threads on one file, async, {turns} turns each, {runs} interleaved runs",
        ["saver", "turns/s (median)", "min", "max", "threads that failed", "first error"],
    )
    rates: dict[str, list[float]] = {}
    errors: dict[str, list[str]] = {}
    on_disk = [each for each in run.contenders if each.on_disk]
    for _ in range(runs):
        for contender in on_disk:
            rate, failed = _shared_rate(run, contender, threads, turns)
            rates.setdefault(contender.name, []).append(rate)
            errors.setdefault(contender.name, []).extend(failed)
    for name, values in rates.items():
        table.add(name, *spread(values), len(errors[name]), errors[name][0][:60] if errors[name] else "-")
    if "ours" in rates:
        table.budget("ours: threads that failed", len(errors["ours"]), 0)
        if "official" in rates:
            table.budget("ours / official", ratio(rates["ours"], rates["official"]), 2, at_least=True)
    table.notes.append("turns of threads that failed don't count")
    return [table]


def _shared_rate(run: Run, contender: Contender, threads: int, turns: int) -> tuple[float, list[str]]:
    path = run.path(f"processes-{contender.name}")
    arguments = [str(threads), str(turns)]
    children = [child.start("load", contender.name, str(path), f"p{number}", *arguments) for number in range(PROCESSES)]
    for each in children:
        child.go(each)
    results = [child.result(each) for each in children]
    failed = [error for each in results for error in each["errors"]]
    seconds = max(each["end"] for each in results) - min(each["begin"] for each in results)
    return (PROCESSES * threads - len(failed)) * turns / seconds, failed
