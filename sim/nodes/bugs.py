"""Planted bugs: each breaks one rule of the product's code, to prove that the checkers find it.

A subclass of the product's class breaks the method that enforces a rule; three functions take the
place of the quorum's `elect`. If the simulator cannot find a bug within the
default seeds, that is a defect of the simulator, and `tests/sim/test_planted_bugs.py` fails.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from enum import Enum
from typing import Any

import numpy as np

from ledgermq.node.broker.calls.member_calls import RaiseLevel
from ledgermq.node.broker.calls.operator_calls import Kept
from ledgermq.node.broker.calls.outcome import Done
from ledgermq.node.broker.calls.send_calls import FrameProduced
from ledgermq.node.broker.calls.tier_calls import TierFetched
from ledgermq.node.broker.group import Group
from ledgermq.node.broker.leader import Leader
from ledgermq.node.broker.parts.delivery.fifo_picker import FifoJob
from ledgermq.node.broker.parts.delivery.lease_serving import LeaseServer
from ledgermq.node.broker.parts.delivery.tier_messages import TierMessages
from ledgermq.node.broker.parts.members.member_records import MemberRecords
from ledgermq.node.broker.parts.producers.producer_sequencing import ProducerSequencing
from ledgermq.node.broker.parts.transactions.transaction_resolution import TransactionResolver
from ledgermq.node.broker.plan import Plan
from ledgermq.node.broker.ports import PeerPacket, SyncTicket
from ledgermq.node.broker.queues import Pair, QueueKey
from ledgermq.node.broker.turn import Turn
from ledgermq.node.replica.background.digests import Digests
from ledgermq.node.replica.consensus.cluster_clock import ClusterClock
from ledgermq.node.replica.consensus.raft_replica import RaftReplica
from ledgermq.node.replica.consensus.replica_wire import Arrived
from ledgermq.node.replica.hosting.running import OpenReplica
from ledgermq.node.replica.maintenance.digest_exchange import DigestExchange
from ledgermq.node.replica.maintenance.retention_loop import Retainer, Survey
from ledgermq.node.replica.retention.retention_rules import Verdict
from ledgermq.node.replica.retention.scrub import Scrubber
from ledgermq.node.replica.shipping.installation import Install
from ledgermq.node.replica.shipping.ports import RebuildOutput
from ledgermq.proto.entries.entry_checking import BadEntry
from ledgermq.proto.entries.entry_sealing import chain_crc_at
from ledgermq.proto.entries.layout import HEADER_BYTES
from ledgermq.proto.types import Frame, HardState, Identity, Range, Role, SyncedMark
from ledgermq.raft.config import MS, Members, RaftConfig, Rule
from ledgermq.raft.core import Core
from ledgermq.raft.effects import Push
from ledgermq.raft.election import Election
from ledgermq.raft.ha_control import Appointment, ElectionRequest, elect
from ledgermq.raft.isr_review import IsrReview
from ledgermq.raft.leader import ANSWERED_ROUND, NEVER_NS
from ledgermq.raft.leader import Leader as RaftLeader
from ledgermq.raft.log_state import LogState
from ledgermq.raft.membership import MemberChange, Membership
from ledgermq.raft.messages import NO_INDEX, Append, AppendReply, Extent, Message, VoteRequest
from ledgermq.raft.policy import POLICIES, InSync, Peers, Policy, is_there
from ledgermq.raft.progress import Peer
from ledgermq.raft.quorum import reached_by_majority
from ledgermq.storage.files.ports import Disk
from ledgermq.storage.files.slots import SlotFile
from ledgermq.storage.group.store import GroupStore
from ledgermq.storage.keys.key_index import KeyIndex
from ledgermq.storage.log.durability import SyncJob
from ledgermq.storage.log.entry_log import EntryLog
from ledgermq.storage.log.log_recovery import Recovery
from ledgermq.storage.log.log_scan import Point
from ledgermq.storage.repair.log_source import Facts
from ledgermq.storage.state.hard_state import HardStateFile


class Bug(str, Enum):
    """Which rule is broken."""

    NONE = "none"
    VOTE_NOT_SYNCED = "vote-not-synced"
    ACK_BEFORE_SYNC = "ack-before-sync"
    OLD_TERM_COMMIT = "old-term-commit"
    TAIL_NOT_ERASED = "tail-not-erased"
    ABA_IN_SYNCED = "aba-in-synced"
    CHAIN_NOT_VERIFIED = "chain-not-verified"
    EARLY_ACK_ALONE = "early-ack-alone"
    LAZY_CALLED_DURABLE = "lazy-called-durable"
    MARK_NOT_LOWERED = "mark-not-lowered"
    CACHE_BELIEVED = "cache-believed"
    SYNC_RETRIED = "sync-retried"
    VOTE_FOR_ANY_LOG = "vote-for-any-log"
    COMMIT_UNVERIFIED = "commit-unverified"
    LEADER_FORGOTTEN = "leader-forgotten"
    READS_BY_LEASE = "reads-by-lease"
    ANY_ANSWER_CONFIRMS = "any-answer-confirms"
    ANSWER_BEFORE_COMMIT = "answer-before-commit"
    SNAPSHOT_ABOVE_DURABLE = "snapshot-above-durable"
    TRIM_WITHOUT_SNAPSHOT = "trim-without-snapshot"
    TWO_CHANGES_AT_ONCE = "two-changes-at-once"
    PROVISIONAL_COUNTED = "provisional-counted"
    VOTE_LOST_BY_INSTALL = "vote-lost-by-install"
    COMMIT_TWICE = "commit-twice"
    FRAMES_FORGOTTEN = "frames-forgotten"
    SHRUNK_BEFORE_AGREED = "shrunk-before-agreed"
    JOINER_NOT_COUNTED = "joiner-not-counted"
    JOINS_BEHIND = "joins-behind"
    EPOCH_LED_TWICE = "epoch-led-twice"
    EPOCH_NOT_DURABLE = "epoch-not-durable"
    TWO_MASTERS_ACCEPTED = "two-masters-accepted"
    IN_SYNC_BY_MAJORITY = "in-sync-by-majority"
    MINIMUM_IGNORED = "minimum-ignored"
    ELECTED_OUT_OF_SYNC = "elected-out-of-sync"
    EPOCH_AS_ASKED = "epoch-as-asked"
    INCARNATION_IGNORED = "incarnation-ignored"
    ACK_BEFORE_TERM_START = "ack-before-term-start"
    CHANGE_OVER_AT_ONCE = "change-over-at-once"
    UNCONFIRMED_SHOWN = "unconfirmed-shown"
    READS_BY_MAJORITY = "reads-by-majority"
    EVICTED_WISHED_BACK = "evicted-wished-back"
    RAISED_UNASKED = "raised-unasked"
    LEVEL_NOT_RAISED = "level-not-raised"
    DIGEST_AS_ROOT = "digest-as-root"
    SEALED_BY_ONE = "sealed-by-one"
    UNREAD_TRIMMED = "unread-trimmed"
    SCRUB_READS_NOTHING = "scrub-reads-nothing"
    KEYS_NOT_SYNCED = "keys-not-synced"
    FAILURE_AS_END = "failure-as-end"
    BATCH_PASSED = "batch-passed"
    OWN_CLOCK_FOLLOWED = "own-clock-followed"


class TakesFailuresForEnds(TierMessages):
    """A message that could not be fetched counts as one that no longer exists."""

    def take(self, fetched: TierFetched, now_ns: int) -> dict[Pair, None]:
        if fetched.failure:
            fetched = TierFetched(fetched.fetch, fetched.fetch.first + 1)
        return super().take(fetched, now_ns)


class FollowsItself(ClusterClock):
    """Goes by its own wall clock, whatever the others say."""

    def now_ms(self, steady_ns: int, wall_ns: int) -> int:
        return wall_ns // MS


class PassesOverFailures(Leader):
    tier_type = TakesFailuresForEnds


class TakesNewOnes(FifoJob):
    """Hands out messages that wait together with those of their message group that come again."""

    def _take_group(
        self, key: QueueKey, name: str, offsets: Sequence[int], ready: set[int]
    ) -> None:
        for offset in offsets:
            if self.full() or offset not in ready or not self._consider(key, offset):
                return
        self._opened.add((key[2], name))


class PlansNewOnes(LeaseServer):
    fifo_job_type = TakesNewOnes


class PassesBatches(Leader):
    lease_server_type = PlansNewOnes


class RaisesNothing(MemberRecords):
    """Answers a raise, and appends no record."""

    def _raise_level(self, turn: Turn, call: RaiseLevel) -> bool:
        turn.done.append(Done(call.token, Kept()))
        return False


class RaisesUnasked(MemberRecords):
    """Raises the level although one member was not asked whether it reads it."""

    def _raise_level(self, turn: Turn, call: RaiseLevel) -> bool:
        unasked = sorted(set(self._replicator.members.nodes) - call.asked)
        return super()._raise_level(turn, replace(call, asked=call.asked | {*unasked[:1]}))


class RecordsNoLevel(Group):
    member_records_type = RaisesNothing


class SyncsNoVotes(HardStateFile):
    """Writes term and vote without syncing them."""

    def __init__(self, slots: SlotFile) -> None:
        super().__init__(slots)
        slots.sync = lambda: None  # type: ignore[method-assign]


class ForgetsVotes(GroupStore):
    hard_state_type = SyncsNoVotes


class AcksBeforeSync(LogState):
    """Reports entries as durable that were only received."""

    def leader_claim(self) -> int:
        return self.view.end_index

    def follower_claim(self) -> int:
        return self.verified_index


def with_policies(broken: Callable[[type[Policy]], type[Policy]]) -> dict[Rule, type[Policy]]:
    """Every policy, each with the same bug."""
    return {rule: broken(policy) for rule, policy in POLICIES.items()}


def holds_for_all(policy: type[Policy]) -> type[Policy]:
    """Counts its own copy as that of a majority. Only acknowledgements from memory depend on this
    rule."""

    def early_claim(self: Policy, peers: Peers) -> int:
        return self._log.view.end_index

    return type("HoldsForAll", (policy,), {"early_claim": early_claim})


class CallsLazyDurable(LogState):
    """Treats an entry that need not be synced yet as synced."""

    def leader_claim(self) -> int:
        claim = super().leader_claim()
        return self.view.end_index if claim >= self.urgent_index else claim

    def follower_claim(self) -> int:
        claim = super().follower_claim()
        return self.verified_index if claim >= self.urgent_index else claim


class CommitsOldTerms(RaftLeader):
    """Counts copies of entries of earlier terms (Raft paper, figure 8)."""

    def is_of_this_term(self, index: int) -> bool:
        return index >= 0


class BelievesEverySync(LogState):
    """Counts a finished sync for entries that were replaced while it ran."""

    def covered_by_sync(self, term: int, index: int) -> int:
        return min(index, self.view.end_index)


class LeavesTails(EntryLog):
    """Moves the end of the log back without erasing the bytes behind it."""

    def _erase(self, end: int, index: int) -> None:
        """Nothing is erased."""


class KeepsMark(EntryLog):
    """Cuts the log without lowering the synced mark first."""

    def _lower_mark(self, mark: SyncedMark) -> None:
        """The mark stays where it was."""


class RecoversWithoutSync(Recovery):
    """Reads the existing bytes without writing and syncing them again."""

    def _rewrite(self, end: Point) -> None: ...
    def _sync(self) -> None: ...


class BelievesCache(EntryLog):
    """Treats everything it finds after a crash as durable, although a killed process may have left
    it in the page cache only."""

    recovery_type = RecoversWithoutSync


class RetriesSyncs(EntryLog):
    """Continues after a failed sync, and the next one succeeds."""

    def finish_sync(self, job: SyncJob, error: OSError | None) -> None:
        super().finish_sync(job, None)


class VotesForAnyLog(Election):
    """Does not check a candidate's log (Raft §5.4.1)."""

    def is_up_to_date(self, request: VoteRequest) -> bool:
        return True


