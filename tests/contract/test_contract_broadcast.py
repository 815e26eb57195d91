"""Broadcasting consumer groups: every client gets every message (raw, on virtual time)."""

from __future__ import annotations

from typing import Any

from ledgermq.node.broker.calls.operator_calls import Configure
from ledgermq.node.runtime.config_sections import Delivery
from ledgermq.proto import messaging_pb2 as pb
from tests.contract.backend import CLIENT_ID, Backend, contract, message, receive_request

OTHER = (("x-mq-client-id", "HOST@12@3@4"),)
LONG = (("x-mq-client-id", "c" * 500),)


async def ready(server: Backend, *clients: Any, group: str = "B") -> None:
    """A broadcasting group whose clients have their places."""
    await server.group(group, broadcast=True)
    for client in clients:
        assert (
            await server.raw.receive(group=group, metadata=client)
        ).status.code == pb.MESSAGE_NOT_FOUND


def members(server: Backend) -> set[str]:
    return {
        group
        for one in server.engine.groups.values()
        for group, _, _ in one.machine.delivery.queues
    }


@contract()
async def test_every_client_gets_every_message(server: Backend) -> None:
    """Through any node; each client acknowledges for itself, and sees its own topic and group
    names."""
    clients = (CLIENT_ID, OTHER, LONG)
    await ready(server, *clients)
    for number in range(8):
        await server.raw.send(message(b"%d" % number))
    for raw, client in zip((server.raw, server.raw2, server.raw2), clients, strict=True):
        got = await raw.receive(group="B", metadata=client)
        assert sorted(got.bodies) == [b"%d" % number for number in range(8)]
        for one in got.messages[:4]:
            assert await raw.ack(one, "B", metadata=client) == pb.OK
            assert await raw.ack(one, "B", metadata=client) == pb.OK
        assert await raw.ack(got.messages[4], "G", metadata=client) == pb.INVALID_RECEIPT_HANDLE
        changed = await raw.change(got.messages[5], 0, "B")
        assert changed.status.code == pb.OK
        (again,) = (await raw.receive(group="B", metadata=client)).messages
        assert (again.body, again.system_properties.delivery_attempt) == (got.messages[5].body, 2)
    assert server.engine.in_flight() == 12


@contract()
async def test_a_client_begins_at_the_end(server: Backend) -> None:
    """It gets what comes after its first Receive, also while that waits; not what was there, and a
    queue added later in whole."""
    await server.group("B", broadcast=True)
    for _ in range(8):
        await server.raw.send(message(b"before"))
    call = server.raw.stream(receive_request(group="B", polling=10), timeout=20)
    await server.until_polls(1)
    await server.raw.send(message(b"now"))
    assert (await server.raw.collect(call)).bodies == [b"now"]
    assert (await server.raw.receive(group="B")).messages == []
    server.controller.command({"op": "update-topic", "ns": "", "name": "T", "queues": 5})
    await server.reconcile()
    for _ in range(5):
        await server.raw.send(message(b"later"))
    assert (await server.raw.receive(group="B")).bodies == [b"later"] * 5


@contract()
async def test_a_goodbye_ends_a_place(server: Backend) -> None:
    """The client's, in all its groups, and no other's; if it comes back, it begins at the end
    again."""
    await ready(server, CLIENT_ID, OTHER)
    await ready(server, CLIENT_ID, group="B2")
    await server.raw.send(message(b"m"))
    assert members(server) == {"B$t1", "B2$t1", "B$HOST@12@3@4"}
    await server.raw2.unary(
        "NotifyClientTermination", pb.NotifyClientTerminationRequest(group=pb.Resource(name="B"))
    )
    await server.until(lambda: members(server) == {"B$HOST@12@3@4"})
    assert (await server.raw.receive(group="B")).messages == []
    assert (await server.raw.receive(group="B", metadata=OTHER)).bodies == [b"m"]


@contract(delivery=Delivery(liveness_ms=1_000))
async def test_a_silent_client_keeps_its_place_for_a_while(server: Backend) -> None:
    """For ten liveness limits, so that being cut off costs nothing; then it is gone for good."""
    await ready(server, CLIENT_ID, OTHER)
    await server.raw.send(message(b"m"))
    server.flush_signs()
    for _ in range(9):
        server.pass_time(1)
    await server.raw.receive(group="B", metadata=OTHER)
    for _ in range(2):
        server.pass_time(1)
    assert members(server) == {"B$HOST@12@3@4"}
    for _ in range(9):
        server.pass_time(1)
    assert members(server) == set()


@contract()
async def test_places_survive_a_change_of_leaders(server: Backend) -> None:
    """They are in the log; the next leader waits for every client anew."""
    await ready(server, CLIENT_ID, OTHER)
    await server.raw.send(message(b"m"))
    server.engine.follow("g1", None)
    server.engine.lead("g1", 9)
    for client in (CLIENT_ID, OTHER):
        assert (await server.raw.receive(group="B", metadata=client)).bodies == [b"m"]


@contract()
async def test_a_deleted_group_takes_its_members_along(server: Backend) -> None:
    """Nothing of it is left."""
    await ready(server, CLIENT_ID, OTHER)
    await server.engine.call("g1", Configure(server.engine.new_token(), deleted_groups=("B",)))
    assert members(server) == set()


@contract()
async def test_a_client_that_gives_up_does_so_for_itself(server: Backend) -> None:
    """Its dead letter goes to the group's dead-letter topic, whatever its client id; the other
    clients continue."""
    odd = (("x-mq-client-id", "a:b$c d"),)
    await server.group("B", broadcast=True, max_attempts=1)
    for client in (odd, OTHER):
        await server.raw.receive(group="B", metadata=client)
    await server.raw.send(message(b"m"))
    assert (await server.raw.receive(group="B", metadata=odd, invisible=10)).bodies == [b"m"]
    server.pass_time(10)
    assert (await server.raw.receive(group="B", metadata=odd)).messages == []
    assert server.engine.counter("dead_lettered") == 1
    assert "%DLQ%B" in server.engine.groups["g1"].machine.topics
    assert (await server.raw.receive(group="B", metadata=OTHER)).bodies == [b"m"]


@contract({"F": "fifo"})
async def test_every_client_of_a_fifo_group_has_its_own_order(server: Backend) -> None:
    """A client that does not acknowledge does not delay other clients."""
    await server.group("B", broadcast=True, fifo=True)
    for client in (CLIENT_ID, OTHER):
        await server.raw.receive("F", "B", metadata=client)
    for number in range(4):
        await server.raw.send(message(b"%d" % number, "F", message_group="g", message_type=pb.FIFO))
    assert (await server.raw.receive("F", "B", batch=2)).bodies == [b"0", b"1"]
    assert (await server.raw.receive("F", "B")).messages == []
    assert (await server.raw.receive("F", "B", metadata=OTHER)).bodies == [b"0", b"1", b"2", b"3"]
