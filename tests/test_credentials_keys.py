"""Credentials under keys that rotate, key services, and sealed thread ids; secrets in state of a sealed store."""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage
from pydantic import SecretBytes, SecretStr

from agent_ckpt import AgentSaver, UsageError, credential_work
from agent_ckpt.codec.keyring import Keyring
from agent_ckpt.core import credentials as core
from agent_ckpt.errors import KeyServiceError, SealError, WrongKeyError
from tests.canary import found_in
from tests.conftest import Api
from tests.looking import thread
from tests.sealed import KEY, sealed_savers
from tests.test_credentials import CANARY, counting, of
from tests.test_secrets_in_state import put

NEW_KEY = bytes(reversed(KEY))
THREADS = [f"thread-{n}" for n in range(5)]


@pytest.fixture
def rotated(path: Path) -> Iterator[Path]:
    """A store with credentials of five threads, two of them with checkpoints; verified under the new key at the end."""
    with AgentSaver(path, key=KEY) as saver:
        for name in THREADS:
            saver.credentials(name).set("github", f"{CANARY} of {name}")
            saver.credentials(name).get("github")
        for name in THREADS[:2]:
            counting(saver).invoke({"n": 1}, thread(name))
    yield path
    with AgentSaver(path, key=NEW_KEY) as saver:
        assert saver.verify().findings == ()


def stored(path: Path, what: str) -> list[Any]:
    with closing(sqlite3.connect(path)) as db:
        return [value for (value,) in db.execute(f"SELECT {what} ORDER BY 1").fetchall()]


@pytest.mark.parametrize("compromised", [False, True])
def test_rotation(rotated: Path, form: str, compromised: bool) -> None:
    """After it the old key opens nothing and counts nothing; the new one alone opens all, with its whole audit."""
    untouched = "frame FROM vaults WHERE thread_id <> 'thread-4'"
    frames = stored(rotated, untouched)
    with AgentSaver(rotated, key=Keyring(NEW_KEY, KEY)) as saver:
        api = Api(saver, form)
        before = api.key_status()
        assert list(before.credentials.values()) == [5]
        done = api.rotate_keys(compromised=compromised)
        after = api.key_status()
        assert (after.credentials, after.remaining) == ({after.active: 5}, 0)
        assert set(before.credentials) <= set(done.retired)
        assert of(saver, form, THREADS[4]).get("github").reveal() == f"{CANARY} of thread-4"
    assert (stored(rotated, untouched) == frames) is (not compromised)
    with AgentSaver(rotated, key=KEY) as saver, pytest.raises((WrongKeyError, SealError)):
        of(saver, form, THREADS[0]).get("github")
    with AgentSaver(rotated, key=NEW_KEY) as saver:
        for name in THREADS:
            here = of(saver, form, name)
            assert here.get("github").reveal() == f"{CANARY} of {name}"
            assert [use.action for use in here.audit()][-2:] == ["get", "set"]


