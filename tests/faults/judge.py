"""What a store has to hold after a workload whose calls were answered in a certain way."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from agent_ckpt import AgentSaver
from tests.faults.io_worker import at, text_of, writes_of

Outcome = tuple[str, str, int, str]


class Expected:
    """What must be and what may be in the store.

    Attributes:
        puts: of each checkpoint that was tried, by thread and number, whether it must be there (True), must not
            (False), or may (None).
        writes: the same for its writes.
    """

    def __init__(self, outcomes: Iterable[Outcome]) -> None:
        self.puts: dict[tuple[str, int], bool | None] = {}
        self.writes: dict[tuple[str, int], bool | None] = {}
        for what, thread, number, ended in outcomes:
            stands = {"done": True, "refused": False, "unknown": None}[ended]
            if what == "put":
                self.puts[thread, number] = stands
            elif what == "writes":
                self.writes[thread, number] = stands
            elif what == "prune" and stands is not False:
                self._prune(thread, sure=stands is True)

    def _prune(self, thread: str, sure: bool) -> None:
        numbers = sorted(number for name, number in self.puts if name == thread)
        heads = [number for number in numbers if self.puts[thread, number]]
        head = heads[-1] if heads else 0
        for number in numbers:
            key = thread, number
            if number < head:
                self.puts[key] = False if sure or self.puts[key] is False else None
            elif number == head and any(self.puts[thread, later] is None for later in numbers if later > head):
                self.puts[key] = None
            if self.puts[key] is not True:
                self.writes[key] = None


def judge(path: Path, outcomes: Iterable[Outcome]) -> None:
    """Check a store that no other process has open.

    Raises:
        AssertionError: for what was acknowledged and is lost, was refused and is there, or is half there.
    """
    expected = Expected(outcomes)
    if not path.exists():
        assert True not in expected.puts.values(), "acknowledged, and there is no file"
        return
    with AgentSaver(path) as saver:
        report = saver.verify()
        assert not report.findings, report.findings
        for thread in {thread for thread, _ in expected.puts}:
            found = {item.checkpoint["channel_values"]["n"]: item for item in saver.list(at(thread))}
            tried = {number: stands for (name, number), stands in expected.puts.items() if name == thread}
            assert set(found) <= set(tried), f"{thread}: nobody put {set(found) - set(tried)}"
            for number, stands in tried.items():
                assert stands is not True or number in found, f"put {number} of {thread} was acknowledged and is lost"
                assert stands is not False or number not in found, f"put {number} of {thread} is there, though refused"
            for number, item in found.items():
                assert item.checkpoint["channel_values"]["text"] == text_of(number), f"put {number} is not what was put"
                pending = [(channel, value) for _, channel, value in item.pending_writes or []]
                stands = expected.writes.get((thread, number), False)
                assert pending in ([], writes_of(number)), f"half the writes of {number} of {thread}"
                assert stands is not True or pending, f"writes of {number} of {thread} were acknowledged and are lost"
                assert stands is not False or not pending, f"writes of {number} of {thread} are there, though refused"
