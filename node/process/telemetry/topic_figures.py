"""The metrics by topic and consumer group, read from the broker groups when `/metrics` is read, or
the metrics are exported by OTLP.

The counts are those of `node/broker/queries/traffic.py`; how far consumer groups are is read by
`node/broker/queries/backlog.py`, and only at leaders. A reading is split into steps between turns
of a group, so that calls never wait for all of it. `series_max` bounds the number of series:
consumer groups come before topics, each in the order of their names, so that every node leaves out
the same ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ledgermq.node.broker.queries.backlog import Backlog, backlog, positions
from ledgermq.node.broker.queries.traffic import HandedOut, Pair, Stored
from ledgermq.node.broker.queues import QueueKey
from ledgermq.node.replica.hosting.engine import Engine
from ledgermq.node.runtime import mirrored
from ledgermq.node.runtime.metrics import Declared
from ledgermq.node.runtime.mirrored import Mirrored
from ledgermq.proto.status import LedgerError


def _declared(*families: Mirrored) -> tuple[Declared, ...]:
    return tuple(family.declared for family in families)


OF_TOPIC = _declared(mirrored.MESSAGES_IN, mirrored.THROUGHPUT_IN)
OF_PAIR = _declared(
    mirrored.MESSAGES_OUT, mirrored.THROUGHPUT_OUT, mirrored.REDELIVERED, mirrored.DEAD_LETTERED
)
OF_BACKLOG = _declared(
    mirrored.READY, mirrored.IN_FLIGHT, mirrored.LAG, mirrored.READY_AGE, mirrored.LAG_AGE
)
LEFT_OUT = _declared(mirrored.SERIES_LEFT_OUT)
PAIR_SERIES = len(OF_PAIR) + len(OF_BACKLOG)
PAIRS_A_STEP = 16
"""How many consumer groups and topics are read between two turns."""


@dataclass(slots=True)
class GroupFigures:
    """What one broker group told."""

    stored: dict[str, tuple[str, Stored]] = field(default_factory=dict)
    """Topic → its kind, and what was stored in it."""
    handed_out: dict[Pair, HandedOut] = field(default_factory=dict)
    backlogs: dict[Pair, Backlog] = field(default_factory=dict)


class TopicFigures:
    """Reads and keeps the figures of a node's broker groups."""

    def __init__(
        self, cluster: str, node: str, engine: Engine, now_ms: Callable[[], int], series_max: int
    ) -> None:
        self._labels = [cluster, "broker", node]
        self._engine = engine
        self._now_ms = now_ms
        self._series_max = series_max
        self._stored_ms: dict[tuple[str, str, int, int], int] = {}
        """By broker group, topic, queue and offset, the store times of the oldest messages: each is
        read once while it stays the oldest."""
        self.groups: Mapping[str, GroupFigures] = {}
        self.left_out = {"topic": 0, "consumer_group": 0}

    async def refresh(self) -> None:
        """Read all broker groups here. Raises TimeoutError if the engine has ended."""
        known: dict[str, GroupFigures] = {}
        keys: dict[tuple[Pair, str], list[QueueKey]] = {}
        for group in self._engine.groups:
            try:
                known[group], found = await self._engine.run(group, _begin)
            except LedgerError:
                # The group does not run here at the moment, or no longer.
                continue
            keys |= {
                (pair, group): found.get(pair, []) for pair in {**found, **known[group].handed_out}
            }
        shown = sorted(keys)[: self._series_max // PAIR_SERIES]
        topics = sorted(
            (topic, group) for group, figures in known.items() for topic in figures.stored
        )
        room = (self._series_max - len(shown) * PAIR_SERIES) // len(OF_TOPIC)
        stored_ms: dict[tuple[str, str, int, int], int] = {}
        for group, figures in known.items():
            pairs = {pair: keys[pair, group] for pair, of in shown if of == group}
            figures.handed_out = {
                pair: count for pair, count in figures.handed_out.items() if pair in pairs
            }
            placed = [pair for pair in pairs if pairs[pair]]
            for at in range(0, len(placed), PAIRS_A_STEP):
                part = {pair: pairs[pair] for pair in placed[at : at + PAIRS_A_STEP]}
                step = _Step(group, part, self._now_ms(), self._stored_ms, stored_ms)
                try:
                    figures.backlogs |= await self._engine.run(group, step.read)
                except LedgerError:
                    break
            kept = {topic for topic, of in topics[:room] if of == group}
            figures.stored = {
                topic: found for topic, found in figures.stored.items() if topic in kept
            }
        self._stored_ms = stored_ms
        self.groups = known
        left = len(topics) - min(room, len(topics)), len(keys) - len(shown)
        self.left_out = {"topic": left[0] * len(OF_TOPIC), "consumer_group": left[1] * PAIR_SERIES}

    def series(self) -> Iterator[tuple[Sequence[Declared], Sequence[str], Sequence[int]]]:
        """The figures of the last `refresh`: families that share their labels, the labels, and the
        values. From any thread."""
        left_out = self.left_out
        for group, figures in self.groups.items():
            for topic, (kind, count) in figures.stored.items():
                yield OF_TOPIC, (*self._labels, group, topic, kind), (count.messages, count.bytes)
            for (consumer_group, topic), out in figures.handed_out.items():
                yield (
                    OF_PAIR,
                    (*self._labels, group, topic, consumer_group),
                    (out.messages, out.bytes, out.again, out.dead),
                )
            for (consumer_group, topic), left in figures.backlogs.items():
                numbers = left.ready, left.in_flight, left.lag, left.ready_age_ms, left.lag_age_ms
                yield OF_BACKLOG, (*self._labels, group, topic, consumer_group), numbers
        for what, number in left_out.items():
            yield LEFT_OUT, (what,), (number,)

    def page(self) -> str:
        """The figures in the text format of Prometheus. They are written here because
        prometheus_client takes some eight times as long, and no group has a turn meanwhile."""
        families = {
            declared: [_head(declared)]
            for declared in (*OF_TOPIC, *OF_PAIR, *OF_BACKLOG, *LEFT_OUT)
        }
        for together, labels, values in self.series():
            text = _labels(together[0], labels)
            for one, value in zip(together, values, strict=True):
                families[one].append(f"{one.name}{text} {value}\n")
        return "".join(line for lines in families.values() for line in lines)


def _head(one: Declared) -> str:
    return f"# HELP {one.name} {one.help}\n# TYPE {one.name} {one.kind}\n"


def _labels(declared: Declared, values: Sequence[str]) -> str:
    """The labels of a sample in the text format."""
    return (
        "{"
        + ",".join(
            [
                f'{name}="{_escaped(value)}"'
                for name, value in zip(declared.labels, values, strict=True)
            ]
        )
        + "}"
    )


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def _begin(hosted: Any) -> tuple[GroupFigures, dict[Pair, list[QueueKey]]]:
    """The counts of a group, and at its leader the positions of consumer groups. A consumer group
    that was deleted has no position."""
    machine, leader = hosted.machine, hosted.group.leader
    traffic = leader.traffic
    placed = positions(machine) if leader.serving or traffic.handed_out else {}
    stored = {
        topic: (machine.topics[topic].kind.value, Stored(count.messages, count.bytes))
        for topic, count in traffic.stored.items()
        if topic in machine.topics
    }
    handed_out = {
        pair: HandedOut(count.messages, count.bytes, count.again, count.dead)
        for pair, count in traffic.handed_out.items()
        if pair in placed
    }
    return GroupFigures(stored, handed_out), placed if leader.serving else {}


@dataclass(slots=True)
class _Step:
    """The backlogs of some consumer groups. `known` are store times read before, `used` those that
    this reading needed."""

    group: str
    pairs: Mapping[Pair, list[QueueKey]]
    now_ms: int
    known: Mapping[tuple[str, str, int, int], int]
    used: dict[tuple[str, str, int, int], int]

    def read(self, hosted: Any) -> dict[Pair, Backlog]:
        machine, leader = hosted.machine, hosted.group.leader
        if not leader.serving:
            return {}

        def stored_ms(topic: str, queue: int, offset: int) -> int:
            place = self.group, topic, queue, offset
            found = self.known.get(place)
            # Nothing counts as stored later than the last entry; a time epoch lowers what was read
            # before it.
            self.used[place] = (
                machine.stored_ms(topic, queue, offset)
                if found is None
                else min(found, machine.store_ms)
            )
            return self.used[place]

        return {
            pair: backlog(machine, leader.clock, keys, self.now_ms, stored_ms)
            for pair, keys in self.pairs.items()
        }
