"""Attacks on the rows of a sealed file: what was removed, moved or put back from an older copy is refused (B18, B19).

`SEALING_ATTACKS=20` tries so many edits of each kind on each column (1 by default), chosen by `SEALING_ATTACKS_SEED`.
"""

from __future__ import annotations

import os
import random
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import HumanMessage

from agent_ckpt import AgentSaver, CkptError, Keyring, SealError
from tests.canary import found_in
from tests.conftest import Api
from tests.sealed import KEY, sealed_savers
from tests.test_sealing import OTHER, config, edit, is_part, put, rows_of

CANARY = "cAnArY that must not stand in clear"
NAMESPACES = ["", *(f"ns {number}" for number in range(11))]

Edit = tuple[str, tuple[Any, ...]]
LONG = [HumanMessage(f"message {number} of a long list", id=f"m{number}") for number in range(300)]
"""Long enough for groups, so that some of it stands in packs."""


@pytest.fixture
def open_sealed(path: Path) -> Iterator[Callable[..., AgentSaver]]:
    """Opens savers with the key; the store must be whole at the end."""
    with sealed_savers(path) as open_one:
        yield open_one


def fill(saver: AgentSaver, step: int) -> None:
    """Two threads in more namespaces than a head names, with writes, a run's id, credentials and a rollback."""
    for thread_id in ("alice", "bob"):
        for ns in NAMESPACES:
            found = saver.get_tuple(config(thread_id, ns))
            at = found.config if found is not None else config(thread_id, ns)
            text = f"{thread_id} {ns} {step} "
            long = {"messages": LONG} if ns == NAMESPACES[0] else {}
            at = put(saver, at, step, {"run_id": f"run {step}"}, role=text * 20, other=text, **long)
            saver.put_writes(at, [("role", f"write {text}" * 20)], f"task-{step}", "path")
        saver.credentials(thread_id).set("token", f"{thread_id}'s token {step}")
    root = config("bob", "")
    first = saver.get_tuple(root)
    assert first is not None
    put(saver, first.config, step + 100, role="to be undone")
    saver.rollback(first.config)


def made(path: Path, folder: Path) -> tuple[Path, Path]:
    """The file as it is, and an older copy of it."""
    with AgentSaver(path, key=KEY) as saver:
        fill(saver, 0)
        saver.wal_truncate()
        shutil.copy(path, folder / "old.db")
        fill(saver, 1)
        saver.wal_truncate()
        with saver.lease("alice"):
            saver.wal_truncate()
            shutil.copy(path, folder / "good.db")
    return folder / "good.db", folder / "old.db"


def everything(path: Path) -> tuple[dict[Any, Any], int]:
    """All that a file gives out, by what was asked, and how often something was refused or told by verify."""
    seen: dict[Any, Any] = {}
    refused = 0

    def ask(what: Any, call: Callable[[], Any]) -> None:
        nonlocal refused
        try:
            seen[what] = call()
        except CkptError:
            refused += 1

    with AgentSaver(path, key=KEY) as saver:
        for thread_id in ("alice", "bob"):
            for ns in NAMESPACES:
                at = config(thread_id, ns)
                ask((thread_id, ns, "head"), lambda at=at: _shown(saver.get_tuple(at)))
            ask((thread_id, "names"), lambda of=thread_id: saver.credentials(of).names())
            ask((thread_id, "token"), lambda of=thread_id: _revealed(saver.credentials(of).get("token")))
            ask((thread_id, "undone"), lambda of=thread_id: list(saver.rolled_back(of)))
        ask("list", lambda: [_shown(one) for one in saver.list(None, on_damage="skip")])
        ask("verify", lambda: [finding.detail for finding in saver.verify().findings])
    for one in seen.pop("list", []):
        seen[one[0]] = one[1:]
    return seen, refused + len(seen.pop("verify", ()))


def _shown(found: Any) -> Any:
    if found is None:
        return None
    conf = found.config["configurable"]
    at = (str(conf["thread_id"]), conf["checkpoint_ns"], conf["checkpoint_id"])
    return at, found.checkpoint, found.pending_writes


