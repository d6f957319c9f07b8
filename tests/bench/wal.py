"""The WAL's size while writing, when idle and under a long reader; with --full also what that depends on, and what the
size at which it is folded costs."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.base.id import uuid6

from agent_ckpt import AgentSaver
from agent_ckpt.sqlite.wal import Limits
from tests.bench.heads import Run
from tests.bench.report import Table

MIB = 1 << 20
BLOB = 40_000
BOUND_MIB = 4.5
PATIENCE_S = 20.0
SMALL = 4_000
SMALL_PUTS = 400
VOLUME = 100 * MIB
ROUNDS = 5

READER = """
import sqlite3, sys
reader = sqlite3.connect(sys.argv[1], isolation_level=None)
reader.execute("BEGIN")
reader.execute("SELECT count(*) FROM checkpoints").fetchall()
print("reading", flush=True)
sys.stdin.read()
"""


@dataclass
class Written:
    """What a stretch of puts saw: the largest WAL in bytes, and the seconds of each put."""

    largest: int
    seconds: list[float]

    def cells(self) -> list[float]:
        return [
            self.largest / MIB,
            len(self.seconds),
            statistics.fmean(self.seconds) * 1e3,
            max(self.seconds) * 1e3,
        ]


def wal_bytes(path: Path) -> int:
    try:
        return os.stat(f"{path}-wal").st_size
    except FileNotFoundError:
        return 0


def put(saver: AgentSaver, size: int) -> float:
    """Put a checkpoint with new bytes of that size on a thread of its own; the seconds that it took."""
    checkpoint = {**empty_checkpoint(), "id": str(uuid6()), "channel_values": {"x": os.urandom(size)},
                  "channel_versions": {"x": "1"}}  # fmt: skip
    config: RunnableConfig = {"configurable": {"thread_id": str(uuid6()), "checkpoint_ns": ""}}
    began = time.perf_counter()
    saver.put(config, checkpoint, {"source": "loop", "step": 0, "parents": {}}, {"x": "1"})  # type: ignore[arg-type]
    return time.perf_counter() - began


def write(saver: AgentSaver, path: Path, volume: int) -> Written:
    written = Written(0, [])
    for _ in range(volume // BLOB):
        written.seconds.append(put(saver, BLOB))
        written.largest = max(written.largest, wal_bytes(path))
    return written


def until(path: Path, size: int, saver: AgentSaver | None = None, size_of_puts: int = SMALL) -> tuple[float, Written]:
    """Seconds until the WAL is that small; with a saver, writing on meanwhile."""
    began, written = time.monotonic(), Written(0, [])
    while wal_bytes(path) > size and time.monotonic() - began < PATIENCE_S:
        if saver is None:
            time.sleep(0.005)
        else:
            written.seconds.append(put(saver, size_of_puts))
    return time.monotonic() - began, written


@contextmanager
def reading(path: Path) -> Iterator[None]:
    process = subprocess.Popen(
        [sys.executable, "-c", READER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdout.readline()
    try:
        yield
    finally:
        process.stdin.close()
        process.wait()
        process.stdout.close()


def plainly(path: Path, size: int) -> float:
    """Seconds to write that many bytes to a plain file in pages, and to sync it: what this disk can do now."""
    page, target = os.urandom(4096), path.with_name("plain")
    began = time.monotonic()
    with target.open("wb", buffering=0) as file:
        for _ in range(size // len(page)):
            file.write(page)
        os.fsync(file.fileno())
    took = time.monotonic() - began
    target.unlink()
    return took


def tables(run: Run) -> list[Table]:
    made = [growth(run)]
    if run.full:
        made += [after_a_reader(run), folding(run)]
    return made


def after_a_reader(run: Run) -> Table:
    """What the time until the WAL is small depends on: the pages that were changed, not how often they were."""
    table = Table(
        "wal",
        "puts beside a long reader, then the time from its end until the WAL has 1 MiB",
        ["puts", "WAL, MiB", "MiB that it adds to the file", "then", "seconds", "puts meanwhile", "their median, ms",
         "the same MiB in a plain file, s"],
    )  # fmt: skip
    for count, size in ((600, BLOB), (2600, BLOB), (2600, 400)):
        for writing in (False, True):
            path = run.path("wal-reader")
            with AgentSaver(path) as saver:
                put(saver, size)
                with reading(path):
                    for _ in range(count):
                        put(saver, size)
                    large, before = wal_bytes(path), os.stat(path).st_size
                took, written = until(path, MIB, saver if writing else None)
                added = os.stat(path).st_size - before
            table.add(
                f"{count} of {size} B",
                large / MIB,
                added / MIB,
                "puts of 4 KB" if writing else "nothing",
                took,
                len(written.seconds),
                statistics.median(written.seconds or [0.0]) * 1e3,
                plainly(path, added),
            )
    table.notes.append("a put waits for none of this folding, only for the disk that both write to")
    return table


def growth(run: Run) -> Table:
    table = Table(
        "wal",
        f"{VOLUME // MIB} MiB of puts of {BLOB // 1000} KB with the default options, alone and under a long reader",
        ["", "largest WAL, MiB", "puts", "mean put, ms", "worst put, ms", "seconds until small"],
    )
    path = run.path("wal")
    with AgentSaver(path) as saver:
        free = write(saver, path, VOLUME)
        table.add("writing", *free.cells(), "")
        idle_s, _ = until(path, 0)
        table.add("then nothing: until 0 bytes", "", "", "", "", idle_s)
        with reading(path):
            table.add("writing under a long reader", *write(saver, path, VOLUME).cells(), "")
        ended_s, _ = until(path, MIB)
        table.add("the reader ends, nothing is written: until 1 MiB", "", "", "", "", ended_s)
        with reading(path):
            table.add("writing under another one", *write(saver, path, VOLUME).cells(), "")
        busy_s, while_busy = until(path, MIB, saver, BLOB)
        table.add("it ends, the puts go on: until 1 MiB", "", *while_busy.cells()[1:], busy_s)
    table.budget("largest WAL, MiB (and the largest group)", free.largest / MIB, BOUND_MIB + BLOB / MIB)
    table.budget("idle, s", idle_s, 1.0)
    table.budget("reader ended, s", ended_s, 1.0)
    table.budget("reader ended while writing, s", busy_s, 1.0)
    return table


def folding(run: Run) -> Table:
    table = Table(
        "wal",
        f"{SMALL_PUTS} puts of 4 KB, synchronous=full, by where the WAL is folded; median of {ROUNDS} mixed rounds",
        ["folded at", "file kept", "mean put, ms", "largest WAL, MiB"],
    )
    ways: dict[tuple[int, int], list[float]] = {(254, MIB): [], (1000, MIB): [], (1000, 4 * MIB): []}
    largest = dict.fromkeys(ways, 0)
    for _ in range(ROUNDS):
        for (pages, kept), means in ways.items():
            path = run.path("wal-folding")
            with (
                mock.patch.object(Limits, "fold_pages", pages),
                AgentSaver(path, wal_autocheckpoint=1000, journal_size_limit=kept) as saver,
            ):
                put(saver, BLOB)
                seconds = []
                for _ in range(SMALL_PUTS):
                    seconds.append(put(saver, SMALL))
                    largest[pages, kept] = max(largest[pages, kept], wal_bytes(path))
            means.append(statistics.fmean(seconds))
    for (pages, kept), means in ways.items():
        cells = statistics.median(means) * 1e3, largest[pages, kept] / MIB
        table.add(f"{pages} pages", f"{kept // MIB} MiB", *cells)
    table.notes.append("the first row is the default: as many pages as fit the file that is kept")
    return table
