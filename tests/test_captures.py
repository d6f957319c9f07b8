"""What is kept beside the channels: a resumed run draws the numbers that an uninterrupted one draws."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from langgraph.graph import START, StateGraph
from langgraph.types import Command, interrupt

from agent_ckpt import AgentSaver, CaptureWarning, UsageError, ValueNotStorableError
from agent_ckpt.captures import is_secret
from tests.capture_worker import CONFIG, NODES, State, draw, graph_of, seed
from tests.conftest import Api
from tests.sealed import sealed_savers
from tests.threads import query

ROOT = Path(__file__).parent.parent


def uninterrupted() -> list[Any]:
    seed()
    with AgentSaver(":memory:") as saver:
        return graph_of(saver).invoke({"drawn": []}, CONFIG)["drawn"]  # type: ignore[no-any-return]


@pytest.mark.parametrize("durability", ["sync", "async"])
def test_a_run_that_was_killed_draws_the_same_numbers(
    path: Path, open_saver: Callable[..., AgentSaver], form: str, durability: str
) -> None:
    """Killed inside a node after it drew, restored in another process, resumed: every number is as without the kill."""
    expected = uninterrupted()
    command = [sys.executable, "-m", "tests.capture_worker", str(path), durability]
    killed = subprocess.run(command, cwd=ROOT, capture_output=True, timeout=120)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    random.seed(99)
    np.random.seed(99)
    with open_saver(capture=("random", "numpy")) as saver:
        api = Api(saver, form)
        found = api.restore_captured(CONFIG)
        assert found.restored == ("random", "numpy") and not found.missing and not found.undeclared
        assert api.invoke(graph_of(saver), None, CONFIG)["drawn"] == expected


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
def test_a_run_that_was_interrupted_draws_the_same_numbers(
    open_saver: Callable[..., AgentSaver], form: str, durability: str
) -> None:
    """A node that draws, waits for an answer and draws again, answered after a restart: its numbers, and those of the
    nodes behind it, are those of a run that never stopped."""

    def build(saver: AgentSaver, asks: bool) -> Any:
        def middle(_: Any) -> dict[str, Any]:
            first = draw()
            if asks:
                interrupt("go on?")
            return {"drawn": first + draw()}

        builder = StateGraph(State)
        for name, node in {"a": lambda _: {"drawn": draw()}, "b": middle, "c": lambda _: {"drawn": draw()}}.items():
            builder.add_node(name, node)
        for edge in ((START, "a"), ("a", "b"), ("b", "c")):
            builder.add_edge(*edge)
        return builder.compile(checkpointer=saver)

    results = []
    for asks in (False, True):
        config = {"configurable": {"thread_id": f"asks {asks}"}}
        seed()
        with open_saver(capture=("random", "numpy")) as saver:
            results.append(Api(saver, form).invoke(build(saver, asks), {"drawn": []}, config, durability=durability))
    random.seed(99)
    np.random.seed(99)
    with open_saver(capture=("random", "numpy")) as saver:
        api = Api(saver, form)
        api.restore_captured(config)
        done = api.invoke(build(saver, True), Command(resume="yes"), config, durability=durability)
    assert done["drawn"] == results[0]["drawn"]


def test_each_checkpoint_has_its_own_state(open_saver: Callable[..., AgentSaver], form: str) -> None:
    """Going on from an older checkpoint after restoring what it captured repeats the numbers from there."""
    seed()
    with open_saver(capture=("random", "numpy")) as saver:
        api = Api(saver, form)
        graph = graph_of(saver)
        expected = api.invoke(graph, {"drawn": []}, CONFIG)["drawn"]
        for state in api.history(graph, CONFIG):
            if state.next and state.next != ("__start__",):
                # The checkpoint has the writes of the task that ran after it; from a fork it runs again.
                with pytest.warns(CaptureWarning, match="finished after the capture"):
                    assert api.restore_captured(state.config).finished_tasks == 1
                # LangGraph draws the fork's id from `random` before its nodes run, so only numpy's are equal.
                assert api.invoke(graph, None, state.config)["drawn"][2::3] == expected[2::3]


def test_a_capture_that_does_not_change_is_stored_once(
    path: Path, open_saver: Callable[..., AgentSaver], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a thousand variables captured, a further checkpoint costs no further blob."""
    for number in range(1000):
        monkeypatch.setenv(f"PLAIN_{number}", f"value {number} " * 5)
    with open_saver(capture=("env:*", "env:PLAIN_7")) as saver:
        graph_of(saver).invoke({"drawn": []}, CONFIG)
        before = query(path, "SELECT count(*) FROM blobs")[0][0]
        checkpoints = query(path, "SELECT count(*) FROM checkpoints")[0][0]
        graph_of(saver).invoke({"drawn": []}, CONFIG)
        after = query(path, "SELECT count(*) FROM blobs")[0][0]
        assert query(path, "SELECT count(*) FROM checkpoints")[0][0] == checkpoints + len(NODES) + 2
        # What the run itself drew; far less than the variables.
        assert after - before <= 4 * (len(NODES) + 2)


def test_captures_are_no_part_of_the_state(open_saver: Callable[..., AgentSaver], form: str) -> None:
    """Neither get_state nor raw reads show them; copies keep them, and pruning keeps those of what it keeps."""
    with open_saver(capture=("random",)) as saver:
        api = Api(saver, form)
        graph = graph_of(saver)
        api.invoke(graph, {"drawn": []}, CONFIG)
        for item in api.list(CONFIG):
            names = {*item.checkpoint["channel_values"], *item.checkpoint["channel_versions"]}
            assert not [name for name in names if "capture" in name]
        state = random.getstate()
        api.copy_thread("t", "copy")
        api.prune(["copy"])
        random.seed(1)
        assert api.restore_captured({"configurable": {"thread_id": "copy"}}).restored == ("random",)
        assert random.getstate() == state


