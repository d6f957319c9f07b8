"""The codec by itself: what is packed comes back equal, and a changed byte is never taken for truth."""

from __future__ import annotations

import contextlib
import random
import struct
import uuid
from dataclasses import asdict
from datetime import UTC, datetime, timedelta, timezone
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_ckpt.codec import arrays, compress, digest, frame, ids, pieces, rows, tree
from agent_ckpt.codec.pack import PackError, UnpackError, pack, unpack, unpack_joined
from agent_ckpt.model import Body, CheckpointRow, Entry, History, Place, TaskWrites, WritesRow

SECRET = bytes(range(16))
COORDINATES: frame.Coordinates = ("checkpoint", "thread", "", "id-1", None, 7)
PAYLOADS = {
    "empty": b"",
    "short": b"AMOUNT=1000",
    "text": b"the quick brown fox jumps over the lazy dog, again and again. " * 12,
    "zeros": bytes(300),
    "noise": random.Random(1).randbytes(200),
    "messages": pack([{"content": f"message {i}", "type": "human", "id": str(i)} for i in range(20)]),
}
relaxed = settings(deadline=None, derandomize=True, max_examples=100)


def changes(data: bytes) -> list[tuple[int, bytes]]:
    """The data with each byte changed once: its lowest bit, its highest, all of them, and to a random one."""
    dice = random.Random(len(data))
    found = []
    for at, value in enumerate(data):
        for other in {value ^ 1, value ^ 0x80, value ^ 0xFF, dice.randrange(256)} - {value}:
            found.append((at, data[:at] + bytes((other,)) + data[at + 1 :]))
    return found


# Frames


@pytest.mark.parametrize("method", ["zstd", "none"])
@pytest.mark.parametrize("name", PAYLOADS)
def test_a_row_frame_with_a_changed_byte_is_refused(name: str, method: str) -> None:
    """B64: any byte of a row's frame, header, payload or check, that changes gives FrameError and nothing else."""
    sealed = frame.seal_row(frame.CHECKPOINT_ROW, PAYLOADS[name], COORDINATES, method, SECRET)
    assert frame.open_row(frame.CHECKPOINT_ROW, sealed, COORDINATES, SECRET) == PAYLOADS[name]
    for _, changed in changes(sealed):
        with pytest.raises(frame.FrameError):
            frame.open_row(frame.CHECKPOINT_ROW, changed, COORDINATES, SECRET)


@pytest.mark.parametrize("method", ["zstd", "none"])
@pytest.mark.parametrize("name", PAYLOADS)
def test_a_blob_with_a_changed_byte_is_refused_or_misses_its_address(name: str, method: str) -> None:
    """B64: any byte of a blob's frame that changes gives FrameError, or content that its address doesn't fit."""
    body = bytes((frame.PLAIN,)) + PAYLOADS[name]
    address = digest.address(body, SECRET)
    sealed = frame.seal_blob(body, method, SECRET, b"")
    assert frame.open_blob(sealed, SECRET, b"") == body
    for at, changed in changes(sealed):
        try:
            opened = frame.open_blob(changed, SECRET, b"")
        except frame.FrameError:
            continue
        if opened != body:
            assert digest.address(opened, SECRET) != address
        else:
            # Only a byte that doesn't matter to the content, such as a bit of the compressor's own header.
            assert at >= frame.HEADER_SIZE - 2, f"byte {at} of the header changed and nobody noticed"


@pytest.mark.parametrize("at", [0, 1, 4])
def test_each_byte_of_the_header_is_read(at: int) -> None:
    """Magic, format_version and flags are checked by themselves, not by the checksum alone."""
    sealed = frame.seal_blob(b"\x01payload", "none", SECRET, b"")
    for value in set(range(256)) - {sealed[at]}:
        with pytest.raises(frame.FrameError):
            frame.open_blob(sealed[:at] + bytes((value,)) + sealed[at + 1 :], SECRET, b"")


