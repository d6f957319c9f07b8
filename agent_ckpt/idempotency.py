"""Keys for side effects: `idempotency_key`."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any
from uuid import UUID

from agent_ckpt.carrier import thread_id_of
from agent_ckpt.errors import UsageError

_TASK_ID = "__pregel_task_id"
_MAP = "checkpoint_map"
_NS = "checkpoint_ns"
_SIZE = 20


def idempotency_key(config: Mapping[str, Any], *parts: str | int | UUID) -> str:
    """A key for one effect of one task, to pass to a service that does each key once.

    Called in a node or tool with the config that it is given:

        charge(card, amount, idempotency_key=agent_ckpt.idempotency_key(config, "charge", order_id))

    It is made from the thread, the checkpoint that the task runs on, and the task. So it is the
    same when the task runs again from its checkpoint (a retry policy, an answer to its interrupt,
    `invoke(None, config)` after a crash), in any process, and another one for another task, step,
    thread, fork, or a run that began with the input again. That holds as far as the checkpoint was
    stored before the task ran: use `durability="sync"`. A subgraph compiled with
    `checkpointer=False` stores none, so its tasks get new keys each time: make the key in a node of
    a graph that does, and hand it down.

    Args:
        config: what LangGraph passed to the node.
        *parts: tell several effects of one task apart; text, whole numbers or UUIDs.

    Returns:
        40 hexadecimal digits.

    Raises:
        UsageError: outside a node, without a thread, or for another kind of part.
    """
    thread_id = thread_id_of(config)
    conf = config["configurable"]
    task_id = conf.get(_TASK_ID)
    if not isinstance(task_id, str):
        raise UsageError(
            f"idempotency_key needs the config that LangGraph passes to a node of a run on thread {thread_id!r}: "
            f"declare the node as `def node(state, config: RunnableConfig)`"
        )
    above = conf.get(_MAP) or {}
    hashed = hashlib.blake2b(digest_size=_SIZE, person=b"agent-ckpt-idem")
    named = [thread_id, str(conf.get(_NS) or ""), task_id, *(f"{ns}={above[ns]}" for ns in sorted(above))]
    for kind, part in [*(("own", text) for text in named), *(_part(part) for part in parts)]:
        encoded = f"{kind}:{part}".encode("utf-8", "surrogatepass")
        hashed.update(len(encoded).to_bytes(8, "big") + encoded)
    return hashed.hexdigest()


def _part(part: Any) -> tuple[str, str]:
    if isinstance(part, str):
        return "text", part
    if isinstance(part, int) and not isinstance(part, bool):
        return "int", str(int(part))
    if isinstance(part, UUID):
        return "uuid", str(part)
    raise UsageError(f"the parts of an idempotency key must be text, whole numbers or UUIDs, got {type(part).__name__}")
