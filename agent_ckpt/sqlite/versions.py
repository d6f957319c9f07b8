"""Which releases may open a file: its schema_version, and the lowest ones that may read and write it.

All three stand in the file's `user_version`, a byte each, so that they are known before any table is read. A 0 for the
lowest reader or writer means the schema_version itself.

A step leads from a schema_version to the next. One that only adds is made by the first saver that opens an older file:
the file's lowest reader and writer stay, and older workers go on with it. One that raises these is made by
`agent-ckpt upgrade` alone.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import NamedTuple

from agent_ckpt.errors import FormatError

SCHEMA_VERSION = 1


class Step(NamedTuple):
    """What brings a file from a schema_version to the next.

    Attributes:
        make: adds tables, columns and indexes, or changes what is there, in the transaction that is open.
        reader, writer: the lowest schema_version whose releases may read, and write, the file afterwards; 0 for a step
            that only adds, so that those which might before still may.
    """

    make: Callable[[sqlite3.Connection], None]
    reader: int = 0
    writer: int = 0


STEPS: dict[int, Step] = {}
"""By the schema_version that each leads on from. There is one version so far, and so no step."""


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

    @staticmethod
    def of_new_file() -> Versions:
        """What a file says that this release makes: older releases share it, unless a step raised the lowest."""
        found = Versions(1, 1, 1)
        while found.schema < SCHEMA_VERSION:
            found = found.after(STEPS[found.schema])
        return found

    @property
    def user_version(self) -> int:
        """The number that stands in the file."""
        reader, writer = (0 if lowest == self.schema else lowest for lowest in (self.reader, self.writer))
        return self.schema | reader << 8 | writer << 16

    def after(self, step: Step) -> Versions:
        """What the file says after the step from its schema_version."""
        return Versions(self.schema + 1, max(self.reader, step.reader), max(self.writer, step.writer))

    def is_behind(self) -> bool:
        """Whether only steps that add something lead from an older file to this release."""
        steps = [STEPS.get(number, _MISSING) for number in range(self.schema, SCHEMA_VERSION)]
        return self.schema > 0 and bool(steps) and all((step.reader, step.writer) == (0, 0) for step in steps)


def _no_step(connection: sqlite3.Connection) -> None:
    raise AssertionError(connection)


_MISSING = Step(_no_step, 255, 255)


def check_reader(path: str, user_version: int) -> None:
    """Refuse a file that this release can't read.

    Raises:
        FormatError: saying which side is to be upgraded.
    """
    found = Versions.of(user_version)
    if found.schema == SCHEMA_VERSION or found.schema > SCHEMA_VERSION >= found.reader or found.is_behind():
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
