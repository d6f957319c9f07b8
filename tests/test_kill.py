"""kill -9 at any moment: nothing that was acknowledged is lost, and nothing is half there."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.base import empty_checkpoint

from agent_ckpt import AgentSaver
from tests.conftest import assert_sound
from tests.kill_workers import THREAD, crash_graph, crash_in_b, text_of, write_on, writer, writes_of
from tests.race_workers import CONTEXT

KILLS = int(os.environ.get("AGENT_CKPT_TEST_KILLS", "100"))
WATCHDOG_S = 60.0
WRITES = 3
LEFT = 10
"""Checkpoints of the store that a writer leaves behind without closing it."""


@dataclass
class Told:
    """What was acknowledged: the highest checkpoint, and the checkpoints whose writes were."""

    put: int = 0
    writes: set[int] = field(default_factory=set)
    received: int = 0

    def hear(self, what: str, number: int) -> None:
        if what == "put":
            self.put = number
        elif what == "writes":
            self.writes.add(number)
        self.received += what != "started"

    def listen(self, connection: Connection) -> None:
        """Take what was sent until the other end is closed."""
        try:
            while True:
                self.hear(*connection.recv())
        except EOFError:
            pass


def check(path: Path, told: Told) -> None:
    """Everything that was acknowledged is there, whole, and at most one call that was not.

    Raises:
        AssertionError: naming what is missing or half there.
    """
    if not path.exists():
        assert told.put == 0, "acknowledged, and there is no file"
        return
    with AgentSaver(path, create=False) as saver:
        report = saver.verify()
        assert not report.findings, report.findings
        found = list(saver.list(THREAD))
    numbers = [item.checkpoint["channel_values"]["n"] for item in found]
    head = numbers[0] if numbers else 0
    assert head in (told.put, told.put + 1), f"{told} acknowledged, the head is {head}"
    assert numbers == list(range(head, 0, -1)), f"checkpoints are missing: {numbers}"
    for item in found:
        number = item.checkpoint["channel_values"]["n"]
        assert item.checkpoint["channel_values"]["text"] == text_of(number), f"checkpoint {number} is not what was put"
        assert item.checkpoint["channel_values"]["log"] == [f"entry {each}" for each in range(1, number + 1)]
        pending = [(channel, value) for _, channel, value in item.pending_writes or []]
        if number in told.writes:
            assert pending == writes_of(number), f"acknowledged writes of checkpoint {number} are missing"
        assert pending in ([], writes_of(number)), f"half the writes of checkpoint {number}"


def kill_once(path: Path, options: dict[str, Any], calls: int, after_s: float, told: Told) -> None:
    """Start a writer, kill it so many acknowledged calls and then seconds after it began; read what it has told."""
    ours, theirs = CONTEXT.Pipe(duplex=False)
    process = CONTEXT.Process(target=writer, args=(path, options, theirs), daemon=True)
    process.start()
    theirs.close()
    for _ in range(1 + calls):
        assert ours.poll(WATCHDOG_S), "it never began, or hangs"
        told.hear(*ours.recv())
    time.sleep(after_s)
    process.kill()
    told.listen(ours)
    process.join(WATCHDOG_S)
    assert process.exitcode == -signal.SIGKILL
    process.close()
    ours.close()


@pytest.mark.parametrize("synchronous", ["full", "normal"])
def test_killed_at_any_moment(synchronous: str, tmp_path: Path) -> None:
    """B61: a writer killed at random moments loses no acknowledged put or put_writes and leaves no half batch."""
    chance = random.Random()
    seed = chance.randrange(1 << 32)
    chance.seed(seed)
    print(f"seed {seed}")
    acknowledged = 0
    for kill in range(KILLS // 2):
        if kill % 5 == 0:
            path, told = tmp_path / f"{kill}.db", Told()
        # Also where the machine is slow most kills come in the middle of the writing, and some before it.
        calls = chance.choice([0, 1, 2, 5])
        kill_once(path, {"synchronous": synchronous}, calls, chance.uniform(0.0, 0.12), told)
        try:
            check(path, told)
        except AssertionError as exc:
            raise AssertionError(f"{exc} (kill {kill}, seed {seed})") from exc
        acknowledged += told.received
        told.received = 0
        # A call that was stored and not acknowledged counts as done for the next writer, which goes on from it.
        if path.exists():
            with AgentSaver(path, create=False) as saver:
                head = saver.get_tuple(THREAD)
                told.put = head.checkpoint["channel_values"]["n"] if head is not None else 0
    print(f"{acknowledged} calls were acknowledged before {KILLS // 2} kills")
    assert acknowledged > KILLS // 2, "the writers hardly wrote, so this proves little"


def test_the_check_sees_what_is_missing(tmp_path: Path) -> None:
    """The same check refuses a store that lacks an acknowledged checkpoint, writes, or half a batch of them."""
    path = tmp_path / "agent.db"
    told = Told()
    with AgentSaver(path) as saver:
        write_on(saver, told.hear, stop_at=6)
    check(path, told)
    with pytest.raises(AssertionError, match="acknowledged, the head is 6"):
        check(path, Told(put=7))
    lost = tmp_path / "lost.db"
    shutil.copy(path, lost)
    with closing(sqlite3.connect(lost)) as connection, connection:
        connection.execute("DELETE FROM writes WHERE seq = (SELECT max(seq) FROM writes)")
    with pytest.raises(AssertionError):
        check(lost, told)
    with AgentSaver(path) as saver:
        head = saver.get_tuple(THREAD)
        assert head is not None
        saver.put_writes(head.config, writes_of(6)[:2], "half a task")
    with pytest.raises(AssertionError, match="writes of checkpoint 6 are missing"):
        check(path, told)


# The WAL's tail


@pytest.fixture(scope="module")
def left_behind(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Told]:
    """A store whose writer exited without close: its last commits stand in the -wal only."""
    path = tmp_path_factory.mktemp("left") / "agent.db"
    told = Told()
    ours, theirs = CONTEXT.Pipe(duplex=False)
    process = CONTEXT.Process(target=writer, args=(path, {}, theirs, LEFT), daemon=True)
    process.start()
    theirs.close()
    told.listen(ours)
    process.join(WATCHDOG_S)
    assert process.exitcode == 0
    process.close()
    ours.close()
    assert told.put == max(told.writes) == LEFT
    # It was not folded yet, so what it ends with is the last commit.
    assert 100_000 < os.stat(f"{path}-wal").st_size < 1 << 20
    return path, told


def copy_of(left: Path, folder: Path) -> Path:
    path = folder / "agent.db"
    shutil.copy(left, path)
    shutil.copy(f"{left}-wal", f"{path}-wal")
    return path


def head_number(path: Path) -> tuple[int, int]:
    """Number of the head, and how many writes it has."""
    assert_sound(path)
    with AgentSaver(path, create=False) as saver:
        head = saver.get_tuple(THREAD)
        assert head is not None
        number = head.checkpoint["channel_values"]["n"]
        assert head.checkpoint["channel_values"]["text"] == text_of(number)
        # And it can be written on.
        made = empty_checkpoint()
        saver.put(head.config, made, {"source": "loop", "step": 0, "parents": {}}, {})
        return number, len(head.pending_writes or [])


def test_exit_without_close(left_behind: tuple[Path, Told], tmp_path: Path) -> None:
    """B61: what a process that never closed had been told is there for the next one."""
    path = copy_of(left_behind[0], tmp_path)
    check(path, left_behind[1])
    assert head_number(path) == (LEFT, WRITES)


@pytest.mark.parametrize("damage", ["cut 1", "cut 100", "cut 5000", "flip last byte", "flip in last frame", "zeros"])
def test_torn_wal_tail(damage: str, left_behind: tuple[Path, Told], tmp_path: Path) -> None:
    """B61: of a torn or changed end of the -wal at worst the last commits are gone, each whole; all else is there."""
    path = copy_of(left_behind[0], tmp_path)
    wal = Path(f"{path}-wal")
    content = bytearray(wal.read_bytes())
    what, _, size = damage.partition(" ")
    if what == "cut":
        del content[-int(size) :]
    elif damage == "flip last byte":
        content[-1] ^= 0xFF
    elif damage == "flip in last frame":
        content[-2000] ^= 0x01
    else:
        content += bytes(9000)
    wal.write_bytes(content)
    number, writes = head_number(path)
    # The last commit were the last writes; 5,000 bytes reach into no more than its frames.
    assert number == LEFT
    assert writes == (WRITES if damage == "zeros" else 0)


def test_wal_cut_anywhere(left_behind: tuple[Path, Told], tmp_path: Path) -> None:
    """B61: a -wal cut at any place gives a sound store with a number of whole commits, the more the longer it is."""
    chance = random.Random(61)
    size = os.stat(f"{left_behind[0]}-wal").st_size
    before = -1
    for keep in sorted(chance.randrange(size // 8, size) for _ in range(12)):
        folder = tmp_path / str(keep)
        folder.mkdir()
        path = copy_of(left_behind[0], folder)
        os.truncate(f"{path}-wal", keep)
        assert_sound(path)
        with AgentSaver(path, create=False) as saver:
            found = list(saver.list(THREAD))
        number = len(found)
        assert [item.checkpoint["channel_values"]["n"] for item in found] == list(range(number, 0, -1))
        for item in found:
            pending = [(channel, value) for _, channel, value in item.pending_writes or []]
            assert pending in ([], writes_of(item.checkpoint["channel_values"]["n"]))
        assert number >= before
        before = number
    assert 0 < before <= LEFT


# A crash inside a node


def test_crash_inside_a_node(form: str, path: Path, tmp_path: Path, open_saver: Callable[..., AgentSaver]) -> None:
    """B62: with durability="sync" the step before a crash is on disk, so its effect happens once."""
    effects = tmp_path / "effects"
    process = CONTEXT.Process(target=crash_in_b, args=(path, effects, form), daemon=True)
    process.start()
    process.join(WATCHDOG_S)
    assert process.exitcode == -signal.SIGKILL
    process.close()
    assert effects.read_text() == "a\n"
    saver = open_saver()
    graph = crash_graph(saver, effects, crash=False)
    assert graph.get_state(THREAD).next == ("b",)
    assert graph.invoke(None, THREAD) == {"log": ["a", "b", "c"]}
    assert effects.read_text() == "a\nb\nc\n"


def test_acknowledged_over_a_pipe(tmp_path: Path) -> None:
    """A plain script, killed while it writes, has printed no number that isn't stored."""
    path = tmp_path / "agent.db"
    script = """
import json, sys
from agent_ckpt import AgentSaver
from tests.kill_workers import write_on
write_on(AgentSaver(sys.argv[1]), lambda *told: print(json.dumps(told), flush=True))
"""
    root = Path(__file__).resolve().parent.parent
    process = subprocess.Popen(
        [sys.executable, "-W", "error", "-c", script, str(path)],
        stdout=subprocess.PIPE,
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root)},
        text=True,
    )
    told = Told()
    assert process.stdout is not None
    with process.stdout:
        for line in process.stdout:
            if not line.endswith("\n"):
                break
            told.hear(*json.loads(line))
            if told.put == 30:
                process.kill()
    assert process.wait(WATCHDOG_S) == -signal.SIGKILL
    check(path, told)
