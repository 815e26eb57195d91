"""The public administration API, the blocking and the awaited form over the same cases."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from google.protobuf.message import Message

from ledgermq.client import (
    Admin,
    AsyncAdmin,
    AsyncConnection,
    Backoff,
    BadArgument,
    Connection,
    Credentials,
    Refused,
    Unreachable,
    results,
)
from ledgermq.client.api import connection
from ledgermq.client.api.reading import read
from ledgermq.proto import admin_pb2 as pb
from tests.client.fake_cluster import FakeNode, admin_status, endpoints, fake_nodes

UNAVAILABLE = grpc.StatusCode.UNAVAILABLE
NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)
NOON_MS = 1795262400000
PLACE: dict[str, Any] = {"broker_group": "g1", "group_queue": 1}
NS = pb.Name(namespace="shop", name="n")

Call = Callable[[Any], Any]
Run = Callable[..., Any]


def blocking(nodes: str, call: Call, **options: Any) -> Any:
    with Connection(nodes, **options) as opened:
        return call(Admin(opened))


def awaited(nodes: str, call: Call, **options: Any) -> Any:
    async def run() -> Any:
        async with AsyncConnection(nodes, **options) as opened:
            return await call(AsyncAdmin(opened))

    return asyncio.run(run())


both = pytest.mark.parametrize("run", [blocking, awaited])


def peeked(number: int = 0) -> pb.PeekedMessage:
    return pb.PeekedMessage(
        message_id=f"m{number}",
        topic=NS,
        queue=3,
        offset=number,
        body=b"b",
        store_ms=NOON_MS,
        **PLACE,
    )


TOPIC = pb.TopicInfo(
    topic=NS,
    kind="fifo",
    queues=4,
    permission="rw",
    messages=7,
    queue_list=[pb.QueueInfo(queue=3, max_offset=9, **PLACE)],
)
GROUP = pb.ConsumerGroupInfo(
    group=NS, max_attempts=5, configured=True, backoff=pb.Backoff(steps_ms=[10, 20])
)
LAG = [
    pb.TopicLag(
        topic=NS,
        queues=[pb.QueueLag(queue=2, **PLACE), pb.QueueLag(queue=3, cursor=5, lag=0, **PLACE)],
    )
]
USER = pb.UserInfo(name="u", grants=["publish:topic:*"], secrets=1)
WHY = {"answer": "so", "reason": "leased", "evidence": ["a", "b"]}
EXPLAINED = results.Explanation("so", "leased", ("a", "b"))
WHERE = results.Addresses("h:1", "h:2", "h:3", "h:4")
ADDRESSES = pb.NodeAddresses(client="h:1", peer="h:2", controller="h:3", http="h:4")
LETTER = pb.DeadLetter(
    message=peeked(7), state="waiting", topic=NS, group_queue=3, offset=9, client="c", body_bytes=1
)
WAITING = pb.WaitingMessage(
    message=peeked(8),
    place=pb.WaitingPlace(broker_group="g1", fire_ms=5, offset=6, message_id="m8"),
    checks=2,
)
Change = pb.ChangeMemberRequest

# What is called, the request that must arrive, the rest of the answer, and what must be true of the
# result.
CASES: list[tuple[Call, Message, dict[str, Any], Callable[[Any], bool]]] = [
    (
        lambda a: a.status(),
        pb.ClusterStatusRequest(),
        {"health": "ok"},
        lambda r: r.health == "ok" and r.cluster_id is None,
    ),
    (
        lambda a: a.broker_groups(),
        pb.ListBrokerGroupsRequest(),
        {
            "groups": [
                pb.BrokerGroupEntry(
                    broker_group="g1",
                    replicas=["n1"],
                    move=pb.ReplicaMove(from_node="n1", to_node="n4"),
                )
            ]
        },
        lambda r: (
            (r[0].name, r[0].replicas, r[0].leader, r[0].move)
            == ("g1", ("n1",), None, results.Move("n1", "n4"))
        ),
    ),
    (
        lambda a: a.move_replica("g1", "n1", "n4"),
        pb.MoveReplicaRequest(broker_group="g1", from_node="n1", to_node="n4"),
        {"done": True, "step": "done", "left_directory": "/d"},
        lambda r: r == results.MoveProgress(True, "done", None, "/d"),
    ),
    (
        lambda a: a.move_replica("g1", "n1", "n4", abort=True, wait_s=0),
        pb.MoveReplicaRequest(broker_group="g1", from_node="n1", to_node="n4", abort=True),
        {"step": "remove", "waits_for": "n4"},
        lambda r: r == results.MoveProgress(False, "remove", "n4", None),
    ),
    (
        lambda a: a.rebalance_plan(),
        pb.PlanRebalanceRequest(),
        {
            "steps": [
                pb.RebalanceStep(
                    kind="add-queues", broker_group="g2", topic=NS, queues=8, reason="few"
                )
            ],
            "notes": ["kept"],
        },
        lambda r: (
            r
            == results.RebalancePlan(
                (results.RebalanceStep("add-queues", "g2", None, None, "shop@n", 8, "few"),),
                ("kept",),
            )
        ),
    ),
    (
        lambda a: a.rebalance_step(
            results.RebalanceStep("move-replica", "g1", "n1", "n4", None, 0, ""), wait_s=0
        ),
        pb.MoveReplicaRequest(broker_group="g1", from_node="n1", to_node="n4"),
        {},
        lambda r: r is False,
    ),
    (
        lambda a: a.rebalance_step(
            results.RebalanceStep("add-queues", "g2", None, None, "shop@n", 8, "")
        ),
        pb.UpdateTopicRequest(topic=NS, grow={"g2": 8}),
        {},
        lambda r: r is True,
    ),
    (
        lambda a: a.node("n2", log_lines=5, configuration=True),
        pb.DescribeNodeRequest(node="n2", log_lines=5, configuration=True),
        {"node": "n2", "pid": 7, "started_ms": NOON_MS, "configuration": "{}", "log": ["a"]},
        lambda r: (
            (r.pid, r.started, r.configuration, r.log, r.client_connections)
            == (7, NOON, "{}", ("a",), None)
        ),
    ),
    (
        lambda a: a.why_leader_moved("g1", last=3),
        pb.LeadershipHistoryRequest(broker_group="g1", last=3),
        WHY,
        lambda r: r == EXPLAINED,
    ),
    (
        lambda a: a.why_kept("g1", 64),
        pb.WhyKeptRequest(broker_group="g1", base=64),
        WHY,
        lambda r: r == EXPLAINED,
    ),
    (
        lambda a: a.finish_upgrade(),
        pb.FinishUpgradeRequest(),
        {"done": True, "level": 2, "raised": ["g1", "g2"], "changed": True},
        lambda r: r == results.FinishedUpgrade(2, ("g1", "g2"), True),
    ),
    (
        lambda a: a.begin_time_epoch("g1"),
        pb.BeginTimeEpochRequest(broker_group="g1"),
        {"before_ms": NOON_MS, "ms": NOON_MS},
        lambda r: r == results.TimeEpoch(NOON, NOON),
    ),
    (
        lambda a: a.seal("g1"),
        pb.SealNowRequest(broker_group="g1"),
        {"through": 7, "done": True, "size": 2, "next_index": 9},
        lambda r: r == results.Sealed(7, 2, 9),
    ),
    (
        lambda a: a.transfer("g1", "n2"),
        pb.TransferLeadershipRequest(broker_group="g1", to="n2"),
        {"done": True},
        lambda r: r is None,
    ),
    (
        lambda a: a.members(),
        pb.ListMembersRequest(),
        {
            "members": [
                pb.MemberInfo(
                    node="n1",
                    addresses=ADDRESSES,
                    groups=[pb.MemberProgress(broker_group="g1", role="voter")],
                )
            ]
        },
        lambda r: (
            r[0].addresses == WHERE
            and (r[0].groups[0].role, r[0].groups[0].lag_entries) == ("voter", None)
        ),
    ),
    (
        lambda a: a.add_member("n4", WHERE, groups=["g1"]),
        Change(kind=Change.ADD, node="n4", addresses=ADDRESSES, broker_groups=["g1"]),
        {"done": True},
        lambda r: r is None,
    ),
    (
        lambda a: a.promote_member("n4"),
        Change(kind=Change.PROMOTE, node="n4"),
        {"done": True},
        lambda r: r is None,
    ),
    (
        lambda a: a.remove_member("n4"),
        Change(kind=Change.REMOVE, node="n4"),
        {"done": True},
        lambda r: r is None,
    ),
    (
        lambda a: a.set_member_address("n4", WHERE),
        Change(kind=Change.SET_ADDRESS, node="n4", addresses=ADDRESSES),
        {"done": True},
        lambda r: r is None,
    ),
    (
        lambda a: a.clients(),
        pb.ListClientsRequest(),
        {
            "clients": [pb.ClientInfo(client_id="c", node="n1", topics=["shop@t"])],
            "unreachable": ["n2"],
        },
        lambda r: (
            (r.clients[0].topics, r.clients[0].group, r.unreachable) == (("shop@t",), None, ("n2",))
        ),
    ),
    (
        lambda a: a.topics(),
        pb.ListTopicsRequest(),
        {"topics": [TOPIC]},
        lambda r: [t.name for t in r] == ["shop@n"],
    ),
    (
        lambda a: a.topic("shop@n"),
        pb.DescribeTopicRequest(topic=NS),
        {"topic": TOPIC},
        lambda r: (
            (r.messages, r.durability, r.queue_list)
            == (7, None, (results.Queue(3, "g1", 1, None, 9),))
        ),
    ),
    (
        lambda a: a.create_topic("shop@n", kind="fifo", queues=4, durability="memory", dedup_ms=9),
        pb.CreateTopicRequest(
            topic=NS, kind="fifo", queues=4, permission="rw", durability="memory", dedup_ms=9
        ),
        {"topic": TOPIC},
        lambda r: r.kind == "fifo",
    ),
    (
        lambda a: a.create_topic("n"),
        pb.CreateTopicRequest(topic=pb.Name(name="n"), kind="normal", queues=8, permission="rw"),
        {"topic": TOPIC},
        lambda r: r.queues == 4,
    ),
    (
        lambda a: a.update_topic("shop@n", durability="group"),
        pb.UpdateTopicRequest(topic=NS, durability=""),
        {"topic": TOPIC},
        lambda r: r.kind == "fifo",
    ),
    (lambda a: a.delete_topic("shop@n"), pb.DeleteTopicRequest(topic=NS), {}, lambda r: r is None),
    (
        lambda a: a.groups(),
        pb.ListGroupsRequest(),
        {"groups": [GROUP]},
        lambda r: r[0].configured and r[0].clients is None,
    ),
    (
        lambda a: a.group("shop@n"),
        pb.DescribeGroupRequest(group=NS),
        {"group": GROUP},
        lambda r: (r.backoff, r.lite_topic) == (Backoff((10, 20)), None),
    ),
    (
        lambda a: a.create_group(
            "shop@n", fifo=True, backoff=Backoff(initial_ms=5, max_ms=9, multiplier=2.0)
        ),
        pb.CreateGroupRequest(
            group=NS,
            max_attempts=17,
            fifo=True,
            backoff=pb.Backoff(initial_ms=5, max_ms=9, multiplier=2.0),
        ),
        {"group": GROUP},
        lambda r: r.name == "shop@n",
    ),
    (
        lambda a: a.update_group("shop@n", broadcast=False, backoff=Backoff()),
        pb.UpdateGroupRequest(group=NS, broadcast=False, backoff=pb.Backoff()),
        {"group": GROUP},
        lambda r: r.max_attempts == 5,
    ),
    (
        lambda a: a.update_group("n", fifo=True),
        pb.UpdateGroupRequest(group=pb.Name(name="n"), fifo=True),
        {},
        lambda r: True,
    ),
    (lambda a: a.delete_group("shop@n"), pb.DeleteGroupRequest(group=NS), {}, lambda r: r is None),
    (
        lambda a: a.lag("shop@n"),
        pb.GroupLagRequest(group=NS),
        {"topics": LAG},
        lambda r: r[0].lag is None and [q.lag for q in r[0].queues] == [None, 0],
    ),
    (
        lambda a: a.lag("n", topic="shop@n"),
        pb.GroupLagRequest(group=pb.Name(name="n"), topic=NS),
        {},
        lambda r: r == (),
    ),
    (
        lambda a: a.reset("shop@n", "shop@n", "earliest"),
        pb.ResetGroupRequest(group=NS, topic=NS, earliest=True),
        {"queues": [pb.QueueCursor(queue=3, cursor=0, **PLACE)]},
        lambda r: r == (results.Cursor(3, "g1", 1, 0),),
    ),
    (
        lambda a: a.reset("shop@n", "shop@n", NOON),
        pb.ResetGroupRequest(group=NS, topic=NS, store_ms=NOON_MS),
        {},
        lambda r: r == (),
    ),
    (
        lambda a: a.reset("shop@n", "shop@n", 0, queue=0),
        pb.ResetGroupRequest(group=NS, topic=NS, offset=0, queue=0),
        {},
        lambda r: r == (),
    ),
    (
        lambda a: a.peek("shop@n", queue=0, start=7, limit=5000),
        pb.PeekRequest(topic=NS, queue=0, offset=7, max=1000),
        {"messages": [peeked()]},
        lambda r: (r[0].stored, r[0].born, r[0].tag, r[0].body) == (NOON, None, None, b"b"),
    ),
    (
        lambda a: a.peek("shop@n", start="latest"),
        pb.PeekRequest(topic=NS, latest=True, max=10),
        {},
        lambda r: r == (),
    ),
    (
        lambda a: a.query("shop@n", key="k", since=NOON, until=NOON + timedelta(milliseconds=1)),
        pb.QueryRequest(topic=NS, key="k", begin_ms=NOON_MS, end_ms=NOON_MS + 1, max=10),
        {
            "messages": [peeked()],
            "lagging": [pb.IndexProgress(broker_group="g1", indexed_to=1, applied_to=2)],
        },
        lambda r: (
            r.messages[0].message_id == "m0" and r.lagging == (results.IndexProgress("g1", 1, 2),)
        ),
    ),
    (
        lambda a: a.detail(read(results.Message, peeked(9))),
        pb.MessageDetailRequest(topic=NS, broker_group="g1", group_queue=1, offset=9),
        {
            "copies": [pb.ReplicaCopy(node="n1")],
            "consumption": [pb.ConsumptionState(group=NS, state="leased", attempt=2)],
        },
        lambda r: (
            r.copies[0].state is None
            and r.consumption == (results.Consumption("shop@n", "leased", 2, None),)
        ),
    ),
    (
        lambda a: a.trace("shop@n", "m"),
        pb.TraceMessageRequest(topic=NS, message_id="m"),
        {"events": [pb.TraceEvent(broker_group="g1", kind="stored", store_ms=NOON_MS)]},
        lambda r: (r[0].kind, r[0].stored, r[0].group) == ("stored", NOON, None),
    ),
    (
        lambda a: a.why_not_delivered("m", "shop@n"),
        pb.WhyNotDeliveredRequest(message_id="m", group=NS),
        WHY,
        lambda r: r == EXPLAINED,
    ),
    (
        lambda a: a.users(),
        pb.ListUsersRequest(),
        {"users": [USER]},
        lambda r: r[0].grants == ("publish:topic:*",),
    ),
    (
        lambda a: a.user("u"),
        pb.ListUsersRequest(name="u"),
        {"users": [USER]},
        lambda r: r.secrets == 1,
    ),
    (
        lambda a: a.create_user("u", "secret", grants=["publish:topic:*"]),
        pb.CreateUserRequest(name="u", secret_key="secret", grants=["publish:topic:*"]),
        {"user": USER},
        lambda r: r.name == "u",
    ),
    (
        lambda a: a.create_user("u", None, roles=["r"]),
        pb.CreateUserRequest(name="u", roles=["r"]),
        {"user": USER},
        lambda r: True,
    ),
    (
        lambda a: a.change_user("u", grant=["a"], take_roles=["r"], end_former_secret=True),
        pb.ChangeUserRequest(name="u", grant=["a"], take_roles=["r"], end_former_secret=True),
        {"user": USER},
        lambda r: not r.role,
    ),
    (lambda a: a.delete_user("u"), pb.DeleteUserRequest(name="u"), {}, lambda r: r is None),
    (
        lambda a: a.dead_letter_counts("shop@n"),
        pb.CountDeadLettersRequest(group=NS),
        {
            "groups": [
                pb.DeadLetterCount(group=NS, unsettled=3, resent=2, purged=1, oldest_ms=NOON_MS)
            ]
        },
        lambda r: [(c.unsettled, c.resent, c.purged, c.oldest) for c in r] == [(3, 2, 1, NOON)],
    ),
    (
        lambda a: a.dead_letters(
            "shop@n", message_ids=["m7"], since=NOON, until=NOON, settled=True, bodies=True, limit=5
        ),
        pb.ListDeadLettersRequest(
            group=NS,
            message_ids=["m7"],
            begin_ms=NOON_MS,
            end_ms=NOON_MS,
            settled=True,
            bodies=True,
            max=5,
        ),
        {"letters": [LETTER]},
        lambda r: r == (read(results.DeadLetter, LETTER),),
    ),
    (
        lambda a: a.resend_dead_letters("shop@n", [read(results.DeadLetter, LETTER)]),
        pb.SettleDeadLettersRequest(
            group=NS, how="resent", letters=[pb.DeadLetterPlace(broker_group="g1", offset=7)]
        ),
        {"states": ["resent"]},
        lambda r: r == ("resent",),
    ),
    (
        lambda a: a.purge_dead_letters("shop@n", [read(results.DeadLetter, LETTER)]),
        pb.SettleDeadLettersRequest(
            group=NS, how="purged", letters=[pb.DeadLetterPlace(broker_group="g1", offset=7)]
        ),
        {"states": ["orphaned"]},
        lambda r: r == ("orphaned",),
    ),
    (
        lambda a: a.waiting(
            "shop@n", "delayed", message_ids=["m8"], since=NOON, until=NOON, limit=5
        ),
        pb.ListWaitingRequest(
            topic=NS, kind="delayed", message_ids=["m8"], begin_ms=NOON_MS, end_ms=NOON_MS, max=5
        ),
        {"messages": [WAITING]},
        lambda r: r == (read(results.WaitingMessage, WAITING),),
    ),
    (
        lambda a: a.cancel_waiting("shop@n", "half", [read(results.WaitingMessage, WAITING)]),
        pb.CancelWaitingRequest(topic=NS, kind="half", messages=[WAITING.place]),
        {"states": ["gone"]},
        lambda r: r == ("gone",),
    ),
]


def method_of(request: Message) -> str:
    return request.DESCRIPTOR.name.removesuffix("Request")


def answer_to(method: str, code: int = 20000, text: str = "", **fields: Any) -> Any:
    return getattr(pb, f"{method}Response")(status=admin_status(code, text), **fields)


@both
@pytest.mark.parametrize(
    ("call", "request_", "fields", "right"), CASES, ids=[method_of(case[1]) for case in CASES]
)
def test_admin_call_sends_its_request_and_returns_plain_values(
    run: Run, call: Call, request_: Message, fields: dict[str, Any], right: Callable[[Any], bool]
) -> None:
    """The very request arrives, absent fields absent, and the answer comes back as plain values."""
    method = method_of(request_)
    with fake_nodes() as nodes:
        nodes[0].answers(method, answer_to(method, **fields))
        result = run(endpoints(nodes), call)
        assert nodes[0].requests[method] == [request_]
    assert right(result), result


def test_every_operation_is_in_the_cases() -> None:
    """A new operation must add its request and its answer to the cases."""
    mentioned = {name for call, *_ in CASES for name in call.__code__.co_names}
    offered = {name for name in dir(Admin) if not name.startswith("_")}
    assert offered - mentioned == {"skip"} and offered == {
        name for name in dir(AsyncAdmin) if not name.startswith("_")
    }


# -- what is said is what is read

PAIRS: list[tuple[type[Any], type[Message], set[str]]] = [
    (results.Topic, pb.TopicInfo, set()),
    (results.Queue, pb.QueueInfo, set()),
    (results.ConsumerGroup, pb.ConsumerGroupInfo, set()),
    (results.GroupQueue, pb.GroupQueueInfo, set()),
    (results.TopicLag, pb.TopicLag, set()),
    (results.QueueLag, pb.QueueLag, set()),
    (results.PartLag, pb.PartLag, set()),
    (results.Cursor, pb.QueueCursor, set()),
    (results.ClusterStatus, pb.ClusterStatusResponse, {"status"}),
    (results.Node, pb.NodeInfo, set()),
    (results.BrokerGroup, pb.BrokerGroupInfo, set()),
    (results.Replica, pb.ReplicaInfo, set()),
    (results.Rebuild, pb.RebuildInfo, set()),
    (results.CatchUp, pb.CatchUp, set()),
    (results.Member, pb.MemberInfo, set()),
    (results.MemberProgress, pb.MemberProgress, set()),
    (results.Addresses, pb.NodeAddresses, set()),
    (results.Message, pb.PeekedMessage, set()),
    (results.IndexProgress, pb.IndexProgress, set()),
    (results.MessageDetail, pb.MessageDetailResponse, {"status"}),
    (results.ReplicaCopy, pb.ReplicaCopy, set()),
    (results.Consumption, pb.ConsumptionState, set()),
    (results.TraceEvent, pb.TraceEvent, set()),
    (results.Explanation, pb.WhyNotDeliveredResponse, {"status"}),
    (results.Explanation, pb.WhyKeptResponse, {"status"}),
    (results.Explanation, pb.LeadershipHistoryResponse, {"status", "events"}),
    (results.HaGroup, pb.HaInfo, {"generation", "incarnation", "last_store_ms"}),
    (results.User, pb.UserInfo, set()),
    (results.Clients, pb.ListClientsResponse, {"status"}),
    (results.Client, pb.ClientInfo, set()),
    (results.DeadLetter, pb.DeadLetter, set()),
    (results.DeadLetterCount, pb.DeadLetterCount, set()),
    (results.WaitingMessage, pb.WaitingMessage, set()),
    (results.WaitingPlace, pb.WaitingPlace, set()),
]


@pytest.mark.parametrize(
    ("kind", "message", "left_out"), PAIRS, ids=[message.__name__ for _, message, _ in PAIRS]
)
def test_answer_class_has_every_field_of_its_message(
    kind: type[Any], message: type[Message], left_out: set[str]
) -> None:
    """Every field of the message is a field of the class, and what may be absent is None when it
    is."""
    fields = message.DESCRIPTOR.fields_by_name
    names = {
        field.metadata.get(results.OF, field.name): field for field in dataclasses.fields(kind)
    }
    assert set(names) == set(fields.keys()) - left_out
    empty = read(kind, message())
    for name, field in names.items():
        if "None" in str(field.type):
            assert getattr(empty, field.name) is None, name
        if fields[name].has_presence and fields[name].message_type is None:
            assert "None" in str(field.type), f"{name} may be absent"


def test_a_birth_beyond_the_calendar_is_unknown() -> None:
    """Producers state their own times; one absurd message must not make a topic unreadable."""
    assert read(results.Message, pb.PeekedMessage(born_ms=1 << 62)).born is None


# -- talks of several calls


@both
def test_a_query_goes_on_page_by_page(run: Run) -> None:
    """Pages are read until the limit or the end; a lag is reported once per broker group."""
    lagging = [pb.IndexProgress(broker_group="g1", indexed_to=1, applied_to=2)]
    first = answer_to("Query", messages=[peeked(1), peeked(2)], next=b"x", lagging=lagging)
    second = answer_to("Query", messages=[peeked(3)], lagging=lagging)
    with fake_nodes() as nodes:
        nodes[0].answers("Query", first, second)
        found = run(endpoints(nodes), lambda a: a.query("t", limit=2000))
        assert [(q.max, q.after) for q in nodes[0].requests["Query"]] == [(1000, b""), (1000, b"x")]
        nodes[0].answers("Query", first)
        assert len(run(endpoints(nodes), lambda a: a.query("t", limit=2)).messages) == 2
    assert [message.offset for message in found.messages] == [1, 2, 3] and len(found.lagging) == 1


@both
def test_a_trace_is_whole(run: Run) -> None:
    """Page after page."""
    with fake_nodes() as nodes:
        event = pb.TraceEvent(kind="stored")
        nodes[0].answers(
            "TraceMessage",
            answer_to("TraceMessage", events=[event], next=b"x"),
            answer_to("TraceMessage", events=[event]),
        )
        assert len(run(endpoints(nodes), lambda a: a.trace("t", "m"))) == 2
        assert [q.after for q in nodes[0].requests["TraceMessage"]] == [b"", b"x"]


@both
def test_skip_moves_behind_messages_in_flight(run: Run) -> None:
    """The offset is the queue's cursor plus the count; an unknown queue is an error."""
    with fake_nodes() as nodes:
        nodes[0].answers("GroupLag", answer_to("GroupLag", topics=LAG))
        nodes[0].answers("ResetGroup", answer_to("ResetGroup"))
        run(endpoints(nodes), lambda a: a.skip("g", "t", 3, count=2))
        (request,) = nodes[0].requests["ResetGroup"]
        assert (request.queue, request.offset) == (3, 7)
        with pytest.raises(BadArgument, match=r"queue 2 of topic .* is unknown"):
            run(endpoints(nodes), lambda a: a.skip("g", "t", 2))


