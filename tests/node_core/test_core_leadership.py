"""Why leadership moved: the ring of one replica, its stored form, and one answer from all of
them."""

from __future__ import annotations

from ledgermq.node.broker.queries.leadership_history import (
    EVENTS_KEPT,
    LeadershipEvent,
    Ring,
    merged,
    restored,
)
from ledgermq.raft.transfer import Cause, LeaderChange, Reason

LOG = "00000000-0000-5000-8000-000000000001"


def came(
    at: int, term: int, former: str | None, leader: str, cause: Cause, peer: str = "", ms: int = 0
) -> LeadershipEvent:
    return LeadershipEvent(at, term, former, leader, cause, peer, ms)


def went(
    at: int, term: int, leader: str, cause: Cause, peer: str = "", ms: int = 0
) -> LeadershipEvent:
    return LeadershipEvent(at, term, leader, None, cause, peer, ms)


def test_a_ring_is_bounded_and_comes_back() -> None:
    """The newest events are kept; what is stored is read back as it was, of this log only."""
    ring = Ring()
    for term in range(EVENTS_KEPT + 5):
        ring.add(LeaderChange(term, None, "n1", Reason(Cause.STARTED)), 1000 + term)
    assert [event.term for event in ring.events] == list(range(5, EVENTS_KEPT + 5))
    value = ring.export(LOG)
    assert restored(value, LOG).events == ring.events
    assert restored(value, "another").events == ()
    for broken in (
        {**value, "v": 2},
        {**value, "events": [[1, 2]]},
        {**value, "events": None},
        {"v": 1, "log_id": LOG},
    ):
        assert restored(broken, LOG).events == ()
    strange = [[1, 1, None, "n1", 99, "", 0]]
    assert restored({**value, "events": strange}, LOG).events == ()


def test_the_winner_knows_best() -> None:
    """Its reason counts, whatever other nodes noticed earlier; the reason why the former leader
    stepped down is reported too."""
    told = {
        "n1": [
            came(900, 1, None, "n1", Cause.STARTED),
            went(5000, 1, "n1", Cause.NO_MAJORITY, "", 812),
        ],
        "n2": [
            came(950, 1, None, "n1", Cause.FOLLOWED, "n1"),
            came(5100, 3, "n1", "n2", Cause.ELECTION_TIMEOUT, "n1", 655),
        ],
        "n3": [came(5050, 3, "n1", "n2", Cause.FOLLOWED, "n2")],
    }
    found = merged("g1", told, ["n4"], 10)
    assert (
        found.answer
        == "leadership of g1 moved from n1 to n2 at 1970-01-01T00:00:05.100Z (term 3): election"
        " timeout: not heard from n1 for 655 ms"
    )
    assert found.reason == "election-timeout"
    assert found.evidence == (
        (
            "1970-01-01T00:00:00.900Z term 1: no leader -> n1, started: no leader was known (told"
            " by n1)"
        ),
        (
            "1970-01-01T00:00:05.100Z term 3: n1 -> n2, election timeout: not heard from n1 for 655"
            " ms (told by n2); n1 stepped down: check-quorum: heard from too few others for 812 ms"
        ),
        "n4 did not answer: what only it recorded is missing",
    )
    assert len(merged("g1", told, [], 1).evidence) == 1


def test_the_old_leader_tells_of_a_handover_when_the_new_one_is_silent() -> None:
    """After a planned stop of one and a crash of the other, the remaining node reports the
    reason."""
    told = {
        "n1": [
            came(900, 1, None, "n1", Cause.STARTED),
            went(2000, 1, "n1", Cause.PLANNED_STOP, "n2"),
            came(2010, 2, "n1", "n2", Cause.FOLLOWED, "n2"),
        ]
    }
    found = merged("g1", told, ["n2"], 10)
    assert found.reason == "planned-stop"
    assert found.answer.endswith(
        "moved from n1 to n2 at 1970-01-01T00:00:02.010Z (term 2): planned stop of n1"
    )


def test_leadership_history_without_records_has_an_unknown_reason() -> None:
    """Without records there is no reason; the same leader again is not called a move."""
    assert merged("g1", {"n1": []}, [], 10).reason == "unknown"
    again = {
        "n1": [
            came(1, 1, None, "n1", Cause.STARTED),
            came(9, 2, "n1", "n1", Cause.ELECTION_TIMEOUT, "n1", 700),
        ]
    }
    assert merged("g1", again, [], 10).answer.startswith("leadership of g1 went to n1 at")
