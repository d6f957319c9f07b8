"""Float arrays, stored as the difference to the array before where that is smaller.

When every element moved a little, the bits that differ are the low ones: XOR with the array before
leaves mostly zero bytes at the high places, and sorting bytes by place (the shuffle of Blosc and
HDF5) puts those together for zstd. A chain of differences is at most CHAIN_AT_MOST long, so a read
needs a bounded number of blobs.
"""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

from agent_ckpt.codec import compress, frame, numeric
from agent_ckpt.codec.pack import pack, unpack
from agent_ckpt.model import Entry

CHAIN_AT_MOST = 8
SMALLEST = 1024


class KnownArray(NamedTuple):
    """An array as it was stored last under a path: its blob, elements and place in its chain."""

    entry: Entry
    raw: bytes
    shape: list[Any]
    chain: int


def describe(value: Any) -> tuple[list[Any], bytes, int] | None:
    """Shape (dtype, shape, order), bytes and element width of a float array worth storing so."""
    numpy = sys.modules.get("numpy")
    if numpy is None or type(value) is not numpy.ndarray:
        return None
    if value.dtype.kind != "f" or value.nbytes < SMALLEST:
        return None
    order = "F" if value.flags.f_contiguous and not value.flags.c_contiguous else "C"
    return [value.dtype.str, list(value.shape), order], numeric.raw(value, order), value.dtype.itemsize


def shuffled(raw: bytes, width: int) -> bytes:
    return b"".join(raw[place::width] for place in range(width))


def unshuffled(data: bytes, width: int) -> bytes:
    each = len(data) // width
    out = bytearray(len(data))
    for place in range(width):
        out[place::width] = data[place * each : (place + 1) * each]
    return bytes(out)


def xor(one: bytes, other: bytes) -> bytes:
    return (int.from_bytes(one, "little") ^ int.from_bytes(other, "little")).to_bytes(len(one), "little")


def whole_body(shape: list[Any], raw: bytes, width: int) -> bytes:
    return bytes((frame.ARRAY,)) + pack([*shape, width, shuffled(raw, width)])


def smallest_body(shape: list[Any], raw: bytes, width: int, before: KnownArray | None) -> tuple[bytes, int]:
    """The smaller of the whole array and its difference to the one before, and its chain place."""
    whole = whole_body(shape, raw, width)
    if before is None or before.shape != shape or before.chain >= CHAIN_AT_MOST or not before.entry.number:
        return whole, 0
    moved = shuffled(xor(raw, before.raw), width)
    difference = bytes((frame.ARRAY_DIFF,)) + pack(
        [*shape, width, moved, before.entry.number, before.entry.digest, before.chain + 1]
    )
    if len(compress.compress(difference, "zstd")[1]) < len(compress.compress(whole, "zstd")[1]):
        return difference, before.chain + 1
    return whole, 0


def base_of(body: bytes) -> tuple[int, bytes]:
    """Number and address of the array that a difference builds on."""
    *_, number, address, _chain = unpack(body[1:])
    return number, address


def restore(body: bytes, base: bytes | None) -> tuple[list[Any], bytes, int]:
    """Shape, bytes and chain place of a stored array.

    Args:
        body: its body.
        base: the bytes of the array it builds on, for a difference.
    """
    fields = unpack(body[1:])
    shape, width, data = fields[:3], fields[3], fields[4]
    raw = unshuffled(data, width)
    if body[0] == frame.ARRAY:
        return shape, raw, 0
    if base is None or len(base) != len(raw):
        raise ValueError("the array it builds on has another size")
    return shape, xor(raw, base), fields[7]


def build(shape: list[Any], raw: bytes) -> Any:
    """The array itself, writable."""
    import numpy

    dtype, dimensions, order = shape
    return numpy.frombuffer(bytearray(raw), dtype=numpy.dtype(dtype)).reshape(dimensions, order=order)
