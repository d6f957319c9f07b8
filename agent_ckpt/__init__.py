"""agent_ckpt: a LangGraph checkpointer that survives restarts, crashes and competing workers.

    from agent_ckpt import AgentSaver

    agent = create_agent(model, tools=tools, checkpointer=AgentSaver("agent.db"))

Names are imported when they are first used, so that `agent-ckpt --help` needs no LangGraph.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from agent_ckpt.codec.collector import collector_held_off

if TYPE_CHECKING:
    from agent_ckpt.codec.gate import Unresolved
    from agent_ckpt.codec.keyring import Keyring
    from agent_ckpt.codec.registry import register_codec
    from agent_ckpt.compat_ops import Guard
    from agent_ckpt.errors import (
        BusyError,
        CaptureWarning,
        CkptError,
        ClosedError,
        CorruptionError,
        CredentialConflictError,
        DiskFullError,
        FormatError,
        KeyMaterialError,
        KeyServiceError,
        MigrationError,
        NotSealedError,
        PoisonedError,
        ReadOnlyError,
        SchemaChangeError,
        SchemaChangeWarning,
        SealError,
        SecretError,
        ThreadConflictError,
        TransferError,
        UnavailableError,
        UnresolvedTypeError,
        UsageError,
        ValueNotStorableError,
        WalPinnedError,
        WrongKeyError,
    )
    from agent_ckpt.idempotency import idempotency_key
    from agent_ckpt.key_work import KeyStatus, Rotation
    from agent_ckpt.leases import Lease
    from agent_ckpt.official_file import OfficialFile
    from agent_ckpt.options import Options
    from agent_ckpt.reports import (
        Captured,
        Check,
        CheckReport,
        Finding,
        LeaseInfo,
        PortableReport,
        SchemaChange,
        ThreadCheck,
        ThreadInfo,
        TransferProgress,
        TransferReport,
        VerifyReport,
        WalPin,
        WalStatus,
    )
    from agent_ckpt.retrying import ainvoke, invoke
    from agent_ckpt.saver import AgentSaver
    from agent_ckpt.transfers import atransfer, transfer
    from agent_ckpt.turns import Turn
    from agent_ckpt.vault import Credential, CredentialInfo, CredentialUse

    __version__: str

_HOMES = {
    "register_codec": "codec.registry",
    "AgentSaver": "saver",
    "Options": "options",
    "Check": "reports",
    "Keyring": "codec.keyring",
    "KeyStatus": "key_work",
    "Rotation": "key_work",
    "OfficialFile": "official_file",
    "PortableReport": "reports",
    "TransferProgress": "reports",
    "TransferReport": "reports",
    "atransfer": "transfers",
    "transfer": "transfers",
    "Finding": "reports",
    "Lease": "leases",
    "LeaseInfo": "reports",
    "Turn": "turns",
    "ThreadInfo": "reports",
    "VerifyReport": "reports",
    "WalPin": "reports",
    "WalStatus": "reports",
    "BusyError": "errors",
    "CaptureWarning": "errors",
    "Captured": "reports",
    "CheckReport": "reports",
    "Guard": "compat_ops",
    "MigrationError": "errors",
    "SchemaChange": "reports",
    "SchemaChangeError": "errors",
    "SchemaChangeWarning": "errors",
    "ThreadCheck": "reports",
    "CkptError": "errors",
    "ClosedError": "errors",
    "CorruptionError": "errors",
    "Credential": "vault",
    "CredentialConflictError": "errors",
    "CredentialInfo": "vault",
    "CredentialUse": "vault",
    "DiskFullError": "errors",
    "FormatError": "errors",
    "PoisonedError": "errors",
    "ReadOnlyError": "errors",
    "ThreadConflictError": "errors",
    "TransferError": "errors",
    "Unresolved": "codec.gate",
    "UnresolvedTypeError": "errors",
    "UnavailableError": "errors",
    "UsageError": "errors",
    "ValueNotStorableError": "errors",
    "WalPinnedError": "errors",
    "KeyMaterialError": "errors",
    "KeyServiceError": "errors",
    "NotSealedError": "errors",
    "SealError": "errors",
    "SecretError": "errors",
    "WrongKeyError": "errors",
    "ainvoke": "retrying",
    "idempotency_key": "idempotency",
    "invoke": "retrying",
}

__all__ = [
    "AgentSaver",
    "BusyError",
    "CaptureWarning",
    "Captured",
    "Check",
    "CheckReport",
    "CkptError",
    "ClosedError",
    "CorruptionError",
    "Credential",
    "CredentialConflictError",
    "CredentialInfo",
    "CredentialUse",
    "DiskFullError",
    "Finding",
    "FormatError",
    "Guard",
    "KeyMaterialError",
    "KeyServiceError",
    "KeyStatus",
    "Keyring",
    "Lease",
    "LeaseInfo",
    "MigrationError",
    "NotSealedError",
    "OfficialFile",
    "Options",
    "PoisonedError",
    "PortableReport",
    "ReadOnlyError",
    "Rotation",
    "SchemaChange",
    "SchemaChangeError",
    "SchemaChangeWarning",
    "SealError",
    "SecretError",
    "ThreadCheck",
    "ThreadConflictError",
    "ThreadInfo",
    "TransferError",
    "TransferProgress",
    "TransferReport",
    "Turn",
    "UnavailableError",
    "Unresolved",
    "UnresolvedTypeError",
    "UsageError",
    "ValueNotStorableError",
    "VerifyReport",
    "WalPin",
    "WalPinnedError",
    "WalStatus",
    "WrongKeyError",
    "__version__",
    "ainvoke",
    "atransfer",
    "idempotency_key",
    "invoke",
    "register_codec",
    "transfer",
]


def _installed_version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("agent-ckpt")
    except PackageNotFoundError:  # run from a source tree that isn't installed
        return "0+unknown"


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return _installed_version()
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(_imported(f"agent_ckpt.{home}"), name)
    return value


def _imported(name: str) -> ModuleType:
    """Import a module with Python's cyclic collector held off.

    Nothing that an import makes is garbage, and on top of LangGraph a pass over all that is there takes as long as
    the import itself.
    """
    with collector_held_off():
        return import_module(name)


def __dir__() -> list[str]:
    return sorted(__all__)
