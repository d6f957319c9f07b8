"""Sealing the chunks of a portable file under a data key of its own, which a master key wraps.

A chunk is bound to the file and to its place in it; how many records follow stands in the first one. So a chunk that
was changed, moved, left out or taken from another file is noticed, also by nobody who knows only the digest.
"""

from __future__ import annotations

import os
from typing import Any

from agent_ckpt.codec import seal
from agent_ckpt.codec.keyring import Keyring
from agent_ckpt.codec.pack import pack
from agent_ckpt.errors import SealError

_ID_SIZE = 16


class FileSealer:
    """Seals and opens the chunks of one file; `portable.Sealer`.

    Attributes:
        about: `{"file": its random id, "keys": the envelope of its data key}`.
    """

    def __init__(self, data_key: bytes, file_id: bytes, envelope: bytes) -> None:
        self.about: dict[str, Any] = {"file": file_id, "keys": envelope}
        self._cipher = seal.DataCipher(data_key, _context(file_id))

    @classmethod
    def new(cls, keyring: Keyring) -> FileSealer:
        """For a new file; may wait for a key service.

        Raises:
            KeyServiceError
        """
        data_key, file_id = seal.new_keys(seal.KEY_SIZE), os.urandom(_ID_SIZE)
        return cls(data_key, file_id, keyring.wrap(data_key, _context(file_id)))

    @classmethod
    def of(cls, about: dict[str, Any], keyring: Keyring, name: str) -> FileSealer:
        """For a file whose header says this; may wait for a key service.

        Raises:
            WrongKeyError: when its key isn't among ours.
            SealError: when the header was changed.
            KeyServiceError
        """
        file_id, envelope = about.get("file"), about.get("keys")
        if type(file_id) is not bytes or type(envelope) is not bytes:
            raise SealError(f"{name} can't be opened: its header doesn't say how; export it again.", reason="altered")
        return cls(keyring.unwrap(envelope, _context(file_id), name), file_id, envelope)

    def seal(self, chunk: bytes, position: int) -> bytes:
        return self._cipher.seal(b"", chunk, (position,))

    def open(self, chunk: bytes, position: int) -> bytes:
        """Undo `seal`.

        Raises:
            UnsealError: when it is another chunk.
        """
        return self._cipher.open(b"", chunk, (position,))


def _context(file_id: bytes) -> bytes:
    return pack([file_id, "portable file"])
