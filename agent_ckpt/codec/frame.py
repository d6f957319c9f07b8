"""Frames: how every stored blob and row says how to read it.

    byte 0    magic 0xAC
    byte 1    format_version (1)
    byte 2    codec: what the payload is (constants below)
    byte 3    compression id (`compress`)
    byte 4    flags: 1 where it is sealed
    ...       payload; sealed: a nonce of 12 bytes, the ciphertext, and the tag of 16
    8 bytes   rows only, where not sealed: xxh3 over header, payload and the row's coordinates

A blob has no checksum of its own: its address is a digest of its content and is checked on reading, or its
group's sum. The tag of a sealed frame is over its header, its payload, its thread and its coordinates (of a blob, its
address).
"""

from __future__ import annotations

from collections.abc import Sequence

from agent_ckpt.codec import compress, digest
from agent_ckpt.errors import SealError, SealReason
from agent_ckpt.model import Secret

MAGIC = 0xAC
FORMAT_VERSION = 1
HEADER_SIZE = 5
SEALED = 1

PLAIN = 1
"""Exact msgpack (`pack`)."""
MESSAGE = 2
"""A LangChain message (`messages`)."""
SERDE = 3
"""Type and bytes of the saver's serializer."""
NODE = 4
"""A closed group of references (`tree`)."""
PIECE = 5
"""A piece of a long str (UTF-8) or bytes."""
ARRAY = 6
"""A numeric array: dtype, shape, order, byte-shuffled elements."""
ARRAY_DIFF = 7
"""A numeric array as the byte-shuffled difference to another one."""
TYPED = 8
"""Msgpack with the typed codec's extensions (`typed`)."""

CHECKPOINT_ROW = 16
WRITES_ROW = 17
HISTORY_ROW = 18

Coordinates = digest.Coordinates


NOT_HERE = "it was altered, or it comes from another place or an older copy: its seal does not fit what stands here"


class FrameError(Exception):
    """The bytes are no frame, or not what was stored. The reader adds where it stood.

    Attributes:
        reason: for a frame of a sealed thread, what SealError says of it; else None.
    """

    def __init__(self, message: str, reason: SealReason | None = None) -> None:
        super().__init__(message)
        self.reason = reason


class UnsealError(Exception):
    """Sealed bytes that don't open: altered, or made for another place or under another key.

    Attributes:
        reason, detail: what is known of it.
    """

    def __init__(self, detail: str = "", reason: SealReason = "altered") -> None:
        super().__init__(detail)
        self.reason: SealReason = reason
        self.detail = detail


class NoCipher:
    """In place of the cipher of a thread whose key can't be had: each use says why."""

    __slots__ = ("_error",)

    def __init__(self, error: SealError) -> None:
        self._error = error

    def seal(self, header: bytes, payload: bytes, coordinates: Coordinates) -> bytes:  # noqa: ARG002
        raise self._error

    def open(self, header: bytes, sealed: bytes, coordinates: Coordinates) -> bytes:  # noqa: ARG002
        raise UnsealError(self._error.message, self._error.reason) from self._error

    def hide(self, addresses: bytes) -> bytes:  # noqa: ARG002
        raise self._error

    def show(self, marks: bytes) -> bytes:
        return marks


def _header(codec: int, compression: int, flags: int = 0) -> bytes:
    return bytes((MAGIC, FORMAT_VERSION, codec, compression, flags))


def seal_blob(body: bytes, method: str, secret: bytes, address: bytes) -> bytes:
    """Frame a blob's body (a codec byte and its payload), sealed where its thread is."""
    compression, payload = compress.compress(body[1:], method)
    if isinstance(secret, Secret):
        header = _header(body[0], compression, SEALED)
        return header + secret.cipher.seal(header, payload, ("blob", address))
    return _header(body[0], compression) + payload


def open_blob(frame: bytes, secret: bytes, address: bytes) -> bytes:
    """Give back the body of a blob's frame. The caller checks its address.

    Raises:
        FrameError: when the frame is damaged, of a newer format, or not sealed as its thread is.
    """
    codec, compression, payload = _split(frame, secret, ("blob", address))
    return bytes((codec,)) + _expand(compression, payload)


