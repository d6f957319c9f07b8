"""What differs between a stored checkpoint and the graph that is to go on from it."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal

from langchain_core.runnables import RunnableConfig
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.base import CheckpointTuple
from langgraph.checkpoint.serde.types import _DeltaSnapshot

from agent_ckpt.errors import SchemaChangeError, SchemaChangeWarning
from agent_ckpt.later import Later

if TYPE_CHECKING:
    from agent_ckpt import reports
    from agent_ckpt.reports import SchemaChange
else:
    reports = Later("agent_ckpt.reports")

OnChange = Literal["ignore", "warn", "raise"]

_BRANCH = "branch:to:"
_JOIN = "join:"
_TASKS = "__pregel_tasks"
_PLAIN = (list, dict, tuple, set, str, bytes, bool, int, float)
_NUMBERS: Mapping[type, tuple[type, ...]] = {float: (float, int), int: (int,)}


class View:
    """A graph's nodes and channels.

    Args:
        nodes: names of its nodes.
        channels: its channels by name.
    """

    __slots__ = ("channels", "nodes")

    def __init__(self, nodes: Iterable[str], channels: Mapping[str, Any]) -> None:
        self.nodes = frozenset(nodes)
        self.channels = channels

    @staticmethod
    def of(graph: Any) -> View | None:
        """The view of a compiled graph, or of the loop that runs one; None where it has none."""
        nodes = getattr(graph, "nodes", None)
        # A graph that isn't compiled has both too, without the triggers.
        channels = getattr(graph, "channels" if hasattr(graph, "invoke") else "specs", None)
        return View(nodes, channels) if isinstance(nodes, Mapping) and isinstance(channels, Mapping) else None

    def deltas(self, found: CheckpointTuple) -> list[str]:
        """The DeltaChannels that a checkpoint has, and holds no value of: they are rebuilt from what came before."""
        versions, values = found.checkpoint["channel_versions"], found.checkpoint["channel_values"]
        rebuilt = (name for name, channel in self.channels.items() if isinstance(channel, DeltaChannel))
        return [name for name in rebuilt if name in versions and name not in values]


def compare(found: CheckpointTuple, view: View) -> list[SchemaChange]:
    """Every difference, those first that the graph can't go on with."""
    fatal = {change.name: change for change in _tasks_gone(found, view)}
    nodes = sorted(name for name in found.checkpoint["versions_seen"] if not name.startswith("__"))
    removed = [name for name in nodes if name not in view.nodes and name not in fatal]
    return [
        *fatal.values(),
        *_writes_gone(found, view),
        *_unloadable(found, view),
        *_removed(found, view),
        *(reports.SchemaChange("node_removed", name, f"node {name!r} ran before and is gone") for name in removed),
        *_retyped(found, view),
        *_added(found, view),
    ]


def _tasks_gone(found: CheckpointTuple, view: View) -> Iterator[SchemaChange]:
    """Tasks that wait for a node which isn't there: LangGraph would pass over them without a word."""
    checkpoint = found.checkpoint
    values, versions = checkpoint["channel_values"], checkpoint["channel_versions"]
    for channel in values:
        if channel.startswith(_BRANCH) and (node := channel.removeprefix(_BRANCH)) not in view.nodes:
            yield _gone(node, "a task for it is pending")
        elif channel.startswith(_JOIN) and channel not in view.channels:
            sources, _, node = channel.removeprefix(_JOIN).rpartition(":")
            for name in (node, *sources.split("+")):
                if name not in view.nodes:
                    yield _gone(name, f"the join of {sources} before {node} has begun")
    for node, seen in checkpoint["versions_seen"].items():
        if node.startswith("__") or node in view.nodes:
            continue
        newer = [name for name, last in seen.items() if name in values and _newer(versions.get(name), last)]
        if newer:
            yield _gone(node, f"it is still to run on {', '.join(newer)}")
    sends = values.get(_TASKS) or ()
    written = [value for _, channel, value in found.pending_writes or () if channel == _TASKS]
    for send in (*(sends if isinstance(sends, (list, tuple)) else ()), *written):
        target = getattr(send, "node", None)
        if isinstance(target, str) and target not in view.nodes:
            yield _gone(target, "a Send for it is pending")
    for _, channel, _ in found.pending_writes or ():
        if channel.startswith(_BRANCH) and (node := channel.removeprefix(_BRANCH)) not in view.nodes:
            yield _gone(node, "a finished task leads to it")


def _gone(node: str, why: str) -> SchemaChange:
    return reports.SchemaChange("pending_node_gone", node, f"node {node!r} is gone, and {why}")


def _newer(version: Any, last: Any) -> bool:
    try:
        return version is not None and bool(version > last)
    except TypeError:
        return False


def _writes_gone(found: CheckpointTuple, view: View) -> Iterator[SchemaChange]:
    known = {channel for _, channel, _ in found.pending_writes or ()}
    for channel in sorted(known):
        inner = channel.startswith(("__", _BRANCH)) or channel in view.channels
        if not inner:
            yield reports.SchemaChange(
                "pending_write_gone", channel, f"a finished task wrote to {channel!r}, which is gone"
            )


