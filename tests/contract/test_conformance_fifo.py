"""FIFO groups, retries and dead letters: statements 66, 67 and 77–81 of the contract's checklist,
raw, on virtual time."""

from __future__ import annotations

import pytest

from ledgermq.node.frontend.rocketmq.topic_lookup import slot_of
from ledgermq.proto import messaging_pb2 as pb
from tests.contract.backend import Backend, Raw, contract, message, receive_request

OTHER = (("x-mq-client-id", "t2"),)
DLQ = "%DLQ%G"


async def send(server: Backend, group: str, *bodies: str) -> None:
    for body in bodies:
        response = await server.raw.send(
            message(body.encode(), "F", message_group=group, message_type=pb.FIFO)
        )
        assert response.status.code == pb.OK


async def get(server: Backend, **options: object) -> list[pb.Message]:
    received = await server.raw.receive("F", **options)  # type: ignore[arg-type]
    assert received.status.code in (pb.OK, pb.MESSAGE_NOT_FOUND)
    return received.messages


def bodies(messages: list[pb.Message]) -> str:
    return " ".join(m.body.decode() for m in messages)


def attempts(messages: list[pb.Message]) -> list[int]:
    return [m.system_properties.delivery_attempt for m in messages]


@contract()
async def test_statement_066_after_its_attempts_a_message_is_in_the_dead_letter_topic(
    server: Backend,
) -> None:
    """With body, keys, tag and properties as they were, and where it came from; the group gets it
    no more."""
    await server.group("G", max_attempts=2)
    sent = message(b"poison", tag="T", keys=["k1", "k 2"])
    sent.user_properties["a"] = "1"
    await server.raw.send(sent)
    for attempt in (1, 2):
        assert attempts((await server.raw.receive(invisible=10)).messages) == [attempt]
        server.pass_time(10)
    assert not (await server.raw.receive(invisible=10)).messages
    await server.adopt()
    (queue,) = (
        await server.raw.unary("QueryRoute", pb.QueryRouteRequest(topic=pb.Resource(name=DLQ)))
    ).message_queues
    assert (queue.permission, queue.accept_message_types) == (pb.READ_WRITE, [pb.NORMAL])
    (letter,) = (await server.raw.receive(DLQ, "Readers")).messages
    system = letter.system_properties
    assert (letter.topic.name, letter.body, system.message_id) == (
        DLQ,
        b"poison",
        sent.system_properties.message_id,
    )
    assert (system.tag, list(system.keys), dict(letter.user_properties)) == (
        "T",
        ["k1", "k 2"],
        {"a": "1"},
    )
    assert (system.dead_letter_queue.topic, system.dead_letter_queue.message_id) == (
        "T",
        sent.system_properties.message_id,
    )
    assert (system.delivery_attempt, system.queue_offset) == (1, 0)
    server.pass_time(100)
    assert not (await server.raw.receive()).messages


@contract()
async def test_statement_066_17_deliveries_by_default(server: Backend) -> None:
    """A group without settings has 17 attempts."""
    await server.raw.send(message())
    for attempt in range(1, 18):
        assert attempts((await server.raw.receive(invisible=1)).messages) == [attempt]
        server.pass_time(1)
    assert not (await server.raw.receive()).messages
    assert server.engine.counter("dead_lettered") == 1


@contract()
async def test_dead_letter_topics_are_nobodys_to_create_or_delete(server: Backend) -> None:
    """Operators get an error: these topics are created automatically; two broker groups share one
    topic."""
    for op in ("create-topic", "update-topic", "delete-topic"):
        command = {
            "op": op,
            "ns": "",
            "name": DLQ,
            "kind": "normal",
            "queues": 1,
            "permission": "rw",
        }
        with pytest.raises(AssertionError, match="dead-letter topic"):
            server.controller.command(command)


