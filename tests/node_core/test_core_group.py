"""A broker group on virtual time over a replicator in memory: calls in, answers out."""

from __future__ import annotations

from ledgermq.node.core.calls import Produced
from tests.node_core.core_fakes import Bench


def bench() -> Bench:
    b = Bench()
    b.lead(1)
    b.configure("t", queues=2)
    return b


def test_produce_receive_ack() -> None:
    """The main road: a message goes in, is leased once, acknowledged, and never comes again."""
    b = bench()
    sent = b.send("a", "b")
    assert isinstance(sent, Produced) and sent.queue_offsets == (0, 1)
    leases = b.receive()
    assert [lease.queue_offset for lease in leases] == [0, 1]
    assert [lease.attempt for lease in leases] == [1, 1]
    assert b.receive() == ()
    assert b.ack(*leases) == (True, True)
    b.pass_time(10**12)
    assert b.receive() == ()
    assert b.ack(*leases) == (False, False)
