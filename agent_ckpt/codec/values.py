"""The value codec: one value to the body of a blob (a codec byte and a payload), and back.

Exact msgpack and LangChain messages have fast paths of their own; anything else goes through the
saver's serializer. With a serializer of the user's own, every value goes through that one.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import ormsgpack
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.serde.types import _DeltaSnapshot

from agent_ckpt.codec import frame, messages
from agent_ckpt.codec.messages import Template
from agent_ckpt.codec.pack import EXACT, PackError, UnpackError, pack, unpack, unpack_joined
from agent_ckpt.codec.secrets import SecretInClearError, refuse_secrets
from agent_ckpt.errors import ValueNotStorableError

DeltaSnapshot = _DeltaSnapshot

_PLAIN = bytes((frame.PLAIN,))
_MESSAGE = bytes((frame.MESSAGE,))
_SERDE = bytes((frame.SERDE,))
_DEEPEST = 64


class DecodeError(Exception):
    """A body that passed its check but can't be turned into a value. The reader adds where."""


class ValueCodec:
    """Encodes and decodes values with one serializer.

    Attributes:
        splits: whether lists, dicts and long texts may be stored in parts: only with LangGraph's
            own serializer, since another one may treat a whole value in a way of its own.
        secrets_allowed: whether a SecretStr or SecretBytes may be encoded; else it is refused.
    """

    __slots__ = ("_serde", "secrets_allowed", "splits")

    def __init__(self, serde: SerializerProtocol, *, secrets_allowed: bool = False) -> None:
        self._serde = serde
        self.secrets_allowed = secrets_allowed
        self.splits = type(serde) is JsonPlusSerializer

    def encode(self, value: Any) -> bytes:
        """The body of a value.

        Raises:
            Exception: whatever the serializer raises for a value it can't keep.
        """
        if self.splits:
            number = messages.NUMBERS.get(type(value))
            if number is not None:
                packed = messages.encode(value, number)
                if packed is not None:
                    return _MESSAGE + packed
            elif type(value) is not bytearray:  # which would pack as bytes
                try:
                    return _PLAIN + pack(value)
                except (PackError, RecursionError):
                    pass
        if not self.secrets_allowed:
            refuse_secrets(value)
        kind, data = self._serde.dumps_typed(value)
        return _SERDE + pack([kind, bytes(data)])

    def encode_many(self, values: Sequence[Any]) -> list[bytes]:
        """The bodies of many values."""
        if not self.splits:
            return [self.encode(value) for value in values]
        # The loop that costs most in a long conversation: the common case of `encode`, unrolled.
        number_of, encoded, packb = messages.NUMBERS.get, [], ormsgpack.packb
        for value in values:
            number = number_of(type(value))
            if number is not None and value.__pydantic_private__ is None and not value.__pydantic_extra__:
                try:
                    packed = packb([number, value.__dict__, sorted(value.__pydantic_fields_set__)], option=EXACT)
                except PackError:
                    encoded.append(self.encode(value))
                else:
                    encoded.append(_MESSAGE + packed)
            else:
                encoded.append(self.encode(value))
        return encoded

    def decode(self, body: bytes) -> Any:
        """The value of a body; a fresh object at every call.

        Raises:
            DecodeError: when the payload can't be read.
        """
        return self.decode_many((body,))[0]

    def decode_many(self, bodies: Sequence[bytes]) -> list[Any]:
        """The values of many bodies, in order.

        Raises:
            DecodeError: when a payload can't be read.
        """
        try:
            with _collector_held_off():
                return self._decode_many(bodies)
        except DecodeError:
            raise
        except Exception as exc:
            raise DecodeError(f"{type(exc).__name__} while decoding") from exc

    def copies(self, bodies: Sequence[bytes], known: list[Template | None]) -> tuple[list[Any], list[Template | None]]:
        """`decode_many` for bodies that are asked for again and again.

        Args:
            bodies: the bodies.
            known: the templates that an earlier call gave, of the leading ones.

        Returns:
            The values, and templates for the next call.

        Raises:
            DecodeError: when a payload can't be read.
        """
        fresh = bodies[len(known) :]
        try:
            made = iter(messages.templates([body[1:] for body in fresh if body[0] == frame.MESSAGE]))
        except Exception as exc:
            raise DecodeError(f"{type(exc).__name__} while decoding") from exc
        templates = known + [next(made) if body[0] == frame.MESSAGE else None for body in fresh]
        with _collector_held_off():
            values = [
                template.make() if template is not None else self.decode(body)
                for template, body in zip(templates, bodies, strict=True)
            ]
        return values, templates

    def _decode_many(self, bodies: Sequence[bytes]) -> list[Any]:
        codecs = {body[0] for body in bodies}
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
            return messages.decode(payloads)
        if codec == frame.SERDE:
            return [self._serde.loads_typed((kind, data)) for kind, data in map(unpack, payloads)]
        raise DecodeError(f"codec {codec} is not a value's")

    def refuse(self, value: Any, path: str, cause: BaseException) -> ValueNotStorableError:
        """The error for a value that `encode` refused, naming the innermost part at fault."""
        place, part = self._at_fault(value, path, 0, set())
        if isinstance(cause, SecretInClearError):
            return ValueNotStorableError(
                f"{place} holds a {type(part).__qualname__}, and this store has no key: it would stand in the file in "
                f"clear. Nothing of this call was stored. Give AgentSaver a key (key=...), keep the secret in "
                f'saver.credentials(thread_id), or accept it in clear with plaintext_secrets="allow".',
                path=place,
            )
        # What a serializer of the user's own says may hold the value.
        told = str(cause)[:200] if self.splits else "its message is not shown, since it may hold the value"
        reason = "it contains itself or is nested too deep" if isinstance(cause, RecursionError) else told
        return ValueNotStorableError(
            f"{place} can't be stored: a value of type {type(part).__module__}.{type(part).__qualname__} "
            f"({type(cause).__name__}: {reason}). Nothing of this call was stored. "
            f"Store plain data there, or give AgentSaver a serde that handles the type.",
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


@contextmanager
def _collector_held_off() -> Iterator[None]:
    """Hold Python's cyclic collector off: nothing that is built here is garbage, and its passes over
    the new objects cost more than building them."""
    collecting = gc.isenabled()
    if collecting:
        gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


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


__all__ = ["DecodeError", "DeltaSnapshot", "PackError", "UnpackError", "ValueCodec"]
