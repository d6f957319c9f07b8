"""One saver object, whatever happens around it: OS threads, event loops, cancels, forks, ends, wrong use."""

from __future__ import annotations

import asyncio
import gc
import itertools
import logging
import multiprocessing
import os
import random
import sqlite3
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import aiosqlite
import pytest
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.sqlite import SqliteSaver

from agent_ckpt import AgentSaver, FormatError, ThreadConflictError, UsageError, ValueNotStorableError
from agent_ckpt.errors import ClosedError
from tests.agents import approval_graph
from tests.conftest import WATCHDOG_S, Api, assert_sound, until
from tests.contests import contents, steps_graph

ROOT = Path(__file__).resolve().parent.parent
OPEN_AT_IMPORT = AgentSaver(":memory:")
"""Built while the module is imported, with no event loop running."""


def thread(name: Any = "t", **more: Any) -> dict[str, Any]:
    return {"configurable": {"thread_id": name, "checkpoint_ns": "", **more}}


def made(number: int, **values: Any) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """A checkpoint, its metadata and its new versions, as put takes them."""
    checkpoint = empty_checkpoint()
    checkpoint["channel_values"] = {"n": number, **values}
    checkpoint["channel_versions"] = dict.fromkeys(checkpoint["channel_values"], number + 1)
    return checkpoint, {"source": "loop", "step": number, "parents": {}}, checkpoint["channel_versions"]


def guarded(action: Callable[[], Any], seconds: float = WATCHDOG_S) -> Any:
    """Run on another OS thread, and fail where it hangs.

    Raises:
        AssertionError: when it isn't done in time.
        BaseException: what the action raised.
    """
    outcome: list[Any] = []

    def work() -> None:
        try:
            outcome.extend(("done", action()))
        except BaseException as exc:
            outcome.extend(("failed", exc))

    worker = threading.Thread(target=work, daemon=True)
    worker.start()
    worker.join(seconds)
    assert not worker.is_alive(), f"hangs: not done after {seconds} s"
    if outcome[0] == "failed":
        raise outcome[1]
    return outcome[1]


def start(script: str, *arguments: Any) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(script), *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )


def finish(process: subprocess.Popen[str], code: int = 0) -> tuple[str, str]:
    """Output and errors of a script that has to end by itself."""
    try:
        out, err = process.communicate(timeout=60)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise AssertionError("the process does not end") from None
    assert process.returncode == code, err[-3000:]
    return out, err


# Every call, from anywhere


def every_sync_call(saver: AgentSaver, name: str) -> list[Callable[[], Any]]:
    """Each public method in its sync form, in an order in which each works."""
    config, checkpoint = thread(name), made(1)
    return [
        saver.setup,
        lambda: saver.put(config, *checkpoint),
        lambda: saver.get_tuple(config),
        lambda: saver.get(config),
        lambda: saver.put_writes(thread(name, checkpoint_id=checkpoint[0]["id"]), [("n", 1)], "task"),
        lambda: list(saver.list(config)),
        lambda: saver.get_delta_channel_history(config=config, channels=["n"]),
        lambda: saver.exists(config),
        lambda: list(saver.threads()),
        lambda: saver.copy_thread(name, f"copy of {name}"),
        lambda: saver.prune([name]),
        lambda: saver.delete_for_runs(["no such run"]),
        lambda: saver.delete_thread(name),
        lambda: saver.delete_thread(f"copy of {name}"),
        saver.verify,
        lambda: steps_graph(saver).invoke({"who": 1}, thread(f"graph of {name}")),
        lambda: list(steps_graph(saver).stream({"who": 2}, thread(f"graph of {name}"))),
        lambda: steps_graph(saver).update_state(thread(f"graph of {name}"), {"log": [3]}, as_node="note"),
        lambda: list(steps_graph(saver).get_state_history(thread(f"graph of {name}"))),
        lambda: steps_graph(saver).get_state(thread(f"graph of {name}")),
    ]


@pytest.mark.parametrize("first", ["sync", "async"])
def test_sync_calls_inside_a_coroutine(first: str, saver: AgentSaver) -> None:
    """B41: every method called synchronously on an event loop's own thread works, and hangs never."""

    async def main() -> None:
        if first == "async":
            await saver.aput(thread("other"), *made(0))
            await saver.aget_tuple(thread("other"))
        for call in every_sync_call(saver, "t"):
            call()
        # Beside async calls of the same loop that are under way.
        others = [asyncio.create_task(saver.aput(thread(f"other {n}"), *made(n))) for n in range(5)]
        await asyncio.sleep(0)
        for call in every_sync_call(saver, "u"):
            call()
        await asyncio.gather(*others)

    guarded(lambda: asyncio.run(main()))
    assert steps_graph(saver).get_state(thread("graph of t")).values["log"] == [1, 2, 3]


