"""Sealed stores for tests: a key, and savers that are closed and verified."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from agent_ckpt import AgentSaver

KEY = hashlib.sha256(b"the key of the tests").digest()
"""Random enough to be accepted, and the same in every process of a test."""


@contextmanager
def sealed_savers(path: Path) -> Iterator[Callable[..., AgentSaver]]:
    """Opens savers with the key; closes them all at the end, and verifies what they leave."""
    opened: list[AgentSaver] = []

    def open_one(**options: Any) -> AgentSaver:
        opened.append(AgentSaver(path, **{"key": KEY, **options}))
        return opened[-1]

    yield open_one
    for saver in opened:
        saver.close()
    if path.exists():
        with AgentSaver(path, create=False, key=KEY) as saver:
            report = saver.verify()
        assert not report.findings, report.findings