def test_a_newer_format_says_what_to_do() -> None:
    """A frame of a newer format_version names both versions and the way out."""
    sealed = bytearray(frame.seal_blob(b"\x01payload", "none", SECRET, b""))
    sealed[1] = 2
    with pytest.raises(frame.FrameError, match="format_version 2, this release reads 1: upgrade"):
        frame.open_blob(bytes(sealed), SECRET, b"")


@pytest.mark.parametrize("method", ["zstd", "none"])
@pytest.mark.parametrize("name", PAYLOADS)
def test_a_frame_that_was_cut_short_is_refused(name: str, method: str) -> None:
    """Every shorter form of a frame is refused; so is one with something behind it."""
    body = bytes((frame.PLAIN,)) + PAYLOADS[name]
    row, blob = (
        frame.seal_row(frame.WRITES_ROW, PAYLOADS[name], COORDINATES, method, SECRET),
        frame.seal_blob(body, method, SECRET, b""),
    )
    for size in range(len(row)):
        with pytest.raises(frame.FrameError):
            frame.open_row(frame.WRITES_ROW, row[:size], COORDINATES, SECRET)
    with pytest.raises(frame.FrameError):
        frame.open_row(frame.WRITES_ROW, row + b"\x00", COORDINATES, SECRET)
    for size in range(len(blob)):
        try:
            assert digest.address(frame.open_blob(blob[:size], SECRET, b""), SECRET) != digest.address(body, SECRET)
        except frame.FrameError:
            continue


@given(st.binary(max_size=300))
@relaxed
def test_bytes_that_are_no_frame_are_refused(data: bytes) -> None:
    """Arbitrary bytes never open as a row, and as a blob only what has the form of a frame."""
    with pytest.raises(frame.FrameError):
        frame.open_row(frame.CHECKPOINT_ROW, data, COORDINATES, SECRET)
    try:
        frame.open_blob(data, SECRET, b"")
    except frame.FrameError:
        return
    assert data[:2] == bytes((frame.MAGIC, frame.FORMAT_VERSION))


@pytest.mark.parametrize(
    "other",
    [
        ("writes", "thread", "", "id-1", None, 7),
        ("checkpoint", "thread2", "", "id-1", None, 7),
        ("checkpoint", "thread", "n", "id-1", None, 7),
        ("checkpoint", "thread", "", "id-2", None, 7),
        ("checkpoint", "thread", "", "id-1", "id-0", 7),
        ("checkpoint", "thread", "", "id-1", "None", 7),
        ("checkpoint", "thread", "", "id-1", None, 8),
        ("checkpoint", "threadid-1", "", "", None, 7),
    ],
)
def test_a_row_is_bound_to_where_it_stands(other: frame.Coordinates) -> None:
    """A row's frame at another thread, namespace, id, parent or commit sequence is refused."""
    sealed = frame.seal_row(frame.CHECKPOINT_ROW, b"payload", COORDINATES, "zstd", SECRET)
    with pytest.raises(frame.FrameError, match="checksum"):
        frame.open_row(frame.CHECKPOINT_ROW, sealed, other, SECRET)


def test_a_row_of_another_kind_is_refused() -> None:
    """A frame whose codec isn't the one that belongs there is refused, although its checksum is right."""
    sealed = frame.seal_row(frame.WRITES_ROW, b"payload", COORDINATES, "zstd", SECRET)
    with pytest.raises(frame.FrameError, match="codec 17 where 16 was expected"):
        frame.open_row(frame.CHECKPOINT_ROW, sealed, COORDINATES, SECRET)


COORDINATE = st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1), st.text(st.characters(codec=None)), st.binary())


@given(st.binary(), st.lists(COORDINATE, max_size=4), st.data())
@relaxed
def test_no_two_rows_have_one_checksum(framed: bytes, place: list[Any], data: st.DataObject) -> None:
    """Frame and coordinates are delimited and typed: another frame, or another place, has another checksum."""
    other, elsewhere = data.draw(st.binary()), data.draw(st.lists(COORDINATE, max_size=4))
    if (other, [(type(p), p) for p in elsewhere]) != (framed, [(type(p), p) for p in place]):
        assert digest.checksum(framed, tuple(place)) != digest.checksum(other, tuple(elsewhere))
    assert digest.checksum(framed, (*place, "ab", "c")) != digest.checksum(framed, (*place, "a", "bc"))
    assert digest.checksum(framed + b"x", tuple(place)) != digest.checksum(framed, ("x", *place))