def test_sync_calls_in_a_stopped_loops_thread(saver: AgentSaver) -> None:
    """Sync calls in callbacks of a loop, and between two runs of it, work as well."""
    loop = asyncio.new_event_loop()
    done: list[Any] = []
    try:
        loop.call_soon(lambda: done.extend(call() is None for call in every_sync_call(saver, "t")))
        loop.run_until_complete(asyncio.sleep(0.05))
        for call in every_sync_call(saver, "between"):
            call()
        loop.run_until_complete(saver.aput(thread(), *made(1)))
    finally:
        loop.close()
    assert len(done) == len(every_sync_call(saver, "t"))


@pytest.mark.parametrize("target", ["file", ":memory:"])
def test_one_object_for_everything(target: str, path: Path) -> None:
    """B46: invoke, ainvoke, stream, astream, batch, abatch, get_state in a coroutine: all from one saver."""
    saver = AgentSaver(path if target == "file" else target)
    graph = steps_graph(saver)

    def config(name: str) -> Any:
        return thread(name)

    async def main() -> None:
        await graph.ainvoke({"who": 2}, config("a"))
        assert graph.get_state(config("a")).values["log"] == [1, 2]
        assert graph.invoke({"who": 3}, config("a"))["log"] == [1, 2, 3]
        async for _ in graph.astream({"who": 4}, config("a")):
            assert graph.get_state(config("a")).values["log"][:3] == [1, 2, 3]
        found = await graph.abatch([{"who": n} for n in range(8)], [config(f"ab{n}") for n in range(8)])
        assert [values["log"] for values in found] == [[n] for n in range(8)]
        await graph.aupdate_state(config("a"), {"log": [5]}, as_node="note")
        newest = await anext(graph.aget_state_history(config("a")))
        assert newest.values["log"] == [1, 2, 3, 4, 5]

    graph.invoke({"who": 1}, config("a"))
    asyncio.run(main())
    list(graph.stream({"who": 6}, config("a")))
    found = graph.batch([{"who": n} for n in range(8)], [config(f"b{n}") for n in range(8)])
    assert [values["log"] for values in found] == [[n] for n in range(8)]
    asyncio.run(graph.ainvoke({"who": 7}, config("a")))
    assert graph.get_state(config("a")).values["log"] == [1, 2, 3, 4, 5, 6, 7]
    assert saver.verify()
    saver.close()


@pytest.mark.parametrize("target", ["file", ":memory:"])
def test_sixty_four_threads_at_once(target: str, path: Path) -> None:
    """B46: 64 OS threads run graphs on one saver at the same time, half of them through loops of their own."""
    saver = AgentSaver(path if target == "file" else target)
    graph = steps_graph(saver)
    meet = threading.Barrier(64)

    def work(number: int) -> list[int]:
        meet.wait(WATCHDOG_S)
        api = Api(saver, "sync" if number % 2 else "async")
        for who in (1, 2):
            api.invoke(graph, {"who": who}, thread(f"t{number}"))
        return api.get_state(graph, thread(f"t{number}")).values["log"]

    with ThreadPoolExecutor(64) as workers:
        assert guarded(lambda: list(workers.map(work, range(64))), 60) == [[1, 2]] * 64
    assert saver.verify()
    saver.close()


def test_built_at_import_time() -> None:
    """B45: a saver that was built with no loop running serves 20 parallel aputs, in one loop after the other."""

    async def main(turn: int) -> None:
        await asyncio.gather(*(OPEN_AT_IMPORT.aput(thread(f"{turn}.{n}"), *made(n)) for n in range(20)))
        for n in range(20):
            found = await OPEN_AT_IMPORT.aget_tuple(thread(f"{turn}.{n}"))
            assert found is not None
            assert found.checkpoint["channel_values"]["n"] == n

    for turn in range(3):
        asyncio.run(main(turn))
    assert OPEN_AT_IMPORT.verify()


def test_several_loops_at_once(saver: AgentSaver) -> None:
    """B45: three OS threads with a loop each, and a pool of sync callers, all at the same time."""
    meet = threading.Barrier(4)

    async def puts(name: str) -> None:
        await asyncio.gather(*(saver.aput(thread(f"{name}.{n}"), *made(n)) for n in range(20)))
        found = [item async for item in saver.alist(thread(f"{name}.7"))]
        assert [item.checkpoint["channel_values"]["n"] for item in found] == [7]

    def loop(name: str) -> None:
        meet.wait(WATCHDOG_S)
        for turn in range(3):
            asyncio.run(puts(f"{name}.{turn}"))

    def pool() -> None:
        meet.wait(WATCHDOG_S)
        with ThreadPoolExecutor(8) as workers:
            list(workers.map(lambda n: saver.put(thread(f"pool.{n}"), *made(n)), range(60)))

    with ThreadPoolExecutor(4) as workers:
        jobs = [workers.submit(loop, name) for name in "abc"] + [workers.submit(pool)]
        guarded(lambda: [job.result() for job in jobs], 60)
    assert len(list(saver.threads())) == 3 * 3 * 20 + 60


