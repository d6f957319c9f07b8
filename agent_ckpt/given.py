"""The lists that a run was given at its restore, for as long as nobody can have changed anything in them.

To see what a put brings, every item of a list is compared with what is stored, since a node can have changed any of
them in place. But before a run's first node no code runs that could: LangGraph stores the run's input, then applies
it and stores that. Of these two puts nothing needs to be compared but what the input brings.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from operator import attrgetter, is_
from typing import Any

from langgraph.constants import START

from agent_ckpt.codec.tree import State
from agent_ckpt.core.hot import path_of
from agent_ckpt.runs import GoingRun

Untouched = dict[str, tuple[State, int]]
"""By a channel's path, the state that its list was given from, and how many leading items are that state's."""
_REDUCERS = "langgraph.graph.message"
_id_of = attrgetter("id")


class Given:
    """What one restore gave to a run.

    Attributes:
        lasts: whether the next put may still find something untouched.
    """

    __slots__ = ("_begun", "_lists", "_named", "_ns", "_run", "_seen", "lasts")

    def __init__(self, ns: str, checkpoint: Mapping[str, Any], states: Mapping[str, State], run: GoingRun) -> None:
        """
        Args:
            ns: the namespace that was restored.
            checkpoint: the checkpoint that the run is given.
            states: by channel, what was given from memory.
            run: the run.
        """
        values = checkpoint["channel_values"]
        lists = {name: (values[name], state) for name, state in states.items() if type(values.get(name)) is list}
        self._ns, self._run = ns, run
        self._lists = {name: found for name, found in lists.items() if len(found[0]) == len(found[1].bodies)}
        # LangGraph gives messages that have no id one, in place.
        self._named = {
            name for name, (value, state) in self._lists.items() if state.run and None not in map(_id_of, value)
        }
        self._seen = _of_nodes(checkpoint)
        self._begun = False
        self.lasts = True

    def untouched(
        self, ns: str, checkpoint: Mapping[str, Any], metadata: Mapping[str, Any], new_versions: Mapping[str, Any]
    ) -> Untouched:
        """What of a put's lists is as it was given. Asked once for each put, in order."""
        source = metadata.get("source")
        begins = source == "input" and not self._begun
        applies = source == "loop" and self._begun
        values = checkpoint.get("channel_values") or {}
        self._begun, self.lasts = True, begins
        if ns != self._ns or not (begins or applies) or _of_nodes(checkpoint) != self._seen:
            self.lasts = False
            return {}
        if begins:
            names = [
                name for name in self._lists if name not in new_versions and values.get(name) is self._lists[name][0]
            ]
        else:
            names = [name for name in self._named if self._adds(name) and self._begins(name, values.get(name))]
        return {path_of(name): (state, len(value)) for name in names for value, state in (self._lists[name],)}

    def _adds(self, name: str) -> bool:
        """Whether a channel's reducer is LangGraph's own, which changes no message that is there and has an id."""
        channel = self._run.channel(name)
        # Where it isn't imported nobody uses it, and importing it would take longer than all else of a restore.
        module = sys.modules.get(_REDUCERS)
        return module is not None and getattr(channel, "operator", None) is module.add_messages

    def _begins(self, name: str, value: Any) -> bool:
        """Whether a list begins with the very messages that were given."""
        given, state = self._lists[name]
        size = len(given)
        return type(value) is list and len(value) >= size == len(state.bodies) and all(map(is_, given, value))


def _of_nodes(checkpoint: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """What each node has seen, but for the input's."""
    seen = checkpoint.get("versions_seen") or {}
    return {node: dict(channels) for node, channels in seen.items() if node != START}
