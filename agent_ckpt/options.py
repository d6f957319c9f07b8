"""Options of a saver: validated once, frozen, no I/O."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, get_args, get_origin, get_type_hints

from agent_ckpt.errors import UsageError

ENV_PREFIX = "AGENT_CKPT_"
_LARGEST = 1 << 60
_MOST_PAGES = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How a saver opens and writes its store.

    Attributes:
        create: make a missing file; False refuses a missing path.
        synchronous: `"full"`: what is acknowledged survives a power loss. `"normal"`: it survives
            a killed process, a power loss can undo the last commits.
        busy_timeout_s: seconds that a call waits for another process's lock before BusyError.
        compression: `"zstd"` or `"none"`, for what is written from now on; both are always read.
        file_mode: permission bits of a new file.
        cache_bytes: bound, in bytes, of the encoded values kept in memory for hot threads.
        seal_existing: with a key, seal a plaintext file in place at its first use; False refuses it.
        seal_thread_ids: with a key, thread ids stand sealed in a new file too. A file keeps what it was made with.
        stale_checkpoint: what happens to a run that names a checkpoint_id which isn't the head (latest
            checkpoint): `"fork"` goes on from there on purpose; `"refuse_resume"` refuses it at a
            checkpoint where an interrupt asked something; `"refuse"` refuses it. Reading is
            always allowed. A config's `configurable` may say otherwise for one call.
        on_busy: what happens to a newcomer on a thread while a run on it is going. `"reject"`: it is
            refused with ThreadConflictError before its nodes run. `"preempt"`: it takes the thread,
            and the run that is going is refused at its next write.
        busy_ttl_s: seconds after its last write for which a run that is going keeps newcomers out.
        queue_size: writes that may wait for the writer before callers wait for a place.
        engine: `"sqlite3"`, the SQLite that Python was built with, or `"pysqlite3"`, the newer one that the extra
            `agent-ckpt[sqlite]` brings. One file is used with one engine in a process.
        journal: `"auto"`: WAL mode on a local disk, rollback-journal mode on file systems that a virtual machine or
            container shares with its host, a refusal on network file systems. `"wal"` and `"rollback"` set the
            mode wherever the file is. `"litestream"`: WAL mode, and every WAL checkpoint is left to Litestream.
        wal_autocheckpoint: pages (4 KiB each) that the WAL may hold before it is folded into the file.
        journal_size_limit: bytes that the -wal file keeps while it is written; it is cut when nothing is written.
        allowed_types: classes, or names such as `"package.module.Class"`, that reading may import and
            that pass LangGraph's strict mode.
        aliases: stored class to the class it is now: `{"old.module:Old": New}`, or `"new.module:New"`.
        on_unresolved: what a stored class that isn't there gives: `"raise"` UnresolvedTypeError, or
            `"keep"` an Unresolved value that keeps what is stored.
        on_schema_change: what happens at a restore where the graph lacks a channel, or the process a
            class, that is stored: `"warn"` with SchemaChangeWarning, once for each change; `"raise"`
            SchemaChangeError before a node runs; or `"ignore"`.
        state_version: the version, from 1, of the state that this program's graph expects; 0: not used.
        migrations: a version to the function that brings the channel values of that version to the next.
        write_migrations: the same for a single write that is pending, and for what a DeltaChannel is rebuilt
            from: `function(channel, value)` gives channel and value.
        capture: what is kept with each checkpoint beside the channels: `"random"`, `"numpy"`,
            `"env:NAME"`, `"env:*"`, or functions (docs/changes.md).
        mask_secrets: mask text under keys such as `openai_api_key` or `authorization` before it
            reaches a checkpoint's metadata; False stores it as it is.
        mask_keys: further keys to mask, with `*` and `?`; `"!shard_key"` leaves one in clear.
        plaintext_secrets: what becomes of a `SecretStr` or `SecretBytes` in the state of a store
            without a key: `"refuse"` it, or `"allow"` it into the file in clear.
    """

    create: bool = True
    synchronous: Literal["full", "normal"] = "full"
    busy_timeout_s: float = 30.0
    compression: Literal["zstd", "none"] = "zstd"
    file_mode: int = 0o600
    cache_bytes: int = 64 * 1024 * 1024
    stale_checkpoint: Literal["fork", "refuse_resume", "refuse"] = "fork"
    on_busy: Literal["reject", "preempt"] = "reject"
    busy_ttl_s: float = 3600.0
    queue_size: int = 4096
    seal_existing: bool = False
    seal_thread_ids: bool = False
    engine: Literal["sqlite3", "pysqlite3"] = "sqlite3"
    journal: Literal["auto", "wal", "rollback", "litestream"] = "auto"
    wal_autocheckpoint: int = 1000
    journal_size_limit: int = 1024 * 1024
    allowed_types: Sequence[str | type] = ()
    aliases: Mapping[str, str | type] = dataclasses.field(default_factory=dict)
    on_unresolved: Literal["raise", "keep"] = "raise"
    on_schema_change: Literal["ignore", "warn", "raise"] = "warn"
    state_version: int = 0
    migrations: Mapping[int, Callable[..., Any]] = dataclasses.field(default_factory=dict)
    write_migrations: Mapping[int, Callable[..., Any]] = dataclasses.field(default_factory=dict)
    capture: Sequence[str | Callable[..., Any]] = ()
    mask_secrets: bool = True
    mask_keys: tuple[str, ...] = ()
    plaintext_secrets: Literal["refuse", "allow"] = "refuse"

    def __post_init__(self) -> None:
        if isinstance(self.mask_keys, (list, set, frozenset)):
            object.__setattr__(self, "mask_keys", tuple(self.mask_keys))
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            # The defaults are right, and reading the types takes a millisecond.
            if value is not field.default and not (field.default is dataclasses.MISSING and value == {}):
                _check(field.name, value, _types()[field.name])
        for name in ("busy_timeout_s", "busy_ttl_s", "cache_bytes"):
            if not 0 <= getattr(self, name) <= _LARGEST:
                raise UsageError(f"option {name} must be a number from 0 to {_LARGEST}, got {getattr(self, name)!r}")
        _check_migrations(self.state_version, "migrations", self.migrations)
        _check_migrations(self.state_version, "write_migrations", self.write_migrations)
        if not 0 <= self.journal_size_limit <= _LARGEST:
            raise UsageError(f"option journal_size_limit must be bytes from 0, got {self.journal_size_limit}")
        if not 1 <= self.wal_autocheckpoint <= _MOST_PAGES:
            raise UsageError(
                f"option wal_autocheckpoint must be pages from 1 to {_MOST_PAGES}, got {self.wal_autocheckpoint}"
            )
        if self.queue_size < 1:
            raise UsageError(f"option queue_size must be at least 1, got {self.queue_size}")
        if self.file_mode & ~0o777 or not self.file_mode & 0o600 == 0o600:
            raise UsageError(
                f"option file_mode must be permission bits that let the owner read and write, "
                f"such as 0o600; got {oct(self.file_mode)}"
            )


