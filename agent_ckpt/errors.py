"""The error tree: every error that agent_ckpt raises on purpose.

    CkptError
    ├── UsageError (ValueError)          the call is wrong; nothing was stored
    │   ├── ValueNotStorableError        a value that no codec can keep faithfully
    │   └── ClosedError                  the saver was closed
    ├── ThreadConflictError (RuntimeError)  another session wrote the thread first
    ├── CredentialConflictError (RuntimeError)  another worker set the credential first
    ├── UnavailableError                 busy, full, read-only; a later call can pass
    │   ├── BusyError                    a lock was held longer than `busy_timeout_s`
    │   │   └── WalPinnedError           a reader keeps the WAL from being cut
    │   ├── DiskFullError                no space left for the write
    │   └── ReadOnlyError                the file or its folder can't be written
    ├── CorruptionError                  stored bytes are not what was stored
    ├── FormatError                      not our file, or a newer format
    ├── SecretError                      keys, and what is sealed with them
    │   ├── KeyMaterialError (UsageError)   a key that is missing, too short or no random key
    │   ├── WrongKeyError                the file is sealed, and its key isn't among those given
    │   ├── NotSealedError (UsageError)  a key was given, and the file is plaintext
    │   ├── KeyServiceError (UnavailableError)  a key service is slow, down or answers wrongly
    │   └── SealError (CorruptionError)  a row is plaintext, altered, moved or from an older copy
    ├── UnresolvedTypeError              a stored value whose class or codec isn't there
    ├── TransferError                    some threads of a transfer were not brought
    ├── SchemaChangeError                the graph can't go on from what an older one stored
    ├── MigrationError                   a stored state can't be brought to `state_version`
    └── PoisonedError                    an I/O error at COMMIT: the outcome is unknown

Each error is picklable, keeps its fields as attributes, and says in `retry` whether a retry can
help. Messages name things (thread, checkpoint, file, path of a value), never a payload.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

Retry = Literal["never", "same_call", "after_reading", "after_wait"]
SealReason = Literal["plaintext", "altered", "replayed", "unknown_key"]
ConflictReason = Literal["stale", "busy", "deleted", "leased", "lease_lost", "expected_revision"]


def _rebuild(cls: type[CkptError], message: str, fields: dict[str, Any]) -> CkptError:
    return cls(message, **fields)


class CkptError(Exception):
    """Base of all errors of this package.

    Attributes:
        message: what happened, where, what was expected and found, what to do next.
        fields: the structured facts behind the message; each is an attribute too.
        retry: whether calling again can help: `"never"`, `"same_call"`, `"after_reading"`
            (read the thread again first) or `"after_wait"`.
    """

    retry: ClassVar[Retry] = "never"
    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, **fields: Any) -> None:
        super().__init__(message)
        self.message = message
        self.fields = fields
        for name, value in fields.items():
            setattr(self, name, value)

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.message, self.fields)


class UsageError(CkptError, ValueError):
    """The call can't be right: a missing thread_id, an unknown option, a missing file."""

    exit_code = 2


class ValueNotStorableError(UsageError):
    """A value that can't be kept faithfully.

    Attributes:
        path: where it stands, such as `channel_values.files['a'].x`.
    """

    path: str


class ClosedError(UsageError):
    """The saver was used after `close()`."""


class ThreadConflictError(CkptError, RuntimeError):
    """The write was refused: the thread moved on after this run restored it.

    Nothing of the refused write is stored. It is a RuntimeError since LangGraph's default retry
    policy retries most other kinds, which can't help here.

    Attributes:
        thread_id: the thread.
        reason: `"stale"` (another session wrote first), `"busy"` (a run that is still going owns
            the thread), `"deleted"` (the thread was deleted), `"leased"` (another holds its lease),
            `"lease_lost"` (the caller's own lease has ended) or `"expected_revision"`.
        expected: the revision that this run restored, or None where it named only a checkpoint.
        found: the revision that the thread has now; 0 when the thread is gone.
        wrote: whether this run had already committed something before it was refused.
        checkpoint_id: the checkpoint that the write named, if any.
        holder: for `"busy"` because of a run in flight, that run; for `"leased"`, who holds the lease.
        age_s: how long that run has been going, in seconds.
        expires_at: until when that lease holds unless renewed, in seconds since the epoch.
        fence: that lease's number.
    """

    retry = "after_reading"
    exit_code = 3

    thread_id: str
    reason: ConflictReason
    expected: int | None
    found: int
    wrote: bool
    checkpoint_id: str | None
    holder: str | None = None
    age_s: float | None = None
    expires_at: float | None = None
    fence: int | None = None


class CredentialConflictError(CkptError, RuntimeError):
    """A credential was not changed: it isn't at the revision that `if_revision` names.

    Attributes:
        thread_id, name: whose, and which.
        expected: the revision that the call named; 0: that it isn't set.
        found: the revision that it has; 0: it isn't set.
    """

    retry = "after_reading"
    exit_code = 3

    thread_id: str
    name: str
    expected: int
    found: int


class UnavailableError(CkptError):
    """The store can't do this now; the old head is intact and a later call can pass."""

    retry = "after_wait"
    exit_code = 4


