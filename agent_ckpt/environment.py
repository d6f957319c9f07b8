"""The versions of what writes checkpoints, which each of them refers to."""

from __future__ import annotations

import json
import platform
from importlib.metadata import PackageNotFoundError, version

_PACKAGES = ("agent_ckpt", "langgraph", "langgraph-checkpoint", "langchain-core")


class Environment:
    """This process's versions, and the number under which a store has them.

    Attributes:
        number: the number, once a checkpoint was stored with it.
    """

    __slots__ = ("_content", "number")

    def __init__(self) -> None:
        self.number: int | None = None
        self._content: str | None = None

    @property
    def content(self) -> str:
        """The versions as JSON, the same text for the same versions."""
        if self._content is None:
            found = {name: _version(name) for name in _PACKAGES}
            self._content = json.dumps({**found, "python": platform.python_version()})
        return self._content


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:  # run from a source tree that isn't installed
        return None
