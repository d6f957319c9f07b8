"""The SQLite backend under asyncio: several loops, cancellation, ends without close."""

from __future__ import annotations

import asyncio
import gc
import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agent_ckpt.backend import Program, Statement
from agent_ckpt.errors import ClosedError
from agent_ckpt.sqlite import SqliteBackend
from tests.sqlite_backend import add, backend_on, connect, count, crawl, names, run_script


@pytest.fixture
def backend(tmp_path: Path) -> Iterator[SqliteBackend]:
    made = backend_on(tmp_path / "a.db")
    yield made
    made.close()


def test_loops_one_after_the_other(backend: SqliteBackend) -> None:
    """B45: a backend made outside any loop serves one asyncio.run after the other, with contention in each."""

    async def main(i: int) -> None:
        await asyncio.gather(*(backend.arun(add(f"{i}-{j}"), write=True) for j in range(20)))
        assert await asyncio.gather(*(backend.arun(count) for _ in range(20))) == [20 * (i + 1)] * 20

    for i in range(5):
        asyncio.run(main(i))
    gc.collect()
    assert sum(thread.name.startswith("Thread") and thread.is_alive() for thread in threading.enumerate()) <= 2


def test_loops_at_the_same_time(backend: SqliteBackend) -> None:
    """B45: three OS threads with a loop each, and sync callers beside them, all at once."""
    failures: list[BaseException] = []

    def loop_of(i: int) -> None:
        async def main() -> None:
            for j in range(30):
                await backend.arun(add(f"{i}-{j}"), write=True)
                await backend.arun(count)

        try:
            asyncio.run(main())
        except BaseException as exc:
            failures.append(exc)

    def sync(i: int) -> None:
        try:
            for j in range(30):
                backend.run(add(f"s{i}-{j}"), write=True)
                backend.run(count)
        except BaseException as exc:
            failures.append(exc)

    threads = [threading.Thread(target=target, args=(i,)) for i in range(3) for target in (loop_of, sync)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert not failures
    assert not any(thread.is_alive() for thread in threads)
    assert backend.run(count) == 180


def test_sync_calls_on_the_loops_own_thread(backend: SqliteBackend) -> None:
    """B41: a sync call inside a coroutine works, also while async calls of the same loop are under way."""

    async def main() -> None:
        tasks = [asyncio.create_task(backend.arun(add(f"t{i}"), write=True)) for i in range(20)]
        reads = [asyncio.create_task(backend.arun(count)) for _ in range(5)]
        await asyncio.sleep(0)
        backend.run(add("sync"), write=True)
        assert backend.run(count) >= 1
        await asyncio.gather(*tasks, *reads)
        assert backend.run(count) == 21

    asyncio.run(main())


def test_random_cancels_leave_nothing_half_done(backend: SqliteBackend, tmp_path: Path) -> None:
    """B47: of 200 writes that are cancelled at a random moment each is there whole or not at all, one that
    returned is there, and no transaction stays open."""
    chance = random.Random(7)

    async def main() -> set[int]:
        done: set[int] = set()
        for i in range(200):
            task = asyncio.create_task(backend.arun(add(f"{i}a", f"{i}b"), write=True))
            reading = asyncio.create_task(backend.arun(names))
            await asyncio.sleep(chance.random() * 0.0006)
            task.cancel()
            reading.cancel()
            results = await asyncio.gather(task, reading, return_exceptions=True)
            if isinstance(results[0], list):
                done.add(i)
            assert all(isinstance(result, (list, asyncio.CancelledError)) for result in results)
        await backend.arun(add("last"), write=True)
        return done

    done = asyncio.run(main())
    found = set(backend.run(names))
    for i in range(200):
        assert (f"{i}a" in found) == (f"{i}b" in found)
        assert f"{i}a" in found or i not in done
    assert 0 < len(done) < 200
    other = connect(tmp_path / "a.db", timeout=5.0)
    other.execute("BEGIN IMMEDIATE")
    other.close()


def test_cancelled_before_it_began_is_dropped(backend: SqliteBackend) -> None:
    """A write that is cancelled while it waits in the queue is never run."""

    async def main() -> None:
        with backend._store.writer._run:
            task = asyncio.create_task(backend.arun(add("dropped"), write=True))
            await asyncio.sleep(0.02)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        await backend.arun(add("kept"), write=True)

    asyncio.run(main())
    assert backend.run(names) == ["kept"]


def test_cancelled_after_it_began_is_done_when_its_caller_goes_on(backend: SqliteBackend) -> None:
    """B47: a write that has begun is stored, or not, when the cancellation of its caller is over: whoever restores the
    thread then is not overtaken by it."""
    began, cancelled = threading.Event(), threading.Event()

    def slow() -> Program[None]:
        began.set()
        assert cancelled.wait(10)
        time.sleep(0.2)
        yield Statement("item_add", ("begun", None))

    async def main() -> list[str]:
        task = asyncio.create_task(backend.arun(slow, write=True))
        await asyncio.to_thread(began.wait, 10)
        task.cancel()
        cancelled.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        return await backend.arun(names)

    assert asyncio.run(main()) == ["begun"]


def test_timeout_around_a_read(backend: SqliteBackend) -> None:
    """A read that is given up leaves its worker usable and pins no snapshot."""
    backend.run(add(*(f"n{i}" for i in range(60))), write=True)

    async def main() -> None:
        for _ in range(3):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(backend.arun(crawl), 0.01)
        assert await backend.arun(count) == 60

    asyncio.run(main())


def test_loop_closed_in_the_middle_of_a_call(backend: SqliteBackend) -> None:
    """A loop that is closed while its read and its write run disturbs nobody else; no warning, no traceback."""
    backend.run(add(*(f"n{i}" for i in range(60))), write=True)
    loop = asyncio.new_event_loop()
    coroutines = [backend.arun(crawl), backend.arun(add("x"), write=True)]

    async def begin() -> list[asyncio.Task[Any]]:
        tasks = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
        await asyncio.sleep(0.005)
        return tasks

    tasks = loop.run_until_complete(begin())
    loop.close()
    assert backend.run(count) >= 60
    assert asyncio.run(backend.arun(count)) >= 60
    for task in tasks:
        task._log_destroy_pending = False  # type: ignore[attr-defined]
    for coroutine in coroutines:
        coroutine.close()


def test_close_while_calls_are_under_way(tmp_path: Path) -> None:
    """Closing from another OS thread in the middle of many calls: each gets its result or ClosedError, none hangs."""
    for round_ in range(5):
        backend = backend_on(tmp_path / f"{round_}.db")

        async def caller(i: int, backend: SqliteBackend = backend) -> str:
            try:
                while True:
                    await backend.arun(count)
                    await backend.arun(add(f"{i}-{time.monotonic_ns()}"), write=True)
            except ClosedError:
                return "closed"

        async def main(backend: SqliteBackend = backend) -> list[str]:
            threading.Timer(0.05, backend.close).start()
            return await asyncio.wait_for(asyncio.gather(*(caller(i) for i in range(8))), 10)

        assert asyncio.run(main()) == ["closed"] * 8


def test_script_that_never_closes_ends(tmp_path: Path) -> None:
    """B44: a script without close ends at once, sync or async, after an exception and after sys.exit; its data is
    there and nothing is printed."""
    endings = ["", "sys.exit(0)", "asyncio.run(backend.arun(count)); sys.exit(0)", "backend.run(count)"]
    for i, ending in enumerate(endings):
        run_script(
            f"""
            backend = backend_on(sys.argv[1])
            async def main():
                await backend.arun(count)
                await backend.arun(add("{i}"), write=True)
            asyncio.run(main())
            {ending}
            """,
            tmp_path / "a.db",
        )
    check = backend_on(tmp_path / "a.db")
    assert check.run(names) == ["0", "1", "2", "3"]
    check.close()


def test_write_while_the_interpreter_ends(tmp_path: Path) -> None:
    """A write from an atexit handler or a destructor at the very end is stored or raises; it never hangs."""
    run_script(
        """
        import atexit
        backend = backend_on(sys.argv[1])
        atexit.register(lambda: backend.run(add("atexit"), write=True))
        class Last:
            def __del__(self):
                try:
                    keep.run(add("del"), write=True)
                except Exception:
                    pass
        keep = backend
        asyncio.run(backend.arun(add("a"), write=True))
        sys.modules["last"] = Last()
        """,
        tmp_path / "a.db",
    )
    check = backend_on(tmp_path / "a.db")
    assert check.run(names)[:2] == ["a", "atexit"]
    check.close()
