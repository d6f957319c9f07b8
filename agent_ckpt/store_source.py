"""Another AgentSaver as the source of a transfer."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from agent_ckpt import thread_work
from agent_ckpt.codec.portable import Portable
from agent_ckpt.core import bring, portable
from agent_ckpt.reports import ThreadInfo
from agent_ckpt.saver import AgentSaver
from agent_ckpt.steps import Call, Steps


class StoreSource:
    """Another AgentSaver: its threads are taken as they are stored, history records and commit order too."""

    page: int | None = None

    def __init__(self, saver: AgentSaver) -> None:
        self._saver = saver

    def listed(self, *_: Any) -> list[tuple[str, None]]:
        return _newest_first(self._saver._run(thread_work.threads()))

    async def alisted(self, *_: Any) -> list[tuple[str, None]]:
        return _newest_first(await self._saver._arun(thread_work.threads()))

    def collect(self, thread_id: str) -> Portable:
        return self._saver._run(_collecting(thread_id))

    async def acollect(self, thread_id: str) -> Portable:
        return await self._saver._arun(_collecting(thread_id))


def _newest_first(found: Sequence[ThreadInfo]) -> list[tuple[str, None]]:
    return [(info.thread_id, None) for info in reversed(found) if not bring.is_staged(info.thread_id)]


def _collecting(thread_id: str) -> Steps[Portable]:
    made: Portable = yield Call(partial(portable.collect, thread_id))
    return made
