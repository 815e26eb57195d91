"""Queries over a whole topic, message details, progress and resets of consumer groups; any node
answers them, whichever replicas it hosts.

The leader of every broker group of the topic is asked; its state holds everything that was
acknowledged as durable. The answers are merged here; `group_queries.py` answers for one broker
group. Answers are bounded: a page carries a token for the next page, in a form that only this
module reads. If a broker group has no leader that answers, a query fails, and a progress report
leaves its numbers unknown.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar

from google.protobuf.message import Message

from ledgermq.node.broker.calls.outcome import CallRefused
from ledgermq.node.broker.queries.why_delivery import RANKS, absent
from ledgermq.node.controller.state import Topic
from ledgermq.node.frontend.admin.cluster.overview import queues_of
from ledgermq.node.frontend.admin.messages.group_queries import GroupQueries
from ledgermq.node.frontend.admin.messages.group_reads import ANSWER_BYTES, ANSWER_MAX, name_of
from ledgermq.node.frontend.ports import AdminCalls, OperatorCall
from ledgermq.node.frontend.routing.forwarder import Forwarder
from ledgermq.node.frontend.routing.known_groups import broker_groups
from ledgermq.node.frontend.routing.known_topics import known_topic, of_topic
from ledgermq.node.frontend.routing.leader_calls import ask_leader
from ledgermq.proto import admin_pb2, peer_pb2
from ledgermq.proto.names import stored_name
from ledgermq.proto.status import Code, LedgerError, fail, refused

QUERY_PREFIX = "ledgermq.v1.Admin/query:"
"""Prefix of the name of a forwarded call that carries a question between admin services."""
LEADER_WITHIN_S = 5.0
PROGRESS_WITHIN_S = 3.0
COPY_WITHIN_S = 2.0
TRACE_WITHIN_S = 10.0
R = TypeVar("R", bound=Message)


class Place(NamedTuple):
    """The position of a message in the order of an answer."""

    order: int
    """Sort key, ascending: the store time, or its negative."""
    group: str
    queue: int
    at: int
    """Position, ascending, in the answer of one broker group, or in a queue."""


class Queries:
    """The cluster-wide part of queries. Topics are those of the controller's state."""

    def __init__(self, forwarder: Forwarder, controller: Any, local: GroupQueries) -> None:
        self._forwarder = forwarder
        self._controller = controller
        self._local = local

    def calls(self) -> AdminCalls:
        """The methods that it serves, for dead letters and waiting messages too: their questions
        to replicas are of the same kind."""

        def topic(serve: Callable[[Any, Any], Awaitable[Any]]) -> OperatorCall:
            return of_topic(self._controller, serve)

        return AdminCalls(
            {
                "Query": topic(self.query),
                "MessageDetail": topic(self.detail),
                "TraceMessage": topic(self.trace),
                "WhyNotDelivered": self._why_not_delivered,
                "GroupLag": self._lag,
                "ResetGroup": topic(self.reset),
            },
            {
                QUERY_PREFIX + question: partial(self._local.execute, question)
                for question in self._local.questions
            },
        )

    # -- messages

    async def query(self, topic: Any, request: admin_pb2.QueryRequest) -> admin_pb2.QueryResponse:
        """One page of the matching messages. Raises LedgerError."""
        by_key = request.HasField("key") or request.HasField("message_id")
        if request.HasField("key") and request.HasField("message_id"):
            raise fail(Code.BAD_REQUEST, "a query is by key or by message id, not by both")
        wanted = max(1, min(request.max or 10, ANSWER_MAX))
        place = _decoded(request.after)
        groups = sorted(topic.placement)
        questions = [_question(topic, request, wanted, place, group) for group in groups]
        asked = (
            self.ask(group, q, peer_pb2.GroupQueryReply, LEADER_WITHIN_S)
            for group, q in zip(groups, questions, strict=True)
        )
        replies = dict(zip(groups, await asyncio.gather(*asked), strict=True))
        response = admin_pb2.QueryResponse()
        response.lagging.extend(
            reply.lagging for reply in replies.values() if reply.HasField("lagging")
        )
        rows = merged(replies, newest_first=by_key)
        size = 0
        for _, message in rows[:wanted]:
            if size >= ANSWER_BYTES:
                break
            response.messages.append(message)
            size += len(message.body)
        if response.messages and (
            len(response.messages) < len(rows) or any(reply.more for reply in replies.values())
        ):
            follow = (
                _next_of_key(place, response.messages)
                if by_key
                else _next_of_time(replies, response.messages)
            )
            response.next = json.dumps(follow, separators=(",", ":")).encode()
        numbers = {queue: number for number, queue in enumerate(queues_of(topic))}
        for message in response.messages:
            message.topic.namespace, message.topic.name = topic.namespace, topic.name
            message.queue = numbers.get(
                (message.broker_group, message.group_queue), message.group_queue
            )
        return response

    async def detail(
        self, topic: Any, request: admin_pb2.MessageDetailRequest
    ) -> admin_pb2.MessageDetailResponse:
        """The place of a message on each replica, and its state in every consumer group."""
        group = request.broker_group
        if group not in topic.placement:
            raise fail(Code.NOT_FOUND, f"topic {topic.name} has no queue in broker group {group!r}")
        stored = stored_name(topic.namespace, topic.name)
        question = peer_pb2.GroupMessage(
            topic=stored, queue=request.group_queue, offset=request.offset
        )
        found = await self.ask(group, question, peer_pb2.GroupMessageReply, LEADER_WITHIN_S)
        replicas = self._controller.state.broker_groups[group]
        copies = await asyncio.gather(*(self._copy(node, group, found) for node in replicas))
        return admin_pb2.MessageDetailResponse(copies=copies, consumption=found.consumption)

    async def _copy(
        self, node: str, group: str, found: peer_pb2.GroupMessageReply
    ) -> admin_pb2.ReplicaCopy:
        locate = peer_pb2.Locate(broker_group=group, index=found.index)
        deadline = asyncio.get_running_loop().time() + COPY_WITHIN_S
        try:
            answer = await self._forwarder.ask(
                node, _method(locate), locate.SerializeToString(), deadline
            )
        except CallRefused as refusal:
            return admin_pb2.ReplicaCopy(
                node=node, reason=f"node {node} did not answer ({refusal})"
            )
        reply = peer_pb2.LocateReply.FromString(answer[0])
        if reply.status.code != Code.OK:
            return admin_pb2.ReplicaCopy(node=node, reason=reply.status.message)
        copy = reply.copy
        if copy.state == "present" and copy.sha256 != found.sha256:
            copy.state, copy.reason = (
                "different",
                "this copy is intact, but differs from the leader's: audit the replicas",
            )
        return copy

    async def trace(
        self, topic: Any, request: admin_pb2.TraceMessageRequest
    ) -> admin_pb2.TraceMessageResponse:
        """One page of the history of a message, from the log. For the next page only the broker
        groups that have more are asked."""
        place = _decoded(request.after)
        groups = sorted(place) if place else sorted(topic.placement)
        if not set(groups) <= set(topic.placement) or not all(
            isinstance(index, int) for index in place.values()
        ):
            raise fail(
                Code.BAD_REQUEST,
                "the page token is not one of a trace; start again without a token",
            )
        stored = stored_name(topic.namespace, topic.name)
        questions = [
            peer_pb2.GroupTrace(
                topic=stored, message_id=request.message_id, from_index=place.get(group, 0)
            )
            for group in groups
        ]
        asked = (
            self.ask(group, q, peer_pb2.GroupTraceReply, TRACE_WITHIN_S)
            for group, q in zip(groups, questions, strict=True)
        )
        replies = dict(zip(groups, await asyncio.gather(*asked), strict=True))
        if not place and not any(reply.found for reply in replies.values()):
            raise fail(
                Code.MESSAGE_NOT_FOUND,
                f"topic {topic.name} has no message with the id {request.message_id}; check both",
            )
        response = admin_pb2.TraceMessageResponse(
            events=[event for reply in replies.values() for event in reply.events]
        )
        follow = {group: reply.next_index for group, reply in replies.items() if reply.next_index}
        if follow:
            response.next = json.dumps(follow, separators=(",", ":")).encode()
        return response

    async def why_not_delivered(
        self, topics: Sequence[Any], request: admin_pb2.WhyNotDeliveredRequest
    ) -> admin_pb2.WhyNotDeliveredResponse:
        """Why a consumer group has not received a message: the most informative answer of all
        broker groups of the topics."""
        consumer = stored_name(request.group.namespace, request.group.name)
        best: peer_pb2.GroupWhyReply | None = None
        for topic in topics:
            question = peer_pb2.GroupWhy(
                topic=stored_name(topic.namespace, topic.name),
                message_id=request.message_id,
                group=consumer,
            )
            asked = (
                self.ask(group, question, peer_pb2.GroupWhyReply, TRACE_WITHIN_S)
                for group in sorted(topic.placement)
            )
            for reply in await asyncio.gather(*asked):
                if best is None or RANKS.index(reply.reason) > RANKS.index(best.reason):
                    best = reply
            if best is not None and RANKS.index(best.reason) > RANKS.index("expired"):
                break
        if best is None:
            raise fail(
                Code.TOPIC_NOT_FOUND,
                "there are no topics; create one with: ledgermq topic create NAME",
            )
        if best.reason in ("not-found", "expired") and len(topics) > 1:
            found = absent(request.message_id, [topic.name for topic in topics], None, False)
            best.answer, best.reason = found.answer, found.reason
        return admin_pb2.WhyNotDeliveredResponse(
            answer=best.answer, reason=best.reason, evidence=best.evidence
        )

    async def _why_not_delivered(
        self, request: admin_pb2.WhyNotDeliveredRequest
    ) -> admin_pb2.WhyNotDeliveredResponse:
        topics = (
            [await known_topic(self._controller, request.topic)]
            if request.HasField("topic")
            else await self._topics_for(request.group)
        )
        return await self.why_not_delivered(topics, request)

    async def _topics_for(self, group: admin_pb2.Name) -> list[Topic]:
        """The topics that may hold a message of a consumer group: those it has used, then the
        others of its namespace."""
        await self._controller.barrier()
        used = {stored for stored, _ in await self.cursors(group)}
        topics = [
            topic
            for _, topic in sorted(self._controller.state.topics.items())
            if topic.namespace == group.namespace
        ]
        return sorted(
            topics, key=lambda topic: stored_name(topic.namespace, topic.name) not in used
        )

    # -- consumer groups

    async def _lag(self, request: admin_pb2.GroupLagRequest) -> admin_pb2.GroupLagResponse:
        named = request.HasField("topic")
        topic = await known_topic(self._controller, request.topic) if named else None
        return await self.lag(request.group, topic)

    async def lag(self, group: admin_pb2.Name, topic: Any | None) -> admin_pb2.GroupLagResponse:
        """How far a consumer group is, in all topics that it has used or in the given one."""
        consumer = stored_name(group.namespace, group.name)
        brokers = sorted(
            await broker_groups(self._controller) if topic is None else topic.placement
        )
        names = [] if topic is None else [stored_name(topic.namespace, topic.name)]
        replies = await self._progress(consumer, dict.fromkeys(brokers, names))
        used = {
            lag.topic.name
            for reply in replies.values()
            if reply is not None
            for lag in reply.topics
        }
        if topic is None:
            # Broker groups in which the consumer group used no queue count as well: all their
            # messages wait.
            unmet = {
                broker: sorted(used - _named(reply))
                for broker, reply in replies.items()
                if reply is not None
            }
            more = await self._progress(
                consumer, {broker: names for broker, names in unmet.items() if names}
            )
            for broker, reply in more.items():
                if reply is None or replies[broker] is None:
                    replies[broker] = None
                else:
                    replies[broker].topics.extend(reply.topics)  # type: ignore[union-attr]
        if not used and not await self._exists(group, replies):
            raise _no_group(group)
        lags = {
            (lag.topic.name, broker): lag
            for broker, reply in replies.items()
            if reply is not None
            for lag in reply.topics
        }
        response = admin_pb2.GroupLagResponse()
        for stored in sorted(used | set(names)):
            name = name_of(stored)
            known = self._controller.state.topics.get((name.namespace, name.name))
            if known is not None:
                response.topics.append(topic_lag(known, stored, lags))
        return response

    async def cursors(self, group: admin_pb2.Name) -> list[tuple[str, admin_pb2.QueueLag]]:
        """The position of a consumer group in every queue of the topics it has used, as (stored
        topic, queue), ordered by broker group. Raises LedgerError if a broker group has no leader
        that answers, because missing positions would look like unused queues."""
        consumer = stored_name(group.namespace, group.name)
        brokers = sorted(await broker_groups(self._controller))
        replies = await self._progress(consumer, dict.fromkeys(brokers, ()))
        found: list[tuple[str, admin_pb2.QueueLag]] = []
        for broker, reply in replies.items():
            if reply is None:
                raise refused(
                    "not-leader", f"broker group {broker} has no leader that answers; try again"
                )
            found += [(lag.topic.name, queue) for lag in reply.topics for queue in lag.queues]
        return found

    async def _progress(
        self, consumer: str, topics: Mapping[str, Sequence[str]]
    ) -> dict[str, peer_pb2.GroupProgressReply | None]:
        """The answer of each broker group; None for a group without a leader that answers."""
        questions = [
            peer_pb2.GroupProgress(group=consumer, topics=names) for names in topics.values()
        ]
        asked = (
            self.ask(b, q, peer_pb2.GroupProgressReply, PROGRESS_WITHIN_S)
            for b, q in zip(topics, questions, strict=True)
        )
        answers = await asyncio.gather(*asked, return_exceptions=True)
        found: dict[str, peer_pb2.GroupProgressReply | None] = {}
        for broker, answer in zip(topics, answers, strict=True):
            if isinstance(answer, BaseException) and not isinstance(answer, LedgerError):
                raise answer
            found[broker] = None if isinstance(answer, BaseException) else answer
        return found

    async def _exists(
        self, group: admin_pb2.Name, replies: Mapping[str, peer_pb2.GroupProgressReply | None]
    ) -> bool:
        """Whether the consumer group is configured; also true if some broker group did not answer,
        because that group may know it."""
        if None in replies.values():
            return True
        if (group.namespace, group.name) not in self._controller.state.groups:
            await self._controller.barrier()
        return (group.namespace, group.name) in self._controller.state.groups

    async def check_known(self, group: admin_pb2.Name, brokers: Iterable[str]) -> None:
        """Raises LedgerError if a consumer group is not configured, and was never used in these
        broker groups; one that does not answer may know it."""
        if not await self._exists(group, {}):
            replies = await self._progress(
                stored_name(group.namespace, group.name), {broker: () for broker in brokers}
            )
            if not any(reply is None or reply.topics for reply in replies.values()):
                raise _no_group(group)

    async def reset(
        self, topic: Any, request: admin_pb2.ResetGroupRequest
    ) -> admin_pb2.ResetGroupResponse:
        """Move a consumer group's cursors. Broker groups are reset one after the other; a reset can
        be repeated."""
        which = request.WhichOneof("to")
        if which is None:
            raise fail(
                Code.BAD_REQUEST, "a reset needs a position: earliest, latest, an offset or a time"
            )
        consumer = stored_name(request.group.namespace, request.group.name)
        await self.check_known(request.group, topic.placement)
        queues = queues_of(topic)
        if request.HasField("queue") and not 0 <= request.queue < len(queues):
            raise fail(
                Code.BAD_REQUEST, f"topic {topic.name} has the queues 0 to {len(queues) - 1}"
            )
        wanted = [queues[request.queue]] if request.HasField("queue") else queues
        response = admin_pb2.ResetGroupResponse()
        for broker in sorted({broker for broker, _ in wanted}):
            question = peer_pb2.GroupReset(
                group=consumer, topic=stored_name(topic.namespace, topic.name)
            )
            question.queues.extend(queue for of, queue in wanted if of == broker)
            setattr(question, which, getattr(request, which))
            for cursor in (
                await self.ask(broker, question, peer_pb2.GroupResetReply, LEADER_WITHIN_S)
            ).queues:
                cursor.queue = queues.index((broker, cursor.group_queue))
                response.queues.append(cursor)
        return response

    # -- asking

    async def ask(
        self,
        group: str,
        question: Message,
        reply: type[R],
        within_s: float,
        *,
        repeatable: bool = False,
    ) -> R:
        """Send a question to the leader of a broker group. `repeatable`: it may be asked again
        after an unknown outcome. Raises LedgerError."""
        method = _method(question)
        return await ask_leader(
            self._forwarder,
            group,
            method,
            request=question,
            response=reply,
            within_s=within_s,
            repeatable=repeatable,
        )


