"""ReceiveMessage: statements 41–50 and 53–58 of the contract's checklist, raw, on virtual time."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
from itertools import product
from typing import Any

import grpc

from ledgermq.node.broker.queries.why_delivery import WIRE_MAX
from ledgermq.node.runtime.config_sections import Delivery
from ledgermq.proto import messaging_pb2 as pb
from tests.contract.backend import (
    CLIENT_ID,
    EPOCH_MS,
    NODE_JS,
    Backend,
    Raw,
    Received,
    contract,
    message,
    receive_request,
)
from tests.contract.test_contract_telemetry import consumer, say

OTHER = (("x-mq-client-id", "t2"),)


def poll(server: Backend, timeout: float | None = 30, **options: Any) -> asyncio.Future[Received]:
    """A running Receive."""
    return asyncio.ensure_future(
        server.raw.collect(server.raw.stream(receive_request(**options), timeout=timeout))
    )


@contract()
async def test_statement_041_order_on_the_stream(server: Backend) -> None:
    """One status, the messages, one delivery time, gRPC OK; also when there is nothing, and after
    an error."""
    for i in range(3):
        await server.raw.send(message(b"%d" % i))
    got = await server.raw.receive()
    assert got.contents == ["status", "message", "message", "message", "delivery_timestamp"]
    assert (got.status.code, got.code) == (pb.OK, grpc.StatusCode.OK)
    for options in ({}, {"topic": "nowhere"}):
        got = await server.raw.receive(**options)
        assert (got.contents, got.code) == (["status", "delivery_timestamp"], grpc.StatusCode.OK)


@contract()
async def test_statement_042_an_empty_poll_lasts_as_long_as_asked(server: Backend) -> None:
    """40401 and the time come after the polling time, not earlier."""
    pending = poll(server, polling=5)
    await server.until_polls(1)
    server.pass_time(4.999)
    assert server.engine.polls == 1
    server.pass_time(0.001)
    got = await pending
    assert got.status.code == pb.MESSAGE_NOT_FOUND
    assert got.contents == ["status", "delivery_timestamp"]
    assert got.responses[-1].delivery_timestamp.seconds > 0


@contract()
async def test_statement_043_a_message_ends_the_poll(server: Backend) -> None:
    """A message sent into a long poll is handed out in the same moment."""
    pending = poll(server, polling=20)
    await server.until_polls(1)
    server.pass_time(2)
    await server.raw.send(message())
    assert (await pending).bodies == [b"hello"]


@contract()
async def test_statement_044_batch_sizes(server: Backend) -> None:
    """At most what was asked, never more than 32, at least one."""
    await server.raw.send(*(message(b"%d" % i) for i in range(150)))
    for asked, given in ((1, 1), (5, 5), (32, 32), (100, 32), (0, 1), (-7, 1)):
        assert len((await server.raw.receive(batch=asked)).messages) == given, asked


@contract()
async def test_statement_045_invisible_time(server: Backend) -> None:
    """Not before the invisible time is over, then at once, with attempt 2, the same id and another
    handle."""
    await server.raw.send(message())
    (first,) = (await server.raw.receive(invisible=10)).messages
    assert first.system_properties.delivery_attempt == 1
    assert first.system_properties.invisible_duration.ToMilliseconds() == 10_000
    server.pass_time(9.999)
    assert (await server.raw.receive(metadata=OTHER)).status.code == pb.MESSAGE_NOT_FOUND
    pending = poll(server, polling=5)
    await server.until_polls(1)
    server.pass_time(0.001)
    (second,) = (await pending).messages
    assert second.system_properties.delivery_attempt == 2
    assert second.system_properties.message_id == first.system_properties.message_id
    assert second.system_properties.receipt_handle != first.system_properties.receipt_handle


@contract(delivery=Delivery(min_invisible_ms=1000))
async def test_statement_046_invisible_limits(server: Backend) -> None:
    """Too short and too long are 40011, none at all too unless the lease renews itself; both limits
    pass."""
    for seconds in (0.999, 0, -1, 12 * 3600 + 0.001, 13 * 3600):
        assert (
            await server.raw.receive(invisible=seconds)
        ).status.code == pb.ILLEGAL_INVISIBLE_TIME, seconds
    without = receive_request()
    without.ClearField("invisible_duration")
    assert (
        await server.raw.collect(server.raw.stream(without))
    ).status.code == pb.ILLEGAL_INVISIBLE_TIME
    for good in (1, 12 * 3600, None):
        assert (await server.raw.receive(invisible=good)).status.code == pb.MESSAGE_NOT_FOUND


@contract()
async def test_statement_047_delivered_message_has_all_system_properties(server: Backend) -> None:
    """Digest, encoding, handle, attempt, times, place and type are all there."""
    await server.raw.send(message(b"hello rocketmq", tag="a"))
    await server.raw.send(message(b"x", topic="F", message_group="g"))
    (got,) = (await server.raw.receive()).messages
    system = got.system_properties
    assert (system.body_digest.type, system.body_digest.checksum) == (
        pb.MD5,
        "98062D04DAC784C63CEEB3CDB2B1FE4A",
    )
    assert (system.body_encoding, system.message_type, system.delivery_attempt) == (
        pb.IDENTITY,
        pb.NORMAL,
        1,
    )
    assert system.receipt_handle
    assert system.born_timestamp.ToMilliseconds() == EPOCH_MS
    assert (
        system.HasField("store_timestamp") and system.store_timestamp.ToMilliseconds() >= EPOCH_MS
    )
    assert system.store_host == "127.0.0.1:1"
    assert system.HasField("queue_offset") and 0 <= system.queue_id < 4
    assert got.topic == pb.Resource(name="T")
    (fifo,) = (await server.raw.receive("F")).messages
    assert (fifo.system_properties.message_type, fifo.system_properties.message_group) == (
        pb.FIFO,
        "g",
    )


@contract()
async def test_statement_048_compressed_bodies(server: Backend) -> None:
    """A GZIP body comes back as the same bytes, marked GZIP, with their digest."""
    body = gzip.compress(b"hello" * 100)
    await server.raw.send(message(body, body_encoding=pb.GZIP))
    (got,) = (await server.raw.receive()).messages
    assert (got.body, got.system_properties.body_encoding) == (body, pb.GZIP)
    assert got.system_properties.body_digest.checksum == hashlib.md5(body).hexdigest().upper()


@contract()
async def test_statement_049_the_queue_id_is_ignored(server: Backend) -> None:
    """Whatever queue id a client names, messages of all queues come."""
    for queue in (-1, 0, 7, 99):
        for _ in range(4):
            await server.raw.send(message())
        got = await server.raw.receive(queue=queue)
        assert sorted(m.system_properties.queue_id for m in got.messages) == [0, 1, 2, 3]


@contract(groups=("g1", "g2"))
async def test_statement_050_brokers_topics_and_groups(server: Backend) -> None:
    """An unknown broker is 40000, an unknown topic 40402, an illegal group 40003; no broker means
    any."""
    await server.topic("one", queues=1)
    assert (await server.raw.receive(broker="g9")).status.code == pb.BAD_REQUEST
    assert (await server.raw.receive("nowhere")).status.code == pb.TOPIC_NOT_FOUND
    for group in ("a b", "%DLQ%zz", "rmq_sys_x"):
        assert (await server.raw.receive(group=group)).status.code == pb.ILLEGAL_CONSUMER_GROUP
    assert (await server.raw.receive("a b")).status.code == pb.ILLEGAL_TOPIC
    await server.topic("sealed", permission="w")
    assert (await server.raw.receive("sealed")).status.code == pb.FORBIDDEN
    for broker in ("g1", "g2"):
        assert (await server.raw.receive(broker=broker)).status.code == pb.MESSAGE_NOT_FOUND
    for _ in range(8):
        await server.raw.send(message())
    assert len((await server.raw.receive(broker="g2")).messages) == 4
    assert sum([len((await server.raw.receive()).messages) for _ in range(2)]) == 4


@contract()
async def test_statement_053_receive_without_settings(server: Backend) -> None:
    """A client that never sent Settings receives with the defaults."""
    await server.raw.send(message())
    assert len((await server.raw.receive(invisible=None)).messages) == 1


@contract(delivery=Delivery(long_poll_max_ms=7000))
async def test_statement_054_polling_time_without_a_field(server: Backend) -> None:
    """Without long_polling_timeout the client's Settings count, then the longest time; never more
    than the longest."""
    for polling, expected in ((None, 7), (60, 7), (2, 2)):
        pending = poll(server, timeout=None, polling=polling)
        await server.until_polls(1)
        server.pass_time(expected - 0.001)
        assert server.engine.polls == 1
        server.pass_time(0.001)
        assert (await pending).status.code == pb.MESSAGE_NOT_FOUND
    await say(server.raw.telemetry(), consumer())
    for raw in (server.raw, server.raw2):
        await say(raw.telemetry(), consumer())
        collected = asyncio.ensure_future(raw.collect(raw.stream(receive_request(polling=None))))
        await server.until_polls(1)
        server.pass_time(2.999)
        assert server.engine.polls == 1
        server.pass_time(0.001)
        assert (await collected).status.code == pb.MESSAGE_NOT_FOUND


@contract()
async def test_statement_054_058_the_answer_comes_before_the_deadline(server: Backend) -> None:
    """A poll as long as the call's deadline, or longer, ends a little before it."""
    for polling in (None, 5, 20):
        pending = poll(server, timeout=5, polling=polling)
        await server.until_polls(1)
        server.pass_time(4.7)
        assert server.engine.polls == 1
        server.pass_time(0.15)
        assert (await pending).status.code == pb.MESSAGE_NOT_FOUND
    assert (
        await server.raw.collect(server.raw.stream(receive_request(polling=20), timeout=0.19))
    ).status.code == pb.MESSAGE_NOT_FOUND


