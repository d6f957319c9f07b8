"""The keys of credentials, when a store's keys are looked at and rotated. Programs here see rows as they stand."""

from __future__ import annotations

from functools import partial

from agent_ckpt.codec import vaults
from agent_ckpt.core import credentials as core
from agent_ckpt.core.credentials import VaultKey
from agent_ckpt.core.storekeys import key_id_of, turn_of
from agent_ckpt.credential_work import Owner, use_of
from agent_ckpt.errors import UsageError
from agent_ckpt.sealing import Sealing
from agent_ckpt.steps import Call, Outside, Steps


def counts() -> Steps[dict[str, int]]:
    """How many threads' credentials are sealed under each master key, by its id."""
    found: dict[str, int] = {}
    at = 0
    while page := (yield Call(partial(core.keys_page, at))):
        for at, _, envelope in page:  # noqa: B007
            key_id = key_id_of(envelope)
            found[key_id] = found.get(key_id, 0) + 1
    return found


def renew(sealing: Sealing, compromised: bool) -> Steps[int]:
    """Wrap the keys of all credentials under the active key; compromised: make new ones, and seal all anew."""
    done = at = 0
    while page := (yield Call(partial(core.keys_page, at))):
        at = page[-1][0]
        if compromised:
            for one in page:
                if not _is_resealed(sealing, one):
                    done += yield from _reseal(sealing, one)
            continue
        wanted = [one for one in page if not _is_done(sealing, one)]
        if wanted:
            changes = yield Outside(partial(_rewrapped, sealing, wanted))
            yield Call(partial(core.set_keys, changes), write=True)
            done += len(changes)
    return done


def refuse_any() -> Steps[None]:
    """Before a file is made plaintext.

    Raises:
        UsageError: when there are credentials, which are stored only sealed.
    """
    page = yield Call(partial(core.keys_page, 0))
    if page:
        raise UsageError(
            f"the file holds credentials of {len(page)} threads or more, and credentials are stored only sealed. Set "
            f"them elsewhere and drop them first: `agent-ckpt credentials list` shows them, "
            f"saver.credentials(thread_id).clear() drops them"
        )


def _is_done(sealing: Sealing, one: VaultKey) -> bool:
    keyring = sealing.keyring
    assert keyring is not None
    return not keyring.remote and key_id_of(one[2]) == keyring.active_id


def _is_resealed(sealing: Sealing, one: VaultKey) -> bool:
    keys, keyring = sealing.keys, sealing.keyring
    assert keys is not None
    assert keyring is not None
    return turn_of(one[2]) >= keys.turn if keyring.remote else _is_done(sealing, one)


def _rewrapped(sealing: Sealing, wanted: list[VaultKey]) -> list[tuple[int, bytes, bytes]]:
    keys, keyring = sealing.keys, sealing.keyring
    assert keys is not None
    assert keyring is not None
    changes = []
    for vault, stored, envelope in wanted:
        thread_id = keys.thread_id(stored)
        context = vaults.context(keys.store_id, thread_id)
        key = keyring.unwrap(envelope, context, f"the credentials of thread {thread_id!r}")
        changes.append((vault, envelope, keyring.wrap(key, context, turn_of(envelope))))
    return changes


def _reseal(sealing: Sealing, one: VaultKey) -> Steps[int]:
    keys, keyring = sealing.keys, sealing.keyring
    assert keys is not None
    assert keyring is not None
    vault, stored, envelope = one
    owner = Owner(keys.thread_id(stored), "")
    before = yield Outside(partial(use_of, keyring, owner, envelope, keys.store_id))
    after = yield Outside(partial(use_of, keyring, owner, None, keys.store_id, keys.turn))
    return int((yield Call(partial(core.reseal, vault, before, after), write=True)))