def _is_right(value: Any, known: Any, told: bool) -> bool:
    """Whether a value is what was stored; an older checkpoint's pending writes may be others where verify tells."""
    if is_part(value, known):
        return True
    return told and isinstance(value, tuple) and len(value) == 2 and known is not None and value[0] == known[0]


def _revealed(found: Any) -> Any:
    return None if found is None else found.reveal()


def schema(path: Path) -> dict[str, list[str]]:
    """Columns by table, of every table that the file has."""
    tables = [name for (name,) in rows_of(path, "SELECT name FROM sqlite_schema WHERE type = 'table'")]
    return {table: [row[1] for row in rows_of(path, f"PRAGMA table_info({table})")] for table in tables}


def attacks(good: Path, old: Path) -> Iterator[tuple[str, str, str, list[Edit]]]:
    """Table, column, kind and edits of every attack on a single column or row."""
    for table, columns in schema(good).items():
        key = columns[0]
        now = {row[0]: row for row in rows_of(good, f"SELECT * FROM {table}")}
        before = {row[0]: row for row in rows_of(old, f"SELECT * FROM {table}")}
        assert now or table == "waiters", f"the test puts no row into {table}"
        for at, column in enumerate(columns):
            update = f"UPDATE {table} SET {column} = ? WHERE {key} = ?"
            for one, row in now.items():
                for other in now.values():
                    if other[at] != row[at]:
                        yield table, column, "swapped", [(update, (other[at], one))]
                if one in before and before[one][at] != row[at]:
                    yield table, column, "put back", [(update, (before[one][at], one))]
                if row[at] is not None:
                    yield table, column, "emptied", [(update, (None, one))]
        values = ", ".join("?" * len(columns))
        for one, row in now.items():
            yield table, "", "removed", [(f"DELETE FROM {table} WHERE {key} = ?", (one,))]
            if one in before and before[one] != row:
                yield table, "", "row put back", [(f"REPLACE INTO {table} VALUES ({values})", before[one])]
        for one in before.keys() - now.keys():
            yield table, "", "row put back", [(f"INSERT INTO {table} VALUES ({values})", before[one])]


UNNOTICED = {
    ("this_store", "sequence"): "a counter; one that is behind is refused by the next write, and by verify",
    ("this_store", "journal"): "which journal mode the file is opened in",
    ("checkpoints", "environment"): "the versions that it was written with",
    ("environments", "environment"): "the same",
    ("environments", "content"): "the same",
    ("environments", ""): "the same",
    ("credential_uses", ""): "an older record of use (docs/credentials.md)",
    ("leases", None): "who may write now, not what is stored: availability",
}
"""What can be edited without being refused; nothing wrong is given out for it either (docs/security.md, section 5)."""


def test_every_row_and_column(path: Path, tmp_path: Path) -> None:
    """Whatever is done to any column of any table, nothing is given out that wasn't stored there last, and all but
    what the documentation lists is refused. The attacks come from the schema, so a new table is attacked too."""
    good, old = made(path, tmp_path)
    known, refused = everything(shutil.copy(good, tmp_path / "known.db"))
    assert not refused, refused
    every = list(attacks(good, old))
    chance = random.Random(os.environ.get("SEALING_ATTACKS_SEED", "1"))
    chance.shuffle(every)
    of_kind: dict[Any, list[list[Edit]]] = {}
    for *kind_of, edits in every:
        of_kind.setdefault(tuple(kind_of), []).append(edits)
    most = int(os.environ.get("SEALING_ATTACKS", "1"))
    accepted, tried = [], 0
    for (table, column, kind), edits in ((of, edits) for of, some in of_kind.items() for edits in some[:most]):
        copy = tmp_path / "attacked.db"
        for each in tmp_path.glob("attacked.db*"):
            each.unlink()
        shutil.copy(good, copy)
        try:
            edit(copy, *edits)
        except sqlite3.IntegrityError:  # the schema refused it already
            continue
        tried += 1
        seen, refused = everything(copy)
        wrong = {at for at, value in seen.items() if value and not _is_right(value, known.get(at), refused > 0)}
        lost = {at for at, value in known.items() if value and not seen.get(at)}
        told = refused or not (wrong or lost)
        documented = (table, column) in UNNOTICED or (table, None) in UNNOTICED
        if wrong or not told or not (refused or documented):
            accepted.append((table, column, kind, sorted(map(str, wrong))[:2], refused))
    print(f"{tried} attacks tried, {len(accepted)} accepted")
    assert not accepted, accepted[:20]


