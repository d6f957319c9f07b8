"""Rotating the keys of a store, and sealing and unsealing a whole file, as steps.

Each thread is done in a transaction of its own and says by itself whether it is done, so a run that was killed is
just started again. Wrapping happens outside transactions, since a key service may be slow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

from agent_ckpt import vault_keys
from agent_ckpt.codec import seal
from agent_ckpt.core import recast
from agent_ckpt.core.recast import Recast, ThreadKey
from agent_ckpt.core.rows import SECRET_SIZE
from agent_ckpt.core.storekeys import RESEALING, SEALING, StoreKeys, StoreSeal, key_id_of, store_state, turn_of
from agent_ckpt.errors import UnavailableError, UsageError
from agent_ckpt.sealing import Sealing
from agent_ckpt.steps import Call, Outside, Steps

Progress = Callable[[int, int], None]
"""Called with how many threads are done, and how many remain."""


@dataclass(frozen=True, slots=True)
class KeyStatus:
    """What a store is sealed with.

    Attributes:
        state: `"plaintext"`, `"sealed"`, or `"half sealed"` (sealing or unsealing was interrupted).
        active: the id of the keyring's active key; None without a keyring, or where a key service decides.
        store: the id of the key that the store's own key is wrapped under, or None.
        threads: how many threads are sealed under each master key, by its id; `""` for plaintext.
        thread_ids_sealed: whether thread ids stand sealed.
        credentials: how many threads' credentials are sealed under each master key, by its id.
    """

    state: str
    active: str | None
    store: str | None
    threads: dict[str, int] = field(default_factory=dict)
    thread_ids_sealed: bool = False
    credentials: dict[str, int] = field(default_factory=dict)

    @property
    def remaining(self) -> int:
        """How many threads, threads' credentials, and the store itself, are not under the active key.

        0: older keys can be retired.
        """
        if self.active is None:
            return 0
        counted = [*self.threads.items(), *self.credentials.items()]
        behind = sum(count for key_id, count in counted if key_id != self.active)
        return behind + (self.store is not None and self.store != self.active)


@dataclass(frozen=True, slots=True)
class Rotation:
    """What a rotation did.

    Attributes:
        active: the id of the key that everything is wrapped under now.
        retired: ids of the keys that nothing in the file is wrapped under any more. Backups from before need them.
        threads: how many threads were wrapped, or sealed, anew.
        wal_truncated: whether the WAL was cut; else it still holds frames of before.
        pages_left: how many free pages the file still has, which could not be given back; they hold zeros. -1:
            it isn't known, since others held the lock all the time.
    """

    active: str | None
    retired: tuple[str, ...]
    threads: int
    wal_truncated: bool = False
    pages_left: int = 0


def status(sealing: Sealing) -> Steps[KeyStatus]:
    """Count what stands under which key; needs no key."""
    _, _, stored, _ = yield Call(store_state)
    found = StoreSeal.read(stored) if stored is not None else None
    threads: dict[str, int] = {}
    at = 0
    while page := (yield Call(partial(recast.thread_keys, at))):
        for at, _, secret in page:  # noqa: B007
            key_id = _key_id(secret)
            threads[key_id] = threads.get(key_id, 0) + 1
    return KeyStatus(
        "plaintext" if found is None else "half sealed" if found.flags & SEALING else "sealed",
        sealing.keyring.active_id if sealing.keyring is not None else None,
        key_id_of(found.envelope) if found is not None else None,
        threads,
        found is not None and found.seals_thread_ids,
        (yield from vault_keys.counts()),
    )


def _key_id(secret: bytes) -> str:
    return "" if len(secret) == SECRET_SIZE else key_id_of(secret)


def rotate(sealing: Sealing, compromised: bool, progress: Progress | None) -> Steps[Rotation]:
    """Wrap every key of the store under the keyring's active key; compromised: make new ones, and seal all anew.

    Raises:
        UsageError: when the store isn't sealed, or is under the active key already and no new one can be made.
    """
    _, stored = yield from sealing.unlock_for_recast()
    if stored is None:
        raise UsageError(
            "the file isn't sealed, so there is nothing to rotate; `agent-ckpt keys seal-existing` seals it"
        )
    if StoreSeal.read(stored).flags & SEALING:
        raise UsageError(
            "sealing or unsealing the file was interrupted; finish that first: `agent-ckpt keys seal-existing`"
        )
    keyring = sealing.keyring
    assert keyring is not None
    keyring.read_again()  # another rotation may have begun, and wraps under another key than we know of
    before = yield from status(sealing)
    if not keyring.remote and not before.remaining:
        keyring.add_new()
    if not (compromised and StoreSeal.read(stored).flags & RESEALING):  # else it was interrupted, and goes on
        yield from _rotate_store(sealing, stored, compromised)
    if compromised and keyring.remote:
        todo = yield from _behind(sealing)
    else:
        todo = sum(count for key_id, count in before.threads.items() if keyring.remote or key_id != keyring.active_id)
    done = yield from _each(sealing, _reseal if compromised else _rewrap, progress, todo)
    yield from vault_keys.renew(sealing, compromised)
    if compromised:
        yield from _end_resealing(sealing)
    after = yield from status(sealing)
    gone = {before.store, *before.threads, *before.credentials} - {
        after.store,
        *after.threads,
        *after.credentials,
        None,
    }
    return Rotation(after.store, tuple(sorted(key_id for key_id in gone if key_id)), done)


def _rotate_store(sealing: Sealing, stored: bytes, compromised: bool) -> Steps[None]:
    """The store's own key; where it is compromised a new one, and every name sealed anew with it."""
    keys, keyring = sealing.keys, sealing.keyring
    assert keys is not None and keyring is not None
    found = StoreSeal.read(stored)
    if not keyring.remote and key_id_of(found.envelope) == keyring.active_id:
        return
    # A key service doesn't tell by its key's id what is done, so there the store says that it isn't finished.
    flags = found.flags | (RESEALING if compromised and keyring.remote else 0)
    key, turn = (None, keys.turn + 1) if compromised else (keys.store_key, keys.turn)
    made = yield from sealing.new_store_seal(keys.store_id, flags, key, turn)
    if compromised:
        changed = yield Call(partial(recast.rename, keys, StoreKeys(keyring, keys.store_id, made)), write=True)
    else:
        changed = yield Call(partial(recast.set_seal, stored, made), write=True)
    if not changed:
        raise UnavailableError("the store's key was changed by somebody else just now; run the rotation again")
    yield from sealing.unlock(keys.store_id, made)


