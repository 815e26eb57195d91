"""Turns that end early because nothing moved: they must leave out no work and no time to wake."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any
from unittest import mock

import pytest

from ledgermq.node.broker.calls.consumer_calls import Receive
from ledgermq.node.broker.calls.operator_calls import Configure
from ledgermq.node.broker.calls.read_calls import Confirm
from ledgermq.node.broker.calls.send_calls import Produce
from ledgermq.node.broker.filters.filters import TagFilter
from ledgermq.node.broker.group import Group, TurnOutput
from ledgermq.node.broker.ports import ReplicaOutput
from ledgermq.node.replica.consensus.raft_replica import RaftReplica
from ledgermq.proto.types import Permission, TopicConfig, TopicDurability, TopicKind
from ledgermq.raft.config import MS
from tests.node_core.core_fakes import draft
from tests.replica.turn_costs import Node, Trio

STEPS = 100
TOPICS = {
    "flights": TopicDurability.GROUP,
    "lazy": TopicDurability.MEMORY,
    "empty": TopicDurability.GROUP,
}


class Recorded(Trio):
    """Notes what each turn returned."""

    def __init__(self, base: Path) -> None:
        self.turns: list[tuple[Any, ...]] = []
        super().__init__(base)

    def noted(self, node: Node, output: TurnOutput) -> None:
        packets = [(to, packet.header, bytes(packet.payload)) for to, packet in output.packets]
        what = output.done, packets, output.sync is not None, output.wake_at_ns, output.view
        self.turns.append(
            (
                self.now_ns,
                node.name,
                *what,
                output.hold_calls,
                output.open_batches,
                output.ha_requests,
            )
        )


def play(base: Path, seed: int) -> list[tuple[Any, ...]]:
    """Sends of both durabilities, reads and Receives at random times, with pauses that let a
    replica become idle."""
    chance, trio = Random(seed), Recorded(base)
    try:
        form = TopicKind.NORMAL, 4, Permission.READ_WRITE, 1
        trio.call(
            Configure(
                trio.token(),
                tuple(
                    TopicConfig("", name, *form, durability=kind) for name, kind in TOPICS.items()
                ),
            )
        )
        trio.run(50 * MS)
        for step in range(STEPS):
            what = chance.random()
            if what < 0.8:
                topic = chance.choice(("flights", "lazy"))
                trio.call(
                    *[
                        Produce(trio.token(), [draft(f"{step}/{at}", topic, at % 4)])
                        for at in range(chance.choice((1, 1, 3)))
                    ]
                )
            elif what < 0.86:
                trio.call(Confirm(trio.token()))
            else:
                topic, until_ns = (
                    chance.choice(list(TOPICS)),
                    trio.now_ns + chance.choice((30, 900)) * MS,
                )
                trio.call(
                    Receive(
                        trio.token(), "g", topic, "c", TagFilter(frozenset()), 4, 1000, until_ns
                    )
                )
            trio.run(chance.choice((50_000, 120_000, 310_000, MS, 20 * MS, 150 * MS)))
        trio.run(11_000 * MS)
        return trio.turns
    finally:
        trio.close()


@pytest.mark.one_in(2)
@pytest.mark.parametrize("seed", range(2))
def test_early_ended_turns_have_the_outputs_of_whole_turns(tmp_path: Path, seed: int) -> None:
    """The same run with early ends and without: every turn returns the same, so every packet, sync
    and wake-up comes at the same time."""
    calm, ended_early = Group._calm_until, []

    def counted(group: Group, now_ns: int) -> int | None:
        found = calm(group, now_ns)
        ended_early.append(found is not None)
        return found

    with mock.patch.object(Group, "_calm_until", counted):
        short = play(tmp_path / "short", seed)
    with mock.patch.object(RaftReplica, "calm_until", lambda *_: None):
        whole = play(tmp_path / "whole", seed)
    assert short == whole
    assert sum(ended_early) > STEPS / 2


@pytest.mark.one_in(2)
@pytest.mark.parametrize("seed", range(2))
def test_a_calm_replica_has_no_output(tmp_path: Path, seed: int) -> None:
    calm, take = RaftReplica.calm_until, RaftReplica.take
    taken: dict[int, tuple[Any, ...]] = {}

    def noted(replica: RaftReplica, now_ns: int) -> ReplicaOutput:
        output = take(replica, now_ns)
        taken[id(replica)] = output.commit_index, replica.standing
        return output

    def checked(replica: RaftReplica, now_ns: int) -> int | None:
        found = calm(replica, now_ns)
        if found is not None:
            assert taken[id(replica)] == (replica.commit_index, replica.standing)
            assert replica.take(now_ns) == ReplicaOutput(
                (), None, replica.commit_index, False, found
            )
        return found

    with mock.patch.multiple(RaftReplica, calm_until=checked, take=noted):
        play(tmp_path, seed)
    assert taken
