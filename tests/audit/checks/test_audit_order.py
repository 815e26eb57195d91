"""Order inside the log: producers whose sequence numbers go astray, message groups that lie in
several queues."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgermq.audit.checks import order
from ledgermq.audit.checks.opening import find_replicas
from ledgermq.audit.checks.order import ProducerRun, numbers_of
from ledgermq.audit.checks.scan import Scan
from ledgermq.audit.reading.native import KERNEL, Kernel
from ledgermq.audit.rules import Flaw
from ledgermq.audit.run.jobs import audit
from tests.audit.client_cases import native_id
from tests.audit.damage_cases import CREATED, NODES, flip
from tests.audit.log_writer import Message, Placed, Writer, election, membership

FRAME = 4


def written(base: Path, messages: Sequence[Message]) -> list[Writer]:
    writers = []
    for name in NODES:
        writer = Writer(base / name, data_bytes=4096)
        for message in (membership(NODES), election(1, "n1", CREATED), *messages):
            writer.append(message)
        writers.append(writer.finish())
    return writers


def frames(numbers: Sequence[tuple[int, int, int]]) -> list[Message]:
    """Frames of (producer, epoch, first sequence number), four messages each."""
    log_id = Writer(Path("n1")).log_id
    found = []
    for producer, epoch, first in numbers:
        ids = [native_id(log_id, producer, epoch, first + at) for at in range(FRAME)]
        found += [
            Message("flights", b"x" * 40, at % 3, "", key, 0, CREATED, 1, at + 1)
            for at, key in enumerate(ids)
        ]
    return found


def told(base: Path, rule: str) -> list[tuple[str, int | None, str]]:
    """(replica, entry, proof) of each finding of a rule."""
    found = audit([str(base / name) for name in NODES]).findings
    assert {finding.flaw.rule for finding in found} <= {rule}, [finding.text for finding in found]
    return [(finding.replica, finding.flaw.index, finding.flaw.proof) for finding in found]


def at(writers: list[Writer], number: int) -> Placed:
    """The first entry of a frame."""
    return writers[0].entries[2 + FRAME * number]


GOOD = (
    [(1, 0, 0), (2, 0, 9), (1, 0, 4), (1, 1, 8), (2, 0, 13)]
    + [(3, 0, 4 * number) for number in range(12)]
    + [(1, 1, 12)]
)


def test_dense_numbers_are_no_finding(tmp_path: Path) -> None:
    """Producers beside each other, epochs that rise, more than one log file, a beginning that is
    not 0."""
    writers = written(tmp_path, frames(GOOD))
    assert len(list((writers[0].log / "data").iterdir())) > 3 and not told(
        tmp_path, "order.producer"
    )


@pytest.mark.parametrize(
    ("numbers", "frame", "proof"),
    [
        ([(1, 0, 0), (1, 0, 4), (1, 0, 0)], 2, "sequence number 0 of producer 1 follows 7"),
        ([(1, 0, 0), (1, 0, 8)], 1, "sequence number 8 of producer 1 follows 3"),
        ([(1, 0, 0), (1, 0, 3)], 1, "sequence number 3 of producer 1 follows 3"),
        ([(1, 1, 0), (1, 0, 4)], 1, "producer 1 goes on in an older epoch"),
        (
            [(1, 0, 0), *[(2, 0, 4 * number) for number in range(12)], (1, 0, 3)],
            13,
            "sequence number 3 of producer 1 follows 3",
        ),
        (
            [(1, 0, 0), *[(2, 0, 4 * number) for number in range(12)], (1, 0, 5)],
            13,
            "sequence number 5 of producer 1 follows 3",
        ),
    ],
)
def test_numbers_that_are_not_dense(
    tmp_path: Path, numbers: list[tuple[int, int, int]], frame: int, proof: str
) -> None:
    """Twice, with a gap, in an older epoch; in one log file and across files: named on every
    replica, with the entry."""
    writers = written(tmp_path, frames(numbers))
    found = told(tmp_path, "order.producer")
    assert [(name, index) for name, index, _ in found] == [
        (name, at(writers, frame).index) for name in NODES
    ]
    assert all(text.startswith(proof) for *_, text in found)


def test_damage_explains_a_gap(tmp_path: Path) -> None:
    """An entry that cannot be read takes its sequence number with it: that is one finding, not
    two."""
    writers = written(tmp_path, frames(GOOD))
    for number in (1, 16):
        entry = at(writers, number)
        flip(
            writers[0].log / "data" / f"{entry.pos - entry.pos % 4096:020d}", entry.pos % 4096 + 140
        )
    assert {
        rule.index
        for rule in (f.flaw for f in audit([str(tmp_path / name) for name in NODES]).findings)
    } == {
        at(writers, 1).index,
        at(writers, 16).index,
    }


def grouped(queues: Sequence[int], group: str = "customer", topic: str = "orders") -> list[Message]:
    return [
        Message(topic, b"x", queue, "", f"id-{number}", 0, CREATED, group=group)
        for number, queue in enumerate(queues)
    ]


def test_a_message_group_that_goes_to_and_fro(tmp_path: Path) -> None:
    """One or two moves are normal for a topic that got queues; repeated moves are a flaw, unless
    the topic changes in between."""
    assert not told_of(tmp_path / "a", grouped([0, 0, 1, 0, 1][:4]))
    assert not told_of(
        tmp_path / "b",
        [*grouped([0, 1, 0], "a"), *grouped([1, 0, 1], "b"), *grouped([2, 2, 2], "c")],
    )
    found = told_of(tmp_path / "c", grouped([0, 1, 0, 1, 0, 1]))
    assert [index for _, index, _ in found] == [5] * 3 and "customer of orders" in found[0][2]
    topic = Message(
        "rmq_sys_ledgermq_config", json.dumps({"v": 1}).encode(), tag="topic", time=CREATED
    )
    assert not told_of(tmp_path / "d", [*grouped([0, 1, 0]), *[topic] * 4, *grouped([1, 0, 1])])
    assert (
        len(told_of(tmp_path / "e", grouped([0, 1, 0, 1, 0, 1], topic="rmq_sys_team@orders"))) == 3
    ), "a namespace makes no system topic"


def told_of(base: Path, messages: Sequence[Message]) -> list[tuple[str, int | None, str]]:
    written(base, messages)
    return told(base, "order.group")


Known = tuple[int, int, int, int]
"""Sequence number, epoch, index and place of a producer's last message."""