def _behind(sealing: Sealing) -> Steps[int]:
    """How many threads have a data key from before the rotation that is going on."""
    behind = at = 0
    while page := (yield Call(partial(recast.thread_keys, at))):
        at = page[-1][0]
        behind += sum(not _is_resealed(sealing, secret) for _, _, secret in page)
    return behind


def _end_resealing(sealing: Sealing) -> Steps[None]:
    """Take the mark of a rotation that goes on off the store."""
    keys = sealing.keys
    assert keys is not None
    found = StoreSeal.read(keys.stored)
    if not found.flags & RESEALING:
        return
    made = yield from sealing.new_store_seal(keys.store_id, found.flags & ~RESEALING, keys.store_key, keys.turn)
    if (yield Call(partial(recast.set_seal, keys.stored, made), write=True)):
        yield from sealing.unlock(keys.store_id, made)


Changing = Callable[[Sealing, list[ThreadKey]], Steps[int]]


def _each(sealing: Sealing, change: Changing, progress: Progress | None, todo: int) -> Steps[int]:
    """Do every thread that isn't done, a page at a time."""
    done = at = 0
    while page := (yield Call(partial(recast.thread_keys, at))):
        at = page[-1][0]
        for some in _some(page, 1 if change is _reseal else len(page)):
            changed = yield from change(sealing, some)
            done += changed
            if progress is not None and changed:
                progress(done, max(todo - done, 0))
    return done


def _some(page: list[ThreadKey], size: int) -> Iterator[list[ThreadKey]]:
    return (page[start : start + size] for start in range(0, len(page), size))


def _is_done(sealing: Sealing, secret: bytes) -> bool:
    keyring = sealing.keyring
    assert keyring is not None
    return len(secret) == SECRET_SIZE or (not keyring.remote and key_id_of(secret) == keyring.active_id)


def _is_resealed(sealing: Sealing, envelope: bytes) -> bool:
    """Whether a thread's or credentials' data key was made in the rotation for a compromised key that is going on."""
    keys, keyring = sealing.keys, sealing.keyring
    assert keys is not None and keyring is not None
    if keyring.remote:
        return turn_of(envelope) >= keys.turn
    return key_id_of(envelope) == keyring.active_id


def _rewrap(sealing: Sealing, page: list[ThreadKey]) -> Steps[int]:
    """Wrap the data keys of a page of threads under the active key; what they seal stays as it is."""
    wanted = [one for one in page if not _is_done(sealing, one[2])]
    if not wanted:
        return 0
    work = partial(_wrapped, sealing, wanted)
    changes = (yield Outside(work)) if sealing.keyring is not None and sealing.keyring.remote else work()
    yield Call(partial(recast.set_thread_keys, changes), write=True)
    return len(changes)


