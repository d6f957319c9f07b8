"""Bringing threads from another saver into an AgentSaver: `transfer` and `atransfer`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple

from langgraph.checkpoint.base import BaseCheckpointSaver

from agent_ckpt import steps, thread_work, work
from agent_ckpt.backend import Factory
from agent_ckpt.bringing import plan_bringing
from agent_ckpt.carrier import thread_id_of
from agent_ckpt.codec.portable import Portable
from agent_ckpt.core import bring, manage, portable, read
from agent_ckpt.core.hot import HotCache
from agent_ckpt.errors import CorruptionError, UsageError
from agent_ckpt.model import Place
from agent_ckpt.official_file import OfficialFile
from agent_ckpt.planning import Planning, Reading
from agent_ckpt.reports import ThreadInfo
from agent_ckpt.same import difference
from agent_ckpt.saver import AgentSaver
from agent_ckpt.sources import Item, Key, SaverSource, Source, oldest_first
from agent_ckpt.steps import Ask, Call, Steps
from agent_ckpt.work import Store

Progress = Callable[["TransferProgress"], None]
_COMPARED_CACHE = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class TransferProgress:
    """How far a transfer is.

    Attributes:
        thread_id: the thread at hand, by its id in the source.
        thread, threads: its place among all, from 1, and how many there are.
        step: `"copying"` its checkpoints, or `"comparing"` what was stored with the source.
        done, total: checkpoints of the thread in this step.
    """

    thread_id: str
    thread: int
    threads: int
    step: Literal["copying", "comparing"]
    done: int
    total: int


@dataclass(frozen=True, slots=True)
class TransferReport:
    """What a transfer did. There is one only if every checkpoint was read back and equals its source.

    Attributes:
        threads, checkpoints, writes: what the target has of the source now; writes are pending writes.
        already_there: how many of the threads were there before, equal in all.
    """

    threads: int
    checkpoints: int
    writes: int
    already_there: int


def transfer(
    source: BaseCheckpointSaver[Any] | OfficialFile,
    target: AgentSaver,
    *,
    threads: Sequence[str] | None = None,
    rename: Mapping[str, str] | None = None,
    progress: Progress | None = None,
) -> TransferReport:
    """Bring threads from another saver into an AgentSaver, and compare what was stored with the source.

    Ids, parents, namespaces, metadata, values, pending writes and the order are kept; what is equal is stored once.
    The source is only read. A thread appears in the target in one transaction, when it is whole and was read back
    equal. A transfer that was killed goes on where it was when it is called again; a thread that is there already
    and is equal is left as it is. Checkpoints are read one at a time, so memory is bounded by the largest one.

    Args:
        source: any checkpointer, or an OfficialFile.
        target: where the threads go.
        threads: the ids of those to bring; None for all. Name them for a source whose `list` fetches all that it
            has at once, such as PostgresSaver.
        rename: ids that threads shall have in the target, by their id in the source.
        progress: called after each checkpoint.

    Returns:
        Counts. Everything is durable when this returns.

    Raises:
        UsageError: for a thread that the source doesn't have, or that the target has with other content; then
            nothing was changed.
        ValueNotStorableError: for a value that can't be kept, naming checkpoint and path; its thread was not stored.
        CorruptionError: when what was read back isn't what the source gives; the thread was not stored.
    """
    made = _Transfer(source, target, threads, rename, progress)
    return steps.run(made, target._sealing.through(made.steps()))


async def atransfer(
    source: BaseCheckpointSaver[Any] | OfficialFile,
    target: AgentSaver,
    *,
    threads: Sequence[str] | None = None,
    rename: Mapping[str, str] | None = None,
    progress: Progress | None = None,
) -> TransferReport:
    """`transfer`, async: the source's async methods are used."""
    made = _Transfer(source, target, threads, rename, progress)
    return await steps.arun(made, target._sealing.through(made.steps()))


class _Pair(NamedTuple):
    """A thread to bring: its ids on both sides."""

    source_id: str
    target_id: str