def test_addresses_depend_on_the_threads_secret() -> None:
    """Equal content in two threads has two addresses, so that it can't be told from outside."""
    assert digest.address(b"x", SECRET) == digest.address(b"x", SECRET)
    assert digest.address(b"x", SECRET) != digest.address(b"x", bytes(16))
    assert digest.combined([b"a" * 16, b"b" * 16], SECRET) != digest.combined([b"b" * 16, b"a" * 16], SECRET)


# Compression


@pytest.mark.parametrize("method", ["zstd", "none"])
@pytest.mark.parametrize("size", [0, 1, 23, 24, 25, 1000, 32 * 1024 - 1, 32 * 1024, 200_000])
@pytest.mark.parametrize("kind", ["zeros", "noise", "text"])
def test_compression_gives_back_what_went_in(method: str, size: int, kind: str) -> None:
    """Round trip on both sides of each threshold, never larger than the payload."""
    payload = {
        "zeros": bytes(size),
        "noise": random.Random(size).randbytes(size),
        "text": (b"some words about nothing " * (size // 25 + 1))[:size],
    }[kind]
    used, packed = compress.compress(payload, method)
    assert compress.decompress(used, packed) == payload
    assert len(packed) <= size
    if method == "none":
        assert (used, packed) == (compress.NONE, payload)
    if method == "zstd" and kind != "noise" and size >= 1000:
        assert len(packed) < size / 5


def test_the_factory_dictionary_pays_on_small_messages() -> None:
    """A small payload with a message's field names is less than half as large as without the dictionary."""
    fields = {
        "content": "ok",
        "example": False,
        "additional_kwargs": {},
        "response_metadata": {},
        "type": "human",
        "name": None,
        "id": "7",
        "tool_calls": [],
        "invalid_tool_calls": [],
        "usage_metadata": None,
    }
    used, packed = compress.compress(pack(fields), "zstd")
    assert used == compress.FACTORY_DICTIONARY
    assert len(packed) < len(zstandard.ZstdCompressor(level=3).compress(pack(fields))) / 2


@pytest.mark.parametrize("unknown", [2, 3, 15, 17, 18, 255])
def test_an_unknown_compression_is_refused(unknown: int) -> None:
    """An id that no release defined, or a dictionary that this one doesn't have, is DecompressError."""
    _, packed = compress.compress(bytes(300), "zstd")
    with pytest.raises(compress.DecompressError, match=r"unknown|dictionary"):
        compress.decompress(unknown, packed)


@pytest.mark.parametrize("claimed", [(1 << 30) + 1, 1 << 40, (1 << 64) - 3])
@pytest.mark.parametrize("used", [compress.ZSTD, compress.FACTORY_DICTIONARY])
def test_a_claimed_size_is_not_believed(claimed: int, used: int) -> None:
    """A frame of a few bytes that claims gigabytes is refused before memory is asked for."""
    # Header descriptor: 8-byte content size, single segment; then an empty last block.
    bomb = bytes((0xE0,)) + struct.pack("<Q", claimed) + b"\x01\x00\x00"
    with pytest.raises(compress.DecompressError, match="1 GiB"):
        compress.decompress(used, bomb)


@pytest.mark.parametrize("used", [compress.ZSTD, compress.FACTORY_DICTIONARY])
@given(data=st.binary(max_size=100))
@relaxed
def test_bytes_that_are_not_compressed_are_refused(used: int, data: bytes) -> None:
    """Arbitrary bytes give DecompressError or bytes, never another exception."""
    with contextlib.suppress(compress.DecompressError):
        assert isinstance(compress.decompress(used, data), bytes)


# Exact msgpack


PLAIN = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**63), 2**64 - 1),
        st.floats(allow_nan=False),
        st.text(st.characters(exclude_categories=["Cs"])),
        st.binary(),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=5),
        st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner, max_size=5),
    ),
    max_leaves=20,
)


