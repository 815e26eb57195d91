"""SendMessage: statements 26–40 and 82 of the contract's checklist, raw."""

from __future__ import annotations

import asyncio
import hashlib
import zlib
from typing import Any

import pytest

from ledgermq.proto import messaging_pb2 as pb
from ledgermq.proto.names import RESERVED_KEYS
from tests.contract.backend import Backend, contract, message

MIB4 = 4_194_304


async def code(server: Backend, *messages: pb.Message) -> int:
    return int((await server.raw.send(*messages)).status.code)


def with_properties(properties: dict[str, str], **system: Any) -> pb.Message:
    out = message(**system)
    out.user_properties.update(properties)
    return out


@contract()
async def test_statement_026_message_fields_arrive_unchanged(server: Backend) -> None:
    """Body, tag, keys and properties come back exactly, and nothing is added to the map."""
    body = bytes(range(256))
    sent = with_properties(
        {"run": "1", "ünï": "cödé", "__SHARDINGKEY": "mine"},
        body=body,
        tag="tagA",
        keys=["order 1", "k2"],
        trace_context="00-x",
    )
    receipt = await server.raw.send(sent)
    assert receipt.status.code == pb.OK
    (got,) = (await server.raw.receive()).messages
    assert got.body == body
    assert dict(got.user_properties) == dict(sent.user_properties)
    system = got.system_properties
    assert (system.tag, list(system.keys), system.trace_context) == (
        "tagA",
        ["order 1", "k2"],
        "00-x",
    )
    assert (system.message_id, system.born_host) == (
        sent.system_properties.message_id,
        "producer-host",
    )
    assert system.born_timestamp == sent.system_properties.born_timestamp
    assert not system.HasField("message_group") and not system.HasField("delivery_timestamp")


@contract({"T": "normal"})
async def test_statement_027_offsets_grow_by_one(server: Backend) -> None:
    """Offsets count within a queue; a normal message has no transaction id and no recall handle."""
    await server.topic("one", queues=1)
    for offset in range(5):
        (entry,) = (await server.raw.send(message(topic="one"))).entries
        assert (entry.offset, entry.transaction_id, entry.recall_handle) == (offset, "", "")


@contract()
async def test_statement_028_no_message_or_mixed_topics(server: Backend) -> None:
    """An empty batch and a batch of two topics are 40016."""
    assert await code(server) == pb.MESSAGE_CORRUPTED
    assert await code(server, message(topic="T"), message(topic="F")) == pb.MESSAGE_CORRUPTED
    assert (
        await code(server, message(topic="T"), message(topic="T", namespace="ns"))
        == pb.MESSAGE_CORRUPTED
    )


@contract()
async def test_statement_029_body_sizes(server: Backend) -> None:
    """Empty and too long bodies have their own codes; exactly 4 MiB passes, both ways, with full
    properties."""
    assert await code(server, message(b"")) == pb.MESSAGE_BODY_EMPTY
    assert await code(server, with_properties({"p": "x" * (16384 - 1)}, body=bytes(MIB4))) == pb.OK
    response = await server.raw.send(message(bytes(MIB4 + 1)))
    assert (response.status.code, len(response.entries)) == (pb.MESSAGE_BODY_TOO_LARGE, 0)
    (got,) = (await server.raw.receive()).messages
    assert len(got.body) == MIB4


@contract()
async def test_statement_030_property_limits(server: Backend) -> None:
    """129 properties, or more than 16 KiB of keys, values, tag and keys, are 43101."""
    assert await code(server, with_properties({f"p{i}": "" for i in range(128)})) == pb.OK
    assert (
        await code(server, with_properties({f"p{i}": "" for i in range(129)}))
        == pb.MESSAGE_PROPERTIES_TOO_LARGE
    )
    assert await code(server, with_properties({"p": "x" * 16383})) == pb.OK
    assert (
        await code(server, with_properties({"p": "x" * 16384})) == pb.MESSAGE_PROPERTIES_TOO_LARGE
    )
    assert await code(server, with_properties({"p": "x" * 16381}, tag="a", keys=["b"])) == pb.OK
    assert (
        await code(server, with_properties({"p": "x" * 16381}, tag="a", keys=["bc"]))
        == pb.MESSAGE_PROPERTIES_TOO_LARGE
    )
    assert await code(server, with_properties({"p": "é" * 8192})) == pb.MESSAGE_PROPERTIES_TOO_LARGE
    assert (
        await code(server, message(trace_context="x" * 40_000)) == pb.MESSAGE_PROPERTIES_TOO_LARGE
    )


