"""Any node answers any client call (docs/architecture.md, Serving clients): equal results through a
node without a replica, in process."""

from __future__ import annotations

import asyncio

from ledgermq.node.replica.ports import Lost
from ledgermq.proto import messaging_pb2 as pb
from ledgermq.proto import peer_pb2
from tests.contract.backend import (
    CLIENT_ID,
    Backend,
    ack_request,
    contract,
    message,
    receive_request,
)

OTHER = (("x-mq-client-id", "t2"),)


@contract()
async def test_send_receive_change_and_acknowledge_through_another_node(server: Backend) -> None:
    """A message may be sent, leased, changed and acknowledged through any nodes in turn."""
    call = server.raw2.unary("SendMessage", pb.SendMessageRequest(messages=[message(tag="a")]))
    response = await call
    assert response.status.code == pb.OK
    assert ("x-ledgermq-durability", "durable") in list(await call.trailing_metadata() or ())
    (got,) = (await server.raw2.receive(expression="a")).messages
    changed = await server.raw.change(got, 60)
    got.system_properties.receipt_handle = changed.receipt_handle
    changed = await server.raw2.change(got, 60)
    assert changed.status.code == pb.OK
    got.system_properties.receipt_handle = changed.receipt_handle
    assert await server.raw2.ack(got) == pb.OK
    assert server.engine.in_flight() == 0
    assert server.link.calls == 4


@contract()
async def test_errors_are_the_same_everywhere(server: Backend) -> None:
    """Whatever the leader refuses, another node says the same."""
    await server.raw.send(message())
    (got,) = (await server.raw.receive()).messages
    await server.raw.change(got, 60)
    for raw in (server.raw, server.raw2):
        assert (await raw.send(message(b""))).status.code == pb.MESSAGE_BODY_EMPTY
        assert (await raw.receive("nowhere")).status.code == pb.TOPIC_NOT_FOUND
        assert (await raw.receive()).status.code == pb.MESSAGE_NOT_FOUND
        assert await raw.ack(got) == pb.INVALID_RECEIPT_HANDLE
        changed = await raw.change(got, 5)
        assert changed.status.code == pb.INVALID_RECEIPT_HANDLE
        assert changed.receipt_handle == got.system_properties.receipt_handle


@contract()
async def test_namespace_header_travels(server: Backend) -> None:
    """The header's namespace counts at the leader, too."""
    await server.topic("T", namespace="ns")
    header = (("x-mq-client-id", "t1"), ("x-mq-namespace", "ns"))
    assert (await server.raw2.send(message(b"in ns"), metadata=header)).status.code == pb.OK
    assert (await server.raw.receive()).status.code == pb.MESSAGE_NOT_FOUND
    (got,) = (await server.raw2.receive(metadata=header)).messages
    assert await server.raw2.ack(got, metadata=header) == pb.OK


@contract(groups=("g1", "g2"))
async def test_one_call_for_two_broker_groups(server: Backend) -> None:
    """Entries of one acknowledgement, and messages of one send, find their broker groups; one
    failing group fails alone."""
    for raw in (server.raw, server.raw2):
        sent = [message(b"%d" % i, topic="F", message_group=f"plane-{i}") for i in range(12)]
        response = await raw.send(*sent)
        assert response.status.code == pb.OK
        assert [entry.message_id for entry in response.entries] == [
            m.system_properties.message_id for m in sent
        ]
        leased = [
            m for broker in ("g1", "g2") for m in (await raw.receive("F", broker=broker)).messages
        ]
        assert len(leased) == 12
        request = ack_request(leased)
        request.entries[3].receipt_handle = "nonsense"
        response = await raw.unary("AckMessage", request)
        assert response.status.code == pb.MULTIPLE_RESULTS
        assert [entry.status.code for entry in response.entries] == [pb.OK] * 3 + [
            pb.INVALID_RECEIPT_HANDLE
        ] + [pb.OK] * 8
        server.pass_time(60)
        (left,) = [
            m for broker in ("g1", "g2") for m in (await raw.receive("F", broker=broker)).messages
        ]
        assert await raw.ack(left) == pb.OK
    assert server.engine.in_flight() == 0
    server.engine.follow("g2", None)
    response = await server.raw.send(
        *(message(topic="F", message_group=f"plane-{i}") for i in range(12)), timeout=1
    )
    assert response.status.code == pb.MULTIPLE_RESULTS
    assert {entry.status.code for entry in response.entries} == {pb.OK, pb.HA_NOT_AVAILABLE}
    assert all(entry.message_id for entry in response.entries)