def _unloadable(found: CheckpointTuple, view: View) -> Iterator[SchemaChange]:
    values = found.checkpoint["channel_values"]
    since: Any = found.metadata.get("counters_since_delta_snapshot") or {}
    for name, channel in view.channels.items():
        if isinstance(channel, DeltaChannel) or not hasattr(channel, "from_checkpoint"):
            continue
        if name in since or isinstance(values.get(name), _DeltaSnapshot):
            detail = f"channel {name!r} was a DeltaChannel, and is a {type(channel).__name__}, which can't read it"
            yield reports.SchemaChange("unloadable", name, detail)
        elif name in values:
            try:
                channel.from_checkpoint(values[name])
            except Exception as exc:
                detail = f"channel {name!r} can't take the stored value ({type(exc).__name__})"
                yield reports.SchemaChange("unloadable", name, detail)


def _removed(found: CheckpointTuple, view: View) -> Iterator[SchemaChange]:
    for name in found.checkpoint["channel_values"]:
        # The triggers of a node are told with their node.
        if name not in view.channels and not name.startswith((_BRANCH, "__")):
            yield reports.SchemaChange("channel_removed", name, f"channel {name!r} has a stored value and is gone")


def _added(found: CheckpointTuple, view: View) -> Iterator[SchemaChange]:
    stored = found.checkpoint["channel_versions"].keys() | found.checkpoint["channel_values"].keys()
    for name, channel in view.channels.items():
        inner = name.startswith((_BRANCH, _JOIN, "__")) or not hasattr(channel, "from_checkpoint")
        if not inner and name not in stored:
            yield reports.SchemaChange("channel_added", name, f"channel {name!r} has no stored value")


def _retyped(found: CheckpointTuple, view: View) -> Iterator[SchemaChange]:
    for name, value in found.checkpoint["channel_values"].items():
        declared = getattr(view.channels.get(name), "typ", None)
        declared = getattr(declared, "__origin__", declared)
        if declared not in _PLAIN or type(value) not in _PLAIN or isinstance(value, _NUMBERS.get(declared, declared)):
            continue
        is_type, was_type = declared.__name__, type(value).__name__
        yield reports.SchemaChange(
            "channel_retyped", name, f"channel {name!r} holds a {was_type}, and is declared {is_type}"
        )


class Watch:
    """What one saver does about changes at the restores of runs.

    Args:
        on_change: the option `on_schema_change`.
    """

    def __init__(self, on_change: OnChange) -> None:
        self._on_change = on_change
        self._told: set[tuple[str, str]] = set()
        self.guards: list[tuple[View, OnChange]] = []

    @property
    def looks(self) -> bool:
        """Whether the graph of a run has to be looked at."""
        return self._on_change != "ignore" or bool(self.guards)

    def restored(self, found: CheckpointTuple, loop: Any) -> None:
        """A run restored a checkpoint; no node has run yet.

        Args:
            loop: LangGraph's loop of the run, or None where it wasn't found: then the graph guarded last counts.

        Raises:
            SchemaChangeError: for what a guard or the option says so.
        """
        guard = self.guards[-1] if self.guards else None
        view = View.of(loop) if loop is not None else guard[0] if guard is not None else None
        if view is None:
            return
        looked = compare(found, view) if guard is not None else [*_tasks_gone(found, view), *_removed(found, view)]
        others = [change for change in looked if change.kind != "channel_added"]
        if guard is not None and guard[1] == "raise" and any(change.fatal for change in others):
            raise refusal(found.config, others)
        removed = [change for change in others if change.kind in ("channel_removed", "pending_node_gone")]
        if removed and self._on_change == "raise":
            raise refusal(found.config, removed)
        loud = guard is not None and guard[1] != "ignore"
        self._tell(found.config, others if loud else removed if self._on_change == "warn" else [])

    def unresolved(self, config: RunnableConfig, kept: dict[str, str]) -> None:
        """Values of the checkpoint that a config names were read as Unresolved, since their classes aren't there."""
        names = list(kept)
        changes = [
            reports.SchemaChange("unresolved", name, f"class {name} isn't there: {kept[name]}") for name in names
        ]
        if self._on_change == "raise":
            kept.clear()
            raise refusal(config, changes)
        if self._on_change == "warn":
            self._tell(config, changes)

    def _tell(self, config: RunnableConfig, changes: list[SchemaChange]) -> None:
        fresh = [change for change in changes if (change.kind, change.name) not in self._told]
        self._told.update((change.kind, change.name) for change in fresh)
        if fresh:
            place = config["configurable"]
            message = (
                f"the code changed since checkpoint {place['checkpoint_id']!r} in namespace {place['checkpoint_ns']!r} "
                f"of thread {str(place['thread_id'])!r} was stored: {'; '.join(change.detail for change in fresh)}"
            )
            warnings.warn(message, SchemaChangeWarning, stacklevel=2)


def refusal(config: RunnableConfig, changes: list[SchemaChange]) -> SchemaChangeError:
    """The error of a run that may not go on."""
    place = config["configurable"]
    stored = "No node of it has run" if place["checkpoint_ns"] else "No node has run and nothing was stored"
    return SchemaChangeError(
        f"the graph can't go on from checkpoint {place['checkpoint_id']!r} in namespace {place['checkpoint_ns']!r} of "
        f"thread {str(place['thread_id'])!r}: {'; '.join(change.detail for change in changes)}. {stored}. "
        f"What to do: give the graph what is gone (a node of the old name may hand over to the "
        f"new one), migrate the state (state_version, migrations), go on elsewhere with "
        f"graph.update_state(config, values, as_node=...), or roll the thread back with saver.rollback(config).",
        thread_id=str(place["thread_id"]),
        checkpoint_ns=place["checkpoint_ns"],
        checkpoint_id=place["checkpoint_id"],
        changes=[(change.kind, change.name) for change in changes],
    )
