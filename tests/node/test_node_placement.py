"""Which nodes to ask about a broker group: the members in the log if known, otherwise the union of
the requested and configured nodes."""

from __future__ import annotations

import pytest

from ledgermq.node.broker.calls.group_view import GroupView
from ledgermq.node.broker.calls.member_calls import GroupMembers
from ledgermq.node.controller.placement import Placement


def test_the_log_counts_then_the_controller_and_the_configuration() -> None:
    views: dict[str, GroupView] = {}
    placed = {"g1": ("n4", "n1"), "g2": ("n4",)}
    placement = Placement({"g1": ("n1", "n2")}, lambda: placed, views)
    assert (
        placement["g1"] == ("n4", "n1", "n2")
        and placement["g2"] == ("n4",)
        and list(placement) == ["g1", "g2"]
        and len(placement) == 2
    )
    views["g1"] = GroupView("n1", 1, True, {}, {}, {})
    assert placement["g1"] == ("n4", "n1", "n2"), "nothing is applied here yet"
    views["g1"] = GroupView(
        "n1", 1, True, {}, {}, {}, GroupMembers(7, ("n1", "n5"), frozenset({"n4"}))
    )
    assert placement["g1"] == ("n1", "n5", "n4")
    with pytest.raises(KeyError):
        placement["g3"]
    assert placement.get("g3", ()) == ()
