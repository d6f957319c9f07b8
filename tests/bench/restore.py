"""Restoring a long thread's head: in a fresh process, and again in the same one."""

from __future__ import annotations

import statistics

from tests.bench import child
from tests.bench.heads import THREAD, Run, head_file
from tests.bench.report import Table, ratio, spread

RUNS = 5


def tables(run: Run) -> list[Table]:
    turns = run.turns or 300
    on_disk = [each for each in run.contenders if each.on_disk]
    paths = {each.name: _head(run, each.name, turns) for each in on_disk}
    taken: dict[str, list[dict[str, float]]] = {name: [] for name in paths}
    for _ in range(RUNS):
        for name, path in paths.items():
            process = child.start("restore", name, path, THREAD)
            child.go(process)
            taken[name].append(child.result(process))
    table = Table(
        "restore",
        f"get_tuple of a head of {turns} turns, {RUNS} fresh processes each, interleaved, ms",
        ["saver", "cold (open included)", "min", "max", "warm", "get_state, warm", "messages"],
    )
    for name, values in taken.items():
        warm, state = (statistics.median(v[key] for v in values) for key in ("warm", "state"))
        table.add(name, *spread(v["cold"] for v in values), warm, state, int(values[0]["messages"]))
    if turns >= 300 and "ours" in taken and "official" in taken:
        for key, limit in (("cold", 1 / 3), ("warm", 1 / 4)):
            ours, official = ([v[key] for v in taken[name]] for name in ("ours", "official"))
            table.budget(f"{key}: ours / official", ratio(ours, official), limit)
    if turns >= 300:
        table.notes.append("the head is the one that the table of added time left, where that ran: some turns longer")
    table.notes.append("imports are done before the clock starts; the file is in the system's page cache")
    return [table]


def _head(run: Run, name: str, turns: int) -> str:
    contender = next(each for each in run.contenders if each.name == name)
    # The head that the table of added time left behind is at most 5 % longer or shorter: as good, and already there.
    for (known, length), path in run.heads.items():
        if known == name and abs(length - turns) <= turns // 20:
            return str(path)
    return str(head_file(run, contender, turns))
