"""Lite topics: statements 15 and 92 to 95 of the contract's checklist and what goes with them
(§2.13 to §2.15), raw, on virtual time."""

from __future__ import annotations

import asyncio
from typing import Any

from ledgermq.node.broker.calls.operator_calls import Configure
from ledgermq.node.runtime.config_sections import Delivery, Limits
from ledgermq.proto import messaging_pb2 as pb
from tests.contract.backend import (
    CLIENT_ID,
    Backend,
    Raw,
    Received,
    contract,
    message,
    receive_request,
)
from tests.contract.test_contract_telemetry import say

TOPICS = {"T": "normal", "L": "lite", "K": "lite"}
OTHER = (("x-mq-client-id", "t2"),)
lite_contract = contract(TOPICS)


async def bound(server: Backend, group: str = "LG", topic: str = "L", **settings: Any) -> None:
    """A consumer group for the lite topics of a topic."""
    await server.group(group, lite_topic=topic, **settings)


async def sync(
    raw: Raw,
    action: int,
    *names: str,
    group: str = "LG",
    topic: str = "L",
    metadata: Any = CLIENT_ID,
    version: int | None = None,
    option: pb.OffsetOption | None = None,
) -> int:
    request = pb.SyncLiteSubscriptionRequest(
        action=action,  # type: ignore[arg-type]
        topic=pb.Resource(name=topic),
        group=pb.Resource(name=group),
        lite_topic_set=names,
        version=version,
        offset_option=option,
    )
    return int((await raw.unary("SyncLiteSubscription", request, metadata=metadata)).status.code)


async def send(raw: Raw, lite: str, *bodies: str, topic: str = "L") -> None:
    for body in bodies:
        response = await raw.send(
            message(body.encode(), topic, lite_topic=lite, message_type=pb.LITE)
        )
        assert response.status.code == pb.OK, response.status


def names_of(server: Backend, client: str = "t1", group: str = "LG", topic: str = "L") -> set[str]:
    """The client's set as the broker groups have it."""
    return {
        name
        for one in server.engine.groups.values()
        for name in one.machine.lite.names((group, topic, client))
    }


async def receive(raw: Raw, metadata: Any = CLIENT_ID, **options: Any) -> list[tuple[str, bytes]]:
    got = await raw.receive("L", options.pop("group", "LG"), metadata=metadata, **options)
    return [(m.system_properties.lite_topic, m.body) for m in got.messages]


@lite_contract
async def test_statement_015_settings_of_lite_consumers(server: Backend) -> None:
    """They get the limits of lite topics and name length; other consumers do not."""
    await bound(server)
    for kind in (pb.LITE_PUSH_CONSUMER, pb.LITE_SIMPLE_CONSUMER, pb.PUSH_CONSUMER):
        settings = pb.Settings(client_type=kind)
        settings.subscription.group.name = "LG"
        settings.subscription.subscriptions.add().topic.name = "L"
        stream = server.raw.telemetry()
        answer = await say(stream, pb.TelemetryCommand(settings=settings))
        lite = kind != pb.PUSH_CONSUMER
        subscription = answer.settings.subscription
        assert (subscription.lite_subscription_quota, subscription.max_lite_topic_size) == (
            (2000, 64) if lite else (0, 0)
        )
        stream.cancel()


@lite_contract
async def test_statement_092_only_its_own_lite_topics_in_order(server: Backend) -> None:
    """A client gets messages of its set and no others, in the order of each lite topic, with the
    name; after unsubscribing no more."""
    await bound(server)
    for raw in (server.raw, server.raw2):
        assert await sync(raw, pb.COMPLETE_ADD, "room42", "room43") == pb.OK
        await send(raw, "room42", "a", "b")
        await send(raw, "other", "x")
        await send(raw, "room43", "c")
        got = await raw.receive("L", "LG")
        rows = [
            (m.system_properties.lite_topic, m.body, m.topic.name, m.system_properties.message_type)
            for m in got.messages
        ]
        assert sorted(rows) == [
            ("room42", b"a", "L", pb.LITE),
            ("room42", b"b", "L", pb.LITE),
            ("room43", b"c", "L", pb.LITE),
        ]
        assert [row[1] for row in rows if row[0] == "room42"] == [b"a", b"b"]
        for one in got.messages:
            assert await raw.ack(one, "LG") == pb.OK
        assert await sync(raw, pb.PARTIAL_REMOVE, "room42") == pb.OK
        await send(raw, "room42", "later")
        await send(raw, "room43", "d")
        assert await receive(raw) == [("room43", b"d")]
        assert await sync(raw, pb.COMPLETE_REMOVE) == pb.OK
        server.pass_time(60)
        await sync(raw, pb.COMPLETE_ADD, "room43")
        (again,) = (await raw.receive("L", "LG")).messages
        assert again.system_properties.delivery_attempt == 2
        assert await raw.ack(again, "LG") == pb.OK
        # Continue from where the group was.
        assert await sync(raw, pb.COMPLETE_ADD, "room42") == pb.OK
        (late,) = (await raw.receive("L", "LG")).messages
        assert (late.body, await raw.ack(late, "LG")) == (b"later", pb.OK)


