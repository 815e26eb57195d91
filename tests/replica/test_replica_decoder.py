"""The decoder of replication packets as a table: one packet of every kind, and every way to damage
it by one place.

The checksum refuses every change; with a checksum made anew every change must end in a BadPacket or
in a message that keeps the relations the core takes for granted. Payloads are verified behind the
decoder, by `proto.entries.entry_checking.verify_range`: every changed byte of one is a BadEntry.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import get_args

import numpy as np
import pytest

from ledgermq.node.broker.ports import Fenced, PeerPacket
from ledgermq.node.replica.consensus.replica_wire import (
    TERM_MAX,
    Arrived,
    BadPacket,
    decode,
    encode,
    encode_append,
)
from ledgermq.proto.entries.entry_checking import BadEntry, verify_range
from ledgermq.proto.types import Range
from ledgermq.raft.messages import (
    NO_INDEX,
    Append,
    AppendReply,
    Extent,
    LeftBehind,
    Message,
    TimeoutNow,
    VoteReply,
    VoteRequest,
)
from ledgermq.raft.transfer import HANDOVERS, Cause
from ledgermq.sim.machine.disk import ForgetfulDisk
from tests.replica.raw_packets import FLAGS, KINDS, header_of, resealed, width
from tests.replica.replica_cluster import Node, Trio, messages

REFUSALS = {"checksum", "shape", "stranger"}
TOP = (1 << 63) - 1
NUMBERS = ["term", "prev_index", "prev_term", "last_index", "range_term", "pos"]
RANGE_BYTES = b"the bytes of a range are not looked at here"

PLAIN: dict[str, VoteRequest | VoteReply | AppendReply | TimeoutNow | LeftBehind] = {
    "vote_request": VoteRequest(
        sender="n1", to="n2", term=7, pre=False, last_index=300, last_term=6
    ),
    "vote_request for a transfer": VoteRequest(
        sender="n1", to="n2", term=7, pre=False, last_index=300, last_term=6, transfer=True
    ),
    "vote_request by directory": VoteRequest(
        sender="n1",
        to="n2",
        term=7,
        pre=False,
        last_index=300,
        last_term=6,
        incarnation="00000000-0000-4000-8000-00000000000a",
    ),
    "pre-vote_request": VoteRequest(
        sender="n1", to="n2", term=7, pre=True, last_index=300, last_term=6
    ),
    "vote_reply": VoteReply(sender="n1", to="n2", term=7, pre=False, granted=True),
    "pre-vote_reply": VoteReply(sender="n1", to="n2", term=7, pre=True, granted=False),
    "append_reply": AppendReply(
        sender="n1",
        to="n2",
        term=7,
        round=41,
        boot_id=(1 << 64) - 3,
        rejected=False,
        received=300,
        durable=299,
    ),
    "append_reply, rejected": AppendReply(
        sender="n1",
        to="n2",
        term=7,
        round=41,
        boot_id=5,
        rejected=True,
        received=300,
        durable=-1,
        hint_term=6,
    ),
    "append_reply of one that leaves": AppendReply(
        sender="n1",
        to="n2",
        term=7,
        round=41,
        boot_id=5,
        rejected=False,
        received=300,
        durable=299,
        leaving=True,
    ),
    "append_reply of one that does not count": AppendReply(
        sender="n1",
        to="n2",
        term=7,
        round=41,
        boot_id=5,
        rejected=False,
        received=300,
        durable=299,
        provisional=True,
    ),
    "left_behind": LeftBehind(sender="n1", to="n2", term=7, begin_index=5000),
    "timeout_now": TimeoutNow(
        sender="n1", to="n2", term=7, last_index=300, last_term=6, cause=Cause.PLANNED_STOP
    ),
}
ENTRIES = Range(
    300,
    302,
    6,
    70_000,
    memoryview(RANGE_BYTES),
    np.zeros(3, np.int64),
    np.zeros(3, np.int32),
    0xFEDCBA98,
    0,
)
APPENDS: dict[str, tuple[Append, Range | None]] = {
    "append": (
        Append(
            sender="n1", to="n2", term=7, round=41, prev_index=299, prev_term=6, commit_index=298
        ),
        None,
    ),
    "append, lazy": (
        Append(
            sender="n1",
            to="n2",
            term=7,
            round=41,
            prev_index=299,
            prev_term=6,
            commit_index=298,
            extent=None,
            lazy=True,
        ),
        None,
    ),
    "append of a range": (
        Append(
            sender="n1",
            to="n2",
            term=7,
            round=41,
            prev_index=299,
            prev_term=6,
            commit_index=298,
            extent=Extent(300, 302, 6, len(RANGE_BYTES)),
            early=True,
        ),
        ENTRIES,
    ),
}
TABLE: dict[str, PeerPacket] = {name: encode(message) for name, message in PLAIN.items()} | {
    name: encode_append(message, 0xFEDCBA98, entries)
    for name, (message, entries) in APPENDS.items()
}


def opened(packet: PeerPacket) -> Arrived | None:
    """What comes through; None for a refusal of a known kind. Any other exception ends the test."""
    try:
        return decode(packet, "n1")
    except BadPacket as bad:
        assert bad.kind in REFUSALS, bad
        return None


def damaged(data: bytes) -> Iterator[bytes]:
    """Every truncation, every byte with every other value, every byte taken out, every single byte
    behind the end."""
    for at in range(len(data)):
        yield data[:at]
        yield data[:at] + data[at + 1 :]
        yield from (
            data[:at] + bytes((value,)) + data[at + 1 :]
            for value in range(256)
            if value != data[at]
        )
    yield from (data + bytes((value,)) for value in range(256))
    yield data + data


def assert_valid(arrived: Arrived) -> None:
    """The relations that the core takes for granted."""
    message = arrived.message
    assert message.sender == "n1" and 0 <= message.term <= TERM_MAX
    if isinstance(message, VoteRequest):
        assert not (message.pre and message.transfer)
    if isinstance(message, TimeoutNow):
        assert (
            message.last_index >= 0
            and 0 <= message.last_term <= message.term
            and message.cause in HANDOVERS
        )
    if isinstance(message, AppendReply):
        assert NO_INDEX <= message.durable <= message.received
    if isinstance(message, Append):
        assert message.prev_index >= NO_INDEX and message.prev_term <= message.term
        assert (message.extent is None) == (not len(arrived.payload)) == (arrived.pos == -1)
        if message.extent is not None:
            assert message.extent.first_index == message.prev_index + 1 <= message.extent.last_index
            assert message.prev_term <= message.extent.term <= message.term
            assert message.extent.size == len(arrived.payload) and arrived.pos >= 0


def test_the_table_has_every_kind_of_message() -> None:
    """A new kind needs a row."""
    assert {type(arrived.message) for arrived in map(opened, TABLE.values()) if arrived} == set(
        get_args(Message)
    )
    assert {header_of(packet).kind for packet in TABLE.values()} == KINDS.keys()


@pytest.mark.parametrize("name", TABLE)
def test_every_kind_comes_through_as_it_was(name: str) -> None:
    """All fields, the chain CRC beside them, and the payload untouched."""
    arrived = opened(TABLE[name])
    assert arrived is not None
    assert_valid(arrived)
    if name in PLAIN:
        assert (arrived.message, bytes(arrived.payload), arrived.prev_chain, arrived.pos) == (
            PLAIN[name],
            b"",
            0,
            -1,
        )
    else:
        message, entries = APPENDS[name]
        place = (b"", -1) if entries is None else (RANGE_BYTES, 70_000)
        assert (arrived.message, (bytes(arrived.payload), arrived.pos), arrived.prev_chain) == (
            message,
            place,
            0xFEDCBA98,
        )


@pytest.mark.parametrize("name", TABLE)
def test_every_damage_to_a_header_is_refused(name: str) -> None:
    """Every changed bit, every truncation, every byte too few or too many: the checksum covers the
    whole header."""
    packet = TABLE[name]
    for changed in damaged(packet.header):
        assert opened(PeerPacket(changed, packet.payload)) is None, changed


@pytest.mark.parametrize("name", TABLE)
def test_every_damage_under_a_good_checksum_is_refused_or_a_sound_message(name: str) -> None:
    """As a peer with a bug would send it."""
    packet = TABLE[name]
    for changed in damaged(packet.header[:-4]):
        arrived = opened(resealed(changed, packet.payload))
        if arrived is not None:
            assert_valid(arrived)


@pytest.mark.parametrize(
    "value", [-TOP - 1, -TOP, -2, -1, 0, 1 << 31, 1 << 32, TERM_MAX, TERM_MAX + 1, TOP]
)
@pytest.mark.parametrize("name", TABLE)
def test_absurd_numbers_are_refused_or_harmless(name: str, value: int) -> None:
    """Each number of each message, alone and all at once, at the ends of its range."""
    header = everything = header_of(TABLE[name])
    for field, form in (("term", "q"), *KINDS[header.kind][2]):
        least, most = width(form)
        number = min(max(value, least), most)
        everything = everything.with_(**{field: number})
        for changed in (header.with_(**{field: number}), everything):
            arrived = opened(changed.packet(TABLE[name].payload))
            if arrived is not None:
                assert_valid(arrived)


@pytest.mark.parametrize("name", TABLE)
def test_a_header_that_no_version_of_this_layout_writes_is_refused(name: str) -> None:
    """Unknown kinds and flags, names too many, too few, cut off or of a megabyte, bytes behind the
    names: refused, not skipped."""
    packet, header = TABLE[name], header_of(TABLE[name])
    flags = (1 << len(FLAGS[header.kind])) - 1
    wrong = [
        replace(header, flags=header.flags | bits).data() for bits in range(256) if bits & ~flags
    ]
    wrong += [
        replace(header, names=header.names[:count]).data() for count in range(len(header.names))
    ]
    wrong += [replace(header, names=(*header.names, *more)).data() for more in ((b"",), (b"n3",))]
    wrong += [header.data()[:-1], header.data() + b"\xff", b""]
    wrong += [bytes((kind,)) + header.data()[1:] for kind in range(256) if kind not in range(1, 7)]
    for data in wrong:
        with pytest.raises(BadPacket, match="shape"):
            decode(resealed(data, packet.payload), "n1")
    for data in (
        header.data() + bytes(1 << 20),
        replace(header, names=(b"x" * 255,) * 4000).data(),
    ):
        with pytest.raises(BadPacket, match="names of 10"):
            decode(resealed(data, packet.payload), "n1")


@pytest.mark.parametrize("name", TABLE)
def test_a_packet_in_another_name_is_refused(name: str) -> None:
    """The transport knows the sender."""
    for sender in ("n2", "n3", "", "N1", "n1 "):
        with pytest.raises(BadPacket, match="in the name of") as bad:
            decode(TABLE[name], sender)
        assert bad.value.kind == "stranger"


def test_names_that_are_not_text_are_refused() -> None:
    """Bytes that are no UTF-8 where a node's name belongs."""
    header = header_of(TABLE["vote_reply"])
    with pytest.raises(BadPacket, match="shape"):
        decode(replace(header, names=(b"n1", b"\xff\xfe")).packet(), "n1")