@contract()
async def test_statement_055_cancelled_receive_leaves_messages_available(server: Backend) -> None:
    """A message that comes after a poll was cancelled goes to another Receive at once."""
    for raw in (server.raw, server.raw2):
        call = raw.stream(receive_request(polling=20))
        reading = asyncio.ensure_future(raw.collect(call))
        await server.until_polls(1)
        call.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        await server.until_polls(0)
        await server.raw.send(message())
        (got,) = (await server.raw.receive(metadata=OTHER)).messages
        assert got.system_properties.delivery_attempt == 1
        assert await server.raw.ack(got) == pb.OK


@contract()
async def test_statement_055_a_lease_of_a_cancelled_receive_comes_back(server: Backend) -> None:
    """A lease that was in the log but not committed when its caller left is visible again as soon
    as it is."""
    replicator = server.engine.replicators["g1"]
    for raw in (server.raw, server.raw2):
        await server.raw.send(message())
        replicator.commit_at_once = False
        before = len(replicator.proposals)
        call = raw.stream(receive_request(polling=20))
        reading = asyncio.ensure_future(raw.collect(call))
        await server.until(lambda before=before: len(replicator.proposals) > before)  # type: ignore[misc]
        call.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        await server.until_polls(0)
        replicator.commit_at_once = True
        server.engine.turn()
        server.engine.turn()
        (got,) = (await server.raw.receive(metadata=OTHER)).messages
        assert got.system_properties.delivery_attempt == 2
        assert await server.raw.ack(got) == pb.OK