def test_loop_that_dies_with_calls_under_way(saver: AgentSaver) -> None:
    """A loop that ends while its calls run leaves the saver usable, and no half put."""

    async def main() -> None:
        for n in range(30):
            asyncio.ensure_future(saver.aput(thread(f"t{n}"), *made(n)))  # noqa: RUF006 (left alone on purpose)
        await asyncio.sleep(0.001)

    for _ in range(5):
        asyncio.run(main())
    for info in saver.threads():
        found = saver.get_tuple(thread(info.thread_id))
        assert found is not None
        assert thread(info.thread_id)["configurable"]["thread_id"] == f"t{found.checkpoint['channel_values']['n']}"
    saver.put(thread("after"), *made(1))
    asyncio.run(saver.aput(thread("after that"), *made(1)))


# Half-read iterators (B43)


def test_calls_inside_a_listing(form: str, saver: AgentSaver) -> None:
    """B43: reads and writes in the body of a listing's loop work, and the listing goes on."""
    config: Any = thread()
    for n in range(80):
        config = saver.put(config, *made(n))
    seen: list[int] = []

    def body(item: Any) -> None:
        found = saver.get_tuple(item.config)
        assert found is not None
        seen.append(found.checkpoint["channel_values"]["n"])
        saver.put_writes(item.config, [("late", seen[-1])], "task")

    async def run() -> None:
        async for item in saver.alist(thread()):
            body(item)
            await saver.aput_writes(item.config, [("late", "too")], "async task")

    if form == "sync":
        for item in saver.list(thread()):
            body(item)
    else:
        guarded(lambda: asyncio.run(run()))
    assert seen == list(range(79, -1, -1))


def test_paused_listing_holds_nothing(form: str, saver: AgentSaver, open_saver: Callable[..., AgentSaver]) -> None:
    """B43: beside a listing that is read half, 400 puts of 40 kB by another saver keep a small -wal."""
    config: Any = thread()
    for n in range(50):
        config = saver.put(config, *made(n))
    other = open_saver()
    biggest = 0

    def write() -> None:
        nonlocal biggest
        theirs: Any = thread("other")
        for n in range(400):
            theirs = other.put(theirs, *made(n, text=random.Random(n).randbytes(40_000)))
            biggest = max(biggest, os.stat(f"{wal_of(saver)}").st_size)

    async def run() -> None:
        listing = saver.alist(thread())
        first = await anext(listing)
        write()
        assert first.checkpoint["channel_values"]["n"] == 49
        assert len([item async for item in listing]) == 49

    if form == "sync":
        listing = saver.list(thread())
        next(listing)
        write()
        assert len(list(listing)) == 49
    else:
        asyncio.run(run())
    assert biggest < 3 * 1024 * 1024, f"the -wal grew to {biggest} bytes"


def wal_of(saver: AgentSaver) -> Path:
    return Path(f"{saver._backend.target}-wal")


def test_dropped_streams(form: str, saver: AgentSaver) -> None:
    """A stream that is read half and dropped holds nothing; its thread and the saver go on."""
    graph = steps_graph(saver)

    async def half(who: int) -> None:
        stream = graph.astream({"who": who}, thread())
        async for _ in stream:
            break
        await stream.aclose()

    for who in (1, 2, 3):
        if form == "sync":
            stream = graph.stream({"who": who}, thread())
            next(stream)
            stream.close()
        else:
            asyncio.run(half(who))
        with closing(sqlite3.connect(saver._backend.target, timeout=1)) as other:
            other.execute("BEGIN IMMEDIATE")
            other.execute("ROLLBACK")
        assert graph.get_state(thread()).values["log"][-1] == who
    assert Api(saver, form).invoke(graph, {"who": 4}, thread())["log"] == [1, 2, 3, 4]


def test_abandoned_iterators(saver: AgentSaver, path: Path) -> None:
    """Iterators that are dropped without close keep no connection busy and warn of nothing."""
    config: Any = thread()
    for n in range(40):
        config = saver.put(config, *made(n))

    async def leave() -> None:
        listing = saver.alist(thread())
        await anext(listing)
        await listing.aclose()

    for _ in range(5):
        next(saver.list(thread()))
        asyncio.run(leave())
    gc.collect()
    saver.close()
    assert not Path(f"{path}-wal").exists()


# Failed and cancelled writes


class Odd:
    """A value that nothing can store."""

    def __reduce__(self) -> Any:
        raise TypeError("no way to keep this")


