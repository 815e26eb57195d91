"""What a replica knows of the controller's decisions, and what it asks for, in every small
state."""

from __future__ import annotations

import pytest

from ledgermq.raft.config import Members, RaftConfig, Rule
from ledgermq.raft.effects import Outbox
from ledgermq.raft.ha_control import AlterIsr, Appointment, ElectionRequest
from ledgermq.raft.isr import NEVER_NS, Isr, known_by
from ledgermq.raft.log_state import LogState
from ledgermq.raft.log_view import LogView
from ledgermq.raft.transfer import Cause

VOTERS = ("a", "b")
MEMBERS = Members(VOTERS, incarnations={"b": "b2"}, rule=Rule.IN_SYNC, since=4)


def isr(view: LogView | None = None, durable: int = 9) -> tuple[Isr, Outbox]:
    """That of replica `a`, whose log has entries 0 to 9, the rule's entry 4 among them."""
    outbox, log = Outbox(), LogState(view or LogView([(0, 1), (3, 2), (7, 3)], 9), -1)
    log.durable_index = durable
    return Isr(RaftConfig("a", VOTERS, 1), log, outbox), outbox


def appointment(generation: int, version: int, epoch: int) -> Appointment:
    return Appointment(
        generation=generation, version=version, epoch=epoch, master="a", in_sync={"a": ""}
    )


def test_before_the_first_decision_all_voters_are_in_sync() -> None:
    found, _ = isr()
    assert (found.appointment, found.agreed(MEMBERS), found.joining, found.agreed_ns) == (
        None,
        None,
        set(),
        -NEVER_NS,
    )
    assert set(found.in_sync(MEMBERS)) == set(VOTERS)


@pytest.mark.parametrize("late", [(4, 2, 3), (4, 1, 3), (4, 9, 2), (3, 9, 9)])
def test_late_or_repeated_decision_is_ignored(late: tuple[int, int, int]) -> None:
    """Only a new one tells when the controller was heard, and makes requests void that named an
    earlier version."""
    found, _ = isr()
    assert found.learn(appointment(4, 2, 3), 10)
    found.join({"b"})
    assert not found.learn(appointment(*late), 20)
    assert (found.appointment, found.agreed_ns, found.joining) == (appointment(4, 2, 3), 10, {"b"})
    for later in ((4, 3, 3), (4, 1, 4), (5, 0, 0)):
        assert found.learn(appointment(*later), 30)
        assert (found.appointment, found.agreed_ns, found.joining) == (
            appointment(*later),
            30,
            set(),
        )
        found.join({"b"})


@pytest.mark.parametrize("generation", [3, 4, 5])
def test_an_agreement_counts_for_the_rule_that_it_was_made_for(generation: int) -> None:
    found, _ = isr()
    found.learn(appointment(generation, 1, 1), 10)
    assert (found.agreed(MEMBERS) is not None) is (generation == 4)
    assert set(found.in_sync(MEMBERS)) == ({"a"} if generation == 4 else set(VOTERS))


@pytest.mark.parametrize(("durable", "asks"), [(3, False), (4, True), (9, True)])
def test_request_for_a_master_waits_until_the_rule_is_durable(durable: int, asks: bool) -> None:
    found, outbox = isr(durable=durable)
    found.request_master(MEMBERS, "b", Cause.OPERATOR, 7)
    expected = ElectionRequest(
        node="b",
        incarnation="b2",
        generation=4,
        epoch=0,
        term=7,
        voters={"a": "", "b": "b2"},
        cause=Cause.OPERATOR,
        asked_by="a",
        begun=True,
    )
    assert outbox.requests == [expected] * asks


def test_a_request_names_the_epoch_that_is_known() -> None:
    found, outbox = isr()
    found.learn(appointment(4, 2, 3), 10)
    found.request_master(MEMBERS, "a", Cause.STARTED, 7)
    found.request_set(appointment(4, 2, 3), {"a": "", "b": "b2"})
    asked, altered = outbox.requests
    assert isinstance(asked, ElectionRequest) and (asked.epoch, asked.incarnation) == (3, "")
    assert altered == AlterIsr(
        node="a", generation=4, epoch=3, version=2, in_sync={"a": "", "b": "b2"}
    )
    assert (known_by(MEMBERS, "a"), known_by(MEMBERS, "b")) == ("", "b2")


@pytest.mark.parametrize(
    ("view", "begun"),
    [
        (LogView([(0, 1), (3, 2), (7, 3)], 9), True),
        (LogView([(0, 1), (3, 2)], 9), False),
        (LogView([(6, 2)], 9, 2), True),
        (LogView([(5, 2)], 9, 2), False),
    ],
)
def test_whether_the_log_shows_an_epoch_of_the_rule(view: LogView, begun: bool) -> None:
    """A term behind that of the entry which made the rule; if that entry was trimmed, there was
    one: it was committed by a master."""
    found, outbox = isr(view)
    found.request_master(MEMBERS, "a", Cause.STARTED, 7)
    (asked,) = outbox.requests
    assert isinstance(asked, ElectionRequest) and asked.begun is begun
