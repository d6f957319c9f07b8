"""Leases and turns: one writer at a time, across processes, in turn."""

from __future__ import annotations

import asyncio
import os
import pickle
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import HumanMessage

from agent_ckpt import AgentSaver, LeaseInfo, ThreadConflictError, UsageError, runs
from tests.conftest import until
from tests.flight_workers import (
    CONFIG,
    assistant,
    contend,
    hold_lease,
    intrude,
    look_and_stay,
    queue_for_turn,
    refused,
    say,
    turn_and_stay,
    update,
)
from tests.race_workers import WATCHDOG_S, Worker, all_meet, results, rounds
from tests.test_flight import FIRST, Run

STRATEGIES = ["reject", "enqueue", "interrupt", "rollback"]


@pytest.fixture
def workers() -> Iterator[Callable[[int], list[Worker]]]:
    """Makes processes, and stops them at the end."""
    made: list[Worker] = []

    def make(count: int) -> list[Worker]:
        fresh = [Worker() for _ in range(count)]
        made.extend(fresh)
        return fresh

    yield make
    for worker in made:
        worker.stop()


def elsewhere(action: Callable[[], Any]) -> Any:
    """What an action gives on another OS thread, with a context of its own."""
    found: list[Any] = []
    worker = threading.Thread(target=lambda: found.append(action()), daemon=True)
    worker.start()
    worker.join(WATCHDOG_S)
    assert found, "hangs or failed"
    return found[0]


def enter(lease: Any, form: str, body: Callable[[Any], Any]) -> Any:
    """Call `body` inside the block of a lease or turn, sync or async."""
    if form == "sync":
        with lease as held:
            return body(held)

    async def inside() -> Any:
        async with lease as held:
            return body(held)

    return asyncio.run(inside())


def test_a_lease_keeps_others_out(saver: AgentSaver, path: Path, workers: Any, form: str) -> None:
    """While a lease is held its holder writes, and others, in this process and another, get a typed error that names
    holder, expiry and fence before their model is asked; afterwards all is as before."""
    (worker,) = workers(1)

    def body(lease: Any) -> None:
        graph, _ = assistant(saver)
        assert say(graph, "mine", "sync") == ["mine", "answer to mine"]
        (held,) = saver.leases()
        assert isinstance(held, LeaseInfo)
        assert (held.thread_id, held.fence) == ("t", lease.fence)
        told = elsewhere(lambda: refused(lambda: say(graph, "other", "sync")))
        assert (told["reason"], told["holder"], told["fence"]) == ("leased", held.holder, lease.fence)
        assert told["expires_at"] == pytest.approx(time.time() + 30, abs=29)
        assert elsewhere(lambda: refused(lambda: update(graph)))["reason"] == "leased"
        for kind in ("message", "update_state"):
            worker.ask(intrude, path, kind, "sync", "sync", {})
            fields, calls = worker.result()
            assert (fields["reason"], calls) == ("leased", 0)
        # Work that runs in another context takes the lease along by its config.
        assert elsewhere(lambda: say(graph, "mine too", "sync", config=lease.config))[-1] == "answer to mine too"

    enter(saver.lease("t"), form, body)
    assert not saver.leases()
    assert elsewhere(lambda: refused(lambda: say(assistant(saver)[0], "other", "sync"))) is None


def test_a_thread_that_is_not_stored_can_be_leased(saver: AgentSaver) -> None:
    """A lease of a thread that has nothing yet keeps others from making it."""
    with saver.lease(CONFIG):
        assert elsewhere(lambda: refused(lambda: say(assistant(saver)[0], "x", "sync")))["reason"] == "leased"
    assert not saver.exists("t")


def test_fences_rise(saver: AgentSaver, form: str) -> None:
    """Each lease of the store has a larger number than every one before it, of whichever thread."""
    fences = [enter(saver.lease(name), form, lambda lease: lease.fence) for name in "abaab"]
    assert fences == sorted(set(fences))


def test_a_lease_waits_for_a_run_in_flight(saver: AgentSaver) -> None:
    """A lease doesn't destroy a run that is going: refused with timeout=0, and had once the run has ended."""
    run = Run(saver, "sync", "sync")
    told = refused(lambda: saver.lease("t").__enter__())
    assert told is not None
    assert told["reason"] == "busy"
    threading.Timer(0.3, run.finish).start()
    with saver.lease("t", timeout=WATCHDOG_S):
        assert say(assistant(saver)[0], "next", "sync") == [*FIRST, "next", "answer to next"]


