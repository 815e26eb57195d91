"""The metrics by topic and consumer group as `/metrics` shows them: labels, bounds, and who exposes
what."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from ledgermq.node.broker.calls.member_calls import BeginTimeEpoch, RaiseLevel
from ledgermq.node.broker.calls.operator_calls import Configure
from ledgermq.node.broker.queries.backlog import Backlog
from ledgermq.node.broker.queries.traffic import HandedOut, Stored
from ledgermq.node.process.telemetry import topic_figures
from ledgermq.node.process.telemetry.topic_figures import PAIR_SERIES, GroupFigures, TopicFigures
from ledgermq.proto.records.control import LevelRecord
from tests.node_core.core_fakes import SECOND, Bench, leading


class FakeEngine:
    """Runs work on the groups of benches at once, and counts the steps."""

    def __init__(self, **benches: Bench) -> None:
        self.benches = benches
        self.steps: Counter[str] = Counter()

    @property
    def groups(self) -> list[str]:
        return list(self.benches)

    async def run(self, group: str, work: Callable[[Any], Any]) -> Any:
        self.steps[group] += 1
        bench = self.benches[group]
        return work(SimpleNamespace(machine=bench.machine, group=bench.group))


def read(figures: TopicFigures) -> dict[str, dict[tuple[str, ...], float]]:
    """Family → labels that differ → value, after a reading."""
    asyncio.run(figures.refresh())
    return shown(figures.page())


def shown(page: str) -> dict[str, dict[tuple[str, ...], float]]:
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            labels = {**sample.labels}
            if "cluster" in labels:
                assert (labels.pop("cluster"), labels.pop("node_type"), labels.pop("node_id")) == (
                    "c",
                    "broker",
                    "n1",
                )
            found.setdefault(sample.name, {})[tuple(labels.values())] = sample.value
    return found


def test_a_leader_exposes_every_number_of_a_topic_and_a_consumer_group() -> None:
    """Sent, received, received again, dead, ready, in flight, and the ages."""
    b = leading(max_attempts=2)
    figures = TopicFigures("c", "n1", FakeEngine(g1=b), lambda: b.now_ms, 1000)  # type: ignore[arg-type]
    b.send("one", "two", "three")
    b.receive(n=1, invisible_ms=1000)
    b.pass_time(SECOND)
    b.receive(n=1, invisible_ms=1000)
    b.pass_time(3 * SECOND)
    b.receive(n=1, invisible_ms=60_000)
    found = read(figures)
    size = int(b.machine.units("t", 0, 0, 3)[1].sum())
    group = ("g1", "t", "g")
    assert found["rocketmq_messages_in_total"]["g1", "t", "normal"] == 3
    assert found["rocketmq_throughput_in_total"]["g1", "t", "normal"] == size
    traffic = b.group.leader.traffic.handed_out["g", "t"]
    assert found["rocketmq_messages_out_total"] == {group: traffic.messages}
    assert found["rocketmq_throughput_out_total"] == {group: traffic.bytes}
    assert (
        found["ledgermq_redelivered_messages_total"] == {group: traffic.again}
        and traffic.again >= 1
    )
    assert found["rocketmq_send_to_dlq_messages_total"] == {group: traffic.dead}
    assert (
        found["rocketmq_consumer_lag_messages"][group]
        == found["rocketmq_consumer_ready_messages"][group] + 1
    )
    assert found["rocketmq_consumer_inflight_messages"] == {group: 1}
    assert found["rocketmq_consumer_lag_latency_milliseconds"] == {group: 4000}
    assert found["rocketmq_consumer_queueing_latency_milliseconds"] == {group: 4000}
    assert found["ledgermq_series_left_out"] == {("topic",): 0, ("consumer_group",): 0}


def test_an_age_counts_from_the_begin_of_a_time_epoch_at_the_earliest() -> None:
    """Also of a message whose store time was read before: it had one from the future."""
    b = leading(max_attempts=2)
    figures = TopicFigures("c", "n1", FakeEngine(g1=b), lambda: b.now_ms, 1000)  # type: ignore[arg-type]
    b.group.turn(b.now_ns, b.now_ms + 3_600_000, [b.produce("one")])
    b.receive(n=1, invisible_ms=60_000)
    age = "rocketmq_consumer_lag_latency_milliseconds"
    assert read(figures)[age] == {("g1", "t", "g"): 0}
    for level in (2, 3):
        b.turn(
            RaiseLevel(next(b.tokens), LevelRecord(level), frozenset(b.replicator.members.nodes))
        )
    b.turn(BeginTimeEpoch(next(b.tokens)))
    assert read(figures)[age] == {("g1", "t", "g"): 0}
    b.pass_time(4 * SECOND)
    assert read(figures)[age] == {("g1", "t", "g"): 4000}


def test_a_former_leader_exposes_its_counters_and_no_backlog() -> None:
    """Its counters do not go back; how far groups are is known by the leader only."""
    b = leading(max_attempts=2)
    figures = TopicFigures("c", "n1", FakeEngine(g1=b), lambda: b.now_ms, 1000)  # type: ignore[arg-type]
    b.send("one")
    b.receive()
    before = read(figures)
    b.replicator.follow(2, "n2")
    b.turn()
    after = read(figures)
    assert (
        "rocketmq_consumer_lag_messages" in before and "rocketmq_consumer_lag_messages" not in after
    )
    for name in ("rocketmq_messages_in_total", "rocketmq_messages_out_total"):
        assert after[name] == before[name] != {}


@pytest.mark.parametrize("series_max", [0, PAIR_SERIES - 1, PAIR_SERIES, 2 * PAIR_SERIES + 3, 1000])
def test_series_are_bounded_and_omitted_ones_counted(series_max: int) -> None:
    """Consumer groups come first, in the order of their names; shown and left out are all that
    there is."""
    b = leading(max_attempts=2)
    b.configure("u")
    for topic in ("t", "u"):
        b.send("x", topic=topic)
    for group in ("g", "h", "i"):
        b.receive(group=group)
    figures = TopicFigures("c", "n1", FakeEngine(g1=b), lambda: b.now_ms, series_max)  # type: ignore[arg-type]
    found = read(figures)
    left_out = found.pop("ledgermq_series_left_out")
    count = sum(map(len, found.values()))
    assert count <= series_max
    assert count + sum(left_out.values()) == 3 * PAIR_SERIES + 2 * 2
    groups = sorted({labels[2] for labels in found.get("rocketmq_consumer_lag_messages", ())})
    assert groups == ["g", "h", "i"][: min(3, series_max // PAIR_SERIES)]


def test_a_reading_is_split_into_steps_and_reads_a_message_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The engine gets a step per `PAIRS_A_STEP` groups; a message is not read again while it stays
    the oldest."""
    monkeypatch.setattr(topic_figures, "PAIRS_A_STEP", 2)
    b = leading(max_attempts=2)
    b.send("one", "two")
    for number in range(5):
        b.receive(group=f"g{number}", n=1)
    engine = FakeEngine(g1=b)
    reads: Counter[int] = Counter()
    stored_ms = b.machine.stored_ms

    def counted(topic: str, queue: int, offset: int) -> int:
        reads[offset] += 1
        return stored_ms(topic, queue, offset)

    monkeypatch.setattr(b.machine, "stored_ms", counted)
    figures = TopicFigures("c", "n1", engine, lambda: b.now_ms, 1000)  # type: ignore[arg-type]
    first = read(figures)
    assert engine.steps == {"g1": 1 + 3} and set(reads) == {0, 1}
    reads.clear()
    assert read(figures) == first and not reads


