"""What is kept in memory of threads in use, so that a step encodes and reads only what is new.

Nothing here is needed for a right answer: it is checked against the thread's row in the very
transaction that uses it (the thread's number, and `collected`, which rises when blobs are dropped).
"""

from __future__ import annotations

import os
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from agent_ckpt.codec import digest
from agent_ckpt.codec.arrays import KnownArray
from agent_ckpt.codec.frame import MESSAGE
from agent_ckpt.codec.tree import DICT, LIST, State
from agent_ckpt.model import Entry, Ref, ThreadRow

if TYPE_CHECKING:
    from agent_ckpt.codec.packs import Pack
    from agent_ckpt.core.load import Blobs

_OVERHEAD = 200
"""Bytes that an Entry takes beside its body, roughly."""
_BASE = 2000
"""Bytes that a HotThread takes when it is empty, roughly."""
_TEMPLATE = 6
"""How many times its packed bytes a message takes in memory with its template and run, roughly."""


def path_of(channel: str) -> str:
    """The path of a channel's value, in plans and in messages."""
    return f"channel_values.{channel}"


def _size_of(entry: Entry) -> int:
    return (_TEMPLATE if entry.body[0] == MESSAGE else 1) * len(entry.body) + _OVERHEAD


class HotThread:
    """The known blobs of one thread.

    Attributes:
        thread, collected: the state of the thread's row that this was learnt from; thread is 0
            for a thread that isn't stored yet.
        secret: the key of its addresses.
        bodies: by namespace, the checkpoint put or restored last: its id, its channels' versions and references.
        sequences, arrays: what stood last under a namespace and a channel's path.
        size: its bytes, roughly; counted: those that the cache's total holds.
    """

    __slots__ = (
        "_by_number", "_known", "_to_learn", "arrays", "bodies", "collected", "counted", "secret", "sequences", "size",
        "thread",
    )  # fmt: skip

    def __init__(self, thread: int, collected: int, secret: bytes) -> None:
        self.thread = thread
        self.collected = collected
        self.secret = secret
        self._known: dict[bytes, Entry] = {}
        self._by_number: dict[int, Entry] = {}
        self._to_learn: list[Callable[[], None]] = []
        self.bodies: dict[str, tuple[str | None, Mapping[str, tuple[Any, Ref]], int | None]] = {}
        self.sequences: dict[tuple[str, str], State] = {}
        self.arrays: dict[tuple[str, str], KnownArray] = {}
        self.size = _BASE
        self.counted = 0

    @property
    def count(self) -> int:
        """How many blobs are known."""
        return len(self._by_number)

    def learn_later(self, lesson: Callable[[], None]) -> None:
        """Note something to learn before this is used next: who restores a thread need not wait for it."""
        self._to_learn.append(lesson)

    def learn(self) -> None:
        """Learn what was noted. Called before anything that is known is looked at."""
        while self._to_learn:
            try:
                lesson = self._to_learn.pop(0)
            except IndexError:
                return  # another OS thread took it
            lesson()

    def fits(self, row: ThreadRow) -> bool:
        return self.thread == row.thread and self.collected == row.collected

    def entry_of(self, body: bytes) -> Entry:
        """The stored entry of a body, or a new one that isn't stored yet."""
        return self._known.get(body) or Entry(body, digest.address(body, self.secret))

    def by_number(self, number: int) -> Entry | None:
        return self._by_number.get(number)

    def state_of(self, ns: str, channel: str, ref: Ref) -> State | None:
        """The state behind a channel's reference, if its value can be given back from memory."""
        state = self.sequences.get((ns, path_of(channel)))
        return state if state is not None and not state.nested and state.ref == ref else None

    def keep_sequence(self, at: tuple[str, str], state: State) -> None:
        """Remember what stands under a path now."""
        if state.nested or state.kind not in (LIST, DICT):
            before = self.sequences.get(at)
            self.size += sum(map(len, state.bodies)) - (sum(map(len, before.bodies)) if before is not None else 0)
        self.sequences[at] = state

    def take_in_later(self, loaded: list[Entry]) -> None:
        """Note blobs that were read under their numbers; they count in memory from now on."""
        bodies = [entry.body for entry in loaded]
        packed = sum([len(body) for body in bodies if body[0] == MESSAGE])
        self.size += sum(map(len, bodies)) + (_TEMPLATE - 1) * packed + _OVERHEAD * len(loaded)
        self.learn_later(partial(self._take_in, loaded))

    def take_in_packs_later(self, packs: list[Pack], blobs: Blobs) -> None:
        """Note packs that were read: the blobs in them are known, and among the loaded ones, once this learns."""
        self.size += sum(map(len, packs))
        self.learn_later(partial(self._take_in_packs, packs, blobs))

    def _take_in_packs(self, packs: list[Pack], blobs: Blobs) -> None:
        made = blobs.unpack(packs, self.secret)
        self.size += sum(map(_size_of, made)) - sum(map(len, packs))
        self._take_in(made)

    def _take_in(self, loaded: list[Entry]) -> None:
        for entry in loaded:
            self._by_number.setdefault(entry.number, entry)
            self._known.setdefault(entry.body, entry)

    def adopt(self, stored: Iterable[tuple[Entry, int]]) -> None:
        """Learn that entries are stored under these numbers."""
        for entry, number in stored:
            entry.number = number
            if number not in self._by_number:
                self._by_number[number] = entry
                self._known.setdefault(entry.body, entry)
                self.size += _size_of(entry)


class HotCache:
    """HotThreads of the threads used last, within a bound on bytes."""

    def __init__(self, bound: int) -> None:
        self._bound = bound
        self._threads: OrderedDict[str, HotThread] = OrderedDict()
        self._total = 0
        self._lock = threading.Lock()
        _caches.add(self)

    def find(self, thread_id: str) -> HotThread | None:
        with self._lock:
            found = self._threads.get(thread_id)
            if found is not None:
                self._threads.move_to_end(thread_id)
            return found

    def of(self, thread_id: str, row: ThreadRow) -> HotThread:
        """The HotThread that fits a row, kept or new."""
        with self._lock:
            found = self._threads.get(thread_id)
            if found is None or not found.fits(row):
                found = HotThread(row.thread, row.collected, row.secret)
                self._put(thread_id, found)
            self._threads.move_to_end(thread_id)
            return found

    def keep(self, thread_id: str, hot: HotThread) -> None:
        """Keep a HotThread that learnt something, and drop those used least until the bound holds."""
        with self._lock:
            self._put(thread_id, hot)
            while self._threads and self._total > self._bound:
                _, dropped = self._threads.popitem(last=False)
                self._total -= dropped.counted

    def forget(self, thread_id: str) -> None:
        with self._lock:
            dropped = self._threads.pop(thread_id, None)
            self._total -= dropped.counted if dropped is not None else 0

    def clear(self) -> None:
        """Forget every thread."""
        with self._lock:
            self._threads.clear()
            self._total = 0

    def _put(self, thread_id: str, hot: HotThread) -> None:
        before = self._threads.get(thread_id)
        if before is not hot:
            self._total -= before.counted if before is not None else 0
            hot.counted = 0
        self._total += hot.size - hot.counted
        hot.counted = hot.size
        self._threads[thread_id] = hot
        self._threads.move_to_end(thread_id)

    def renew_lock(self) -> None:
        """In a forked child: a lock that another thread held at the fork is never released."""
        self._lock = threading.Lock()


_caches: weakref.WeakSet[HotCache] = weakref.WeakSet()


def _renew_locks() -> None:
    for cache in list(_caches):
        cache.renew_lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_locks)
