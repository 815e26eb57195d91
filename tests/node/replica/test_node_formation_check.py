"""A directory founds its group only if no node knows of a log that continues without it: nodes
exchange greetings over their real files."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ledgermq.node.replica.peers.formation_check import FormationCheck
from ledgermq.node.replica.peers.greeting import Greeter
from ledgermq.node.replica.peers.peer_identities import PeerIdentities
from ledgermq.storage.files.real_disk import RealDisk
from tests.node.replica.test_node_peers import CLUSTER, SECRET, _fail, identity

FOUNDERS = ("n1", "n2", "n3")
GROWN = (*FOUNDERS, "n4", "n5", "n6", "n7")


@dataclass(frozen=True)
class FixedNodes:
    """Which nodes there are."""

    nodes: tuple[str, ...]

    def knows(self, node: str) -> bool:
        return node in self.nodes

    def removed(self, node: str) -> bool:
        return False


class Place:
    """One node's side: its greeter, and what it finds about its directory. `disk` counts the disks
    it has had."""

    def __init__(
        self,
        root: Path,
        node: str,
        disk: int = 1,
        *,
        founders: Sequence[str] = FOUNDERS,
        nodes: Sequence[str] = GROWN,
        joins: bool = False,
    ) -> None:
        self.node = node
        self.peer_identities = PeerIdentities(
            RealDisk(), {"g1": str(root / f"{node}-{disk}" / "state")}, _fail
        )
        self.peer_identities.load()
        roll = FixedNodes(tuple(nodes))
        directory = replace(identity(node), incarnation=f"{node} on disk {disk}")
        self.greeter = Greeter(
            cluster_id=CLUSTER,
            node=node,
            boot_id=f"boot-{node}-{disk}",
            version="1",
            secret=SECRET,
            roll=roll,
            identities={"g1": directory},
            peer_identities=self.peer_identities,
        )
        others = {} if joins else {"g1": frozenset(founders) - {node}}
        self.formation = FormationCheck(node, others, roll, self.peer_identities)

    def greets(self, other: Place) -> None:
        challenge, nonce = b"c" * 32, b"n" * 32
        hello = self.greeter.hello(challenge, nonce)
        other.greeter.check_hello(challenge, hello)
        self.greeter.check_reply(nonce, other.greeter.reply(hello), other.node)

    def replicates(self, members: Sequence[str]) -> None:
        """The log here names these."""
        self.peer_identities.name("g1", tuple(members), {})

    def begins(self) -> bool:
        return self.formation.finds("g1")


def all_meet(places: Iterable[Place]) -> None:
    for one, other in itertools.permutations(places, 2):
        one.greets(other)


def test_a_group_begins_when_all_nodes_have_met_and_the_finding_outlives_a_restart(
    tmp_path: Path,
) -> None:
    """No node waits for others a second time, nor for nodes that were added later."""
    nodes = FOUNDERS
    places = [Place(tmp_path, name, nodes=nodes) for name in FOUNDERS]
    all_meet(places[:2])
    assert not places[0].begins() and "missing: n3" in places[0].formation.obstacles("g1")[0]
    all_meet(places)
    assert all(place.begins() for place in places) and not places[0].formation.obstacles("g1")
    assert Place(tmp_path, "n1").begins()


def test_founders_with_lost_disks_begin_no_second_log_in_a_grown_group(
    tmp_path: Path,
) -> None:
    """Three founders of a group of seven could elect a leader while the other four continue.
    Whether they contact those first or last, three empty directories never suffice."""
    former = [Place(tmp_path, name) for name in GROWN]
    all_meet(former)
    stayed = former[3:]
    for place in stayed:
        place.replicates(GROWN)
    empty = [Place(tmp_path, name, disk=2) for name in FOUNDERS]
    all_meet(empty)
    assert not any(place.begins() for place in empty), (
        "no directory has contact with the four nodes that have the log"
    )
    assert "not heard from: n4, n5, n6, n7" in empty[0].formation.obstacles("g1")[-1]
    for place in empty:
        for other in stayed:
            place.greets(other)
    assert not any(place.begins() for place in empty)
    assert "missing: n4, n5, n6, n7" in empty[0].formation.obstacles("g1")[0], (
        "they remember the former directory"
    )


def test_lost_disk_of_a_single_founder_begins_no_second_log(
    tmp_path: Path,
) -> None:
    """Its configuration names no other node, but the other nodes name it."""
    nodes = ("n1", "n2", "n3")
    first = Place(tmp_path, "n1", founders=["n1"], nodes=nodes)
    others = [Place(tmp_path, name, nodes=nodes, joins=True) for name in ("n2", "n3")]
    all_meet([first, *others])
    assert first.begins()
    for place in others:
        place.replicates(nodes)
        assert not place.begins(), "who joins waits for the record that names it"
    again = Place(tmp_path, "n1", disk=2, founders=["n1"], nodes=nodes)
    assert not again.begins()
    for place in others:
        again.greets(place)
        assert not again.begins()


def test_a_group_that_moved_to_other_nodes_is_not_begun_by_those_that_began_it(
    tmp_path: Path,
) -> None:
    """Its members do not know the founders' new directories, or any directories; their own
    identities suffice to prevent it."""
    nodes = ("n1", "n2", "n3", "n4")
    empty = [Place(tmp_path, name, nodes=nodes) for name in FOUNDERS]
    heir = Place(tmp_path, "n4", nodes=nodes, joins=True)
    heir.replicates(["n4"])
    all_meet([*empty, heir])
    assert not any(place.begins() for place in empty)
    assert (
        "says that the group's members are n4; add it: ledgermq member add n1"
        in empty[0].formation.obstacles("g1")[0]
    )


def test_unconfigured_member_must_have_met_the_directory(
    tmp_path: Path,
) -> None:
    """A founder that was down when the group grew: it takes part once the newcomer has recorded
    it."""
    nodes = ("n1", "n2", "n3", "n4")
    one, two, three = (Place(tmp_path, name, nodes=nodes) for name in FOUNDERS)
    four = Place(tmp_path, "n4", nodes=nodes, joins=True)
    two.replicates(nodes)
    all_meet([one, two, three])
    assert not one.begins() and "missing: n4" in one.formation.obstacles("g1")[0]
    one.greets(four)
    assert one.begins()