@both
def test_a_transfer_is_followed_until_it_is_done(run: Run) -> None:
    """The command repeats the request while the transfer runs; if it does not end, the command
    fails and reports the lag."""
    under_way, done = (
        answer_to("TransferLeadership", lag_entries=3),
        answer_to("TransferLeadership", done=True),
    )
    with fake_nodes() as nodes:
        nodes[0].answers("TransferLeadership", under_way, under_way, done)
        run(endpoints(nodes), lambda a: a.transfer("g1", "n2"))
        assert len(nodes[0].requests["TransferLeadership"]) == 3
        nodes[0].answers("TransferLeadership", under_way)
        with pytest.raises(Refused, match="lacks 3 entries"):
            run(endpoints(nodes), lambda a: a.transfer("g1", "n2"), timeout_s=0.2)


@both
def test_a_member_that_does_not_come_on_is_told(run: Run) -> None:
    """Asked again until it is done; when nothing moves, what it waits for."""
    with fake_nodes() as nodes:
        nodes[0].answers(
            "ChangeMember",
            answer_to("ChangeMember", waits_for="a"),
            answer_to("ChangeMember", done=True),
        )
        run(endpoints(nodes), lambda a: a.promote_member("n4"))
        nodes[0].answers("ChangeMember", answer_to("ChangeMember", waits_for="its disk"))
        with pytest.raises(Refused, match="waits for: its disk"):
            run(endpoints(nodes), lambda a: a.promote_member("n4"), timeout_s=0.2)


