"""The decision about each message of a store root: keep it in its topic, keep it as a delayed
message, or leave it out for a named reason.

RocketMQ stores internal data in topics beside those of its users (docs/import.md has the table).
The decision is made in one place for the survey and for the writing, so that both treat every
message alike.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from ledgermq.proto.delays import DELAY_LEVELS_MS, level_ms
from ledgermq.proto.names import DLQ_PREFIX, RETRY_PREFIX, is_system_topic
from ledgermq.storage.rocketmq.configuration import Configuration
from ledgermq.storage.rocketmq.records import (
    INNER_BATCH,
    PREPARED,
    ROLLBACK,
    TRANSACTION_BITS,
    Message,
    number_of,
    pairs_of,
)

SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
WHEEL_TOPIC = "rmq_sys_wheel_timer"
HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"
OP_TOPIC = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
TRANSACTION_GROUP = "CID_RMQ_SYS_TRANS"
WAITING = (SCHEDULE_TOPIC, WHEEL_TOPIC)

DELIVERED = "delayed, and delivered before"
ROLLED = "delayed, and stored again for later"
RECALLED = "delayed, and recalled"
SYSTEM = "RocketMQ's own"
UNASKED = "of a topic that was not asked for"
NEVER_VISIBLE = "prepared or rolled back, never visible"
HALF = "half message of a transaction"
BATCH = "several messages in one record"
ODD_DELAY = "delayed, without a topic or a time"


@dataclass(frozen=True, slots=True)
class Kept:
    """A kept message. `topic` and `queue`: its destination; `deliver_ms`: the delivery time of a
    delayed message, otherwise 0."""

    topic: str
    queue: int
    deliver_ms: int = 0


@dataclass(slots=True)
class Sorter:
    """Decides about each message. The survey adds what only a complete reading can tell: `recalled`
    and `rolled`."""

    configuration: Configuration
    wanted: Collection[str] | None
    """The requested topics; None: all."""
    recalled: set[str] = field(default_factory=set)
    """Unique ids of timer wheel messages that must not be delivered."""
    rolled: dict[str, int] = field(default_factory=dict)
    """Unique id → position of the last copy of a message that the timer wheel stored several
    times."""

    def sort(self, message: Message) -> Kept | str:
        """The message's destination, or why it is left out."""
        if message.sysflag & TRANSACTION_BITS in (PREPARED, ROLLBACK):
            return NEVER_VISIBLE
        topic = message.topic
        if topic in WAITING:
            return self._delayed(message)
        if topic in (HALF_TOPIC, OP_TOPIC):
            return HALF if topic == HALF_TOPIC else SYSTEM
        if is_internal(topic):
            return SYSTEM
        if not self._is_wanted(topic):
            return UNASKED
        if message.sysflag & INNER_BATCH:
            return BATCH
        return Kept(topic, message.queue)

    def _is_wanted(self, topic: str) -> bool:
        return self.wanted is None or topic in self.wanted

    def _delayed(self, message: Message) -> Kept | str:
        pairs = pairs_of(message.properties)
        real, queue = pairs.get("REAL_TOPIC", ""), number_of(pairs.get("REAL_QID", ""))
        scheduled = message.topic == SCHEDULE_TOPIC
        if scheduled:
            if message.queue_offset < (self.configuration.delay_offsets or {}).get(
                message.queue + 1, 0
            ):
                return DELIVERED
            deliver_ms = message.store_ms + level_ms(min(message.queue + 1, len(DELAY_LEVELS_MS)))
        else:
            deliver_ms = number_of(pairs.get("TIMER_OUT_MS", ""))
            if 0 < deliver_ms <= (self.configuration.timers_read_ms or 0):
                return DELIVERED
            if "TIMER_DEL_UNIQKEY" in pairs:
                return RECALLED
            unique = pairs.get("UNIQ_KEY", "")
            if unique in self.recalled or f"{real}+{unique}" in self.recalled:
                return RECALLED
            if self.rolled.get(unique, message.position) != message.position:
                return ROLLED
        if not real or queue < 0 or deliver_ms <= 0:
            return ODD_DELAY
        if is_internal(real):
            return SYSTEM
        return Kept(real, queue, deliver_ms) if self._is_wanted(real) else UNASKED

    def learn(self, message: Message) -> None:
        """Record a timer wheel message that refers to another message."""
        if message.topic != WHEEL_TOPIC:
            return
        pairs = pairs_of(message.properties)
        unique = pairs.get("UNIQ_KEY", "")
        if "TIMER_DEL_UNIQKEY" in pairs:
            self.recalled.add(pairs["TIMER_DEL_UNIQKEY"])
        elif pairs.get("TIMER_ROLL_TIMES", "0") not in ("", "0") and unique:
            self.rolled[unique] = message.position


def is_internal(topic: str) -> bool:
    """Whether the topic is RocketMQ's own. Retry and dead-letter topics belong to their
    consumers."""
    return not topic.startswith((RETRY_PREFIX, DLQ_PREFIX)) and is_system_topic(topic)
