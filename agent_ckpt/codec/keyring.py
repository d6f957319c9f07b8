"""Master keys: where they come from, which one is active, and wrapping data keys with them.

A master key never enters the file. Its id is computed from it, so a key is looked up by id and never tried.
"""

from __future__ import annotations

import logging
import os
import threading
import weakref
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from agent_ckpt.codec import seal
from agent_ckpt.codec.frame import UnsealError
from agent_ckpt.codec.keysource import material, new_key_text, put_first, read_source, sole_writer
from agent_ckpt.errors import CkptError, KeyMaterialError, KeyServiceError, SealError, UsageError, WrongKeyError

log = logging.getLogger("agent_ckpt")

KeyService = Callable[[str, str, bytes], Any]
"""A key service (KMS): called as `service("wrap", "", keys)` it gives `(key id, wrapped)`; called as
`service("unwrap", key id, wrapped)` it gives the keys back. It is called from any OS thread."""
KeySource = Any
"""What a saver takes as its key: see `Keyring.of`."""


class Keyring:
    """Master keys: the active one seals what is new, older ones only open.

    Args:
        active: 32 random bytes, or their text form (64 hex digits or base64).
        *older: keys that were active before, until `agent-ckpt keys status` counts nothing under them.
        service: in place of keys, a key service (KMS) that wraps and unwraps data keys (`KeyService`).
        timeout_s: seconds that one call of the service may take.

    Raises:
        KeyMaterialError: for a key of another length, or one that isn't random.
    """

    def __init__(
        self,
        active: bytes | str | None = None,
        *older: bytes | str,
        service: KeyService | None = None,
        timeout_s: float = 10.0,
    ) -> None:
        if (active is None) == (service is None):
            raise UsageError("a Keyring takes either keys or a key service")
        if timeout_s <= 0:
            raise UsageError(f"a Keyring's timeout_s must be above 0, got {timeout_s!r}")
        self._service = service
        self._keys: dict[str, bytes] = {}
        given = [] if active is None else [active, *older]
        active, older = None, ()
        try:
            self._keys = {seal.key_id(key): key for key in (material(one, "the key") for one in given)}
        except KeyMaterialError as exc:
            # Error reports show the local variables of calls, and a key that was cut or mistyped tells most of one.
            given = []
            raise exc.with_traceback(None) from None
        self._timeout_s = timeout_s
        self._source: str | None = None
        self._known: dict[bytes, bytes] = {}
        self._lock = threading.Lock()
        self._asking: dict[bytes, threading.Lock] = {}
        _keyrings.add(self)

    @classmethod
    def of(cls, given: Any, environ: Mapping[str, str] | None = None) -> Keyring:
        """The keyring of what was given as `key`: bytes, `"env:NAME"`, `"file:PATH"`, a Keyring or a callable.

        Raises:
            KeyMaterialError: when there is no usable key in it.
        """
        if isinstance(given, Keyring):
            return given
        if isinstance(given, (bytes, bytearray)):
            return cls(bytes(given))
        if isinstance(given, str):
            made = cls(*read_source(given, environ))
            made._source = given
            return made
        if callable(given):
            return _of_service(given)
        raise UsageError(
            f"key must be 32 bytes, 'env:NAME', 'file:PATH', a Keyring or a callable, got {type(given).__name__}"
        )

    @property
    def active_id(self) -> str | None:
        """The id of the key that wraps what is new; None where a key service decides."""
        return next(iter(self._keys), None)

    @property
    def ids(self) -> tuple[str, ...]:
        """The ids of all keys, the active one first."""
        return tuple(self._keys)

    @property
    def remote(self) -> bool:
        """Whether a call may wait for a key service."""
        return self._service is not None

    def __repr__(self) -> str:
        return f"Keyring(service, {self._timeout_s} s)" if self.remote else f"Keyring(ids={', '.join(self._keys)})"

    def __reduce__(self) -> Any:
        raise UsageError("a Keyring is never pickled: its keys would stand in the pickle")

    def wrap(self, keys: bytes, context: bytes, turn: int = 0) -> bytes:
        """An envelope of data keys, under the active key.

        Args:
            turn: after how many rotations for a compromised key they were made.

        Raises:
            KeyServiceError
        """
        if self._service is None:
            key_id, master = next(iter(self._keys.items()))
            wrapped = seal.wrap(master, keys, context)
        else:
            answer = self._ask("wrap", "", keys)
            if not _is_wrapped(answer) or keys in answer[1]:
                raise _wrong_answer("wrap", "", "it must give (key id, wrapped bytes)")
            key_id, wrapped = answer
        envelope = seal.close_envelope(key_id, wrapped, keys, context, turn)
        if self.remote:
            with self._lock:
                self._known[envelope] = keys
        return envelope

    def known(self, envelope: bytes) -> bytes | None:
        """The keys of an envelope that a key service opened or made before in this process."""
        return self._known.get(envelope)

    def unwrap(self, envelope: bytes, context: bytes, what: str) -> bytes:
        """The keys in an envelope; a key service is asked for each once per process.

        Args:
            what: whose they are, for messages.

        Raises:
            WrongKeyError: when its key isn't among ours.
            SealError: when it was changed, or belongs to something else.
            KeyServiceError
        """
        keys = self._known.get(envelope)
        if keys is not None:
            return keys
        try:
            key_id, wrapped, check, turn = seal.read_envelope(envelope)
        except UnsealError:
            raise _altered(what, "the wrapped key is no envelope") from None
        if self._service is not None:
            keys = self._unwrap_remote(
                envelope, key_id, wrapped, partial(seal.fits, check=check, context=context, turn=turn)
            )
        else:
            keys = self._unwrap_local(key_id, wrapped, context, what)
            if not seal.fits(keys, check, context, turn):
                raise _altered(what, "its wrapped key is another one's")
        return keys

    def _unwrap_local(self, key_id: str, wrapped: bytes, context: bytes, what: str) -> bytes:
        master = self._keys.get(key_id)
        if master is None:
            self.read_again()
            master = self._keys.get(key_id)
        if master is None:
            raise WrongKeyError(
                f"{what} is sealed under key {key_id!r}, which is not among the keys given "
                f"({', '.join(self._keys)}). Give the keyring that holds it (the active key first, older ones after).",
                needed=key_id,
                given=self.ids,
            )
        try:
            return seal.unwrap(master, wrapped, context)
        except UnsealError:
            raise _altered(what, f"its wrapped key does not open under key {key_id!r}") from None

    def _unwrap_remote(self, envelope: bytes, key_id: str, wrapped: bytes, fits: Callable[[bytes], bool]) -> bytes:
        with self._lock:
            asking = self._asking.setdefault(envelope, threading.Lock())
        with asking:
            # Held during the call, so that two callers never ask for one key twice.
            keys = self._known.get(envelope)
            if keys is None:
                answer = self._ask("unwrap", key_id, wrapped)
                if not isinstance(answer, bytes) or not 0 < len(answer) <= 64 or not fits(answer):
                    raise _wrong_answer("unwrap", key_id, "it gave other bytes than those that were wrapped")
                keys = self._known[envelope] = seal.KeyBytes(answer)
        with self._lock:
            self._asking.pop(envelope, None)
        return keys

    def add_new(self) -> None:
        """Make a new key the active one, where the keyring is a file of ours to write.

        Raises:
            UsageError: where it isn't: put a new key first there, and call this again.
        """
        source = self._source or ""
        if not source.startswith("file:"):
            raise UsageError(
                "everything is under the active key already. Put a new key first in the keyring (`agent-ckpt keys new` "
                'makes one), keep the old ones after it, and rotate again; a keyring given as "file:PATH" gets one by '
                "itself"
            )
        # A link to a file, as secrets are often mounted, stays one.
        path = os.path.realpath(source.partition(":")[2])
        try:
            with sole_writer(path):
                # Of two rotations at once the second one finds the key of the first, which must not be lost.
                before = self.active_id
                self._read()
                if self.active_id == before:
                    put_first(path, new_key_text())
                    self._read()
        except OSError as exc:
            raise KeyMaterialError(
                f"a new key can't be put into the key file {path} ({exc.strerror}); nothing was changed"
            ) from exc

    def read_again(self) -> None:
        """A keyring in a file or variable may have got a new key since it was read."""
        if self._source is None:
            return
        try:
            self._read()
        except KeyMaterialError as exc:
            log.warning("the keyring could not be read again: %s", exc)

    def _read(self) -> None:
        assert self._source is not None
        found = [material(one, self._source) for one in read_source(self._source, None)]
        self._keys = {seal.key_id(key): key for key in found} | self._keys

    def _ask(self, operation: str, key_id: str, data: bytes) -> Any:
        """Call the service on an OS thread of its own, since it may never return."""
        service, answers = self._service, list[Any]()
        failures, done = list[BaseException](), threading.Event()
        assert service is not None

        def call() -> None:
            try:
                answers.append(service(operation, key_id, bytes(data)))
            except BaseException as exc:
                failures.append(exc)
            finally:
                done.set()

        threading.Thread(target=call, daemon=True, name="agent_ckpt-key-service").start()
        if not done.wait(self._timeout_s):
            raise KeyServiceError(
                f"the key service did not answer within {self._timeout_s} s ({operation}, key {key_id!r}); nothing was "
                f"read or stored. Try again; a Keyring(service=..., timeout_s=...) waits longer.",
                operation=operation,
                key_id=key_id,
            )
        if failures:
            # Its message may hold what it was given, so only its kind is told.
            raise KeyServiceError(
                f"the key service failed ({operation}, key {key_id!r}): {type(failures[0]).__name__}; nothing was read "
                f"or stored. Try again when it is up.",
                operation=operation,
                key_id=key_id,
            )
        return answers[0]

    def renew_lock(self) -> None:
        """In a forked child: a lock that another OS thread held at the fork is never released."""
        self._lock, self._asking = threading.Lock(), {}


