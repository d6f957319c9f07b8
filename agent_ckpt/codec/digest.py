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

DIGEST_SIZE = 16
CHECK_SIZE = 8


def address(content: bytes, secret: bytes) -> bytes:
    """The 16-byte address of a blob's content under its thread's secret."""
    return blake2b(content, digest_size=DIGEST_SIZE, key=secret).digest()


def combined(digests: Iterable[bytes], secret: bytes) -> bytes:
    """Eight bytes that bind the ordered addresses that a value refers to."""
    return blake2b(b"".join(digests), digest_size=CHECK_SIZE, key=secret).digest()


def checksum(parts: Iterable[bytes | str | int | None]) -> bytes:
    """xxh3 of 64 bits over length-prefixed parts, so that no two lists of parts look alike."""
    h = xxhash.xxh3_64()
    for part in parts:
        raw = part if isinstance(part, bytes) else repr(part).encode("utf-8", "surrogatepass")
        h.update(len(raw).to_bytes(8, "little"))
        h.update(raw)
    return h.digest()