class OddWriter(Writer):
    """Puts the message group before all other properties in odd queues."""

    @staticmethod
    def record(message: Message, offset: int, pos: int) -> bytes:
        record, group = (
            Writer.record(message, offset, pos),
            b"__SHARDINGKEY\x01" + message.group.encode() + b"\x02",
        )
        unique = b"UNIQ_KEY\x01" + message.key.encode() + b"\x02"
        return record.replace(unique + group, group + unique) if message.queue % 2 else record


class Model:
    """A log of one file, written message by message, and the flaws of order that it has."""

    def __init__(self, base: Path) -> None:
        self.writer = OddWriter(base / "n1", data_bytes=1 << 17)
        for message in (membership(NODES), election(1, "n1", CREATED)):
            self.writer.append(message)
        self.file = f"g1/dledger-n1/data/{0:020d}"
        self.flaws: list[Flaw] = []
        self.last: dict[int, Known] = {}
        self.unnumbered: list[int] = []
        self.runs: list[ProducerRun] = []
        self.places: dict[tuple[str, str], tuple[int, int]] = {}

    def append(self, message: Message) -> Placed:
        """Behind a message that has no part in any order: flaws of neighbours would become one."""
        self.writer.append(Message("plain", b"x", time=CREATED))
        return self.writer.append(message)

    def number(self, producer: int, epoch: int, sequence: int) -> None:
        key = native_id(self.writer.log_id, producer, epoch, sequence)
        placed = self.append(Message("flights", b"x", 0, "", key, 0, CREATED, 1, 1))
        if producer in self.last:
            before, older, index, place = self.last[producer]
            lost = sum(index < number < placed.index for number in self.unnumbered)
            proof = f"sequence number {sequence} of producer {producer} follows {before}"
            if epoch < older:
                proof = (
                    f"producer {producer} goes on in an older epoch, at sequence number {sequence}"
                )
            explained = epoch >= older and 0 < sequence - before - 1 <= lost
            measures = ((self.file, place, placed.pos + 48),) if explained else ()
            if sequence != before + 1 or epoch < older:
                self._flaw("order.producer", placed, proof, measures)
        self.last[producer] = sequence, epoch, placed.index, placed.pos

    def unnumber(self, flag: int) -> None:
        """A message without a native id, or with an impossible place in its frame."""
        key = "no native id" if flag > 0 else native_id(self.writer.log_id, 1, 1, 3)
        self.unnumbered.append(
            self.append(Message("flights", b"x", 0, "", key, 0, CREATED, 1, flag)).index
        )

    def rest(self) -> None:
        for _ in range(12):
            self.append(Message("flights", b"x", tag="topic", time=CREATED))

    def group(self, topic: str, group: str, queue: int) -> None:
        placed = self.append(
            Message(
                topic,
                b"\x02__SHARDINGKEY\x01other\x02",
                queue,
                "",
                "k__SHARDINGKEY\x01x",
                0,
                CREATED,
                group=group,
            )
        )
        before, moves = self.places.get((topic, group), (queue, 0))
        self.places[topic, group] = queue, moves + (queue != before)
        if queue != before and moves == 2:
            self._flaw(
                "order.group",
                placed,
                f"message group {group} of {topic} changes its queue repeatedly",
            )

    def change(self, tag: str) -> None:
        self.append(Message("rmq_sys_ledgermq_config", b"{}", tag=tag, time=CREATED))
        if tag == "topic":
            self.places.clear()

    def _flaw(
        self, rule: str, placed: Placed, proof: str, measures: tuple[tuple[str, int, int], ...] = ()
    ) -> None:
        self.flaws.append(
            Flaw(
                rule,
                self.file,
                placed.index,
                placed.pos,
                placed.pos + placed.size,
                proof,
                measures=measures,
            )
        )

    def told(self, kernel: Kernel | None, window_bytes: int) -> list[Flaw]:
        """The flaws that a scan finds. All scans follow the producers alike, up to the end of the
        file."""
        (one,) = find_replicas(str(self.writer.node_dir))
        work = Scan(one.tasks()[0], None, kernel)
        for _ in work.columns(window_bytes):
            pass
        producers = {
            run.producer: (run.last_sequence, run.last_epoch, run.last_index, run.last_at)
            for run in work.report.producers
        }
        assert producers == self.last and work.report.unnumbered == self.unnumbered
        self.runs = self.runs or sorted(work.report.producers, key=lambda run: run.producer)
        assert sorted(work.report.producers, key=lambda run: run.producer) == self.runs
        found = [flaw for flaw in work.report.flaws if flaw.rule.startswith("order.")]
        return sorted(found, key=lambda flaw: flaw.byte_from)


