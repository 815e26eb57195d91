"""FIFO consumer groups in the simulator: the law is shown to catch what breaks it, and whole runs
keep it."""

from __future__ import annotations

import pytest

from ledgermq.sim.checks.checkers import Violation
from ledgermq.sim.checks.message_groups import MessageGroup
from ledgermq.sim.faults import schedule
from ledgermq.sim.runs.world import World

SEEDS = 12


def seen(*steps: tuple[str, int, object]) -> MessageGroup:
    """Steps in their order in time: ("given", lease, ((offset, attempt), …)), or ("ack", offset,
    None)."""
    group = MessageGroup()
    for at, (what, number, messages) in enumerate(steps):
        if what == "given":
            group.received(number, messages, at)  # type: ignore[arg-type]
        else:
            group.acknowledging(number, at)
    return group


def test_a_true_history_of_a_message_group_is_accepted() -> None:
    """A batch, a part of it again as often as needed, then what is behind it; answers that come
    late change nothing."""
    first = ("given", 5, ((0, 1), (1, 1), (2, 1)))
    again = ("given", 9, ((0, 2),)), ("given", 12, ((0, 3),))
    behind = ("given", 14, ((3, 1), (4, 1)))
    acks = ("ack", 1, None), ("ack", 2, None)
    seen(first, *acks, *again, ("ack", 0, None), behind).check()
    seen(*acks, *again, ("ack", 0, None), behind, first).check()


@pytest.mark.parametrize(
    "steps",
    [
        [("given", 5, ((0, 1), (1, 1))), ("ack", 1, None), ("given", 9, ((0, 2), (2, 1)))],
        [("given", 5, ((0, 1), (1, 1))), ("ack", 1, None), ("given", 9, ((2, 1),))],
        [("given", 5, ((0, 1), (1, 1))), ("given", 9, ((1, 2),)), ("ack", 0, None)],
        [
            ("given", 5, ((0, 1), (1, 1))),
            ("ack", 0, None),
            ("ack", 1, None),
            ("given", 9, ((2, 1),)),
            ("given", 12, ((0, 2),)),
        ],
        [("given", 5, ((1, 1), (0, 1)))],
    ],
    ids=[
        "with a new one",
        "a new one alone",
        "a later one before",
        "acknowledged in vain",
        "in another order",
    ],
)
def test_broken_fifo_order_is_a_violation(steps: list[tuple[str, int, object]]) -> None:
    with pytest.raises(Violation, match="I7"):
        seen(*steps).check()


@pytest.mark.parametrize(
    "first",
    [
        0,
        *(
            pytest.param(first, marks=pytest.mark.verify)
            for first in range(SEEDS, 5 * SEEDS, SEEDS)
        ),
    ],
)
def test_fifo_groups_keep_their_order_under_faults(first: int) -> None:
    """Two groups of two consumers each, while leaders are killed, cut off and restarted; in some
    runs everything is consumed at the end."""
    batches = drained = 0
    for seed in range(first, first + SEEDS):
        world = World(seed)
        outcome = world.run(
            2000, schedule(("fifo-group", "fifo-group", "kill-leader", "isolate", "power-cut"))
        )
        assert outcome.passed, f"seed {seed}: {outcome.violation}"
        batches += sum(
            len(group.given) for groups in world.fifo_groups for group in groups.seen.values()
        )
        drained += outcome.coverage["drained"]
    # A run draws whether everything is consumed; of the first seeds some are such runs.
    assert batches > 2 * SEEDS and (drained or first)
