"""The rules of the checkers that a seed reaches seldom, on replicas that are made for the case."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from ledgermq.node.replica.shipping.shipping import Shipper
from ledgermq.proto.types import Role
from ledgermq.raft.config import Members, Rule
from ledgermq.raft.ha_control import Appointment
from ledgermq.sim.checks.checkers import Checkers, Seen, Violation
from ledgermq.sim.checks.ports import Appointments, Committed, Watched
from ledgermq.sim.faults import schedule
from ledgermq.sim.machine.settings import SMALL_FILE_BYTES
from ledgermq.sim.runs.world import World

NODE, INDEX = "n3", 7
WRITTEN = 2
"""The epoch of the acknowledged entry."""


def checkers(led: int, held: bool = True) -> Checkers:
    """Checkers that saw the node lead this epoch at their last look; `held` is whether its medium
    has the entry."""
    medium = SimpleNamespace(holds=lambda pos, data: held)
    made = Checkers(cast(Committed, None), {NODE: medium}, cast(Appointments, None))
    made.seen[NODE] = Seen(life=1, led=led)
    return made


def replica(role: Role, term: int, confirmed: int) -> Watched:
    """A replica whose commit index lies in an entry of the epoch `confirmed`."""
    entry = SimpleNamespace(pos=0, data=b"")
    return cast(
        Watched,
        SimpleNamespace(
            role=role,
            term=term,
            commit_index=9,
            term_at=lambda index: confirmed,
            entry=lambda index: entry,
        ),
    )


@pytest.mark.parametrize(
    ("role", "term", "led", "confirmed", "right"),
    [
        (Role.LEADER, 2, 2, 2, True),
        (Role.LEADER, 2, 2, 1, False),
        (Role.LEADER, 4, 4, 2, False),
        (Role.LEADER, 4, -1, 4, True),
        (Role.FOLLOWER, 3, 2, 2, True),
        (Role.FOLLOWER, 3, 2, 1, False),
        (Role.FOLLOWER, 3, 2, 3, True),
        (Role.FOLLOWER, 5, 4, 2, False),
        (Role.FOLLOWER, 3, -1, 1, False),
    ],
)
def test_master_acknowledgement_before_a_confirmed_entry_is_a_violation(
    role: Role, term: int, led: int, confirmed: int, right: bool
) -> None:
    """Also in the turn in which it learns of its successor: seed 3143311116 (HA async) reached that
    after 100,000 virtual seconds."""
    found = replica(role, term, confirmed)
    if right:
        checkers(led).promised(NODE, INDEX, WRITTEN, "master", found)
        return
    with pytest.raises(Violation, match="nothing of its epoch"):
        checkers(led).promised(NODE, INDEX, WRITTEN, "master", found)


def test_master_acknowledgement_of_unsynced_entries_is_a_violation() -> None:
    """A power cut of the master keeps what it acknowledged."""
    with pytest.raises(Violation, match="would lose it by a power cut"):
        checkers(2, held=False).promised(NODE, INDEX, WRITTEN, "master", replica(Role.LEADER, 2, 2))


OLD = Appointment(
    generation=0, version=2, epoch=2, master="n2", in_sync={"n1": "", "n2": "", "n3": ""}
)
NEW = Appointment(generation=392, version=3, epoch=4, master="n3", in_sync={"n1": "", "n3": ""})


@pytest.mark.parametrize(
    ("appointed", "members", "lacks", "right"),
    [
        (OLD, Members(("n1", "n2", "n3"), rule=Rule.IN_SYNC), "n2", False),
        (
            OLD,
            Members(("n1", "n2", "n3"), rule=Rule.ALL, towards=Rule.MAJORITY, since=66),
            "n2",
            False,
        ),
        (OLD, Members(("n1", "n3"), rule=Rule.MAJORITY), "n2", True),
        (OLD, Members(("n1", "n3"), rule=Rule.IN_SYNC, since=392), "n2", True),
        (NEW, Members(("n1", "n3"), rule=Rule.IN_SYNC, since=392), "n2", True),
        (NEW, Members(("n1", "n3"), rule=Rule.IN_SYNC, since=392), "n1", False),
        (None, Members(("n1", "n3"), rule=Rule.IN_SYNC, since=392), "n1", True),
    ],
)
def test_an_appointment_counts_until_the_group_has_had_another_rule(
    appointed: Appointment | None, members: Members, lacks: str, right: bool
) -> None:
    """A group left the rule in-sync, removed n2, and took the rule again (seed 3217134228): the
    appointment from before elects nobody."""
    made = Checkers(
        cast(Committed, None), {}, cast(Appointments, SimpleNamespace(appointment=appointed))
    )
    made._note_rule(members)
    holders = {"n1", "n2", "n3"} - {lacks}
    if right:
        made._in_sync_hold(holders, 392)
        return
    with pytest.raises(Violation, match=f"{lacks} could be elected"):
        made._in_sync_hold(holders, 392)


def test_an_error_that_a_node_only_logs_fails_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread of a node survives unexpected errors, so nothing else might tell that there was
    one."""

    def broken(*_: Any) -> None:
        raise ZeroDivisionError("planted")

    monkeypatch.setattr(Shipper, "turn", broken)
    outcome = World(0, file_bytes=SMALL_FILE_BYTES).run(1500, schedule(("bit-rot",)))
    assert outcome.violation is not None and "serving files to peers failed" in str(
        outcome.violation
    )
