"""The jobs that serve bytes to peers: they survive failing requests, and end on request."""

from __future__ import annotations

import queue
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from ledgermq.node.broker.ports import PeerPacket
from ledgermq.node.replica.hosting.shipping_jobs import ShippingJobs
from ledgermq.node.replica.shipping.shipping import ShipperOutput

REQUEST = PeerPacket(b"\x07")


class FakeShipper:
    """Optionally fails at the first request; answers the others."""

    def __init__(self, failure: Exception | None) -> None:
        self.failure = failure
        self.closed = False

    def turn(self, now_ns: int, packets: Sequence[tuple[str, PeerPacket]]) -> ShipperOutput:
        if self.failure is not None:
            raise self.failure
        return ShipperOutput(tuple(packets), -1)

    def close(self) -> None:
        self.closed = True


def test_a_request_that_breaks_the_shipper_does_not_end_the_serving() -> None:
    """A replica that serves nothing any more could be the only one that has what a peer lacks."""
    shippers = [FakeShipper(ZeroDivisionError("a bug")), FakeShipper(None)]
    made: queue.SimpleQueue[Any] = queue.SimpleQueue()
    sent: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def make() -> Any:
        shipper = shippers.pop(0)
        made.put(shipper)
        return shipper

    pool = ThreadPoolExecutor(1)
    jobs = ShippingJobs("g-ship", make, executor=pool, clock_ns=int)
    jobs.send = sent.put
    jobs.offer("n2", REQUEST)
    broken = made.get(timeout=10)
    jobs.offer("n3", REQUEST)
    assert sent.get(timeout=10) == (("n3", REQUEST),)
    whole = made.get(timeout=10)
    assert broken.closed and not whole.closed
    jobs.close()
    assert whole.closed
    with pytest.raises(RuntimeError):
        pool.submit(int)
