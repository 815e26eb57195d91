"""Builds the answers to a producer's frames: an acknowledgement with its receipt, or a rejection
with the reason.

Answers are built in the order of the frames, so the last answer has the next expected sequence
number.
"""

from __future__ import annotations

from dataclasses import dataclass

from ledgermq.node.broker.calls.outcome import Refused
from ledgermq.node.broker.calls.send_calls import FrameKnown, FrameProduced
from ledgermq.node.frontend.native.frame_checks import Origin
from ledgermq.node.frontend.native.keys import ReceiptKeys
from ledgermq.node.frontend.native.problems import problem
from ledgermq.node.frontend.rocketmq.wire.statuses import refusal_error
from ledgermq.proto import log_pb2
from ledgermq.proto.proofs.receipts import sign
from ledgermq.proto.status import LedgerError

AGAIN_MS = {"busy": 100, "disk-full": 1000, "in-sync-short": 1000}
"""Refusals with their wait in ms: an immediate retry would make the problem worse."""
IN_ORDER = frozenset({"sequence-gap", "partial-frame"})
"""Refusals that end once the missing messages are sent."""
_DURABILITY = {"durable": log_pb2.DURABLE, "memory": log_pb2.MEMORY, "master": log_pb2.MASTER}


@dataclass(frozen=True, slots=True)
class Sent:
    """The part of a frame that its answer repeats."""

    first_sequence: int
    count: int


class FrameAnswers:
    """The answers of one stream. `next_sequence`: from the opening, later from the last answer."""

    def __init__(
        self,
        node: str,
        cluster_id: str,
        log_id: str,
        origin: Origin,
        keys: ReceiptKeys,
        next_sequence: int,
    ) -> None:
        self._node = node
        self._cluster_id = cluster_id
        self._log_id = log_id
        self._origin = origin
        self._keys = keys
        self.next_sequence = next_sequence

    def stored(self, sent: Sent, produced: FrameProduced) -> log_pb2.ProduceResponse:
        """Acknowledge a stored frame."""
        self._reached(sent)
        receipt = self._receipt(sent, produced)
        return log_pb2.ProduceResponse(
            ack=log_pb2.FrameAck(
                first_sequence=sent.first_sequence,
                count=sent.count,
                duplicate=produced.duplicate,
                receipt=receipt,
            )
        )

    def known(self, sent: Sent, known: FrameKnown) -> log_pb2.ProduceResponse:
        """Acknowledge a frame that was stored earlier and whose receipt is no longer remembered."""
        self.next_sequence = max(self.next_sequence, known.next_sequence)
        return log_pb2.ProduceResponse(
            ack=log_pb2.FrameAck(
                first_sequence=sent.first_sequence, count=sent.count, duplicate=True
            )
        )

    def refused(self, sent: Sent, refused: Refused) -> log_pb2.ProduceResponse:
        """Reject a frame that the broker group refused."""
        if refused.next_sequence is not None:
            self.next_sequence = refused.next_sequence
        reason = problem(refusal_error(refused, self._node))
        reason.retryable = reason.retryable or refused.reason in IN_ORDER
        reason.retry_after_ms = AGAIN_MS.get(refused.reason, 0)
        return self._rejected(sent, reason, -1)

    def rejected(
        self, sent: Sent, error: LedgerError, position: int = -1
    ) -> log_pb2.ProduceResponse:
        """Reject a frame that did not reach the broker group."""
        return self._rejected(sent, problem(error), position)

    def _rejected(self, sent: Sent, why: log_pb2.Problem, position: int) -> log_pb2.ProduceResponse:
        rejected = log_pb2.FrameRejected(
            first_sequence=sent.first_sequence, count=sent.count, problem=why, position=position
        )
        rejected.next_sequence = self.next_sequence
        return log_pb2.ProduceResponse(rejected=rejected)

    def _reached(self, sent: Sent) -> None:
        self.next_sequence = max(self.next_sequence, sent.first_sequence + sent.count)

    def _receipt(self, sent: Sent, produced: FrameProduced) -> log_pb2.Receipt:
        origin = self._origin
        receipt = log_pb2.Receipt(
            cluster_id=self._cluster_id,
            broker_group=origin.broker_group,
            log_id=self._log_id,
            topic=produced.topic,
            producer_id=origin.producer_id,
            epoch=origin.epoch,
            first_sequence=sent.first_sequence,
            count=produced.count,
            term=produced.term,
            first_index=produced.first_index,
            chain_crc=produced.chain_crc,
            store_ms=produced.store_ms,
            durability=_DURABILITY[produced.durability],
        )
        for queue, first_offset, count in produced.ranges:
            receipt.ranges.add(queue=queue, first_offset=first_offset, count=count)
        for node, durable_index in produced.durable:
            receipt.replicas.add(node=node, durable_index=durable_index)
        key = self._keys.newest()
        assert key is not None, "no producer is opened before there is a key"
        sign(*key, receipt)
        return receipt