@contract()
async def test_calls_wait_for_a_leader(server: Backend) -> None:
    """During an election calls wait inside their deadline, then are done once."""
    server.engine.follow("g1", None)
    sends = [
        asyncio.ensure_future(raw.send(message(), timeout=20))
        for raw in (server.raw, server.raw2)
        for _ in range(5)
    ]
    polls = [
        asyncio.ensure_future(raw.collect(raw.stream(receive_request(polling=5, batch=5))))
        for raw in (server.raw, server.raw2)
    ]
    await asyncio.sleep(0)
    server.engine.lead("g1", 30)
    server.forwarder.changed()
    assert {(await send).status.code for send in sends} == {pb.OK}
    got = [m for poll in polls for m in (await poll).messages]
    while more := (await server.raw.receive(metadata=OTHER)).messages:
        got += more
    assert len({m.system_properties.message_id for m in got}) == len(got) == 10


@contract()
async def test_a_poll_survives_the_loss_of_its_leader(server: Backend) -> None:
    """A Receive that waits during a leader change continues to wait at the next leader."""
    for raw in (server.raw, server.raw2):
        pending = asyncio.ensure_future(
            raw.collect(raw.stream(receive_request(polling=10, invisible=None)))
        )
        await server.until_polls(1)
        server.engine.follow("g1", None)
        assert server.engine.polls == 0
        server.engine.lead("g1", server.engine.replicators["g1"].term + 1)
        server.forwarder.changed()
        await server.until_polls(1)
        await server.raw.send(message())
        (got,) = (await pending).messages
        assert await server.raw.ack(got) == pb.OK


@contract()
async def test_signs_of_life_reach_the_leader(server: Backend) -> None:
    """A client that talks to another node keeps its leases, and loses them when it says goodbye
    there."""
    await server.raw.send(message())
    (got,) = (await server.raw2.receive(invisible=None)).messages
    for _ in range(3):
        server.pass_time(60)
        await server.raw2.unary("Heartbeat", pb.HeartbeatRequest())
        server.flush_signs()
    assert (await server.raw.receive(metadata=OTHER)).status.code == pb.MESSAGE_NOT_FOUND
    assert await server.raw2.ack(got) == pb.OK


@contract()
async def test_leases_of_a_node_that_died_are_not_renewed(server: Backend) -> None:
    """A delivery of a dead node may never have reached its client, so the message is redelivered,
    even if the client is alive on another node."""
    await server.raw.send(message())
    await server.raw2.receive(invisible=None)
    server.flush_signs()
    for _ in range(3):
        server.pass_time(21.6)
        await server.raw.unary("Heartbeat", pb.HeartbeatRequest())
        server.forwarder.flush_signs()
        server.engine.turn()
    assert (await server.raw.receive()).status.code == pb.MESSAGE_NOT_FOUND
    server.pass_time(0.2)
    (again,) = (await server.raw.receive(invisible=None)).messages
    assert again.system_properties.delivery_attempt == 2


@contract()
async def test_a_goodbye_through_another_node(server: Backend) -> None:
    """Goodbye counts for everything the client holds, whichever nodes handed it out; a client with
    a longer name is another."""
    others = (("x-mq-client-id", "t1 via n1"),)
    for i in range(3):
        await server.raw.send(message(b"%d" % i))
    held = []
    for raw, metadata in ((server.raw, CLIENT_ID), (server.raw2, CLIENT_ID), (server.raw2, others)):
        held += (await raw.receive(invisible=None, batch=1, metadata=metadata)).messages
    await server.raw.unary("NotifyClientTermination", pb.NotifyClientTerminationRequest())
    server.pass_time(1)
    back = (await server.raw.receive(metadata=OTHER)).messages
    assert {m.system_properties.message_id for m in back} == {
        m.system_properties.message_id for m in held[:2]
    }


