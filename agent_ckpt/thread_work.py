"""What is done with whole threads, as steps that serve the sync and the async form of each method."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from agent_ckpt.backend import Factory, Program
from agent_ckpt.carrier import thread_id_of
from agent_ckpt.core import flight, manage
from agent_ckpt.core.put import ReplanError
from agent_ckpt.errors import SealError, ThreadConflictError, UsageError
from agent_ckpt.model import Body
from agent_ckpt.parts import PLANS_AT_MOST, Store, Thread
from agent_ckpt.planning import Reading
from agent_ckpt.reports import Finding, ThreadInfo, VerifyReport
from agent_ckpt.seldom import credentials, pruning, verifying
from agent_ckpt.steps import Call, Steps
from agent_ckpt.work import replanned


def exists(thread: Thread) -> Steps[bool]:
    thread_id = thread_id_of(thread)
    return (yield Call(lambda: manage.find_thread(thread_id))) is not None


def threads() -> Steps[list[ThreadInfo]]:
    found: list[ThreadInfo] = yield Call(manage.list_threads)
    return found


def delete_thread(store: Store, thread: Thread) -> Steps[None]:
    thread_id = thread_id_of(thread)
    deleting = partial(credentials.delete_thread, thread_id)
    yield Call(_unless_leased(store, thread_id, "delete_thread was", deleting), write=True)
    store.hot.forget(thread_id)


def _unless_leased(store: Store, thread_id: str, doing: str, then: Factory[None]) -> Factory[None]:
    """A program that does something to a whole thread unless another holds its lease."""
    check = partial(flight.refuse_leased, thread_id, store.rules(thread_id, None), doing)
    return partial(credentials.one_after_the_other, check, then)


def delete_for_runs(store: Store, run_ids: Sequence[str]) -> Steps[None]:
    _no_single_text(run_ids, "run_ids")
    names = [str(run_id) for run_id in run_ids]
    if not names:
        return

    def deleting() -> Program[list[str]]:
        touched = yield from pruning.delete_for_runs(names, _delta_channels(store), store.options.compression)
        for thread_id in touched:
            yield from flight.refuse_leased(thread_id, store.rules(thread_id, None), "delete_for_runs was")
        return touched

    touched: list[str] = yield Call(deleting, write=True)
    for thread_id in touched:
        store.hot.forget(thread_id)


def copy_thread(store: Store, source: Thread, target: Thread, then: Factory[None] | None = None) -> Steps[None]:
    """Copy a thread; and in the same transaction do what `then` says."""
    source_id, target_id = thread_id_of(source), thread_id_of(target)
    if source_id == target_id:
        raise UsageError(f"copy_thread: source and target are both {source_id!r}")
    for _ in range(PLANS_AT_MOST):
        source = yield Call(lambda: manage.find_thread(source_id))
        if source is None:
            raise manage.not_stored(source_id)
        secret = yield from store.fresh(target_id, bytes(source.secret))
        try:
            copying = partial(manage.copy_thread, source_id, target_id, secret, store.options.compression)
            both = partial(credentials.one_after_the_other, copying, then)
            yield Call(_unless_leased(store, target_id, "copy_thread was", both), write=True)
        except ReplanError:
            continue
        return
    raise replanned(source_id)


def prune(store: Store, thread_ids: Sequence[Thread], strategy: str) -> Steps[None]:
    _no_single_text(thread_ids, "thread_ids")
    names = [thread_id_of(thread) for thread in thread_ids]
    if strategy not in ("keep_latest", "delete", "delete_all"):
        raise UsageError(f"prune strategy must be 'keep_latest', 'delete' or 'delete_all', got {strategy!r}")
    refused: ThreadConflictError | None = None
    for name in names:
        if strategy == "keep_latest":
            pruned = partial(pruning.keep_latest, name, _delta_channels(store), store.options.compression)
        else:
            pruned = partial(credentials.delete_thread, name)
        try:
            yield Call(_unless_leased(store, name, "prune was", pruned), write=True)
        except ThreadConflictError as exc:
            refused = refused or exc
        store.hot.forget(name)
    if refused is not None:
        raise refused


def verify(store: Store) -> Steps[VerifyReport]:
    thread_ids, findings = yield Call(verifying.verify_file)
    codec = store.codec.structure_only()
    checked = [VerifyReport(0, 0, 0, 0, tuple(findings))]
    for thread_id in thread_ids:
        try:
            checked.append((yield Call(partial(verifying.verify_thread, thread_id, codec))))
        except SealError as exc:
            checked.append(VerifyReport(1, 0, 0, 0, (Finding("damaged", thread_id, None, None, exc.message),)))
    return VerifyReport(
        sum(part.threads for part in checked),
        sum(part.checkpoints for part in checked),
        sum(part.writes for part in checked),
        sum(part.blobs for part in checked),
        tuple(finding for part in checked for finding in part.findings),
    )


def _delta_channels(store: Store) -> Callable[[Body], set[str]]:
    reading = Reading(store.codec)
    return lambda body: set(reading.metadata(body).get("counters_since_delta_snapshot") or ())


def _no_single_text(given: Any, what: str) -> None:
    if isinstance(given, (str, bytes)) or not isinstance(given, Iterable):
        raise UsageError(f"{what} must be a list of ids, got {type(given).__name__}; put a single one in a list")
