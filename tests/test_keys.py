"""Keys: where they come from, a key service, rotation, sealing and unsealing a file, and the commands (B21).

`KEY_ROWS=100000` re-wraps that many data keys (2,000 by default).
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from agent_ckpt import (
    AgentSaver,
    KeyMaterialError,
    Keyring,
    KeyServiceError,
    NotSealedError,
    SealError,
    UsageError,
    WrongKeyError,
    key_ops,
)
from agent_ckpt.codec.keysource import new_key_text
from tests.conftest import Api
from tests.key_service import KeyServer
from tests.test_sealing import KEY, OTHER, config, edit, put, rows_of, two_threads, whole

GOOD = new_key_text()


def run(*args: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run the command line in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "agent_ckpt", *args],
        capture_output=True,
        text=True,
        timeout=120,
        env={**{k: v for k, v in os.environ.items() if not k.startswith("AGENT_CKPT_")}, **environ},
    )


# Where keys come from


@pytest.mark.parametrize(
    "given",
    [b"short", b"x" * 31, b"x" * 33, b"a" * 32, b"0123456789abcdef0123456789abcdef", "env:NOT_SET_ANYWHERE", "env:",
     "file:/nowhere/key", GOOD, "hunter2", "", "env:WEAK", "env:SHORT", "env:NOISE"],
    ids=lambda given: "a good key's text" if given == GOOD else repr(given),
)  # fmt: skip
def test_a_bad_key_is_refused_at_construction(given: Any, path: Path, monkeypatch: Any) -> None:
    """B21 (a): a key of a wrong length, a printable or patterned one, or none: refused at once, with the command."""
    for name, text in (("WEAK", "61" * 32), ("SHORT", "ab" * 8), ("NOISE", "é!" * 20)):
        monkeypatch.setenv(name, text)
    with pytest.raises(KeyMaterialError, match="agent-ckpt keys new") as caught:
        AgentSaver(path, key=given)
    assert not path.exists()
    shown = str(caught.value) + repr(caught.value.fields)
    assert GOOD not in shown and "hunter2" not in shown and "61" * 32 not in shown and "xxx" not in shown


def test_other_kinds_are_refused(path: Path) -> None:
    """What is no key at all is a UsageError that lists the kinds."""
    with pytest.raises(UsageError, match="'env:NAME', 'file:PATH', a Keyring or a callable"):
        AgentSaver(path, key=5)
    with pytest.raises(UsageError):
        Keyring()
    with pytest.raises(UsageError):
        Keyring(KEY, service=print)


def test_a_key_file(tmp_path: Path, path: Path, caplog: Any) -> None:
    """Text with newlines and remarks, raw bytes, and several keys are read; a wide mode warns; empty is refused."""
    file = tmp_path / "key"
    file.touch(0o600)
    with pytest.raises(KeyMaterialError, match="holds no key"):
        AgentSaver(path, key=f"file:{file}")
    caplog.set_level(logging.WARNING)
    expected = Keyring(GOOD).ids
    for text in (GOOD, f"{GOOD}\n", f"# ours\r\n{GOOD} # active\r\n\r\n"):
        file.write_text(text)
        file.chmod(0o600)
        assert Keyring.of(f"file:{file}").ids == expected
    file.write_bytes(bytes.fromhex(GOOD))
    assert Keyring.of(f"file:{file}").ids == expected
    assert not caplog.records
    other = new_key_text()
    file.write_text(f"{GOOD}\n{other}\n")
    assert Keyring.of(f"file:{file}").ids == expected + Keyring(other).ids
    file.chmod(0o644)
    Keyring.of(f"file:{file}")
    assert "chmod 600" in caplog.text and GOOD not in caplog.text


def test_from_env_takes_the_name_of_a_key(path: Path, tmp_path: Path) -> None:
    """AGENT_CKPT_KEY names a variable or a file; a key that stands in it itself is refused and not shown."""
    environ = {"AGENT_CKPT_URL": str(path), "AGENT_CKPT_KEY": "env:MY_KEY", "MY_KEY": GOOD}
    with AgentSaver.from_env(environ) as saver:
        put(saver, config(), 1, value="v")
        assert GOOD not in repr(saver) + repr(saver._options)
    with AgentSaver(path, key=Keyring(GOOD)) as saver:
        assert saver.get_tuple(config()) is not None
    with pytest.raises(KeyMaterialError) as caught:
        AgentSaver.from_env({**environ, "AGENT_CKPT_KEY": GOOD})
    assert GOOD not in str(caught.value)


# A key service


@pytest.fixture
def service() -> Iterator[KeyServer]:
    server = KeyServer()
    yield server
    server.close()


def test_a_key_service_is_asked_once_per_key(path: Path, service: KeyServer, form: str) -> None:
    """Each data key is unwrapped at most once per process: in two savers, from many OS threads, and in listings."""
    with AgentSaver(path, key=service) as saver:
        two_threads(saver)
    assert not service.unwrapped
    fresh = Keyring(service=service.__call__)
    with AgentSaver(path, key=fresh) as one, AgentSaver(path, key=fresh) as two:
        seen: list[Any] = []
        workers = [threading.Thread(target=lambda s=s: seen.append(whole(s))) for s in (one, two) * 4]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        assert len(seen) == 8 and all(one == seen[0] for one in seen) and len(seen[0]) == 12
        assert Api(one, form).threads() is not None and one.verify()
    assert set(service.unwrapped.values()) == {1} and len(service.unwrapped) == 3


@pytest.mark.parametrize("mode", ["slow", "down", "wrong"])
def test_a_key_service_that_fails(path: Path, service: KeyServer, form: str, mode: str) -> None:
    """A service that is slow, down or wrong gives KeyServiceError, in time; when it is well again so is the saver."""
    with AgentSaver(path, key=service) as saver:
        put(saver, config(), 1, value="v")
    keyring = Keyring(service=service.__call__, timeout_s=0.3)
    with AgentSaver(path, key=keyring) as saver:
        api = Api(saver, form)
        service.mode = mode
        for call in (lambda: api.get_tuple(config()), lambda: put(api, config("new"), 1, value="v")):
            with pytest.raises(KeyServiceError) as caught:
                call()
            assert caught.value.retry == "after_wait"
        service.mode = "right"
        keyring._timeout_s = 10.0
        assert api.get_tuple(config()).checkpoint["channel_values"] == {"value": "v"}
        service.mode = mode
        keyring._timeout_s = 0.3
        if mode != "wrong":
            with pytest.raises(KeyServiceError):
                put(api, config("new"), 1, value="v")
            assert not api.exists("new")


async def test_a_slow_key_service_does_not_hold_up_the_loop(path: Path, service: KeyServer) -> None:
    """While the service is waited for, other tasks of the event loop go on."""
    with AgentSaver(path, key=service) as saver:
        put(saver, config(), 1, value="v")
    service.mode = "slow"
    async with AgentSaver(path, key=Keyring(service=service.__call__)) as saver:
        call = asyncio.create_task(saver.aget_tuple(config()))
        ticks = 0
        while not call.done():
            await asyncio.sleep(0.05)
            ticks += 1
        assert (await call) is not None and ticks >= 10


@pytest.mark.parametrize("answer", [None, b"", "text", ("id", b""), ("id", "text"), (1, b"x" * 40), b"x" * 40])
def test_nonsense_from_a_key_service(path: Path, answer: Any) -> None:
    """Whatever a service answers, the error is typed, and nothing is stored."""
    with AgentSaver(path, key=lambda *_: answer) as saver, pytest.raises(KeyServiceError, match="wrong answer"):
        put(saver, config(), 1, value="v")


def test_a_service_that_gives_keys_back_in_clear_is_refused(path: Path) -> None:
    """A service that wraps by doing nothing would put the data key into the file."""
    with AgentSaver(path, key=lambda _, __, data: ("id", data)) as saver, pytest.raises(KeyServiceError):
        put(saver, config(), 1, value="v")


# Rotation


@pytest.mark.parametrize("compromised", [False, True])
@pytest.mark.parametrize("seal_thread_ids", [False, True])
def test_rotation(path: Path, form: str, compromised: bool, seal_thread_ids: bool) -> None:
    """B21 (c): after a rotation the new key alone opens all; a re-wrap touches key rows only."""
    with AgentSaver(path, key=KEY, seal_thread_ids=seal_thread_ids) as saver:
        two_threads(saver)
        put(saver, config("alice", "text run"), 1, {"run_id": "a text"}, value="v")
        before = whole(saver)
    frames = rows_of(path, "SELECT frame FROM checkpoints UNION SELECT frame FROM blobs UNION SELECT frame FROM writes")
    marks = rows_of(path, "SELECT digest FROM blobs UNION SELECT ns FROM spaces WHERE ns <> ''")
    with AgentSaver(path, key=Keyring(OTHER, KEY)) as saver:
        assert whole(saver) == before and saver.key_status().remaining == 3
        put(saver, config("third"), 1, value="under the new key already")
        before = whole(saver)
        calls: list[tuple[int, int]] = []
        done = Api(saver, form).rotate_keys(compromised=compromised, progress=lambda *at: calls.append(at))
        assert done.active == Keyring(OTHER).active_id and done.retired == Keyring(KEY).ids and done.threads == 2
        assert done.wal_truncated and not Path(f"{path}-wal").stat().st_size
        assert calls[-1] == (2, 0) and not saver.key_status().remaining
        assert whole(saver) == before and saver.verify()
        with pytest.raises(UsageError, match="active key already"):
            saver.rotate_keys()
    kept = set(frames) & set(
        rows_of(path, "SELECT frame FROM checkpoints UNION SELECT frame FROM blobs UNION SELECT frame FROM writes")
    )
    assert not kept if compromised else kept == set(frames)
    now = set(rows_of(path, "SELECT digest FROM blobs UNION SELECT ns FROM spaces WHERE ns <> ''"))
    assert not now & set(marks) if compromised else set(marks) <= now
    with AgentSaver(path, key=OTHER) as saver:
        assert whole(saver) == before and saver.verify()
        saver.delete_for_runs(["a text"])
        assert saver.get_tuple(config("alice", "text run")) is None
    with AgentSaver(path, key=KEY) as saver, pytest.raises(WrongKeyError):
        saver.exists("alice")


@pytest.mark.parametrize("compromised", [False, True])
def test_savers_that_are_open_go_on_through_a_rotation(
    path: Path, tmp_path: Path, form: str, compromised: bool
) -> None:
    """A saver with a key file reads the new key by itself: it reads and writes on, old threads and new, and no fork."""
    file = tmp_path / "keys"
    file.write_text(GOOD)
    file.chmod(0o600)
    with AgentSaver(path, key=f"file:{file}", seal_thread_ids=True) as running:
        api = Api(running, form)
        at = put(api, config("t", "a ns"), 1, value="v" * 100)
        put(api, config("u"), 1, value="u")
        with AgentSaver(path, key=f"file:{file}") as other:
            other.rotate_keys(compromised=compromised)
        assert len(Keyring.of(f"file:{file}").ids) == 2 and file.stat().st_mode & 0o777 == 0o600
        put(api, at, 2, value="w" * 100)
        assert api.get_tuple(config("t", "a ns")).checkpoint["channel_values"] == {"value": "w" * 100}
        put(api, config("u", "new ns"), 1, {"run_id": "text"}, value="u")
        assert [info.thread_id for info in api.threads()] == ["t", "u"] and running.verify()
        assert api.get_tuple(config("u")).checkpoint["channel_values"] == {"value": "u"}
    with AgentSaver(path, key=file_without_old(file)) as saver:
        assert len(whole(saver)) == 4 and saver.verify()


def test_a_compromised_key_leaves_no_free_pages(path: Path, form: str, monkeypatch: Any) -> None:
    """After a full re-seal the file is shorter by its free pages, though another process has it open; a reader that
    keeps the WAL from being cut is told of, and the pages go when it has ended."""
    with AgentSaver(path, key=KEY) as saver:
        for number in range(4):
            put(saver, config(f"t{number}"), 1, value=os.urandom(200_000).hex())
    other = subprocess.Popen(
        [sys.executable, "-c", HOLDS_OPEN, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert other.stdin is not None and other.stdout is not None
        assert other.stdout.readline() == "open\n"
        with AgentSaver(path, key=Keyring(OTHER, KEY)) as saver:
            for number in range(3):
                saver.delete_thread(f"t{number}")
            saver.wal_truncate()
            before = path.stat().st_size
            done = Api(saver, form).rotate_keys(compromised=True)
            assert (done.pages_left, done.wal_truncated) == (0, True)
            assert path.stat().st_size < before / 2
            saver.delete_thread("t3")
            print("read", file=other.stdin, flush=True)
            assert other.stdout.readline() == "reading\n"
            before = path.stat().st_size
            monkeypatch.setattr(key_ops, "_WAL_WAIT_S", 0.2)
            done = saver._settled(done)
            assert (done.pages_left, done.wal_truncated) == (0, False) and path.stat().st_size == before
            print("end", file=other.stdin, flush=True)
            assert other.wait(60) == 0
            saver.wal_truncate()
            assert path.stat().st_size < before / 2
    finally:
        other.kill()
        other.communicate()
    with AgentSaver(path, key=OTHER) as saver:
        assert saver.verify()


HOLDS_OPEN = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("SELECT count(*) FROM threads").fetchall()
print("open", flush=True)
sys.stdin.readline()
connection.execute("BEGIN")
connection.execute("SELECT count(*) FROM threads").fetchall()
print("reading", flush=True)
sys.stdin.readline()
connection.execute("COMMIT")
"""


