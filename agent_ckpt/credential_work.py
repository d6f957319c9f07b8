"""What is done with credentials, as steps that serve the sync and the async form."""

from __future__ import annotations

import dataclasses
import math
import os
import socket
import time
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import partial
from typing import Any, NamedTuple, TypeVar

from agent_ckpt import thread_work
from agent_ckpt.backend import Factory, Program
from agent_ckpt.carrier import run_id_of, thread_id_of
from agent_ckpt.codec import seal, vaults
from agent_ckpt.codec.keyring import Keyring
from agent_ckpt.codec.keysource import MAKE_ONE
from agent_ckpt.core import credentials as core
from agent_ckpt.core.credentials import Use, VaultChangedError
from agent_ckpt.errors import SealError, UnavailableError, UsageError, ValueNotStorableError, WrongKeyError
from agent_ckpt.parts import Store, Thread
from agent_ckpt.reports import Finding, VerifyReport
from agent_ckpt.steps import Call, Outside, Steps
from agent_ckpt.vault import Credential, CredentialInfo, CredentialUse, Hidden, Stored, moment

T = TypeVar("T")

_LONGEST_NAME = 200
_TRIES = 16


class Owner(NamedTuple):
    """Whose credentials are used, and by whom."""

    thread_id: str
    by: str


def owner_of(thread: Thread, actor: str | None) -> Owner:
    """From an id or a config; a node's config tells the node and the run too.

    Raises:
        UsageError: for a thread or an actor that can't be right.
    """
    if actor is not None:
        _check_name(actor, "actor")
    parts = [actor] if actor else []
    if isinstance(thread, Mapping):
        node, run_id = (thread.get("metadata") or {}).get("langgraph_node"), run_id_of(thread, {})
        parts += [f"node {node}"] if node else []
        parts += [f"run {run_id}"] if run_id else []
    parts.append(f"process {os.getpid()} on {socket.gethostname()}")
    return Owner(thread_id_of(thread), ", ".join(part[:_LONGEST_NAME] for part in parts))


def put(store: Store, owner: Owner, name: str, value: Hidden, expires_at: Any, if_revision: int | None) -> Steps[int]:
    _check_name(name, "a credential's name")
    _check_revision(if_revision)
    expires = _seconds(expires_at)
    wrong = vaults.fault(value.reveal(), f"credential {name!r}")
    if wrong:
        raise ValueNotStorableError(
            f"{wrong[0]} {wrong[1]}; a credential is text, or a dict of plain JSON values. Nothing was stored.",
            path=wrong[0],
        )
    made = yield from _using(store, owner, _write(core.put, name, value, expires, if_revision), create=True)
    assert made is not None
    return made


def get(store: Store, owner: Owner, name: str) -> Steps[Credential | None]:
    _check_name(name, "a credential's name")
    found: Stored | None = yield from _using(store, owner, _write(core.get, name))
    if found is None:
        return None
    return Credential(name, found.revision, moment(found.expires), found.value)


def delete(store: Store, owner: Owner, name: str, if_revision: int | None) -> Steps[bool]:
    _check_name(name, "a credential's name")
    _check_revision(if_revision)
    return bool((yield from _using(store, owner, _write(core.delete, name, if_revision))))


def clear(owner: Owner) -> Steps[bool]:
    return bool((yield Call(lambda: core.delete_all(owner.thread_id), write=True)))


def audit(store: Store, owner: Owner, limit: int) -> Steps[list[CredentialUse]]:
    if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
        raise UsageError(f"limit must be a whole number of at least 1, got {limit!r}")
    found = yield from _using(store, owner, _read(core.uses, limit))
    return found or []


def infos(store: Store, thread_id: str | None) -> Steps[list[CredentialInfo]]:
    """Every credential of one thread, or of all."""
    _keyring(store)
    owners: list[str] = [thread_id] if thread_id is not None else (yield Call(core.owners))
    found: list[CredentialInfo] = []
    for one in owners:
        held = yield from _using(store, Owner(one, ""), _read(core.held_by))
        found += [
            CredentialInfo(one, name, each.revision, moment(each.expires), moment(each.used), each.used_by)
            for name, each in sorted((held or {}).items())
        ]
    return found


def copy_thread(store: Store, source: Thread, target: Thread, credentials: bool) -> Steps[None]:
    """Copy a thread, if asked with its credentials, in one transaction."""
    owner, target_id = owner_of(source, None), thread_id_of(target)

    def attempt(use: Use) -> Steps[bool]:
        there = yield from _use(_keyring(store), Owner(target_id, owner.by), None, use.store_id)
        yield from thread_work.copy_thread(store, source, target, partial(core.copy, use, there))
        return True

    if not credentials or not (yield from _using(store, owner, attempt)):
        yield from thread_work.copy_thread(store, source, target)