def test_a_payload_belongs_to_a_range_alone() -> None:
    """A range without bytes and bytes without a range contradict their header, for every kind."""
    for name, packet in TABLE.items():
        other = b"" if len(packet.payload) else b"x"
        with pytest.raises(BadPacket) as bad:
            decode(PeerPacket(packet.header, other), "n1")
        assert bad.value.kind == "shape", name


@pytest.fixture
def trio() -> Trio:
    return Trio(lambda name: (ForgetfulDisk(), f"/data/{name}"))


def pushed(trio: Trio) -> tuple[Node, PeerPacket]:
    """A follower, and a range of two entries on its way to it."""
    leader = trio.elect("n1")
    trio.keep = lambda sender, to, packet: to == "n2"
    trio.propose(leader, messages(2))
    (packet,) = [p for _, _, p in trio.network if len(p.payload)]
    return trio["n2"], packet


def test_every_damage_to_a_payload_is_noticed(trio: Trio) -> None:
    """Each byte with one bit and with all bits turned, every truncation and a byte more: no byte of
    an entry is outside both checksums."""
    _, packet = pushed(trio)
    arrived = decode(packet, "n1")
    assert isinstance(arrived.message, Append) and arrived.message.extent is not None
    extent, payload = arrived.message.extent, bytes(packet.payload)
    wrong = [
        payload[:at] + bytes((payload[at] ^ bits,)) + payload[at + 1 :]
        for at in range(len(payload))
        for bits in (1 << at % 8, 255)
    ]
    wrong += [payload[:at] for at in range(1, len(payload))] + [payload + b"\0", payload + payload]
    for data in wrong:
        try:
            entries = verify_range(
                data, extent.first_index, extent.term, arrived.pos, arrived.prev_chain
            )
        except BadEntry:
            continue
        # Whole entries in front of a cut are good ones; the header's last index tells that some are
        # missing.
        assert entries.last_index == extent.first_index and payload.startswith(data)


