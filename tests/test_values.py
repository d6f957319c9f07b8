"""Values through put and get_tuple on a reopened file: equal to what was stored, type included, and nobody else's."""

from __future__ import annotations

import copy
import dataclasses
import decimal
import enum
import pickle
import random
import uuid
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta
from pathlib import Path
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from langchain_core.documents import Document
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.types import Interrupt, Send
from pydantic import BaseModel

from agent_ckpt import AgentSaver
from agent_ckpt.codec import pieces, plan
from agent_ckpt.errors import ThreadConflictError, ValueNotStorableError
from tests.conftest import Api
from tests.threads import Thread, plain, query, row_bytes, values_at

ALLOWED = [("tests.test_values", name) for name in ("Colour", "Level", "Point", "Frozen", "Person", "Pair")]


class Colour(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 3


@dataclasses.dataclass
class Point:
    x: int
    y: Any = None


@dataclasses.dataclass(frozen=True)
class Frozen:
    names: tuple[str, ...]


class Person(BaseModel):
    name: str
    age: int = 3
    inner: Any = None


class Pair(NamedTuple):
    left: int
    right: str


class Text(str):
    pass


def same(one: Any, other: Any) -> bool:
    """Equal in value, in type at every depth of plain containers, and in the order of keys."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[k], other[k]) for k in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()
    if isinstance(one, float):
        return repr(one) == repr(other)
    return bool(one == other)


@pytest.fixture
def reread(path: Path, form: str) -> Callable[..., Any]:
    """Stores a value as a channel and as a pending write, reopens the file, and gives back both."""

    def through(value: Any, **options: Any) -> Any:
        with AgentSaver(path, **options) as first:
            thread = Thread(Api(first, form))
            thread.put(other=1, value=value)
            thread.writes(("value", value))
        with AgentSaver(path, **options) as second:
            found = Api(second, form).get_tuple(plain(thread.config))
            assert not second.verify().findings
        assert found.checkpoint["channel_values"]["other"] == 1
        ((_, _, written),) = found.pending_writes
        return found.checkpoint["channel_values"]["value"], written

    return through


dice = random.Random(7)
WORDS = " ".join(dice.choices(["alpha", "beta", "gamma", "naïve", "🙂", "delta"], k=40_000))
EDGES = [0, 1, plan.INLINE_UP_TO - 3, plan.INLINE_UP_TO, plan.INLINE_UP_TO + 1, 255, 256, 257, 1023, 1024, 1025]
EDGES += [pieces.CUT_ABOVE - 1, pieces.CUT_ABOVE, pieces.CUT_ABOVE + 1, 32 * 1024, 100_000]
PLAIN: dict[str, Any] = {
    "none": None,
    "true": True,
    "zero": 0,
    "minus zero": -0.0,
    "infinity": float("inf"),
    "not a number": float("nan"),
    "small int": -(2**63),
    "large int": 2**64 - 1,
    "empty text": "",
    "nul text": "a\x00b",
    "empty list": [],
    "empty dict": {},
    "empty bytes": b"",
    "list of empties": [None, [], {}, "", b"", [[]], [{}], {"": {}}],
    "numbers": list(range(5000)),
    "floats": [dice.random() for _ in range(3000)],
    "mixed numbers": [1, 1.0, True, 0, False, -0.0, 0.0] * 100,
    "nested": {"a": [{"b": [[1, 2], {"c": None}]}, "x" * 500], "d": {"e": {"f": {"g": list(range(300))}}}},
    "deep": None,
    "many files": {f"dir/file{i}.txt": f"{i} " * 15_000 for i in range(200)},
    "big dicts in a list": [{f"k{j}": f"{i}-{j}" * 40 for j in range(60)} for i in range(30)],
    "big lists in a dict": {f"k{i}": [f"{i}-{j} " * 9 for j in range(200)] for i in range(12)},
    "long texts in a list": [WORDS[i:] for i in range(0, 5000, 1000)],
    "long bytes in a dict": {"a": dice.randbytes(40_000), "b": bytes(50_000)},
    "the same again": ["one and the same item, longer than inline, again and again"] * 700,
    "equal parts": {f"k{i}": "the same text under each key, longer than what stands inline" for i in range(100)},
    "odd keys": {"": 1, " ": 2, "a.b": 3, "['x']": 4, "\x00": 5, "ключ": 6, **{f"{i}" * 30: i for i in range(60)}},
    "order of keys": {k: k * 30 for k in dice.sample([f"key{i}" for i in range(200)], 200)},
    "list like a reference": [[1, 2, b"12345678", [3]], [7, 1, b"12345678", [1]]] * 50,
    "one large item": ["x" * 300_000],
    "long text without structure": WORDS,
}
deep: Any = "bottom"
for _ in range(60):
    deep = {"down": [deep], "filler": "f" * 200}
PLAIN["deep"] = deep
for size in EDGES:
    PLAIN[f"{size} letters"] = "".join(dice.choices("abc ", k=size))
    PLAIN[f"{size} wide letters"] = "".join(dice.choices("äß🙂 ", k=size))
    PLAIN[f"{size} bytes"] = dice.randbytes(size)
    PLAIN[f"a list of {size} letters"] = ["".join(dice.choices("abc ", k=size // 3)) for _ in range(3)]
    PLAIN[f"a dict of {size} letters"] = {f"k{i}": "".join(dice.choices("abc ", k=size // 3)) for i in range(3)}


@pytest.mark.parametrize("name", PLAIN)
def test_plain_values_come_back_the_same(name: str, reread: Callable[..., Any]) -> None:
    """P4: plain values are equal in value, type, sign of zero and order of keys, as a channel and as a task's write."""
    value = PLAIN[name]
    before = copy.deepcopy(value)
    for found in reread(value):
        assert same(found, before)
    assert same(value, before), "the caller's own value was changed"


@pytest.mark.parametrize("name", ["numbers", "many files", "long text without structure", "nested", "100000 bytes"])
def test_without_compression(name: str, reread: Callable[..., Any]) -> None:
    """`compression="none"` stores and gives back the same."""
    for found in reread(PLAIN[name], compression="none"):
        assert same(found, PLAIN[name])


def test_compression_may_change_between_runs(open_saver: Callable[..., AgentSaver], form: str) -> None:
    """Both kinds of compression are read whatever the option says, and a value is stored once under both."""
    saver = open_saver(compression="none")
    first = Thread(Api(saver, form))
    first.put(value=PLAIN["nested"])
    saver.close()
    again = Api(open_saver(), form)
    assert same(values_at(again, first.config)["value"], PLAIN["nested"])
    first.api, first.config = again, again.get_tuple(plain(first.config)).config
    first.put(value=PLAIN["nested"], more="text " * 100)
    assert same(values_at(again, first.config)["value"], PLAIN["nested"])


OTHERS: dict[str, Any] = {
    "tuple": (1, "a", None),
    "tuples inside": {"a": [(1, (2, 3)), {"b": (4,)}], "pad": "x" * 2000},
    "set": {1, 2, 3},
    "frozenset inside": [frozenset({"a"}), {"k": {1}}],
    "int keys": {1: "a", 2: {"b": 3}},
    "int keys, long": dict.fromkeys(range(800), "a text of some length"),
    "pydantic": Person(name="x", inner=[1, {"a": 2}]),
    "pydantic in list": [Person(name=f"p{i}") for i in range(40)],
    "pydantic, long": Person(name="n" * 30_000),
    "dataclass": Point(1, [2, 3]),
    "dataclass in dict": {"p": Point(1, "y" * 3000), "q": Frozen(("a", "b"))},
    "enum": Colour.RED,
    "enums in list": [Colour.RED, Level.HIGH],
    "int enum as value": {"level": Level.HIGH},
    "named tuple": Pair(1, "r"),
    "datetime": datetime(2026, 5, 4, 3, 2, 1, 7, tzinfo=UTC),
    "datetimes": [datetime(2026, 1, 1), date(2026, 1, 2), time(3, 4), timedelta(days=1, microseconds=5)],
    "zone": ZoneInfo("Europe/Berlin"),
    "uuid": uuid.UUID(int=5),
    "decimal": decimal.Decimal("1.50"),
    "path": [Path("a/b")],
    "bytearray": bytearray(b"abc"),
    "document": Document(page_content="text " * 500, metadata={"a": 1}),
    "documents": [Document(page_content=f"text {i} " * 50, metadata={"i": i}, id=str(i)) for i in range(30)],
    "messages": [
        HumanMessage("hi", id="1"),
        AIMessage("a " * 200, id="2", tool_calls=[{"name": "t", "args": {}, "id": "c"}]),
    ],
    "send": [Send("node", {"a": 1})],
    "interrupt": (Interrupt(value={"question": "go?"}, id="i"),),
    "ints in numpy": np.arange(500, dtype="i4").reshape(20, 25),
    "None among objects": [None, Point(1), (None,), {"a": None}],
}


def allowed() -> JsonPlusSerializer:
    return JsonPlusSerializer(allowed_msgpack_modules=ALLOWED)


@pytest.mark.parametrize("name", OTHERS)
def test_other_values_come_back_the_same(name: str, reread: Callable[..., Any]) -> None:
    """P4: objects of every kind come back equal, type included, also where strict mode lets only their classes pass."""
    for found in reread(OTHERS[name], serde=allowed()):
        assert same(found, OTHERS[name])


def test_lists_of_what_is_equal_but_not_the_same(reread: Callable[..., Any]) -> None:
    """1, 1.0 and True, 0.0 and -0.0 are equal to Python; as list items they don't take each other's place."""
    pad = "so long that each stands in a blob of its own " * 4
    value = [
        [1, pad],
        [1.0, pad],
        [True, pad],
        [0.0, pad],
        [-0.0, pad],
        [{"a": 1, "b": 2}, pad],
        [{"b": 2, "a": 1}, pad],
    ]
    for found in reread(value):
        assert same(found, value)


# Changes between steps


EDITS: dict[str, tuple[Any, Any]] = {
    "append": (list(range(1000)), list(range(1001))),
    "prepend": ([f"item {i} of a list" for i in range(600)], [f"item {i} of a list" for i in range(-1, 600)]),
    "middle": ([f"item {i} of a list" for i in range(600)], [f"item {i + (i == 300)} of a list" for i in range(600)]),
    "remove": (
        [f"item {i} of a list" for i in range(600)],
        [f"item {i} of a list" for i in range(600) if i not in (3, 400)],
    ),
    "clear": ([f"item {i} of a list" for i in range(600)], []),
    "reverse": ([f"item {i} of a list" for i in range(600)], [f"item {i} of a list" for i in reversed(range(600))]),
    "key order": ({f"k{i}": "v" * 40 for i in range(60)}, {f"k{i}": "v" * 40 for i in reversed(range(60))}),
    "key renamed": ({f"k{i}": "v" * 40 for i in range(60)}, {f"k{i + (i == 30) * 100}": "v" * 40 for i in range(60)}),
    "type of one": ([1] * 400, [1] * 399 + [True]),
    "sign of zero": ([0.0] * 400, [0.0] * 399 + [-0.0]),
    "list to dict": ([f"item {i} of a list" for i in range(60)], {str(i): f"item {i} of a list" for i in range(60)}),
    "text to bytes": ("x" * 20_000, b"x" * 20_000),
    "text to None": ("x" * 20_000, None),
    "nested": ({"a": {"b": [f"i{i}" * 9 for i in range(500)]}}, {"a": {"b": [f"i{i}" * 9 for i in range(501)]}}),
}


@pytest.mark.parametrize("name", EDITS)
def test_both_sides_of_an_edit_stay_right(name: str, open_saver: Callable[..., AgentSaver], form: str) -> None:
    """After each kind of edit the old and the new checkpoint give back their own value, warm and after a reopening."""
    before, after = EDITS[name]
    saver = open_saver()
    thread = Thread(Api(saver, form))
    for value in (before, after, before, after):
        thread.put(value=value)
    for api in (Api(saver, form), Api(open_saver(), form)):
        for config, value in zip(thread.configs, (before, after, before, after), strict=True):
            assert same(values_at(api, config)["value"], value)


@pytest.mark.parametrize("seed", range(6))
def test_random_edits(seed: int, open_saver: Callable[..., AgentSaver], form: str) -> None:
    """Forty random edits of nested lists and dicts, with a reopening now and then: every checkpoint keeps its value."""
    dice = random.Random(seed)
    saver = open_saver()
    thread = Thread(Api(saver, form))
    state: dict[str, Any] = {"list": [], "dict": {}, "text": ""}
    kept: list[dict[str, Any]] = []
    for step in range(40):
        name = dice.choice(list(state))
        if name == "list":
            items = state["list"]
            at = dice.randrange(len(items) + 1)
            items[at : at + dice.choice([0, 0, 1, 3])] = [_item(dice) for _ in range(dice.choice([0, 1, 1, 40]))]
        elif name == "dict":
            table = state["dict"]
            for _ in range(dice.choice([1, 1, 30])):
                table[f"key {dice.randrange(80)}"] = _item(dice)
            if len(table) > 2 and dice.random() < 0.3:
                del table[dice.choice(list(table))]
        else:
            at = dice.randrange(len(state["text"]) + 1)
            state["text"] = state["text"][:at] + "wörd " * dice.choice([1, 5000]) + state["text"][at + 3 :]
        thread.put(**{name: state[name]})
        kept.append(copy.deepcopy(thread.values))
        if step % 11 == 10:
            saver.close()
            saver = open_saver()
            thread.api = Api(saver, form)
            thread.config = thread.api.get_tuple(plain(thread.config)).config
    for api in (Api(saver, form), Api(open_saver(), form)):
        for config, values in zip(thread.configs, kept, strict=True):
            assert same(values_at(api, config), values)


def _item(dice: random.Random) -> Any:
    return dice.choice(
        [
            dice.randrange(3),
            f"text {dice.randrange(9)}",
            f"a longer text {dice.randrange(99)} " * 8,
            {"id": dice.randrange(9), "parts": [f"p{dice.randrange(4)}"] * 30},
            [dice.randrange(9)] * dice.choice([2, 900]),
            "long " * 4000,
            HumanMessage(f"message {dice.randrange(5)}", id=str(dice.randrange(5))),
        ]
    )


# Arrays


def test_a_checkpoint_is_the_same_where_an_array_is_stored_as_a_difference(
    open_saver: Callable[..., AgentSaver], form: str
) -> None:
    """Put again by a saver that doesn't know the array before it, in whose bytes it is another, it changes nothing;
    with one bit changed it is refused."""
    value = np.random.default_rng(3).normal(size=(64, 128))
    first = Thread(Api(open_saver(), form))
    first.put(array=value, text="x")
    value.view("u8")[:] ^= 1
    first.put(array=value, text="x")
    found = first.api.get_tuple(first.config)
    assert found is not None
    revision = first.api.saver.revision("t")
    parent = plain(found.parent_config)
    other = Api(open_saver(), form)
    put = other.put(parent, found.checkpoint, found.metadata, {})
    assert plain(put) == plain(found.config)
    assert first.api.saver.revision("t") == revision
    value.view("u8")[5, 5] ^= 1
    changed = {**found.checkpoint, "channel_values": {**found.checkpoint["channel_values"], "array": value}}
    with pytest.raises(ThreadConflictError, match="other content"):
        Api(open_saver(), form).put(parent, changed, found.metadata, {})
    # Who was refused once stays refused.
    restored: Any = other.get_tuple(parent)
    for again in (changed, found.checkpoint):
        with pytest.raises(ThreadConflictError, match="other content"):
            other.put(restored.config, again, found.metadata, {})
    assert same(values_at(other, found.config)["array"], found.checkpoint["channel_values"]["array"])


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", ">f4"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_arrays_come_back_and_small_moves_cost_little(
    dtype: str, order: Any, open_saver: Callable[..., AgentSaver], path: Path, form: str
) -> None:
    """Float arrays keep dtype, shape, order and every bit; twenty small moves cost less than whole arrays would."""
    random_of = np.random.default_rng(3)
    value = np.asarray(random_of.normal(size=(64, 128)), dtype=dtype, order=order)
    saver = open_saver()
    thread = Thread(Api(saver, form))
    kept: list[Any] = []
    sizes = []
    for _ in range(20):
        before = row_bytes(path) if path.exists() else 0
        thread.put(array=value)
        kept.append(value.copy(order="K"))
        sizes.append(row_bytes(path) - before)
        bits = value.view(value.dtype.str.replace("f", "u"))
        moved = (bits ^ random_of.integers(0, 2, size=bits.shape, dtype="u2")).astype(bits.dtype)
        value = np.asarray(moved.view(value.dtype), order=order)
    for api in (Api(saver, form), Api(open_saver(), form)):
        for config, array in zip(thread.configs, kept, strict=True):
            found = values_at(api, config)["array"]
            assert same(found, array)
            assert found.flags.f_contiguous == array.flags.f_contiguous
            found[0, 0] = 1
    whole = sizes[0]
    assert whole > value.nbytes * 0.7
    small = [size for size in sizes[1:] if size < whole * (0.6 if value.dtype.itemsize > 2 else 0.75)]
    assert len(small) >= 16, sizes
    assert sum(size > whole * 0.9 for size in sizes[1:]) >= 2, "a chain must be cut short by whole arrays"


