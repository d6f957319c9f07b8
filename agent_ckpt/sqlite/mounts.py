"""What kind of file system a path is on, by the mount table; no file is opened but the table."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Literal, NamedTuple

TABLE = "/proc/self/mountinfo"

Safety = Literal["local", "shared", "network"]

_NETWORK = {"nfs", "nfs3", "nfs4", "cifs", "smb", "smb2", "smb3", "smbfs", "afs", "ceph", "lustre", "glusterfs"}
_SHARED = {"9p", "virtiofs", "fakeowner", "drvfs", "vboxsf", "vmhgfs", "prl_fs"}


class Mount(NamedTuple):
    """The mount that holds a path.

    Attributes:
        kind: the file system's type as the kernel names it, such as "ext4"; "" where that can't be told.
        point: where it is mounted.
        safety: "local": SQLite's WAL mode works. "shared": the host of a virtual machine or container, or a FUSE
            program, has the file too, and the WAL's shared memory isn't shared with it. "network": other machines
            have it, and locks can't be relied on either.
    """

    kind: str
    point: str
    safety: Safety


def read_table() -> str:
    """The mount table of this process; "" on systems without one, where every path counts as local."""
    try:
        with open(TABLE, encoding="utf-8", errors="surrogateescape") as table:
            return table.read()
    except OSError:
        return ""


def find(path: str, table: Callable[[], str] | None = None) -> Mount:
    """The mount that holds an absolute path without symbolic links; the file needn't exist.

    Args:
        path: where to look.
        table: gives the text of a mount table, for tests; this process's own if None.
    """
    best = Mount("", "", "local")
    for line in (table or read_table)().splitlines():
        before, dash, after = line.partition(" - ")
        fields, rest = before.split(" "), after.split(" ")
        if not dash or len(fields) < 5:
            continue
        point = _unescaped(fields[4])
        # Of two mounts at one place, the later line covers the earlier.
        if _holds(point, path) and len(point) >= len(best.point):
            best = Mount(rest[0], point, _safety(rest[0]))
    return best


def _safety(kind: str) -> Safety:
    name = kind.lower()
    if name in _NETWORK:
        return "network"
    if name in _SHARED or name == "fuseblk" or name.partition(".")[0] == "fuse":
        return "shared"
    return "local"


def _holds(point: str, path: str) -> bool:
    return path == point or path.startswith(point.rstrip(os.sep) + os.sep)


def _unescaped(text: str) -> str:
    for code, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        text = text.replace(code, character)
    return text
