"""What stands between a saver's steps and its backend: is the file sealed, and with which keys.

Before its first call a saver looks whether the file is sealed, and refuses one that it has no key for. After that,
programs run as they are (plaintext), or translated (sealed, `core/storekeys.py`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator
from functools import partial
from typing import TYPE_CHECKING, Any

from agent_ckpt.core import storekeys
from agent_ckpt.core.storekeys import KeysChanged, KeysNeeded, StoreKeys, StoreSeal
from agent_ckpt.errors import NotSealedError, UsageError, WrongKeyError
from agent_ckpt.later import Later
from agent_ckpt.options import Options
from agent_ckpt.steps import Ask, Call, Outside, Steps, T

if TYPE_CHECKING:
    from agent_ckpt.codec import seal
    from agent_ckpt.codec.keyring import Keyring
    from agent_ckpt.core import recast, translate
else:
    translate = Later("agent_ckpt.core.translate")
    seal = Later("agent_ckpt.codec.seal")
    recast = Later("agent_ckpt.core.recast")

_ADDRESS_KEY_SIZE = 16


class Sealing:
    """Opens a store's keys once, and runs steps with them.

    Args:
        path: the file, for messages.
        keyring: the saver's keys; None for a saver without.
        options: `seal_existing` and `seal_thread_ids` count here.
        seal_rest: seals the threads of a file that are still plaintext.
    """

    def __init__(
        self, path: str, keyring: Keyring | None, options: Options, seal_rest: Callable[[Sealing], Steps[Any]]
    ) -> None:
        self._path = path
        self.keyring = keyring
        self._options = options
        self._seal_rest = seal_rest
        self._checked = False
        self.keys: StoreKeys | None = None
        self._translated: Callable[..., Any]

    @property
    def compression(self) -> str:
        return self._options.compression

    def forget(self) -> None:
        """The file is plaintext now."""
        self.keys, self._checked = None, False

    def fresh(self, thread_id: str, address_key: bytes | None = None) -> Steps[bytes]:
        """The secret of a thread that isn't stored yet."""
        if self.keys is None:
            return address_key or os.urandom(_ADDRESS_KEY_SIZE)
        make = partial(self.keys.fresh, thread_id, address_key)
        if not self.keys.keyring.remote:
            return make()
        return (yield Outside(make))  # type: ignore[no-any-return]

    def through(self, inner: Steps[T]) -> Steps[T]:
        """Steps whose programs run against the file as it is sealed."""
        return inner if self._checked and self.keys is None else self._through(inner)

    def _through(self, inner: Steps[T]) -> Steps[T]:
        if not self._checked:
            yield from self._open()
        if self.keys is None:
            return (yield from inner)
        send: Callable[[Any], Any] = inner.send
        value: Any = None
        while True:
            try:
                call = send(value)
            except StopIteration as done:
                return done.value  # type: ignore[no-any-return]
            try:
                keys = self.keys
                if keys is None or type(call) is not Call or type(call.factory) is Ask:
                    value = yield call
                else:
                    try:
                        value = yield Call(partial(self._translated, call.factory, keys), call.write)
                    except (KeysNeeded, KeysChanged) as why:
                        value = yield from self._again(call, why)
                send = inner.send
            except BaseException as exc:
                value, send = exc, inner.throw

    def _again(self, call: Call, why: KeysNeeded | KeysChanged) -> Generator[Any, Any, Any]:
        while True:
            if isinstance(why, KeysNeeded):
                yield Outside(why.fetch)
            else:
                yield from self._open()
            if self.keys is None:
                return (yield call)
            try:
                return (yield Call(partial(self._translated, call.factory, self.keys), call.write))
            except (KeysNeeded, KeysChanged) as exc:
                why = exc

    def _open(self) -> Steps[None]:
        """Look at the store's seal.

        Raises:
            WrongKeyError: the file is sealed, and its key isn't among ours.
            NotSealedError: we have a key, and the file is plaintext.
        """
        store_id, _, stored, threads = yield Call(storekeys.store_state)
        if self.keyring is None:
            if stored is not None:
                raise self._no_key(stored)
            self._checked = True
            return
        if stored is None:
            if threads and not self._options.seal_existing:
                raise self._not_sealed()
            stored = yield from self.seal_store(store_id)
        yield from self.unlock(store_id, stored)
        if StoreSeal.read(stored).flags & storekeys.SEALING:
            if not self._options.seal_existing:
                raise self._half_sealed()
            yield from self._seal_rest(self)
        self._checked = True

    def unlock_for_recast(self) -> Steps[tuple[bytes, bytes | None]]:
        """The store's id and seal, whatever its state; with its keys open where it is sealed.

        Raises:
            UsageError: without a key.
            WrongKeyError
        """
        if self.keyring is None:
            raise UsageError(f"this needs the key of {self._path}: give the saver key=..., or the command --key")
        store_id, _, stored, _ = yield Call(storekeys.store_state)
        if stored is not None:
            yield from self.unlock(store_id, stored)
        return store_id, stored

    def unlock(self, store_id: bytes, stored: bytes) -> Steps[None]:
        assert self.keyring is not None
        make = partial(StoreKeys, self.keyring, store_id, stored)
        self.keys = (yield Outside(make)) if self.keyring.remote else make()
        self._translated = translate.translated
        if self._options.seal_thread_ids and not self.keys.seals_thread_ids:
            raise UsageError(
                f"{self._path} is sealed with its thread ids in clear, and this saver was told seal_thread_ids=True. "
                f"Open it without the option, or seal it anew: `agent-ckpt keys unseal`, then `seal-existing`"
            )

    def seal_store(self, store_id: bytes) -> Steps[bytes]:
        """Seal the store's row; threads that are there are sealed after that."""
        flags = storekeys.SEALING | (storekeys.SEALS_THREAD_IDS if self._options.seal_thread_ids else 0)
        made = yield from self.new_store_seal(store_id, flags)
        empty = yield from self.new_store_seal(store_id, flags & ~storekeys.SEALING)
        return (yield Call(partial(recast.set_first_seal, made, empty), write=True))  # type: ignore[no-any-return]

    def new_store_seal(self, store_id: bytes, flags: int, key: bytes | None = None, turn: int = 0) -> Steps[bytes]:
        """What to store for a store that is sealed with a key, a new one if None."""
        assert self.keyring is not None
        key = key or seal.new_keys(seal.KEY_SIZE)
        make = partial(self.keyring.wrap, key, seal.store_context(store_id, flags), turn)
        envelope = (yield Outside(make)) if self.keyring.remote else make()
        return StoreSeal(flags, envelope).stored()

    def _no_key(self, stored: bytes) -> WrongKeyError:
        needed = storekeys.key_id_of(StoreSeal.read(stored).envelope)
        return WrongKeyError(
            f'{self._path} is sealed under key {needed!r}, and no key was given. Give key="file:PATH" or '
            f'"env:NAME" (in the command line: --key, or AGENT_CKPT_KEY). Nothing was read.',
            needed=needed,
            given=(),
            path=self._path,
        )

    def _not_sealed(self) -> NotSealedError:
        return NotSealedError(
            f"a key was given, and {self._path} holds plaintext. Seal it first: `agent-ckpt keys seal-existing "
            f"{os.path.basename(self._path)}`, or open it once with seal_existing=True. Nothing was read.",
            path=self._path,
        )

    def _half_sealed(self) -> NotSealedError:
        return NotSealedError(
            f"sealing or unsealing {self._path} was interrupted. Finish it: `agent-ckpt keys seal-existing "
            f"{os.path.basename(self._path)}` or `agent-ckpt keys unseal`. Nothing was read.",
            path=self._path,
        )
