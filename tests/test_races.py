"""Eight processes restore one thread at the same moment and go on: one wins, and nothing is lost.

AGENT_CKPT_TEST_ROUNDS=N runs N times as many races: of the first test 60 N, so 10,020 with 167, which takes an hour.
"""

from __future__ import annotations

import itertools
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite import SqliteSaver

from agent_ckpt import AgentSaver, ThreadConflictError
from tests.conftest import Api, assert_sound, until
from tests.contests import CONTESTS, assert_linear
from tests.race_workers import (
    Worker,
    all_meet,
    contest,
    count_and_stay,
    count_once,
    count_up,
    counter_graph,
    go_on,
    results,
    rounds,
)

WORKERS = 8
CONFIG = {"configurable": {"thread_id": "t"}}
KINDS = ["new_input", "resume", "new_thread", "nested", "delta"]
PER_THREAD = 20
"""Races for one thread, before they go on with another: what is checked after each is the thread's whole history."""


@pytest.fixture(scope="module")
def pool() -> Iterator[list[Worker]]:
    """Eight worker processes for all races of this module."""
    workers = [Worker() for _ in range(WORKERS)]
    yield workers
    for worker in workers:
        worker.stop()


@pytest.fixture
def spare() -> Iterator[Callable[[], Worker]]:
    """Makes worker processes that a test may kill."""
    made: list[Worker] = []

    def make() -> Worker:
        made.append(Worker())
        return made[-1]

    yield make
    for worker in made:
        worker.stop()


def race(
    pool: list[Worker], saver: BaseCheckpointSaver[Any], path: Path, kind: str, form: str, how: str, number: int
) -> None:
    """Let all workers restore one thread, then go on at once, and check what is left of it.

    Raises:
        AssertionError: unless exactly one was accepted, its move is the thread's newest, everything that was
            accepted before is still there, and the history is one line.
    """
    official = isinstance(saver, SqliteSaver)
    thread_id = f"t{number if kind == 'new_thread' else number // PER_THREAD}"
    config = {"configurable": {"thread_id": thread_id}}
    rules = CONTESTS[kind]
    before = rules.prepare(saver, config, again=number % PER_THREAD > 0)
    first = number * 10
    for who, worker in enumerate(pool):
        worker.ask(contest, path, kind, thread_id, first + who, form, how, official)
    all_meet(pool)
    accepted = [first + who for who, won in enumerate(results(pool)) if won]
    assert len(accepted) == 1, f"{len(accepted)} winners: {accepted}"
    assert rules.state(saver, config) == [*before, *accepted], "an accepted move was lost"
    assert_linear(saver, thread_id)


@pytest.mark.parametrize("how", ["sync", "async", "exit"])
@pytest.mark.parametrize("kind", KINDS)
def test_eight_restores_one_winner(
    kind: str, how: str, form: str, pool: list[Worker], saver: AgentSaver, path: Path
) -> None:
    """B33: of eight processes that restored one thread, exactly one goes on and each other is refused whole."""
    saver.setup()
    began = time.monotonic()
    for number in range(rounds(2)):
        race(pool, saver, path, kind, form, how, number)
    print(f"{rounds(2)} races in {time.monotonic() - began:.1f} s, each with one winner")


@pytest.mark.parametrize("kind", KINDS)
def test_the_checks_see_a_saver_that_loses_updates(kind: str, pool: list[Worker], path: Path) -> None:
    """The same race with the official saver: the checks find that all eight were told "ok"."""
    with SqliteSaver.from_conn_string(str(path)) as saver:
        saver.setup()
        with pytest.raises(AssertionError, match="8 winners"):
            race(pool, saver, path, kind, "sync", "sync", 0)


@pytest.mark.parametrize("how", ["sync", "async", "exit"])
def test_many_threads_at_once(how: str, form: str, pool: list[Worker], saver: AgentSaver, path: Path) -> None:
    """Races for four threads of one file at the same time don't disturb each other."""
    saver.setup()
    rules = CONTESTS["new_input"]
    names = [f"thread {number}" for number in range(4)]
    for name in names:
        rules.prepare(saver, {"configurable": {"thread_id": name}})
    for who, worker in enumerate(pool):
        worker.ask(contest, path, "new_input", names[who % 4], who, form, how, False)
    all_meet(pool)
    won = [who for who, accepted in enumerate(results(pool)) if accepted]
    assert sorted(who % 4 for who in won) == [0, 1, 2, 3]
    for name in names:
        assert_linear(saver, name)


# Two workers on one counter (B33)


def two_threads(savers: list[BaseCheckpointSaver[Any]], form: str) -> int:
    """Two OS threads add 1 each and meet inside the node; how many were refused."""
    meeting = threading.Barrier(2)
    refused: list[BaseException] = []
    failed: list[BaseException] = []

    def work(saver: BaseCheckpointSaver[Any]) -> None:
        graph = counter_graph(saver, lambda: meeting.wait(20) and None)
        try:
            Api(saver, form).invoke(graph, {"n": 0}, CONFIG, durability="exit")
        except ThreadConflictError as exc:
            refused.append(exc)
        except BaseException as exc:
            failed.append(exc)

    workers = [threading.Thread(target=work, args=(saver,)) for saver in savers]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    assert not failed, failed
    return len(refused)


