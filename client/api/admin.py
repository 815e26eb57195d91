"""Administration of a cluster in plain Python values, for threads (`Admin`) and for event loops
(`AsyncAdmin`).

Every operation is written once, as a talk (`talks.py`): an `operation` blocks when called on an
`Admin` and is awaited on an `AsyncAdmin`. All operations are safe to repeat: creating an object
that exists with the same settings succeeds, and a change that is under way continues. They raise
the errors of `errors.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from datetime import datetime
from functools import wraps
from typing import Any, Concatenate, Generic, Literal, ParamSpec, TypeAlias, TypeVar, overload

from google.protobuf import message as protobuf

from ledgermq.client import results
from ledgermq.client.api import arguments
from ledgermq.client.api.admin_requests import BATCH, PAGE, Listing, asking
from ledgermq.client.api.changes import followed, sealed, transferred
from ledgermq.client.api.connection import AsyncConnection, Connection
from ledgermq.client.api.reading import ms_of, name_of, read, read_all
from ledgermq.client.api.talks import Talk
from ledgermq.client.errors import BadArgument
from ledgermq.proto import admin_pb2 as pb
from ledgermq.proto.records.group_config import backoff_fields
from ledgermq.proto.types import Backoff

P = ParamSpec("P")
R = TypeVar("R")
M = TypeVar("M", bound=protobuf.Message)
Kind: TypeAlias = Literal["normal", "fifo", "delay", "transaction", "mixed", "priority", "lite"]
Permission: TypeAlias = Literal["rw", "r", "w", "none"]
Durability: TypeAlias = Literal["group", "high", "memory", "hybrid"]
Place: TypeAlias = Literal["earliest", "latest"] | int | datetime
"""Where to continue reading: one end of the queue, an offset (of one queue), or the first message
stored at or after a time."""
AGAIN = "remove the cause, then repeat the call: {} continues"
_Change = pb.ChangeMemberRequest.Kind


class operation(Generic[P, R]):
    """A method written as a talk; the Admin it is called on decides whether it blocks or is
    awaited."""

    def __init__(self, talk: Callable[Concatenate[Any, P], Talk[R]]) -> None:
        self._talk = talk

    @overload
    def __get__(self, admin: None, owner: type[Any]) -> Callable[Concatenate[Any, P], Talk[R]]: ...
    @overload
    def __get__(self, admin: Admin, owner: type[Any]) -> Callable[P, R]: ...
    @overload
    def __get__(
        self, admin: AsyncAdmin, owner: type[Any]
    ) -> Callable[P, Coroutine[Any, Any, R]]: ...
    def __get__(self, admin: Any, owner: type[Any]) -> Any:
        if admin is None:
            return self._talk

        @wraps(self._talk)
        def carried_out(*arguments: P.args, **options: P.kwargs) -> Any:
            return admin.connection.carry_out(self._talk(admin, *arguments, **options))

        return carried_out


class Operations:
    """The operations of both forms. Topics and groups are given as `name` or `namespace@name`."""

    connection: Connection | AsyncConnection

    def _ask(self, request: protobuf.Message, response: type[M]) -> Talk[M]:
        return asking(self.connection, request, response)

    def _listed(
        self,
        kind: type[R],
        request: Any,
        response: type[Listing],
        items: str,
        limit: int,
        note: Callable[[Listing], object] = lambda page: None,
    ) -> Talk[tuple[R, ...]]:
        """Read up to `limit` items of the pages of an answer; each page is shown to `note`."""
        found: list[R] = []
        while len(found) < limit:
            request.max = min(limit - len(found), PAGE)
            page = yield from self._ask(request, response)
            found += read_all(kind, getattr(page, items))
            note(page)
            request.after = page.next
            if not page.next:
                break
        return tuple(found[:limit])

    # -- the cluster and its members

    @operation
    def status(self) -> Talk[results.ClusterStatus]:
        """Nodes, broker groups with their replicas, and topics."""
        return read(
            results.ClusterStatus,
            (yield from self._ask(pb.ClusterStatusRequest(), pb.ClusterStatusResponse)),
        )

    @operation
    def node(
        self, name: str, *, log_lines: int = 0, configuration: bool = False
    ) -> Talk[results.NodeDetail]:
        """A node's process and connections; also the last lines of its log (it keeps 200) and its
        configuration, if they are asked for."""
        request = pb.DescribeNodeRequest(
            node=name, log_lines=log_lines, configuration=configuration
        )
        return read(results.NodeDetail, (yield from self._ask(request, pb.DescribeNodeResponse)))

    @operation
    def transfer(self, broker_group: str, to: str) -> Talk[None]:
        """Transfer the leadership of a broker group to another node and return when it leads.
        Refused if that node has not caught up within the timeout."""
        remedy = "wait until it has caught up, or allow more time"
        yield from transferred(self.connection, broker_group, to, remedy)

    @operation
    def seal(self, broker_group: str) -> Talk[results.Sealed]:
        """Have everything that is committed in a broker group's log sealed now, so that it can be
        proven, and return when it is. The rest of the newest log file stays empty. Refused if it
        takes longer than the timeout; repeating it continues."""
        remedy = "repeat it, or allow more time"
        return read(results.Sealed, (yield from sealed(self.connection, broker_group, remedy)))

    @operation
    def begin_time_epoch(self, broker_group: str) -> Talk[results.TimeEpoch]:
        """Let the store times of a broker group go on from its leader's clock, after the clocks of
        all nodes were ahead. Refused if they are not ahead by more than a minute."""
        request = pb.BeginTimeEpochRequest(broker_group=broker_group)
        return read(results.TimeEpoch, (yield from self._ask(request, pb.BeginTimeEpochResponse)))

    @operation
    def why_leader_moved(self, broker_group: str, *, last: int = 10) -> Talk[results.Explanation]:
        """Why leadership of a broker group changed, as far as the nodes recorded it; the newest
        change last."""
        request = pb.LeadershipHistoryRequest(broker_group=broker_group, last=last)
        return read(
            results.Explanation, (yield from self._ask(request, pb.LeadershipHistoryResponse))
        )

    @operation
    def why_kept(
        self, broker_group: str, base: int, *, node: str | None = None
    ) -> Talk[results.Explanation]:
        """Why the log file that holds this position is still kept, or since when it is gone; on one
        node, or in the whole group."""
        request = pb.WhyKeptRequest(broker_group=broker_group, base=base, node=node)
        return read(results.Explanation, (yield from self._ask(request, pb.WhyKeptResponse)))

    @operation
    def members(self) -> Talk[tuple[results.Member, ...]]:
        """The nodes of the cluster, their addresses, and the role of each in every broker group."""
        answer = yield from self._ask(pb.ListMembersRequest(), pb.ListMembersResponse)
        return read_all(results.Member, answer.members)

    @operation
    def add_member(
        self,
        node: str,
        addresses: results.Addresses | None = None,
        *,
        groups: Sequence[str] = (),
        observer: bool = False,
    ) -> Talk[None]:
        """Add a node as a learner, or as an observer, which never votes; return when it has caught
        up. The node must run with `join: true`."""
        yield from self._change(_Change.ADD, node, groups, addresses, observer=observer)

    @operation
    def promote_member(
        self, node: str, *, groups: Sequence[str] = (), observer_too: bool = False
    ) -> Talk[None]:
        """Make a learner a voter; an observer only with `observer_too`."""
        yield from self._change(_Change.PROMOTE, node, groups, observer=observer_too)

    @operation
    def remove_member(self, node: str, *, groups: Sequence[str] = ()) -> Talk[None]:
        """Remove a node from its broker groups and from the controller quorum. Its data stays on
        its disk."""
        yield from self._change(_Change.REMOVE, node, groups)

    @operation
    def set_member_address(self, node: str, addresses: results.Addresses) -> Talk[None]:
        """Tell all nodes the new addresses of a node."""
        yield from self._change(_Change.SET_ADDRESS, node, (), addresses)

    def _change(
        self,
        kind: pb.ChangeMemberRequest.Kind,
        node: str,
        groups: Sequence[str],
        addresses: results.Addresses | None = None,
        *,
        observer: bool = False,
    ) -> Talk[None]:
        """Repeat the request until the change is complete, or until it made no progress for the
        timeout. An interrupted change stays as it is; calling again continues it."""
        request = pb.ChangeMemberRequest(
            kind=kind, node=node, broker_groups=groups, observer=observer
        )
        if addresses is not None:
            where = pb.NodeAddresses(
                client=addresses.client,
                peer=addresses.peer,
                controller=addresses.controller,
                http=addresses.http,
            )
            request.addresses.CopyFrom(where)
        yield from followed(
            self.connection, request, pb.ChangeMemberResponse, node, AGAIN.format("the change")
        )

    @operation
    def finish_upgrade(self) -> Talk[results.FinishedUpgrade]:
        """Raise the feature level of every broker group and of the cluster to the highest one that
        all nodes read; return when it is in force. Afterwards no node can go back to an older
        release. Refused, with the names, while a node reads less than another one or does not
        answer. An interrupted call leaves every group as it is; calling again continues."""
        raised: list[str] = []
        changes = 0

        def note(answer: pb.FinishUpgradeResponse) -> None:
            nonlocal changes
            raised.extend(answer.raised)
            changes += answer.changed

        answer = yield from followed(
            self.connection,
            pb.FinishUpgradeRequest(),
            pb.FinishUpgradeResponse,
            "upgrade finish",
            AGAIN.format("it"),
            news=lambda answer: (answer.waits_for, changes),
            heard=note,
        )
        note(answer)
        return results.FinishedUpgrade(answer.level, tuple(raised), changes > 0)

    # -- broker groups and their replicas

    @operation
    def broker_groups(self) -> Talk[tuple[results.BrokerGroupPlacement, ...]]:
        """The broker groups as they are meant to be, with the moves that are under way."""
        answer = yield from self._ask(pb.ListBrokerGroupsRequest(), pb.ListBrokerGroupsResponse)
        return read_all(results.BrokerGroupPlacement, answer.groups)

    @operation
    def move_replica(
        self,
        broker_group: str,
        source: str,
        to: str,
        *,
        abort: bool = False,
        wait_s: float | None = None,
    ) -> Talk[results.MoveProgress]:
        """Move a replica from one node to another, or abort that move; return when it is done. With
        `wait_s`, return after that time at the latest: the move stays as it is, and calling again
        continues it. Refused if there is no progress for the timeout."""
        request = pb.MoveReplicaRequest(
            broker_group=broker_group, from_node=source, to_node=to, abort=abort
        )
        answer = yield from followed(
            self.connection,
            request,
            pb.MoveReplicaResponse,
            broker_group,
            AGAIN.format("the move"),
            wait_s=wait_s,
        )
        return read(results.MoveProgress, answer)

    @operation
    def rebalance_plan(self) -> Talk[results.RebalancePlan]:
        """What would balance the cluster. Changes nothing."""
        return read(
            results.RebalancePlan,
            (yield from self._ask(pb.PlanRebalanceRequest(), pb.PlanRebalanceResponse)),
        )

    @operation
    def rebalance_step(
        self, step: results.RebalanceStep, *, wait_s: float | None = None
    ) -> Talk[bool]:
        """Take one step of a plan. The steps are to be taken in their order. `wait_s`: as for
        `move_replica`. Returns whether the step is done."""
        group, to = step.broker_group, step.to_node or ""
        if step.kind == "move-replica":
            return (
                yield from Operations.move_replica(
                    self, group, step.from_node or "", to, wait_s=wait_s
                )
            ).done
        if step.kind == "move-leader":
            yield from self._ask(
                pb.PreferLeaderRequest(broker_group=group, node=to), pb.PreferLeaderResponse
            )
            yield from Operations.transfer(self, group, to)
        elif step.kind == "add-queues" and step.topic is not None:
            request = pb.UpdateTopicRequest(topic=name_of(step.topic), grow={group: step.queues})
            yield from self._ask(request, pb.UpdateTopicResponse)
        else:
            raise BadArgument(
                f"{step.kind!r} is not a step of a plan that this version knows",
                "use the client of the cluster's version",
            )
        return True

    @operation
    def clients(self) -> Talk[results.Clients]:
        """The producers and consumers that contacted the nodes within the last minutes."""
        return read(
            results.Clients, (yield from self._ask(pb.ListClientsRequest(), pb.ListClientsResponse))
        )

    # -- topics

    @operation
    def topics(self) -> Talk[tuple[results.Topic, ...]]:
        """All topics, without their queues."""
        answer = yield from self._ask(pb.ListTopicsRequest(), pb.ListTopicsResponse)
        return read_all(results.Topic, answer.topics)

    @operation
    def topic(self, name: str) -> Talk[results.Topic]:
        """One topic with its queues."""
        answer = yield from self._ask(
            pb.DescribeTopicRequest(topic=name_of(name)), pb.DescribeTopicResponse
        )
        return read(results.Topic, answer.topic)

    @operation
    def create_topic(
        self,
        name: str,
        *,
        kind: Kind = "normal",
        queues: int = 8,
        permission: Permission = "rw",
        durability: Durability = "group",
        dedup_ms: int = 0,
    ) -> Talk[results.Topic]:
        """Create a topic. Succeeds if it exists with the same settings; refused if it exists with
        others."""
        request = pb.CreateTopicRequest(
            topic=name_of(name), kind=kind, queues=queues, permission=permission, dedup_ms=dedup_ms
        )
        request.durability = durability.removeprefix("group")
        return read(results.Topic, (yield from self._ask(request, pb.CreateTopicResponse)).topic)

    @operation
    def update_topic(
        self,
        name: str,
        *,
        queues: int | None = None,
        permission: Permission | None = None,
        durability: Durability | None = None,
        dedup_ms: int | None = None,
        add_group: str | None = None,
    ) -> Talk[results.Topic]:
        """Change the given settings. The number of queues can only grow. `add_group`: create queues
        in a broker group that has none of this topic yet."""
        request = pb.UpdateTopicRequest(
            topic=name_of(name),
            queues=queues,
            permission=permission,
            dedup_ms=dedup_ms,
            add_group=add_group,
        )
        if durability is not None:
            request.durability = durability.removeprefix("group")
        return read(results.Topic, (yield from self._ask(request, pb.UpdateTopicResponse)).topic)

    @operation
    def delete_topic(self, name: str) -> Talk[None]:
        """Delete a topic and stop serving its messages."""
        yield from self._ask(pb.DeleteTopicRequest(topic=name_of(name)), pb.DeleteTopicResponse)

    # -- consumer groups

    @operation
    def groups(self) -> Talk[tuple[results.ConsumerGroup, ...]]:
        """All consumer groups."""
        answer = yield from self._ask(pb.ListGroupsRequest(), pb.ListGroupsResponse)
        return read_all(results.ConsumerGroup, answer.groups)

    @operation
    def group(self, name: str) -> Talk[results.ConsumerGroup]:
        """One consumer group and its progress in each queue."""
        answer = yield from self._ask(
            pb.DescribeGroupRequest(group=name_of(name)), pb.DescribeGroupResponse
        )
        return read(results.ConsumerGroup, answer.group)

    @operation
    def create_group(
        self,
        name: str,
        *,
        max_attempts: int = 17,
        fifo: bool = False,
        backoff: Backoff | None = None,
        lite_topic: str = "",
        broadcast: bool = False,
    ) -> Talk[results.ConsumerGroup]:
        """Create a consumer group. A group that was never created gets the defaults when a consumer
        first uses it."""
        request = pb.CreateGroupRequest(
            group=name_of(name), max_attempts=max_attempts, fifo=fifo, broadcast=broadcast
        )
        request.lite_topic = lite_topic
        if backoff is not None:
            request.backoff.CopyFrom(_backoff(backoff))
        return read(
            results.ConsumerGroup, (yield from self._ask(request, pb.CreateGroupResponse)).group
        )

    @operation
    def update_group(
        self,
        name: str,
        *,
        max_attempts: int | None = None,
        fifo: bool | None = None,
        backoff: Backoff | None = None,
        lite_topic: str | None = None,
        broadcast: bool | None = None,
    ) -> Talk[results.ConsumerGroup]:
        """Change the given settings. `Backoff()` without values restores the default."""
        request = pb.UpdateGroupRequest(
            group=name_of(name), max_attempts=max_attempts, fifo=fifo, lite_topic=lite_topic
        )
        request.MergeFrom(
            pb.UpdateGroupRequest(
                broadcast=broadcast, backoff=None if backoff is None else _backoff(backoff)
            )
        )
        return read(
            results.ConsumerGroup, (yield from self._ask(request, pb.UpdateGroupResponse)).group
        )

    @operation
    def delete_group(self, name: str) -> Talk[None]:
        """Delete a consumer group and its progress."""
        yield from self._ask(pb.DeleteGroupRequest(group=name_of(name)), pb.DeleteGroupResponse)

    @operation
    def lag(self, group: str, *, topic: str | None = None) -> Talk[tuple[results.TopicLag, ...]]:
        """The messages a consumer group has not consumed yet: in every topic it has used, or in one
        topic."""
        request = pb.GroupLagRequest(
            group=name_of(group), topic=None if topic is None else name_of(topic)
        )
        return read_all(
            results.TopicLag, (yield from self._ask(request, pb.GroupLagResponse)).topics
        )

    @operation
    def reset(
        self, group: str, topic: str, to: Place, *, queue: int | None = None
    ) -> Talk[tuple[results.Cursor, ...]]:
        """Move a consumer group's position: moved backwards, messages are delivered again; moved
        forwards, they are skipped."""
        if isinstance(to, int) and queue is None:
            raise BadArgument(
                "an offset means a different message in every queue",
                "name the queue as well, or give a datetime",
            )
        request = pb.ResetGroupRequest(
            group=name_of(group), topic=name_of(topic), queue=queue, **_place(to)
        )
        return read_all(
            results.Cursor, (yield from self._ask(request, pb.ResetGroupResponse)).queues
        )

    @operation
    def skip(
        self, group: str, topic: str, queue: int, *, count: int = 0
    ) -> Talk[tuple[results.Cursor, ...]]:
        """Move a consumer group's position in a queue past the messages in flight, or past `count`
        more messages."""
        topics = yield from Operations.lag(self, group, topic=topic)
        cursors = [
            found.cursor
            for one in topics
            for found in one.queues
            if found.queue == queue and found.cursor is not None
        ]
        if not cursors:
            raise BadArgument(
                f"queue {queue} of topic {topic} is unknown", "lag() lists the queues of the group"
            )
        return (yield from Operations.reset(self, group, topic, cursors[0] + count, queue=queue))

    # -- messages

    @operation
    def peek(
        self, topic: str, *, queue: int | None = None, start: Place = "earliest", limit: int = 10
    ) -> Talk[tuple[results.Message, ...]]:
        """Up to `limit` (at most 1,000) committed messages, without a consumer group and without a
        lease."""
        request = pb.PeekRequest(
            topic=name_of(topic), queue=queue, max=min(limit, PAGE), **_place(start)
        )
        return read_all(results.Message, (yield from self._ask(request, pb.PeekResponse)).messages)

    @operation
    def query(
        self,
        topic: str,
        *,
        key: str | None = None,
        message_id: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        limit: int = 10,
    ) -> Talk[results.Found]:
        """Up to `limit` messages: by key or id, newest first; otherwise by store time, oldest
        first."""
        request = pb.QueryRequest(
            topic=name_of(topic), key=key, message_id=message_id, **_between(since, until)
        )
        lagging: dict[str, results.IndexProgress] = {}

        def note(page: pb.QueryResponse) -> None:
            for progress in page.lagging:
                lagging[progress.broker_group] = read(results.IndexProgress, progress)

        found = yield from self._listed(
            kind=results.Message,
            request=request,
            response=pb.QueryResponse,
            items="messages",
            limit=limit,
            note=note,
        )
        return results.Found(found, tuple(lagging.values()))

    @operation
    def detail(self, message: results.Message) -> Talk[results.MessageDetail]:
        """Where a message is stored on every replica, and what each consumer group has done with
        it."""
        if message.delayed_until is not None:
            raise BadArgument(
                "a message that is not visible yet has no place in its topic",
                "repeat the call after its delivery time",
            )
        request = pb.MessageDetailRequest(
            topic=name_of(message.topic), broker_group=message.broker_group
        )
        request.group_queue, request.offset = message.group_queue, message.offset
        return read(
            results.MessageDetail, (yield from self._ask(request, pb.MessageDetailResponse))
        )

    @operation
    def trace(self, topic: str, message_id: str) -> Talk[tuple[results.TraceEvent, ...]]:
        """The events of a message, in order, as far as the log still holds them."""
        request = pb.TraceMessageRequest(topic=name_of(topic), message_id=message_id)
        events: list[results.TraceEvent] = []
        while True:
            page = yield from self._ask(request, pb.TraceMessageResponse)
            events += read_all(results.TraceEvent, page.events)
            if not page.next:
                return tuple(events)
            request.after = page.next

    @operation
    def why_not_delivered(
        self, message_id: str, group: str, *, topic: str | None = None
    ) -> Talk[results.Explanation]:
        """Why a consumer group has not received a message, or that it has. `ledgermq
        why-not-delivered --help` lists the reasons."""
        request = pb.WhyNotDeliveredRequest(
            message_id=message_id,
            group=name_of(group),
            topic=None if topic is None else name_of(topic),
        )
        return read(
            results.Explanation, (yield from self._ask(request, pb.WhyNotDeliveredResponse))
        )

    # -- dead letters

    @operation
    def dead_letter_counts(
        self, group: str | None = None
    ) -> Talk[tuple[results.DeadLetterCount, ...]]:
        """How many dead letters a consumer group has, or every group that has any."""
        request = pb.CountDeadLettersRequest(group=None if group is None else name_of(group))
        return read_all(
            results.DeadLetterCount,
            (yield from self._ask(request, pb.CountDeadLettersResponse)).groups,
        )

    @operation
    def dead_letters(
        self,
        group: str,
        *,
        message_ids: Sequence[str] = (),
        since: datetime | None = None,
        until: datetime | None = None,
        settled: bool = False,
        bodies: bool = False,
        limit: int = 1000,
    ) -> Talk[tuple[results.DeadLetter, ...]]:
        """Up to `limit` dead letters of a consumer group, oldest first within each broker group.
        `settled`: also those that were resent or purged."""
        request = pb.ListDeadLettersRequest(
            group=name_of(group),
            message_ids=message_ids,
            settled=settled,
            bodies=bodies,
            **_between(since, until),
        )
        return (
            yield from self._listed(
                results.DeadLetter, request, pb.ListDeadLettersResponse, "letters", limit
            )
        )

    @operation
    def resend_dead_letters(
        self, group: str, letters: Sequence[results.DeadLetter]
    ) -> Talk[tuple[str, ...]]:
        """Deliver the messages to their consumer group again, and to no other, with all their
        attempts. Returns the state of each letter: resent, by this call or before it, or why not
        (purged, orphaned, gone). No letter is ever resent twice."""
        return (yield from self._settle(group, letters, "resent"))

    @operation
    def purge_dead_letters(
        self, group: str, letters: Sequence[results.DeadLetter]
    ) -> Talk[tuple[str, ...]]:
        """Take letters off the list for good. Retention frees their space. Returns the state of
        each letter."""
        return (yield from self._settle(group, letters, "purged"))

    def _settle(
        self, group: str, letters: Sequence[results.DeadLetter], how: str
    ) -> Talk[tuple[str, ...]]:
        states: list[str] = []
        for at in range(0, len(letters), BATCH):
            places = [
                pb.DeadLetterPlace(
                    broker_group=letter.message.broker_group, offset=letter.message.offset
                )
                for letter in letters[at : at + BATCH]
            ]
            request = pb.SettleDeadLettersRequest(group=name_of(group), how=how, letters=places)
            states += (yield from self._ask(request, pb.SettleDeadLettersResponse)).states
        return tuple(states)

    # -- messages that wait

    @operation
    def waiting(
        self,
        topic: str,
        kind: Literal["delayed", "half"],
        *,
        message_ids: Sequence[str] = (),
        since: datetime | None = None,
        until: datetime | None = None,
        limit: int = 1000,
    ) -> Talk[tuple[results.WaitingMessage, ...]]:
        """Up to `limit` messages of a topic that are not visible yet: delayed messages, or half
        messages of undecided transactions."""
        request = pb.ListWaitingRequest(
            topic=name_of(topic), kind=kind, message_ids=message_ids, **_between(since, until)
        )
        return (
            yield from self._listed(
                results.WaitingMessage, request, pb.ListWaitingResponse, "messages", limit
            )
        )

    @operation
    def cancel_waiting(
        self,
        topic: str,
        kind: Literal["delayed", "half"],
        messages: Sequence[results.WaitingMessage],
    ) -> Talk[tuple[str, ...]]:
        """Recall delayed messages, or roll half messages back: they are never delivered. Returns
        for each message whether it is `cancelled`, by this call or before it, or `gone`, because it
        became visible."""
        states: list[str] = []
        for at in range(0, len(messages), BATCH):
            places = [message.place for message in messages[at : at + BATCH]]
            request = pb.CancelWaitingRequest(topic=name_of(topic), kind=kind)
            for place in places:
                request.messages.add(
                    broker_group=place.broker_group,
                    fire_ms=place.fire_ms,
                    offset=place.offset,
                    message_id=place.message_id,
                )
            states += (yield from self._ask(request, pb.CancelWaitingResponse)).states
        return tuple(states)

    # -- users

    @operation
    def users(self) -> Talk[tuple[results.User, ...]]:
        """All users and roles."""
        return read_all(
            results.User, (yield from self._ask(pb.ListUsersRequest(), pb.ListUsersResponse)).users
        )

    @operation
    def user(self, name: str) -> Talk[results.User]:
        """One user, with the permissions of its own and of its roles."""
        answer = yield from self._ask(pb.ListUsersRequest(name=name), pb.ListUsersResponse)
        return read(results.User, answer.users[0])

    @operation
    def create_user(
        self,
        name: str,
        secret_key: str | None,
        *,
        grants: Sequence[str] = (),
        roles: Sequence[str] = (),
    ) -> Talk[results.User]:
        """Create a user, or a role if there is no secret. A grant is ACTION:KIND:PATTERN, such as
        `publish:topic:orders*`."""
        if secret_key is not None:
            self.connection.guard_secret()
        request = pb.CreateUserRequest(
            name=name, secret_key=secret_key or "", grants=grants, roles=roles
        )
        return read(results.User, (yield from self._ask(request, pb.CreateUserResponse)).user)

    @operation
    def change_user(
        self,
        name: str,
        *,
        grant: Sequence[str] = (),
        revoke: Sequence[str] = (),
        give_roles: Sequence[str] = (),
        take_roles: Sequence[str] = (),
        secret_key: str | None = None,
        end_former_secret: bool = False,
    ) -> Talk[results.User]:
        """Change permissions or the secret. After a new secret is set, the former one stays valid
        until it is ended."""
        if secret_key is not None:
            self.connection.guard_secret()
        request = pb.ChangeUserRequest(
            name=name, grant=grant, revoke=revoke, give_roles=give_roles, take_roles=take_roles
        )
        request.secret_key, request.end_former_secret = secret_key or "", end_former_secret
        return read(results.User, (yield from self._ask(request, pb.ChangeUserResponse)).user)

    @operation
    def delete_user(self, name: str) -> Talk[None]:
        """Delete a user or a role."""
        yield from self._ask(pb.DeleteUserRequest(name=name), pb.DeleteUserResponse)


class Admin(Operations):
    """Administration that blocks until the cluster answers. Thread-safe, as its connection is."""

    connection: Connection

    def __init__(self, connection: Connection) -> None:
        """Raises BadArgument for anything but a Connection."""
        self.connection = arguments.instance(connection, "the connection of an Admin", Connection)


class AsyncAdmin(Operations):
    """Administration for event loops; every operation is awaited."""

    connection: AsyncConnection

    def __init__(self, connection: AsyncConnection) -> None:
        """Raises BadArgument for anything but an AsyncConnection."""
        self.connection = arguments.instance(
            connection, "the connection of an AsyncAdmin", AsyncConnection
        )


def _backoff(backoff: Backoff) -> pb.Backoff:
    return pb.Backoff(**backoff_fields(backoff))


def _place(place: Place) -> dict[str, Any]:
    """The fields of a request that stand for a place."""
    if isinstance(place, datetime):
        return {"store_ms": _ms(place)}
    return {"offset": place} if isinstance(place, int) else {place: True}


def _between(since: datetime | None, until: datetime | None) -> dict[str, Any]:
    """The fields of a request that bound a time."""
    return {
        side: None if moment is None else _ms(moment)
        for side, moment in (("begin_ms", since), ("end_ms", until))
    }


def _ms(moment: datetime) -> int:
    if moment.tzinfo is None:
        raise BadArgument(f"{moment} has no time zone", "give it one, such as datetime.now(UTC)")
    return ms_of(moment)
