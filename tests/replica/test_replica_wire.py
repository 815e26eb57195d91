"""Raft messages as packets: everything survives the way, and nothing misshapen comes through."""

from __future__ import annotations

import crc32c
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgermq.node.broker.ports import PeerPacket
from ledgermq.node.replica.consensus.replica_wire import BadPacket, decode, encode, encode_append, is_of_leader
from ledgermq.proto.raft_pb2 import RaftMessage, RaftPacket
from ledgermq.raft.messages import Append, AppendReply, LeftBehind, TimeoutNow, VoteReply, VoteRequest
from ledgermq.raft.transfer import HANDOVERS, Cause

NUMBERS = st.integers(0, 1 << 62)
INDEXES = st.integers(-1, 1 << 62)
NAMES = st.sampled_from(["n1", "n2", "a-long-node-name", "ü"])
VOTES = st.builds(VoteRequest, NAMES, NAMES, NUMBERS, st.booleans(), INDEXES, INDEXES) | st.builds(
    VoteReply, NAMES, NAMES, NUMBERS, st.booleans(), st.booleans()
)
TRANSFERS = st.builds(VoteRequest, NAMES, NAMES, NUMBERS, st.just(False), INDEXES, INDEXES, st.just(True)) | st.builds(
    TimeoutNow, NAMES, NAMES, st.just(1 << 62), NUMBERS, NUMBERS, st.sampled_from(sorted(HANDOVERS))
)
REPLIES = st.builds(AppendReply, NAMES, NAMES, NUMBERS, NUMBERS, NUMBERS, st.booleans(), INDEXES, st.just(-1), INDEXES, st.booleans())


@given(VOTES | REPLIES | TRANSFERS)
def test_messages_survive_the_wire(message: VoteRequest | VoteReply | AppendReply | TimeoutNow) -> None:
    """Every field of every message without a payload comes back as it was."""
    arrived = decode(encode(message), message.sender)
    assert (arrived.message, len(arrived.payload)) == (message, 0)


@given(st.integers(-1, 1 << 62), st.integers(-1, 50), NUMBERS, st.integers(0, (1 << 32) - 1), st.booleans(), st.booleans())
def test_an_append_without_a_range_survives_the_wire(prev: int, prev_term: int, commit: int, chain: int, lazy: bool, early: bool) -> None:
    """The chain CRC travels beside the message."""
    message = Append("n1", "n2", 50, 3, prev, prev_term, commit, None, lazy, early)
    arrived = decode(encode_append(message, chain, None), "n1")
    assert (arrived.message, arrived.prev_chain, arrived.pos) == (message, chain, -1)


def header(**fields: object) -> RaftMessage:
    message = RaftMessage(sender="n1", to="n2", term=5)
    message.append.prev_index, message.append.prev_term = 3, 2
    message.append.range.last_index, message.append.range.term, message.append.range.pos = 4, 2, 1000
    for path, value in fields.items():
        *parents, name = path.split("__")
        target: object = message
        for parent in parents:
            target = getattr(target, parent)
        setattr(target, name, value)
    return message


@pytest.mark.parametrize(
    "fields",
    [
        {"timeout_now__last_index": -1},
        {"timeout_now__last_term": 6},
        {"timeout_now__last_term": -1},
        {"timeout_now__cause": 0},
        {"timeout_now__cause": 2},
        {"timeout_now__cause": 99},
        {"timeout_now__cause": -3},
        {"vote_request__pre": True, "vote_request__transfer": True},
    ],
)
def test_misshapen_handovers_are_refused(fields: dict[str, object]) -> None:
    """A handover names an entry that can exist and one of the known causes; a pre-vote is never part of one."""
    good = {"timeout_now__last_index": 4, "timeout_now__last_term": 5, "timeout_now__cause": 3}
    assert decode(sealed(header(**good), b""), "n1").message == TimeoutNow("n1", "n2", 5, 4, 5, min(HANDOVERS))
    with pytest.raises(BadPacket, match="shape"):
        decode(sealed(header(**{**good, **fields}), b""), "n1")


def sealed(message: RaftMessage, payload: bytes) -> PeerPacket:
    data = message.SerializeToString()
    return PeerPacket(RaftPacket(message=data, checksum=crc32c.crc32c(data)).SerializeToString(), payload)


def test_the_well_formed_packet_of_the_next_test_is_accepted() -> None:
    """Otherwise the refusals below would prove nothing."""
    arrived = decode(sealed(header(), b"bytes"), "n1")
    assert isinstance(arrived.message, Append) and arrived.message.extent is not None
    assert (arrived.message.extent.first_index, arrived.message.extent.size, arrived.pos) == (4, 5, 1000)


@pytest.mark.parametrize(
    ("fields", "payload"),
    [
        ({"append__prev_index": -2}, b"bytes"),
        ({"append__prev_term": 6}, b"bytes"),
        ({"append__range__term": 6}, b"bytes"),
        ({"append__range__term": 1}, b"bytes"),
        ({"append__range__term": -1, "append__prev_term": -1}, b"bytes"),
        ({"append__range__pos": -1}, b"bytes"),
        ({"append__range__last_index": 3}, b"bytes"),
        ({}, b""),
        ({"vote_reply__granted": True}, b"bytes"),
        ({"append_reply__durable": 9}, b""),
        ({"append_reply__durable": -2}, b""),
    ],
)
def test_misshapen_packets_are_refused(fields: dict[str, object], payload: bytes) -> None:
    """Numbers that contradict each other never reach the core, however valid their checksum."""
    with pytest.raises(BadPacket):
        decode(sealed(header(**fields), payload), "n1")


def test_a_header_without_content_is_refused() -> None:
    """An unknown kind of message from a newer program is dropped, not guessed at."""
    with pytest.raises(BadPacket, match="unknown content"):
        decode(sealed(RaftMessage(sender="n1", to="n2", term=5), b""), "n1")


@given(st.binary(max_size=80), st.binary(max_size=20))
def test_random_bytes_are_refused(data: bytes, payload: bytes) -> None:
    """Noise is a BadPacket and nothing else."""
    with pytest.raises(BadPacket):
        decode(PeerPacket(data, payload), "n1")


def test_only_a_leader_s_log_and_its_begin_are_of_a_leader() -> None:
    """What a directory that does not count may say, and nothing that is counted."""
    heartbeat = encode_append(Append("a", "b", 3, 7, 4, 2, 4, None, False, False), 9, None)
    assert is_of_leader(heartbeat)
    assert is_of_leader(encode(LeftBehind("a", "b", 3, 5)))
    assert not is_of_leader(encode(VoteRequest("a", "b", 3, False, 4, 2, False, "")))
    assert not is_of_leader(encode(VoteReply("a", "b", 3, False, True)))
    assert not is_of_leader(encode(TimeoutNow("a", "b", 3, 4, 2, Cause.OPERATOR)))
    assert not is_of_leader(encode(AppendReply("a", "b", 3, 7, 1, False, 4, 4, 0, False, False)))
    assert not is_of_leader(PeerPacket(b"h"))
