"""Threads as portable files: export and import."""

from __future__ import annotations

import asyncio
import os
import secrets
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from agent_ckpt.carrier import thread_id_of
from agent_ckpt.errors import CkptError, DiskFullError, UnavailableError, UsageError
from agent_ckpt.later import Later
from agent_ckpt.parts import Store, Thread
from agent_ckpt.plumbing import Plumbing
from agent_ckpt.steps import Call, Steps

if TYPE_CHECKING:
    from agent_ckpt.codec import portable
    from agent_ckpt.core import portable as programs
else:
    programs = Later("agent_ckpt.core.portable")
    portable = Later("agent_ckpt.codec.portable")

Path = str | os.PathLike[str]
_NO_SPACE = 28
_MODE = 0o600


@dataclass(frozen=True, slots=True)
class PortableReport:
    """What an export wrote, or an import read.

    Attributes:
        thread_id: the thread, by its id in the store.
        checkpoints, writes: how many it has; writes are calls of put_writes.
        size: bytes of the portable file.
    """

    thread_id: str
    checkpoints: int
    writes: int
    size: int


class PortableOps(Plumbing):
    """The part of AgentSaver that takes threads out as files, and in."""

    def export_thread(self, thread: Thread, path: Path) -> PortableReport:
        """Write a thread to a portable file: all its checkpoints, writes and values, and no credentials.

        No class of the values is needed. The file gets the rights 0600 and appears whole, durable when this returns.

        Args:
            thread: an id or a config.
            path: where; nothing may be there yet.

        Raises:
            UsageError: when the thread isn't stored, or the path is taken.
            CorruptionError: when anything of the thread isn't what was stored.
        """
        _check_free(path)
        return _write(self._run(_collected(thread)), path)

    async def aexport_thread(self, thread: Thread, path: Path) -> PortableReport:
        """`export_thread`, async."""
        _check_free(path)
        made = await self._arun(_collected(thread))
        return await asyncio.to_thread(_write, made, path)

    def import_thread(self, path: Path, *, thread_id: Thread | None = None) -> PortableReport:
        """Store a thread from a portable file, in one transaction; durable when this returns.

        No class of the values is needed.

        Args:
            path: the file.
            thread_id: its id here; the one it had where it comes from if None.

        Raises:
            UsageError: for a missing file, or when a thread of that id exists.
            FormatError: for another kind of file, or a newer version.
            CorruptionError: for a damaged or truncated file. In every case nothing was stored.
        """
        made, size = _read(path)
        return self._run(_stored(self._store, made, size, thread_id, os.fspath(path)))

    async def aimport_thread(self, path: Path, *, thread_id: Thread | None = None) -> PortableReport:
        """`import_thread`, async."""
        made, size = await asyncio.to_thread(_read, path)
        return await self._arun(_stored(self._store, made, size, thread_id, os.fspath(path)))


def _collected(thread: Thread) -> Steps[portable.Portable]:
    thread_id = thread_id_of(thread)
    made: portable.Portable = yield Call(partial(programs.collect, thread_id))
    return made


def _stored(
    store: Store, made: portable.Portable, size: int, thread_id: Thread | None, name: str
) -> Steps[PortableReport]:
    target = thread_id_of(thread_id if thread_id is not None else made.thread_id)
    rules = store.rules(target, None)
    secret = yield from store.fresh(target, made.secret)
    yield Call(partial(programs.store, made, target, secret, store.options.compression, rules, name), write=True)
    return _report(made, target, size)


def _report(made: portable.Portable, thread_id: str, size: int) -> PortableReport:
    return PortableReport(thread_id, made.checkpoints, made.calls, size)


def _check_free(path: Path) -> None:
    if os.path.lexists(path):
        raise UsageError(f"{os.fspath(path)} exists already; name another file", path=os.fspath(path))


def _write(made: portable.Portable, path: Path) -> PortableReport:
    """Write a file beside the one that is wanted, sync it, and give it the name."""
    name = os.fspath(path)
    folder = os.path.dirname(os.path.abspath(name))
    if not os.path.isdir(folder):
        raise UsageError(f"the folder {folder} does not exist; make it first", path=name)
    part = os.path.join(folder, f".{os.path.basename(name)}.{secrets.token_hex(8)}.part")
    try:
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0), _MODE)
        try:
            with os.fdopen(descriptor, "wb") as file:
                os.fchmod(file.fileno(), _MODE)
                size = portable.write(made, file)
                file.flush()
                os.fsync(file.fileno())
            _check_free(path)
            os.rename(part, name)
        finally:
            with suppress(FileNotFoundError):
                os.unlink(part)
        _sync_folder(folder)
    except OSError as exc:
        raise _io_error(exc, "writing", name) from exc
    return _report(made, made.thread_id, size)


def _sync_folder(folder: str) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _read(path: Path) -> tuple[portable.Portable, int]:
    name = os.fspath(path)
    try:
        with open(name, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            return portable.read(file, size, name), size
    except (FileNotFoundError, IsADirectoryError) as exc:
        raise UsageError(f"there is no file {name}", path=name) from exc
    except OSError as exc:
        raise _io_error(exc, "reading", name) from exc


def _io_error(exc: OSError, doing: str, name: str) -> CkptError:
    if exc.errno == _NO_SPACE:
        return DiskFullError(f"no space left for {name}; nothing of it was kept. Free some and call again.", path=name)
    return UnavailableError(f"{doing} {name} failed: {exc.strerror or type(exc).__name__}", path=name)