def assert_lock_is_free(path: Path) -> None:
    with closing(sqlite3.connect(path, timeout=1, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        other.execute("ROLLBACK")


def test_failed_batch_leaves_nothing(api: Api, path: Path) -> None:
    """B40: put_writes and put with one value that can't be stored keep none of the others, and no lock."""
    config = api.put(thread(), *made(0))
    before = contents(path)
    with pytest.raises(ValueNotStorableError) as caught:
        api.put_writes(config, [("a", 1), ("b", {"deep": [Odd()]}), ("c", 3)], "task")
    assert "deep" in caught.value.path
    with pytest.raises(ValueNotStorableError) as caught:
        api.put(config, *made(1, good="x" * 5000, files={"a": Odd()}))
    assert "files" in caught.value.path
    assert_lock_is_free(path)
    assert contents(path) == before
    api.put_writes(config, [("a", 1), ("b", 2), ("c", 3)], "task")
    assert [w[1:] for w in api.get_tuple(thread()).pending_writes] == [("a", 1), ("b", 2), ("c", 3)]


@pytest.mark.parametrize("at", ["put_begin", "insert_blob", "insert_own_checkpoint", "update_thread", "COMMIT"])
def test_failure_between_two_statements(at: str, api: Api, path: Path) -> None:
    """B40: a put whose statements fail in the middle is undone whole and leaves the lock free; the next put works."""
    config = api.put(thread(), *made(0))
    before = contents(path)
    backend = api.saver._backend
    struck: list[str] = []

    def strike(name: str) -> None:
        if name == at and not struck:
            struck.append(name)
            error = sqlite3.OperationalError("struck")
            error.sqlite_errorcode = sqlite3.SQLITE_FULL
            error.sqlite_errorname = "SQLITE_FULL"
            raise error

    backend.on_statement = strike
    # A put that found no place once is tried again by the backend only where it was one of a group.
    with pytest.raises(Exception, match="no space left"):
        api.put(config, *made(1, text="x" * 5000))
    assert struck
    backend.on_statement = None
    assert_lock_is_free(path)
    assert {**contents(path), "this_store": 0} == {**before, "this_store": 0}
    api.put(config, *made(2))
    assert api.get_tuple(thread()).checkpoint["channel_values"]["n"] == 2


def test_random_cancels(saver: AgentSaver, path: Path) -> None:
    """B47: 200 aputs cancelled at random moments: each is stored whole or not at all, and nobody is locked out."""
    chance = random.Random(47)
    states: dict[str, set[str]] = {"stored": set(), "absent": set()}

    async def one(number: int) -> None:
        name = f"t{number}"
        put = asyncio.create_task(saver.aput(thread(name), *made(number, text=random.Random(number).randbytes(3000))))
        for _ in range(chance.randrange(4)):
            await asyncio.sleep(0)
        await asyncio.sleep(chance.choice([0, 0, 0.0002, 0.0005, 0.001, 0.003]))
        put.cancel()
        try:
            await put
        except asyncio.CancelledError:
            pass
        else:
            assert await saver.aexists(name), "acknowledged and not there"

    async def main() -> None:
        await asyncio.gather(saver.aput(thread("first"), *made(0)))
        for start_at in range(0, 200, 10):
            await asyncio.gather(*(one(number) for number in range(start_at, start_at + 10)))
            assert_lock_is_free(path)

    guarded(lambda: asyncio.run(main()), 60)
    for number in range(200):
        found = saver.get_tuple(thread(f"t{number}"))
        states["absent" if found is None else "stored"].add(f"t{number}")
        if found is not None:
            assert found.checkpoint["channel_values"] == {"n": number, "text": random.Random(number).randbytes(3000)}
    assert states["stored"], "every cancel came before the write, so this proves little"
    saver.put(thread("after"), *made(1))


def test_cancel_while_the_commit_waits(saver: AgentSaver, path: Path) -> None:
    """B47: an aput cancelled while it waits for another's lock leaves no transaction, and this saver goes on."""

    async def main() -> None:
        config = await saver.aput(thread(), *made(0))
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            put = asyncio.create_task(saver.aput(config, *made(1)))
            await asyncio.sleep(0.1)
            put.cancel()
            with pytest.raises(asyncio.CancelledError):
                await put
            other.execute("COMMIT")
        assert_lock_is_free(path)
        found = await saver.aget_tuple(thread())
        assert found is not None
        await saver.aput(found.config, *made(2))
        head = await saver.aget_tuple(thread())
        assert head is not None
        assert head.checkpoint["channel_values"]["n"] == 2

    guarded(lambda: asyncio.run(main()))


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
def test_timeout_around_a_run(durability: Any, saver: AgentSaver, path: Path) -> None:
    """B47: asyncio.timeout around ainvoke at any moment leaves a thread that the next run goes on from."""
    chance = random.Random(durability)
    graph = steps_graph(saver)
    finished = 0

    async def main() -> None:
        nonlocal finished
        for who in range(25):
            try:
                async with asyncio.timeout(chance.uniform(0.0, 0.03)):
                    await graph.ainvoke({"who": who}, thread(), durability=durability)
                finished += 1
            except TimeoutError:
                # With "async" LangGraph leaves puts of the cancelled run running, and they would win against the next.
                if left := asyncio.all_tasks() - {asyncio.current_task()}:
                    await asyncio.wait(left)
            assert_lock_is_free(path)
        values = await graph.ainvoke({"who": 1000}, thread(), durability=durability)
        assert values["log"][-1] == 1000
        assert len(values["log"]) > finished
        assert len(set(values["log"])) == len(values["log"]), "a move was made twice"
        assert values["log"] == sorted(values["log"])

    guarded(lambda: asyncio.run(main()), 60)


# Ends of processes


@pytest.mark.parametrize("end", ["return", "raise", "sys.exit"])
@pytest.mark.parametrize("first", ["async", "sync"])
def test_process_that_never_closes_ends(first: str, end: str, path: Path) -> None:
    """B44: a program that leaves its saver open ends by itself, without a warning, and its data is there."""
    script = f"""
        import asyncio, sys
        from agent_ckpt import AgentSaver
        from tests.contests import steps_graph
        saver = AgentSaver(sys.argv[1])
        graph = steps_graph(saver)
        config = {{"configurable": {{"thread_id": "t"}}}}
        async def main():
            await graph.ainvoke({{"who": 1}}, config)
            if {end == "raise"}: raise ValueError("on purpose")
            if {end == "sys.exit"}: sys.exit(3)
        if {first == "sync"}:
            graph.invoke({{"who": 0}}, config)
        asyncio.run(main())
    """
    _, err = finish(start(script, path), {"return": 0, "raise": 1, "sys.exit": 3}[end])
    lines = err.strip().splitlines()
    assert lines == [] or (end == "raise" and lines[-1] == "ValueError: on purpose" and "Warning" not in err), err
    with AgentSaver(path, create=False) as saver:
        assert steps_graph(saver).get_state(thread()).values["log"] == ([0, 1] if first == "sync" else [1])
    assert_sound(path)


def test_dropped_saver_is_collected(path: Path, form: str) -> None:
    """A saver that is dropped without close leaves no worker, no open file and no ResourceWarning."""
    script = """
        import asyncio, gc, os, sys, threading, time, warnings
        from agent_ckpt import AgentSaver
        from tests.contests import steps_graph
        path, form = sys.argv[1:]
        def use():
            graph = steps_graph(AgentSaver(path))
            config = {"configurable": {"thread_id": "t"}}
            if form == "sync":
                graph.invoke({"who": 1}, config)
            else:
                asyncio.run(graph.ainvoke({"who": 1}, config))
        for turn in range(3):
            use()
            gc.collect()
        def ours():
            files = [os.path.realpath(f"/proc/self/fd/{n}") for n in os.listdir("/proc/self/fd")]
            return [f for f in files if f.startswith(os.path.realpath(path))]
        deadline = time.monotonic() + 10
        while (ours() or threading.active_count() > 1) and time.monotonic() < deadline:
            time.sleep(0.02)
        print(ours(), [t.name for t in threading.enumerate()])
    """
    out, err = finish(start(script, path, form))
    assert not err.strip(), err
    assert out.strip() == "[] ['MainThread']"
    assert_sound(path)


def test_fork_with_a_graph(form: str, saver: AgentSaver) -> None:
    """B48: a forked child goes on with the graph that its parent made, exits in either way, and the parent goes on."""
    graph = steps_graph(saver)
    api = Api(saver, form)
    api.invoke(graph, {"who": 0}, thread())
    for turn, leave in enumerate(("return", "os._exit", "return"), start=1):
        context = multiprocessing.get_context("fork")
        process = context.Process(target=in_a_child, args=(graph, saver, form, turn, leave))
        process.start()
        process.join(WATCHDOG_S)
        assert process.exitcode == 0, "the child failed or hangs"
        process.close()
        assert api.get_state(graph, thread()).values["log"][-1] == turn
        api.invoke(graph, {"who": 100 + turn}, thread())
    assert api.get_state(graph, thread()).values["log"] == [0, 1, 101, 2, 102, 3, 103]


def in_a_child(graph: Any, saver: AgentSaver, form: str, who: int, leave: str) -> None:
    values = Api(saver, form).invoke(graph, {"who": who}, thread())
    assert values["log"][-1] == who
    if leave == "os._exit":
        os._exit(0)


def test_session_is_void_in_a_forked_child(saver: AgentSaver) -> None:
    """B48: a session that the parent began is not continued by a child: there its config is a plain one."""
    first = saver.put(thread(), *made(0))
    found = saver.get_tuple(thread())
    assert found is not None
    saver.put(found.config, *made(1))
    context = multiprocessing.get_context("fork")
    process = context.Process(target=put_stale, args=(saver, first))
    process.start()
    process.join(WATCHDOG_S)
    assert process.exitcode == 0
    process.close()
    head = saver.get_tuple(thread())
    assert head is not None
    assert head.checkpoint["channel_values"]["n"] == 1


def put_stale(saver: AgentSaver, config: Any) -> None:
    try:
        saver.put(config, *made(2))
    except ThreadConflictError as exc:
        assert exc.expected is None
        os._exit(0)
    os._exit(1)


@pytest.mark.parametrize("form", ["sync", "async"])
def test_fork_while_another_thread_puts(form: str, path: Path) -> None:
    """B48: a fork in the middle of other OS threads' puts leaves a child that works or raises, and never hangs."""
    script = """
        import asyncio, os, sys, threading, time
        from agent_ckpt import AgentSaver
        from agent_ckpt.errors import CkptError
        from tests.test_lifecycle import Api, made, thread
        path, form = sys.argv[1:]
        saver = AgentSaver(path)
        api = Api(saver, form)
        api.put(thread("first"), *made(0))
        stop = threading.Event()
        def work(name):
            n = 0
            while not stop.is_set():
                n += 1
                api.put(thread(f"{name}.{n}"), *made(n))
        workers = [threading.Thread(target=work, args=(name,)) for name in "ab"]
        for worker in workers: worker.start()
        for turn in range(8):
            time.sleep(0.01)
            child = os.fork()
            if child == 0:
                try:
                    saver.put(thread(f"child.{turn}"), *made(turn))
                    assert saver.get_tuple(thread("first")) is not None
                except CkptError:
                    os._exit(7)
                except BaseException:
                    os._exit(1)
                os._exit(0)
            deadline = time.monotonic() + 15
            while True:
                done, status = os.waitpid(child, os.WNOHANG)
                if done: break
                if time.monotonic() > deadline:
                    os.kill(child, 9)
                    print("hangs")
                    break
                time.sleep(0.005)
            print(os.waitstatus_to_exitcode(status))
        stop.set()
        for worker in workers: worker.join()
        saver.close()
    """
    out, err = finish(start(script, path, form))
    assert set(out.split()) <= {"0", "7"}, (out, err)
    assert "0" in out.split()
    assert_sound(path)


# Open, close, and what is between


def test_close(api: Api, path: Path, form: str) -> None:
    """B46: close twice is harmless; every use after it names the saver's file; a new saver opens it again."""
    saver = api.saver
    api.put(thread(), *made(0))
    calls = every_sync_call(saver, "t")
    api.close()
    api.close()
    saver.close()
    for number, call in enumerate(calls):
        with pytest.raises(ClosedError) as caught:
            call()
        assert str(path) in str(caught.value), number
        assert "closed" in str(caught.value)
    for coroutine in (
        lambda: saver.aput(thread(), *made(0)),
        lambda: saver.aget_tuple(thread()),
        lambda: saver.aput_writes(thread(checkpoint_id="c"), [("n", 1)], "task"),
        lambda: saver.adelete_thread("t"),
        lambda: steps_graph(saver).ainvoke({"who": 1}, thread()),
    ):
        with pytest.raises(ClosedError, match=str(path)):
            asyncio.run(coroutine())  # type: ignore[arg-type]
    with AgentSaver(path, create=False) as again:
        assert again.exists("t")


@pytest.mark.parametrize("how", ["with", "async with"])
@pytest.mark.parametrize("make", [AgentSaver, AgentSaver.from_conn_string])
def test_context_managers(how: str, make: Callable[..., AgentSaver], path: Path) -> None:
    """Both kinds of `with` give the saver itself and close it, after an exception too, which they pass on."""

    async def enter(fail: bool) -> AgentSaver:
        async with make(path) as saver:
            await saver.aput(thread(), *made(0))
            if fail:
                raise LookupError("mine")
        return saver

    def enter_sync(fail: bool) -> AgentSaver:
        with make(path) as saver:
            assert type(saver) is AgentSaver
            saver.put(thread(), *made(0))
            if fail:
                raise LookupError("mine")
        return saver

    run = enter_sync if how == "with" else lambda fail: asyncio.run(enter(fail))
    saver = run(False)
    with pytest.raises(ClosedError):
        saver.get_tuple(thread())
    with pytest.raises(LookupError, match="mine"):
        run(True)
    assert not Path(f"{path}-wal").exists()
    assert_sound(path)


def test_un_entered_use(form: str, path: Path) -> None:
    """B46: a saver, or what from_conn_string gives, that was never entered works in compile as it is."""
    for make in (AgentSaver, AgentSaver.from_conn_string):
        saver = make(path)
        values = Api(saver, form).invoke(steps_graph(saver), {"who": 1}, thread(make.__name__))
        assert values["log"] == [1]
        with saver as same:
            assert same is saver
            assert same.exists(make.__name__)
        with pytest.raises(ClosedError):
            saver.exists("t")


def test_close_while_others_are_inside(path: Path) -> None:
    """Closing while eight OS threads put ends each call in a result or ClosedError; what was acknowledged is there."""
    saver = AgentSaver(path)
    saver.setup()
    stored: list[str] = []
    ended: list[BaseException] = []

    def work(name: str) -> None:
        for number in itertools.count():
            try:
                saver.put(thread(f"{name}.{number}"), *made(number))
            except BaseException as exc:
                ended.append(exc)
                return
            stored.append(f"{name}.{number}")

    workers = [threading.Thread(target=work, args=(str(n),), daemon=True) for n in range(8)]
    for worker in workers:
        worker.start()
    until(lambda: len(stored) > 8)
    guarded(saver.close)
    for worker in workers:
        worker.join(WATCHDOG_S)
        assert not worker.is_alive(), "hangs"
    assert {type(exc) for exc in ended} == {ClosedError}
    assert_sound(path)
    with AgentSaver(path, create=False) as again:
        assert {info.thread_id for info in again.threads()} >= set(stored)
    assert stored


def test_two_savers_on_one_file(form: str, open_saver: Callable[..., AgentSaver]) -> None:
    """Two savers of one process on one file see each other's commits, and closing one leaves the other alone."""
    one, two = open_saver(), open_saver()
    a, b = Api(one, form), Api(two, form)
    graph_a, graph_b = steps_graph(one), steps_graph(two)
    for who in range(0, 6, 2):
        a.invoke(graph_a, {"who": who}, thread())
        b.invoke(graph_b, {"who": who + 1}, thread())
    a.close()
    assert b.invoke(graph_b, {"who": 6}, thread())["log"] == [0, 1, 2, 3, 4, 5, 6]
    three = open_saver()
    assert Api(three, form).get_state(steps_graph(three), thread()).values["log"] == [0, 1, 2, 3, 4, 5, 6]


def test_memory_savers_are_apart(form: str) -> None:
    """Each `:memory:` saver is a store of its own, from all OS threads and loops, gone when it is closed."""
    one, two = AgentSaver(":memory:"), AgentSaver("sqlite://")
    api = Api(one, form)
    api.put(thread(), *made(1))
    assert guarded(lambda: api.get_tuple(thread())).checkpoint["channel_values"]["n"] == 1
    assert not Api(two, form).exists("t")
    assert one.verify()
    for saver in (one, two):
        saver.close()
    with pytest.raises(ClosedError, match=":memory:"):
        one.exists("t")


# Options and targets


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"sync": "full"}, "unknown option sync"),
        ({"busy_timeout": 3}, "busy_timeout_s"),
        ({"synchronous": "off"}, "'full', 'normal'"),
        ({"synchronous": "FULL"}, "'full', 'normal'"),
        ({"busy_timeout_s": -1}, "busy_timeout_s"),
        ({"busy_timeout_s": float("inf")}, "busy_timeout_s"),
        ({"busy_timeout_s": float("nan")}, "busy_timeout_s"),
        ({"busy_timeout_s": "3"}, "busy_timeout_s"),
        ({"busy_timeout_s": True}, "busy_timeout_s"),
        ({"compression": "gzip"}, "'zstd', 'none'"),
        ({"create": "no"}, "create"),
        ({"file_mode": 0o4600}, "file_mode"),
        ({"file_mode": 0o400}, "file_mode"),
        ({"cache_bytes": -1}, "cache_bytes"),
        ({"queue_size": 0}, "queue_size"),
        ({"queue_size": 1.5}, "queue_size"),
    ],
    ids=repr,
)
def test_wrong_options(options: dict[str, Any], said: str, path: Path) -> None:
    """A wrong option is refused when the saver is made, naming it; no file is touched."""
    for make in (AgentSaver, AgentSaver.from_conn_string):
        with pytest.raises(UsageError) as caught:
            make(path, **options)
        assert said in str(caught.value)
    assert not path.exists()


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("AGENT_CKPT_SYNCHRONOUS", "off", "synchronous"),
        ("AGENT_CKPT_BUSY_TIMEOUT_S", "soon", "AGENT_CKPT_BUSY_TIMEOUT_S"),
        ("AGENT_CKPT_BUSY_TIMEOUT_S", "-2", "busy_timeout_s"),
        ("AGENT_CKPT_CREATE", "maybe", "AGENT_CKPT_CREATE"),
        ("AGENT_CKPT_FILE_MODE", "rw", "AGENT_CKPT_FILE_MODE"),
        ("AGENT_CKPT_QUEUE_SIZE", "many", "AGENT_CKPT_QUEUE_SIZE"),
    ],
)
def test_wrong_variables(variable: str, value: str, said: str, path: Path) -> None:
    """A variable whose value doesn't parse, or isn't in range, is refused by name."""
    with pytest.raises(UsageError, match=said):
        AgentSaver.from_env({"AGENT_CKPT_URL": str(path), variable: value})
    assert not path.exists()


