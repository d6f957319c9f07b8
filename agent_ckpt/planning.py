"""From what LangGraph hands over to plans, and from what was read to what LangGraph expects.

Everything here happens on the caller's side, before a write is submitted or after a read has
returned, so that a later change by the caller to what it handed over can't leak in.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from langgraph.checkpoint.base import (
    WRITES_IDX_MAP,
    Checkpoint,
    CheckpointTuple,
)

from agent_ckpt.carrier import config_for, run_id_of, state_version_of
from agent_ckpt.codec import expand, frame, rows, tree
from agent_ckpt.codec.plan import RUN_FROM, Planner
from agent_ckpt.codec.values import DecodeError, UnresolvedError, ValueCodec
from agent_ckpt.core.flight import Rules
from agent_ckpt.core.hot import HotThread, path_of
from agent_ckpt.core.put import KEEP, PutPlan, Target, Written
from agent_ckpt.core.read import Found
from agent_ckpt.core.rows import damaged
from agent_ckpt.core.session import Session
from agent_ckpt.core.writes import WritesPlan
from agent_ckpt.errors import UnresolvedTypeError, UsageError
from agent_ckpt.model import CAPTURE, Body, Entry, Place, Ref, ThreadRow

_OWN_KEYS = frozenset(("v", "id", "ts", "channel_values", "channel_versions", "versions_seen", "updated_channels"))
NO_ENVIRONMENT = (None, "")
NOTHING: Mapping[str, Any] = {}


class Planning:
    """Makes the plan of one write for the thread as it is known in memory; empty for a new one."""

    def __init__(self, codec: ValueCodec, hot: HotThread, compression: str, rules: Rules) -> None:
        self.hot = hot
        self.hot.learn()
        # Before the first look: what another write adds meanwhile must not count as known here.
        self._known = self.hot.count
        self._codec = codec
        self._compression = compression
        self._rules = rules
        self._ns, self._checkpoint_id = "", ""
        self._state_version: int | None = None
        self._planner = Planner(codec, hot)

    def put(
        self,
        at: Place,
        config: Mapping[str, Any],
        checkpoint: Checkpoint,
        metadata: dict[str, Any],
        new_versions: Mapping[str, Any],
        session: Session | None,
        environment: tuple[int | None, str] = NO_ENVIRONMENT,
        captured: Mapping[str, Any] = NOTHING,
    ) -> PutPlan:
        """Plan a put.

        Args:
            at: what the config addresses: the parent.
            metadata: as it is to be stored (`metadata_of`).
            environment: the versions that it is written with (`PutPlan`).
            captured: what is kept beside the channels, by name.

        Raises:
            UsageError: for a checkpoint that can't be right.
            ValueNotStorableError: naming the path of the value.
        """
        parts: Mapping[str, Any] = checkpoint
        for key in ("channel_values", "channel_versions", "versions_seen"):
            part = parts.get(key)
            if type(part) is not dict and part is not None and not isinstance(part, Mapping):
                raise UsageError(f"the checkpoint's {key} must be a dict")
        checkpoint_id = checkpoint.get("id")
        if not isinstance(checkpoint_id, str) or not checkpoint_id:
            raise UsageError("the checkpoint has no id")
        place = Place(at.thread_id, at.ns, checkpoint_id)
        self._ns, self._checkpoint_id = place.ns, checkpoint_id
        self._planner.ns = place.ns
        self._state_version = state_version_of(metadata)
        if session is not None and session.given is not None:
            self._planner.untouched = session.given.untouched(place.ns, checkpoint, metadata, new_versions)
            session.given = session.given if session.given.lasts else None
        rest = {key: value for key, value in checkpoint.items() if key not in _OWN_KEYS}
        updated = checkpoint.get("updated_channels")
        body = Body(
            checkpoint.get("v", 1),
            checkpoint.get("ts", ""),
            [],
            {node: dict(seen) for node, seen in (checkpoint.get("versions_seen") or {}).items()},
            list(updated) if updated is not None else None,
            self._codec.encode_leniently(metadata),
            self._whole(rest, "checkpoint") if rest else None,
            self._state_version,
        )
        channels, inherits = self._channels(at, checkpoint, new_versions)
        for name, value in captured.items():
            channels.append((CAPTURE + name, None, self._planner.plan(value, path_of(CAPTURE + name))))
        plans = [plan for _, _, plan in channels]
        return PutPlan(
            place,
            at.checkpoint_id,
            run_id_of(config, metadata),
            body,
            rows.pack_ends(body, [version for _, version, _ in channels]),
            channels,
            inherits,
            KEEP in plans,
            self._target(),
            self._framed(plans),
            self._compression,
            session,
            self._rules,
            environment,
        )

    def writes(
        self,
        place: Place,
        config: Mapping[str, Any],
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str,
        session: Session | None,
        state_version: int | None = None,
    ) -> WritesPlan:
        """Plan a put_writes.

        Raises:
            ValueNotStorableError: naming the path of the value.
        """
        planned = []
        for at, (channel, value) in enumerate(writes):
            plan = self._planner.plan(value, f"writes[{at}] ({channel})")
            planned.append((WRITES_IDX_MAP.get(channel, at), channel, plan))
        self._planner.sequences.clear()
        self._planner.arrays.clear()
        return WritesPlan(
            place,
            run_id_of(config, {}),
            task_id,
            task_path,
            planned,
            self._target(),
            self._framed([plan for _, _, plan in planned]),
            self._compression,
            session,
            self._rules,
            state_version,
        )

    def remember(self, written: Written) -> None:
        """Learn from a committed write what is stored now."""
        if written.assembled is not None:
            self.hot.adopt(written.assembled.stored)
        if written.channels:
            self.hot.bodies[self._ns] = (self._checkpoint_id, written.channels, self._state_version)
        for path, seq in self._planner.sequences.items():
            if seq.state is not None:
                self.hot.keep_sequence((self._ns, path), seq.state)
        self.hot.arrays.update({(self._ns, path): array for path, array in self._planner.arrays.items()})

    def _target(self) -> Target:
        return Target(self.hot.thread, self.hot.collected, self.hot.secret, self._known)

    def _whole(self, value: Any, path: str) -> bytes:
        try:
            return self._codec.encode(value)
        except Exception as exc:
            raise self._codec.refuse(value, path, exc) from exc

    def _channels(
        self, at: Place, checkpoint: Checkpoint, new_versions: Mapping[str, Any]
    ) -> tuple[list[tuple[str, Any, Any]], bool]:
        """Name, version and plan of each channel; and whether one has its parent's reference.

        A channel that keeps its parent's value gets the reference here if the parent is the
        checkpoint put or restored last, else KEEP, and then the transaction reads the parent. A value of
        another state version is not kept: it would pass for one of this.
        """
        parent_id, before, of = self.hot.bodies.get(at.ns, (None, {}, None))
        known = at.checkpoint_id is not None and parent_id == at.checkpoint_id and of == self._state_version
        inherits = False
        values = checkpoint.get("channel_values") or {}
        versions = checkpoint.get("channel_versions") or {}
        channels: list[tuple[str, Any, Any]] = []
        for name, version in versions.items():
            if name in values:
                plan: Any = self._planner.plan(values[name], path_of(name))
            else:
                plan = None if name in new_versions else KEEP
                if plan is KEEP and known:
                    inherits = True
                    its_version, ref = before.get(name, (None, None))
                    plan = ref if its_version == version else None
            channels.append((name, version, plan))
        for name, value in values.items():
            if name not in versions:
                if name.startswith(CAPTURE):
                    raise UsageError(f"a channel can't be named {name!r}: such names are taken by the option capture")
                channels.append((name, None, self._planner.plan(value, path_of(name))))
        return channels, inherits

    def _framed(self, plans: Sequence[Any]) -> dict[bytes, bytes]:
        """Frames of what isn't known to be stored, made outside the transaction."""
        return {
            entry.digest: frame.seal_blob(entry.body, self._compression, self.hot.secret, entry.digest)
            for plan in plans
            if isinstance(plan, (Entry, tree.Seq))
            for entry in tree.entries_of(plan)
            if not entry.number
        }


