"""Every example runs as a user runs it: as a program of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"
LIMIT_S = 60.0


def run_example(name: str, cwd: Path, *args: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(filter(None, [str(EXAMPLES.parent), os.environ.get("PYTHONPATH")]))
    return subprocess.run(
        [sys.executable, str(EXAMPLES / name), *args],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=2 * LIMIT_S,
    )


def test_survive_restart(tmp_path: Path) -> None:
    """The kill, the resume without a second run of the finished tool, and the race come out as the example says."""
    done = run_example("survive_restart.py", tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "FAIL" not in done.stdout
    for line in (
        r"^2\. Worker \d+ was killed \(SIGKILL\) in the middle of book_hotel",
        r"ok   the finished tool did not run again: one line 'flight booked'",
        r"ok   the interrupted tool ran to its end: one line 'hotel booked'",
        r"ok   exactly one of them got through",
        r"loser:  (anna|ben), ThreadConflictError: ",
        r"ok   the stored state holds (anna|ben)'s answer alone",
        r"^All checks passed in \d+\.\d s\.$",
    ):
        assert re.search(line, done.stdout, re.MULTILINE), f"{line!r} not in:\n{done.stdout}"
    pids = re.findall(r"Worker (\d+) (?:starts|knows|brings)", done.stdout)
    assert len(set(pids)) == 3, "each step runs in a process of its own"
    assert list(tmp_path.iterdir()) == [], "the example leaves nothing behind in the working folder"


def test_credentials(tmp_path: Path) -> None:
    """The tool's refresh, the race of two workers, the audit and the search of the raw files come out as it says."""
    done = run_example("credentials.py", tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "FAIL" not in done.stdout
    for line in (
        r"You ordered a kettle, two cups\.",
        r"ok   the tool refreshed the token",
        r"what print shows: Credential\(name='orders-api', revision=\d+, expires_at=\S+, value=\*\*\*\)",
        r"^   anna: .*, 2 orders$",
        r"^   ben: .*, 2 orders$",
        r"ok   one of them refreshed the token",
        r"ok   the thread's own revision did not move",
        r"get  revision \d+ by node tools, run first, process \d+ on ",
        r"ok   with the saver open: none of \d+ secrets in \d+ files",
        r"^All checks passed\.$",
    ):
        assert re.search(line, done.stdout, re.MULTILINE), f"{line!r} not in:\n{done.stdout}"
    assert list(tmp_path.iterdir()) == [], "the example leaves nothing behind in the working folder"


def test_stateless_worker(tmp_path: Path) -> None:
    """A worker that is killed in the middle of a thread leaves it to the other one, which knows only its id."""
    done = run_example("stateless_worker.py", tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "FAIL" not in done.stdout
    for line in (
        r"^2\. Worker \d+ was killed \(SIGKILL\) in `charge`",
        r"worker \d+ takes order-\d after check, reserve$",
        r"ok   each step was done once",
        r"ok   order-\d was begun by one and finished by the other",
        r"^All checks passed\.$",
    ):
        assert re.search(line, done.stdout, re.MULTILINE), f"{line!r} not in:\n{done.stdout}"
    assert list(tmp_path.iterdir()) == [], "the example leaves nothing behind in the working folder"


@pytest.mark.parametrize("name", sorted(path.name for path in EXAMPLES.glob("*.py")))
def test_every_example_is_covered(name: str) -> None:
    """Each example is named by a test."""
    tested = "".join(path.read_text() for path in Path(__file__).parent.glob("test_example*.py"))
    assert name.removesuffix(".py") in tested


def test_double_text(tmp_path: Path) -> None:
    """B36: the second Send loses a turn on the official savers; here it is told, and the first one's result stays."""
    done = run_example("double_text.py", tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    for question, *answers in (
        ("second", "answered", "answered", "refused (busy), model asked 0 times"),
        ("the charge is in the thread", "yes", "yes", "yes"),
        ("the second message", "LOST, though it was answered", "LOST, though it was answered", "told"),
        ("tool calls without result", "0", "0", "0"),
    ):
        block = re.search(rf"^{question}:\n((?:    .*\n)+)", done.stdout, re.MULTILINE)
        assert block is not None, done.stdout
        told = [line.split(maxsplit=1)[1] for line in block[1].splitlines()]
        assert told == answers
