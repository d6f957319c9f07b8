"""Stores that earlier releases wrote are read by this one: one golden file per stored format."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from agent_ckpt import AgentSaver
from tests import typed_kinds
from tests.conftest import Api
from tests.golden import make
from tests.test_values import same
from tests.threads import query, values_at

FILES = sorted(make.HERE.glob("*.db"))


def test_every_stored_format_has_its_golden_file() -> None:
    """The current format_version and schema_version have a golden store."""
    assert make.HERE / make.NAME in FILES


@pytest.fixture(params=FILES, ids=lambda file: file.stem)
def golden(request: pytest.FixtureRequest, path: Path) -> Path:
    """A copy of a golden store: opening it would write to it."""
    shutil.copy(request.param, path)
    return path


def at(number: int | None, thread: str = "golden", ns: str = "") -> Any:
    conf = {"thread_id": thread, "checkpoint_ns": ns}
    return {
        "configurable": conf if number is None else {**conf, "checkpoint_id": make.checkpoint(number, {}, {})["id"]}
    }


def equal(found: dict[str, Any], expected: dict[str, Any]) -> None:
    assert list(found) == list(expected)
    for name, value in expected.items():
        assert same(found[name], value), name


def test_a_golden_store_gives_back_what_was_stored(golden: Path, form: str) -> None:
    """Every checkpoint of the golden store: values, versions, metadata, parent, and pending writes in order."""
    with AgentSaver(golden, create=False) as saver:
        api = Api(saver, form)
        states = make.states()
        for number, values in enumerate(states, 1):
            found = api.get_tuple(at(number))
            versions = make.versions_of(states[:number])
            expected = make.checkpoint(number, {}, versions)
            assert {k: v for k, v in found.checkpoint.items() if k != "channel_values"} == {
                k: v for k, v in expected.items() if k != "channel_values"
            }
            equal(found.checkpoint["channel_values"], values)
            assert found.metadata == {
                "source": "loop", "step": number, "parents": {}, "user": "Zoë", "run_id": f"run-{number}"
            }  # fmt: skip
            parent = found.parent_config["configurable"]["checkpoint_id"] if found.parent_config else None
            assert parent == (at(number - 1)["configurable"]["checkpoint_id"] if number > 1 else None)
        head = api.get_tuple(at(None))
        assert head.config["configurable"]["checkpoint_id"] == at(3)["configurable"]["checkpoint_id"]
        first, second = make.writes()
        assert head.pending_writes == [
            (second[2], "__interrupt__", ["stop?"]),
            (second[2], "__error__", "boom " * 20),
            *((first[2], channel, value) for channel, value in first[1]),
        ]
        inner = api.get_tuple(at(None, ns="sub:1"))
        assert (inner.checkpoint["channel_values"], inner.checkpoint["channel_versions"]) == (
            {"inner": "x" * 100},
            {"inner": "0001.5"},
        )
        history = api.get_delta_channel_history(config=at(3, "pruned"), channels=["d"])
        assert history == {"d": {"writes": [(f"task-{n}", "d", f"delta {n} " * 9) for n in (1, 2)]}}
        assert [t.thread_id for t in saver.threads()] == ["golden", "kinds", "pruned"]
        report = api.verify()
        assert (report.findings, report.checkpoints) == ((), 6)


def test_a_golden_store_gives_back_every_kind_of_value(golden: Path, form: str) -> None:
    """Each kind of value, as it was stored, equal in value and type."""
    with AgentSaver(golden, create=False) as saver:
        found = values_at(Api(saver, form), at(1, "kinds"))
    assert list(found) == list(typed_kinds.PORTABLE)
    for name, value in typed_kinds.PORTABLE.items():
        assert typed_kinds.alike(found[name], value), name


def test_a_golden_store_can_be_written_on(golden: Path, form: str) -> None:
    """A thread of the golden store goes on: what is unchanged is shared with the old blobs, all stays readable."""
    states = make.states()
    with AgentSaver(golden, create=False) as saver:
        api = Api(saver, form)
        restored = api.get_tuple(at(None))
        blobs = query(golden, "SELECT count(*) FROM blobs")[0][0]
        values = {**states[-1], "messages": make.conversation(62)}
        made = make.checkpoint(4, values, {**restored.checkpoint["channel_versions"], "messages": 4})
        config = api.put(restored.config, made, {"source": "loop", "step": 4, "parents": {}}, {"messages": 4})
        assert query(golden, "SELECT count(*) FROM blobs")[0][0] - blobs <= 8
        equal(values_at(api, config), values)
        equal(values_at(api, at(1)), states[0])
    with AgentSaver(golden, create=False) as saver:
        equal(values_at(Api(saver, form), config), values)
        assert not saver.verify().findings


def test_the_maker_still_makes_the_same_values(path: Path) -> None:
    """A store that today's code makes of the fixed inputs reads the same, so the maker is right for the next format."""
    make.build(path)
    with AgentSaver(path) as saver:
        for number, values in enumerate(make.states(), 1):
            equal(values_at(saver, at(number)), values)
        assert saver.verify()


def test_the_golden_files_are_small_and_never_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A golden store is under 300 KB, and its maker refuses to write over it."""
    for file in FILES:
        assert file.stat().st_size < 300_000
    with pytest.raises(SystemExit, match="never made again"):
        make.main()
