"""Bringing threads from another saver into an AgentSaver: `transfer` and `atransfer`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple

from langgraph.checkpoint.base import BaseCheckpointSaver

from agent_ckpt import steps, thread_work, work
from agent_ckpt.backend import Factory
from agent_ckpt.bringing import plan_bringing
from agent_ckpt.carrier import thread_id_of
from agent_ckpt.codec.portable import Portable
from agent_ckpt.core import bring, manage, portable
from agent_ckpt.errors import (
    CkptError,
    ClosedError,
    CorruptionError,
    PoisonedError,
    SealError,
    SecretError,
    ThreadConflictError,
    TransferError,
    UnavailableError,
    UsageError,
)
from agent_ckpt.model import Place
from agent_ckpt.official_file import OfficialFile
from agent_ckpt.planning import Planning
from agent_ckpt.reports import TransferProgress, TransferReport
from agent_ckpt.same import StoredReader, difference
from agent_ckpt.saver import AgentSaver
from agent_ckpt.sources import Item, Key, SaverSource, Source, oldest_first
from agent_ckpt.steps import Ask, Call, Steps
from agent_ckpt.store_source import StoreSource

Progress = Callable[["TransferProgress"], None]
_NAMED = 10
"""How many of the threads that were left out the message of an error names."""
_ANOTHER_ID = "Give it another one: rename={source id: new id}, or --thread ID --as NEW."


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

    A thread that can't be brought doesn't keep the others from it: they are brought first, then TransferError tells
    of it. Where a single thread is to be brought, its own error is raised.

    Args:
        source: any checkpointer, or an OfficialFile.
        target: where the threads go.
        threads: the ids of those to bring; None for all. Name them for a large source such as PostgresSaver,
            whose `list` fetches every value with the ids.
        rename: ids that threads shall have in the target, by their id in the source.
        progress: called after each checkpoint.

    Returns:
        Counts. Everything is durable when this returns.

    Raises:
        TransferError: when some of several threads were not brought; it holds the error of each.
        UsageError: for a thread that the source doesn't have, or that the target has with other content, which
            stays as it is.
        ValueNotStorableError: for a value that can't be kept, naming checkpoint and path; its thread was not stored.
        CorruptionError: for a damaged row of the source, or when what was read back isn't what the source gives; the
            thread was not stored.
        FormatError: for a row that no safe reading knows, such as a pickled one; its thread was not stored.
        UnavailableError, PoisonedError, SecretError: the store can't be read or written; this ends the transfer.
    """
    made = _Transfer(source, target, threads, rename, progress)
    return steps.run(made, made.steps())


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
    return await steps.arun(made, made.steps())


class _Pair(NamedTuple):
    """A thread to bring: its ids on both sides."""

    source_id: str
    target_id: str


def _source_id(given: Any) -> str:
    # A source may have a thread without an id, which can come in under another.
    return "" if given == "" else thread_id_of(given)


