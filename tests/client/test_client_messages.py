"""Sending with a window, receiving with patience, acknowledging."""

from __future__ import annotations

import queue
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import grpc
import pytest

from ledgermq.client.api.connection import Connection
from ledgermq.client.errors import Refused, Unreachable
from ledgermq.client.messages import sending
from ledgermq.client.messages.receiving import Receiver
from ledgermq.client.messages.sending import Outgoing, Sender, new_message_id
from ledgermq.proto import messaging_pb2 as pb
from tests.client.fake_cluster import (
    FakeNode,
    acked,
    delivered,
    endpoints,
    fake_nodes,
    route,
    sent,
    status,
    verdict,
)

UNAVAILABLE = grpc.StatusCode.UNAVAILABLE


def outgoing(count: int) -> list[Outgoing]:
    return [Outgoing("t", f"b{k}".encode()) for k in range(count)]


def bodies(node: FakeNode) -> list[bytes]:
    return [
        message.body for request in node.requests["SendMessage"] for message in request.messages
    ]


# -- sending


def test_message_ids_are_of_version_1_and_unique() -> None:
    """34 upper-case hexadecimal characters beginning with 01."""
    ids = [new_message_id() for _ in range(1000)]
    assert all(re.fullmatch(r"01[0-9A-F]{32}", found) for found in ids) and len(set(ids)) == 1000


CONTAINER = """
import os, socket, time, uuid
os.getpid, socket.gethostname, time.time, uuid.getnode = (lambda: 1), (lambda: "app"), (lambda: 1.8e9), (lambda: 7)
from ledgermq.client.api.connection import Connection
from ledgermq.client.messages.sending import new_message_id
print(new_message_id(), Connection().client_id)
"""


def test_ids_of_two_containers_differ() -> None:
    """Same host name, MAC address, process id and second: neither message ids nor client ids are
    equal."""
    said = [
        subprocess.run(
            [sys.executable, "-c", CONTAINER], capture_output=True, text=True, check=True
        ).stdout.split()
        for _ in "ab"
    ]
    assert not set(said[0]) & set(said[1])
    assert all(client.startswith("app@1@") for _, client in said)


def test_message_fields_reach_the_wire_unencoded() -> None:
    """Tag, keys, properties, group and namespace reach the wire; a body is never encoded."""
    message = Outgoing(
        "t",
        b"\xff",
        tag="a",
        keys=("k1", "k2"),
        properties={"p": "1"},
        message_group="g",
        namespace="ns",
    ).to_proto("ID")
    system = message.system_properties
    assert (message.topic.resource_namespace, message.topic.name, message.body) == (
        "ns",
        "t",
        b"\xff",
    )
    assert (system.tag, list(system.keys), dict(message.user_properties), system.message_group) == (
        "a",
        ["k1", "k2"],
        {"p": "1"},
        "g",
    )
    assert (system.message_id, system.message_type, system.body_encoding) == (
        "ID",
        pb.MessageType.FIFO,
        pb.Encoding.IDENTITY,
    )
    plain = Outgoing("t", b"").to_proto("ID").system_properties
    assert (
        plain.message_type == pb.MessageType.NORMAL
        and not plain.HasField("tag")
        and not plain.HasField("message_group")
    )


def test_all_sent_and_acknowledged() -> None:
    """The summary has the counts and the durability that the node stated; progress was reported."""
    told: list[int] = []
    with fake_nodes() as nodes:
        nodes[0].answers("SendMessage", sent)
        nodes[0].trailing = (("x-ledgermq-durability", "durable"),)
        with Connection(endpoints(nodes)) as connection:
            summary = Sender(connection, window=4).send_all(outgoing(20), told.append)
        assert sorted(bodies(nodes[0])) == sorted(f"b{k}".encode() for k in range(20))
    assert (summary.sent, summary.acknowledged, summary.failed, summary.durability) == (
        20,
        20,
        0,
        "durable",
    )
    assert summary.first_error is None and told == list(range(1, 21))


def test_the_summary_names_the_weaker_class() -> None:
    """If one acknowledgement is from memory, first or last, the whole batch counts as not
    durable."""
    for classes in (
        ["durable", "memory", "durable"],
        ["memory", "durable", "durable"],
        ["durable", "durable", "memory"],
    ):
        with fake_nodes() as nodes, Connection(endpoints(nodes)) as connection:
            nodes[0].answers("SendMessage", sent)
            sender = Sender(connection, window=1)
            for durability in classes:
                nodes[0].trailing = (("x-ledgermq-durability", durability),)
                summary = sender.send_all(outgoing(1))
        assert (summary.acknowledged, summary.durability) == (3, "memory")


