"""Checkpoint ids as they stand in a row: a canonical UUID takes 16 bytes in place of 36."""

from __future__ import annotations

from functools import lru_cache

_KEPT = 4096
_LENGTH = 36


def shrink(text: str) -> bytes | str:
    """The 16 bytes of a UUID in its canonical spelling; any other text unchanged."""
    return _shrunk(text) if len(text) == _LENGTH else text


@lru_cache(_KEPT)
def _shrunk(text: str) -> bytes | str:
    # A checkpoint's id comes again with its writes and its child, a run's with each of its steps.
    if text[8] == text[13] == text[18] == text[23] == "-":
        digits = text.replace("-", "")
        try:
            raw = bytes.fromhex(digits)
        except ValueError:
            return text
        if raw.hex() == digits and len(raw) == 16:
            return raw
    return text


def expand(stored: bytes | str) -> str:
    """Undo `shrink`."""
    if isinstance(stored, str):
        return stored
    digits = stored.hex()
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"
