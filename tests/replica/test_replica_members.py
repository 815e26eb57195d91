"""Membership through real logs: records written, pushed alone, found again at a start, and followed
by a replica that joins."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ledgermq.node.broker.ports import NotLeader
from ledgermq.node.replica.consensus.replica_boot import (
    alone,
    configurations,
    membership_entries,
    record_in,
)
from ledgermq.node.replica.consensus.replica_wire import encode_append
from ledgermq.proto.entries.entry_checking import verify_range
from ledgermq.proto.entries.entry_encoding import encode_entries
from ledgermq.proto.entries.entry_sealing import seal
from ledgermq.proto.entries.ranges import tail_of
from ledgermq.proto.records import control
from ledgermq.proto.types import Role
from ledgermq.raft.config import NOBODY, Members
from ledgermq.raft.membership import Change, MemberChange
from ledgermq.raft.messages import Append, Extent
from ledgermq.storage.files.real_disk import RealDisk
from tests.replica.replica_cluster import CREATED_MS, NAMES, Node, Trio, messages, term_start

JOINER = "n4"


def change(trio: Trio, node: Node, kind: Change, who: str, incarnation: str = "") -> Any:
    answer = node.replica.propose_members(
        trio.now_ns, MemberChange(kind, who, incarnation), np.zeros(1, np.int64), CREATED_MS
    )
    trio.take(node)
    trio.settle()
    return answer


@pytest.fixture
def trio(tmp_path: Path) -> Trio:
    return Trio(lambda name: (RealDisk(), str(tmp_path / name)))


def test_a_change_is_a_record_of_its_own_on_every_replica(trio: Trio) -> None:
    """Channel 1, version 2, with the reason; in effect everywhere, and found again by a restart."""
    leader = trio.elect("n1")
    trio.propose(leader, messages(5))
    answer = change(trio, leader, Change.ADD, JOINER, "i4")
    trio.propose(leader, messages(5))
    trio.settle()
    (entries,) = answer
    assert len(entries) == 1 and membership_entries(entries) == [entries.first_index]
    expected = Members(NAMES, frozenset({JOINER}), {JOINER: "i4"})
    for node in trio.nodes.values():
        assert (node.replica.members, node.replica.members_index) == (expected, entries.first_index)
        record = record_in(node.log.read(entries.first_index, 1))
        assert (record.incarnations, record.reason) == ({JOINER: "i4"}, f"add {JOINER}")
    trio.crash("n2")
    trio.restart("n2")
    assert trio["n2"].replica.members == expected


def test_start_reads_membership_records_behind_the_snapshot(trio: Trio) -> None:
    """From the very next entry on, and none at or before it."""
    leader = trio.elect("n1")
    trio.propose(leader, messages(3))
    change(trio, leader, Change.ADD, JOINER, "i4")
    index, members = leader.replica.members_index, leader.replica.members
    before = Members(NAMES)
    for applied, found in ((index - 2, [index]), (index - 1, [index]), (index, [])):
        known = (applied, members if applied == index else before)
        assert list(configurations(leader.log, known)) == [known, *((at, members) for at in found)]


def test_ranges_hold_a_membership_entry_alone(trio: Trio) -> None:
    """Whatever is read: the part that may travel holds a membership entry alone, or none."""
    leader = trio.elect("n1")
    trio.propose(leader, messages(3))
    change(trio, leader, Change.ADD, JOINER, "i4")
    trio.propose(leader, messages(3))
    index, log = leader.replica.members_index, leader.log
    for first in range(2, log.end_index + 1):
        whole = log.read(first, 1 << 20)
        found = alone(tail_of(whole, first))
        assert found.last_index == (
            index - 1 if first < index else index if first == index else whole.last_index
        )


def test_a_follower_far_behind_takes_the_change_over(trio: Trio) -> None:
    """Pushed from the log, in pieces, with the record among them."""
    leader = trio.elect("n1")
    trio.crash("n3")
    trio.propose(leader, messages(20))
    trio.settle()
    change(trio, leader, Change.ADD, JOINER, "i4")
    trio.propose(leader, messages(20))
    trio.settle()
    trio.restart("n3")
    trio.advance(1000)
    assert trio.agree(leader.log.end_index)
    assert trio["n3"].replica.members == leader.replica.members


@pytest.fixture
def joiner(trio: Trio, tmp_path: Path) -> Node:
    """A fourth node with an empty log."""
    node = trio.nodes[JOINER] = Node(JOINER, RealDisk(), str(tmp_path / JOINER), 4096, joins=True)
    return node


def test_a_node_joins_catches_up_and_is_promoted(trio: Trio, joiner: Node) -> None:
    """From nothing to a voter: its copy counts, and its vote makes a leader when the old one
    dies."""
    leader = trio.elect("n1")
    trio.propose(leader, messages(30))
    assert (joiner.replica.members, joiner.replica.role, joiner.replica.end_index) == (
        NOBODY,
        Role.LEARNER,
        -1,
    )
    change(trio, leader, Change.ADD, JOINER, joiner.identity.incarnation)
    assert trio.agree(leader.log.end_index) and joiner.log.end_index == leader.log.end_index
    assert not isinstance(change(trio, leader, Change.PROMOTE, JOINER), str)
    trio.advance(300)
    assert joiner.replica.role is Role.FOLLOWER and joiner.replica.members.voters == (
        *NAMES,
        JOINER,
    )
    trio.crash("n1")
    trio.advance(3000)
    (new,) = [node for node in trio.up() if node.replica.role is Role.LEADER]
    trio.propose(new, term_start(new.replica.term, new.name))
    trio.settle()
    assert new.replica.commit_index == new.replica.end_index
    trio.crash(joiner.name)
    trio.restart(joiner.name)
    assert joiner.replica.members.voters == (*NAMES, JOINER) and joiner.replica.core.admitted


def test_a_log_that_begins_otherwise_is_not_joined(trio: Trio, joiner: Node) -> None:
    """An empty log compares the seed of its chain, and requires the first entry at its begin."""
    entries = trio["n1"].log.read(0, 1)
    message = Append(
        sender="n1",
        to=JOINER,
        term=1,
        round=1,
        prev_index=-1,
        prev_term=-1,
        commit_index=0,
        extent=Extent(0, 0, 0, len(entries.data)),
    )
    for chain, pos in ((entries.prev_chain ^ 1, 0), (entries.prev_chain, 64)):
        joiner.replica.step(0, "n1", encode_append(message, chain, replace(entries, pos=pos)))
    assert (joiner.replica.end_index, joiner.replica.status().extra["dropped-foreign"]) == (-1, 2)
    joiner.replica.step(0, "n1", encode_append(message, entries.prev_chain, entries))
    assert (joiner.replica.end_index, joiner.replica.members.voters) == (0, NAMES)


def test_membership_entries_that_cannot_be_followed_are_dropped_and_counted(trio: Trio) -> None:
    """With others in one range, or of a form that is not known."""
    leader, node = trio.elect("n1"), trio["n2"]
    prev = node.log.end_index
    drafts = [
        control.draft(control.Membership(NAMES, (JOINER,), reason="x"), CREATED_MS)
        for _ in range(2)
    ]
    drafts[1] = replace(drafts[1], body=drafts[1].body.replace(b'"v":2', b'"v":9'))
    for batch in (drafts, drafts[1:]):
        encoded = encode_entries(batch)
        offsets, chain = np.zeros(len(batch), np.int64), node.log.chain_at(prev)
        pos = np.cumsum([0, *encoded.sizes[:-1]]).astype(np.int64) + node.log.end_pos
        facts = {
            "queue_offsets": offsets,
            "store_ms": CREATED_MS,
            "store_host": bytes(8),
            "prev_chain": chain,
        }
        seal(encoded, first_index=prev + 1, term=leader.replica.term, pos=pos, **facts)
        whole = verify_range(encoded.data, prev + 1, leader.replica.term, node.log.end_pos, chain)
        extent = Extent(prev + 1, whole.last_index, whole.term, len(whole.data))
        term = node.log.term_at(prev)
        node.replica.step(
            0,
            "n1",
            encode_append(
                Append(
                    sender="n1",
                    to="n2",
                    term=whole.term,
                    round=99,
                    prev_index=prev,
                    prev_term=term,
                    commit_index=prev,
                    extent=extent,
                ),
                chain,
                whole,
            ),
        )
    assert (node.replica.end_index, node.replica.status().extra["dropped-membership"]) == (prev, 2)


def test_reads_pass_through(trio: Trio) -> None:
    """On a leader and elsewhere."""
    leader = trio.elect("n1")
    leader.replica.read_index(5, trio.now_ns)
    trio["n2"].replica.read_index(6, trio.now_ns)
    assert trio.take(trio["n2"]).reads == ((6, None),)
    trio.settle()
    with pytest.raises(NotLeader):
        change(trio, trio["n2"], Change.ADD, JOINER, "i4")