def test_every_namespace_is_covered(path: Path, open_sealed: Callable[..., AgentSaver], form: str) -> None:
    """Of more namespaces than stand in the head itself, no one's newest checkpoint can be removed, none can be removed
    whole, and what its row holds of the head can neither be emptied nor put back; all of them are written on."""
    saver = open_sealed()
    for step in range(2):
        for ns in NAMESPACES:
            found = saver.get_tuple(config("t", ns))
            put(Api(saver, form), found.config if found else config("t", ns), step, value=f"{ns} {step}")
        if not step:
            saver.wal_truncate()
            old = rows_of(path, "SELECT space, head FROM spaces WHERE head IS NOT NULL")
    assert len(old) == 4 and saver.verify()
    saver.close()
    good = path.with_name("good.db")
    shutil.copy(path, good)
    spaces = rows_of(good, "SELECT space, head FROM spaces")
    assert sum(head is not None for _, head in spaces) == 4
    for (space, head), ns in zip(spaces, NAMESPACES, strict=True):
        newest = "(SELECT max(seq) FROM checkpoints WHERE space = ?)"
        edits = [
            [(f"DELETE FROM checkpoints WHERE seq = {newest}", (space,))],
            [("DELETE FROM checkpoints WHERE space = ?", (space,)), ("DELETE FROM spaces WHERE space = ?", (space,))],
        ]
        if head is not None:
            edits += [[("UPDATE spaces SET head = NULL WHERE space = ?", (space,))]]
            edits += [[("UPDATE spaces SET head = ? WHERE space = ?", (dict(old)[space], space))]]
        for some in edits:
            bad = path.with_name("bad.db")
            shutil.copy(good, bad)
            edit(bad, *some)
            with AgentSaver(bad, key=KEY) as attacked:
                api = Api(attacked, form)
                with pytest.raises(SealError) as caught:
                    api.get_tuple(config("t", ns))
                assert caught.value.reason == "replayed"
                with pytest.raises(SealError):
                    put(api, config("t", ns), 9, value="on top")
                assert not attacked.verify()


def test_an_older_state_is_not_laundered(path: Path, open_sealed: Callable[..., AgentSaver], form: str) -> None:
    """prune, rollback, delete_for_runs, copy_thread and export_thread look at the sealed head before they make it anew:
    a thread whose newest checkpoint was removed stays refused, and a mark that was made up is no rollback."""
    saver = open_sealed()
    places = [put(saver, config(), 0, {"run_id": "run"}, value=0)]
    for step in range(1, 5):
        places.append(put(saver, places[-1], step, value=step))
        saver.put_writes(places[-1], [("value", step)], "task")
    saver.rollback(places[2])
    undone = list(saver.rolled_back("t"))
    assert len(undone) == 2
    saver.close()
    good = path.with_name("good.db")
    shutil.copy(path, good)
    edits: list[list[Edit]] = [
        [("DELETE FROM checkpoints WHERE seq = (SELECT max(seq) FROM checkpoints WHERE undone IS NULL)", ())],
        [("DELETE FROM writes WHERE seq = (SELECT min(seq) FROM writes)", ())],
        [("UPDATE checkpoints SET undone = NULL WHERE seq = (SELECT max(seq) FROM checkpoints)", ())],
        [("UPDATE checkpoints SET undone = 99 WHERE seq = (SELECT min(seq) FROM checkpoints)", ())],
        [("UPDATE writes SET undone = 99 WHERE seq = (SELECT min(seq) FROM writes)", ())],
    ]
    for some in edits:
        bad = path.with_name("bad.db")
        shutil.copy(good, bad)
        edit(bad, *some)
        with AgentSaver(bad, key=KEY) as attacked:
            api = Api(attacked, form)
            for call in (
                lambda api=api: api.prune(["t"]),
                lambda api=api: api.rollback(places[1]),
                lambda api=api: api.delete_for_runs(["run"]),
                lambda api=api: api.copy_thread("t", "copy"),
                lambda api=api: api.export_thread("t", path.with_name("t.ackpt")),
                lambda api=api: api.rolled_back("t"),
            ):
                with pytest.raises(SealError) as caught:
                    call()
                assert caught.value.reason == "replayed"
            assert not attacked.verify()