def exact(value: Any) -> Any:
    """A form that two values share only if they are equal in type, sign of zero and order of keys."""
    if isinstance(value, dict):
        return ("dict", [(k, exact(v)) for k, v in value.items()])
    if isinstance(value, list):
        return ("list", [exact(v) for v in value])
    return (type(value), struct.pack("<d", value) if isinstance(value, float) else value)


@given(PLAIN)
@relaxed
def test_packing_is_exact(value: Any) -> None:
    """What packs comes back equal in value, type, sign of zero and order of keys."""
    assert exact(unpack(pack(value))) == exact(value)


@given(st.lists(PLAIN, max_size=6))
@relaxed
def test_many_values_unpack_as_one_by_one(values: list[Any]) -> None:
    """The joined form gives the same values in the same order."""
    assert exact(unpack_joined([pack(value) for value in values])) == exact(values)


def test_nan_survives_packing() -> None:
    """NaN comes back as NaN."""
    assert unpack(pack([float("nan")]))[0] != unpack(pack([float("nan")]))[0]


class Number(IntEnum):
    ONE = 1


class Pair(NamedTuple):
    a: int


class Text(str):
    pass


class Whole(int):
    pass


class Table(dict):  # type: ignore[type-arg]
    pass


class Row(list):  # type: ignore[type-arg]
    pass


@pytest.mark.parametrize(
    "value",
    [
        (1, 2), [(1,)], {"a": (1,)}, {1, 2}, {1: 2}, {b"k": 1}, 2**64, -(2**63) - 1, Number.ONE, Pair(1), Text("x"),
        Whole(1), Table(a=1), Row([1]), datetime(2026, 1, 1), uuid.UUID(int=1), 1j, object(), "a\ud800",
        np.float64(1), np.zeros(2), {"deep": [{"er": frozenset()}]},
    ],
    ids=lambda value: "object()" if type(value) is object else repr(value),
)  # fmt: skip
def test_what_would_not_come_back_equal_does_not_pack(value: Any) -> None:
    """Tuples, subclasses, enums, keys that aren't text, numbers past 64 bits: PackError, so another codec is asked."""
    with pytest.raises(PackError):
        pack(value)


@given(st.binary(max_size=60))
@relaxed
def test_bytes_that_are_no_msgpack_are_refused(data: bytes) -> None:
    """Arbitrary bytes give UnpackError or a value, never another exception."""
    try:
        unpack(data)
    except Exception as exc:
        assert isinstance(exc, UnpackError)


# Ids


@given(
    st.one_of(st.uuids().map(str), st.uuids().map(lambda u: str(u).upper()), st.uuids().map(lambda u: u.hex), st.text())
)
@relaxed
def test_ids_come_back_as_they_were(text: str) -> None:
    """Any text comes back unchanged; a UUID in its canonical spelling takes 16 bytes, another spelling stays text."""
    stored = ids.shrink(text)
    assert ids.expand(stored) == text
    canonical = len(text) == 36 and text == text.lower() and _is_uuid(text)
    assert isinstance(stored, bytes) == canonical


def _is_uuid(text: str) -> bool:
    try:
        return str(uuid.UUID(text)) == text
    except ValueError:
        return False


@pytest.mark.parametrize(
    "text",
    [
        "00000000-0000-0000-0000-00000000000 ", "0000000000-0000-0000-0000-0000000000",
        "+0000000-0000-0000-0000-000000000000",
        "0_000000-0000-0000-0000-000000000000", "-" * 36, "٠" * 8 + "-0000-0000-0000-000000000000",
    ],
)  # fmt: skip
def test_ids_that_almost_are_uuids(text: str) -> None:
    """Spellings that a lenient parser takes for a UUID stay the text they are."""
    assert ids.shrink(text) == text


@given(st.lists(st.one_of(st.uuids().map(str), st.text(min_size=1)), unique=True))
@relaxed
def test_different_ids_stay_different(texts: list[str]) -> None:
    """Two ids never shrink to the same stored form."""
    assert len({ids.shrink(text) for text in texts}) == len(texts)


# Rows

