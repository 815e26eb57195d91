"""A turn that runs only the stages that its events can have changed does what a turn of all stages
does.

Every run is made twice, with the group and with `EveryStage`: the same answers at the same times,
the same log, packets, views and wake-up times. Most turns have a packet or a sync as their only
input, because only then stages are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random
from typing import Any, ClassVar

import pytest

from ledgermq.node.broker import group as group_module
from ledgermq.node.broker.calls.consumer_calls import CancelReceive, ClientsAlive, Receive
from ledgermq.node.broker.calls.member_calls import ChangeMembers, HandOver, Returned
from ledgermq.node.broker.calls.outcome import Call, Refused
from ledgermq.node.broker.calls.read_calls import Cold, Confirm, Peek, Pull
from ledgermq.node.broker.filters.filters import LOOKS_PER_TURN, TagFilter
from ledgermq.node.broker.flush import FlushPolicy
from ledgermq.node.broker.group import Group, TurnOutput
from ledgermq.node.broker.leader import LeaderSettings
from ledgermq.node.broker.parts.producers.frame_results import certified
from ledgermq.node.broker.ports import PeerPacket, SyncTicket
from ledgermq.node.broker.turn import Turn
from ledgermq.raft.config import HaRules, Members, Rule
from ledgermq.raft.core import Core
from ledgermq.raft.messages import LeaderContact
from ledgermq.raft.transfer import Cause, Handover
from ledgermq.sim.cli.cases import Case
from ledgermq.sim.machine.settings import Settings
from ledgermq.sim.nodes import node as sim_node
from ledgermq.storage.log.hot_tail import HotTail
from tests.node_core import core_cluster, core_fakes, core_world
from tests.node_core.core_fakes import MS, SECOND, Bench, MemoryLog
from tests.node_core.core_world import CLIENTS, LIVENESS_NS, NAMES, READERS, World
from tests.node_core.test_core_cluster import Story
from tests.node_core.test_core_read_budget import Budget

PACKET = ("n2", PeerPacket(b"", b""))
TICKET = SyncTicket(1, lambda: None)
WAITS_NS = (10 * MS, SECOND, 20 * SECOND, 60 * SECOND)
Told = list[tuple[object, ...]]
"""What each turn made of its inputs"""
GAPS_NS = (0, MS, 20 * MS, SECOND, 3 * SECOND, LIVENESS_NS)


class EveryStage(Group):
    """The reference: each pass of each turn runs all stages, and asks the replicator for its
    output."""

    def turn(
        self,
        now_ns: int,
        now_ms: int,
        calls: Sequence[Call] = (),
        packets: Sequence[tuple[str, PeerPacket]] = (),
        synced: Sequence[tuple[SyncTicket, OSError | None]] = (),
    ) -> TurnOutput:
        turn = Turn(now_ns, now_ms, decides=True)
        self.left_behind = None
        for ticket, error in synced:
            self.replicator.synced(now_ns, ticket, error)
        for sender, packet in packets:
            self.replicator.step(now_ns, sender, packet)
        self.replicator.tick(now_ns)
        self._follow_role(turn)
        self.in_sync.look(turn)
        turn.commit_index = self.replicator.commit_index
        if self.leader.term is not None:
            self._apply(turn)
        self.leader.expire(now_ns)
        self._take_calls(turn, calls)
        self.leader.begin_turn(now_ns, now_ms)
        self._reads.pulls.looks.left = LOOKS_PER_TURN
        for _ in range(group_module._PASSES_PER_TURN):
            self.leader.expire(now_ns)
            self._refuse_when_short(turn)
            proposed = self.leader.has_work() and self._propose(turn)
            proposed |= self.member_records.append(
                turn, serving=self.leader.serving, full=self._writes_refused
            )
            if self.leader.wants_commit():
                self.replicator.request_flush()
            self._reads.ask(now_ns)
            self._take_output(turn)
            self._follow_role(turn)
            if self.leader.term is not None:
                done = self.leader.replicated(
                    self.replicator.replicated_index, alone=self.in_sync.acks_alone
                )
                turn.done += certified(done, self.replicator.durable_indexes)
            moved = self._apply(turn)
            turn.done += self._reads.answer()
            if not moved and not proposed and not turn.appended:
                break
        else:
            turn.wake(now_ns)
        return self._finish(turn, heard=True)


def recorded(group_type: type[Group], told: Told) -> type[Group]:
    """The group, with every turn of each replica written down."""

    class Recorded(group_type):  # type: ignore[valid-type, misc]
        def turn(self, now_ns: int, *arguments: Any) -> TurnOutput:
            found = super().turn(now_ns, *arguments)
            sent = [(to, packet.header, bytes(packet.payload)) for to, packet in found.packets]
            output = (
                found.done,
                sent,
                found.sync is None,
                found.wake_at_ns,
                found.view,
                found.hold_calls,
                found.open_batches,
            )
            known = self.statistics(), self.freshness.age_ns(now_ns), self.left_behind
            told.append((self.node, now_ns, *output, found.ha_requests, *known))
            return found  # type: ignore[no-any-return]

    return Recorded


class Eventful(Bench):
    """A bench whose turns may be for a packet or a sync. Subclasses say which rules it runs
    under."""

    options: ClassVar[dict[str, Any]] = {}
    members = Members(("n1", "n2", "n3"))

    def __init__(
        self, log: MemoryLog | None = None, settings: LeaderSettings | None = None, node: str = "n1"
    ) -> None:
        super().__init__(log, replace(settings or LeaderSettings(), **self.options), node)
        self.replicator.members = self.members

    def event(self, which: int) -> None:
        """A turn for a packet or for a sync."""
        inputs: dict[str, Any] = (
            {"synced": [(TICKET, None)]} if which % 2 else {"packets": [PACKET]}
        )
        self.took(
            self.group.turn(
                self.now_ns, self.now_ms, (), inputs.get("packets", ()), inputs.get("synced", ())
            )
        )


class Busy(World):
    """The world of `core_world.py` with calls that wait, and with turns for packets and syncs
    alone."""

    bench: Eventful

    def event(self, which: int) -> None:
        self.bench.event(which)
        self.listen()

    def commits(self, most: int) -> None:
        """The next packet or sync will commit some entries."""
        replicator = self.bench.replicator
        replicator.commit_index = min(self.bench.log.end_index, replicator.commit_index + most)

    def packets(self, a: int, b: int) -> None:
        """Time passes, and entries are committed, with packets and syncs alone."""
        for number in range(1 + b % 4):
            self.bench.now_ns += GAPS_NS[(a + number * b) % len(GAPS_NS)]
            if b % 3:
                self.commits((a + number) % 4 * 5)
            self.event(a + number)

    def exactly(self, a: int, b: int) -> None:
        """A packet comes when the next turn is due, or a nanosecond before."""
        assert self.bench.output is not None
        self.bench.now_ns = max(self.bench.now_ns, self.bench.output.wake_at_ns - b % 2)
        self.event(a)

    def poll(self, a: int, b: int) -> None:
        topic, until_ns = ("n", "m")[b % 2], self.bench.now_ns + WAITS_NS[a % 4]
        tags = frozenset({"T"}) if b % 4 == 0 else frozenset[str]()
        self.turn(
            Receive(
                self.token,
                READERS[a % 4],
                topic,
                CLIENTS[a % 2],
                TagFilter(tags),
                1 + b,
                (500, 3_000, None)[b % 3],
                until_ns,
            )
        )

    def poll_lite(self, a: int, b: int) -> None:
        until_ns = self.bench.now_ns + WAITS_NS[b % 4]
        self.turn(
            Receive(
                self.token, "l", "L", CLIENTS[a % 2], TagFilter(), 1 + b, 3_000, until_ns, lite=True
            )
        )

    def pull(self, a: int, b: int) -> None:
        topic, until_ns = ("n", "m")[a % 2], self.bench.now_ns + WAITS_NS[b % 4]
        offset = max(0, self.bench.machine.end(topic, b % 2) - a % 3)
        cold = Cold(SECOND, 0) if a % 2 else None
        self.turn(Pull(self.token, topic, b % 2, offset, TagFilter(), 4, 1 << 20, until_ns, cold))

    def read(self, a: int, b: int) -> None:
        self.turn(Peek(self.token, ("n", "m")[a % 2], b % 2, 0, 3), Confirm(self.token))

    def confirm(self, a: int, b: int) -> None:
        """From now on questions of reads wait for the majority, or are answered in their turn
        again."""
        self.bench.replicator.confirms = not self.bench.replicator.confirms

    def majority(self, a: int, b: int) -> None:
        """The majority answers questions of reads."""
        replicator = self.bench.replicator
        replicator.reads = [
            (token, replicator.commit_index) for token in replicator.questions[a % 2 :]
        ]
        del replicator.questions[a % 2 :]
        self.event(b)

    def cancel(self, a: int, b: int) -> None:
        asked = [
            token for token, call in self.calls.items() if isinstance(call, Receive | Pull)
        ] or sorted(self.judged)[-3:]
        if asked:
            self.turn(CancelReceive(asked[a % len(asked)]))

    def alive(self, a: int, b: int) -> None:
        self.turn(ClientsAlive(frozenset({CLIENTS[a % 2]}), self.bench.now_ns))

    def hand_over(self, a: int, b: int) -> None:
        self.turn(
            HandOver(self.token, "n2", Cause.OPERATOR, 2 * SECOND, self.bench.now_ns + SECOND)
        )
        replicator = self.bench.replicator
        if replicator.handover is not None and b % 2:
            replicator.handover = Handover(
                "n2", Cause.OPERATOR, self.bench.now_ns + 2 * SECOND, closed=True
            )

    def given_up(self, a: int, b: int) -> None:
        self.bench.replicator.handover = None
        self.event(a)

    def deposed(self, a: int, b: int) -> None:
        """Another replica leads for some time; this one follows it, and leads again. It hears of
        both in packets."""
        replicator, log = self.bench.replicator, self.bench.log
        replicator.follow(self.term + 1, ("n2", None)[a % 2])
        self.event(a)
        log.cut(max(replicator.commit_index, log.end_index - b))
        at_once, replicator.commit_at_once = replicator.commit_at_once, False
        for number in range(a % 4):
            self.bench.now_ns += GAPS_NS[b % 3]
            replicator.last_contact = LeaderContact(
                leader="n2",
                term=self.term,
                at_ns=self.bench.now_ns,
                end_index=log.end_index,
                commit_index=replicator.commit_index,
            )
            self.commits(number)
            self.event(0)
            if number == 1:
                self.pull(1, b)
        replicator.last_contact, replicator.commit_at_once = None, at_once
        self.term += 2
        replicator.lead(self.term)
        self.event(b)

    def members(self, a: int, b: int) -> None:
        if a % 2:
            self.turn(Returned("n2", f"directory {b}"))
        else:
            self.turn(ChangeMembers(self.token, ("demote", "promote")[b % 2], "n3"))

    def shortage(self, a: int, b: int) -> None:
        self.bench.replicator.short = b % 2 * (self.bench.members.rule is Rule.IN_SYNC)
        self.event(a)

    def room(self, a: int, b: int) -> None:
        """Retention says whether clients' messages are accepted."""
        self.bench.group.writes_refused = b % 2 == 0

    def read_room(self, a: int, b: int) -> None:
        """Clients have taken answers, or have left no room for others. The turn that follows is for
        a packet."""
        budget = self.bench.settings.budget
        if isinstance(budget, Budget):
            budget.left = b * 100 * (a % 3)
            budget.version += 1
            self.event(b)

    def stall(self, a: int, b: int) -> None:
        """The consume queues are full when a packet commits entries."""
        self.bench.queues.full = True
        self.commits(a)
        self.event(b)

    def replicated(self, a: int, b: int) -> None:
        """A majority has more than what is committed, in memory or on the master's disk."""
        replicator = self.bench.replicator
        replicator.replicated = (
            None if a % 3 == 0 else max(replicator.commit_index, self.bench.log.end_index - b)
        )
        self.event(a)


