"""Checkpoint ids as they stand in a row: a canonical UUID takes 16 bytes in place of 36."""

from __future__ import annotations


def shrink(text: str) -> bytes | str:
    """The 16 bytes of a UUID in its canonical spelling; any other text unchanged."""
    if len(text) == 36 and text[8] == text[13] == text[18] == text[23] == "-":
        try:
            raw = bytes.fromhex(text.replace("-", ""))
        except ValueError:
            return text
        if len(raw) == 16 and expand(raw) == text:
            return raw
    return text


def expand(stored: bytes | str) -> str:
    """Undo `shrink`."""
    if isinstance(stored, str):
        return stored
    digits = stored.hex()
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"