def test_a_killed_holder_is_followed_at_once(saver: AgentSaver, path: Path, workers: Any) -> None:
    """A lease ends with its process: the next one has it long before the time to live is over."""
    (worker,) = workers(1)
    worker.ask(hold_lease, path, 600.0)
    assert worker.answer() == ("met", None)
    assert refused(lambda: saver.lease("t").__enter__()) is not None
    worker.kill()
    with saver.lease("t", timeout=WATCHDOG_S):
        assert len(saver.leases()) == 1


def test_a_frozen_holder_is_followed_after_its_time(saver: AgentSaver, path: Path, workers: Any) -> None:
    """A holder that is frozen keeps the lease for its time to live; when it wakes up its write is refused."""
    (worker,) = workers(1)
    worker.ask(hold_lease, path, 1.0)
    assert worker.answer() == ("met", None)
    os.kill(worker.process.pid, signal.SIGSTOP)
    try:
        with saver.lease("t", timeout=WATCHDOG_S) as lease:
            assert say(assistant(saver)[0], "successor", "sync")[-1] == "answer to successor"
    finally:
        os.kill(worker.process.pid, signal.SIGCONT)
    worker.connection.send(None)
    fence, told = worker.result()
    assert fence < lease.fence  # type: ignore[operator]
    assert told["reason"] == "lease_lost"


def test_a_lease_is_renewed_while_held(saver: AgentSaver) -> None:
    """A lease whose block takes longer than its time to live is still held."""
    with saver.lease("t", ttl=3.0) as lease:
        first = lease.expires_at
        until(lambda: lease.expires_at > first)
        time.sleep(max(0.0, first - time.time()) + 0.1)
        assert len(saver.leases()) == 1
        assert refused(lambda: say(assistant(saver)[0], "late", "sync")) is None


def test_breaking_a_lease(saver: AgentSaver, form: str) -> None:
    """break_lease ends a lease, whoever holds it: others can write, and the holder is refused as late."""
    graph, _ = assistant(saver)

    def body(lease: Any) -> None:
        if form == "sync":
            assert saver.break_lease("t") is True
        else:
            assert elsewhere(lambda: asyncio.run(saver.abreak_lease("t"))) is True
        assert elsewhere(lambda: refused(lambda: say(graph, "other", "sync"))) is None
        told = refused(lambda: say(graph, "late", "sync"))
        assert told is not None
        assert told["reason"] == "lease_lost"
        assert (lease.renew() if form == "sync" else elsewhere(lambda: asyncio.run(lease.arenew()))) is False

    enter(saver.lease("t"), form, body)
    assert saver.break_lease("t") is False


@pytest.mark.parametrize(
    "bad",
    [
        {"ttl": 0}, {"ttl": True}, {"ttl": "1"}, {"ttl": 1e12}, {"ttl": float("inf")}, {"ttl": 10**400},
        {"timeout": -1}, {"timeout": "1"}, {"timeout": float("nan")},
    ],
)  # fmt: skip
def test_bad_arguments(saver: AgentSaver, bad: dict[str, Any]) -> None:
    """A time to live or timeout that can't be right is refused when the lease is asked for."""
    with pytest.raises(UsageError, match="seconds"):
        saver.lease("t", **bad)
    with pytest.raises(UsageError, match="multitask_strategy"):
        saver.turn(CONFIG, "merge")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="config"):
        saver.turn("t")  # type: ignore[arg-type]


def test_contended_leases_have_one_holder_each(saver: AgentSaver, path: Path, workers: Any) -> None:
    """Many processes take one lease in turn, and holders are frozen for longer than it lasts: what each wrote under
    its lease is one chain by fence, so no two of them held it at once. AGENT_CKPT_TEST_ROUNDS=21 are 1,008 leases."""
    each, ttl, frozen = rounds(12), 0.2, 0
    contenders = workers(4)
    pids = {worker.process.pid for worker in contenders}
    for worker in contenders:
        worker.ask(contend, path, each, ttl)
    all_meet(contenders)
    while frozen < rounds(4) and not any(worker.connection.poll() for worker in contenders):
        holder = next((int(re.search(r"process (\d+)", held.holder).group(1)) for held in saver.leases()), None)  # type: ignore[union-attr]
        if holder in pids:
            # Mostly it still holds the lease, in the midst of a write or before one.
            os.kill(holder, signal.SIGSTOP)
            time.sleep(2 * ttl)
            os.kill(holder, signal.SIGCONT)
            frozen += 1
            time.sleep(ttl)
    written = sorted(entry for seen in results(contenders, WATCHDOG_S + 2 * each) for entry in seen)
    assert [(before, after) for _, before, after in written] == [(n, n + 1) for n in range(len(written))]
    head = saver.get_tuple({"configurable": {"thread_id": "counter", "checkpoint_ns": ""}})
    assert head is not None
    assert head.checkpoint["channel_values"]["n"] == len(written) >= each
    print(f"{4 * each} leases, {frozen} holders frozen, {4 * each - len(written)} lost theirs before they had written")