STEPS = {
    "packets": 30,
    "exactly": 8,
    "poll": 14,
    "poll_lite": 4,
    "pull": 4,
    "read": 2,
    "confirm": 1,
    "majority": 3,
    "cancel": 3,
    "alive": 2,
    "hand_over": 1,
    "given_up": 2,
    "deposed": 2,
    "members": 1,
    "shortage": 1,
    "room": 1,
    "read_room": 6,
    "stall": 1,
    "replicated": 3,
}
STEP_NAMES = [*NAMES, *[name for name, weight in STEPS.items() for _ in range(weight)]]
IN_SYNC = Members(("n1", "n2", "n3"), rule=Rule.IN_SYNC)
RULES: tuple[tuple[dict[str, Any], Members], ...] = (
    ({}, Eventful.members),
    ({"policy": FlushPolicy.MEMORY}, Eventful.members),
    ({}, IN_SYNC),
    ({"ha": HaRules(ack_async=True)}, IN_SYNC),
)


def life(
    patch: pytest.MonkeyPatch, seed: int, group_type: type[Group]
) -> tuple[Told, object, object]:
    """One replica with everything that a broker group does."""
    told: Told = []
    options, members = RULES[seed % len(RULES)]
    if seed % 3 == 0:
        options = {**options, "budget": Budget(1 << 30)}
    patch.setattr(core_fakes, "Group", recorded(group_type, told))
    patch.setattr(
        core_world, "Bench", type("Ruled", (Eventful,), {"options": options, "members": members})
    )
    chance = Random(seed)
    world = Busy()
    for _ in range(250):
        getattr(world, chance.choice(STEP_NAMES))(chance.randrange(12), chance.randrange(12))
    return (
        told,
        b"".join(bytes(entries.data) for entries in world.bench.log.ranges),
        world.exported(),
    )


