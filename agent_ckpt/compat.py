"""The steps behind checking a store against a graph, and behind giving back captures."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import CheckpointTuple

from agent_ckpt import changes, delta_work
from agent_ckpt.carrier import place_of, thread_id_of
from agent_ckpt.core import compat, read
from agent_ckpt.core.hot import HotThread
from agent_ckpt.errors import CaptureWarning, CkptError, UsageError
from agent_ckpt.model import CAPTURE, Place, ThreadRow
from agent_ckpt.parts import Store, Thread
from agent_ckpt.planning import Reading
from agent_ckpt.reports import Captured, CheckReport, SchemaChange, ThreadCheck
from agent_ckpt.steps import Call, Steps


def view_of(graph: Any, what: str) -> changes.View:
    """A compiled graph's view.

    Raises:
        UsageError: for something else.
    """
    view = changes.View.of(graph)
    if view is None:
        raise UsageError(f"{what} needs a compiled graph, got {type(graph).__name__}; call .compile() on it first")
    return view


def check(store: Store, graph: Any, thread: Thread | None) -> Steps[CheckReport]:
    view = view_of(graph, "check")
    subgraphs = {name: changes.View.of(inner) for name, inner in _subgraphs(graph)}
    if thread is None:
        names: list[str] = yield Call(compat.thread_ids)
    else:
        names = [thread_id_of(thread)]
    checked = []
    for name in names:
        one = yield from _check_thread(store, name, view, subgraphs)
        if one is not None:
            checked.append(one)
        elif thread is not None:
            raise UsageError(f"thread {name!r} is not stored", thread_id=name)
    return CheckReport(tuple(checked))


def _subgraphs(graph: Any) -> list[tuple[str, Any]]:
    listed = getattr(graph, "get_subgraphs", None)
    return list(listed(recurse=True)) if listed is not None else []


def _check_thread(
    store: Store, thread_id: str, view: changes.View, subgraphs: Mapping[str, changes.View | None]
) -> Steps[ThreadCheck | None]:
    restored: read.Restored = yield Call(partial(read.get_tuple, Place(thread_id, "", None), _nothing_known))
    if restored.thread is None:
        return None
    if restored.found is None:
        return ThreadCheck(thread_id, None)
    one, root = yield from _check_one(store, restored.found, view)
    if root is None:
        return one
    found = list(one.changes)
    tasks = {task_id for task_id, _, _ in root.pending_writes or ()}
    for ns in (yield Call(partial(compat.namespaces, restored.thread.thread))):
        inner_view = subgraphs.get(_path(ns)) if ns and _is_open(ns, tasks) else None
        if inner_view is None:
            continue
        inner: read.Restored = yield Call(partial(read.get_tuple, Place(thread_id, ns, None), _nothing_known))
        if inner.found is not None:
            made, _ = yield from _check_one(store, inner.found, inner_view)
            found += [replace(change, name=f"{_path(ns)}|{change.name}") for change in made.changes]
            one = replace(one, error=one.error or made.error)
    return replace(one, changes=tuple(found))


def _nothing_known(_: str, row: ThreadRow) -> HotThread:
    """A check of a whole store must not push the threads in use out of memory."""
    return HotThread(row.thread, row.collected, row.secret)


def _path(ns: str) -> str:
    """A namespace without its task ids: how the graph calls its subgraphs."""
    return "|".join(part.partition(":")[0] for part in ns.split("|"))


def _is_open(ns: str, tasks: set[str]) -> bool:
    """Whether the head goes on in a namespace: a task of it is unfinished there, or it lasts over runs."""
    first = ns.split("|")[0]
    return ":" not in first or first.rpartition(":")[2] in tasks


def _check_one(
    store: Store, found: read.Found, view: changes.View
) -> Steps[tuple[ThreadCheck, CheckpointTuple | None]]:
    place = found.row.place
    kept: dict[str, str] = {}
    codec = store.codec.keeping(kept)
    try:
        restored = Reading(codec, kept).checkpoint_tuple(found, None)
        written_at = [write[3] for write in found.writes]
        restored = store.code.migrations.apply(restored, written_at)
        stuck = store.code.migrations.stuck(restored, written_at)
        yield from delta_work.history_at(store, place, view.deltas(restored), codec, kept, _nothing_known)
    except CkptError as exc:
        return ThreadCheck(place.thread_id, place.checkpoint_id, (), exc.message), None
    unresolved = [SchemaChange("unresolved", name, f"class {name} isn't there: {why}") for name, why in kept.items()]
    listed = (*unresolved, *changes.compare(restored, view))
    return ThreadCheck(place.thread_id, place.checkpoint_id, listed, stuck.message if stuck else None), restored


def written_by(config: RunnableConfig) -> Steps[dict[str, str | None]]:
    place = place_of(config)
    found: str | None = yield Call(lambda: compat.environment(place))
    return json.loads(found) if found is not None else {}


def restore_captured(store: Store, config: RunnableConfig) -> Steps[Captured]:
    place = place_of(config)
    captures = store.code.captures
    restored: read.Restored = yield Call(partial(read.get_tuple, place, _nothing_known))
    found = restored.found
    if restored.thread is None or found is None:
        raise UsageError(
            f"thread {place.thread_id!r} has no checkpoint {place.checkpoint_id or ''!r} in namespace {place.ns!r}, so "
            f"there is nothing to give back",
            thread_id=place.thread_id,
        )
    reading = Reading(store.codec)
    reading.checkpoint_tuple(found, None)
    value = reading.values(restored.thread, found.row.place, found.blobs)
    assert found.body is not None
    stored = {
        name.removeprefix(CAPTURE): value(ref, name)
        for name, version, ref in found.body.channels
        if version is None and name.startswith(CAPTURE)
    }
    put_back = captures.restore(stored)
    missing = tuple(name for name in captures.names if name not in stored)
    undeclared = tuple(name for name in stored if name not in captures.names)
    finished = {
        task for task, channel, *_ in found.writes if not channel.startswith(("__error", "__interrupt", "__resume"))
    }
    made = Captured(stored, put_back, missing, undeclared, len(finished))
    _tell(place, made)
    return made


def _tell(place: Place, made: Captured) -> None:
    parts = []
    if made.missing:
        parts.append(f"declared in capture and not stored with the checkpoint: {', '.join(made.missing)}")
    if made.undeclared:
        parts.append(f"stored with the checkpoint and not declared in capture: {', '.join(made.undeclared)}")
    if made.finished_tasks:
        parts.append(
            f"{made.finished_tasks} task(s) finished after the capture and won't run again, so what they drew is drawn "
            f"once more"
        )
    if parts:
        warnings.warn(
            f"restore_captured of thread {place.thread_id!r}: {'; '.join(parts)}", CaptureWarning, stacklevel=2
        )