class CommitsUnverified(LogState):
    """Accepts the leader's commit index for entries that it has not compared with its own."""

    def follow_commit(self, leader_commit: int) -> None:
        self.commit_index = max(self.commit_index, min(leader_commit, self.view.end_index))


class ForgetsLeader(Election):
    """Votes for others although it hears a leader, and right after its start (Raft dissertation
    §4.2.3)."""

    def hears_leader(self, now_ns: int) -> bool:
        return False


class ReadsByLease(RaftLeader):
    """Answers reads alone for nine tenths of the shortest election timeout after it sent a message
    that a quorum answered (Raft dissertation §6.4.1). By its own clock, that is right."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._sent_ns: dict[int, int] = {}
        self._now_ns = 0

    def replicate(self, now_ns: int) -> tuple[Push, ...]:
        self._now_ns = now_ns
        before = self.round
        pushes = super().replicate(now_ns)
        self._sent_ns.update(dict.fromkeys(range(before + 1, self.round + 1), now_ns))
        return pushes

    def pushed(self, to: str, extent: Extent, now_ns: int) -> Append:
        message = super().pushed(to, extent, now_ns)
        self._sent_ns[message.round] = now_ns
        return message

    def answered_round(self) -> int:
        answered = super().answered_round()
        sent_ns, lease_ns = (
            self._sent_ns.get(answered),
            self._config.timing.election_min_ns * 9 // 10,
        )
        return answered if sent_ns is None or self._now_ns - sent_ns >= lease_ns else NEVER_NS


class TakesAnyAnswer(RaftLeader):
    """Takes every answer for one to its latest message, also one that was sent long ago."""

    def on_append_reply(self, reply: AppendReply, now_ns: int) -> None:
        super().on_append_reply(reply, now_ns)
        self.peers[reply.sender].answered_round = self.round
        self._reads.answered(self.answered_round())


class ChangesAtOnce(Core):
    """Changes the members although the previous change is not committed (Raft dissertation
    §4.1)."""

    def propose_members(self, change: MemberChange, now_ns: int) -> Members | str:
        log, commit_index = self.log_state, self.commit_index
        log.commit_index = max(commit_index, self.configurations.latest_index)
        try:
            return super().propose_members(change, now_ns)
        finally:
            log.commit_index = commit_index


def counts_provisional(policy: type[Policy]) -> type[Policy]:
    """Counts the copy of a provisional directory, whose loss would not be noticed."""

    def reached(self: Policy, own: int, peers: Peers, value: Callable[[Peer], int]) -> int:
        told = {peer.node: peer.provisional for peer in peers.values()}
        for peer in peers.values():
            peer.provisional = False
        found = policy.reached(self, own, peers, value)
        for peer in peers.values():
            peer.provisional = told[peer.node]
        return found

    return type("CountsProvisional", (policy,), {"reached": reached})


class ForgetsVoteAtInstall(Install):
    """Installs the log without keeping the promises of this replica."""

    def __init__(self, disk: Disk, root: str, found: Identity, **options: Any) -> None:
        super().__init__(disk, root, found, **options)
        self._disk, self._promises = disk, f"{root}/dledger-{found.replica}/hardstate"

    def turn(self, now_ns: int, packets: Sequence[tuple[str, PeerPacket]]) -> RebuildOutput:
        output = super().turn(now_ns, packets)
        if output.finished:
            former = HardStateFile.open(self._disk, self._promises)
            term = former.value.term
            former.close()
            self._disk.unlink(self._promises)
            fresh = HardStateFile.create(self._disk, self._promises)
            fresh.save(HardState(term, None))
            fresh.close()
        return output


class AnswersAtOnce(Leader):
    """Answers when the record is in its own log, not when it is committed."""

    def appended(self, plan: Plan, queue_offsets: Sequence[int], store_ms: int) -> list[Done]:
        done = super().appended(plan, queue_offsets, store_ms)
        while self._awaited:
            _, _, awaited = self._awaited.pop(0)
            done += (
                [Done(awaited.token, awaited.result)]
                if awaited.result is not None
                else self.lease_server.hand_out(awaited)
            )
        return done


class ForgetsDecisions(TransactionResolver):
    """Decides about transactions by the applied state, without the records appended since."""

    def _pending(self, offset: int) -> tuple[int, str] | None:
        return None


class CommitsTwice(Leader):
    """The leader with `ForgetsDecisions`."""

    transaction_resolver_type = ForgetsDecisions


class ForgetsFrames(ProducerSequencing):
    """Judges frames by the applied state, without the frames appended since."""

    def appended(self, frame: Frame, answer: FrameProduced) -> None:
        """Nothing is remembered."""


class StoresFramesTwice(Leader):
    """The leader with `ForgetsFrames`."""

    producer_sequencing_type = ForgetsFrames


class TrustsPayloads(RaftReplica):
    """Appends received entries without recomputing checksums or comparing chains."""

    def _verified(self, arrived: Arrived, extent: Extent) -> Range:
        data = bytearray(arrived.payload)
        starts: list[int] = []
        at = 0
        while at < len(data):
            size = int.from_bytes(data[at + 4 : at + 8], "big")
            if size < HEADER_BYTES or at + size > len(data):
                raise BadEntry(extent.first_index + len(starts), at, "no whole entry")
            starts.append(at)
            at += size
        last = extent.first_index + len(starts) - 1
        chain = chain_crc_at(data, starts[-1])
        sizes = np.diff(np.array([*starts, len(data)], np.int64)).astype(np.int32)
        return Range(
            first_index=extent.first_index,
            last_index=last,
            term=extent.term,
            pos=arrived.pos,
            data=memoryview(data),
            starts=np.array(starts, np.int64),
            sizes=sizes,
            prev_chain=arrived.prev_chain,
            last_chain=chain,
        )

    def _chains_agree(self, index: int, prev_chain: int, entries: Range | None) -> bool:
        return True


class KeepsTooMuch(OpenReplica):
    """Writes a snapshot of the applied state although the log up to there is not durable here."""

    def _may_be_kept(self, index: int) -> bool:
        return True


class CallsAllCovered(GroupStore):
    """Treats what the log holds as covered by its snapshots."""

    @property
    def durable_snapshot_index(self) -> int:
        return self.log.durable_index


class NoTree(Digests):
    """Computes the digest of a file instead of the root of its entries, as every other replica
    does."""

    def compute(self, base: int, end: int | None) -> tuple[str, str]:
        sha256, _ = super().compute(base, end)
        return sha256, sha256


class SealsAlone(DigestExchange):
    """Takes the report of one replica for that of a majority."""

    def _agreed(
        self, told: dict[str, str], voters: Sequence[str]
    ) -> tuple[str, tuple[str, ...]] | None:
        node = min(told.keys() & set(voters), default=None)
        return None if node is None else (told[node], (node,))


class ForgetsConsumers(Retainer):
    """Decides about files without asking what consumer groups have not read."""

    async def _verdicts(self, group: str, survey: Survey, excess: int) -> list[Verdict]:
        return await super()._verdicts(group, replace(survey, keys=[]), excess)


class PassesOverEntries(Scrubber):
    """Calls the entries of a file right without reading them."""

    def _entries(self, facts: Facts, base: int) -> Iterator[int]:
        yield from ()


class NotesUnsyncedKeys(KeyIndex):
    """Stores the position of the key index without syncing the files that it covers."""

    def sync(self) -> None:
        if self._active is not None and self._loaded:
            self._active.flush()
        self._unsynced.clear()
        self._write_position()


# -- HA groups
# --------------------------------------------------------------------------------------------------------------------------


class ShrinksAtOnce(Core):
    """Stops counting a slave when it requests its removal, before the metadata quorum has
    decided."""

    def _policy_of(self, members: Members) -> Policy:
        core = self

        class Shrinks(InSync):
            def required(self) -> Collection[str]:
                required, agreed, leading = super().required(), self.agreed, core.election.leading
                if agreed is None or leading is None or agreed.master != core.config.node:
                    return required
                return set(required) - leading.review.leaving_set(agreed, core._now_ns)

        if members.rule is not Rule.IN_SYNC:
            return super()._policy_of(members)
        return Shrinks(members, self.config, self.log_state, self.isr, self.timer)


class ForgetsJoiners(InSync):
    """Counts a slave that it requested to add only when it is notified of the decision."""

    def required(self) -> Collection[str]:
        return self.electors()


class TakesAnybodyIn(IsrReview):
    """Requests to add a slave to the in-sync set although it lacks committed entries."""

    def may_join(self, node: str, now_ns: int) -> bool:
        return is_there(self._peers.get(node), now_ns, self._config.timing.election_max_ns)


class WishesEvictedBack(IsrReview):
    """Forgets that a change removes a node from the in-sync set once it is out, and requests it
    back before the change is repeated."""

    def forget_evictions(self, policy: InSync, now_ns: int) -> None:
        super().forget_evictions(policy, now_ns)
        self.evicting = {
            node: eviction for node, eviction in self.evicting.items() if node in policy.electors()
        }


class LeadsAgain(Election):
    """Leads the epoch of its appointment again after a restart."""

    def take_office(self, now_ns: int) -> None:
        agreed, me = self._membership.policy.agreed, self._config.node
        again = (
            agreed is not None
            and (agreed.epoch, agreed.master) == (self.term, me)
            and self.role is Role.FOLLOWER
        )
        if again and self.voted_for == me and self._membership.counts():
            self.become_leader(now_ns)
        else:
            super().take_office(now_ns)


class FollowsBoth(Core):
    """Accepts frames of an epoch from any sender, whatever it promised for that epoch."""

    def handle(
        self,
        message: Message,
        now_ns: int,
        *,
        chains_agree: bool = True,
        members: Members | None = None,
    ) -> None:
        if (
            isinstance(message, Append)
            and self.members.rule is Rule.IN_SYNC
            and message.term == self.term
            and self.leader is None
        ):
            self.election.voted_for = message.sender
        super().handle(message, now_ns, chains_agree=chains_agree, members=members)


class CountsAMajority(InSync):
    """Confirms what a majority of the in-sync set has."""

    def reached(self, own: int, peers: Peers, value: Callable[[Peer], int]) -> int:
        others = [peers.get(node) for node in self.required() if node != self._config.node]
        return reached_by_majority(
            [
                own,
                *(NO_INDEX if peer is None or peer.provisional else value(peer) for peer in others),
            ]
        )


class ReadsByMajority(CountsAMajority):
    """The same, only for the rounds of reads: commits wait for the whole set."""

    def reached(self, own: int, peers: Peers, value: Callable[[Peer], int]) -> int:
        return (CountsAMajority if value is ANSWERED_ROUND else InSync).reached(
            self, own, peers, value
        )


class NeverShort(Core):
    """Confirms with fewer replicas in sync than the group requires, and lets the set shrink below
    that."""

    def __init__(self, config: RaftConfig, *given: Any, **named: Any) -> None:
        super().__init__(replace(config, ha=replace(config.ha, minimum=1)), *given, **named)


class TakesAnyOffice(InSync):
    """Stands for election, and takes office, although the in-sync set does not contain it."""

    def may_campaign(self) -> bool:
        return True


class TakesAnyDirectory(Membership):
    """Treats its directory as the one that the group knows."""

    def admitted_by(self, members: Members) -> bool:
        return True


class ChangesRuleAtOnce(Core):
    """Switches to the other rule without the intermediate one."""

    def propose_members(self, change: MemberChange, now_ns: int) -> Members | str:
        members = super().propose_members(change, now_ns)
        if isinstance(members, Members) and members.towards is not None:
            return replace(members, rule=members.towards, towards=None)
        return members


class PersistsLater(RaftReplica):
    """Stores the epoch of a frame after the frame, at the next sync."""

    _owed: HardState | None = None

    def _persist(self, hard_state: HardState) -> None:
        if self.core.members.rule is Rule.IN_SYNC and hard_state.vote not in (
            None,
            self.config.node,
        ):
            self._owed = hard_state
            return
        self._owed = None
        super()._persist(hard_state)

    def synced(self, now_ns: int, ticket: SyncTicket, error: OSError | None) -> None:
        owed, self._owed = self._owed, None
        if owed is not None:
            super()._persist(owed)
        super().synced(now_ns, ticket, error)


class ShowsAtOnce(RaftReplica):
    """Lets clients read entries that only the master has."""

    @property
    def commit_index(self) -> int:
        return self.core.replicated_index


class ServesAtOnce(Group):
    """Serves calls as soon as it leads, before its term-start record is confirmed."""

    def _follow_role(self, turn: Any) -> None:
        super()._follow_role(turn)
        if (
            self.leader.term is not None
            and not self.leader.serving
            and self._term_start is not None
        ):
            self.leader.serve(turn.now_ns)


def elect_anybody(known: Appointment | None, ask: ElectionRequest) -> Appointment | str:
    """Elects a candidate whether it is in sync or not."""
    if known is not None and ask.node not in known.in_sync and ask.generation == known.generation:
        known = replace(known, in_sync={**known.in_sync, ask.node: ask.incarnation})
    return elect(known, ask)


def elect_as_asked(known: Appointment | None, ask: ElectionRequest) -> Appointment | str:
    """Elects for the epoch after the one that the candidate knew, ignoring later ones."""
    return elect(known if known is None else replace(known, epoch=ask.epoch), ask)


def elect_any_directory(known: Appointment | None, ask: ElectionRequest) -> Appointment | str:
    """Elects a candidate with any directory."""
    if known is not None and ask.node in known.in_sync and ask.generation == known.generation:
        return elect(known, replace(ask, incarnation=known.in_sync[ask.node]))
    return elect(known, ask)


ELECTS: dict[Bug, Callable[[Appointment | None, ElectionRequest], Appointment | str]] = {
    Bug.ELECTED_OUT_OF_SYNC: elect_anybody,
    Bug.EPOCH_AS_ASKED: elect_as_asked,
    Bug.INCARNATION_IGNORED: elect_any_directory,
}


def core_with(**types: Any) -> type[Core]:
    """A core that is made of these types instead of the product's."""
    return type("BrokenCore", (Core,), types)


