"""Added wall time per turn: a turn's time minus the same graph's on a saver that keeps nothing."""

from __future__ import annotations

import gc
import time
from typing import NamedTuple

from tests.agents import Graph
from tests.bench.agents import take_turns
from tests.bench.heads import THREAD, Run, opened_heads
from tests.bench.report import Table, bytes_on_disk, fsync_ms, ratio, spread
from tests.bench.savers import warm_up

RUNS = 5
TURNS_A_RUN = 5


class Timed(NamedTuple):
    """Milliseconds per turn: on the wall, and of this process's processor time, which other programs disturb less."""

    wall: float
    cpu: float


def timed_turns(graph: Graph, first: int, count: int = TURNS_A_RUN) -> Timed:
    """Time `count` turns, after a collection so that no saver pays for another's garbage."""
    gc.collect()
    wall, cpu = time.perf_counter(), time.process_time()
    take_turns(graph, THREAD, first, count)
    return Timed((time.perf_counter() - wall) * 1e3 / count, (time.process_time() - cpu) * 1e3 / count)


def measure(run: Run, turns: int) -> Table:
    for contender in run.contenders:
        warm_up(contender.name)
    # Half the timed turns lie before the length that is asked for, half after it.
    start = max(0, turns - (RUNS + 1) * TURNS_A_RUN // 2)
    timed: dict[str, list[Timed]] = {}
    fsyncs: list[float] = []
    with opened_heads(run, start) as opened:
        names = list(opened)
        for name in names:
            timed_turns(opened[name][1], start)
            timed[name] = []
        for number in range(RUNS):
            fsyncs.append(fsync_ms(run.folder))
            first = start + (number + 1) * TURNS_A_RUN
            turned = number % len(names)
            for name in [*names[turned:], *names[:turned]]:
                timed[name].append(timed_turns(opened[name][1], first))
    return _table(run, turns, timed, fsyncs)


def _table(run: Run, turns: int, timed: dict[str, list[Timed]], fsyncs: list[float]) -> Table:
    table = Table(
        f"turns{turns}",
        f"added wall time per turn at {turns} turns, sync, {RUNS} interleaved runs of {TURNS_A_RUN} turns",
        [
            "saver",
            "added ms (median)",
            "min",
            "max",
            "of official",
            "of memory",
            "added CPU ms",
            "whole ms",
            "MB on disk",
        ],
    )
    null = timed["null"]
    added = {name: [a.wall - b.wall for a, b in zip(timed[name], null, strict=True)] for name in run.names()}
    files = {name: path for (name, _), path in run.heads.items()}
    for name, values in added.items():
        table.add(
            name,
            *spread(values),
            ratio(values, added["official"]) if "official" in added else "-",
            ratio(values, added["memory"]) if "memory" in added else "-",
            spread(a.cpu - b.cpu for a, b in zip(timed[name], null, strict=True))[0],
            spread(each.wall for each in timed[name])[0],
            bytes_on_disk(files[name]) / 1e6 if name in files else "-",
        )
    floor = [spread(values)[0] for values in ([each.cpu for each in null], [each.wall for each in null])]
    table.add("null (subtracted)", 0, 0, 0, "-", "-", *floor, "-")
    fsync = spread(fsyncs)[0]
    if turns >= 300 and "ours" in added and "official" in added:
        table.budget("ours / official", ratio(added["ours"], added["official"]), 1 / 4 if turns < 1000 else 1 / 8)
    if turns >= 300 and "ours" in added and "memory" in added and fsync <= 0.5:
        table.budget("ours / memory (fsync <= 0.5 ms)", ratio(added["ours"], added["memory"]), 1 / 2)
    table.notes.append(f"one fsync in this folder: {fsync:.3f} ms (median); ours and official wait for it (FULL)")
    table.notes.append("the null row shows the graph's own CPU and wall time a turn, which the added figures leave out")
    if turns > 300:
        table.notes.append("beyond 300 turns only ours grew turn by turn; the others got the messages in one update")
    return table


def tables(run: Run) -> list[Table]:
    if run.turns:
        return [measure(run, run.turns)]
    return [measure(run, 300), *([measure(run, 1000)] if run.full else [])]