class _Transfer:
    """One transfer: its steps, and what drives them: a question goes to the source, a program to the target."""

    def __init__(
        self,
        source: BaseCheckpointSaver[Any] | OfficialFile,
        target: AgentSaver,
        threads: Sequence[str] | None,
        rename: Mapping[str, str] | None,
        progress: Progress | None,
    ) -> None:
        if not isinstance(target, AgentSaver):
            raise UsageError(f"transfer goes into an AgentSaver, the target is a {type(target).__name__}")
        if source is target:
            raise UsageError("transfer: source and target are the same saver; use copy_thread")
        if isinstance(threads, (str, bytes)):
            raise UsageError("threads must be a list of ids; put a single one in a list")
        self._source: Source | _StoreSource
        if isinstance(source, AgentSaver):
            self._source = _StoreSource(source)
        elif isinstance(source, OfficialFile):
            source.read_through(target._store.codec.gate)
            self._source = source
        else:
            self._source = SaverSource(source)
        self._backend = target._backend
        self._store = target._store
        self._threads = list(dict.fromkeys(map(thread_id_of, threads))) if threads is not None else None
        self._rename = dict(rename or {})
        self._progress = progress

    def run(self, factory: Factory[Any] | Ask, *, write: bool = False) -> Any:
        """Answer a step for a sync caller."""
        if isinstance(factory, Ask):
            return getattr(self._source, factory.name)(*factory.args)
        return self._backend.run(factory, write=write)

    async def arun(self, factory: Factory[Any] | Ask, *, write: bool = False) -> Any:
        """Answer a step for an async caller."""
        if isinstance(factory, Ask):
            return await getattr(self._source, f"a{factory.name}")(*factory.args)
        return await self._backend.arun(factory, write=write)

    def steps(self) -> Steps[TransferReport]:
        """The whole transfer. What is in the way is found before anything is stored."""
        pairs = yield from self._pairs()
        if pairs and not isinstance(self._source, _StoreSource):
            # A source that can't be read, for want of a key say, is told before the target is even made.
            keys = yield from self._keys(pairs[0].source_id)
            yield Call(Ask("read", (pairs[0].source_id, keys[0])))
        there: dict[_Pair, tuple[int, int]] = {}
        for at, pair in enumerate(pairs, 1):
            if (yield Call(partial(manage.find_thread, pair.target_id))) is not None:
                there[pair] = yield from self._already_there(pair, self._teller(pair, at, len(pairs)))
        checkpoints = sum(count for count, _ in there.values())
        writes = sum(count for _, count in there.values())
        for at, pair in enumerate(pairs, 1):
            if pair not in there:
                counts = yield from self._bring(pair, self._teller(pair, at, len(pairs)))
                checkpoints, writes = checkpoints + counts[0], writes + counts[1]
        return TransferReport(len(pairs), checkpoints, writes, len(there))

    def _pairs(self) -> Steps[list[_Pair]]:
        wanted = self._threads
        if wanted is None:
            listed: list[tuple[str, Any]] = yield Call(Ask("listed", (None, None, None)))
            wanted = list(dict.fromkeys(thread_id for thread_id, _ in reversed(listed)))
        if unknown := sorted(set(self._rename) - set(wanted)):
            raise UsageError(f"rename names threads that are not transferred: {', '.join(map(repr, unknown))}")
        pairs = [_Pair(name, thread_id_of(self._rename.get(name, name))) for name in wanted]
        if len({pair.target_id for pair in pairs}) < len(pairs):
            raise UsageError("two threads would get the same id in the target; give each an id of its own")
        return pairs

    def _keys(self, thread_id: str) -> Steps[list[Key]]:
        """A thread's keys, oldest first; of a source that fetches a listing whole, page by page.

        A page ends between two ids, since `before` names an id and several namespaces can have the same.
        """
        found: list[tuple[str, Key]] = []
        before, limit = None, self._source.page
        while True:
            page: list[tuple[str, Key]] = yield Call(Ask("listed", (thread_id, before, limit)))
            if limit is None or len(page) < limit:
                found += page
                break
            last = page[-1][1].checkpoint_id
            whole = [one for one in page if one[1].checkpoint_id != last]
            if not whole:
                limit *= 2
                continue
            found += whole
            before, limit = whole[-1][1].checkpoint_id, self._source.page
        if not found:
            raise UsageError(f"the source has no thread {thread_id!r}", thread_id=thread_id)
        return oldest_first(found)

    def _same_kind(self, pair: _Pair, tell: Callable[[str, int, int], None], there: bool) -> Steps[tuple[int, int]]:
        """Store a thread of another AgentSaver as it stands there, in one transaction; or compare it."""
        made: Portable = yield Call(Ask("collect", (pair.source_id,)))
        if there:
            found: Portable = yield Call(partial(portable.collect, pair.target_id))
            if not found.equals(made):
                raise bring.exists_already(pair.target_id, "its content is not the source's")
        else:
            rules, method = self._store.rules(pair.target_id, None), self._store.options.compression
            secret = yield from self._store.fresh(pair.target_id, made.secret)
            storing = partial(portable.store_equal, made, pair.target_id, secret, method, rules, pair.source_id)
            yield Call(storing, write=True)
        tell("comparing", made.checkpoints, made.checkpoints)
        return made.checkpoints, made.pending_writes

    def _already_there(self, pair: _Pair, tell: Callable[[str, int, int], None]) -> Steps[tuple[int, int]]:
        """Refuse a thread that the target has, unless it is equal to the source's."""
        if isinstance(self._source, _StoreSource):
            return (yield from self._same_kind(pair, tell, True))
        keys = yield from self._keys(pair.source_id)
        _, stored = yield Call(partial(bring.keys_of, pair.target_id))
        if stored != keys:
            raise bring.exists_already(
                pair.target_id, f"it has {len(stored)} checkpoints, the source's has {len(keys)}, not all the same"
            )
        writes, differs = yield from self._compare(pair.source_id, pair.target_id, keys, tell)
        if differs is not None:
            raise bring.exists_already(pair.target_id, f"it has the same checkpoints with other content: {differs}")
        return len(keys), writes

    def _bring(self, pair: _Pair, tell: Callable[[str, int, int], None]) -> Steps[tuple[int, int]]:
        """Store a thread under the name it has until it is whole, compare it, and give it its own."""
        if isinstance(self._source, _StoreSource):
            return (yield from self._same_kind(pair, tell, False))
        keys = yield from self._keys(pair.source_id)
        staged = bring.staged_name(pair.target_id)
        revision, stored = yield Call(partial(bring.keys_of, staged))
        if stored != keys[: len(stored)]:
            # What an earlier transfer left is of another state of the source, and nobody else can see it.
            yield from thread_work.delete_thread(self._store, staged)
            revision, stored = 0, []
        for at, key in enumerate(keys[len(stored) :], len(stored) + 1):
            item: Item = yield Call(Ask("read", (pair.source_id, key)))
            written = yield from work.write(self._store, staged, None, self._planner(staged, item, revision))
            revision = written.row.revision
            tell("copying", at, len(keys))
        writes, differs = yield from self._compare(pair.source_id, staged, keys, tell)
        if differs is not None:
            yield from thread_work.delete_thread(self._store, staged)
            raise CorruptionError(
                f"thread {pair.source_id!r} was not transferred: what was read back is not what the source gives "
                f"({differs}). Nothing of it is left in the target.",
                thread_id=pair.source_id,
            )
        rules = self._store.rules(pair.target_id, None)
        stored = yield Call(partial(manage.find_thread, staged))
        secret = yield from self._store.fresh(pair.target_id, bytes(stored.secret) if stored is not None else None)
        method = self._store.options.compression
        yield Call(partial(bring.adopt, staged, pair.target_id, secret, method, rules), write=True)
        self._store.hot.forget(staged)
        return len(keys), writes

    def _planner(self, staged: str, item: Item, revision: int) -> Callable[[Planning], Any]:
        def plan(planning: Planning) -> Any:
            rules = self._store.rules(staged, None)
            of_writes = Planning(self._store.codec, planning.hot, self._store.options.compression, rules)
            made = plan_bringing(planning, of_writes, staged, item, revision)
            return lambda: bring.bring(made)

        return plan

    def _compare(
        self, source_id: str, target_id: str, keys: list[Key], tell: Callable[[str, int, int], None]
    ) -> Steps[tuple[int, str | None]]:
        """Read every checkpoint back from the file and compare it; how many writes, and the first difference."""
        reader = _Reader(self._store)
        writes = 0
        for at, key in enumerate(keys, 1):
            item: Item = yield Call(Ask("read", (source_id, key)))
            found = yield from reader.read(Place(target_id, key.ns, key.checkpoint_id))
            differs = "it is missing" if found is None else difference(item, found, self._store.codec)
            if differs is not None:
                return writes, f"checkpoint {key.checkpoint_id!r} in namespace {key.ns!r}: {differs}"
            writes += len(item.writes)
            tell("comparing", at, len(keys))
        return writes, None

    def _teller(self, pair: _Pair, at: int, of: int) -> Callable[[Any, int, int], None]:
        def tell(step: Literal["copying", "comparing"], done: int, total: int) -> None:
            if self._progress is not None:
                self._progress(TransferProgress(pair.source_id, at, of, step, done, total))

        return tell


