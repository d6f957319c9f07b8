"""What is said of a value that can't be kept: where it stands, why, and what to do."""

from __future__ import annotations

from typing import Any

DEEPEST = 150
TOO_DEEP = f"it contains itself, or is nested more than {DEEPEST} deep"
_LONGEST_PATH = 240


class Unstorable(Exception):
    """A value that can't be kept, and where in the encoded one it stands.

    Attributes:
        kind: its type.
        reason: why it can't be kept.
        remedy: what to do.
        item: which of several values it stands in, set where several are encoded at once.
    """

    def __init__(self, value: Any, reason: str, remedy: str) -> None:
        super().__init__(reason)
        self.kind = f"{type(value).__module__}.{type(value).__qualname__}"
        self.reason = reason
        self.remedy = remedy
        self.item: int | None = None
        self._steps: list[str] = []

    @property
    def path(self) -> str:
        """Where, such as `['a'][0].x`; "" for the value itself."""
        return short("".join(reversed(self._steps)))

    def under(self, step: str) -> Unstorable:
        """The same, one step further out."""
        self._steps.append(step)
        return self


def short(path: str) -> str:
    """A path that a person can read: the middle of a very long one is left out."""
    return path if len(path) <= _LONGEST_PATH else f"{path[: _LONGEST_PATH // 2]} ... {path[-_LONGEST_PATH // 2 :]}"
