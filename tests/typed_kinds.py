"""Values of every kind that the typed codec keeps, by name; and what equality of value and type means for them."""

from __future__ import annotations

import array
import collections
import collections.abc
import dataclasses
import decimal
import enum
import fractions
import ipaddress
import math
import pathlib
import re
import types
import typing
import uuid
import zoneinfo
from datetime import UTC, date, datetime, time, timedelta, timezone
from typing import Any, ClassVar, Generic, NamedTuple, TypedDict, TypeVar

import attrs
import numpy as np
import pydantic.dataclasses
import pydantic.v1
from langchain_core import messages as lc
from langchain_core.documents import Document
from langchain_core.prompt_values import ChatPromptValue, StringPromptValue
from langchain_core.prompts import ChatPromptTemplate, MessagesPlaceholder, PromptTemplate
from langgraph.checkpoint.serde.types import _DeltaSnapshot
from langgraph.store.base import Item
from langgraph.types import Command, Interrupt, Overwrite, Send
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    HttpUrl,
    PositiveInt,
    PostgresDsn,
    PrivateAttr,
    RootModel,
    SecretStr,
    constr,
    field_validator,
    model_validator,
)

T = TypeVar("T")


class Outer:
    class Phase(enum.Enum):
        READY = 1

    @dataclasses.dataclass
    class In:
        x: int


class Colour(enum.Enum):
    RED = 1
    PAIR = (1, 2)
    CRIMSON = 1  # noqa: PIE796


class Access(enum.Flag):
    READ = 1
    WRITE = 2


class Bits(enum.IntFlag):
    ONE = 1
    TWO = 2


class Word(enum.StrEnum):
    A = "a"


class Level(enum.IntEnum):
    LOW = 1


class Mixed(str, enum.Enum):  # noqa: UP042
    Z = "z"


@dataclasses.dataclass(frozen=True, slots=True)
class Frozen:
    x: Any
    y: list[Any] = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class Late:
    x: int
    z: int = dataclasses.field(init=False)
    made: int = dataclasses.field(default=0, init=False)

    def __post_init__(self) -> None:
        self.made = self.x * 2


@dataclasses.dataclass
class Both(Generic[T]):
    item: T


@dataclasses.dataclass(order=True)
class Tree:
    left: Any = None
    right: Any = None


class Small(BaseModel):
    a: int = 1


class Box(BaseModel, Generic[T]):
    item: T


class Registry(BaseModel):
    """Its classes are told of each class that is made of them."""

    known: ClassVar[list[str]] = []

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.known.append(cls.__name__)


class Entry(Registry):
    a: int = 1


class Shelf(Registry, Generic[T]):
    item: T


class Numbers(RootModel[list[int]]):
    pass


class Rich(BaseModel):
    model_config = ConfigDict(extra="allow", frozen=True)

    inner: Small
    many: list[Small] = []
    maybe: Small | None = None
    pair: tuple[int, ...] = ()
    secret: SecretStr = SecretStr("q")
    hidden: int = Field(3, exclude=True)
    renamed: int = Field(4, alias="other-name")
    anything: Any = None
    _mine: int = PrivateAttr(5)


class Picky(BaseModel):
    """Its validators change what they see: run on reading, they would change it again."""

    number: int = 0
    calls: int = 0

    @field_validator("number")
    @classmethod
    def double(cls, value: int) -> int:
        return value * 2

    @model_validator(mode="after")
    def count(self) -> Picky:
        self.__dict__["calls"] += 1
        return self


class Old(pydantic.v1.BaseModel):
    x: int
    y: dict[str, Any] = {}
    _z: int = pydantic.v1.PrivateAttr(3)


@pydantic.dataclasses.dataclass
class Checked:
    x: int
    at: datetime | None = None


class Pair(NamedTuple):
    left: Any
    right: str = "r"


Loose = collections.namedtuple("Loose", "a b")


@attrs.define
class Slotted:
    a: Any
    b: list[Any] = attrs.field(factory=list)


@attrs.frozen
class Still:
    a: Any


@attrs.define(slots=False, unsafe_hash=True, cache_hash=True)
class Hashed:
    a: Any


class Typed(TypedDict):
    a: int
    b: tuple[int, int]


_DAY = datetime(2026, 1, 1, tzinfo=UTC)
NEW_YORK = zoneinfo.ZoneInfo("America/New_York")


def _rich() -> Rich:
    made = Rich(
        inner=Small(a=3),
        many=[Small()],
        maybe=Small(a=4),
        pair=(1, 2),
        extra={1, 2},
        anything=HttpUrl("https://a.example/c?d=e"),
        **{"other-name": 9},
    )
    object.__getattribute__(made, "__pydantic_private__")["_mine"] = 77
    return made


