"""The file of an official SqliteSaver as the source of a transfer."""

from __future__ import annotations

import asyncio
import json
import os
from typing import Any, TypeVar

from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer

from agent_ckpt.codec import foreign
from agent_ckpt.codec.gate import Gate, UnresolvedError
from agent_ckpt.errors import CkptError, CorruptionError, FormatError, UsageError
from agent_ckpt.sources import Item, Key, Write
from agent_ckpt.sqlite.official import OfficialRows

Fault = TypeVar("Fault", FormatError, CorruptionError)

_REMEMBERED = 32 * 1024 * 1024
"""Bytes of messages and models that are remembered while a file is read."""


class _Remembering(foreign.ForeignReader):
    """Remembers the messages and models it has read: each checkpoint of a conversation holds all those before it.

    What it gives is shared between the values that it reads, which a transfer only looks at.
    """

    def __init__(self, gate: Gate, memory: dict[bytes, Any]) -> None:
        super().__init__(gate)
        self.memory = memory

    def part(self, code: int, data: bytes) -> Any:
        """The value of one extension."""
        if code != foreign.PYDANTIC_2:
            return super().part(code, data)
        found = self.memory.get(data)
        if found is None:
            found = self.memory[data] = super().part(code, data)
        return found


class _Gated(SerializerProtocol):
    """Reads what LangGraph's serializer wrote without running anything that it names.

    What a class would be needed for, or would have to be called for, is kept as the bytes that it is.
    """

    def __init__(self) -> None:
        self.gate = Gate(on_unresolved="keep")
        self.memory: dict[bytes, Any] = {}

    def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
        raise NotImplementedError("only for reading")

    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        if data[0] != "msgpack":
            return foreign.decode(*data, self.gate)
        if sum(map(len, self.memory)) > _REMEMBERED:
            self.memory.clear()
        return _Remembering(self.gate, self.memory).read(data[1])


