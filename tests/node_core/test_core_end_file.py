"""A log file ends early at an operator's request: once for each entry, and only where every replica
reads that."""

from __future__ import annotations

from ledgermq.node.broker.calls.operator_calls import EndFile, Kept
from ledgermq.node.broker.calls.outcome import Refused
from ledgermq.proto.entries.message_record import decode_record
from ledgermq.proto.records import control
from tests.node_core.core_fakes import Bench, Outcome
from tests.node_core.test_core_time_epochs import skewed


def end(b: Bench, index: int) -> Outcome | None:
    return b.ask(EndFile(next(b.tokens), index, "me"))


def test_the_file_of_an_entry_ends_once() -> None:
    """Behind the last entry, with a marker; a repeated request, as after a lost answer, appends
    nothing."""
    b = skewed()
    b.send("a")
    index = b.machine.applied_index
    assert end(b, index) == Kept()
    assert b.replicator.files == [0, index + 1] and b.machine.applied_index == index + 1
    assert (
        decode_record(bytes(b.log.read(index + 1).data[48:])).body
        == control.AuditRecord("me").encode()
    )
    for again in (0, index):
        assert end(b, again) == Kept()
    assert b.replicator.files == [0, index + 1] and b.machine.applied_index == index + 1
    assert end(b, index + 1) == Kept() and b.replicator.files == [0, index + 1, index + 2]


def test_two_requests_at_once_end_one_file() -> None:
    """Even if the first marker is not committed yet."""
    b = skewed()
    b.send("a")
    index = b.machine.applied_index
    b.replicator.commit_at_once = False
    first, second = EndFile(next(b.tokens), index), EndFile(next(b.tokens), index)
    b.turn(first, second)
    assert first.token not in b.done and b.done[second.token] == Kept()
    b.replicator.commit_at_once = True
    b.turn()
    assert b.done[first.token] == Kept() and b.replicator.files == [0, index + 1]


def test_refused_below_its_level_and_while_it_cannot_be() -> None:
    """With what has to be done, and without an entry."""
    low = skewed(level=2)
    refused = end(low, 0)
    assert (
        isinstance(refused, Refused)
        and refused.reason == "seal-refused"
        and "upgrade finish" in refused.detail
    )
    b = skewed()
    before = b.replicator.end_index
    for index in (-1, before + 1):
        refused = end(b, index)
        assert (
            isinstance(refused, Refused)
            and refused.reason == "seal-refused"
            and f"no entry {index}" in refused.detail
        )
    b.replicator.file_ready = False
    assert isinstance(refused := end(b, before), Refused) and refused.reason == "seal-not-yet"
    b.replicator.file_ready, b.group.writes_refused = True, True
    assert isinstance(refused := end(b, before), Refused) and refused.reason == "disk-full"
    b.group.writes_refused, b.replicator.full = False, True
    b.replicator.full_for_control = True
    assert isinstance(refused := end(b, before), Refused) and refused.reason == "disk-full"
    assert (b.replicator.end_index, b.replicator.files) == (before, [0])
    follower = Bench(log=b.log)
    assert isinstance(refused := end(follower, 0), Refused) and refused.reason == "not-leader"