class Reading:
    """Builds LangGraph's types from what a program read.

    Args:
        codec: the value codec.
        kept: where to note the classes that weren't there, where they gave an Unresolved value.
    """

    def __init__(self, codec: ValueCodec, kept: dict[str, str] | None = None) -> None:
        self._keeping = codec.keeping(kept)
        self._codec = self._keeping if codec.gate.keeps and kept is not None else codec

    def metadata(self, body: Body) -> dict[str, Any]:
        """A checkpoint's metadata; never refused for a class that isn't there."""
        decoded = self._keeping.decode(body.metadata)
        return decoded if isinstance(decoded, dict) else {}

    def parents(self, body: Body) -> dict[str, str]:
        """The checkpoints that a subgraph's belongs to, by namespace; empty where that can't be read."""
        try:
            parents = self.metadata(body).get("parents")
        except DecodeError:
            return {}
        return parents if isinstance(parents, dict) else {}

    def checkpoint_tuple(self, found: Found, session: Session | None) -> CheckpointTuple:
        """The tuple of a checkpoint, its values fresh objects.

        Raises:
            CorruptionError: naming what is damaged.
        """
        body, row = found.body, found.row
        if found.fault is not None or body is None:
            raise found.fault or damaged(row.place, "the row", "it can't be read")
        values = self.values(found.thread, row.place, found.blobs)
        checkpoint: dict[str, Any] = {
            "v": body.v,
            "id": row.place.checkpoint_id,
            "ts": body.ts,
            "channel_values": {
                name: self._known(found.states[name], row.place, name) if name in found.states else values(ref, name)
                for name, version, ref in body.channels
                if ref is not None and (version is not None or not name.startswith(CAPTURE))
            },
            "channel_versions": {name: version for name, version, _ in body.channels if version is not None},
            "versions_seen": body.versions_seen,
            "updated_channels": body.updated,
        }
        if body.rest is not None:
            checkpoint.update(self._decoded(body.rest, row.place, "further keys"))
        parent = config_for(row.place._replace(checkpoint_id=row.parent_id), session) if row.parent_id else None
        return CheckpointTuple(
            config=config_for(row.place, session),
            checkpoint=checkpoint,  # type: ignore[arg-type]
            metadata=self._metadata(body.metadata, row.place),
            parent_config=parent,
            pending_writes=[(task_id, channel, values(ref, channel)) for task_id, channel, ref, _ in found.writes],
        )

    def _known(self, state: tree.State, place: Place, channel: str) -> Any:
        """A channel's value from what is known in memory; a fresh object."""
        try:
            return self._of_state(state)
        except UnresolvedError as exc:
            raise _unresolved(place, f"channel {channel!r}", exc, channel) from exc

    def _of_state(self, state: tree.State) -> Any:
        if state.kind in (tree.TEXT, tree.BYTES):
            return state.bodies[0]
        state.reads += 1
        if state.kind == tree.LIST and state.reads > 1 and len(state.bodies) >= RUN_FROM:
            copies, state.templates = self._codec.copies(state.bodies, state.templates)
            return copies
        values = self._codec.decode_many(state.bodies)
        if state.kind == tree.DICT and state.keys is not None:
            return dict(zip(state.keys, values, strict=True))
        return values if state.kind == tree.LIST else values[0]

    def values(self, thread: ThreadRow, place: Place, blobs: Any) -> Callable[[Ref, str], Any]:
        """A function that gives the value behind a reference of one checkpoint."""
        expander = expand.Expander(self._codec, blobs.entries, thread.secret, blobs.faults)

        def value(ref: Ref, channel: str) -> Any:
            try:
                return expander.value(ref)
            except (expand.MissingBlobError, expand.DamagedRefError, DecodeError) as exc:
                raise damaged(place, f"channel {channel!r}", exc, channel) from exc
            except UnresolvedError as exc:
                raise _unresolved(place, f"channel {channel!r}", exc, channel) from exc

        return value

    def learn(self, found: Found, hot: HotThread) -> None:
        """Remember the sequences and arrays of a restored head, for the put that follows."""
        if found.body is None:
            return
        expander = expand.Expander(self._codec, found.blobs.entries, found.thread.secret, found.blobs.faults)
        channels = {name: (version, ref) for name, version, ref in found.body.channels}
        hot.bodies[found.row.place.ns] = (found.row.place.checkpoint_id, channels, found.body.state_version)
        for name, (_, ref) in channels.items():
            if name in found.states:
                continue
            path = (found.row.place.ns, path_of(name))
            try:
                state = expander.state(ref)
                if state is not None:
                    hot.keep_sequence(path, state)
                array = expander.array(ref)
                if array is not None:
                    hot.arrays[path] = array
            except (expand.MissingBlobError, expand.DamagedRefError, DecodeError):
                continue

    def _metadata(self, body: bytes, place: Place) -> Any:
        found = self._decoded(body, place, "the metadata", self._keeping)
        if not isinstance(found, dict):
            raise damaged(place, "the metadata", "it is no dict")
        return found

    def _decoded(self, body: bytes, place: Place, what: str, codec: ValueCodec | None = None) -> Any:
        try:
            return (codec or self._codec).decode(body)
        except DecodeError as exc:
            raise damaged(place, what, str(exc)) from exc
        except UnresolvedError as exc:
            raise _unresolved(place, what, exc, None) from exc


def _unresolved(place: Place, what: str, exc: UnresolvedError, channel: str | None) -> UnresolvedTypeError:
    return UnresolvedTypeError(
        f"{what} of checkpoint {place.checkpoint_id!r} in namespace {place.ns!r} of thread {place.thread_id!r} holds a "
        f"value of {exc.name}, which can't be given back: {exc.reason}. What is stored is whole and unchanged. "
        f"What to do: {exc.remedy}.",
        thread_id=place.thread_id,
        checkpoint_ns=place.ns,
        checkpoint_id=place.checkpoint_id,
        channel=channel,
        type_name=exc.name,
    )