ZONES = st.sampled_from([UTC, timezone(timedelta(hours=5, minutes=30)), timezone(timedelta(seconds=-1)), None])
TIMES = st.one_of(
    st.datetimes(timezones=ZONES).map(lambda d: d.isoformat()),
    st.datetimes(timezones=ZONES).map(lambda d: d.isoformat(timespec="milliseconds")),
    st.datetimes(timezones=st.just(UTC)).map(lambda d: d.isoformat().replace("+00:00", "Z")),
    st.text(max_size=40),
    st.sampled_from(["", "2026-01-01", "0001-01-01T00:00:00+00:00", "9999-12-31T23:59:59.999999+00:00", "2026-W01-1"]),
)


def _reopened(body: Body) -> Body:
    place = Place("thread", "ns", "id")
    sealed = frame.seal_row(
        frame.CHECKPOINT_ROW,
        rows.pack_body(body),
        rows.checkpoint_coordinates(place, "parent", 5, None),
        "zstd",
        SECRET,
    )
    return rows.open_body(CheckpointRow(5, place, "parent", None, sealed, None, SECRET))


@given(TIMES)
@relaxed
def test_times_come_back_as_they_were_written(ts: str) -> None:
    """A checkpoint's ts is the same text afterwards, whatever its zone, precision or spelling."""
    try:
        ts.encode()
    except UnicodeEncodeError:
        return
    assert _reopened(Body(4, ts, [], {}, None, b"", None)).ts == ts


def test_the_usual_time_is_short() -> None:
    """LangGraph's own ts takes 9 bytes."""
    now = datetime.now(UTC).isoformat()
    short = len(rows.pack_body(Body(4, now, [], {}, None, b"", None)))
    assert len(rows.pack_body(Body(4, "", [], {}, None, b"", None))) + 8 >= short


def test_a_body_comes_back_whole() -> None:
    """Every field of a checkpoint's body, versions of each type among them."""
    body = Body(
        4,
        "2026-01-01T00:00:00+00:00",
        [("a", 1, None), ("b", "0001.5", 7), ("c", 1.5, b"\x01\xc0"), ("d", None, [1, 2, b"check", [3, 1]])],
        {"node": {"a": 1}},
        ["a"],
        b"\x01\x80",
        b"\x01\x80",
    )
    assert asdict(_reopened(body)) == asdict(body)


def test_writes_and_histories_come_back_whole() -> None:
    """A put_writes row and a history record give back what they were made of."""
    place = Place("thread", "ns", "id")
    for task_id in (str(uuid.uuid4()), "task", ""):
        task = TaskWrites(task_id, "~a, b", [(0, "x", 7), (-1, "__error__", b"\x01\xc0"), (1, "x", [1, 1, b"c", [2]])])
        sealed = frame.seal_row(
            frame.WRITES_ROW, rows.pack_writes(task), rows.writes_coordinates(place, 5, None), "zstd", SECRET
        )
        assert rows.open_writes(WritesRow(5, place, None, sealed, SECRET)) == task
    history = History({"d": (True, 5, [("t", 6, None), ("u", b"\x01\xc0", 2)], 1), "e": (False, None, [], None)})
    sealed = frame.seal_row(
        frame.HISTORY_ROW, rows.pack_history(history), rows.history_coordinates(place, 5), "zstd", SECRET
    )
    again = rows.open_history(CheckpointRow(5, place, None, None, b"", sealed, SECRET))
    assert again is not None
    assert asdict(again) == asdict(history)
    assert rows.open_history(CheckpointRow(5, place, None, None, b"", None, SECRET)) is None


# Pieces


DATA = {
    "zeros": bytes(1 << 20),
    "noise": random.Random(3).randbytes(1 << 20),
    "text": " ".join(random.Random(4).choices(["alpha", "beta", "gamma", "delta", "12", "x.y"], k=200_000)).encode(),
    "json": b",".join(b'{"id": %d, "name": "item %d"}' % (i, i) for i in range(30_000)),
    "digits": b" ".join(b"%d" % random.Random(i).randrange(10**6) for i in range(150_000)),
    "few words": " ".join(random.Random(8).choices(["ok", "error", "12", "warn"], k=250_000)).encode(),
    "two letters": bytes(random.Random(6).choices(b"ab", k=1 << 20)),
    "non-ascii": ("naïve Ünïcødé 🙂 漢字 " * 40_000).encode(),
}