def _default(factory: Any) -> Any:
    return collections.defaultdict(factory, {1: [2]})


PYTHON: dict[str, Any] = {
    "int above": 2**64,
    "int below": -(2**63) - 1,
    "int in list": {"k": [10**30]},
    "int as key": {2**70: 1},
    "int huge": 7**9000,
    "int negative huge": -(7**900),
    "int bounds": [2**64 - 1, -(2**63), 0, -1],
    "bool and numbers": [True, 1, 1.0, False, 0, 0.0, -0.0, None],
    "floats": [math.inf, -math.inf, 5e-324, 1.7976931348623157e308, 0.1],
    "nan": math.nan,
    "complex": [complex(1, -0.0), complex(-0.0, math.inf)],
    "str surrogate": "a\ud800b",
    "str surrogate in list": ["\udfff", {"k": ("\ud800",)}],
    "str surrogate as key": {"\ud800": 1, "plain": 2},
    "str with nul": "a\x00b\u2028é🙂",
    "bytes": [b"", b"\x00\xff", b"\xc4\xc5"],
    "bytearray": bytearray(b"abc"),
    "bytearray inside": {"a": [bytearray(b"\x00"), b"\x00"]},
    "tuple": (1, "a", None),
    "tuple empty": (),
    "tuple nested": {"k": (1, (2, [3, (4,)]))},
    "set of tuples": {(1, 2), (3, 4)},
    "tuple as key": {(1, 2): "x", (1, (2, 3)): [(1,)]},
    "frozenset": frozenset({1, "a", (2,)}),
    "set of frozensets": {frozenset({1}), frozenset()},
    "set mixed": {1, "a", None, 2.5, b"x", True and 3},
    "keys of every kind": {1: "a", 2.5: "b", None: "c", b"x": "d", "e": 1, frozenset({1}): 2},
    "key True": {True: 1},
    "range": [range(5), range(10, 0, -3), range(10**20)],
    "slice": [slice(None), slice(1, 10, 2), slice((1,), "a")],
    "ellipsis": [..., NotImplemented],
    "deque": collections.deque([1, (2,)], maxlen=5),
    "deque unbound": collections.deque(),
    "ordered dict": collections.OrderedDict([("b", 1), ("a", 2), ((1,), 3)]),
    "defaultdict": _default(list),
    "defaultdict of none": _default(None),
    "defaultdict of int": {"a": _default(int)},
    "counter": collections.Counter("aabbb"),
    "chain map": collections.ChainMap({"a": 1}, {"b": (1,)}),
    "mapping proxy": types.MappingProxyType({"a": (1,)}),
    "mapping proxy of others": [
        types.MappingProxyType(collections.OrderedDict(b=1, a=2)),
        types.MappingProxyType(types.MappingProxyType(collections.Counter("ab"))),
    ],
    "namespace": types.SimpleNamespace(a=(1,), b=types.SimpleNamespace()),
    "array": array.array("d", [1.0, 2.0]),
    "named tuple": Pair(1),
    "named tuple nested": [Pair(Pair((1,), "x"), "y")],
    "named tuple, made by call": Loose(1, {2}),
    "zone and gap": datetime(2026, 3, 7, 9, 0, tzinfo=NEW_YORK),
    "fold": datetime(2026, 11, 1, 1, 30, fold=1, tzinfo=NEW_YORK),
    "naive": datetime(2026, 1, 1, fold=1),
    "utc": datetime(2026, 1, 1, 1, 1, 1, 1, tzinfo=UTC),
    "fixed offset": datetime(2026, 1, 1, tzinfo=timezone(timedelta(hours=5, minutes=30), "IST")),
    "odd offset": timezone(timedelta(seconds=-1, microseconds=1)),
    "date": [date.min, date.max],
    "time": time(1, 2, 3, 4, tzinfo=NEW_YORK, fold=1),
    "timedelta": [timedelta.min, timedelta(-1, 2, 3)],
    "zone": NEW_YORK,
    "decimal": [decimal.Decimal(text) for text in ("1.50", "-0", "1E+999", "Infinity", "-NaN12")],
    "fraction": [fractions.Fraction(1, 3), fractions.Fraction(-(10**40), 7)],
    "uuid": [uuid.UUID(int=5), {uuid.UUID(int=7): 1}, uuid.UUID(int=8, is_safe=uuid.SafeUUID.safe)],
    "paths": [pathlib.PurePosixPath("/a"), pathlib.Path("b/c"), pathlib.PureWindowsPath("C:\\a")],
    "ip": [ipaddress.ip_address(text) for text in ("1.2.3.4", "::1", "fe80::1%eth0")],
    "ip networks": [ipaddress.ip_network(text) for text in ("1.2.3.0/24", "::/64")],
    "ip interfaces": [ipaddress.ip_interface(text) for text in ("1.2.3.4/24", "::1/64")],
    "patterns": [re.compile("a(?i:b)", re.IGNORECASE | re.VERBOSE), re.compile(b"a")],
}