def file_without_old(file: Path) -> str:
    file.write_text(file.read_text().splitlines()[0])
    return f"file:{file}"


KILLED = """
import os, signal, sys
from agent_ckpt import AgentSaver, Keyring
path, what, keys = sys.argv[1], sys.argv[2], [bytes.fromhex(text) for text in sys.argv[3:]]
def stop(done, remaining):
    if done >= 3:
        os.kill(os.getpid(), signal.SIGKILL)
with AgentSaver(path, key=Keyring(*keys)) as saver:
    if what == "reseal":
        saver.rotate_keys(compromised=True, progress=stop)
    elif what == "seal":
        saver.seal_existing(progress=stop)
    else:
        saver.unseal(progress=stop)
"""


@pytest.mark.parametrize("what", ["reseal", "seal", "unseal"])
def test_killed_in_the_middle_it_goes_on(path: Path, what: str) -> None:
    """kill -9 in mid re-seal, sealing and unsealing: nothing is lost, the rest is counted, a second run finishes."""
    keys = [OTHER, KEY] if what == "reseal" else [KEY]
    with AgentSaver(path, key=None if what == "seal" else KEY) as saver:
        for number in range(8):
            put(saver, config(f"t{number}"), 1, value=f"value {number} " * 20)
        before = whole(saver)
    killed = subprocess.run(
        [sys.executable, "-c", KILLED, str(path), what, *(key.hex() for key in keys)], capture_output=True, timeout=120
    )
    assert killed.returncode == -9, killed.stderr
    with AgentSaver(path, key=Keyring(*keys)) as saver:
        status = saver.key_status()
        if what == "reseal":
            assert 0 < status.remaining < 8 and whole(saver) == before and saver.verify()
            assert saver.rotate_keys(compromised=True).threads == status.remaining
        else:
            assert status.state == "half sealed" and 0 < status.threads[""] < 8
            with pytest.raises(NotSealedError, match="interrupted"):
                saver.exists("t1")
            left = saver.seal_existing() if what == "seal" else saver.unseal()
            assert left == (status.threads[""] if what == "seal" else 8 - status.threads[""])
    with AgentSaver(path, key={"reseal": OTHER, "seal": KEY}.get(what)) as saver:
        assert whole(saver) == before and saver.verify()


