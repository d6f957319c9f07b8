"""What a database's place and company decide before it is opened: its journal mode, and whether its engine may."""

from __future__ import annotations

import logging

from agent_ckpt.errors import UsageError
from agent_ckpt.options import Options
from agent_ckpt.sqlite import engine, files, fork, mounts

log = logging.getLogger("agent_ckpt")

_told: set[str] = set()
_warned: set[str] = set()


def journal_mode(path: str, options: Options) -> str:
    """The journal mode for a database file: "wal", "rollback" or "litestream".

    Raises:
        UsageError: on a network file system, unless the option `journal` says how to go on.
    """
    if options.journal != "auto":
        return options.journal
    mount = mounts.find(path)
    if mount.safety == "local":
        return "wal"
    if mount.safety == "network":
        raise UsageError(
            f"{path} is on {mount.kind} (mounted at {mount.point}), a network file system: SQLite's WAL mode needs "
            f"memory that all who open the file share, and databases get damaged there. Keep the file on a local "
            f"disk. If one machine alone opens it, journal='wal' takes it as it is; if several do and the server's "
            f"locks can be relied on, journal='rollback' works without shared memory.",
            path=path,
            kind=mount.kind,
        )
    if path not in _told:
        _told.add(path)
        log.warning(
            "%s is on %s (mounted at %s), which its host may open too: it is kept with a rollback journal, as WAL mode "
            "isn't safe there. A volume of the machine's own is faster; journal='wal' is for a file that nobody else "
            "opens",
            path,
            mount.kind,
            mount.point,
        )
    return "rollback"


def other_engine(path: str, inode: fork.Inode, using: engine.Engine) -> str | None:
    """Why this engine must not open a file that this process has open already; None if it may.

    Each SQLite library keeps its own list of the locks that the process has, and the kernel drops them all when one
    of the two closes any descriptor of the file.
    """
    ours = fork.engine_of(inode)
    if ours is not None:
        if ours == using.name:
            return None
        return (
            f"this process has {path} open with engine={ours!r}: a second engine ({using.name}) would cancel its "
            f"locks. Use one engine for a file, or close the other saver first"
        )
    if not files.has_descriptor(inode):
        return None
    others = engine.others_loaded(using)
    if using is engine.STANDARD:
        # Mostly a connection of the user's own, by this same engine.
        if others and path not in _warned:
            _warned.add(path)
            log.warning(
                "something in this process has %s open. If it does with %s and not with Python's sqlite3, the two "
                "cancel each other's locks and commits get lost: use one of them",
                path,
                " or ".join(others),
            )
        return None
    return (
        f"something in this process has {path} open, most likely Python's sqlite3, and engine={using.name!r} is "
        f"another SQLite: two of them on one file cancel each other's locks. Close it there first, or leave the "
        f"option out"
    )