CLASSES: dict[str, Any] = {
    "enum": [Colour.RED, Colour.PAIR, Colour.CRIMSON],
    "enum nested": [Outer.Phase.READY],
    "enum as key": {Colour.RED: 1, Word.A: 2},
    "flags": [Access.READ, Access.READ | Access.WRITE, Access(0)],
    "int flags": [Bits.ONE | Bits.TWO, Bits(0), Bits(8)],
    "enum mixins": [Word.A, Level.LOW, Mixed.Z],
    "enum of the stdlib": re.RegexFlag.IGNORECASE,
    "dataclass nested": Outer.In(2),
    "dataclass frozen": Frozen((1,), [{2}]),
    "dataclass as key": {Frozen(1, None): 1},  # type: ignore[arg-type]
    "dataclass late": Late(1),
    "dataclass tree": Tree(Tree(1, (2,)), [Tree()]),
    "dataclass generic": Both[int](3),
    "dataclass of pydantic": Checked(1, "2020-01-01T00:00:00+05:30"),  # type: ignore[arg-type]
    "model": Small(a=2),
    "model unset": Small(),
    "model rich": _rich(),
    "model root": Numbers([1, 2]),
    "model generic": [Box[int](item=3), Box[Small](item=Small(a=2)), Box[Box[int]](item=Box[int](item=1))],
    "model generic of types": [
        Box[int | None](item=None),
        Box[list[dict[str, int]]](item=[{"a": 1}]),
        Box[typing.Literal["a"]](item="a"),
        Box[Any](item=(1,)),
        Box[tuple[int, ...]](item=(1,)),
        Box(item={1}),
    ],
    "model generic that hooks in": [Shelf[int](item=1), Shelf[Entry](item=Entry()), Box[list[Entry]](item=[Entry()])],
    "types that hook in": [Entry, list[Entry], Entry | None, Shelf[int]],
    "model picky": Picky(number=4),
    "model constructed": Small.model_construct(a="not a number"),
    "model of version 1": Old(x=1, y={"a": (1,)}),
    "urls": [HttpUrl("https://x.example/"), PostgresDsn("postgres://u:p@h:1/d")],
    "secret": SecretStr("s"),
    "attrs": [Slotted(1, [(2,)]), Still({1}), Hashed(1)],
    "typed dict": Typed(a=1, b=(1, 2)),
    "model generic of said types": [
        Box[PositiveInt](item=3),
        Box[typing.Annotated[str, "said"]](item="x"),
        Box[constr(min_length=1)](item="x"),  # type: ignore[misc]
        Box[collections.abc.Sequence[int]](item=[1]),
        Box[fractions.Fraction](item=fractions.Fraction(1, 2)),
        Box[HttpUrl](item="http://x.example/"),  # type: ignore[arg-type]
        Box[typing.Literal[Colour.RED]](item=Colour.RED),
        Box[list[lc.AnyMessage]](item=[lc.HumanMessage("x")]),
        Box[Both[int]](item=Both(1)),
    ],
    "types": [Small, int, list[Small], Small | None, typing.Optional[int], Colour, Box[int], dict[str, Any], Any],  # noqa: UP045
    "type as key": {Small: 1, int: (1,)},
}

FRAMEWORK: dict[str, Any] = {
    "message with a tuple": lc.HumanMessage("q", additional_kwargs={"k": (1, {2})}),
    "artifact": lc.ToolMessage("x", tool_call_id="c", artifact=Frozen((1,))),
    "message in tuple": (lc.AIMessage("a", id="1"), lc.HumanMessage("b", odd=(1,))),
    "chunks": [lc.AIMessageChunk("z"), lc.ToolMessageChunk("z", tool_call_id="c")],
    "text of a message": lc.AIMessage("abc").text,
    "document": Document(page_content="d", metadata={"a": (1,)}),
    "prompts": [ChatPromptValue(messages=[lc.HumanMessage("a")]), StringPromptValue(text="a")],
    "prompt templates": [
        PromptTemplate.from_template("a {b} {c}").partial(b="1"),
        ChatPromptTemplate.from_messages([("system", "{x}"), MessagesPlaceholder("h"), lc.AIMessage("q")]),
    ],
    "send": Send("n", {"a": lc.AIMessage("q")}),
    "send in send": Send("n", [Send("m", Small())]),
    "command": Command(goto=[Send("a", 1)], graph=Command.PARENT, resume={"a": (1,)}, update={"x": {1}}),
    "interrupt": Interrupt(value={"q": Small()}, id="abc"),
    "overwrite": Overwrite((3,)),
    "item": Item(
        value={"a": 1}, key="k", namespace=("n",), created_at=datetime(2026, 1, 1), updated_at=datetime(2026, 1, 2)
    ),
    "snapshot inside": [_DeltaSnapshot([(1,)])],
}

