"""Exhaustive search of the states of a small HA group whose nodes stop, lose their disks, and come
back whole or empty, in any order.

A state is a whole cluster of the product's cores, with the controller's own functions; a node is
taken back as the node's turns do it: its master asks for it again and again. From each state the
search tries every next step: a node stops, loses its disk, or comes back, or time passes, in which
the controller answers or does not. States with the same `key` are visited once.

Checked in every state: what `HaCluster` checks (one master an epoch, nothing confirmed is lost);
whoever the controller may elect in the directory that it has holds everything confirmed; and an
entry is confirmed only with as many copies as the group demands. From every state the law must hold
(`obeys_the_law`): as long as a member of the in-sync set is left with its disk, the group serves
again once the other nodes are back, whole or empty, without a command; and if lost disks never come
back, with the nodes that are left, by one command if those are fewer than the minimum.
"""

from __future__ import annotations

import pickle
from collections import deque
from collections.abc import Iterator

from ledgermq.proto.types import Role
from ledgermq.raft.config import HaRules, Members, RaftConfig, Rule
from ledgermq.raft.core import Core
from ledgermq.raft.effects import Effects
from ledgermq.raft.ha_control import AlterIsr, Appointment, ElectionRequest
from ledgermq.raft.leader import NEVER_NS
from ledgermq.raft.membership import Change, MemberChange
from ledgermq.raft.messages import Append
from ledgermq.raft.progress import Peer
from ledgermq.raft.transfer import Cause
from tests.raft.appointed_states import HEARTBEAT_NS, TIMING, NoChance
from tests.raft.ha.test_raft_appointed_model import Controller, HaCluster
from tests.raft.memory_cluster import Cluster, Disk, Entry, Member

SERVES_WITHIN = 60
"""In heartbeats: several elections, evictions and returns, one after the other."""

Step = tuple[str, ...]


class DiskMember(Member):
    """A replica whose directory has a name, which it compares."""

    rules = HaRules()
    disk_full_share = 0.0

    def config(self) -> RaftConfig:
        told = self.name, self.voters, self.boots
        return RaftConfig(
            *told, timing=self.timing, incarnation=self.directory, rule=Rule.IN_SYNC, ha=self.rules
        )


