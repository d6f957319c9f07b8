"""LangChain messages: the fast path gives back what the generic serializer would, or leaves the message to it."""

from __future__ import annotations

import copy
import enum
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, TypedDict

import ormsgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core import messages as lc
from langgraph.checkpoint.base.id import uuid6
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.graph import START, MessagesState, StateGraph

from agent_ckpt import AgentSaver, ValueNotStorableError
from agent_ckpt.codec import frame, messages, stretches
from agent_ckpt.codec import pack as pack_module
from agent_ckpt.codec.pack import pack, unpack
from agent_ckpt.codec.values import ValueCodec
from tests.agents import Graph
from tests.conftest import Api
from tests.threads import Thread, plain, query, values_at

SERDE = JsonPlusSerializer(allowed_msgpack_modules=[("tests.test_messages", "Mood")])
BLOCKS: list[Any] = [
    {"type": "text", "text": "look: naïve 🙂"},
    {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA", "detail": "low"}},
    {"type": "reasoning", "reasoning": "because", "extras": {"signature": "s"}},
    {"type": "tool_use", "id": "c", "name": "f", "input": {"a": [1, 2.5, None, True]}},
    "a bare text among blocks",
]
CALL: Any = {"name": "search", "args": {"q": "x", "n": 3, "deep": [{"a": None}]}, "id": "call-1", "type": "tool_call"}
BAD_CALL: Any = {"name": "f", "args": "{not json", "id": "c", "error": "parse", "type": "invalid_tool_call"}
USAGE: Any = {
    "input_tokens": 5, "output_tokens": 7, "total_tokens": 12,
    "input_token_details": {"cache_read": 2}, "output_token_details": {"reasoning": 3},
}  # fmt: skip
CHUNK: Any = {"name": "f", "args": '{"a":', "id": "c", "index": 0, "type": "tool_call_chunk"}
FULL: dict[str, Any] = {
    "name": "someone",
    "id": "run-1",
    "additional_kwargs": {"refusal": None, "nested": {"a": [1, 2, {"b": -0.0}]}, "big": 2**63},
    "response_metadata": {"model": "m", "logprobs": [0.5, -1e300], "bytes": b"\x00\xff"},
}


class Mood(enum.Enum):
    GOOD = "good"


def corpus() -> dict[str, lc.BaseMessage]:
    """At least one bare and one full message of every class."""
    made: dict[str, lc.BaseMessage] = {}
    for cls in (lc.HumanMessage, lc.SystemMessage, lc.HumanMessageChunk, lc.SystemMessageChunk):
        made[f"{cls.__name__} bare"] = cls("hi")
        made[f"{cls.__name__} full"] = cls(BLOCKS, **FULL)
    for cls in (lc.AIMessage, lc.AIMessageChunk):
        made[f"{cls.__name__} bare"] = cls("")
        made[f"{cls.__name__} full"] = cls(
            BLOCKS, **FULL, tool_calls=[CALL, {**CALL, "id": None}], invalid_tool_calls=[BAD_CALL], usage_metadata=USAGE
        )
    made["AIMessage from blocks"] = lc.AIMessage(content_blocks=[{"type": "text", "text": "hi"}, CALL])
    made["AIMessageChunk of a call"] = lc.AIMessageChunk("", tool_call_chunks=[CHUNK], chunk_position="last")
    made["AIMessageChunk added"] = lc.AIMessageChunk("a", id="1") + lc.AIMessageChunk("b", usage_metadata=USAGE)
    for cls in (lc.ToolMessage, lc.ToolMessageChunk):
        made[f"{cls.__name__} bare"] = cls("ok", tool_call_id="c")
        made[f"{cls.__name__} full"] = cls(
            BLOCKS[:2],
            **FULL,
            tool_call_id="c",
            status="error",
            artifact={"rows": [[1, 2], ["a", None]], "raw": b"\x00"},
        )
    for cls in (lc.FunctionMessage, lc.FunctionMessageChunk):
        made[f"{cls.__name__}"] = cls(content="x", **FULL)
    for cls in (lc.ChatMessage, lc.ChatMessageChunk):
        made[f"{cls.__name__}"] = cls(content="x", role="critic", **FULL)
    made["RemoveMessage"] = lc.RemoveMessage(id="gone")
    made["long"] = lc.HumanMessage("word naïve 🙂 " * 20_000, id="long")
    made["empty blocks"] = lc.HumanMessage([])
    made["with extras"] = lc.HumanMessage("hi", favourite=[1, {"a": 2}], id="e")
    made["with a nul"] = lc.HumanMessage("a\x00b")
    made["set later"] = lc.AIMessage("hi")
    made["set later"].id = "later"
    made["set later"].name = None
    made["extra set later"] = lc.HumanMessage("hi")
    made["extra set later"].note = "n"  # type: ignore[attr-defined]
    made["copied with update"] = lc.AIMessage("hi", id="1").model_copy(update={"content": "ho", "name": "n"})
    made["constructed"] = lc.HumanMessage.model_construct(content="c", type="human")
    return made


CORPUS = corpus()


def test_the_corpus_holds_every_class() -> None:
    """Each class that has a number is in the corpus, and the numbers are those of the first release."""
    assert {type(message) for message in CORPUS.values()} == set(messages.CLASSES)
    names = [cls.__name__ for cls in messages.CLASSES]
    assert names == [
        "HumanMessage", "AIMessage", "ToolMessage", "SystemMessage", "FunctionMessage", "ChatMessage", "RemoveMessage",
        "HumanMessageChunk", "AIMessageChunk", "ToolMessageChunk", "SystemMessageChunk", "FunctionMessageChunk",
        "ChatMessageChunk",
    ]  # fmt: skip


def same(one: Any, other: Any) -> None:
    """Equal in every way that pydantic knows, and in the types of what the fields hold."""
    assert type(one) is type(other)
    assert one == other
    assert one.__dict__ == other.__dict__
    assert list(one.__dict__) == list(other.__dict__)
    assert repr(one.__dict__) == repr(other.__dict__)
    assert one.model_fields_set == other.model_fields_set
    assert one.__pydantic_extra__ == other.__pydantic_extra__
    assert one.__pydantic_private__ == other.__pydantic_private__
    assert one.model_dump() == other.model_dump()


@pytest.mark.parametrize("name", CORPUS)
def test_a_message_comes_back_equal_by_the_fast_path(name: str) -> None:
    """Type, value, fields in their order, set fields and extras are those of the message; and it can be used."""
    message = CORPUS[name]
    codec = ValueCodec(JsonPlusSerializer())
    body = codec.encode(message)
    assert body[0] == frame.MESSAGE, "it left the fast path"
    found = codec.decode(body)
    same(found, message)
    assert codec.encode(found) == body, "storing it again would store it anew"
    assert codec.encode_many([message]) == [body]
    copied = found.model_copy(update={"id": "other"})
    assert (copied.id, found.id) == ("other", message.id)
    assert found.text == message.text
    assert copy.deepcopy(found) == message


@pytest.mark.parametrize("name", CORPUS)
def test_the_fast_path_equals_the_generic_serializer(name: str) -> None:
    """What the generic serializer keeps of a message is equal to what the fast path gives back."""
    message = CORPUS[name]
    codec = ValueCodec(JsonPlusSerializer())
    generic = SERDE.loads_typed(SERDE.dumps_typed(message))
    if name == "AIMessageChunk full":
        # The generic serializer runs the constructor again, which makes tool calls of other chunks' fields.
        assert generic != message
        assert codec.decode(codec.encode(message)) == message
    else:
        assert codec.decode(codec.encode(message)) == generic == message


def test_many_messages_in_one_call() -> None:
    """A list of all of them at once gives what each gives alone, in order."""
    codec = ValueCodec(JsonPlusSerializer())
    bodies = codec.encode_many(list(CORPUS.values()))
    for message, found in zip(CORPUS.values(), codec.decode_many(bodies), strict=True):
        same(found, message)


NOT_PLAIN: dict[str, Callable[[], Any]] = {
    "tuple": lambda: (1, 2),
    "datetime": lambda: datetime(2026, 1, 2, tzinfo=UTC),
    "enum": lambda: Mood.GOOD,
    "set": lambda: {1, 2},
    "int keys": lambda: {1: "a"},
    "message": lambda: lc.HumanMessage("inner", id="i"),
    "nested tuple": lambda: [{"a": (1,)}],
}


@pytest.mark.parametrize("kind", NOT_PLAIN)
@pytest.mark.parametrize("place", ["additional_kwargs", "response_metadata", "artifact", "extra"])
def test_a_message_that_holds_more_than_plain_data_is_typed(kind: str, place: str) -> None:
    """A tuple, datetime, enum, set or object anywhere inside comes back as it was, and so does the message."""
    inside = NOT_PLAIN[kind]()
    message: lc.BaseMessage
    if place == "artifact":
        message = lc.ToolMessage("x", tool_call_id="c", artifact=inside)
    elif place == "extra":
        message = lc.HumanMessage("x", extra_field=inside)
    else:
        message = lc.AIMessage("x", **{place: {"k": inside}})
    codec = ValueCodec(SERDE)
    assert codec.splits
    body = codec.encode(message)
    assert body[0] == frame.TYPED
    found = codec.decode(body)
    assert type(found) is type(message)
    assert found == message
    assert repr(found.__dict__) == repr(message.__dict__)
    assert repr(found.__pydantic_extra__) == repr(message.__pydantic_extra__)
    assert found.__pydantic_fields_set__ == message.__pydantic_fields_set__


class Mine(lc.HumanMessage):
    mark: int = 1


def test_subclasses_are_not_taken_for_their_base() -> None:
    """A subclass of a message class comes back as itself."""

    class Local(lc.HumanMessage):
        mark: int = 1

    codec = ValueCodec(JsonPlusSerializer())
    for cls in (Mine, Local):
        assert cls not in messages.NUMBERS
        found = codec.decode(codec.encode(cls("x", mark=2)))
        assert type(found) is cls
        assert found == cls("x", mark=2)


def test_what_only_looks_equal_is_told_apart() -> None:
    """True and 1, 0.0 and -0.0, an unset and a set None: each message has bytes of its own."""
    made = [
        lc.AIMessage("x", additional_kwargs={"a": value}) for value in (1, 1.0, True, 0.0, -0.0, None, "1")
    ] + [lc.AIMessage("x"), lc.AIMessage("x", name=None), lc.AIMessage("x", id=None), lc.HumanMessage("x")]  # fmt: skip
    codec = ValueCodec(JsonPlusSerializer())
    bodies = codec.encode_many(made)
    assert len(set(bodies)) == len(made)
    for message, found in zip(made, codec.decode_many(bodies), strict=True):
        same(found, message)


# Other releases of langchain-core


def test_fields_that_a_newer_class_has_get_their_defaults() -> None:
    """A message packed when its class had fewer fields gets the defaults of the new ones, each its own object."""
    whole = lc.AIMessage("hi", id="1", name="n")
    packed = messages.encode(whole, messages.NUMBERS[lc.AIMessage])
    assert packed is not None
    number, names, fields = unpack(packed)
    for name in ("invalid_tool_calls", "usage_metadata", "response_metadata"):
        del fields[name]
    older = pack([number, names, fields])
    one, other = messages.rebuild([unpack(older), unpack(older)])
    assert one == whole
    assert one.invalid_tool_calls == []
    assert one.invalid_tool_calls is not other.invalid_tool_calls
    assert one.model_fields_set == whole.model_fields_set


def test_a_class_of_a_later_release_is_an_error() -> None:
    """A class number that this release doesn't know is refused, not taken for another class."""
    packed = messages.encode(lc.HumanMessage("hi"), 0)
    assert packed is not None
    _, *rest = unpack(packed)
    for number in (len(messages.CLASSES), 200):
        with pytest.raises(Exception, match=r".") as caught:
            ValueCodec(JsonPlusSerializer()).decode(bytes((frame.MESSAGE,)) + pack([number, *rest]))
        assert type(caught.value).__name__ == "DecodeError"


# Through a store


def test_all_of_them_through_a_store(open_saver: Callable[..., AgentSaver], path: Path, form: str) -> None:
    """Every message of the corpus, as a channel and as a task's write, after a reopening; each is stored once."""
    saver = open_saver()
    thread = Thread(Api(saver, form))
    everything = list(CORPUS.values())
    thread.put(start=1)
    thread.writes(("messages", everything))
    blobs = query(path, "SELECT count(*) FROM blobs")[0][0]
    thread.put(messages=everything)
    assert query(path, "SELECT count(*) FROM blobs")[0][0] - blobs <= 2, "messages of a write were stored again"
    saver.close()
    api = Api(open_saver(), form)
    for message, found in zip(everything, values_at(api, thread.config)["messages"], strict=True):
        same(found, message)
    written = api.get_tuple(plain(thread.configs[0])).pending_writes[0][2]
    for message, found in zip(everything, written, strict=True):
        same(found, message)


def conversation(size: int) -> list[lc.BaseMessage]:
    """Many messages, all of them objects of their own, of every kind of the corpus that the fast paths take."""
    fast = [m for m in CORPUS.values() if not m.__pydantic_extra__ and m.__pydantic_private__ is None]
    usual = [m for m in fast if _packs(m)]
    return [copy.deepcopy(usual[at % len(usual)]) for at in range(size)]


def _packs(message: lc.BaseMessage) -> bool:
    return messages.encode(message, messages.NUMBERS[type(message)]) is not None


@pytest.mark.parametrize("cls", [lc.AIMessage, lc.ToolMessage, None])
def test_a_long_list_read_again_and_again(cls: type | None, api: Api) -> None:
    """Every read of a head of 150 messages gives equal messages of their own, whatever is done to earlier ones."""
    wanted = [m for m in conversation(1000) if cls is None or type(m) is cls][:150]
    wanted += [copy.deepcopy(wanted[0]) for _ in range(150 - len(wanted))]
    thread = Thread(api)
    thread.put(messages=wanted)
    seen: list[Any] = []
    for _ in range(4):
        found = values_at(api, thread.config)["messages"]
        for message, other in zip(wanted, found, strict=True):
            same(other, message)
        assert not {id(part) for part in _mutable(found)} & {id(part) for part in _mutable(seen)}
        for message in found:
            message.additional_kwargs["edited"] = [1]
            message.response_metadata.clear()
            message.id = "another"
        seen += found


def _mutable(found: Any) -> list[Any]:
    parts: list[Any] = []
    stack = list(found)
    while stack:
        part = stack.pop()
        if isinstance(part, lc.BaseMessage):
            parts += [part, part.__dict__, part.__pydantic_fields_set__, part.__pydantic_extra__]
            stack += part.__dict__.values()
        elif isinstance(part, (dict, list)):
            parts.append(part)
            stack += part.values() if isinstance(part, dict) else part
    return parts


@pytest.mark.parametrize("at", [3, 64, 149])
@pytest.mark.parametrize(
    "edit",
    [
        lambda m: setattr(m, "content", "edited"),
        lambda m: m.response_metadata.update(flag=1),
        lambda m: m.response_metadata.update(zero=-0.0),
        lambda m: m.additional_kwargs.setdefault("deep", {}).setdefault("list", []).append(True),
        lambda m: m.__pydantic_fields_set__.add("name"),
        lambda m: m.__pydantic_extra__.update(more=1),
        lambda m: m.__dict__.update(content=m.__dict__.pop("content")),
    ],
)
def test_an_edit_in_place_in_a_long_list_is_stored(edit: Callable[[Any], Any], at: int, api: Api) -> None:
    """Edits in place of one of 150 known messages are seen, also such as only look like nothing."""
    thread, messages_ = Thread(api), conversation(150)
    assert stretches.Run.of(messages_) is not None
    messages_[at] = lc.AIMessage("x", response_metadata={"flag": True, "zero": 0.0})
    for _ in range(2):
        thread.put(messages=messages_)
    edit(messages_[at])
    wanted = copy.deepcopy(messages_)
    thread.put(messages=[*messages_, lc.HumanMessage("next")])
    found = values_at(api, thread.config)["messages"]
    for message, other in zip(wanted, found[:-1], strict=True):
        same(other, message)
    assert list(found[at].__dict__) == list(wanted[at].__dict__)


def _answering(saver: AgentSaver) -> Graph:
    def answer(state: MessagesState) -> dict[str, Any]:
        state["messages"][0].content += " edited"  # type: ignore[operator]
        return {"messages": [lc.AIMessage(f"{len(state['messages'])}", id=f"a{len(state['messages'])}")]}

    builder = StateGraph(MessagesState)
    builder.add_node("answer", answer)
    builder.add_edge(START, "answer")
    return builder.compile(checkpointer=saver)


def test_what_a_run_was_given_is_not_compared_before_any_code_has_seen_it(
    saver: AgentSaver, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The puts before a run's first node look at no message of a long list; the later ones do, and store its edits."""
    at: Any = {"configurable": {"thread_id": "t"}}
    graph = _answering(saver)
    compared = 0
    same = stretches.Run.same

    def counting(run: stretches.Run, values: list[Any]) -> int:
        nonlocal compared
        compared += 1
        return same(run, values)

    monkeypatch.setattr(stretches.Run, "same", counting)
    for turn in range(3):
        compared = 0
        more = 150 if turn == 0 else 1
        api.invoke(
            graph, {"messages": [lc.HumanMessage("hi", id=f"h{turn}.{n}") for n in range(more)]}, at, durability="sync"
        )
    history = list(saver.list(at))
    assert [each.metadata["source"] for each in history[:3]] == ["loop", "loop", "input"]
    assert compared == 1
    contents = [each.checkpoint["channel_values"]["messages"][0].content for each in history[:3]]
    assert contents == [f"hi{' edited' * count}" for count in (3, 2, 2)]


def _stamping(left: list[Any], right: list[Any]) -> list[Any]:
    for message in left:
        message.additional_kwargs["stamped"] = message.additional_kwargs.get("stamped", 0) + 1
    return [*left, *right]


class Stamped(TypedDict):
    messages: Annotated[list[Any], _stamping]


@pytest.mark.parametrize("nested", [False, True], ids=["root", "subgraph"])
def test_a_reducer_that_edits_what_is_there_is_seen(nested: bool, saver: AgentSaver, api: Api) -> None:
    """Only LangGraph's own reducer is trusted to change no message: what another one edits before the first node runs
    is stored with the input, in a subgraph too whose parent has a channel of the same name."""

    builder = StateGraph(Stamped)
    builder.add_node("idle", lambda state: None)
    builder.add_edge(START, "idle")
    graph: Graph = builder.compile(checkpointer=True if nested else saver)
    if nested:
        outer = StateGraph(MessagesState)
        outer.add_node("inner", graph)
        outer.add_edge(START, "inner")
        graph = outer.compile(checkpointer=saver)
    at: Any = {"configurable": {"thread_id": "t"}}
    for turn in range(4):
        more = 150 if turn == 0 else 1
        api.invoke(
            graph, {"messages": [lc.HumanMessage("hi", id=f"h{turn}.{n}") for n in range(more)]}, at, durability="sync"
        )
    ns = {"thread_id": "t", "checkpoint_ns": "inner" if nested else ""}
    last, applied = list(saver.list({"configurable": ns}, limit=2))
    stamps = [each.checkpoint["channel_values"]["messages"][0].additional_kwargs for each in (last, applied)]
    assert stamps == [{"stamped": 3}] * 2


def test_a_raw_restore_is_compared_at_its_first_put(api: Api) -> None:
    """Who restores without a graph can edit at once: also a put with source "input" stores it."""
    thread = Thread(api)
    for _ in range(2):
        thread.put(messages=conversation(150))
    values_at(api, thread.config)
    restored = api.get_tuple(thread.config)
    assert restored is not None
    checkpoint = {**restored.checkpoint, "id": str(uuid6())}
    checkpoint["channel_values"]["messages"][7].content = "edited"
    put = api.put(restored.config, checkpoint, {"source": "input", "step": 5, "parents": {}}, {})
    assert values_at(api, put)["messages"][7].content == "edited"


@pytest.mark.parametrize("other", [bytearray(b"raw"), memoryview(b"raw"), b"raw"], ids=["bytearray", "view", "bytes"])
@pytest.mark.parametrize("before", [b"raw", "raw"], ids=["bytes", "text"])
def test_a_byte_string_that_takes_anothers_place_is_seen(before: Any, other: Any) -> None:
    """What msgpack packs like a byte string counts as the same only where it is one, in a run with byte strings and in
    one without; numbers that look like their marks change nothing."""
    made = conversation(stretches.PACKED + 22)
    at = stretches.PACKED + 6
    made[at] = lc.HumanMessage("x", additional_kwargs={"raw": before, "number": 0xC4C5})
    run = stretches.Run.of(made)
    assert run is not None
    assert run.same(made) == len(made)
    made[at].additional_kwargs["raw"] = other
    assert run.same(made) == (len(made) if type(other) is type(before) else stretches.PACKED)


@pytest.mark.parametrize("piece", [ormsgpack.Ext(3, b"\x90"), ormsgpack.Fragment(b"\xa3raw")], ids=["ext", "fragment"])
def test_a_piece_of_msgpack_in_a_message_is_refused(piece: Any, api: Api) -> None:
    """What msgpack would pack as something else is refused in a message, also where it takes the place of its like."""
    thread, made = Thread(api), conversation(150)
    made[140] = lc.HumanMessage("x", additional_kwargs={"raw": "raw"})
    for _ in range(2):
        thread.put(messages=made)
    made[140].additional_kwargs["raw"] = piece
    with pytest.raises(ValueNotStorableError) as caught:
        thread.put(messages=made)
    assert caught.value.path == "channel_values.messages[140].additional_kwargs['raw']"


def test_nobody_else_keeps_pieces_of_msgpack() -> None:
    """Importing what agents are made of leaves no piece of msgpack about, so that values need no look."""
    code = (
        "import agent_ckpt; from agent_ckpt.codec import values, pack; import langgraph.graph, langgraph.prebuilt, "
        "langchain.agents, langchain_core.messages; print(pack.are_extensions_about())"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"


def test_both_ways_to_the_parts_of_messages_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where Python's collector finds the parts of a message in another order, they are asked for one by one."""
    made = conversation(150)
    assert stretches._PLACES is not None
    bodies = ValueCodec(SERDE).encode_many(made)
    monkeypatch.setattr(stretches, "_PLACES", None)
    assert ValueCodec(SERDE).encode_many(made) == bodies
    run = stretches.Run.of(made)
    assert run is not None
    assert run.same(made) == 150
    made[140].__pydantic_private__ = {"_a": 1}
    assert run.same(made) == stretches.PACKED


def test_a_message_without_one_of_its_parts_shifts_no_other() -> None:
    """Of a message whose attribute was deleted, and one that has more of them, none is taken for another's."""
    made = conversation(8)
    lacking, odd = lc.HumanMessage("x"), [{}, set(), None, {}, lc.HumanMessage]
    del lacking.__pydantic_private__
    for values in ([*made, lacking], [*made, *odd], [*made, odd, 1], [*made, [*odd, *odd], 1]):
        assert stretches.pack_stretch(values) is None


def test_an_interrupt_while_a_value_is_looked_through_is_told() -> None:
    """orjson would make an error of its own of it, and the value would pass for one that can't be kept."""

    def interrupt(frame: Any, event: str, arg: Any) -> None:
        if event == "call" and frame.f_code.co_name == "<lambda>" and frame.f_code.co_filename == pack_module.__file__:
            raise KeyboardInterrupt

    sys.setprofile(interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            pack_module.look_through([b"raw"])
    finally:
        sys.setprofile(None)


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(2**63), 2**64 - 1), st.floats(allow_nan=False), TEXT),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(TEXT, inner, max_size=3)),
    max_leaves=8,
)
OPTIONAL = {
    "id": st.none() | TEXT,
    "name": st.none() | TEXT,
    "additional_kwargs": st.dictionaries(TEXT, JSON, max_size=3),
    "response_metadata": st.dictionaries(TEXT, JSON, max_size=3),
}
TEXT_BLOCK = st.fixed_dictionaries({"type": st.just("text"), "text": TEXT})
ANY_MESSAGE = st.one_of(
    st.builds(
        lambda cls, content, fields: cls(content=content, **fields),
        st.sampled_from([lc.HumanMessage, lc.AIMessage, lc.SystemMessage, lc.AIMessageChunk]),
        st.one_of(TEXT, st.lists(st.one_of(TEXT, TEXT_BLOCK), max_size=3)),
        st.fixed_dictionaries({}, optional=OPTIONAL),
    ),
    st.builds(
        lambda content, call, artifact, fields: lc.ToolMessage(content, tool_call_id=call, artifact=artifact, **fields),
        TEXT, TEXT, JSON, st.fixed_dictionaries({}, optional=OPTIONAL),
    ),
)  # fmt: skip


@given(st.lists(ANY_MESSAGE, max_size=4))
@settings(deadline=None, derandomize=True, max_examples=150)
def test_generated_messages_come_back_equal(made: list[Any]) -> None:
    """Messages of generated fields come back equal in every way, alone and together."""
    codec = ValueCodec(JsonPlusSerializer())
    for message, found in zip(made, codec.decode_many(codec.encode_many(made)) if made else [], strict=True):
        same(found, message)
        generic = SERDE.loads_typed(SERDE.dumps_typed(message))
        if generic == message:
            assert found == generic
