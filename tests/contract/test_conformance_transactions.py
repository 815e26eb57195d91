"""Transactions: statements 87 to 90 of the contract's checklist, raw, over both nodes; time is the
test's."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ledgermq.node.broker.queries.why_delivery import WIRE_MAX
from ledgermq.node.frontend.admin.cluster.client_list import ClientList
from ledgermq.node.runtime.config_sections import Delivery
from ledgermq.proto import messaging_pb2 as pb
from tests.contract.backend import (
    CLIENT_ID,
    NODE_JS,
    Backend,
    Raw,
    begin_forwarding,
    contract,
    message,
)
from tests.contract.test_contract_telemetry import consumer, producer, say

TOPICS = {"X": "transaction", "M": "mixed", "T": "normal"}
OTHER = (("x-mq-client-id", "t2"),)


def half(body: bytes = b"order", topic: str = "X", **system: Any) -> pb.Message:
    return message(body, topic, message_type=pb.TRANSACTION, **system)


async def sent(raw: Raw, made: pb.Message) -> pb.SendResultEntry:
    """The receipt of one half message."""
    response = await raw.send(made)
    assert response.status.code == pb.OK, response.status
    (entry,) = response.entries
    return entry


async def end(
    raw: Raw, entry: pb.SendResultEntry, how: Any = pb.COMMIT, topic: str = "X", **changed: str
) -> int:
    """The code of a decision."""
    request = pb.EndTransactionRequest(
        topic=pb.Resource(name=topic), message_id=entry.message_id, resolution=how
    )
    request.transaction_id = entry.transaction_id
    for name, value in changed.items():
        setattr(request, name, value)
    response = await raw.unary("EndTransaction", request)
    return int(response.status.code)


async def listens(raw: Raw, *topics: str, metadata: Any = OTHER) -> Any:
    """The stream of a producer that lists these topics."""
    stream = raw.telemetry(metadata, timeout=30)
    command = producer(topics=topics)
    for topic in command.settings.publishing.topics:
        topic.resource_namespace = ""
    await say(stream, command)
    return stream


async def check(server: Backend, stream: Any) -> pb.RecoverOrphanedTransactionCommand:
    """Run the leader's check, and read the messages to the client."""
    await server.service.checker.send_due_checks("g1")
    return await next_check(stream)


async def next_check(stream: Any) -> pb.RecoverOrphanedTransactionCommand:
    while True:
        command = await stream.read()
        if command.HasField("recover_orphaned_transaction_command"):
            found: pb.RecoverOrphanedTransactionCommand = (
                command.recover_orphaned_transaction_command
            )
            return found


def checks_sent(server: Backend) -> int:
    return server.engine.counter("transaction_checks")


@contract(TOPICS)
async def test_statement_087_visible_after_the_commit_with_the_id_of_the_receipt(
    server: Backend,
) -> None:
    """Whichever node takes the send and the decision: nothing before, the whole message after, of
    the type it was sent as."""
    for first, second in ((server.raw, server.raw2), (server.raw2, server.raw)):
        entry = await sent(first, half(tag="blue", keys=["k"], message_group=""))
        assert entry.transaction_id and not entry.recall_handle
        assert (await server.raw.receive("X")).messages == []
        assert await end(second, entry) == pb.OK
        (got,) = (await server.raw.receive("X")).messages
        system = got.system_properties
        assert (got.body, system.message_id, system.tag, list(system.keys)) == (
            b"order",
            entry.message_id,
            "blue",
            ["k"],
        )
        assert system.message_type == pb.TRANSACTION and system.delivery_attempt == 1
        assert dict(got.user_properties) == {"__transactionId__": entry.message_id}
        assert await server.raw.ack(got) == pb.OK


@contract(TOPICS)
async def test_statement_087_never_after_a_rollback(server: Backend) -> None:
    """Nothing becomes visible; the commit that comes too late is refused, the same decision again
    is not."""
    entry = await sent(server.raw, half())
    assert await end(server.raw, entry, pb.ROLLBACK) == pb.OK
    assert await end(server.raw2, entry, pb.ROLLBACK) == pb.OK
    assert await end(server.raw2, entry, pb.COMMIT) == pb.INVALID_TRANSACTION_ID
    assert (await server.raw.receive("X")).messages == []