def test_a_rotation_keeps_the_key_file_as_it_is(path: Path, tmp_path: Path) -> None:
    """A new key is put before what stands in the file: its remarks, mode and the link to it stay, and what a rotation
    left that was killed there doesn't stand in the way."""
    file, link = tmp_path / "mounted" / "agent.key", tmp_path / "link.key"
    file.parent.mkdir()
    file.write_text(f"# of the billing agents\n{GOOD}\n")
    file.chmod(0o640)
    link.symlink_to(file)
    (tmp_path / "mounted" / "agent.key.new").write_text("half a k")
    with AgentSaver(path, key=f"file:{link}") as saver:
        put(saver, config(), 1, value="v")
        saver.rotate_keys()
        assert saver.key_status().remaining == 0
    lines = file.read_text().splitlines()
    assert link.is_symlink() and file.stat().st_mode & 0o777 == 0o640 and lines[1:] == ["# of the billing agents", GOOD]
    assert sorted(each.name for each in file.parent.iterdir()) == ["agent.key"]
    with AgentSaver(path, key=Keyring(lines[0])) as saver:
        assert saver.get_tuple(config()) is not None


ROTATING = """
import sys
from agent_ckpt import AgentSaver, UnavailableError
_, path, key, times, compromised = sys.argv
print("ready", flush=True)
sys.stdin.readline()
for _ in range(int(times)):
    with AgentSaver(path, key="file:" + key) as saver:
        while True:
            try:
                saver.rotate_keys(compromised=bool(int(compromised)))
                break
            except UnavailableError as told:
                assert "run the rotation again" in told.message
"""