# -- the rules of the connection


@both
def test_trouble_that_may_pass_is_tried_again(run: Run) -> None:
    """A node that is away, and one that knows no leader, lead to the next endpoint; after the last
    one comes the first."""
    with fake_nodes(2) as nodes:
        nodes[0].answers("ListTopics", UNAVAILABLE, answer_to("ListTopics"))
        nodes[1].answers("ListTopics", answer_to("ListTopics", 50002, "no leader"))
        assert run(endpoints(nodes), lambda a: a.topics()) == ()
        assert [len(node.requests["ListTopics"]) for node in nodes] == [2, 1]


@both
def test_refusal_or_unknown_method_is_not_retried(run: Run) -> None:
    """Asked once; code and remedy are the exception's."""
    with fake_nodes() as nodes:
        nodes[0].answers(
            "DescribeTopic", answer_to("DescribeTopic", 40402, "topic x does not exist")
        )
        with pytest.raises(Refused) as found:
            run(endpoints(nodes), lambda a: a.topic("x"))
        assert (
            found.value.code,
            found.value.retryable,
            len(nodes[0].requests["DescribeTopic"]),
        ) == (40402, False, 1)
        with pytest.raises(Refused, match="UNIMPLEMENTED"):
            run(endpoints(nodes), lambda a: a.topics())