def _is_wrapped(answer: Any) -> bool:
    return (
        isinstance(answer, tuple)
        and len(answer) == 2
        and isinstance(answer[0], str)
        and isinstance(answer[1], bytes)
        and bool(answer[1])
    )


def _wrong_answer(operation: str, key_id: str, why: str) -> KeyServiceError:
    return KeyServiceError(
        f"the key service gave a wrong answer ({operation}, key {key_id!r}): {why}. Nothing was read or stored.",
        operation=operation,
        key_id=key_id,
    )


def _altered(what: str, why: str) -> SealError:
    return SealError(
        f"{what} can't be opened: {why}. It was changed, or comes from another thread or file; restore a backup.",
        reason="altered",
    )


def keyring_of(given: KeySource | None, environ: Mapping[str, str] | None = None) -> Keyring | None:
    """`Keyring.of`, or None for None; an error's traceback goes no deeper, where what was given stands in variables."""
    try:
        return Keyring.of(given, environ) if given is not None else None
    except CkptError as exc:
        given = None
        raise exc.with_traceback(None) from None


_services: weakref.WeakKeyDictionary[Any, Keyring] = weakref.WeakKeyDictionary()
_keyrings: weakref.WeakSet[Keyring] = weakref.WeakSet()


def _of_service(service: KeyService) -> Keyring:
    """One keyring per service, so that two savers of a process ask it for no key twice."""
    try:
        return _services.setdefault(service, Keyring(service=service))
    except TypeError:  # it can't be referenced weakly or hashed
        return Keyring(service=service)


def _renew_locks() -> None:
    for keyring in list(_keyrings):
        keyring.renew_lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_locks)
