"""Packets of shipping, and a shipper against whatever arrives: all survives the way, nothing
misshapen does harm, work is bounded."""

from __future__ import annotations

import random

import crc32c
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgermq.node.broker.ports import PeerPacket
from ledgermq.node.replica.consensus import replica_wire
from ledgermq.node.replica.consensus.replica_wire import BadPacket
from ledgermq.node.replica.shipping import shipping
from ledgermq.node.replica.shipping.shipping import PACKET_BYTES, PEERS_MAX, TURN_BYTES, Shipper
from ledgermq.node.replica.shipping.shipping_wire import (
    EntriesSent,
    EntriesWanted,
    FactsWanted,
    Sent,
    SnapshotSent,
    SnapshotWanted,
    Wanted,
    decode,
    encode,
    is_shipping,
)
from ledgermq.proto.entries.entry_checking import verify_range
from ledgermq.proto.entries.entry_sealing import chain_seed
from ledgermq.proto.shipping_pb2 import ShippingMessage
from ledgermq.raft.messages import VoteReply
from ledgermq.storage.files import sealed_json
from ledgermq.storage.log.log_scan import Point
from ledgermq.storage.repair.log_source import Facts, LogSource, Missing, Why
from tests.shipping.shipping_material import (
    FILE_BYTES,
    ROOT,
    Replica,
    append,
    identity_of,
    log_of,
    replicas,
    synced,
    write_snapshot,
)

N = st.integers(0, 1 << 62)
INDEX = st.integers(-1, 1 << 62)
CRC = st.integers(0, (1 << 32) - 1)
POINTS = st.builds(Point, pos=N, index=N, term=INDEX, chain=CRC)
SIZES = st.integers(1, 1 << 62)
CONTENTS = (
    st.builds(FactsWanted, st.lists(st.tuples(N, INDEX), max_size=5).map(tuple))
    | st.builds(
        EntriesWanted,
        point=st.builds(Point, pos=st.integers(0, 100), index=N, term=INDEX, chain=CRC),
        end_pos=st.integers(100, 1 << 62),
        allowed_pos=N,
    )
    | st.builds(
        SnapshotWanted, offset=st.integers(0, 100), allowed_offset=st.integers(100, 1 << 62)
    )
    | st.builds(
        Facts,
        data_file_bytes=SIZES,
        index_file_bytes=SIZES,
        begin=POINTS,
        synced=POINTS,
        committed_index=INDEX,
        committed_pos=INDEX,
        committed_term=N,
        snapshot_index=INDEX,
        snapshot_bytes=N,
        points=st.lists(POINTS, max_size=4).map(tuple),
    )
    | st.builds(Missing, why=st.sampled_from(Why), index=N, pos=N, text=st.text(max_size=20))
)


@given(CONTENTS, st.integers(0, (1 << 64) - 1))
def test_shipping_packet_decodes_to_its_fields(content: Wanted | Sent, session: int) -> None:
    """Every field comes back; each decoder refuses the packets of the other."""
    packet = encode("n1", "n2", "log", session, content)
    message = decode(packet, "n1")
    assert (message.content, message.session, message.log_id, message.sender) == (
        content,
        session,
        "log",
        "n1",
    )
    assert is_shipping(packet)
    with pytest.raises(BadPacket):
        replica_wire.decode(packet, "n1")
    vote = replica_wire.encode(VoteReply(sender="n1", to="n2", term=1, pre=False, granted=True))
    assert not is_shipping(vote)
    with pytest.raises(BadPacket, match="not a shipping packet"):
        decode(vote, "n1")


@given(
    st.sampled_from(
        [
            EntriesSent(index=3, last_index=4, term=2, pos=100),
            SnapshotSent(offset=0, total_bytes=7, checksum=1, applied_index=3),
        ]
    ),
    st.binary(min_size=1, max_size=7),
)
def test_payloads_travel_beside(content: Sent, payload: bytes) -> None:
    """As they are."""
    message = decode(encode("n1", "n2", "log", 1, content, payload), "n1")
    assert (message.content, bytes(message.payload)) == (content, payload)


def test_every_changed_byte_is_noticed() -> None:
    """The header's checksum covers all of it: byte by byte, and cut anywhere."""
    packet = encode(
        "n1",
        "n2",
        "log",
        7,
        EntriesWanted(
            point=Point(pos=100, index=5, term=2, chain=77), end_pos=4096, allowed_pos=2048
        ),
    )
    for at in range(len(packet.header)):
        for mask in (1, 0x80):
            changed = bytearray(packet.header)
            changed[at] ^= mask
            with pytest.raises(BadPacket):
                decode(PeerPacket(bytes(changed)), "n1")
        with pytest.raises(BadPacket):
            decode(PeerPacket(packet.header[:at]), "n1")