@both
@pytest.mark.parametrize(
    "answer", [UNAVAILABLE, answer_to("ListTopics", 50002, "no leader in sight")]
)
def test_time_runs_out(run: Run, answer: Any) -> None:
    """With the last reason."""
    with fake_nodes() as nodes:
        nodes[0].answers("ListTopics", answer)
        with pytest.raises(Unreachable, match=r"UNAVAILABLE|no leader in sight"):
            run(endpoints(nodes), lambda a: a.topics(), timeout_s=1.0)


@both
@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda a: a.reset("g", "t", 7), "different message in every queue"),
        (lambda a: a.peek("t", start=datetime(2026, 11, 21)), "has no time zone"),
        (lambda a: a.query("t", since=datetime(2026, 11, 21)), "has no time zone"),
        (
            lambda a: a.detail(read(results.Message, pb.PeekedMessage(delayed_until_ms=5))),
            "not visible yet",
        ),
        (lambda a: a.create_user("u", "secret"), "travel to mq.example.com unencrypted"),
        (lambda a: a.change_user("u", secret_key="secret"), "travel to mq.example.com unencrypted"),
    ],
)
def test_invalid_argument_is_refused_without_a_call(run: Run, call: Call, text: str) -> None:
    """The endpoint does not even exist."""
    with pytest.raises(BadArgument, match=text):
        run("mq.example.com:8081", call)