def verify(store: Store) -> Steps[VerifyReport]:
    """Check the whole store, credentials included."""
    report = yield from thread_work.verify(store)
    findings: list[Finding] = []
    for thread_id in (yield Call(core.owners)):
        details: list[str] | None = ["they are sealed, and the saver has no key"]
        if store.keyring is not None:
            try:
                details = yield from _using(store, Owner(thread_id, ""), _read(core.damage))
            except (SealError, WrongKeyError) as exc:
                details = [exc.message]
        findings += [Finding("damaged", thread_id, None, None, f"credentials: {text}") for text in details or ()]
    return dataclasses.replace(report, findings=(*report.findings, *findings))


def _using(store: Store, owner: Owner, attempt: Callable[[Use], Steps[T]], *, create: bool = False) -> Steps[T | None]:
    """Look which data key the thread's credentials have, and do something with it.

    Args:
        create: do it also where the thread has no credentials yet; else the result is None then.
    """
    keyring = _keyring(store)
    for _ in range(_TRIES):
        row, store_id = yield Call(lambda: core.look(owner.thread_id))
        if row is None and not create:
            return None
        use = yield from _use(keyring, owner, row.envelope if row is not None else None, store_id)
        try:
            return (yield from attempt(use))
        except VaultChangedError:
            continue
    raise UnavailableError(
        f"the credentials of thread {owner.thread_id!r} were deleted or given a new data key {_TRIES} times during one "
        f"call; nothing was stored, try again"
    )


def _write(program: Callable[..., Program[T]], *args: Any) -> Callable[[Use], Steps[T]]:
    return lambda use: _call(partial(program, use, *args), True)


def _read(program: Callable[..., Program[T]], *args: Any) -> Callable[[Use], Steps[T]]:
    return lambda use: _call(partial(program, use, *args), False)


def _call(factory: Factory[T], write: bool) -> Steps[T]:
    result: T = yield Call(factory, write)
    return result


def _use(keyring: Keyring, owner: Owner, envelope: bytes | None, store_id: bytes) -> Steps[Use]:
    """With the data key in an envelope, or a new one."""
    make = partial(use_of, keyring, owner, envelope, store_id)
    # A key service may take its time, and must not hold up an event loop.
    return (yield Outside(make)) if keyring.remote else make()


def use_of(keyring: Keyring, owner: Owner, envelope: bytes | None, store_id: bytes, turn: int = 0) -> Use:
    """Who uses credentials, with the data key unwrapped from its envelope, or a new one; may ask a key service.

    Args:
        turn: of a new one, the rotation that it is made in.

    Raises:
        SealError, WrongKeyError, KeyServiceError
    """
    context, fresh = vaults.context(store_id, owner.thread_id), envelope is None
    if envelope is None:
        key = seal.new_keys(seal.KEY_SIZE)
        envelope = keyring.wrap(key, context, turn)
    else:
        key = keyring.unwrap(envelope, context, f"the credentials of thread {owner.thread_id!r}")
    return Use(store_id, owner.thread_id, seal.DataCipher(key, context), envelope, fresh, time.time(), owner.by)


def _keyring(store: Store) -> Keyring:
    if store.keyring is None:
        raise UsageError(
            f"credentials are stored only sealed, and this saver was opened without a key: {MAKE_ONE}, or give any of "
            f'key=<32 bytes>, key="env:NAME", key="file:PATH"'
        )
    return store.keyring


def _check_name(name: Any, what: str) -> None:
    if not isinstance(name, str) or not 0 < len(name) <= _LONGEST_NAME or not name.isprintable():
        raise UsageError(f"{what} must be printable text of 1 to {_LONGEST_NAME} characters")


def _check_revision(if_revision: Any) -> None:
    if if_revision is not None and (isinstance(if_revision, bool) or not isinstance(if_revision, int)):
        raise UsageError(f"if_revision must be a credential's revision, or 0, got {type(if_revision).__name__}")


def _seconds(expires_at: Any) -> float | None:
    if expires_at is None:
        return None
    if isinstance(expires_at, datetime):
        if expires_at.tzinfo is None:
            raise UsageError("expires_at has no time zone: use datetime.now(timezone.utc) + ..., or seconds since 1970")
        return expires_at.timestamp()
    if isinstance(expires_at, (int, float)) and not isinstance(expires_at, bool) and math.isfinite(expires_at):
        try:
            moment(expires_at)
        except (OverflowError, ValueError, OSError):
            raise UsageError("expires_at is beyond the year 9999: are these milliseconds? It takes seconds") from None
        return float(expires_at)
    raise UsageError(
        f"expires_at must be a datetime with a time zone or seconds since 1970, got {type(expires_at).__name__}"
    )