def sealed(**fields: object) -> PeerPacket:
    message = ShippingMessage(sender="n1", to="n2", log_id="log", session=1)
    for path, value in fields.items():
        *parents, name = path.split("__")
        target: object = message
        for parent in parents:
            target = getattr(target, parent)
        setattr(target, name, value)
    data = b"\x07" + message.SerializeToString()
    return PeerPacket(data + crc32c.crc32c(data).to_bytes(4, "big"))


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"fetch__entries__index": -1},
        {"fetch__entries__pos": -1},
        {"fetch__entries__end_pos": -5},
        {"fetch__entries__prev_term": -2},
        {"fetch__snapshot__offset": 9},
        {"fetched__entries__index": 3},
        {"fetched__snapshot__total_bytes": 3},
        {"fetched__facts__data_file_bytes": 0, "fetched__facts__committed_index": 3},
        {
            "fetched__facts__committed_index": -2,
            "fetched__facts__data_file_bytes": 4096,
            "fetched__facts__index_file_bytes": 64,
        },
    ],
)
def test_impossible_shipping_packet_is_refused(fields: dict[str, object]) -> None:
    """Numbers out of bounds, contents without their payload, no content."""
    with pytest.raises(BadPacket):
        decode(sealed(**fields), "n1")


def test_a_stranger_in_anothers_name_is_refused() -> None:
    """The transport determines the sender."""
    with pytest.raises(BadPacket, match="stranger"):
        decode(encode("n1", "n2", "log", 1, FactsWanted()), "n3")


def ask(
    shipper: Shipper,
    content: Wanted,
    *,
    session: int = 1,
    sender: str = "n2",
    log_id: str | None = None,
) -> list[tuple[Sent, bytes]]:
    """What the shipper answers to one request, over as many turns as it wants."""
    log_id = identity_of("n1").log_id if log_id is None else log_id
    packets, answers = [(sender, encode(sender, "n1", log_id, session, content))], []
    while True:
        output = shipper.turn(0, packets)
        assert sum(len(packet.payload) for _, packet in output.packets) <= TURN_BYTES + PACKET_BYTES
        for to, packet in output.packets:
            assert to == sender
            message = decode(packet, "n1")
            answers.append((message.content, bytes(message.payload)))
        if output.wake_at_ns < 0:
            return answers  # type: ignore[return-value]
        packets = []


def start() -> Point:
    return Point(pos=0, index=0, term=-1, chain=chain_seed(identity_of("n1").log_id))


def test_a_whole_log_is_shipped_in_verified_pieces_as_far_as_it_is_allowed() -> None:
    """Every piece continues the one before; nothing behind what is allowed; more allowance
    continues the same stream."""
    replica = replicas(nodes=("n1",))["n1"]
    shipper, point = replica.shipper(), start()
    for allowed in (2000, 6000, 1 << 40):
        for sent, payload in ask(
            shipper, EntriesWanted(point=point, end_pos=1 << 40, allowed_pos=allowed)
        ):
            if isinstance(sent, Missing):
                assert sent.why is Why.BEYOND and allowed == 1 << 40
                continue
            assert isinstance(sent, EntriesSent) and sent.pos < allowed
            found = verify_range(payload, point.index, sent.term, sent.pos, point.chain)
            assert (found.first_index, found.last_index) == (sent.index, sent.last_index)
            point = Point(
                pos=found.end_pos,
                index=found.last_index + 1,
                term=found.term,
                chain=found.last_chain,
            )
    store = replica.open()
    assert (point.index, point.chain) == (store.log.end_index + 1, store.log.end_chain)


