"""The saver against a plain model of dicts: whatever is done in whatever order, both say the same.

AGENT_CKPT_TEST_MODEL sets the number of sequences (CI: 40, always the same ones; with it others each time, whose seed
is printed and can be given by AGENT_CKPT_TEST_MODEL_SEED).
"""

from __future__ import annotations

import os
import random
import shutil
import uuid
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import seed as seeded
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from langchain_core.messages import HumanMessage
from langgraph.checkpoint.base import WRITES_IDX_MAP

from agent_ckpt import AgentSaver
from agent_ckpt.core import put as core_put
from agent_ckpt.errors import ThreadConflictError, UsageError
from tests.conftest import Api
from tests.faults import in_memory
from tests.histories import admit_all
from tests.threads import checkpoint_of, plain

THREADS = st.sampled_from(["t", "t", "t", "a%", "ab"])
NAMESPACES = st.sampled_from(["", "", "", "sub:1"])
SELDOM = st.integers(0, 5).map(lambda drawn: drawn == 5)
"""For what destroys: most draws do nothing, so that there is something to destroy."""
RUNS = st.sampled_from(["run-1", "run-2", "6f1b3c4e-0000-4000-8000-000000000000", None])
SEEDS = st.integers(0, 40)
PICK = st.integers(0, 1000)
CHANNELS = ("messages", "files", "text", "tiny")
SPECIAL = sorted(WRITES_IDX_MAP)


@dataclass(frozen=True)
class Write:
    """One write as the model knows it."""

    order: int
    run: str | None
    task: str
    path: str
    idx: int
    channel: str
    value: Any


def merged(log: list[Write]) -> dict[tuple[str, int], Write]:
    """What stands at each (task, index): the first of a regular one, the last of a special one."""
    found: dict[tuple[str, int], Write] = {}
    for write in log:
        if write.idx < 0 or (write.task, write.idx) not in found:
            found[write.task, write.idx] = write
    return found


def value_of(channel: str, seed: int) -> Any:
    """A value for a channel, some equal to each other, of sizes on both sides of the thresholds."""
    if channel == "messages":
        return [HumanMessage(f"message {i} " * 3, id=str(i)) for i in range(seed % 7, seed)]
    if channel == "files":
        return {f"f{i}": f"file {i % 3} " * 50 for i in range(seed)}
    if channel == "text":
        return f"{seed % 5} " + "some text " * (seed * 60)
    return [seed % 3, None, seed % 2 == 0]


@dataclass
class Stored:
    """A checkpoint as the model knows it."""

    id: str
    parent: str | None
    order: int
    run: str | None
    values: dict[str, Any]
    versions: dict[str, int]
    metadata: dict[str, Any]


@dataclass
class Space:
    """A thread's namespace: checkpoints in commit order, and the pending writes of each id, stored or not."""

    checkpoints: list[Stored] = field(default_factory=list)
    writes: dict[str, list[Write]] = field(default_factory=dict)


