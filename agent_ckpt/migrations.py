"""Bringing stored values to the state that the running program expects.

Channel values are brought there all at once, by the functions of `migrations`. What is on its way into channels
(pending writes, the writes that a DeltaChannel is rebuilt from) is brought there one by one, by those of
`write_migrations`: an update may have another shape than the value that it makes.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

from langgraph.checkpoint.base import CheckpointTuple
from langgraph.checkpoint.serde.types import _DeltaSnapshot

from agent_ckpt.errors import MigrationError
from agent_ckpt.model import STATE_VERSION, Place

FIRST = 1
"""The state version of a checkpoint, or of writes, that don't say one."""

_TASKS, _START = "__pregel_tasks", "__start__"
_IN_TRANSIT = (_TASKS, _START)
"""Channels of LangGraph's own whose values are on their way: Sends to nodes, and a run's input."""
_OF_USERS = frozenset((_TASKS, _START, "__return__", "__previous__", "__end__"))
"""Channels of LangGraph's own that hold what a user's function takes or gives."""
_TRIGGERS = ("branch:to:", "join:")


class _Step(NamedTuple):
    function: Callable[..., Any]
    takes_namespace: bool


class Migrations:
    """The migrations of one saver.

    Args:
        state_version: what is stored from now on, and what stored values are brought to; 0: neither.
        steps: a version to the function from it to the next, for channel values.
        write_steps: the same for single writes.
    """

    def __init__(
        self,
        state_version: int,
        steps: Mapping[int, Callable[..., Any]],
        write_steps: Mapping[int, Callable[..., Any]],
    ) -> None:
        self._current = state_version
        self._steps = {number: _Step(step, _takes(step) > 1) for number, step in steps.items()}
        self._write_steps = {number: _Step(step, _takes(step) > 2) for number, step in write_steps.items()}

    @property
    def current(self) -> int | None:
        """The state version of what is stored from now on, or None."""
        return self._current or None

    def stamped(self, metadata: dict[str, Any]) -> dict[str, Any]:
        """The metadata to store, with the state version where there is one."""
        return {**metadata, STATE_VERSION: self._current} if self._current else metadata

    def apply(self, found: CheckpointTuple, written_at: Sequence[int | None]) -> CheckpointTuple:
        """Bring a checkpoint that was read to the current state version; what is stored stays as it is.

        A channel that a migration adds gets the newest channel_version of the checkpoint, else LangGraph
        would not store it; one that it takes away loses its own, else the next put would keep its value.
        Writes for which there is no function stay as they are: `stuck` tells of them.

        Args:
            written_at: the state version of each pending write.

        Raises:
            MigrationError: when the stored version is newer, a step is missing, or a step fails.
        """
        if not self._current:
            return found
        stored: Any = found.metadata.get(STATE_VERSION, FIRST)
        if stored != self._current:
            found = self._with_values(found, stored)
        if all(version == self._current for version in written_at):
            return found
        place = _place_of(found)
        pending = [
            (task_id, *self._write(place, version, channel, value))
            for (task_id, channel, value), version in zip(found.pending_writes or (), written_at, strict=True)
        ]
        return found._replace(pending_writes=pending)

    def stuck(self, found: CheckpointTuple, written_at: Sequence[int | None]) -> MigrationError | None:
        """Why a run must not go on from a checkpoint that `apply` gave: a write has a shape that it doesn't expect."""
        if not self._current:
            return None
        place = _place_of(found)
        stored = found.metadata.get(STATE_VERSION, FIRST)
        waiting: list[tuple[str, Any]] = [(name, stored) for name in _IN_TRANSIT if _waits(found, name)]
        pending = zip(found.pending_writes or (), written_at, strict=True)
        waiting += [(write[1], version or FIRST) for write, version in pending if _is_of_users(write[1])]
        for name, version in waiting:
            if version > self._current:
                return self._error(place, version, f"a write to {name!r} was {_NEWER}")
            number = self._lacks(place.ns, version)
            if number is not None:
                return self._error(place, version, _no_function(f"a write to {name!r}", number))
        return None

    def delta(self, place: Place, channel: str, value: Any, version: int | None) -> Any:
        """A write that a DeltaChannel is rebuilt from, or its snapshot, in the current state version.

        Raises:
            MigrationError: when there is no function for it, or one fails.
        """
        version = version or FIRST
        if not self._current or version == self._current:
            return value
        if version > self._current:
            self._refuse(place, version, f"what DeltaChannel {channel!r} is rebuilt from was {_NEWER}")
        number = self._lacks(place.ns, version)
        if number is not None:
            self._refuse(place, version, _no_function(f"what DeltaChannel {channel!r} is rebuilt from", number))
        name, made = self._write(place, version, channel, value)
        if name != channel:
            self._refuse(place, version, f"a DeltaChannel can't be renamed, and {channel!r} became {name!r}")
        return made

    def needs_values(self, version: int | None) -> bool:
        """Whether a checkpoint's channel values have to be migrated."""
        return bool(self._current) and (version or FIRST) != self._current

    def refuse_seed(self, place: Place, channel: str, version: int | None) -> NoReturn:
        """Of a channel that became a DeltaChannel, its value is known, and the checkpoint that it stood in isn't.

        Raises:
            MigrationError: always.
        """
        why = f"{channel!r} was no DeltaChannel then, and the checkpoint that holds its value was pruned: keep it so"
        self._refuse(place, version or FIRST, why)

    def _with_values(self, found: CheckpointTuple, stored: Any) -> CheckpointTuple:
        place = _place_of(found)
        if type(stored) is not int or stored > self._current:
            self._refuse(place, stored, f"it was {_NEWER}")
        checkpoint: dict[str, Any] = dict(found.checkpoint)
        before = checkpoint["channel_values"]
        single = {n: value for n, value in before.items() if n in _IN_TRANSIT or isinstance(value, _DeltaSnapshot)}
        values = {name: value for name, value in before.items() if name not in single}
        for number in range(stored, self._current):
            values = self._step(place, number, values)
        values.update({name: self._single(place, stored, name, value) for name, value in single.items()})
        versions = dict(checkpoint["channel_versions"])
        newest = max(versions.values(), default=None)
        for name in values.keys() - before.keys():
            if newest is not None:
                versions.setdefault(name, newest)
        for name in before.keys() - values.keys():
            versions.pop(name, None)
        checkpoint.update(channel_values=values, channel_versions=versions)
        return found._replace(checkpoint=checkpoint)  # type: ignore[arg-type]

    def _step(self, place: Place, number: int, values: dict[str, Any]) -> dict[str, Any]:
        if number not in self._steps:
            self._refuse(place, number, f"there is no migration from {number}: give migrations={{{number}: ...}}")
        step = self._steps[number]
        if place.ns and not step.takes_namespace:
            return values
        made = self._call(place, number, "migration", step, (values,))
        if made is None:
            return values
        if not isinstance(made, Mapping):
            kind = type(made).__name__
            self._refuse(place, number, f"the migration from {number} gave {kind}: return a dict, or None")
        return dict(made)

    def _single(self, place: Place, stored: int, name: str, value: Any) -> Any:
        """A channel value that is moved like a write."""
        if isinstance(value, _DeltaSnapshot):
            return _DeltaSnapshot(self.delta(place, name, value.value, stored))
        parts = value if name == _TASKS and isinstance(value, (list, tuple)) else [value]
        moved = [self._write(place, stored, name, part) for part in parts]
        for channel, _ in moved:
            if channel != name:
                self._refuse(place, stored, f"a write to {name!r} can't go to {channel!r}")
        made = [part for _, part in moved]
        return made[0] if parts is not value else type(value)(made)

    def _write(self, place: Place, version: int | None, channel: str, value: Any) -> tuple[str, Any]:
        """A write in the current state version; as it is where there is no function for it."""
        version = version or FIRST
        if not _is_of_users(channel) or version >= self._current or self._lacks(place.ns, version) is not None:
            return channel, value
        for number in range(version, self._current):
            step = self._write_steps.get(number)
            if step is None or (place.ns and not step.takes_namespace):
                continue
            made = self._call(place, number, "write migration", step, (channel, value))
            if not isinstance(made, tuple) or len(made) != 2 or not isinstance(made[0], str):
                kind = type(made).__name__
                self._refuse(place, number, f"the write migration from {number} gave {kind}: return channel and value")
            channel, value = made
        return channel, value

    def _lacks(self, ns: str, version: int) -> int | None:
        """The first version from which a write of this namespace can't be brought on; None: it can be."""
        for number in range(version, self._current):
            if number in self._write_steps:
                continue
            step = self._steps.get(number)
            # A step for the root graph alone says that the others stay as they are.
            if not ns or step is None or step.takes_namespace:
                return number
        return None

    def _call(self, place: Place, number: int, what: str, step: _Step, args: tuple[Any, ...]) -> Any:
        try:
            return step.function(*args, *([place.ns] if step.takes_namespace else []))
        except Exception as exc:
            why = f"the {what} from {number} raised {type(exc).__name__}: mend it"
            raise self._error(place, number, why) from exc

    def _refuse(self, place: Place, stored: Any, why: str) -> NoReturn:
        raise self._error(place, stored, why)

    def _error(self, place: Place, stored: Any, why: str) -> MigrationError:
        return MigrationError(
            f"checkpoint {place.checkpoint_id!r} in namespace {place.ns!r} of thread {place.thread_id!r} holds state "
            f"version {stored}, this saver has state_version {self._current}; {why}. What is stored is unchanged.",
            thread_id=place.thread_id,
            checkpoint_ns=place.ns,
            checkpoint_id=place.checkpoint_id,
            expected=self._current,
            found=stored,
        )


_NEWER = "stored by a newer program: deploy that one, or roll the thread back"


def _no_function(what: str, number: int) -> str:
    return (
        f"{what} would reach the graph as it is: give write_migrations={{{number}: function}} (channel, value -> "
        f"channel, value), let the old program finish the step, or roll the thread back"
    )


def _is_of_users(channel: str) -> bool:
    """Whether what is written to a channel is the user's, and no mark of LangGraph's own."""
    return channel in _OF_USERS or not channel.startswith(("__", *_TRIGGERS))


def _waits(found: CheckpointTuple, name: str) -> bool:
    values = found.checkpoint["channel_values"]
    # An input may be anything, also what has no truth value; Sends are a list that may be empty.
    return name in values and (name != _TASKS or bool(values[name]))


def _place_of(found: CheckpointTuple) -> Place:
    place = found.config["configurable"]
    return Place(str(place["thread_id"]), place["checkpoint_ns"], place["checkpoint_id"])


def _takes(step: Callable[..., Any]) -> int:
    """How many arguments a function must be given."""
    try:
        parameters = inspect.signature(step).parameters.values()
    except (TypeError, ValueError):
        return 0
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(one.kind in kinds and one.default is inspect.Parameter.empty for one in parameters)
