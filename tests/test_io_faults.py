"""Each I/O call of a workload fails in turn: nothing acknowledged is lost, nothing hangs, every error says what failed.

The calls are made to fail in a process of their own by a preloaded library. CI takes a sample, with its seed printed;
AGENT_CKPT_TEST_IO_FAULTS=all takes every call (some 20,000 runs, which take hours).
"""

from __future__ import annotations

import itertools
import json
import os
import random
import selectors
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.faults import KINDS, ROOT, build, environment, in_memory
from tests.faults.judge import Outcome, judge

ALL = os.environ.get("AGENT_CKPT_TEST_IO_FAULTS", "") == "all"
SAMPLE = int(os.environ.get("AGENT_CKPT_TEST_IO_FAULTS", "2") if not ALL else 0)
"""Runs of each kind of failure, form and durability that CI makes."""
WATCHDOG_S = 120.0
EXPECTED = ("UnavailableError", "DiskFullError", "ReadOnlyError", "BusyError", "PoisonedError")
OPERATIONS = (
    "a write",
    "a read",
    "opening",
    "COMMIT",
    "can't make",
    "can't open",
    "can't lock",
    "can't look",
    "can't be read",
)


class Faulty:
    """The worker process, seen from the test; another one is started where it has died."""

    def __init__(self, library: Path, errors: Path) -> None:
        self.library, self.errors = library, errors
        self._file = errors.open("w")
        self.process = self._start()

    def _start(self) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-W", "error", "-m", "tests.faults.io_worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._file,
            text=True,
            cwd=ROOT,
            env=environment(self.library),
        )

    def begin(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Ask for a run of the workload."""
        if self.process.poll() is not None:
            self.stop()
            self._file = self.errors.open("a")
            self.process = self._start()
        return self.ask(json.dumps(asked))

    def ask(self, line: str) -> dict[str, Any]:
        """Send a line and wait for the answer.

        Raises:
            AssertionError: when the worker hangs or died.
        """
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        with selectors.DefaultSelector() as waiting:
            waiting.register(self.process.stdout, selectors.EVENT_READ)
            assert waiting.select(WATCHDOG_S), f"it hangs: {self.errors.read_text()[-3000:]}"
        answer = self.process.stdout.readline()
        assert answer, f"it died: {self.errors.read_text()[-5000:]}"
        return json.loads(answer)  # type: ignore[no-any-return]

    def stop(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        try:
            self.process.stdin.close()
            self.process.wait(10)
        except (subprocess.TimeoutExpired, BrokenPipeError):
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()
        self._file.close()


@pytest.fixture
def folder() -> Iterator[Path]:
    """Where the stores go."""
    made = in_memory()
    yield made
    shutil.rmtree(made)


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Faulty]:
    """One process for all runs; at its end it has complained of nothing."""
    made = tmp_path_factory.mktemp("faulty")
    worker = Faulty(build(made), made / "stderr")
    yield worker
    worker.stop()
    said = worker.errors.read_text()
    assert not [line for line in said.splitlines() if "Error" in line or "Warning" in line], said[-3000:]


class Runs:
    """Runs of the workload, each on a fresh store, with checks after each."""

    def __init__(self, worker: Faulty, folder: Path) -> None:
        self.worker, self.folder = worker, folder
        self.numbers = itertools.count()
        self.struck: Counter[str] = Counter()
        self.raised: Counter[str] = Counter()

    def __call__(self, at: int, kind: str, sticky: bool, form: str, synchronous: str) -> int:
        """Fail the `at`-th call; how many calls there were.

        Raises:
            AssertionError: for what was lost or half there, or an error that doesn't say what failed.
        """
        folder = self.folder / str(next(self.numbers))
        image = folder / "image"
        image.mkdir(parents=True)
        path = folder / "agent.db"
        asked = {"path": str(path), "at": at, "kind": kind, "sticky": sticky, "form": form, "synchronous": synchronous}
        told = self.worker.begin(asked)
        # As a kill at this moment would leave it; this process has no locks to lose by a copy.
        for suffix in ("", "-wal"):
            if os.path.exists(f"{path}{suffix}"):
                shutil.copy(f"{path}{suffix}", image / f"agent.db{suffix}")
        after = self.worker.ask("go on")
        self.struck[told["what"]] += 1
        try:
            self.check_errors(told["errors"], str(path), sticky or "read" in told["what"])
            judge(image / "agent.db", map(as_outcome, told["outcomes"]))
            assert not after["errors"], f"once the cause was gone: {after['errors']}"
            judge(path, map(as_outcome, after["outcomes"]))
        except AssertionError as exc:
            raise AssertionError(f"{exc}; call {at} ({told['what']}), {asked}, {told['errors']}") from exc
        shutil.rmtree(folder)
        return int(told["count"])

    def check_errors(self, errors: list[tuple[str, str, str, bool]], path: str, reading: bool) -> None:
        """Each error is of ours and names the file and what was done to it."""
        for what, kind, message, typed in errors:
            assert typed, f"{what} raised {kind}: {message}"
            # SQLite itself calls a page that the disk can't read damaged; ours says so.
            unread = kind == "CorruptionError" and reading and "disk" in message
            assert unread or kind in EXPECTED, f"{what} raised {kind}: {message}"
            assert path in message, f"{what} raised {kind} without the file's name: {message}"
            assert any(each in message for each in OPERATIONS), f"{what} raised {kind}: {message}"
            self.raised[kind] += 1


def as_outcome(told: Any) -> Outcome:
    what, thread, number, ended = told
    return what, thread, number, ended


@pytest.mark.parametrize("synchronous", ["full", "normal"])
@pytest.mark.parametrize("sticky", [False, True], ids=["once", "sticky"])
@pytest.mark.parametrize("kind", KINDS)
def test_every_call_fails_in_turn(
    kind: str, sticky: bool, synchronous: str, form: str, faulty: Faulty, folder: Path
) -> None:
    """B40, B63: whichever I/O call fails, acknowledged writes are kept, also if the process is killed then; refused
    ones are not there; every error is typed and names file and operation; the same saver's next put works."""
    runs = Runs(faulty, folder)
    calls = runs(0, kind, False, form, synchronous)
    assert calls > 20, "the library sees nothing, so this proves nothing"
    assert not runs.raised
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    # The last call of all may not come at all where an earlier failure spares it.
    chosen = range(1, calls + 1) if ALL else sorted(random.Random(seed).sample(range(1, calls + 1), min(calls, SAMPLE)))
    failures: list[str] = []
    for at in chosen:
        try:
            runs(at, kind, sticky, form, synchronous)
        except AssertionError as exc:
            failures.append(f"{exc}"[:2000])
            print(failures[-1], flush=True)
            if len(failures) > 20:
                break
    print(f"{len(chosen)} of {calls} calls failed: {dict(runs.raised)}; {dict(runs.struck)}")
    assert not failures, "\n".join(failures)


def test_the_judge_sees_what_is_wrong(faulty: Faulty, folder: Path) -> None:
    """The same checks refuse a store that lacks an acknowledged put, holds a refused one, or half of its writes."""
    path = folder / "agent.db"
    asked = {"path": str(path), "at": 0, "kind": "EIO", "sticky": False, "form": "sync", "synchronous": "full"}
    faulty.begin(asked)
    after = faulty.ask("go on")
    outcomes = [as_outcome(each) for each in after["outcomes"]]
    judge(path, outcomes)
    wrong: list[tuple[str, Callable[[Outcome], Outcome]]] = [
        ("nobody put", lambda each: ("prune", *each[1:]) if each[:3] == ("put", "t", 6) else each),
        ("though refused", lambda each: (*each[:3], "refused")),
    ]
    for said, change in wrong:
        with pytest.raises(AssertionError, match=said):
            judge(path, map(change, outcomes))
    with pytest.raises(AssertionError, match="put 8 of t was acknowledged and is lost"):
        judge(path, [*outcomes, ("put", "t", 8, "done")])
    with pytest.raises(AssertionError, match="writes of 5 of t were acknowledged and are lost"):
        judge(path, [*outcomes, ("writes", "t", 5, "done")])
