"""The budgets that hold at any size and on any machine: bytes, growth and counted statements, never times."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bench import calls, size
from tests.bench.agents import build, config, take_turns, text_bytes, turn_messages
from tests.bench.heads import Run
from tests.bench.report import bytes_on_disk, exponent
from tests.bench.savers import NULL, OFFICIAL, OURS

TURNS = 60
# 1.6 MB for the 0.54 MB of text of 300 turns.
BYTES_PER_TEXT = 1.6 / 0.54


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path, [OURS])


def test_a_thread_takes_at_most_three_bytes_per_byte_of_text_and_grows_linearly(run: Run) -> None:
    """The budget of 1.6 MB for 300 turns holds per byte of text, and later turns cost what earlier ones did."""
    sizes, text = size.growth(run, OURS, [TURNS // 3, TURNS * 2 // 3, TURNS])
    # A new file's empty pages count for much in a short thread, so only what the later turns add is compared.
    first, second = (sizes[i + 1][1] - sizes[i][1] for i in range(2))
    assert first + second <= BYTES_PER_TEXT * text * 2 / 3, sizes
    assert second <= 1.1 * first, sizes


def test_the_bytes_follow_the_text_and_the_official_savers_the_square(run: Run) -> None:
    """The file's growth exponent is at most 1.1, and the same measure finds the official saver's growth."""
    lengths = [10, 20, 40]
    ours, _ = size.growth(run, OURS, lengths)
    official, _ = size.growth(run, OFFICIAL, lengths)
    assert exponent(ours) <= 1.1
    assert exponent(official) >= 1.5
    assert ours[-1][1] * 20 <= official[-1][1]


def test_a_constant_mebibyte_is_stored_once(run: Run) -> None:
    """A constant 1 MiB channel over 100 steps takes less than 2 MiB in all."""
    _, after = size.stepped(run, OURS, size.CONSTANT, 100)
    assert after < 2 * size.MIB


@pytest.mark.parametrize(
    "case", [each for each in size.CASES if each is not size.CONSTANT], ids=lambda case: case.title
)
def test_the_bytes_of_a_step_follow_the_change(run: Run, case: size.Case) -> None:
    """A small change of a large state costs at most its limit of bytes a step."""
    steps = 20
    before, after = size.stepped(run, OURS, case, steps)
    assert (after - before) // steps <= case.limit


def test_statements_of_a_call_do_not_depend_on_the_length_of_the_thread(run: Run) -> None:
    """A put takes 8 statements and one for each new item or group of items at most; a restore and a page always the
    same number. Where a group of a list ends is drawn with the thread's secret, hence the room for them."""
    with OURS.open(run.path("calls")) as saver:
        found = {length: calls.counts(saver, length) for length in (10, 100, 400)}
    for each in found.values():
        for new in calls.ADDED:
            assert each[f"put {new}"] <= 8 + new + 2 + new // 8, found
    assert len({each["get_tuple"] for each in found.values()}) == 1, found
    assert len({each["list page"] for each in found.values()}) == 1, found


def test_the_benchmarks_messages_are_the_same_for_every_saver(run: Run) -> None:
    """The benchmark gives each saver the same messages, of the size that its tables name."""
    stored = []
    for contender in (NULL, OURS):
        with contender.open(run.path(contender.name)) as saver:
            graph = build(saver)
            take_turns(graph, "t", 0, 3)
            stored.append(graph.get_state(config("t")).values["messages"])
    seeded = [m for turn in range(3) for m in turn_messages("bench", turn, turn * 4)]
    for messages in stored:
        # The id of a tool's message is LangGraph's own, made up at random.
        assert [m.model_dump(exclude={"id"}) for m in messages] == [m.model_dump(exclude={"id"}) for m in seeded]
    assert text_bytes(stored[0]) == text_bytes(stored[1])
    assert 4 * 3 * 400 <= text_bytes(stored[0]) <= 4 * 3 * 500


def test_bytes_on_disk_counts_the_files_beside_the_database(tmp_path: Path) -> None:
    """The benchmark's size of a store includes its WAL and no other store."""
    for name, length in (("a.db", 5), ("a.db-wal", 7), ("b.db", 11)):
        (tmp_path / name).write_bytes(bytes(length))
    assert bytes_on_disk(tmp_path / "a.db") == 12
