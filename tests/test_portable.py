"""Threads as portable files: `export_thread` and `import_thread`, `agent-ckpt export` and `import`."""

from __future__ import annotations

import os
import random
import stat
import subprocess
import sys
from hashlib import blake2b
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from langgraph.types import Command

from agent_ckpt import AgentSaver, CkptError, CorruptionError, FormatError, SealError, UsageError, WrongKeyError
from agent_ckpt.codec import portable
from tests import agents
from tests import official_graphs as graphs
from tests.conftest import Api, assert_sound
from tests.test_import import cli, listing, seen, typed

ROOT = Path(__file__).parent.parent
WATCHDOG_S = 120.0
THREADS = (graphs.FINISHED, graphs.OPEN, graphs.FANNED, "delta", "pruned", "rolled")


@pytest.fixture(scope="module")
def db(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with a finished thread, an open interrupt, a fork, DeltaChannels, and a pruned thread of those."""
    path = tmp_path_factory.mktemp("portable") / "source.db"
    with AgentSaver(path) as saver:
        graphs.run_threads(saver)
        graph = agents.delta_graph(saver)
        for thread_id in ("delta", "pruned"):
            for turn in range(7):
                graph.invoke({"messages": [agents.AIMessage(f"turn {turn}")]}, graphs.config(thread_id))
        saver.prune(["pruned"])
        graph = graphs.build(saver)
        graph.invoke({"log": ["start"]}, graphs.config("rolled"))
        graph.invoke(Command(resume="wrong"), graphs.config("rolled"))
        older = list(graph.get_state_history(graphs.config("rolled")))
        saver.rollback(older[-3].config)
        saver.put_writes({"configurable": {"thread_id": "writes", "checkpoint_id": "x"}}, [("a", 1)], "task")
    return path


@pytest.mark.parametrize("thread_id", THREADS)
def test_a_thread_travels_whole(db: Path, form: str, thread_id: str, tmp_path: Path) -> None:
    """Exported in one store and imported in another, under its own id and another one: every checkpoint equal, rows in
    order, DeltaChannels rebuilt, and the file is readable by its owner alone."""
    out, path = tmp_path / "out.ackpt", tmp_path / "target.db"
    with AgentSaver(db) as saver:
        wrote = Api(saver, form).export_thread(thread_id, out)
        expected, undone = listing(saver, thread_id), sorted(saver.rolled_back(thread_id))
        assert bool(undone) == (thread_id == "rolled")
        head = seen(saver.get_tuple(graphs.config(thread_id)))
        states = [typed(s.values) for s in agents.delta_graph(saver).get_state_history(graphs.config(thread_id))]
    assert stat.S_IMODE(out.stat().st_mode) == 0o600
    assert [found.name for found in tmp_path.iterdir()] == ["out.ackpt"]
    assert (wrote.thread_id, wrote.checkpoints, wrote.size) == (thread_id, len(expected), out.stat().st_size)
    with AgentSaver(path) as saver:
        api = Api(saver, form)
        assert api.import_thread(out) == wrote
        assert api.import_thread(out, thread_id="other").thread_id == "other"
        for name in (thread_id, "other"):
            assert listing(saver, name) == expected
            assert seen(saver.get_tuple(graphs.config(name))) == head
            assert sorted(saver.rolled_back(name)) == undone
            if thread_id in ("delta", "pruned"):
                found = agents.delta_graph(saver).get_state_history(graphs.config(name))
                assert [typed(state.values) for state in found] == states
        again = api.export_thread("other", tmp_path / "again.ackpt")
        assert again.checkpoints == wrote.checkpoints
    assert_sound(path)


def test_an_open_interrupt_travels_and_is_answered(db: Path, form: str, tmp_path: Path, path: Path) -> None:
    """Imported under another id, the run waits for its answer there, and the source's goes on waiting."""
    with AgentSaver(db) as saver:
        saver.export_thread(graphs.OPEN, tmp_path / "o.ackpt")
    with AgentSaver(path) as saver:
        saver.import_thread(tmp_path / "o.ackpt", thread_id="here")
        answer = Api(saver, form).invoke(graphs.build(saver), Command(resume="no"), graphs.config("here"))
    assert "answered no" in answer["log"]
    with AgentSaver(db) as saver:
        assert graphs.build(saver).get_state(graphs.config(graphs.OPEN)).interrupts
    assert_sound(path)


def test_a_thread_of_writes_only_travels(db: Path, tmp_path: Path, path: Path) -> None:
    """Writes whose checkpoint isn't stored yet come along."""
    with AgentSaver(db) as saver:
        report = saver.export_thread("writes", tmp_path / "w.ackpt")
    assert (report.checkpoints, report.writes) == (0, 1)
    with AgentSaver(path) as saver:
        saver.import_thread(tmp_path / "w.ackpt")
        config: Any = {"configurable": {"thread_id": "writes", "checkpoint_ns": "", "checkpoint_id": None}}
        checkpoint: Any = {**agents_checkpoint(), "id": "x"}
        found = saver.get_tuple(saver.put(config, checkpoint, {}, {}))
        assert found is not None
        assert found.pending_writes == [("task", "a", 1)]
    assert_sound(path)


def agents_checkpoint() -> dict[str, Any]:
    from langgraph.checkpoint.base import empty_checkpoint

    return dict(empty_checkpoint())


def test_the_commands(db: Path, tmp_path: Path) -> None:
    """`agent-ckpt export` writes a file and `agent-ckpt import` reads it, `--as` another id, and says what it did."""
    out, target = tmp_path / "t.ackpt", tmp_path / "new.db"
    done = cli("export", str(db), graphs.FANNED, str(out))
    assert done.stdout.splitlines()[-1] == "checked, whole, in clear", done.stderr
    for options in ([], ["--as", "second"]):
        done = cli("import", str(out), str(target), *options)
        assert done.stdout.splitlines()[-1] == "checked, whole", done.stderr
    for told, *arguments in (
        ("exists already", "import", str(out), str(target)),
        ("exists already; name another file", "export", str(db), graphs.FANNED, str(out)),
        ("is not stored", "export", str(db), "nobody", str(tmp_path / "n.ackpt")),
        ("--thread doesn't apply", "import", str(out), str(target), "--thread", "x"),
        ("the same file", "import", str(target), str(target)),
    ):
        done = cli(*arguments)
        assert (done.returncode, told in done.stderr) == (2, True), done.stderr
    with AgentSaver(db) as saver:
        expected = listing(saver, graphs.FANNED)
    with AgentSaver(target) as saver:
        assert sorted(info.thread_id for info in saver.threads()) == [graphs.FANNED, "second"]
        assert listing(saver, "second") == expected
    assert_sound(target)


# Sealed

KEY, OTHER_KEY = bytes(range(32)), bytes(range(1, 33))
TOLD = "a very private remark"


@pytest.fixture
def sealed_db(tmp_path: Path) -> Path:
    """A sealed store whose thread holds a text that stands nowhere in clear, and credentials."""
    path = tmp_path / "sealed.db"
    with AgentSaver(path, key=KEY) as saver:
        graphs.build(saver).invoke({"log": [TOLD]}, graphs.config("t"))
        saver.credentials("t").set("github", "hunter2hunter2")
    return path


def holds(path: Path, text: str) -> bool:
    """Whether a text stands in a file, compressed or not: all of a plain one is read as its reader does."""
    data = path.read_bytes()
    try:
        made = portable.read(BytesIO(data), len(data), "x", no_sealer)
    except AssertionError:
        return text.encode() in data
    return any(text.encode() in part for part in (*(b.body for b in made.blobs), *(r.payload for r in made.rows)))


def no_sealer(about: Any) -> Any:
    raise AssertionError("sealed")


def test_a_sealed_file_travels_between_sealed_stores(sealed_db: Path, form: str, tmp_path: Path) -> None:
    """A sealed store exports sealed, under its own key or another, and in clear only when that is said; credentials
    stay behind; the wrong key and a store without one are refused, and nothing is stored."""
    own, other, clear = (tmp_path / f"{name}.ackpt" for name in ("own", "other", "clear"))
    with AgentSaver(sealed_db, key=KEY) as saver:
        api = Api(saver, form)
        api.export_thread("t", own)
        api.export_thread("t", other, key=OTHER_KEY)
        api.export_thread("t", clear, plain=True)
        with pytest.raises(UsageError, match="not both"):
            api.export_thread("t", tmp_path / "no", key=KEY, plain=True)
        expected = listing(saver, "t")
    assert [holds(one, TOLD) for one in (own, other, clear)] == [False, False, True]
    assert not any(holds(one, "hunter2") for one in (own, other, clear))
    with AgentSaver(tmp_path / "plain.db") as saver:
        for key in (None, KEY):
            with pytest.raises(UsageError, match="has no key, so it would stand there in clear"):
                Api(saver, form).import_thread(own, key=key)
        Api(saver, form).import_thread(clear)
        assert listing(saver, "t") == expected
    with AgentSaver(tmp_path / "target.db", key=OTHER_KEY) as saver:
        api = Api(saver, form)
        with pytest.raises(WrongKeyError, match=r"own\.ackpt is sealed under key"):
            api.import_thread(own)
        assert not saver.exists("t")
        api.import_thread(own, key=KEY)
        api.import_thread(other, thread_id="u")
        assert listing(saver, "t") == expected
        assert [item[1][1:] for item in listing(saver, "u")] == [item[1][1:] for item in expected]
        assert not saver.credentials("t").names()
        graph = graphs.build(saver)
        assert graph.invoke(Command(resume="yes"), graphs.config("u"))["log"][0] == TOLD
    assert_sound(tmp_path / "target.db", key=OTHER_KEY)


def test_every_change_of_a_sealed_file_is_noticed(sealed_db: Path, tmp_path: Path, monkeypatch: Any) -> None:
    """A byte changed anywhere, and chunks changed, swapped, left out or taken from another file with a digest that
    fits: a typed error, and nothing is stored."""
    monkeypatch.setattr(portable, "_CHUNK", 200)
    one, two, changed = (tmp_path / f"{name}.ackpt" for name in ("one", "two", "changed"))
    with AgentSaver(sealed_db, key=KEY) as saver:
        saver.export_thread("t", one)
        saver.export_thread("t", two)
        whole = one.read_bytes()
        head, chunks = taken_apart(whole)
        _, others = taken_apart(two.read_bytes())
        assert len(chunks) > 3
        files = [whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :] for at in range(0, len(whole), 7)]
        files += [
            put_together(head, made)
            for made in (
                [chunks[1], chunks[0], *chunks[2:]],
                chunks[:-1],
                [*chunks, chunks[-1]],
                [others[0], *chunks[1:]],
                [chunks[0][:-1] + bytes([chunks[0][-1] ^ 1]), *chunks[1:]],
            )
        ]
        for data in files:
            changed.write_bytes(data)
            with pytest.raises((CorruptionError, FormatError, SealError, WrongKeyError)):
                saver.import_thread(changed, thread_id="new")
        assert not saver.exists("new")
        changed.write_bytes(put_together(head, chunks))
        saver.import_thread(changed, thread_id="new")