def cluster(
    patch: pytest.MonkeyPatch, seed: int, group_type: type[Group]
) -> tuple[Told, object, object]:
    """Three whole replicas under faults, with consumers that wait."""
    told: Told = []
    patch.setattr(core_cluster, "Group", recorded(group_type, told))
    story = Story(seed)
    story.configure()
    for _ in range(40):
        for _ in range(story.rng.randint(1, 5)):
            story.act()
        story.cluster.run(story.cluster.now_ns + story.rng.choice((5, 50, 500)) * MS)
        story.hear()
        if story.rng.random() < 0.3:
            story.fault()
    leader = story.settle()
    return told, leader.store.log.end_chain, leader.machine.export(leader.identity.log_id)


def simulated(
    patch: pytest.MonkeyPatch, seed: int, group_type: type[Group]
) -> tuple[Told, object, object]:
    """A seed of the simulator, for each rule of replication."""
    told: Told = []
    settings = (Settings(), Settings.of_ha(), Settings.of_ha(ack_async=True))[seed % 3]
    patch.setattr(sim_node, "group_type", lambda bug: recorded(group_type, told))
    result = Case.drawn(seed, 1200, settings, None).run().result
    assert result.passed, result.violation
    return told, result.digest, result.coverage


def compare(
    run: Callable[[pytest.MonkeyPatch, int, type[Group]], tuple[Told, object, object]], seed: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        # How long the ranges appended last stay in memory depends on how often the replicator is
        # asked for its output. So a push to a replica that lags may have other borders; its bytes
        # are those of the log.
        patch.setattr(HotTail, "read", lambda *_: None)
        lean = run(patch, seed, Group)
        patch.setattr(Core, "calm_until", lambda *_: None)
        whole = run(patch, seed, EveryStage)
    for one, other in zip(lean[0], whole[0], strict=False):
        assert one == other
    assert (len(lean[0]), *lean[1:]) == (len(whole[0]), *whole[1:])


@pytest.mark.one_in(5)
@pytest.mark.parametrize("seed", range(40))
def test_omitted_stages_leave_turn_outputs_equal(seed: int) -> None:
    """Leases, long polls, pulls, reads, timers, transactions, members, handovers, full disks."""
    compare(life, seed)


@pytest.mark.one_in(9)
@pytest.mark.parametrize("seed", range(9))
def test_whole_replicas_send_and_answer_the_same(seed: int) -> None:
    """Also a consensus core that is asked for everything, whether something moved or not, says the
    same."""
    compare(cluster, seed)


@pytest.mark.one_in(9)
@pytest.mark.parametrize("seed", range(9))
def test_simulated_clusters_live_the_same_history(seed: int) -> None:
    """The same, under every kind of fault."""
    compare(simulated, seed)


def test_a_packet_that_shows_too_few_replicas_in_sync_refuses_the_calls_that_wait() -> None:
    """A new master does not serve before its first record is committed; calls wait for that, and
    then cannot wait any more."""
    bench = type("Ruled", (Eventful,), {"members": IN_SYNC})()
    bench.replicator.commit_at_once = False
    bench.lead()
    bench.pass_time(2 * SECOND)
    call = bench.produce("m")
    assert bench.ask(call) is None
    bench.replicator.short = 1
    bench.event(0)
    found = bench.done[call.token]
    assert isinstance(found, Refused) and found.reason == "in-sync-short"