@contract()
async def test_a_lease_that_a_slow_disk_holds_up_is_no_empty_topic(server: Backend) -> None:
    """The poll is over and its messages are leased, but not committed: as long as the caller waits,
    they are worth waiting for."""
    replicator = server.engine.replicators["g1"]
    for polling in (0, 1):
        await server.raw.send(message())
        replicator.commit_at_once = False
        before = len(replicator.proposals)
        pending = poll(server, polling=polling)
        await server.until(lambda before=before: len(replicator.proposals) > before)  # type: ignore[misc]
        server.pass_time(polling + 1.5)
        replicator.commit_at_once = True
        server.engine.turn()
        (got,) = (await pending).messages
        assert got.system_properties.delivery_attempt == 1
        assert await server.raw.ack(got) == pb.OK


class _Leaver:
    """A call whose caller leaves when the second message of the stream is written, or when
    everything is written but still on its way."""

    def __init__(self, *, late: bool) -> None:
        self.late = late
        self.written = 0

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        return CLIENT_ID

    def time_remaining(self) -> float:
        return 5.0

    def peer(self) -> str:
        return "ipv4:192.0.2.1:50000"

    async def write(self, data: bytes) -> None:
        self.written += 1
        if self.written == 2 and not self.late:
            raise asyncio.CancelledError

    async def finish(self, *, taken: bool = False) -> None:
        assert self.late and self.written > 2
        raise asyncio.CancelledError


