"""Exact msgpack: what packs here comes back equal in value and type, or it raises.

ormsgpack would turn tuples into lists, subclasses into their base and enums into their values; the
pass-through options hand those to `default`, which we leave out, so packing raises TypeError and
the caller goes to the generic serializer.
"""

from __future__ import annotations

from collections.abc import Sequence
from sys import getrefcount
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
    if (
        0xC4 in packed
        or 0xC5 in packed
        or 0xC6 in packed
        or getrefcount(_Ext) > _known_exts
        or getrefcount(_Fragment) > _known_fragments
    ):
        # As `is_doubtful`, of which the call would cost as much as the looks.
        look_through(value)
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


def is_doubtful(packed: bytes) -> bool:
    """Whether packed data may be of something else than what it unpacks to, so that its value is to be looked through.

    msgpack's marks of a byte string, which it also makes of a bytearray, occur in text and numbers too.
    """
    return 0xC4 in packed or 0xC5 in packed or 0xC6 in packed or are_extensions_about()


def are_extensions_about() -> bool:
    """Whether anybody but this package has an Ext or a Fragment of ormsgpack, which it packs as what they say.

    Each of these refers to its type, so that the type tells whether there are any.
    """
    return getrefcount(_Ext) > _known_exts or getrefcount(_Fragment) > _known_fragments


def settle() -> None:
    """What there is of Ext and Fragment by now is this package's, or nobody's that could stand in a value."""
    global _known_exts, _known_fragments
    _known_exts, _known_fragments = getrefcount(_Ext), getrefcount(_Fragment)


def look_through(value: Any) -> bool:
    """Refuse what msgpack has packed as something else: a bytearray, memoryview, Ext or Fragment.

    JSON has none of these and no byte strings, so its encoder asks about each: a walk over the value at C speed. What
    stands in an extension is looked at where that is packed.

    Returns:
        Whether there is a byte string.

    Raises:
        PackError: there is one of these, or what JSON can't walk.
    """
    met: set[type] = set()
    try:
        orjson.dumps(value, default=lambda part: met.add(type(part)), option=_WALKED)
    except orjson.JSONEncodeError as exc:
        # It makes an error of its own of whatever is raised while it asks, an interrupt too.
        if exc.__cause__ is not None and not isinstance(exc.__cause__, Exception):
            raise exc.__cause__ from None
        raise PackError("it can't be looked through") from exc
    if not met.isdisjoint(_REFUSED):
        raise PackError("it holds a bytearray, a memoryview, or a piece of msgpack")
    return bytes in met


_Ext = ormsgpack.Ext
_Fragment = ormsgpack.Fragment
_WALKED = orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME | orjson.OPT_PASSTHROUGH_SUBCLASS
_REFUSED = frozenset((bytearray, memoryview, _Ext, _Fragment))
_known_exts = _known_fragments = 0
settle()


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