def test_a_lease_keeps_its_history(saver: AgentSaver) -> None:
    """B62: prune, delete_for_runs and a copy onto a leased thread by another are refused with nothing done to it, other
    threads are pruned all the same, and the holder may."""
    graph, _ = assistant(saver)
    run_id = "5b1f2a6e-0d6f-4c8e-9a51-5d9d2f7f1a11"
    for thread_id in ("t", "free"):
        config = {"configurable": {"thread_id": thread_id}, "metadata": {"run_id": run_id}}
        graph.invoke({"messages": [("user", "zero")]}, config)

    def size(thread_id: str) -> int:
        return len(list(saver.list({"configurable": {"thread_id": thread_id}})))

    before = size("t")
    with saver.lease("t"), saver.lease("new"):
        for action in (
            lambda: saver.prune(["t", "free"]),
            lambda: saver.delete_for_runs([run_id]),
            lambda: saver.copy_thread("free", "new"),
        ):
            told = elsewhere(lambda action=action: refused(action))  # type: ignore[misc]
            assert told["reason"] == "leased"
        assert (size("t"), size("free"), saver.exists("new")) == (before, 1, False)
        saver.copy_thread("free", "new")
        saver.prune(["t"])
    assert (size("t"), size("new")) == (1, 1)


def test_a_lease_in_a_thread_pool(saver: AgentSaver, form: str) -> None:
    """lease.config carries the lease to another OS thread, for runs and for update_state, and only there."""
    graph, _ = assistant(saver)
    say(graph, "zero", "sync")

    def body(lease: Any) -> None:
        assert elsewhere(lambda: refused(lambda: say(graph, "one", form, config=lease.config))) is None
        note = {"messages": [HumanMessage("note")]}
        assert elsewhere(lambda: refused(lambda: graph.update_state(lease.config, note, as_node="tools"))) is None
        assert elsewhere(lambda: refused(lambda: update(graph)))["reason"] == "leased"
        state = graph.get_state(lease.config)
        assert elsewhere(lambda: refused(lambda: graph.update_state(state.config, note, as_node="tools"))) is None
        assert type(str(lease.config["configurable"]["thread_id"])) is str
        copied = pickle.loads(pickle.dumps(lease.config))
        assert copied == {"configurable": {"thread_id": "t"}}
        assert type(copied["configurable"]["thread_id"]) is str

    enter(saver.lease("t"), form, body)


def test_a_leased_thread_is_not_deleted(saver: AgentSaver, form: str) -> None:
    """delete_thread by another is refused while a lease is held; the holder may."""
    say(assistant(saver)[0], "zero", "sync")

    def delete() -> Any:
        return saver.delete_thread("t") if form == "sync" else asyncio.run(saver.adelete_thread("t"))

    with saver.lease("t"):
        told = elsewhere(lambda: refused(delete))
        assert told["reason"] == "leased"
        assert saver.exists("t")
        if form == "sync":
            delete()
            assert not saver.exists("t")


def test_asking_for_what_one_holds(saver: AgentSaver) -> None:
    """Who is in a turn or holds a lease, and asks for it again, also in a node, is told so in place of waiting."""
    told: list[str] = []

    def inside() -> None:
        with pytest.raises(UsageError, match="already") as caught:
            saver.turn(CONFIG, "enqueue").__enter__()
        told.append(str(caught.value))

    with saver.turn(CONFIG) as config:
        inside()
        assert say(assistant(saver, inside)[0], "look first", "sync", config=config) == FIRST
    assert len(told) == 2


