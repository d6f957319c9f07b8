"""How credentials and the records of their use stand in the file: always sealed.

All credentials of a thread are one sealed row, so that a single one can't be put back from an older copy.
"""

from __future__ import annotations

from typing import Any

from agent_ckpt.codec import frame
from agent_ckpt.codec.pack import UnpackError, pack, unpack
from agent_ckpt.codec.seal import UnsealError
from agent_ckpt.errors import ValueNotStorableError
from agent_ckpt.model import Sealer
from agent_ckpt.vault import CredentialUse, Stored, moment

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
    return _seal(cipher, frame.CREDENTIALS_ROW, pack({name: list(one) for name, one in held.items()}), (_ROLE, vault, revision))


def open_vault(cipher: Sealer, vault: int, revision: int, framed: bytes) -> dict[str, Stored]:
    """Undo `seal_vault`.

    Raises:
        VaultError: when it is plaintext, was altered, or was sealed for another place or revision.
    """
    held = _open(cipher, frame.CREDENTIALS_ROW, framed, (_ROLE, vault, revision))
    return {name: Stored(*parts) for name, parts in held.items()}


def seal_use(cipher: Sealer, vault: int, number: int, at: float, use: tuple[str, str, int, str]) -> bytes:
    """The frame of one record: action, name, revision and who."""
    return _seal(cipher, frame.USE_ROW, pack([at, *use]), (_USE_ROLE, vault, number))


def open_use(cipher: Sealer, vault: int, number: int, framed: bytes) -> CredentialUse:
    """Undo `seal_use`.

    Raises:
        VaultError: as `open_vault`.
    """
    at, action, name, revision, by = _open(cipher, frame.USE_ROW, framed, (_USE_ROLE, vault, number))
    when = moment(at)
    assert when is not None
    return CredentialUse(when, action, name, revision, by)


def _seal(cipher: Sealer, codec: int, payload: bytes, coordinates: frame.Coordinates) -> bytes:
    header = frame.sealed_header(codec)
    return header + cipher.seal(header, payload, coordinates)


def _open(cipher: Sealer, codec: int, framed: bytes, coordinates: frame.Coordinates) -> Any:
    header, sealed = framed[: frame.HEADER_SIZE], framed[frame.HEADER_SIZE :]
    if header != frame.sealed_header(codec):
        raise VaultError("it is not sealed, or is another kind of row")
    try:
        return unpack(cipher.open(header, sealed, coordinates))
    except (UnsealError, UnpackError):
        raise VaultError("it was altered, moved, or put back from an older copy") from None


def check_value(value: Any, path: str, depth: int = 0) -> None:
    """Check that a credential's value can be kept.

    Raises:
        ValueNotStorableError: naming where in it, never what stands there.
    """
    kind = type(value)
    if kind is dict and depth < _DEEPEST:
        for key, part in value.items():
            if type(key) is not str:
                raise _refused(path, f"a key of type {type(key).__name__}")
            check_value(part, f"{path}[{key!r:.60}]", depth + 1)
    elif kind is list and 0 < depth < _DEEPEST:
        for at, part in enumerate(value):
            check_value(part, f"{path}[{at}]", depth + 1)
    elif kind is int and depth:
        if not -(1 << 63) <= value < 1 << 64:
            raise _refused(path, "a whole number of more than 64 bits")
    elif kind is str:
        try:
            value.encode()
        except UnicodeEncodeError:
            raise _refused(path, "text with a lone surrogate") from None
    elif depth == 0 or kind not in (type(None), bool, float) or depth >= _DEEPEST:
        raise _refused(path, f"a value of type {kind.__name__}")


def _refused(path: str, what: str) -> ValueNotStorableError:
    return ValueNotStorableError(
        f"{path} can't be kept: it is {what}, and a credential is text or a dict of plain JSON values, nested at most "
        f"{_DEEPEST} deep. Nothing was stored.",
        path=path,
    )