@pytest.mark.parametrize(
    "failure", [UNAVAILABLE, pb.SendMessageResponse(status=status(50002, "no leader"))]
)
def test_a_send_is_repeated_under_its_own_id(failure: object) -> None:
    """After a retryable failure, the message is sent again with the same id, so that the node can
    detect a duplicate."""
    with fake_nodes() as nodes:
        nodes[0].answers("SendMessage", failure, failure, sent)
        with Connection(endpoints(nodes)) as connection:
            summary = Sender(connection).send_all(outgoing(1))
        ids = {
            message.system_properties.message_id
            for request in nodes[0].requests["SendMessage"]
            for message in request.messages
        }
        assert len(nodes[0].requests["SendMessage"]) == 3 and len(ids) == 1
    assert (summary.acknowledged, summary.failed) == (1, 0)


def test_a_refused_send_is_not_repeated_and_does_not_stop_the_others() -> None:
    """The summary keeps the first refusal; the others are acknowledged."""

    def only_even(request: pb.SendMessageRequest) -> pb.SendMessageResponse:
        odd = int(request.messages[0].body[1:]) % 2
        return pb.SendMessageResponse(status=status(40014, "wrong kind")) if odd else sent(request)

    with fake_nodes() as nodes:
        nodes[0].answers("SendMessage", only_even)
        with Connection(endpoints(nodes)) as connection:
            summary = Sender(connection).send_all(outgoing(10))
        assert len(bodies(nodes[0])) == 10
    assert (summary.sent, summary.acknowledged, summary.failed) == (10, 5, 5)
    assert isinstance(summary.first_error, Refused) and summary.first_error.code == 40014


def test_a_window_that_failed_lands_at_the_next_endpoint() -> None:
    """With a dead node among the endpoints everything is acknowledged by the one that lives."""
    with fake_nodes(3) as nodes:
        for dead in (nodes[0], nodes[2]):
            dead.answers("SendMessage", UNAVAILABLE)
        nodes[1].answers("SendMessage", sent)
        with Connection(endpoints(nodes)) as connection:
            summary = Sender(connection, window=8).send_all(outgoing(40))
            assert connection.address.port == nodes[1].port
        assert (
            set(bodies(nodes[1])) == {f"b{k}".encode() for k in range(40)}
            and bodies(nodes[2]) == []
        )
    assert summary.acknowledged == 40


def test_sending_gives_up_in_time() -> None:
    """Unacknowledged messages fail as unreachable after the timeout."""
    with fake_nodes() as nodes:
        nodes[0].answers("SendMessage", UNAVAILABLE)
        with Connection(endpoints(nodes), timeout_s=0.2) as connection:
            summary = Sender(connection).send_all(outgoing(1))
    assert (summary.acknowledged, summary.failed) == (0, 1) and isinstance(
        summary.first_error, Unreachable
    )


def test_a_failure_found_late_is_still_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the source stalls for longer than the timeout, a call that failed in the meantime is still
    repeated."""
    with fake_nodes() as nodes:
        nodes[0].answers("SendMessage", UNAVAILABLE, sent)

        late = 0.0
        clock = SimpleNamespace(
            time=time.time, sleep=time.sleep, monotonic=lambda: time.monotonic() + late
        )
        monkeypatch.setattr(sending, "time", clock)

        def source() -> Iterator[Outgoing]:
            nonlocal late
            yield from outgoing(1)
            late = 60.0

        with Connection(endpoints(nodes), timeout_s=0.2) as connection:
            assert Sender(connection).send_all(source()).acknowledged == 1


class Cluster:
    """Answers every send at once, on a clock of its own that only pauses move."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, acknowledges: Callable[[bytes, float], bool]
    ) -> None:
        self.now_s = 0.0
        self.calls: list[bytes] = []
        self._acknowledges = acknowledges
        monkeypatch.setattr(
            sending,
            "time",
            SimpleNamespace(time=time.time, sleep=self._sleep, monotonic=lambda: self.now_s),
        )
        monkeypatch.setattr(sending.service, "send_message", self._send)

    def _sleep(self, seconds: float) -> None:
        self.now_s += seconds

    def _send(
        self, channel: object, request: pb.SendMessageRequest, metadata: object, timeout: float
    ) -> SimpleNamespace:
        (message,) = request.messages
        self.calls.append(message.body)
        done = self._acknowledges(message.body, self.now_s)
        answer = (
            sent(request)
            if done
            else pb.SendMessageResponse(status=status(50002, "broker group g2 has no leader"))
        )
        return SimpleNamespace(
            result=lambda: answer, done=lambda: True, trailing_metadata=lambda: ()
        )


