"""What the saver's methods tell about a store: small frozen types, no I/O."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class ThreadInfo:
    """One line of `AgentSaver.threads()`.

    Attributes:
        thread_id: the thread.
        revision: commit sequence of its last accepted write.
        checkpoints, namespaces: how many it has.
        updated: ISO 8601 time of its newest checkpoint, or None when it has only pending writes
            or the newest can't be read.
    """

    thread_id: str
    revision: int
    checkpoints: int
    namespaces: int
    updated: str | None


@dataclass(frozen=True, slots=True)
class LeaseInfo:
    """One line of `AgentSaver.leases()`.

    Attributes:
        thread_id: the thread.
        fence: the lease's number; a later lease has a larger one.
        holder: who holds it.
        since, expires_at: seconds since the epoch: when it was taken, and until when it holds.
    """

    thread_id: str
    fence: int
    holder: str
    since: float
    expires_at: float


@dataclass(frozen=True, slots=True)
class SchemaChange:
    """One difference between what is stored and a graph.

    Attributes:
        kind: of those that the graph can't go on with, `"pending_node_gone"` (a task waits for a node
            that the graph hasn't), `"pending_write_gone"` (a finished task wrote to a channel that the
            graph hasn't), `"unloadable"` (a channel can't take its stored value) and `"unresolved"` (a
            stored class isn't there). Of the others, `"channel_removed"`, `"channel_added"`,
            `"channel_retyped"` and `"node_removed"`.
        name: the node, channel or class.
        detail: what was found.
    """

    kind: str
    name: str
    detail: str

    @property
    def fatal(self) -> bool:
        """Whether the graph can't go on without losing something."""
        return self.kind in ("pending_node_gone", "pending_write_gone", "unloadable", "unresolved")


@dataclass(frozen=True, slots=True)
class ThreadCheck:
    """What `AgentSaver.check` found of one thread; true when the graph can go on from its head.

    Attributes:
        thread_id: the thread.
        checkpoint_id: its head (latest checkpoint), or None where it has only pending writes.
        changes: the differences, those of subgraphs with their namespace before the name.
        error: why the head can't be read, or gone on from, at all; or None.
    """

    thread_id: str
    checkpoint_id: str | None
    changes: tuple[SchemaChange, ...] = ()
    error: str | None = None

    def __bool__(self) -> bool:
        return self.error is None and not any(change.fatal for change in self.changes)

    @property
    def missing(self) -> tuple[str, ...]:
        """Channels of the graph that the thread has no value of."""
        return self._of("channel_added")

    @property
    def extra(self) -> tuple[str, ...]:
        """Channels with a stored value that the graph hasn't."""
        return self._of("channel_removed")

    @property
    def unresolved(self) -> tuple[str, ...]:
        """Stored classes that aren't there."""
        return self._of("unresolved")

    @property
    def pending(self) -> tuple[str, ...]:
        """Nodes that aren't there and that a task waits for."""
        return self._of("pending_node_gone")

    def _of(self, kind: str) -> tuple[str, ...]:
        return tuple(change.name for change in self.changes if change.kind == kind)


@dataclass(frozen=True, slots=True)
class CheckReport:
    """What `AgentSaver.check` found; true when the graph can go on from the head of every thread.

    Attributes:
        threads: one entry for each thread.
    """

    threads: tuple[ThreadCheck, ...]

    def __bool__(self) -> bool:
        return all(self.threads)


@dataclass(frozen=True, slots=True)
class Captured:
    """What `AgentSaver.restore_captured` found at a checkpoint, by the names given in `capture`.

    Attributes:
        values: what is stored of each capture.
        restored: the captures that were put back.
        missing: declared now, and absent from the checkpoint.
        undeclared: stored with the checkpoint, and not declared now.
        finished_tasks: tasks whose writes stand on the checkpoint: they ran after the capture, and
            won't run again, so what they drew is drawn once more.
    """

    values: dict[str, Any]
    restored: tuple[str, ...]
    missing: tuple[str, ...]
    undeclared: tuple[str, ...]
    finished_tasks: int


@dataclass(frozen=True, slots=True)
class Finding:
    """One fault that `verify` found.

    Attributes:
        kind: `"damaged"`, `"missing"`, `"undecodable"`, `"orphan"` or `"file"`.
        thread_id, checkpoint_ns, checkpoint_id: where, as far as it applies.
        detail: what is wrong.
    """

    kind: str
    thread_id: str | None
    checkpoint_ns: str | None
    checkpoint_id: str | None
    detail: str


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """What `verify` looked at and found. It is true when nothing is wrong."""

    threads: int
    checkpoints: int
    writes: int
    blobs: int
    findings: tuple[Finding, ...]

    def __bool__(self) -> bool:
        return not self.findings


@dataclass(frozen=True, slots=True)
class WalPin:
    """A process with a read transaction, which keeps the WAL from being cut.

    Attributes:
        pid: its process id.
        command: its name, "this one" for the caller's own process, "" where it can't be told.
    """

    pid: int
    command: str


@dataclass(frozen=True, slots=True)
class WalStatus:
    """The WAL of a database.

    Attributes:
        journal: "wal"; "litestream" (WAL mode, folded by Litestream); "rollback" or "memory", which have no WAL.
        bytes: size of the -wal file.
        pages: pages in it; those of an older content that is still to be written over aren't counted.
        pages_left: those of them that are not in the database file yet.
        pinned_by: the processes that read the database now, where the system tells (Linux).
        pinned_for_s: for how many seconds, at least, readers have kept this saver from cutting the WAL; None if
            they don't, or if it has not tried.
    """

    journal: str
    bytes: int
    pages: int
    pages_left: int
    pinned_by: tuple[WalPin, ...] = ()
    pinned_for_s: float | None = None


@dataclass(frozen=True, slots=True)
class Check:
    """One line of what `doctor` found.

    Attributes:
        name: what was looked at, such as "engine".
        state: "ok"; "note", which is good to know; "wrong", which should be changed.
        text: what was found, and what to do about it.
    """

    name: str
    state: str
    text: str


@dataclass(frozen=True, slots=True)
class TransferProgress:
    """How far a transfer is.

    Attributes:
        thread_id: the thread at hand, by its id in the source.
        thread, threads: its place among all, from 1, and how many there are.
        step: `"copying"` its checkpoints, or `"comparing"` what was stored with the source.
        done, total: checkpoints of the thread in this step.
    """

    thread_id: str
    thread: int
    threads: int
    step: Literal["copying", "comparing"]
    done: int
    total: int


@dataclass(frozen=True, slots=True)
class TransferReport:
    """What a transfer did. There is one only if every thread came in, read back and equal to its source.

    Attributes:
        threads, checkpoints, writes: what the target has of the source now; writes are pending writes.
        already_there: how many of the threads were there before, equal in all.
    """

    threads: int
    checkpoints: int
    writes: int
    already_there: int


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