def core_in_sync(policy: type[InSync], **types: Any) -> type[Core]:
    return core_with(policies={**POLICIES, Rule.IN_SYNC: policy}, **types)


CORES: dict[Bug, type[Core]] = {
    Bug.ACK_BEFORE_SYNC: core_with(log_type=AcksBeforeSync),
    Bug.OLD_TERM_COMMIT: core_with(leader_type=CommitsOldTerms),
    Bug.ABA_IN_SYNCED: core_with(log_type=BelievesEverySync),
    Bug.EARLY_ACK_ALONE: core_with(policies=with_policies(holds_for_all)),
    Bug.LAZY_CALLED_DURABLE: core_with(log_type=CallsLazyDurable),
    Bug.VOTE_FOR_ANY_LOG: core_with(election_type=VotesForAnyLog),
    Bug.COMMIT_UNVERIFIED: core_with(log_type=CommitsUnverified),
    Bug.LEADER_FORGOTTEN: core_with(election_type=ForgetsLeader),
    Bug.READS_BY_LEASE: core_with(leader_type=ReadsByLease),
    Bug.ANY_ANSWER_CONFIRMS: core_with(leader_type=TakesAnyAnswer),
    Bug.TWO_CHANGES_AT_ONCE: ChangesAtOnce,
    Bug.PROVISIONAL_COUNTED: core_with(policies=with_policies(counts_provisional)),
    Bug.SHRUNK_BEFORE_AGREED: ShrinksAtOnce,
    Bug.JOINER_NOT_COUNTED: core_in_sync(ForgetsJoiners),
    Bug.JOINS_BEHIND: core_with(review_type=TakesAnybodyIn),
    Bug.EPOCH_LED_TWICE: core_with(election_type=LeadsAgain),
    Bug.EVICTED_WISHED_BACK: core_with(review_type=WishesEvictedBack),
    Bug.TWO_MASTERS_ACCEPTED: FollowsBoth,
    Bug.IN_SYNC_BY_MAJORITY: core_in_sync(CountsAMajority),
    Bug.MINIMUM_IGNORED: NeverShort,
    Bug.ELECTED_OUT_OF_SYNC: core_in_sync(TakesAnyOffice),
    Bug.INCARNATION_IGNORED: core_in_sync(TakesAnyOffice, membership_type=TakesAnyDirectory),
    Bug.CHANGE_OVER_AT_ONCE: ChangesRuleAtOnce,
    Bug.READS_BY_MAJORITY: core_in_sync(ReadsByMajority),
}
REPLICAS: dict[Bug, type[RaftReplica]] = {
    Bug.CHAIN_NOT_VERIFIED: TrustsPayloads,
    Bug.EPOCH_NOT_DURABLE: PersistsLater,
    Bug.UNCONFIRMED_SHOWN: ShowsAtOnce,
}
LOGS: dict[Bug, type[EntryLog]] = {
    Bug.TAIL_NOT_ERASED: LeavesTails,
    Bug.MARK_NOT_LOWERED: KeepsMark,
    Bug.CACHE_BELIEVED: BelievesCache,
    Bug.SYNC_RETRIED: RetriesSyncs,
}


