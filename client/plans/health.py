"""The judgement of a cluster for monitoring systems: findings with a severity, from the answers of
the cluster and the caller's limits.

Law: what is unknown is never judged as good. Only pure functions live here; nothing is asked and
nothing printed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum

from ledgermq.proto import admin_pb2 as pb
from ledgermq.proto import units
from ledgermq.proto.levels import LACKS, LEVEL_MAX, TIME_EPOCH_LEVEL


class Severity(IntEnum):
    """The exit statuses of a monitoring plugin."""

    OK = 0
    WARNING = 1
    CRITICAL = 2
    UNKNOWN = 3


BY_WEIGHT = (Severity.OK, Severity.UNKNOWN, Severity.WARNING, Severity.CRITICAL)
"""The least to the most serious one: something known to be bad outweighs something unknown."""


@dataclass(frozen=True, slots=True)
class Finding:
    severity: Severity
    text: str


@dataclass(frozen=True, slots=True)
class Limit:
    """From `warning` or `critical` on, a value is bad; None: never."""

    warning: int | None = None
    critical: int | None = None

    def severity(self, value: int) -> Severity:
        if self.critical is not None and value >= self.critical:
            return Severity.CRITICAL
        return (
            Severity.WARNING if self.warning is not None and value >= self.warning else Severity.OK
        )


def worst(findings: list[Finding]) -> Severity:
    return max((finding.severity for finding in findings), key=BY_WEIGHT.index, default=Severity.OK)


def of_cluster(
    status: pb.ClusterStatusResponse, free_warning: int, free_critical: int, *, exact: bool = False
) -> list[Finding]:
    """What is wrong with nodes, disks, broker groups and replicas. `exact`: in bytes; otherwise
    rounded, with a unit."""
    findings = [
        finding
        for node in status.nodes
        for finding in _of_node(node, free_warning, free_critical, exact)
    ]
    findings += [finding for group in status.groups for finding in _of_group(group)]
    findings += [finding for group in status.groups for finding in _of_level(group)]
    if not status.groups:
        findings.append(Finding(Severity.CRITICAL, "there is no broker group"))
    if status.health != "ok" and worst(findings) == Severity.OK:
        severity = Severity.CRITICAL if status.health == "down" else Severity.WARNING
        findings.append(
            Finding(
                severity,
                f"the cluster is {status.health or 'in an unknown state'} (see: ledgermq status)",
            )
        )
    return findings


_CLOCKS = {
    "off": "a majority of the nodes has another time",
    "divided": "the nodes' clocks differ, and no majority agrees",
}


def _of_node(
    node: pb.NodeInfo, free_warning: int, free_critical: int, exact: bool
) -> Iterator[Finding]:
    if not node.up:
        yield Finding(Severity.WARNING, f"node {node.node} is down")
        return
    if node.clock in _CLOCKS:
        offset = (
            f"{node.clock_offset_ms:+d} ms off"
            if exact
            else units.offset_words(node.clock_offset_ms)
        )
        yield Finding(
            Severity.WARNING, f"the clock of node {node.node} is {offset}: {_CLOCKS[node.clock]}"
        )
    for failure in node.peer_failures:
        yield Finding(Severity.WARNING, f"node {node.node}: {failure}")
    if node.HasField("disk_free_bytes") and node.disk_free_bytes < max(free_warning, free_critical):
        severity = Severity.CRITICAL if node.disk_free_bytes < free_critical else Severity.WARNING
        free = f"{node.disk_free_bytes} bytes" if exact else units.size_words(node.disk_free_bytes)
        yield Finding(severity, f"node {node.node} has {free} of free disk space")
    if node.disk == "full":
        consequence = (
            "it takes no messages, and leads only what no other node can lead; free space there"
        )
        yield Finding(Severity.CRITICAL, f"the disk of node {node.node} is full: {consequence}")


def _of_level(group: pb.BrokerGroupInfo) -> Iterator[Finding]:
    """A lower level is no fault: an upgrade may be under way."""
    lacks = [
        text
        for level, texts in LACKS.items()
        for text in texts
        if group.HasField("level") and group.level < level
    ]
    if lacks:
        lacking = (
            f"broker group {group.group} has feature level {group.level}, and below {LEVEL_MAX}"
            f" {' and '.join(lacks)}"
        )
        yield Finding(Severity.OK, f"{lacking} (see: ledgermq upgrade status)")


def _of_group(group: pb.BrokerGroupInfo) -> Iterator[Finding]:
    if not group.HasField("leader"):
        yield Finding(Severity.CRITICAL, f"broker group {group.group} has no leader")
    if group.disputed_files:
        yield Finding(
            Severity.CRITICAL, f"the replicas of {group.group} differ, and no majority agrees"
        )
    if group.ha.HasField("short"):
        yield Finding(Severity.CRITICAL, group.ha.short)
    if group.HasField("store_time_ahead_ms"):
        ahead = f"{units.duration_words(group.store_time_ahead_ms)} ahead of its leader's clock"
        yield Finding(
            Severity.WARNING,
            f"the newest store time of {group.group} is {ahead} ({_what_helps(group)})",
        )
    for replica in group.replicas:
        place = f"{group.group} on {replica.node}"
        if replica.differing_files:
            yield Finding(Severity.CRITICAL, f"{place} differs from what a majority sealed")
        if replica.HasField("fenced"):
            yield Finding(Severity.WARNING, f"{place} has stopped: {replica.fenced}")
        elif replica.HasField("state") and replica.state != "running":
            why = f": {replica.rebuild.reason}" if replica.rebuild.reason else ""
            yield Finding(Severity.WARNING, f"{place} is {replica.state}{why}")


def _what_helps(group: pb.BrokerGroupInfo) -> str:
    """Against a store time that is ahead."""
    command = f"if that clock is right: ledgermq begin-time-epoch {group.group}"
    needs = f"which needs feature level {TIME_EPOCH_LEVEL}: ledgermq upgrade finish"
    return command if group.level >= TIME_EPOCH_LEVEL else f"{command}, {needs}"


def of_consumer_group(
    name: str, lag: pb.GroupLagResponse, messages: Limit, age_ms: Limit, *, exact: bool = False
) -> list[Finding]:
    """What a consumer group has still to consume, as one finding; its severity is OK below the
    limits. `exact`: in milliseconds."""
    if any(not topic.HasField("lag") for topic in lag.topics):
        return [
            Finding(
                Severity.UNKNOWN,
                f"the lag of {name} is unknown, because a broker group has no leader",
            )
        ]
    total, oldest = lag_of(lag)
    severity = max(messages.severity(total), age_ms.severity(oldest))
    age = (
        f", the oldest for {f'{oldest} ms' if exact else units.duration_words(oldest)}"
        if oldest
        else ""
    )
    return [Finding(severity, f"{total} messages wait for {name}{age}")]


def lag_of(lag: pb.GroupLagResponse) -> tuple[int, int]:
    """The messages that wait in all topics, and the age of the oldest."""
    return sum(topic.lag for topic in lag.topics), max(
        (topic.oldest_age_ms for topic in lag.topics), default=0
    )
