"""AgentSaver: the checkpointer to pass to a graph."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    DeltaChannelHistory,
)
from langgraph.checkpoint.serde.base import SerializerProtocol

from agent_ckpt import options as opts
from agent_ckpt import work
from agent_ckpt.carrier import Carrier
from agent_ckpt.codec.gate import Gate
from agent_ckpt.compat_ops import CompatOps
from agent_ckpt.core.hot import HotCache
from agent_ckpt.credentials import CredentialOps
from agent_ckpt.errors import UsageError
from agent_ckpt.key_ops import KeyOps
from agent_ckpt.later import Later
from agent_ckpt.leases import LeaseOps
from agent_ckpt.listing import Listing, OnDamage
from agent_ckpt.portable_ops import PortableOps
from agent_ckpt.running_code import RunningCode
from agent_ckpt.runs import Runs
from agent_ckpt.sealing import Sealing
from agent_ckpt.sqlite import SqliteBackend
from agent_ckpt.thread_ops import ThreadOps
from agent_ckpt.timeline_ops import TimelineOps
from agent_ckpt.turns import TurnOps
from agent_ckpt.wal_ops import WalOps

if TYPE_CHECKING:
    from agent_ckpt import delta_work, key_work
    from agent_ckpt.codec import keyring as keyrings
    from agent_ckpt.codec.keyring import KeySource
else:
    delta_work = Later("agent_ckpt.delta_work")
    key_work = Later("agent_ckpt.key_work")
    keyrings = Later("agent_ckpt.codec.keyring")

_URL_VARIABLE = "AGENT_CKPT_URL"
_KEY_VARIABLE = "AGENT_CKPT_KEY"


class AgentSaver(
    KeyOps,
    CredentialOps,
    ThreadOps,
    PortableOps,
    TimelineOps,
    CompatOps,
    LeaseOps,
    TurnOps,
    WalOps,
    BaseCheckpointSaver[Any],
):
    """A LangGraph checkpointer on one SQLite file in WAL mode, for sync and async use.

    One object serves every OS thread and every event loop; it may be built at import time or
    inside a coroutine, opens at its first use, and needs no `setup()`. `with` and `async with`
    close it; a script that never closes it still exits, with its data safe.

    When `put` or `put_writes` returns, what it was given is on disk (`synchronous="full"`). A
    write of a run whose thread moved on since the run restored it is refused with
    ThreadConflictError before anything of it is stored.

    Args:
        target: a path (str or PathLike), `":memory:"`, or a `sqlite:///` URL.
        key: what seals the store: 32 bytes, `"env:NAME"`, `"file:PATH"`, a Keyring or a key service
            (docs/security.md). With it everything that holds user content is sealed, and a plaintext
            file is refused; without it a sealed file is refused.
        serde: a serializer of your own, which every value then goes through whole. Without one,
            values are kept by a typed codec, exact in type and value; classes are rebuilt only where
            they are imported already, or named in `allowed_types`.
        **options: see `Options`.

    Raises:
        UsageError: for a target or an option that can't be right. No file is touched yet.
    """

    def __init__(
        self,
        target: str | os.PathLike[str],
        *,
        key: KeySource | None = None,
        serde: SerializerProtocol | None = None,
        **options: Any,
    ):
        super().__init__(serde=serde)
        # First, and nothing but the keyring from here on: error reports show the local variables of calls.
        try:
            keyring = keyrings.keyring_of(key) if key is not None else None
        finally:
            key = None
        self._options = opts.parse(options)
        self._gate = Gate(self._options.allowed_types, self._options.aliases, self._options.on_unresolved)
        self._backend = SqliteBackend(target, self._options)
        self._hot = HotCache(self._options.cache_bytes)
        self._carrier = Carrier(id(self._backend))
        seal_rest = lambda sealing: key_work.seal_rest(sealing)  # noqa: E731  (not imported before it is needed)
        self._sealing = Sealing(self._backend.target, keyring, self._options, seal_rest)
        self._runs = Runs(self._backend.board, self._options.busy_ttl_s)
        self._code = RunningCode(self._options, sealed=keyring is not None)

    @classmethod
    def from_conn_string(cls, conn_string: str | os.PathLike[str], **options: Any) -> AgentSaver:
        """The same as `AgentSaver(conn_string, **options)`, usable with or without `with`."""
        return cls(conn_string, **options)

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None, **options: Any) -> AgentSaver:
        """Open what `AGENT_CKPT_URL` names, with options from `AGENT_CKPT_<OPTION>` variables.

        `AGENT_CKPT_KEY` is `env:NAME` or `file:PATH`, never the key itself.

        Args:
            environ: where to look; the process's environment if None.
            **options: take precedence over the variables.

        Raises:
            UsageError: when `AGENT_CKPT_URL` is not set, or a variable's value doesn't parse.
        """
        source, environ = opts.Environment(os.environ if environ is None else environ), None
        url = source.get(_URL_VARIABLE)
        if not url:
            raise UsageError(f"{_URL_VARIABLE} is not set: give it a path or a sqlite:/// URL")
        if "key" not in options and _KEY_VARIABLE in source:
            # From the same environment: the variable that an `env:NAME` names may stand in it alone.
            options["key"] = keyrings.keyring_of(source[_KEY_VARIABLE], source)
        return cls(url, **{**opts.from_environment(source), **options})

    def __repr__(self) -> str:
        # Error reports also show one whose making failed.
        return f"AgentSaver({self._backend.target!r})" if hasattr(self, "_backend") else "AgentSaver(...)"

    # Lifecycle

    def setup(self) -> None:
        """Open the store now. Harmless at any time; the first use does it otherwise."""
        self._run(work.touch())

    async def asetup(self) -> None:
        """`setup`, async."""
        await self._arun(work.touch())

    def close(self) -> None:
        """Finish accepted writes and close the file. Idempotent; later use raises ClosedError."""
        self._backend.close()

    async def aclose(self) -> None:
        """`close`, async."""
        await self._backend.aclose()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self.aclose()

    # Storing and restoring

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Restore a checkpoint: the one that the config names, or the head (latest checkpoint).

        Returns:
            The checkpoint with its pending writes in (task_path, task_id, idx) order, all fresh
            objects; None when the thread or the checkpoint isn't stored.

        Raises:
            UsageError: for a config without a usable thread_id.
            CorruptionError: when what is stored was damaged, naming the row.
            ThreadConflictError: inside a task of a run that has lost its thread.
        """
        return self._run(work.get_tuple(self._store, config))

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """`get_tuple`, async."""
        return await self._arun(work.get_tuple(self._store, config))

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Store a checkpoint; durable when this returns.

        The config's `checkpoint_id` names the parent. Storing the same checkpoint again changes
        nothing.

        Returns:
            The config that addresses the stored checkpoint and continues the session.

        Raises:
            ThreadConflictError: when the thread moved on; nothing was stored.
            ValueNotStorableError: for a value that can't be kept, naming its path; nothing was stored.
            UnavailableError: locked for longer than `busy_timeout_s`, disk full, read-only.
        """
        return self._run(work.put(self._store, config, checkpoint, metadata, new_versions))

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """`put`, async. Cancelled, it has stored everything or nothing."""
        return await self._arun(work.put(self._store, config, checkpoint, metadata, new_versions))

    def put_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """Store a task's writes to the checkpoint that the config names; durable when this returns.

        They may arrive before their checkpoint. A regular write that is stored already is left as
        it is; a special one (error, scheduled, interrupt, resume) replaces the one before.

        Raises:
            ThreadConflictError, ValueNotStorableError, UnavailableError: as for `put`.
        """
        self._run(work.put_writes(self._store, config, writes, task_id, task_path))

    async def aput_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """`put_writes`, async. Cancelled, it has stored everything or nothing."""
        await self._arun(work.put_writes(self._store, config, writes, task_id, task_path))

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
        on_damage: OnDamage = "raise",
    ) -> Iterator[CheckpointTuple]:
        """List checkpoints, newest first in commit order.

        Nothing is held between two items: the iterator reads a page at a time, so calls inside
        the loop and iterators left half-read are fine.

        Args:
            config: the thread, and the namespace and checkpoint_id where it names them; None for
                every thread.
            filter: metadata that must be equal, type included (True is not 1, None is not absent).
            before: only checkpoints older than the one it names: committed before it; in another
                namespace, whose parent was committed before it. Of an id that isn't stored, those
                whose id sorts below it.
            limit: at most so many.
            on_damage: `"raise"` CorruptionError when a damaged checkpoint is reached (UnresolvedTypeError at
                one that holds a class which isn't there), or `"skip"` it with a warning in the log.

        Raises:
            UsageError: for a negative limit or an unusable config.
        """
        query = Listing(self._store, config, filter, before, limit, on_damage)
        return query.items(self._run)

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
        on_damage: OnDamage = "raise",
    ) -> AsyncIterator[CheckpointTuple]:
        """`list`, async."""
        query = Listing(self._store, config, filter, before, limit, on_damage)
        async for item in query.aitems(self._arun):
            yield item

    def get_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """What DeltaChannels are rebuilt from at a checkpoint: a seed and the writes since."""
        return self._run(delta_work.delta_history(self._store, config, channels))

    async def aget_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """`get_delta_channel_history`, async."""
        return await self._arun(delta_work.delta_history(self._store, config, channels))

    def get_next_version(self, current: Any, channel: None = None) -> Any:  # noqa: ARG002
        """The next channel_version: 1, 2, ...; in a thread that came from another saver, in its style."""
        self._code.captures.note()
        return work.next_version(current)
