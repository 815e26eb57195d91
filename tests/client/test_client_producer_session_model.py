"""A state machine test of the guarantees of `producer_session.py`: streams break, answers are lost,
leaders change and timeouts expire in any order.

The machine delays everything: frames wait in streams, answers wait for their commit, and a stream
that the client has left may still deliver its frames to the node. At the end all frames are
delivered, and the log is compared with the outcomes that the client reported.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from ledgermq.client.errors import ProducerFenced
from ledgermq.client.native.log_connection import Latencies
from ledgermq.client.native.producers.batches import Batch, Gathering
from ledgermq.client.native.producers.columns import Columns
from ledgermq.client.native.producers.outcomes import FrameAcknowledged, Statistics
from ledgermq.client.native.producers.producer_session import (
    STALE_EPOCH,
    UNKNOWN_PRODUCER,
    ProducerSession,
    ProducerSettings,
)
from ledgermq.proto import log_pb2 as pb
from ledgermq.proto.types import I32
from tests.client.fake_log import FakeBrokerGroup

QUEUES = 2
TIMEOUT_S = 30.0


@dataclass
class Outcomes:
    """All reported outcomes of each message, by message number."""

    words: dict[int, list[Any]] = field(default_factory=dict)


class Sink:
    def __init__(self, outcomes: Outcomes, numbers: list[int]) -> None:
        self.outcomes, self.numbers = outcomes, numbers

    def acknowledged(self, row: int, frame: FrameAcknowledged) -> int:
        offsets = frame.offsets
        late = 0
        for place, number in enumerate(self.numbers[row : row + frame.count]):
            words = self.outcomes.words.setdefault(number, [])
            late += bool(words)
            words.append(("stored", None if offsets is None else int(offsets[place])))
        return late

    def failed(self, row: int, count: int, error: Any) -> None:
        for number in self.numbers[row : row + count]:
            self.outcomes.words.setdefault(number, []).append(("failed", error.unknown))


@dataclass
class Stream:
    """Frames on the way to the node, answers on the way back. Each answer waits until the log is
    committed so far."""

    producer: tuple[int, int]
    inbox: list[pb.Frame] = field(default_factory=list)
    outbox: list[tuple[pb.ProduceResponse, int]] = field(default_factory=list)
    term: int = 0


class SessionMachine(RuleBasedStateMachine):
    """`memory`: a leader change may lose acknowledged messages. `named`: the producer has a name,
    and another producer opens that name."""

    memory = False
    named = False

    def __init__(self) -> None:
        super().__init__()
        self.group = FakeBrokerGroup(queues=QUEUES)
        self.statistics = Statistics()
        settings = ProducerSettings("t", name="p" if self.named else "", batch_bytes=1000)
        self.session = ProducerSession(
            "g1", settings, Gathering(), self.statistics, {}, Latencies(lambda: 0.0)
        )
        self.outcomes = Outcomes()
        self.count = 0
        self.now = 0.0
        self.committed = 0
        self.stream: Stream | None = None
        self.left: list[Stream] = []

    def teardown(self) -> None:
        self.heal()
        self.check()

    # The client

    @rule(count=st.integers(1, 4), queue=st.integers(-1, QUEUES - 1))
    def send(self, count: int, queue: int) -> None:
        if self.session.fenced is not None:
            return
        numbers = list(range(self.count, self.count + count))
        self.count += count
        queues: int | I32 = queue
        if queue < 0:
            queues = np.array([number % QUEUES for number in numbers], np.int32)
        columns = Columns([b"%d" % number for number in numbers], queues, 1)
        self.statistics.accepted += count
        self.statistics.waiting_bytes += 10 * count
        self.session.add(
            Batch(columns, Sink(self.outcomes, numbers), 0, 10 * count, self.now + TIMEOUT_S)
        )

    @precondition(lambda self: self.stream is None and self.session.fenced is None)
    @rule()
    def open(self) -> None:
        answer = self.group.open(self.session.hello())
        if answer.HasField("problem"):
            if answer.problem.code == STALE_EPOCH:
                self.session.fence()
            else:
                assert answer.problem.code == UNKNOWN_PRODUCER
                self.session.unknown_producer()
            self.session.broken()
            return
        opened = answer.opened
        self.session.opened(opened)
        self.stream = Stream((opened.producer_id, opened.epoch), term=self.group.term)
        self.reopen_if_due()

    def reopen_if_due(self) -> None:
        if self.session.reopen_due:
            self.leave()

    @precondition(lambda self: self.stream is not None)
    @rule()
    def write(self) -> None:
        assert self.stream is not None
        batch = self.session.next_frame(self.now)
        if batch is not None:
            frame = batch.frame
            assert frame is not None
            self.stream.inbox.append(
                pb.Frame(
                    first_sequence=frame.first_sequence, sizes=frame.sizes, entries=frame.entries
                )
            )

    @precondition(lambda self: self.stream is not None and self.stream.outbox)
    @rule(place=st.integers(0, 5))
    def read(self, place: int) -> None:
        """Read one answer; answers that waited for a commit may arrive in any order."""
        assert self.stream is not None
        ready = [item for item in self.stream.outbox if item[1] <= self.committed]
        if not ready:
            return
        item = ready[place % len(ready)]
        self.stream.outbox.remove(item)
        answer = item[0]
        if answer.HasField("ack"):
            self.session.acknowledged(answer.ack, self.now)
        else:
            try:
                self.session.rejected(answer.rejected, self.now)
            except ProducerFenced:
                self.session.fence()
                self.leave()
        self.reopen_if_due()

    @precondition(lambda self: self.stream is not None)
    @rule()
    def leave(self) -> None:
        """The stream breaks; its frames may still arrive."""
        if self.stream is not None:
            self.left.append(self.stream)
            self.stream = None
            self.session.broken()

    @rule(seconds=st.sampled_from([0.05, 1.0, 40.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.session.expire(self.now)

    # The node

    def take(self, stream: Stream, how: str) -> None:
        if not stream.inbox or stream.term != self.group.term:
            stream.inbox.clear()
            return
        frame = stream.inbox.pop(0)
        if how == "store":
            stream.outbox.append(self.group.produce(stream.producer, frame))
        else:
            position = 0 if how == "refuse one" else -1
            stream.outbox.append(
                self.group.refuse(
                    stream.producer, frame, retryable=how == "retry", position=position
                )
            )
        if not stream.outbox[-1][1]:
            # A rejection is sent after the answers before it.
            stream.outbox[-1] = (stream.outbox[-1][0], max(need for _, need in stream.outbox))

    @precondition(lambda self: self.stream is not None and self.stream.inbox)
    @rule(
        how=st.sampled_from(["store", "store", "store", "store", "retry", "refuse", "refuse one"])
    )
    def process(self, how: str) -> None:
        assert self.stream is not None
        self.take(self.stream, how)

    @precondition(lambda self: any(stream.inbox for stream in self.left))
    @rule(place=st.integers(0, 9))
    def process_late_frame(self, place: int) -> None:
        """Process a frame of a stream that the client has left."""
        found = [stream for stream in self.left if stream.inbox]
        self.take(found[place % len(found)], "store")

    @rule(share=st.floats(0, 1))
    def commit(self, share: float) -> None:
        self.committed += round((len(self.group.log) - self.committed) * share)

    @rule(share=st.floats(0, 1))
    def change_leader(self, share: float) -> None:
        """Uncommitted entries may be lost; the stream and its frames are lost."""
        floor = 0 if self.memory else self.committed
        keep = floor + round((len(self.group.log) - floor) * share)
        self.group.cut(keep)
        self.committed = min(self.committed, keep)
        self.leave()

    @precondition(lambda self: self.named)
    @rule(often=st.integers(0, 3))
    def open_elsewhere(self, often: int) -> None:
        if often == 0 and self.group.opened:
            self.group.open(pb.OpenProducer(broker_group="g1", name="p"))

    # Invariants

    @invariant()
    def no_message_is_stored_twice_or_out_of_order(self) -> None:
        for queue in range(QUEUES):
            numbers = [int(body) for body in self.group.bodies(queue)]
            assert len(numbers) == len(set(numbers)), numbers
            # A message that failed as unknown may still arrive, behind later messages.
            certain = [
                number
                for number in numbers
                if self.outcomes.words.get(number, [("", None)])[0] != ("failed", True)
            ]
            assert certain == sorted(certain), numbers

    @invariant()
    def each_message_has_one_outcome(self) -> None:
        for number, words in self.outcomes.words.items():
            # "stored" may follow "unknown"; otherwise a message has one outcome.
            assert len(words) == 1 or (
                words[0] == ("failed", True) and words[1][0] == "stored" and len(words) == 2
            ), (number, words)

    def heal(self) -> None:
        for stream in self.left:
            while stream.inbox:
                self.take(stream, "store")
        for _ in range(1000):
            if self.session.fenced is not None or self.session.idle:
                break
            if self.stream is None:
                self.open()
                continue
            self.now += 0.05
            self.write()
            if self.stream is not None and self.stream.inbox:
                self.take(self.stream, "store")
            self.committed = len(self.group.log)
            if self.stream is not None and self.stream.outbox:
                self.read(0)
        assert self.session.fenced is not None or self.session.idle, (
            "the session does not become idle"
        )

    def check(self) -> None:
        stored = {int(message.body): message.offset for message in self.group.log}
        assert set(self.outcomes.words) == set(range(self.count))
        for number, words in self.outcomes.words.items():
            if words[0][0] == "stored":
                assert self.memory or (
                    number in stored and words[0][1] in (None, stored[number])
                ), (number, words)
            elif words[0] == ("failed", False):
                assert number not in stored, (number, words)
        statistics = self.statistics
        assert statistics.accepted == self.count == statistics.acknowledged + statistics.failed
        assert statistics.waiting_bytes == 0
        assert statistics.failed == sum(
            words[0][0] == "failed" for words in self.outcomes.words.values()
        )


class MemoryMachine(SessionMachine):
    memory = True


class NamedMachine(SessionMachine):
    named = True


@pytest.mark.one_in(3)
@pytest.mark.parametrize("machine", [SessionMachine, MemoryMachine, NamedMachine])
def test_each_message_is_stored_once_in_order_and_has_one_outcome(
    machine: type[SessionMachine],
) -> None:
    """The guarantees hold for any order of losses, rejections, commits, leader changes, timeouts
    and other producers of the name."""
    options = settings(stateful_step_count=50, suppress_health_check=list(HealthCheck))
    run_state_machine_as_test(machine, settings=options)


def driven(*steps: tuple[str, tuple[Any, ...]]) -> SessionMachine:
    """A machine after these steps; the invariants are checked after each step."""
    machine = SessionMachine()
    for name, arguments in steps:
        getattr(machine, name)(*arguments)
        machine.no_message_is_stored_twice_or_out_of_order()
        machine.each_message_has_one_outcome()
    return machine


def test_numbers_are_not_reused_while_a_later_frame_is_in_doubt() -> None:
    """The first frame is refused and the stream breaks before the second is answered. If the second
    got new numbers, its late copy would be stored too."""
    machine = driven(
        ("send", (2, 0)),
        ("send", (2, 0)),
        ("send", (1, 0)),
        ("open", ()),
        ("write", ()),
        ("write", ()),
        ("process", ("refuse",)),
        ("read", (0,)),
        ("leave", ()),
        ("open", ()),
        ("write", ()),
        ("process", ("store",)),
        ("process_late_frame", (0,)),
    )
    machine.teardown()
    machine.no_message_is_stored_twice_or_out_of_order()
    assert machine.group.bodies(0) == [b"2", b"3", b"4"]


def test_a_refused_copy_may_be_stored_all_the_same() -> None:
    """A refused frame that was sent before fails as unknown, because its earlier copy may be
    stored."""
    machine = driven(
        ("send", (1, 0)),
        ("open", ()),
        ("write", ()),
        ("leave", ()),
        ("open", ()),
        ("write", ()),
        ("process", ("refuse",)),
        ("read", (0,)),
    )
    assert machine.outcomes.words[0] == [("failed", True)]
    machine.process_late_frame(0)
    machine.teardown()


def test_a_frame_cut_by_a_leader_change_is_sent_as_two() -> None:
    """The stored part keeps its numbers and gets the receipt of the stored entries."""
    machine = driven(
        ("send", (4, 0)),
        ("open", ()),
        ("write", ()),
        ("process", ("store",)),
        ("change_leader", (0.5,)),
    )
    machine.teardown()
    assert machine.statistics.frames_cut == 1 and machine.group.bodies(0) == [
        b"0",
        b"1",
        b"2",
        b"3",
    ]
    assert [words[0] for _, words in sorted(machine.outcomes.words.items())] == [
        ("stored", offset) for offset in range(4)
    ]