_OPENED_AT_ONCE = {
    bytes((MAGIC, FORMAT_VERSION, codec, compress.FACTORY_DICTIONARY, 0)): bytes((codec,)) for codec in range(1, 9)
}
"""Headers of what nearly every blob is: small, compressed and not sealed; and how its body begins."""


def open_blobs(
    frames: Sequence[bytes], secret: bytes, addresses: Sequence[bytes]
) -> tuple[list[bytes], dict[int, FrameError]]:
    """`open_blob` for many.

    Returns:
        The bodies; and by its place why one can't be opened, whose body is then b"".
    """
    usual = {} if isinstance(secret, Secret) else _OPENED_AT_ONCE
    opened: list[bytes] = []
    faults: dict[int, FrameError] = {}
    decompress = compress.small_decompressor()
    for frame, address in zip(frames, addresses, strict=True):
        begin = usual.get(frame[:HEADER_SIZE])
        if begin is not None and len(frame) > HEADER_SIZE and frame[HEADER_SIZE] < compress.LONG_SIZE:
            try:
                opened.append(begin + decompress(frame[HEADER_SIZE:]))
                continue
            except compress.ZstdError:
                pass  # it is opened below once more, which tells what is wrong
        try:
            opened.append(open_blob(frame, secret, address))
        except FrameError as exc:
            faults[len(opened)] = exc
            opened.append(b"")
    return opened, faults


def seal_row(codec: int, payload: bytes, coordinates: Coordinates, method: str, secret: bytes) -> bytes:
    """Frame a row's payload and bind it to its coordinates, sealed where its thread is."""
    compression, packed = compress.compress(payload, method)
    if isinstance(secret, Secret):
        header = _header(codec, compression, SEALED)
        return header + secret.cipher.seal(header, packed, coordinates)
    framed = _header(codec, compression) + packed
    return framed + digest.checksum(framed, coordinates)


def open_row(codec: int, frame: bytes, coordinates: Coordinates, secret: bytes) -> bytes:
    """Give back the payload of a row's frame after checking it and where it stands.

    Raises:
        FrameError: when a byte changed, the row was moved, the format is newer, or it isn't sealed as its thread is.
    """
    if isinstance(secret, Secret):
        found, compression, payload = _split(frame, secret, coordinates)
        if found != codec:
            raise FrameError(f"it holds codec {found} where {codec} was expected", "altered")
        return _expand(compression, payload)
    framed, check = frame[:-8], frame[-8:]
    if len(frame) < HEADER_SIZE + 8 or digest.checksum(framed, coordinates) != check:
        raise FrameError("its checksum does not match its bytes and place")
    found, compression, payload = _split(framed, secret, coordinates)
    if found != codec:
        raise FrameError(f"it holds codec {found} where {codec} was expected")
    return _expand(compression, payload)


def _split(frame: bytes, secret: bytes, coordinates: Coordinates) -> tuple[int, int, bytes]:
    sealed = isinstance(secret, Secret)
    if len(frame) < HEADER_SIZE or frame[0] != MAGIC:
        raise FrameError("it does not begin as a frame", "altered" if sealed else None)
    if frame[1] != FORMAT_VERSION:
        raise FrameError(f"format_version {frame[1]}, this release reads {FORMAT_VERSION}: upgrade agent_ckpt")
    if frame[4] == SEALED and isinstance(secret, Secret):
        return frame[2], frame[3], _unsealed(frame, secret, coordinates)
    if sealed and not frame[4]:
        raise FrameError("it is plaintext, and its thread is sealed: somebody wrote it past the saver", "plaintext")
    if frame[4] == SEALED:
        raise FrameError("it is sealed, and its thread is not", "altered")
    if frame[4]:
        raise FrameError(f"flags {frame[4]:#x} are not known to this release")
    return frame[2], frame[3], frame[HEADER_SIZE:]


def _unsealed(frame: bytes, secret: Secret, coordinates: Coordinates) -> bytes:
    try:
        return secret.cipher.open(frame[:HEADER_SIZE], frame[HEADER_SIZE:], coordinates)
    except UnsealError as exc:
        raise FrameError(exc.detail or NOT_HERE, exc.reason) from None


def _expand(compression: int, payload: bytes) -> bytes:
    try:
        return compress.decompress(compression, payload)
    except compress.DecompressError as exc:
        raise FrameError(f"its payload does not decompress: {exc}") from exc