def test_an_unchanged_array_costs_a_reference(saver: AgentSaver, path: Path, form: str) -> None:
    """An array of equal bits in a new object is not stored again."""
    thread = Thread(Api(saver, form))
    value = np.random.default_rng(1).normal(size=5000)
    thread.put(array=value)
    before = query(path, "SELECT count(*) FROM blobs")
    thread.put(array=value.copy())
    assert query(path, "SELECT count(*) FROM blobs") == before


# Serializers of the user's own


class PickleLike:
    """A serializer that keeps anything, and counts what it is asked."""

    def __init__(self) -> None:
        self.dumped = 0

    def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
        self.dumped += 1
        return "mine", pickle.dumps(obj)[::-1]

    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        assert data[0] == "mine"
        return pickle.loads(data[1][::-1])


class Shouting(JsonPlusSerializer):
    """A JsonPlusSerializer that marks each text that it stores."""

    def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
        return super().dumps_typed(obj.upper() if isinstance(obj, str) else obj)


def test_a_serializer_of_the_users_own_is_honoured(reread: Callable[..., Any], path: Path) -> None:
    """Every value goes through it, whole; what LangGraph's own could not keep comes back equal."""
    serde = PickleLike()
    value = {"complex": 1j, "range": range(3), "files": {f"f{i}": "x" * 900 for i in range(40)}, "t": Text("abc")}
    for found in reread(value, serde=serde):
        assert same(found, value)
    assert serde.dumped >= 2
    for (framed,) in query(path, "SELECT frame FROM blobs"):
        assert framed[2] in (3, 5), "a value was stored past the user's serializer"