@contract()
async def test_statement_055_leases_that_could_not_be_written_come_back(server: Backend) -> None:
    """When the caller leaves while its messages are written, they are for others at once."""
    for service, late in product((server.service, server.service2), (False, True)):
        await server.raw.send(*(message(b"%d" % i) for i in range(3)))
        try:
            await service._receive(
                receive_request(invisible=None).SerializeToString(), _Leaver(late=late)
            )
        except asyncio.CancelledError:
            await asyncio.gather(*service._releases)
        got = await server.raw.receive(metadata=OTHER)
        assert [m.system_properties.delivery_attempt for m in got.messages] == [2, 2, 2]
        for m in got.messages:
            assert await server.raw.ack(m) == pb.OK


@contract()
async def test_statement_056_groups_and_members(server: Backend) -> None:
    """Two members of a group get disjoint messages; another group gets all of them again."""
    await server.raw.send(*(message(b"%d" % i) for i in range(20)))
    first = await server.raw.receive(batch=10)
    second = await server.raw.receive(batch=32, metadata=OTHER)
    assert sorted(int(body) for body in first.bodies + second.bodies) == list(range(20))
    assert sorted(int(body) for body in (await server.raw.receive(group="other")).bodies) == list(
        range(20)
    )


@contract()
async def test_statement_057_a_new_group_starts_at_the_beginning(server: Backend) -> None:
    """A group seen for the first time gets what was there before it."""
    for i in range(3):
        await server.raw.send(message(b"%d" % i))
    assert sorted((await server.raw.receive(group="newcomer")).bodies) == [b"0", b"1", b"2"]


@contract()
async def test_namespaces_are_kept_apart(server: Backend) -> None:
    """(namespace, name) is the key; the field counts before the header, and messages carry the
    namespace in effect."""
    await server.topic("T", namespace="ns")
    header = (("x-mq-client-id", "t1"), ("x-mq-namespace", "ns"))
    await server.raw.send(message(b"header"), metadata=header)
    await server.raw.send(message(b"field", namespace="ns"))
    await server.raw.send(message(b"none"))
    got = await server.raw.receive(metadata=header)
    assert sorted(got.bodies) == [b"field", b"header"]
    assert {m.topic.resource_namespace for m in got.messages} == {"ns"}
    assert (await server.raw.receive()).bodies == [b"none"]
    both = await server.raw.unary(
        "QueryRoute",
        pb.QueryRouteRequest(topic=pb.Resource(name="T", resource_namespace="ns")),
        metadata=header,
    )
    assert both.status.code == pb.OK
    elsewhere = (("x-mq-client-id", "t1"), ("x-mq-namespace", "nowhere"))
    assert (
        await server.raw.send(message(b"field first", namespace="ns"), metadata=elsewhere)
    ).status.code == pb.OK
    assert (await server.raw.receive(metadata=header)).bodies == [b"field first"]
    request = receive_request(namespace="ns", group="second")
    assert len((await server.raw.collect(server.raw.stream(request))).messages) == 3


