"""Where a transfer reads from: another saver, or the file of an official one, by one interface."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import WRITES_IDX_MAP, BaseCheckpointSaver, CheckpointTuple
from langgraph.checkpoint.memory import InMemorySaver

from agent_ckpt.errors import CorruptionError

_PAGE = 64


class Key(NamedTuple):
    """Which checkpoint of a thread, and its parent's id."""

    ns: str
    checkpoint_id: str
    parent_id: str | None


class Write(NamedTuple):
    """One pending write as LangGraph orders them: by task_path, task_id and index."""

    task_path: str
    task_id: str
    idx: int
    channel: str
    value: Any


@dataclass(frozen=True, slots=True)
class Item:
    """A checkpoint of the source with its pending writes, in their order."""

    key: Key
    checkpoint: dict[str, Any]
    metadata: dict[str, Any]
    writes: list[Write]


class Source(Protocol):
    """What a transfer asks of its source; each question has a sync and an async form.

    `listed` gives thread ids and keys, newest first as the source lists them: of all threads, or of one and then
    at most `limit` that are older than the checkpoint `before`. A source with `page` None lists a thread whole.
    """

    page: int | None

    def listed(self, thread_id: str | None, before: str | None, limit: int | None) -> list[tuple[str, Key]]: ...
    async def alisted(self, thread_id: str | None, before: str | None, limit: int | None) -> list[tuple[str, Key]]: ...
    def read(self, thread_id: str, key: Key) -> Item: ...
    async def aread(self, thread_id: str, key: Key) -> Item: ...


class SaverSource:
    """Any BaseCheckpointSaver, through its public methods."""

    def __init__(self, saver: BaseCheckpointSaver[Any]) -> None:
        self._saver = saver
        # Those that fetch a listing whole before they give its first item; all of them list by id and page by id.
        names = {kind.__module__ for kind in type(saver).__mro__}
        whole = ("langgraph.checkpoint.postgres", "langgraph.checkpoint.mysql", "langgraph.checkpoint.redis")
        self.page = _PAGE if any(name.startswith(whole) for name in names) else None

    def listed(self, thread_id: str | None, before: str | None, limit: int | None) -> list[tuple[str, Key]]:
        items = self._saver.list(_listing(thread_id), before=_before(thread_id, before), limit=limit)
        return [_key_of(item) for item in items]

    async def alisted(self, thread_id: str | None, before: str | None, limit: int | None) -> list[tuple[str, Key]]:
        items = self._saver.alist(_listing(thread_id), before=_before(thread_id, before), limit=limit)
        return [_key_of(item) async for item in items]

    def read(self, thread_id: str, key: Key) -> Item:
        return self._item(thread_id, key, self._saver.get_tuple(_addressing(thread_id, key)))

    async def aread(self, thread_id: str, key: Key) -> Item:
        return self._item(thread_id, key, await self._saver.aget_tuple(_addressing(thread_id, key)))

    def _item(self, thread_id: str, key: Key, found: CheckpointTuple | None) -> Item:
        if found is None:
            raise CorruptionError(
                f"the source lists checkpoint {key.checkpoint_id!r} in namespace {key.ns!r} of thread {thread_id!r}, "
                f"and doesn't give it: it was deleted meanwhile, or is damaged. Nothing of the thread was stored; "
                f"run the transfer again.",
                thread_id=thread_id,
                checkpoint_ns=key.ns,
                checkpoint_id=key.checkpoint_id,
            )
        return Item(key, dict(found.checkpoint), dict(found.metadata), self._writes(thread_id, key, found))

    def _writes(self, thread_id: str, key: Key, found: CheckpointTuple) -> list[Write]:
        pending = found.pending_writes or []
        if isinstance(self._saver, InMemorySaver):
            # It tells task_path and index, which a CheckpointTuple leaves out.
            kept = self._saver.writes.get((thread_id, key.ns, key.checkpoint_id), {})
            places = sorted((path, task_id, idx) for (task_id, idx), (_, _, _, path) in kept.items())
            if [task_id for _, task_id, _ in places] == [task_id for task_id, _, _ in pending]:
                return [Write(*place, *rest) for place, (_, *rest) in zip(places, pending, strict=True)]
        return numbered(pending)


def numbered(pending: Sequence[tuple[str, str, Any]]) -> list[Write]:
    """Place the writes of a source that tells only their order.

    A task's writes get the indexes that put_writes gives them. Where the order of the tasks is not that of their
    ids, the task_path, which the source knew, is told by a number.
    """
    tasks: dict[str, list[tuple[str, Any]]] = {}
    for task_id, channel, value in pending:
        tasks.setdefault(task_id, []).append((channel, value))
    by_id = list(tasks) == sorted(tasks)
    writes: list[Write] = []
    for at, (task_id, own) in enumerate(tasks.items()):
        regular = 0
        for channel, value in own:
            idx = WRITES_IDX_MAP.get(channel, regular)
            regular += channel not in WRITES_IDX_MAP
            writes.append(Write("" if by_id else f"{at:08}", task_id, idx, channel, value))
    return sorted(writes, key=lambda write: write[:3])


def _listing(thread_id: str | None) -> RunnableConfig | None:
    return {"configurable": {"thread_id": thread_id}} if thread_id is not None else None


def _before(thread_id: str | None, before: str | None) -> RunnableConfig | None:
    return {"configurable": {"thread_id": thread_id, "checkpoint_id": before}} if before is not None else None


def _addressing(thread_id: str, key: Key) -> RunnableConfig:
    return {"configurable": {"thread_id": thread_id, "checkpoint_ns": key.ns, "checkpoint_id": key.checkpoint_id}}


def _key_of(item: CheckpointTuple) -> tuple[str, Key]:
    conf = item.config["configurable"]
    parent = item.parent_config["configurable"].get("checkpoint_id") if item.parent_config else None
    return str(conf["thread_id"]), Key(conf.get("checkpoint_ns", ""), str(item.checkpoint["id"]), parent)


def oldest_first(listed: Iterable[tuple[str, Key]]) -> list[Key]:
    """Keys in the order in which they are to be committed: as the source orders them, parents before children.

    Clocks that disagree give a child an id below its parent's.
    """
    spaces: dict[str, list[Key]] = {}
    for _, key in reversed(list(listed)):
        spaces.setdefault(key.ns, []).append(key)
    # A source may list one namespace after another; across them, ids are what tells the time.
    keys = list(heapq.merge(*spaces.values(), key=lambda key: key.checkpoint_id))
    there = {key[:2]: key for key in keys}
    placed: dict[tuple[str, str], Key] = {}
    for key in keys:
        chain = [key]
        while chain:
            last = chain[-1]
            parent = there.get((last.ns, last.parent_id)) if last.parent_id else None
            if parent is None or parent[:2] in placed or parent in chain:
                placed.setdefault(last[:2], last)
                chain.pop()
            else:
                chain.append(parent)
    return list(placed.values())