@lite_contract
async def test_statement_093_sets_change_and_are_checked(server: Backend) -> None:
    """COMPLETE_ADD replaces, PARTIAL_ADD and PARTIAL_REMOVE change; bad names, too many and other
    groups or topics are refused."""
    await bound(server)
    await server.group("ordinary")
    for raw in (server.raw, server.raw2):
        assert await sync(raw, pb.COMPLETE_ADD, "a", "b") == pb.OK
        assert names_of(server) == {"a", "b"}
        assert await sync(raw, pb.PARTIAL_ADD, "c", "a") == pb.OK
        assert await sync(raw, pb.PARTIAL_REMOVE, "b", "never") == pb.OK
        assert names_of(server) == {"a", "c"}
        assert await sync(raw, pb.COMPLETE_ADD, "d") == pb.OK
        assert names_of(server) == {"d"}
        assert await sync(raw, pb.COMPLETE_REMOVE) == pb.OK
        assert names_of(server) == set()
        for name in ("x" * 65, "a.b", "a$b", "a b", "", "é"):
            assert await sync(raw, pb.PARTIAL_ADD, "good", name) == pb.ILLEGAL_LITE_TOPIC, name
        assert await sync(raw, pb.PARTIAL_ADD, "x" * 64) == pb.OK
        assert await sync(raw, pb.COMPLETE_REMOVE) == pb.OK
        assert await sync(raw, pb.PARTIAL_ADD, "a", group="ordinary") == pb.ILLEGAL_CONSUMER_GROUP
        assert await sync(raw, pb.PARTIAL_ADD, "a", group="unknown") == pb.ILLEGAL_CONSUMER_GROUP
        assert await sync(raw, pb.PARTIAL_ADD, "a", topic="K") == pb.ILLEGAL_TOPIC
        assert await sync(raw, 9, "a") == pb.BAD_REQUEST
        many = [f"n{number}" for number in range(2301)]
        assert await sync(raw, pb.COMPLETE_ADD, *many) == pb.LITE_SUBSCRIPTION_QUOTA_EXCEEDED
        assert await sync(raw, pb.COMPLETE_ADD, *many[:-1]) == pb.OK
        assert await sync(raw, pb.PARTIAL_ADD, "one-more") == pb.LITE_SUBSCRIPTION_QUOTA_EXCEEDED
        assert await sync(raw, pb.COMPLETE_REMOVE) == pb.OK
    assert (await server.raw.receive("L", "ordinary")).status.code == pb.ILLEGAL_CONSUMER_GROUP
    assert (
        await server.raw.receive("L", "LG", expression="tag")
    ).status.code == pb.ILLEGAL_FILTER_EXPRESSION


@lite_contract
async def test_statement_094_a_goodbye_ends_the_set(server: Backend) -> None:
    """NotifyClientTermination empties the client's set, and no one else's."""
    await bound(server)
    await sync(server.raw, pb.COMPLETE_ADD, "a", "b")
    await sync(server.raw, pb.COMPLETE_ADD, "a", metadata=OTHER)
    await server.raw.unary(
        "NotifyClientTermination", pb.NotifyClientTerminationRequest(group=pb.Resource(name="LG"))
    )
    await server.until(lambda: not names_of(server))
    assert names_of(server, "t2") == {"a"}
    await send(server.raw, "a", "m")
    assert await receive(server.raw) == []
    assert await receive(server.raw, OTHER) == [("a", b"m")]


@contract(TOPICS, delivery=Delivery(liveness_ms=10_000))
async def test_statement_094_a_client_that_is_silent_loses_its_set(server: Backend) -> None:
    """Past the liveness limit, on whichever node it was; a sign of life keeps it."""
    await bound(server)
    await sync(server.raw, pb.COMPLETE_ADD, "a")
    await sync(server.raw2, pb.COMPLETE_ADD, "b", metadata=OTHER)
    server.flush_signs()
    for _ in range(3):
        server.pass_time(5)
        await receive(server.raw2, OTHER)
        server.flush_signs()
    assert (names_of(server), names_of(server, "t2")) == (set(), {"b"})