class Machine(RuleBasedStateMachine):
    """Drives two savers on one file, one by its sync and one by its async form, beside the model."""

    @initialize()
    def begin(self) -> None:
        self.folder = in_memory()
        self.path = self.folder / "agent.db"
        self.order = 0
        self.ids = 0
        self.threads: dict[str, dict[str, Space]] = {}
        self.touched: set[str] = set()
        self.savers = [self.opened("sync"), self.opened("async")]
        self.turn = 0
        # Something to work on, since hypothesis leaves some kinds of steps out of each run.
        for pick, run in ((15, "run-1"), (255, "run-2"), (77, None), (514, "run-1")):
            self.put_on_the_head("t", "", pick, run)
        self.put_on_the_head("t", "sub:1", 335, "run-2")
        self.put_on_the_head("ab", "", 31, None)
        for task, seed, run in (
            ("t1", 4, "run-1"),
            ("t0", 5, "run-2"),
            ("t1", 8, None),
            ("t0", 9, "run-1"),
            ("t1", 5, None),
        ):
            for which in (0, 1):
                self.put_writes("t", "", which, task, seed, run, False)

    def opened(self, form: str) -> Api:
        return Api(AgentSaver(self.path, synchronous="normal"), form)

    @property
    def api(self) -> Api:
        self.turn += 1
        return self.savers[self.turn % 3 % 2]

    def space(self, thread: str, ns: str) -> Space:
        self.touched.add(thread)
        return self.threads.setdefault(thread, {}).setdefault(ns, Space())

    def next(self) -> int:
        self.order += 1
        return self.order

    def fresh_id(self) -> str:
        # Some are UUIDs and some are not, and none sorts by its age.
        self.ids += 1
        made = str(uuid.uuid5(uuid.NAMESPACE_OID, str(self.ids)))
        return made if self.ids % 3 else f"{(self.ids * 7919) % 1000:03}-{self.ids}"

    # Checkpoints

    def put(
        self, api: Api, config: Any, thread: str, ns: str, parent: Stored | None, pick: int, run: str | None, fresh: str
    ) -> None:
        space = self.space(thread, ns)
        values = dict(parent.values) if parent else {}
        versions = dict(parent.versions) if parent else {}
        changed = [name for at, name in enumerate(CHANNELS) if pick >> at & 1]
        for name in changed:
            versions[name] = versions.get(name, 0) + 1
            values[name] = value_of(name, (pick >> 4) % 41)
        metadata = {"source": "loop", "step": pick, "parents": {}, **({"run_id": run} if run else {})}
        # LangGraph hands over all values; a channel left out at its parent's version keeps its value.
        given = values if pick % 2 else {name: values[name] for name in changed}
        made = checkpoint_of(given, versions, id=fresh)
        returned = api.put(config, made, metadata, {name: versions[name] for name in changed})
        assert returned["configurable"]["checkpoint_id"] == fresh
        stored = Stored(fresh, parent.id if parent else None, self.next(), run, values, versions, metadata)
        space.checkpoints.append(stored)

    def at(self, thread: str, ns: str, checkpoint_id: str | None = None) -> Any:
        conf = {"thread_id": thread, "checkpoint_ns": ns}
        return {"configurable": conf if checkpoint_id is None else {**conf, "checkpoint_id": checkpoint_id}}

    @rule(thread=THREADS, ns=NAMESPACES, pick=PICK, run=RUNS)
    def put_on_the_head(self, thread: str, ns: str, pick: int, run: str | None) -> None:
        api, space = self.api, self.space(thread, ns)
        parent = space.checkpoints[-1] if space.checkpoints else None
        restored = api.get_tuple(self.at(thread, ns))
        config = restored.config if restored else self.at(thread, ns)
        waiting = [cid for cid in space.writes if all(cid != c.id for c in space.checkpoints)]
        self.put(api, config, thread, ns, parent, pick, run, waiting[0] if waiting and pick % 3 else self.fresh_id())

    @rule(thread=THREADS, ns=NAMESPACES, pick=PICK, which=PICK)
    def fork(self, thread: str, ns: str, pick: int, which: int) -> None:
        space = self.space(thread, ns)
        if not space.checkpoints:
            return
        parent = space.checkpoints[which % len(space.checkpoints)]
        api = self.api
        restored = api.get_tuple(self.at(thread, ns, parent.id))
        self.put(api, restored.config, thread, ns, parent, pick, None, self.fresh_id())

    @rule(thread=THREADS, ns=NAMESPACES, pick=PICK)
    def lose_a_race(self, thread: str, ns: str, pick: int) -> None:
        """Two restores of one head: the first to write wins, the other is refused and nothing of it is stored."""
        space = self.space(thread, ns)
        if not space.checkpoints:
            return
        parent = space.checkpoints[-1]
        winner, loser = self.savers if pick % 2 else reversed(self.savers)
        restored = [each.get_tuple(self.at(thread, ns)) for each in (winner, loser)]
        self.put(winner, restored[0].config, thread, ns, parent, pick, None, self.fresh_id())
        made = checkpoint_of({"tiny": "lost"}, {"tiny": 99}, id=self.fresh_id())
        with pytest.raises(ThreadConflictError):
            loser.put(restored[1].config, made, {"source": "loop", "step": 0, "parents": {}}, {"tiny": 99})
        with pytest.raises(ThreadConflictError):
            loser.put_writes(restored[1].config, [("tiny", "lost")], "loser")

    @rule(thread=THREADS, ns=NAMESPACES)
    def put_again(self, thread: str, ns: str) -> None:
        """The same checkpoint once more changes nothing; other content under its id is refused."""
        space = self.space(thread, ns)
        if not space.checkpoints:
            return
        last, api = space.checkpoints[-1], self.api
        found = api.get_tuple(self.at(thread, ns, last.id))
        where = self.at(thread, ns, last.parent)
        api.put(where, found.checkpoint, last.metadata, {})
        other = {
            **found.checkpoint,
            "channel_values": {**last.values, "tiny": "other"},
            "channel_versions": {**last.versions, "tiny": 98},
        }
        with pytest.raises(ThreadConflictError):
            api.put(where, other, last.metadata, {"tiny": 98})

    # Writes

    @rule(
        thread=THREADS,
        ns=NAMESPACES,
        which=PICK,
        task=st.sampled_from(["t1", "t0"]),
        seed=SEEDS,
        run=RUNS,
        early=st.booleans(),
    )
    def put_writes(self, thread: str, ns: str, which: int, task: str, seed: int, run: str | None, early: bool) -> None:
        space = self.space(thread, ns)
        known = [c.id for c in space.checkpoints]
        if early or not known:
            waiting = [cid for cid in space.writes if cid not in known]
            target = waiting[0] if waiting else self.fresh_id()
        else:
            target = known[-1 - which % min(3, len(known))]
        writes: list[tuple[str, Any]] = [
            (CHANNELS[(seed + at) % 4], value_of(CHANNELS[(seed + at) % 4], seed)) for at in range(seed % 3)
        ]
        if seed % 4 < 2 or not writes:
            writes.append((SPECIAL[seed % 2 + seed // 30], f"special {seed} " * (seed % 9)))
        path = f"~{seed % 2}"
        config = self.at(thread, ns, target)
        if run:
            config["configurable"]["run_id"] = run
        self.api.put_writes(config, writes, task, path)
        log = space.writes.get(target, [])
        stood = merged(log)
        order = self.next()
        for at, (channel, value) in enumerate(writes):
            idx = WRITES_IDX_MAP.get(channel, at)
            new = Write(order, run, task, path, idx, channel, value)
            old = stood.get((task, idx))
            if old is None or (idx < 0 and (old.path, old.channel, old.value) != (path, channel, value)):
                log = [*log, new]
        if log:
            space.writes[target] = log

    # Threads

    @rule(thread=THREADS, seldom=SELDOM)
    def delete_thread(self, thread: str, seldom: bool) -> None:
        if not seldom:
            return
        self.api.delete_thread(thread)
        self.threads.pop(thread, None)
        self.touched.add(thread)

    @rule(source=THREADS, copy=THREADS)
    def copy_thread(self, source: str, copy: str) -> None:
        target = copy
        if source == target or not self.stored(source) or self.stored(target):
            with pytest.raises(UsageError):
                self.api.copy_thread(source, target)
            return
        self.api.copy_thread(source, target)
        copied: dict[str, Space] = {}
        orders = sorted(
            {c.order for s in self.threads[source].values() for c in s.checkpoints}
            | {w.order for s in self.threads[source].values() for log in s.writes.values() for w in log}
        )
        renewed = {order: self.next() for order in orders}
        for ns, space in self.threads[source].items():
            copied[ns] = Space(
                [replace(c, order=renewed[c.order]) for c in space.checkpoints],
                {cid: [replace(w, order=renewed[w.order]) for w in log] for cid, log in space.writes.items()},
            )
        self.threads[target] = copied
        self.touched.add(target)

    @rule(thread=THREADS, seldom=SELDOM)
    def prune(self, thread: str, seldom: bool) -> None:
        if not seldom:
            return
        self.api.prune([thread, "not stored"])
        self.touched.add(thread)
        for space in self.threads.get(thread, {}).values():
            if not space.checkpoints:
                continue
            head, known = space.checkpoints[-1], {c.id for c in space.checkpoints}
            for cid in list(space.writes):
                if cid == head.id:
                    continue
                kept = [w for w in space.writes[cid] if cid not in known and w.order > head.order]
                space.writes[cid] = kept
                if not kept:
                    del space.writes[cid]
            space.checkpoints = [head]

    @rule(run=RUNS, seldom=SELDOM)
    def delete_for_runs(self, run: str | None, seldom: bool) -> None:
        if run is None or not seldom:
            return
        self.api.delete_for_runs([run])
        for thread, spaces in self.threads.items():
            for space in spaces.values():
                gone = {c.id for c in space.checkpoints if c.run == run}
                hit = bool(gone) or any(w.run == run for log in space.writes.values() for w in log)
                space.checkpoints = [c for c in space.checkpoints if c.id not in gone]
                left = {cid: [w for w in log if w.run != run] for cid, log in space.writes.items() if cid not in gone}
                space.writes = {cid: log for cid, log in left.items() if log}
                if hit:
                    self.touched.add(thread)

    # The store

    @rule(which=st.integers(0, 1))
    def reopen(self, which: int) -> None:
        self.savers[which].saver.close()
        self.savers[which] = self.opened(self.savers[which].form)
        self.touched.update(self.threads)

    @rule(thread=THREADS, pick=PICK, how=st.sampled_from(["idle", "before COMMIT", "after COMMIT"]), seldom=SELDOM)
    def crash(self, thread: str, pick: int, how: str, seldom: bool) -> None:
        """Both savers are killed, at rest or in the middle of a put, and new ones find what was committed."""
        if not seldom:
            return
        left = self.as_left_by_a_kill() if how == "idle" else self.killed_in_a_put(thread, pick, how == "after COMMIT")
        for api in self.savers:
            api.saver.close()
        shutil.rmtree(self.folder)
        self.folder, self.path = left, left / "agent.db"
        self.savers = [self.opened("sync"), self.opened("async")]
        self.touched.update(self.threads)

    def as_left_by_a_kill(self) -> Path:
        """A copy of the files as they are now. It takes this process's locks on them, which nobody needs any more."""
        left = in_memory()
        for name in ("agent.db", "agent.db-wal"):
            if (self.folder / name).exists():
                shutil.copy(self.folder / name, left / name)
        return left

    def killed_in_a_put(self, thread: str, pick: int, committed: bool) -> Path:
        space, api = self.space(thread, ""), self.savers[0]
        left: list[Path] = []

        class Killed(BaseException):
            pass

        def kill(said: str) -> None:
            # The statement that is announced is not executed yet; the one after COMMIT comes with the next call.
            nonlocal begun
            begun = begun or said == "BEGIN IMMEDIATE"
            if begun and said == "COMMIT":
                left.append(self.as_left_by_a_kill())
                raise Killed

        begun = False
        parent = space.checkpoints[-1] if space.checkpoints else None
        restored = api.get_tuple(self.at(thread, ""))
        config = restored.config if restored else self.at(thread, "")
        if committed:
            self.put(api, config, thread, "", parent, pick, None, self.fresh_id())
            return self.as_left_by_a_kill()
        api.saver._backend.on_statement = kill
        made = checkpoint_of({"tiny": "killed"}, {"tiny": 97}, id=self.fresh_id())
        with pytest.raises(Killed):
            api.put(config, made, {"source": "loop", "step": 0, "parents": {}}, {"tiny": 97})
        api.saver._backend.on_statement = None
        return left[0]

    @precondition(lambda self: self.turn % 5 == 0)
    @rule()
    def verify(self) -> None:
        assert self.api.verify(), self.api.verify().findings

    # What must hold

    def stored(self, thread: str) -> bool:
        return any(s.checkpoints or s.writes for s in self.threads.get(thread, {}).values())

    @invariant()
    def what_was_touched_reads_as_the_model_says(self) -> None:
        for thread in self.touched if hasattr(self, "touched") else ():
            self.compare(self.api, thread)
        self.touched = set()

    def compare(self, api: Api, thread: str) -> None:
        assert api.exists(thread) == self.stored(thread)
        spaces = self.threads.get(thread, {})
        for ns in ("", "sub:1"):
            space = spaces.get(ns, Space())
            head = api.get_tuple(self.at(thread, ns))
            if not space.checkpoints:
                assert head is None
                continue
            self.same(head, space.checkpoints[-1], space, thread, ns)
            some = space.checkpoints[self.order % len(space.checkpoints)]
            self.same(api.get_tuple(self.at(thread, ns, some.id)), some, space, thread, ns)
            listed = api.list(self.at(thread, ns))
            assert [found.config["configurable"]["checkpoint_id"] for found in listed] == [
                c.id for c in reversed(space.checkpoints)
            ]
            self.same(listed[-1], space.checkpoints[0], space, thread, ns)
            before = api.list(self.at(thread, ns), before=self.at(thread, ns, some.id), limit=2)
            older = [c.id for c in reversed(space.checkpoints) if c.order < some.order][:2]
            assert [found.config["configurable"]["checkpoint_id"] for found in before] == older
        everything = sorted((c for s in spaces.values() for c in s.checkpoints), key=lambda c: -c.order)
        whole = api.list({"configurable": {"thread_id": thread}})
        assert [found.config["configurable"]["checkpoint_id"] for found in whole] == [c.id for c in everything]

    def same(self, found: Any, stored: Stored, space: Space, thread: str, ns: str) -> None:
        assert plain(found.config) == self.at(thread, ns, stored.id)
        assert (plain(found.parent_config) if found.parent_config else None) == (
            self.at(thread, ns, stored.parent) if stored.parent else None
        )
        assert found.checkpoint["channel_values"] == stored.values
        assert repr(found.checkpoint["channel_values"]) == repr(
            {n: stored.values[n] for n in found.checkpoint["channel_values"]}
        )
        assert found.checkpoint["channel_versions"] == stored.versions
        assert found.metadata == stored.metadata
        writes = merged(space.writes.get(stored.id, [])).values()
        expected = [(w.task, w.channel, w.value) for w in sorted(writes, key=lambda w: (w.path, w.task, w.idx))]
        assert found.pending_writes == expected

    def teardown(self) -> None:
        if not hasattr(self, "folder"):
            return
        try:
            for api in self.savers:
                for thread in ("t", "a%", "ab"):
                    self.compare(api, thread)
                api.saver.close()
            with AgentSaver(self.path) as fresh:
                assert not fresh.verify().findings
                everything = sorted(
                    (c.order, c.id) for t in self.threads.values() for s in t.values() for c in s.checkpoints
                )
                listed = [found.config["configurable"]["checkpoint_id"] for found in fresh.list(None)]
                assert listed == [cid for _, cid in reversed(everything)]
        finally:
            for api in self.savers:
                api.saver.close()
            shutil.rmtree(self.folder, ignore_errors=True)


EXAMPLES = int(os.environ.get("AGENT_CKPT_TEST_MODEL", "0"))
SEED = int(os.environ.get("AGENT_CKPT_TEST_MODEL_SEED", "0")) or random.randrange(1 << 32)
SETTINGS = settings(
    max_examples=EXAMPLES or 40,
    stateful_step_count=40,
    deadline=None,
    derandomize=not EXAMPLES,
    print_blob=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)


def test_model() -> None:
    """Sequences of put, fork, put_writes, delete, copy, prune, delete_for_runs, kills and reopening say what the model
    says (cases B26, B29, B51, B61)."""
    print(f"seed {SEED if EXAMPLES else 'fixed'}")
    machine = Machine if not EXAMPLES else seeded(SEED)(Machine)
    assert run_state_machine_as_test(machine, settings=SETTINGS) is None


class WithoutCompare(AgentSaver):
    """Accepts whoever writes."""


class Forgetful(AgentSaver):
    """Answers before it stores: a task's writes only come with the next put."""

    later: Any = None

    def put_writes(self, *args: Any, **kwargs: Any) -> None:
        self.later = args, kwargs

    def put(self, *args: Any) -> Any:
        if self.later is not None:
            super().put_writes(*self.later[0], **self.later[1])
            self.later = None
        return super().put(*args)


@pytest.mark.parametrize("wrong", [WithoutCompare, Forgetful])
def test_the_model_catches_a_wrong_saver(wrong: type[AgentSaver], monkeypatch: pytest.MonkeyPatch) -> None:
    """The same sequences find a saver without the compare, and one that keeps writes in memory after its answer."""
    if wrong is WithoutCompare:
        monkeypatch.setattr(core_put, "admit", admit_all)
        monkeypatch.setattr(core_put, "_check_parent", lambda *_: None)

    class Wrong(Machine):
        def opened(self, form: str) -> Api:
            return Api(wrong(self.path, synchronous="normal"), form)

    # Which of its checks sees it first is up to the sequence.
    with pytest.raises((AssertionError, pytest.fail.Exception, ExceptionGroup)):
        run_state_machine_as_test(
            Wrong, settings=settings(SETTINGS, max_examples=15, phases=[Phase.generate], report_multiple_bugs=False)
        )
