"""SecretStr and SecretBytes inside state: refused with their path where there is no key (B15)."""

from __future__ import annotations

import pickle
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.graph import START, StateGraph
from langgraph.types import Interrupt, Send
from pydantic import BaseModel, SecretBytes, SecretStr
from typing_extensions import TypedDict

from agent_ckpt import AgentSaver, ValueNotStorableError
from agent_ckpt.codec.secrets import SecretInClearError, refuse_secrets
from tests.canary import found_in
from tests.conftest import Api
from tests.looking import thread

CANARY = "TOPSECRET-VALUE-1"
SECRET = SecretStr(CANARY)


@dataclass
class Login:
    user: str
    password: SecretStr


@dataclass(slots=True)
class Slotted:
    key: SecretBytes


class Account(BaseModel):
    key: SecretStr
    n: int = 1


class Pair(NamedTuple):
    name: str
    key: SecretStr


class Private:
    __slots__ = ("__key",)

    def __init__(self) -> None:
        self.__key = SECRET


CHAT = [HumanMessage("hi", id=str(n)) for n in range(70)]
WHERE: list[tuple[str, Any, str]] = [
    ("itself", SECRET, ""),
    ("bytes", SecretBytes(CANARY.encode()), ""),
    ("dict", {"a": [1, {"b": SECRET}]}, "['a'][1]['b']"),
    ("tuple", (1, SECRET), "[1]"),
    ("dataclass", Login("ann", SECRET), ".password"),
    ("slots", {"x": Slotted(SecretBytes(CANARY.encode()))}, "['x']"),
    ("pydantic", [Account(key=SECRET)], "[0].key"),
    ("message", AIMessage("hi", additional_kwargs={"auth": {"key": SECRET}}), ".additional_kwargs['auth']['key']"),
    ("long chat", [*CHAT, AIMessage("hi", response_metadata={"key": SECRET})], "[70].response_metadata['key']"),
    ("interrupt", Interrupt(value={"key": SECRET}, id="i"), ""),
    ("send", [Send("node", {"key": SECRET})], "[0]"),
]


def put(api: Api, value: Any) -> None:
    checkpoint = {
        "v": 1,
        "id": "1f000000-0000-6000-8000-000000000001",
        "ts": "2026-01-01T00:00:00+00:00",
        "channel_values": {"login": value},
        "channel_versions": {"login": 1},
        "versions_seen": {},
    }
    api.put(thread("t", checkpoint_ns=""), checkpoint, {}, {"login": 1})


@pytest.mark.parametrize(("value", "inside"), [case[1:] for case in WHERE], ids=[case[0] for case in WHERE])
def test_refused_without_a_key(api: Api, path: Path, value: Any, inside: str) -> None:
    """B15: at whatever depth, put refuses it, names the path and the choice, tells no secret, and stores nothing."""
    with pytest.raises(ValueNotStorableError, match='plaintext_secrets="allow"') as refused:
        put(api, value)
    assert refused.value.path.startswith(f"channel_values.login{inside}")
    assert "key=" in str(refused.value)
    assert CANARY not in "".join([str(refused.value), repr(pickle.loads(pickle.dumps(refused.value)).fields)])
    assert api.get_tuple(thread("t")) is None
    assert found_in(path, CANARY) == []


@pytest.mark.parametrize("value", [case[1] for case in WHERE], ids=[case[0] for case in WHERE])
def test_refused_in_pending_writes(api: Api, value: Any) -> None:
    """A task's writes are refused in the same way."""
    config = thread("t", checkpoint_ns="", checkpoint_id="1f000000-0000-6000-8000-000000000001")
    with pytest.raises(ValueNotStorableError, match=r"writes\[1\] \(login\)"):
        api.put_writes(config, [("n", 1), ("login", value)], "task")
    assert api.list(None) == []


@pytest.mark.parametrize(
    "value",
    [deque([SECRET]), {SECRET: 1}, {1, 2, SECRET}, Pair("a", SECRET), Private(), [[[[{"x": (SECRET,)}]]]]],
    ids=lambda value: type(value).__name__,
)
def test_the_search_finds_every_place(value: Any) -> None:
    """Keys, sets, deques, named tuples and slots with private names are looked into."""
    with pytest.raises(SecretInClearError):
        refuse_secrets(value)


def test_the_search_ends() -> None:
    """What holds itself, classes, and objects without a secret pass; a property is never called."""

    class Trap:
        @property
        def boom(self) -> Any:
            raise AssertionError("the search called a property")

        def get_secret_names(self) -> list[str]:
            return []

    loop: list[Any] = [Trap(), SecretStr, Trap, len, object(), 1j, AIMessage("x"), Account]
    loop.append(loop)
    assert refuse_secrets(loop) is None


def test_allowed_on_request(open_saver: Callable[..., AgentSaver], form: str, path: Path) -> None:
    """With plaintext_secrets="allow" it is stored, comes back as a secret, and is in the file: the search can fail."""
    api = Api(open_saver(plaintext_secrets="allow", compression="none"), form)
    value = {"plain": SECRET, "chat": [AIMessage("hi", additional_kwargs={"key": SECRET})]}
    put(api, value)
    api.saver.close()
    assert found_in(path, CANARY) == [("agent.db", CANARY)]
    found = Api(open_saver(plaintext_secrets="allow"), form).get_tuple(thread("t"))
    assert found.checkpoint["channel_values"]["login"] == value
    assert type(found.checkpoint["channel_values"]["login"]["plain"]) is SecretStr


class State(TypedDict):
    login: Any


def test_a_run_is_refused_before_anything_of_it_is_stored(api: Api, path: Path) -> None:
    """B15: a graph whose node returns a SecretStr is told at its first store of it; no file holds the text."""
    graph = (
        StateGraph(State)
        .add_node("login", lambda state: {"login": {"token": SECRET}})
        .add_edge(START, "login")
        .compile(checkpointer=api.saver)
    )
    with pytest.raises(ValueNotStorableError, match="token"):
        api.invoke(graph, {"login": None}, thread("1"), durability="sync")
    assert found_in(path, CANARY) == []