def test_what_is_declared_and_stored_is_compared(
    open_saver: Callable[..., AgentSaver], form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A capture declared now and absent from the checkpoint is named, and the reverse; variables are put back."""
    monkeypatch.setenv("PLAIN_ONE", "then")
    monkeypatch.delenv("PLAIN_NONE", raising=False)
    with open_saver(capture=("env:PLAIN_ONE", "env:PLAIN_NONE", "env:*")) as saver:
        Api(saver, form).invoke(graph_of(saver), {"drawn": []}, CONFIG)
    monkeypatch.setenv("PLAIN_ONE", "now")
    monkeypatch.setenv("PLAIN_NONE", "now")
    with open_saver(capture=("random", "env:PLAIN_ONE", "env:PLAIN_NONE")) as saver:
        api = Api(saver, form)
        with pytest.warns(CaptureWarning, match="random.*env:") as told:
            found = api.restore_captured(CONFIG)
        assert len(told) == 1
        assert (found.missing, found.undeclared) == (("random",), ("env:*",))
        assert found.values["env:*"]["PLAIN_ONE"] == "then"
        assert os.environ["PLAIN_ONE"] == "then" and "PLAIN_NONE" not in os.environ
        with pytest.raises(UsageError, match="nothing to give back"):
            api.restore_captured({"configurable": {"thread_id": "nobody"}})


class Dice:
    """A generator of the program's own."""

    def __init__(self) -> None:
        self.rolled = 0

    def state(self, stored: int | None = None) -> int:
        """The state; given one, it is put back."""
        if stored is not None:
            self.rolled = stored
        return self.rolled


def only_told() -> str:
    return "release 7"


def test_functions_are_captured(open_saver: Callable[..., AgentSaver], form: str) -> None:
    """A function's value is kept, and handed back to it where it takes one; one that fails stops the put."""
    dice = Dice()
    dice.rolled = 5
    with open_saver(capture=(dice.state, only_told)) as saver:
        api = Api(saver, form)
        api.invoke(graph_of(saver), {"drawn": []}, CONFIG)
        dice.rolled = 0
        found = api.restore_captured(CONFIG)
        assert dice.rolled == 5
        assert found.restored == ("call:Dice.state",)
        assert found.values["call:only_told"] == "release 7"

    def fails() -> None:
        raise OSError("secret")

    with open_saver(capture=(fails,)) as saver:
        with pytest.raises(ValueNotStorableError, match="failed with OSError") as caught:
            Api(saver, form).invoke(graph_of(saver), {"drawn": []}, CONFIG)
        assert "secret" not in str(caught.value)


def test_secrets_are_left_out_or_refused(
    path: Path, open_saver: Callable[..., AgentSaver], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a key, a variable that looks like a secret is refused by name and left out of `env:*`."""
    secrets = {
        "OPENAI_API_KEY": "CANARY1",
        "DB_PASSWORD": "CANARY2",
        "GITHUB_TOKEN": "CANARY3",
        "STORE_URL": "postgres://me:CANARY4@db/x",
        "SESSION_SECRET_2": "CANARY5",
    }
    for name, value in secrets.items():
        monkeypatch.setenv(name, value)
        with pytest.raises(UsageError, match=f"env:{name} looks like a secret"):
            AgentSaver(":memory:", capture=(f"env:{name}",))
    monkeypatch.setenv("PLAIN_ONE", "seen")
    with open_saver(capture=("env:*",), compression="none") as saver:
        graph_of(saver).invoke({"drawn": []}, CONFIG)
        found = saver.restore_captured(CONFIG).values["env:*"]
    assert found["PLAIN_ONE"] == "seen" and not set(secrets) & set(found)
    assert b"CANARY" not in path.read_bytes()
    assert not is_secret("KEYBOARD") and not is_secret("PATH", "/usr/bin:/bin")


def test_with_a_key_named_secrets_are_kept_sealed(path: Path, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A secret that is named is given back, nothing of it or of the environment is in the file in clear."""
    monkeypatch.setenv("OPENAI_API_KEY", "CANARY-secret")
    monkeypatch.setenv("PLAIN_ONE", "CANARY-plain")
    with sealed_savers(path) as open_one:
        saver = open_one(capture=("random", "env:OPENAI_API_KEY", "env:*"), compression="none")
        graph = graph_of(saver)
        Api(saver, form).invoke(graph, {"drawn": []}, {**CONFIG, "metadata": {"run_id": "CANARY-run"}})
        monkeypatch.setenv("OPENAI_API_KEY", "other")
        found = Api(saver, form).restore_captured(CONFIG)
        assert os.environ["OPENAI_API_KEY"] == "CANARY-secret"
        assert "OPENAI_API_KEY" not in found.values["env:*"] and found.values["env:*"]["PLAIN_ONE"] == "CANARY-plain"
        assert saver.check(graph) and saver.written_by(CONFIG)["python"]
        saver.copy_thread("t", "copy")
        assert saver.written_by({"configurable": {"thread_id": "copy"}}) == saver.written_by(CONFIG)
    for file in path.parent.glob("agent.db*"):
        assert b"CANARY" not in file.read_bytes()


def test_what_cannot_be_captured_is_refused_at_once() -> None:
    """Unknown names, lambdas, the same twice, and torch, with where its recipe is."""
    for wrong, why in (
        (("random", "random"), "twice"),
        (("dice",), "known are"),
        (("env:",), "known are"),
        ((lambda: 1,), "with a name"),
        ((5,), "with a name"),
        (("torch",), "docs/changes.md"),
    ):
        with pytest.raises(UsageError, match=why):
            AgentSaver(":memory:", capture=wrong)