@contract(groups=("g1", "g2"))
async def test_dead_letters_stay_in_their_broker_group(server: Backend) -> None:
    """Each broker group has its own queue of the dead-letter topic; all nodes know it once both
    have one."""
    await server.group("G", max_attempts=1)
    for _ in range(8):
        await server.raw.send(message())
    for group in ("g1", "g2"):
        assert (await server.raw.receive(broker=group, invisible=1)).messages
    server.pass_time(1)
    for group in ("g1", "g2"):
        assert not (await server.raw.receive(broker=group)).messages
        await server.adopt()
    await server.reconcile()
    queues = (
        await server.raw.unary("QueryRoute", pb.QueryRouteRequest(topic=pb.Resource(name=DLQ)))
    ).message_queues
    assert [(queue.broker.name, queue.id) for queue in queues] == [("g1", 0), ("g2", 0)]
    letters = [
        m
        for group in ("g1", "g2")
        for m in (await server.raw.receive(DLQ, "Readers", broker=group)).messages
    ]
    assert len(letters) == 8


@contract(groups=("g1", "g2"))
async def test_statement_067_a_fifo_group_has_one_assignment_for_each_queue(
    server: Backend,
) -> None:
    """Ids 0…n−1 of every broker, endpoints set; the ordinary group has one assignment for each
    broker."""
    await server.group("G", fifo=True)
    for name, per_broker in (("G", [0, 1]), ("other", [-1])):
        request = pb.QueryAssignmentRequest(
            topic=pb.Resource(name="F"), group=pb.Resource(name=name)
        )
        found = [
            a.message_queue
            for a in (await server.raw.unary("QueryAssignment", request)).assignments
        ]
        assert [(q.broker.name, q.id) for q in found] == [
            (broker, id) for broker in ("g1", "g2") for id in per_broker
        ]
        assert all(
            q.broker.endpoints.addresses and q.topic.name == "F" and q.permission == pb.READ_WRITE
            for q in found
        )


@contract()
async def test_statement_077_leased_message_locks_its_message_group(server: Backend) -> None:
    """A second Receive with another attempt id gets nothing of that message group, others flow;
    after the ack the next come in order."""
    await server.group("G", fifo=True)
    await send(server, "a", "a1", "a2", "a3")
    first = await get(server, batch=2, attempt_id="x", invisible=None)
    assert bodies(first) == "a1 a2"
    await send(server, "b", "b1")
    assert bodies(await get(server, attempt_id="y", metadata=OTHER)) == "b1"
    assert bodies(await get(server, attempt_id="z", metadata=OTHER)) == ""
    assert await server.raw.ack(first[0]) == pb.OK
    assert bodies(await get(server)) == ""
    assert await server.raw.ack(first[1]) == pb.OK
    assert bodies(await get(server)) == "a3"


@contract()
async def test_statement_078_the_same_attempt_id_gives_the_same_messages(server: Backend) -> None:
    """While they are locked, through any node; the handles of the answer that was lost count no
    longer."""
    await server.group("G", fifo=True)
    await send(server, "a", "a1", "a2")
    lost = await get(server, batch=1, attempt_id="x", invisible=None)
    again = (await server.raw2.receive("F", batch=1, attempt_id="x", invisible=None)).messages
    assert bodies(again) == "a1" and attempts(again) == [1]
    assert (
        await server.raw.ack(lost[0]) == pb.INVALID_RECEIPT_HANDLE
        and await server.raw.ack(again[0]) == pb.OK
    )
    response = (await server.raw.receive("F", attempt_id="x" * 300)).status
    assert response.code == pb.BAD_REQUEST and "attempt id" in response.message


@contract()
async def test_statement_079_expiry_brings_the_same_messages_in_the_same_order(
    server: Backend,
) -> None:
    """Attempt + 1, later messages never before them; an acknowledged one stays gone."""
    await server.group("G", fifo=True)
    await send(server, "a", "a1", "a2", "a3", "a4")
    first = await get(server, batch=3, invisible=10)
    assert await server.raw.ack(first[1]) == pb.OK
    server.pass_time(10)
    second = await get(server, invisible=10)
    assert bodies(second) == "a1 a3" and attempts(second) == [2, 2]
    for one in second:
        assert await server.raw.ack(one) == pb.OK
    assert bodies(await get(server)) == "a4"


