"""zstd (RFC 8878) with a factory dictionary for small payloads.

Contexts are kept per OS thread, since a zstd context is not safe for two at once. Small payloads
share most of their bytes with each other (field names, LangGraph's own channel names), which a
dictionary made from such payloads saves. Its number stands in each frame that needs it, so a new
dictionary gets a new number and old frames stay readable.
"""

from __future__ import annotations

import threading
from functools import cache
from importlib.resources import files

import zstandard

NONE = 0
ZSTD = 1
FACTORY_DICTIONARY = 16
"""Compression ids from here on: zstd with factory dictionary number id - 16."""

_LEVEL = 3
_TOO_SMALL = 128
"""Below this a call of zstd (and its hand-over of the interpreter lock) costs more than the bytes are worth."""
_DICTIONARY_BELOW = 32 * 1024
_LARGEST = 1 << 30
_FORMAT = zstandard.FORMAT_ZSTD1_MAGICLESS
_LONG_SIZE = b"\x80"
"""A frame whose first byte is at least this gives its content size in 4 or 8 bytes; a shorter size is below 64 KiB."""

_local = threading.local()


class DecompressError(Exception):
    """The payload is no frame of the compression it names."""


@cache
def _dictionary(number: int) -> zstandard.ZstdCompressionDict:
    try:
        raw = files("agent_ckpt.codec").joinpath(f"factory{number}.dict").read_bytes()
    except FileNotFoundError:
        raise DecompressError(f"needs factory dictionary {number}, which this release does not have") from None
    return zstandard.ZstdCompressionDict(raw, dict_type=zstandard.DICT_TYPE_AUTO)


def _parameters() -> zstandard.ZstdCompressionParameters:
    return zstandard.ZstdCompressionParameters.from_level(
        _LEVEL, format=_FORMAT, write_content_size=True, write_dict_id=False, write_checksum=False
    )


def _compressor(with_dictionary: bool) -> zstandard.ZstdCompressor:
    name = "compressor_dict" if with_dictionary else "compressor"
    found = getattr(_local, name, None)
    if found is None:
        found = zstandard.ZstdCompressor(
            dict_data=_dictionary(0) if with_dictionary else None, compression_params=_parameters()
        )
        setattr(_local, name, found)
    return found


def _decompressor(compression: int) -> zstandard.ZstdDecompressor:
    pool: dict[int, zstandard.ZstdDecompressor] | None = getattr(_local, "decompressors", None)
    if pool is None:
        pool = _local.decompressors = {}
    found = pool.get(compression)
    if found is None:
        dictionary = _dictionary(compression - FACTORY_DICTIONARY) if compression >= FACTORY_DICTIONARY else None
        found = pool[compression] = zstandard.ZstdDecompressor(dict_data=dictionary, format=_FORMAT)
    return found


def compress(payload: bytes, method: str) -> tuple[int, bytes]:
    """Compress a payload where that makes it smaller.

    Args:
        payload: the bytes.
        method: `"zstd"` or `"none"`.

    Returns:
        The compression id and the bytes to store.
    """
    size = len(payload)
    if method == "none" or size < _TOO_SMALL:
        return NONE, payload
    small = size < _DICTIONARY_BELOW
    packed = _compressor(small).compress(payload)
    if len(packed) >= size:
        return NONE, payload
    return (FACTORY_DICTIONARY if small else ZSTD), packed


def decompress(compression: int, data: bytes) -> bytes:
    """Undo `compress`.

    Raises:
        DecompressError: for an unknown id, damaged bytes, or a claimed size above 1 GiB.
    """
    if compression == NONE:
        return data
    if compression != ZSTD and compression < FACTORY_DICTIONARY:
        raise DecompressError(f"unknown compression {compression}")
    try:
        if data[:1] >= _LONG_SIZE:
            size = zstandard.get_frame_parameters(data, format=_FORMAT).content_size
            if size > _LARGEST:
                raise DecompressError("claims more than 1 GiB")
        return _decompressor(compression).decompress(data)
    except zstandard.ZstdError as exc:
        raise DecompressError(str(exc)) from exc