def test_a_subclass_of_langgraphs_serializer_is_honoured(reread: Callable[..., Any]) -> None:
    """A JsonPlusSerializer subclass is asked for every value, plain ones and messages too."""
    for found in reread("whisper " * 10, serde=Shouting()):
        assert found == "WHISPER " * 10
    for found in reread([HumanMessage("hi", id="1")], serde=Shouting()):
        assert found == [HumanMessage("hi", id="1")]


def test_langgraphs_encrypted_serializer(reread: Callable[..., Any], path: Path) -> None:
    """EncryptedSerializer: values round-trip, and none stands in the file in clear."""
    serde = EncryptedSerializer(FakeCipher())
    value = {"secret": "the password is swordfish " * 500, "list": [f"swordfish {i}" for i in range(300)]}
    for found in reread(value, serde=serde):
        assert found == value
    for suffix in ("", "-wal"):
        file = Path(f"{path}{suffix}")
        assert not file.exists() or b"swordfish" not in file.read_bytes()


class FakeCipher:
    """Enough of a cipher to tell sealed from clear."""

    def encrypt(self, plaintext: bytes) -> tuple[str, bytes]:
        return "fake", bytes(b ^ 0x5A for b in plaintext)

    def decrypt(self, ciphername: str, ciphertext: bytes) -> bytes:
        assert ciphername == "fake"
        return bytes(b ^ 0x5A for b in ciphertext)


