"""SendMessage: chooses a queue, stores the messages, and returns their ids and offsets (§2.5).

`route` runs on the node that was called: it checks the request, chooses a broker group and has its
leader store the messages, here or with one hop. `execute` is the leader's part of a call that
another node received. A message group belongs to one queue among all queues of the topic; other
messages go to the queues in turn, skipping broker groups without a leader. A send with an unknown
outcome is repeated only if its topic recognises duplicates.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

from ledgermq.node.broker.calls.outcome import AGAIN, NOTHING_DONE, CallRefused
from ledgermq.node.broker.calls.send_calls import Produce, Produced
from ledgermq.node.broker.calls.transaction_calls import Prepare
from ledgermq.node.broker.flush import Durability, weakest
from ledgermq.node.controller.state import Topic
from ledgermq.node.frontend.rocketmq.broker_calls import Groups
from ledgermq.node.frontend.rocketmq.recalling import Delayed, RecallHandles
from ledgermq.node.frontend.rocketmq.service_config import DEADLINE_MARGIN_S, ServiceConfig
from ledgermq.node.frontend.rocketmq.topic_lookup import Slot, Topics, lite_group, slot_of
from ledgermq.node.frontend.rocketmq.transacting import Transaction, TransactionIds
from ledgermq.node.frontend.rocketmq.wire import statuses
from ledgermq.node.frontend.rocketmq.wire.validation import (
    Caller,
    born_ms,
    check_kinds,
    check_send,
    recovery_ms,
)
from ledgermq.node.frontend.routing.forwarder import Forwarder
from ledgermq.proto import messaging_pb2 as pb
from ledgermq.proto.entries.layout import java_hash
from ledgermq.proto.entries.properties import deliver_ms_of, encode_message, priority_of
from ledgermq.proto.names import lite_stored
from ledgermq.proto.send_answer import SendAnswer
from ledgermq.proto.status import Code, common, fail
from ledgermq.proto.types import Draft, TopicKind

METHOD = "SendMessage"
DURABILITY_KEY = "x-ledgermq-durability"
"""Trailing metadata of a successful send: the durability class of its acknowledgement
(docs/architecture.md, Durability)."""
QUEUE_KEY = "x-ledgermq-queue"
"""Trailing metadata of a successful send of one message that is visible at once: the number of its
queue in the topic. The response has the offset, and no field for the queue."""

GROUPED = frozenset({TopicKind.FIFO, TopicKind.MIXED})
"""Kinds of topics in which all messages of a message group stay in one queue."""


class Stored(NamedTuple):
    """A response, its durability class (None unless everything is stored), and the queue of its
    only message: in its broker group or, in the result of `route`, in the topic. Several messages,
    and one that has no place in its topic yet, have None."""

    response: bytes
    durability: Durability | None
    queue: int | None = None


class Sender:
    """SendMessage of one node."""

    def __init__(
        self,
        config: ServiceConfig,
        topics: Topics,
        groups: Groups,
        forwarder: Forwarder,
        ids: TransactionIds,
        recalls: RecallHandles,
    ) -> None:
        self._config = config
        self._topics = topics
        self._groups = groups
        self._forwarder = forwarder
        self._ids = ids
        self._recalls = recalls
        self._turns: dict[str, int] = {}

    async def route(self, data: bytes, caller: Caller, deadline: float) -> Stored:
        """Store the messages at the leaders of their queues."""
        request = pb.SendMessageRequest.FromString(data)
        stored, topic = await self._check(request, caller)
        slots = self._slots_of(request, stored, topic)
        groups = {broker_group for broker_group, _ in slots}
        if len(groups) == 1:
            (broker_group,) = groups
            done = await self._store(
                broker_group,
                request,
                data,
                stored,
                [queue for _, queue in slots],
                caller=caller,
                deadline=deadline,
            )
            return done._replace(queue=self._number(broker_group, done.queue, stored, topic))
        return await self._store_parts(slots, request, stored, caller, deadline)

    async def execute(
        self, broker_group: str, data: bytes, caller: Caller, deadline: float
    ) -> list[bytes]:
        """Execute, on this node as leader, a call of another node. Returns the response, the
        durability class and, of one message, the queue in the broker group for that node."""
        request = pb.SendMessageRequest.FromString(data)
        stored, topic = await self._check(request, caller)
        slots = self._slots_of(request, stored, topic, within=broker_group)
        response, durability, queue = await self._produce(
            broker_group, request.messages, stored, [queue for _, queue in slots], deadline
        )
        assert durability is not None
        return SendAnswer(response=response, durability=durability.value, queue=queue).encode()

    async def _check(self, request: pb.SendMessageRequest, caller: Caller) -> tuple[str, Topic]:
        stored = check_send(request, caller, self._config.limits, self._config.now_ms())
        topic = self._topics.known(stored) or await self._topics.find(stored)
        check_kinds(request, topic.kind)
        if not topic.permission.writable:
            raise fail(Code.FORBIDDEN, f"topic {stored} has no writable queue")
        return stored, topic

    # Queues

    def _number(
        self, broker_group: str, queue: int | None, stored: str, topic: Topic
    ) -> int | None:
        """The number, in the topic, of a queue of a broker group; None if this node does not know
        the queue yet."""
        slots = self._topics.slots(stored, topic)
        slot = broker_group, -1 if queue is None else queue
        return slots.index(slot) if slot in slots else None

    def _turn(self, stored: str) -> int:
        turn = self._turns.get(stored, -1) + 1
        self._turns[stored] = turn
        return turn

    def _turned_to(self, stored: str, slots: Sequence[tuple[str, int]]) -> tuple[str, int]:
        """The queue whose turn it is. If its broker group has no leader, a queue of a group that
        has one, if there is any."""
        turn = self._turn(stored)
        found = slots[turn % len(slots)]
        if not self._forwarder.led(found[0]):
            led = {group for group in {group for group, _ in slots} if self._forwarder.led(group)}
            usable = [slot for slot in slots if slot[0] in led]
            found = usable[turn % len(usable)] if usable else found
        return found

    def _slots_of(
        self,
        request: pb.SendMessageRequest,
        stored: str,
        topic: Topic,
        within: str | None = None,
    ) -> list[Slot]:
        """The broker group and the queue of every message. `within`: the broker group that another
        node chose by this rule. The messages stay in it, although the two nodes may briefly know
        different numbers of queues."""
        messages = request.messages
        if topic.kind is TopicKind.LITE:
            # A lite topic belongs to one broker group, and has one queue there.
            return [
                (within or lite_group(topic, message.system_properties.lite_topic), 0)
                for message in messages
            ]
        slots = usable = self._topics.slots(stored, topic)
        if within is not None:
            usable = tuple([slot for slot in slots if slot[0] == within])
            if not usable:
                raise fail(
                    Code.HA_NOT_AVAILABLE,
                    f"topic {stored} has no queue in broker group {within}; try again",
                )
        if topic.dedup_ms:
            return [_slot_by_id(message, topic, slots, within) for message in messages]
        if topic.kind is TopicKind.PRIORITY:
            groups = sorted(topic.placement)
            broker_group = within or groups[self._turn(stored) % len(groups)]
            count = topic.placement[broker_group]
            return [(broker_group, _rank(message, count)) for message in messages]
        if topic.kind not in GROUPED:
            return [self._turned_to(stored, usable)] * len(messages)
        turned: Slot | None = None
        found = []
        for message in messages:
            message_group = message.system_properties.message_group
            if message_group:
                slot = slots[slot_of(message_group, len(slots))]
                if within not in (None, slot[0]):
                    slot = usable[slot_of(message_group, len(usable))]
            else:
                slot = turned = turned or self._turned_to(stored, usable)
            found.append(slot)
        return found

    # Storing

    async def _store(
        self,
        broker_group: str,
        request: pb.SendMessageRequest,
        data: bytes,
        stored: str,
        queues: list[int],
        caller: Caller,
        deadline: float,
    ) -> Stored:
        known = self._topics.known(stored)
        # A message that was stored although its outcome was unknown is recognised by its id: only
        # then may a send be repeated.
        repeatable = (
            known is not None
            and known.dedup_ms > 0
            and request.messages[0].system_properties.message_type != pb.TRANSACTION
        )
        if self._groups.leads(broker_group):
            try:
                return await self._produce(broker_group, request.messages, stored, queues, deadline)
            except CallRefused as refusal:
                if refusal.refused.reason not in (AGAIN if repeatable else NOTHING_DONE):
                    raise
        until = deadline - DEADLINE_MARGIN_S
        responses = await self._forwarder.submit(
            broker_group, METHOD, caller.metadata(), data, until, repeatable=repeatable
        )
        answer = SendAnswer.decode(responses)
        if pb.SendMessageResponse.FromString(answer.response).status.code != pb.OK:
            return Stored(answer.response, None)
        return Stored(answer.response, Durability(answer.durability), answer.queue)

    async def _produce(
        self,
        broker_group: str,
        messages: Sequence[pb.Message],
        stored: str,
        queues: list[int],
        deadline: float,
    ) -> Stored:
        """Store messages in a broker group led here."""
        drafts = [
            _draft(stored, queue, message) for queue, message in zip(queues, messages, strict=True)
        ]
        if messages[0].system_properties.message_type == pb.TRANSACTION:
            return await self._prepare(broker_group, messages, stored, drafts, deadline)
        call = Produce(self._groups.engine.new_token(), drafts)
        produced: Produced = await self._groups.call(broker_group, call, stored, deadline)
        response = pb.SendMessageResponse(
            status=statuses.OK,
            entries=[
                pb.SendResultEntry(
                    status=statuses.OK,
                    message_id=message.system_properties.message_id,
                    offset=offset,
                )
                for message, offset in zip(messages, produced.queue_offsets, strict=True)
            ],
        )
        for draft, entry, offset, fire_ms in zip(
            drafts, response.entries, produced.queue_offsets, produced.fire_ms, strict=False
        ):
            if fire_ms:
                # The offset in the message's own topic is not known yet.
                entry.offset = 0
                entry.recall_handle = self._recalls.make(
                    Delayed(
                        broker_group=broker_group,
                        topic=stored,
                        deliver_ms=draft.deliver_ms,
                        fire_ms=fire_ms,
                        offset=offset,
                        message_id=entry.message_id,
                    )
                )
        queue = None
        if (
            len(messages) == 1
            and not response.entries[0].recall_handle
            and not messages[0].system_properties.lite_topic
        ):
            # A message that was stored before may lie in another queue: the topic may have got more
            # queues since.
            queue = (produced.queues or queues)[0]
        return Stored(response.SerializeToString(), Durability(produced.durability), queue)

    async def _prepare(
        self,
        broker_group: str,
        messages: Sequence[pb.Message],
        stored: str,
        drafts: list[Draft],
        deadline: float,
    ) -> Stored:
        """Store half messages: no consumer sees them, and each gets an id with which its
        transaction is decided."""
        recoveries = [recovery_ms(message.system_properties) for message in messages]
        call = Prepare(self._groups.engine.new_token(), drafts, recoveries)
        produced: Produced = await self._groups.call(broker_group, call, stored, deadline)
        response = pb.SendMessageResponse(status=statuses.OK)
        for message, offset in zip(messages, produced.queue_offsets, strict=True):
            message_id = message.system_properties.message_id
            transaction_id = self._ids.make(Transaction(broker_group, stored, offset, message_id))
            response.entries.add(
                status=statuses.OK,
                message_id=message_id,
                transaction_id=transaction_id,
                offset=offset,
            )
        return Stored(response.SerializeToString(), Durability(produced.durability))

    async def _store_parts(
        self,
        slots: Sequence[Slot],
        request: pb.SendMessageRequest,
        stored: str,
        caller: Caller,
        deadline: float,
    ) -> Stored:
        """Store messages in several broker groups; each part succeeds or fails on its own. The
        weakest durability class counts for all."""
        parts: dict[str, list[tuple[int, int]]] = {}
        for place, (broker_group, queue) in enumerate(slots):
            parts.setdefault(broker_group, []).append((place, queue))
        classes: set[Durability] = set()
        entries = [
            pb.SendResultEntry(message_id=message.system_properties.message_id)
            for message in request.messages
        ]

        async def one(broker_group: str, places: list[tuple[int, int]]) -> None:
            part = pb.SendMessageRequest(messages=[request.messages[place] for place, _ in places])
            queues = [queue for _, queue in places]
            try:
                data, durability, _ = await self._store(
                    broker_group,
                    request=part,
                    data=part.SerializeToString(),
                    stored=stored,
                    queues=queues,
                    caller=caller,
                    deadline=deadline,
                )
                classes.update(() if durability is None else (durability,))
                response = pb.SendMessageResponse.FromString(data)
            # the other parts may be stored, so this failure becomes the status of this part's
            # entries
            except Exception as error:
                response = pb.SendMessageResponse(
                    status=statuses.status_of(statuses.as_error(error, self._config.node, METHOD))
                )
            for i, (place, _) in enumerate(places):
                entries[place].status.CopyFrom(response.status)
                if i < len(response.entries):
                    entries[place].CopyFrom(response.entries[i])

        await asyncio.gather(*(one(broker_group, places) for broker_group, places in parts.items()))
        code = common({entry.status.code for entry in entries})
        message = next(
            (entry.status.message for entry in entries if entry.status.code != pb.OK), "OK"
        )
        response = pb.SendMessageResponse(status=statuses.status(code, message), entries=entries)
        return Stored(response.SerializeToString(), weakest(classes) if code is Code.OK else None)


def _slot_by_id(
    message: pb.Message, topic: Topic, slots: Sequence[tuple[str, int]], within: str | None = None
) -> tuple[str, int]:
    """The queue of a message in a topic with a deduplication window: always in the same broker
    group, because only that group knows its id; more queues do not move it. A message group keeps
    its usual queue. `within`: the broker group that was chosen."""
    message_group = message.system_properties.message_group if topic.kind in GROUPED else ""
    key = message_group or message.system_properties.message_id
    if within is None:
        if message_group:
            return slots[slot_of(key, len(slots))]
        groups = sorted({group for group, _ in slots})
        within = groups[slot_of(key, len(groups))]
    elif message_group and slots[slot_of(key, len(slots))][0] == within:
        return slots[slot_of(key, len(slots))]
    here = [slot for slot in slots if slot[0] == within]
    if topic.kind is TopicKind.PRIORITY:
        return within, _rank(message, len(here))
    return here[slot_of(key, len(here))]


def _draft(stored: str, queue: int, message: pb.Message) -> Draft:
    system = message.system_properties
    return Draft(
        stored_topic=lite_stored(stored, system.lite_topic) if system.lite_topic else stored,
        queue=queue,
        body=message.body,
        properties=encode_message(message),
        born_ms=born_ms(system),
        tags_code=java_hash(system.tag) if system.tag else 0,
        priority=priority_of(message),
        deliver_ms=deliver_ms_of(message),
    )


def _rank(message: pb.Message, queues: int) -> int:
    """The queue of a message by its priority; the highest queue is served first (§5.7)."""
    return min(max(0, message.system_properties.priority), queues - 1)
