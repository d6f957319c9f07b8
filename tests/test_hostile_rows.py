"""Rows that somebody forged or damaged: nothing that they name is imported or run, by no route; errors are typed.

`AGENT_CKPT_TEST_MUTATIONS=100000` mutates that many frames in place of a few thousand.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import json
import os
import random
import resource
import sys
import time
import typing
from collections import ChainMap, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, NamedTuple, TypeVar

import ormsgpack
import pytest
from langchain_core import messages
from langchain_core.messages import AnyMessage
from langchain_core.prompt_values import ChatPromptValue
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.serde.types import _DeltaSnapshot
from langgraph.types import Interrupt, Send
from pydantic import BaseModel, ConfigDict, Field, RootModel, SecretStr, create_model, model_validator
from typing_extensions import TypedDict

from agent_ckpt import AgentSaver, CkptError, Unresolved
from agent_ckpt.cli import show
from agent_ckpt.codec import foreign, frame
from agent_ckpt.codec.gate import Gate, UnresolvedError
from agent_ckpt.codec.pack import pack
from agent_ckpt.codec.typed import ARRAY, FOREIGN, KNOWN, MAP, MESSAGE, OBJECT, REGISTERED, SCALAR, TYPE
from agent_ckpt.codec.values import DecodeError, ValueCodec
from tests.conftest import Api
from tests.threads import Thread, plain
from tests.typed_kinds import ALL, Colour, Pair, Rich, Small, alike

Opener = Callable[..., AgentSaver]
MUTATIONS = int(os.environ.get("AGENT_CKPT_TEST_MUTATIONS", "4000"))
RAN: list[str] = []
T = TypeVar("T")


def _ran(*args: Any, **_: Any) -> Any:
    RAN.append(repr(args)[:200])


class Trap:
    """An imported class that is no data, and tells when any code of it runs."""

    __new__ = __init__ = __setstate__ = __call__ = __reduce__ = _ran  # type: ignore[assignment]
    construct = classmethod(_ran)  # type: ignore[arg-type]


@dataclasses.dataclass
class DyingTrap:
    x: Any = None

    def __del__(self) -> None:
        _ran("__del__")


@dataclasses.dataclass
class SettingTrap:
    x: Any = None

    def __setstate__(self, state: Any) -> None:
        _ran("__setstate__")


@dataclasses.dataclass
class DataTrap:
    x: Any = None

    def __post_init__(self) -> None:
        _ran("__post_init__")


class ModelTrap(BaseModel):
    x: Any = None

    @model_validator(mode="before")
    @classmethod
    def check(cls, data: Any) -> Any:
        _ran("validator")
        return data

    def model_post_init(self, context: Any) -> None:
        _ran("model_post_init")


class GenericTrap(BaseModel):
    def __class_getitem__(cls, item: Any) -> Any:  # type: ignore[override]
        _ran("__class_getitem__")
        return cls

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        _ran("__pydantic_init_subclass__")


class Proxy:
    """Stands for something else, and asks for it as soon as it is asked what it is."""

    __class__ = property(_ran)  # type: ignore[assignment]


PROXY = Proxy()


class Meta(type(BaseModel)):  # type: ignore[misc]
    __or__ = __ror__ = _ran
    made = 0

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        if Meta.made:
            _ran("Meta.__new__")
        Meta.made += 1
        return super().__new__(cls, *args, **kwargs)


class MetaTrap(BaseModel, Generic[T], metaclass=Meta):
    x: Any = None


HERE = __name__
CALLABLES: list[tuple[str, str]] = [
    ("os", "system"), ("os", "mkdir"), ("subprocess", "Popen"), ("builtins", "eval"), ("builtins", "exec"),
    ("builtins", "__import__"), ("posix", "system"), ("pickle", "loads"), ("importlib", "import_module"),
    ("functools", "partial"), ("operator", "attrgetter"), ("ctypes", "CDLL"), ("pathlib", "Path.unlink"),
    ("trapmod", "Anything"), ("lazymod", "Anything"), (HERE, "PROXY"), (HERE, "PROXY.x"), (HERE, "MetaTrap"),
    ("antigravity", "x"), (HERE, "Trap"), (HERE, "DyingTrap"), (HERE, "SettingTrap"),
    (HERE, "DataTrap"), (HERE, "ModelTrap"), (HERE, "GenericTrap"), (HERE, "_ran"), (HERE, "RAN.append"),
    ("langchain_core.messages.ai", "AIMessage.__init__"), ("langgraph.types", "interrupt"),
]  # fmt: skip


def _serde(kind: str, data: bytes) -> bytes:
    return bytes((frame.SERDE,)) + pack([kind, data])


def _ext(code: int, content: Any) -> bytes:
    return ormsgpack.packb(ormsgpack.Ext(code, ormsgpack.packb(content)))


def _envelope(lc: int, path: list[str], **how: Any) -> bytes:
    return json.dumps({"lc": lc, "type": "constructor", "id": path, **how}).encode()


def _typed(code: int, content: Any) -> bytes:
    return bytes((frame.TYPED,)) + _ext(code, content)


def forged(marker: str) -> Iterator[bytes]:
    """Bodies that try to have something run, or imported, by every form that a row can have."""
    for module, name in CALLABLES:
        for code, content in (
            (foreign.SINGLE, [module, name, marker]),
            (foreign.POSITIONAL, [module, name, [marker]]),
            (foreign.POSITIONAL, [module, name, []]),
            (foreign.KEYWORDS, [module, name, {"x": marker}]),
            (foreign.KEYWORDS, [module, name, {}]),
            (foreign.METHOD, [module, name, marker, "__call__"]),
            (foreign.METHOD, [module, name, marker, "construct"]),
            (foreign.METHOD, [module, name, marker, "fromisoformat"]),
            (foreign.PYDANTIC_1, [module, name, {"x": marker}]),
            (foreign.PYDANTIC_2, [module, name, {"x": marker}, "model_validate_json"]),
        ):
            yield _serde("msgpack", _ext(code, content))
            yield bytes((frame.TYPED,)) + ormsgpack.packb(
                ormsgpack.Ext(FOREIGN, bytes((code,)) + ormsgpack.packb(content))
            )
        path = [*module.split("."), name]
        for lc in (1, 2):
            for how in ({"args": [marker]}, {"kwargs": {"x": marker}}, {}, {"args": [marker], "method": "construct"}):
                envelope = {"lc": lc, "type": "constructor", "id": path, **how}
                yield _serde("json", json.dumps({"a": [envelope]}).encode())
        for kind, state in (
            (1, [{"x": marker}, None]),
            (1, [None, {"x": marker}]),
            (2, [["x"], [marker], None]),
            (3, ["x", None]),
            (3, [None, 1]),
        ):
            yield _typed(OBJECT, [module, name, None, kind, *state])
            yield _typed(OBJECT, [module, name, [["class", module, name, None]], kind, *state])
            small = [Small.__module__, "Box", [["class", module, name, None]], kind, *state]
            yield _typed(OBJECT, small)
        yield _typed(REGISTERED, [f"{module}.{name}", marker])
        named = ["class", module, name, None]
        for tree in (
            named,
            ["of", named, [["any"]]],
            ["of", ["class", "builtins", "list", None], [named]],
            ["generic", named, [["any"]]],
            ["generic", ["class", Small.__module__, "Both", None], [named]],
            ["class", Small.__module__, "Box", [named]],
            ["union", [named, ["none"]]],
            ["|", [named, named]],
            ["typing", "List", [named]],
            ["typing", name, [["any"]]],
            ["annotated", named, [marker]],
            ["named", f"{module}.{name}"],
        ):
            yield _typed(TYPE, tree)
    for code in range(128):
        yield bytes((frame.TYPED,)) + ormsgpack.packb(ormsgpack.Ext(code, ormsgpack.packb([marker])))
        yield _serde("msgpack", ormsgpack.packb(ormsgpack.Ext(code, ormsgpack.packb([marker]))))
    yield _serde("pickle", b"cos\nsystem\n(S'touch " + marker.encode() + b"'\ntR.")
    yield _serde("json", json.dumps({"lc": 1, "type": "secret", "id": ["PATH"]}).encode())
    yield _typed(KNOWN, [5, 99])
    yield _typed(SCALAR, ["O", b"12345678"])
    yield _typed(MESSAGE, [0, {"content": marker, "__class__": 1}, ["content"]])
    yield _typed(MESSAGE, [0, "content", {"content": marker, "__class__": 1}])
    for tree in (["any"], ["class", HERE, "MetaTrap", None]):
        yield _typed(OBJECT, [HERE, "MetaTrap", [tree], 4, {"x": 1}, [], None, None, None])
    yield _typed(MAP, [[1], 2])


class Forger(AgentSaver):
    """A saver that stores forged bodies where a marked value stands."""

    body: bytes = b""

    @property
    def _store(self) -> Any:
        store = super()._store
        codec = store.codec
        if type(codec) is not Forging:
            made = Forging.__new__(Forging)
            made._serde, made._gate, made.splits, Forging.body = codec._serde, codec._gate, True, self.body
            made.secrets_allowed = codec.secrets_allowed
            store = store._replace(codec=made)
            self._made = (self.serde, store)
        return store


class Forging(ValueCodec):
    __slots__ = ()
    body = b""

    def encode(self, value: Any) -> bytes:
        return self.body if value == "FORGED" else super().encode(value)

    def encode_many(self, values: Any, first: int = 0, packed: Any = None) -> list[bytes]:
        return [self.encode(value) for value in values]


@pytest.fixture
def trap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A module on the path that tells when it is imported, and a marker that calls would make."""
    marker = tmp_path / "marker"
    (tmp_path / "trapmod.py").write_text(f"open({str(marker)!r}, 'w').close()\n")
    (tmp_path / "lazymod.py").write_text(f"open({str(marker)!r}, 'w').close()\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    lazy = importlib.util.find_spec("lazymod")
    assert lazy is not None and lazy.loader is not None
    lazy.loader = importlib.util.LazyLoader(lazy.loader)
    monkeypatch.setitem(sys.modules, "lazymod", importlib.util.module_from_spec(lazy))
    lazy.loader.exec_module(sys.modules["lazymod"])
    import pydantic.v1  # noqa: F401  imported lazily by pydantic otherwise

    RAN.clear()
    yield marker
    assert not marker.exists()
    assert "trapmod" not in sys.modules
    assert "antigravity" not in sys.modules


@pytest.mark.parametrize("keep", ["raise", "keep"])
def test_forged_bodies_run_nothing(keep: Any, trap: Path) -> None:
    """B13, P8: 0 of all forged bodies run or import anything; each gives data, an Unresolved value or a typed error."""
    codec = ValueCodec(JsonPlusSerializer(), Gate(on_unresolved=keep))
    modules, tried, kept = set(sys.modules), 0, 0
    for body in forged(str(trap)):
        tried += 1
        try:
            found = codec.decode(body)
        except (DecodeError, UnresolvedError):
            continue
        kept += type(found) is Unresolved
    assert set(sys.modules) == modules
    assert RAN == []
    assert tried > 1300
    assert kept > 800 or keep == "raise"


ROUTES = ("state", "nested", "write", "interrupt", "send", "metadata", "delta")


@pytest.mark.parametrize("route", ROUTES)
def test_forged_rows_run_nothing(route: str, trap: Path, open_saver: Opener, path: Path, form: str) -> None:
    """B13: by each place in which a row holds a value, through every method that reads it, nothing runs."""
    chosen = [
        _serde("msgpack", _ext(foreign.SINGLE, ["os", "mkdir", str(trap)])),
        _serde("msgpack", _ext(foreign.KEYWORDS, [HERE, "Trap", {"x": 1}])),
        _serde("json", _envelope(2, ["os", "mkdir"], args=[str(trap)])),
        _typed(OBJECT, ["trapmod", "Anything", None, 1, {"x": 1}, None]),
        _typed(OBJECT, [HERE, "DyingTrap", None, 1, {"x": 1}, None]),
    ]
    for number, body in enumerate(chosen):
        thread = Thread(Api(Forger(path), form), f"t{number}")
        thread.api.saver.body = body
        _put(thread, route)
        thread.api.saver.close()
        for keep in ("raise", "keep"):
            saver = open_saver(on_unresolved=keep, on_schema_change="ignore")
            api = Api(saver, form)
            config = plain(thread.config)
            for read in (
                lambda api=api, config=config: api.get_tuple(config),
                lambda api=api, at=thread.at: api.list(at),
                lambda api=api, at=thread.at: api.list(at, filter={"source": "loop"}),
                lambda api=api, config=config: api.saver.get_delta_channel_history(config=config, channels=["value"]),
                lambda api=api, number=number: api.copy_thread(f"t{number}", f"copy{number}{keep}"),
                lambda saver=saver, number=number: show.build(saver, str(path), f"t{number}", "", 10),
                lambda saver=saver: saver.verify(),
                lambda api=api, number=number: api.prune([f"copy{number}{keep}"]),
            ):
                try:
                    read()
                except CkptError:
                    continue
            saver.close()
    assert RAN == []


def _put(thread: Thread, route: str) -> None:
    if route == "metadata":
        made = {"source": "loop", "step": 1, "x": "y" * 99}
        from tests.threads import checkpoint_of

        codec = thread.api.saver._store.codec
        Forging.encode_leniently = lambda self, value: self.body  # type: ignore[method-assign]
        try:
            thread.config = thread.api.put(thread.at, checkpoint_of({"a": 1}, {"a": 1}), made, {"a": 1})
        finally:
            del Forging.encode_leniently
        assert codec.splits
        return
    thread.put(value="FORGED" if route == "state" else ["FORGED"] * 3 if route == "nested" else 1)
    if route == "write":
        thread.writes(("value", "FORGED"))
    elif route == "interrupt":
        thread.writes(("__interrupt__", ["FORGED"]))
    elif route == "send":
        thread.writes(("__pregel_tasks", ["FORGED"]))
    elif route == "delta":
        thread.put(value=_DeltaSnapshot(["FORGED"] * 3))
        thread.writes(("value", ["FORGED"]))
        thread.versions.pop("value")
        thread.values.pop("value")
        thread.put(other=2)


def _shapes() -> list[bytes]:
    ours, theirs = ValueCodec(JsonPlusSerializer()), JsonPlusSerializer()
    bodies = [ours.encode(value) for value in ALL.values()]
    bodies += [_serde(*theirs.dumps_typed(value)) for value in (
        Small(a=2), Colour.RED, Pair(1), Send("n", [1]), Interrupt(1, id="i"), {"a": {1, (2, 3)}, 3: b"x"},
        ALL["document"], ALL["decimal"], ALL["ints"], ALL["paths"][1:2], ALL["ip"], _DeltaSnapshot([1]),
    )]  # fmt: skip
    bodies += [body for at, body in enumerate(forged("m")) if at % 40 == 0]
    return bodies


def _mutated(data: bytes, dice: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(dice.randint(1, 4)):
        at = dice.randrange(len(changed)) if changed else 0
        how = dice.randrange(5)
        if how == 0 and changed:
            changed[at] ^= 1 << dice.randrange(8)
        elif how == 1 and changed:
            changed[at] = dice.choice((0x90, 0xDD, 0xDF, 0xC7, 0xC9, 0xD8, 0xFF, 0x00, 0xC1, dice.randrange(256)))
        elif how == 2:
            changed[at:at] = dice.randbytes(dice.randint(1, 6))
        elif how == 3:
            del changed[at : at + dice.randint(1, 9)]
        else:
            changed[at:at] = changed[at : at + dice.randint(1, 40)]
    return bytes(changed)


@pytest.mark.filterwarnings("ignore")
def test_mutated_frames_give_typed_errors_only() -> None:
    """P5, P8: of mutated frames each gives a value or a typed error; none hangs, none takes much memory, none runs."""
    dice, bodies = random.Random(5), _shapes()
    codecs = [ValueCodec(JsonPlusSerializer(), Gate(on_unresolved=keep)) for keep in ("raise", "keep")]
    before, slowest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, 0.0
    modules, values, errors = set(sys.modules), 0, 0
    RAN.clear()
    for number in range(MUTATIONS):
        body = dice.choice(bodies)
        framed = frame.seal_blob(body, "zstd" if number % 2 else "none", b"", b"")
        framed = framed[:2] + _mutated(framed[2:], dice) if number % 3 else frame.seal_blob(
            body[:1] + _mutated(body[1:], dice), "none", b"", b""
        )  # fmt: skip
        began = time.perf_counter()
        try:
            codecs[number % 2].decode(frame.open_blob(framed, b"", b""))
            values += 1
        except (frame.FrameError, DecodeError, UnresolvedError):
            errors += 1
        slowest = max(slowest, time.perf_counter() - began)
    assert errors > MUTATIONS // 3
    assert values > 0
    assert RAN == []
    # A time zone's data may stand in a package of its own; Python loads text encodings as they are needed.
    assert {name.split(".")[0] for name in set(sys.modules) - modules} <= {"tzdata", "encodings"}
    assert slowest < 20
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 400_000


@dataclasses.dataclass
class Watched:
    x: Any = 1


def test_parts_of_other_types_run_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """An object of an imported class in the place of a number, a text or a list has none of its methods run."""
    ran: list[str] = []
    for name in ("index", "len", "iter", "bool", "eq", "ne", "float", "complex", "bytes", "str", "repr", "fspath",
                 "and", "contains", "getattr", "format", "int"):  # fmt: skip

        def run(*_: Any, name: str = name, **__: Any) -> Any:
            ran.append(name)
            raise TypeError(name)

        monkeypatch.setattr(Watched, f"__{name}__", run, raising=False)
    thing = ormsgpack.Ext(OBJECT, pack_typed([__name__, "Watched", None, 1, {"x": 1}, None]))
    contents = [[OBJECT, [*before, thing]] for before in ([], [__name__], [__name__, "Watched"])]
    contents += [[KNOWN, [number, *[thing] * parts]] for number in range(31) for parts in (1, 2, 3)]
    contents = [each for each in contents if each[0] != KNOWN or each[1][0] not in HASHING]
    contents += [[MESSAGE, parts] for parts in ([thing, "", {}], [0, thing, {}], [0, "", thing], [0, [thing], {}])]
    contents += [[ARRAY, parts] for parts in ([thing, [1], "C", b""], ["|O", thing, "C", []], ["<f8", [1], thing, b""])]
    contents += [[SCALAR, [thing, b""]], [SCALAR, ["U", thing]], [REGISTERED, [thing, 1]]]
    contents += [[OBJECT, [__name__, "Watched", None, *state]] for state in ([thing, {}, None], [1, thing, None])]
    codec = ValueCodec(JsonPlusSerializer())
    for code, content in contents:
        with contextlib.suppress(DecodeError, UnresolvedError):
            codec.decode(bytes((frame.TYPED,)) + pack_typed(ormsgpack.Ext(code, pack_typed(content))))
    theirs = ormsgpack.Ext(foreign.KEYWORDS, pack_typed([__name__, "Watched", {"x": 1}]))
    item = {"value": {}, "key": "k", "namespace": ["n"], "created_at": "2026-01-01", "updated_at": "2026-01-01"}
    asked = [["langgraph.store.base", "Item", {**item, key: theirs}] for key in item if key != "value"]
    asked += [["langgraph.store.base", "Item", {**item, "namespace": [theirs]}]]
    asked += [["langgraph.types", "Interrupt", {"value": 1, "ns": ns}] for ns in (theirs, [theirs])]
    asked += [[module, name, theirs] for code, module, name in foreign._TABLE if code == foreign.SINGLE]
    asked += [[module, name, [theirs]] for code, module, name in foreign._TABLE if code == foreign.POSITIONAL]
    for content in asked:
        for code in (foreign.SINGLE, foreign.POSITIONAL, foreign.KEYWORDS):
            with contextlib.suppress(DecodeError, UnresolvedError):
                codec.decode(_serde("msgpack", pack_typed(ormsgpack.Ext(code, pack_typed(content)))))
    assert set(ran) <= {"eq"}, "of what stands in a set, these run"


HASHING = (4, 5, 6, 29)
"""Numbers of the known types that are dicts: their keys are hashed, as those of every dict."""


def pack_typed(value: Any) -> bytes:
    return ormsgpack.packb(value)


# What LangGraph's serializer wrote


THEIRS = (
    "uuid", "date", "time", "timedelta", "utc", "ip", "ip networks", "ip interfaces", "enum",
    "document", "send in send", "command", "interrupt", "overwrite", "item", "ints", "turned", "model", "typed dict",
    "dataclass frozen", "patterns", "named tuple", "enum mixins", "model of version 1",
    "secret", "message in tuple",
)  # fmt: skip


@pytest.mark.parametrize("name", [name for name in THEIRS if name in ALL])
def test_what_langgraph_wrote_is_read(name: str) -> None:
    """What its serializer wrote comes back as it would give it, or nearer to what was stored, without running code."""
    theirs = JsonPlusSerializer(allowed_msgpack_modules=True)
    value = ALL[name]
    written = theirs.dumps_typed(value)
    found = foreign.decode(*written)
    assert alike(found, value) or alike(found, theirs.loads_typed(written))


def test_a_model_is_filled_without_its_validators() -> None:
    """Nested models, tuples and extras come back by the annotations; excluded and private fields get their defaults."""
    value = ALL["model rich"]
    given = value.model_dump()
    given |= {"anything": None, "secret": SecretStr("s"), "extra": 1}
    flat = foreign.decode(*JsonPlusSerializer().dumps_typed(given))
    found = foreign.construct(foreign.PYDANTIC_2, Rich.__module__, "Rich", flat, None, Gate())
    assert type(found.inner) is type(found.many[0]) is type(found.maybe) is Small
    assert (found.pair, found.hidden, found.renamed, found._mine) == ((1, 2), 3, 9, 5)
    assert found.__pydantic_extra__ == {"extra": 1}


class Cat(BaseModel):
    kind: Literal["cat"] = "cat"
    n: int = 1


class Dog(BaseModel):
    kind: Literal["dog"] = "dog"
    n: int = 1


class Roots(RootModel[list[Small]]):
    pass


class Table(RootModel[dict[str, tuple[int, ...]]]):
    pass


class Named(NamedTuple):
    a: int
    b: Any = None


class Told(TypedDict):
    small: Small


@dataclasses.dataclass
class Holds:
    small: Small
    more: tuple[int, ...] = ()


@dataclasses.dataclass(frozen=True)
class Still:
    a: Any
    b: Any = ()


@dataclasses.dataclass(frozen=True, slots=True)
class Slotted:
    a: Any


SMALL = Small(x=1) if "x" in Small.model_fields else Small()
PETS = Annotated[Cat | Dog, Field(discriminator="kind")]
ANNOTATED: dict[str, tuple[Any, Any]] = {
    "messages": (
        list[AnyMessage],
        [messages.HumanMessage("a"), messages.ToolMessage("c", tool_call_id="1")],
    ),
    "a message": (AnyMessage, messages.AIMessage("b")),
    "base messages": (Sequence[messages.BaseMessage], [messages.HumanMessage("x"), messages.SystemMessage("y")]),
    "a base message": (messages.BaseMessage, messages.HumanMessage("x")),
    "typing.Sequence": (typing.Sequence[Small], [SMALL]),
    "abc.Sequence": (Sequence[Small], [SMALL]),
    "deque": (deque[Small], deque([SMALL])),
    "OrderedDict": (OrderedDict[str, Small], OrderedDict(a=SMALL)),
    "defaultdict": (defaultdict[str, list[Small]], defaultdict(list, a=[SMALL])),
    "named tuple": (Named, Named(1, 2)),
    "named tuples": (list[Named], [Named(1)]),
    "set of named tuples": (set[Named], {Named(1)}),
    "dataclass": (list[Holds], [Holds(SMALL, (1,))]),
    "typed dict": (Told, {"small": SMALL}),
    "union": (Cat | Dog | None, Dog(n=5)),
    "told union": (list[PETS], [Dog(), Cat()]),
    "mapping of tuples": (Mapping[str, tuple[Small, ...]], {"a": (SMALL,)}),
    "root model": (Roots, Roots([SMALL])),
    "root models": (list[Roots], [Roots([SMALL])]),
}


@pytest.mark.parametrize("name", ANNOTATED)
def test_objects_inside_of_a_model_come_back_by_its_annotations(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What LangGraph's serializer flattened inside of a model becomes the objects again that stood there."""
    annotation, value = ANNOTATED[name]
    cls = create_model("Made", f=(annotation, ...), __module__=__name__)
    monkeypatch.setattr(sys.modules[__name__], "Made", cls, raising=False)
    found = foreign.decode(*JsonPlusSerializer().dumps_typed(cls(f=value)))
    assert type(found) is cls
    assert found.f == value
    assert repr(found.f) == repr(value)


@pytest.mark.parametrize("name", ["root list", "root dict", "prompt", "still", "slotted", "named"])
def test_whole_objects_of_langgraphs_serializer(name: str) -> None:
    """Root models, prompt values, and objects with tuples inside that stood in sets."""
    value: Any = {
        "root list": Roots([SMALL]),
        "root dict": Table({"a": (1,)}),
        "prompt": ChatPromptValue(messages=[messages.HumanMessage("x"), messages.AIMessage("y")]),
        "still": {Still((1, (2,)), ())},
        "slotted": {Slotted((1,))},
        "named": {Named(1, (2,))},
    }[name]
    found = foreign.decode(*JsonPlusSerializer().dumps_typed(value))
    assert type(found) is type(value)
    assert found == value
    assert repr(found) == repr(value)


LOOSE = {"__module__": __name__, "model_config": ConfigDict(arbitrary_types_allowed=True)}


def test_an_annotation_that_does_not_tell_the_objects_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    """Flattened objects in a form that can't be told are unresolved: they never come back as dicts unseen."""
    cls: Any = type("Made", (BaseModel,), {"__annotations__": {"f": ChainMap[str, Small]}, **LOOSE})
    monkeypatch.setattr(sys.modules[__name__], "Made", cls, raising=False)
    body = _ext(foreign.PYDANTIC_2, [__name__, "Made", {"f": {"a": {}}}, "model_validate_json"])
    with pytest.raises(UnresolvedError, match="does not tell the objects"):
        foreign.decode("msgpack", body)


def test_the_interrupt_of_earlier_releases() -> None:
    """B12: the layout (value, resumable, ns, when) becomes a current Interrupt, with the same id each time."""
    layout = {"value": 1, "resumable": True, "ns": ["a:1"], "when": "during"}
    old = _ext(foreign.KEYWORDS, ["langgraph.types", "Interrupt", layout])
    first, second = foreign.decode("msgpack", old), foreign.decode("msgpack", old)
    assert first == second == Interrupt(1, ns=["a:1"])  # type: ignore[call-arg]
    assert first.id == second.id != Interrupt(1).id


def test_the_form_before_msgpack() -> None:
    """Messages and Python's own types in the older JSON form."""
    first = _envelope(1, ["langchain", "schema", "messages", "HumanMessage"], kwargs={"content": "q"})
    second = _envelope(2, ["uuid", "UUID"], args=["00000000-0000-0000-0000-000000000007"])
    found = foreign.decode("json", b'{"a": [%s, %s], "b": {"lc": 3}}' % (first, second))
    assert found["a"][0].content == "q"
    assert (found["a"][1].int, found["b"]) == (7, {"lc": 3})


def test_kept_foreign_values_are_resolved_later() -> None:
    """What is imported without its classes is stored as it was, and is read where they are."""
    theirs = JsonPlusSerializer(allowed_msgpack_modules=True)
    value = {"a": [Small(a=2), Colour.RED], "b": Pair(1)}
    kept = foreign.decode(*theirs.dumps_typed(value), Gate().structure_only())
    assert [type(each) for each in (*kept["a"], kept["b"])] == [Unresolved] * 3
    codec = ValueCodec(JsonPlusSerializer())
    body = codec.encode(kept)
    assert alike(codec.decode(body), value)
    assert codec.structure_only().encode(codec.structure_only().decode(body)) == body