# Whose value it is


def test_what_the_caller_changes_after_put_does_not_leak_in(open_saver: Callable[..., AgentSaver], form: str) -> None:
    """In-place changes of lists, dicts and messages after put change no stored checkpoint; the next put stores them."""
    saver = open_saver()
    api = Api(saver, form)
    thread = Thread(api)
    message = AIMessage("hello " * 20, id="1", additional_kwargs={"a": [1]})
    state: dict[str, Any] = {
        "list": [[i, "x" * 60] for i in range(300)],
        "dict": {f"k{i}": {"v": [i, "y" * 60]} for i in range(60)},
        "messages": [message],
        "array": np.arange(500.0),
    }
    thread.put(**state)
    thread.writes(("list", state["list"]))
    first = copy.deepcopy(state)
    state["list"][5][0] = "changed"
    state["list"].append("more")
    state["dict"]["k7"]["v"].append("more")
    message.additional_kwargs["a"].append(2)
    message.content = "changed"
    state["array"][3] = -1
    assert same(values_at(api, thread.config), first)
    thread.put(list=state["list"])  # only one of them is named as changed
    second = copy.deepcopy(state)
    for fresh in (api, Api(open_saver(), form)):
        assert same(values_at(fresh, thread.configs[0]), first)
        assert same(fresh.get_tuple(plain(thread.configs[0])).pending_writes[0][2], first["list"])
        assert same(values_at(fresh, thread.configs[1]), second)