@contract()
async def test_lease_with_a_lost_answer_is_redelivered(server: Backend) -> None:
    """A lease was in the log when leadership was lost; its Receive continues at the next leader,
    and the message is redelivered after the lease."""
    replicator = server.engine.replicators["g1"]
    for raw in (server.raw, server.raw2):
        await server.raw.send(message())
        replicator.commit_at_once = False
        before = len(replicator.proposals)
        pending = asyncio.ensure_future(raw.receive(invisible=None, polling=20))
        await server.until(lambda before=before: len(replicator.proposals) > before)  # type: ignore[misc]
        server.engine.follow("g1", None)
        replicator.commit_at_once = True
        server.engine.lead("g1", replicator.term + 1)
        server.forwarder.changed()
        await server.until_polls(1)
        await server.raw.send(message(b"next"))
        got = await pending
        assert got.bodies == [b"next"]
        assert await raw.ack(got.messages[0]) == pb.OK
        server.flush_signs()
        for _ in range(2):
            server.pass_time(32.49)
            await raw.unary("Heartbeat", pb.HeartbeatRequest())
            server.flush_signs()
        assert (await raw.receive(metadata=OTHER)).status.code == pb.MESSAGE_NOT_FOUND
        server.pass_time(0.1)
        (again,) = (await raw.receive(metadata=OTHER)).messages
        assert again.system_properties.delivery_attempt == 2
        assert await raw.ack(again) == pb.OK


@contract()
async def test_change_with_a_lost_answer_is_asked_of_the_next_leader(server: Backend) -> None:
    """A change that the leader never executed counts when the next leader is asked; one that was
    executed has replaced its handle."""
    await server.raw.send(message())
    (got,) = (await server.raw.receive()).messages
    deliver = server.link.call

    async def lost_on_the_way(call: peer_pb2.ForwardCall) -> peer_pb2.ForwardResult:
        server.link.call = deliver  # type: ignore[method-assign]
        raise Lost("the connection to node n1 ended")

    async def answer_lost(call: peer_pb2.ForwardCall) -> peer_pb2.ForwardResult:
        await deliver(call)
        return await lost_on_the_way(call)

    server.link.call = lost_on_the_way  # type: ignore[method-assign]
    changed = await server.raw2.change(got, 60)
    assert changed.status.code == pb.OK
    got.system_properties.receipt_handle = changed.receipt_handle
    server.link.call = answer_lost  # type: ignore[method-assign]
    assert (await server.raw2.change(got, 60)).status.code == pb.INVALID_RECEIPT_HANDLE


@contract()
async def test_a_doubt_does_not_touch_later_leases(server: Backend) -> None:
    """What the client gets after a doubtful Receive is renewed as ever, and its goodbye ends it."""
    await server.raw.send(message())
    call = server.raw.stream(receive_request(topic="F", polling=20))
    reading = asyncio.ensure_future(server.raw.collect(call))
    await server.until_polls(1)
    call.cancel()
    await asyncio.gather(reading, return_exceptions=True)
    await server.until_polls(0)
    (got,) = (await server.raw.receive(invisible=None)).messages
    for _ in range(4):
        server.pass_time(60)
        await server.raw.unary("Heartbeat", pb.HeartbeatRequest())
        server.flush_signs()
    assert (await server.raw.receive(metadata=OTHER)).status.code == pb.MESSAGE_NOT_FOUND
    await server.raw.unary("NotifyClientTermination", pb.NotifyClientTerminationRequest())
    server.pass_time(1)
    assert [m.body for m in (await server.raw.receive(metadata=OTHER)).messages] == [got.body]
