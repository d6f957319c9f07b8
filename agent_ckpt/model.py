"""Types that the layers share: small, slotted, no I/O."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

Ref = None | int | bytes | str | list[Any]
"""How a stored structure points at a value: None (no value), a blob's number, an inline body, a
dict's key inside a group, or a composite `[kind, count, check, refs]` (codec/tree.py)."""


CAPTURE = "agent_ckpt:capture:"
"""How the names begin under which captures stand among a checkpoint's channels, without a channel_version."""
STATE_VERSION = "agent_ckpt_state_version"
"""The metadata key of a checkpoint's state version; only where the option is used."""


class Sealer(Protocol):
    """What seals and opens the frames of one thread (codec/seal.py)."""

    def seal(self, header: bytes, payload: bytes, coordinates: Any) -> bytes: ...

    def open(self, header: bytes, sealed: bytes, coordinates: Any) -> bytes: ...

    def hide(self, addresses: bytes) -> bytes: ...

    def show(self, marks: bytes) -> bytes: ...


class Secret(bytes):
    """The secret of a sealed thread: the key of its addresses, and with it what seals its frames.

    A thread that isn't sealed has plain bytes in its place.

    Attributes:
        cipher: seals and opens the thread's frames.
        envelope: the wrapped keys, as they stand in the thread's row.
        names, last_head: what codec/heads.py keeps of marks of namespaces, and of the sealed head made or opened last.
    """

    cipher: Sealer
    envelope: bytes
    names: dict[str, bytes]
    last_head: tuple[bytes, Any, bytes | None, Any] | None

    def __new__(cls, address_key: bytes, cipher: Sealer, envelope: bytes) -> Secret:
        made = super().__new__(cls, address_key)
        made.cipher, made.envelope = cipher, envelope
        made.names, made.last_head = {}, None
        return made

    def __repr__(self) -> str:
        return "Secret(...)"

    __str__ = __repr__


class Entry:
    """One blob as it is known in memory.

    Attributes:
        body: codec byte and payload, uncompressed.
        digest: its address under the thread's secret.
        number: its number within the thread; 0 while it isn't known to be stored.
        children, check: for a group of references that was opened, what it refers to, and what binds that (its check,
            and the sum of the bodies where there is one).
    """

    __slots__ = ("body", "check", "children", "digest", "number")

    def __init__(self, body: bytes, digest: bytes, number: int = 0) -> None:
        self.body = body
        self.digest = digest
        self.number = number
        self.children: list[Any] | None = None
        self.check = b""


class Place(NamedTuple):
    """Where a checkpoint stands: its thread, namespace and id."""

    thread_id: str
    ns: str
    checkpoint_id: str | None


class ThreadRow(NamedTuple):
    """A thread's row: the fence that every write compares and raises.

    Attributes:
        thread: the thread's number, never reused.
        revision: commit sequence of the last accepted write.
        session: id of the session that wrote it, or None.
        next_blob: the next free blob number.
        collected: rises whenever blobs were dropped, so that numbers known in memory are void.
        secret: the key of the thread's addresses; of a sealed thread, a Secret.
        heads: of a sealed thread, what its sealed head says (codec/heads.py); else None.
    """

    thread: int
    revision: int
    session: bytes | None
    next_blob: int
    collected: int
    secret: bytes
    heads: Any = None


FROZEN_S = 10.0
"""Seconds for which a run keeps newcomers out that can't do anything: its process or its event loop stands still."""


class Holder(NamedTuple):
    """A run that is going, as others see it.

    Attributes:
        process: the id of its process.
        age_s: seconds since it restored its thread.
        base: the revision that it restored.
    """

    process: int
    age_s: float
    base: int

    def __str__(self) -> str:
        return f"a run of process {self.process}, {self.age_s:.1f} s old,"


class LeaseRow(NamedTuple):
    """A thread's lease.

    Attributes:
        fence: rises with each lease of the store.
        holder: eight bytes; the first four name the process.
        label: what others are told of the holder.
        turn: 1 for a turn on the thread, 0 for a lease that was asked for as one.
        since, expires: seconds since the epoch.
    """

    fence: int
    holder: bytes
    label: str
    turn: int
    since: float
    expires: float


class CheckpointRow(NamedTuple):
    """A checkpoint's row as it was read, and its thread's secret."""

    seq: int
    place: Place
    parent_id: str | None
    run_id: str | None
    frame: bytes
    history: bytes | None
    secret: bytes


class WritesRow(NamedTuple):
    """The row of one put_writes call, and its thread's secret."""

    seq: int
    place: Place
    run_id: str | None
    frame: bytes
    secret: bytes


@dataclass(slots=True)
class Body:
    """What a checkpoint's frame holds.

    Attributes:
        v: LangGraph's format number of the checkpoint.
        ts: its ISO 8601 time.
        channels: name, channel_version (None: the value came without one) and reference, in order.
        versions_seen: node to channel to channel_version.
        updated: LangGraph's `updated_channels`.
        metadata: body of the metadata dict.
        rest: further keys of the checkpoint, as a body, or None.
        state_version: the one that its metadata say, or None.
    """

    v: int
    ts: str
    channels: list[tuple[str, Any, Ref]]
    versions_seen: dict[str, dict[str, Any]]
    updated: list[str] | None
    metadata: bytes
    rest: bytes | None
    state_version: int | None = None


class TaskWrites(NamedTuple):
    """What the frame of one put_writes call holds: a task's writes, in order.

    Attributes:
        task_id, task_path: the task.
        writes: index (LangGraph's WRITES_IDX_MAP for special channels), channel, reference.
        state_version: of the program that wrote them, or None.
    """

    task_id: str
    task_path: str
    writes: list[tuple[int, str, Ref]]
    state_version: int | None = None


@dataclass(slots=True)
class History:
    """What a kept checkpoint remembers of its pruned ancestors, per DeltaChannel.

    Attributes:
        channels: name to (has a seed, the seed's reference, writes oldest first as task id,
            reference and state version, the seed's state version).
    """

    channels: dict[str, tuple[bool, Ref, list[tuple[str, Ref, int | None]], int | None]] = field(default_factory=dict)
