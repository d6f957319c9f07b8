"""The types of the credential store. What holds a secret shows it to nobody who doesn't ask for it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal, NamedTuple

from agent_ckpt.errors import UsageError

Action = Literal["set", "get", "delete", "copy"]
_HIDDEN = "***"


class Hidden:
    """Holds a secret while it is on its way, so that no repr of a local variable shows it."""

    __slots__ = ("_held",)

    def __init__(self, value: Any) -> None:
        self._held: Callable[[], Any] = lambda: value

    def reveal(self) -> Any:
        return self._held()

    def __repr__(self) -> str:
        return _HIDDEN

    def __reduce__(self) -> Any:
        raise TypeError("a hidden value can't be pickled or copied")


class Credential:
    """A credential as `get` returns it: everything about it can be seen but its value.

    Its repr, str and formatted text, and what pickle, copy and yaml make of it, hold no value; json
    refuses it. `reveal()` gives the value.

    Attributes:
        name: its name.
        revision: rises each time it is set; for `set(..., if_revision=)`.
        expires_at: when it expires (UTC), or None.
    """

    __slots__ = ("_hidden", "expires_at", "name", "revision")

    def __init__(self, name: str, revision: int, expires_at: datetime | None, hidden: Hidden | None = None) -> None:
        self.name = name
        self.revision = revision
        self.expires_at = expires_at
        self._hidden = hidden

    @property
    def expired(self) -> bool:
        """Whether `expires_at` has passed by this machine's clock."""
        return self.expires_at is not None and self.expires_at <= datetime.now(UTC)

    def reveal(self) -> Any:
        """The value: the text, or a fresh copy of the dict.

        Raises:
            UsageError: for a copy of a credential, which holds no value.
        """
        if self._hidden is None:
            raise UsageError(
                f"this copy of credential {self.name!r} holds no value: pickling and copying leave it out. "
                f"Get it anew from saver.credentials(thread_id)."
            )
        return copy.deepcopy(self._hidden.reveal())

    def __repr__(self) -> str:
        until = self.expires_at.isoformat() if self.expires_at is not None else None
        return f"Credential(name={self.name!r}, revision={self.revision}, expires_at={until}, value={_HIDDEN})"

    def __reduce__(self) -> tuple[Any, ...]:
        return Credential, (self.name, self.revision, self.expires_at)


@dataclass(frozen=True, slots=True)
class CredentialInfo:
    """What can be told of a credential.

    Attributes:
        thread_id: the thread it belongs to.
        name, revision, expires_at: as in `Credential`.
        last_used: when it was last got (UTC), or None.
        last_used_by: who got it, as text, or None.
    """

    thread_id: str
    name: str
    revision: int
    expires_at: datetime | None
    last_used: datetime | None
    last_used_by: str | None


@dataclass(frozen=True, slots=True)
class CredentialUse:
    """One line of the audit.

    Attributes:
        at: when (UTC).
        action: `"set"`, `"get"`, `"delete"` or `"copy"`.
        name: the credential's name.
        revision: the revision it had, or was given.
        by: who: the actor, node and run as far as they are known, and the process.
    """

    at: datetime
    action: Action
    name: str
    revision: int
    by: str


class Stored(NamedTuple):
    """A credential inside its thread's vault; times are seconds since 1970."""

    revision: int
    expires: float | None
    used: float | None
    used_by: str | None
    value: Hidden


class VaultRow(NamedTuple):
    """The row that holds all credentials of a thread.

    Attributes:
        vault: its number, never reused.
        revision: commit sequence of the last use, which is also the number of the newest audit row.
        envelope: the wrapped data key.
        frame: the sealed credentials.
        newest: the number of the newest audit row.
    """

    vault: int
    revision: int
    envelope: bytes
    frame: bytes
    newest: int | None


def moment(seconds: float | None) -> datetime | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)