def _method(question: Message) -> str:
    return QUERY_PREFIX + question.DESCRIPTOR.name


def _no_group(group: admin_pb2.Name) -> LedgerError:
    what = (
        f"consumer group {stored_name(group.namespace, group.name)} does not exist and was never"
        " used"
    )
    return fail(
        Code.CONSUMER_GROUP_NOT_FOUND, f"{what}; create it with: ledgermq group create {group.name}"
    )


def _named(reply: peer_pb2.GroupProgressReply) -> set[str]:
    return {lag.topic.name for lag in reply.topics}


def _question(
    topic: Any, request: admin_pb2.QueryRequest, wanted: int, place: dict[str, Any], group: str
) -> peer_pb2.GroupQuery:
    question = peer_pb2.GroupQuery(topic=stored_name(topic.namespace, topic.name), max=wanted)
    for name in ("key", "message_id", "begin_ms", "end_ms"):
        if request.HasField(name):
            setattr(question, name, getattr(request, name))
    try:
        question.offsets.extend(place.get("offsets", {}).get(group, ()))
        if "ms" in place:
            question.end_ms = place["ms"] + 1
            question.skip = place.get("skip", {}).get(group, 0)
    except (AttributeError, TypeError, ValueError) as error:
        raise fail(
            Code.BAD_REQUEST, "the page token is not one of a query; start again without a token"
        ) from error
    return question