def test_refusals_name_their_reason() -> None:
    """Another log, another history, damage, nothing there."""
    replica = replicas(nodes=("n1",))["n1"]
    shipper = replica.shipper()
    wanted = EntriesWanted(point=start(), end_pos=4096, allowed_pos=4096)
    reasons = {
        "another log": ask(shipper, wanted, log_id="x" * 36),
        "another history": ask(
            shipper,
            EntriesWanted(
                point=Point(pos=0, index=0, term=-1, chain=1), end_pos=4096, allowed_pos=4096
            ),
            session=2,
        ),
        "no snapshot": ask(shipper, SnapshotWanted(offset=0, allowed_offset=10), session=3),
        "no such place": ask(
            shipper,
            EntriesWanted(
                point=Point(pos=7, index=3, term=1, chain=1), end_pos=4096, allowed_pos=4096
            ),
            session=4,
        ),
    }
    whys = {
        name: [sent.why for sent, _ in answers if isinstance(sent, Missing)]
        for name, answers in reasons.items()
    }
    assert whys == {
        "another log": [Why.OTHER_LOG],
        "another history": [Why.DIFFERS],
        "no snapshot": [Why.NO_SNAPSHOT],
        "no such place": [Why.DIFFERS],
    }
    replica.disk.flip(f"{log_of('n1')}/data/{0:020d}", 60)
    damaged = ask(shipper, wanted, session=5)
    assert [sent.why for sent, _ in damaged if isinstance(sent, Missing)] == [Why.DAMAGED]


def test_a_directory_without_a_replica_refuses() -> None:
    """Nothing is there to be shipped, and nothing breaks."""
    assert [
        sent.why
        for sent, _ in ask(Replica("n1").shipper(), FactsWanted())
        if isinstance(sent, Missing)
    ] == [Why.OTHER_LOG]


def test_random_packets_are_counted_and_leave_no_streams() -> None:
    """Random packets cause no exception, streams stay bounded, and a valid request is still
    served."""
    replica = replicas(nodes=("n1",))["n1"]
    shipper, chance = replica.shipper(), random.Random(5)
    good = encode(
        "n2",
        "n1",
        identity_of("n1").log_id,
        3,
        EntriesWanted(point=start(), end_pos=1 << 40, allowed_pos=1 << 40),
    )
    for number in range(300):
        changed = bytearray(good.header)
        changed[chance.randrange(len(changed))] = chance.randrange(256)
        stranger = encode(
            f"x{number}",
            "n1",
            identity_of("n1").log_id,
            number,
            EntriesWanted(point=start(), end_pos=1 << 40, allowed_pos=0),
        )
        garbage = [("n2", PeerPacket(raw)) for raw in (bytes(changed), b"", b"\x07x")]
        shipper.turn(0, [*garbage, (f"x{number}", stranger)])
    assert len(shipper._streams) <= PEERS_MAX and sum(shipper.refused.values()) > 300
    assert any(
        isinstance(sent, EntriesSent)
        for sent, _ in ask(
            shipper, EntriesWanted(point=start(), end_pos=1 << 40, allowed_pos=1 << 40), session=99
        )
    )


def test_peer_with_unlimited_credit_gets_one_window() -> None:
    """One packet is no order for the whole log: what the other side does not take would wait in the
    memory of this one."""
    replica = Replica("n1")
    store = replica.create()
    for _ in range(3):
        append(store, 50, body_bytes=1000)
    synced(store)
    end_pos = store.log.end_pos
    store.close()
    shipper = replica.shipper()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shipping, "ALLOWED_BYTES", 30_000)
        first = ask(shipper, EntriesWanted(point=start(), end_pos=1 << 40, allowed_pos=1 << 60))
        sent = sum(len(payload) for _, payload in first)
        # Blanks at the ends of files are allowed for and not sent.
        assert 20_000 <= sent <= 30_000 + FILE_BYTES < end_pos and not any(
            isinstance(content, Missing) for content, _ in first
        )
        more = ask(shipper, EntriesWanted(point=start(), end_pos=1 << 40, allowed_pos=1 << 60))
        assert sum(len(payload) for _, payload in more) > 0


def test_a_snapshot_is_taken_apart_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """An installing replica requests facts twice a second; parsing a large snapshot each time would
    block the interpreter, and so every group of the node."""
    replica = Replica("n1")
    store = replica.create()
    append(store, 20)
    synced(store)
    store.queues.start({}, 0)
    write_snapshot(store, 5)
    seen: list[str] = []
    decode_sealed = sealed_json.decode
    monkeypatch.setattr(
        sealed_json, "decode", lambda data, path: seen.append(path) or decode_sealed(data, path)
    )
    source = LogSource(replica.disk, ROOT)

    def applied() -> tuple[int, int]:
        index = source.facts().snapshot_index
        return index, sum(path.endswith("/state/snapshot") for path in seen)

    assert [applied(), applied()] == [(15, 1), (15, 1)]
    write_snapshot(store, 19)
    assert [applied(), applied()] == [(19, 2), (19, 2)]
    store.close()
