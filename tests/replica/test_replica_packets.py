"""How many packets a commit costs three replicas: two appends and two answers, and nothing else
before the next heartbeat.

Commit news that finds no range to ride on travels alone only to a follower where a reader waits,
and is not answered.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from ledgermq.node.replica.consensus.replica_wire import decode
from ledgermq.raft.config import MS
from ledgermq.storage.files.real_disk import RealDisk
from tests.replica.replica_cluster import NAMES, TIMING, Trio, messages


class Counting(Trio):
    """Counts what is sent, by sender, receiver and kind."""

    def __init__(self, tmp_path: Path) -> None:
        super().__init__(lambda name: (RealDisk(), str(tmp_path / name)), data_file_bytes=1 << 20)
        self.sent: Counter[str] = Counter()
        for node in self.nodes.values():
            node.replica.watch(False)
        self.elect("n1")
        self.advance(2 * TIMING.heartbeat_ns // MS)
        self.keep = self._count  # type: ignore[method-assign,assignment]

    def _count(self, sender: str, to: str, packet) -> bool:  # type: ignore[no-untyped-def]
        message = decode(packet, sender).message
        self.sent[f"{sender}->{to} {type(message).__name__}"] += 1
        return True

    def commit(self, count: int = 1) -> None:
        """Commit a batch, and let everything happen that follows before the next heartbeat."""
        self.propose(self["n1"], messages(count))
        self.settle()
        self.now_ns = self["n1"].replica.core.election.leading.heartbeat_due_ns - 1  # type: ignore[union-attr]
        for node in self.nodes.values():
            node.replica.tick(self.now_ns)
            self.take(node)
        self.settle()
        assert self["n1"].replica.commit_index == self["n1"].replica.end_index


@pytest.fixture
def trio(tmp_path: Path) -> Counting:
    return Counting(tmp_path)


@pytest.mark.parametrize("count", [1, 16])
def test_a_commit_costs_four_packets(trio: Counting, count: int) -> None:
    trio.commit(count)
    assert trio.sent == {
        "n1->n2 Append": 1,
        "n1->n3 Append": 1,
        "n2->n1 AppendReply": 1,
        "n3->n1 AppendReply": 1,
    }


def test_the_next_commit_carries_the_news(trio: Counting) -> None:
    trio.commit()
    first = trio["n1"].replica.commit_index
    trio.propose(trio["n1"], messages(1))
    trio.deliver()
    assert [trio[name].replica.commit_index for name in ("n2", "n3")] == [first, first]
    assert sum(trio.sent.values()) == 6


def test_a_reader_costs_one_packet_more(trio: Counting) -> None:
    """The news to the follower where it waits, which is not answered; and once, that the reader
    came."""
    trio["n3"].replica.watch(True)
    trio.take(trio["n3"])
    trio.deliver()
    assert trio.sent.pop("n3->n1 AppendReply") == 1 and not trio.sent
    for _ in range(3):
        trio.sent.clear()
        trio.commit()
        assert trio.sent == {
            "n1->n2 Append": 1,
            "n1->n3 Append": 2,
            "n2->n1 AppendReply": 1,
            "n3->n1 AppendReply": 1,
        }
        assert (
            trio["n3"].replica.commit_index
            == trio["n1"].replica.commit_index
            == trio["n2"].replica.commit_index + 1
        )
        trio.advance(TIMING.heartbeat_ns // MS)


def test_a_heartbeat_brings_the_news_to_all(trio: Counting) -> None:
    trio.commit()
    assert len({trio[name].replica.commit_index for name in NAMES}) == 2
    trio.advance(10)
    assert len({trio[name].replica.commit_index for name in NAMES}) == 1
