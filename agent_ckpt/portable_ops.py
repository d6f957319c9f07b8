"""Threads as portable files: export and import."""

from __future__ import annotations

import asyncio
import os
import secrets
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from agent_ckpt.carrier import thread_id_of
from agent_ckpt.errors import CkptError, DiskFullError, UnavailableError, UsageError
from agent_ckpt.later import Later
from agent_ckpt.parts import Store, Thread
from agent_ckpt.plumbing import Plumbing
from agent_ckpt.steps import Call, Steps

if TYPE_CHECKING:
    from agent_ckpt import reports
    from agent_ckpt.codec import keyring as keyrings
    from agent_ckpt.codec import portable, sealed_file
    from agent_ckpt.codec.keyring import Keyring, KeySource
    from agent_ckpt.core import portable as programs
    from agent_ckpt.reports import PortableReport
else:
    reports = Later("agent_ckpt.reports")
    keyrings = Later("agent_ckpt.codec.keyring")
    sealed_file = Later("agent_ckpt.codec.sealed_file")
    programs = Later("agent_ckpt.core.portable")
    portable = Later("agent_ckpt.codec.portable")

Path = str | os.PathLike[str]
_NO_SPACE = 28
_MODE = 0o600


class PortableOps(Plumbing):
    """The part of AgentSaver that takes threads out as files, and in."""

    def export_thread(
        self, thread: Thread, path: Path, *, key: KeySource | None = None, plain: bool = False
    ) -> PortableReport:
        """Write a thread to a portable file: all its checkpoints, writes and values, and no credentials.

        No class of the values is needed. The file gets the rights 0600 and appears whole, durable when this returns.

        Args:
            thread: an id or a config.
            path: where; nothing may be there yet.
            key: what the file is sealed with (as the saver's own `key`); the saver's keys if None. Without either
                it stands in clear.
            plain: let it stand in clear, though the saver has keys.

        Raises:
            UsageError: when the thread isn't stored, or the path is taken.
            KeyServiceError
            CorruptionError: when anything of the thread isn't what was stored.
        """
        keys = self._file_keys(key, plain)
        _check_free(path)
        return _write(self._run(_collected(thread)), path, keys)

    async def aexport_thread(
        self, thread: Thread, path: Path, *, key: KeySource | None = None, plain: bool = False
    ) -> PortableReport:
        """`export_thread`, async."""
        keys = self._file_keys(key, plain)
        _check_free(path)
        made = await self._arun(_collected(thread))
        return await asyncio.to_thread(_write, made, path, keys)

    def _file_keys(self, key: KeySource | None, plain: bool) -> Keyring | None:
        if plain and key is not None:
            raise UsageError("export_thread: give a key for the file, or plain=True, not both")
        if plain:
            return None
        return keyrings.keyring_of(key) or self._sealing.keyring

    def import_thread(
        self, path: Path, *, thread_id: Thread | None = None, key: KeySource | None = None
    ) -> PortableReport:
        """Store a thread from a portable file, in one transaction; durable when this returns.

        No class of the values is needed.

        Args:
            path: the file.
            thread_id: its id here; the one it had where it comes from if None.
            key: what a sealed file is opened with; the saver's keys if None.

        Raises:
            UsageError: for a missing file, when a thread of that id exists, or for a sealed file and a store
                without a key, in which it would stand in clear.
            FormatError: for another kind of file, or a newer version.
            WrongKeyError: when the file is sealed under another key.
            CorruptionError: for a damaged or truncated file. In every case nothing was stored.
        """
        made, size = _read(path, self._sealing.keyring, key)
        return self._run(_stored(self._store, made, size, thread_id, os.fspath(path)))

    async def aimport_thread(
        self, path: Path, *, thread_id: Thread | None = None, key: KeySource | None = None
    ) -> PortableReport:
        """`import_thread`, async."""
        made, size = await asyncio.to_thread(_read, path, self._sealing.keyring, key)
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
    return reports.PortableReport(thread_id, made.checkpoints, made.calls, size)


def _check_free(path: Path) -> None:
    if os.path.lexists(path):
        raise UsageError(f"{os.fspath(path)} exists already; name another file", path=os.fspath(path))


def _write(made: portable.Portable, path: Path, keys: Keyring | None) -> PortableReport:
    """Write a file beside the one that is wanted, sync it, and give it the name."""
    name = os.fspath(path)
    folder = os.path.dirname(os.path.abspath(name))
    if not os.path.isdir(folder):
        raise UsageError(f"the folder {folder} does not exist; make it first", path=name)
    sealer = sealed_file.FileSealer.new(keys) if keys is not None else None
    part = os.path.join(folder, f".{os.path.basename(name)}.{secrets.token_hex(8)}.part")
    try:
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0), _MODE)
        try:
            with os.fdopen(descriptor, "wb") as file:
                os.fchmod(file.fileno(), _MODE)
                size = portable.write(made, file, sealer)
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


def _read(path: Path, own: Keyring | None, key: KeySource | None) -> tuple[portable.Portable, int]:
    name = os.fspath(path)

    def sealer_of(about: dict[str, Any]) -> portable.Sealer:
        if own is None:
            raise UsageError(
                f"{name} is sealed, and the store it shall go into has no key, so it would stand there in clear: give "
                f"the store a key (AgentSaver(..., key=...), --db-key), or export the thread in clear (plain=True)",
                path=name,
            )
        return sealed_file.FileSealer.of(about, keyrings.keyring_of(key) or own, name)

    try:
        with open(name, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            return portable.read(file, size, name, sealer_of), size
    except (FileNotFoundError, IsADirectoryError) as exc:
        raise UsageError(f"there is no file {name}", path=name) from exc
    except OSError as exc:
        raise _io_error(exc, "reading", name) from exc


def _io_error(exc: OSError, doing: str, name: str) -> CkptError:
    if exc.errno == _NO_SPACE:
        return DiskFullError(f"no space left for {name}; nothing of it was kept. Free some and call again.", path=name)
    return UnavailableError(f"{doing} {name} failed: {exc.strerror or type(exc).__name__}", path=name)