class _StoreSource:
    """Another AgentSaver: its threads are taken as they are stored, history records and commit order too."""

    page: int | None = None

    def __init__(self, saver: AgentSaver) -> None:
        self._saver = saver

    def listed(self, *_: Any) -> list[tuple[str, None]]:
        return _newest_first(self._saver._run(thread_work.threads()))

    async def alisted(self, *_: Any) -> list[tuple[str, None]]:
        return _newest_first(await self._saver._arun(thread_work.threads()))

    def collect(self, thread_id: str) -> Portable:
        return self._saver._run(_collecting(thread_id))

    async def acollect(self, thread_id: str) -> Portable:
        return await self._saver._arun(_collecting(thread_id))


def _newest_first(found: Sequence[ThreadInfo]) -> list[tuple[str, None]]:
    return [(info.thread_id, None) for info in reversed(found) if not bring.is_staged(info.thread_id)]


def _collecting(thread_id: str) -> Steps[Portable]:
    made: Portable = yield Call(partial(portable.collect, thread_id))
    return made


class _Reader:
    """Reads checkpoints with a memory of its own, so that what it gives has come from the file."""

    def __init__(self, store: Store) -> None:
        # A class that isn't there is kept as it is on both sides.
        self._reading = Reading(store.codec.keeping())
        self._hot = HotCache(_COMPARED_CACHE)

    def read(self, place: Place) -> Steps[Any]:
        restored: read.Restored = yield Call(partial(read.get_tuple, place, self._hot.of))
        if restored.found is None or restored.thread is None:
            return None
        self._hot.keep(place.thread_id, self._hot.of(place.thread_id, restored.thread))
        return self._reading.checkpoint_tuple(restored.found, None)
