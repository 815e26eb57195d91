"""What the controller makes of every request, for every small state, against the rules written down
again."""

from __future__ import annotations

from itertools import product

import pytest

from ledgermq.raft.ha_control import (
    AlterIsr,
    Appointment,
    ElectionRequest,
    alter,
    elect,
    force,
    from_json,
    to_json,
)
from ledgermq.raft.transfer import Cause

IN_SYNC = {"b": "", "a": "1"}
VOTERS = {"a": "1", "b": "", "c": "3"}
KNOWN = [
    None,
    *(
        Appointment(
            generation=generation,
            version=7,
            epoch=epoch,
            master="b",
            in_sync=IN_SYNC,
            cause=Cause.OPERATOR,
            asked_by="b",
        )
        for generation, epoch in product((0, 4), (2, 5))
    ),
]
REQUESTS = [
    ElectionRequest(
        node=node,
        incarnation=incarnation,
        generation=generation,
        epoch=epoch,
        term=term,
        voters=VOTERS,
        cause=Cause.PREFERRED,
        asked_by="c",
        begun=begun,
    )
    for node, incarnation, generation, epoch, term, begun in product(
        "abc", ("", "1", "3"), (0, 4, 9), (0, 2, 5), (1, 8), (False, True)
    )
]


@pytest.mark.parametrize("known", KNOWN)
def test_elect_grants_exactly_the_eligible_requests(known: Appointment | None) -> None:
    """A node of the agreed set, asked for with the epoch that is in force; of all voters if the
    rule is newer than what is known, unless the log shows that something was agreed under it. The
    epoch exceeds every earlier one and every term that the node has seen."""
    for ask in REQUESTS:
        newer = known is None or ask.generation > known.generation
        in_sync = VOTERS if newer or known is None else known.in_sync
        refused = (
            ask.begun
            if newer or known is None
            else (ask.generation, ask.epoch) != (known.generation, known.epoch)
        )
        found = elect(known, ask)
        if refused or in_sync.get(ask.node) != ask.incarnation:
            assert isinstance(found, str)
            continue
        version, epoch = (0, 0) if known is None else (known.version, known.epoch)
        assert found == Appointment(
            generation=ask.generation,
            version=version + 1,
            epoch=max(epoch, ask.term) + 1,
            master=ask.node,
            in_sync=in_sync,
            cause=Cause.PREFERRED,
            asked_by="c",
        )


@pytest.mark.parametrize("known", KNOWN)
def test_force_grants_exactly_the_requests_of_the_present_rule_and_epoch(
    known: Appointment | None,
) -> None:
    """Any node, alone in sync, except one that lacks the present rule or asks for an epoch that is
    over."""
    for ask in REQUESTS:
        found = force(known, ask)
        if known is not None and (ask.generation < known.generation or ask.epoch != known.epoch):
            assert isinstance(found, str)
            continue
        version, epoch = (0, 0) if known is None else (known.version, known.epoch)
        alone = {ask.node: ask.incarnation}
        assert found == Appointment(
            generation=ask.generation,
            version=version + 1,
            epoch=max(epoch, ask.term) + 1,
            master=ask.node,
            in_sync=alone,
            cause=Cause.FORCED,
            asked_by="c",
        )


@pytest.mark.parametrize("known", KNOWN)
def test_which_sets_a_master_changes(known: Appointment | None) -> None:
    """That of the present epoch alone, from the present version, and never without itself."""
    for node, generation, epoch, version, in_sync in product(
        "ab", (0, 4), (2, 5), (6, 7, 8), ({}, {"a": "1"}, VOTERS)
    ):
        found = alter(
            known,
            AlterIsr(
                node=node, generation=generation, epoch=epoch, version=version, in_sync=in_sync
            ),
        )
        if (
            known is None
            or (node, generation, epoch, version) != ("b", known.generation, known.epoch, 7)
            or "b" not in in_sync
        ):
            assert isinstance(found, str)
            continue
        assert found == Appointment(
            generation=generation,
            version=8,
            epoch=epoch,
            master="b",
            in_sync=in_sync,
            cause=known.cause,
            asked_by=known.asked_by,
        )


def test_stored_appointment_reads_back_equal() -> None:
    for number, cause in enumerate(Cause):
        made = Appointment(
            generation=3,
            version=4 + number,
            epoch=5,
            master="b",
            in_sync=IN_SYNC,
            cause=cause,
            asked_by="c",
        )
        assert from_json(to_json(made)) == made
        assert made.forced is (cause is Cause.FORCED)


def test_later_appointments_are_greater() -> None:
    """First by the entry that made the rule, then by epoch, then by version."""
    made = [
        Appointment(generation=generation, version=version, epoch=epoch, master="a")
        for generation, version, epoch in ((1, 9, 9), (2, 9, 3), (2, 1, 4), (2, 2, 4))
    ]
    assert sorted(made, key=lambda each: each.order) == made