@contract({})
async def test_a_topic_that_is_about_to_come_into_force(server: Backend) -> None:
    """A topic that is agreed but not yet in the broker group's log is waited for."""
    server.controller.command(
        {
            "op": "create-topic",
            "ns": "",
            "name": "soon",
            "kind": "normal",
            "queues": 1,
            "permission": "rw",
        }
    )
    sending = asyncio.ensure_future(server.raw.send(message(topic="soon")))
    receiving = asyncio.ensure_future(server.raw2.receive("soon", polling=5))
    await asyncio.sleep(0)
    await server.reconcile()
    assert (await sending).status.code == pb.OK
    assert (await receiving).bodies == [b"hello"]
    server.controller.command(
        {
            "op": "create-topic",
            "ns": "",
            "name": "never",
            "kind": "normal",
            "queues": 1,
            "permission": "rw",
        }
    )
    assert (
        await server.raw.send(message(topic="never"), timeout=0.4)
    ).status.code == pb.HA_NOT_AVAILABLE


def hidden_ms(server: Backend) -> list[int | None]:
    """The durations of all leases of group G."""
    machines = [group.machine.delivery for group in server.engine.groups.values()]
    rows = [
        (delivery, key, offset)
        for delivery in machines
        for key, queue in delivery.queues.items()
        for offset in queue.rows
    ]
    return [
        row.duration_ms
        for delivery, key, offset in rows
        if (row := delivery.row(key, offset)) is not None
    ]


@contract()
async def test_statement_029_a_message_that_its_client_cannot_take(server: Backend) -> None:
    """It is withheld and redelivered like a failed one, while the other messages of the answer
    arrive; alone it leads to 41301, which names it."""
    raw = Raw(server.port, NODE_JS)
    large = message(bytes(WIRE_MAX))
    await server.raw.send(message(b"a"))
    await server.raw.send(large)
    await server.raw.send(message(b"b"))
    got = await raw.receive(invisible=None)
    assert (got.status.code, sorted(got.bodies)) == (pb.OK, [b"a", b"b"])
    for one in got.messages:
        assert await raw.ack(one) == pb.OK
    for steps in (1, 5):
        await server.until(lambda ms=steps * 1000: hidden_ms(server) == [ms])  # type: ignore[misc]
        server.pass_time(steps - 0.001)
        assert (await raw.receive(invisible=None)).status.code == pb.MESSAGE_NOT_FOUND
        server.pass_time(0.001)
        if steps == 1:
            alone = await raw.receive(invisible=None)
            assert (alone.status.code, alone.contents) == (
                pb.MESSAGE_BODY_TOO_LARGE,
                ["status", "delivery_timestamp"],
            )
            assert large.system_properties.message_id in alone.status.message
    (taken,) = (await server.raw.receive()).messages
    assert (len(taken.body), taken.system_properties.delivery_attempt) == (WIRE_MAX, 3)
    await raw.close()


@contract()
async def test_statement_029_the_largest_body_for_every_client(server: Backend) -> None:
    """64 KiB below 4 MiB there is room for all that a message may have beside its body."""
    raw = Raw(server.port, NODE_JS)
    await server.topic("F" * 127, "fifo", namespace="n" * 127)
    large = message(
        bytes(WIRE_MAX - 65_536),
        "F" * 127,
        "i" * 255,
        namespace="n" * 127,
        message_group="g" * 63,
        born_host="h" * 4000,
    )
    large.system_properties.message_type = pb.FIFO
    large.user_properties.update({f"{i:04}": "v" * 122 for i in range(128)})
    sent = await server.raw.send(large)
    assert sent.status.code == pb.OK, sent.status.message
    got = await raw.receive("F" * 127, "G" * 120, namespace="n" * 127)
    assert got.status.code == pb.OK, got.status.message
    assert [len(body) for body in got.bodies] == [WIRE_MAX - 65_536]
    await raw.close()