NUMPY: dict[str, Any] = {
    "scalars": [
        np.float64(1.5), np.float32(1.5), np.float16(1), np.longdouble(1.5), np.int64(3), np.longlong(3), np.uint8(3),
        np.bool_(True), np.complex64(1j),
    ],
    "scalar texts": [np.str_("abc"), np.bytes_(b"a"), np.str_("")],
    "scalar times": [np.datetime64("2020-01-01"), np.timedelta64(3, "D"), np.datetime64("NaT", "ns")],
    "scalar in dict": {"a": np.float64(1.5), "b": 1.5},
    "ints": np.arange(6).reshape(2, 3),
    "turned": np.arange(6.0).reshape(2, 3).T,
    "no dimension": np.array(3),
    "empty": np.zeros((0, 3)),
    "stepped": np.arange(10)[::2],
    "other byte order": np.arange(4, dtype=">i2"),
    "bools": np.array([True, False]),
    "complex array": np.array([1j, math.nan]),
    "texts": np.array(["a", "bcd"]),
    "bytes array": np.array([b"a", b"bc"]),
    "times": np.array(["2020-01-01", "NaT"], dtype="M8[D]"),
    "void": np.zeros(3, dtype="V5"),
    "no bytes each": [np.zeros(3, dtype=[("a", "U0"), ("b", "i4")])["a"], np.zeros(2, "V0"), np.zeros((2, 0), "U3")],
    "structured": np.array([(1, ["a", "b"])], dtype=[("a", "i4"), ("b", "U3", (2,))]),
    "objects": np.array([1, (2,), None, Small()], dtype=object),
}  # fmt: skip

ALL: dict[str, Any] = {**PYTHON, **CLASSES, **FRAMEWORK, **NUMPY}

PORTABLE = {name: value for name, value in ALL.items() if name != "scalars"}
"""Those whose bytes are the same on every machine: a long double's are not."""


def alike(one: Any, other: Any) -> bool:
    """Whether two values are equal, and of the same types, at every depth."""
    if type(one) is not type(other):
        return False
    if isinstance(one, np.ndarray):
        if one.dtype != other.dtype or one.shape != other.shape:
            return False
        return all(map(alike, one.ravel().tolist(), other.ravel().tolist()))
    if isinstance(one, (float, complex, decimal.Decimal, np.generic)):
        return repr(one) == repr(other)
    if isinstance(one, (datetime, time)):
        zones = (one.tzinfo is other.tzinfo) or one.tzinfo == other.tzinfo
        return one == other and one.fold == other.fold and zones
    if isinstance(one, (list, tuple, collections.deque)):
        return len(one) == len(other) and all(map(alike, one, other)) and _bound(one) == _bound(other)
    if isinstance(one, (set, frozenset)):
        return one == other and sorted(map(_kind, one)) == sorted(map(_kind, other))
    if isinstance(one, dict):
        return all(map(alike, one.items(), other.items())) and len(one) == len(other) and _bound(one) == _bound(other)
    if isinstance(one, types.MappingProxyType):
        return repr(one) == repr(other) and alike(one | {}, other | {})
    if isinstance(one, types.SimpleNamespace):
        return alike(vars(one), vars(other))
    if isinstance(one, collections.ChainMap):
        return alike(one.maps, other.maps)
    if isinstance(one, BaseModel):
        parts = ("__dict__", "__pydantic_extra__", "__pydantic_private__")
        same = all(alike(getattr(one, name), getattr(other, name)) for name in parts)
        return same and one.__pydantic_fields_set__ == other.__pydantic_fields_set__
    if isinstance(one, uuid.UUID):
        return one == other and one.is_safe is other.is_safe
    if dataclasses.is_dataclass(one) and not isinstance(one, enum.Enum):
        names = [field.name for field in dataclasses.fields(one)]
        return all(alike(getattr(one, name, ...), getattr(other, name, ...)) for name in names)
    return bool(one == other)


def _bound(value: Any) -> Any:
    return getattr(value, "maxlen", None), getattr(value, "default_factory", None), getattr(value, "_fields", None)


def _kind(value: Any) -> str:
    return f"{type(value)}{value!r}"
