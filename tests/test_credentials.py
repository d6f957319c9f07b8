"""The credential store: what it keeps, what it shows, and what it refuses."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import json
import logging
import pickle
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import orjson
import ormsgpack
import pytest
import yaml
from langchain_core.runnables import RunnableConfig
from langgraph.graph import START, StateGraph
from typing_extensions import TypedDict

from agent_ckpt import (
    AgentSaver,
    Credential,
    CredentialConflictError,
    UsageError,
    ValueNotStorableError,
    credential_work,
)
from agent_ckpt.core import credentials as core
from tests.canary import found_in
from tests.conftest import Api
from tests.looking import run, thread
from tests.sealed import KEY, sealed_savers

CANARY = "ghp_CANARY-9f2c71e6"
ROOT = Path(__file__).parent.parent


@pytest.fixture
def open_sealed(path: Path) -> Iterator[Callable[..., AgentSaver]]:
    with sealed_savers(path) as open_one:
        yield open_one


@pytest.fixture
def sealed(open_sealed: Callable[..., AgentSaver]) -> AgentSaver:
    return open_sealed()


def of(saver: AgentSaver, form: str, whose: Any = "t", **more: Any) -> Api:
    """A thread's credentials, called in the form under test."""
    return Api(saver.credentials(whose, **more), form)


@pytest.mark.parametrize("value", ["token", "", "ü\x00🙂", {}, {"access": "a", "n": [1, None, True, 1.5, {"x": []}]}])
def test_what_was_set_is_got(open_sealed: Callable[..., AgentSaver], form: str, value: Any) -> None:
    """Text and dicts come back equal, types included, from a saver that opens the file anew, as fresh objects."""
    first = open_sealed()
    revision = of(first, form).set("github", value)
    first.close()
    found = of(open_sealed(), form).get("github")
    assert (found.name, found.revision, found.expires_at, found.expired) == ("github", revision, None, False)
    assert found.reveal() == value
    assert pickle.dumps(found.reveal()) == pickle.dumps(value)
    assert isinstance(value, str) or found.reveal() is not found.reveal()


def test_names_and_delete(sealed: AgentSaver, form: str) -> None:
    """Names are sorted; what is deleted is gone; what isn't there is None, not an error."""
    here = of(sealed, form)
    assert (here.names(), here.get("a"), here.delete("a"), here.audit()) == ([], None, False, [])
    for name in ("b", "a", "ä"):
        here.set(name, "x")
    assert here.names() == ["a", "b", "ä"]
    assert (here.delete("a"), here.delete("a"), here.names()) == (True, False, ["b", "ä"])
    assert here.get("a") is None
    assert of(sealed, form, "another").names() == []


def test_expiry_is_told_and_not_enforced(sealed: AgentSaver, form: str) -> None:
    """A datetime of any zone or seconds; `expired` follows the clock; an expired credential is still given."""
    here = of(sealed, form)
    soon = datetime.now(UTC) + timedelta(hours=1)
    here.set("soon", "x", expires_at=soon.astimezone(tz=None))
    here.set("past", "x", expires_at=soon.timestamp() - 7200)
    here.set("never", "x")
    assert abs(here.get("soon").expires_at - soon) < timedelta(milliseconds=1)
    assert [here.get(name).expired for name in ("soon", "past", "never")] == [False, True, False]
    here.set("past", "y", expires_at=soon)
    assert not here.get("past").expired
    infos = {info.name: info.expires_at for info in Api(sealed, form).list_credentials("t")}
    assert infos["never"] is None
    assert infos["past"] == here.get("past").expires_at


# What shows a value, and what doesn't


MASKING: dict[str, Callable[[Credential], Any]] = {
    "repr": repr,
    "str": str,
    "format": lambda found: f"{found} {found!r}",
    "percent": lambda found: "%s %r" % (found, found),  # noqa: UP031
    "json with default": lambda found: json.dumps({"c": found}, default=str),
    "json of its fields": lambda found: json.dumps([str(getattr(found, name)) for name in dir(found)]),
    "pickle": pickle.dumps,
    "pickled and back": lambda found: repr(pickle.loads(pickle.dumps(found))),
    "copy": lambda found: pickle.dumps(copy.copy(found)),
    "deepcopy": lambda found: pickle.dumps(copy.deepcopy({"c": [found]})),
    "yaml": yaml.dump,
    "slots": lambda found: [repr(getattr(found, name)) for name in type(found).__slots__],
    "exception": lambda found: repr(ValueError(found)),
}


