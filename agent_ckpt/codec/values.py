"""The value codec: one value to the body of a blob (a codec byte and a payload), and back.

Exact msgpack and LangChain messages have fast paths of their own; anything else goes through the
typed codec. With a serializer of the user's own, every value goes through that one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.serde.types import _DeltaSnapshot

from agent_ckpt.codec import foreign, frame, messages, secrets
from agent_ckpt.codec.collector import collector_held_off
from agent_ckpt.codec.encoder import Encoder
from agent_ckpt.codec.gate import Gate, UnresolvedError
from agent_ckpt.codec.messages import STRETCH, Template
from agent_ckpt.codec.pack import (
    PackError,
    UnpackError,
    pack,
    settle,
    unpack,
    unpack_bodies,
    unpack_joined,
)
from agent_ckpt.codec.packs import Pack
from agent_ckpt.codec.room import in_room
from agent_ckpt.codec.secrets import SecretInClearError, refuse_secrets
from agent_ckpt.codec.stretches import PACKED, Packed, pack_stretch
from agent_ckpt.codec.typed import TypedReader
from agent_ckpt.codec.unstorable import DEEPEST, TOO_DEEP, Unstorable, short
from agent_ckpt.errors import ValueNotStorableError
from agent_ckpt.model import Ref

DeltaSnapshot = _DeltaSnapshot

_MESSAGE = bytes((frame.MESSAGE,))
_SERDE = bytes((frame.SERDE,))
_TYPED = bytes((frame.TYPED,))
_MESSAGES_ALONE = {frame.MESSAGE}
_DEEPEST = 64
_MANY = 4
"""From this many values on they are encoded together."""


class DecodeError(Exception):
    """A body that passed its check but can't be turned into a value. The reader adds where."""


_NOT_THE_BYTES = (DecodeError, UnresolvedError, frame.FrameError, MemoryError, OSError)
"""What says what it means, or tells of the machine and not of what is stored."""


