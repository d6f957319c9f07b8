"""Programs that most users of a saver never run, by the names that `work` calls them by; imported when they are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent_ckpt.later import Later

if TYPE_CHECKING:
    from agent_ckpt.core import credentials as credentials
    from agent_ckpt.core import delta as delta
    from agent_ckpt.core import prune as pruning
    from agent_ckpt.core import verify as verifying
else:
    credentials = Later("agent_ckpt.core.credentials")
    delta = Later("agent_ckpt.core.delta")
    pruning = Later("agent_ckpt.core.prune")
    verifying = Later("agent_ckpt.core.verify")

__all__ = ["credentials", "delta", "pruning", "verifying"]
