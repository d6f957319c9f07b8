"""What can be said of a database's circumstances: engine, mode, file system, rights, WAL."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterator

from agent_ckpt.options import Options
from agent_ckpt.reports import Check, WalStatus
from agent_ckpt.sqlite import files, mounts, pins
from agent_ckpt.sqlite.engine import STANDARD, Engine
from agent_ckpt.sqlite.wal import Limits

OK, NOTE, WRONG = "ok", "note", "wrong"

FIX = "SQLite 3.51.3 or later has no such race: pip install 'agent-ckpt[sqlite]' and the option engine='pysqlite3'"


def before_opening(path: str, using: Engine, options: Options) -> Iterator[Check]:
    """What can be seen without opening the file."""
    yield Check("engine", OK, f"{using.name}, SQLite {using.version_text}, Python {sys.version.split()[0]}")
    mount = mounts.find(path)
    yield _place(mount, options)
    yield from _rights(path)


def _place(mount: mounts.Mount, options: Options) -> Check:
    where = f"{mount.kind} (mounted at {mount.point})" if mount.kind else "not known; this system has no mount table"
    if mount.safety == "local":
        return Check("file system", OK if mount.kind else NOTE, where)
    what = "a network file system" if mount.safety == "network" else "shared with a host"
    if options.journal == "auto" and mount.safety == "network":
        return Check("file system", WRONG, f"{where}, {what}: refused; move the file to a local disk")
    if options.journal in ("wal", "litestream"):
        return Check("file system", WRONG, f"{where}, {what}, and journal={options.journal!r} uses WAL mode there")
    return Check("file system", NOTE, f"{where}, {what}")


def _rights(path: str) -> Iterator[Check]:
    folder = os.path.dirname(path)
    for name in (path, *(path + suffix for suffix in files.SIDE_FILES)):
        found = files.status(name)
        if found is None:
            continue
        bits = stat.S_IMODE(found.st_mode)
        text = f"{os.path.basename(name)} {bits:04o}"
        if bits & files.OTHERS:
            yield Check(
                "rights",
                WRONG,
                f"{text}: other users of this machine can use it; a saver that opens it takes that away",
            )
        elif not os.access(name, os.R_OK | os.W_OK):
            yield Check("rights", WRONG, f"{text}: this user can't read and write it")
        else:
            yield Check("rights", OK, text)
    if not os.access(folder, os.W_OK | os.X_OK):
        yield Check("rights", WRONG, f"folder {folder}: this user can't make files in it, which each write needs")


def mode(using: Engine, limits: Limits) -> Iterator[Check]:
    """The journal mode, and what keeps the WAL race away."""
    if limits.mode == "rollback":
        text = "rollback journal: slower than WAL mode, and readers wait for writers"
        yield Check("mode", NOTE, f"{text}. On a disk of one machine, opening it once with journal='wal' changes it")
        return
    if limits.mode == "litestream":
        state = WRONG if using.is_affected else NOTE
        text = f"WAL mode, folded by Litestream; ours commit beside it. SQLite {using.version_text} "
        text += f"has the WAL race: {FIX}, and a Litestream of the same age" if using.is_affected else "has no WAL race"
        yield Check("mode", state, text)
        return
    yield Check("mode", OK, f"WAL mode, folded by us from {limits.fold_pages} pages")
    if using.is_affected:
        hint = FIX if using.name == STANDARD.name else "upgrade pysqlite3 (pysqlite3-binary is another, older package)"
        text = f"SQLite {using.version_text} has the WAL race (3.7.0 to 3.51.2); guarded mode keeps it away from our "
        yield Check("WAL race", NOTE, f"{text}own writers, not from other programs that write the file. {hint}")
    else:
        yield Check("WAL race", OK, f"SQLite {using.version_text} is fixed; our writers take turns all the same")


def wal_state(status: WalStatus, limits: Limits) -> Check:
    """The WAL as it stands."""
    if limits.mode == "rollback":
        return Check("WAL", OK, "none")
    text = f"{status.bytes} bytes, {status.pages_left} pages not in the file yet"
    if status.bytes > limits.most_bytes and limits.mode == "wal":
        return Check("WAL", WRONG, f"{text}: larger than it should be; read now by {pins.describe(status.pinned_by)}")
    if status.pinned_by:
        text += f"; read now by {pins.describe(status.pinned_by)}"
    return Check("WAL", OK, text)
