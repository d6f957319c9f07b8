"""Frames: how every stored blob and row says how to read it.

    byte 0    magic 0xAC
    byte 1    format_version (1)
    byte 2    codec: what the payload is (constants below)
    byte 3    compression id (`compress`)
    byte 4    flags, 0 in format 1
    ...       payload
    8 bytes   rows only: xxh3 over header, payload and the row's coordinates

A blob has no checksum of its own: its address is a digest of its content and is checked on reading.
"""

from __future__ import annotations

from agent_ckpt.codec import compress, digest

MAGIC = 0xAC
FORMAT_VERSION = 1
HEADER_SIZE = 5

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


class FrameError(Exception):
    """The bytes are no frame, or not what was stored. The reader adds where it stood."""


def _header(codec: int, compression: int) -> bytes:
    return bytes((MAGIC, FORMAT_VERSION, codec, compression, 0))


def seal_blob(body: bytes, method: str) -> bytes:
    """Frame a blob's body (a codec byte and its payload)."""
    compression, payload = compress.compress(body[1:], method)
    return _header(body[0], compression) + payload


def open_blob(frame: bytes) -> bytes:
    """Give back the body of a blob's frame. The caller checks its address.

    Raises:
        FrameError: when the frame is damaged or of a newer format.
    """
    codec, compression, payload = _split(frame)
    return bytes((codec,)) + _expand(compression, payload)


def seal_row(codec: int, payload: bytes, coordinates: Coordinates, method: str) -> bytes:
    """Frame a row's payload and bind it to its coordinates."""
    compression, packed = compress.compress(payload, method)
    framed = _header(codec, compression) + packed
    return framed + digest.checksum(framed, coordinates)


def open_row(codec: int, frame: bytes, coordinates: Coordinates) -> bytes:
    """Give back the payload of a row's frame after checking it and where it stands.

    Raises:
        FrameError: when a byte changed, the row was moved, or the format is newer.
    """
    framed, check = frame[:-8], frame[-8:]
    if len(frame) < HEADER_SIZE + 8 or digest.checksum(framed, coordinates) != check:
        raise FrameError("its checksum does not match its bytes and place")
    found, compression, payload = _split(framed)
    if found != codec:
        raise FrameError(f"it holds codec {found} where {codec} was expected")
    return _expand(compression, payload)


def _split(frame: bytes) -> tuple[int, int, bytes]:
    if len(frame) < HEADER_SIZE or frame[0] != MAGIC:
        raise FrameError("it does not begin as a frame")
    if frame[1] != FORMAT_VERSION:
        raise FrameError(f"format_version {frame[1]}, this release reads {FORMAT_VERSION}: upgrade agent_ckpt")
    if frame[4]:
        raise FrameError(f"flags {frame[4]:#x} are not known to this release")
    return frame[2], frame[3], frame[HEADER_SIZE:]


def _expand(compression: int, payload: bytes) -> bytes:
    try:
        return compress.decompress(compression, payload)
    except compress.DecompressError as exc:
        raise FrameError(f"its payload does not decompress: {exc}") from exc
