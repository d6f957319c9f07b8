"""Cutting a long text or byte string at places that its content chooses.

A cut falls after three bytes of certain kinds, so an edit moves only the cuts beside it: the other
pieces stay equal and are stored once. The idea is content-defined chunking (LBFS, Muthitacharoen
et al., SOSP 2001); a regular expression finds the cuts at C speed.
"""

from __future__ import annotations

import re
import sys

SHORTEST = 2 * 1024
LONGEST = 32 * 1024
CUT_ABOVE = 8 * 1024
"""Values up to this many bytes are stored whole."""

_OFTEN = 2048
_BEFORE = 64


def _kind(multiplier: int, below: int) -> bytes:
    """A character class of `below` byte values spread evenly over the alphabet."""
    members = (value for value in range(256) if (value * multiplier + 41) % 256 < below)
    return b"[" + b"".join(re.escape(bytes((value,))) for value in members) + b"]"


_CUT = re.compile(_kind(167, 16) + _kind(91, 16) + _kind(205, 16), re.DOTALL)


def _landmark(stretch: bytes) -> int:
    """Where to cut a stretch that holds no such place, since few kinds of bytes occur in it.

    Behind its largest word of eight bytes, of several the one with the largest bytes before it: an
    edit elsewhere doesn't move that. Where one word fills the stretch any place is as good, since
    so regular a piece compresses to almost nothing.
    """
    size = len(stretch)
    words = (memoryview(stretch)[at : at + (size - at) // 8 * 8].cast("Q") for at in range(8))
    word = max(map(max, words)).to_bytes(8, sys.byteorder)
    if stretch.count(word) > _OFTEN:
        return size
    ends = (found.end() for found in re.finditer(re.escape(word), stretch))
    return max(ends, key=lambda end: (stretch[max(end - _BEFORE, 0) : end], end))


def cut(data: bytes) -> list[bytes]:
    """Cut data into pieces of 2 to 32 KiB whose join is the data."""
    pieces: list[bytes] = []
    start, size = 0, len(data)
    while size - start > SHORTEST:
        found = _CUT.search(data, start + SHORTEST, min(start + LONGEST, size))
        if found:
            end = found.end()
        elif size - start <= LONGEST:
            end = size
        else:
            end = start + SHORTEST + _landmark(data[start + SHORTEST : start + LONGEST])
        pieces.append(data[start:end])
        start = end
    if start < size:
        pieces.append(data[start:])
    return pieces
