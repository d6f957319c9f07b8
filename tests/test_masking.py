"""Secrets in a config or in metadata are masked before they are stored (B15), and what isn't secret stays."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from langchain_core.runnables import RunnableConfig
from langgraph.graph import START, StateGraph
from langgraph.graph.state import CompiledStateGraph
from pydantic import SecretStr
from typing_extensions import TypedDict

from agent_ckpt import AgentSaver, UsageError
from agent_ckpt.metadata import MASK, is_secret, metadata_of
from agent_ckpt.options import Options, from_environment, parse
from tests.canary import found_in
from tests.conftest import Api

CANARY = "sk-CONF-SECRET-7f3a"

SECRET_NAMES = """
openai_api_key OPENAI_API_KEY openaiApiKey OpenAI-API-Key x-api-key X_API_KEY apiKey apikey APIKey stripe_key
access_token accessToken refresh-token github_token token TOKEN tokens client_secret clientSecret secret secrets
password db_password dbPassword Passwd passphrase cookie Cookies Set-Cookie session.cookie authorization Authorization
Proxy-Authorization bearer jwt credential credentials aws_secret_access_key private_key
""".split()

HARMLESS_NAMES = """
max_tokens token_count total_tokens tokenizer token_usage keyboard monkey turkey key keys keyword key_points
passwordless password_policy secretary secret_santa_round author authored_by authors cookie_consent cookiecutter
sortKey primary_key idempotency-key page_token eos_token
cookies_accepted tokenization model user_id tenant assistant_name email ticket session_id bearer_of_news keynote
""".split()

LANGGRAPH_NAMES = """
thread_id checkpoint_ns checkpoint_id checkpoint_map run_id assistant_id graph_id source step parents
langgraph_step langgraph_node langgraph_triggers langgraph_path langgraph_checkpoint_ns langgraph_version
langgraph_api_url langgraph_auth_user_id langgraph_host langgraph_plan langgraph_request_id
counters_since_delta_snapshot user_id created_by run_attempt
""".split()


class State(TypedDict):
    n: int


def counting(saver: AgentSaver, seen: list[Any] | None = None) -> CompiledStateGraph[Any, Any, Any, Any]:
    def count(state: State, config: RunnableConfig) -> dict[str, int]:
        if seen is not None:
            seen.append(copy.deepcopy({k: v for k, v in config["configurable"].items() if not k.startswith("__")}))
        return {"n": state["n"] + 1}

    return StateGraph(State).add_node("count", count).add_edge(START, "count").compile(checkpointer=saver)


def masked(metadata: dict[str, Any], **options: Any) -> dict[str, Any]:
    return metadata_of({}, metadata, parse(options))


@pytest.mark.parametrize("name", SECRET_NAMES)
def test_secret_names(name: str) -> None:
    """Listed words and the four endings are secret in every spelling: case, dashes, dots, camel case."""
    assert is_secret(name)
    assert masked({name: CANARY, "deep": [{name: CANARY}]}) == {name: MASK, "deep": [{name: MASK}]}


def test_thirty_harmless_names_stay() -> None:
    """Names that only resemble a secret's keep their text."""
    assert len(HARMLESS_NAMES) >= 30
    assert [name for name in HARMLESS_NAMES if is_secret(name)] == []


@pytest.mark.parametrize("name", LANGGRAPH_NAMES)
def test_langgraphs_own_keys_stay(name: str) -> None:
    """No key that LangGraph uses is masked by default, and those it depends on by no pattern either."""
    assert not is_secret(name)
    if name.startswith("langgraph_") or name in ("run_id", "assistant_id", "graph_id", "parents", "step", "source"):
        assert masked({name: "value"}, mask_keys=["*"])[name] == "value"


def test_numbers_are_never_masked() -> None:
    """Only text is: numbers, booleans and None under a secret's name stay, type included."""
    given = {"max_token": 1024, "access_token": 7, "a_key": 1.5, "has_secret": True, "password": None}
    found = masked(given)
    assert found == given
    assert [type(value) for value in found.values()] == [type(value) for value in given.values()]


def test_what_stands_under_a_secret_name_is_masked_at_any_depth() -> None:
    """Texts and bytes in lists, tuples, sets and dicts below a secret's name are masked, numbers among them are not."""
    given = {
        "credentials": {"user": "ann", "port": 1},
        "cookies": ["a", b"b", 3],
        "tokens": ("x", {"y": "z"}),
        "secrets": {"q"},
        "headers": {"Authorization": "Bearer x", "Accept": "json"},
    }
    before = copy.deepcopy(given)
    assert masked(given) == {
        "credentials": {"user": MASK, "port": 1},
        "cookies": [MASK, MASK, 3],
        "tokens": (MASK, {"y": MASK}),
        "secrets": {MASK},
        "headers": {"Authorization": MASK, "Accept": "json"},
    }
    assert given == before


def test_a_secret_str_is_masked_whatever_its_key() -> None:
    """A pydantic secret in metadata never reaches the file."""
    assert masked({"note": SecretStr(CANARY), "deep": [{"n": SecretStr(CANARY)}]}) == {
        "note": MASK,
        "deep": [{"n": MASK}],
    }


