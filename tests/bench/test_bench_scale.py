"""The study of large clusters: it is on its page as it is computed, and its counts agree with
second ways to count them."""

from __future__ import annotations

from pathlib import Path

from bench.alone import scale

PAGE = Path(__file__).resolve().parents[2] / "docs/sizing.md"


def test_the_page_has_the_table() -> None:
    assert scale.table() in PAGE.read_text()


def test_the_smallest_cluster() -> None:
    """Three nodes with three groups: each has all replicas, leads one group, and can be lost."""
    found = scale.placed(3, 3)
    assert set(found.replicas.values()) == {found.nodes} and sorted(found.leaders.values()) == list(
        found.nodes
    )
    assert scale.lost_rack(found, scale.across) == scale.lost_rack(found, scale.in_blocks)
    leaders, stopped, copied, copy_s = scale.lost_rack(found, scale.across)
    assert (leaders, stopped, copied) == (1, 0, 3 * scale.GROUP_BYTES)
    assert copy_s * scale.COPY_BYTES_PER_S == copied
    assert scale.questions_per_s(found) == 0 and scale.moves_when_grown(3, 3) == 0


def test_an_idle_leader_sends_ten_heartbeats_to_each_follower() -> None:
    assert scale.heartbeats_per_s() == 20


def test_placement_knows_no_racks() -> None:
    """Nodes that are named rack by rack: whole groups fall into one rack."""
    found = scale.placed(9, 9)
    assert scale.lost_rack(found, scale.across)[1] == 0
    assert scale.lost_rack(found, scale.in_blocks)[1] == 3