def test_from_env(form: str, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """from_env opens what AGENT_CKPT_URL names, with the options of the variables; arguments go before them."""
    with pytest.raises(UsageError, match="AGENT_CKPT_URL is not set"):
        AgentSaver.from_env({})
    monkeypatch.setenv("AGENT_CKPT_URL", f"sqlite:///{path}")
    monkeypatch.setenv("AGENT_CKPT_SYNCHRONOUS", "normal")
    monkeypatch.setenv("AGENT_CKPT_BUSY_TIMEOUT_S", "2.5")
    monkeypatch.setenv("AGENT_CKPT_FILE_MODE", "0o640")
    monkeypatch.setenv("AGENT_CKPT_CREATE", "true")
    with AgentSaver.from_env(busy_timeout_s=7.0) as saver:
        found = saver._options
        assert (found.synchronous, found.busy_timeout_s, found.file_mode) == ("normal", 7.0, 0o640)
        Api(saver, form).put(thread(), *made(0))
    assert path.stat().st_mode & 0o777 == 0o640
    monkeypatch.setenv("AGENT_CKPT_CREATE", "0")
    with AgentSaver.from_env() as saver:
        assert saver.exists("t")
        assert saver._options.busy_timeout_s == 2.5
    assert_sound(path)


@pytest.mark.parametrize("how", ["create=False", "mode=rw"])
def test_missing_file(
    how: str, form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A path that must exist and doesn't: the error gives the absolute path, the working folder and similar names."""
    monkeypatch.chdir(tmp_path)
    for name in ("agents.db", "agent2.db", "notes.txt"):
        (tmp_path / name).write_bytes(b"")
    saver = AgentSaver("agent.db", create=False) if how == "create=False" else AgentSaver("sqlite:///agent.db?mode=rw")
    api = Api(saver, form)
    for call in (lambda: api.get_tuple(thread()), lambda: api.put(thread(), *made(0)), api.setup):
        with pytest.raises(UsageError) as caught:
            call()
        for words in (str(tmp_path / "agent.db"), f"working folder: {tmp_path}", "agents.db", "agent2.db"):
            assert words in str(caught.value)
        assert "notes.txt" not in str(caught.value)
    assert not (tmp_path / "agent.db").exists()
    with caplog.at_level(logging.INFO, "agent_ckpt"), AgentSaver("agent.db") as maker:
        maker.put(thread(), *made(0))
        maker.put(thread("other"), *made(0))
    told = [record.getMessage() for record in caplog.records if str(tmp_path / "agent.db") in record.getMessage()]
    assert len(told) == 1, told
    # The saver that was refused finds the file now.
    assert api.exists("t")
    api.close()


def test_connection_as_target(path: Path) -> None:
    """An open connection as the target is refused, and the error gives the path to pass instead."""
    with closing(sqlite3.connect(path)) as connection, pytest.raises(UsageError, match=str(path)):
        AgentSaver(connection)  # type: ignore[arg-type]

    async def aio() -> None:
        async with aiosqlite.connect(path) as connection:
            with pytest.raises(UsageError, match="path"):
                AgentSaver(connection)  # type: ignore[arg-type]

    asyncio.run(aio())
    for odd in (None, 5, b"", "", "postgresql://x/y", ["agent.db"]):
        with pytest.raises(UsageError):
            AgentSaver(odd)  # type: ignore[arg-type]


def official_file(path: Path) -> None:
    with SqliteSaver.from_conn_string(str(path)) as saver:
        approval_graph(saver).invoke({"log": [], "answer": ""}, thread())


def foreign_file(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE songs (title TEXT)")


def newer_file(path: Path) -> None:
    with AgentSaver(path) as saver:
        saver.put(thread(), *made(0))
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA user_version=99")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (official_file, ["SqliteSaver", "agent-ckpt import"]),
        (foreign_file, ["another program's", "songs"]),
        (newer_file, ["schema_version 99", "upgrade"]),
        (lambda path: path.write_bytes(b"not a database at all. " * 300), ["no SQLite database"]),
        (lambda path: path.write_bytes(b"short"), ["no SQLite database"]),
        (lambda path: path.write_bytes(random.Random(1).randbytes(8192)), ["no SQLite database"]),
    ],
    ids=["official", "foreign", "newer", "text", "short", "noise"],
)
def test_files_that_are_not_ours(make: Callable[[Path], Any], said: list[str], form: str, path: Path) -> None:
    """A garbage, foreign, newer or official file is refused by every call, untouched, with what to do."""
    make(path)
    before = {each.name: each.read_bytes() for each in sorted(path.parent.iterdir())}
    saver = AgentSaver(path)
    api = Api(saver, form)
    for call in (lambda: api.get_tuple(thread()), lambda: api.put(thread(), *made(0)), lambda: api.list(thread())):
        with pytest.raises(FormatError) as caught:
            call()
        for words in (*said, str(path), "untouched"):
            assert words in str(caught.value)
    api.close()
    assert {each.name: each.read_bytes() for each in sorted(path.parent.iterdir())} == before


@pytest.fixture(scope="module", autouse=True)
def close_the_imported_one() -> Iterator[None]:
    yield
    OPEN_AT_IMPORT.close()
