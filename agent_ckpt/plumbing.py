"""What every part of AgentSaver stands on: its backend, and how its steps are driven.

AgentSaver is put together from one class per public capability; each has its methods in sync and
async form, and nothing but a call of the steps that serve both.
"""

from __future__ import annotations

from langgraph.checkpoint.serde.base import SerializerProtocol

from agent_ckpt import steps
from agent_ckpt.carrier import Carrier
from agent_ckpt.codec.gate import Gate
from agent_ckpt.codec.values import ValueCodec
from agent_ckpt.core.hot import HotCache
from agent_ckpt.options import Options
from agent_ckpt.parts import Store
from agent_ckpt.running_code import RunningCode
from agent_ckpt.runs import Runs
from agent_ckpt.sealing import Sealing
from agent_ckpt.sqlite import SqliteBackend


class Plumbing:
    """Base of the parts of AgentSaver; AgentSaver sets the attributes."""

    serde: SerializerProtocol
    _options: Options
    _gate: Gate
    _sealing: Sealing
    _backend: SqliteBackend
    _hot: HotCache
    _carrier: Carrier
    _runs: Runs
    _code: RunningCode
    _made: tuple[SerializerProtocol, Store] | None = None

    @property
    def _store(self) -> Store:
        # Looked at per call: LangGraph's strict mode copies the saver and gives the copy another serde.
        made = self._made
        if made is None or made[0] is not self.serde:
            keyring = self._sealing.keyring
            allowed = keyring is not None or self._options.plaintext_secrets == "allow"
            codec, fresh = ValueCodec(self.serde, self._gate, secrets_allowed=allowed), self._sealing.fresh
            store = Store(codec, self._hot, self._carrier, self._runs, self._options, self._code, fresh, keyring)
            made = self._made = (self.serde, store)
        return made[1]

    def _run(self, work_steps: steps.Steps[steps.T]) -> steps.T:
        return steps.run(self._backend, self._sealing.through(work_steps))

    def _run_as_stored(self, work_steps: steps.Steps[steps.T]) -> steps.T:
        """Steps whose programs see rows as they stand in the file, whether they are sealed or not."""
        return steps.run(self._backend, work_steps)

    async def _arun_as_stored(self, work_steps: steps.Steps[steps.T]) -> steps.T:
        return await steps.arun(self._backend, work_steps)

    async def _arun(self, work_steps: steps.Steps[steps.T]) -> steps.T:
        return await steps.arun(self._backend, self._sealing.through(work_steps))