@pytest.mark.parametrize("compromised", [False, True])
def test_an_interrupted_rotation_goes_on(
    rotated: Path, form: str, compromised: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped in the middle, everything still opens with both keys, and the next rotation does the rest."""
    calls = []
    for name in ("set_keys", "reseal"):
        real = getattr(core, name)

        def stop(*args: Any, real: Any = real) -> Any:
            calls.append(args)
            if len(calls) == (3 if compromised else 1):
                raise KeyboardInterrupt
            return real(*args)

        monkeypatch.setattr(core, name, stop)
    with AgentSaver(rotated, key=Keyring(NEW_KEY, KEY)) as saver:
        with pytest.raises(KeyboardInterrupt):
            saver.rotate_keys(compromised=compromised)
        monkeypatch.undo()
        assert saver.key_status().remaining == (3 if compromised else 5)
        assert saver.verify().findings == ()
        Api(saver, form).rotate_keys(compromised=compromised)
        assert saver.key_status().remaining == 0


def test_a_saver_goes_on_during_a_rotation(rotated: Path, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A saver that had read a data key's envelope before it was wrapped anew looks again and loses nothing."""
    real, met = credential_work.use_of, list[int]()

    def meet(*args: Any) -> Any:
        made = real(*args)
        met.append(1)
        if len(met) == 1:
            with AgentSaver(rotated, key=Keyring(NEW_KEY, KEY)) as other:
                other.rotate_keys()
        return made

    with AgentSaver(rotated, key=Keyring(NEW_KEY, KEY)) as saver:
        saver.setup()
        monkeypatch.setattr(credential_work, "use_of", meet)
        here = of(saver, form, THREADS[0])
        here.set("github", "new")
        assert len(met) == 2
        assert here.get("github").reveal() == "new"


def test_damage_is_not_sealed_anew(rotated: Path) -> None:
    """A rotation with new keys refuses credentials that were put back, and leaves them as they are."""
    with closing(sqlite3.connect(rotated)) as db:
        old = db.execute("SELECT revision, frame, vault FROM vaults WHERE thread_id = 'thread-0'").fetchone()
        with AgentSaver(rotated, key=KEY) as saver:
            saver.credentials("thread-0").set("github", "rotated")
        db.execute("UPDATE vaults SET revision = ?, frame = ? WHERE vault = ?", old)
        db.commit()
    with AgentSaver(rotated, key=Keyring(NEW_KEY, KEY)) as saver:
        with pytest.raises(SealError, match="'thread-0'"):
            saver.rotate_keys(compromised=True)
        saver.credentials("thread-0").clear()
        saver.rotate_keys(compromised=True)


def test_a_file_with_credentials_is_not_unsealed(path: Path, form: str) -> None:
    """Credentials are stored only sealed: unsealing is refused until they are dropped, and then goes through."""
    with AgentSaver(path, key=KEY) as saver:
        api = Api(saver, form)
        api.invoke(counting(saver), {"n": 1}, thread("t"))
        of(saver, form).set("github", CANARY)
        with pytest.raises(UsageError, match="credentials of 1 thread"):
            api.unseal()
        assert of(saver, form).get("github").reveal() == CANARY
        of(saver, form).clear()
        api.unseal()
    with AgentSaver(path) as saver:
        assert saver.verify().findings == ()
        assert found_in(path, CANARY) == []


def test_sealed_thread_ids(path: Path, form: str) -> None:
    """With seal_thread_ids the owner of credentials stands in no file; rotating renames it and finds it again."""
    owner = "OWNER-CANARY-1d3f"
    with AgentSaver(path, key=Keyring(NEW_KEY, KEY), seal_thread_ids=True) as saver:
        of(saver, form, owner).set("github", "x")
        assert [info.thread_id for info in Api(saver, form).list_credentials()] == [owner]
        assert found_in(path, owner) == []
    with AgentSaver(path, key=Keyring(KEY, NEW_KEY)) as saver:
        Api(saver, form).rotate_keys(compromised=True)
        assert of(saver, form, owner).get("github").reveal() == "x"
    assert found_in(path, owner, CANARY) == []
    with AgentSaver(path, key=KEY) as saver:
        assert saver.verify().findings == ()


class Service:
    """A key service in memory; counts what it is asked, and can be slow or down."""

    def __init__(self) -> None:
        self.master = os.urandom(32)
        self.asked: list[str] = []
        self.threads: set[int] = set()
        self.down = False

    def __call__(self, operation: str, key_id: str, data: bytes) -> Any:
        self.asked.append(operation)
        self.threads.add(threading.get_ident())
        time.sleep(0.05)
        if self.down:
            raise OSError("down")
        turned = bytes(a ^ b for a, b in zip(data, self.master * 8, strict=False))
        return ("kms-1", turned) if operation == "wrap" else turned


def test_a_key_service(path: Path, form: str) -> None:
    """Each data key is unwrapped once per process, never on the caller's thread; while it is down nothing is given."""
    service = Service()
    with AgentSaver(path, key=Keyring(service=service)) as saver:
        of(saver, form).set("github", CANARY)
    with AgentSaver(path, key=Keyring(service=service)) as saver:
        service.asked.clear()
        for _ in range(5):
            assert of(saver, form).get("github").reveal() == CANARY
        assert service.asked.count("unwrap") == 2, "the store's key and the credentials' key"
    assert threading.get_ident() not in service.threads
    with AgentSaver(path, key=Keyring(service=service)) as saver:
        saver.setup()
        service.down = True
        with pytest.raises(KeyServiceError):
            of(saver, form).get("github")
        with pytest.raises(KeyServiceError):
            of(saver, form, "another").set("github", CANARY)
        service.down = False
        assert of(saver, form, "another").names() == []
        assert saver.verify().findings == ()


def test_a_key_service_holds_up_no_event_loop(path: Path) -> None:
    """While the service is slow, other tasks of the loop go on."""
    import asyncio

    service = Service()

    async def use() -> int:
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                await asyncio.sleep(0.005)
                ticks += 1

        async with AgentSaver(path, key=Keyring(service=service)) as saver:
            await saver.asetup()
            ticking = asyncio.create_task(tick())
            await saver.credentials("t").aset("github", CANARY)
            ticking.cancel()
        return ticks

    assert asyncio.run(use()) >= 2


@pytest.mark.parametrize(
    "value",
    [
        SecretStr(CANARY),
        SecretBytes(CANARY.encode()),
        {"login": [1, {"token": SecretStr(CANARY)}]},
        [AIMessage("hi", additional_kwargs={"auth": {"key": SecretStr(CANARY)}})],
    ],
    ids=["text", "bytes", "nested", "message"],
)
def test_secrets_in_state_are_sealed(path: Path, form: str, value: Any) -> None:
    """B15: with a key a SecretStr in state is stored, comes back equal from a new saver, and is in no file in clear."""
    with sealed_savers(path) as open_one:
        api = Api(open_one(compression="none"), form)
        put(api, value)
        assert found_in(path, CANARY) == []
        api.saver.close()
        assert found_in(path, CANARY) == []
        found = Api(open_one(), form).get_tuple(thread("t"))
        assert found.checkpoint["channel_values"]["login"] == value
        assert type(found.checkpoint["channel_values"]["login"]) is type(value)
