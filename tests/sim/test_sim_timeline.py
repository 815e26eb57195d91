"""A timeline shows each node's last events in its own column, on one screen."""

from __future__ import annotations

from dataclasses import dataclass

from ledgermq.sim.cli.timeline import WIDTH, draw, explain

SECOND = 1_000_000_000


@dataclass(frozen=True)
class Event:
    """What a world keeps."""

    at_ns: int
    node: str
    text: str


def test_each_node_has_a_column() -> None:
    """Two nodes side by side; events of all nodes span the columns; times are relative to the start
    of the run."""
    events = [
        Event(SECOND, "a", "start"),
        Event(SECOND, "b", "start"),
        Event(3 * SECOND // 2, "", "everything heals"),
    ]
    drawn = draw(events, ["a", "b"], since_ns=SECOND, width=60)
    assert drawn == [
        "                      a                       b",
        "            ----------------------  ----------------------",
        "   0.000 s  start",
        "   0.000 s                          start",
        "   0.500 s  ·············· everything heals ··············",
    ]


def test_only_the_last_rows_are_shown_and_repetitions_fold() -> None:
    """However long the run, its page has a limited number of lines, none wider than a screen."""
    events = [
        Event(k * SECOND, "abc"[k % 3], f"event {k} " + "word " * (k % 40)) for k in range(500)
    ]
    drawn = draw(events, ["a", "b", "c"], rows=20)
    assert len(drawn) == 20 and max(map(len, drawn)) <= WIDTH
    assert "event 499" in "\n".join(drawn) and "event 1 " not in "\n".join(drawn)
    same = draw([Event(k, "a", "again") for k in range(7)], ["a"])
    assert len(same) == 3 and same[-1].endswith("again (x7)")


def test_explanation_states_the_invariant_and_its_violation_once() -> None:
    """The invariant in words once, and not its id twice."""
    told = explain("I1", "I1: term 3 is led by n1 and by n2", 2 * SECOND, 77)
    assert told[0] == "broken: I1 (at most one leader incarnation per term and group)"
    assert told[1] == "at 2.000 s, step 77: term 3 is led by n1 and by n2"