def test_a_cancelled_caller_keeps_no_lease(saver: AgentSaver) -> None:
    """A lease whose caller is cancelled while it takes it, or by a scope that cancels every await in its block, is
    given back: nobody waits for its time to live."""
    import anyio

    async def take(number: int) -> None:
        async with saver.lease("t", ttl=600.0, timeout=WATCHDOG_S):
            await asyncio.sleep(0.001)

    async def main() -> None:
        for number in range(40):
            task = asyncio.create_task(take(number))
            await asyncio.sleep(0.0005 * (number % 10))
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        for _ in range(5):
            with anyio.CancelScope() as scope:
                async with saver.lease("t", ttl=600.0, timeout=WATCHDOG_S):
                    scope.cancel()
                    await asyncio.sleep(1)
        async with saver.lease("t", timeout=WATCHDOG_S):
            pass

    asyncio.run(main())
    assert not saver.leases()


def test_a_closed_saver_in_a_lease(open_saver: Callable[..., AgentSaver]) -> None:
    """Closing the saver inside the block doesn't hide what the block raises."""
    saver = open_saver()
    with pytest.raises(KeyError, match="mine"), saver.lease("t"):
        saver.close()
        raise KeyError("mine")


def test_a_rollback_to_what_was_pruned(saver: AgentSaver) -> None:
    """A rollback of a run whose beginning was pruned is refused, and nothing of the conversation is deleted."""
    say(assistant(saver)[0], "zero", "sync")
    run = Run(saver, "sync", "sync")
    saver.prune(["t"])
    told = elsewhere(lambda: refused(lambda: saver.turn(CONFIG, "rollback").__enter__()))
    assert told["reason"] == "deleted"
    assert not saver.leases()
    assert run.finish() == ["zero", "answer to zero", *FIRST]


# Turns


def second_turn(saver: AgentSaver, strategy: str, form: str) -> Callable[[], Any]:
    graph, _ = assistant(saver)

    def turn() -> Any:
        try:
            if form == "sync":
                with saver.turn(CONFIG, strategy, timeout=WATCHDOG_S) as config:  # type: ignore[arg-type]
                    return say(graph, "second", "sync", config=config)

            async def inside() -> list[str]:
                async with saver.turn(CONFIG, strategy, timeout=WATCHDOG_S) as config:  # type: ignore[arg-type]
                    state = await graph.ainvoke({"messages": [HumanMessage("second")]}, config)
                    return [str(message.content) for message in state["messages"]]

            return asyncio.run(inside())
        except ThreadConflictError as exc:
            return exc.reason
        except ValueError as exc:
            return str(exc)

    return turn


@pytest.mark.parametrize("first", ["turn", "run"])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_strategies(saver: AgentSaver, path: Path, workers: Any, strategy: str, first: str, form: str) -> None:
    """B36: the four answers to a second message while the first run, a turn or not, of another process is in a tool:
    refused; after it, on its result; in its place, from its last step; in its place, as if it had never been."""
    (worker,) = workers(1)
    assert say(assistant(saver)[0], "zero", "sync") == ["zero", "answer to zero"]
    before = saver.get_tuple({"configurable": {"thread_id": "t", "checkpoint_ns": ""}})
    if first == "turn":
        worker.ask(turn_and_stay, path, "reject")
    else:
        worker.ask(look_and_stay, path, "sync", "sync")
    assert worker.answer() == ("met", None)
    if strategy == "enqueue":
        threading.Timer(0.3, worker.connection.send, (None,)).start()
    outcome = elsewhere(second_turn(saver, strategy, form))
    if strategy != "enqueue":
        worker.connection.send(None)
    theirs = worker.result()
    zero = ["zero", "answer to zero"]
    if strategy == "reject":
        assert outcome == "busy"
        assert theirs == [*zero, *FIRST]
    elif strategy == "enqueue":
        assert theirs == [*zero, *FIRST]
        assert outcome == [*zero, *FIRST, "second", "answer to second"]
    elif strategy == "interrupt":
        # From its last step: with its tool call still open, which a model may refuse.
        assert "must be followed by tool messages" in outcome
        assert theirs["reason"] in ("lease_lost", "stale")
    else:
        assert outcome == [*zero, "second", "answer to second"]
        assert theirs["reason"] in ("lease_lost", "stale")
        listed = list(saver.list({"configurable": {"thread_id": "t", "checkpoint_ns": ""}}))
        assert before is not None
        assert any(item.config == before.config and item.checkpoint == before.checkpoint for item in listed)
        assert not any("look" in repr(item.checkpoint) for item in listed)
    assert not saver.leases()