def _wrapped(sealing: Sealing, wanted: list[ThreadKey]) -> list[tuple[int, bytes, bytes]]:
    keys, keyring = sealing.keys, sealing.keyring
    assert keys is not None and keyring is not None
    changes = []
    for thread, stored_id, secret in wanted:
        thread_id = keys.thread_id(stored_id)
        context = keys.context(thread_id)
        material = keyring.unwrap(secret, context, f"thread {thread_id!r}")
        changes.append((thread, secret, keyring.wrap(material, context, turn_of(secret))))
    return changes


def _reseal(sealing: Sealing, page: list[ThreadKey]) -> Steps[int]:
    """Give one thread a new data key, and seal all of it anew."""
    keys = sealing.keys
    assert keys is not None
    ((thread, stored_id, secret),) = page
    if len(secret) == SECRET_SIZE or _is_resealed(sealing, secret):
        return 0
    thread_id = keys.thread_id(stored_id)
    return (yield from _recast(sealing, thread, thread_id, secret, keys, keys))


def _recast(
    sealing: Sealing, thread: int, thread_id: str, stored: bytes, old_keys: StoreKeys | None, new_keys: StoreKeys | None
) -> Steps[int]:
    def prepare() -> Recast:
        old = old_keys.secret(stored, thread_id) if old_keys is not None else stored
        new: bytes = new_keys.fresh(thread_id, bytes(old)) if new_keys is not None else bytes(old)
        return Recast(thread, thread_id, stored, old, new, old_keys, new_keys, sealing.compression)

    job = (yield Outside(prepare)) if sealing.keyring is not None and sealing.keyring.remote else prepare()
    return int((yield Call(partial(recast.recast, job), write=True)))


# Sealing a plaintext file, and the way back


def seal_existing(sealing: Sealing, progress: Progress | None) -> Steps[int]:
    """Seal a plaintext file, or finish what was interrupted; how many threads were sealed."""
    store_id, stored = yield from sealing.unlock_for_recast()
    if stored is None:
        stored = yield from sealing.seal_store(store_id)
        yield from sealing.unlock(store_id, stored)
    if not StoreSeal.read(stored).flags & SEALING:
        return 0
    return (yield from seal_rest(sealing, progress))


def seal_rest(sealing: Sealing, progress: Progress | None = None) -> Steps[int]:
    """Seal the threads of a file that are still plaintext, and take the mark off it."""
    keys = sealing.keys
    assert keys is not None
    plain = StoreSeal.read(keys.stored).flags & ~SEALING
    done = yield from _migrate(sealing, None, keys, progress)
    ended = yield from sealing.new_store_seal(keys.store_id, plain, keys.store_key, keys.turn)
    while not (yield Call(partial(recast.end_migration, keys.stored, ended), write=True)):
        done += yield from _migrate(sealing, None, keys, progress)
    yield from sealing.unlock(keys.store_id, ended)
    return done


def unseal(sealing: Sealing, progress: Progress | None) -> Steps[int]:
    """Make a sealed file plaintext; how many threads were unsealed."""
    store_id, stored = yield from sealing.unlock_for_recast()
    if stored is None:
        return 0
    keys = sealing.keys
    assert keys is not None
    found = StoreSeal.read(stored)
    yield from vault_keys.refuse_any()
    if not found.flags & SEALING:
        marked = yield from sealing.new_store_seal(store_id, found.flags | SEALING, keys.store_key, keys.turn)
        if not (yield Call(partial(recast.set_seal, stored, marked), write=True)):
            raise UnavailableError("the store's key was changed by somebody else just now; run this again")
        yield from sealing.unlock(store_id, marked)
        keys = sealing.keys
        assert keys is not None
    done = yield from _migrate(sealing, keys, None, progress)
    while not (yield Call(partial(recast.end_migration, keys.stored, None), write=True)):
        done += yield from _migrate(sealing, keys, None, progress)
    sealing.forget()
    return done


def _migrate(
    sealing: Sealing, old_keys: StoreKeys | None, new_keys: StoreKeys | None, progress: Progress | None
) -> Steps[int]:
    found = yield from status(sealing)
    plain = found.threads.get("", 0)
    todo = plain if old_keys is None else sum(found.threads.values()) - plain
    done = at = 0
    while page := (yield Call(partial(recast.thread_keys, at))):
        for at, stored_id, secret in page:
            if (len(secret) == SECRET_SIZE) != (old_keys is None):
                continue
            thread_id = stored_id if old_keys is None else old_keys.thread_id(stored_id)
            done += yield from _recast(sealing, at, thread_id, secret, old_keys, new_keys)
            if progress is not None:
                progress(done, max(todo - done, 0))
    return done


def new_key_file(path: str) -> str:
    """Make a file with a fresh key, for its owner only; its id."""
    from agent_ckpt.codec.keysource import new_key_text, write_new

    text = new_key_text()
    write_new(path, f"{text}\n")
    return seal.key_id(bytes.fromhex(text))
