"""The unmodified official Python client against three real nodes: the statements of the contract's
checklist marked (P).

"Not earlier than" is exact, in the server's own times as its log has them; "not later than" allows
five times the bound plus 15 seconds.
"""

from __future__ import annotations

import gzip
import itertools
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from ledgermq.node.process.local import LocalCluster
from ledgermq.proto import admin_pb2
from ledgermq.proto import messaging_pb2 as pb
from ledgermq.proto.entries.properties import parse
from tests import cluster as real
from tests.contract.official import (
    ClientError,
    Deliveries,
    Official,
    control_records,
    events,
    late,
    message,
    official,
    push,
    receive,
    receive_some,
    records,
    send,
    simple,
    text,
    until_done,
)
from tests.proto.ways import NOT_BUILT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

LIVENESS_S = 3.0
LONG_POLL_S = 5.0
FAST = {
    "delivery": {
        "min_invisible_ms": 100,
        "liveness_ms": int(LIVENESS_S * 1000),
        "long_poll_max_ms": int(LONG_POLL_S * 1000),
    }
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Three nodes for all tests that leave them alive."""
    with real.running(
        tmp_path_factory.mktemp("official"), log_file_bytes=16 << 20, extra=FAST
    ) as found:
        yield found


_numbers = itertools.count(1)


@pytest.fixture
def topic(cluster: LocalCluster) -> str:
    """A fresh topic."""
    name = f"T{next(_numbers)}"
    real.create_topic(cluster, name)
    return name


@pytest.fixture
def client(cluster: LocalCluster, tmp_path: Path) -> Iterator[Official]:
    with official(cluster, tmp_path / "home") as found:
        yield found


@pytest.fixture
def producer(client: Official, topic: str) -> str:
    client.do("producer", name="p", topics=[topic])
    return "p"


def test_statement_001_027_receipts(client: Official, topic: str, producer: str) -> None:
    """The receipt has the id that was sent and an offset; a normal message has no transaction id
    and no recall handle."""
    for _ in range(3):
        receipt = send(client, topic)
        assert len(receipt["id"]) == 34 and receipt["id"].startswith("01")
        assert isinstance(receipt["offset"], int)
        assert not receipt["transaction_id"] and not receipt["recall_handle"]


def test_statement_004_unknown_topic(client: Official, topic: str, producer: str) -> None:
    """A send to a topic that does not exist raises the client's own exception."""
    with pytest.raises(ClientError, match="failed to fetch topic:no_such_topic route") as caught:
        send(client, "no_such_topic")
    assert caught.value.kind == "Exception"


def test_statement_019_push_consumer_starts(client: Official, topic: str) -> None:
    """A push consumer gets its Settings and starts."""
    assert push(client, topic) < late(2)


def test_statement_020_push_consumer_on_an_unknown_topic(client: Official) -> None:
    """It fails with the client's known AttributeError."""
    with pytest.raises(ClientError) as caught:
        push(client, "no_such_topic")
    assert caught.value.kind == "AttributeError"


def test_statement_026_message_fields_arrive_unchanged(
    client: Official, topic: str, producer: str
) -> None:
    """Body of all byte values, tag, key and properties come back, and nothing more."""
    body = bytes(range(256))
    properties = {"run": "1", "ünï": "cödé"}
    receipt = client.do(
        "send",
        name="p",
        message=message(topic, body, tag="tagA", keys="order-1", properties=properties),
    )
    simple(client, topic)
    (got,) = receive_some(client)
    assert bytes.fromhex(got["body"]) == body
    assert (got["id"], got["tag"], got["keys"], got["properties"]) == (
        receipt["id"],
        "tagA",
        ["order-1"],
        properties,
    )
    assert not got["corrupted"] and got["born_host"] and got["born_ms"] > 0


def test_statement_029_036_client_refuses_long_bodies_and_wrong_kinds(
    cluster: LocalCluster, client: Official, topic: str, producer: str
) -> None:
    """Too long a body and the wrong kind fail before any call, by the server's Settings and
    route."""
    with pytest.raises(ClientError) as caught:
        client.do("send", name="p", message=message(topic, bytes(4_194_305)))
    assert caught.value.kind == "IllegalArgumentException"
    client.do("send", name="p", message=message(topic, bytes(4_194_304)))
    with pytest.raises(ClientError, match="not match with queue accept message types") as caught:
        send(client, topic, message_group="g")
    assert caught.value.kind == "IllegalArgumentException"


def test_statement_040_two_hundred_sends_at_once(
    cluster: LocalCluster, client: Official, topic: str, producer: str
) -> None:
    """All succeed, ids are unique, every one is consumed."""
    receipts = client.do(
        "send_many", name="p", messages=[message(topic, str(i)) for i in range(200)]
    )
    assert len({receipt["id"] for receipt in receipts}) == 200
    simple(client, topic)
    seen: dict[str, str] = {}
    while len(seen) < 200:
        seen.update({got["id"]: text(got) for got in receive_some(client)})
    assert sorted(map(int, seen.values())) == list(range(200))
    assert set(seen) == {receipt["id"] for receipt in receipts}


def test_statement_042_an_empty_topic(client: Official, topic: str) -> None:
    """`receive` gives [] after the polling time, not earlier."""
    simple(client, topic, await_s=2)
    receive(client)
    answer = client.do("receive", name="c", batch=10, invisible_s=20)
    assert answer["messages"] == []
    assert 2.0 <= answer["took"] < 2 + late(0.5)


def test_statement_043_a_message_ends_the_poll(
    client: Official, cluster: LocalCluster, topic: str, tmp_path: Path
) -> None:
    """A message sent into a long poll is returned at once, long before the poll would end."""
    simple(client, topic, await_s=5)
    receive(client)
    with official(cluster, tmp_path / "other") as other:
        other.do("producer", name="p", topics=[topic])
        client.start("receive", name="c", batch=10, invisible_s=20)
        send(other, topic, "wake up")
        answer = client.answer()
    assert [text(got) for got in answer["messages"]] == ["wake up"]


def test_statement_045_invisible_time(
    client: Official, cluster: LocalCluster, topic: str, producer: str
) -> None:
    """Not before the invisible time is over, then soon, with attempt 2 and the same id."""
    receipt = send(client, topic)
    simple(client, topic)
    (first,) = receive_some(client, invisible_s=2)
    (second,) = receive_some(client, within_s=2 + late(1.5))
    assert (first["attempt"], second["attempt"]) == (1, 2)
    assert first["id"] == second["id"] == receipt["id"]
    ((_, began), (_, again)) = next(iter(Deliveries(cluster, "G", topic).leases.values()))
    assert again - began >= 2000


def test_statement_048_compressed_bodies(
    client: Official, cluster: LocalCluster, topic: str
) -> None:
    """A body marked GZIP is shown inflated, and is not corrupted."""
    sent = pb.Message(topic=pb.Resource(name=topic), body=gzip.compress(b"hello" * 100))
    sent.system_properties.message_id = "01" + "A" * 32
    sent.system_properties.body_encoding = pb.GZIP
    with grpc.insecure_channel(
        real.target(cluster, "n1"), options=[("grpc.enable_http_proxy", 0)]
    ) as channel:
        stub = channel.unary_unary(
            "/apache.rocketmq.v2.MessagingService/SendMessage",
            response_deserializer=pb.SendMessageResponse.FromString,
        )
        request = pb.SendMessageRequest(messages=[sent]).SerializeToString()
        assert stub(request, metadata=(("x-mq-client-id", "t1"),), timeout=10).status.code == pb.OK
    simple(client, topic)
    (got,) = receive_some(client)
    assert bytes.fromhex(got["body"]) == b"hello" * 100 and not got["corrupted"]


def test_statement_051_tag_filter(
    client: Official, cluster: LocalCluster, topic: str, producer: str
) -> None:
    """Only the tags asked for come; the others are consumed silently for the group, for good."""
    for i, tag in enumerate(("tagA", "tagB", "tagC") * 4):
        send(client, topic, str(i), tag=tag)
    simple(client, topic, expression="tagA || tagB")
    seen: list[dict[str, Any]] = []
    while len(seen) < 8:
        seen += receive_some(client)
    assert {got["tag"] for got in seen} == {"tagA", "tagB"}
    for got in seen:
        client.do("ack", name="c", id=got["id"])
    simple(client, topic, name="all")
    assert receive(client, "all") == []
    found = until_done(cluster, "G", topic, 8)
    assert found.once and found.passed == 4


def test_statement_056_057_groups_and_members(client: Official, topic: str, producer: str) -> None:
    """Members of a group share, groups do not; a group that comes late gets everything from the
    beginning."""
    sent = {send(client, topic, str(i))["id"] for i in range(20)}
    for name, group in (("a", "G"), ("b", "G"), ("other", "H")):
        simple(client, topic, name=name, group=group)
    first = {got["id"] for got in receive(client, "a", batch=5)}
    second: set[str] = set()
    while len(second) < 20 - len(first):
        second |= {got["id"] for got in receive_some(client, "b")}
    assert not first & second and first | second == sent
    late_comer: set[str] = set()
    while len(late_comer) < 20:
        late_comer |= {got["id"] for got in receive_some(client, "other")}
    assert late_comer == sent


def test_statement_059_acknowledged_for_good(
    client: Official, cluster: LocalCluster, topic: str, producer: str
) -> None:
    """After the acknowledgement nothing is left in the group's state."""
    send(client, topic)
    simple(client, topic)
    (got,) = receive_some(client, invisible_s=5)
    over = time.monotonic() + 5
    client.do("ack", name="c", id=got["id"])
    assert until_done(cluster, "G", topic, 1).once
    while time.monotonic() < over + 1:
        assert receive(client) == []
    assert Deliveries(cluster, "G", topic).once


def test_statement_061_acknowledging_too_late(client: Official, topic: str, producer: str) -> None:
    """The client raises BadRequestException, and the message is redelivered."""
    send(client, topic)
    simple(client, topic, name="a")
    simple(client, topic, name="b")
    (got,) = receive_some(client, "a", invisible_s=1)
    (again,) = receive_some(client, "b", within_s=1 + late(1.5))
    client.do("ack", name="b", id=again["id"])
    with pytest.raises(ClientError) as caught:
        client.do("ack", name="b", id=got["handle"])
    assert caught.value.kind == "BadRequestException"
    client.do("ack", name="b", id=again["handle"])


def test_statement_063_change_invisible_duration(
    client: Official, cluster: LocalCluster, topic: str, producer: str
) -> None:
    """The message gets another handle, and the acknowledgement with it works after the first time
    is over."""
    send(client, topic)
    simple(client, topic, await_s=2)
    (got,) = receive_some(client, invisible_s=5)
    over = time.monotonic() + 5
    assert client.do("change", name="c", id=got["id"], seconds=60) != got["handle"]
    while time.monotonic() < over + 1:
        assert receive(client) == []
    client.do("ack", name="c", id=got["id"])
    assert until_done(cluster, "G", topic, 1).once


def test_statement_068_push_consumes_each_message_once(
    client: Official, cluster: LocalCluster, topic: str, producer: str
) -> None:
    """100 messages, 100 calls of the listener, 100 acknowledgements; by the log nothing more can
    come."""
    push(client, topic)
    client.do("send_many", name="p", messages=[message(topic, str(i)) for i in range(100)])
    seen = events(client, 100)
    assert sorted(int(text(got)) for got in seen) == list(range(100))
    assert until_done(cluster, "P", topic, 100).once
    assert len(client.do("events", name="push")) == 100


@pytest.mark.parametrize("mode", ["fail", "raise"])
def test_statement_069_070_a_failing_listener(
    client: Official, cluster: LocalCluster, topic: str, producer: str, mode: str
) -> None:
    """The next delivery comes one second later, not earlier, with attempt 2."""
    push(client, topic, behaviour={"bad_attempts": 1, "mode": mode})
    send(client, topic)
    seen = events(client, 2, within_s=late(1) + 10)
    assert [got["attempt"] for got in seen] == [1, 2]
    leases = next(iter(until_done(cluster, "P", topic, 1).leases.values()))
    assert [attempt for attempt, _ in leases] == [1, 2]
    assert leases[1][1] - leases[0][1] >= 1000


def test_statement_071_a_slow_listener(
    client: Official, cluster: LocalCluster, topic: str, producer: str
) -> None:
    """A listener that works much longer than the liveness limit is called once; its acknowledgement
    with the original handle counts."""
    push(client, topic, behaviour={"seconds": 3 * LIVENESS_S})
    send(client, topic)
    events(client, 1)
    assert until_done(cluster, "P", topic, 1).once
    assert len(client.do("events", name="push")) == 1


def test_statement_072_a_killed_consumer(
    client: Official, cluster: LocalCluster, topic: str, producer: str, tmp_path: Path
) -> None:
    """What a killed consumer held comes to another member after the liveness limit, with attempt
    2."""
    with official(cluster, tmp_path / "victim") as victim:
        push(victim, topic, behaviour={"seconds": 600})
        send(client, topic)
        events(victim, 1)
        victim.kill()
    push(client, topic)
    (got,) = events(client, 1, within_s=late(LIVENESS_S))
    assert got["attempt"] == 2
    leases = next(iter(Deliveries(cluster, "P", topic).leases.values()))
    assert [attempt for attempt, _ in leases] == [1, 2]


@NOT_BUILT
def test_a_consumer_that_stood_still_gets_its_message_when_it_goes_on(tmp_path: Path) -> None:
    """The answer reached the kernel of a stopped process, which dropped it when it went on: its
    call's deadline had passed. The client lives, so without a proof its node would keep the lease
    for three hours."""
    delivery = {"long_poll_max_ms": 5000, "liveness_ms": 600_000}
    with (
        real.running(tmp_path / "nodes", nodes=1, extra={"delivery": delivery}) as cluster,
        official(cluster, tmp_path / "consumer") as consumer,
        official(cluster, tmp_path / "producer") as producer,
    ):
        real.create_topic(cluster, "T")
        push(consumer, "T")
        producer.do("producer", name="p", topics=["T"])
        send(producer, "T", "first")
        until_done(cluster, "P", "T", 1)
        consumer.process.send_signal(signal.SIGSTOP)
        send(producer, "T", "second")

        def changed_ms() -> int | None:
            return next(
                (at for kind, at, _ in control_records(cluster, "n1") if kind == "change"), None
            )

        given_back_ms = real.wait_for(changed_ms, late(10), "an answer that is given back")
        # That is half a second before the deadline of its call, until which the client would take
        # the answer.
        real.wait_for(lambda: time.time() * 1000 > given_back_ms + 1000, 30, "the deadline")
        consumer.process.send_signal(signal.SIGCONT)

        def got_again() -> list[tuple[str, int]] | None:
            found = [(text(got), got["attempt"]) for got in events(consumer, 1)]
            return found if ("second", 2) in found else None

        # A client that reads before it looks at its timers takes the answer whose deadline has
        # passed, and then gets the message twice.
        found = real.wait_for(got_again, late(10), "the message again")
        assert found in (
            [("first", 1), ("second", 2)],
            [("first", 1), ("second", 1), ("second", 2)],
        )
        until_done(cluster, "P", "T", 2)


def test_statement_073_shutdown_of_an_idle_push_consumer(client: Official, topic: str) -> None:
    """It ends within the long poll time and a little."""
    push(client, topic)
    assert client.do("shutdown", name="push") < LONG_POLL_S + late(3)


@pytest.mark.verify
def test_statement_074_late_subscriber_with_a_small_cache(
    client: Official, cluster: LocalCluster, topic: str, producer: str
) -> None:
    """A consumer that comes late and holds few messages at a time gets all of them in the end."""
    client.do("send_many", name="p", messages=[message(topic, str(i)) for i in range(150)])
    push(client, topic, options={"max_cache_message_count": 8})
    seen = events(client, 150, within_s=60)
    assert sorted(int(text(got)) for got in seen) == list(range(150))
    assert until_done(cluster, "P", topic, 150).once


def test_statement_092_lite_topics(client: Official, cluster: LocalCluster) -> None:
    """Simple and push consumers get their own lite topics only, each in order and with its name;
    after unsubscribing no more."""
    parent = f"L{next(_numbers)}"
    real.create_topic(cluster, parent, "lite")
    for group in ("LS", "LP"):
        request = admin_pb2.CreateGroupRequest(
            group=admin_pb2.Name(name=group + parent), max_attempts=17, lite_topic=parent
        )
        assert real.admin(cluster, "n1", "CreateGroup", request).status.code == 20000
    client.do("producer", name="p", topics=[parent])
    client.do("lite_simple", name="s", group="LS" + parent, topic=parent, await_s=1)
    client.do("lite_push", name="push", group="LP" + parent, topic=parent)
    for name, own in (("s", ("room42", "room43")), ("push", ("room42",))):
        for lite in own:
            real.wait_for(
                lambda name=name, lite=lite: _subscribed(client, name, lite), 15, "a subscription"
            )

    def say(lite: str, *bodies: str) -> None:
        for body in bodies:
            send(client, parent, body, lite_topic=lite)

    say("room42", "a", "b", "c")
    say("other", "x")
    say("room43", "d")
    got: list[tuple[str, str]] = []
    while len(got) < 4:
        for found in receive_some(client, "s"):
            got.append((found["lite_topic"], text(found)))
            client.do("ack", name="s", id=found["id"])
    assert sorted(got) == [("room42", "a"), ("room42", "b"), ("room42", "c"), ("room43", "d")]
    assert [body for lite, body in got if lite == "room42"] == ["a", "b", "c"]
    assert [(e["lite_topic"], text(e)) for e in events(client, 3)] == [
        ("room42", body) for body in "abc"
    ]
    client.do("unsubscribe_lite", name="s", lite="room42")
    say("room42", "later")
    say("room43", "e")
    (found,) = receive_some(client, "s")
    assert (found["lite_topic"], text(found)) == ("room43", "e")
    assert text(events(client, 4)[3]) == "later"


def _subscribed(client: Official, name: str, lite: str) -> bool:
    """Whether the client knows its quota yet: it comes with the settings, for which a simple
    consumer does not wait."""
    try:
        client.do("subscribe_lite", name=name, lite=lite)
    except ClientError as error:
        assert "Quota" in error.kind or "Quota" in error.text, error
        return False
    return True


def test_statement_023_074_after_a_restart_of_all_nodes(tmp_path: Path) -> None:
    """Existing clients send, receive and acknowledge again after every node was killed and started,
    without new Settings from them."""
    with (
        real.running(tmp_path, extra=FAST) as cluster,
        official(cluster, tmp_path / "home") as client,
    ):
        real.create_topic(cluster, "T")
        client.do("producer", name="p", topics=["T"])
        push(client, "T")
        send(client, "T", "before")
        events(client, 1)
        for node in cluster.nodes:
            cluster.kill(node)
        cluster.start_all()
        cluster.wait_ready()

        identity = real.wait_for(
            lambda: sent_or_none(client, "T", "after"), late(15), "a send after the restart"
        )
        real.wait_for(
            lambda: identity in {got["id"] for got in client.do("events", name="push")},
            late(15),
            "the message after the restart",
        )
        found = real.wait_for(
            lambda: d if (d := Deliveries(cluster, "P", "T")).done and len(d.acked) >= 2 else None,
            30,
            "acknowledgements",
        )
        assert found.done


def test_two_broker_groups_share_a_topic_and_lose_a_leader(tmp_path: Path) -> None:
    """One topic has queues in two broker groups of three nodes; the official client does not notice
    this, nor the kill of a leader.

    Every message group has one queue and the order in which it was sent.
    """
    with (
        real.running(tmp_path, groups=("g1", "g2"), extra=FAST) as cluster,
        official(cluster, tmp_path / "home") as client,
    ):
        real.create_topic(cluster, "T", queues=4)
        real.create_topic(cluster, "F", kind="fifo", queues=8)
        client.do("producer", name="p", topics=["T", "F"])
        push(client, "T")
        push(client, "F", name="planes", group="Q")
        client.do("send_many", name="p", messages=[message("T", str(i)) for i in range(80)])
        victim = real.leader(cluster, "g1")
        for i in range(80):
            if i == 40:
                cluster.kill(victim)
            real.wait_for(
                lambda i=i: sent_or_none(client, "F", f"{i}", message_group=f"plane-{i % 8}"),
                30,
                f"send {i}",
            )  # type: ignore[misc]
        cluster.start(victim)
        cluster.wait_ready()
        for name in ("push", "planes"):
            real.wait_for(
                lambda name=name: (
                    {int(text(got)) for got in client.do("events", name=name)} == set(range(80))
                    or None
                ),  # type: ignore[misc]
                60,
                f"all messages at {name}",
            )
        places: dict[str, dict[int, tuple[str, int, int]]] = {}
        for group in ("g1", "g2"):
            for record in records(cluster, real.leader(cluster, group), group):
                if record.topic == "F":
                    plane = places.setdefault(parse(record.properties)["__SHARDINGKEY"], {})
                    plane.setdefault(int(record.body), (group, record.queue, record.queue_offset))
        assert sorted(number for plane in places.values() for number in plane) == list(range(80))
        assert {group for plane in places.values() for group, _, _ in plane.values()} == {
            "g1",
            "g2",
        }
        for plane in places.values():
            assert len({place[:2] for place in plane.values()}) == 1
            by_offset = sorted(plane, key=lambda number: plane[number][2])
            assert by_offset == sorted(plane)


def sent_or_none(client: Official, topic: str, body: str, **fields: Any) -> str | None:
    """The id of a message, or None when the client gave up: its caller sends it again."""
    try:
        return str(send(client, topic, body, **fields)["id"])
    except ClientError:
        return None