def assert_nothing_lost(saver: BaseCheckpointSaver[Any], refused: int, form: str) -> None:
    """Of two that added 1, each was refused or is counted; the refused one's retry then counts too."""
    graph = counter_graph(saver)
    assert graph.get_state(CONFIG).values["n"] == 2 - refused, "a lost update"
    for _ in range(refused):
        Api(saver, form).invoke(graph, {"n": 0}, CONFIG)
    assert graph.get_state(CONFIG).values["n"] == 2


@pytest.mark.parametrize("shared", [False, True])
def test_two_threads_count(shared: bool, form: str, open_saver: Callable[..., AgentSaver]) -> None:
    """B33: two OS threads meet inside a node; one commits, the other is refused, and after its retry both count."""
    one = open_saver()
    refused = two_threads([one, one if shared else open_saver()], form)
    assert refused == 1
    assert_nothing_lost(one, refused, form)
    assert_linear(one, "t")


def test_two_threads_count_with_a_saver_that_loses(path: Path) -> None:
    """The same with InMemorySaver and with the official SqliteSaver: the check finds the lost update."""
    memory = InMemorySaver()
    with pytest.raises(AssertionError, match="lost update"):
        assert_nothing_lost(memory, two_threads([memory, memory], "sync"), "sync")
    with SqliteSaver.from_conn_string(str(path)) as one, SqliteSaver.from_conn_string(str(path)) as two:
        one.setup()
        with pytest.raises(AssertionError, match="lost update"):
            assert_nothing_lost(one, two_threads([one, two], "sync"), "sync")


def test_two_processes_count(form: str, pool: list[Worker], saver: AgentSaver, path: Path) -> None:
    """B33: two processes meet inside a node; one commits, the other is refused, and after its retry both count."""
    saver.setup()
    pair = pool[:2]
    for worker in pair:
        worker.ask(count_once, path, form, "exit")
    all_meet(pair)
    assert sorted(results(pair)) == [False, True]
    assert_nothing_lost(saver, 1, form)
    assert_linear(saver, "t")


@pytest.mark.parametrize("how", ["sync", "exit"])
def test_retry_makes_progress(how: str, form: str, pool: list[Worker], saver: AgentSaver, path: Path) -> None:
    """B34: 8 processes add 1 ten times each with reload, jitter and retry; all 80 are there, in bounded tries."""
    saver.setup()
    started = time.monotonic()
    for seed, worker in enumerate(pool):
        worker.ask(count_up, path, 10, form, how, seed)
    all_meet(pool)
    tries = list(itertools.chain.from_iterable(results(pool)))
    took = time.monotonic() - started
    assert len(tries) == 80
    assert counter_graph(saver).get_state(CONFIG).values["n"] == 80
    assert max(tries) < 200, tries
    assert_linear(saver, "t")
    print(f"80 increments in {took:.1f} s, {sum(tries)} tries, at most {max(tries)} for one")


# The winner dies


@pytest.mark.parametrize("how", ["sync", "async"])
@pytest.mark.parametrize("next_one", ["goes on", "asks anew"])
def test_killed_winner_is_replaced_at_once(
    next_one: str, how: str, form: str, pool: list[Worker], spare: Callable[[], Worker], saver: AgentSaver, path: Path
) -> None:
    """kill -9 of the run that owns a thread, in the middle of its node: the next restore takes over at once."""
    saver.setup()
    for killed in range(1, rounds(2) + 1):
        winner = spare()
        winner.ask(count_and_stay, path, form, how)
        assert winner.answer() == ("met", None)
        # With "async" its first checkpoint is put beside the node.
        until(lambda: counter_graph(saver).get_state(CONFIG).next == ("count",))
        late = saver.get_tuple(CONFIG)
        winner.kill()
        pool[0].ask(go_on, path, None if next_one == "goes on" else {"n": 0}, form)
        assert pool[0].result() == killed
        assert late is not None
        with pytest.raises(ThreadConflictError):
            saver.put_writes(late.config, [("n", 5)], "task")
        assert_linear(saver, "t")


def test_frozen_winner_is_refused_when_it_wakes(spare: Callable[[], Worker], saver: AgentSaver, path: Path) -> None:
    """A run that was restored before another finished the thread is refused when it goes on, in its own process."""
    saver.setup()
    sleeper = spare()
    sleeper.ask(count_once, path, "sync", "exit")
    assert sleeper.answer() == ("met", None)
    counter_graph(saver).invoke({"n": 0}, CONFIG)
    sleeper.connection.send(None)
    assert sleeper.result() is False
    assert counter_graph(saver).get_state(CONFIG).values["n"] == 1


def test_sound_means_something(path: Path) -> None:
    """The check that every store of these tests ends with finds a missing row."""
    with AgentSaver(path) as saver:
        counter_graph(saver).invoke({"n": 0}, CONFIG)
    assert_sound(path)
    with closing(sqlite3.connect(path)) as connection, connection:
        assert connection.execute("DELETE FROM checkpoints WHERE seq = (SELECT min(seq) FROM checkpoints)").rowcount
        assert connection.execute("DELETE FROM spaces").rowcount
    with pytest.raises(AssertionError):
        assert_sound(path)
