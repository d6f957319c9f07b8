"""Planning: which parts a value is stored in, and which of them are stored already."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from agent_ckpt.codec import frame, pieces, registry, tree
from agent_ckpt.codec.arrays import KnownArray, describe, smallest_body
from agent_ckpt.codec.stretches import Packed, Run
from agent_ckpt.codec.tree import Kept, Plan, Seq, State
from agent_ckpt.codec.values import DeltaSnapshot, ValueCodec
from agent_ckpt.model import Entry

INLINE_UP_TO = 48
"""A body of up to this many bytes stands in the row that refers to it."""
DICT_WHOLE_UP_TO = 1024
LIST_WHOLE_UP_TO = 256
SPLIT_ABOVE = pieces.CUT_ABOVE
RUN_FROM = 64
"""Lists of messages from this length are compared as a run: shorter ones are packed as quickly."""
_DEEPEST = 16
_PIECE = bytes((frame.PIECE,))
_ATOMS = (type(None), bool, int, float)


class Known(Protocol):
    """What is known of a thread.

    Attributes:
        sequences, arrays: by namespace and path, what stood there last.
    """

    sequences: dict[tuple[str, str], State]
    arrays: dict[tuple[str, str], KnownArray]

    def entry_of(self, body: bytes) -> Entry:
        """The entry of a body, the known one or a new one."""


class Planner:
    """Plans values for one namespace of a thread.

    It refers to nothing that refers to it: what each write leaves to the collector, the collector goes through all
    young objects of the program for.

    Args:
        codec: the value codec.
        known: what is known of the thread.

    Attributes:
        ns: the namespace; set by the caller.
        sequences, arrays: what this plan leaves under each path, for the next one.
        untouched: by path, a state and how many leading parts of it a list is certain to have still; set by the caller.
    """

    def __init__(self, codec: ValueCodec, known: Known) -> None:
        self._codec = codec
        self._known = known
        self.ns = ""
        self.sequences: dict[str, Seq] = {}
        self.arrays: dict[str, KnownArray] = {}
        self.untouched: Mapping[str, tuple[State, int]] = {}

    def plan(self, value: Any, path: str, depth: int = 0) -> Plan:
        """Plan a value.

        Raises:
            ValueNotStorableError: naming the path of the part that can't be kept.
        """
        kind = type(value)
        if not self._codec.splits:
            return self._plan_opaque(self._encode(value, path), path)
        if kind in _ATOMS or (kind is str and len(value) <= INLINE_UP_TO):
            return self._leaf(self._encode(value, path))
        if kind is DeltaSnapshot:
            return Seq(tree.SNAPSHOT, [self.plan(value.value, path, depth + 1)])
        if kind is list:
            return self._plan_list(value, path, depth)
        if kind is dict:
            return self._plan_dict(value, path, depth)
        if kind is str and len(value) > SPLIT_ABOVE:
            return self._plan_text(value, path)
        if kind is bytes and len(value) > SPLIT_ABOVE:
            return self._plan_long(tree.BYTES, value, value, path)
        array = describe(value) if kind not in registry.by_class else None
        if array is not None:
            return self._plan_array(*array, path)
        return self._plan_opaque(self._encode(value, path), path)

    def _encode(self, value: Any, path: str) -> bytes:
        try:
            return self._codec.encode(value)
        except Exception as exc:
            raise self._codec.refuse(value, path, exc) from exc

    def _leaf(self, body: bytes) -> Entry | bytes:
        return body if len(body) <= INLINE_UP_TO else self._known.entry_of(body)

    def _plan_opaque(self, body: bytes, path: str) -> Plan:
        """A body that can't be split by its structure, cut only where it is long."""
        if len(body) <= SPLIT_ABOVE:
            return self._leaf(body)
        return self._plan_long(tree.OPAQUE, body, body, path)

    def _plan_text(self, value: str, path: str) -> Plan:
        try:
            raw = value.encode()
        except UnicodeEncodeError:
            return self._leaf(self._encode(value, path))
        return self._plan_long(tree.TEXT, value, raw, path)

    def _plan_long(self, kind: int, value: str | bytes, raw: bytes, path: str) -> Plan:
        before = self._known.sequences.get((self.ns, path))
        if before is not None and before.kind == kind and before.bodies[0] == value:
            return Kept(before.ref)
        seq = Seq(kind, [self._known.entry_of(_PIECE + piece) for piece in pieces.cut(raw)], bodies=[value])
        self.sequences[path] = seq
        return seq

    def _plan_array(self, shape: list[Any], raw: bytes, width: int, path: str) -> Entry:
        before = self._known.arrays.get((self.ns, path))
        if before is not None and before.shape == shape and before.raw == raw:
            self.arrays[path] = before
            return before.entry
        body, chain = smallest_body(shape, raw, width, before)
        entry = self._known.entry_of(body)
        self.arrays[path] = KnownArray(entry, raw, shape, chain)
        return entry

    def _plan_list(self, value: list[Any], path: str, depth: int) -> Plan:
        before = self._known.sequences.get((self.ns, path))
        if before is not None and before.kind != tree.LIST:
            before = None
        run = before.run if before is not None else None
        state, known = self.untouched.get(path, (None, 0))
        if state is None or state is not before:
            known = run.same(value) if run is not None else 0
        packed: list[Packed] = []
        try:
            bodies = self._codec.encode_many(value[known:] if known else value, known, packed)
        except Exception as exc:
            raise self._codec.refuse(value, path, exc) from exc
        if known and before is not None:
            bodies = before.bodies[:known] + bodies
        elif not _worth_parts(bodies, LIST_WHOLE_UP_TO):
            return self._leaf(self._encode(value, path))
        same = _same_start(before.bodies, bodies, known) if before is not None else 0
        if before is not None and same == len(bodies) == len(before.bodies):
            return Kept(before.ref)
        parts = [self._part(value[at], bodies[at], path, at, depth) for at in range(same, len(bodies))]
        if before is not None:
            bodies[known:same] = before.bodies[known:same]
        seq = Seq(tree.LIST, parts, None, bodies, before, same)
        if len(value) >= RUN_FROM:
            seq.run = Run.of(value, run, known, packed)
        self.sequences[path] = seq
        return seq

    def _plan_dict(self, value: dict[Any, Any], path: str, depth: int) -> Plan:
        keys = list(value)
        if not all(type(key) is str for key in keys) or not _is_text(keys):
            return self._plan_opaque(self._encode(value, path), path)
        try:
            bodies = self._codec.encode_many(list(value.values()))
        except Exception as exc:
            raise self._codec.refuse(value, path, exc) from exc
        if not _worth_parts(bodies, DICT_WHOLE_UP_TO):
            return self._leaf(self._encode(value, path))
        before = self._known.sequences.get((self.ns, path))
        known: dict[str, tuple[bytes, Kept]] = {}
        if before is not None and before.kind == tree.DICT and before.keys is not None:
            if before.keys == keys and before.bodies == bodies:
                return Kept(before.ref)
            stored = zip(before.bodies, before.refs[1::2], before.addresses[1::2], strict=True)
            known = {key: (body, Kept(ref, at)) for key, (body, ref, at) in zip(before.keys, stored, strict=True)}
        parts: list[Any] = []
        for at, key in enumerate(keys):
            body, kept = known.get(key, (b"", None))
            if kept is not None and body == bodies[at]:
                bodies[at] = body
                parts.append(kept)
            else:
                parts.append(self._part(value[key], bodies[at], path, key, depth))
        seq = Seq(tree.DICT, parts, keys, bodies)
        self.sequences[path] = seq
        return seq

    def _part(self, value: Any, body: bytes, path: str, at: int | str, depth: int) -> Any:
        splits = len(body) > SPLIT_ABOVE or (body[0] in (frame.SERDE, frame.TYPED) and type(value) in (list, dict))
        if splits and depth < _DEEPEST and type(value) in (list, dict, str, bytes):
            return self.plan(value, f"{path}[{at!r:.60}]", depth + 1)
        if type(at) is str and len(body) > SPLIT_ABOVE:
            return self._plan_opaque(body, f"{path}[{at!r:.60}]")
        return self._leaf(body)


def _is_text(keys: list[str]) -> bool:
    """Whether keys can stand in a reference: a lone surrogate can't."""
    try:
        "".join(keys).encode()
    except UnicodeEncodeError:
        return False
    return True


def _worth_parts(bodies: list[bytes], whole_up_to: int) -> bool:
    """Whether a value is stored by its parts: where it is long, or its parts may be shared.

    A message stands in the input, in a task's writes and in its channel; as a part it is stored once.
    """
    return sum(map(len, bodies)) > whole_up_to or any(body[0] != frame.PLAIN for body in bodies)


def _same_start(before: list[bytes], bodies: list[bytes], known: int) -> int:
    """How many leading parts are the same bytes as before, of which some are known to be."""
    size = min(len(before), len(bodies))
    if before[known:size] == bodies[known:size]:
        return size
    return next(at for at in range(known, size) if before[at] != bodies[at])