def test_a_whole_window_is_repeated_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """An election that takes almost as long as the time-out costs no message, however many were
    sent into it."""
    cluster = Cluster(monkeypatch, lambda body, now_s: now_s >= 8)
    with Connection("127.0.0.1:1", timeout_s=10) as connection:
        summary = Sender(connection, window=64).send_all(outgoing(64))
    assert (summary.acknowledged, summary.failed, summary.given_up) == (64, 0, False)
    assert cluster.now_s < 9


def test_half_a_cluster_without_a_leader_costs_one_time_out_for_each_window(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Not one for each message. The others are acknowledged, and all is sent."""
    cluster = Cluster(monkeypatch, lambda body, now_s: int(body[1:]) % 2 == 0)
    with Connection("127.0.0.1:1", timeout_s=10) as connection:
        summary = Sender(connection, window=40).send_all(outgoing(40))
    assert (summary.sent, summary.acknowledged, summary.failed, summary.given_up) == (
        40,
        20,
        20,
        False,
    )
    assert cluster.now_s < 11 and "broker group g2 has no leader" in str(summary.first_error)


@pytest.mark.parametrize("window", [1, 64])
def test_sending_stops_after_a_timeout_without_acknowledgements(
    monkeypatch: pytest.MonkeyPatch, window: int
) -> None:
    """A cluster that is down from some moment on ends a long input after one time-out."""
    cluster = Cluster(monkeypatch, lambda body, now_s: int(body[1:]) < 100)
    with Connection("127.0.0.1:1", timeout_s=10) as connection:
        summary = Sender(connection, window=window).send_all(outgoing(100_000))
    assert (summary.sent, summary.acknowledged, summary.failed, summary.given_up) == (
        100 + window,
        100,
        window,
        True,
    )
    assert cluster.now_s < 11


def test_order_is_kept_with_a_window_of_one() -> None:
    """One at a time: a repeated send comes before the next one begins."""
    with fake_nodes() as nodes:
        nodes[0].answers("SendMessage", sent, UNAVAILABLE, sent)
        with Connection(endpoints(nodes)) as connection:
            Sender(connection, window=1).send_all(outgoing(4))
        assert bodies(nodes[0]) == [b"b0", b"b1", b"b1", b"b2", b"b3"]


# -- receiving


def receiver(connection: Connection) -> Receiver:
    return Receiver(connection, "t", "g", expression="a || b", namespace="ns", invisible_s=7)


def test_poll_request_carries_its_arguments() -> None:
    """Group, topic, filter, batch, lease and waiting time reach the wire."""
    with fake_nodes() as nodes:
        nodes[0].answers("QueryRoute", route())
        nodes[0].answers("ReceiveMessage", [delivered(b"one"), delivered(b"two", 1), verdict()])
        with Connection(endpoints(nodes)) as connection:
            found = receiver(connection).receive(0.5, 9)
        (request,) = nodes[0].requests["ReceiveMessage"]
    assert [message.body for message in found] == [b"one", b"two"]
    assert (request.group.resource_namespace, request.group.name, request.batch_size) == (
        "ns",
        "g",
        9,
    )
    assert (request.filter_expression.type, request.filter_expression.expression) == (
        pb.FilterType.TAG,
        "a || b",
    )
    assert (
        request.invisible_duration.ToMilliseconds(),
        request.long_polling_timeout.ToMilliseconds(),
    ) == (7000, 500)


class Brokers:
    """Answers polls by broker: each test says when which broker answers with what."""

    def __init__(self, node: FakeNode, *names: str) -> None:
        self.answers: dict[str, queue.SimpleQueue[list[pb.ReceiveMessageResponse]]] = {
            name: queue.SimpleQueue() for name in names
        }
        self.polls: dict[str, list[int]] = {name: [] for name in names}
        """By broker, the time that each of its polls waits, in ms."""
        node.answers("QueryRoute", route(brokers=names))
        node.answers("ReceiveMessage", self._answer)

    def _answer(self, request: pb.ReceiveMessageRequest) -> Iterator[pb.ReceiveMessageResponse]:
        name = request.message_queue.broker.name
        self.polls[name].append(request.long_polling_timeout.ToMilliseconds())
        yield from self.answers[name].get()

    def __enter__(self) -> Brokers:
        return self

    def __exit__(self, *_: object) -> None:
        """Polls that nobody answered end, so that the node can stop."""
        for name, polls in self.polls.items():
            for _ in polls:
                self.give(name)

    def give(self, name: str, *bodies: bytes) -> None:
        found = [delivered(body, k) for k, body in enumerate(bodies)]
        self.answers[name].put([*found, verdict()] if found else [verdict(40401)])


@contextmanager
def polled(*names: str) -> Iterator[tuple[Brokers, FakeNode, Receiver]]:
    """Brokers of one topic behind one node, and a receiver of the topic."""
    with (
        fake_nodes() as nodes,
        Brokers(nodes[0], *names) as brokers,
        Connection(endpoints(nodes)) as connection,
        receiver(connection) as polling,
    ):
        yield brokers, nodes[0], polling


def test_a_broker_without_messages_holds_up_no_other_one() -> None:
    """Its poll stands while others are answered, and nobody asks it a second time meanwhile."""
    with polled("empty", "full") as (brokers, node, polling):
        for k in range(4):
            brokers.give("full", b"%d" % k)
            assert [message.body for message in polling.receive(3600)] == [b"%d" % k]
        assert len(brokers.polls["empty"]) == 1
        brokers.give("empty", b"late")
        assert [message.body for message in polling.receive(3600)] == [b"late"]
    assert len(node.requests["QueryRoute"]) == 1


def test_a_broker_without_a_leader_holds_up_no_other_one() -> None:
    """Its poll is repeated while messages of another one are handed out."""
    with polled("g1", "g2") as (brokers, _, polling):
        for k in range(3):
            brokers.answers["g1"].put([verdict(50002, "no leader")])
            brokers.give("g2", b"%d" % k)
            assert [message.body for message in polling.receive(3600)] == [b"%d" % k]
        brokers.give("g1", b"elected")
        assert [message.body for message in polling.receive(3600)] == [b"elected"]


def test_topic_is_empty_after_a_whole_wait_at_each_broker() -> None:
    """Each broker is waited at for the whole time, and one whose poll is older than that wait is
    asked once more."""
    with polled("g1", "g2", "g3") as (brokers, _, polling):
        for name in brokers.answers:
            brokers.give(name)
        assert polling.receive(3600) == []
        # The time is not divided among them.
        assert all(waited_ms > 1_800_000 for polls in brokers.polls.values() for waited_ms in polls)
        brokers.give("g1", b"one")
        assert [message.body for message in polling.receive(3600)] == [b"one"]
        for name in ("g1", "g2", "g3", "g2", "g3"):
            brokers.give(name)
        assert polling.receive(0) == []
        assert {name: len(polls) for name, polls in brokers.polls.items()} == {
            "g1": 3,
            "g2": 3,
            "g3": 3,
        }


def test_batch_is_bounded_and_surplus_messages_are_returned() -> None:
    """What a poll had beyond the batch comes with the next call. At the end, what no call returned
    goes back to the cluster."""
    with polled("g1", "g2") as (brokers, node, polling):
        node.answers("ChangeInvisibleDuration", pb.ChangeInvisibleDurationResponse(status=status()))
        brokers.give("g1", b"a", b"b", b"c")
        assert [message.body for message in polling.receive(3600, 1)] == [b"a"]
        assert [message.body for message in polling.receive(3600, 1)] == [b"b"]
        # A poll that is answered between two calls is answered for the second one.
        brokers.give("g2", b"d")
        polling._polls["g2"].result()
        changed = node.requests["ChangeInvisibleDuration"]
    assert [request.receipt_handle for request in changed] == ["handle-2", "handle-0"]
    assert [request.message_id for request in changed] == ["id-2", "id-0"]
    assert {
        (request.group.name, request.invisible_duration.ToMilliseconds()) for request in changed
    } == {("g", 0)}


def test_closing_ends_polls_that_stand_and_gives_up_on_a_node_that_does_not_answer() -> None:
    """Neither a poll of an hour nor a lease that cannot be given back holds up the end."""
    with polled("g1", "g2") as (brokers, node, polling):
        brokers.give("g1", b"a", b"b")
        node.answers("ChangeInvisibleDuration", UNAVAILABLE)
        assert [message.body for message in polling.receive(3600, 1)] == [b"a"]
    assert len(node.requests["ChangeInvisibleDuration"]) == 1


def test_refusal_of_one_broker_is_raised_and_other_answers_kept() -> None:
    """A wrong filter is an error, whatever the other brokers do."""
    with polled("g1", "g2") as (brokers, _, polling):
        brokers.answers["g1"].put([verdict(40010, "no SQL")])
        with pytest.raises(Refused, match="no SQL"):
            polling.receive(3600)
        brokers.give("g2", b"kept")
        assert [message.body for message in polling.receive(3600)] == [b"kept"]


@pytest.mark.parametrize(
    "trouble", [UNAVAILABLE, [verdict(50002, "no leader")], [verdict(42900, "busy")]]
)
def test_an_election_is_not_an_empty_topic(trouble: object) -> None:
    """A poll that met no leader is repeated until it met one."""
    with fake_nodes() as nodes:
        nodes[0].answers("QueryRoute", route())
        nodes[0].answers("ReceiveMessage", trouble, trouble, [delivered(b"late"), verdict()])
        with Connection(endpoints(nodes)) as connection:
            assert [m.body for m in receiver(connection).receive(0.1)] == [b"late"]


def test_messages_before_a_broken_stream_are_kept() -> None:
    """They are leased to this client: dropping them would delay them by the whole lease."""
    with fake_nodes() as nodes:
        nodes[0].answers("QueryRoute", route())
        nodes[0].answers("ReceiveMessage", [delivered(b"kept"), UNAVAILABLE])
        with Connection(endpoints(nodes)) as connection:
            assert [m.body for m in receiver(connection).receive(0.1)] == [b"kept"]


def test_receiving_gives_up_in_time() -> None:
    """A cluster without a leader is unreachable in the end, with the last reason."""
    with fake_nodes() as nodes:
        nodes[0].answers("QueryRoute", route())
        nodes[0].answers("ReceiveMessage", [verdict(50002, "no leader in sight")])
        with (
            Connection(endpoints(nodes), timeout_s=1.5) as connection,
            pytest.raises(Unreachable, match="no leader in sight"),
        ):
            receiver(connection).receive(0.05)


def test_a_refused_poll_is_refused() -> None:
    """A wrong filter is no empty topic."""
    with fake_nodes() as nodes:
        nodes[0].answers("QueryRoute", route())
        nodes[0].answers("ReceiveMessage", [verdict(40010, "no SQL")])
        with Connection(endpoints(nodes)) as connection, pytest.raises(Refused, match="no SQL"):
            receiver(connection).receive(0.1)
        assert len(nodes[0].requests["ReceiveMessage"]) == 1


def test_an_unknown_topic_is_refused_before_any_poll() -> None:
    """`route` says so."""
    with fake_nodes() as nodes:
        nodes[0].answers("QueryRoute", pb.QueryRouteResponse(status=status(40402, "no topic t")))
        with Connection(endpoints(nodes)) as connection, pytest.raises(Refused, match="no topic t"):
            receiver(connection).route()


# -- acknowledging


def received(count: int) -> list[pb.Message]:
    return [delivered(b"b", k).message for k in range(count)]


def test_acknowledge_sends_every_handle_and_counts_accepted_ones() -> None:
    """Entries whose lease ran out are not counted."""

    def all_but_the_first(request: pb.AckMessageRequest) -> pb.AckMessageResponse:
        answer = acked(request)
        answer.status.code = 30000
        answer.entries[0].status.code = 40013
        return answer

    with fake_nodes() as nodes:
        nodes[0].answers(
            "AckMessage",
            UNAVAILABLE,
            pb.AckMessageResponse(status=status(50002)),
            all_but_the_first,
        )
        with Connection(endpoints(nodes)) as connection:
            assert receiver(connection).acknowledge(received(3)) == 2
        assert len(nodes[0].requests["AckMessage"]) == 3
        entries = nodes[0].requests["AckMessage"][-1].entries
    assert [(e.message_id, e.receipt_handle) for e in entries] == [
        (f"id-{k}", f"handle-{k}") for k in range(3)
    ]


def test_an_acknowledgement_refused_as_a_whole_is_an_error() -> None:
    """Nothing was acknowledged and repeating cannot help."""
    with fake_nodes() as nodes:
        nodes[0].answers("AckMessage", pb.AckMessageResponse(status=status(40002, "illegal topic")))
        with (
            Connection(endpoints(nodes)) as connection,
            pytest.raises(Refused, match="illegal topic"),
        ):
            receiver(connection).acknowledge(received(1))


def test_a_call_the_node_does_not_offer_is_refused() -> None:
    """UNIMPLEMENTED ends at once."""
    with (
        fake_nodes() as nodes,
        Connection(endpoints(nodes)) as connection,
        pytest.raises(Refused, match="UNIMPLEMENTED"),
    ):
        receiver(connection).acknowledge(received(1))
