"""Conversion of the topics and consumer groups of a store root: kinds, permissions, attempts,
backoff; and the offsets of groups.

Pure. A setting without a counterpart here is left out and reported in `remarks`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ledgermq.proto.names import group_name, is_dead_letter_topic
from ledgermq.proto.records.group_config import read_backoff
from ledgermq.proto.status import LedgerError
from ledgermq.proto.types import Backoff, GroupConfig, Permission, TopicConfig, TopicKind
from ledgermq.storage.importing.survey import QueueKey, Survey
from ledgermq.storage.rocketmq.configuration import SourceGroup, SourceTopic

READ, WRITE = 4, 2
_PERMISSIONS = {
    READ | WRITE: Permission.READ_WRITE,
    READ: Permission.READ,
    WRITE: Permission.WRITE,
    0: Permission.NONE,
}
_KINDS = {
    "NORMAL": TopicKind.NORMAL,
    "FIFO": TopicKind.FIFO,
    "DELAY": TopicKind.DELAY,
    "TRANSACTION": TopicKind.TRANSACTION,
    "MIXED": TopicKind.MIXED,
    "PRIORITY": TopicKind.PRIORITY,
}
_BY_MESSAGES = {
    frozenset(): TopicKind.NORMAL,
    frozenset({"normal"}): TopicKind.NORMAL,
    frozenset({"fifo"}): TopicKind.FIFO,
    frozenset({"delay"}): TopicKind.DELAY,
    frozenset({"transaction"}): TopicKind.TRANSACTION,
}
ATTEMPTS_MAX = 1000
OWN_GROUPS = frozenset(
    {
        "TOOLS_CONSUMER",
        "FILTERSRV_CONSUMER",
        "SELF_TEST_C_GROUP",
        "__MONITOR_CONSUMER",
        "CID_ONS-HTTP-PROXY",
        "CID_ONSAPI_PERMISSION",
        "CID_ONSAPI_OWNER",
        "CID_ONSAPI_PULL",
        "CID_SYS_RMQ_TRANS",
    }
)
"""Consumer groups that every RocketMQ broker has."""
OWN_GROUP_PREFIX = "CID_RMQ_SYS_"


@dataclass(slots=True)
class Settings:
    """The initial settings of the new broker group. `offsets`: (consumer group, topic) → queue →
    next offset to read, within its queue."""

    topics: list[TopicConfig] = field(default_factory=list)
    groups: list[GroupConfig] = field(default_factory=list)
    offsets: dict[tuple[str, str], dict[int, int]] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)


def settings_of(survey: Survey) -> Settings:
    """The settings of everything that is kept. Incarnations are 0; the keeper of the cluster's
    metadata assigns them."""
    made = Settings()
    counts: dict[str, int] = defaultdict(int)
    for topic, queue in (*survey.queues, *survey.delayed):
        counts[topic] = max(counts[topic], queue + 1)
    for topic in sorted(counts):
        row = survey.configuration.topics.get(
            topic, SourceTopic(topic, counts[topic], READ | WRITE)
        )
        made.topics.append(
            TopicConfig(
                namespace="",
                name=topic,
                kind=_kind(topic, row, survey),
                queues=counts[topic],
                permission=_PERMISSIONS[row.perm & (READ | WRITE)],
                incarnation=0,
            )
        )
    _groups(survey, made)
    _offsets(survey, made)
    return made


def _kind(topic: str, row: SourceTopic, survey: Survey) -> TopicKind:
    """The kind that the topic states; if it states none, a kind that fits its messages."""
    if is_dead_letter_topic(topic):
        return TopicKind.NORMAL
    declared = _KINDS.get(row.message_type.upper())
    return declared or _BY_MESSAGES.get(frozenset(survey.kinds.get(topic, set())), TopicKind.MIXED)


def _groups(survey: Survey, made: Settings) -> None:
    rows = survey.configuration.groups
    reading = {
        group for group, topic in survey.configuration.offsets if (topic, 0) in survey.queues
    }
    for name in sorted({*rows, *reading}):
        if name in OWN_GROUPS or name.startswith(OWN_GROUP_PREFIX):
            continue
        try:
            group_name("", name)
        except LedgerError as error:
            made.remarks.append(f"consumer group {name} is left out: {error.message}")
            continue
        row = rows.get(name, SourceGroup(name))
        if not row.enabled:
            made.remarks.append(f"consumer group {name} was not allowed to consume; here it is")
        attempts = min(max(row.retry_max, 0) + 1, ATTEMPTS_MAX)
        made.groups.append(
            GroupConfig("", name, attempts, row.ordered, _backoff(row.backoff, name, made))
        )


def _backoff(policy: Mapping[str, Any] | None, name: str, made: Settings) -> Backoff | None:
    """The waits of a retry policy; None for RocketMQ's default, which is also the default here."""
    exponential = (policy or {}).get("exponentialRetryPolicy")
    custom = (policy or {}).get("customizedRetryPolicy")
    fields: dict[str, Any] = {}
    if policy is not None and policy.get("type") == "EXPONENTIAL" and isinstance(exponential, dict):
        fields = {
            "initial_ms": exponential.get("initial"),
            "max_ms": exponential.get("max"),
            "multiplier": exponential.get("multiplier"),
        }
    elif isinstance(custom, dict) and custom.get("next"):
        fields = {"steps_ms": custom["next"]}
    try:
        return read_backoff(fields)
    except ValueError as error:
        made.remarks.append(
            f"the retry policy of consumer group {name} becomes the default: {error}"
        )
        return None


def _offsets(survey: Survey, made: Settings) -> None:
    known = {group.name for group in made.groups}
    moved = 0
    for (group, topic), rows in sorted(survey.configuration.offsets.items()):
        if group not in known:
            continue
        kept: dict[int, int] = {}
        for queue, offset in sorted(rows.items()):
            place: QueueKey = topic, queue
            if place in survey.queues:
                limits = survey.queues[place]
                kept[queue] = min(max(offset, limits.first), limits.next)
                moved += kept[queue] != offset
        if kept:
            made.offsets[group, topic] = kept
    if moved:
        made.remarks.append(
            f"{moved} consumer offsets were outside their queues' range; they were moved to the"
            " nearest message"
        )