@contract()
async def test_statement_080_081_forwarding_ends_a_message_once(server: Backend) -> None:
    """One dead letter however often it is forwarded, through any node, acknowledged ones too; the
    next message follows."""
    await server.group("G", fifo=True, max_attempts=3)
    await send(server, "a", "a1", "a2")
    (one,) = await get(server, batch=1, invisible=None)
    assert await server.raw.forward(one) == pb.OK
    assert await server.raw.forward(one) == pb.OK and await server.raw2.forward(one) == pb.OK
    (two,) = await get(server, batch=1, invisible=None)
    assert two.body == b"a2" and await server.raw.ack(two) == pb.OK
    assert await server.raw.forward(two) == pb.OK, "acknowledged is done, too"
    await server.adopt()
    (letter,) = (await server.raw.receive(DLQ, "Readers")).messages
    assert letter.body == b"a1" and letter.system_properties.message_group == "a"
    assert letter.system_properties.dead_letter_queue.topic == "F"


@contract()
async def test_forwarding_with_an_invalid_handle_is_refused(server: Backend) -> None:
    """Unreadable, of another group, or replaced by another lease: 40013; illegal names have their
    own codes."""
    await server.raw.send(message())
    (first,) = (await server.raw.receive(invisible=10)).messages
    assert await server.raw.forward(first, group="other") == pb.INVALID_RECEIPT_HANDLE
    assert await server.raw.forward(first, group="a b") == pb.ILLEGAL_CONSUMER_GROUP
    bad = pb.Message()
    bad.CopyFrom(first)
    bad.system_properties.receipt_handle = "nonsense"
    assert await server.raw.forward(bad) == pb.INVALID_RECEIPT_HANDLE
    server.pass_time(10)
    (second,) = (await server.raw.receive()).messages
    assert await server.raw.forward(first) == pb.INVALID_RECEIPT_HANDLE
    assert await server.raw.forward(second) == pb.OK and await server.raw.forward(first) == pb.OK


@contract()
async def test_an_ordinary_receive_may_carry_an_attempt_id(server: Backend) -> None:
    """Java sends one always: in an ordinary group it means nothing."""
    await server.raw.send(message(), message())
    for _ in range(2):
        assert (
            len(
                (
                    await server.raw.collect(
                        server.raw.stream(receive_request(batch=1, attempt_id="x"))
                    )
                ).messages
            )
            == 1
        )


@contract()
async def test_message_group_order_holds_before_and_after_added_queues_only(
    server: Backend,
) -> None:
    """Most message groups then get another queue: earlier messages stay in order in the old queue;
    later ones, sent through any node, are in order in the new queue and do not wait for the old
    one. A group that keeps its queue keeps its order and its lock."""
    await server.topic("grows", "fifo", queues=2)
    await server.group("G", fifo=True)
    groups = [f"m{number}" for number in range(8)]

    async def sent(raw: Raw, number: int) -> None:
        for group in groups:
            one = message(
                f"{group}-{number}".encode(), "grows", message_group=group, message_type=pb.FIFO
            )
            assert (await raw.send(one)).status.code == pb.OK

    await sent(server.raw, 0)
    await sent(server.raw2, 1)
    before = (await server.raw.receive("grows", invisible=None)).messages
    server.controller.command(
        {"op": "update-topic", "ns": "", "name": "grows", "queues": 5, "permission": None}
    )
    await server.reconcile()
    await sent(server.raw2, 2)
    await sent(server.raw, 3)
    after = (await server.raw.receive("grows", invisible=None)).messages
    queue = {m.body.decode(): m.system_properties.queue_id for m in before}
    assert len(before) == 16 and all(
        queue[f"{group}-0"] == queue[f"{group}-1"] == slot_of(group, 2) for group in groups
    )
    moved = [group for group in groups if slot_of(group, 5) != slot_of(group, 2)]
    assert 0 < len(moved) < len(groups)
    assert sorted(bodies(after).split()) == sorted(
        f"{group}-{number}" for group in moved for number in (2, 3)
    )
    assert all(
        m.system_properties.queue_id == slot_of(m.system_properties.message_group, 5) for m in after
    )
    for found in (before, after):
        for group in groups:
            own = [m for m in found if m.system_properties.message_group == group]
            assert [m.system_properties.queue_offset for m in own] == sorted(
                m.system_properties.queue_offset for m in own
            )
            assert bodies(own).split() == sorted(bodies(own).split())
    for one in before:
        assert await server.raw.ack(one) == pb.OK
    rest = (await server.raw.receive("grows", invisible=None)).messages
    kept = [group for group in groups if group not in moved]
    assert sorted(bodies(rest).split()) == sorted(
        f"{group}-{number}" for group in kept for number in (2, 3)
    )
