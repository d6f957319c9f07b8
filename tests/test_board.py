"""The side file in which other processes see this one's runs and leases, when the disk doesn't take it."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from agent_ckpt import AgentSaver, runs
from agent_ckpt.sqlite import board
from tests.flight_workers import CONFIG, assistant
from tests.race_workers import WATCHDOG_S


def test_a_full_disk_is_no_lasting_harm(
    path: Path, saver: AgentSaver, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Where the side file can't be written, runs go on, with one warning and nothing left behind; once there is room,
    other processes see a run of this one again, and that a lease's holder lives."""
    other = board.RunBoard(str(path))
    seen: list[bool] = []

    def look() -> None:
        seen.extend(other.look(run.session_id, WATCHDOG_S) is not None for run in runs._going.values())

    graph, _ = assistant(saver, look)
    given = {"messages": [("user", "look first")]}

    def full(*_: Any) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        graph.invoke(given, CONFIG, durability="sync")
        with saver.lease("u"):
            assert not list(path.parent.glob("*-run-*"))
        graph.invoke(given, CONFIG, durability="sync")
    assert [record.levelname for record in caplog.records if "can't see" in record.message] == ["WARNING"]
    graph.invoke(given, CONFIG, durability="sync")
    assert seen == [False, False, True]
    with saver.lease("u") as lease:
        assert lease.id is not None
        assert other.alive(lease.id[:4])