@pytest.mark.parametrize("how", MASKING)
def test_a_credential_masks_itself(sealed: AgentSaver, form: str, how: str) -> None:
    """Only reveal() gives the value."""
    here = of(sealed, form)
    here.set("github", {"token": CANARY})
    found = here.get("github")
    shown = MASKING[how](found)
    raw = shown if isinstance(shown, bytes) else str(shown).encode()
    assert CANARY.encode() not in raw
    assert b"github" in raw
    assert found.reveal() == {"token": CANARY}


@pytest.mark.parametrize("dump", [json.dumps, orjson.dumps, ormsgpack.packb, yaml.safe_dump])
def test_formats_that_know_no_objects_refuse_it(sealed: AgentSaver, form: str, dump: Callable[[Any], Any]) -> None:
    """json, msgpack and safe yaml raise; their message holds no value either."""
    here = of(sealed, form)
    here.set("github", CANARY)
    with pytest.raises((TypeError, yaml.YAMLError)) as refused:
        dump(here.get("github"))
    assert CANARY not in str(refused.value)


def test_a_copy_holds_no_value_and_says_so(sealed: AgentSaver, form: str) -> None:
    """A pickled or copied credential keeps name, revision and expiry; reveal() tells to get it anew."""
    here = of(sealed, form)
    revision = here.set("github", CANARY, expires_at=2e9)
    for one in (copy.copy(here.get("github")), pickle.loads(pickle.dumps(here.get("github")))):
        assert (one.name, one.revision, one.expires_at.timestamp()) == ("github", revision, 2e9)
        with pytest.raises(UsageError, match="'github' holds no value"):
            one.reveal()


def test_a_credential_in_state_is_refused(sealed: AgentSaver, form: str) -> None:
    """A node that returns a credential, instead of using it, is told; the value is in no checkpoint."""

    class State(TypedDict):
        got: Any

    sealed.credentials("t").set("github", CANARY)

    def node(state: State, config: RunnableConfig) -> dict[str, Any]:
        return {"got": [sealed.credentials(config).get("github")]}

    graph = StateGraph(State).add_node("n", node).add_edge(START, "n").compile(checkpointer=sealed)
    with pytest.raises(ValueNotStorableError, match=r"got\[0\]|Credential"):
        Api(sealed, form).invoke(graph, {"got": None}, thread("t"), durability="sync")


# The counter of its own


def test_if_revision(sealed: AgentSaver, form: str) -> None:
    """A set or delete that names an outdated revision is refused with a typed error and changes nothing."""
    here = of(sealed, form)
    with pytest.raises(CredentialConflictError) as refused:
        here.set("a", "x", if_revision=7)
    assert (refused.value.expected, refused.value.found) == (7, 0)
    one = here.set("a", "1", if_revision=0)
    two = here.set("a", "2", if_revision=one)
    assert two > one
    for again in (lambda: here.set("a", CANARY, if_revision=one), lambda: here.delete("a", if_revision=one)):
        with pytest.raises(CredentialConflictError) as refused:
            again()
        error = pickle.loads(pickle.dumps(refused.value))
        assert (error.thread_id, error.name, error.expected, error.found) == ("t", "a", one, two)
        assert error.retry == "after_reading"
        assert CANARY not in str(error)
    assert here.get("a").reveal() == "2"
    with pytest.raises(CredentialConflictError):
        here.set("a", "3", if_revision=0)
    assert here.delete("a", if_revision=two)


def test_a_revision_is_never_used_twice(sealed: AgentSaver, form: str) -> None:
    """Deleted and set anew, also in a thread that was deleted, a credential has another revision: no ABA."""
    here = of(sealed, form)
    seen = []
    for undo in (here.delete, lambda name: here.clear(), lambda name: Api(sealed, form).delete_thread("t")):
        seen.append(here.set("a", "x"))
        undo("a")
        with pytest.raises(CredentialConflictError):
            here.set("a", "y", if_revision=seen[-1])
    assert sorted(set(seen)) == seen


