"""The checkers of clients' histories: hand-made wrong ones are rejected, and a slow second version
agrees on small ones."""

from __future__ import annotations

from itertools import permutations

from hypothesis import given
from hypothesis import strategies as st

from ledgermq.audit.history import NEVER, Read, Send, check_queue
from tests.faults.deliveries import check_deliveries


def rules(sends: list[Send], reads: list[Read]) -> set[str]:
    return {violation.rule for violation in check_queue(sends, reads)}


GOOD = [Send("a", 0, 2, 0), Send("b", 1, 3, 1), Send("c", 4, 6, 2)]


def test_a_sound_history_passes() -> None:
    """Overlapping sends in either order, reads that lag only as far as time allows, an unknown send
    that was stored."""
    reads = [
        Read(1, 5, 0, ("a",), 1),
        Read(5, 6, 0, ("a", "b"), 2),
        Read(7, 8, 1, ("b", "c", "d"), 4),
    ]
    assert check_queue([*GOOD, Send("d", 5)], reads) == []


def test_two_values_at_one_offset() -> None:
    """An acknowledged message was replaced."""
    assert "value" in rules(GOOD, [Read(7, 8, 0, ("a", "c"), 3)])


def test_one_value_at_two_offsets() -> None:
    """A message was stored twice."""
    assert "twice" in rules(GOOD, [Read(7, 8, 0, ("a", "b", "c", "a"), 4)])


def test_unsent_value_in_a_read_is_a_phantom() -> None:
    """Something appeared."""
    assert "phantom" in rules(GOOD, [Read(7, 8, 3, ("x",), 4)])


def test_offsets_against_real_time() -> None:
    """The second of two sends, begun after the first was acknowledged, got the smaller offset."""
    assert rules([Send("a", 0, 1, 1), Send("b", 2, 3, 0)], []) == {"order"}


def test_a_read_behind_an_acknowledged_send() -> None:
    """A leader that lost its office answered from its past."""
    assert "stale" in rules(GOOD, [Read(7, 8, 0, ("a", "b"), 2)])


def test_a_read_behind_an_earlier_read() -> None:
    """The queue became shorter, although its last send was never acknowledged."""
    assert "stale" in rules(
        [*GOOD, Send("d", 5)], [Read(7, 8, 3, ("d",), 4), Read(9, 10, 0, ("a", "b", "c"), 3)]
    )


def test_a_read_of_the_future() -> None:
    """A message was seen before it was sent."""
    assert rules(GOOD, [Read(1, 3, 0, ("a", "b", "c"), 3)]) != set()


def test_a_hole() -> None:
    """An offset below the end has no message; a send with unknown outcome explains it, unless it
    began too late."""
    hole = [Send("a", 0, 1, 0), Send("b", 2, 3, 2)]
    assert rules(hole, []) == {"lost"}
    assert rules([*hole, Send("x", 1)], []) == set()
    assert rules([*hole, Send("x", 9)], []) == {"order"}


def test_a_read_beyond_the_end_it_saw() -> None:
    """One answer contradicts itself."""
    assert "stale" in rules(GOOD, [Read(7, 8, 0, ("a", "b", "c"), 2)])


def _legal(sends: list[Send], reads: list[Read]) -> bool:
    """The definition, by brute force: some order of all operations (unknown sends may be left out)
    respects time and the log."""
    known = [send for send in sends if send.offset is not None]
    unknown = [send for send in sends if send.offset is None]
    for mask in range(1 << len(unknown)):
        chosen = [send for number, send in enumerate(unknown) if mask >> number & 1]
        for order in permutations([*known, *chosen, *reads]):
            if _is_run(order):
                return True
    return False


def _is_run(order: tuple[Send | Read, ...]) -> bool:
    log: list[str] = []
    for place, step in enumerate(order):
        if any(later.returned < step.invoked for later in order[place:]):
            return False
        if isinstance(step, Send):
            if step.offset not in (None, len(log)):
                return False
            log.append(step.value)
        elif (
            step.end != len(log)
            or tuple(log[step.first : step.first + len(step.values)]) != step.values
        ):
            return False
    return True


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[Send], list[Read]]:
    """A few operations over a few ticks of time: about as often right as wrong."""
    count = draw(st.integers(1, 3))
    sends = []
    for number in range(count):
        invoked = draw(st.integers(0, 5))
        if draw(st.booleans()) or draw(st.booleans()):
            sends.append(
                Send(
                    "abc"[number],
                    invoked,
                    invoked + draw(st.integers(0, 4)),
                    draw(st.integers(0, count - 1)),
                )
            )
        else:
            sends.append(Send("abc"[number], invoked))
    reads = []
    for _ in range(draw(st.integers(0, 2))):
        invoked, end = draw(st.integers(0, 6)), draw(st.integers(0, count))
        first = draw(st.integers(0, end))
        values = tuple(draw(st.permutations("abc"[:count])))[: draw(st.integers(0, end - first))]
        reads.append(Read(invoked, invoked + draw(st.integers(0, 4)), first, values, end))
    return sends, reads


@given(histories())
def test_agrees_with_the_definition(history: tuple[list[Send], list[Read]]) -> None:
    """Linearizable by the checker exactly when some order of the operations is legal."""
    assert (check_queue(*history) == []) == _legal(*history)


def test_deliveries() -> None:
    """Repeats are fine; reordering, loss and inventions are not."""
    acknowledged, sent = {"q": ["a", "b", "c"]}, ["a", "b", "c", "d"]
    told = {
        "good": ["a", "b", "a", "d", "c"],
        "reordered": ["b", "a", "c"],
        "missing": ["a", "c"],
        "unknown": ["a", "b", "x", "c"],
    }
    for rule, values in told.items():
        found = {
            violation.rule
            for violation in check_deliveries(acknowledged, sent, {"q": values}, complete=True)
        }
        assert found == ({rule} - {"good"})
    assert check_deliveries(acknowledged, sent, {"q": ["a", "c"]}, complete=False) == []
    assert NEVER > 1e300