def taken_apart(whole: bytes) -> tuple[bytes, list[bytes]]:
    """The beginning of a portable file, and its chunks."""
    at = len(portable.MAGIC) + 4 + int.from_bytes(whole[len(portable.MAGIC) : len(portable.MAGIC) + 4], "big")
    head, chunks = whole[:at], []
    while length := int.from_bytes(whole[at : at + 4], "big"):
        chunks.append(whole[at + 4 : at + 4 + length])
        at += 4 + length
    return head, chunks


def put_together(head: bytes, chunks: list[bytes]) -> bytes:
    body = head + b"".join(len(chunk).to_bytes(4, "big") + chunk for chunk in chunks) + bytes(4)
    return body + blake2b(body, digest_size=32).digest()


def test_the_commands_seal(sealed_db: Path, tmp_path: Path) -> None:
    """`export --file-key` and `--plain`, `import --key`: what they say, and that no key is shown."""
    keys = {"OWN": KEY.hex(), "OTHER": OTHER_KEY.hex()}
    target = str(tmp_path / "target.db")
    for name, options, told in (
        ("a", [], "sealed"),
        ("b", ["--file-key", "env:OTHER"], "sealed"),
        ("c", ["--plain"], "in clear"),
    ):
        out = str(tmp_path / f"{name}.ackpt")
        done = cli("export", str(sealed_db), "t", out, "--key", "env:OWN", *options, **keys)
        assert done.stdout.splitlines()[-1] == f"checked, whole, {told}", done.stderr
        key = ["--key", "env:OTHER"] if name == "b" else []
        done = cli("import", out, target, "--as", name, "--db-key", "env:OWN", *key, **keys)
        assert done.stdout.splitlines()[-1] == "checked, whole", done.stderr
    done = cli("import", str(tmp_path / "b.ackpt"), target, "--as", "d", "--db-key", "env:OWN", **keys)
    assert (done.returncode, "is sealed under key" in done.stderr) == (9, True), (done.returncode, done.stderr)
    done = cli("import", str(tmp_path / "a.ackpt"), str(tmp_path / "plain.db"))
    assert (done.returncode, "has no key" in done.stderr) == (2, True)
    assert not any(key in done.stdout + done.stderr for key in keys.values())


