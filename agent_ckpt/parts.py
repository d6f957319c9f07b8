"""What the steps of one call need of their saver."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from agent_ckpt.carrier import Carrier
from agent_ckpt.codec.values import ValueCodec
from agent_ckpt.core import flight
from agent_ckpt.core.hot import HotCache
from agent_ckpt.core.session import Session
from agent_ckpt.options import Options
from agent_ckpt.running_code import RunningCode
from agent_ckpt.runs import Runs
from agent_ckpt.steps import Steps

if TYPE_CHECKING:
    from agent_ckpt.codec.keyring import Keyring

Thread = Any
"""A thread_id (str, int or UUID) or a config that holds one."""
PLANS_AT_MOST = 16


class Store(NamedTuple):
    """What the steps of one call need of their saver."""

    codec: ValueCodec
    hot: HotCache
    carrier: Carrier
    runs: Runs
    options: Options
    code: RunningCode
    fresh: Callable[..., Steps[bytes]]
    keyring: Keyring | None = None

    def rules(self, thread_id: str, session: Session | None) -> flight.Rules:
        """What decides whether a write of a thread is let through."""
        lease = session.lease if session is not None and session.lease is not None else self.carrier.lease_of(thread_id)
        return self.runs.rules(self.options.on_busy == "reject", lease.id if lease is not None else None)
