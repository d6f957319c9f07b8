"""The process whose writes and syncs are logged; a mark follows each call that has returned."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

from agent_ckpt import AgentSaver
from tests.faults import Faults
from tests.kill_workers import write_on


def mark_of(what: str, number: int) -> int:
    """The mark for a call that returned."""
    return number * 2 + (what == "writes")


def main(path: Path, log: Path, synchronous: str, stop_at: int) -> None:
    """Put half of the checkpoints, close, open again and put the other half."""
    warnings.simplefilter("error")
    faults = Faults()
    faults.log(log)
    faults.watch(path)
    for stop in (stop_at // 2, stop_at):
        with AgentSaver(path, synchronous=synchronous) as saver:
            write_on(saver, lambda what, number: faults.mark(mark_of(what, number)), stop)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], int(sys.argv[4]))
