"""LangGraph's own conformance suite, through the async methods and through the sync ones."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver, Checkpoint, CheckpointMetadata, CheckpointTuple
from langgraph.checkpoint.conformance.capabilities import Capability
from langgraph.checkpoint.conformance.initializer import RegisteredCheckpointer
from langgraph.checkpoint.conformance.report import CapabilityReport, ProgressCallbacks
from langgraph.checkpoint.conformance.spec.test_copy_thread import ALL_COPY_THREAD_TESTS
from langgraph.checkpoint.conformance.spec.test_delete_for_runs import ALL_DELETE_FOR_RUNS_TESTS
from langgraph.checkpoint.conformance.spec.test_delete_thread import ALL_DELETE_THREAD_TESTS
from langgraph.checkpoint.conformance.spec.test_get_tuple import ALL_GET_TUPLE_TESTS
from langgraph.checkpoint.conformance.spec.test_list import ALL_LIST_TESTS
from langgraph.checkpoint.conformance.spec.test_prune import ALL_PRUNE_TESTS
from langgraph.checkpoint.conformance.spec.test_put import ALL_PUT_TESTS
from langgraph.checkpoint.conformance.spec.test_put_writes import ALL_PUT_WRITES_TESTS
from langgraph.checkpoint.conformance.validate import validate

from agent_ckpt import AgentSaver
from tests.conftest import assert_sound

SUITE = {
    Capability.PUT: ALL_PUT_TESTS,
    Capability.PUT_WRITES: ALL_PUT_WRITES_TESTS,
    Capability.GET_TUPLE: ALL_GET_TUPLE_TESTS,
    Capability.LIST: ALL_LIST_TESTS,
    Capability.DELETE_THREAD: ALL_DELETE_THREAD_TESTS,
    Capability.DELETE_FOR_RUNS: ALL_DELETE_FOR_RUNS_TESTS,
    Capability.COPY_THREAD: ALL_COPY_THREAD_TESTS,
    Capability.PRUNE: ALL_PRUNE_TESTS,
}
# What the suite held when this was written: a newer suite may hold more, never fewer.
AT_LEAST = {
    Capability.PUT: 17,
    Capability.PUT_WRITES: 10,
    Capability.GET_TUPLE: 10,
    Capability.LIST: 16,
    Capability.DELETE_THREAD: 5,
    Capability.DELETE_FOR_RUNS: 7,
    Capability.COPY_THREAD: 8,
    Capability.PRUNE: 8,
}


KEY = bytes(range(140, 172))


class ThroughSync(BaseCheckpointSaver[Any]):
    """A saver whose async methods call the sync methods of an AgentSaver, on another OS thread as LangGraph does."""

    def __init__(self, inner: AgentSaver) -> None:
        super().__init__(serde=inner.serde)
        self.inner = inner

    async def aput(
        self, config: RunnableConfig, checkpoint: Checkpoint, metadata: CheckpointMetadata, new_versions: Any
    ) -> RunnableConfig:
        return await asyncio.to_thread(self.inner.put, config, checkpoint, metadata, new_versions)

    async def aput_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        await asyncio.to_thread(self.inner.put_writes, config, writes, task_id, task_path)

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        return await asyncio.to_thread(self.inner.get_tuple, config)

    async def alist(self, config: RunnableConfig | None, **options: Any) -> AsyncIterator[CheckpointTuple]:
        for item in await asyncio.to_thread(lambda: list(self.inner.list(config, **options))):
            yield item

    async def adelete_thread(self, thread_id: str) -> None:
        await asyncio.to_thread(self.inner.delete_thread, thread_id)

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        await asyncio.to_thread(self.inner.delete_for_runs, run_ids)

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        await asyncio.to_thread(self.inner.copy_thread, source_thread_id, target_thread_id)

    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        await asyncio.to_thread(lambda: self.inner.prune(thread_ids, strategy=strategy))


def run_suite(folder: Path, form: str) -> tuple[CapabilityReport, list[str]]:
    """Run the whole suite, each capability on a fresh file; the report and the tests that passed."""
    files = iter(folder / f"{number}.db" for number in range(100))
    passed: list[str] = []

    async def factory() -> AsyncGenerator[BaseCheckpointSaver[Any], None]:
        path = next(files)
        key = KEY if form.startswith("sealed") else None
        async with AgentSaver(path, key=key) as saver:
            yield saver if form.endswith("async") else ThroughSync(saver)
        assert_sound(path, key)

    def note(capability: str, name: str, ok: bool, error: str | None) -> None:
        if ok:
            passed.append(name)

    registered = RegisteredCheckpointer(f"AgentSaver, {form}", factory)
    return asyncio.run(validate(registered, progress=ProgressCallbacks(on_test_result=note))), passed


@pytest.fixture(scope="module", params=["sync", "async", "sealed sync", "sealed async"])
def suite(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    return run_suite(tmp_path_factory.mktemp("conformance"), request.param)


@pytest.mark.parametrize("capability", list(Capability))
def test_capability(suite: tuple[CapabilityReport, list[str]], capability: Capability) -> None:
    """Each capability is present and all of its tests ran and passed; none was skipped."""
    report, passed = suite
    result = report.results[capability.value]
    assert result.detected
    assert result.passed is True
    assert result.failures == []
    assert (result.tests_failed, result.tests_skipped) == (0, 0)
    assert result.tests_passed == len(SUITE[capability]) >= AT_LEAST[capability]
    assert {test.__name__ for test in SUITE[capability]} <= set(passed)


def test_whole_report(suite: tuple[CapabilityReport, list[str]]) -> None:
    """The report's level is FULL, and it holds every capability that the suite knows."""
    report, passed = suite
    assert report.conformance_level() == "FULL"
    assert set(report.results) == {capability.value for capability in Capability}
    assert len(passed) == sum(len(tests) for tests in SUITE.values())


def test_keep_latest_cases_of_the_suite(suite: tuple[CapabilityReport, list[str]]) -> None:
    """The suite's keep_latest cases are among those that passed."""
    wanted = {test.__name__ for test in ALL_PRUNE_TESTS if "keep_latest" in test.__name__}
    assert len(wanted) >= 4
    assert wanted <= set(suite[1])


def test_suite_sees_a_fault(tmp_path: Path) -> None:
    """The runner above reports a saver that doesn't keep the newest checkpoint: it can fail."""

    class Faulty(AgentSaver):
        async def aprune(self, thread_ids: Any, *, strategy: str = "keep_latest") -> None:
            await super().aprune(thread_ids, strategy="delete")

    async def factory() -> AsyncGenerator[BaseCheckpointSaver[Any], None]:
        async with Faulty(tmp_path / "faulty.db") as saver:
            yield saver

    report = asyncio.run(validate(RegisteredCheckpointer("faulty", factory), capabilities={"prune"}))
    assert report.results["prune"].passed is False
    assert report.results["prune"].tests_failed >= 4