def test_an_older_checkpoint_is_restored_with_its_writes_or_not_at_all(
    path: Path, open_sealed: Callable[..., AgentSaver], form: str
) -> None:
    """Going on from an older checkpoint would run its tasks again if its pending writes were gone: a write of it that
    was removed, put back, marked as rolled back or marked as not so is refused where it is restored by its id. Older
    checkpoints of a whole thread are restored, also after a rollback."""
    saver = open_sealed()
    places = [put(saver, config(), 0, value=0)]
    for step in range(1, 6):
        saver.put_writes(places[-1], [("value", step)], f"task {step}")
        places.append(put(saver, places[-1], step, value=step))
    saver.wal_truncate()
    old = path.with_name("old.db")
    shutil.copy(path, old)
    saver.rollback(places[4])
    last = put(saver, places[4], 7, value=7)
    for at in (places[2], places[3], last):
        found = Api(saver, form).get_tuple(at)
        assert found is not None and len(found.pending_writes) == (at is not last)
    saver.close()
    good = path.with_name("good.db")
    shutil.copy(path, good)
    kept = "(SELECT min(seq) FROM writes WHERE undone IS NULL)"
    now = rows_of(good, "SELECT * FROM writes")
    gone = [row for row in rows_of(old, "SELECT * FROM writes") if row not in now]
    edits: list[list[Edit]] = [
        [(f"DELETE FROM writes WHERE seq = {kept}", ())],
        [(f"UPDATE writes SET undone = 99 WHERE seq = {kept}", ())],
        [("UPDATE writes SET undone = NULL WHERE undone IS NOT NULL", ())],
        [(f"REPLACE INTO writes VALUES ({', '.join('?' * len(gone[0]))})", gone[0])],
    ]
    for some in edits:
        bad = path.with_name("bad.db")
        shutil.copy(good, bad)
        edit(bad, *some)
        with AgentSaver(bad, key=KEY) as attacked:
            with pytest.raises(SealError) as caught:
                Api(attacked, form).get_tuple(places[3])
            assert caught.value.reason == "replayed"
            assert not attacked.verify()


def test_credentials_are_as_new_as_their_thread(path: Path, open_sealed: Callable[..., AgentSaver], form: str) -> None:
    """A thread's credentials that were removed, or put back with all records of their use, are refused until they are
    cleared; a thread that is made or copied later knows those that it has."""
    saver = open_sealed()
    saver.credentials("t").set("token", "before the thread")
    put(saver, config(), 1, value="v")
    saver.wal_truncate()
    old = path.with_name("old.db")
    shutil.copy(path, old)
    assert Api(saver.credentials("t"), form).get("token").reveal() == "before the thread"
    saver.credentials("t").set("token", "revoked and new")
    saver.copy_thread("t", "copy", credentials=True)
    saver.close()
    good = path.with_name("good.db")
    shutil.copy(path, good)
    rows = {table: rows_of(old, f"SELECT * FROM {table}") for table in ("vaults", "credential_uses")}
    removed: list[Edit] = [("DELETE FROM vaults", ()), ("DELETE FROM credential_uses", ())]
    back = [
        (f"INSERT INTO {table} VALUES ({', '.join('?' * len(row))})", row)
        for table, some in rows.items()
        for row in some
    ]
    for some in (removed, removed + back):
        bad = path.with_name("bad.db")
        shutil.copy(good, bad)
        edit(bad, *some)
        with AgentSaver(bad, key=KEY) as attacked:
            credentials = Api(attacked.credentials("t"), form)
            for call in (lambda c=credentials: c.get("token"), lambda c=credentials: c.set("token", "x"),
                         lambda c=credentials: c.names(), lambda c=credentials: c.audit()):  # fmt: skip
                with pytest.raises(SealError) as caught:
                    call()
                assert caught.value.reason == "replayed"
            assert any("credentials" in finding.detail for finding in attacked.verify().findings)
            for thread_id in ("t", "copy"):
                attacked.credentials(thread_id).clear()
            assert credentials.names() == [] and attacked.verify()
            credentials.set("token", "anew")
            assert credentials.get("token").reveal() == "anew" and attacked.verify()
    again = open_sealed()
    assert again.credentials("copy").get("token").reveal() == "revoked and new"
    assert again.credentials("t").get("token").reveal() == "revoked and new"