def test_langgraphs_records_are_not_looked_into() -> None:
    """A namespace or a channel that is called like a secret is no secret: LangGraph reads these records back."""
    given = {"parents": {"refresh_token": "1f0-checkpoint"}, "counters_since_delta_snapshot": {"api_key": ["a"]}}
    assert masked(given) == given


def test_patterns_of_the_user() -> None:
    """`mask_keys` masks further names and, with "!", leaves one in clear; its case and dashes don't matter."""
    given = {"ssn": "1", "cardPin": "2", "shard_key": "3", "api_key": "4", "city": "5"}
    found = masked(given, mask_keys=["SSN", "*-pin", "!shard_*"])
    assert found == {"ssn": MASK, "cardPin": MASK, "shard_key": "3", "api_key": MASK, "city": "5"}


def test_the_off_switch() -> None:
    """`mask_secrets=False` stores what was given."""
    assert masked({"api_key": "in clear"}, mask_secrets=False) == {"api_key": "in clear"}


@pytest.mark.parametrize("wrong", ["*_pin", [""], ["!"], [1], 5, None])
def test_wrong_patterns_are_refused(wrong: Any) -> None:
    """A pattern list that can't be right is a UsageError when the saver is made."""
    with pytest.raises(UsageError, match="mask_keys"):
        parse({"mask_keys": wrong})


def test_options_from_the_environment() -> None:
    """The three options are read from variables too."""
    found = from_environment(
        {
            "AGENT_CKPT_MASK_KEYS": "ssn, *_pin",
            "AGENT_CKPT_MASK_SECRETS": "false",
            "AGENT_CKPT_PLAINTEXT_SECRETS": "allow",
        }
    )
    assert Options(**found) == Options(mask_keys=("ssn", "*_pin"), mask_secrets=False, plaintext_secrets="allow")


def test_metadata_that_holds_itself_is_masked_whole() -> None:
    """What can't be searched to its end is not stored unsearched, and makes no save fail."""
    loop: dict[str, Any] = {}
    loop["again"] = loop
    assert masked({"x": loop, "y": "z"}) == {"x": MASK, "y": "z"}


def test_our_own_key_never_reaches_metadata() -> None:
    """`expected_revision` is said to one call; stored, it would speak to later ones."""
    config = {"configurable": {"thread_id": "t", "expected_revision": 12, "stale_checkpoint": "refuse", "tenant": "a"}}
    for options in (Options(), Options(mask_secrets=False)):
        assert metadata_of(config, {}, options) == {"tenant": "a"}


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
def test_a_run_with_secrets_in_its_config(
    open_saver: Callable[..., AgentSaver], form: str, path: Path, durability: str
) -> None:
    """B15: keys in configurable and metadata of a real run are in no file and in nothing read back; nodes see them."""
    api = Api(open_saver(compression="none"), form)
    seen: list[Any] = []
    graph = counting(api.saver, seen)
    config: Any = {
        "configurable": {"thread_id": "1", "openai_api_key": CANARY, "max_tokens": 512, "tenant": "acme"},
        "metadata": {"Authorization": f"Bearer {CANARY}", "customer": "c-1"},
    }
    before = copy.deepcopy(config)
    api.invoke(graph, {"n": 1}, config, durability=durability)
    api.update_state(graph, config, {"n": 5})
    assert config == before
    assert {each["openai_api_key"] for each in seen} == {CANARY}, "nodes see what they were given"
    states = api.history(graph, config)
    assert states
    for state in states:
        stored = state.metadata
        assert (stored["openai_api_key"], stored["max_tokens"], stored["tenant"]) == (MASK, 512, "acme")
        assert (stored["Authorization"], stored["customer"]) == (MASK, "c-1")
        assert CANARY not in repr(state)
    assert found_in(path, CANARY) == []


def test_filters_work_on_what_is_stored(api: Api) -> None:
    """Filters on LangGraph's and harmless keys find what they did; under a masked key only the mask is found."""
    graph = counting(api.saver)
    for thread, secret in (("a", "one"), ("b", "two")):
        config: Any = {"configurable": {"thread_id": thread, "api_key": secret, "assistant_id": "x"}, "run_id": None}
        api.invoke(graph, {"n": 1}, config)
    everything = api.list(None)
    assert len(api.list(None, filter={"assistant_id": "x"})) == len(everything)
    assert len(api.list(None, filter={"source": "input"})) == 2
    assert api.list(None, filter={"api_key": "one"}) == []
    assert len(api.list(None, filter={"api_key": MASK})) == len(everything), "two secrets can't be told apart"


def test_unmasked_when_switched_off(open_saver: Callable[..., AgentSaver], form: str, path: Path) -> None:
    """The canary search can fail: with the switch off the text is in the file."""
    api = Api(open_saver(mask_secrets=False, compression="none"), form)
    api.invoke(counting(api.saver), {"n": 1}, {"configurable": {"thread_id": "1", "openai_api_key": CANARY}})
    assert found_in(path, CANARY) == [("agent.db-wal", CANARY)]
    api.saver.close()
    assert found_in(path, CANARY) == [("agent.db", CANARY)]
