"""The checker of log trees: one tree for all replicas, which only grows, with roots of the
committed entries."""

from __future__ import annotations

import pytest

from ledgermq.node.broker.parts.retention.retained import Retained
from ledgermq.proto.records.control import SealRecord
from ledgermq.sim.checks.checkers import Violation
from ledgermq.sim.checks.truth import Truth
from ledgermq.sim.cli.cases import Case
from ledgermq.sim.nodes.bugs import Bug
from tests.sim.test_planted_bugs import SMALL

KINDS = ("seal", "seal", "kill", "power-cut")


def retained(*roots: str) -> Retained:
    found = Retained()
    found.begin_tree()
    for number, root in enumerate(roots):
        found.apply_seal(
            SealRecord(
                1000 * number,
                10 * number,
                10 * number + 9,
                1000 * number + 900,
                "ab" * 32,
                ("n1",),
                root * 32,
            )
        )
    return found


def test_another_leaf_and_a_lost_one_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A replica that lags has fewer leaves; one that has another leaf, or one leaf less before it
    goes on, has another tree."""
    monkeypatch.setattr(
        Truth, "_root", lambda self, first, last: ["aa", "bb", "cc", "dd"][first // 10] * 32
    )
    truth = Truth("log", 1000)
    for node, roots in (
        ("n1", ("aa",)),
        ("n2", ("aa", "bb", "cc")),
        ("n1", ("aa", "bb")),
        ("n1", ("aa", "bb", "cc", "dd")),
    ):
        truth.grown(node, retained(*roots))
    for roots in (("bb",), ("aa", "bb", "dd"), ("bb", "cc", "dd")):
        with pytest.raises(Violation, match="tree: n3 has another log tree of"):
            truth.grown("n3", retained(*roots))


def test_a_root_that_is_not_that_of_the_entries_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Truth, "_root", lambda self, first, last: "aa" * 32)
    with pytest.raises(
        Violation, match="the file at 1000 that is not that of the committed entries"
    ):
        Truth("log", 1000).grown("n1", retained("aa", "bb"))


def test_groups_seal_files_under_faults() -> None:
    """The kind does something: files end early and are sealed, and leaders and processes change
    meanwhile."""
    ran = Case.drawn(1, 5000, SMALL, KINDS, Bug.NONE).run().result
    assert ran.passed and ran.coverage["seals"] >= 3 and ran.coverage["early-ends"]
