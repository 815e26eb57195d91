"""The simulated network: conditions overlap and end by themselves, and each shape of a partition
cuts exactly its links."""

from __future__ import annotations

import random

import pytest

from ledgermq.sim.machine.network import MS, Network, Weather, around, between, bridge, ring

FIVE = ["a", "b", "c", "d", "e"]


def test_the_end_of_one_partition_does_not_mend_another() -> None:
    """A link that two conditions cut is open when both are over; a number ends once."""
    network = Network(random.Random(1))
    first, second = network.sever({("a", "b"), ("a", "c")}), network.sever({("a", "b")})
    assert (
        not network.reaches("a", "b")
        and not network.reaches("a", "c")
        and network.reaches("b", "a")
    )
    network.end(first)
    network.end(first)
    assert not network.reaches("a", "b") and network.reaches("a", "c")
    network.end(second)
    assert network.reaches("a", "b")


def test_weathers_add_up_and_pass() -> None:
    """The worst share counts, delays add up, and nothing is left of a weather that is over."""
    network = Network(random.Random(1))
    numbers = [
        network.worsen(Weather(loss=1.0)),
        network.worsen(Weather(delay_ns=50 * MS)),
        network.worsen(Weather(delay_ns=10 * MS)),
    ]
    assert network.deliveries("a", "b") == []
    network.end(numbers[0])
    assert all(
        60 * MS <= delay < 63 * MS for _ in range(20) for delay in network.deliveries("a", "b")
    )
    network.heal()
    assert all(delay < 3 * MS for _ in range(20) for delay in network.deliveries("a", "b"))


def test_duplicated_and_damaged_packets() -> None:
    """Both copies of a doubled packet arrive, and damage changes exactly one bit."""
    network = Network(random.Random(1))
    network.worsen(Weather(duplication=1.0, damage=1.0))
    assert len(network.deliveries("a", "b")) == 2
    changed = network.damaged(bytes(100))
    assert sum(byte.bit_count() for byte in changed) == 1
    assert network.damaged(b"") == b""


def test_shapes_of_partitions() -> None:
    """One-way and full isolation, halves, ring and bridge."""
    assert around("a", FIVE, outbound=False) == {(other, "a") for other in "bcde"}
    assert len(around("a", FIVE)) == 8
    assert between(("a",), ("a", "b")) == {("a", "b"), ("b", "a")}
    assert bridge(FIVE) == between(("b", "c"), ("d", "e"))
    cut = ring(FIVE)
    assert all(
        sum((name, other) not in cut for other in FIVE if other != name) == 2 for name in FIVE
    )


@pytest.mark.parametrize("names", [["a"], ["a", "b"], ["a", "b", "c"]])
def test_small_rings_leave_one_direction(names: list[str]) -> None:
    """Three nodes are all neighbours: what is cut is one direction around."""
    cut = ring(names)
    assert all((b, a) not in cut or len(names) == 2 for a, b in cut)
    assert len(cut) == (0 if len(names) == 1 else len(names))