WORKER = """
import sys
from agent_ckpt import AgentSaver, CredentialConflictError
from tests.sealed import KEY
lost = 0
with AgentSaver(sys.argv[1], key=KEY) as saver:
    here = saver.credentials("t", actor=sys.argv[2])
    for _ in range(int(sys.argv[3])):
        while True:
            found = here.get("oauth")
            count = int(found.reveal()["count"]) if found else 0
            try:
                here.set("oauth", {"count": count + 1}, if_revision=found.revision if found else 0)
                break
            except CredentialConflictError:
                lost += 1
print(lost)
"""


def test_refreshing_workers_never_overwrite_each_other(sealed: AgentSaver, path: Path) -> None:
    """Four processes that each refresh a token 20 times lose no refresh: each one builds on the one before."""
    command = [sys.executable, "-c", WORKER, str(path)]
    workers = [
        subprocess.Popen([*command, f"w{n}", "20"], stdout=subprocess.PIPE, text=True, cwd=ROOT) for n in range(4)
    ]
    answers = [worker.communicate(timeout=120)[0] for worker in workers]
    assert [worker.returncode for worker in workers] == [0] * 4
    assert all(answer.strip().isdigit() for answer in answers)
    here = sealed.credentials("t")
    found = here.get("oauth")
    assert found is not None
    assert found.reveal() == {"count": 80}
    sets = [use.by.split(",")[0] for use in here.audit() if use.action == "set"]
    assert {name: sets.count(name) for name in sets} == {f"w{n}": 20 for n in range(4)}


KILLED = """
import sys
from agent_ckpt import AgentSaver
from tests.sealed import KEY
saver = AgentSaver(sys.argv[1], key=KEY)
for count in range(1, 100_000):
    saver.credentials("t").set("oauth", {"count": count})
    saver.credentials("t").get("oauth")
    print(count, flush=True)
"""


def test_what_was_acknowledged_survives_a_kill(sealed: AgentSaver, path: Path) -> None:
    """kill -9 of a worker in the middle of its uses: what it was told is stored is there, and all is sound."""
    for lines in (1, 7, 20):
        worker = subprocess.Popen(
            [sys.executable, "-c", KILLED, str(path)], stdout=subprocess.PIPE, text=True, cwd=ROOT
        )
        assert worker.stdout is not None
        told = [int(worker.stdout.readline()) for _ in range(lines)]
        worker.kill()
        told += [int(line) for line in worker.stdout.read().split("\n")[:-1]]
        worker.wait(60)
        worker.stdout.close()
        found = sealed.credentials("t").get("oauth")
        assert found is not None
        assert told[-1] <= found.reveal()["count"] <= told[-1] + 1
        assert sealed.verify().findings == ()


def test_of_two_racing_refreshes_one_wins(sealed: AgentSaver, open_sealed: Callable[..., AgentSaver]) -> None:
    """Fifty times, two savers set the same revision at once: exactly one is accepted, and its value stays."""
    other, wins = open_sealed(), []
    revision = sealed.credentials("t").set("oauth", "start")
    for at in range(50):
        gate, won = threading.Barrier(2), list[tuple[int, str]]()

        def refresh(saver: AgentSaver, value: str) -> None:
            gate.wait()
            with contextlib.suppress(CredentialConflictError):
                won.append((saver.credentials("t").set("oauth", value, if_revision=revision), value))

        racing = [
            threading.Thread(target=refresh, args=(saver, f"{at}-{n}")) for n, saver in enumerate((sealed, other))
        ]
        for one in racing:
            one.start()
        for one in racing:
            one.join(60)
        ((revision, value),) = won
        found = other.credentials("t").get("oauth")
        assert found is not None
        assert (found.revision, found.reveal()) == (revision, value)
        wins.append(value[-1])
    assert len(wins) == 50


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
def test_a_refresh_never_refuses_a_running_turn(
    sealed: AgentSaver, open_sealed: Callable[..., AgentSaver], form: str, durability: str
) -> None:
    """Set, got and deleted inside a run and by another saver meanwhile: the run goes on, the revision doesn't move."""
    other = open_sealed()

    class State(TypedDict):
        n: int

    def revision() -> int:
        return next((info.revision for info in other.threads()), 0)

    def use(state: State, config: RunnableConfig) -> dict[str, int]:
        refresh(config, state["n"])
        return {"n": state["n"] + 1}

    def refresh(config: RunnableConfig, n: int) -> None:
        for saver in (sealed, other):
            saver.credentials(config).set("oauth", f"{CANARY}{n}")
            assert saver.credentials(config).get("oauth") is not None
        assert other.credentials("t").delete("oauth")

    graph = StateGraph(State).add_node("a", use).add_node("b", use)
    graph = graph.add_edge(START, "a").add_edge("a", "b").compile(checkpointer=sealed)
    api = Api(sealed, form)
    for turn in range(3):
        assert api.invoke(graph, {"n": turn}, thread("t"), durability=durability) == {"n": turn + 2}
        # Only now nothing of the run itself is on its way to the store.
        before = revision()
        refresh(thread("t"), turn)
        assert revision() == before