@contract()
async def test_statement_031_property_keys(server: Backend) -> None:
    """Reserved keys and control characters in keys or values are 40007."""
    for key in (
        "UNIQ_KEY",
        "KEYS",
        "__BORNHOST",
        *sorted(RESERVED_KEYS),
        "a\nb",
        "a\x01",
        "\x02",
        "\x7f",
        "\x85",
    ):
        assert await code(server, with_properties({key: "v"})) == pb.ILLEGAL_MESSAGE_PROPERTY_KEY, (
            key
        )
    assert (
        await code(server, with_properties({"k": "a\x02TAGS\x01b"}))
        == pb.ILLEGAL_MESSAGE_PROPERTY_KEY
    )


@contract()
async def test_statement_032_tags(server: Backend) -> None:
    """A tag must not contain `|`, be blank or have control characters; an empty tag means no
    tag."""
    for tag in ("a|b", "   ", "a\tb"):
        assert await code(server, message(tag=tag)) == pb.ILLEGAL_MESSAGE_TAG, tag
    assert await code(server, message(tag="")) == pb.OK
    (got,) = (await server.raw.receive()).messages
    assert not got.system_properties.HasField("tag")


@contract()
async def test_statement_033_keys(server: Backend) -> None:
    """A key is not blank and has no control character."""
    for key in ("  ", "a\x00"):
        assert await code(server, message(keys=["good", key])) == pb.ILLEGAL_MESSAGE_KEY, key
    assert await code(server, message(keys=["a b", ""])) == pb.OK


@contract()
async def test_statement_034_message_ids(server: Backend) -> None:
    """A message id is not blank."""
    for message_id in ("", "  ", "a\x01b"):
        assert await code(server, message(message_id=message_id)) == pb.ILLEGAL_MESSAGE_ID
    assert await code(server, message(message_id="any text will do")) == pb.OK


@contract()
async def test_statement_035_message_groups(server: Backend) -> None:
    """A message group is shorter than 64 bytes and not blank."""
    for group in ("g" * 64, "é" * 32, "  ", "a\x1f"):
        assert (
            await code(server, message(topic="F", message_group=group)) == pb.ILLEGAL_MESSAGE_GROUP
        ), group
    assert await code(server, message(topic="F", message_group="g" * 63)) == pb.OK


@contract()
async def test_statement_036_message_of_a_wrong_kind_is_refused(server: Backend) -> None:
    """A message whose kind does not fit the topic is 40014, whatever its type field says."""
    delayed = message()
    delayed.system_properties.delivery_timestamp.FromMilliseconds(server.clock.now_ms())
    conflicts = (
        message(topic="F"),
        message(topic="F", message_group=""),
        message(topic="T", message_group="g"),
        delayed,
        message(message_type=pb.TRANSACTION),
        message(priority=1),
        message(lite_topic="room"),
    )
    for conflict in conflicts:
        assert await code(server, conflict) == pb.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE
    assert await code(server, message(topic="F", message_group="g", message_type=pb.FIFO)) == pb.OK
    assert (
        await code(server, message(), message(message_type=pb.TRANSACTION))
        == pb.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE
    )
    assert server.engine.counter("produced") == 1


@contract()
async def test_statement_037_two_messages_in_one_request(server: Backend) -> None:
    """Entries come in request order with their own ids and offsets."""
    sent = [message(b"1"), message(b"2")]
    response = await server.raw.send(*sent)
    assert response.status.code == pb.OK
    assert [entry.message_id for entry in response.entries] == [
        m.system_properties.message_id for m in sent
    ]
    assert [entry.offset for entry in response.entries] == [0, 1]
    assert {entry.status.code for entry in response.entries} == {pb.OK}