class LostDisks(HaCluster):
    """`size` founders with `n1` as master, and the controller. Nothing is random.

    stopped   the nodes that do not run
    losses    how many disks may still be lost
    stops     how many more times a node may stop whole
    mutes     for how many more heartbeats the controller may not answer
    ordered   the minimum that an operator ordered; 0 for none
    """

    def __init__(
        self, size: int, minimum: int, bounds: tuple[int, int, int], core_type: type[Core] = Core
    ) -> None:
        Cluster.__init__(self, 0, 0)
        self.chance = NoChance()  # type: ignore[assignment]
        self.controller = Controller()
        self.wishes: list[ElectionRequest | AlterIsr] = []
        self.loss = self.repeat = 0.0
        self.shuffle = False
        self.minimum, self.ordered = minimum, 0
        self.losses, self.stops, self.mutes = bounds
        self.stopped: set[str] = set()
        self.gone: list[tuple[int, list[Entry]]] = []
        """The disks that were lost: what was durable on them."""
        self.said: dict[int, Members] = {}
        names = tuple(f"n{k + 1}" for k in range(size))
        for name in names:
            member = DiskMember(name, names, self.chance, TIMING)
            member.core_type, member.rules, member.said = (
                core_type,
                HaRules(minimum=minimum),
                self.said,
            )
            member.directory = f"{name}/0"
            member.start(0)
            self.members[name] = member
        assert self.controller.take(
            ElectionRequest(
                node="n1",
                incarnation="",
                generation=0,
                epoch=0,
                term=0,
                voters=dict.fromkeys(names, ""),
                cause=Cause.STARTED,
                asked_by="n1",
            )
        )
        self.hear()
        self.settle()
        self.beat()

    # Steps

    def steps(self) -> Iterator[Step]:
        """All possible next steps."""
        yield ("beat",)
        if self.mutes:
            yield ("mute",)
        for name, member in self.members.items():
            if name in self.stopped:
                yield "start", name
            elif self.stops:
                yield "stop", name
            if self.losses and member.disk.written:
                yield "lose", name

    def take(self, step: Step) -> None:
        what, name = step[0], step[-1]
        if what == "beat":
            self.beat()
            self.answer()
        elif what == "mute":
            self.beat()
            self.mutes -= 1
        elif what == "stop":
            self.stopped.add(name)
            self.stops -= 1
        elif what == "lose":
            self.lose(name)
        else:
            self.start(name)
        self.settle()

    def up(self) -> list[Member]:
        return [member for member in self.members.values() if member.name not in self.stopped]

    def lose(self, name: str) -> None:
        """The node stops, and its disk is lost. It comes back with a new directory, in which it
        founds the group anew."""
        member = self.members[name]
        self.gone.append((member.disk.durable, member.disk.written[: member.disk.durable + 1]))
        number = int(member.directory.split("/")[1]) + 1
        member.disk, member.directory, member.admitted = Disk(written=[]), f"{name}/{number}", False
        self.stopped.add(name)
        self.losses -= 1

    def start(self, name: str) -> None:
        member = self.members[name]
        if not member.disk.written:
            member.disk = Disk()
        self.stopped.discard(name)
        self.network = [
            packet
            for packet in self.network
            if name not in (packet.message.sender, packet.message.to)
        ]
        member.start(self.now_ns)
        self.commits[name] = 0

    def beat(self) -> None:
        """A heartbeat period passes. Masters propose an entry if there is none under way, and
        change the members as their turns would."""
        self.now_ns += HEARTBEAT_NS
        for member in self.up():
            member.core.tick(self.now_ns)
        self.settle()
        for member in self.up():
            if member.core.accepting:
                self.change_members(member)
                if member.core.accepting and member.core.commit_index == member.core.log.end_index:
                    member.propose(1)
        self.settle()

    def change_members(self, master: Member) -> None:
        core = master.core
        if self.ordered not in (0, core.members.minimum):
            master.change(MemberChange(Change.MINIMUM, "", minimum=self.ordered), self.now_ns)
        for member in self.up():
            if member is not master and not self.counts(core, member):
                master.change(
                    MemberChange(Change.RETURN, member.name, member.directory), self.now_ns
                )
        if (due := core.due_change(self.now_ns)) is not None:
            master.change(due, self.now_ns)

    def counts(self, core: Core, member: Member) -> bool:
        """Whether this replica knows the member by the directory that it has."""
        return core.members.incarnations.get(member.name, f"{member.name}/0") == member.directory

    def answer(self) -> None:
        """The controller decides what it was asked, and every node learns of it."""
        self.hear()
        while self.wishes:
            if self.controller.take(self.wishes.pop(0)):
                self.check_electable("the set changed")
                del self.controller.log[:-1]
                self.hear()

    def hear(self) -> None:
        known = self.controller.known
        assert known is not None
        for member in self.up():
            member.core.appointed(known, self.now_ns)
            self.turn(member)

    def settle(self) -> None:
        """Deliver all messages between nodes that run, and sync their disks. A new master appends
        the first entry of its epoch."""
        for _ in range(30):
            for member in self.up():
                if member.core.accepting and member.core.log.end_term != member.core.term:
                    member.propose(1)
                self.turn(member)
            busy = bool(self.network)
            while self.network:
                self.deliver()
            for member in self.up():
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
        self.wishes = [
            wish
            for wish in still.values()
            if isinstance(wish, ElectionRequest) or wish.version == known.version
        ]

    def deliver(self) -> None:
        """A node ignores a directory that the members do not name, except what only a leader sends
        (`peer_identities.py`)."""
        packet = self.network.pop(0)
        sender, member = self.members[packet.message.sender], self.members[packet.message.to]
        if {sender.name, member.name} & self.stopped:
            return
        if isinstance(packet.message, Append) or self.counts(member.core, sender):
            member.step(packet, self.now_ns)
            self.turn(member)

    # Checks

    def watch(self, member: Member, effects: Effects) -> None:
        self.wishes += effects.requests

    def check(self, member: Member) -> None:
        core, before = member.core, self.commits.get(member.name, 0)
        super().check(member)
        if core.role is Role.LEADER and core.commit_index > before:
            index, entry = core.commit_index, member.disk.written[core.commit_index]
            disks = [(each.disk.durable, each.disk.written) for each in self.members.values()]
            copies = sum(
                1
                for durable, written in (*disks, *self.gone)
                if durable >= index and written[index] == entry
            )
            demanded = core.config.ha.minimum_of(core.configurations.at(index))
            assert copies >= demanded, (
                f"entry {index} is confirmed with {copies} copies; {self.told()}"
            )
            assert demanded in (
                self.minimum,
                self.ordered,
            ), f"the minimum became {demanded}; {self.told()}"

    def check_electable(self, when: str) -> None:
        last = max(self.committed)
        for member in self.electable():
            disk = member.disk
            assert disk.durable >= last and disk.written[last] == self.committed[last], (
                f"{when}; {member.name} may be master and lacks {last}"
            )

    def electable(self) -> list[Member]:
        """The members of the in-sync set that are left with the disk by which the controller knows
        them."""
        known = self.controller.known
        assert known is not None
        named = (
            (self.members[name], incarnation or f"{name}/0")
            for name, incarnation in known.in_sync.items()
        )
        return [member for member, incarnation in named if member.directory == incarnation]

    # The law

    def obeys_the_law(self, keep: bytes) -> None:
        """See the module's docstring. Raises AssertionError."""
        if not self.electable():
            return
        lost = [name for name, member in self.members.items() if not member.disk.written]
        self.serves(list(self.members), 0)
        if lost:
            other = copy(keep)
            left = [name for name in self.members if name not in lost]
            other.serves(left, 0 if len(left) >= other.minimum else len(left))

    def serves(self, nodes: list[str], ordered: int) -> None:
        """All of these nodes run from now on; the group must confirm new entries, without a command
        or by this one."""
        for name in nodes:
            if name in self.stopped:
                self.start(name)
        self.settle()
        begin, tried = max(self.committed), ordered
        for at in range(SERVES_WITHIN):
            self.beat()
            self.answer()
            self.settle()
            if at == SERVES_WITHIN // 3:
                # Without the command nothing is confirmed until then.
                assert not tried or max(self.committed) <= begin + 2, (
                    f"a minimum was not needed; {self.told()}"
                )
                self.ordered = tried
            known = self.controller.known
            assert known is not None
            if max(self.committed) > begin + 2 and (
                set(known.in_sync) == set(nodes) or len(nodes) < len(self.members)
            ):
                master = self.members[known.master]
                if master.core.accepting and not master.core.missing_isr(self.now_ns):
                    return
        raise AssertionError(
            f"{' '.join(nodes)} do not serve, minimum {tried or self.minimum}:"
            f" {self.controller.known} {self.told()}"
        )

    def told(self) -> str:
        return "; ".join(
            f"{member.core!r} {member.directory} {member.core.members}" for member in self.up()
        )

    # State identity

    def key(self) -> object:
        """The knowledge and progress of all nodes, without absolute indexes, terms and times."""
        known = self.controller.known
        assert known is not None
        cores = [member.core for member in self.up()]
        places = {core.commit_index for core in cores} | {
            peer.durable for core in cores for peer in core.peers.values()
        }
        places |= {len(member.disk.written) - 1 for member in self.members.values()} | {
            max(self.committed)
        }
        places |= {index for core in cores for index, _ in core.configurations.runs}
        places |= {index for member in self.members.values() for index in self._uncommitted(member)}
        place = {index: at for at, index in enumerate(sorted(places))}
        terms = {core.term for core in cores} | {
            member.disk.hard_state.term for member in self.members.values()
        }
        terms |= {wish.term for wish in self.wishes if isinstance(wish, ElectionRequest)} | {
            known.epoch,
            0,
        }
        terms |= {
            member.disk.written[-1][0] for member in self.members.values() if member.disk.written
        }
        terms |= {
            member.disk.written[index][0]
            for member in self.members.values()
            for index in self._uncommitted(member)
        }
        term = {number: at for at, number in enumerate(sorted(terms))}
        asked = frozenset(
            (
                (wish.node, term[wish.term], wish.incarnation)
                if isinstance(wish, ElectionRequest)
                else tuple(sorted(wish.in_sync.items()))
            )
            for wish in self.wishes
        )
        agreed = term[known.epoch], known.master, tuple(sorted(known.in_sync.items()))
        left = (
            self.losses,
            self.stops,
            self.mutes,
            frozenset(self.stopped),
            place[max(self.committed)],
        )
        return (
            agreed,
            asked,
            left,
            tuple(self._of_member(member, place, term) for member in self.members.values()),
        )

    def _uncommitted(self, member: Member) -> list[int]:
        return [
            index
            for index, entry in enumerate(member.disk.written)
            if self.committed.get(index) != entry
        ]

    def _of_member(self, member: Member, place: dict[int, int], term: dict[int, int]) -> object:
        disk = member.disk
        loose = tuple(
            (place[index], term[disk.written[index][0]]) for index in self._uncommitted(member)
        )
        stored = (
            member.directory,
            place[len(disk.written) - 1],
            loose,
            term[disk.hard_state.term],
            disk.hard_state.vote,
        )
        return (
            stored if member.name in self.stopped else (stored, self._of(member.core, place, term))
        )

    def _of(self, core: Core, place: dict[int, int], term: dict[int, int]) -> object:
        """The state of one core; of its timers only those that its role uses."""
        standing = (
            core.role,
            core.leader,
            term[core.term],
            place[core.commit_index],
            self._told(core.appointment),
        )
        runs = tuple(
            (place[index], members)
            for index, members in core.configurations.runs
            if index > core.commit_index
        )
        members = repr(core.members), repr(runs)
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
                timers,
                self._age(core.timer.last_contact_ns, TIMING.election_min_ns),
            )
        assert core.election.leading is not None
        review = core.election.leading.review
        ages = (
            self._age(core.isr.agreed_ns, TIMING.alone_ns),
            self._age(core.timer.last_contact_ns, TIMING.election_min_ns),
        )
        evicting = tuple(
            (node, self._beats(each.until_ns)) for node, each in sorted(review.evicting.items())
        )
        peers = tuple(self._peer(peer, place) for _, peer in sorted(core.peers.items()))
        return (
            standing,
            members,
            self._beats(review.due_ns),
            ages,
            tuple(sorted(core.isr.joining)),
            evicting,
            peers,
            review.silent_master,
        )

    def _told(self, heard: Appointment | None) -> object:
        return (
            None
            if heard is None
            else (
                heard == self.controller.known,
                heard.master,
                tuple(sorted(heard.in_sync.items())),
            )
        )

    def _peer(self, peer: Peer, place: dict[int, int]) -> object:
        known = (
            peer.stage,
            place[peer.durable],
            peer.boot_id is None,
            peer.provisional,
            peer.suspect,
            peer.durable >= peer.named_at,
        )
        return peer.node, known, self._age(peer.contact_ns, TIMING.alone_ns)

    def _age(self, at_ns: int, most_ns: int) -> int:
        """The age in heartbeats, capped at `most_ns`."""
        return min(self.now_ns - at_ns, most_ns) // HEARTBEAT_NS

    def _beats(self, at_ns: int) -> int:
        """Heartbeats until this time; 0 if it has passed."""
        return max(-1, min((at_ns - self.now_ns) // HEARTBEAT_NS, 99))


def copy(kept: bytes) -> LostDisks:
    state: LostDisks = pickle.loads(kept)  # noqa: S301  it was written by this search
    return state


class Search:
    """A breadth-first search; `found` records how each state was reached."""

    def __init__(self, begin: LostDisks) -> None:
        self.found: dict[object, tuple[object, Step] | None] = {begin.key(): None}
        self._next = deque([(begin.key(), pickle.dumps(begin))])

    def run(self, most: int) -> int:
        """Visit at most `most` states. Returns the number of states found."""
        visited = 0
        while self._next and visited < most:
            key, kept = self._next.popleft()
            visited += 1
            state = copy(kept)
            try:
                state.obeys_the_law(kept)
                for step in list(copy(kept).steps()):
                    after = copy(kept)
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

    def way(self, key: object) -> list[Step]:
        """The steps that lead to a state."""
        steps: list[Step] = []
        while (came := self.found[key]) is not None:
            key, step = came
            steps.append(step)
        return steps[::-1]