@pytest.mark.parametrize("value", [-TOP - 1, -2, -1, 0, 1, 1 << 32, TERM_MAX, TOP])
@pytest.mark.parametrize("field", NUMBERS)
def test_a_real_range_under_absurd_numbers_never_gets_in(
    trio: Trio, field: str, value: int
) -> None:
    """The bytes are good and the checksum of the header is, but what the header says about them is
    not so: dropped, rejected, or a fence that names what the peer contradicts. Only a term above
    that of the range may be right."""
    node, packet = pushed(trio)
    end = node.log.end_index
    header = header_of(packet)
    if header.numbers[field] == value:
        return
    try:
        node.replica.step(trio.now_ns, "n1", header.with_(**{field: value}).packet(packet.payload))
        node.replica.take(trio.now_ns)
    except Fenced as fenced:
        assert "invariant" in str(fenced)
        return
    assert node.log.end_index == (
        end + 2 if field == "term" and value > 1 and value <= TERM_MAX else end
    )


def test_packets_of_strangers_and_for_others_are_counted(trio: Trio) -> None:
    """They change nothing, and a counter shows them."""
    trio.elect("n1")
    replica = trio["n2"].replica
    before = (replica.term, replica.role, replica.leader, replica.end_index)
    for sender, to in (("n1", "n3"), ("n2", "n2"), ("n1", ""), ("", "n2")):
        replica.step(
            trio.now_ns,
            sender,
            encode(
                VoteRequest(sender=sender, to=to, term=99, pre=False, last_index=999, last_term=98)
            ),
        )
        replica.step(
            trio.now_ns,
            sender,
            encode_append(
                Append(
                    sender=sender,
                    to=to,
                    term=99,
                    round=1,
                    prev_index=0,
                    prev_term=0,
                    commit_index=0,
                ),
                0,
                None,
            ),
        )
    # Who is no member is heard only as the leader of a later term, or as a candidate with a longer
    # log (dissertation §4.1).
    replica.step(
        trio.now_ns,
        "x9",
        encode(VoteRequest(sender="x9", to="n2", term=99, pre=False, last_index=0, last_term=0)),
    )
    replica.step(
        trio.now_ns,
        "x9",
        encode_append(
            Append(
                sender="x9",
                to="n2",
                term=replica.term,
                round=1,
                prev_index=0,
                prev_term=0,
                commit_index=0,
            ),
            0,
            None,
        ),
    )
    replica.take(trio.now_ns)
    assert (replica.term, replica.role, replica.leader, replica.end_index) == before
    extra = replica.status().extra
    assert (extra["dropped-stranger"], extra["dropped-shape"]) == (6, 4)