class OfficialFile:
    """A file that LangGraph's official SqliteSaver wrote, to be given to `transfer` as its source.

    Its values are read without running anything that they name. langgraph-checkpoint-sqlite need not be installed.
    The file is opened for reading only and keeps its bytes; close it after use, or use it in a `with`.

    Args:
        path: the file.
        key: the AES key of an EncryptedSerializer: 16, 24 or 32 bytes.

    Raises:
        UsageError: for a missing file or a key of another length.
        FormatError: for another file than the official saver's.
    """

    page: int | None = None

    def __init__(self, path: str | os.PathLike[str], *, key: bytes | None = None) -> None:
        self._inner = _Gated()
        self._serde: SerializerProtocol = self._inner
        self._encrypted = key is not None
        if key is not None:
            self._serde = _encrypted(key, self._inner)
        self._rows = OfficialRows(path)

    @property
    def path(self) -> str:
        """The file's absolute path."""
        return self._rows.path

    @property
    def size(self) -> int:
        """Bytes of the file, with its -wal."""
        return self._rows.size

    def read_through(self, gate: Gate) -> None:
        """Rebuild from now on the classes that this gate lets through, and keep the others as they are."""
        self._inner.gate = gate.keeping()
        self._inner.memory.clear()

    def close(self) -> None:
        """Give the file back.

        Raises:
            FormatError: when somebody wrote it meanwhile, so that what was read may be torn.
        """
        self._rows.close()

    def __enter__(self) -> OfficialFile:
        return self

    def __exit__(self, *exc: Any) -> None:
        self._rows.__exit__(*exc)

    def listed(
        self,
        thread_id: str | None,
        before: str | None,  # noqa: ARG002  (a thread is listed whole)
        limit: int | None,  # noqa: ARG002
    ) -> list[tuple[str, Key]]:
        """Keys of a thread; of all threads their ids, with a key that says nothing."""
        if thread_id is None:
            return [(found, Key("", "", None)) for found in reversed(self._rows.threads())]
        return [(thread_id, Key(*columns)) for columns in reversed(self._rows.keys(thread_id))]

    async def alisted(self, thread_id: str | None, before: str | None, limit: int | None) -> list[tuple[str, Key]]:
        """`listed`, async."""
        return await asyncio.to_thread(self.listed, thread_id, before, limit)

    def read(self, thread_id: str, key: Key) -> Item:
        """One checkpoint with its pending writes.

        Raises:
            UsageError: for an encrypted row without a key, or with a wrong one.
            FormatError: for a row that no safe reading knows, such as a pickled one.
            CorruptionError: for a row that is damaged.
        """
        type_, data, metadata = self._rows.checkpoint(thread_id, key.ns, key.checkpoint_id)
        checkpoint = self._value(thread_id, key, "the row", type_, data)
        if not isinstance(checkpoint, dict) or checkpoint.get("id") != key.checkpoint_id:
            raise self._damage(thread_id, key, "the row", "it isn't what its row says")
        writes = [
            Write(path, task_id, idx, channel, self._value(thread_id, key, f"a write to {channel!r}", type_, value))
            for path, task_id, idx, channel, type_, value in self._rows.writes(thread_id, key.ns, key.checkpoint_id)
        ]
        return Item(key, checkpoint, self._metadata(thread_id, key, metadata), writes)

    async def aread(self, thread_id: str, key: Key) -> Item:
        """`read`, async."""
        return await asyncio.to_thread(self.read, thread_id, key)

    def _metadata(self, thread_id: str, key: Key, stored: Any) -> dict[str, Any]:
        """Metadata is plain JSON to the official saver since 3.0, whoever wrote it."""
        if stored is None:
            return {}
        try:
            found = json.loads(stored)
        except ValueError as exc:
            raise self._damage(thread_id, key, "the metadata", "it is no JSON") from exc
        if not isinstance(found, dict):
            raise self._damage(thread_id, key, "the metadata", "it is no JSON object")
        return found

    def _value(self, thread_id: str, key: Key, what: str, type_: Any, data: Any) -> Any:
        kind, _, cipher = str(type_).partition("+")
        if kind == "pickle":
            raise self._unknown(thread_id, key, what, "it is pickled, and unpickling runs code that the file names")
        if cipher and not self._encrypted:
            raise UsageError(
                f"{self.path} is encrypted ({cipher}): give the key that its EncryptedSerializer had",
                path=self.path,
                thread_id=thread_id,
            )
        try:
            return self._serde.loads_typed((type_, bytes(data) if data is not None else b""))
        except CkptError:
            raise
        except UnresolvedError as exc:
            raise self._unknown(thread_id, key, what, exc.reason) from exc
        except Exception as exc:
            if cipher and isinstance(exc, ValueError):
                raise UsageError(
                    f"{what} of checkpoint {key.checkpoint_id!r} of thread {thread_id!r} in {self.path} can't be "
                    f"decrypted: the key is another one, or the row was changed",
                    path=self.path,
                    thread_id=thread_id,
                    checkpoint_id=key.checkpoint_id,
                ) from None
            why = f"{type(exc).__name__} while decoding type {kind!r:.40}"
            raise self._damage(thread_id, key, what, f"it is damaged ({why})") from exc

    def _unknown(self, thread_id: str, key: Key, what: str, why: str) -> FormatError:
        return self._fault(FormatError, thread_id, key, what, why)

    def _damage(self, thread_id: str, key: Key, what: str, why: str) -> CorruptionError:
        return self._fault(CorruptionError, thread_id, key, what, why)

    def _fault(self, kind: type[Fault], thread_id: str, key: Key, what: str, why: str) -> Fault:
        return kind(
            f"{what} of checkpoint {key.checkpoint_id!r} in namespace {key.ns!r} of thread {thread_id!r} in "
            f"{self.path} can't be read: {why}. Nothing of the thread was stored, the file was left untouched.",
            path=self.path,
            thread_id=thread_id,
            checkpoint_ns=key.ns,
            checkpoint_id=key.checkpoint_id,
        )


def _encrypted(key: bytes, inner: SerializerProtocol) -> SerializerProtocol:
    if len(key) not in (16, 24, 32):
        raise UsageError(f"an AES key has 16, 24 or 32 bytes, this one has {len(key)}")
    try:
        return EncryptedSerializer.from_pycryptodome_aes(serde=inner, key=key)
    except ImportError as exc:
        raise UsageError(
            "reading an encrypted file needs pycryptodome: pip install 'agent-ckpt[encrypted-import]'"
        ) from exc
