"""The savers that are compared, opened by one convention, sync and async."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    copy_checkpoint,
)
from langgraph.checkpoint.memory import InMemorySaver

from tests.agents import Saver


class NullSaver(BaseCheckpointSaver[str]):
    """Keeps each namespace's last checkpoint and its pending writes, by reference: what a graph costs by itself.

    Nothing is serialized and nothing older is kept, so it serves as the floor to subtract, not as a saver.
    """

    def __init__(self) -> None:
        super().__init__()
        self._last: dict[tuple[str, str], CheckpointTuple] = {}
        self._writes: dict[tuple[str, str], dict[str, list[tuple[str, str, Any]]]] = defaultdict(dict)

    def get_next_version(self, current: str | None, channel: None) -> str:
        return f"{int(current or 0) + 1:032}"

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        key = _key(config)
        last = self._last.get(key)
        asked = config["configurable"].get("checkpoint_id")
        if last is None or asked not in (None, last.checkpoint["id"]):
            return None
        writes = self._writes[key].get(last.checkpoint["id"], [])
        return last._replace(checkpoint=copy_checkpoint(last.checkpoint), pending_writes=list(writes))

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        found = self.get_tuple(config) if config else None
        return iter([found] if found else [])

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        thread_id, ns = key = _key(config)
        stored: RunnableConfig = {
            "configurable": {"thread_id": thread_id, "checkpoint_ns": ns, "checkpoint_id": checkpoint["id"]}
        }
        self._last[key] = CheckpointTuple(stored, checkpoint, metadata, None, [])
        writes = self._writes[key]
        for old in [each for each in writes if each < checkpoint["id"]]:
            del writes[old]
        return stored

    def put_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        stored = self._writes[_key(config)].setdefault(config["configurable"]["checkpoint_id"], [])
        stored.extend((task_id, channel, value) for channel, value in writes)

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        return self.get_tuple(config)

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        return self.put(config, checkpoint, metadata, new_versions)

    async def aput_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        self.put_writes(config, writes, task_id, task_path)


def _key(config: RunnableConfig) -> tuple[str, str]:
    return config["configurable"]["thread_id"], config["configurable"].get("checkpoint_ns", "")


@dataclass(frozen=True)
class Contender:
    """One saver of the comparison.

    Attributes:
        name: column and file name.
        on_disk: keeps a file that another process can restore from.
        open: context manager that opens it on a path for sync use, with its own defaults.
        aopen: the same for async use.
    """

    name: str
    on_disk: bool
    open: Callable[[Path], AbstractContextManager[Saver]]
    aopen: Callable[[Path], AbstractAsyncContextManager[Saver]]


@contextmanager
def _open_ours(path: Path) -> Iterator[Saver]:
    from agent_ckpt import AgentSaver

    with AgentSaver(path) as saver:
        yield saver


@asynccontextmanager
async def _aopen_ours(path: Path) -> AsyncIterator[Saver]:
    from agent_ckpt import AgentSaver

    async with AgentSaver(path) as saver:
        yield saver


@contextmanager
def _open_official(path: Path) -> Iterator[Saver]:
    from langgraph.checkpoint.sqlite import SqliteSaver

    with SqliteSaver.from_conn_string(str(path)) as saver:
        saver.setup()
        yield saver


@asynccontextmanager
async def _aopen_official(path: Path) -> AsyncIterator[Saver]:
    from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

    async with AsyncSqliteSaver.from_conn_string(str(path)) as saver:
        await saver.setup()
        yield saver


def _in_process(name: str, make: Callable[[], Saver]) -> Contender:
    @contextmanager
    def opened(path: Path) -> Iterator[Saver]:
        yield make()

    @asynccontextmanager
    async def aopened(path: Path) -> AsyncIterator[Saver]:
        yield make()

    return Contender(name, False, opened, aopened)


OURS = Contender("ours", True, _open_ours, _aopen_ours)
OFFICIAL = Contender("official", True, _open_official, _aopen_official)
MEMORY = _in_process("memory", InMemorySaver)
NULL = _in_process("null", NullSaver)
CONTENDERS = {each.name: each for each in (OURS, OFFICIAL, MEMORY)}


def warm_up(name: str) -> None:
    """Import what a contender needs, so that no measurement includes an import."""
    if name == "ours":
        import agent_ckpt.saver  # noqa: F401  (the package itself imports its parts on first use)
    if name == "official":
        import langgraph.checkpoint.sqlite.aio  # noqa: F401