@contract()
async def test_statement_038_no_deduplication(server: Backend) -> None:
    """The same id twice is two messages."""
    for _ in range(2):
        await server.raw.send(message(message_id="same"))
    assert [m.system_properties.message_id for m in (await server.raw.receive()).messages] == [
        "same",
        "same",
    ]


@contract()
async def test_statement_039_no_writable_queue(server: Backend) -> None:
    """A topic that may not be written is 40300, after every check of the message."""
    for permission in ("r", "none"):
        await server.topic(f"sealed-{permission}", permission=permission)
        assert await code(server, message(topic=f"sealed-{permission}")) == pb.FORBIDDEN
    assert (
        await code(server, message(topic="sealed-r", message_group="g"))
        == pb.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE
    )


@contract()
async def test_statement_040_many_at_once(server: Backend) -> None:
    """200 sends at once all succeed, with one offset each."""
    sent = [message(b"%d" % i) for i in range(200)]
    responses = await asyncio.gather(*(server.raw.send(m) for m in sent))
    assert {response.status.code for response in responses} == {pb.OK}
    assert [r.entries[0].message_id for r in responses] == [
        m.system_properties.message_id for m in sent
    ]
    assert server.engine.counter("produced") == 200
    got = [m.body for _ in range(7) for m in (await server.raw.receive()).messages]
    assert sorted(got) == sorted(m.body for m in sent)


@contract(groups=("g1", "g2"))
async def test_statement_082_one_queue_for_a_message_group(server: Backend) -> None:
    """Messages of one group land in one queue, in order, alone or in batches, whichever node takes
    them; groups spread."""
    groups = [f"plane-{i % 16}" for i in range(64)]
    for i, name in enumerate(groups):
        raw = server.raw if i % 2 else server.raw2
        assert (
            await raw.send(message(b"%d" % i, topic="F", message_group=name))
        ).status.code == pb.OK
    response = await server.raw.send(
        *(message(b"%d" % (64 + i), topic="F", message_group=name) for i, name in enumerate(groups))
    )
    assert response.status.code == pb.OK and len(response.entries) == 64
    seen: dict[str, list[tuple[str, int, int, int]]] = {}
    for broker in ("g1", "g2"):
        while got := (await server.raw.receive("F", broker=broker)).messages:
            for m in got:
                place = (
                    broker,
                    m.system_properties.queue_id,
                    m.system_properties.queue_offset,
                    int(m.body),
                )
                seen.setdefault(m.system_properties.message_group, []).append(place)
    assert sum(map(len, seen.values())) == 128
    for places in seen.values():
        assert len({place[:2] for place in places}) == 1
        by_offset = sorted(places, key=lambda place: place[2])
        assert [place[3] for place in by_offset] == sorted(place[3] for place in places)
    assert len({places[0][:2] for places in seen.values()}) > 2


@contract(groups=("g1", "g2"))
async def test_normal_messages_take_turns(server: Backend) -> None:
    """Without a message group, calls go round all queues of all broker groups."""
    for _ in range(40):
        await server.raw.send(message())
    ends = {name: view.queue_ends["T"] for name, view in server.engine.views.items()}
    assert ends == {"g1": (10, 10), "g2": (10, 10)}


@contract(groups=("g1", "g2"))
async def test_normal_messages_go_past_a_broker_group_without_a_leader(server: Backend) -> None:
    """They do not wait while another group has a leader, through a node with replicas and one
    without; message groups keep their queues. Once the group has a leader, it gets its share
    again."""
    await server.raw2.send(message())
    server.engine.follow("g2", None)
    kept = [
        asyncio.create_task(
            code(server, message(topic="F", message_group=name, message_type=pb.FIFO))
        )
        for name in "abcdefgh"
    ]
    for raw in (server.raw, server.raw2):
        for number in range(8):
            answer = await raw.unary(
                "SendMessage", pb.SendMessageRequest(messages=[message(f"{number}".encode())])
            )
            assert answer.status.code == pb.OK, (raw is server.raw2, number, answer.status)
    server.engine.lead("g2", 9)
    assert set(await asyncio.gather(*kept)) == {pb.OK} and sum(
        server.engine.views["g2"].queue_ends["F"]
    )
    before = sum(server.engine.views["g2"].queue_ends["T"])
    for _ in range(4):
        await server.raw.send(message())
    assert sum(server.engine.views["g2"].queue_ends["T"]) == before + 2


