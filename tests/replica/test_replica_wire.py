"""Raft messages as packets: everything survives the way, and nothing misshapen comes through."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgermq.node.broker.ports import PeerPacket
from ledgermq.node.replica.consensus.replica_wire import (
    TERM_MAX,
    BadPacket,
    decode,
    encode,
    encode_append,
    is_of_leader,
)
from ledgermq.proto.types import Range
from ledgermq.raft.messages import (
    Append,
    AppendReply,
    Extent,
    LeftBehind,
    TimeoutNow,
    VoteReply,
    VoteRequest,
)
from ledgermq.raft.transfer import HANDOVERS, Cause
from tests.replica import golden_packets
from tests.replica.raw_packets import Header, header_of

NUMBERS = st.integers(0, 1 << 62)
INDEXES = st.integers(-1, 1 << 62)
CRCS = st.integers(0, (1 << 32) - 1)
NAMES = st.sampled_from(["n1", "n2", "a-long-node-name", "ü"])
FLAGS = st.booleans()
TERMS = st.integers(0, TERM_MAX)
BOOTS = st.integers(0, (1 << 64) - 1)
BETWEEN = {"sender": NAMES, "to": NAMES}
PLAIN = (
    st.builds(
        VoteRequest,
        **BETWEEN,
        term=TERMS,
        pre=FLAGS,
        last_index=INDEXES,
        last_term=INDEXES,
        transfer=st.just(False),
        incarnation=st.sampled_from(["", "a-directory"]),
    )
    | st.builds(
        VoteRequest,
        **BETWEEN,
        term=TERMS,
        pre=st.just(False),
        last_index=INDEXES,
        last_term=INDEXES,
        transfer=st.just(True),
    )
    | st.builds(VoteReply, **BETWEEN, term=TERMS, pre=FLAGS, granted=FLAGS)
    | st.builds(
        TimeoutNow,
        **BETWEEN,
        term=st.just(TERM_MAX),
        last_index=NUMBERS,
        last_term=NUMBERS,
        cause=st.sampled_from(sorted(HANDOVERS)),
    )
    | st.builds(LeftBehind, **BETWEEN, term=TERMS, begin_index=st.integers(1, 1 << 62))
    | st.builds(
        AppendReply,
        **BETWEEN,
        term=TERMS,
        round=NUMBERS,
        boot_id=BOOTS,
        rejected=FLAGS,
        received=INDEXES,
        durable=st.just(-1),
        hint_term=INDEXES,
        leaving=FLAGS,
        provisional=FLAGS,
        fetch=FLAGS,
        watched=FLAGS,
    )
)


@given(PLAIN)
def test_messages_survive_the_wire(
    message: VoteRequest | VoteReply | AppendReply | TimeoutNow | LeftBehind,
) -> None:
    """Every field of every message without a payload comes back as it was."""
    packet = encode(message)
    arrived = decode(packet, message.sender)
    assert (arrived.message, len(arrived.payload)) == (message, 0)
    assert header_of(packet).packet() == packet


PROBES = st.builds(
    Append,
    **BETWEEN,
    term=st.just(50),
    round=NUMBERS,
    prev_index=INDEXES,
    prev_term=st.integers(-1, 50),
    commit_index=NUMBERS,
    extent=st.none(),
    lazy=FLAGS,
    early=FLAGS,
    end_index=INDEXES,
    quiet=FLAGS,
)


@given(PROBES, CRCS)
def test_an_append_without_a_range_survives_the_wire(message: Append, chain: int) -> None:
    """The chain CRC travels beside the message."""
    arrived = decode(encode_append(message, chain, None), message.sender)
    assert (arrived.message, arrived.prev_chain, arrived.pos) == (message, chain, -1)


@given(
    st.integers(-1, 1 << 60),
    st.integers(1, 1 << 60),
    st.integers(-1, 50),
    NUMBERS,
    CRCS,
    st.binary(min_size=1, max_size=50),
    FLAGS,
)
def test_an_append_of_a_range_survives_the_wire(
    prev: int, count: int, prev_term: int, pos: int, chain: int, data: bytes, early: bool
) -> None:
    """The header says where the range lies; the packet has the same memory as the range, not a copy
    of it."""
    term = max(prev_term, 0)
    none = np.zeros(0, np.int64)
    entries = Range(
        prev + 1, prev + count, term, pos, memoryview(data), none, none.astype(np.int32), chain, 0
    )
    message = Append(
        sender="n1",
        to="n2",
        term=50,
        round=3,
        prev_index=prev,
        prev_term=prev_term,
        commit_index=7,
        extent=Extent(prev + 1, prev + count, term, len(data)),
        early=early,
    )
    packet = encode_append(message, chain, entries)
    arrived = decode(packet, "n1")
    assert (arrived.message, arrived.prev_chain, arrived.pos) == (message, chain, pos)
    assert packet.payload is entries.data is arrived.payload


GOLDEN: dict[str, VoteRequest | VoteReply | Append | AppendReply | TimeoutNow | LeftBehind] = {
    "vote request": VoteRequest(
        sender="n1",
        to="n2",
        term=7,
        pre=False,
        last_index=300,
        last_term=6,
        incarnation="00000000-0000-4000-8000-00000000000a",
    ),
    "vote request for a transfer": VoteRequest(
        sender="n1", to="n2", term=7, pre=False, last_index=300, last_term=6, transfer=True
    ),
    "pre-vote reply, granted": VoteReply(sender="n1", to="n2", term=7, pre=True, granted=True),
    "heartbeat": Append(
        sender="n1",
        to="n2",
        term=7,
        round=41,
        prev_index=299,
        prev_term=6,
        commit_index=298,
        end_index=310,
        quiet=True,
    ),
    "append of a range": Append(
        sender="n1",
        to="n2",
        term=7,
        round=41,
        prev_index=299,
        prev_term=6,
        commit_index=298,
        extent=Extent(300, 302, 6, 5),
        lazy=True,
        early=True,
        end_index=310,
    ),
    "append reply": AppendReply(
        sender="n1",
        to="n2",
        term=7,
        round=41,
        boot_id=(1 << 64) - 3,
        rejected=False,
        received=300,
        durable=299,
    ),
    "append reply, all flags": AppendReply(
        sender="n1",
        to="n2",
        term=7,
        round=41,
        boot_id=(1 << 64) - 3,
        rejected=True,
        received=300,
        durable=-1,
        hint_term=6,
        leaving=True,
        provisional=True,
        fetch=True,
        watched=True,
    ),
    "timeout now": TimeoutNow(
        sender="nü", to="n1.2", term=7, last_index=300, last_term=6, cause=Cause.PLANNED_STOP
    ),
    "left behind": LeftBehind(sender="n1", to="n2", term=7, begin_index=5000),
}


@pytest.mark.parametrize("name", GOLDEN)
def test_golden_packets_are_read_and_written_byte_for_byte(name: str) -> None:
    """The file holds each kind of message as docs/format.md §19 lays it out, written by another
    encoder."""
    assert golden_packets.PATH.read_text() == golden_packets.content()
    headers = json.loads(golden_packets.PATH.read_text())
    assert headers.keys() == GOLDEN.keys()
    header, message = bytes.fromhex(headers[name]), GOLDEN[name]
    entries, none = None, np.zeros(0, np.int64)
    if isinstance(message, Append) and message.extent is not None:
        entries = Range(
            300, 302, 6, 70_000, memoryview(b"bytes"), none, none.astype(np.int32), 0xFEDCBA98, 0
        )
    packet = (
        encode_append(message, 0xFEDCBA98, entries)
        if isinstance(message, Append)
        else encode(message)
    )
    assert packet.header == header
    arrived = decode(PeerPacket(header, packet.payload), message.sender)
    assert arrived.message == message
    if isinstance(message, Append):
        assert (arrived.prev_chain, arrived.pos) == (0xFEDCBA98, -1 if entries is None else 70_000)


HANDOVER = header_of(
    encode(
        TimeoutNow(sender="n1", to="n2", term=5, last_index=4, last_term=5, cause=Cause.OPERATOR)
    )
)
RANGE = Header(
    "append",
    {
        "term": 5,
        "round": 0,
        "prev_index": 3,
        "prev_term": 2,
        "prev_chain": 0,
        "commit_index": 0,
        "end_index": -1,
    }
    | {"last_index": 4, "range_term": 2, "pos": 1000},
    0,
    (b"n1", b"n2"),
)
VOTE_REPLY = header_of(encode(VoteReply(sender="n1", to="n2", term=5, pre=False, granted=True)))
REPLY = header_of(
    encode(
        AppendReply(
            sender="n1", to="n2", term=5, round=0, boot_id=0, rejected=False, received=0, durable=0
        )
    )
)


@pytest.mark.parametrize(
    "wrong",
    [
        HANDOVER.with_(last_index=-1),
        HANDOVER.with_(last_term=6),
        HANDOVER.with_(last_term=-1),
        HANDOVER.with_(cause=0),
        HANDOVER.with_(cause=2),
        HANDOVER.with_(cause=99),
        HANDOVER.with_(cause=255),
        Header(
            "vote_request", {"term": 5, "last_index": 4, "last_term": 5}, 3, (b"n1", b"n2", b"")
        ),
    ],
)
def test_misshapen_handovers_are_refused(wrong: Header) -> None:
    """A handover names an entry that can exist and one of the known causes; a pre-vote is never
    part of one."""
    assert decode(HANDOVER.packet(), "n1").message == TimeoutNow(
        sender="n1", to="n2", term=5, last_index=4, last_term=5, cause=min(HANDOVERS)
    )
    with pytest.raises(BadPacket, match="shape"):
        decode(wrong.packet(), "n1")


def test_the_well_formed_packet_of_the_next_test_is_accepted() -> None:
    """Otherwise the refusals below would prove nothing."""
    arrived = decode(RANGE.packet(b"bytes"), "n1")
    assert isinstance(arrived.message, Append) and arrived.message.extent is not None
    assert (arrived.message.extent.first_index, arrived.message.extent.size, arrived.pos) == (
        4,
        5,
        1000,
    )
    assert decode(RANGE.with_(last_index=-1, range_term=-1, pos=-1).packet(), "n1").pos == -1


@pytest.mark.parametrize(
    ("wrong", "payload"),
    [
        (RANGE.with_(prev_index=-2), b"bytes"),
        (RANGE.with_(prev_term=6), b"bytes"),
        (RANGE.with_(end_index=-2), b"bytes"),
        (RANGE.with_(range_term=6), b"bytes"),
        (RANGE.with_(range_term=1), b"bytes"),
        (RANGE.with_(range_term=-1, prev_term=-1), b"bytes"),
        (RANGE.with_(pos=-1), b"bytes"),
        (RANGE.with_(last_index=3), b"bytes"),
        (RANGE, b""),
        (RANGE.with_(range_term=-1, pos=-1), b""),
        (RANGE.with_(last_index=-1, range_term=-1), b""),
        (VOTE_REPLY, b"bytes"),
        (REPLY.with_(durable=9), b""),
        (REPLY.with_(durable=-2), b""),
        (
            header_of(encode(LeftBehind(sender="n1", to="n2", term=5, begin_index=1))).with_(
                begin_index=0
            ),
            b"",
        ),
    ],
)
def test_misshapen_packets_are_refused(wrong: Header, payload: bytes) -> None:
    """Numbers that contradict each other never reach the core, however valid their checksum."""
    with pytest.raises(BadPacket, match="shape"):
        decode(wrong.packet(payload), "n1")


@given(st.binary(max_size=80), st.binary(max_size=20))
def test_random_bytes_are_refused(data: bytes, payload: bytes) -> None:
    """Noise is a BadPacket and nothing else."""
    with pytest.raises(BadPacket):
        decode(PeerPacket(data, payload), "n1")


def test_only_a_leader_s_log_and_its_begin_are_of_a_leader() -> None:
    """What a directory that does not count may say, and nothing that is counted."""
    heartbeat = encode_append(
        Append(
            sender="a",
            to="b",
            term=3,
            round=7,
            prev_index=4,
            prev_term=2,
            commit_index=4,
            extent=None,
            lazy=False,
            early=False,
        ),
        9,
        None,
    )
    assert is_of_leader(heartbeat)
    assert is_of_leader(encode(LeftBehind(sender="a", to="b", term=3, begin_index=5)))
    assert not is_of_leader(
        encode(
            VoteRequest(
                sender="a",
                to="b",
                term=3,
                pre=False,
                last_index=4,
                last_term=2,
                transfer=False,
                incarnation="",
            )
        )
    )
    assert not is_of_leader(encode(VoteReply(sender="a", to="b", term=3, pre=False, granted=True)))
    assert not is_of_leader(
        encode(
            TimeoutNow(sender="a", to="b", term=3, last_index=4, last_term=2, cause=Cause.OPERATOR)
        )
    )
    assert not is_of_leader(
        encode(
            AppendReply(
                sender="a",
                to="b",
                term=3,
                round=7,
                boot_id=1,
                rejected=False,
                received=4,
                durable=4,
                hint_term=0,
                leaving=False,
                provisional=False,
            )
        )
    )
    assert not is_of_leader(PeerPacket(b"h"))
