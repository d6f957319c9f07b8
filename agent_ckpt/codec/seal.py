"""Sealing: AES-256-GCM (NIST SP 800-38D) under a data key per thread, and the envelopes of data keys.

Three kinds of key, from the top:

    master key   outside the file, in a Keyring or at a key service; wraps the two below
    data key     one per thread: seals every frame of it; stands in the thread's row, wrapped
    store key    one per store: from it comes the key of namespaces, text run ids and (where asked) thread ids, which
                 must be found by equality: AES-SIV (RFC 5297), so equal names have equal ciphertext, no more

Nonces are 96 random bits. One data key seals at most 2^32 frames, counted in the thread's sealed head:
below that, two equal nonces are less likely than 2^-32. (A key per message would need no count; measured, it makes
sealing a small frame 2.5 times as slow.)
"""

from __future__ import annotations

import hmac
import os
from hashlib import blake2b

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers import Cipher as BlockCipher
from cryptography.hazmat.primitives.ciphers import CipherContext, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM, AESSIV

from agent_ckpt.codec.digest import Coordinates
from agent_ckpt.codec.frame import UnsealError
from agent_ckpt.codec.pack import UnpackError, pack, pack_made, unpack
from agent_ckpt.model import Secret

KEY_SIZE = 32
NONCE_SIZE = 12
TAG_SIZE = 16
OVERHEAD = NONCE_SIZE + TAG_SIZE
ADDRESS_KEY_SIZE = 16
_CHECK_SIZE = 16


class KeyBytes(bytes):
    """A key, which no error report with local variables shows."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "KeyBytes(...)"

    __str__ = __repr__


class DataCipher:
    """Seals and opens the frames of one thread.

    Args:
        data_key: the thread's data key.
        context: what all its frames are bound to: the store and the thread (`thread_context`).
    """

    __slots__ = ("_aead", "_context", "_hiders", "_marks", "_showers")

    def __init__(self, data_key: bytes, context: bytes) -> None:
        self._aead = AESGCM(data_key)
        self._context = context
        # A block cipher over single blocks that are never equal: nothing is chained, so no mode is at work, and a
        # context serves again and again, but one OS thread at a time.
        key = hmac.digest(data_key, b"agent_ckpt addresses\x01", "sha256")
        self._marks = BlockCipher(algorithms.AES(key), modes.ECB())  # noqa: S305
        self._hiders: list[CipherContext] = []
        self._showers: list[CipherContext] = []

    def seal(self, header: bytes, payload: bytes, coordinates: Coordinates) -> bytes:
        """Nonce, ciphertext and tag of a payload that stands under a header at coordinates."""
        # What is bound is unambiguous: the context ends where it says, the header has five bytes.
        nonce = os.urandom(NONCE_SIZE)
        return nonce + self._aead.encrypt(nonce, payload, self._context + header + pack_made(coordinates))

    def open(self, header: bytes, sealed: bytes, coordinates: Coordinates) -> bytes:
        """Undo `seal`.

        Raises:
            UnsealError: when a bit changed, or it was sealed elsewhere.
        """
        if len(sealed) < OVERHEAD:
            raise UnsealError
        try:
            bound = self._context + header + pack_made(coordinates)
            return self._aead.decrypt(sealed[:NONCE_SIZE], sealed[NONCE_SIZE:], bound)
        except InvalidTag:
            raise UnsealError() from None

    def hide(self, addresses: bytes) -> bytes:
        """What stands in the file for joined 16-byte addresses, so that it tells nothing of the content."""
        try:
            context = self._hiders.pop()
        except IndexError:
            context = self._marks.encryptor()
        marks = context.update(addresses)
        self._hiders.append(context)
        return marks

    def show(self, marks: bytes) -> bytes:
        """Undo `hide`; for whole marks only, since a context would keep what is left over."""
        try:
            context = self._showers.pop()
        except IndexError:
            context = self._marks.decryptor()
        addresses = context.update(marks)
        self._showers.append(context)
        return addresses

    def __repr__(self) -> str:
        return "DataCipher(...)"


class NameCipher:
    """Names that are looked up by equality, as they stand in a sealed file."""

    __slots__ = ("_context", "_opened", "_sealed", "_siv")

    _KEPT = 4096

    def __init__(self, store_key: bytes, store_id: bytes) -> None:
        self._siv = AESSIV(hmac.digest(store_key, b"agent_ckpt names\x01", "sha512"))
        self._context = pack([store_id, "name"])
        self._sealed: dict[tuple[str, str], bytes] = {}
        self._opened: dict[tuple[str, bytes], str] = {}

    def seal(self, role: str, name: str) -> bytes:
        """The ciphertext of a name; equal for equal names of one role."""
        found = self._sealed.get((role, name))
        if found is None:
            # The first byte keeps an empty name from being no data at all, which AES-SIV refuses.
            raw = b"n" + name.encode("utf-8", "surrogatepass")
            found = self._siv.encrypt(raw, [self._context, role.encode()])
            self._keep(role, name, found)
        return found

    def open(self, role: str, sealed: bytes) -> str:
        """Undo `seal`.

        Raises:
            UnsealError: when it is no name of that role in this store.
        """
        name = self._opened.get((role, sealed))
        if name is None:
            try:
                raw = self._siv.decrypt(sealed, [self._context, role.encode()])
            except (InvalidTag, ValueError):
                raise UnsealError() from None
            name = raw[1:].decode("utf-8", "surrogatepass")
            self._keep(role, name, sealed)
        return name

    def _keep(self, role: str, name: str, sealed: bytes) -> None:
        if len(self._opened) >= self._KEPT:
            self._sealed, self._opened = {}, {}
        self._sealed[(role, name)] = sealed
        self._opened[(role, sealed)] = name

    def __repr__(self) -> str:
        return "NameCipher(...)"


def store_context(store_id: bytes, flags: int) -> bytes:
    """What the key of a store is bound to."""
    return pack([store_id, "store", flags])


def thread_context(store_id: bytes, thread_id: str) -> bytes:
    """What a thread's data key, and all that it seals, is bound to."""
    return pack([store_id, "thread", thread_id.encode("utf-8", "surrogatepass")])