@pytest.mark.parametrize("journal", ["wal", "rollback"])
def test_no_text_in_what_lies_beside(path: Path, form: str, journal: Any, monkeypatch: Any, caplog: Any) -> None:
    """A canary in values, names, labels, runs, captures and credentials stands in no file of the folder while and after
    all is used: the database in either journal mode, its journals, the side files of running processes, a copy, an
    exported thread, and what is left after a rollback, a prune, an import and a rotation; nor in logs and the commands'
    JSON that shows no values."""
    caplog.set_level("DEBUG")
    monkeypatch.setenv("CANARY_ENV", f"{CANARY} environment")
    keys = Keyring(KEY)
    with AgentSaver(path, key=keys, seal_thread_ids=True, journal=journal, capture=("env:CANARY_ENV",)) as saver:
        api = Api(saver, form)
        at = config(f"{CANARY} thread", f"{CANARY} ns")
        places = []
        for step in range(3):
            metadata = {"run_id": f"{CANARY} run", f"{CANARY} key": f"{CANARY} metadata"}
            at = put(api, at, step, metadata, **{f"{CANARY} channel": f"{CANARY} value {step}"})
            places.append(at)
            api.put_writes(at, [(f"{CANARY} write", CANARY)], f"{CANARY} task", f"{CANARY} path")
        put(api, config(f"{CANARY} thread"), 1, value=CANARY)
        saver.credentials(f"{CANARY} thread", actor=f"{CANARY} actor").set(f"{CANARY} name", {CANARY: CANARY})
        assert not found_in(path, CANARY)
        with saver.lease(f"{CANARY} thread"):
            assert not found_in(path, CANARY)
        root = api.get_tuple(config(f"{CANARY} thread")).config
        put(api, root, 2, value=CANARY)
        api.rollback(root)
        api.copy_thread(f"{CANARY} thread", f"{CANARY} copy", credentials=True)
        api.export_thread(f"{CANARY} copy", path.with_name("exported.ackpt"))
        api.import_thread(path.with_name("exported.ackpt"), thread_id=f"{CANARY} import")
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("VACUUM INTO ?", (str(path.with_name("backup.db")),))
        api.prune([f"{CANARY} copy"])
        assert not found_in(path, CANARY)
        shutil.copy(path, path.with_name("copied.db"))
        assert CANARY not in repr(saver) + str(saver.key_status()) + caplog.text
    with AgentSaver(path, key=Keyring(OTHER, KEY)) as saver:
        Api(saver, form).rotate_keys(compromised=True)
        assert not found_in(path, CANARY)
        assert len(list(saver.threads())) == 3 and saver.verify()
        assert saver.credentials(f"{CANARY} copy").names() == [f"{CANARY} name"]
    with AgentSaver(path.with_name("plain.db"), compression="none") as plain:
        put(plain, config(), 1, value=CANARY)
    assert [name for name, _ in found_in(path, CANARY)] == ["plain.db"]  # the search does find what is in clear
