"""Headers of Raft packets field by field, as docs/format.md §19 lays them out: a second
implementation, which writes and reads whatever the first one would refuse."""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace

import crc32c

from ledgermq.node.broker.ports import PeerPacket

# Name → (kind, number of names, fields behind kind, flags and term as (name, format)).
KINDS: dict[str, tuple[int, int, tuple[tuple[str, str], ...]]] = {
    "vote_request": (1, 3, (("last_index", "q"), ("last_term", "q"))),
    "vote_reply": (2, 2, ()),
    "append": (
        3,
        2,
        (
            *(
                ("round", "q"),
                ("prev_index", "q"),
                ("prev_term", "q"),
                ("prev_chain", "I"),
                ("commit_index", "q"),
                ("end_index", "q"),
            ),
            *(("last_index", "q"), ("range_term", "q"), ("pos", "q")),
        ),
    ),
    "append_reply": (
        4,
        2,
        (("round", "q"), ("boot_id", "Q"), ("received", "q"), ("durable", "q"), ("hint_term", "q")),
    ),
    "timeout_now": (5, 2, (("last_index", "q"), ("last_term", "q"), ("cause", "B"))),
    "left_behind": (6, 2, (("begin_index", "q"),)),
}
FLAGS = {
    "vote_request": ("pre", "transfer"),
    "vote_reply": ("pre", "granted"),
    "append": ("lazy", "early", "quiet"),
    "append_reply": ("rejected", "leaving", "provisional", "fetch", "watched"),
    "timeout_now": (),
    "left_behind": (),
}
COMMON = (("term", "q"),)


@dataclass(frozen=True)
class Header:
    """One header: its kind by name, its numbers by name, its flags as one number, its names."""

    kind: str
    numbers: dict[str, int]
    flags: int
    names: tuple[bytes, ...]

    def with_(self, **changes: int) -> Header:
        """The same header with other numbers."""
        assert changes.keys() <= self.numbers.keys(), changes
        return replace(self, numbers={**self.numbers, **changes})

    def data(self) -> bytes:
        """Without the checksum."""
        number, _, fields = KINDS[self.kind]
        layout = ">BB" + "".join(form for _, form in COMMON + fields)
        values = [self.numbers[name] for name, _ in COMMON + fields]
        return struct.pack(layout, number, self.flags, *values) + b"".join(
            bytes((len(name),)) + name for name in self.names
        )

    def packet(self, payload: bytes | memoryview = b"") -> PeerPacket:
        """With a good checksum."""
        return resealed(self.data(), payload)


def header_of(packet: PeerPacket) -> Header:
    """A header taken apart."""
    data = packet.header[:-4]
    ((kind, (_, names_count, fields)),) = [
        (kind, rule) for kind, rule in KINDS.items() if rule[0] == data[0]
    ]
    layout = struct.Struct(">BB" + "".join(form for _, form in COMMON + fields))
    _, flags, *values = layout.unpack_from(data)
    names, rest = [], data[layout.size :]
    while rest:
        names.append(rest[1 : 1 + rest[0]])
        rest = rest[1 + rest[0] :]
    assert len(names) == names_count
    return Header(
        kind,
        {name: value for (name, _), value in zip(COMMON + fields, values, strict=True)},
        flags,
        tuple(names),
    )


def resealed(data: bytes, payload: bytes | memoryview = b"") -> PeerPacket:
    """Header bytes under a good checksum."""
    return PeerPacket(data + crc32c.crc32c(data).to_bytes(4, "big"), payload)


def width(form: str) -> tuple[int, int]:
    """The least and the greatest number that a field of this format holds."""
    bits = 8 * struct.calcsize(">" + form)
    return (-(1 << bits - 1), (1 << bits - 1) - 1) if form.islower() else (0, (1 << bits) - 1)
