"""What bad networks do to a cluster whose peers reach each other through the proxy: partitions of
one node, in one direction, again and again, and streams that are slow, late, capped and torn.

The claims on elections are counted, not timed: how far terms rose while a fault lasted and after it
ended.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.cluster import leader, wait_for
from tests.faults.faulty import GROUP, TOPIC, FaultyCluster, faulty, judge, status_of, terms
from tests.faults.histories import History, Sender

pytestmark = [pytest.mark.slow, pytest.mark.quiet]

HELD_S = 2.0
"""How long a partition lasts at least: several election time-outs."""
SETTLE_S = 1.2
RATE_S = 1.0
FLAPS = 6


def test_isolated_leader_is_replaced_without_acknowledgements(tmp_path: Path) -> None:
    """The majority continues, the minority refuses; reconnected, the former leader follows without
    causing an election."""
    with faulty(tmp_path) as cluster:
        with History(cluster, TOPIC) as history:
            rate = history.rate(RATE_S)
            first, before = leader(cluster), terms(cluster)
            alone = Sender(cluster, TOPIC, len(history.senders), nodes=[first])
            cluster.network.isolate(first)
            wait_for(
                lambda: not cluster.ready(first), 30, "a leader that steps down without a majority"
            )
            alone.start()
            history.progress(100)
            time.sleep(HELD_S)
            during = terms(cluster)
            assert during[first] == before[first], (
                f"an isolated node raised its term: {before} -> {during}"
            )
            alone.end()
            assert alone.sends and not alone.acknowledged, "the minority acknowledged"
            history.senders.append(alone)
            healed(cluster, history, max(during.values()), rate)
        judge(cluster, history)


ONE_WAY = {
    "leader-cannot-hear": ("in", "leader"),
    "leader-cannot-speak": ("out", "leader"),
    "follower-cannot-hear": ("in", "follower"),
    "follower-cannot-speak": ("out", "follower"),
}


@pytest.mark.verify
def test_one_way_partitions_cost_an_election_at_most(tmp_path: Path) -> None:
    """A leader cut off in one direction is replaced once, a follower never disturbs, and the end of
    it costs one election at most."""
    with faulty(tmp_path) as cluster:
        with History(cluster, TOPIC) as history:
            rate = history.rate(RATE_S)
            for name, (direction, role) in ONE_WAY.items():
                leads = leader(cluster)
                victim = leads if role == "leader" else cluster.others(leads)[0]
                before = max(terms(cluster).values())
                inwards = [(other, victim) for other in cluster.others(victim)]
                cluster.network.block(
                    inwards if direction == "in" else [(b, a) for a, b in inwards]
                )
                time.sleep(HELD_S)
                history.progress()
                during = max(terms(cluster).values())
                print(f"{name}: terms {before} -> {during}")
                assert during <= before + (role == "leader"), name
                healed(cluster, history, during, rate)
        judge(cluster, history)


@pytest.mark.verify
def test_flapping_links_cost_at_most_one_election_each(tmp_path: Path) -> None:
    """Between the leader and one follower, shorter and longer than an election timeout: the other
    follower always has contact with the leader, so no other node is elected. Between the leader and
    both: at most one election each time."""
    with faulty(tmp_path) as cluster:
        with History(cluster, TOPIC) as history:
            rate = history.rate(RATE_S)
            leads, before = leader(cluster), max(terms(cluster).values())
            follower = cluster.others(leads)[0]
            for flap in range(FLAPS):
                cluster.network.block(
                    [(leads, follower), (follower, leads)] if flap % 3 else [(leads, follower)]
                )
                time.sleep(0.2 if flap % 2 else 1.0)
                cluster.network.heal()
                history.progress(10)
            after = max(terms(cluster).values())
            assert after == before, (
                f"a flapping link to one follower cost elections: terms {before} -> {after}"
            )
            for flap in range(FLAPS):
                cluster.network.isolate(leader(cluster))
                time.sleep(0.2 if flap % 2 else 1.0)
                cluster.network.heal()
                history.progress(10)
            last = max(terms(cluster).values())
            print(f"flapping leader: terms {after} -> {last} in {FLAPS} flaps")
            assert last <= after + FLAPS
            healed(cluster, history, last, rate)
        judge(cluster, history)


@pytest.mark.verify
def test_late_capped_and_torn_streams(tmp_path: Path) -> None:
    """Delay, jitter, lost segments, 10 Mbit/s and resets: slower, never wrong, and no message twice
    that was sent once."""
    network = {
        "30 ms": {"delay_s": 0.015, "jitter_s": 0.002},
        "100 ms with jitter": {"delay_s": 0.05, "jitter_s": 0.02},
        "lost segments": {"delay_s": 0.002, "loss": 0.05},
        "10 Mbit/s": {"bytes_per_s": 10e6 / 8},
    }
    with faulty(tmp_path) as cluster:
        with History(cluster, TOPIC, body_bytes=1000) as history:
            rate = history.rate(RATE_S)
            for name, rules in network.items():
                cluster.network.shape(cluster.network.ways, **rules)
                began = time.monotonic()
                history.progress(50)
                print(f"{name}: 50 messages in {time.monotonic() - began:.2f} s")
                cluster.network.heal()
            for _ in range(5):
                cluster.network.reset()
                history.progress(20)
            healed(cluster, history, max(terms(cluster).values()), rate)
        judge(cluster, history)


def healed(cluster: FaultyCluster, history: History, term_before: int, rate_before: float) -> None:
    """The end of a fault: one election at most, all replicas take part, and sends go through as
    before."""
    cluster.network.heal()
    history.progress()
    cluster.wait_ready()
    time.sleep(SETTLE_S)
    settled = max(terms(cluster).values())
    assert settled <= term_before + 1, f"terms {term_before} -> {settled} after the end of a fault"
    assert all(status_of(cluster, node, GROUP).leader for node in cluster.nodes)
    failed = sum(send.offset is None for sender in history.senders for send in sender.sends)
    rate = history.rate(RATE_S)
    history.progress(100)
    still_failed = sum(send.offset is None for sender in history.senders for send in sender.sends)
    print(
        f"after the fault: terms {term_before} -> {settled}, {rate:.0f} acknowledgements/s,"
        f" {rate_before:.0f} before it"
    )
    assert still_failed == failed, f"{still_failed - failed} sends failed in a whole network"
    assert max(terms(cluster).values()) == settled
