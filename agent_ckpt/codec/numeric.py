"""numpy arrays and scalars: dtype, shape, order and bytes; and back, checked before numpy sees them."""

from __future__ import annotations

import re
import sys
from typing import Any

from agent_ckpt.codec.gate import UnresolvedError

_SIMPLE = re.compile(r"[<>|=][biufcSUVMm]\d{1,9}(\[[0-9A-Za-z/]{1,24}\])?|[bBhHiIlLqQefdgFDG?]")
_DIMENSIONS_AT_MOST = 64
_X87_MANTISSA, _X87_BYTES = 63, 10


class NoArrayError(Exception):
    """Why an array can't be stored."""


def is_numpy(value: Any) -> bool:
    """Whether a value is just a numpy array, or a numpy scalar."""
    numpy = sys.modules.get("numpy")
    return numpy is not None and (type(value) is numpy.ndarray or isinstance(value, numpy.generic))


def is_array(value: Any) -> bool:
    """Whether a value is just a numpy array."""
    return type(value) is sys.modules["numpy"].ndarray


def take_apart(array: Any) -> list[Any]:
    """`[dtype, shape, order, bytes]` of an array, or its items in place of the bytes for one of objects.

    Raises:
        NoArrayError: for a dtype that does not come back equal.
    """
    dtype = array.dtype
    order = "F" if array.flags.f_contiguous and not array.flags.c_contiguous else "C"
    if dtype.kind == "O":
        return ["|O", list(array.shape), order, list(array.ravel(order=order))]
    described = describe(dtype)
    return [described, list(array.shape), order, raw(array, order)]


def raw(value: Any, order: str = "C") -> bytes:
    """The bytes of an array or scalar, the same for the same numbers.

    A long double of x86 has ten bytes, and behind them what happened to stand in memory.
    """
    data: bytes = value.tobytes(order=order)
    dtype = value.dtype
    if getattr(dtype, "char", " ") not in "gG":
        return data
    numpy = _numpy()
    if numpy.finfo(numpy.longdouble).nmant != _X87_MANTISSA:
        return data
    units = numpy.frombuffer(bytearray(data), numpy.uint8).reshape(-1, numpy.dtype("g").itemsize)
    if dtype.isnative:
        units[:, _X87_BYTES:] = 0
    else:
        units[:, :-_X87_BYTES] = 0
    cleared: bytes = units.tobytes()
    return cleared


def describe(dtype: Any) -> Any:
    """A dtype as text, or as a list where it is structured.

    Raises:
        NoArrayError: for one that does not come back equal.
    """
    import numpy

    if dtype.hasobject:
        raise NoArrayError(f"its dtype {dtype} holds objects inside a structure")
    try:
        if dtype.names is None and dtype.subdtype is None:
            described = dtype.str
        else:
            described = _plain(numpy.lib.format.dtype_to_descr(dtype))
        if _dtype(described) == dtype:
            return described
    except (ValueError, TypeError, SyntaxError):
        pass
    raise NoArrayError(f"its dtype {dtype} does not come back equal")


def _plain(described: Any) -> Any:
    return [_plain(part) for part in described] if isinstance(described, (list, tuple)) else described


def _dtype(described: Any) -> Any:
    import numpy

    if isinstance(described, str):
        if not _SIMPLE.fullmatch(described):
            raise ValueError("no dtype of numbers, text, bytes or times")
        return numpy.dtype(described)
    return numpy.lib.format.descr_to_dtype(_fields(described))


def _fields(described: list[Any]) -> list[Any]:
    found: list[Any] = []
    for field in described:
        name, inner, *shape = field
        if isinstance(inner, str):
            if not _SIMPLE.fullmatch(inner):
                raise ValueError("no dtype of numbers, text, bytes or times")
        else:
            inner = _fields(inner)
        found.append((tuple(name) if isinstance(name, list) else name, inner, *(tuple(part) for part in shape)))
    return found


def _numpy() -> Any:
    try:
        import numpy
    except ImportError as exc:
        raise UnresolvedError(
            "numpy", "a numpy array is stored, and numpy can't be imported here", "install numpy"
        ) from exc
    return numpy


def build(described: Any, shape: list[int], order: Any, data: Any) -> Any:
    """The array, writable.

    Raises:
        ValueError, TypeError: when the parts don't fit together.
    """
    numpy = _numpy()
    if type(described) not in (str, list) or type(shape) is not list or type(order) is not str:
        raise TypeError("an array whose description is none")
    if order not in ("C", "F") or len(shape) > _DIMENSIONS_AT_MOST:
        raise ValueError("an array of unknown order or too many dimensions")
    count = 1
    for size in shape:
        if type(size) is not int or size < 0:
            raise ValueError("an array with a dimension that is no size")
        count *= size
    if described == "|O":
        if type(data) is not list or len(data) != count:
            raise ValueError("an array with another number of items than its shape has")
        made = numpy.empty(count, dtype=object)
        for at, item in enumerate(data):
            made[at] = item
        return made.reshape(shape, order=order)
    dtype = _dtype(described)
    if dtype.hasobject or not isinstance(data, (bytes, bytearray)) or len(data) != count * dtype.itemsize:
        raise ValueError("an array with another number of bytes than its shape and dtype have")
    # A view also of no bytes: else numpy makes room for texts of no length, of which a row could claim any number.
    return numpy.ndarray(tuple(shape), dtype=dtype, buffer=bytearray(data or 1), order=order)


def scalar_apart(value: Any) -> list[Any]:
    """`[dtype, bytes]` of a numpy scalar.

    Raises:
        NoArrayError: for one that does not come back equal.
    """
    import numpy

    if type(value) is numpy.str_:
        return ["U", str(value)]
    if type(value) is numpy.bytes_:
        return ["S", bytes(value)]
    if value.dtype.hasobject:
        raise NoArrayError(f"its dtype {value.dtype} holds objects")
    for described in (describe(value.dtype), value.dtype.char):
        data = raw(value)
        try:
            made = scalar(described, data)
        except (ValueError, TypeError):
            continue
        if type(made) is type(value) and raw(made) == data:
            return [described, data]
    raise NoArrayError(f"its type {type(value).__name__} does not come back equal")


def scalar(described: Any, data: Any) -> Any:
    """The scalar.

    Raises:
        ValueError, TypeError: when the parts don't fit together.
    """
    numpy = _numpy()
    if type(described) not in (str, list) or type(data) not in (str, bytes, list):
        raise TypeError("a scalar whose description is none")
    if described == "U":
        return numpy.str_(data)
    if described == "S":
        return numpy.bytes_(data)
    return build(described, [], "C", data)[()]