class ValueCodec:
    """Encodes and decodes values with one serializer.

    Args:
        serde: the saver's serializer.
        gate: which classes may be rebuilt. LangGraph's strict mode, which shows in the serializer, narrows it.

    Attributes:
        splits: whether values go through our own codec, and lists, dicts and long texts may be stored
            in parts: only with LangGraph's own serializer as it is, since another one, or one that was
            given a hook or pickles, may treat a whole value in a way of its own.
        secrets_allowed: whether a SecretStr or SecretBytes may be encoded; else it is refused.
    """

    __slots__ = ("_gate", "_serde", "secrets_allowed", "splits")

    def __init__(self, serde: SerializerProtocol, gate: Gate | None = None, *, secrets_allowed: bool = True) -> None:
        self._serde = serde
        self.secrets_allowed = secrets_allowed
        self._gate = gate if gate is not None else Gate()
        self.splits = False
        if type(serde) is JsonPlusSerializer:
            self.splits = not serde.pickle_fallback and not serde._custom_unpack_ext_hook
            through = serde._allowed_msgpack_modules
            self._gate = self._gate.under(None if through is True else frozenset(through or ()))

    @property
    def gate(self) -> Gate:
        """Which classes it may rebuild."""
        return self._gate

    def structure_only(self) -> ValueCodec:
        """A codec that decodes without looking up any class: what it can't build is an Unresolved value."""
        return ValueCodec._with(self, self._gate.structure_only())

    def keeping(self, kept: dict[str, str] | None = None) -> ValueCodec:
        """A codec that gives an Unresolved value where a class isn't there, and notes its name in `kept`."""
        return ValueCodec._with(self, self._gate.keeping(kept))

    @staticmethod
    def _with(other: ValueCodec, gate: Gate) -> ValueCodec:
        made = ValueCodec.__new__(ValueCodec)
        made._serde, made._gate, made.splits = other._serde, gate, other.splits
        made.secrets_allowed = other.secrets_allowed
        return made

    def encode(self, value: Any) -> bytes:
        """The body of a value.

        Raises:
            Unstorable: a value that can't be kept.
            Exception: whatever a serializer of the user's own raises.
        """
        if not self.splits:
            if not self.secrets_allowed:
                refuse_secrets(value)
            kind, data = self._serde.dumps_typed(value)
            return _SERDE + pack([kind, bytes(data)])
        packed = _message(value)
        return packed if packed is not None else self._encoder().body(value)

    def _encoder(self) -> Encoder:
        return Encoder(self._gate, secrets_allowed=self.secrets_allowed)

    def encode_leniently(self, value: Any) -> bytes:
        """The body of a value of metadata: a text stands in the place of a part that can't be kept."""
        try:
            return self.encode(value)
        except Exception:
            encoder = Encoder(self._gate, lenient=True, secrets_allowed=self.secrets_allowed)
        try:
            return _TYPED + encoder.encode(value)
        except Exception:
            return _TYPED + encoder.encode({key: _kept(encoder, part) for key, part in dict(value).items()})

    def encode_many(self, values: Sequence[Any], first: int = 0, packed: list[Packed] | None = None) -> list[bytes]:
        """The bodies of many values.

        Args:
            values: the values.
            first: the place of the first one in the list that they are of, to name one that can't be kept.
            packed: takes the leading stretches of plain messages as they were packed, for `stretches.Run`.
        """
        encoded: list[bytes] = []
        for at in range(0, len(values), PACKED):
            part = values[at : at + PACKED]
            stretch = pack_stretch(part) if self.splits and len(part) >= _MANY else None
            if packed is not None:
                if stretch is not None:
                    packed.append(stretch)
                else:
                    packed = None
            bodies = stretch.bodies if stretch is not None else self._encode_mixed(part)
            if bodies is not None:
                encoded += bodies
                continue
            encode = self._encoder().body if self.splits else self.encode
            for value in part:
                try:
                    message = _message(value) if self.splits else None
                    encoded.append(message if message is not None else encode(value))
                except Unstorable as exc:
                    exc.item = first + len(encoded)
                    raise
        return encoded

    def _encode_mixed(self, values: Sequence[Any]) -> list[bytes] | None:
        """The bodies of values other than messages in one call of msgpack, or None where that can't be."""
        if not self.splits or len(values) < _MANY or not messages.NUMBERS.keys().isdisjoint(map(type, values)):
            return None
        return self._encoder().bodies(values)

    def decode(self, body: bytes) -> Any:
        """The value of a body; a fresh object at every call.

        Raises:
            DecodeError: when the payload can't be read.
            UnresolvedError: when a class or codec that it needs isn't there.
        """
        return self.decode_many((body,))[0]

    def decode_many(self, bodies: Sequence[bytes]) -> list[Any]:
        """The values of many bodies, in order.

        Raises:
            DecodeError: when a payload can't be read.
            UnresolvedError: when a class or codec that one needs isn't there.
        """
        return _told(self._decode_many, bodies)

    def decode_pack(self, pack: Pack, numbers: Sequence[Ref]) -> list[Any]:
        """The messages in a pack, where they are those of these blobs.

        Raises:
            DecodeError: when their payload can't be read.
            FrameError: when the pack isn't what was stored.
        """
        return _told(pack.messages, numbers)

    def copies(self, bodies: Sequence[bytes], known: list[Template | None]) -> tuple[list[Any], list[Template | None]]:
        """`decode_many` for bodies that are asked for again and again.

        Args:
            bodies: the bodies.
            known: the templates that an earlier call gave, of the leading stretches.

        Returns:
            The values, and templates for the next call: one for each whole stretch of messages.

        Raises:
            DecodeError, UnresolvedError: as `decode_many`.
        """
        templates = list(known)
        return _told(partial(self._copies, templates), bodies), templates

    def _copies(self, templates: list[Template | None], bodies: Sequence[bytes]) -> list[Any]:
        """The values of bodies, from templates as far as these reach; new ones are added."""
        values: list[Any] = []
        for at in range(0, len(bodies), STRETCH):
            part = bodies[at : at + STRETCH]
            if at == len(templates) * STRETCH and len(part) == STRETCH:
                alike = all(body[0] == frame.MESSAGE for body in part)
                templates.append(messages.template([body[1:] for body in part]) if alike else None)
            made = templates[at // STRETCH] if len(part) == STRETCH else None
            values += made.make() if made is not None else self._decode_many(part)
        return values

    def _decode_many(self, bodies: Sequence[bytes]) -> list[Any]:
        if len(bodies) <= STRETCH:
            return self._decode_few(bodies)
        found: list[Any] = []
        for at in range(0, len(bodies), STRETCH):
            found += self._decode_few(bodies[at : at + STRETCH])
        return found

    def _decode_few(self, bodies: Sequence[bytes]) -> list[Any]:
        """A stretch: what it is unpacked from then stays in the processor's cache, and its memory is used again."""
        codecs = {body[0] for body in bodies}
        if codecs == _MESSAGES_ALONE:
            return messages.rebuild(unpack_bodies(bodies)[1::2])
        if len(codecs) == 1:
            return self._decode_alike(codecs.pop(), [body[1:] for body in bodies])
        found: list[Any] = [None] * len(bodies)
        for codec in codecs:
            places = [i for i, body in enumerate(bodies) if body[0] == codec]
            for i, value in zip(places, self._decode_alike(codec, [bodies[i][1:] for i in places]), strict=True):
                found[i] = value
        return found

    def _decode_alike(self, codec: int, payloads: list[bytes]) -> list[Any]:
        if codec == frame.PLAIN:
            return unpack_joined(payloads)
        if codec == frame.MESSAGE:
            return messages.rebuild(unpack_joined(payloads))
        if codec == frame.TYPED:
            return list(map(TypedReader(self._gate).read, payloads))
        if codec == frame.SERDE:
            return [self._loads(*unpack(payload)) for payload in payloads]
        raise DecodeError(f"codec {codec} is not a value's")

    def _loads(self, kind: str, data: bytes) -> Any:
        """A value of a serializer: the user's own reads what it wrote, anything else passes the gate."""
        if self.splits:
            return foreign.decode(kind, data, self._gate)
        return self._serde.loads_typed((kind, data))

    def refuse(self, value: Any, path: str, cause: BaseException) -> ValueNotStorableError:
        """The error for a value that `encode` or `encode_many` refused, naming the innermost part at fault."""
        if isinstance(cause, RecursionError) and self.splits:
            return ValueNotStorableError(
                f"{path} can't be stored: Python's recursion limit was reached while it was encoded. Nothing of this "
                f"call was stored. What to do: look for a codec, or a method of its classes, that calls itself without "
                f"end; or save from a place that is less deep in calls.",
                path=path,
            )
        if isinstance(cause, Unstorable):
            place = path + _item(value, cause.item) + cause.path
            if cause.reason == TOO_DEEP:
                place = _where_it_repeats(value, path) or place
            return ValueNotStorableError(
                f"{place} can't be stored: a value of type {cause.kind}: {cause.reason}. Nothing of this call was "
                f"stored. What to do: {cause.remedy}.",
                path=place,
            )
        place, part = self._at_fault(value, path, 0, set())
        if isinstance(cause, SecretInClearError):
            kind = f"{type(part).__module__}.{type(part).__qualname__}"
            return ValueNotStorableError(
                f"{place} can't be stored: a value of type {kind}: {cause}. Nothing of this call was stored. "
                f"What to do: {secrets.REMEDY}.",
                path=place,
            )
        # What a serializer of the user's own says may hold the value.
        return ValueNotStorableError(
            f"{place} can't be stored: a value of type {type(part).__module__}.{type(part).__qualname__} "
            f"({type(cause).__name__}; its message is not shown, since it may hold the value). Nothing of this call "
            f"was stored. Store plain data there, or give AgentSaver a serde that handles the type.",
            path=place,
        )

    def _at_fault(self, value: Any, path: str, depth: int, inside: set[int]) -> tuple[str, Any]:
        if depth > _DEEPEST or id(value) in inside:
            return path, value
        for suffix, child in _children(value):
            try:
                self.encode(child)
            except Exception:
                return self._at_fault(child, path + suffix, depth + 1, inside | {id(value)})
        return path, value


def _told(decode: Callable[[Any], list[Any]], parts: Sequence[Any]) -> list[Any]:
    """What decoding gives, where the program stands deep in calls too, with its errors made ours.

    Raises:
        DecodeError: when the bytes are at fault.
    """
    try:
        with collector_held_off():
            try:
                return decode(parts)
            except RecursionError:
                return in_room(decode, parts)  # type: ignore[no-any-return]
    except _NOT_THE_BYTES:
        raise
    except Exception as exc:
        raise DecodeError(f"{type(exc).__name__} while decoding") from exc


def _message(value: Any) -> bytes | None:
    """The body of a message that holds plain data alone, else None."""
    number = messages.NUMBERS.get(type(value))
    packed = messages.encode(value, number) if number is not None else None
    return _MESSAGE + packed if packed is not None else None


def _kept(encoder: Encoder, part: Any) -> Any:
    """A part of metadata, or a text in its place where not even a lenient encoder can take it."""
    try:
        encoder.encode(part)
    except Exception:
        return f"<{type(part).__module__}.{type(part).__qualname__}>"
    return part


def _item(value: Any, at: int | None) -> str:
    """The step to an item of what was given to `encode_many`: a list's, or a dict's value."""
    if at is None:
        return ""
    return f"[{list(value)[at]!r:.60}]" if isinstance(value, dict) else f"[{at}]"


def _cycle(value: Any, path: str, inside: dict[int, str], done: set[int]) -> str | None:
    """The path of the first part that is a container of its own, and what it is, or None."""
    if id(value) in inside:
        return f"{short(path)} (which is {short(inside[id(value)])} again)"
    if id(value) in done or len(inside) > DEEPEST:
        return None
    inside[id(value)] = path
    for suffix, child in _children(value):
        found = _cycle(child, path + suffix, inside, done)
        if found is not None:
            return found
    del inside[id(value)]
    done.add(id(value))
    return None


def _where_it_repeats(value: Any, path: str) -> str | None:
    found: str | None = in_room(_cycle, value, path, {}, set())
    return found


def _children(value: Any) -> list[tuple[str, Any]]:
    if isinstance(value, dict):
        return [(f"[{key!r:.60}]", item) for key, item in value.items()]
    if isinstance(value, (list, tuple)):
        return [(f"[{i}]", item) for i, item in enumerate(value)]
    if isinstance(value, (set, frozenset)):
        return [(".<element>", item) for item in value]
    fields = getattr(value, "__dict__", None)
    if isinstance(fields, dict):
        return [(f".{name}", item) for name, item in fields.items()]
    return []


settle()  # The modules above keep some for good.

__all__ = ["DecodeError", "DeltaSnapshot", "PackError", "UnpackError", "UnresolvedError", "ValueCodec"]
