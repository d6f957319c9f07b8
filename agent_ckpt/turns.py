"""Turns: what happens to a second message while the first run on its thread is going."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, get_args

from agent_ckpt.errors import UsageError
from agent_ckpt.later import Later
from agent_ckpt.leases import Lease, wait_for
from agent_ckpt.model import LeaseRow
from agent_ckpt.plumbing import Plumbing
from agent_ckpt.steps import Call, Steps

if TYPE_CHECKING:
    from agent_ckpt.core import lease as leasing
else:
    leasing = Later("agent_ckpt.core.lease")

MultitaskStrategy = Literal["reject", "enqueue", "interrupt", "rollback"]
"""LangGraph Platform's words for a second message on a thread that is busy."""


class Turn:
    """One turn on a thread, around any invoke, stream, astream or astream_events. Made by `AgentSaver.turn`."""

    def __init__(self, lease: _TurnLease) -> None:
        self._lease = lease

    def __enter__(self) -> dict[str, Any]:
        return self._lease.__enter__().config

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        self._lease.__exit__(kind, exc, tb)

    async def __aenter__(self) -> dict[str, Any]:
        return (await self._lease.__aenter__()).config

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self._lease.__aexit__(kind, exc, tb)


class _TurnLease(Lease):
    """A lease that is taken by a strategy."""

    _turn = True
    strategy: MultitaskStrategy = "reject"

    def _acquire(self, ask: leasing.Ask) -> Steps[LeaseRow]:
        if self.strategy in ("reject", "enqueue"):
            return (yield from wait_for(ask, 0 if self.strategy == "reject" else self._timeout))
        rolls_back = self.strategy == "rollback"
        taken: leasing.Answer = yield Call(partial(leasing.take_over, ask, rolls_back), write=True)
        if rolls_back:
            self._plumbing._hot.forget(self.thread_id)
        assert taken.lease is not None
        return taken.lease


class TurnOps(Plumbing):
    """The part of AgentSaver that is about turns."""

    def turn(
        self,
        config: Mapping[str, Any],
        multitask_strategy: MultitaskStrategy = "reject",
        *,
        timeout: float | None = None,
        ttl: float = 30.0,
    ) -> Turn:
        """One turn on a thread: `with saver.turn(config) as config:` around a run, or `async with`.

        Args:
            config: the run's config; the block gets a copy that carries the turn.
            multitask_strategy: for a thread on which a run or another turn is going. `"reject"`:
                ThreadConflictError. `"enqueue"`: wait for it, first come first served, across
                processes, and run on its result. `"interrupt"`: end its right to write, and go on
                from the last step that it stored. `"rollback"`: the same, and undo all that it
                has stored, so that the thread is as that run restored it.
            timeout: for `"enqueue"`: seconds to wait; None for as long as it takes.
            ttl: seconds after which a turn ends whose process is frozen; see `lease`.

        Raises:
            ThreadConflictError: on entering, when the thread is busy and the strategy, or the
                timeout, doesn't let this turn through.
            UsageError: for another strategy.
        """
        if multitask_strategy not in get_args(MultitaskStrategy):
            words = ", ".join(map(repr, get_args(MultitaskStrategy)))
            raise UsageError(f"multitask_strategy must be one of {words}, got {multitask_strategy!r}")
        if not isinstance(config, Mapping):
            raise UsageError(f"turn needs the config of the run, got {type(config).__name__}")
        lease = _TurnLease(self, config, ttl, timeout)
        lease.strategy = multitask_strategy
        return Turn(lease)
