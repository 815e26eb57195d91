"""Two processes with one client id, as two containers of one image have it: each on a connection of
its own, on virtual time."""

from __future__ import annotations

import pytest

from ledgermq.node.runtime import metrics
from ledgermq.proto import messaging_pb2 as pb
from tests.contract.backend import UNLIMITED, Backend, Raw, contract, message
from tests.contract.test_contract_telemetry import consumer, say

OTHER = (("x-mq-client-id", "t2"),)


def process(server: Backend, number: int) -> Raw:
    """A process: channels with equal options would share one connection."""
    return Raw(server.port, options=(*UNLIMITED, ("ledgermq.test", number)))


async def one(raw: Raw, **options: object) -> pb.Message:
    """Receive one message under a lease that renews itself."""
    (found,) = (await raw.receive(batch=1, invisible=None, **options)).messages  # type: ignore[arg-type]
    return found


async def live_on(server: Backend, seconds: int, *living: Raw) -> None:
    for _ in range(seconds // 30):
        server.pass_time(30)
        for raw in living:
            await raw.unary("Heartbeat", pb.HeartbeatRequest(client_type=pb.PUSH_CONSUMER))
        server.flush_signs()


def found_shared() -> float:
    return float(metrics.SHARED_CLIENT_IDS._value.get())


async def listed(server: Backend) -> list[bool]:
    return [
        shared for client_id, _, _, shared in server.service.clients.known() if client_id == "t1"
    ]


@contract()
async def test_processes_with_one_client_id_are_told_once_and_kept_apart(server: Backend) -> None:
    """Neither renews the leases of the other: what one has comes again when it is silent, although
    the other lives on. Its goodbye ends no lease of the other."""
    before = found_shared()
    first, second = process(server, 1), process(server, 2)
    for raw in (first, second):
        await say(raw.telemetry(), consumer())
    await server.raw.send(*[message(b"%d" % n) for n in range(5)])
    for raw in (first, second):
        assert await raw.ack(await one(raw)) == pb.OK
    assert (found_shared(), await listed(server)) == (before, [False]), (
        "one process may have changed its connection"
    )
    for _ in range(3):
        assert await first.ack(await one(first)) == pb.OK
    assert (found_shared(), await listed(server)) == (before + 1, [True])
    await server.raw.send(message(b"kept"), message(b"left"))
    kept, left = await one(first), await one(second)
    await second.unary("NotifyClientTermination", pb.NotifyClientTerminationRequest())
    await live_on(server, 120, first)
    (again,) = (await server.raw.receive(metadata=OTHER)).messages
    assert again.body == left.body and await server.raw.ack(again, metadata=OTHER) == pb.OK
    await live_on(server, 600, first)
    assert (await server.raw.receive(metadata=OTHER)).messages == []
    assert await first.ack(kept) == pb.OK and await second.ack(left) == pb.INVALID_RECEIPT_HANDLE
    assert found_shared() == before + 1
    await first.close()
    await second.close()


@contract()
async def test_a_process_that_changes_its_connection_is_one_process(server: Backend) -> None:
    """However often: it never comes back on a connection that it left. Its goodbye ends its leases,
    whichever connection they came on."""
    before = found_shared()
    await server.raw.send(*[message(b"%d" % n) for n in range(5)])
    bodies = set()
    for number in range(5):
        raw = process(server, number)
        await say(raw.telemetry(), consumer())
        bodies.add((await one(raw)).body)
        if number < 4:
            await raw.close()
    assert (found_shared(), await listed(server)) == (before, [False])
    await live_on(server, 600, raw)
    assert (await server.raw.receive(metadata=OTHER)).messages == []
    await raw.unary("NotifyClientTermination", pb.NotifyClientTerminationRequest())
    server.pass_time(2)
    assert {again.body for again in (await server.raw.receive(metadata=OTHER)).messages} == bodies
    await raw.close()


@pytest.mark.parametrize(
    ("connections", "shared"),
    [("ABA", True), ("ABCB", True), ("AAAA", False), ("ABCD", False), ("AABBCC", False)],
)
def test_receive_on_an_older_connection_reveals_shared_client_ids(
    connections: str, shared: bool
) -> None:
    """A Receive on the connection that was left last is the proof."""

    @contract()
    async def scenario(server: Backend) -> None:
        clients = server.service.clients
        clients.remember("t1", pb.Settings())
        for peer in connections:
            clients.on_receive("t1", peer)
        assert await listed(server) == [shared]
        sessions = {peer: clients.on_contact("t1", peer) for peer in connections}
        assert len(set(sessions.values())) == (len(sessions) if shared else 1)

    scenario()