@both
def test_calls_are_signed(run: Run) -> None:
    """With credentials every call carries a signature; the secret never shows."""
    with fake_nodes() as nodes:
        nodes[0].answers("ListTopics", answer_to("ListTopics"))
        run(endpoints(nodes), lambda a: a.topics(), credentials=Credentials("root", "hidden"))
    assert "Credential=root" in dict(nodes[0].metadata)["authorization"] and "hidden" not in str(
        nodes[0].metadata
    )


# -- the event loop


@pytest.mark.parametrize("waiting", ["for an answer", "for another try"])
def test_the_event_loop_goes_on(waiting: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a call runs, other tasks run too; one of them completes it here. A pause does not block
    the thread."""
    free = threading.Event()
    monkeypatch.setattr(connection, "time", SimpleNamespace(monotonic=time.monotonic))

    def when_free(request: Message) -> Message:
        if waiting == "for an answer":
            free.wait(20)
        return answer_to("ListTopics", 20000 if free.is_set() else 50002)

    async def run(nodes: list[FakeNode]) -> None:
        async with AsyncConnection(endpoints(nodes)) as opened:
            asking = asyncio.create_task(AsyncAdmin(opened).topics())
            while not nodes[0].requests["ListTopics"]:
                await asyncio.sleep(0)
            free.set()
            assert await asking == ()

    with fake_nodes() as nodes:
        nodes[0].answers("ListTopics", when_free)
        asyncio.run(run(nodes))


def test_calls_of_one_loop_run_beside_each_other() -> None:
    """Eight answers that are given only when all eight questions are there."""
    together = threading.Barrier(8)

    def when_all(request: Message) -> Message:
        together.wait(20)
        return answer_to("ListTopics")

    async def run(nodes: list[FakeNode]) -> None:
        async with AsyncConnection(endpoints(nodes)) as opened:
            admin = AsyncAdmin(opened)
            assert await asyncio.gather(*(admin.topics() for _ in range(8))) == [()] * 8

    with fake_nodes() as nodes:
        nodes[0].answers("ListTopics", when_all)
        asyncio.run(run(nodes))


def test_cancelling_ends_the_talk() -> None:
    """A task that is cancelled between two tries asks nothing more."""

    async def run(nodes: list[FakeNode]) -> None:
        async with AsyncConnection(endpoints(nodes)) as opened:
            asking = asyncio.create_task(AsyncAdmin(opened).topics())
            while not nodes[0].requests["ListTopics"]:
                await asyncio.sleep(0)
            asking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asking
            asked = len(nodes[0].requests["ListTopics"])
            await AsyncAdmin(opened).groups()
            assert len(nodes[0].requests["ListTopics"]) == asked

    with fake_nodes() as nodes:
        nodes[0].answers("ListTopics", answer_to("ListTopics", 50002))
        nodes[0].answers("ListGroups", answer_to("ListGroups"))
        asyncio.run(run(nodes))
