"""Dead letters over all broker groups: lists, counts, and their settlement; any node answers,
whichever replicas it hosts.

The leader of every broker group is asked, not only of those where the controller knows the
dead-letter topic, because the controller learns of the topic after its first letter. A list fails
if a broker group has no leader that answers: nothing is left out silently.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

from ledgermq.node.broker.calls.operator_calls import LETTERS_MAX
from ledgermq.node.broker.parts.dead_letters.dead_letters import dead_letter_topic
from ledgermq.node.frontend.admin.cluster.overview import number_in
from ledgermq.node.frontend.admin.messages.group_reads import ANSWER_BYTES, ANSWER_MAX, name_of
from ledgermq.node.frontend.admin.messages.queries import LEADER_WITHIN_S, Queries
from ledgermq.node.frontend.ports import AdminCalls
from ledgermq.node.frontend.routing.known_groups import broker_groups
from ledgermq.node.frontend.security.admin_guard import caller
from ledgermq.node.runtime.logs import get_logger
from ledgermq.proto import admin_pb2, peer_pb2
from ledgermq.proto.names import DLQ_PREFIX, stored_name
from ledgermq.proto.records.control import SETTLEMENTS
from ledgermq.proto.status import Code, fail

log = get_logger()


class DeadLetters:
    """Executes ListDeadLetters, CountDeadLetters and SettleDeadLetters. `controller` knows the
    broker groups."""

    def __init__(self, queries: Queries, controller: Any) -> None:
        self._queries = queries
        self._controller = controller

    def calls(self) -> AdminCalls:
        """The methods that it serves."""
        return AdminCalls(
            {
                "ListDeadLetters": self.listed,
                "CountDeadLetters": self.counted,
                "SettleDeadLetters": lambda request: self.settled(request, caller()),
            }
        )

    async def listed(
        self, request: admin_pb2.ListDeadLettersRequest
    ) -> admin_pb2.ListDeadLettersResponse:
        """One page. The page token holds where each broker group's letters ended when the first
        page was asked for. Raises LedgerError."""
        topic = _topic_of(request.group)
        # By message id, all letters are on one page.
        wanted = (
            ANSWER_MAX * LETTERS_MAX
            if request.message_ids
            else max(1, min(request.max or 10, ANSWER_MAX))
        )
        if len(request.message_ids) > LETTERS_MAX:
            raise fail(
                Code.BAD_REQUEST,
                f"{len(request.message_ids)} message ids in one call; the limit is {LETTERS_MAX}",
            )
        ends, broker, offset = (
            _decoded(request.after) if request.after else (await self._ends(topic), "", 0)
        )
        if not ends:
            await self._queries.check_known(request.group, await broker_groups(self._controller))
        response = admin_pb2.ListDeadLettersResponse()
        size = 0
        for group in [name for name in sorted(ends) if name >= broker]:
            while True:
                if len(response.letters) >= wanted or size >= ANSWER_BYTES:
                    response.next = json.dumps([ends, group, offset]).encode()
                    return response
                question = peer_pb2.GroupLetters(
                    topic=topic,
                    message_ids=request.message_ids,
                    settled=request.settled,
                    bodies=request.bodies,
                    max=wanted - len(response.letters),
                    offset=offset,
                    end=ends[group],
                )
                for name in ("begin_ms", "end_ms"):
                    if request.HasField(name):
                        setattr(question, name, getattr(request, name))
                reply = await self._queries.ask(
                    group, question, peer_pb2.GroupLettersReply, LEADER_WITHIN_S
                )
                for letter in reply.letters:
                    if letter.HasField("topic"):
                        source = self._controller.state.topics.get(
                            (letter.topic.namespace, letter.topic.name)
                        )
                        if (number := number_in(source, group, letter.group_queue)) is not None:
                            letter.queue = number
                response.letters.extend(reply.letters)
                size += sum(len(letter.message.body) for letter in reply.letters)
                if reply.HasField("lagging"):
                    response.lagging.append(reply.lagging)
                if not reply.HasField("next_offset"):
                    break
                offset = reply.next_offset
                if not reply.letters:
                    # It looked at many settled letters: the caller's time limit counts for one
                    # page.
                    response.next = json.dumps([ends, group, offset]).encode()
                    return response
            offset = 0
        return response

    async def counted(
        self, request: admin_pb2.CountDeadLettersRequest
    ) -> admin_pb2.CountDeadLettersResponse:
        """The dead letters of one consumer group, or of all that have any. Raises LedgerError."""
        topics = [_topic_of(request.group)] if request.HasField("group") else []
        totals = {topic: admin_pb2.DeadLetterCount() for topic in topics}
        for reply in (await self._counts(topics)).values():
            for count in reply.counts:
                total = totals.setdefault(
                    stored_name(count.group.namespace, count.group.name),
                    admin_pb2.DeadLetterCount(),
                )
                total.unsettled += count.unsettled
                total.resent += count.resent
                total.purged += count.purged
                if count.HasField("oldest_ms") and (
                    not total.HasField("oldest_ms") or count.oldest_ms < total.oldest_ms
                ):
                    total.oldest_ms = count.oldest_ms
        response = admin_pb2.CountDeadLettersResponse()
        for topic in sorted(totals):
            name = name_of(topic)
            totals[topic].group.namespace, totals[topic].group.name = (
                name.namespace,
                name.name.removeprefix(DLQ_PREFIX),
            )
            response.groups.append(totals[topic])
        return response

    async def settled(
        self, request: admin_pb2.SettleDeadLettersRequest, user: str
    ) -> admin_pb2.SettleDeadLettersResponse:
        """Settle letters, one broker group after the other; if that fails in between, it can be
        repeated. Raises LedgerError."""
        if request.how not in SETTLEMENTS:
            raise fail(
                Code.BAD_REQUEST,
                f"dead letters are {' or '.join(SETTLEMENTS)}, not {request.how!r}",
            )
        if len(request.letters) > LETTERS_MAX:
            raise fail(
                Code.BAD_REQUEST,
                f"{len(request.letters)} dead letters in one call; the limit is {LETTERS_MAX}",
            )
        known = await broker_groups(
            self._controller, *(place.broker_group for place in request.letters)
        )
        offsets: dict[str, list[int]] = {}
        for place in request.letters:
            if place.broker_group not in known:
                raise fail(
                    Code.BAD_REQUEST,
                    f"broker group {place.broker_group!r} does not exist; known:"
                    f" {', '.join(sorted(known))}",
                )
            offsets.setdefault(place.broker_group, []).append(place.offset)
        states: dict[tuple[str, int], str] = {}
        for group in sorted(offsets):
            wanted = list(dict.fromkeys(offsets[group]))
            question = peer_pb2.GroupSettle(
                topic=_topic_of(request.group), how=request.how, offsets=wanted, user=user
            )
            reply = await self._queries.ask(
                group, question, peer_pb2.GroupSettleReply, LEADER_WITHIN_S, repeatable=True
            )
            states |= {
                (group, offset): state for offset, state in zip(wanted, reply.states, strict=True)
            }
            told = {
                "group": group,
                "consumer_group": stored_name(request.group.namespace, request.group.name),
                "user": user,
            }
            log.info(
                f"dead letters {request.how}",
                **told,
                letters=sum(state == request.how for state in reply.states),
            )
        return admin_pb2.SettleDeadLettersResponse(
            states=[states[place.broker_group, place.offset] for place in request.letters]
        )

    async def _ends(self, topic: str) -> dict[str, int]:
        replies = await self._counts([topic])
        return {group: reply.ends[0] for group, reply in replies.items() if reply.ends}

    async def _counts(self, topics: list[str]) -> Mapping[str, peer_pb2.GroupLetterCountsReply]:
        groups = sorted(await broker_groups(self._controller))
        question = peer_pb2.GroupLetterCounts(topics=topics)
        asked = (
            self._queries.ask(group, question, peer_pb2.GroupLetterCountsReply, LEADER_WITHIN_S)
            for group in groups
        )
        return dict(zip(groups, await asyncio.gather(*asked), strict=True))


def _topic_of(group: admin_pb2.Name) -> str:
    return dead_letter_topic(stored_name(group.namespace, group.name))


def _decoded(after: bytes) -> tuple[dict[str, int], str, int]:
    """The page token: ends, the broker group to go on with, and the offset there. Raises
    LedgerError."""
    try:
        ends, group, offset = json.loads(after)
        if (
            not all(type(end) is int for end in ends.values())
            or group not in ends
            or type(offset) is not int
        ):
            raise ValueError("a value of another type")
    except (ValueError, TypeError, AttributeError) as error:
        raise fail(
            Code.BAD_REQUEST,
            "the page token is not one of a list of dead letters; start again without a token",
        ) from error
    return ends, group, offset
