"""The three rules of a group as policies: who may be elected, which copies must hold an entry, how
long a leader may go without contact.

A policy belongs to one configuration (`members`) and is replaced with it. It answers questions and
changes nothing. If the rules differ in something, the other modules ask the policy; no other module
asks for the rule. `peers` is what a leader knows of the others.

  Majority  votes of a majority elect; an entry is committed once a majority has it on stable storage (Raft)
  All       the same with all voters: the rule between the two others, with either of which it shares a voter in any two quorums
  InSync    the controller elects a member of the in-sync set; an entry is committed once the whole set has it (HA groups)
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from operator import attrgetter
from typing import ClassVar

from ledgermq.raft.config import Members, RaftConfig, Rule
from ledgermq.raft.election_timer import ElectionTimer
from ledgermq.raft.ha_control import Appointment
from ledgermq.raft.isr import Isr, known_by
from ledgermq.raft.log_state import LogState
from ledgermq.raft.messages import NO_INDEX
from ledgermq.raft.progress import Peer
from ledgermq.raft.quorum import Ballot, ballot, majority, reached_by_majority

Peers = Mapping[str, Peer]

_contact_ns: Callable[[Peer], int] = attrgetter("contact_ns")
_received: Callable[[Peer], int] = attrgetter("received")


def is_there(peer: Peer | None, now_ns: int, silence_ns: int) -> bool:
    """Leader only: whether a peer whose copy counts was heard within `silence_ns`."""
    return (
        peer is not None
        and peer.boot_id is not None
        and not peer.provisional
        and now_ns - peer.contact_ns < silence_ns
    )


class Policy(ABC):
    """What the rules that elect by votes have in common."""

    controller_elects: ClassVar[bool] = False
    """Whether the controller appoints the leader. A campaign then only asks for objections, and a
    term is promised to one leader."""
    vote_follows_leader: ClassVar[bool] = True
    """Whether a replica that has not voted in a term stores the leader it follows durably, like a
    vote."""
    early_acks: bool = True
    """Whether an acknowledgement may rest on the memory of several processes."""
    pulls: bool = False
    """Whether followers ask for every range."""

    def __init__(
        self, members: Members, config: RaftConfig, log: LogState, isr: Isr, timer: ElectionTimer
    ) -> None:
        self.members = members
        self._config = config
        self._log = log
        self._isr = isr
        self._timer = timer

    # Elections

    @property
    def agreed(self) -> Appointment | None:
        """What the controller agreed on for this configuration; None under the rules that elect by
        votes."""
        return None

    def electors(self) -> Collection[str]:
        """The nodes that may be elected; a candidate asks the same nodes."""
        return self.members.voters

    def may_campaign(self) -> bool:
        """Whether this replica could be elected, as far as it knows."""
        return True

    @abstractmethod
    def ballot(self, votes: Mapping[str, bool]) -> Ballot:
        """The state of an election."""

    def objection_to(self, node: str) -> str | None:
        """Why this voter could not become the leader; None if it could."""
        return None

    # Quorums

    def required(self) -> Collection[str]:
        """The nodes whose copies are counted."""
        return self.members.voters

    @staticmethod
    @abstractmethod
    def quorum(values: Sequence[int]) -> int:
        """The greatest value that a quorum has reached, one value per required node."""

    def reached(self, own: int, peers: Peers, value: Callable[[Peer], int]) -> int:
        """The value that a quorum has reached. A leader that is no voter does not count itself, and
        a provisional copy never counts."""
        me, values = self._config.node, []
        for node in self.required():
            if node == me:
                values.append(own)
            else:
                peer = peers.get(node)
                values.append(NO_INDEX if peer is None or peer.provisional else value(peer))
        return self.quorum(values)

    def may_commit(self, index: int, peers: Peers, members_at: Callable[[int], Members]) -> bool:
        """Whether enough copies, by the members in force at this entry, hold an entry that the
        quorum has."""
        return True

    def early_claim(self, peers: Peers) -> int:
        """The last entry that this leader and enough peers hold for it to survive the failure of
        any one of them; memory is enough."""
        # Sends of class `memory` are answered by this index. The rule is that of commit, over
        # received instead of durable indexes, and with the leader's end instead of its durable
        # index. Every two quorums share a replica, so whoever is elected next either has the entry
        # or was elected by a replica that has it and would have refused a shorter log: while the
        # processes of a quorum live, the entry is in the log of every later leader. That is all it
        # promises. Crashes of a minority cannot lose the entry; a power cut of a quorum before the
        # next sync can, and its queue offset may then name another message. So the index only
        # answers calls whose answer states the class, and nothing else may depend on it: delivery,
        # digests and audit follow the commit index (I3, I5 and I6 do not cover what is above it).
        #
        # Three details make the promise true. Only entries of the leader's own term count, as for
        # commit (§5.4.2; `Leader.advance_held`): an older entry that a quorum holds can still be
        # replaced by a leader that never saw it. The peers' indexes are of what they wrote and
        # verified against this leader (`follower.py`), not of what was sent to them. Provisional
        # copies do not count (`reached`), because a directory that is lost and comes back empty
        # would vote as if it had never held the entry. To count the leader's copy alone is the
        # planted bug `early-ack-alone`.
        return self.reached(self._log.view.end_index, peers, _received)

    # Contact

    def quorum_contact_ns(self, now_ns: int, peers: Peers) -> int:
        """The latest time such that a quorum, including this replica, was heard then or later."""
        return self.reached(now_ns, peers, _contact_ns)

    def silence_ns(self, now_ns: int, peers: Peers) -> int:
        """Leader only: how long it lacked the contact it needs to continue, if that is too long;
        otherwise 0."""
        silent_ns = now_ns - self.quorum_contact_ns(now_ns, peers)
        return (
            silent_ns
            if silent_ns >= self._config.timing.election_max_ns + self._timer.slack_ns(now_ns)
            else 0
        )

    def contact_limit_ns(self, now_ns: int, peers: Peers, review_due_ns: int) -> int:
        """Leader only: when contact must be checked again."""
        return self._timer.lasts_until_ns(
            self.quorum_contact_ns(now_ns, peers) + self._config.timing.election_max_ns
        )

    @property
    def pause_after_silence_ns(self) -> int:
        """How much longer than its timeout a leader that stepped down for lack of contact waits
        before it campaigns."""
        return 0

    def missing_isr(self, now_ns: int, peers: Peers) -> int:
        """Leader only: how many more members of the in-sync set must be heard before anything can
        be committed."""
        return 0

    # Changes of members

    def objection_to_rule_change(self) -> str | None:
        """Why the group could not change its rule although every voter keeps up; None if it
        could."""
        return None

    def would_stall(
        self, voters: Sequence[str], there: Sequence[str], *, leaves: bool
    ) -> str | None:
        """Why these new voters, of which `there` are reachable, could not even commit the change
        that makes them. `leaves`: the change removes a voter."""
        needed = majority(len(voters))
        return (
            None
            if len(there) >= needed
            else _stalls(f"this would lose the quorum: {needed}", voters, there)
        )


def _stalls(lost: str, voters: Sequence[str], there: Sequence[str]) -> str:
    silent = ", ".join(voter for voter in voters if voter not in there)
    heard = f"{silent} cannot be heard" if silent else "there are no others"
    return (
        f"{lost} of the voters {', '.join(voters)} are needed, and {heard}; nothing could be"
        " committed any more, not even this change"
    )


class Majority(Policy):
    """Raft."""

    vote_follows_leader = False

    def ballot(self, votes: Mapping[str, bool]) -> Ballot:
        return ballot(self.members.voters, votes)

    quorum = staticmethod(reached_by_majority)


class All(Policy):
    """Every voter, for elections and for commits."""

    def ballot(self, votes: Mapping[str, bool]) -> Ballot:
        return ballot(self.members.voters, votes, unanimous=True)

    @staticmethod
    def quorum(values: Sequence[int]) -> int:
        return min(values)


class InSync(Policy):
    """HA groups. `peers` are the slaves of a master."""

    controller_elects = True

    def __init__(
        self, members: Members, config: RaftConfig, log: LogState, isr: Isr, timer: ElectionTimer
    ) -> None:
        super().__init__(members, config, log, isr, timer)
        self.early_acks = not config.ha.ack_async
        self.pulls = config.ha.pull

    # Elections

    @property
    def agreed(self) -> Appointment | None:
        return self._isr.agreed(self.members)

    def electors(self) -> Collection[str]:
        return self._isr.in_sync(self.members)

    def may_campaign(self) -> bool:
        agreed, node = self.agreed, self._config.node
        return agreed is None or agreed.in_sync.get(node) == known_by(self.members, node)

    def ballot(self, votes: Mapping[str, bool]) -> Ballot:
        """Every member of the in-sync set that answers must agree; PENDING while some are
        silent."""
        answers = [votes.get(node) for node in self.electors()]
        if False in answers:
            return Ballot.LOST
        return Ballot.PENDING if None in answers else Ballot.WON

    def objection_to(self, node: str) -> str | None:
        in_sync = self.electors()
        return (
            None
            if node in in_sync
            else f"{node} is not in sync; the in-sync set is {', '.join(sorted(in_sync))}"
        )

    # Quorums

    def required(self) -> Collection[str]:
        """Every node that may be elected, and those that the master asked to add to the set,
        because they may be in it by now."""
        joining = self._isr.joining
        return {*self.electors(), *joining} if joining else self.electors()

    @staticmethod
    def quorum(values: Sequence[int]) -> int:
        return min(values)

    @property
    def _minimum(self) -> int:
        return self._config.ha.minimum_of(self.members)

    def may_commit(self, index: int, peers: Peers, members_at: Callable[[int], Members]) -> bool:
        """If the in-sync set is smaller than the minimum, copies outside it count too: a node can
        become a voter again only once an entry of this epoch is committed. The minimum is that of
        the entry: a lower one counts from the entry that made it."""
        in_sync, members = self.electors(), self.members
        missing = self._config.ha.minimum_of(members_at(index)) - len(in_sync)
        if missing <= 0:
            return True
        nodes = [
            node
            for node in members.nodes
            if node not in in_sync and node not in members.observers and node in peers
        ]
        # A returned directory says that it does not count until its record is committed; it counts
        # here, or the record never would be.
        others = [
            peers[node]
            for node in nodes
            if node in members.returning or not peers[node].provisional
        ]
        return sum(1 for peer in others if peer.durable >= max(index, peer.named_at)) >= missing

    def early_claim(self, peers: Peers) -> int:
        """A master that acknowledges alone relies only on its own stable storage."""
        # No other copy stands behind this answer (class `master`), so memory is not enough. The
        # in-sync set is not asked: a master that is replaced before a slave has the entry loses it.
        return self._log.leader_claim() if self._config.ha.ack_async else super().early_claim(peers)

    # Contact

    def hears_nobody(self, now_ns: int, peers: Peers) -> bool:
        """Whether the in-sync set has members besides the master, and it heard none of them for the
        longest election timeout."""
        others = self._others()
        return (
            bool(others)
            and now_ns - self._latest_contact_ns(others, peers)
            >= self._config.timing.election_max_ns
        )

    def silence_ns(self, now_ns: int, peers: Peers) -> int:
        """A master with others in its set needs contact with one of them, or with the controller,
        which may take longer because it may have to elect a leader of its own: a node that the
        master does not hear may hear the master, and then does not campaign."""
        if not self.hears_nobody(now_ns, peers):
            return 0
        silent_ns = now_ns - max(
            self._isr.agreed_ns, self._latest_contact_ns(self._others(), peers)
        )
        return silent_ns if silent_ns >= self._config.timing.alone_ns else 0

    def _others(self) -> list[str]:
        """The in-sync set without this replica: the master needs these nodes, and no other master
        can be elected without them."""
        return [node for node in self.electors() if node != self._config.node]

    def _latest_contact_ns(self, nodes: Sequence[str], peers: Peers) -> int:
        return max(-1 if (peer := peers.get(node)) is None else peer.contact_ns for node in nodes)

    def contact_limit_ns(self, now_ns: int, peers: Peers, review_due_ns: int) -> int:
        """The review of the in-sync set runs often enough."""
        return review_due_ns

    @property
    def pause_after_silence_ns(self) -> int:
        """Other replicas may hear each other and the controller: they campaign first."""
        return self._config.timing.election_max_ns

    def missing_isr(self, now_ns: int, peers: Peers) -> int:
        me, silence_ns = self._config.node, self._config.timing.election_max_ns
        there = sum(
            1
            for node in self.electors()
            if node == me or is_there(peers.get(node), now_ns, silence_ns)
        )
        return max(0, self._minimum - there)

    # Changes of members

    def objection_to_rule_change(self) -> str | None:
        agreed = self.agreed
        if agreed is None or set(agreed.in_sync) != set(self.members.voters):
            return (
                "to change the rule every voter must be in sync; the in-sync set is"
                f" {', '.join(sorted(self.electors()))}"
            )
        return None

    def would_stall(
        self, voters: Sequence[str], there: Sequence[str], *, leaves: bool
    ) -> str | None:
        """If the change removes a voter, the minimum must be reachable. The return of a node that
        lost its directory is no removal."""
        needed = self._minimum
        return (
            None
            if not leaves or len(there) >= needed
            else _stalls(f"{needed} in sync", voters, there)
        )


POLICIES: Mapping[Rule, type[Policy]] = {
    Rule.MAJORITY: Majority,
    Rule.ALL: All,
    Rule.IN_SYNC: InSync,
}