@contextmanager
def rotating(path: Path, key: Path, times: int, compromised: bool) -> Iterator[subprocess.Popen[str]]:
    """A process that rotates so often, once it is told to."""
    command = [sys.executable, "-c", ROTATING, str(path), str(key), str(times), str(int(compromised))]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as made:
        try:
            assert made.stdout is not None and made.stdout.readline()
            yield made
        finally:
            made.kill()


def go(one: subprocess.Popen[str]) -> None:
    assert one.stdin is not None
    one.stdin.write("go\n")
    one.stdin.flush()


def test_rotations_beside_each_other_and_killed(path: Path, tmp_path: Path) -> None:
    """Two processes rotate at once, and others are killed at moments of chance, while a saver writes: no key that
    anything is sealed under is missing from the key file, and every value that was acknowledged is there."""
    key = tmp_path / "agent.key"
    key.write_text(f"{GOOD}\n")
    key.chmod(0o600)
    stored: dict[str, int] = {}
    chance = random.Random(5)
    with ExitStack() as running:
        saver = running.enter_context(AgentSaver(path, key=f"file:{key}"))
        for number in range(20):
            put(saver, config(f"t{number}"), 0, value=0)

        def write(until: Callable[[], bool]) -> None:
            while True:
                thread_id = f"t{chance.randrange(20)}"
                found = saver.get_tuple(config(thread_id))
                assert found is not None
                step = stored.get(thread_id, 0) + 1
                put(saver, found.config, step, value=step)
                stored[thread_id] = step
                if until():
                    return

        started = [
            running.enter_context(rotating(path, key, *of)) for of in [(3, False)] * 2 + [(50, False), (50, True)]
        ]
        pair, killed = started[:2], started[2:]
        for one in pair:
            go(one)
        write(lambda: all(one.poll() is not None for one in pair))
        for one in pair:
            assert one.communicate()[1] == "" and one.returncode == 0
        for one in killed:
            go(one)
            end = time.monotonic() + chance.random() * 0.5
            write(lambda end=end: time.monotonic() > end)  # type: ignore[misc]
            one.kill()
            assert one.communicate()[1] == "" and one.returncode in (-9, 0)
    with AgentSaver(path, key=f"file:{key}") as saver:
        for thread_id, step in stored.items():
            found = saver.get_tuple(config(thread_id))
            assert found is not None and found.checkpoint["channel_values"]["value"] == step
        assert saver.verify()
        saver.rotate_keys()
        assert saver.key_status().remaining == 0


