"""Exhaustive search of the states of a small HA group whose members change, with the product's core
and the controller's own functions.

A state is a whole cluster of cores. From each state the search tries every possible next step: the
operator repeats a command, the controller grants one of the outstanding requests, a node learns the
agreed appointment, a node is partitioned or reconnected, or time passes. Entries and their answers
are delivered at once; only a partitioned node, the controller and the operator may be slow. States
with the same `key` are visited once, so the search terminates.

From every state in which an operator command is pending, `ends` heals the cluster and repeats the
command as the CLI does: the change must be made, or refused permanently, within `ENDS_WITHIN`
heartbeats. From every state in which a node is partitioned, `goes_on` requires that the other nodes
confirm new entries without it. The checks of `HaCluster` hold in every state, and no request leaves
fewer in-sync members than the minimum.
"""

from __future__ import annotations

import pickle
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum

from ledgermq.proto.types import Role
from ledgermq.raft.config import MS, HaRules, Members, RaftConfig, Timing
from ledgermq.raft.core import Core
from ledgermq.raft.effects import Effects
from ledgermq.raft.ha_control import AlterIsr, ElectionRequest
from ledgermq.raft.leader import NEVER_NS
from ledgermq.raft.membership import Change, MemberChange, NotYet
from ledgermq.raft.progress import Peer
from ledgermq.raft.transfer import Cause
from tests.raft.ha.test_raft_appointed_model import Controller, HaCluster, HaMember
from tests.raft.memory_cluster import Cluster, Disk, Member

HEARTBEAT_NS = 100 * MS
TIMING = Timing(
    heartbeat_ns=HEARTBEAT_NS,
    election_min_ns=2 * HEARTBEAT_NS,
    election_max_ns=2 * HEARTBEAT_NS,
    stall_ns=3 * HEARTBEAT_NS,
)
"""The shortest timeouts that a core accepts: shorter timeouts, in heartbeats, mean fewer states."""
FOUNDERS = ("n1", "n2", "n3")
SPARE = "n4"
ENDS_WITHIN = 80
"""In heartbeats. Long enough for several elections, and several times longer than a change keeps a
node out of the in-sync set."""


def evicting(core: Core) -> list[str]:
    leading = core.election.leading
    return [] if leading is None else sorted(leading.review.evicting)


class NoChance:
    """A random source that always returns the same value."""

    def uniform(self, a: float, b: float) -> float:
        return a

    def random(self) -> float:
        return 1.0

    def getrandbits(self, bits: int) -> int:
        return 0


@dataclass(frozen=True)
class Goal:
    """A change that an operator requests: remove `gone`; with `to`, first add a replica on `to`, as
    `ledgermq move-replica` does."""

    gone: str
    to: str | None = None


class Answer(Enum):
    """The answer to an operator."""

    DONE = "done"
    REFUSED = "refused"
    WAITS = "waits"


class StatesMember(HaMember):
    """A replica. A joining replica begins with an empty log and knows no other members."""

    disk_full_share = 0.0

    def config(self) -> RaftConfig:
        if self.voters:
            return super().config()
        return RaftConfig(self.name, (), self.boots, timing=self.timing, ha=self.rules)


