"""The typed codec through the saver: every kind of value, what is refused, codecs of the user's, code that changed."""

from __future__ import annotations

import collections
import copy
import dataclasses
import enum
import gc
import subprocess
import sys
import threading
import types
import uuid
import zoneinfo
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, ClassVar, TypedDict

import attrs
import numpy as np
import ormsgpack
import pytest
from langchain_core import messages as lc
from langchain_core.messages import HumanMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.serde.types import _DeltaSnapshot
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, Interrupt, Send, interrupt
from pydantic import BaseModel, Field, PrivateAttr, create_model

import agent_ckpt
from agent_ckpt import (
    AgentSaver,
    SchemaChangeWarning,
    Unresolved,
    UnresolvedTypeError,
    UsageError,
    ValueNotStorableError,
)
from agent_ckpt.codec import encoder, foreign, frame, registry, typed
from agent_ckpt.codec.encoder import Encoder
from agent_ckpt.codec.gate import Gate, UnresolvedError
from agent_ckpt.codec.plan import Planner
from agent_ckpt.codec.unstorable import Unstorable
from agent_ckpt.codec.values import ValueCodec
from agent_ckpt.core.hot import HotThread
from agent_ckpt.model import Entry
from agent_ckpt.same import same
from tests import typed_kinds as kinds
from tests.conftest import Api
from tests.threads import Thread, checkpoint_of, plain, values_at
from tests.typed_kinds import ALL, Box, Frozen, Outer, Picky, Rich, Small, alike

Opener = Callable[..., AgentSaver]


def codec() -> ValueCodec:
    return ValueCodec(JsonPlusSerializer())


# Every kind


@pytest.mark.parametrize("name", ALL)
def test_a_value_comes_back_the_same(name: str) -> None:
    """P4: equal and of the same type at every depth, alone and in every container; stored again as the same."""
    value = ALL[name]
    wraps: list[Callable[[Any], Any]] = [
        lambda v: v,
        lambda v: [v],
        lambda v: {"k": {"z": (v,)}},
        lambda v: Frozen(v, [v]),
        lambda v: {1: v},
        lambda v: np.array([v, None], dtype=object) if not isinstance(v, (np.ndarray, list, tuple)) else v,
    ]
    for wrap in wraps:
        wrapped = wrap(value)
        body = codec().encode(wrapped)
        found = codec().decode(body)
        assert alike(found, wrapped)
        assert codec().encode(found) == body


def test_what_stands_behind_a_long_double_in_memory_is_not_stored() -> None:
    """A long double of x86 has ten bytes in sixteen; what the others hold makes no difference, in scalars and arrays,
    to what is stored and to whether two are equal."""
    pad = np.dtype("g").itemsize - 10
    if np.finfo(np.longdouble).nmant != 63:
        pytest.skip("no long doubles of x86 here")
    number = np.longdouble("1.25").tobytes()[:10]
    for kind, count in (("g", 1), ("G", 2)):
        one, other = (np.frombuffer((number + fill * pad) * 300 * count, kind) for fill in (b"\0", b"x"))
        for mine, its in ((one, other), (one[0], other[0]), (one.reshape(30, 10).T, other.reshape(30, 10).T)):
            assert codec().encode(mine) == codec().encode(its)
            assert same(mine, its) and (codec().decode(codec().encode(its)) == mine).all()
    swapped = [np.frombuffer(fill * pad + number[::-1], np.dtype("g").newbyteorder()) for fill in (b"\0", b"x")]
    assert codec().encode(swapped[0]) == codec().encode(swapped[1])
    assert codec().decode(codec().encode(swapped[1]))[0] == 1.25


@pytest.mark.parametrize("group", ["PYTHON", "CLASSES", "FRAMEWORK", "NUMPY"])
def test_kinds_through_a_real_graph(group: str, open_saver: Opener, form: str) -> None:
    """P4, B01, B04, B05, B07, B09, B12: state, a node's write and an interrupt's payload, read by a new saver."""
    values = dict(getattr(kinds, group))

    class State(TypedDict, total=False):
        channel: Any
        more: Any

    def put(state: State) -> Any:
        return {"channel": values, "more": list(values.values())}

    def ask(state: State) -> Any:
        assert alike(state["channel"], values)
        return {"more": interrupt(values)}

    builder: StateGraph[Any, Any, Any, Any] = StateGraph(State)
    builder.add_node("put", put)
    builder.add_node("ask", ask)
    builder.add_edge(START, "put")
    builder.add_edge("put", "ask")
    builder.add_edge("ask", END)
    config: Any = {"configurable": {"thread_id": "t"}}
    first = Api(open_saver(plaintext_secrets="allow"), form)
    first.invoke(builder.compile(checkpointer=first.saver), {"channel": None}, config)
    again = Api(open_saver(plaintext_secrets="allow"), form)
    graph = builder.compile(checkpointer=again.saver)
    state = again.get_state(graph, config)
    assert alike(state.values["channel"], values)
    assert alike(state.values["more"], list(values.values()))
    assert alike(state.interrupts[0].value, values)
    again.invoke(graph, Command(resume=values), config)
    last = Api(open_saver(plaintext_secrets="allow"), form)
    assert alike(last.get_state(graph, config).values["more"], values)


def test_times_keep_their_arithmetic() -> None:
    """B07: a day later is the same hour on the clock, over a change of the clocks too."""
    for name in ("zone and gap", "fold"):
        value: datetime = ALL[name]
        found = codec().decode(codec().encode(value))
        assert found.tzinfo is value.tzinfo
        assert found.fold == value.fold
        assert (found + timedelta(days=1)).timestamp() == (value + timedelta(days=1)).timestamp()