@contract(TOPICS)
async def test_statement_090_invalid_ids_are_refused_and_repeated_commits_allowed(
    server: Backend,
) -> None:
    """Blank, unknown, changed, of another message or topic: 40008. A commit twice is OK, and one
    message."""
    entry = await sent(server.raw, half())
    for raw in (server.raw, server.raw2):
        for wrong in (
            "",
            "  ",
            "garbage",
            entry.transaction_id[:-1] + ("A" if entry.transaction_id[-1] != "A" else "E"),
            "é" * 9,
        ):
            assert await end(raw, entry, transaction_id=wrong) == pb.INVALID_TRANSACTION_ID, wrong
        assert await end(raw, entry, message_id="another") == pb.INVALID_TRANSACTION_ID
        assert await end(raw, entry, topic="M") == pb.INVALID_TRANSACTION_ID
        assert await end(raw, entry, topic="no topic") == pb.ILLEGAL_TOPIC
    assert (await server.raw.receive("X")).messages == []
    for raw in (server.raw, server.raw2, server.raw):
        assert await end(raw, entry) == pb.OK
    assert len((await server.raw.receive("X")).messages) == 1


@contract(TOPICS)
async def test_a_check_that_its_producer_cannot_take_goes_to_another(server: Backend) -> None:
    """It would end the stream of a client whose gRPC library takes 4 MiB: that one stays open, and
    is asked about shorter messages."""
    raw = Raw(server.port, NODE_JS)
    small, able = await listens(raw, "X", metadata=CLIENT_ID), await listens(server.raw, "X")
    for body, stream in ((bytes(WIRE_MAX), able), (b"short", small)):
        entry = await sent(server.raw, half(body))
        server.pass_time(60)
        found = await check(server, stream)
        assert (found.transaction_id, found.message.body) == (entry.transaction_id, body)
        assert await end(server.raw, entry) == pb.OK
    await raw.close()


@contract(TOPICS)
async def test_unspecified_resolution_leaves_the_transaction_undecided(server: Backend) -> None:
    """Unspecified is OK, and the producer may decide later."""
    entry = await sent(server.raw, half())
    for raw in (server.raw, server.raw2):
        assert await end(raw, entry, pb.TRANSACTION_RESOLUTION_UNSPECIFIED) == pb.OK
    assert (await server.raw.receive("X")).messages == []
    assert await end(server.raw, entry) == pb.OK


@contract(TOPICS)
async def test_several_halves_in_one_request_each_have_a_transaction(server: Backend) -> None:
    """Their ids differ, and they are decided one by one; with other messages in one request they
    are refused."""
    response = await server.raw2.send(*[half(b"%d" % i, "M") for i in range(3)])
    assert response.status.code == pb.OK
    ids = {entry.transaction_id for entry in response.entries}
    assert len(ids) == 3
    for entry, how in zip(response.entries, (pb.COMMIT, pb.ROLLBACK, pb.COMMIT), strict=True):
        assert await end(server.raw, entry, how, topic="M") == pb.OK
    assert sorted((await server.raw.receive("M")).bodies) == [b"0", b"2"]
    mixed = await server.raw.send(half(topic="M"), message(topic="M"))
    assert mixed.status.code == pb.BAD_REQUEST and not mixed.entries
    assert (
        await server.raw.send(half(topic="T"))
    ).status.code == pb.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE


@contract(TOPICS)
async def test_statement_088_check_comes_after_its_time_with_the_whole_message(
    server: Backend,
) -> None:
    """Not before its time; the whole message with digest and encoding, and an id by which the asked
    one decides."""
    stream = await listens(server.raw, "X", metadata=(("x-mq-client-id", "t1"),))
    entry = await sent(server.raw, half(tag="blue"))
    server.pass_time(5.9)
    await server.service.checker.send_due_checks("g1")
    assert checks_sent(server) == 0
    server.pass_time(0.1)
    found = await check(server, stream)
    system = found.message.system_properties
    assert (found.transaction_id, found.message.body, system.message_id) == (
        entry.transaction_id,
        b"order",
        entry.message_id,
    )
    assert (found.message.topic.name, system.tag, system.body_encoding) == (
        "X",
        "blue",
        pb.IDENTITY,
    )
    assert system.body_digest.checksum and system.message_type == pb.TRANSACTION
    assert await end(server.raw2, entry, transaction_id=found.transaction_id) == pb.OK
    assert (await server.raw.receive("X")).bodies == [b"order"]
    server.pass_time(300)
    await server.service.checker.send_due_checks("g1")
    assert checks_sent(server) == 1


