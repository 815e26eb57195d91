"""What the demo concludes from what was recorded: every kind of damage is planted once and must be
found."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from examples.flights.verdict import Ledger, order_violations

TOPIC = "fifo"


def ack(
    number: int,
    *,
    digest: str | None = None,
    group: str | None = None,
    started: float = 0.0,
    acked: float = 0.0,
) -> dict[str, Any]:
    found = {
        "fact": "ack",
        "id": f"id{number}",
        "digest": digest or f"d{number}",
        "number": number,
        "topic": TOPIC,
        "group": group,
    }
    return {**found, "started": started, "acked": acked}


def got(number: int, digest: str | None = None) -> dict[str, Any]:
    return {"fact": "got", "id": f"id{number}", "digest": digest or f"d{number}"}


def ledger(*facts: dict[str, Any]) -> Ledger:
    found = Ledger()
    for fact in facts:
        found.record(fact)
    return found


def stored(*messages: tuple[str, int, int]) -> list[dict[str, Any]]:
    """(message group, queue, flight number) in the order of the log."""
    return [
        {"message_group": group, "queue": queue, "properties": {"flight": str(number)}}
        for group, queue, number in messages
    ]


def test_ledger_of_single_deliveries_has_no_loss_and_no_duplicate() -> None:
    """Everything acknowledged and consumed once, whatever came first."""
    found = ledger(got(1), ack(1), ack(2), got(2), {"fact": "sent-all"})
    assert (found.lost, found.duplicates, found.producer_done) == ([], 0, True)


def test_a_lost_message_is_named() -> None:
    """Acknowledged, never consumed."""
    assert ledger(ack(1), ack(2), got(1)).lost == [("id2", "d2")]


def test_altered_body_is_lost_despite_equal_counts() -> None:
    """A message that arrived with another body is lost although the numbers agree."""
    found = ledger(ack(1), ack(2), got(1), got(2, digest="changed"))
    assert len(found.acknowledged) == len(found.consumed) and found.lost == [("id2", "d2")]


def test_duplicates_are_counted() -> None:
    """Deliveries beyond the first, and stored copies of sends whose answer was lost."""
    assert ledger(ack(1), got(1), got(1), got(1), got(9)).duplicates == 3


@given(st.lists(st.tuples(st.integers(0, 5), st.booleans()), max_size=40))
def test_lost_is_acknowledged_minus_consumed(facts: list[tuple[int, bool]]) -> None:
    """The law itself, for every interleaving."""
    found = ledger(
        *(ack(number) if acknowledged else got(number) for number, acknowledged in facts)
    )
    acknowledged = {number for number, is_ack in facts if is_ack}
    consumed = {number for number, is_ack in facts if not is_ack}
    assert {key for key, _ in found.lost} == {f"id{n}" for n in acknowledged - consumed}
    assert found.duplicates == sum(not is_ack for _, is_ack in facts) - len(consumed & acknowledged)


def test_time_without_a_leader_counts_sends_begun_after_the_kill() -> None:
    """A send begun before the kill proves nothing; of those begun after it, the first
    acknowledgement counts, in any order of reports."""
    found = ledger(ack(1, started=1, acked=2))
    assert found.seconds_without_leader is None
    found.killed_at = 10.0
    for number, started, acked in ((2, 9.0, 10.2), (3, 10.4, 12.0), (4, 10.1, 11.5)):
        found.record(ack(number, started=started, acked=acked))
    assert found.seconds_without_leader == 1.5


def test_resends_are_counted() -> None:
    """A repeated send is a fact of its own."""
    assert ledger({"fact": "resend"}, {"fact": "resend"}, {"fact": "receive-error"}).resends == 2


def test_an_ordered_log_has_no_violation() -> None:
    """Groups in one queue each, numbers rising; a repeated send behind its first copy is
    allowed."""
    log = stored(("a", 0, 1), ("b", 0, 2), ("a", 0, 5), ("a", 0, 1), ("b", 0, 7))
    assert (
        order_violations(
            log,
            ledger(*(ack(n, group=g) for n, g in ((1, "a"), (2, "b"), (5, "a"), (7, "b")))),
            TOPIC,
        )
        == []
    )


def test_a_group_in_two_queues_is_found() -> None:
    """One queue per message group."""
    (wrong,) = order_violations(stored(("a", 0, 1), ("a", 1, 2)), Ledger(), TOPIC)
    assert wrong == "a is in queues [0, 1]"


def test_a_group_out_of_order_is_found() -> None:
    """First copies must rise."""
    (wrong,) = order_violations(stored(("a", 0, 2), ("b", 0, 1), ("a", 0, 1)), Ledger(), TOPIC)
    assert wrong.startswith("a is out of order")


def test_an_acknowledged_flight_missing_in_the_log_is_found() -> None:
    """What was acknowledged on the topic must be stored in its group; other topics are not looked
    for here."""
    elsewhere = {**ack(9, group="a"), "topic": "normal"}
    (wrong,) = order_violations(
        stored(("a", 0, 1)), ledger(ack(1, group="a"), ack(2, group="a"), elsewhere), TOPIC
    )
    assert wrong == "a lacks flights [2]"
    (gone,) = order_violations([], ledger(ack(3, group="c")), TOPIC)
    assert gone == "c lacks flights [3]"
