"""Packs: the messages of a closed group in one payload, which one call decompresses and one call unpacks.

A pack holds the very bytes of its messages' bodies, cut where their parts meet, so that equal parts stand once: the 64
messages of a group have a handful of classes and of sets of names between them. What is left are the fields, one behind
the other. So a restore unpacks a whole group into what messages are made of, and each body can be joined again.

Payload: msgpack `[head, fields]`, the head a bin of 32 bits length: msgpack `[numbers, classes, sets, names, lengths]`,
the blobs' numbers, each as the difference to the one before; of each a byte with its class's number, and one with the
place of its set of names; those sets, packed; and how many bytes the packed fields of each have.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from agent_ckpt.codec import compress, frame, messages, tree
from agent_ckpt.codec.pack import UnpackError, pack, pack_own, unpack, unpack_joined

ITEMS_AT_LEAST = 16
"""Fewer bodies than this stay in rows of their own."""
BODY_AT_MOST = 8 * 1024
"""A larger body stays in a row of its own: who wants it alone need not decompress others, nor is it written twice."""
_USUAL = bytes((frame.MESSAGE, 0x93))
"""How the body of a message without extras begins: its codec, and an array of three."""
_BEGIN = b"\x92\xc6"
_HEAD = 6
"""Where the head begins: behind an array of two and its own length."""
_NOT_A_PACK = (UnpackError, ValueError, TypeError, IndexError, KeyError, OverflowError)


class Part(NamedTuple):
    """A message's body, cut in three: behind its codec and an array's head. Joined they are the body again."""

    number: int
    names: bytes
    fields: bytes


def parts_of(bodies: Sequence[bytes]) -> list[Part | None]:
    """The parts of bodies; None for one that can't stand in a pack."""
    at = [place for place, body in enumerate(bodies) if body[:2] == _USUAL and len(body) <= BODY_AT_MOST]
    found: list[Part | None] = [None] * len(bodies)
    for place, (_, assigned, _) in zip(at, unpack_joined([bodies[place][1:] for place in at]), strict=True):
        body, names = bodies[place], pack(assigned)
        if body.startswith(names, 3):
            found[place] = Part(body[2], names, body[3 + len(names) :])
    return found


def make(parts: dict[int, Part]) -> bytes:
    """The payload of a pack of these parts, by blob number, in the order of their list."""
    sets: dict[bytes, int] = {}
    for part in parts.values():
        sets.setdefault(part.names, len(sets))
    head = [
        tree.differences(list(parts)),
        bytes(part.number for part in parts.values()),
        bytes(sets[part.names] for part in parts.values()),
        list(sets),
        [len(part.fields) for part in parts.values()],
    ]
    packed = pack_own(head)
    fields = b"".join(part.fields for part in parts.values())
    return _BEGIN + len(packed).to_bytes(4, "big") + packed + b"\xdc" + len(parts).to_bytes(2, "big") + fields


class Pack:
    """A pack as it was read; it is opened when what is in it is wanted.

    Args:
        number: the group's.
        address: the group's.
        framed: the pack's frame.
        secret: the thread's.
    """

    __slots__ = ("_address", "_framed", "_secret", "number")

    def __init__(self, number: int, address: bytes, framed: bytes, secret: bytes) -> None:
        self.number = number
        self._address = address
        self._framed = framed
        self._secret = secret

    def __len__(self) -> int:
        return len(self._framed)

    @property
    def method(self) -> str:
        """The method of compression that it was framed with."""
        return "none" if self._framed[3:4] == bytes((compress.NONE,)) else "zstd"

    def messages(self, numbers: Sequence[Any]) -> list[Any]:
        """Its messages, fresh, where they are those of these blobs in this order.

        Raises:
            FrameError: when the pack isn't what was stored, or holds others.
        """
        payload = self._payload()
        try:
            head, fields = unpack(payload)
            found, classes, sets, names, _ = unpack(head)
            if tree.numbers(found) != numbers:
                raise frame.FrameError(f"the pack of group {self.number} holds other items than the group names")
            return messages.rebuild_apart(classes, list(map(unpack, names)), sets, fields)
        except _NOT_A_PACK as exc:
            raise self._misshapen() from exc

    def bodies(self) -> dict[int, bytes]:
        """The bodies that it holds, by blob number.

        Raises:
            FrameError: when the pack isn't what was stored.
        """
        payload = self._payload()
        try:
            end = _HEAD + int.from_bytes(payload[2:_HEAD], "big")
            found, classes, sets, names, lengths = unpack(payload[_HEAD:end])
            at = len(payload) - sum(lengths)
            bodies: dict[Any, bytes] = {}
            begins = [_USUAL + bytes((number,)) for number in range(max(classes) + 1)]
            for number, cls, of, length in zip(tree.numbers(found), classes, sets, lengths, strict=True):
                bodies[number] = begins[cls] + names[of] + payload[at : at + length]
                at += length
            return bodies
        except _NOT_A_PACK as exc:
            raise self._misshapen() from exc

    def again(self, method: str, secret: bytes) -> bytes:
        """Its frame under another secret.

        Raises:
            FrameError: when the pack isn't what was stored.
        """
        return seal(self._payload(), self._address, method, secret)

    def _payload(self) -> bytes:
        try:
            return frame.open_row(frame.PACK_ROW, self._framed, _coordinates(self._address), self._secret)
        except frame.FrameError as exc:
            raise frame.FrameError(f"the pack of group {self.number} is damaged: {exc}", exc.reason) from exc

    def _misshapen(self) -> frame.FrameError:
        return frame.FrameError(
            f"the pack of group {self.number} is damaged: its payload has another shape than format_version 1 says"
        )


def seal(payload: bytes, address: bytes, method: str, secret: bytes) -> bytes:
    """The frame of a pack, bound to its group's address."""
    return frame.seal_row(frame.PACK_ROW, payload, _coordinates(address), method, secret)


def _coordinates(address: bytes) -> frame.Coordinates:
    return ("pack", address)
