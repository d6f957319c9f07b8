"""One thread as one portable file: a stream of chunks, checked as a whole, plain or sealed.

    8 bytes   magic
    4 bytes   length of the header, big-endian as all lengths here
    ...       header: msgpack {"version": 1, "sealed": None or what the sealer says of itself}
    chunks    each: 4 bytes length, then the chunk
    4 bytes   0: no more chunks
    32 bytes  BLAKE2b-256 over everything before

A chunk, once opened, is a compression id (`compress`) and a packed list of records. The first record is the thread,
with how many follow; then come its blobs, then its rows in commit order. They hold what the store's frames hold,
without the frames, so that they can be framed anew for another place; and nothing but the thread: no credentials.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, BinaryIO, NamedTuple, Protocol

from agent_ckpt.codec import compress
from agent_ckpt.codec.frame import UnsealError
from agent_ckpt.codec.pack import UnpackError, pack, unpack
from agent_ckpt.errors import CorruptionError, FormatError

MAGIC = b"\x89ACKPT\r\n"
VERSION = 1
CHECKPOINT, WRITES, ROLLBACK = 1, 2, 3
_CHUNK = 1 << 20
_LARGEST_HEADER = 1 << 16
_DIGEST_SIZE = 32


class Blob(NamedTuple):
    """A blob: its number in the thread, its address, its body."""

    number: int
    address: bytes
    body: bytes


class Row(NamedTuple):
    """A row in the thread's commit order.

    Attributes:
        kind: CHECKPOINT, WRITES, or ROLLBACK: nothing but the place in the order at which rows were undone.
        space: which of the thread's namespaces, from 0.
        id: the checkpoint's id as it stands in a row.
        parent: of a checkpoint its parent's id, of writes their task's key.
        run: the run's id, or None.
        payload: what the frame holds.
        history: of a checkpoint the payload of its history record, or None.
        undone: the index of the row that undid it, or None.
    """

    kind: int
    space: int
    id: bytes | str
    parent: bytes | str | int | None
    run: bytes | str | None
    payload: bytes
    history: bytes | None
    undone: int | None = None


@dataclass(slots=True)
class Portable:
    """A whole thread on its way.

    Attributes:
        thread_id: its id where it comes from.
        secret: the key of its addresses.
        next_blob: its next free blob number.
        spaces: its namespaces.
        blobs, rows: what is stored of it.
    """

    thread_id: str
    secret: bytes
    next_blob: int
    spaces: list[str]
    blobs: list[Blob] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)

    @property
    def checkpoints(self) -> int:
        """How many checkpoints it has."""
        return sum(row.kind == CHECKPOINT for row in self.rows)

    @property
    def calls(self) -> int:
        """How many calls of put_writes it has."""
        return sum(row.kind == WRITES for row in self.rows)

    @property
    def pending_writes(self) -> int:
        """How many single writes its put_writes calls hold."""
        return sum(len(unpack(row.payload)[2]) for row in self.rows if row.kind == WRITES)

    def equals(self, other: Portable) -> bool:
        """Whether another thread holds the same, whatever its id."""
        return (self.secret, self.spaces, self.blobs, self.rows) == (
            other.secret, other.spaces, other.blobs, other.rows
        )  # fmt: skip


class Sealer(Protocol):
    """Seals the chunks of a stream, and opens them.

    Attributes:
        about: what stands in the header, so that a reader finds the key; msgpack's plain types.
    """

    about: dict[str, Any]

    def seal(self, chunk: bytes, position: int) -> bytes: ...

    def open(self, chunk: bytes, position: int) -> bytes: ...  # or UnsealError


def write(thread: Portable, file: BinaryIO, sealer: Sealer | None = None) -> int:
    """Write a thread; how many bytes that took."""
    digest = blake2b(digest_size=_DIGEST_SIZE)
    size = 0

    def put(data: bytes) -> None:
        nonlocal size
        digest.update(data)
        file.write(data)
        size += len(data)

    header = pack({"version": VERSION, "sealed": sealer.about if sealer is not None else None})
    put(MAGIC + len(header).to_bytes(4, "big") + header)
    for position, records in enumerate(_portions(thread)):
        method, packed = compress.compress(pack(records), "zstd")
        chunk = bytes((method,)) + packed
        if sealer is not None:
            chunk = sealer.seal(chunk, position)
        put(len(chunk).to_bytes(4, "big") + chunk)
    put(bytes(4))
    file.write(digest.digest())
    return size + _DIGEST_SIZE


def _portions(thread: Portable) -> Iterator[list[list[Any]]]:
    """The records, in lists of about 1 MiB."""
    head = [thread.thread_id, thread.secret, thread.next_blob, thread.spaces, len(thread.blobs), len(thread.rows)]
    portion: list[list[Any]] = [head]
    size = 0
    parts: Iterable[Blob | Row] = (*thread.blobs, *thread.rows)
    for part in parts:
        portion.append(list(part))
        size += sum(len(value) for value in part if isinstance(value, (bytes, str)))
        if size >= _CHUNK:
            yield portion
            portion, size = [], 0
    if portion:
        yield portion


def read(file: BinaryIO, size: int, name: str, sealer_of: Callable[[dict[str, Any]], Sealer]) -> Portable:
    """Read a thread.

    Args:
        file: the open file, at its start.
        size: its bytes.
        name: what to call it in errors.
        sealer_of: gives the Sealer for what the header says of one, or raises.

    Raises:
        FormatError: for another kind of file, or a newer version.
        CorruptionError: for a damaged or truncated file.
    """
    source = _Source(file, size, name)
    about = _header(source)
    sealer = sealer_of(about) if about is not None else None
    records: list[Any] = []
    position = 0
    while length := source.length():
        chunk = source.take(length)
        if sealer is not None:
            try:
                chunk = sealer.open(chunk, position)
            except UnsealError:
                raise source.damaged("a chunk doesn't open, it was changed or is another one's") from None
        records += _records(chunk, source)
        position += 1
    source.finish()
    try:
        return _thread(records)
    except (TypeError, ValueError, IndexError) as exc:
        raise source.damaged("its records are not what this format says") from exc


def _header(source: _Source) -> dict[str, Any] | None:
    if source.size < len(MAGIC) or source.take(len(MAGIC)) != MAGIC:
        raise FormatError(f"{source.name} is no file that `agent-ckpt export` wrote", path=source.name)
    length = source.length()
    if length > _LARGEST_HEADER:
        raise source.damaged("its header is too long")
    try:
        header = unpack(source.take(length))
        version, about = header["version"], header["sealed"]
    except (UnpackError, TypeError, KeyError) as exc:
        raise source.damaged("its header can't be read") from exc
    if version != VERSION:
        raise FormatError(
            f"{source.name} is a portable file of version {version!r:.20}, this release reads {VERSION}: "
            f"upgrade agent_ckpt",
            path=source.name,
            expected=VERSION,
            found=version,
        )
    if about is not None and not isinstance(about, dict):
        raise source.damaged("its header can't be read")
    return about


def _records(chunk: bytes, source: _Source) -> list[Any]:
    try:
        found = unpack(compress.decompress(chunk[0], chunk[1:]))
    except (IndexError, UnpackError, compress.DecompressError) as exc:
        raise source.damaged("a chunk can't be read") from exc
    if not isinstance(found, list):
        raise source.damaged("a chunk holds no records")
    return found


def _thread(records: list[Any]) -> Portable:
    thread_id, secret, next_blob, spaces, blobs, rows = records[0]
    _demand(type(thread_id) is str and type(secret) is bytes and type(next_blob) is int)
    _demand(type(spaces) is list and all(type(ns) is str for ns in spaces) and len(set(spaces)) == len(spaces))
    _demand(type(blobs) is int and type(rows) is int and len(records) == 1 + blobs + rows)
    thread = Portable(thread_id, secret, next_blob, spaces)
    for record in records[1 : 1 + blobs]:
        blob = Blob(*record)
        _demand(type(blob.number) is int and 0 < blob.number < next_blob)
        _demand(type(blob.address) is bytes and type(blob.body) is bytes and len(blob.body) > 0)
        thread.blobs.append(blob)
    for record in records[1 + blobs :]:
        row = Row(*record)
        _demand(row.kind in (CHECKPOINT, WRITES, ROLLBACK) and type(row.space) is int and 0 <= row.space < len(spaces))
        _demand(type(row.id) in (bytes, str) and type(row.payload) is bytes)
        _demand(type(row.run) in (bytes, str, type(None)) and type(row.history) in (bytes, type(None)))
        _demand((type(row.parent) is int) == (row.kind == WRITES))
        _demand(row.undone is None or (type(row.undone) is int and 0 <= row.undone < rows))
        thread.rows.append(row)
    return thread


def _demand(condition: bool) -> None:
    if not condition:
        raise ValueError("a record of another shape")


class _Source:
    """Reads a stream, never beyond its size, and keeps the digest of what was read."""

    def __init__(self, file: BinaryIO, size: int, name: str) -> None:
        self.size = size
        self.name = name
        self._file = file
        self._left = size
        self._digest = blake2b(digest_size=_DIGEST_SIZE)

    def take(self, count: int) -> bytes:
        data = self._file.read(count) if count <= self._left else b""
        if len(data) != count:
            raise self.damaged("it ends too early")
        self._left -= count
        self._digest.update(data)
        return data

    def length(self) -> int:
        return int.from_bytes(self.take(4), "big")

    def finish(self) -> None:
        """Compare the digest at the end, behind which nothing may follow."""
        made = self._digest.digest()
        if self.take(_DIGEST_SIZE) != made:
            raise self.damaged("its digest is another one")
        if self._left:
            raise self.damaged("something follows its end")

    def damaged(self, why: str) -> CorruptionError:
        return CorruptionError(
            f"{self.name} is damaged: {why}. Nothing of it was stored; export the thread again.", path=self.name
        )
