"""The producer table against a model that keeps every message: openings, resumptions, frames in any
cuts, drops, snapshots, nonsense."""

from __future__ import annotations

import json

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from ledgermq.node.broker.parts.producers.producers import (
    FRAMES_KEPT,
    NAMED_MS,
    UNNAMED_MS,
    Producers,
)
from ledgermq.proto.entries.native_ids import Run, content_digest
from ledgermq.proto.records.control import ProducerRecord
from tests.node_core.core_frames import frame

NUMBERS = st.integers(1, 5)


def digest_of(bodies: list[str]) -> int:
    """The digest of messages with these bodies and nothing else."""
    return content_digest(frame(1, 0, 0, bodies).batch, 0, len(bodies), 0) if bodies else 0


class Table(RuleBasedStateMachine):
    """`frames` of the model: each is the list of (index, sequence number) of its messages."""

    def __init__(self) -> None:
        super().__init__()
        self.table = Producers()
        self.epochs: dict[int, int] = {}
        self.names: dict[int, str] = {}
        self.next: dict[int, int] = {}
        self.heard: dict[int, int] = {}
        self.frames: dict[int, list[list[tuple[int, int]]]] = {}
        self.bodies: dict[int, list[str]] = {}
        """Of producers with a digest."""
        self.highest = 0
        self.index, self.ms, self.astray = 0, 1_000, 0

    def time(self, ms: int) -> None:
        self.ms += ms
        self.index += 1

    @rule(
        number=NUMBERS,
        epoch=st.integers(0, 3),
        name=st.sampled_from(["", "a", "b"]),
        dropped=st.sets(NUMBERS, max_size=2),
        digest=st.booleans(),
    )
    def open(self, number: int, epoch: int, name: str, dropped: set[int], digest: bool) -> None:
        """Open a producer, as a leader does; a name that another producer has is not opened
        again."""
        dropped.discard(number)
        if number in self.epochs:
            name = self.names[number]
        elif name and name in self.names.values():
            return
        self.time(7)
        self.table.apply_record(
            ProducerRecord(number, epoch, name, 0, tuple(sorted(dropped)), digest=digest), self.ms
        )
        for gone in dropped:
            for kept in (self.epochs, self.names, self.next, self.heard, self.frames, self.bodies):
                kept.pop(gone, None)
        self.highest = max(self.highest, number)
        if number not in self.epochs:
            self.epochs[number], self.names[number], self.next[number], self.frames[number] = (
                epoch,
                name,
                0,
                [],
            )
        elif epoch < self.epochs[number]:
            return
        self.epochs[number], self.heard[number] = epoch, self.ms
        if digest and not self.next[number]:
            self.bodies.setdefault(number, [])

    @rule(number=NUMBERS, sizes=st.lists(st.integers(1, 4), min_size=1, max_size=3))
    def frame(self, number: int, sizes: list[int]) -> None:
        """A frame, applied in as many pieces as there are sizes."""
        if number not in self.epochs:
            return
        self.time(1)
        first, position = self.next[number], 0
        bodies = [f"{self.index} {at}" for at in range(sum(sizes))]
        entries = frame(number, self.epochs[number], first, bodies).batch
        for size in sizes:
            run = Run(position, size, 9, number, self.epochs[number], first + position, position)
            self.table.apply_run(self.index + position, run, self.ms, entries)
            position += size
        if number in self.bodies:
            self.bodies[number] += bodies
        self.frames[number].append([(self.index + at, first + at) for at in range(position)])
        self.next[number], self.heard[number] = first + position, self.ms
        self.index += position

    @rule(number=NUMBERS, off=st.sampled_from([-1, 1, 5]), epoch=st.integers(-1, 1))
    def nonsense(self, number: int, off: int, epoch: int) -> None:
        """Messages of unknown producers, of other epochs, or out of order change nothing."""
        self.time(1)
        if number in self.epochs and self.epochs[number] + epoch < 0:
            return
        first = max(0, self.next.get(number, 0) + off) if epoch == 0 else self.next.get(number, 0)
        if number in self.epochs and epoch == 0 and first == self.next[number]:
            return
        run, entries = (
            Run(0, 2, 9, number, self.epochs.get(number, 0) + epoch, first, 0),
            frame(1, 0, 0, ["x", "y"]).batch,
        )
        self.table.apply_run(self.index, run, self.ms, entries)
        self.astray += 1

    @rule()
    def restart(self) -> None:
        """From a snapshot, twice the same."""
        exported = json.loads(json.dumps(self.table.export()))
        self.table = Producers()
        self.table.restore(exported)
        assert self.table.export() == exported
        self.astray = 0

    @rule(ms=st.sampled_from([1, UNNAMED_MS // 2, UNNAMED_MS, NAMED_MS]))
    def wait(self, ms: int) -> None:
        self.time(ms)

    @invariant()
    def as_the_model(self) -> None:
        assert len(self.table) == len(self.epochs) and self.table.astray == self.astray
        assert self.table.next_id == self.highest + 1
        for number, epoch in self.epochs.items():
            found = self.table.get(number)
            assert found is not None
            assert (found.epoch, found.name, found.next_sequence) == (
                epoch,
                self.names[number],
                self.next[number],
            )
            assert found.last_ms == self.heard[number]
            assert found.digest == (
                digest_of(self.bodies[number]) if number in self.bodies else None
            )
            kept = [
                (frame[0][1], len(frame), frame[0][0])
                for frame in self.frames[number][-FRAMES_KEPT:]
            ]
            assert [
                (frame.first_sequence, frame.count, frame.first_index) for frame in found.frames
            ] == kept
        for name in ("a", "b"):
            assert self.table.named(name) == next(
                (number for number, has in self.names.items() if has == name), None
            )

    @invariant()
    def whose_time_is_over(self) -> None:
        limits = {number: NAMED_MS if name else UNNAMED_MS for number, name in self.names.items()}
        over = {number for number, limit in limits.items() if self.heard[number] <= self.ms - limit}
        assert set(self.table.expired(self.ms)) == over
        silent = [self.heard[number] for number in self.table.by_silence()]
        assert silent == sorted(silent) and len(silent) == len(self.epochs)


Table.TestCase.settings = settings(stateful_step_count=40, derandomize=True)
TestTable = Table.TestCase