def replica_type(bug: Bug) -> type[RaftReplica]:
    """RaftReplica with the bug."""
    core = CORES.get(bug)
    return (
        REPLICAS.get(bug, RaftReplica)
        if core is None
        else type("BrokenReplica", (RaftReplica,), {"core_type": core})
    )


def election(bug: Bug) -> Callable[[Appointment | None, ElectionRequest], Appointment | str]:
    """The election function of the metadata quorum."""
    return ELECTS.get(bug, elect)


def cluster_clock_type(bug: Bug) -> type[ClusterClock]:
    return FollowsItself if bug is Bug.OWN_CLOCK_FOLLOWED else ClusterClock


def log_type(bug: Bug) -> type[EntryLog]:
    return LOGS.get(bug, EntryLog)


def hosted_type(bug: Bug) -> type[OpenReplica]:
    return KeepsTooMuch if bug is Bug.SNAPSHOT_ABOVE_DURABLE else OpenReplica


def digests_type(bug: Bug) -> type[Digests]:
    return NoTree if bug is Bug.DIGEST_AS_ROOT else Digests


def exchange_type(bug: Bug) -> type[DigestExchange]:
    return SealsAlone if bug is Bug.SEALED_BY_ONE else DigestExchange


def retainer_type(bug: Bug) -> type[Retainer]:
    return ForgetsConsumers if bug is Bug.UNREAD_TRIMMED else Retainer