# Damage


def test_every_damaged_or_truncated_file_is_refused(db: Path, tmp_path: Path, path: Path) -> None:
    """A byte changed anywhere, the file cut anywhere or grown: a typed error, and nothing is stored."""
    out, bad = tmp_path / "out.ackpt", tmp_path / "bad.ackpt"
    with AgentSaver(db) as saver:
        saver.export_thread(graphs.FANNED, out)
    whole = out.read_bytes()
    places = [*range(64), *random.Random(5).sample(range(len(whole)), 100), len(whole) - 1]
    cases = [whole[:at] + bytes((whole[at] ^ 1 << at % 8,)) + whole[at + 1 :] for at in places]
    cases += [whole[:at] for at in (*range(40), *range(40, len(whole), 397), len(whole) - 1)]
    cases += [whole + b"\0", whole + whole, b""]
    with AgentSaver(path) as saver:
        for data in cases:
            bad.write_bytes(data)
            with pytest.raises((CorruptionError, FormatError)):
                saver.import_thread(bad)
        assert list(saver.threads()) == []
        saver.import_thread(out)
    assert_sound(path)


def forged(made: portable.Portable) -> bytes:
    file = BytesIO()
    portable.write(made, file)
    return file.getvalue()


def test_a_file_made_to_mislead_is_refused(db: Path, tmp_path: Path, path: Path) -> None:
    """Files with a right digest whose thread isn't whole, or whose records are of other shapes: CorruptionError, and
    nothing is stored."""
    with AgentSaver(db) as saver:
        saver.export_thread(graphs.FANNED, tmp_path / "out.ackpt")
    whole = (tmp_path / "out.ackpt").read_bytes()

    def fresh() -> portable.Portable:
        return portable.read(BytesIO(whole), len(whole), "x", no_sealer)

    def changed(field: str, at: int, **parts: Any) -> portable.Portable:
        made = fresh()
        getattr(made, field)[at] = getattr(made, field)[at]._replace(**parts)
        return made

    lacking = fresh()
    del lacking.blobs[0]
    other_key = fresh()
    other_key.secret = bytes(16)
    doubled = fresh()
    doubled.spaces.append(doubled.spaces[0])
    cases = {
        "a blob is missing": lacking,
        "addresses of another key": other_key,
        "another content": changed("blobs", 0, body=b"\x01\xc0"),
        "a payload of another shape": changed("rows", 0, payload=b"\x97" + b"\x01" * 7),
        "a payload that is no msgpack": changed("rows", 0, payload=b"\xc1"),
        "a namespace that isn't there": changed("rows", 0, space=99),
        "an id of another type": changed("rows", 0, id=5),
        "a kind that isn't known": changed("rows", 0, kind=4),
        "a blob beyond the last": changed("blobs", 0, number=1 << 27),
        "two namespaces of one name": doubled,
    }
    with AgentSaver(path) as saver:
        for what, made in cases.items():
            bad = tmp_path / "bad.ackpt"
            bad.write_bytes(forged(made))
            with pytest.raises(CorruptionError):
                pytest.fail(f"{what} was accepted: {saver.import_thread(bad)}")
        assert list(saver.threads()) == []
    assert_sound(path)


