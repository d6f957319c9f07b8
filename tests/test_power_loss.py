"""Power lost at any moment: with synchronous="full" nothing that was acknowledged is lost, and nothing is half there.

A process runs on real files with its writes and syncs logged; from the log the files are built that a disk could hold
after its power was lost at some moment, and each is opened. AGENT_CKPT_TEST_IMAGES sets how many (CI: 30; 400 take
about a minute and a half).
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from agent_ckpt import AgentSaver
from tests.faults import ROOT, build, environment
from tests.faults.images import HOW, Disk, Record, read_log
from tests.kill_workers import THREAD, text_of, writes_of
from tests.test_kill import Told, check

IMAGES = int(os.environ.get("AGENT_CKPT_TEST_IMAGES", "30"))
PUTS = 60


def logged(folder: Path, library: Path, synchronous: str) -> list[Record]:
    """What a process did to its store."""
    log = folder / "log"
    done = subprocess.run(
        [
            *(sys.executable, "-W", "error", "-m", "tests.faults.power_worker"),
            *map(str, (folder / "agent.db", log, synchronous, PUTS)),
        ],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=environment(library),
        timeout=120,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return read_log(log)


def told_by(marks: list[int]) -> Told:
    told = Told()
    for mark in marks:
        told.hear("writes" if mark % 2 else "put", mark // 2)
    return told


def lost(path: Path, told: Told) -> int:
    """How many acknowledged calls are not there; what is there has to be whole and in order."""
    if not path.exists():
        return told.received
    with AgentSaver(path) as saver:
        report = saver.verify()
        assert not report.findings, report.findings
        found = list(saver.list(THREAD))
    numbers = [item.checkpoint["channel_values"]["n"] for item in found]
    head = numbers[0] if numbers else 0
    assert head <= told.put + 1
    assert numbers == list(range(head, 0, -1)), f"checkpoints are missing: {numbers}"
    missing = max(0, told.put - head)
    for item in found:
        number = item.checkpoint["channel_values"]["n"]
        assert item.checkpoint["channel_values"]["text"] == text_of(number)
        pending = [(channel, value) for _, channel, value in item.pending_writes or []]
        assert pending in ([], writes_of(number)), f"half the writes of checkpoint {number}"
        assert pending or number == head or number not in told.writes, f"writes of {number} are missing in the middle"
        missing += number in told.writes and not pending
    return missing + len([number for number in told.writes if number > head])


@pytest.mark.parametrize("synchronous", ["full", "normal"])
def test_power_loss(synchronous: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    """P1: of images of a lost power none lacks an acknowledged call with FULL; with NORMAL some lack the last ones;
    all are sound, with a whole number of calls, and can be written on."""
    folder = tmp_path_factory.mktemp(synchronous)
    records = logged(folder, build(folder), synchronous)
    syncs = sum(record.op == "S" and record.name == "-wal" for record in records)
    assert syncs > 2 * PUTS if synchronous == "full" else 0 < syncs < PUTS
    assert sum(record.op == "W" and record.name == "db" for record in records) > 100, "the WAL was never folded"
    seed = random.randrange(1 << 32)
    chance = random.Random(seed)
    print(f"seed {seed}")
    disk, missing = Disk(), {}
    moments = sorted(chance.randrange(len(records) + 1) for _ in range(IMAGES))
    for number, moment in enumerate(moments):
        for record in records[moments[number - 1] if number else 0 : moment]:
            disk.play(record)
        image = folder / f"image {number}"
        image.mkdir()
        disk.lose_power(image, chance, HOW[number % len(HOW)])
        told = told_by(disk.marks)
        path = image / "agent.db"
        try:
            if synchronous == "full":
                check(path, told)
            elif gone := lost(path, told):
                missing[number] = gone
            if number % 8 == 0:
                with AgentSaver(path) as saver:
                    saver.put_writes(
                        {"configurable": {"thread_id": "next", "checkpoint_ns": "", "checkpoint_id": "1"}},
                        [("a", 1)],
                        "task",
                    )
                    assert not saver.verify().findings
        except Exception as exc:
            raise AssertionError(f"{exc!r} in image {number} at record {moment}, seed {seed}") from exc
    print(f"{IMAGES} images, {len(missing)} lack acknowledged calls, {max(missing.values(), default=0)} at most")
    assert (not missing) == (synchronous == "full"), "NORMAL lost nothing, so the images are too kind"


def test_the_images_catch_a_saver_without_syncs(tmp_path: Path) -> None:
    """The same images, of a log from which the syncs of the WAL were taken, lack acknowledged calls."""
    records = [
        record for record in logged(tmp_path, build(tmp_path), "full") if (record.op, record.name) != ("S", "-wal")
    ]
    chance = random.Random(7)
    disk = Disk()
    caught = 0
    for moment, record in enumerate(records):
        disk.play(record)
        if moment % 400 == 0 and disk.marks:
            image = tmp_path / f"image {moment}"
            image.mkdir()
            disk.lose_power(image, chance, "none")
            try:
                check(image / "agent.db", told_by(disk.marks))
            except Exception:
                caught += 1
    assert caught