@pytest.mark.parametrize("name", DATA)
def test_pieces_join_to_the_data_and_keep_their_bounds(name: str) -> None:
    """The join of the pieces is the data; all but the last have 2 to 32 KiB, so their count is bounded."""
    data = DATA[name]
    cut = pieces.cut(data)
    assert b"".join(cut) == data
    assert all(pieces.SHORTEST <= len(piece) <= pieces.LONGEST for piece in cut[:-1])
    assert 0 < len(cut[-1]) <= pieces.LONGEST


@pytest.mark.parametrize("name", ["noise", "text", "json", "digits", "few words", "two letters"])
@pytest.mark.parametrize("edit", ["change", "insert", "remove"])
@pytest.mark.parametrize("where", [0.0, 0.37, 0.999])
def test_an_edit_makes_few_new_pieces(name: str, edit: str, where: float) -> None:
    """One byte changed, inserted or removed moves only the cuts beside it."""
    data = DATA[name]
    at = int(len(data) * where)
    changed = {
        "change": data[:at] + bytes((data[at] ^ 0x55,)) + data[at + 1 :],
        "insert": data[:at] + b"!" + data[at:],
        "remove": data[:at] + data[at + 1 :],
    }[edit]
    known = set(pieces.cut(data))
    fresh = [piece for piece in pieces.cut(changed) if piece not in known]
    assert b"".join(pieces.cut(changed)) == changed
    assert len(fresh) <= 4, f"{len(fresh)} pieces of {len(known)}"
    assert sum(map(len, fresh)) <= 3 * pieces.LONGEST


@given(st.binary(max_size=40_000))
@settings(deadline=None, derandomize=True, max_examples=40)
def test_pieces_of_anything_join_to_it(data: bytes) -> None:
    """The join of the pieces is the data, for any data."""
    assert b"".join(pieces.cut(data)) == data


# Groups of references


def _levels(size: int, cut_at: set[int]) -> tree.Level:
    level = tree.Level()
    for at in range(size):
        level.add(at + 1, b"", at in cut_at)
    return level


@given(st.integers(0, 1500), st.sets(st.integers(0, 1500)), st.booleans())
@relaxed
def test_groups_cover_a_level_without_gaps(size: int, cut_at: set[int], sparse: bool) -> None:
    """Closed groups follow each other from the start, hold 1 to 256 references, and the open rest is under 256."""
    level = _levels(size, {at for at in cut_at if at % 97 == 0} if sparse else cut_at)
    closed, rest = level.spans()
    assert [start for start, _ in closed] == [0, *(end for _, end in closed)][: len(closed)]
    assert rest == (closed[-1][1] if closed else 0)
    assert all(0 < end - start <= tree.GROUP_AT_MOST for start, end in closed)
    assert size - rest < tree.GROUP_AT_MOST
    assert not any(level.cuts[rest:])


def test_an_appended_reference_leaves_closed_groups_alone() -> None:
    """Groups depend on what stands before them only, so an append closes none anew."""
    cut_at = set(random.Random(5).sample(range(3000), 40))
    before, _ = _levels(2999, cut_at).spans()
    after, _ = _levels(3000, cut_at).spans()
    assert after[: len(before)] == before


@given(st.lists(st.one_of(st.integers(1, 1 << 27), st.text(max_size=3), st.binary(max_size=3))))
@relaxed
def test_differences_are_undone(refs: list[Any]) -> None:
    """References stored as differences come back absolute, among keys and inline bodies."""
    assert tree.numbers(tree.differences(refs)) == refs


# Arrays


@given(st.binary(min_size=1, max_size=200), st.data())
@relaxed
def test_xor_undoes_itself(one: bytes, data: st.DataObject) -> None:
    """Twice the same difference gives the bytes back, leading and trailing zeros too."""
    other = data.draw(st.binary(min_size=len(one), max_size=len(one)))
    assert arrays.xor(arrays.xor(one, other), other) == one