def test_rollback_of_a_first_run(saver: AgentSaver) -> None:
    """A rolled back run that made its thread leaves nothing of it: the second message is the first one then."""
    run = Run(saver, "sync", "sync")
    assert elsewhere(second_turn(saver, "rollback", "sync")) == ["second", "answer to second"]
    assert isinstance(run.finish(), ThreadConflictError)


def test_a_finished_run_is_not_rolled_back(saver: AgentSaver, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run whose last step is stored, and that has only to come back to its caller, is told nothing any more: so what
    it stored stays, and the second message goes on from there."""
    stored, go = threading.Event(), threading.Event()
    real = runs.GoingRun._left

    def leave_late(run: runs.GoingRun, *about: Any) -> None:
        if not stored.is_set():
            stored.set()
            assert go.wait(WATCHDOG_S)
        real(run, *about)

    monkeypatch.setattr(runs.GoingRun, "_left", leave_late)
    graph, _ = assistant(saver)
    first: list[Any] = []
    worker = threading.Thread(target=lambda: first.append(say(graph, "first", "sync", "sync")))
    worker.start()
    assert stored.wait(WATCHDOG_S)
    told = elsewhere(second_turn(saver, "rollback", "sync"))
    go.set()
    worker.join(WATCHDOG_S)
    assert first == [["first", "answer to first"]]
    assert told == [*first[0], "second", "answer to second"]


def test_a_queue_across_processes(saver: AgentSaver, path: Path, workers: Any) -> None:
    """20 turns wait in processes of their own; three are killed while they wait, and so is the holder: 17 answers, in
    the order of arrival, none twice."""
    holder, *waiting = workers(21)
    graph, _ = assistant(saver)
    say(graph, "first", "sync")
    holder.ask(hold_lease, path, 600.0)
    assert holder.answer() == ("met", None)
    for number, worker in enumerate(waiting):
        worker.ask(queue_for_turn, path, f"m{number}", "sync" if number % 2 else "async")
        assert worker.answer() == ("met", None)
        queued = _waiting(path)
        worker.connection.send(None)
        deadline = time.monotonic() + WATCHDOG_S
        while _waiting(path) == queued and time.monotonic() < deadline:
            time.sleep(0.01)
        assert _waiting(path) == queued + 1, f"turn {number} doesn't queue"
    killed = {3, 4, 11}
    for number in killed:
        waiting[number].kill()
    holder.kill()
    alive = [worker for number, worker in enumerate(waiting) if number not in killed]
    results_of = results(alive)
    texts = [f"m{number}" for number in range(20) if number not in killed]
    said = [str(m.content) for m in graph.get_state(CONFIG).values["messages"] if m.type == "human"]
    assert said[1:] == texts
    assert all(found.count(f"answer to {text}") == 1 for found, text in zip(results_of, texts, strict=True))


def _waiting(path: Path) -> int:
    import sqlite3
    from contextlib import closing

    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
        return int(connection.execute("SELECT count(*) FROM waiters").fetchone()[0])


def test_a_cancelled_waiter_leaves_the_queue(saver: AgentSaver, path: Path) -> None:
    """A turn whose wait is cancelled, or times out, gives its place back, so that nobody waits for it."""

    async def main() -> None:
        task = asyncio.create_task(saver.turn(CONFIG, "enqueue").__aenter__())
        while not _waiting(path):
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    with saver.lease("t"):
        elsewhere(lambda: asyncio.run(main()) or True)
        assert _waiting(path) == 0
        told = elsewhere(lambda: refused(lambda: saver.turn(CONFIG, "enqueue", timeout=0.2).__enter__()))
        assert told["reason"] == "leased"
        assert _waiting(path) == 0


def test_a_turn_around_a_stream(saver: AgentSaver) -> None:
    """A turn holds around stream and astream_events as well, until its block ends."""
    graph, _ = assistant(saver)
    with saver.turn(CONFIG) as config:
        for _ in graph.stream({"messages": [HumanMessage("hello")]}, config):
            assert elsewhere(lambda: refused(lambda: update(graph)))["reason"] == "busy"
        assert elsewhere(lambda: refused(lambda: update(graph)))["reason"] == "busy"

    async def events() -> int:
        async with saver.turn(CONFIG) as config:
            return len([item async for item in graph.astream_events({"messages": [HumanMessage("again")]}, config)])

    assert asyncio.run(events()) > 0
    assert not saver.leases()
