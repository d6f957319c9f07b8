"""Where master keys are read from: variables and files; and what is no key."""

from __future__ import annotations

import base64
import binascii
import contextlib
import fcntl
import logging
import os
import stat
from collections.abc import Iterator, Mapping

from agent_ckpt.codec import seal
from agent_ckpt.errors import KeyMaterialError

log = logging.getLogger("agent_ckpt")

MAKE_ONE = 'make one with `agent-ckpt keys new FILE` and give it as key="file:FILE"'
_LEAST_DISTINCT = 12
_FILE_AT_MOST = 64 * 1024


def read_source(source: str, environ: Mapping[str, str] | None) -> list[bytes | str]:
    """The keys that `env:NAME` or `file:PATH` names, the active one first.

    Raises:
        KeyMaterialError: when there is none.
    """
    kind, _, name = source.partition(":")
    if kind == "env" and name:
        text = (os.environ if environ is None else environ).get(name)
        if not text or not text.strip():
            raise KeyMaterialError(f"key={source!r}: the environment variable {name} is not set; {MAKE_ONE}")
        return list(_words(text))
    if kind == "file" and name:
        return _read_file(name)
    # What was given may be a key in clear, so it is not shown.
    raise KeyMaterialError(
        f"key was given as a text of {len(source)} characters that is neither 'env:NAME' nor 'file:PATH'; a key never "
        f"stands in code or on a command line: {MAKE_ONE}"
    )


def _read_file(path: str) -> list[bytes | str]:
    try:
        with open(path, "rb") as file:
            mode, raw = os.fstat(file.fileno()).st_mode, file.read(_FILE_AT_MOST)
    except OSError as exc:
        raise KeyMaterialError(f"the key file {path} can't be read ({type(exc).__name__}); {MAKE_ONE}") from exc
    if stat.S_IMODE(mode) & 0o077:
        log.warning(
            "the key file %s can be read by others (mode %s); run `chmod 600 %s`", path, oct(stat.S_IMODE(mode)), path
        )
    if len(raw) == seal.KEY_SIZE and not _is_printable(raw):
        return [raw]
    found = [word for line in raw.decode("latin-1").splitlines() for word in _words(line.partition("#")[0])]
    if not found:
        raise KeyMaterialError(f"the key file {path} holds no key; {MAKE_ONE}")
    return list(found)


def _words(text: str) -> list[str]:
    return text.replace(",", " ").split()


def material(given: bytes | str, what: str) -> bytes:
    raw = _decoded(given, what) if isinstance(given, str) else given
    if len(raw) != seal.KEY_SIZE:
        raise KeyMaterialError(f"{what} has {len(raw)} bytes where {seal.KEY_SIZE} are needed; {MAKE_ONE}")
    if _is_printable(raw) or len(set(raw)) < _LEAST_DISTINCT:
        raise KeyMaterialError(f"{what} looks like text or a pattern, not like 32 random bytes; {MAKE_ONE}")
    return seal.KeyBytes(raw)


def _decoded(text: str, what: str) -> bytes:
    raw = _from_text(text)
    if raw is None:
        raise KeyMaterialError(
            f"{what} is a text of {len(text)} characters that is neither 64 hex digits nor base64 of 32 bytes; "
            f"{MAKE_ONE}"
        )
    return raw


def _from_text(text: str) -> bytes | None:
    """The bytes of a key's text form. None, and no error to stand beside ours, which would hold the text."""
    try:
        if len(text) == 2 * seal.KEY_SIZE:
            return bytes.fromhex(text)
        return base64.b64decode(text.replace("-", "+").replace("_", "/"), validate=True)
    except (ValueError, binascii.Error):
        return None


def _is_printable(raw: bytes) -> bool:
    return all(32 <= byte < 127 or byte in b"\t\r\n" for byte in raw)


def write_new(path: str, text: str) -> None:
    """Write a file that isn't there yet, for its owner only; durable when this returns.

    Raises:
        KeyMaterialError: when it exists, or can't be written.
    """
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="latin-1") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
    except OSError as exc:
        raise KeyMaterialError(f"the key file {path} can't be made ({exc.strerror}); nothing was changed") from exc
    files_synced(path)


@contextlib.contextmanager
def sole_writer(path: str) -> Iterator[None]:
    """Keep every other process that changes key files of the folder out, until it is done or dead."""
    folder = os.open(os.path.dirname(os.path.abspath(path)), os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


def put_first(path: str, key_text: str) -> None:
    """Put a key before all else that a key file holds, in one step; its mode and owner stay. Call as `sole_writer`.

    Raises:
        KeyMaterialError: when it can't be written; it is as it was then.
    """
    with contextlib.suppress(FileNotFoundError):
        os.unlink(f"{path}.new")  # of a process that was killed here; nothing was ever sealed under that key
    with open(path, "rb") as file:
        known, raw = os.fstat(file.fileno()), file.read()
    before = raw.hex() + "\n" if len(raw) == seal.KEY_SIZE and not _is_printable(raw) else raw.decode("latin-1")
    write_new(f"{path}.new", f"{key_text}\n{before}")
    with contextlib.suppress(PermissionError):
        os.chown(f"{path}.new", known.st_uid, known.st_gid)
        os.chmod(f"{path}.new", stat.S_IMODE(known.st_mode))
    os.replace(f"{path}.new", path)
    files_synced(path)


def files_synced(path: str) -> None:
    """Make the name of a file durable."""
    folder = os.open(os.path.dirname(os.path.abspath(path)), os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def new_key_text() -> str:
    """A fresh key in its text form."""
    return seal.new_keys(seal.KEY_SIZE).hex()