def test_messages_of_older_terms_are_counted(trio: Trio) -> None:
    """They are answered with the present term, and change nothing else."""
    trio.elect("n1")
    trio.elect("n2")
    replica = trio["n1"].replica
    before, stale = (
        (replica.term, replica.role, replica.leader, replica.end_index),
        replica.status().extra.get("stale-term", 0),
    )
    replica.step(
        trio.now_ns,
        "n3",
        encode(VoteRequest(sender="n3", to="n1", term=1, pre=False, last_index=999, last_term=1)),
    )
    replica.step(
        trio.now_ns,
        "n3",
        encode_append(
            Append(
                sender="n3", to="n1", term=0, round=1, prev_index=0, prev_term=0, commit_index=99
            ),
            0,
            None,
        ),
    )
    packets = replica.take(trio.now_ns).packets
    assert {(to, decode(packet, "n1").message.term) for to, packet in packets} == {
        ("n3", replica.term)
    }
    assert (replica.term, replica.role, replica.leader, replica.end_index) == before
    assert replica.status().extra["stale-term"] == stale + 2


def test_ranges_that_are_too_long_are_dropped(trio: Trio) -> None:
    """Valid entries with megabytes behind them, and a header with more entries than bytes."""
    node, packet = pushed(trio)
    end = node.log.end_index
    header = header_of(packet)
    header = header.with_(last_index=header.numbers["last_index"] + (1 << 20))
    for payload in (
        bytes(packet.payload) + bytes(8 << 20),
        bytes(packet.payload) * 1000,
        packet.payload,
    ):
        node.replica.step(trio.now_ns, "n1", header.packet(payload))
    node.replica.take(trio.now_ns)
    dropped = node.replica.status().extra
    assert (
        node.log.end_index,
        int(dropped.get("dropped-bytes", 0)) + int(dropped.get("dropped-shape", 0)),
    ) == (end, 3)
