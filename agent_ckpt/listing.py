"""Listing checkpoints, a page at a time."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from functools import partial
from typing import Any, Literal

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import CheckpointTuple

from agent_ckpt.carrier import checkpoint_id_of, namespace_of, thread_id_of
from agent_ckpt.core import read
from agent_ckpt.errors import CorruptionError, UnresolvedTypeError, UsageError
from agent_ckpt.filters import matches
from agent_ckpt.parts import Store
from agent_ckpt.planning import Reading
from agent_ckpt.steps import Call, Steps

log = logging.getLogger("agent_ckpt")

OnDamage = Literal["raise", "skip"]


class Listing:
    """One listing: reads a page at a time and holds nothing in between."""

    def __init__(
        self,
        store: Store,
        config: RunnableConfig | None,
        filter: Mapping[str, Any] | None,
        before: RunnableConfig | None,
        limit: int | None,
        on_damage: OnDamage,
    ) -> None:
        if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 0):
            raise UsageError(f"limit must be a whole number of at least 0, got {limit!r}")
        if filter is not None and not isinstance(filter, Mapping):
            raise UsageError(f"filter must be a dict of metadata, got {type(filter).__name__}")
        if on_damage not in ("raise", "skip"):
            raise UsageError(f"on_damage must be 'raise' or 'skip', got {on_damage!r}")
        self._store = store
        self._reading = Reading(store.codec)
        self._left = limit
        self._skips = on_damage == "skip"
        # First, since only then it is known that the config addresses a thread.
        thread_id = thread_id_of(config) if config is not None else None
        self._session = store.carrier.session_of(config) if config is not None else None
        self._query = read.Query(
            thread_id,
            namespace_of(config) if config is not None else None,
            checkpoint_id_of(config),
            checkpoint_id_of(before),
            (lambda body: matches(self._reading.metadata(body), filter)) if filter else None,
            lambda body: self._reading.metadata(body).get("parents") or {},
        )
        simple = limit is not None and not filter and self._query.before is None
        self._size = min(read.PAGE, limit) if simple and limit is not None else read.PAGE

    def items(self, run: Callable[[Steps[Any]], Any]) -> Iterator[CheckpointTuple]:
        below: int | None = read.FOREVER
        while below is not None and self._left != 0:
            page = run(self._page(below))
            below = page.after
            yield from self._tuples(page)

    async def aitems(self, arun: Callable[[Steps[Any]], Awaitable[Any]]) -> AsyncIterator[CheckpointTuple]:
        below: int | None = read.FOREVER
        while below is not None and self._left != 0:
            page = await arun(self._page(below))
            below = page.after
            for item in self._tuples(page):
                yield item

    def _page(self, below: int) -> Steps[read.Page]:
        page: read.Page = yield Call(partial(read.list_page, self._query, below, self._size, self._store.hot.of))
        for found in page.found:
            thread_id = found.row.place.thread_id
            self._store.hot.keep(thread_id, self._store.hot.of(thread_id, found.thread))
        return page

    def _tuples(self, page: read.Page) -> Iterator[CheckpointTuple]:
        for found in page.found:
            if self._left == 0:
                return
            try:
                item = self._reading.checkpoint_tuple(found, self._session)
                item = self._store.code.migrations.apply(item, [write[3] for write in found.writes])
            except (CorruptionError, UnresolvedTypeError) as exc:
                if not self._skips:
                    raise
                log.warning("skipped in a listing: %s", exc)
                continue
            if self._left is not None:
                self._left -= 1
            yield item
