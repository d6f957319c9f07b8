"""Addresses of blobs and checks of rows.

A blob's address is BLAKE2b (RFC 7693) over its content, keyed with its thread's secret: nobody who
doesn't know the secret can make two contents collide, and equal content in two threads can't be
told from outside. Rows carry xxh3 (a checksum against damage, no more) over their bytes and over
the coordinates they stand at, so that a row that was changed or moved is noticed.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b

import xxhash

from agent_ckpt.codec.pack import PackError, pack_own

Coordinates = tuple[bytes | str | int | None, ...]
"""Where a row stands: its role, thread, namespace, id and commit sequence."""

DIGEST_SIZE = 16
CHECK_SIZE = 8


def address(content: bytes, secret: bytes) -> bytes:
    """The 16-byte address of a blob's content under its thread's secret."""
    return blake2b(content, digest_size=DIGEST_SIZE, key=secret).digest()


def combined(digests: Iterable[bytes], secret: bytes) -> bytes:
    """Eight bytes that bind the ordered addresses that a value refers to."""
    return blake2b(b"".join(digests), digest_size=CHECK_SIZE, key=secret).digest()


def summed(bodies: Iterable[bytes]) -> bytes:
    """Eight bytes over joined bodies, against damage alone: a twentieth of the cost of their addresses."""
    return xxhash.xxh3_64_digest(b"".join(bodies))


def checksum(framed: bytes, coordinates: Coordinates) -> bytes:
    """xxh3 of 64 bits over a frame and its coordinates, length-prefixed, so that no two pairs look alike."""
    try:
        place = pack_own(list(coordinates))
    except PackError:
        # A name with a lone surrogate; it is refused elsewhere, here it must only not match another.
        place = repr(coordinates).encode("utf-8", "surrogatepass")
    return xxhash.xxh3_64_digest(len(framed).to_bytes(8, "little") + framed + place)
