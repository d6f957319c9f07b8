"""zstd (RFC 8878) with a factory dictionary for small payloads.

A zstd context is not safe for two at once. Those that compress are lent out, since loading the dictionary into a new
one costs more than twenty payloads, and LangGraph puts from a new OS thread at nearly every step; those that
decompress are kept per OS thread. Small payloads share most of their bytes with each other (field names, LangGraph's
own channel names), which a dictionary made from such payloads saves. Its number stands in each frame that needs it,
so a new dictionary gets a new number and old frames stay readable.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import cache
from importlib.resources import files

import zstandard

NONE = 0
ZSTD = 1
FACTORY_DICTIONARY = 16
"""Compression ids from here on: zstd with factory dictionary number id - 16."""

_LEVEL = 3
_SMALL_LEVEL = 2
"""With the dictionary it compresses within 1 % of level 3 in two thirds of the time, from tables half as large."""
_TOO_SMALL = 128
"""Below this a call of zstd (and its hand-over of the interpreter lock) costs more than the bytes are worth."""
_DICTIONARY_BELOW = 32 * 1024
_FREE_AT_MOST = 8
"""How many unused compressors are kept: each takes about a quarter of a megabyte."""
_LARGEST = 1 << 30
_FORMAT = zstandard.FORMAT_ZSTD1_MAGICLESS
ZstdError = zstandard.ZstdError
LONG_SIZE = 0x80
"""A frame whose first byte is at least this gives its content size in 4 or 8 bytes; a shorter size is below 64 KiB."""


class DecompressError(Exception):
    """The payload is no frame of the compression it names."""


@cache
def _dictionary(number: int) -> zstandard.ZstdCompressionDict:
    try:
        raw = files("agent_ckpt.codec").joinpath(f"factory{number}.dict").read_bytes()
    except FileNotFoundError:
        raise DecompressError(f"needs factory dictionary {number}, which this release does not have") from None
    return zstandard.ZstdCompressionDict(raw, dict_type=zstandard.DICT_TYPE_AUTO)


class _Contexts(threading.local):
    """One OS thread's decompressors, by compression id."""

    def __init__(self) -> None:
        self.decompressors: dict[int, zstandard.ZstdDecompressor] = {}


_contexts = _Contexts()
_compressors: dict[bool, list[zstandard.ZstdCompressor]] = {True: [], False: []}
"""Those that nobody is using, by whether they are for small payloads."""


def _compressed(payload: bytes, small: bool) -> bytes:
    free = _compressors[small]
    try:
        context = free.pop()
    except IndexError:
        context = _compressor(small)
    packed: bytes = context.compress(payload)
    if len(free) < _FREE_AT_MOST:
        free.append(context)
    return packed


def _compressor(small: bool) -> zstandard.ZstdCompressor:
    dictionary = _dictionary(0) if small else None
    parameters = zstandard.ZstdCompressionParameters.from_level(
        _SMALL_LEVEL if small else _LEVEL,
        format=_FORMAT,
        dict_size=len(dictionary) if dictionary is not None else 0,
        write_content_size=True,
        write_dict_id=False,
        write_checksum=False,
    )
    return zstandard.ZstdCompressor(dict_data=dictionary, compression_params=parameters)


def _decompressor(compression: int) -> zstandard.ZstdDecompressor:
    dictionary = _dictionary(compression - FACTORY_DICTIONARY) if compression >= FACTORY_DICTIONARY else None
    made = zstandard.ZstdDecompressor(dict_data=dictionary, format=_FORMAT)
    _contexts.decompressors[compression] = made
    return made


def small_decompressor() -> Callable[[bytes], bytes]:
    """What undoes the compression of small payloads, on this OS thread; for many of them in turn.

    It raises ZstdError, and is for payloads that begin below LONG_SIZE alone.
    """
    found = _contexts.decompressors.get(FACTORY_DICTIONARY) or _decompressor(FACTORY_DICTIONARY)
    return found.decompress


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
    packed = _compressed(payload, small)
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
        if data and data[0] >= LONG_SIZE:
            size = zstandard.get_frame_parameters(data, format=_FORMAT).content_size
            if size > _LARGEST:
                raise DecompressError("claims more than 1 GiB")
        return (_contexts.decompressors.get(compression) or _decompressor(compression)).decompress(data)
    except zstandard.ZstdError as exc:
        raise DecompressError(str(exc)) from exc