class States(HaCluster):
    """Three founders with `n1` as master, a spare node, the controller, and an operator. Nothing is
    random."""

    member_type = StatesMember

    def __init__(self, minimum: int, cuts: int = 0, core_type: type[Core] = Core) -> None:
        Cluster.__init__(self, 0, 0)
        self.chance = NoChance()  # type: ignore[assignment]
        self.controller = Controller()
        self.wishes: list[ElectionRequest | AlterIsr] = []
        self.loss = self.repeat = 0.0
        self.shuffle = False
        self.alone: str | None = None
        """The node that is partitioned from the others."""
        self.cuts_left = cuts
        """How many more partitions are allowed."""
        self.wanted: tuple[Goal, ...] = ()
        """Pending operator changes."""
        self.minimum = minimum
        self.said: dict[int, Members] = {}
        for name in (*FOUNDERS, SPARE):
            voters = FOUNDERS if name in FOUNDERS else ()
            member = StatesMember(name, voters, self.chance, TIMING)
            member.core_type, member.rules, member.said = (
                core_type,
                HaRules(minimum=minimum),
                self.said,
            )
            member.start(0)
            self.members[name] = member
        self.wipe(SPARE)
        first = ElectionRequest(
            node="n1",
            incarnation="",
            generation=0,
            epoch=0,
            term=0,
            voters=dict.fromkeys(FOUNDERS, ""),
            cause=Cause.STARTED,
            asked_by="n1",
        )
        assert self.controller.take(first)
        for name in FOUNDERS:
            self.hear(name)
        self.settle()

    # Steps

    def steps(self, goals: Iterable[Goal]) -> Iterator[tuple[str, ...]]:
        """All possible next steps."""
        yield from (("ask", str(at)) for at in range(len(self.wanted)))
        yield from (
            ("want", goal.gone or "", goal.to or "") for goal in goals if self.makes_sense(goal)
        )
        yield from (("grant", str(at)) for at in range(len(self.wishes)))
        known = self.controller.known
        assert known is not None
        elects = self.cuts_left or self.alone
        slow = [
            name
            for name in self.members
            if elects or self.members[name].core.role is Role.LEADER or name == known.master
        ]
        yield from (
            ("hear", name)
            for name in slow
            if self._listens(name) and self.members[name].core.appointment != known
        )
        yield ("beat",)
        if self.alone is not None:
            yield ("mend",)
        elif self.cuts_left:
            yield from (("cut", name) for name in self.members if self._listens(name))

    def _listens(self, name: str) -> bool:
        """Only members act on an appointment."""
        return name in self.members[name].core.members.nodes

    def take(self, step: tuple[str, ...]) -> None:
        what, *given = step
        if what == "ask":
            self.ask(self.wanted[int(given[0])])
        elif what == "want":
            self.want(Goal(given[0] or None, given[1] or None))
        elif what == "grant":
            self.grant(int(given[0]))
        elif what == "hear":
            self.hear(given[0])
        elif what == "beat":
            self.beat()
        elif what == "cut":
            self.cut_off(given[0])
        else:
            self.mend()
        self.settle()

    def makes_sense(self, goal: Goal) -> bool:
        """`gone` is a member in every log, `to` in none, and no pending change names them."""
        if {goal.gone, goal.to} & {
            node for other in self.wanted for node in (other.gone, other.to)
        } - {None}:
            return False
        everywhere = [
            set(member.core.members.nodes)
            for member in self.members.values()
            if member.core.members.voters
        ]
        of_group = [nodes for nodes in everywhere if goal.to not in nodes]
        return len(of_group) == len(everywhere) and (
            goal.gone is None or all(goal.gone in nodes for nodes in everywhere)
        )

    def want(self, goal: Goal) -> None:
        self.wanted = (*self.wanted, goal)
        if goal.to is not None:
            self.wipe(goal.to)

    def wipe(self, name: str) -> None:
        """Restart the node with an empty directory; it does not found a group."""
        member = self.members[name]
        member.disk, member.voters = Disk(written=[], durable=-1), ()
        member.start(self.now_ns)
        self.commits[name] = -1

    def master(self, but: str | None = None) -> Member | None:
        led = (each for each in self.members.values() if each.core.accepting and each.name != but)
        return max(led, key=lambda each: each.core.term, default=None)

    def ask(self, goal: Goal) -> Answer:
        """Send the next step of a change to the leader. A change that is done or refused is no
        longer pending."""
        answer = self._answer(goal)
        if answer is not Answer.WAITS:
            self.wanted = tuple(other for other in self.wanted if other != goal)
        return answer

    def _answer(self, goal: Goal) -> Answer:
        master = self.master()
        if master is None:
            return Answer.WAITS
        core = master.core
        shown = core.configurations.at(core.commit_index)
        if goal.to is not None and goal.to not in shown.voters:
            kind = Change.PROMOTE if goal.to in shown.nodes else Change.ADD
            master.change(MemberChange(kind, goal.to), self.now_ns)
            return Answer.WAITS
        if goal.gone is None or goal.gone not in shown.nodes:
            return Answer.DONE
        if goal.gone == master.name and goal.to is not None:
            core.transfer(goal.to, Cause.OPERATOR, self.now_ns, 4 * HEARTBEAT_NS)
            return Answer.WAITS
        left = set(core.members.voters) - {goal.gone}
        enough = (
            len({node for node in left if self.is_heard(master, node)}) >= core.config.ha.minimum
        )
        refusal = master.change(MemberChange(Change.REMOVE, goal.gone), self.now_ns)
        assert enough or refusal is not None, (
            f"{goal.gone} was removed although too few members of {left} remain; {self.told()}"
        )
        waits = refusal is None or goal.to is not None or isinstance(refusal, NotYet)
        return Answer.WAITS if waits else Answer.REFUSED

    def is_heard(self, master: Member, node: str) -> bool:
        return (
            node == master.name
            or self.now_ns - master.core.peers[node].contact_ns < TIMING.election_max_ns
        )

    def grant(self, at: int) -> None:
        if self.controller.take(self.wishes.pop(at)):
            self.check_electable("the set changed")
            del self.controller.log[:-1]

    def hear(self, name: str) -> None:
        assert self.controller.known is not None
        self.members[name].core.appointed(self.controller.known, self.now_ns)

    def beat(self) -> None:
        """A heartbeat period passes."""
        self.now_ns += HEARTBEAT_NS
        for member in self.members.values():
            member.core.tick(self.now_ns)

    def cut_off(self, name: str) -> None:
        self.alone, self.cuts_left = name, self.cuts_left - 1
        self.cut = {
            pair
            for other in self.members
            if other != name
            for pair in ((name, other), (other, name))
        }

    def mend(self) -> None:
        self.alone = None
        self.cut = set()

    def watch(self, member: Member, effects: Effects) -> None:
        for wish in effects.requests:
            agreed = member.core.agreed
            if isinstance(wish, AlterIsr) and agreed is not None:
                # A copy that has everything and becomes a voter counts for what remains, so that a
                # member that is gone cannot keep it out.
                joining = [
                    other
                    for other in member.core.members.nodes
                    if other not in agreed.in_sync
                    and self.members[other].core.durable_index >= member.core.commit_index
                ]
                least = min(self.minimum - len(joining), len(agreed.in_sync))
                assert len(wish.in_sync) >= least, (
                    f"{wish} leaves too few in-sync members; {self.told()}"
                )
            self.wishes.append(wish)

    def settle(self) -> None:
        """Deliver all messages on working links and sync all disks. A new master appends the first
        entry of its epoch."""
        for _ in range(20):
            for member in self.members.values():
                if member.core.accepting and member.core.log.end_term != member.core.term:
                    member.propose(1)
                self.turn(member)
            busy = bool(self.network)
            while self.network:
                self.deliver()
            for member in self.members.values():
                busy |= member.disk.durable < len(member.disk.written) - 1
                member.begin_sync()
                member.end_sync()
            if not busy:
                break
        else:
            raise AssertionError("the cluster does not become quiescent")
        known = self.controller.known
        assert known is not None
        still = {repr(wish): wish for wish in self.wishes if wish.epoch == known.epoch}
        # The other refusals are permanent.
        self.wishes = [
            wish
            for wish in still.values()
            if isinstance(wish, ElectionRequest) or wish.version == known.version
        ]

    # Termination

    def ends(self, every: int) -> Iterator[None]:
        """Heal the cluster and repeat the operator's commands once per `every` heartbeats; yields
        after each. Raises AssertionError if a change does not end."""
        self.mend()
        self.settle()
        for at in range(ENDS_WITHIN):
            self.take(("beat",))
            self.answer_all()
            if at % every == 0:
                for goal in self.wanted:
                    self.ask(goal)
                    self.settle()
                if not self.wanted:
                    return
                yield
        raise AssertionError(f"{self.wanted} does not end: {self.controller.known} {self.told()}")

    def answer_all(self, but: str | None = None) -> None:
        """The controller grants the requests that it can, and the nodes learn the result. The node
        `but` is partitioned from the controller."""
        self.wishes = [
            wish
            for wish in self.wishes
            if (wish.node if isinstance(wish, AlterIsr) else wish.asked_by) != but
        ]
        for name in self.members:
            if name != but:
                self.take(("hear", name))
        while self.wishes:
            self.take(("grant", "0"))
            for name in self.members:
                if name != but:
                    self.take(("hear", name))
            self.wishes = [
                wish
                for wish in self.wishes
                if (wish.node if isinstance(wish, AlterIsr) else wish.asked_by) != but
            ]

    def told(self) -> str:
        cores = [member.core for member in self.members.values()]
        return "; ".join(
            f"{core!r} {core.members.voters} evicting {evicting(core)} joining {core.isr.joining}"
            for core in cores
        )

    def goes_on(self) -> None:
        """The partitioned node never returns, and no operator acts. If enough voters remain, they
        must confirm a new entry; otherwise raises AssertionError. If only the partitioned node is
        in sync, an operator has to decide, and nothing is checked."""
        assert self.controller.known is not None
        if set(self.controller.known.in_sync) == {self.alone}:
            return
        target = term = -1
        for _ in range(ENDS_WITHIN):
            self.take(("beat",))
            self.answer_all(but=self.alone)
            master = self.master(self.alone)
            if master is None:
                continue
            if len(set(master.core.members.voters) - {self.alone}) < master.core.config.ha.minimum:
                return
            if master.core.term != term:
                master.propose(1)
                target, term = master.core.log.end_index, master.core.term
                self.settle()
            if master.core.commit_index >= target and not master.core.missing_isr(self.now_ns):
                return
        raise AssertionError(
            f"without {self.alone} no entry is confirmed: {self.controller.known} {self.told()}"
        )

    # State identity

    def key(self) -> object:
        """The knowledge and progress of all nodes, without absolute indexes, terms and times."""
        cores = [member.core for member in self.members.values()]
        known = self.controller.known
        assert known is not None
        places = {core.log.end_index for core in cores} | {core.commit_index for core in cores}
        places |= {core.configurations.latest_index for core in cores} | {
            peer.durable for core in cores for peer in core.peers.values()
        }
        place = {index: at for at, index in enumerate(sorted(places))}
        terms = (
            {core.term for core in cores}
            | {core.log.end_term for core in cores}
            | {known.epoch, *self.terms_asked()}
        )
        term = {number: at for at, number in enumerate(sorted(terms))}
        asks = (
            (w.node, term[w.term]) if isinstance(w, ElectionRequest) else tuple(sorted(w.in_sync))
            for w in self.wishes
        )
        agreed = term[known.epoch], known.master, tuple(sorted(known.in_sync))
        return (
            agreed,
            frozenset(asks),
            self.wanted,
            self.alone,
            self.cuts_left,
            tuple(self._of(core, place, term) for core in cores),
        )

    def terms_asked(self) -> set[int]:
        return {wish.term for wish in self.wishes if isinstance(wish, ElectionRequest)}

    def _of(self, core: Core, place: dict[int, int], term: dict[int, int]) -> object:
        """The state of one core; of its timers only those that its current role uses."""
        standing = (
            core.role,
            core.leader,
            term[core.term],
            term[core.log.end_term],
            place[core.log.end_index],
            place[core.commit_index],
        )
        members = (
            core.members.voters,
            tuple(sorted(core.members.learners)),
            place[core.configurations.latest_index],
        )
        if core.config.node not in core.members.nodes:
            return standing, members
        heard = core.appointment
        told = (
            None
            if heard is None
            else (heard == self.controller.known, heard.master, tuple(sorted(heard.in_sync)))
        )
        if core.role is not Role.LEADER:
            canvass_ns = (
                NEVER_NS
                if core.election.candidate is None
                else core.election.candidate.canvass_until_ns
            )
            timers = (
                (self._beats(core.timer.due_ns), self._beats(canvass_ns))
                if core.membership.may_campaign()
                else ()
            )
            return (
                standing,
                members,
                told,
                timers,
                self._age(core.timer.last_contact_ns, TIMING.election_min_ns),
            )
        assert core.election.leading is not None
        review = core.election.leading.review
        heard_ns = max((peer.contact_ns for peer in core.peers.values()), default=self.now_ns)
        ages = (
            self._age(heard_ns, TIMING.alone_ns),
            self._age(core.timer.last_contact_ns, TIMING.election_min_ns),
        )
        agreed = self._age(core.isr.agreed_ns, max(self.now_ns - heard_ns, TIMING.election_max_ns))
        timers = self._beats(review.due_ns), agreed, *ages
        evicting = tuple(
            (node, self._beats(eviction.until_ns))
            for node, eviction in sorted(review.evicting.items())
        )
        handover = core.handover and (
            core.handover.to,
            core.handover.closed,
            core.handover.notified,
            self._beats(core.handover.until_ns),
        )
        peers = tuple(self._peer(peer, place) for _, peer in sorted(core.peers.items()))
        return (
            standing,
            members,
            told,
            timers,
            tuple(sorted(core.isr.joining)),
            evicting,
            handover,
            peers,
            review.silent_master,
        )

    def _peer(self, peer: Peer, place: dict[int, int]) -> object:
        known = (
            peer.stage,
            place[peer.durable],
            peer.boot_id is None,
            peer.provisional,
            peer.suspect,
            peer.removed_by is None,
        )
        return (
            peer.node,
            known,
            self._age(peer.contact_ns, TIMING.election_max_ns),
            self._beats(peer.forget_at_ns),
        )

    def _age(self, at_ns: int, most_ns: int) -> int:
        """The age in heartbeats, capped at `most_ns`."""
        return min(self.now_ns - at_ns, most_ns) // HEARTBEAT_NS

    def _beats(self, at_ns: int) -> int:
        """Heartbeats until this time; 0 if it has passed."""
        return max(-1, min((at_ns - self.now_ns) // HEARTBEAT_NS, 99))


def _copy(kept: bytes) -> States:
    state: States = pickle.loads(kept)  # noqa: S301  it was written by this search
    return state


class Search:
    """A breadth-first search from the initial state; `found` records how each state was reached."""

    def __init__(self, begin: States, goals: Iterable[Goal], every: tuple[int, ...]) -> None:
        self.goals, self.every = tuple(goals), every
        self.found: dict[object, tuple[object, tuple[str, ...]] | None] = {begin.key(): None}
        self._next = deque([(begin.key(), pickle.dumps(begin))])
        self._ending: dict[int, set[object]] = {period: set() for period in every}
        """States from which the change is known to end."""
        self.steps = 0

    def run(self, most: int) -> int:
        """Visit at most `most` states. Returns the number of states found."""
        while self._next and len(self.found) < most:
            key, kept = self._next.popleft()
            state = _copy(kept)
            try:
                if state.wanted:
                    for period in self.every:
                        self._let_end(period, kept)
                if state.alone is not None:
                    _copy(kept).goes_on()
                for step in list(state.steps(self.goals)):
                    after = _copy(kept)
                    self.steps += 1
                    after.take(step)
                    reached = after.key()
                    if reached not in self.found:
                        self.found[reached] = (key, step)
                        self._next.append((reached, pickle.dumps(after)))
            except AssertionError as error:
                raise AssertionError(
                    f"after {' '.join('-'.join(step) for step in self.way(key))}: {error}"
                ) from error
        return len(self.found)

    @property
    def finished(self) -> bool:
        """Whether every state found was visited."""
        return not self._next

    def way(self, key: object) -> list[tuple[str, ...]]:
        """The steps that lead to a state."""
        steps: list[tuple[str, ...]] = []
        while (came := self.found[key]) is not None:
            key, step = came
            steps.append(step)
        return steps[::-1]

    def _let_end(self, period: int, kept: bytes) -> None:
        ending, passed = self._ending[period], []
        state = _copy(kept)
        for _ in state.ends(period):
            key = state.key()
            if key in ending:
                break
            passed.append(key)
        ending.update(passed)