@contract(TOPICS)
async def test_statement_088_a_message_says_when_it_wants_to_be_asked_about(
    server: Backend,
) -> None:
    """orphaned_transaction_recovery_duration overrides what is configured; ROLLBACK in answer to
    the check drops it."""
    stream = await listens(server.raw, "X")
    made = half()
    made.system_properties.orphaned_transaction_recovery_duration.seconds = 60
    entry = await sent(server.raw, made)
    server.pass_time(59.9)
    await server.service.checker.send_due_checks("g1")
    assert checks_sent(server) == 0
    server.pass_time(0.1)
    found = await check(server, stream)
    assert await end(server.raw, entry, pb.ROLLBACK, transaction_id=found.transaction_id) == pb.OK
    assert (await server.raw.receive("X")).messages == []


@contract(TOPICS, delivery=Delivery(transaction_checks=15))
async def test_statement_088_at_most_fifteen_checks(server: Backend) -> None:
    """A check is sent at every interval while the answer is unspecified; then the message is
    dropped and can no longer be committed."""
    stream = await listens(server.raw, "X")
    entry = await sent(server.raw, half())
    server.pass_time(6)
    for _ in range(15):
        found = await check(server, stream)
        assert (
            await end(
                server.raw,
                entry,
                pb.TRANSACTION_RESOLUTION_UNSPECIFIED,
                transaction_id=found.transaction_id,
            )
            == pb.OK
        )
        server.pass_time(29.9)
        await server.service.checker.send_due_checks("g1")
        server.pass_time(0.1)
    await server.service.checker.send_due_checks("g1")
    assert (checks_sent(server), server.engine.counter("transactions_dropped")) == (15, 1)
    assert await end(server.raw, entry) == pb.INVALID_TRANSACTION_ID
    assert (await server.raw.receive("X")).messages == []


@contract(TOPICS)
async def test_statement_089_check_goes_to_another_producer_on_any_node(
    server: Backend,
) -> None:
    """The sender has no stream. A producer of another topic and a consumer are not asked; one of
    this topic at the other node is."""
    entry = await sent(server.raw, half())
    await say(server.raw.telemetry((("x-mq-client-id", "c"),)), consumer(topic="X"))
    wrong = await listens(server.raw, "T", metadata=(("x-mq-client-id", "p"),))
    server.pass_time(6)
    await server.service.checker.send_due_checks("g1")
    assert checks_sent(server) == 0
    stream = await listens(server.raw2, "T", "X")
    server.pass_time(5)
    found = await check(server, stream)
    assert await end(server.raw2, entry, transaction_id=found.transaction_id) == pb.OK
    assert (await server.raw.receive("X")).bodies == [b"order"]
    await wrong.done_writing()


@contract(TOPICS)
async def test_statement_089_a_check_without_a_producer_is_kept_and_not_counted(
    server: Backend,
) -> None:
    """Even if no producer is connected for a long time, or the only other node does not answer."""
    await sent(server.raw, half())
    server.links["n2"].up = False
    for _ in range(40):
        server.pass_time(30)
        await server.service.checker.send_due_checks("g1")
    assert checks_sent(server) == 0
    stream = await listens(server.raw, "X")
    server.pass_time(5)
    found = await check(server, stream)
    assert found.message.body == b"order" and checks_sent(server) == 1


@contract(TOPICS)
async def test_producers_of_a_node_take_turns(server: Backend) -> None:
    """One command for each half message, spread over the connected producers; disconnected ones are
    not asked."""
    names = ("a", "b", "c")
    streams = {
        name: await listens(server.raw, "X", metadata=(("x-mq-client-id", name),)) for name in names
    }
    await streams.pop("c").done_writing()
    while len(server.service.streams) > 2:
        await server.raw.send(message())
    for _ in range(4):
        await sent(server.raw, half())
    server.pass_time(6)
    await server.service.checker.send_due_checks("g1")
    got = {
        name: {(await next_check(stream)).transaction_id for _ in range(2)}
        for name, stream in streams.items()
    }
    assert len(got["a"] | got["b"]) == 4


@contract(TOPICS)
async def test_statement_088_checks_of_large_messages_come_as_fast_as_they_are_read(
    server: Backend,
) -> None:
    """No more is read and queued at once than fits; nothing that was counted is lost because its
    producer was busy."""
    stream = await listens(server.raw, "X")
    for i in range(12):
        await sent(server.raw, half(bytes([i]) * (2 << 20)))
    server.pass_time(6)
    got = []
    for number in (4, 8, 12):
        looking = asyncio.create_task(server.service.checker.send_due_checks("g1"))
        got += [(await next_check(stream)).message.body[0] for _ in range(4)]
        await looking
        assert checks_sent(server) == number
        server.pass_time(5)
    assert sorted(got) == list(range(12))