def test_what_the_caller_changes_after_get_tuple_does_not_leak_in(
    open_saver: Callable[..., AgentSaver], form: str
) -> None:
    """In-place changes of everything that get_tuple and list returned are seen by no later read and no later put."""
    saver = open_saver()
    api = Api(saver, form)
    thread = Thread(api)
    state: dict[str, Any] = {
        "list": [[i, "x" * 60] for i in range(300)],
        "short": [1, [2]],
        "dict": {f"k{i}": {"v": [i, "y" * 60]} for i in range(60)},
        "messages": [AIMessage("hello " * 20, id="1", additional_kwargs={"a": [1]})],
        "array": np.arange(500.0),
    }
    thread.put(**state)
    thread.writes(("list", state["list"]), ("messages", state["messages"]))
    kept = copy.deepcopy(state)
    for read in (api.get_tuple(plain(thread.config)), api.list(thread.at)[0]):
        values = read.checkpoint["channel_values"]
        values["list"][5][0] = "changed"
        values["short"][1].append(3)
        values["dict"]["k7"]["v"].append("more")
        values["messages"][0].additional_kwargs["a"].append(2)
        values["messages"].append("more")
        values["array"][3] = -1
        read.checkpoint["channel_versions"]["list"] = 99
        read.checkpoint["versions_seen"]["n"] = {}
        read.metadata["step"] = 99
        read.pending_writes[0][2].clear()
        read.pending_writes[1][2][0].additional_kwargs["a"].append(2)
        read.config["configurable"]["checkpoint_id"] = "x"
    again = api.get_tuple(plain(thread.config))
    assert same(again.checkpoint["channel_values"], kept)
    assert (again.metadata["step"], again.checkpoint["channel_versions"]["list"]) == (0, 1)
    assert again.checkpoint["versions_seen"] == {}
    assert same(again.pending_writes[0][2], kept["list"])
    assert again.pending_writes[1][2] == kept["messages"]
    thread.config = again.config
    thread.put(short=[1, [2], 3])
    assert same(values_at(Api(open_saver(), form), thread.config), {**kept, "short": [1, [2], 3]})


