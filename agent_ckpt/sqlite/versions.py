"""Which releases may open a file: its schema_version, and the lowest ones that may read and write it.

All three stand in the file's `user_version`, a byte each, so that they are known before any table is read. A 0 for the
lowest reader or writer means the schema_version itself.
"""

from __future__ import annotations

from typing import NamedTuple

from agent_ckpt.errors import FormatError

SCHEMA_VERSION = 1


class Versions(NamedTuple):
    """What a file says of itself.

    Attributes:
        schema: its schema_version.
        reader, writer: the lowest schema_version whose releases may read it, and write it.
    """

    schema: int
    reader: int
    writer: int

    @staticmethod
    def of(user_version: int) -> Versions:
        """Take a `user_version` apart."""
        schema = user_version & 0xFF
        return Versions(schema, user_version >> 8 & 0xFF or schema, user_version >> 16 & 0xFF or schema)


def check_reader(path: str, user_version: int) -> None:
    """Refuse a file that this release can't read.

    Raises:
        FormatError: saying which side is to be upgraded.
    """
    found = Versions.of(user_version)
    if found.schema == SCHEMA_VERSION or found.schema > SCHEMA_VERSION >= found.reader:
        return
    if found.schema > SCHEMA_VERSION:
        advice = f"it is read by releases from schema_version {found.reader} on: upgrade agent_ckpt"
    elif found.schema:
        advice = f"bring it up with `agent-ckpt upgrade {path}`, which makes a backup first"
    else:
        advice = "its marks were changed; restore a backup"
    raise _refused(path, found.schema, advice)


def check_writer(path: str, user_version: int) -> None:
    """Refuse to write a file that only newer releases may write.

    Raises:
        FormatError
    """
    found = Versions.of(user_version)
    if found.writer > SCHEMA_VERSION:
        raise _refused(
            path, found.schema, f"it is written by releases from schema_version {found.writer} on: upgrade agent_ckpt"
        )


def _refused(path: str, found: int, advice: str) -> FormatError:
    return FormatError(
        f"{path} has schema_version {found}, this agent_ckpt knows {SCHEMA_VERSION}: {advice}. It was left untouched.",
        path=path,
        expected=SCHEMA_VERSION,
        found=found,
    )
