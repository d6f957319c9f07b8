"""The steps behind `get_delta_channel_history`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import DeltaChannelHistory
from langgraph.checkpoint.serde.types import _DeltaSnapshot

from agent_ckpt.carrier import config_for, place_of
from agent_ckpt.codec.values import ValueCodec
from agent_ckpt.core import read
from agent_ckpt.model import Place
from agent_ckpt.parts import Store
from agent_ckpt.planning import Reading
from agent_ckpt.seldom import delta
from agent_ckpt.steps import Call, Steps


def delta_history(
    store: Store, config: RunnableConfig, channels: Sequence[str]
) -> Steps[Mapping[str, DeltaChannelHistory]]:
    place = place_of(config)
    kept: dict[str, str] = {}
    found = yield from history_at(store, place, channels, store.codec, kept)
    if kept:
        store.code.watch.unresolved(config_for(place, None), kept)
    return found


def history_at(
    store: Store,
    place: Place,
    channels: Sequence[str],
    codec: ValueCodec,
    kept: dict[str, str],
    hot_of: read.HotOf | None = None,
) -> Steps[Mapping[str, DeltaChannelHistory]]:
    """What DeltaChannels are rebuilt from at a checkpoint, in the current state version.

    Args:
        kept: where to note the classes that weren't there, where they gave an Unresolved value.
        hot_of: what is known of a thread; None for what the saver knows, which learns from this read.

    Raises:
        CorruptionError, UnresolvedTypeError, MigrationError: for what can't be given back.
    """
    if not channels:
        return {}
    made: delta.Histories = yield Call(lambda: delta.history(place, channels, hot_of or store.hot.of))
    if made.thread is None:
        return {channel: {"writes": []} for channel in channels}
    if hot_of is None:
        store.hot.keep(place.thread_id, store.hot.of(place.thread_id, made.thread))
    value = Reading(codec, kept).values(made.thread, made.place, made.blobs)
    move = partial(store.code.migrations.delta, made.place)
    histories: dict[str, DeltaChannelHistory] = {}
    for channel in channels:
        trail = made.trails[channel]
        entry: DeltaChannelHistory = {
            "writes": [
                (task_id, channel, move(channel, value(ref, channel), version))
                for task_id, ref, version in trail.writes
            ]
        }
        if trail.seeded:
            seed = value(trail.seed, channel)
            if isinstance(seed, _DeltaSnapshot):
                entry["seed"] = _DeltaSnapshot(move(channel, seed.value, trail.seed_version))
            else:
                values = yield from _values_around(store, made.place, trail, channel, seed, codec)
                if channel in values:
                    entry["seed"] = values[channel]
        histories[channel] = entry
    return histories


def _values_around(
    store: Store, place: Place, trail: delta.Trail, channel: str, seed: Any, codec: ValueCodec
) -> Steps[Mapping[str, Any]]:
    """The channel values that a seed stands among, in the current state version.

    The channel was an ordinary one then: a migration saw its value together with all others.
    """
    migrations = store.code.migrations
    if not migrations.needs_values(trail.seed_version):
        return {channel: seed}
    if trail.seed_id is None:
        migrations.refuse_seed(place, channel, trail.seed_version)
    at = place._replace(checkpoint_id=trail.seed_id)
    restored: read.Restored = yield Call(partial(read.get_tuple, at, store.hot.of))
    if restored.found is None:
        migrations.refuse_seed(place, channel, trail.seed_version)
    written_at = [write[3] for write in restored.found.writes]
    whole = migrations.apply(Reading(codec).checkpoint_tuple(restored.found, None), written_at)
    return whole.checkpoint["channel_values"]
