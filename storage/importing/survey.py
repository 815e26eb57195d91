"""The first reading of a store root: what it holds, what can be kept, and everything that must be
known before a byte is written.

Memory grows with the number of queues and of damaged places, not with the number of messages. Only
undecided transactions, and timer wheel messages that were stored several times, cost a row each.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from ledgermq.proto.names import topic_name
from ledgermq.proto.status import LedgerError
from ledgermq.storage.backups.backup_manifest import Refused
from ledgermq.storage.importing.sorting import (
    BATCH,
    HALF_TOPIC,
    OP_TOPIC,
    TRANSACTION_GROUP,
    Kept,
    Sorter,
    is_internal,
)
from ledgermq.storage.rocketmq.configuration import Configuration, queue_ends, read_configuration
from ledgermq.storage.rocketmq.layout import StoreRoot
from ledgermq.storage.rocketmq.reading import Damage, Reader
from ledgermq.storage.rocketmq.records import RECORD_MIN_BYTES, Message, number_of

QueueKey = tuple[str, int]
MAX_QUEUES = 1024
INHERIT = 1
"""Permission bit of a topic that RocketMQ created itself, named after the broker or the cluster."""
FILLED_SPARE = 1000
"""At most this many missing offsets are filled in a queue whose offsets jump without damage."""


@dataclass(slots=True)
class QueueSurvey:
    """One queue of a kept topic: offsets first … next−1. `lost` of them have no message. `repeated`
    messages followed another one with the same offset, so no consumer ever saw them."""

    first: int
    next: int
    messages: int = 0
    lost: int = 0
    repeated: int = 0


@dataclass(slots=True)
class Survey:
    """The result of the first reading."""

    root: StoreRoot
    configuration: Configuration
    sorter: Sorter
    queues: dict[QueueKey, QueueSurvey] = field(default_factory=dict)
    delayed: Counter[QueueKey] = field(default_factory=Counter)
    """Delayed messages, by destination queue. Timer wheel messages among them may have been
    recalled or stored again later; the second reading leaves those out."""
    others: dict[QueueKey, int] = field(default_factory=dict)
    """Next offsets of queues whose messages are not kept unchanged."""
    left_out: Counter[tuple[str, str]] = field(default_factory=Counter)
    """(topic, reason) → messages."""
    damages: list[Damage] = field(default_factory=list)
    undecided: list[int] = field(default_factory=list)
    """Offsets of half messages without a known end."""
    kinds: dict[str, set[str]] = field(default_factory=dict)
    """Topic → kinds of its messages: `normal`, `fifo`, `transaction`, `delay`."""
    messages: int = 0
    kept_bytes: int = 0
    record_bytes_max: int = 0
    first_store_ms: int = 0
    last_store_ms: int = 0
    log_end: int = 0
    last_index: int = -1

    @property
    def now_ms(self) -> int:
        """The current time of the source: the last store time, or the time up to which the timer
        wheel was read, if later."""
        return max(self.last_store_ms, self.configuration.timers_read_ms or 0)

    @property
    def kept(self) -> int:
        return sum(queue.messages for queue in self.queues.values()) + sum(self.delayed.values())

    def topics(self) -> list[str]:
        """Every topic to create, with or without messages."""
        names = {topic for topic, _ in self.queues} | {topic for topic, _ in self.delayed}
        return sorted(names)


def survey(
    root: StoreRoot,
    *,
    topics: Collection[str] | None,
    skip_damaged: bool,
    progress: Callable[[int], None],
) -> Survey:
    """Read everything. Raises Refused if something cannot be kept, or is damaged and must not be
    skipped; OSError."""
    configuration = read_configuration(root.path)
    result = Survey(root, configuration, Sorter(configuration, topics))
    reader = Reader(
        root, lambda message: _fresh(result, message), skip_damaged=skip_damaged, progress=progress
    )
    halves: dict[int, None] = {}
    half_low = configuration.offsets.get((TRANSACTION_GROUP, HALF_TOPIC), {}).get(0, 0)
    for message in reader.messages():
        result.messages += 1
        result.log_end = message.position + message.size
        result.first_store_ms = result.first_store_ms or message.store_ms
        result.last_store_ms = max(result.last_store_ms, message.store_ms)
        result.sorter.learn(message)
        if message.topic == HALF_TOPIC and message.queue_offset >= half_low:
            halves[message.queue_offset] = None
        elif message.topic == OP_TOPIC:
            for piece in message.body.split(b","):
                halves.pop(number_of(piece), None)
        kept = result.sorter.sort(message)
        if isinstance(kept, str) or kept.deliver_ms:
            result.others[message.topic, message.queue] = message.queue_offset + 1
        if isinstance(kept, str):
            _leave_out(result, message, kept)
        else:
            _keep(result, message, kept, skip_damaged, reader.damages)
    result.damages, result.last_index = reader.damages, reader.last_index
    result.undecided = sorted(halves)
    _require_sound(result, skip_damaged)
    _add_empty(result)
    _require_names(result)
    return result


def _fresh(result: Survey, message: Message) -> bool:
    """Whether a message behind damage continues the log. A message with an already assigned queue
    offset remains from an earlier use."""
    key = message.topic, message.queue
    known = result.queues.get(key)
    return message.queue_offset >= (result.others.get(key, 0) if known is None else known.next)


def _leave_out(result: Survey, message: Message, reason: str) -> None:
    if reason == BATCH:
        problem = (
            f"topic {message.topic} has records that hold several messages each (queue.type"
            " BatchCQ), which cannot be kept"
        )
        raise Refused(problem, "name only other topics with --topics")
    result.left_out[message.topic, reason] += 1


def _keep(
    result: Survey, message: Message, kept: Kept, skip_damaged: bool, damages: list[Damage]
) -> None:
    result.record_bytes_max = max(result.record_bytes_max, message.size)
    result.kept_bytes += message.size
    result.kinds.setdefault(kept.topic, set()).add(_kind(message, kept))
    if kept.deliver_ms:
        result.delayed[kept.topic, kept.queue] += 1
        return
    key = kept.topic, kept.queue
    queue = result.queues.get(key)
    if queue is None:
        queue = result.queues[key] = QueueSurvey(message.queue_offset, message.queue_offset)
    gap = message.queue_offset - queue.next
    if gap < 0:
        queue.repeated += 1
        result.kept_bytes -= message.size
        return
    if gap:
        _require_filling(
            result, key, queue, message, gap, skip_damaged=skip_damaged, damages=damages
        )
        queue.lost += gap
    queue.messages += 1
    queue.next = message.queue_offset + 1


def _kind(message: Message, kept: Kept) -> str:
    if kept.deliver_ms:
        return "delay"
    if b"TRAN_MSG\x01" in message.properties:
        return "transaction"
    return "fifo" if b"__SHARDINGKEY\x01" in message.properties else "normal"


def _require_filling(
    result: Survey,
    key: QueueKey,
    queue: QueueSurvey,
    message: Message,
    gap: int,
    skip_damaged: bool,
    damages: list[Damage],
) -> None:
    """Raises Refused unless the gap may be filled: the user allowed it, and that many messages can
    have been there."""
    problem = (
        f"queue {key[1]} of topic {key[0]} jumps from offset {queue.next} to {message.queue_offset}"
        f" at position {message.position}"
    )
    if not skip_damaged:
        raise Refused(
            f"{problem}: messages are missing in between",
            "import another replica, or accept the loss with --skip-damaged",
        )
    most = FILLED_SPARE + (result.root.bytes // RECORD_MIN_BYTES if damages else 0)
    if gap > most:
        raise Refused(
            f"{problem}: more than the damage of this log can explain",
            "omit the topic: name the others with --topics",
        )


def _require_sound(result: Survey, skip_damaged: bool) -> None:
    if not result.messages:
        raise Refused(
            f"{result.root.path} holds no readable message",
            "check that it is the broker's storePathRootDir",
        )
    for damage in result.damages:
        if damage.resumes is not None and not skip_damaged:
            path, at = damage.resumes
            problem = (
                f"{damage.text}, and intact messages follow from byte {at} of {path}: this is"
                " damage in the middle of the log"
            )
            raise Refused(
                problem,
                "import another replica of the broker, or skip the damaged parts with"
                " --skip-damaged",
            )


def _add_empty(result: Survey) -> None:
    """Topics without messages, and queues whose messages RocketMQ has deleted: the consume queues
    tell their next offsets."""
    ends = queue_ends(result.root.path, result.log_end)
    listed = result.configuration.topics
    wanted = result.sorter.wanted
    used = {topic for topic, _ in (*result.queues, *result.delayed)}
    names = {name for name in listed if wanted is None or name in wanted} | used
    for topic in sorted(names):
        if topic not in used and _is_made_by_itself(result, topic):
            continue
        seen = [
            queue + 1 for name, queue in (*result.queues, *result.delayed, *ends) if name == topic
        ]
        count = max([listed[topic].queues if topic in listed else 0, *seen])
        if count > MAX_QUEUES:
            what = f"topic {topic} has {count} queues; the maximum is {MAX_QUEUES}"
            raise Refused(what, "omit it: name the others with --topics")
        for queue in range(count):
            end = ends.get((topic, queue), 0)
            result.queues.setdefault((topic, queue), QueueSurvey(end, end))
    if wanted is not None:
        for topic in sorted(set(wanted) - set(result.topics())):
            raise Refused(
                f"{result.root.path} has no topic {topic}",
                f"available topics: {', '.join(result.topics()) or 'none'}",
            )


def _is_made_by_itself(result: Survey, topic: str) -> bool:
    """Whether every RocketMQ broker has this topic, used or not."""
    row = result.configuration.topics.get(topic)
    return is_internal(topic) or (
        row is not None and (bool(row.perm & INHERIT) or topic.endswith("_REPLY_TOPIC"))
    )


def _require_names(result: Survey) -> None:
    for topic in result.topics():
        try:
            topic_name("", topic)
        except LedgerError as error:
            raise Refused(
                f"topic {topic} cannot be kept: {error.message}",
                "omit it: name the others with --topics",
            ) from error