def test_writes_metadata_snapshots_and_sends(open_saver: Opener, form: str) -> None:
    """Pending writes, metadata, Send arguments and DeltaChannel snapshots keep what state keeps."""
    api = Api(open_saver(plaintext_secrets="allow"), form)
    thread = Thread(api)
    value = {k: v for k, v in ALL.items() if k in ("tuple nested", "model rich", "int as key", "fold", "enum nested")}
    thread.put(value=_DeltaSnapshot(list(value.values())))
    thread.writes(("a", value), ("__pregel_tasks", Send("n", value)), ("__interrupt__", [Interrupt(value, id="i")]))
    found = Api(open_saver(plaintext_secrets="allow"), form).get_tuple(plain(thread.config))
    assert alike(found.checkpoint["channel_values"]["value"].value, list(value.values()))
    written = {channel: what for _, channel, what in found.pending_writes}
    expected = {"__interrupt__": [Interrupt(value, id="i")], "a": value, "__pregel_tasks": Send("n", value)}
    assert alike(written, expected)


def test_shared_parts_are_separate_afterwards() -> None:
    """What stood twice in a value is equal in both places, and a change of one is none of the other."""
    shared = [(1,)]
    found = codec().decode(codec().encode({"a": shared, "b": shared, "c": Frozen(shared, shared)}))
    assert found["a"] == found["b"] == found["c"].x == [(1,)]
    found["a"].append(2)
    assert found["b"] == found["c"].x == found["c"].y == [(1,)]


def test_no_code_of_a_class_runs_on_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    """P8: neither constructor, validator, __new__, __post_init__, __setattr__ nor __setstate__ of a class is called."""
    values = [
        Picky(number=4),
        kinds.Late(1),
        ALL["model rich"],
        Frozen(1),
        kinds.Pair(1),
        kinds.Slotted(1),
        kinds.Colour.RED,
    ]
    body = codec().encode(values)

    def ran(*_: Any, **__: Any) -> Any:
        raise AssertionError("code of a class ran")

    for cls in (Picky, kinds.Late, kinds.Rich, Frozen, kinds.Pair, kinds.Slotted):
        for name in ("__init__", "__setattr__", "__post_init__", "model_post_init"):
            monkeypatch.setattr(cls, name, ran, raising=False)
    assert Picky.__init__ is ran
    found = codec().decode(body)
    assert found[0].__dict__ == {"number": 8, "calls": 1}
    monkeypatch.undo()
    assert alike(found, values)


def test_a_set_is_stored_the_same_in_every_process(tmp_path: Path) -> None:
    """The bytes of a set don't follow the order in which a process happens to walk it."""
    code = (
        "from agent_ckpt.codec.values import ValueCodec\n"
        "from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer\n"
        "print(ValueCodec(JsonPlusSerializer()).encode({'a', 'b', 'c', 'd', ('e',)}).hex())"
    )
    told = {
        subprocess.run(
            [sys.executable, "-c", code], check=True, capture_output=True, text=True, env={"PYTHONHASHSEED": seed},
            cwd=Path(__file__).parent.parent,
        ).stdout
        for seed in ("1", "2")
    }  # fmt: skip
    assert len(told) == 1


# Metadata


ODD_METADATA: dict[str, Any] = {
    "messages": {"a": {"messages": [lc.AIMessage("x", id="1")]}},
    "uuid": uuid.UUID(int=7),
    "datetime": ALL["fold"],
    "nul inside": {"k": {"x": "a\x00b"}},
    "nan": float("nan"),
    "surrogate": "a\ud800",
    "big": 2**70,
    "tuple": (1, {2}),
    "lock": {"a": [threading.Lock()]},
}


def test_no_metadata_makes_put_or_list_fail(open_saver: Opener, form: str) -> None:
    """B24: put never fails for what metadata holds, and no row breaks a filtered listing of the others."""
    api = Api(open_saver(), form)
    for number, (name, value) in enumerate(ODD_METADATA.items(), 1):
        thread = Thread(api, name)
        made = checkpoint_of({}, {}, id=f"{number:032}")
        api.put(thread.at, made, {"source": "loop", "writes": value}, {})
        assert len(api.list(None, filter={"source": "loop"})) == number
    found = {each.config["configurable"]["thread_id"]: each.metadata for each in Api(open_saver(), form).list(None)}
    for name, value in ODD_METADATA.items():
        expected = {"a": ["<_thread.lock>"]} if name == "lock" else value
        assert alike(found[name]["writes"], expected), name


def test_metadata_of_a_run_can_be_filtered_by(open_saver: Opener, form: str) -> None:
    """B24: UUIDs and lists of a run's own metadata are kept; a UUID is found by itself and by its text."""
    user = uuid.UUID(int=9)

    class State(TypedDict, total=False):
        x: int

    builder: StateGraph[Any, Any, Any, Any] = StateGraph(State)
    builder.add_node("a", lambda s: {"x": 1})
    builder.add_edge(START, "a")
    api = Api(open_saver(), form)
    config: Any = {
        "configurable": {"thread_id": "t", "client": threading.Lock()},
        "metadata": {"user": user, "tags": ["a"]},
    }
    api.invoke(builder.compile(checkpointer=api.saver), {"x": 0}, config)
    again = Api(open_saver(), form)
    everything = again.list(None)
    assert everything
    for wanted in ({"user": user}, {"user": str(user)}, {"tags": ["a"]}):
        assert len(again.list(None, filter=wanted)) == len(everything)
    assert again.list(None, filter={"user": str(uuid.UUID(int=8))}) == []
    assert "client" not in everything[0].metadata


# What is refused


class Plain:
    def __init__(self) -> None:
        self.x = 1


class MyDict(dict[str, Any]):
    pass


class MyList(list[Any]):
    pass


class MyTuple(tuple[Any, ...]):
    pass


class MyInt(int):
    pass