@contract(TOPICS)
async def test_statement_088_089_producers_of_all_nodes_are_asked_in_turn(server: Backend) -> None:
    """One that lists the topic and never answers does not keep the checks from the others, wherever
    they are."""
    streams = [
        await listens(server.raw, "X", metadata=(("x-mq-client-id", "deaf"),)),
        await listens(server.raw2, "X"),
    ]
    await sent(server.raw, half())
    server.pass_time(6)
    for number in range(4):
        assert (await check(server, streams[number % 2])).message.body == b"order"
        server.pass_time(30)


@contract()
async def test_settings_come_again_when_the_group_changes(server: Backend) -> None:
    """The settings are sent unrequested with the current configuration; consumers of other groups
    get none."""
    await server.group("G", 5)
    streams = {group: server.raw.telemetry((("x-mq-client-id", group),)) for group in ("G", "H")}
    for group, stream in streams.items():
        await say(stream, consumer(group=group))
    server.controller.command({"op": "update-group", "ns": "", "name": "G", "max_attempts": 9})
    server.service.on_state(server.controller.state)
    answer = await streams["G"].read()
    assert (answer.status.code, answer.settings.backoff_policy.max_attempts) == (pb.OK, 9)
    again = await say(streams["H"], consumer(group="H"))
    assert again.settings.backoff_policy.max_attempts == 17


@contract()
async def test_commands_reach_a_client_at_any_node(server: Backend) -> None:
    """By client id, from either node; an unknown client, or one whose node is not reached, is not
    there."""
    await listens(server.raw2, "T", metadata=(("x-mq-client-id", "far"),))
    near = await listens(server.raw, "T", metadata=(("x-mq-client-id", "near"),))
    command = pb.TelemetryCommand()
    command.notify_unsubscribe_lite_command.lite_topic = "room"
    commander = server.service.commander
    assert [await commander.to_client(name, command) for name in ("near", "far", "nobody")] == [
        True,
        True,
        False,
    ]
    assert (await near.read()).notify_unsubscribe_lite_command.lite_topic == "room"
    server.links["n2"].up = False
    assert [await commander.to_client(name, command) for name in ("near", "far")] == [True, False]


@contract()
async def test_clients_of_all_nodes_are_listed(server: Backend) -> None:
    """Each with the node it is connected to, and what it said; without a stream it is known, and
    not connected."""
    await listens(server.raw, "T", "F", metadata=(("x-mq-client-id", "near"),))
    await say(server.raw2.telemetry((("x-mq-client-id", "far"),)), consumer())
    await server.raw2.unary(
        "SendMessage",
        pb.SendMessageRequest(messages=[message()]),
        metadata=(("x-mq-client-id", "far"),),
    )
    begin_forwarding(server.forwarder2, lambda *_: answered())
    lists = [
        ClientList(name, service, (), server.forwarder, ["n2", "n3"])
        for name, service in (("n1", server.service), ("n2", server.service2))
    ]

    async def answered() -> list[bytes]:
        return [lists[1].here().SerializeToString()]

    found = await lists[0].everywhere()
    near, far = found.clients
    assert (near.client_id, near.node, near.connected, near.type, list(near.topics)) == (
        "near",
        "n1",
        True,
        "producer",
        ["T", "F"],
    )
    assert (far.client_id, far.node, far.connected, far.type, far.group) == (
        "far",
        "n2",
        True,
        "push-consumer",
        "G",
    )
    assert near.version == "5.1.2" and list(found.unreachable) == ["n3"]
    assert await lists[0].of_groups() is None, "clients of n3 may be in any group"
    known = ClientList("n1", server.service, (), server.forwarder, ["n2"])
    assert (await known.of_groups())["G"] == 1  # type: ignore[index]


OLDER = pb.AckMessageResponse(
    status=pb.Status(
        code=pb.CLIENT_ID_REQUIRED, message="what a node says that does not know the method"
    )
)


@pytest.mark.parametrize(
    "garbage", [b"", b"\xff", OLDER.SerializeToString()], ids=["empty", "garbage", "older"]
)
def test_an_answer_of_another_version_counts_as_no(garbage: bytes) -> None:
    """A node that does not know the question answers something, or nothing."""

    @contract()
    async def scenario(server: Backend) -> None:
        async def execute(*_: object) -> list[bytes]:
            return [garbage]

        server.service2.execute = execute  # type: ignore[method-assign]
        begin_forwarding(server.forwarder2, execute)
        assert await server.service.commander.find_producer("T") is None

    scenario()
