"""Searching raw files for texts that must not stand there."""

from __future__ import annotations

import base64
import subprocess
from collections.abc import Iterator
from pathlib import Path


def raw_files(path: Path) -> dict[str, bytes]:
    """The bytes of a database and of all files beside it, by name.

    Read by another process: closing a descriptor of the database here would drop SQLite's locks.
    """
    names = sorted(each for each in path.parent.iterdir() if each.is_file())
    return {each.name: subprocess.run(["cat", str(each)], capture_output=True, check=True).stdout for each in names}


def spellings(text: str) -> Iterator[bytes]:
    """The forms in which a text may stand in a file: itself, and what carries it unchanged."""
    raw = text.encode()
    yield from (raw, raw.hex().encode(), text.encode("utf-16-le"), repr(text)[1:-1].encode())
    for shift in range(3):
        # The middle of the base64 form, whose ends depend on what stands beside the text.
        yield base64.b64encode(b"\0" * shift + raw)[4:-4]


def found_in(path: Path, *texts: str) -> list[tuple[str, str]]:
    """Name of the file and text, for each text that stands in a file of the store's folder."""
    files = raw_files(path)
    return [
        (name, text) for name, raw in files.items() for text in texts if any(form in raw for form in spellings(text))
    ]