@contract()
async def test_body_digest_of_a_producer_is_checked(server: Backend) -> None:
    """A digest that fits is accepted in every client's spelling; one that does not is 40016."""
    body = b"hello rocketmq"
    crc = zlib.crc32(body)
    good = {
        (pb.MD5, "98062D04DAC784C63CEEB3CDB2B1FE4A"),
        (pb.SHA1, hashlib.sha1(body).hexdigest()),
        *((pb.CRC32, text) for text in (f"{crc:X}", f"{crc:08X}", str(crc))),
        (pb.DIGEST_TYPE_UNSPECIFIED, "whatever"),
    }
    for kind, checksum in good:
        sent = message(body)
        sent.system_properties.body_digest.type = kind
        sent.system_properties.body_digest.checksum = checksum
        assert await code(server, sent) == pb.OK, checksum
        if kind:
            sent.body = b"hello rocketmQ"
            assert await code(server, sent) == pb.MESSAGE_CORRUPTED, checksum


@contract()
async def test_delivery_and_recovery_times(server: Backend) -> None:
    """Times beyond the limits have their codes, the milliseconds-as-seconds mistake included."""
    late = message()
    for seconds in (1_790_000_000_000, 253_402_300_799, 9_223_372_036_854_775_807):
        late.system_properties.delivery_timestamp.seconds = seconds
        assert await code(server, late) == pb.ILLEGAL_DELIVERY_TIME
    slow = message()
    slow.system_properties.orphaned_transaction_recovery_duration.seconds = 3601
    assert await code(server, slow) == pb.BAD_REQUEST
    odd = message()
    odd.system_properties.born_timestamp.seconds = 9_223_372_036_854_775_807
    assert await code(server, odd) == pb.OK
    odd.system_properties.born_timestamp.seconds = -5
    assert await code(server, odd) == pb.OK
    assert len((await server.raw.receive()).messages) == 2


@contract({})
async def test_acknowledgement_from_memory_says_so_on_every_node(server: Backend) -> None:
    """The class of the topic, or of the message's priority under `hybrid`, reaches the client from
    the leader and from any other node."""
    command = {"op": "create-topic", "ns": "", "kind": "fifo", "queues": 4, "permission": "rw"}
    for name in ("memory", "hybrid"):
        server.controller.command({**command, "name": name, "durability": name})
    await server.reconcile()
    cases = (("memory", 9, "memory"), ("hybrid", 3, "memory"), ("hybrid", 4, "durable"))
    for raw in (server.raw, server.raw2):
        for topic, priority, expected in cases:
            sent = message(topic=topic, message_group="g", priority=priority)
            call = raw.unary("SendMessage", pb.SendMessageRequest(messages=[sent]))
            assert (await call).status.code == pb.OK
            assert ("x-ledgermq-durability", expected) in list(await call.trailing_metadata() or ())
    (got, *_) = (await server.raw.receive("hybrid")).messages
    assert got.system_properties.priority == 3 and dict(got.user_properties) == {
        "__SHARDINGKEY": "g"
    }


@contract()
async def test_acknowledgement_names_its_durability(server: Backend) -> None:
    """A stored message's call ends with the class of its acknowledgement; a refused one has
    none."""
    call = server.raw.unary("SendMessage", pb.SendMessageRequest(messages=[message()]))
    await call
    assert ("x-ledgermq-durability", "durable") in list(await call.trailing_metadata() or ())
    call = server.raw.unary("SendMessage", pb.SendMessageRequest(messages=[message(b"")]))
    await call
    assert not list(await call.trailing_metadata() or ())


def slots_of(server: Backend, topic: str) -> list[tuple[str, int]]:
    """Broker group and queue in it, of each number in the topic."""
    placement = server.controller.state.topics["", topic].placement
    return [
        (broker_group, queue)
        for broker_group in sorted(placement)
        for queue in range(placement[broker_group])
    ]