@pytest.mark.parametrize("seed", range(3))
def test_flaws_of_order_in_a_log_of_any_shape(tmp_path: Path, seed: int) -> None:
    """Producers and groups beside each other, in pieces of any size, by both scans: each flaw with
    its entry, its proof and what explains it."""
    model, rng = Model(tmp_path), random.Random(seed)
    model.rest()
    for _ in range(90):
        way = rng.choice("pppppuggggggcx")
        if way == "p":
            producer = rng.randrange(1, 4)
            sequence, epoch, *_ = model.last.get(producer, (6, 1, 0, 0))
            model.number(
                producer,
                epoch + rng.choice((0,) * 9 + (1, -1)) if epoch else 1,
                sequence + rng.choice((1,) * 6 + (2, 3, 0)),
            )
        elif way == "g":
            topic, group = rng.choice(("orders", "flights")), rng.choice("ab")
            before = model.places.get((topic, group), (0, 0))[0]
            model.group(topic, group, rng.choice((before, before, rng.randrange(3))))
        elif way == "u":
            model.unnumber(rng.choice((1, -1)))
        else:
            model.change("topic" if way == "c" and rng.random() < 0.3 else "group")
    model.writer.finish()
    assert {flaw.rule for flaw in model.flaws} >= {"order.producer"}
    if seed == 2:
        for entry in model.writer.entries[2:22:2]:
            flip(model.writer.log / "data" / f"{0:020d}", entry.pos + 140)
    for kernel in dict.fromkeys((None, KERNEL)):
        for window_bytes in (1500, 1 << 20):
            assert model.told(kernel, window_bytes) == model.flaws, window_bytes


def test_a_changed_topic_is_forgotten_once(tmp_path: Path) -> None:
    """In the piece in which it changed, and in a piece without any group. Three moves since then
    are a flaw again, wherever pieces end."""
    model = Model(tmp_path)
    for quiet in (False, True, False):
        for queue in (0, 1, 0):
            model.group("orders", "a", queue)
        if quiet:
            model.rest()
        model.change("topic")
        if quiet:
            model.rest()
    for queue in (0, 1):
        model.group("orders", "a", queue)
    model.rest()
    for queue in (0, 1):
        model.group("orders", "a", queue)
    model.writer.finish()
    assert len(model.flaws) == 1
    for window_bytes in (900, 1500, 2200, 3000, 1 << 20):
        assert model.told(None, window_bytes) == model.flaws


def test_a_damaged_message_moves_no_group(tmp_path: Path) -> None:
    model = Model(tmp_path)
    for queue in (0, 1, 0, 1):
        model.group("orders", "a", queue)
    model.writer.finish()
    flip(model.writer.log / "data" / f"{0:020d}", model.writer.entries[-1].pos + 140)
    assert len(model.flaws) == 1 and model.told(None, 1 << 20) == []


@pytest.mark.parametrize("most", [2, 3])
def test_groups_that_are_not_remembered(
    tmp_path: Path, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Begin again: only the youngest ones are."""
    monkeypatch.setattr(order, "GROUPS_MAX", most)
    model = Model(tmp_path)
    for group, queue in (("a", 0), ("a", 1), ("a", 0), ("b", 0), ("c", 0), ("a", 1)):
        model.group("orders", group, queue)
    model.writer.finish()
    assert len(model.flaws) == 1
    assert model.told(None, 1 << 20) == (model.flaws if most == 3 else [])


@given(
    st.lists(
        st.tuples(st.integers(1, 2**32 - 1), st.integers(0, 2**16 - 1), st.integers(0, 2**48 - 1)),
        min_size=1,
    )
)
def test_numbers_of_ids(numbers: list[tuple[int, int, int]]) -> None:
    """The number in an id is parsed correctly, wherever the property strings are."""
    import numpy as np

    texts = [b"UNIQ_KEY\x01" + native_id("log", *one).encode() + b"\x02" for one in numbers]
    starts = np.cumsum([0, *(len(text) + 5 for text in texts[:-1])])
    found = numbers_of(np.frombuffer(b".....".join(texts), np.uint8), starts)
    assert list(zip(*(column.tolist() for column in found), strict=True)) == numbers