@pytest.mark.parametrize("leads", [True, False])
def test_a_consumer_group_that_was_deleted_is_no_longer_exposed(leads: bool) -> None:
    """Its counters and its place within `series_max` end with it, at the leader and at a former
    one."""
    b = leading(max_attempts=2)
    figures = TopicFigures("c", "n1", FakeEngine(g1=b), lambda: b.now_ms, PAIR_SERIES)  # type: ignore[arg-type]
    b.send("one")
    b.receive(group="g")
    b.receive(group="other")
    assert read(figures)["ledgermq_series_left_out"]["consumer_group",] == PAIR_SERIES
    b.ask(Configure(next(b.tokens), deleted_groups=("g",)))
    if not leads:
        b.replicator.follow(2, "n2")
        b.turn()
    found = read(figures)
    assert found["rocketmq_messages_out_total"] == {("g1", "t", "other"): 1}
    assert found["ledgermq_series_left_out"]["consumer_group",] == 0


def test_a_page_is_read_as_it_was_meant() -> None:
    """Names that need escapes included: the page is not written by prometheus_client."""
    odd = 'a"b\\c\nd'
    figures = TopicFigures("c", odd, FakeEngine(), lambda: 0, 1000)  # type: ignore[arg-type]
    out = GroupFigures(
        {"t": ("normal", Stored(3, 4))},
        {("g", "t"): HandedOut(1, 2, 3, 4)},
        {("g", "t"): Backlog(1, 2, 3, 4, 5)},
    )
    figures.groups = {"g1": out}
    samples = [
        sample
        for family in text_string_to_metric_families(figures.page())
        for sample in family.samples
    ]
    assert [sample.value for sample in samples] == [3, 4, 1, 2, 3, 4, 1, 2, 3, 4, 5, 0, 0]
    assert {sample.labels["node_id"] for sample in samples[:-2]} == {odd}
    assert samples[0].labels == {
        "cluster": "c",
        "node_type": "broker",
        "node_id": odd,
        "broker_group": "g1",
        "topic": "t",
        "message_type": "normal",
    }
