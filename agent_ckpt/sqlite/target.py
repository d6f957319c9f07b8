"""What the user named as the store: a path, a URL or ":memory:", checked before anything is opened."""

from __future__ import annotations

import difflib
import errno
import logging
import os
import secrets
import sqlite3
import stat
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, quote, unquote

from agent_ckpt.errors import UnavailableError, UsageError
from agent_ckpt.sqlite import engine

log = logging.getLogger("agent_ckpt")

MEMORY = ":memory:"
_LONGEST_NAME = 255 - len("-journal")
_ACCEPTED = 'a path, ":memory:", sqlite:///relative.db or sqlite:////absolute/path.db (with ?mode=rw or ?mode=rwc)'


class Target(NamedTuple):
    """A store to open.

    Attributes:
        path: absolute path with symbolic links resolved, or ":memory:".
        create: whether a missing file is made.
        uri: what SQLite opens, without its query for a file.
        memory: whether it lives in this process's memory only.
    """

    path: str
    create: bool
    uri: str
    memory: bool


def parse(given: Any, create: bool) -> Target:
    """Read what the user named; no file is touched.

    Raises:
        UsageError: for what can't be a target, saying what is accepted.
    """
    if isinstance(given, sqlite3.Connection):
        raise UsageError(_use_path(_path_of(given)))
    if type(given).__module__.partition(".")[0] == "aiosqlite":
        raise UsageError(_use_path(None))
    try:
        text = os.fspath(given)
    except TypeError:
        raise UsageError(f"the target must be {_ACCEPTED}; got {type(given).__name__}") from None
    text = os.fsdecode(text)
    if "://" in text:
        text, create = _from_url(text, create)
    if text == MEMORY:
        return Target(MEMORY, True, f"file:/agent_ckpt-{secrets.token_hex(16)}?vfs=memdb", True)
    if not text.strip():
        raise UsageError(f"the target is empty; give {_ACCEPTED}")
    if "\0" in text:
        raise UsageError("the target path holds a NUL character")
    if text.startswith("file:"):
        raise UsageError(f"SQLite's own file: URIs are not taken as a target; give {_ACCEPTED}")
    try:
        os.fsencode(text)
        text.encode()
    except UnicodeEncodeError:
        raise UsageError("the target path holds a lone surrogate, which is no valid text") from None
    path = os.path.realpath(text)
    return Target(path, create, "file:" + quote(path), False)


def check_place(target: Target) -> bool:
    """Look whether the file can be opened or made where it was named; True if it exists.

    Raises:
        UsageError: if it is a folder, is missing and must not be made, or its folder is missing.
    """
    folder, name = os.path.split(target.path)
    try:
        found = os.stat(target.path)
    except (FileNotFoundError, NotADirectoryError):
        found = None
    except OSError as exc:
        kind = UnavailableError if exc.errno in (errno.EIO, errno.ESTALE) else UsageError
        raise kind(f"can't look at {target.path}: {exc.strerror}", path=target.path) from exc
    if found is not None:
        if stat.S_ISDIR(found.st_mode):
            raise UsageError(f"{target.path} is a folder; name a file in it, such as {target.path}/agent.db")
        if not stat.S_ISREG(found.st_mode):
            raise UsageError(f"{target.path} is no regular file")
        if found.st_nlink > 1:
            log.warning(
                "%s has %d names (hard links): SQLite finds its -wal by name, so a process that opens it under another "
                "name loses commits; use one name",
                target.path,
                found.st_nlink,
            )
        return True
    if len(os.fsencode(name)) > _LONGEST_NAME:
        raise UsageError(f"the name of {target.path} is longer than a file's name can be with -journal after it")
    if not os.path.isdir(folder):
        raise UsageError(f"the folder {folder} of the database {name} does not exist; make it first")
    if not target.create:
        raise UsageError(_missing(target.path, folder, name), path=target.path)
    return False


def _missing(path: str, folder: str, name: str) -> str:
    try:
        names = [found for found in os.listdir(folder) if not found.endswith(("-wal", "-shm", "-lock", "-journal"))]
    except OSError:
        names = []
    similar = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    hint = f" Similar names there: {', '.join(similar)}." if similar else ""
    return f"there is no database {path} (working folder: {os.getcwd()}), and it is not to be made.{hint}"


def _from_url(url: str, create: bool) -> tuple[str, bool]:
    scheme, _, rest = url.partition("://")
    if scheme.lower() != "sqlite":
        raise UsageError(f"unknown URL scheme {scheme!r}; give {_ACCEPTED}")
    rest, _, query = rest.partition("?")
    for key, value in parse_qsl(query, keep_blank_values=True):
        if key != "mode" or value not in ("rw", "rwc"):
            raise UsageError(f"unknown part {key}={value} of a sqlite URL; only mode=rw and mode=rwc are known")
        create = create and value == "rwc"
    if rest in ("", "/", f"/{MEMORY}"):
        return MEMORY, create
    if not rest.startswith("/"):
        raise UsageError(
            f"a sqlite URL names no host (this one has something between // and the next /); give {_ACCEPTED}"
        )
    return unquote(rest[1:]), create


def _path_of(connection: sqlite3.Connection) -> str | None:
    try:
        for _, schema, path in connection.execute("PRAGMA database_list"):
            if schema == "main":
                return str(path) or MEMORY
    except engine.ERRORS:
        pass
    return None


def _use_path(path: str | None) -> str:
    what = "the database's path" if path is None else f"its path, {path!r}"
    return (
        f"the target is an open connection; pass {what}, instead: the saver opens its own connections, "
        f"one writer and a few readers, and works from any OS thread and any event loop"
    )