@cache
def _types() -> dict[str, Any]:
    return get_type_hints(Options)


def _check_migrations(state_version: int, option: str, migrations: Mapping[int, Any]) -> None:
    if state_version < 0:
        raise UsageError(f"option state_version must be a number from 1, or 0 for none; got {state_version}")
    for number, function in migrations.items():
        if type(number) is not int or not 1 <= number < max(state_version, 1) or not callable(function):
            raise UsageError(
                f"option {option} holds {number!r}: give a function for each version below state_version "
                f"({state_version}), such as state_version=3, {option}={{1: to_2, 2: to_3}}"
            )


def _check(name: str, value: Any, kind: Any) -> None:
    if get_origin(kind) is Literal:
        if value not in get_args(kind):
            raise UsageError(f"option {name} must be one of {', '.join(map(repr, get_args(kind)))}; got {value!r}")
        return
    if get_origin(kind) in (Sequence, Mapping):
        if not isinstance(value, get_origin(kind)) or isinstance(value, str):
            raise UsageError(f"option {name} must be a {get_origin(kind).__name__.lower()}, got {type(value).__name__}")
        return
    if get_origin(kind) is tuple:
        if not isinstance(value, tuple) or not all(isinstance(part, str) and part.strip("!") for part in value):
            raise UsageError(
                f"option {name} must be a list of texts that aren't empty, such as ['*_pin', '!shard_key']"
            )
        return
    accepted = (int, float) if kind is float else (kind,)
    if not isinstance(value, accepted) or (isinstance(value, bool) and kind is not bool):
        raise UsageError(f"option {name} must be of type {kind.__name__}, got {type(value).__name__}")


def parse(given: Mapping[str, Any]) -> Options:
    """Make Options from keyword arguments.

    Raises:
        UsageError: for an unknown name (it lists the known ones) or a value out of range.
    """
    known = {f.name for f in dataclasses.fields(Options)}
    if unknown := sorted(set(given) - known):
        raise UsageError(f"unknown option {', '.join(unknown)}; known options: {', '.join(sorted(known))}, serde")
    return Options(**given)


def from_environment(environ: Mapping[str, str]) -> dict[str, Any]:
    """Read option values from `AGENT_CKPT_<OPTION>` variables, such as `AGENT_CKPT_SYNCHRONOUS`.

    Raises:
        UsageError: for a value that doesn't parse, naming the variable.
    """
    hints = _types()
    found: dict[str, Any] = {}
    for field in dataclasses.fields(Options):
        variable = ENV_PREFIX + field.name.upper()
        text = environ.get(variable)
        if text is None:
            continue
        try:
            found[field.name] = _from_text(text, hints[field.name])
        except ValueError as exc:
            raise UsageError(f"{variable} holds {text!r}, which is no {field.name} value: {exc}") from exc
    return found


def _from_text(text: str, kind: Any) -> Any:
    if get_origin(kind) is Literal:
        return text
    if get_origin(kind) is Sequence:
        return [part.strip() for part in text.split(",") if part.strip()]
    if get_origin(kind) is Mapping:
        pairs = [part.partition("=") for part in text.split(",") if part.strip()]
        return {old.strip(): new.strip() for old, _, new in pairs}
    if get_origin(kind) is tuple:
        return tuple(part.strip() for part in text.split(",") if part.strip())
    if kind is bool:
        words = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}
        if text.lower() not in words:
            raise ValueError("use true or false")
        return words[text.lower()]
    if kind is int:
        # 0600 is how permission bits are written, and no number in Python's own spelling.
        octal = len(text) > 1 and text[0] == "0" and text.isdigit()
        return int(text, 8 if octal else 0)
    return kind(text)


class Environment(Mapping[str, str]):
    """Environment variables that no error report shows, since keys stand in them."""

    __slots__ = ("_of",)

    def __init__(self, of: Mapping[str, str]) -> None:
        self._of = of

    def __getitem__(self, name: str) -> str:
        return self._of[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._of)

    def __len__(self) -> int:
        return len(self._of)

    def __repr__(self) -> str:
        return "Environment(...)"