# Values that can't be stored


class Odd:
    def __init__(self, **fields: Any) -> None:
        self.__dict__.update(fields)


@pytest.mark.parametrize(
    ("value", "suffix"),
    [
        (Odd(), ""),
        ({"a": Odd(x=1)}, "['a']"),
        ([1, [2, Odd()]], "[1][1]"),
        ([0] * 500 + [Odd()], "[500]"),
        ({"files": {"a.txt": "x" * 5000, "b": [1, {"c": Odd()}]}}, "['files']['b'][1]['c']"),
        ({"p": Point(1, y=Odd())}, "['p'].y"),
        ({"p": Person(name="n", inner=[Odd()])}, "['p'].inner[0]"),
        ((1, Odd()), "[1]"),
        ({"it's": Odd()}, "[\"it's\"]"),
        ({"f": lambda: None}, "['f']"),
        ({"t": Text("abc"), "pad": "x" * 2000}, "['t']"),
        ([AIMessage("m", additional_kwargs={"k": [Odd()]})], "[0].additional_kwargs['k'][0]"),
    ],
)  # fmt: skip
def test_what_cannot_be_stored_is_named(value: Any, suffix: str, saver: AgentSaver, path: Path, form: str) -> None:
    """P4, B40: ValueNotStorableError with the path of the value, nothing of the call stored, and the next put works."""
    api = Api(saver, form)
    thread = Thread(api)
    thread.put(good="before")
    before = [query(path, f"SELECT count(*) FROM {t}") for t in ("checkpoints", "writes", "blobs", "threads")]
    config, versions = thread.config, dict(thread.versions)
    with pytest.raises(ValueNotStorableError) as caught:
        thread.put(good="a text that could be stored by itself, quite long" * 3, value=value)
    assert caught.value.path == f"channel_values.value{suffix}"
    assert caught.value.path in str(caught.value)
    with pytest.raises(ValueNotStorableError) as caught:
        thread.writes(("good", "another text that could be stored by itself, quite long"), ("value", value))
    assert caught.value.path.endswith(f"(value){suffix}")
    after = [query(path, f"SELECT count(*) FROM {t}") for t in ("checkpoints", "writes", "blobs", "threads")]
    assert after == before
    thread.config, thread.versions, thread.values = config, versions, {"good": "before"}
    thread.put(good="after")
    thread.writes(("good", "written"))
    found = api.get_tuple(plain(thread.config))
    assert found.checkpoint["channel_values"] == {"good": "after"}
    assert found.pending_writes == [("task-1", "good", "written")]