def _decoded(after: bytes) -> dict[str, Any]:
    try:
        place = json.loads(after or b"{}")
    except ValueError:
        place = None
    if not isinstance(place, dict):
        raise fail(
            Code.BAD_REQUEST, "the page token is not one of a query; start again without a token"
        )
    return place


def merged(
    replies: Mapping[str, peer_pb2.GroupQueryReply], *, newest_first: bool
) -> list[tuple[Place, admin_pb2.PeekedMessage]]:
    """The messages in the order of the answer, as far as that order is certain: if a broker group
    has more messages than it answered, nothing behind its last message can be ordered yet."""
    rows: list[tuple[Place, admin_pb2.PeekedMessage]] = []
    horizons = []
    for group, reply in replies.items():
        own = []
        for at, message in enumerate(reply.messages):
            if newest_first:
                own.append((Place(-message.store_ms, group, 0, at), message))
            else:
                own.append(
                    (Place(message.store_ms, group, message.group_queue, message.offset), message)
                )
        if reply.more and own:
            horizons.append(own[-1][0])
        rows += own
    rows.sort(key=lambda row: row[0])
    return [row for row in rows if all(row[0] <= horizon for horizon in horizons)]


def _next_of_time(
    replies: Mapping[str, peer_pb2.GroupQueryReply], answered: Iterable[admin_pb2.PeekedMessage]
) -> dict[str, Any]:
    offsets = {group: list(reply.offsets) for group, reply in replies.items()}
    for message in answered:
        offsets[message.broker_group][message.group_queue] = message.offset + 1
    return {"offsets": offsets}


