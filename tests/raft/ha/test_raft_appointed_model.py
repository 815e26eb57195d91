"""Groups of the rule IN_SYNC under random faults (docs/architecture.md, HA groups).

A controller appoints the masters, and only it changes the in-sync set. Requests and notifications
are lost, late and repeated, and at times there is no controller.

In addition to the checks of `memory_cluster.py`: every entry that a node reports as committed is on
the stable storage of each node that the controller could make master next. Each rule is broken once
to show that the checks detect it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace

import pytest

from ledgermq.proto.types import Role
from ledgermq.raft import ha_control
from ledgermq.raft.config import MS, HaRules, Members, RaftConfig, Rule
from ledgermq.raft.core import Core
from ledgermq.raft.effects import Effects
from ledgermq.raft.election import Election
from ledgermq.raft.ha_control import AlterIsr, Appointment, ElectionRequest
from ledgermq.raft.isr_review import IsrReview
from ledgermq.raft.policy import POLICIES, InSync, Peers, Policy, is_there
from ledgermq.raft.progress import Peer
from ledgermq.raft.transfer import Cause
from tests.raft.memory_cluster import Cluster, Member

STEPS = 3000


class HaMember(Member):
    """A replica of a group that was made with the rule IN_SYNC."""

    rules = HaRules(lag_ns=2_000 * MS, lag_bytes=4000)
    rule = Rule.IN_SYNC

    def config(self) -> RaftConfig:
        return RaftConfig(
            self.name, self.voters, self.boots, timing=self.timing, rule=self.rule, ha=self.rules
        )


class Controller:
    """The agreed state and the functions that change it; requests and notifications are delivered
    by the cluster."""

    elect, alter = staticmethod(ha_control.elect), staticmethod(ha_control.alter)

    def __init__(self) -> None:
        self.known: Appointment | None = None
        self.log: list[Appointment] = []

    def take(self, wish: ElectionRequest | AlterIsr) -> bool:
        """Whether it was granted."""
        after = (
            self.elect(self.known, wish)
            if isinstance(wish, ElectionRequest)
            else self.alter(self.known, wish)
        )
        if isinstance(after, str):
            return False
        self.known = after
        self.log.append(after)
        return True


class HaCluster(Cluster):
    """Three replicas and a controller. Wishes and news are messages like others."""

    member_type: type[Member] = HaMember
    controller_type: type[Controller] = Controller

    def __init__(self, seed: int, **rules: object) -> None:
        self.controller = self.controller_type()
        self.wishes: list[ElectionRequest | AlterIsr] = []
        self.outage_until_ns = 0
        self.deaf: set[str] = set()
        """Who hears nothing of the controller."""
        super().__init__(3, seed)
        # A set grows only in calm weather: time is slower here than where only votes are cast, and
        # what broke is mended sooner.
        self.pace_ms, self.calm = (
            self.chance.choice((30, 60, 150)),
            self.chance.choice((0.995, 0.985)),
        )
        chosen = HaRules(
            ack_async=self.chance.random() < 0.3,
            minimum=1,
            lag_ns=2_000 * MS,
            lag_bytes=self.chance.choice((2000, 100_000)),
            pull=self.chance.random() < 0.3,
        )
        if not chosen.ack_async:
            chosen = replace(chosen, minimum=self.chance.choice((1, 2)))
        chosen = replace(chosen, **rules)  # type: ignore[arg-type]
        for member in self.members.values():
            member.rules = chosen  # type: ignore[attr-defined]
            member.start(0)

    def watch(self, member: Member, effects: Effects) -> None:
        for wish in effects.requests:
            if self.chance.random() >= self.loss:
                self.wishes += [wish] * (2 if self.chance.random() < self.repeat else 1)

    def step(self) -> None:
        what = self.chance.random()
        if what < 0.1 and self.now_ns >= self.outage_until_ns:
            self.decide()
        elif what < 0.2 and self.controller.log:
            self.tell()
        elif what < 0.202:
            self.outage_until_ns = self.now_ns + round(self.chance.uniform(1, 3000) * MS)
        super().step()

    def disturb(self) -> None:
        if self.chance.random() < 0.4:
            self.cut.clear()
        else:
            super().disturb()

    def decide(self) -> None:
        """The controller takes one of the wishes, not always the oldest."""
        if not self.wishes:
            return
        wish = self.wishes.pop(self.chance.randrange(len(self.wishes)) if self.shuffle else 0)
        if self.controller.take(wish):
            self.check_electable("the set changed")

    def tell(self) -> None:
        """Notify a node of the latest appointment, or again of an older one."""
        log = self.controller.log
        member = self.chance.choice(self.up()) if self.up() else None
        if member is not None:
            told = log[-1] if self.chance.random() < 0.8 else self.chance.choice(log)
            member.core.appointed(told, self.now_ns)
            self.turn(member)

    def check(self, member: Member) -> None:
        """Of the base class all but I5, which counts a majority."""
        core = member.core
        core.check_invariants()
        assert core.log.end_index == len(member.disk.written) - 1
        assert core.log.runs == tuple(member.disk.runs())
        assert core.durable_index <= member.disk.durable, (
            f"{member.name} reports more entries as durable than its disk holds"
        )
        if core.role is Role.LEADER:
            assert self.leaders.setdefault(core.term, member.name) == member.name, (
                f"I1: two masters in epoch {core.term}"
            )
            assert member.disk.hard_state.term >= core.term or core._saved.term < core.term
            for index, entry in self.committed.items():
                if self.committed_in[index] < core.term:
                    assert (
                        index < len(member.disk.written) and member.disk.written[index] == entry
                    ), f"I3: {member.name} lacks {index}"
        for index, (term, word) in enumerate(member.disk.written):
            assert self.seen.setdefault((index, term), word) == word, (
                f"I2: ({index}, {term}) has two histories"
            )
        before = self.commits.get(member.name, 0)
        assert core.commit_index >= before, f"I4: commit of {member.name} fell"
        self.commits[member.name] = core.commit_index
        for index in range(before + 1, core.commit_index + 1):
            entry = member.disk.written[index]
            assert self.committed.setdefault(index, entry) == entry, (
                f"I3: two entries committed at {index}"
            )
            self.committed_in.setdefault(index, core.term)
        if core.commit_index > before:
            self.check_electable(f"{member.name} committed {core.commit_index}")

    def check_electable(self, when: str) -> None:
        """Check that every node that may become master has all entries that any node reports as
        committed."""
        known = self.controller.known
        electable = tuple(self.members) if known is None else tuple(known.in_sync)
        last = max(self.committed)
        for name in electable:
            disk = self.members[name].disk
            assert disk.durable >= last and disk.written[last] == self.committed[last], (
                f"I5: {when}; {name} may be master and lacks {last}"
            )

    def heal(self) -> None:
        """Everything works again: a master, a new entry that all have, and all voters in sync."""
        self.cut.clear()
        self.loss = self.repeat = 0.0
        self.shuffle = False
        for name in list(self.down):
            self.members[name].start(self.now_ns)
            self.commits[name] = min(0, self.members[name].core.log.end_index)
        self.down.clear()
        self.progress(
            self.members.values(),
            30_000 * MS,
            lambda known: set(known.in_sync) == set(self.members),
        )

    def deafen(self) -> str:
        """All nodes and the controller receive messages from the master, but it receives none. The
        others continue without it."""
        master = next(member.name for member in self.up() if member.core.accepting)
        self.cut = {(name, master) for name in self.members if name != master}
        self.deaf = {master}
        others = [member for member in self.up() if member.name != master]
        self.progress(others, 10_000 * MS, lambda known: known.master != master)
        self.deaf.clear()
        return master

    def progress(
        self, among: Collection[Member], within_ns: int, right: Callable[[Appointment], bool]
    ) -> None:
        """A new entry of a master that is right is committed by all of them."""
        deadline, proposed_in, target = self.now_ns + within_ns, -1, -1
        while self.now_ns < deadline:
            self.let_all_happen()
            leader = next((member for member in among if member.core.accepting), None)
            if leader is not None and leader.core.term != proposed_in:
                leader.propose(1)
                target, proposed_in = leader.core.log.end_index, leader.core.term
                self.turn(leader)
            known = self.controller.known
            if (
                known is not None
                and right(known)
                and target >= 0
                and all(member.core.commit_index >= target for member in among)
            ):
                return
            self.pass_time()
        raise AssertionError(
            f"no progress: {self.controller.known} {[repr(m.core) for m in self.members.values()]}"
        )

    def let_all_happen(self) -> None:
        """Deliver messages, requests and notifications and finish syncs until none are left."""
        while self.network or self.wishes:
            while self.network:
                self.deliver()
            while self.wishes:
                self.decide()
            for member in self.up():
                if self.controller.known is not None and member.name not in self.deaf:
                    member.core.appointed(self.controller.known, self.now_ns)
                self.turn(member)
        for member in self.up():
            member.begin_sync()
            member.end_sync()
            self.turn(member)

    def pass_time(self) -> None:
        if not self.network:
            self.now_ns += 10 * MS
            for member in self.up():
                member.core.tick(self.now_ns)
                self.turn(member)


def run(cluster: HaCluster, steps: int = STEPS) -> HaCluster:
    for _ in range(steps):
        cluster.step()
    return cluster


@pytest.mark.one_in(6)
@pytest.mark.parametrize("first", range(0, 60, 10))
def test_faults_break_no_invariant_and_healing_brings_progress(first: int) -> None:
    """I1 to I5, whatever happens to replicas, links, disks and the controller."""
    committed = masters = changes = 0
    for seed in range(first, first + 10):
        cluster = run(HaCluster(seed))
        cluster.heal()
        assert not cluster.fences, f"seed {seed}: {cluster.fences}"
        committed += max(cluster.committed)
        masters += len(cluster.leaders)
        changes += sum(
            1
            for a, b in zip(cluster.controller.log, cluster.controller.log[1:], strict=False)
            if a.in_sync != b.in_sync
        )
    assert committed > 200 and masters > 10 and changes > 5, (committed, masters, changes)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("first", range(0, 20, 10))
def test_isolated_master_is_replaced(first: int) -> None:
    """Whatever came before, and whatever the group demands of an acknowledgement."""
    for seed in range(first, first + 10):
        cluster = run(HaCluster(seed), STEPS // 3)
        cluster.heal()
        former = cluster.deafen()
        cluster.heal()
        assert not cluster.fences and cluster.controller.known.master != former, (
            f"seed {seed}: {cluster.fences}"
        )  # type: ignore[union-attr]


class ForcedCluster(HaCluster):
    """Sometimes the whole in-sync set fails at once, and an operator makes the remaining node with
    the longest log master."""

    forced = lost = 0
    loses_it_all = 0.3

    def disturb(self) -> None:
        known, chance = self.controller.known, self.chance
        if (
            known is None
            or set(known.in_sync) == set(self.members)
            or chance.random() >= self.loses_it_all
        ):
            super().disturb()
            return
        for name in known.in_sync:
            if name not in self.down:
                self.members[name].crash()
            self.down[name] = self.now_ns + round(chance.uniform(500, 5000) * MS)
        # Their connections broke: later confirmations reach no client.
        self.network = [
            packet for packet in self.network if packet.message.sender not in known.in_sync
        ]
        if self.up():
            self.force(
                max(
                    self.up(),
                    key=lambda member: (
                        member.core.commit_index,
                        member.core.log.end_term,
                        member.core.log.end_index,
                    ),
                )
            )

    def force(self, member: Member) -> None:
        """What was committed, and is not in its log as it is on the disk now, is given up."""
        known, core, disk = self.controller.known, member.core, member.disk
        assert known is not None
        for _ in range(2):
            member.begin_sync()
            member.end_sync()
        ask = ElectionRequest(
            node=member.name,
            incarnation="",
            generation=known.generation,
            epoch=known.epoch,
            term=core.term,
            voters={},
            cause=Cause.FORCED,
            asked_by="operator",
        )
        after = ha_control.force(known, ask)
        assert isinstance(after, Appointment) and after.in_sync == {member.name: ""}
        kept = next(
            (
                i
                for i in range(len(self.committed))
                if i >= len(disk.written) or disk.written[i] != self.committed[i]
            ),
            None,
        )
        for index in range(len(self.committed) if kept is None else kept, len(self.committed)):
            del self.committed[index], self.committed_in[index]
            self.lost += 1
        self.controller.known = after
        self.controller.log.append(after)
        self.forced += 1
        core.appointed(after, self.now_ns)
        self.turn(member)


@pytest.mark.one_in(4)
@pytest.mark.parametrize("first", range(0, 40, 10))
def test_unclean_election_loses_only_entries_the_forced_master_lacks(first: int) -> None:
    """The set is lost, and an operator names a master: logs that held more are cut to its, former
    masters included, and of what was confirmed before and after its office began nothing that it
    had is ever lost."""
    forced = lost = 0
    for seed in range(first, first + 10):
        cluster = ForcedCluster(seed)
        run(cluster)
        cluster.heal()
        assert not cluster.fences, f"seed {seed}: {cluster.fences}"
        forced, lost = forced + cluster.forced, lost + cluster.lost
    assert forced > 5 and lost > 5, (forced, lost)


# Every rule broken alone


class ShrinksAtOnce(Core):
    """Planted: a master continues without a slave before the controller agreed."""

    def _policy_of(self, members: Members) -> Policy:
        core, me, silence_ns = self, self.config.node, self.config.timing.election_max_ns

        class Shrinks(InSync):
            def required(self) -> Collection[str]:
                there = [
                    n
                    for n in self.electors()
                    if n == me or is_there(core.peers.get(n), core._now_ns, silence_ns)
                ]
                return there or [me]

        return Shrinks(members, self.config, self.log_state, self.isr, self.timer)


def in_sync(policy: type[InSync]) -> dict[Rule, type[Policy]]:
    return {**POLICIES, Rule.IN_SYNC: policy}


class JoinsLaterPolicy(InSync):
    """Planted: a master waits for a slave that it asked to add to the set only after it learns of
    the agreement."""

    def required(self) -> Collection[str]:
        return self.electors()


class JoinsLater(Core):
    """It has that."""

    policies = in_sync(JoinsLaterPolicy)


class LeadsAgain(Core):
    """Planted: a replica leads the epoch that it led before its restart once more."""

    class election_type(Election):
        def take_office(self, now_ns: int) -> None:
            agreed = self._membership.policy.agreed
            again = (
                agreed is not None
                and agreed.epoch == self.term
                and agreed.master == self._config.node
            )
            if again and self.role is not Role.LEADER:
                assert agreed is not None
                self.term -= 1
                super().take_office(now_ns)
                self.term = max(self.term, agreed.epoch)
            else:
                super().take_office(now_ns)


class CountsMajorityPolicy(InSync):
    """Planted: a majority commits, independent of the in-sync set."""

    def reached(self, own: int, peers: Peers, value: Callable[[Peer], int]) -> int:
        values = sorted([own, *(value(peer) for peer in peers.values())])
        return values[len(values) // 2]


class CountsMajority(Core):
    """It has that."""

    policies = in_sync(CountsMajorityPolicy)


class AnybodyRunsPolicy(InSync):
    """Planted, with a controller that does not check either: a node outside the in-sync set becomes
    master."""

    def may_campaign(self) -> bool:
        return True


class AnybodyRuns(Core):
    """It has that."""

    policies = in_sync(AnybodyRunsPolicy)


class AnybodyElected(Controller):
    @staticmethod
    def elect(known: Appointment | None, ask: ElectionRequest) -> Appointment | str:
        return ha_control.elect(known if known is None else replace(known, in_sync=ask.voters), ask)


class EpochIgnored(Controller):
    """Planted: the controller elects any node that asks, also for a past epoch, and assigns the
    epoch after it."""

    @staticmethod
    def elect(known: Appointment | None, ask: ElectionRequest) -> Appointment | str:
        after = ha_control.elect(known if known is None else replace(known, epoch=ask.epoch), ask)
        return (
            after if isinstance(after, str) else replace(after, epoch=max(ask.epoch, ask.term) + 1)
        )


class VersionIgnored(Controller):
    """Planted: a late wish replaces a newer in-sync set."""

    @staticmethod
    def alter(known: Appointment | None, ask: AlterIsr) -> Appointment | str:
        return ha_control.alter(
            known, ask if known is None else replace(ask, version=known.version)
        )


class StaysInOfficePolicy(InSync):
    """Planted: a master that receives no messages keeps its slaves from campaigning forever."""

    def silence_ns(self, now_ns: int, peers: Peers) -> int:
        return 0


class StaysInOffice(Core):
    """It has that."""

    policies = in_sync(StaysInOfficePolicy)


class ShrinksUnheard(Core):
    """Planted: a master that receives no messages removes its slaves from the set before it knows
    that it can receive the controller's answers."""

    class review_type(IsrReview):
        def review(self, now_ns: int) -> None:
            told_ns, self._isr.agreed_ns = self._isr.agreed_ns, now_ns
            super().review(now_ns)
            self._isr.agreed_ns = told_ns


