"""Verify: valid receipts are true, altered ones false, and undecidable ones are reported as
unknown."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ledgermq.node.broker.calls.outcome import CallRefused, Refused
from ledgermq.node.broker.calls.read_calls import Confirmed
from ledgermq.node.frontend.native.proofs import Proof
from ledgermq.node.frontend.native.service import LOG_PREFIX
from ledgermq.proto import log_pb2 as pb
from ledgermq.proto.entries.entry_sealing import chain_crc_at, make_range, seal
from ledgermq.proto.entries.ranges import tail_of
from ledgermq.proto.frames import FrameBuilder, read_frame
from ledgermq.proto.proofs.receipts import sign
from ledgermq.proto.types import Range
from tests.log_service.log_frames import STORE_MS, TAG
from tests.log_service.log_stage import CLUSTER, LOG_ID, Stage, on_the_wire, signed

TRUE, FALSE, UNVERIFIABLE = pb.Verdict.TRUE, pb.Verdict.FALSE, pb.Verdict.UNVERIFIABLE
KEY_ID, KEY = "k1", bytes(32)
QUEUES = (0, 1, 0, 2, 1, 0)


class FakeLog:
    """Frames of producer 7 in a log that begins with entry 10; six messages each, terms as
    given."""

    def __init__(self, *terms: int) -> None:
        self.begin_index, self.end_index = 10, 9
        self.ranges: list[Range] = []
        chain, pos = 0x1234, 4096
        offsets = {queue: 100 * queue for queue in range(3)}
        for number, term in enumerate(terms):
            made = FrameBuilder("T", TAG, 7, 0).encode(
                6 * number, np.array(QUEUES, "i4"), [b"x" * 50] * 6, born_ms=1
            )
            frame = read_frame(
                "T",
                TAG,
                7,
                0,
                6 * number,
                made.sizes,
                bytes(made.entries),
                queues=3,
                max_body_bytes=1 << 20,
                max_entry_bytes=1 << 20,
            )
            given = []
            for queue in QUEUES:
                given.append(offsets[queue])
                offsets[queue] += 1
            last = seal(
                frame.batch,
                first_index=self.end_index + 1,
                term=term,
                pos=pos,
                queue_offsets=np.array(given, "i8"),
                store_ms=STORE_MS,
                store_host=bytes(8),
                prev_chain=chain,
            )
            self.ranges.append(
                make_range(
                    frame.batch,
                    0,
                    6,
                    first_index=self.end_index + 1,
                    term=term,
                    pos=pos,
                    prev_chain=chain,
                )
            )
            chain, pos = last, pos + len(frame.batch.data)
            self.end_index += 6

    def _at(self, index: int) -> Range:
        return next(
            entries for entries in self.ranges if entries.first_index <= index <= entries.last_index
        )

    def term_at(self, index: int) -> int:
        return self._at(index).term

    def chain_at(self, index: int) -> int:
        entries = self._at(index)
        return chain_crc_at(entries.data, int(entries.starts[index - entries.first_index]))

    def read(self, first_index: int, max_bytes: int) -> Range:
        return tail_of(self._at(first_index), first_index)


def receipt(log: FakeLog, number: int = 0, **changed: Any) -> pb.Receipt:
    """The true receipt of a frame, but for what is changed, signed."""
    first = 10 + 6 * number
    made = pb.Receipt(
        cluster_id=CLUSTER,
        broker_group="g1",
        log_id=LOG_ID,
        topic="T",
        producer_id=7,
        epoch=0,
        first_sequence=6 * number,
        count=6,
        term=log.term_at(first) if first <= log.end_index else 1,
        first_index=first,
        ranges=[
            pb.QueueRange(
                queue=q, first_offset=100 * q + QUEUES.count(q) * number, count=QUEUES.count(q)
            )
            for q in range(3)
        ],
        chain_crc=log.chain_at(first + 5) if first + 5 <= log.end_index else 0,
        store_ms=STORE_MS,
        durability=pb.DURABLE,
        replicas=[pb.ReplicaDurable(node="n1", durable_index=first + 5)],
    )
    for name, value in changed.items():
        if name == "ranges":
            del made.ranges[:]
            made.ranges.extend(value)
        else:
            setattr(made, name, value)
    sign(KEY_ID, KEY, made)
    return made


class Bench(Stage):
    """A leader over a log; the forwarder leads back to it."""

    def __init__(self, log: FakeLog, **options: Any) -> None:
        super().__init__(**options)
        self.log, self.applied = log, log.end_index
        secret = self.sealer.seal(f"receipt key {KEY_ID}", KEY.hex())
        self.quorum.command(
            {
                "op": "add-receipt-key",
                "key_id": KEY_ID,
                "secret": secret,
                "created_ms": 0,
                "after": "",
            }
        )
        self.engine.answer = lambda call: Confirmed(self.applied)
        self.looks = 0

        async def run(group: str, work: Callable[[Any], Any]) -> Any:
            self.looks += 1
            return work(
                SimpleNamespace(
                    store=SimpleNamespace(log=self.log),
                    machine=SimpleNamespace(applied_index=self.applied),
                )
            )

        async def submit(
            group: str,
            method: str,
            metadata: Any,
            request: bytes,
            deadline: float,
            *,
            repeatable: bool,
        ) -> Sequence[bytes]:
            assert repeatable and method == f"{LOG_PREFIX}Verify"
            return await self.service.execute(group, method, request)

        self.engine.run = run  # type: ignore[method-assign]
        self.service._verifier._forwarder = SimpleNamespace(submit=submit)  # type: ignore[assignment]

    def verdicts(self, *receipts: pb.Receipt, metadata: Any = ()) -> pb.VerifyResponse:
        async def main() -> pb.VerifyResponse:
            async with on_the_wire(self) as wire:
                response: pb.VerifyResponse = await wire.unary(
                    "Verify", pb.VerifyRequest(receipts=receipts), metadata
                )
                return response

        return asyncio.run(main())


def judged(stage: Bench, one: pb.Receipt) -> tuple[int, str]:
    [verdict] = stage.verdicts(one).verdicts
    return verdict.result, verdict.reason


def test_receipts_of_stored_messages_are_true() -> None:
    """Whatever their order, with their verdicts in it."""
    log = FakeLog(1, 1, 3)
    found = Bench(log).verdicts(
        receipt(log, 2), receipt(log, 0), receipt(log, 1, count=7), receipt(log, 1)
    )
    assert [verdict.result for verdict in found.verdicts] == [TRUE, TRUE, FALSE, TRUE]
    assert not found.HasField("problem")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"count": 7}, "do not match the counts"),
        ({"term": 2}, "term 1"),
        ({"chain_crc": 5}, "chain CRC"),
        ({"first_index": 16}, "chain CRC"),
        ({"producer_id": 8}, "of producer 8"),
        ({"epoch": 1}, "epoch 1"),
        ({"first_sequence": 1}, "messages 1 and after"),
        ({"topic": "U"}, "of topic T"),
        ({"store_ms": 1}, "stored at"),
        ({"ranges": [pb.QueueRange(queue=0, first_offset=0, count=6)]}, "queue 1"),
        (
            {
                "ranges": [
                    pb.QueueRange(queue=q, first_offset=100 * q + (q == 1), count=QUEUES.count(q))
                    for q in range(3)
                ]
            },
            "queue 1",
        ),
        (
            {"ranges": [pb.QueueRange(queue=q, first_offset=100 * q, count=2) for q in range(3)]},
            "other offsets",
        ),
        (
            {"ranges": [pb.QueueRange(queue=2 - q, first_offset=0, count=2) for q in range(3)]},
            "not in order",
        ),
        ({"first_index": 100}, "ends with entry"),
    ],
)
def test_a_receipt_that_the_log_contradicts_is_false(change: dict[str, Any], words: str) -> None:
    """Even with a good MAC: what it says is not what is stored."""
    log = FakeLog(1, 1)
    result, reason = judged(Bench(log), receipt(log, **change))
    assert (result, words in reason) == (FALSE, True), reason


def test_a_mac_that_is_not_ours_is_false_without_looking_at_the_log() -> None:
    """Any field that was altered afterwards."""
    log = FakeLog(1)
    stage = Bench(log)
    altered = receipt(log)
    altered.durability = pb.MEMORY
    made_up = receipt(log)
    made_up.mac = bytes(32)
    assert {verdict.result for verdict in stage.verdicts(altered, made_up).verdicts} == {FALSE}
    assert stage.looks == 0


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"cluster_id": "elsewhere"}, "another cluster"),
        ({"log_id": "former"}, "another log"),
        ({"broker_group": "g9"}, "no broker group"),
        ({"first_index": 4}, "trimmed"),
    ],
)
def test_receipt_of_absent_entries_is_unverifiable(change: dict[str, Any], words: str) -> None:
    """Neither true nor false."""
    log = FakeLog(1)
    result, reason = judged(Bench(log), receipt(log, **change))
    assert (result, words in reason) == (UNVERIFIABLE, True), reason


def test_a_key_that_is_gone_or_a_leader_that_is_not_there() -> None:
    """The receipt may be valid, but this cannot be verified now."""
    log = FakeLog(1)
    unknown = receipt(log)
    sign("k9", KEY, unknown)
    assert judged(Bench(log), unknown)[0] == UNVERIFIABLE
    stage = Bench(log)
    stage.engine.answer = lambda call: Refused("not-leader")
    assert judged(stage, receipt(log)) == (
        UNVERIFIABLE,
        "broker group g1 has no leader that answers; try again",
    )


def test_a_node_that_knows_no_broker_group_yet_asks_before_it_judges() -> None:
    """The key of a receipt may be known, and its broker group be newer than what this node has
    heard of."""
    log = FakeLog(1)
    stage = Bench(log)
    stage.quorum.state = replace(stage.quorum.state, broker_groups={})
    assert judged(stage, receipt(log))[0] == TRUE


def test_unknown_receipt_keys_are_asked_for_once_a_call() -> None:
    """A thousand receipts with invented keys are not a thousand questions to the controller
    quorum."""
    log = FakeLog(1)
    invented = []
    for number in range(20):
        invented.append(receipt(log))
        sign(f"invented-{number}", KEY, invented[-1])
    stage = Bench(log)
    before = stage.quorum.barriers
    verdicts = stage.verdicts(*invented, receipt(log)).verdicts
    assert [verdict.result for verdict in verdicts] == [UNVERIFIABLE] * 20 + [TRUE]
    assert stage.quorum.barriers - before <= 1


def test_an_acknowledgement_from_memory_promised_less() -> None:
    """Until it is committed, the result is unknown; if the message was lost, the answer is false
    with the reason."""
    log = FakeLog(1, 1)
    stage = Bench(log)
    assert judged(stage, receipt(log, 1, durability=pb.MEMORY))[0] == TRUE
    stage.applied = 15
    assert judged(stage, receipt(log, 1, durability=pb.MEMORY)) == (
        UNVERIFIABLE,
        "entry 21 is not committed",
    )
    assert judged(stage, receipt(log, 1))[0] == FALSE
    stage.applied = 21
    result, reason = judged(stage, receipt(log, 1, durability=pb.MEMORY, chain_crc=1))
    assert result == FALSE and "from memory and lost" in reason


def test_receipt_of_a_damaged_entry_is_unverifiable() -> None:
    """The audit finds it; the receipt is not to blame."""
    log = FakeLog(1)
    entries = log.ranges[0]
    data = bytearray(entries.data)
    data[200] ^= 1
    log.ranges[0] = replace(entries, data=memoryview(data))
    result, reason = judged(Bench(log), receipt(log))
    assert result == UNVERIFIABLE and "damaged" in reason


def test_entries_come_in_pieces() -> None:
    """However they are cut, the verdict is the same."""
    log = FakeLog(1)
    whole = log.ranges[0]
    for border in range(1, 6):
        proof = Proof(receipt(log))
        last = log.chain_at(10 + border - 1)
        first = replace(
            whole,
            last_index=whole.first_index + border - 1,
            data=whole.data[: int(whole.starts[border])],
            starts=whole.starts[:border],
            sizes=whole.sizes[:border],
            last_chain=last,
        )
        assert proof.add(first) is None
        verdict = proof.add(tail_of(whole, proof.next_index))
        assert verdict is not None and verdict.result == TRUE


def test_verification_needs_permission_and_bounds_receipts() -> None:
    """The number of receipts per call is limited as well."""
    log = FakeLog(1)
    stage = Bench(log, authentication=True)
    stage.user("reader", "secret-of-reader", "subscribe:topic:T")
    stage.user("other", "secret-of-other", "subscribe:topic:U")
    assert (
        stage.verdicts(receipt(log), metadata=signed("reader", "secret-of-reader"))
        .verdicts[0]
        .result
        == TRUE
    )
    assert (
        stage.verdicts(receipt(log), metadata=signed("other", "secret-of-other")).problem.code
        == 40300
    )
    assert stage.verdicts(receipt(log)).problem.code == 40100
    assert Bench(log).verdicts(*[pb.Receipt()] * 1001).problem.code == 40000


async def test_other_calls_are_not_known() -> None:
    """A peer of another version gets an error that says this."""
    with pytest.raises(CallRefused, match="does not know"):
        await Bench(FakeLog(1)).service.execute("g1", f"{LOG_PREFIX}Else", b"")
