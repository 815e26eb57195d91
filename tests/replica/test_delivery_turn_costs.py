"""Bounds what a message costs that is received 32 at a time and acknowledged by a call of its own,
as the official push consumer does."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest

from ledgermq.node.broker.calls.consumer_calls import Ack, Handle, Receive, Received
from ledgermq.node.broker.calls.send_calls import Produce
from ledgermq.node.broker.filters.filters import TagFilter
from ledgermq.node.replica.consensus.raft_replica import CHECK_EVERY_NS, RaftReplica
from ledgermq.raft.config import MS
from tests.node_core.core_fakes import SECOND, draft
from tests.replica.turn_costs import TOPIC, Cost, Trio

BATCH, CYCLES = 32, 3
GAP_NS = 20 * MS
HEARTBEATS_NS = 200 * MS
"""By then followers have applied the last entry."""


@pytest.fixture(scope="module")
def costs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Cost, Cost, int]]:
    """What `CYCLES` Receives cost the leader and a follower, each together with the
    acknowledgements of the one before; and the entries of the log that they became."""
    trio = Trio(Path(tmp_path_factory.mktemp("trio")))
    with mock.patch.object(RaftReplica, "check_every_ns", CHECK_EVERY_NS):
        trio.configure()
        for queue in range(CYCLES + 2):
            trio.call(
                *[
                    Produce(trio.token(), [draft(f"m{queue}-{at}", TOPIC, queue % 4)])
                    for at in range(BATCH)
                ]
            )
            trio.run(GAP_NS)
        received = cycle(trio, cycle(trio, Received(())))
        trio.run(HEARTBEATS_NS)
        trio.counted()
        before = trio.leader.group.replicator.end_index
        for _ in range(CYCLES):
            received = cycle(trio, received)
        trio.run(HEARTBEATS_NS)
        counted = trio.counted()
    yield (
        counted[trio.leader.name],
        counted[trio.followers[0].name],
        trio.leader.group.replicator.end_index - before,
    )
    trio.close()


def cycle(trio: Trio, last: Received) -> Received:
    handles = [
        Handle("g", TOPIC, one.queue, one.queue_offset, one.lease_number, one.attempt)
        for one in last.leases
    ]
    receive = Receive(trio.token(), "g", TOPIC, "c", TagFilter(), BATCH, None, trio.now_ns + SECOND)
    trio.call(*[Ack(trio.token(), [handle]) for handle in handles], receive)
    trio.run(GAP_NS)
    received = trio.outcomes[receive.token]
    assert isinstance(received, Received) and len(received.leases) == BATCH
    return received


def test_batch_acknowledgement_and_next_lease_are_two_entries_and_one_sync(
    costs: tuple[Cost, Cost, int],
) -> None:
    leader, follower, entries = costs
    assert entries == 2 * CYCLES
    # At rest, the mark of the last batch is synced alone.
    assert (leader.syncs, follower.syncs) == (CYCLES + 1, CYCLES + 1)


def test_a_message_costs_few_calls_in_the_turns(costs: tuple[Cost, Cost, int]) -> None:
    """93 and 26 before rows of a record were applied together."""
    leader, follower, _ = costs
    messages = BATCH * CYCLES
    assert leader.calls / messages <= 67, leader.functions.most_common(25)
    assert follower.calls / messages <= 18, follower.functions.most_common(25)


def test_a_follower_looks_up_an_acknowledged_row_once_and_no_leased_one(
    costs: tuple[Cost, Cost, int],
) -> None:
    _, follower, _ = costs
    table = "ledgermq.node.broker.parts.delivery.offset_table:OffsetTable."
    assert follower.functions[table + "find"] == BATCH * CYCLES
    assert not follower.functions[table + "put"]
