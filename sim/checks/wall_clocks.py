"""The wall clocks of a run: what each node goes by (`node/replica/consensus/cluster_clock.py`), and
the law of store times.

A node hears the clock of a peer that it reaches, and that reaches it, when it has not since either
process began: so do real nodes, whose greetings come before the first packet. Afterwards it hears
it about every second. Answers take a random time, and some are lost. No event is scheduled for
that, and no random number of the rest of the run is drawn.

Law. The store time of an entry is at most the largest time that a majority of the nodes' clocks had
reached by then, plus the time for which no majority has agreed since, plus the largest offset; it
never falls, but with the entry that begins a time epoch; and when all clocks are right again, it is
right.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from random import Random

import numpy as np

from ledgermq.node.replica.consensus.cluster_clock import ClusterClock
from ledgermq.proto.entries.layout import prefixes
from ledgermq.proto.entries.message_record import decode_record
from ledgermq.proto.entries.properties import TAG, parse
from ledgermq.proto.entries.ranges import record_of
from ledgermq.proto.records.control import TimeEpochRecord
from ledgermq.proto.types import Range
from ledgermq.raft.config import MS
from ledgermq.raft.quorum import majority
from ledgermq.sim.checks.checkers import Violation
from ledgermq.sim.checks.ports import Clocked

MAX_OFFSET_MS = 1000
AGAIN_NS = 1000 * MS
ANSWER_NS = 50 * MS
"""An answer takes this long at most, there and back each."""
LOST = 0.1
DRIFTED_MS = 600
"""How far two steady clocks may come apart between two answers, if they run as fast and slow as the
faults make them."""
RIGHT_AFTER_MS = 10_000
"""So long after the end of all faults a store time must be right; entries wait to be committed,
too."""


class WallClocks:
    """Cluster time of every node of one run."""

    def __init__(
        self,
        chance: Random,
        nodes: Mapping[str, Clocked],
        reaches: Callable[[str, str], bool],
        clock_type: type[ClusterClock] = ClusterClock,
        *,
        by_majority: bool,
    ) -> None:
        """`by_majority`: no leader serves without a majority of the nodes. The master of an HA
        group may, and then knows its own clock."""
        self._chance = chance
        self._nodes = nodes
        self._reaches = reaches
        self._type = clock_type
        self._by_majority = by_majority
        self._clocks: dict[str, tuple[int, ClusterClock, int]] = {}
        """By node: its process, the clock of that process, and how many nodes it expects."""
        self._heard: dict[tuple[str, str], tuple[tuple[int, int], int]] = {}
        """By (node, peer): both processes, and when the peer was last asked."""
        self._latest_ms = 0
        """The largest time that a majority of the clocks had reached, and steadily on from there
        while no majority agrees."""
        self._noted_ns = 0
        self._checked_ms = -(1 << 62)
        self._healed_ns: int | None = None

    def now_ms(self, name: str, world_ns: int) -> int:
        """The time that a node goes by in its turn at this moment."""
        nodes = self._nodes
        node = nodes[name]
        steady, wall = node.steady_ns(world_ns), world_ns + node.wall_offset_ms * MS
        own = node.process(world_ns)
        process, clock, expected = self._clocks.get(name, (0, None, 0))
        if clock is None or process != own:
            clock = self._type(name, max_offset_ms=MAX_OFFSET_MS, steady_ns=steady, wall_ns=wall)
            expected = 0
        if expected != len(nodes):
            clock.expect(nodes)
            self._clocks[name] = own, clock, len(nodes)
        for other, peer in nodes.items():
            answering = peer.process(world_ns) if other != name else 0
            if not answering:
                continue
            former = self._heard.get((name, other))
            greets = former is None or former[0] != (own, answering)
            if former is not None and not greets and world_ns - former[1] < AGAIN_NS:
                continue
            if self._reaches(name, other) and self._reaches(other, name):
                self._heard[name, other] = (own, answering), world_ns
                self._ask(name, other, clock, world_ns, greets)
        self._note(world_ns)
        return clock.now_ms(steady, wall)

    def _ask(self, name: str, other: str, clock: ClusterClock, world_ns: int, greets: bool) -> None:
        node, peer = self._nodes[name], self._nodes[other]
        there, back = self._chance.randrange(ANSWER_NS), self._chance.randrange(ANSWER_NS)
        if not greets and self._chance.random() < LOST:
            return
        asked, answered = node.steady_ns(world_ns - there - back), node.steady_ns(world_ns)
        wall = world_ns - back + peer.wall_offset_ms * MS
        clock.heard(
            other,
            wall_ns=wall,
            asked_ns=asked,
            answered_ns=answered,
            own_wall_ns=world_ns + node.wall_offset_ms * MS,
        )

    def _note(self, world_ns: int) -> None:
        offsets = sorted((node.wall_offset_ms for node in self._nodes.values()), reverse=True)
        before = majority(len(offsets)) - 1
        if not any(
            first - last <= MAX_OFFSET_MS
            for first, last in zip(offsets, offsets[before:], strict=False)
        ):
            self._latest_ms += (world_ns - self._noted_ns) // MS
        self._latest_ms = max(self._latest_ms, world_ns // MS + offsets[before])
        self._noted_ns = world_ns - world_ns % MS

    def healed(self, world_ns: int) -> None:
        """All clocks are right from now on."""
        self._healed_ns = world_ns

    def check(self, committed: Iterable[Range], world_ns: int) -> None:
        """Check the store times of entries that have just been committed. Raises Violation."""
        self._note(world_ns)
        for entries in committed:
            times = prefixes(entries.data, entries.starts)["store_ms"].astype(np.int64)
            last = int(times[-1])
            falls = np.flatnonzero(np.diff(times, prepend=self._checked_ms) < 0)
            for row in falls.tolist():
                if not _begins_epoch(entries, row):
                    what = f"the store time of entry {entries.first_index + row} falls"
                    raise Violation("time", what)
            self._checked_ms = last
            latest_ms = self._latest_ms + MAX_OFFSET_MS + DRIFTED_MS
            if self._by_majority and last > latest_ms:
                what = f"entry {entries.last_index} has the store time {last}"
                raise Violation(
                    "time", f"{what}, and no majority of the clocks had reached {latest_ms}"
                )
            self._check_right(last, world_ns)

    def _check_right(self, store_ms: int, world_ns: int) -> None:
        """Late entries of a log that is ahead keep its time; `_latest_ms` knows how far that may
        be."""
        if (
            self._healed_ns is not None
            and world_ns - self._healed_ns > RIGHT_AFTER_MS * MS
            and store_ms < world_ns // MS - RIGHT_AFTER_MS
        ):
            raise Violation(
                "time",
                f"an entry is stamped {store_ms} at {world_ns // MS}, long after all clocks were"
                " set right",
            )


def _begins_epoch(entries: Range, row: int) -> bool:
    record = decode_record(record_of(entries, row))
    return (record.topic, parse(record.properties).get(TAG)) == (
        TimeEpochRecord.TOPIC,
        TimeEpochRecord.TAG,
    )