# Who uses them


def test_a_node_uses_them_by_its_config(sealed: AgentSaver, form: str) -> None:
    """`credentials(config)` in a node finds its thread's; the audit names node, run and process, never a value."""

    class State(TypedDict):
        length: int

    def call_api(state: State, config: RunnableConfig) -> dict[str, int]:
        found = sealed.credentials(config).get("github")
        assert found is not None
        return {"length": len(found.reveal())}

    async def acall_api(state: State, config: RunnableConfig) -> dict[str, int]:
        found = await sealed.credentials(config).aget("github")
        assert found is not None
        return {"length": len(found.reveal())}

    sealed.credentials("t", actor="operator ann").set("github", CANARY)
    node = call_api if form == "sync" else acall_api
    graph = StateGraph(State).add_node("call_api", node).add_edge(START, "call_api").compile(checkpointer=sealed)
    config: Any = run("t", "6f1d2c5e-0000-4000-8000-000000000001")
    before = datetime.now(UTC)
    assert Api(sealed, form).invoke(graph, {"length": 0}, config) == {"length": len(CANARY)}
    used, made = of(sealed, form).audit()
    assert (used.action, used.name, used.revision) == ("get", "github", made.revision)
    assert "node call_api" in used.by
    assert "run 6f1d2c5e-0000-4000-8000-000000000001" in used.by
    assert before <= used.at <= datetime.now(UTC)
    assert made.by.startswith("operator ann, process ")
    (info,) = Api(sealed, form).list_credentials()
    assert (info.last_used, info.last_used_by) == (used.at, used.by)
    of(sealed, form).set("github", CANARY)
    (info,) = Api(sealed, form).list_credentials()
    assert info.last_used == used.at, "a refresh is no use, and hides none"
    assert CANARY not in repr([used, made, info])