def test_cyclic_values_are_refused(saver: AgentSaver, form: str) -> None:
    """A list, a dict or an object that contains itself is refused by a typed error that says so, and does not hang."""
    cyclic_list: list[Any] = [1]
    cyclic_list.append(cyclic_list)
    cyclic_dict: dict[str, Any] = {"a": {}}
    cyclic_dict["a"]["b"] = cyclic_dict
    long_list: list[Any] = ["some text that is longer than inline, to make it split"] * 50
    long_list.append({"deep": long_list})
    point = Point(1)
    point.y = [point]
    thread = Thread(Api(saver, form))
    for value in (cyclic_list, cyclic_dict, long_list, point):
        with pytest.raises(ValueNotStorableError, match=r"channel_values\.value"):
            thread.put(value=value)
        thread.values.clear()
        thread.versions.clear()
    thread.put(value="fine")


def test_metadata_never_makes_a_put_fail(saver: AgentSaver, form: str) -> None:
    """B24: a text stands in the place of what can't be kept in metadata; it names the type and shows no value."""
    from langgraph.checkpoint.base import empty_checkpoint

    api = Api(saver, form)
    cyclic: list[Any] = []
    cyclic.append(cyclic)
    metadata = {"source": "loop", "odd": {"a": Odd(x=1), "b": [1, (2, Text("t"))]}, "cyclic": cyclic, "big": 2**80}
    api.put(Thread(api).at, {**empty_checkpoint(), "channel_values": {}}, metadata, {})
    found = api.list(Thread(api).at, filter={"source": "loop"})[0].metadata
    assert found["odd"] == {"a": "<tests.test_values.Odd>", "b": [1, (2, "t")]}
    assert found["big"] == 2**80
    # What holds itself can't be searched for secrets, so it is masked whole.
    assert found["cyclic"] == "***"


def test_a_put_after_another_saver_pruned(open_saver: Callable[..., AgentSaver], form: str) -> None:
    """A run that goes on after its thread was pruned elsewhere stores again what it knew and what is gone meanwhile."""
    thread = Thread(Api(open_saver(), form))
    dropped = {
        "text": "a text that only the pruned checkpoint held " * 9,
        "list": [f"item {i} of a list" for i in range(300)],
    }
    thread.put(**dropped)
    thread.put(text="another", list=["another"])
    open_saver().prune(["t"])
    thread.put(**dropped)
    for api in (thread.api, Api(open_saver(), form)):
        assert values_at(api, thread.config) == dropped
