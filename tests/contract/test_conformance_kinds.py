"""Topic kinds: statements 6, 36 and 91 of the contract's checklist, raw."""

from __future__ import annotations

import pytest

from ledgermq.proto import messaging_pb2 as pb
from tests.contract.backend import Backend, contract, message

KINDS = {
    "T": "normal",
    "F": "fifo",
    "D": "delay",
    "X": "transaction",
    "L": "lite",
    "P": "priority",
    "M": "mixed",
}
MIXED = (pb.NORMAL, pb.FIFO, pb.DELAY, pb.TRANSACTION)
ACCEPTED = {
    "T": (pb.NORMAL,),
    "F": (pb.FIFO,),
    "D": (pb.DELAY,),
    "X": (pb.TRANSACTION,),
    "L": (pb.LITE,),
    "P": (pb.PRIORITY,),
    "M": MIXED,
}


def of_kind(kind: pb.MessageType, topic: str) -> pb.Message:
    """A message that carries what its kind needs."""
    if kind == pb.TRANSACTION:
        return message(topic=topic, message_type=pb.TRANSACTION)
    extra = {
        pb.NORMAL: {},
        pb.FIFO: {"message_group": "g"},
        pb.DELAY: {},
        pb.PRIORITY: {"priority": 1},
        pb.LITE: {"lite_topic": "room"},
    }
    made = message(topic=topic, **extra[kind])
    if kind == pb.DELAY:
        made.system_properties.delivery_timestamp.seconds = 1
    return made


@contract(KINDS)
async def test_statement_006_accepted_types_per_kind(server: Backend) -> None:
    """Every queue of a route names exactly the message types that the topic's kind takes."""
    for topic, accepted in ACCEPTED.items():
        request = pb.QueryRouteRequest(topic=pb.Resource(name=topic))
        response = await server.raw.unary("QueryRoute", request)
        assert {tuple(queue.accept_message_types) for queue in response.message_queues} == {
            accepted
        }, topic


@pytest.mark.parametrize(
    "kind",
    [pb.NORMAL, pb.FIFO, pb.DELAY, pb.TRANSACTION, pb.PRIORITY, pb.LITE],
    ids=pb.MessageType.Name,
)
def test_statement_036_a_message_fits_the_kind_of_its_topic(kind: pb.MessageType) -> None:
    """A message kind that does not fit the topic is 40014 and nothing is stored, on any node."""

    @contract(KINDS)
    async def scenario(server: Backend) -> None:
        for topic, accepted in ACCEPTED.items():
            if kind not in accepted:
                for raw in (server.raw, server.raw2):
                    code = (await raw.send(of_kind(kind, topic))).status.code
                    assert code == pb.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE, topic
                assert server.engine.counter("produced") == 0

    scenario()


@contract(KINDS)
async def test_statement_082_a_mixed_topic_keeps_a_message_group_in_one_queue(
    server: Backend,
) -> None:
    """Messages of a group go to one queue, the same through any node; those without a group take
    turns."""
    grouped = [
        await raw.send(message(topic="M", message_group="g"))
        for raw in (server.raw, server.raw2)
        for _ in range(4)
    ]
    assert sorted(response.entries[0].offset for response in grouped) == list(range(8))
    both = await server.raw.send(
        message(topic="M", message_group="g"),
        message(topic="M"),
        message(topic="M", message_group="g"),
    )
    assert both.status.code == pb.OK and [entry.offset for entry in both.entries][::2] == [8, 9]
    for _ in range(4):
        assert (await server.raw.send(message(topic="M"))).status.code == pb.OK
    got = (await server.raw.receive("M")).messages
    grouped_queues = {
        m.system_properties.queue_id for m in got if m.system_properties.message_group == "g"
    }
    assert len(grouped_queues) == 1 and len({m.system_properties.queue_id for m in got}) == 4


@contract(KINDS)
async def test_statement_036_a_mixed_topic_takes_all_four_kinds(server: Backend) -> None:
    """Each message is stored with its kind, on any node."""
    for raw in (server.raw, server.raw2):
        for kind in MIXED:
            assert (await raw.send(of_kind(kind, "M"))).status.code == pb.OK, pb.MessageType.Name(
                kind
            )
    got = (await server.raw.receive("M")).messages
    kinds = [m.system_properties.message_type for m in got]
    assert sorted(kinds) == sorted([pb.NORMAL, pb.FIFO, pb.DELAY] * 2), (
        "half messages are not visible"
    )
