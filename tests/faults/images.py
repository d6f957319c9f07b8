"""What a disk can hold after its power was lost, from a log of writes and syncs.

What was synced is there. Of what was written to a file after its last sync, any part may be there: each write, and each
sector of it, by itself, in whatever order. Names that were made or removed after the last sync of their folder are
there up to some moment, as a file system's journal keeps their order.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

SECTOR = 512


class Record(NamedTuple):
    """One line of the log.

    Attributes:
        op: C(reated), W(rite), T(runcate), S(ync), U(nlink) or M(ark).
        name: the file, by its suffix; "db" is the database and "." its folder.
        number: an offset, a size or the mark's number.
    """

    op: str
    name: str
    number: int
    data: bytes


def read_log(path: Path) -> list[Record]:
    """All records of a log."""
    content = path.read_bytes()
    return list(_records(content))


def _records(content: bytes) -> Iterator[Record]:
    at = 0
    while at < len(content):
        end = content.index(b"\n", at)
        op, name, number, length = content[at:end].decode().split()
        size = int(length) if op == "W" else 0
        yield Record(op, name, int(number), content[end + 1 : end + 1 + size])
        at = end + 1 + size


@dataclass
class File:
    """One inode: what is on the platter, and what was done to it since its last sync."""

    durable: bytearray = field(default_factory=bytearray)
    pending: list[Record] = field(default_factory=list)

    def sync(self) -> None:
        for record in self.pending:
            _apply(self.durable, record, record.data)
        self.pending = []

    def left(self, chance: random.Random, how: str) -> bytes:
        """What is there after the power came back."""
        content = bytearray(self.durable)
        for at, record in enumerate(self.pending):
            if how == "all" or (how == "all but the last" and at < len(self.pending) - 1):
                _apply(content, record, record.data)
            elif how == "torn" and record.op == "W":
                for start in range(0, len(record.data), SECTOR):
                    if chance.random() < 0.5:
                        piece = record.data[start : start + SECTOR]
                        _apply(content, record._replace(number=record.number + start), piece)
            elif how in ("some", "torn") and chance.random() < 0.5:
                _apply(content, record, record.data)
        return bytes(content)


def _apply(content: bytearray, record: Record, data: bytes) -> None:
    end = record.number if record.op == "T" else record.number + len(data)
    if len(content) < end:
        content.extend(bytes(end - len(content)))
    if record.op == "T":
        del content[end:]
    else:
        content[record.number : end] = data


HOW = ("none", "some", "torn", "all but the last", "all")
"""What is left of the writes that were not synced."""


class Disk:
    """Replays a log up to a moment.

    Attributes:
        marks: the marks that were passed, in order.
    """

    def __init__(self) -> None:
        self._names: dict[str, File] = {}
        self._durable_names: dict[str, File] = {}
        self._pending_names: list[dict[str, File]] = []
        self.marks: list[int] = []

    def play(self, record: Record) -> None:
        """Let one record happen."""
        if record.op == "M":
            self.marks.append(record.number)
        elif record.op in "CU":
            if record.op == "C":
                self._names[record.name] = File()
            else:
                self._names.pop(record.name)
            self._pending_names.append(dict(self._names))
        elif record.op == "S" and record.name == ".":
            self._durable_names, self._pending_names = dict(self._names), []
        elif record.op == "S":
            self._names[record.name].sync()
        else:
            self._names[record.name].pending.append(record)

    def lose_power(self, folder: Path, chance: random.Random, how: str) -> None:
        """Write the files as they are found when the power comes back."""
        names = chance.choice([self._durable_names, *self._pending_names])
        for name, file in names.items():
            suffix = "" if name == "db" else name
            (folder / f"agent.db{suffix}").write_bytes(file.left(chance, how))
        if chance.random() < 0.3:
            # Nobody syncs the -shm, so anything may stand in it.
            (folder / "agent.db-shm").write_bytes(chance.randbytes(32768))
