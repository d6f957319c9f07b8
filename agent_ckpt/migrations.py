"""Bringing stored channel values to the state that the running program expects."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from langgraph.checkpoint.base import CheckpointTuple

from agent_ckpt.errors import MigrationError

STATE_VERSION = "agent_ckpt_state_version"
"""The metadata key of a checkpoint's state version; only where the option is used."""
FIRST = 1
"""The state version of a checkpoint that doesn't say one."""


class Migrations:
    """The migrations of one saver.

    Args:
        state_version: what is stored from now on, and what stored values are brought to; 0: neither.
        steps: a version to the function from it to the next.
    """

    def __init__(self, state_version: int, steps: Mapping[int, Callable[..., Any]]) -> None:
        self._current = state_version
        self._steps = {number: (step, _takes_namespace(step)) for number, step in steps.items()}

    def stamped(self, metadata: dict[str, Any]) -> dict[str, Any]:
        """The metadata to store, with the state version where there is one."""
        return {**metadata, STATE_VERSION: self._current} if self._current else metadata

    def apply(self, found: CheckpointTuple) -> CheckpointTuple:
        """Bring a checkpoint that was read to the current state version; what is stored stays as it is.

        A channel that a migration adds gets the newest channel_version of the checkpoint, else LangGraph
        would not store it; one that it takes away loses its own, else the next put would keep its value.

        Raises:
            MigrationError: when the stored version is newer, a step is missing, or a step fails.
        """
        if not self._current:
            return found
        stored: Any = found.metadata.get(STATE_VERSION, FIRST)
        if stored == self._current:
            return found
        if type(stored) is not int or stored > self._current:
            raise self._error(
                found, stored, "it was stored by a newer program: deploy that one, or roll the thread back"
            )
        checkpoint: dict[str, Any] = dict(found.checkpoint)
        before = checkpoint["channel_values"]
        values = dict(before)
        for number in range(stored, self._current):
            values = self._step(found, number, values)
        versions = dict(checkpoint["channel_versions"])
        newest = max(versions.values(), default=None)
        for name in values.keys() - before.keys():
            if newest is not None:
                versions.setdefault(name, newest)
        for name in before.keys() - values.keys():
            versions.pop(name, None)
        checkpoint.update(channel_values=values, channel_versions=versions)
        return found._replace(checkpoint=checkpoint)  # type: ignore[arg-type]

    def _step(self, found: CheckpointTuple, number: int, values: dict[str, Any]) -> dict[str, Any]:
        if number not in self._steps:
            raise self._error(found, number, f"there is no migration from {number}: give migrations={{{number}: ...}}")
        step, takes_namespace = self._steps[number]
        namespace = found.config["configurable"]["checkpoint_ns"]
        if namespace and not takes_namespace:
            return values
        try:
            made = step(values, namespace) if takes_namespace else step(values)
        except Exception as exc:
            name = type(exc).__name__
            raise self._error(found, number, f"the migration from {number} raised {name}: mend it") from exc
        if made is None:
            return values
        if not isinstance(made, Mapping):
            kind = type(made).__name__
            raise self._error(found, number, f"the migration from {number} gave {kind}: return a dict, or None")
        return dict(made)

    def _error(self, found: CheckpointTuple, stored: Any, why: str) -> MigrationError:
        place = found.config["configurable"]
        return MigrationError(
            f"checkpoint {place['checkpoint_id']!r} in namespace {place['checkpoint_ns']!r} of thread "
            f"{place['thread_id']!r} has state version {stored}, this saver state_version {self._current}; {why}. "
            f"What is stored is unchanged.",
            thread_id=str(place["thread_id"]),
            checkpoint_ns=place["checkpoint_ns"],
            checkpoint_id=place["checkpoint_id"],
            expected=self._current,
            found=stored,
        )


def _takes_namespace(step: Callable[..., Any]) -> bool:
    """Whether a migration takes the namespace beside the values, and so is meant for subgraphs too."""
    try:
        parameters = inspect.signature(step).parameters.values()
    except (TypeError, ValueError):
        return False
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    needed = [one for one in parameters if one.kind in kinds and one.default is inspect.Parameter.empty]
    return len(needed) > 1
