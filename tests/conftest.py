"""Fixtures shared by all tests: one store per test, verified when the test ends; sync and async in one body."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from agent_ckpt import AgentSaver

# Set for the processes that pytest-xdist starts; what commands print depends on it.
os.environ.pop("COLUMNS", None)


WATCHDOG_S = 60.0
"""How long to wait for what comes in milliseconds on a machine with nothing else to do."""


def until(true: Callable[[], bool]) -> None:
    """Wait for something to come true.

    Raises:
        AssertionError: if it doesn't before a watchdog barks.
    """
    deadline = time.monotonic() + WATCHDOG_S
    while not true():
        assert time.monotonic() < deadline, "never came true"
        time.sleep(0.01)


class Api:
    """A saver whose methods are called one way, whichever form is under test.

    `api.put(...)` calls `saver.put` or runs `saver.aput` to its end in a fresh event loop, so each
    call of the async form also proves that the saver isn't tied to a loop.
    """

    def __init__(self, saver: Any, form: str) -> None:
        self.saver = saver
        self.form = form

    def __getattr__(self, name: str) -> Any:
        if self.form == "sync":
            method = getattr(self.saver, name)
            return lambda *args, **kwargs: list(method(*args, **kwargs)) if name == "list" else method(*args, **kwargs)
        method = getattr(self.saver, f"a{name}")
        if name == "list":
            return lambda *args, **kwargs: asyncio.run(_collect(method(*args, **kwargs)))
        return lambda *args, **kwargs: asyncio.run(method(*args, **kwargs))

    def invoke(self, graph: Any, *args: Any, **kwargs: Any) -> Any:
        if self.form == "sync":
            return graph.invoke(*args, **kwargs)
        return asyncio.run(graph.ainvoke(*args, **kwargs))

    def get_state(self, graph: Any, *args: Any, **kwargs: Any) -> Any:
        if self.form == "sync":
            return graph.get_state(*args, **kwargs)
        return asyncio.run(graph.aget_state(*args, **kwargs))

    def update_state(self, graph: Any, *args: Any, **kwargs: Any) -> Any:
        if self.form == "sync":
            return graph.update_state(*args, **kwargs)
        return asyncio.run(graph.aupdate_state(*args, **kwargs))

    def history(self, graph: Any, *args: Any, **kwargs: Any) -> list[Any]:
        if self.form == "sync":
            return list(graph.get_state_history(*args, **kwargs))
        return asyncio.run(_collect(graph.aget_state_history(*args, **kwargs)))


async def _collect(items: Any) -> list[Any]:
    return [item async for item in items]


def assert_sound(path: Path | str, key: bytes | None = None) -> None:
    """Reopen a store and check that nothing in it is wrong."""
    with AgentSaver(path, create=False, key=key) as saver:
        report = saver.verify()
    assert not report.findings, report.findings


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where a test's store goes."""
    return tmp_path / "agent.db"


@pytest.fixture
def open_saver(path: Path) -> Iterator[Callable[..., AgentSaver]]:
    """Opens savers on the test's store (or another path); closes them and verifies every store at the end."""
    opened: list[tuple[AgentSaver, Path]] = []

    def open_one(where: Path | None = None, **options: Any) -> AgentSaver:
        saver = AgentSaver(where or path, **options)
        opened.append((saver, where or path))
        return saver

    yield open_one
    for saver, _ in opened:
        saver.close()
    for where in {where for _, where in opened}:
        if where.exists():
            assert_sound(where)


@pytest.fixture
def saver(open_saver: Callable[..., AgentSaver]) -> AgentSaver:
    """A saver on the test's store."""
    return open_saver()


@pytest.fixture(params=["sync", "async"])
def form(request: pytest.FixtureRequest) -> str:
    """The form of the calls under test."""
    return request.param


@pytest.fixture
def api(saver: AgentSaver, form: str) -> Api:
    """The test's saver, called in the form under test."""
    return Api(saver, form)