KMS = """
import os, signal, sys
from agent_ckpt import AgentSaver
def service(operation, key_id, data):
    turned = bytes(byte ^ 0x5A for byte in data)
    return ("always the same", turned) if operation == "wrap" else turned
def stop(done, remaining):
    if done >= 3:
        os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_rotation_at_a_key_service_goes_on(path: Path) -> None:
    """A key service whose key's id never changes: a full re-seal that was killed does the rest only, credentials too;
    the next one after that does everything."""
    space: dict[str, Any] = {}
    exec(KMS, space)  # the same service here and in the process that is killed
    service = space["service"]
    with AgentSaver(path, key=service) as saver:
        for number in range(8):
            put(saver, config(f"t{number}"), 1, value=f"value {number} " * 20)
            saver.credentials(f"t{number}").set("token", f"secret {number}")
        before = whole(saver)
    code = KMS + "with AgentSaver(sys.argv[1], key=service) as saver:\n"
    code += "    saver.rotate_keys(compromised=True, progress=stop)\n"
    killed = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, timeout=120)
    assert killed.returncode == -9, killed.stderr
    done_before = secrets_of(path)
    with AgentSaver(path, key=service) as saver:
        assert whole(saver) == before and saver.verify()
        calls: list[tuple[int, int]] = []
        done = saver.rotate_keys(compromised=True, progress=lambda *at: calls.append(at))
        assert done.threads == 5 and calls[0] == (1, 4) and calls[-1] == (5, 0)
        assert len(secrets_of(path) & done_before) == 3
        assert whole(saver) == before and saver.verify()
        assert saver.credentials("t5").get("token").reveal() == "secret 5"
        envelopes = secrets_of(path) | {keys for (keys,) in rows_of(path, "SELECT keys FROM vaults")}
        assert saver.rotate_keys(compromised=True).threads == 8
        now = secrets_of(path) | {keys for (keys,) in rows_of(path, "SELECT keys FROM vaults")}
        assert len(now) == 16 and not now & envelopes
        assert whole(saver) == before and saver.verify()


def secrets_of(path: Path) -> set[bytes]:
    return {secret for (secret,) in rows_of(path, "SELECT secret FROM threads")}


def test_what_was_put_back_is_not_sealed_anew(path: Path) -> None:
    """A full re-seal refuses a thread with a row that was removed or forged, and leaves it as it is."""
    with AgentSaver(path, key=KEY) as saver:
        two_threads(saver)
    edit(path, ("DELETE FROM checkpoints WHERE seq = (SELECT max(seq) FROM checkpoints)", ()))
    with AgentSaver(path, key=Keyring(OTHER, KEY)) as saver, pytest.raises(SealError, match="'bob'"):
        saver.rotate_keys(compromised=True)


def test_there_and_back(path: Path, form: str) -> None:
    """A plaintext file sealed and unsealed holds what it held, with thread ids sealed in between."""
    with AgentSaver(path) as saver:
        two_threads(saver)
        put(saver, config("alice", "text run"), 1, {"run_id": "a text"}, value="v")
        before = whole(saver)
    with AgentSaver(path, key=KEY, seal_thread_ids=True) as saver:
        assert Api(saver, form).seal_existing() == 2
        assert whole(saver) == before and saver.verify()
    raw = path.read_bytes()
    assert not any(text in raw for text in (b"alice", b"admin", b"sub:1", b"a text", b"text run"))
    with AgentSaver(path, key=KEY) as saver:
        assert Api(saver, form).unseal() == 2
    with AgentSaver(path) as saver:
        assert whole(saver) == before and saver.verify()


def test_many_data_keys_are_wrapped_anew_in_pages(path: Path) -> None:
    """A rotation writes one statement per thousand threads, and no frame."""
    count = int(os.environ.get("KEY_ROWS", "2000"))
    with AgentSaver(path, key=KEY) as saver:
        put(saver, config(), 1, value="v")
        keys = saver._sealing.keys
        assert keys is not None
        made = [(number, f"t{number}", keys.fresh(f"t{number}").envelope) for number in range(10, count + 10)]
    edit(path, *[
        ("INSERT INTO threads SELECT ?, ?, revision, NULL, 1, 0, ? FROM threads WHERE thread_id = 't'", one)
        for one in made
    ])  # fmt: skip
    with AgentSaver(path, key=Keyring(OTHER, KEY)) as saver:
        seen: list[str] = []
        saver._backend.on_statement = seen.append
        began = time.monotonic()
        assert saver.rotate_keys().threads == count + 1
        print(f"{count + 1} data keys in {time.monotonic() - began:.1f} s")
        saver._backend.on_statement = None
        assert seen.count("BEGIN IMMEDIATE") <= count // 1000 + 3
        assert not {"set_checkpoint_as_stored", "set_blob_as_stored"} & set(seen)
        assert saver.key_status().remaining == 0
    edit(path, ("DELETE FROM threads WHERE thread_id <> 't'", ()))


# Commands


def test_the_commands(path: Path, tmp_path: Path) -> None:
    """keys new, list, seal-existing, status, rotate, unseal: the way through, and no key on any output."""
    file = tmp_path / "keys"
    assert run("keys", "new", str(file)).returncode == 0 and file.stat().st_mode & 0o777 == 0o600
    assert run("keys", "new", str(file)).returncode == 9
    secret = file.read_text().strip()
    made = run("keys", "new").stdout.strip()
    assert len(made) == 64 and made != secret
    with AgentSaver(path) as saver:
        two_threads(saver)
    source = f"file:{file}"
    outputs = [run("keys", "list", AGENT_CKPT_KEY=source)]
    assert "(active)" in outputs[0].stdout
    assert run("threads", str(path), "--key", source).returncode == 9
    assert run("keys", "rotate", str(path), "--key", source).returncode == 2
    assert run("keys", "seal-existing", str(path)).returncode == 2
    outputs += [
        run("keys", "seal-existing", str(path), "--key", source),
        run("keys", "status", str(path)),
        run("keys", "status", str(path), "--json", AGENT_CKPT_KEY=source),
        run("threads", str(path), "--key", source),
        run("show", str(path), "alice", AGENT_CKPT_KEY=source),
        run("keys", "rotate", str(path), "--key", source),
        run("keys", "rotate", str(path), "--key", source, "--compromised"),
    ]
    assert [one.returncode for one in outputs] == [0] * 8, [one.stderr for one in outputs]
    assert "admin" in outputs[5].stdout and '"remaining": 0' in outputs[3].stdout
    assert "backups from before this do" in outputs[7].stdout and "revoke" in outputs[7].stdout
    assert len(Keyring.of(source).ids) == 3
    refused = run("threads", str(path))
    assert refused.returncode == 9 and "sealed under key" in refused.stderr
    raw = run("threads", str(path), "--key", secret)
    assert raw.returncode == 9
    outputs += [refused, raw, run("keys", "unseal", str(path), "--key", source), run("threads", str(path))]
    assert outputs[-1].returncode == 0 and "alice" in outputs[-1].stdout
    assert not any(secret in one.stdout + one.stderr for one in outputs)


def test_a_service_that_is_a_function(path: Path) -> None:
    """A plain function serves as a key service, and one of a class that can't be hashed."""

    class Unhashable:
        __hash__ = None  # type: ignore[assignment]

        def __call__(self, operation: str, _: str, data: bytes) -> Any:
            turned = bytes(byte ^ 0x5A for byte in data)
            return ("k", turned) if operation == "wrap" else turned

    given: list[Callable[..., Any]] = [Unhashable(), lambda *args: Unhashable()(*args)]
    for key in given:
        with AgentSaver(path, key=key) as saver:
            put(saver, config(), 1, value="v") if not saver.exists("t") else None
            assert saver.get_tuple(config()) is not None