def test_a_newer_version_is_told_from_damage(tmp_path: Path, path: Path) -> None:
    """A file of a later version names both versions and the remedy."""
    from agent_ckpt.codec.pack import pack

    header = pack({"version": 2, "sealed": None})
    data = portable.MAGIC + len(header).to_bytes(4, "big") + header + bytes(4)
    (tmp_path / "new.ackpt").write_bytes(data + blake2b(data, digest_size=32).digest())
    with AgentSaver(path) as saver, pytest.raises(FormatError, match="version 2, this release reads 1: upgrade"):
        saver.import_thread(tmp_path / "new.ackpt")


def test_a_damaged_thread_is_not_exported(db: Path, tmp_path: Path) -> None:
    """A changed byte in the store: CorruptionError, and no file, not even a part of one."""
    import shutil
    import sqlite3
    from contextlib import closing

    copy = tmp_path / "damaged.db"
    shutil.copy(db, copy)
    with closing(sqlite3.connect(copy)) as connection, connection:
        connection.execute(
            "UPDATE blobs SET frame = zeroblob(length(frame)) WHERE blob = (SELECT min(blob) FROM blobs)"
        )
    with AgentSaver(copy) as saver:
        (first, *_) = saver.verify().findings
        with pytest.raises(CorruptionError, match="is not what was stored"):
            saver.export_thread(str(first.thread_id), tmp_path / "x.ackpt")
    assert not list(tmp_path.glob("*.ackpt*")) + list(tmp_path.glob(".*"))