def _next_of_key(
    place: Mapping[str, Any], answered: Sequence[admin_pb2.PeekedMessage]
) -> dict[str, Any]:
    """The token of the next page by key. Within one millisecond, messages are distinguished by how
    many each broker group has answered."""
    last = answered[-1].store_ms
    skip: dict[str, int] = dict(place.get("skip", {})) if place.get("ms") == last else {}
    for message in answered:
        if message.store_ms == last:
            skip[message.broker_group] = skip.get(message.broker_group, 0) + 1
    return {"ms": last, "skip": skip}


def topic_lag(
    topic: Any, stored: str, lags: Mapping[tuple[str, str], admin_pb2.TopicLag]
) -> admin_pb2.TopicLag:
    """One topic over all its broker groups. The queues of a group that did not answer are unknown;
    then the sums are unknown too."""
    total = admin_pb2.TopicLag(topic=admin_pb2.Name(namespace=topic.namespace, name=topic.name))
    for number, (broker, queue) in enumerate(queues_of(topic)):
        one = total.queues.add()
        lag = lags.get((stored, broker))
        if lag is not None and queue < len(lag.queues):
            one.CopyFrom(lag.queues[queue])
        one.queue, one.broker_group, one.group_queue = number, broker, queue
    if all(queue.HasField("lag") for queue in total.queues):
        total.lag = sum(queue.lag for queue in total.queues)
        total.leased = sum(queue.leased for queue in total.queues)
        ages = [queue.oldest_age_ms for queue in total.queues if queue.HasField("oldest_age_ms")]
        if ages:
            total.oldest_age_ms = max(ages)
    parts: dict[tuple[str, str], admin_pb2.PartLag] = {}
    for (name, _), lag in lags.items():
        for part in lag.parts if name == stored else ():
            whole = parts.setdefault(
                (part.client, part.lite_topic),
                admin_pb2.PartLag(client=part.client, lite_topic=part.lite_topic),
            )
            whole.lag += part.lag
            whole.leased += part.leased
            if part.HasField("oldest_age_ms"):
                whole.oldest_age_ms = max(whole.oldest_age_ms, part.oldest_age_ms)
    total.parts.extend(
        sorted(parts.values(), key=lambda part: (-part.lag, part.client, part.lite_topic))
    )
    return total