def test_the_audit_is_bounded(sealed: AgentSaver, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The newest records are kept, newest first, for each thread alone; what was last used stays known."""
    monkeypatch.setattr(core, "USES_KEPT", 5)
    of(sealed, form, "other").set("x", "x")
    here = of(sealed, form)
    here.set("rare", "x")
    here.get("rare")
    for _ in range(9):
        here.set("busy", "x")
    here.delete("busy")
    assert [use.action for use in here.audit()] == ["delete", "set", "set", "set", "set"]
    assert [use.action for use in here.audit(2)] == ["delete", "set"]
    assert [use.name for use in of(sealed, form, "other").audit()] == ["x"]
    (info,) = Api(sealed, form).list_credentials("t")
    assert info.name == "rare"
    assert info.last_used is not None
    assert core.USES_KEPT == 5


def test_a_use_that_cannot_be_recorded_is_refused(
    sealed: AgentSaver, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No value is given out whose use isn't on record: get stores the record first, or raises."""
    here = of(sealed, form)
    here.set("github", CANARY)

    def fail(*args: Any) -> bytes:
        raise UsageError("no record today")

    monkeypatch.setattr(core.vaults, "seal_use", fail)
    with pytest.raises(UsageError, match="no record today"):
        here.get("github")
    monkeypatch.undo()
    assert [use.action for use in here.audit()] == ["set"]


# Threads


def counting(saver: AgentSaver) -> Any:
    class State(TypedDict):
        n: int

    graph = StateGraph(State).add_node("count", lambda state: {"n": state["n"] + 1}).add_edge(START, "count")
    return graph.compile(checkpointer=saver)


def test_a_thread_with_credentials_alone_is_no_thread(sealed: AgentSaver, form: str) -> None:
    """Before its first checkpoint a thread can have credentials; threads() and exists() don't count it."""
    api = Api(sealed, form)
    of(sealed, form).set("github", "x")
    assert (list(api.threads()), api.exists("t"), api.get_tuple(thread("t"))) == ([], False, None)
    api.invoke(counting(sealed), {"n": 1}, thread("t"))
    (info,) = api.threads()
    assert info.thread_id == "t"
    assert of(sealed, form).names() == ["github"]


def test_what_prunes_and_what_deletes(sealed: AgentSaver, form: str) -> None:
    """prune and delete_for_runs leave credentials alone; delete_thread and prune by deletion take them."""
    api, here = Api(sealed, form), of(sealed, form)
    here.set("github", "x")
    api.invoke(counting(sealed), {"n": 1}, {**thread("t"), "metadata": {"run_id": "r"}})
    api.prune(["t"])
    assert here.names() == ["github"]
    api.delete_for_runs(["r"])
    assert (api.exists("t"), here.names()) == (False, ["github"])
    api.delete_thread("t")
    assert (here.names(), here.get("github"), here.audit()) == ([], None, [])
    here.set("github", "x")
    api.prune(["t"], strategy="delete")
    assert here.names() == []


def test_clear(sealed: AgentSaver, form: str) -> None:
    """clear() deletes a thread's credentials and leaves the thread and others."""
    api, here = Api(sealed, form), of(sealed, form)
    api.invoke(counting(sealed), {"n": 1}, thread("t"))
    here.set("github", "x")
    of(sealed, form, "other").set("github", "x")
    assert (here.clear(), here.clear(), here.names(), here.audit()) == (True, False, [], [])
    assert api.exists("t")
    assert of(sealed, form, "other").names() == ["github"]


def test_copied_only_when_asked(sealed: AgentSaver, form: str) -> None:
    """copy_thread leaves credentials behind; with credentials=True the copy has its own, and both audits tell it."""
    api, here = Api(sealed, form), of(sealed, form)
    api.invoke(counting(sealed), {"n": 1}, thread("t"))
    here.set("github", {"token": CANARY}, expires_at=2e9)
    here.set("gitlab", "y")
    api.copy_thread("t", "plain")
    assert of(sealed, form, "plain").names() == []
    api.copy_thread("t", "full", credentials=True)
    there = of(sealed, form, "full")
    found = there.get("github")
    assert (found.reveal(), found.expires_at.timestamp()) == ({"token": CANARY}, 2e9)
    assert found.revision > here.get("github").revision
    assert [use.action for use in there.audit()] == ["get", "copy", "copy"]
    assert sorted(use.name for use in here.audit() if use.action == "copy") == ["github", "gitlab"]
    there.set("github", "changed")
    here.delete("gitlab")
    assert here.get("github").reveal() == {"token": CANARY}
    assert there.names() == ["github", "gitlab"]


def test_a_refused_copy_copies_nothing(sealed: AgentSaver, form: str) -> None:
    """A target that exists, or has credentials, is refused whole; a source without credentials copies as ever."""
    api, here = Api(sealed, form), of(sealed, form)
    api.invoke(counting(sealed), {"n": 1}, thread("t"))
    here.set("github", "x")
    of(sealed, form, "taken").set("own", "y")
    with pytest.raises(UsageError, match="'taken' has credentials already"):
        api.copy_thread("t", "taken", credentials=True)
    assert not api.exists("taken")
    assert of(sealed, form, "taken").names() == ["own"]
    with pytest.raises(UsageError, match="both 't'"):
        api.copy_thread("t", "t", credentials=True)
    with pytest.raises(UsageError, match="'nobody' is not stored"):
        api.copy_thread("nobody", "x", credentials=True)
    of(sealed, form, "alone").set("a", "x")
    with pytest.raises(UsageError, match="'alone' is not stored"):
        api.copy_thread("alone", "x", credentials=True)
    here.clear()
    api.copy_thread("t", "without", credentials=True)
    assert api.exists("without")


# Two workers at once on the row itself


def test_a_thread_that_gets_its_first_credential_twice(
    sealed: AgentSaver, open_sealed: Callable[..., AgentSaver], form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both workers made a data key; the second looks again and uses the first one's: neither value is lost."""
    other, real, met = open_sealed(), credential_work.use_of, list[int]()

    def meet(*args: Any) -> Any:
        use = real(*args)
        if not met:
            met.append(1)
            other.credentials("t").set("first", "1")
        return use

    monkeypatch.setattr(credential_work, "use_of", meet)
    of(sealed, form).set("second", "2")
    assert of(sealed, form).names() == ["first", "second"]
    assert of(sealed, form).get("first").reveal() == "1"


def test_deleted_meanwhile_a_set_makes_a_new_key(
    sealed: AgentSaver, open_sealed: Callable[..., AgentSaver], form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A data key that was destroyed is never used again, not even by a call that had read it before."""
    here, other, real, met = of(sealed, form), open_sealed(), credential_work.use_of, list[Any]()
    here.set("a", "1")

    def meet(*args: Any) -> Any:
        use = real(*args)
        met.append(use)
        if len(met) == 1:
            other.delete_thread("t")
        return use

    monkeypatch.setattr(credential_work, "use_of", meet)
    here.set("b", "2")
    assert len(met) == 2
    assert met[0].envelope != met[1].envelope
    assert here.names() == ["b"]


# Bad input


@pytest.mark.parametrize("name", ["", "x" * 201, "a\nb", "\x1b[2J", 5, None, b"x", "\ud800"])
def test_bad_names(sealed: AgentSaver, form: str, name: Any) -> None:
    """A name that isn't short printable text is a UsageError in every method."""
    here = of(sealed, form)
    for call in (lambda: here.set(name, "x"), lambda: here.get(name), lambda: here.delete(name)):
        with pytest.raises(UsageError, match="name must be printable text"):
            call()
    assert here.audit() == []


class Text(str):
    pass


@pytest.mark.parametrize(
    ("value", "where"),
    [
        (None, "'a' is a NoneType"),
        (5, "'a' is a int"),
        (b"x", "'a' is a bytes"),
        ([CANARY], "'a' is a list"),
        (Text(CANARY), "'a' is a Text"),
        ({"k": (CANARY,)}, "'a'['k'] is a tuple"),
        ({"k": [CANARY, {1: CANARY}]}, "'a'['k'][1] has a key"),
        ({"k": CANARY, "n": 1 << 70}, "'a'['n'] is a whole number"),
        ({"k": CANARY + "\ud800"}, "'a'['k'] has a lone surrogate"),
        ({"\ud800": CANARY}, "'a' has a lone surrogate"),
        ({"k": datetime(2026, 1, 1), "s": CANARY}, "'a'['k'] is a datetime"),
    ],
)
def test_bad_values(sealed: AgentSaver, form: str, value: Any, where: str) -> None:
    """What isn't text or a dict of JSON values is refused, naming where in it, never what stands there."""
    here = of(sealed, form)
    with pytest.raises(ValueNotStorableError) as refused:
        here.set("a", value)
    assert where in str(refused.value)
    assert CANARY not in str(refused.value)
    deep: dict[str, Any] = {}
    deep["again"] = deep
    with pytest.raises(ValueNotStorableError, match="nested too deep"):
        here.set("a", deep)
    assert here.names() == []


@pytest.mark.parametrize(
    "expires", ["soon", True, float("nan"), float("inf"), 1.8e12, -1e18, datetime(2026, 1, 1), [1]]
)
def test_bad_expiry(sealed: AgentSaver, form: str, expires: Any) -> None:
    """Milliseconds, a datetime without a zone and what is no time are refused."""
    with pytest.raises(UsageError, match="expires_at"):
        of(sealed, form).set("a", "x", expires_at=expires)


def test_other_bad_arguments(sealed: AgentSaver, form: str) -> None:
    """Each is a UsageError that names the argument."""
    here = of(sealed, form)
    for revision in (True, "1", 1.0):
        with pytest.raises(UsageError, match="if_revision"):
            here.set("a", "x", if_revision=revision)
    for limit in (0, -1, True, "5"):
        with pytest.raises(UsageError, match="limit"):
            here.audit(limit)
    for whose in ("", None, {}, {"configurable": {}}, 1.5):
        with pytest.raises(UsageError, match="thread_id"):
            sealed.credentials(whose)
    with pytest.raises(UsageError, match="actor"):
        sealed.credentials("t", actor="")
    assert repr(sealed.credentials("t")) == "Credentials(thread_id='t')"


def test_without_a_key_every_use_is_refused(open_saver: Callable[..., AgentSaver], form: str, path: Path) -> None:
    """The error shows how to make a key, and nothing is stored."""
    saver = open_saver()
    here, api = of(saver, form), Api(saver, form)
    api.invoke(counting(saver), {"n": 1}, thread("t"))
    for call in (
        lambda: here.set("a", CANARY),
        lambda: here.get("a"),
        here.names,
        lambda: here.delete("a"),
        here.audit,
        api.list_credentials,
        lambda: api.copy_thread("t", "u", credentials=True),
    ):
        with pytest.raises(UsageError, match=r"agent-ckpt keys new.*key=") as refused:
            call()
        assert CANARY not in "".join(traceback.format_exception(refused.value))
    assert here.clear() is False
    assert found_in(path, CANARY) == []


# Nothing in clear, anywhere


def failing_calls(saver: AgentSaver, form: str) -> Iterator[Callable[[], Any]]:
    here = of(saver, form)
    revision = here.set("oauth", {"token": CANARY})
    yield lambda: here.set("oauth", {"token": CANARY}, if_revision=revision + 100)
    yield lambda: here.set("oauth", {"token": CANARY, "bad": object()})
    yield lambda: here.set("", CANARY)
    yield lambda: here.delete("oauth", if_revision=1 << 40)


def test_no_traceback_shows_a_value(sealed: AgentSaver, form: str) -> None:
    """Also with the local variables of all frames of ours, as error trackers report them."""
    for call in failing_calls(sealed, form):
        with pytest.raises((UsageError, CredentialConflictError)) as refused:
            call()
        error: BaseException | None = refused.value
        while error is not None:
            shown = traceback.TracebackException.from_exception(error, capture_locals=True)
            ours = [frame for frame in shown.stack if "/agent_ckpt/" in frame.filename]
            assert ours
            assert CANARY not in repr([frame.locals for frame in ours]) + "".join(shown.format_exception_only())
            error = error.__cause__ or error.__context__


def test_no_file_and_no_log_holds_a_value_or_a_name(
    open_sealed: Callable[..., AgentSaver], form: str, path: Path, caplog: pytest.LogCaptureFixture, capfd: Any
) -> None:
    """B15, B20: through every method, then a search of all files, with the saver open and closed, and of DEBUG logs."""
    caplog.set_level(logging.DEBUG)
    saver = open_sealed(compression="none")
    name, actor = "NAME-CANARY-51c2", "ACTOR-CANARY-77aa"
    api, here = Api(saver, form), of(saver, form, actor=actor)
    api.invoke(counting(saver), {"n": 1}, thread("t"))
    here.set(name, {"token": CANARY, "long": CANARY * 1000})
    here.get(name)
    here.set(name, CANARY)
    api.copy_thread("t", "u", credentials=True)
    here.names(), here.audit(), api.list_credentials(), list(api.list(None)), list(api.threads()), repr(saver)
    api.verify()
    assert found_in(path, CANARY, name, actor) == []
    here.delete(name)
    saver.close()
    assert found_in(path, CANARY, name, actor) == []
    printed = capfd.readouterr()
    assert not any(text in caplog.text + printed.out + printed.err for text in (CANARY, name, actor))


def test_cancelled_it_has_set_everything_or_nothing(sealed: AgentSaver) -> None:
    """A cancelled aset leaves the old value or the new one, and the store sound."""

    async def cancel_often() -> None:
        here = sealed.credentials("t")
        for at in range(30):
            task = asyncio.create_task(here.aset("a", str(at)))
            await asyncio.sleep(0.0005 * (at % 5))
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    asyncio.run(cancel_often())
    found = sealed.credentials("t").get("a")
    assert found is None or found.reveal() in {str(at) for at in range(30)}
    with AgentSaver(sealed._backend.target, key=KEY) as other:
        assert other.verify().findings == ()