def test_what_goes_wrong_on_disk_leaves_nothing(db: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing folder, a taken name, a write that fails half-way: typed errors, nothing left under any name."""
    (tmp_path / "taken.ackpt").write_text("mine")
    with AgentSaver(db) as saver:
        for name in ("no/folder/x.ackpt", "taken.ackpt"):
            with pytest.raises(UsageError):
                saver.export_thread(graphs.FINISHED, tmp_path / name)
        with pytest.raises(UsageError, match="there is no file"):
            saver.import_thread(tmp_path / "missing.ackpt")

        def fails(descriptor: int) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "fsync", fails)
        with pytest.raises(CkptError, match="no space left"):
            saver.export_thread(graphs.FINISHED, tmp_path / "x.ackpt")
        monkeypatch.undo()
    assert [found.name for found in tmp_path.iterdir()] == ["taken.ackpt"]
    assert (tmp_path / "taken.ackpt").read_text() == "mine"


# Classes of the user

OWN_CLASS = """
import sys
from dataclasses import dataclass
from agent_ckpt import AgentSaver
from langgraph.checkpoint.base import empty_checkpoint
import own_module
step, path = sys.argv[1:]
config = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}
value = {"own": own_module.Own(1, "x"), "list": [own_module.Own(n, "y" * 100) for n in range(20)]}
with AgentSaver(path) as saver:
    if step == "write":
        checkpoint = {**empty_checkpoint(), "channel_values": value, "channel_versions": {"own": 1, "list": 1}}
        saver.put(config, checkpoint, {}, {"own": 1, "list": 1})
    else:
        print(saver.get_tuple(config).checkpoint["channel_values"] == value)
"""


@pytest.mark.filterwarnings("ignore")
def test_no_class_of_the_values_is_needed(tmp_path: Path) -> None:
    """A thread with a user's dataclass travels through processes that don't have its module."""
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "own_module.py").write_text(
        "from dataclasses import dataclass\n@dataclass\nclass Own:\n    n: int\n    s: str\n"
    )

    def with_class(step: str, path: Path) -> str:
        env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(tmp_path / "home")])}
        command = [sys.executable, "-W", "ignore", "-c", OWN_CLASS, step, str(path)]
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=WATCHDOG_S)
        assert done.returncode == 0, done.stderr
        return done.stdout

    with_class("write", tmp_path / "a.db")
    assert cli("export", str(tmp_path / "a.db"), "t", str(tmp_path / "t.ackpt")).returncode == 0
    assert cli("import", str(tmp_path / "t.ackpt"), str(tmp_path / "b.db")).returncode == 0
    assert with_class("read", tmp_path / "b.db") == "True\n"