class BusyError(UnavailableError):
    """A lock was held, or the queue was full, for longer than `busy_timeout_s`.

    Attributes:
        waited_s: how long the call waited, in seconds.
        path: the database file.
    """

    waited_s: float
    path: str


class WalPinnedError(BusyError):
    """The WAL could not be cut: a read transaction, or a writer that isn't ours, was in the way.

    Attributes:
        bytes: size of the -wal file.
        pages_left: pages in it that are not in the database file yet.
        pids: the processes that read the database, where the system tells.
    """

    exit_code = 8

    bytes: int
    pages_left: int
    pids: tuple[int, ...]


class DiskFullError(UnavailableError):
    """No space is left for this write; it was undone and the old head is intact."""

    path: str


class ReadOnlyError(UnavailableError):
    """The database file or its folder can't be written by this process."""

    path: str


class CorruptionError(CkptError):
    """Stored bytes are not what was stored: a changed byte, a missing row, a damaged page.

    Attributes:
        thread_id, checkpoint_ns, checkpoint_id, channel: where, as far as it is known.
    """

    exit_code = 5


class FormatError(CkptError):
    """The file isn't ours, is a newer format, or its schema was changed. It is left untouched."""

    exit_code = 6


class UnresolvedTypeError(CkptError):
    """A stored value can't be given back, since its class or codec isn't there or may not be used.

    What is stored is whole and stays as it is. Import the class, name it in `allowed_types`, map its
    old name with `aliases`, or read with `on_unresolved="keep"`.

    Attributes:
        thread_id, checkpoint_ns, checkpoint_id, channel: where.
        type_name: `module:qualified.name` of the class, or the name of the codec.
    """

    exit_code = 8

    thread_id: str
    checkpoint_ns: str
    checkpoint_id: str | None
    channel: str | None
    type_name: str


class SchemaChangeWarning(UserWarning):
    """The graph differs from the one that stored the thread: told once for each change (`on_schema_change`)."""


class CaptureWarning(UserWarning):
    """What `restore_captured` could not give back, or gave back of an earlier moment."""


class SchemaChangeError(CkptError):
    """The graph can't go on from what is stored; no node has run and nothing was stored.

    Attributes:
        thread_id, checkpoint_ns, checkpoint_id: where.
        changes: what changed, as `(kind, name)` pairs; the kinds are those of `SchemaChange`.
    """

    exit_code = 10

    thread_id: str
    checkpoint_ns: str
    checkpoint_id: str | None
    changes: list[tuple[str, str]]


class MigrationError(CkptError):
    """A stored state can't be brought to `state_version`; what is stored is unchanged.

    Attributes:
        thread_id, checkpoint_ns, checkpoint_id: where.
        expected: the saver's `state_version`.
        found: the state version that is stored, or that the failing migration began with.
    """

    exit_code = 11

    thread_id: str
    checkpoint_ns: str
    checkpoint_id: str | None
    expected: int
    found: int


class TransferError(CkptError):
    """Some threads of a transfer were not brought; all others are stored, whole and equal to the source.

    Attributes:
        refused: the error of each thread that was not brought, by its id in the source.
        threads, checkpoints, writes, already_there: what was brought, as in a `TransferReport`.
    """

    refused: dict[str, Exception]
    threads: int
    checkpoints: int
    writes: int
    already_there: int


class PoisonedError(CkptError):
    """An I/O error struck at COMMIT and at what was tried after it: whether the write is on disk is unknown.

    Read the thread again: `get_tuple` tells whether the checkpoint is there. The same saver can be used: its next
    write opens the file anew. Only where the file or its -wal was replaced under the process it can't; the message
    says so.
    """

    retry = "after_reading"
    exit_code = 7

    path: str


class SecretError(CkptError):
    """Base of all errors about keys and what is sealed. None of them holds a key or a sealed value."""

    exit_code = 9


class KeyMaterialError(SecretError, UsageError):
    """A key that can't be used: missing, of the wrong length, or not random. Nothing was opened."""

    exit_code = 9


class WrongKeyError(SecretError):
    """The file is sealed, and none of the keys given is the one that it needs. Nothing was read.

    Attributes:
        needed: the id of the key that is needed.
        given: the ids of the keys that were given.
    """

    needed: str
    given: tuple[str, ...]


class NotSealedError(SecretError, UsageError):
    """A key was given, and the file holds plaintext. Nothing was read.

    Attributes:
        path: the database file.
    """

    exit_code = 9

    path: str


class KeyServiceError(SecretError, UnavailableError):
    """A key service (KMS) failed, took too long or gave a wrong answer; nothing was read or stored.

    Attributes:
        operation: `"wrap"` or `"unwrap"`.
        key_id: the id of the key that it was asked for; empty for `"wrap"`.
    """

    exit_code = 9

    operation: str
    key_id: str


class SealError(SecretError, CorruptionError):
    """A row of a sealed file isn't what was sealed there.

    Attributes:
        reason: `"plaintext"` (it isn't sealed), `"altered"` (a bit changed, or it comes from another
            thread, namespace, checkpoint, channel or position), `"replayed"` (the thread's newest
            rows are gone, or older ones are back) or `"unknown_key"` (sealed under a key that isn't
            among those given).
    """

    exit_code = 9

    reason: SealReason