@pytest.mark.parametrize("core", [StaysInOffice, ShrinksUnheard])
def test_isolated_master_stays_without_either_rule(core: type[Core]) -> None:
    """Within ten seeds."""
    member = type("Planted", (HaMember,), {"core_type": core})
    cluster_type = type("PlantedCluster", (HaCluster,), {"member_type": member})
    for seed in range(10):
        cluster = cluster_type(seed, minimum=1)
        cluster.heal()
        try:
            cluster.deafen()
        except AssertionError:
            return
    raise AssertionError(f"{core.__name__} went unnoticed")


PLANTED = [
    (ShrinksAtOnce, Controller),
    (JoinsLater, Controller),
    (LeadsAgain, Controller),
    (CountsMajority, Controller),
    (AnybodyRuns, AnybodyElected),
    (Core, EpochIgnored),
    (Core, VersionIgnored),
]


@pytest.mark.one_in(2)
@pytest.mark.parametrize(("core", "controller"), PLANTED, ids=lambda planted: planted.__name__)
def test_the_checks_find_every_broken_rule(core: type[Core], controller: type[Controller]) -> None:
    """Within a hundred seeds."""
    member = type("Planted", (HaMember,), {"core_type": core})
    cluster_type = type(
        "PlantedCluster", (HaCluster,), {"member_type": member, "controller_type": controller}
    )
    for seed in range(100):
        cluster = cluster_type(seed)
        try:
            run(cluster, 2 * STEPS)
        except AssertionError:
            return
        if cluster.fences:
            return
    raise AssertionError(f"{core.__name__} with {controller.__name__} went unnoticed")
