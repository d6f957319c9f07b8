"""A fork inherits no open connection, also not that of an event loop which has just ended."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from agent_ckpt import AgentSaver
from agent_ckpt.sqlite.aio import _LoopReader


def test_a_reader_on_its_way_out_is_closed_before_a_fork(path: Path, monkeypatch: Any) -> None:
    """B48: the connection of an ended loop is closed by the hook before a fork, if its worker has not done so yet."""
    held: list[_LoopReader] = []
    with AgentSaver(path) as saver:
        with monkeypatch.context() as patch:
            # The worker is slow: it has been told to close and has not begun.
            patch.setattr(_LoopReader, "stop", lambda reader: held.append(reader))
            for _ in range(2):
                asyncio.run(saver.aget_tuple({"configurable": {"thread_id": "t"}}))
        loops = saver._backend._store.loops
        assert held
        assert all(reader.shared._connection is not None for reader in held)
        loops.close_handles()
        assert all(reader.shared._connection is None for reader in held)
        for reader in held:
            reader.stop()
            reader.worker.join(10)
        assert not loops._open_ones - set(loops._readers.values())