def stated_queue(metadata: object) -> int | None:
    return next((int(value) for key, value in metadata or () if key == "x-ledgermq-queue"), None)  # type: ignore[attr-defined]


@contract(groups=("g1", "g2"))
async def test_acknowledgement_names_the_queue_of_its_message(server: Backend) -> None:
    """Whichever node took it, and also for a duplicate in a topic that has more queues by now.
    Batches and delayed messages have none."""
    create = {"op": "create-topic", "ns": "", "queues": 6, "permission": "rw"}
    server.controller.command({**create, "name": "once", "kind": "normal", "dedup_ms": 60_000})
    server.controller.command({**create, "name": "later", "kind": "delay"})
    await server.reconcile()

    async def placed(one: pb.Message, number: int) -> tuple[int | None, int]:
        call = (server.raw, server.raw2)[number % 2].unary(
            "SendMessage", pb.SendMessageRequest(messages=[one])
        )
        response = await call
        return stated_queue(await call.trailing_metadata()), response.entries[0].offset

    messages = [message(b"%d" % number, topic="once") for number in range(24)]
    stated = [await placed(one, number) for number, one in enumerate(messages)]
    slots = slots_of(server, "once")
    server.controller.command(
        {"op": "update-topic", "ns": "", "name": "once", "queues": 9, "permission": None}
    )
    await server.reconcile()
    grown = slots_of(server, "once")
    for number, one in enumerate(messages):
        queue, offset = await placed(one, number + 1)
        before, same_offset = stated[number]
        assert (
            before is not None
            and queue is not None
            and (grown[queue], offset) == (slots[before], same_offset)
        )
    found = {}
    for broker in ("g1", "g2"):
        for got in (await server.raw.receive("once", broker=broker, batch=32)).messages:
            found[broker, got.system_properties.queue_id, got.system_properties.queue_offset] = (
                got.body
            )
    assert [found[*slots[queue or 0], offset] for queue, offset in stated] == [
        one.body for one in messages
    ]
    later = message(topic="later")
    later.system_properties.message_type = pb.DELAY
    later.system_properties.delivery_timestamp.FromMilliseconds(server.clock.now_ms() + 60_000)
    for request in ([message(), message()], [later]):
        call = server.raw.unary("SendMessage", pb.SendMessageRequest(messages=request))
        assert (await call).status.code == pb.OK and stated_queue(
            await call.trailing_metadata()
        ) is None


@pytest.mark.parametrize("reason", ["disk", "leader"])
def test_refusals_in_words(reason: str) -> None:
    """A full disk is 50001 naming the node and that writing resumes; no leader within the deadline
    is 50002."""

    @contract()
    async def scenario(server: Backend) -> None:
        replicator = server.engine.replicators["g1"]
        if reason == "disk":
            replicator.full = True
            for raw in (server.raw, server.raw2):
                status = (await raw.send(message())).status
                assert status.code == pb.INTERNAL_SERVER_ERROR
                assert (
                    "disk of node n1 is full" in status.message
                    and "resumes by itself" in status.message
                )
            replicator.full = False
            assert await code(server, message()) == pb.OK
        else:
            server.engine.follow("g1", None)
            for raw in (server.raw, server.raw2):
                assert (await raw.send(message(), timeout=0.5)).status.code == pb.HA_NOT_AVAILABLE
            pending = asyncio.ensure_future(server.raw.send(message()))
            await asyncio.sleep(0)
            server.engine.lead("g1", 9)
            server.forwarder.changed()
            assert (await pending).status.code == pb.OK

    scenario()


@contract()
async def test_lost_leadership_is_an_unknown_outcome(server: Backend) -> None:
    """A message that was appended when leadership was lost ends with 50400 and is not sent again by
    us."""
    replicator = server.engine.replicators["g1"]
    replicator.commit_at_once = False
    before = len(replicator.proposals)
    pending = asyncio.ensure_future(server.raw.send(message()))
    await server.until(lambda: len(replicator.proposals) > before)
    server.engine.follow("g1", None)
    assert (await pending).status.code == pb.PROXY_TIMEOUT
    assert len(replicator.proposals) == before + 1