@lite_contract
async def test_statement_095_kinds_of_messages_and_topics(server: Backend) -> None:
    """A lite message does not fit another topic, another message not a topic of kind lite; names
    are checked."""
    for raw in (server.raw, server.raw2):
        lite = message(b"m", "T", lite_topic="a", message_type=pb.LITE)
        assert (await raw.send(lite)).status.code == pb.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE
        assert (
            await raw.send(message(b"m", "L"))
        ).status.code == pb.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE
        assert (
            await raw.send(message(b"m", "L", lite_topic=""))
        ).status.code == pb.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE
        for name in ("x" * 65, "a.b", " "):
            assert (
                await raw.send(message(b"m", "L", lite_topic=name))
            ).status.code == pb.ILLEGAL_LITE_TOPIC


@lite_contract
async def test_a_lite_topic_is_locked_as_a_whole_and_no_other(server: Backend) -> None:
    """While one message is leased, no client of the group gets the next; after the lease the
    messages are redelivered in order."""
    await bound(server)
    await bound(server, "OG")
    for client in (CLIENT_ID, OTHER):
        await sync(server.raw, pb.COMPLETE_ADD, "a", "b", metadata=client)
    await sync(server.raw, pb.COMPLETE_ADD, "a", group="OG")
    await send(server.raw, "a", "1", "2", "3")
    assert await receive(server.raw, batch=2, invisible=10) == [("a", b"1"), ("a", b"2")]
    assert await receive(server.raw, OTHER) == []
    await send(server.raw, "b", "x")
    assert await receive(server.raw, OTHER) == [("b", b"x")]
    assert await receive(server.raw, group="OG") == [("a", b"1"), ("a", b"2"), ("a", b"3")]
    server.pass_time(10)
    got = await server.raw.receive("L", "LG", metadata=OTHER)
    assert [(m.body, m.system_properties.delivery_attempt) for m in got.messages] == [
        (b"1", 2),
        (b"2", 2),
    ]
    assert await server.raw.ack(got.messages[0], "LG") == pb.OK
    assert await receive(server.raw) == []
    assert await server.raw.ack(got.messages[1], "LG") == pb.OK
    assert await receive(server.raw) == [("a", b"3")]


@lite_contract
async def test_message_of_a_lite_set_ends_a_waiting_receive(server: Backend) -> None:
    """A message of a lite topic in the set ends the poll, one of another does not; so do an
    acknowledgement and a new subscription."""
    await bound(server)
    await sync(server.raw, pb.COMPLETE_ADD, "a")

    def poll() -> asyncio.Future[Received]:
        return asyncio.ensure_future(
            server.raw.collect(
                server.raw.stream(receive_request("L", "LG", polling=20), timeout=30)
            )
        )

    pending = poll()
    await server.until_polls(1)
    await send(server.raw, "b", "not this")
    assert server.engine.polls == 1
    await send(server.raw, "a", "this")
    (first,) = (await pending).messages
    assert first.body == b"this"
    pending = poll()
    await server.until_polls(1)
    await send(server.raw, "a", "locked")
    assert server.engine.polls == 1
    await server.raw.ack(first, "LG")
    (second,) = (await pending).messages
    assert second.body == b"locked"
    pending = poll()
    await server.until_polls(1)
    everything = pb.OffsetOption(policy=pb.OffsetOption.MIN)
    await sync(server.raw, pb.PARTIAL_ADD, "b", option=everything)
    assert (await pending).bodies == [b"not this"]


@lite_contract
async def test_where_a_group_begins_in_a_new_lite_topic(server: Backend) -> None:
    """By default at the end; otherwise at either end, at an offset, a number before the end, or at
    a time; only if the lite topic is new to the group."""
    await bound(server)
    await send(server.raw, "a", "0", "1")
    server.pass_time(10)
    await send(server.raw, "a", "2", "3")
    stored = server.engine.groups["g1"].machine.stored_ms("L$a", 0, 2)
    option = pb.OffsetOption
    cases: list[tuple[pb.OffsetOption | None, list[bytes]]] = [
        (None, []),
        (option(policy=option.MIN), [b"0", b"1", b"2", b"3"]),
        (option(policy=option.MAX), []),
        (option(offset=3), [b"3"]),
        (option(offset=99), []),
        (option(tail_n=3), [b"1", b"2", b"3"]),
        (option(tail_n=99), [b"0", b"1", b"2", b"3"]),
        (option(timestamp=stored), [b"2", b"3"]),
    ]
    for number, (where, wanted) in enumerate(cases):
        group = f"LG{number}"
        await bound(server, group)
        assert await sync(server.raw, pb.PARTIAL_ADD, "a", group=group, option=where) == pb.OK
        got = await server.raw.receive("L", group)
        assert got.bodies == wanted, where
        # Repeated for a lite topic that is in the set it changes nothing.
        assert (
            await sync(
                server.raw, pb.PARTIAL_ADD, "a", group=group, option=option(policy=option.MIN)
            )
            == pb.OK
        )
        assert await receive(server.raw, group=group) == []
        for one in got.messages:
            assert await server.raw.ack(one, group) == pb.OK
    assert (
        await sync(server.raw, pb.PARTIAL_ADD, "b", option=option(offset=-1)) == pb.ILLEGAL_OFFSET
    )
    assert await sync(server.raw, pb.PARTIAL_ADD, "b", option=option(policy=7)) == pb.BAD_REQUEST  # type: ignore[arg-type]