@given(st.integers(1, 16), st.integers(0, 40), st.randoms(use_true_random=False))
@relaxed
def test_shuffling_is_undone(width: int, count: int, dice: random.Random) -> None:
    """Bytes sorted by place come back in order."""
    raw = dice.randbytes(width * count)
    assert arrays.unshuffled(arrays.shuffled(raw, width), width) == raw


@pytest.mark.parametrize("dtype", ["<f2", "<f4", "<f8", ">f4", ">f8", "f2", "f4", "f8"])
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("shape", [(1024,), (32, 64), (4, 16, 32), (0, 5), (2000, 1)])
def test_arrays_are_described_and_rebuilt(dtype: str, order: Any, shape: tuple[int, ...]) -> None:
    """dtype (byte order too), shape, memory order and every element, NaN and -0.0 as they were; and it is writable."""
    value = np.asarray(np.random.default_rng(1).normal(size=shape), dtype=dtype, order=order)
    if value.size:
        value.flat[0], value.flat[1] = np.nan, -0.0
    described = arrays.describe(value)
    if value.nbytes < arrays.SMALLEST:
        assert described is None
        return
    assert described is not None
    built = arrays.build(*arrays.restore(arrays.whole_body(*described), None)[:2])
    assert built.dtype == value.dtype
    assert built.shape == value.shape
    assert built.tobytes(order="A") == value.tobytes(order="A")
    assert built.flags.f_contiguous == value.flags.f_contiguous
    built.flat[0] = 1


@pytest.mark.parametrize(
    "value",
    [
        np.zeros(1000, "i8"),
        np.zeros(1000, "c16"),
        np.zeros(4),
        np.zeros(1000, "U3"),
        np.zeros(1000, object),
        [0.0] * 1000,
    ],
    ids=["int", "complex", "small", "text", "object", "list"],
)
def test_other_arrays_are_left_to_the_serializer(value: Any) -> None:
    """Only float arrays of 1 KiB and more are taken."""
    assert arrays.describe(value) is None


def test_a_small_move_is_stored_as_a_difference_in_a_bounded_chain() -> None:
    """Differences where they are smaller; a whole array after 8 of them, for another shape, and where all is new."""
    dice = np.random.default_rng(2)
    value = dice.normal(size=4096)
    before: arrays.KnownArray | None = None
    kinds, bodies = [], {}
    for number in range(1, 21):
        described = arrays.describe(value)
        assert described is not None
        shape, raw, width = described
        body, chain = arrays.smallest_body(shape, raw, width, before)
        kinds.append(body[0])
        base = bodies[arrays.base_of(body)[0]] if body[0] == frame.ARRAY_DIFF else None
        assert arrays.restore(body, base) == (shape, raw, chain)
        assert chain <= arrays.CHAIN_AT_MOST
        bodies[number] = raw
        before = arrays.KnownArray(Entry(body, digest.address(body, SECRET), number), raw, shape, chain)
        value = value * (1 + dice.normal(size=value.size) * 1e-12)
    assert kinds.count(frame.ARRAY) == 3
    other = dice.normal(size=4096)
    assert arrays.smallest_body(*arrays.describe(other), before)[1] == 0  # type: ignore[misc]
    shaped = value.reshape(64, 64)
    assert arrays.smallest_body(*arrays.describe(shaped), before)[0][0] == frame.ARRAY  # type: ignore[misc]


def test_a_difference_to_an_array_of_another_size_is_refused() -> None:
    """Without its base, or with one of another size, a difference is an error and never another array."""
    described = arrays.describe(np.arange(512.0))
    assert described is not None
    shape, raw, width = described
    before = arrays.KnownArray(Entry(b"x", bytes(16), 1), raw, shape, 0)
    body, _ = arrays.smallest_body(shape, arrays.xor(raw, b"\x01" + bytes(len(raw) - 1)), width, before)
    assert body[0] == frame.ARRAY_DIFF
    for base in (None, raw[:-8], b""):
        with pytest.raises(ValueError, match="another size"):
            arrays.restore(body, base)