@dataclasses.dataclass
class Dying:
    x: int = 1

    def __del__(self) -> None:
        pass


@dataclasses.dataclass
class Setting:
    x: int = 1

    def __setstate__(self, state: Any) -> None:
        self.x = 2


@dataclasses.dataclass
class OnDict(dict[str, int]):
    x: int = 1


@dataclasses.dataclass
class Shadowed:
    x: int = 1


FirstShadowed = Shadowed


@dataclasses.dataclass
class Shadowed:  # type: ignore[no-redef]
    y: int = 1


def _local() -> Any:
    @dataclasses.dataclass
    class Local:
        x: int = 1

    return Local()


def _with_attribute(value: Any) -> Any:
    value.note = 1
    return value


REFUSED: dict[str, Callable[[], Any]] = {
    "plain object": Plain,
    "subclass of dict": lambda: MyDict(a=1),
    "subclass of list": lambda: MyList([1]),
    "subclass of tuple": lambda: MyTuple((1,)),
    "subclass of int": lambda: MyInt(3),
    "class that another replaced": FirstShadowed,
    "class with __del__": Dying,
    "class with __setstate__": Setting,
    "dataclass built on dict": OnDict,
    "lock": threading.Lock,
    "function": lambda: _local,
    "generator": lambda: (i for i in ()),
    "class": lambda: threading.Thread,
    "module": lambda: sys,
    "memoryview": lambda: memoryview(b"a"),
    "defaultdict of a function": lambda: collections.defaultdict(lambda: 1),
    "masked array": lambda: np.ma.array([1]),
    "record array": lambda: np.rec.array([(1, 2)]),
    "structured array of objects": lambda: np.zeros(2, dtype=[("a", "O")]),
    "dict view": lambda: {}.keys(),
    "user dict": collections.UserDict,
    "ordered dict with an attribute": lambda: _with_attribute(collections.OrderedDict(a=1)),
    "counter with an attribute": lambda: _with_attribute(collections.Counter("a")),
    "chain map with an attribute": lambda: _with_attribute(collections.ChainMap({})),
    "unpacked alias": lambda: next(iter(tuple[int, ...])),
    "type of no class": lambda: ClassVar[int],
    "extension of msgpack": lambda: ormsgpack.Ext(typed.TUPLE, b"\x91\x01"),
    "piece of msgpack": lambda: ormsgpack.Fragment(b"\x01"),
    "traceback holder": lambda: types.TracebackType(None, sys._getframe(), 0, 1),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_kept_exactly_is_refused(name: str, open_saver: Opener, form: str) -> None:
    """P4: refused at put, with path, type and remedy, at every place; nothing of it is stored."""
    value = REFUSED[name]()
    thread = Thread(Api(open_saver(), form))
    for wrapped, path in (
        (value, ""),
        ([(0, value)], "[0][1]"),
        ({"a": Box(item={"b": value})}, "['a'].item['b']"),
        ({(1,): Frozen([value])}, ".<value>.x[0]"),
        (Send("n", {"a": value}), ".arg['a']"),
    ):
        with pytest.raises(ValueNotStorableError) as caught:
            thread.put(value=wrapped)
        assert caught.value.path == f"channel_values.value{path}"
        assert "What to do: " in str(caught.value)
        assert type(value).__qualname__ in str(caught.value)
    assert not thread.api.exists("t")


def test_a_class_made_inside_a_function(open_saver: Opener, form: str) -> None:
    """It is found again while this process has it; then a typed error names it, and an alias gives it back."""
    made = _local()
    thread = Thread(Api(open_saver(), form))
    thread.put(value=[made])
    assert type(values_at(Api(open_saver(), form), thread.config)["value"][0]) is type(made)
    del made
    thread.values.clear()
    gc.collect()
    with pytest.raises(UnresolvedTypeError, match="inside a function") as caught:
        Api(open_saver(), form).get_tuple(plain(thread.config))
    aliases = {caught.value.type_name: Outer.In}
    assert values_at(Api(open_saver(aliases=aliases), form), thread.config)["value"] == [Outer.In(1)]


def test_a_cycle_is_named() -> None:
    """A value that contains itself is refused, naming where and what comes again; so is one nested too deep."""
    cyclic: dict[str, Any] = {"a": [1, (2,)]}
    cyclic["a"].append({"b": cyclic})
    deep: Any = (1,)
    for _ in range(400):
        deep = [deep]
    many: list[Any] = []
    many += [many, many, many]
    for value, expected in (
        (cyclic, "x['a'][2]['b'] (which is x again)"),
        (many, "x[0] (which is x again)"),
        (deep, None),
    ):
        with pytest.raises(Exception) as caught:
            codec().encode(value)
        refused = codec().refuse(value, "x", caught.value)
        assert expected is None or refused.path == expected
        assert "contains itself, or is nested more than" in str(refused)


def test_exceptions_are_stored_as_langgraph_stores_them() -> None:
    """An exception comes back as its repr, wherever it stands."""
    error = ValueError("a", 1)
    memory = InMemorySaver().serde
    expected = memory.loads_typed(memory.dumps_typed([error]))
    assert codec().decode(codec().encode([error])) == expected == [repr(error)]


# Codecs of the user's


@pytest.fixture
def registered() -> Iterator[None]:
    """Undo what a test registers."""
    kept = dict(registry.by_class), dict(registry.by_name)
    yield
    for live, old in zip((registry.by_class, registry.by_name), kept, strict=True):
        live.clear()
        live.update(old)


@pytest.mark.usefixtures("registered")
def test_pandas_by_a_registered_codec(open_saver: Opener, form: str) -> None:
    """B05: refused with path and remedy; kept once a codec is registered; named where it is missing on reading."""
    import pandas

    data = pandas.DataFrame({"a": [1, 2], "b": ["x", None]})
    api = Api(open_saver(), form)
    thread = Thread(api)
    with pytest.raises(ValueNotStorableError, match=r"register_codec") as caught:
        thread.put(value={"rows": [data]})
    assert caught.value.path == "channel_values.value['rows'][0]"
    thread = Thread(api)
    agent_ckpt.register_codec(
        pandas.DataFrame, name="frame/1", encode=lambda v: v.to_dict("split"), decode=lambda p: pandas.DataFrame(**p)
    )
    thread.put(value={"rows": [data]}, other=1)
    found = values_at(Api(open_saver(), form), thread.config)["value"]["rows"][0]
    pandas.testing.assert_frame_equal(found, data)
    registry.by_name.clear()
    registry.by_class.clear()
    reader = Api(open_saver(), form)
    with pytest.raises(UnresolvedTypeError, match="frame/1") as missing:
        reader.get_tuple(plain(thread.config))
    assert missing.value.channel == "value"
    assert reader.saver.verify()


@pytest.mark.usefixtures("registered")
def test_a_codec_is_checked() -> None:
    """A codec for what is stored anyway, a name that is taken, an encode that fails: typed errors; bytes do."""
    for cls in (dict, str, int, datetime, type(ALL["text of a message"])):
        with pytest.raises(UsageError):
            agent_ckpt.register_codec(cls, name="x", encode=bytes, decode=bytes)
    agent_ckpt.register_codec(Plain, name="plain", encode=lambda v: b"%d" % v.x, decode=lambda p: Plain())
    with pytest.raises(UsageError, match="taken"):
        agent_ckpt.register_codec(MyDict, name="plain", encode=dict, decode=MyDict)
    agent_ckpt.register_codec(MyDict, name="my dict", encode=dict, decode=MyDict)
    found = codec().decode(codec().encode([Plain(), MyDict(a=(1,))]))
    assert (type(found[0]), found[0].x, type(found[1]), found[1]) == (Plain, 1, MyDict, {"a": (1,)})
    agent_ckpt.register_codec(MyList, name="bad", encode=lambda v: 1 / 0, decode=MyList)
    with pytest.raises(Exception) as caught:
        codec().encode({"a": MyList()})
    assert codec().refuse({}, "x", caught.value).path == "x['a']"


# Depth


def _chain(links: int) -> Any:
    made: Any = None
    for _ in range(links):
        made = Frozen(made, ())
    return made


def _from_deep(calls: int, work: Callable[[], Any]) -> Any:
    return work() if calls == 0 else _from_deep(calls - 1, work)


def _is_chain(value: Any, links: int) -> bool:
    while value is not None:
        if type(value) is not Frozen:
            return False
        value, links = getattr(value, next(iter(Frozen.__dataclass_fields__))), links - 1
    return links == 0


@pytest.mark.parametrize(("links", "calls"), [(148, 0), (120, 430), (60, 750)])
def test_deep_values_need_no_stack_of_the_caller(open_saver: Opener, links: int, calls: int, form: str) -> None:
    """What is nested up to the limit is stored, read and verified, however deep the caller stands itself."""
    thread = Thread(Api(open_saver(), form))
    _from_deep(calls, lambda: thread.put(value=_chain(links)))
    api = Api(open_saver(), form)
    assert _is_chain(_from_deep(calls, lambda: values_at(api, thread.config))["value"], links)
    assert not _from_deep(calls, api.saver.verify).findings


def test_a_value_too_deep_is_refused_with_a_short_path(open_saver: Opener, form: str) -> None:
    """The refusal says that it is the depth, from a deep stack too, with a path that fits on a screen."""
    thread = Thread(Api(open_saver(), form))
    # A finalizer of an earlier test's object that ran on the deep stack would have no room there.
    gc.collect()
    for calls in (0, 600):
        with pytest.raises(ValueNotStorableError, match="nested more than 150 deep") as caught:
            _from_deep(calls, lambda: thread.put(value=_chain(400)))
        assert len(caught.value.path) < 300


def test_metadata_of_any_depth_never_fails_a_save(open_saver: Opener, form: str) -> None:
    """B01: metadata nested beyond every limit, and objects whose attributes can't be read, are saved around."""
    thread = Thread(Api(open_saver(), form))
    api = thread.api
    made = checkpoint_of({"a": 1}, {"a": 1})
    config = api.put(plain(thread.config), made, {"source": "loop", "step": 1, "deep": _chain(400), "ok": 1}, {"a": 1})
    found = api.get_tuple(config).metadata
    assert found["ok"] == 1
    assert "deep" in found


def test_a_failure_of_the_machine_is_not_damage(module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the system or the memory refuses while a value is read is told as it is, and never as a damaged row."""
    body = codec().encode(module.A(5))
    for failure in (OSError(24, "Too many open files"), MemoryError()):

        def fail(*_: Any, failure: BaseException = failure) -> Any:
            raise failure

        with monkeypatch.context() as patched:
            patched.setattr("agent_ckpt.codec.kinds.put_together", fail)
            with pytest.raises(type(failure)):
                codec().decode(body)


# Code that changed


@pytest.fixture
def module() -> Iterator[types.ModuleType]:
    """A module of a user's, whose classes a test may take away."""
    made = types.ModuleType("mymod")
    sys.modules["mymod"] = made

    @dataclasses.dataclass
    class A:
        x: int

    class B(BaseModel):
        y: int

    class C(enum.Enum):
        Q = "q"

    for cls in (A, B, C):
        cls.__module__ = "mymod"
        cls.__qualname__ = cls.__name__
        setattr(made, cls.__name__, cls)
    yield made
    sys.modules.pop("mymod", None)


def _stored(module: Any, api: Api) -> tuple[Thread, Any]:
    value = [module.A(5), module.B(y=6), module.C.Q]
    thread = Thread(api)
    thread.put(value=value, other=1)
    thread.writes(("value", value))
    return thread, value


def test_a_class_that_is_gone_is_named(module: Any, open_saver: Opener, form: str) -> None:
    """B03: a typed error names class, thread, checkpoint, channel and both remedies; a listing that skips goes on."""
    thread, _ = _stored(module, Api(open_saver(), form))
    del module.A
    api = Api(open_saver(), form)
    for _ in range(2):
        with pytest.raises(UnresolvedTypeError) as caught:
            api.get_tuple(plain(thread.config))
    error = caught.value
    assert (error.type_name, error.channel, error.thread_id) == ("mymod:A", "value", "t")
    assert error.checkpoint_id == thread.config["configurable"]["checkpoint_id"]
    assert "allowed_types" in str(error)
    assert "aliases" in str(error)
    assert copy.copy(error).type_name == "mymod:A"
    Thread(api, "fine").put(x=1)
    with pytest.raises(UnresolvedTypeError):
        api.list(None)
    assert [each.config["configurable"]["thread_id"] for each in api.list(None, on_damage="skip")] == ["fine"]
    assert api.saver.verify()


def test_an_alias_gives_the_class_as_it_is_now(module: Any, open_saver: Opener, form: str) -> None:
    """B03: a renamed class by its class, a moved one by its name; what is stored next carries the new names."""
    thread, _ = _stored(module, Api(open_saver(), form))
    del module.A, module.B, module.C
    aliases = {
        "mymod:A": Outer.In,
        "mymod:B": "tests.test_typed:NewB",
        "mymod:C": "tests.test_typed:NewC",
    }
    api = Api(open_saver(aliases=aliases), form)
    found = values_at(api, thread.config)["value"]
    assert alike(found, [Outer.In(5), NewB(y=6), NewC.Q])
    thread.api, thread.config = api, api.get_tuple(plain(thread.config)).config
    thread.put(value=found, other=2)
    assert alike(values_at(Api(open_saver(), form), thread.config)["value"], found)


class NewB(BaseModel):
    y: int
    more: list[int] = []


class NewC(enum.Enum):
    Q = "another value"


def test_kept_values_lose_nothing(module: Any, open_saver: Opener, form: str) -> None:
    """B03: with on_unresolved="keep", a save that leaves the channel, and one that passes it on, store the same."""
    thread, value = _stored(module, Api(open_saver(), form))
    gone = {name: vars(module).pop(name) for name in ("A", "B", "C")}
    api = Api(open_saver(on_unresolved="keep"), form)
    with pytest.warns(SchemaChangeWarning, match="mymod:A.*mymod:B.*mymod:C"):
        kept = api.get_tuple(plain(thread.config)).checkpoint["channel_values"]["value"]
    assert [type(each) for each in kept] == [Unresolved] * 3
    assert [each.type_name for each in kept] == ["mymod:A", "mymod:B", "mymod:C"]
    assert kept == copy.deepcopy(kept)
    assert len(set(kept)) == 3
    thread.api, thread.config = api, api.get_tuple(plain(thread.config)).config
    thread.values.pop("value")
    thread.put(other=2)
    thread.put(passed={"on": kept})
    vars(module).update(gone)
    found = values_at(Api(open_saver(), form), thread.config)
    assert alike(found["value"], value)
    assert alike(found["passed"], {"on": value})


def test_fields_gained_and_lost(module: Any) -> None:
    """A class that gained fields with defaults, or lost some, gives its object; one that can't tells so."""

    @dataclasses.dataclass
    class A:
        more: list[int] = dataclasses.field(default_factory=list)
        plain: int = 7

    class B(BaseModel):
        y: int
        needed: str

    class C(enum.Enum):
        OTHER = "q"

    stored = [codec().encode(each) for each in (module.A(5), module.B(y=6), module.C.Q)]
    for cls in (A, B, C):
        cls.__module__, cls.__qualname__ = "mymod", cls.__name__
        setattr(module, cls.__name__, cls)
    found = codec().decode(stored[0])
    assert (found.more, found.plain, vars(found)["x"]) == ([], 7, 5)
    for body, told in ((stored[1], "needed"), (stored[2], "no member")):
        with pytest.raises(Exception, match=told):
            codec().decode(body)


def _replace(module: Any, cls: Any) -> None:
    cls.__module__, cls.__qualname__ = "mymod", "A"
    module.A = cls


@pytest.mark.parametrize("wrap", [lambda v: {v}, lambda v: frozenset([(1, v)]), lambda v: {"k": [{v: 2}]}])
def test_a_key_whose_class_lost_its_hash(module: Any, wrap: Any) -> None:
    """What stands in a set, or as a key, and can't be hashed any more is unresolved, and no damage."""
    _replace(module, dataclasses.make_dataclass("A", ["x"], frozen=True))
    value = module.A
    body = codec().encode(wrap(value(1)))
    _replace(module, dataclasses.make_dataclass("A", ["x"]))
    with pytest.raises(UnresolvedError, match="mymod:A"):
        codec().decode(body)
    kept = codec().keeping({}).decode(body)
    _replace(module, value)
    assert codec().decode(codec().encode(kept)) == wrap(value(1))


def test_a_flag_that_became_an_enum(module: Any) -> None:
    """A combined flag whose class has no such member any more is unresolved, and no damage."""
    _replace(module, enum.Flag("A", {"P": 1, "Q": 2}))
    body = codec().encode(module.A(3))
    _replace(module, enum.Enum("A", {"P": 1, "Q": 2}))
    with pytest.raises(UnresolvedError, match="no member 3"):
        codec().decode(body)


@pytest.mark.parametrize("what", ["array", "scalar", "zone"])
def test_what_this_machine_lacks_is_named(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without numpy, or without a time zone, what needs it is unresolved by its name, or kept."""
    berlin = datetime(2026, 1, 1, tzinfo=zoneinfo.ZoneInfo("Europe/Berlin"))
    value, name = {"array": ([np.arange(3)], "numpy"), "scalar": (np.int8(1), "numpy"), "zone": (berlin, "Berlin")}[
        what
    ]
    body = codec().encode(value)
    with monkeypatch.context() as patched:
        if what == "zone":
            patched.setattr(zoneinfo, "ZoneInfo", lambda key: {}[key])
        else:
            patched.setitem(sys.modules, "numpy", None)
        with pytest.raises(UnresolvedError, match=name):
            codec().decode(body)
        kept = codec().keeping({}).decode(body)
    again = codec().decode(codec().encode(kept))
    assert np.array_equal(again[0], value[0]) if what == "array" else again == value


class _Made:
    pass


def _gains(form: str) -> type:
    """A class `mymod:A` that has gained what only its own code can make."""

    @dataclasses.dataclass
    class D:
        x: int
        fresh: Any = dataclasses.field(default_factory=_Made)

    @dataclasses.dataclass(slots=True)
    class S:
        x: int
        needed: int

    class M(BaseModel):
        x: int
        fresh: Any = Field(default_factory=_Made)

    class P(BaseModel):
        x: int
        _fresh: Any = PrivateAttr(default_factory=_Made)

    @attrs.define
    class A:
        x: int
        fresh: Any = attrs.Factory(_Made)

    return {"dataclass": D, "slots": S, "model": M, "private": P, "attrs": A}[form]


@pytest.mark.parametrize("kind", ["dataclass", "slots", "model", "private", "attrs"])
def test_no_object_is_half_built(module: Any, kind: str) -> None:
    """A field that only code of the class can make is told of, and never just lacks in the object."""
    new = _gains(kind)
    old: Any = BaseModel if issubclass(new, BaseModel) else object
    module.A = type("A", (old,), {"__annotations__": {"x": int}, "__module__": "mymod", "__qualname__": "A"})
    if old is object:
        module.A = attrs.define(module.A) if kind == "attrs" else dataclasses.dataclass(module.A)
    module.A.__module__, module.A.__qualname__ = "mymod", "A"
    body = codec().encode(module.A(x=1))
    new.__module__, new.__qualname__ = "mymod", "A"
    module.A = new
    with pytest.raises(UnresolvedError, match=r"has gained the (field|private attribute) '_?(fresh|needed)'"):
        codec().decode(body)


def test_a_gained_default_is_each_objects_own(module: Any) -> None:
    """A mutable default that a model gained is copied for each object, as pydantic does: none shares the class's."""
    module.A = create_model("A", x=(int, 0), __module__="mymod")
    bodies = [codec().encode(module.A(x=at)) for at in (1, 2)]

    class A(BaseModel):
        x: int
        more: list[int] = [1]
        _own: dict[str, list[int]] = {"k": [1]}

    A.__module__, A.__qualname__ = "mymod", "A"
    module.A = A
    first, second = codec().decode_many(bodies)
    first.more.append(2)
    first._own["k"].append(2)
    assert (second.more, second._own) == ([1], {"k": [1]})
    fresh = A(x=3)
    assert (fresh.more, fresh._own) == ([1], {"k": [1]})


def test_an_object_that_lacks_a_field_is_refused() -> None:
    """What could not be rebuilt later is refused when it is stored."""
    value = Frozen(1, [2])
    object.__delattr__(value, next(iter(vars(value))) if hasattr(value, "__dict__") else value.__slots__[0])
    with pytest.raises(Unstorable, match="lacks its field"):
        codec().encode(value)


def test_a_model_that_lacks_a_field_with_a_default_is_refused() -> None:
    """Read back it would have the default, which it did not have: also of a private attribute, and of a slot."""
    lacking, private = Small(a=2), Rich(inner=Small())
    del lacking.__dict__["a"]
    del private.__pydantic_private__["_mine"]
    for value, field in ((lacking, "a"), (private, "_mine")):
        with pytest.raises(Unstorable, match=f"lacks its field '{field}'"):
            codec().encode([value])


@pytest.mark.parametrize("parameter", [["class", "builtins", "float", None], ["class", kinds.__name__, "Entry", None]])
def test_a_parametrised_model_that_hooks_in_is_found_and_never_made(parameter: Any) -> None:
    """Where the process has not made it, a typed error says so; making it would run code of its class."""
    before = list(kinds.Registry.known)
    body = bytes((frame.TYPED,)) + ormsgpack.packb(
        ormsgpack.Ext(
            typed.OBJECT,
            ormsgpack.packb([kinds.__name__, "Shelf", [["of", ["class", "builtins", "list", None], [parameter]]], 4]),
        )
    )
    with pytest.raises(UnresolvedError, match="this process has not made it with these parameters"):
        codec().decode(body)
    assert kinds.Registry.known == before


def test_a_parameter_that_was_renamed_is_found_by_its_alias() -> None:
    """Also of a model that is only found where it was made: by the class that the parameter is now."""
    shelf = kinds.Shelf[kinds.Entry](item=kinds.Entry(a=3))
    body = codec().encode(shelf).replace(b"\xa5Entry", b"\xa5Earli")
    name = f"{kinds.__name__}:Earli"
    with pytest.raises(UnresolvedError, match="no such class"):
        codec().decode(body)
    found = ValueCodec(JsonPlusSerializer(), Gate(aliases={name: kinds.Entry})).decode(body)
    assert alike(found, shelf)


def test_a_parametrised_model_of_langgraph_is_found_where_it_was_made() -> None:
    """LangGraph stores `Box[Outer.In]` by what it is called: found where this process has made one of that name."""
    value = Box[Outer.In](item=Outer.In(3))
    kind, data = JsonPlusSerializer().dumps_typed([value])
    assert alike(foreign.decode(kind, data), [value])
    with pytest.raises(UnresolvedError, match="has not made Box"):
        foreign.decode(kind, data.replace(b"Box[Outer.In]", b"Box[Outer.Im]"))
    namesake = type("In", (BaseModel,), {"__module__": "elsewhere", "__qualname__": "Outer.In"})
    other = Box[namesake]  # type: ignore[valid-type]
    assert other.__name__ == "Box[Outer.In]"
    with pytest.raises(UnresolvedError, match="several classes are called"):
        foreign.decode(kind, data)


@pytest.mark.parametrize("name", ALL)
def test_both_ways_of_writing_give_the_same_bytes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What msgpack walks and what is walked here: else equal values would be stored twice."""
    value = ALL[name]
    for wrapped in (value, {"k": [(value, 1)] * 20}):
        fast = Encoder(Gate()).encode(wrapped)
        with monkeypatch.context() as slowly:
            slowly.setattr(encoder, "_TRIED_WHOLE", 0)
            assert Encoder(Gate())._walk(wrapped, 0, tried=True) == fast


def test_many_values_are_encoded_as_each_alone() -> None:
    """Lists of one kind, of several, with messages among them, with byte strings like what parts them."""
    mark = b"\xc1\xfe\xc1\xff" * 4
    lists: list[list[Any]] = [[value] * 5 for value in ALL.values()]
    lists += [[{"a": 1}, (1,), "x", Small(), 7], [b"a", {"b": bytearray(b"a")}, 1, 2], [bytearray(b"a")] * 5]
    lists += [
        [{"x": mark}] * 5,
        [(mark,)] * 5,
        [mark, (1,), 2, 3],
        [[bytearray(mark)]] * 4,
        [{1: 2}, {"a": (1,)}, 3, 4],
    ]
    lists += [[HumanMessage("a"), (1,), 2, 3], [HumanMessage("a", odd=(1,))] * 5, [HumanMessage("a")] * 300 + [(1,)]]
    content: Any = [{"data": mark + b"\x02\x93\x00"}]
    lists += [[HumanMessage(content)] * 5, [HumanMessage("a"), HumanMessage([{"data": bytearray(b"a")}])] * 3]  # type: ignore[dict-item]
    for values in lists:
        bodies = codec().encode_many(values)
        assert bodies == [codec().encode(value) for value in values]
        assert all(map(alike, codec().decode_many(bodies), values))


def test_names_of_fields_that_were_set_may_be_any() -> None:
    """More sets of names than are kept ready, and names that are no texts, change nothing."""
    values = [HumanMessage("a") for _ in range(300)]
    for at, value in enumerate(values):
        value.__pydantic_fields_set__.add(f"f{at % 100}")
    found = codec().decode_many(codec().encode_many(values))
    assert [each.__pydantic_fields_set__ for each in found] == [each.__pydantic_fields_set__ for each in values]
    values[7].__pydantic_fields_set__.add(7)  # type: ignore[arg-type]
    with pytest.raises(Exception) as caught:
        codec().encode_many(values)
    assert codec().refuse(values, "x", caught.value).path.startswith("x[7]")


@pytest.mark.usefixtures("registered")
def test_a_registered_codec_holds_for_arrays_at_the_top() -> None:
    """A codec for numpy's own array is used also for one that would be stored by its differences."""
    agent_ckpt.register_codec(np.ndarray, name="list/1", encode=lambda v: v.tolist(), decode=lambda p: np.array(p) + 1)
    planner = Planner(codec(), HotThread(0, 0, b"secret"))
    plan = planner.plan(np.zeros(200), "x")
    assert isinstance(plan, Entry)
    assert codec().decode(plan.body).tolist() == [1.0] * 200


@pytest.mark.usefixtures("registered")
def test_an_interrupt_while_a_value_is_encoded_is_told() -> None:
    """msgpack would make an error of its own of it, and the value would be encoded another way."""

    def interrupted(value: Any) -> Any:
        raise KeyboardInterrupt

    agent_ckpt.register_codec(Plain, name="plain", encode=interrupted, decode=lambda p: p)
    for value in (Plain(), [(Plain(),)], {1: {"a": Plain()}}):
        with pytest.raises(KeyboardInterrupt):
            codec().encode(value)
        with pytest.raises(KeyboardInterrupt):
            codec().encode_many([value] * 5)


def test_classes_of_the_main_module(tmp_path: Path) -> None:
    """A class of a script, of `python -m`, and of a spawned child is found again from each of them."""
    package = tmp_path / "pkg"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "app.py").write_text(SCRIPT)
    env = {"PYTHONPATH": f"{tmp_path}:{Path(__file__).parent.parent}"}
    db = str(tmp_path / "a.db")

    def run(*command: str) -> str:
        done = subprocess.run([sys.executable, *command], capture_output=True, text=True, env=env, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert run("-m", "pkg.app", "put", db) == "put\n"
    for command in (
        ("-m", "pkg.app", "get", db),
        ("-m", "pkg.app", "spawn", db),
        ("-c", "import sys, pkg.app; pkg.app.main('get', sys.argv[1])", db),
    ):
        assert run(*command) == "Kept(x=(1,)) pkg.app\n"
    script = str(package / "app.py")
    assert run(script, "put", f"{db}2") == "put\n"
    assert run(script, "get", f"{db}2") == run(script, "spawn", f"{db}2") == "Kept(x=(1,)) __main__\n"


SCRIPT = """
import dataclasses, multiprocessing, sys
from agent_ckpt import AgentSaver
from agent_ckpt.codec.gate import stored_module

@dataclasses.dataclass
class Kept:
    x: tuple

CONFIG = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}

def main(what, db):
    with AgentSaver(db) as saver:
        if what == "put":
            made = {"v": 4, "id": "1", "ts": "", "channel_values": {"a": Kept((1,))}, "channel_versions": {"a": 1},
                    "versions_seen": {}}
            saver.put(CONFIG, made, {}, {"a": 1})
            print("put")
        elif what == "get":
            found = saver.get_tuple(CONFIG).checkpoint["channel_values"]["a"]
            assert type(found) is Kept, type(found)
            print(found, stored_module(Kept))
        else:
            child = multiprocessing.get_context("spawn").Process(target=main, args=("get", db))
            child.start()
            child.join()

if __name__ == "__main__":
    main(*sys.argv[1:])
"""


# LangGraph's strict mode


class Question(BaseModel):
    text: str


class Answer(BaseModel):
    x: int


def test_strict_mode_names_what_it_blocks(monkeypatch: pytest.MonkeyPatch, open_saver: Opener, form: str) -> None:
    """B11: a class in no schema is blocked by a typed error that names it; allowed_types lets it through."""
    from langgraph._internal import _serde

    # What LANGGRAPH_STRICT_MSGPACK=true does as LangGraph is imported.
    monkeypatch.setattr(_serde, "STRICT_MSGPACK_ENABLED", True)
    strict = JsonPlusSerializer(allowed_msgpack_modules=None)

    class State(TypedDict, total=False):
        declared: Answer
        box: Box[int]
        free: Any

    def ask(state: State) -> Any:
        return {"free": interrupt(Question(text="ok?"))}

    builder: StateGraph[Any, Any, Any, Any] = StateGraph(State)
    builder.add_node("a", lambda s: {"declared": Answer(x=1), "box": Box[int](item=3), "free": Small(a=2)})
    builder.add_node("b", ask)
    builder.add_edge(START, "a")
    builder.add_edge("a", "b")
    config: Any = {"configurable": {"thread_id": "t"}}
    api = Api(open_saver(serde=strict), form)
    api.invoke(builder.compile(checkpointer=api.saver), {"free": None}, config)
    again = Api(open_saver(serde=strict), form)
    with pytest.raises(UnresolvedTypeError, match="strict mode"):
        again.get_state(builder.compile(checkpointer=again.saver), config)
    allowing = Api(open_saver(serde=strict, allowed_types=[Question, "tests.typed_kinds.Small"]), form)
    state = allowing.get_state(builder.compile(checkpointer=allowing.saver), config)
    assert alike(state.interrupts[0].value, Question(text="ok?"))
    assert alike(state.values, {"declared": Answer(x=1), "box": Box[int](item=3), "free": Small(a=2)})


def test_an_allowed_type_is_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, open_saver: Opener, form: str
) -> None:
    """What is named in allowed_types is imported on reading; nothing else is."""
    (tmp_path / "farmod.py").write_text("import dataclasses\n@dataclasses.dataclass\nclass Far:\n    x: int\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    import farmod  # type: ignore[import-not-found]

    thread = Thread(Api(open_saver(), form))
    thread.put(value=farmod.Far(1))
    del sys.modules["farmod"]
    with pytest.raises(UnresolvedTypeError, match="farmod"):
        Api(open_saver(), form).get_tuple(plain(thread.config))
    assert "farmod" not in sys.modules
    found = values_at(Api(open_saver(allowed_types=["farmod.Far"]), form), thread.config)["value"]
    assert found == sys.modules["farmod"].Far(1)
    del sys.modules["farmod"]


@pytest.mark.parametrize(
    "options",
    [{"allowed_types": ["x"]}, {"allowed_types": "a.b"}, {"allowed_types": [3]}, {"aliases": {"a.b": Small}},
     {"aliases": [1]}, {"on_unresolved": "drop"}],
)  # fmt: skip
def test_options_are_checked(options: Any, tmp_path: Path) -> None:
    """A name that can't be one is refused when the saver is made."""
    with pytest.raises(UsageError):
        AgentSaver(tmp_path / "a.db", **options)


def test_options_from_the_environment(tmp_path: Path) -> None:
    """Lists and mappings stand in variables as comma-separated names."""
    env = {
        "AGENT_CKPT_URL": str(tmp_path / "a.db"),
        "AGENT_CKPT_ALLOWED_TYPES": "a.B, c.D",
        "AGENT_CKPT_ALIASES": "a:B=c:D",
    }
    options = AgentSaver.from_env(env)._options
    assert (options.allowed_types, options.aliases) == (["a.B", "c.D"], {"a:B": "c:D"})


def test_numbers_of_the_format_are_as_released() -> None:
    """The numbers of extensions and of the table of types are stored: they are only appended to."""
    from agent_ckpt.codec import stdlib, typed

    names = "BIG_INT TEXT TUPLE SET FROZEN_SET MAP BYTE_ARRAY KNOWN OBJECT MESSAGE ARRAY SCALAR REGISTERED SNAPSHOT"
    assert [getattr(typed, name) for name in names.split()] == list(range(1, 15))
    assert (typed.FOREIGN, frame.TYPED) == (15, 8)
    told = [getattr(known.cls, "__name__", None) for known in stdlib.KNOWN]
    assert told == [
        "complex", "range", "slice", "deque", "OrderedDict", "defaultdict", "Counter", "ChainMap", "date", "time",
        "datetime", "timedelta", "timezone", "ZoneInfo", "Decimal", "Fraction", "UUID", "ellipsis",
        "NotImplementedType", "Pattern", "SimpleNamespace", "mappingproxy", "array", "TzInfo", "Url", "MultiHostUrl",
        None, None, None,
        "AddableDict", "TextAccessor",
    ]  # fmt: skip