def new_keys(size: int) -> bytes:
    """Fresh random key material."""
    return KeyBytes(os.urandom(size))


THREAD_KEYS_SIZE = KEY_SIZE + ADDRESS_KEY_SIZE


def thread_secret(keys: bytes, context: bytes, envelope: bytes) -> Secret:
    """A thread's secret from its unwrapped keys: the data key and the key of its addresses."""
    return Secret(keys[KEY_SIZE:], DataCipher(keys[:KEY_SIZE], context), envelope)


# Envelopes: `[key id, wrapped keys, check, turn]`, in msgpack. The check is a MAC under the wrapped keys, so that a key
# service that answers wrongly, and an envelope that was moved, are noticed before anything is opened. The turn says
# after how many rotations for a compromised key the keys were made.


def close_envelope(key_id: str, wrapped: bytes, keys: bytes, context: bytes, turn: int) -> bytes:
    return pack([key_id, wrapped, _check(keys, context, turn), turn])


def read_envelope(envelope: bytes) -> tuple[str, bytes, bytes, int]:
    """Key id, wrapped keys, check and turn.

    Raises:
        UnsealError: when it is no envelope.
    """
    try:
        parts = unpack(envelope)
    except UnpackError:
        raise UnsealError() from None
    # Packed again, since bytes behind an envelope would else go unnoticed.
    if not isinstance(parts, list) or list(map(type, parts)) != [str, bytes, bytes, int]:
        raise UnsealError
    if pack(parts) != envelope or not 0 <= parts[3] < 1 << 32:
        raise UnsealError
    return parts[0], parts[1], parts[2], parts[3]


def fits(keys: bytes, check: bytes, context: bytes, turn: int) -> bool:
    """Whether unwrapped keys are those that an envelope was made of."""
    return hmac.compare_digest(check, _check(keys, context, turn))


def _check(keys: bytes, context: bytes, turn: int) -> bytes:
    return blake2b(context + turn.to_bytes(4, "big"), digest_size=_CHECK_SIZE, key=keys).digest()


def wrap(master: bytes, keys: bytes, context: bytes) -> bytes:
    """Seal keys under a master key."""
    nonce = os.urandom(NONCE_SIZE)
    return nonce + AESGCM(master).encrypt(nonce, keys, context)


def unwrap(master: bytes, wrapped: bytes, context: bytes) -> bytes:
    """Undo `wrap`.

    Raises:
        UnsealError: when a bit changed, or it was wrapped under another key or for another place.
    """
    if len(wrapped) < OVERHEAD:
        raise UnsealError
    try:
        return KeyBytes(AESGCM(master).decrypt(wrapped[:NONCE_SIZE], wrapped[NONCE_SIZE:], context))
    except InvalidTag:
        raise UnsealError() from None


def key_id(master: bytes) -> str:
    """The id of a master key: told by the key itself, so that it can't be given to another one."""
    return blake2b(b"agent_ckpt key id", digest_size=6, key=master).hexdigest()