def _refusal(refused: dict[str, Exception], done: TransferReport) -> Exception:
    """What a transfer raises that left threads out: of a single one its own error."""
    first = next(iter(refused.values()))
    of = len(refused) + done.threads
    if of == 1:
        return first
    names = [f"{name!r:.100}" for name in refused]
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    reason = first.message if isinstance(first, CkptError) else f"the source raised {type(first).__name__}"
    made = TransferError(
        f"{len(refused)} of {of} threads were not brought: {', '.join(names[:_NAMED])}{more}. The other "
        f"{done.threads} are there, equal to the source. `refused` of this error has the reason for each; the first: "
        f"{reason}",
        refused=refused,
        threads=done.threads,
        checkpoints=done.checkpoints,
        writes=done.writes,
        already_there=done.already_there,
    )
    made.__cause__ = first
    return made


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
        self._source: Source | StoreSource
        if isinstance(source, AgentSaver):
            self._source = StoreSource(source)
        elif isinstance(source, OfficialFile):
            source.read_through(target._store.codec.gate)
            self._source = source
        else:
            self._source = SaverSource(source)
        self._through = target._sealing.through
        self._backend = target._backend
        self._store = target._store
        self._threads = list(dict.fromkeys(map(_source_id, threads))) if threads is not None else None
        self._rename = dict(rename or {})
        self._progress = progress
        # What the source and the callback raised last.
        self._asked: Exception | None = None
        self._told: Exception | None = None

    def run(self, factory: Factory[Any] | Ask, *, write: bool = False) -> Any:
        """Answer a step for a sync caller."""
        if not isinstance(factory, Ask):
            return self._backend.run(factory, write=write)
        try:
            return getattr(self._source, factory.name)(*factory.args)
        except Exception as exc:
            self._asked = exc
            raise

    async def arun(self, factory: Factory[Any] | Ask, *, write: bool = False) -> Any:
        """Answer a step for an async caller."""
        if not isinstance(factory, Ask):
            return await self._backend.arun(factory, write=write)
        try:
            return await getattr(self._source, f"a{factory.name}")(*factory.args)
        except Exception as exc:
            self._asked = exc
            raise

    def steps(self) -> Steps[TransferReport]:
        """The whole transfer: thread by thread, those that can't be brought are told at the end."""
        pairs, refused = yield from self._pairs()
        if pairs and not isinstance(self._source, StoreSource):
            yield from self._first_look(pairs, refused)
        # Not before: looking at the target's seal makes its file.
        return (yield from self._through(self._bring_all(pairs, refused)))

    def _bring_all(self, pairs: list[_Pair], refused: dict[str, Exception]) -> Steps[TransferReport]:
        done = TransferReport(0, 0, 0, 0)
        for at, pair in enumerate(pairs, 1):
            try:
                there = (yield Call(partial(manage.find_thread, pair.target_id))) is not None
                bringing = self._already_there if there else self._bring
                checkpoints, writes = yield from bringing(pair, self._teller(pair, at, len(pairs)))
            except Exception as exc:
                if not self._concerns_one_thread(exc):
                    raise
                refused[pair.source_id] = exc
                if isinstance(exc, CkptError) and not isinstance(exc, ThreadConflictError):
                    # Calling again won't help, and what was copied so far would stay for good.
                    yield from thread_work.delete_thread(self._store, bring.staged_name(pair.target_id))
            else:
                done = TransferReport(
                    done.threads + 1, done.checkpoints + checkpoints, done.writes + writes, done.already_there + there
                )
        if refused:
            raise _refusal(refused, done)
        return done

    def _first_look(self, pairs: list[_Pair], refused: dict[str, Exception]) -> Steps[None]:
        """Read one checkpoint: a source of which nothing can be read, for want of a key say, makes no target."""
        failed: dict[str, Exception] = {}
        for pair in pairs:
            try:
                keys = yield from self._keys(pair.source_id)
                yield Call(Ask("read", (pair.source_id, keys[0])))
            except Exception as exc:
                if not self._concerns_one_thread(exc):
                    raise
                failed[pair.source_id] = exc
            else:
                return
        reasons = list(failed.values())
        raise reasons[0] if len(set(map(str, reasons))) == 1 else _refusal(refused | failed, TransferReport(0, 0, 0, 0))

    def _concerns_one_thread(self, exc: Exception) -> bool:
        """Whether the other threads can be brought in spite of it; what a callback raises ends the transfer."""
        if exc is self._told or isinstance(exc, (UnavailableError, PoisonedError, ClosedError)):
            return False
        if isinstance(exc, SecretError):
            return isinstance(exc, SealError)
        return isinstance(exc, CkptError) or exc is self._asked

    def _pairs(self) -> Steps[tuple[list[_Pair], dict[str, Exception]]]:
        """The threads to bring, and those that can't be for want of an id."""
        wanted = self._threads
        if wanted is None:
            listed = yield from self._listed(None)
            wanted = list(dict.fromkeys(thread_id for thread_id, _ in reversed(listed)))
        if unknown := sorted(set(self._rename) - set(wanted)):
            raise UsageError(f"rename names threads that are not transferred: {', '.join(map(repr, unknown))}")
        pairs: list[_Pair] = []
        refused: dict[str, Exception] = {}
        for name in wanted:
            if name in self._rename:
                pairs.append(_Pair(name, thread_id_of(self._rename[name])))
                continue
            try:
                pairs.append(_Pair(name, thread_id_of(name)))
            except UsageError as exc:
                told = f"the source's thread {name!r} can't keep its id: {exc.message}. {_ANOTHER_ID}"
                refused[name] = UsageError(told, thread_id=name)
        if len({pair.target_id for pair in pairs}) < len(pairs):
            raise UsageError("two threads would get the same id in the target; give each an id of its own")
        return pairs, refused

    def _keys(self, thread_id: str) -> Steps[list[Key]]:
        """A thread's keys, oldest first."""
        found = yield from self._listed(thread_id)
        if not found:
            raise UsageError(f"the source has no thread {thread_id!r}", thread_id=thread_id)
        return oldest_first(found)

    def _listed(self, thread_id: str | None) -> Steps[list[tuple[str, Key]]]:
        """What a source lists, newest first; of one that fetches a listing whole, page by page.

        A page ends between two ids, since `before` names an id, and namespaces and threads can share one.
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
        return found

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
        if isinstance(self._source, StoreSource):
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
        if isinstance(self._source, StoreSource):
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
        reader = StoredReader(self._store.codec)
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
            try:
                if self._progress is not None:
                    self._progress(TransferProgress(pair.source_id, at, of, step, done, total))
            except Exception as exc:
                self._told = exc
                raise

        return tell
