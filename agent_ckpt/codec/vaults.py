"""How credentials and the records of their use stand in the file: always sealed.

All credentials of a thread are one sealed row, so that a single one can't be put back from an older copy.
"""

from __future__ import annotations

from typing import Any

from agent_ckpt.codec import frame
from agent_ckpt.codec.pack import UnpackError, pack, unpack
from agent_ckpt.model import Sealer
from agent_ckpt.vault import CredentialUse, Hidden, Stored, moment

CREDENTIALS_ROW = 32
USE_ROW = 33
_SEALED = 1
_ROLE = "credentials"
_USE_ROLE = "credential use"
_DEEPEST = 64


class VaultError(Exception):
    """A row of the credential store that doesn't open. The caller says which."""


def context(store_id: bytes, thread_id: str) -> bytes:
    """What the data key of a thread's credentials, and all that it seals, is bound to."""
    return pack([store_id, "vault", thread_id])


def seal_vault(cipher: Sealer, vault: int, revision: int, held: dict[str, Stored]) -> bytes:
    """The frame of a thread's credentials."""
    packed = pack({name: [*one[:-1], one.value.reveal()] for name, one in held.items()})
    return _seal(cipher, CREDENTIALS_ROW, packed, (_ROLE, vault, revision))


def open_vault(cipher: Sealer, vault: int, revision: int, framed: bytes) -> dict[str, Stored]:
    """Undo `seal_vault`.

    Raises:
        VaultError: when it is plaintext, was altered, or was sealed for another place or revision.
    """
    held = _open(cipher, CREDENTIALS_ROW, framed, (_ROLE, vault, revision))
    return {
        name: Stored(revision, expires, used, used_by, Hidden(value))
        for name, (revision, expires, used, used_by, value) in held.items()
    }


def seal_use(cipher: Sealer, vault: int, number: int, at: float, use: tuple[str, str, int, str]) -> bytes:
    """The frame of one record: action, name, revision and who."""
    return _seal(cipher, USE_ROW, pack([at, *use]), (_USE_ROLE, vault, number))


def open_use(cipher: Sealer, vault: int, number: int, framed: bytes) -> CredentialUse:
    """Undo `seal_use`.

    Raises:
        VaultError: as `open_vault`.
    """
    at, action, name, revision, by = _open(cipher, USE_ROW, framed, (_USE_ROLE, vault, number))
    when = moment(at)
    assert when is not None
    return CredentialUse(when, action, name, revision, by)


def _seal(cipher: Sealer, codec: int, payload: bytes, coordinates: frame.Coordinates) -> bytes:
    header = _header(codec)
    return header + cipher.seal(header, payload, coordinates)


def _header(codec: int) -> bytes:
    return bytes((frame.MAGIC, frame.FORMAT_VERSION, codec, 0, _SEALED))


def _open(cipher: Sealer, codec: int, framed: bytes, coordinates: frame.Coordinates) -> Any:
    header, sealed = framed[: frame.HEADER_SIZE], framed[frame.HEADER_SIZE :]
    if header != _header(codec):
        raise VaultError("it is not sealed, or is another kind of row")
    try:
        return unpack(cipher.open(header, sealed, coordinates))
    except (frame.UnsealError, UnpackError):
        raise VaultError("it was altered, moved, or put back from an older copy") from None


def fault(value: Any, path: str, depth: int = 0) -> tuple[str, str] | None:
    """Where a credential's value can't be kept, and why; None where it can. It raises nothing, so that no
    traceback has the value in a frame."""
    kind = type(value)
    if kind is dict and depth < _DEEPEST:
        for key, part in value.items():
            found = (path, "has a key that isn't text") if type(key) is not str else _fault_of_text(key, path)
            found = found or fault(part, f"{path}[{key!r:.60}]", depth + 1)
            if found:
                return found
        return None
    if kind is list and 0 < depth < _DEEPEST:
        return next(filter(None, (fault(part, f"{path}[{at}]", depth + 1) for at, part in enumerate(value))), None)
    if kind is str:
        return _fault_of_text(value, path)
    if depth and kind is int:
        return None if -(1 << 63) <= value < 1 << 63 else (path, "is a whole number of more than 64 bits")
    if depth and kind in (type(None), bool, float):
        return None
    return path, f"is a {kind.__name__}" if depth < _DEEPEST else "is nested too deep"


def _fault_of_text(text: str, path: str) -> tuple[str, str] | None:
    try:
        text.encode()
    except UnicodeEncodeError:
        return path, "has a lone surrogate in its text"
    return None
