"""Exact msgpack: what packs here comes back equal in value and type, or it raises.

ormsgpack would turn tuples into lists, subclasses into their base and enums into their values; the
pass-through options hand those to `default`, which we leave out, so packing raises TypeError and
the caller goes to the generic serializer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson
import ormsgpack

PackError = ormsgpack.MsgpackEncodeError
UnpackError = ormsgpack.MsgpackDecodeError

EXACT = (
    ormsgpack.OPT_PASSTHROUGH_BIG_INT
    | ormsgpack.OPT_PASSTHROUGH_DATACLASS
    | ormsgpack.OPT_PASSTHROUGH_DATETIME
    | ormsgpack.OPT_PASSTHROUGH_ENUM
    | ormsgpack.OPT_PASSTHROUGH_SUBCLASS
    | ormsgpack.OPT_PASSTHROUGH_TUPLE
    | ormsgpack.OPT_PASSTHROUGH_UUID
)
_ARRAY32 = b"\xdd"


def pack(value: Any) -> bytes:
    """Pack None, bool, int (64 bits), float, str, bytes, and lists and str-keyed dicts of them.

    Raises:
        PackError: for anything else, at any depth.
    """
    packed = ormsgpack.packb(value, option=EXACT)
    if b"\xc4" in packed or b"\xc5" in packed or b"\xc6" in packed:
        # It may hold a byte string (`may_hold_bytes`, of which the call would cost as much as the looks).
        refuse_other_bytes(value)
    return packed


def pack_made(parts: Any) -> bytes:
    """Pack what this package made itself, so that nothing in it need be looked at; a tuple as a list.

    Raises:
        PackError: for text with lone surrogates.
    """
    return ormsgpack.packb(parts)


def pack_own(value: Any) -> bytes:
    """`pack` for what we have made ourselves, or compare with such: a bytearray or memoryview packs like bytes.

    Raises:
        PackError: as `pack`, except for those two.
    """
    return ormsgpack.packb(value, option=EXACT)


def holds_bytes(value: Any, packed: bytes) -> bool:
    """Whether a value that was packed exactly holds a byte string, at any depth."""
    if not may_hold_bytes(packed):
        return False
    try:
        orjson.dumps(value)
    except orjson.JSONEncodeError:
        # Or a number that JSON has not; such a value is compared the slow way, too.
        return True
    return False


def may_hold_bytes(packed: bytes) -> bool:
    """Whether packed data may hold a byte string: msgpack's marks for one also occur in text and numbers."""
    return b"\xc4" in packed or b"\xc5" in packed or b"\xc6" in packed


def refuse_other_bytes(value: Any) -> None:
    """Refuse a bytearray or memoryview in what has packed, since msgpack would turn it into bytes.

    JSON has no byte strings, so its encoder asks about each: a walk over the value at C speed. What stands in an
    extension is looked at where that is packed.

    Raises:
        PackError: there is one, or what JSON can't walk.
    """
    try:
        orjson.dumps(value, default=_no_other_bytes, option=_WALKED)
    except orjson.JSONEncodeError as exc:
        raise PackError("it holds a bytearray or a memoryview") from exc


_WALKED = orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME | orjson.OPT_PASSTHROUGH_SUBCLASS
_OTHER_BYTES = frozenset((bytearray, memoryview))


def _no_other_bytes(part: Any) -> None:
    if type(part) in _OTHER_BYTES:
        raise TypeError


def unpack(data: bytes) -> Any:
    """Undo `pack`.

    Raises:
        UnpackError: when `data` is no msgpack.
    """
    return ormsgpack.unpackb(data)


def unpack_bodies(bodies: Sequence[bytes]) -> list[Any]:
    """The values of many bodies, whose codec bytes are small numbers and so msgpack too: nothing has to be cut off.

    Returns:
        Codec, value, codec, value ...
    """
    unpacked: list[Any] = ormsgpack.unpackb(_ARRAY32 + (2 * len(bodies)).to_bytes(4, "big") + b"".join(bodies))
    return unpacked


def unpack_joined(parts: list[bytes]) -> list[Any]:
    """Unpack many packed values in one call: four times as fast as one by one."""
    joined: list[Any] = ormsgpack.unpackb(_ARRAY32 + len(parts).to_bytes(4, "big") + b"".join(parts))
    return joined
