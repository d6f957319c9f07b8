"""Cutting a long text or byte string at places that its content chooses.

A cut falls after three bytes of certain kinds, so an edit moves only the cuts beside it: the other
pieces stay equal and are stored once. The idea is content-defined chunking (LBFS, Muthitacharoen
et al., SOSP 2001); a regular expression finds the cuts at C speed.
"""

from __future__ import annotations

import re

SHORTEST = 2 * 1024
LONGEST = 32 * 1024
CUT_ABOVE = 8 * 1024
"""Values up to this many bytes are stored whole."""


def _kind(multiplier: int, below: int) -> bytes:
    """A character class of `below` byte values spread evenly over the alphabet."""
    members = (value for value in range(256) if (value * multiplier + 41) % 256 < below)
    return b"[" + b"".join(re.escape(bytes((value,))) for value in members) + b"]"


_CUT = re.compile(_kind(167, 16) + _kind(91, 16) + _kind(205, 16), re.DOTALL)


def cut(data: bytes) -> list[bytes]:
    """Cut data into pieces of 2 to 32 KiB whose join is the data."""
    pieces: list[bytes] = []
    start, size = 0, len(data)
    while size - start > SHORTEST:
        found = _CUT.search(data, start + SHORTEST, min(start + LONGEST, size))
        end = found.end() if found else min(start + LONGEST, size)
        pieces.append(data[start:end])
        start = end
    if start < size:
        pieces.append(data[start:])
    return pieces
