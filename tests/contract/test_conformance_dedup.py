"""Sends to a topic with a deduplication window, raw: beside statement 38, which wants duplicates
everywhere else."""

from __future__ import annotations

import asyncio

from ledgermq.proto import messaging_pb2 as pb
from tests.contract.backend import Backend, contract, message


async def window(server: Backend, name: str, kind: str = "normal", queues: int = 4) -> None:
    """A topic that knows ids for a minute."""
    command = {
        "op": "create-topic",
        "ns": "",
        "name": name,
        "kind": kind,
        "queues": queues,
        "permission": "rw",
        "dedup_ms": 60_000,
    }
    server.controller.command(command)
    await server.reconcile()


@contract(groups=("g1", "g2", "g3"))
async def test_a_send_repeated_at_any_node_is_stored_once(server: Backend) -> None:
    """With several broker groups an id always meets its first copy, through whichever node and
    however often it is sent; the receipt is that of the first."""
    await window(server, "once", queues=9)
    for n in range(40):
        one = message(b"%d" % n, topic="once")
        receipts = [
            await server.raw.send(one),
            await server.raw2.send(one),
            await server.raw.send(one),
        ]
        assert {r.status.code for r in receipts} == {pb.OK}
        assert len({r.entries[0].offset for r in receipts}) == 1
        assert {r.entries[0].message_id for r in receipts} == {one.system_properties.message_id}
    bodies: list[bytes] = []
    for broker in ("g1", "g2", "g3"):
        got = await server.raw.receive("once", broker=broker)
        assert got.messages, "ids are spread over the broker groups"
        bodies += got.bodies
    assert sorted(map(int, bodies)) == list(range(40))


@contract(groups=("g1", "g2"))
async def test_more_queues_do_not_move_an_id(server: Backend) -> None:
    """A message sent again after the topic has grown is still a duplicate."""
    await window(server, "once", queues=2)
    sent = [message(b"x", topic="once") for _ in range(12)]
    for one in sent:
        await server.raw.send(one)
    server.controller.command(
        {"op": "update-topic", "ns": "", "name": "once", "queues": 9, "permission": None}
    )
    await server.reconcile()
    for one in sent:
        assert (await server.raw.send(one)).status.code == pb.OK
    assert server.engine.counter("duplicates") == 12


@contract(groups=("g1", "g2"))
async def test_a_batch_that_repeats_itself(server: Backend) -> None:
    """Messages of one call that go to several broker groups, one of them twice: every entry has its
    receipt."""
    await window(server, "once")
    batch = [message(b"%d" % n, topic="once") for n in range(6)]
    response = await server.raw.send(*batch, batch[2])
    assert response.status.code == pb.OK
    assert response.entries[2].offset == response.entries[6].offset
    got = [await server.raw.receive("once", broker=broker) for broker in ("g1", "g2")]
    assert sorted(body for one in got for body in one.bodies) == [b"%d" % n for n in range(6)]


@contract()
async def test_message_groups_keep_their_queue(server: Backend) -> None:
    """A fifo topic with a window still orders by message group; a repeated message of a group is
    not stored again."""
    await window(server, "orders", "fifo")
    sent = [message(b"%d" % n, topic="orders", message_group="user") for n in range(5)]
    for one in [*sent, *sent]:
        response = await server.raw.send(one)
    assert response.entries[0].offset == 4
    assert (await server.raw.receive("orders")).bodies == [b"%d" % n for n in range(5)]


@contract()
async def test_a_receipt_lost_with_the_leader_is_given_again(server: Backend) -> None:
    """After a loss of leadership it is unknown whether a message is stored; the node sends it again
    by itself, and it is stored once."""
    await window(server, "once")
    replicator = server.engine.replicators["g1"]
    replicator.commit_at_once = False
    one = message(b"x", topic="once")
    first = server.raw.send(one)
    pending = asyncio.ensure_future(first)
    await server.until(lambda: replicator.log.end_index > replicator.commit_index)
    server.engine.follow("g1", "n2")
    replicator.commit_at_once = True
    server.engine.lead("g1", replicator.term + 1)
    assert (await pending).entries[0].offset == 0
    assert (await server.raw.send(one)).entries[0].offset == 0
    assert (await server.raw.receive("once")).bodies == [b"x"]