def scrubber_type(bug: Bug) -> type[Scrubber]:
    return PassesOverEntries if bug is Bug.SCRUB_READS_NOTHING else Scrubber


def keys_type(bug: Bug) -> type[KeyIndex]:
    return NotesUnsyncedKeys if bug is Bug.KEYS_NOT_SYNCED else KeyIndex


def store_type(bug: Bug) -> type[GroupStore]:
    stores: dict[Bug, type[GroupStore]] = {
        Bug.VOTE_NOT_SYNCED: ForgetsVotes,
        Bug.TRIM_WITHOUT_SNAPSHOT: CallsAllCovered,
    }
    return stores.get(bug, GroupStore)


def install_type(bug: Bug) -> type[Install]:
    return ForgetsVoteAtInstall if bug is Bug.VOTE_LOST_BY_INSTALL else Install


def group_type(bug: Bug) -> type[Group]:
    """Group with the bug."""
    leaders = {
        Bug.ANSWER_BEFORE_COMMIT: AnswersAtOnce,
        Bug.COMMIT_TWICE: CommitsTwice,
        Bug.FRAMES_FORGOTTEN: StoresFramesTwice,
    }
    leaders |= {Bug.FAILURE_AS_END: PassesOverFailures, Bug.BATCH_PASSED: PassesBatches}
    leader = leaders.get(bug)
    if bug is Bug.ACK_BEFORE_TERM_START:
        return ServesAtOnce
    if bug is Bug.LEVEL_NOT_RAISED:
        return RecordsNoLevel
    if bug is Bug.RAISED_UNASKED:
        return type("BrokenGroup", (Group,), {"member_records_type": RaisesUnasked})
    return Group if leader is None else type("BrokenGroup", (Group,), {"leader_type": leader})