@lite_contract
async def test_late_lite_subscription_is_ignored(server: Backend) -> None:
    """Requests are ordered by their version; one without a version counts as it comes."""
    await bound(server)
    assert await sync(server.raw, pb.COMPLETE_ADD, "new", version=5) == pb.OK
    assert await sync(server.raw2, pb.COMPLETE_ADD, "old", version=4) == pb.OK
    assert names_of(server) == {"new"}
    assert await sync(server.raw, pb.PARTIAL_ADD, "more") == pb.OK
    assert names_of(server) == {"new", "more"}


@lite_contract
async def test_repeated_lite_subscription_appends_no_entry(server: Backend) -> None:
    """Thousands of clients say theirs every half minute."""
    await bound(server)
    await sync(server.raw, pb.COMPLETE_ADD, "a", "b")
    before = server.engine.replicators["g1"].end_index
    for _ in range(5):
        assert await sync(server.raw, pb.COMPLETE_ADD, "b", "a") == pb.OK
    assert server.engine.replicators["g1"].end_index == before


@contract(TOPICS, groups=("g1", "g2"))
async def test_lite_topics_of_two_broker_groups(server: Backend) -> None:
    """Each is in one broker group; both groups get the set, and a Receive returns the messages of
    its broker group."""
    await bound(server)
    names = [f"n{number}" for number in range(8)]
    assert await sync(server.raw2, pb.COMPLETE_ADD, *names) == pb.OK
    parts = [
        set(one.machine.lite.names(("LG", "L", "t1"))) for one in server.engine.groups.values()
    ]
    assert parts[0] | parts[1] == set(names) and not parts[0] & parts[1] and all(parts)
    for name in names:
        await send(server.raw2, name, name)
    got = [(await server.raw.receive("L", "LG", broker=broker)).messages for broker in ("g1", "g2")]
    assert [{m.system_properties.lite_topic for m in part} for part in got] == parts
    for raw in (server.raw, server.raw2):
        taken = [part.pop() for part in got]
        for one in taken:
            changed = await raw.change(one, 30, "LG")
            assert changed.status.code == pb.OK
            one.system_properties.receipt_handle = changed.receipt_handle
            assert await raw.ack(one, "LG") == pb.OK
    assert await sync(server.raw, pb.COMPLETE_REMOVE) == pb.OK
    assert names_of(server) == set()


@contract(TOPICS, limits=Limits(max_lite_subscriptions=1))
async def test_the_quota_of_a_client_is_configured(server: Backend) -> None:
    """It is what the settings say, plus the slack."""
    await bound(server)
    assert await sync(server.raw, pb.COMPLETE_ADD, *(f"n{i}" for i in range(301))) == pb.OK
    assert await sync(server.raw, pb.PARTIAL_ADD, "m") == pb.LITE_SUBSCRIPTION_QUOTA_EXCEEDED


@lite_contract
async def test_a_handle_of_another_topic_or_group_does_not_count(server: Backend) -> None:
    """A lite message is acknowledged under the topic it was received from."""
    await bound(server)
    await sync(server.raw, pb.COMPLETE_ADD, "a")
    await send(server.raw, "a", "m")
    (got,) = (await server.raw.receive("L", "LG")).messages
    assert got.topic.name == "L"
    got.topic.name = "K"
    assert await server.raw.ack(got, "LG") == pb.INVALID_RECEIPT_HANDLE
    got.topic.name = "L"
    assert await server.raw.ack(got, "G") == pb.INVALID_RECEIPT_HANDLE
    assert await server.raw.ack(got, "LG") == pb.OK


@lite_contract
async def test_a_deleted_topic_takes_its_lite_topics_along(server: Backend) -> None:
    """Created again, the topic is empty and has no subscriptions; offsets continue."""
    await bound(server)
    await sync(server.raw, pb.COMPLETE_ADD, "a")
    await send(server.raw, "a", "old")
    engine = server.engine
    await engine.call("g1", Configure(engine.new_token(), deleted_topics=("L",)))
    assert names_of(server) == set()
    server.controller.command({"op": "delete-topic", "ns": "", "name": "L"})
    await server.topic("L", "lite")
    everything = pb.OffsetOption(policy=pb.OffsetOption.MIN)
    assert await sync(server.raw, pb.COMPLETE_ADD, "a", option=everything) == pb.OK
    assert await receive(server.raw) == []
    await send(server.raw, "a", "new")
    (got,) = (await server.raw.receive("L", "LG")).messages
    assert (got.body, got.system_properties.queue_offset) == (b"new", 1)
