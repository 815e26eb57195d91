"""One broker group on one node: the turn that drives its replicator, its derived state and its
leader's decisions.

Plain synchronous code: everything in a turn is a function of its arguments and of what the ports
return. The order of a turn: inputs of the replicator; its role; calls decided against the log's
end; one batch proposed; `Replicator.take`; committed entries applied; answers. The turn repeats
this until nothing changes, so that a message committed in this turn reaches a waiting Receive in
the same turn.

A turn runs only the stages that its events can have changed. Every event goes to the replicator,
and `take` carries out what that decided. The decisions (leases, calls, plans, timers, reads) run
only

    with calls             they are what is to be decided
    without any input      the turn is for the time, which may end leases, polls and handovers
    after an apply         applied entries answer calls, wake Receives and unlock messages; one that finds no space refuses reads
    after a change of role or of the number of replicas that are missing in sync, or an answer to a
    question of `Reads`
    from `_due_ns` on      something was due, or was left over from the turn before

So a packet or a sync that moves neither commit nor role costs no decision. Invariant: before
`_due_ns`, running the decisions without one of these events would change nothing. Each turn that
runs them computes `_due_ns` and `_wake_ns` anew. If the replicator has nothing to give out either,
the turn ends behind its inputs (`_calm_until`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ledgermq.node.broker.calls.consumer_calls import CancelReceive
from ledgermq.node.broker.calls.group_view import GroupView
from ledgermq.node.broker.calls.outcome import Call, Done, kinds_of_calls
from ledgermq.node.broker.calls.tier_calls import TierFetch
from ledgermq.node.broker.filters.filters import LOOKS_PER_TURN
from ledgermq.node.broker.flush import FlushPolicy, policy_of
from ledgermq.node.broker.in_sync import InSyncSet
from ledgermq.node.broker.leader import DECIDED, PARTS, Leader, LeaderSettings
from ledgermq.node.broker.leader_log import READ_BYTES, LeaderLog
from ledgermq.node.broker.machine import Machine
from ledgermq.node.broker.part import handlers
from ledgermq.node.broker.parts.members.handovers import Handovers
from ledgermq.node.broker.parts.members.member_records import MemberRecords
from ledgermq.node.broker.parts.members.memberships import Memberships
from ledgermq.node.broker.parts.producers.frame_appending import FrameAppending
from ledgermq.node.broker.parts.producers.frame_results import certified
from ledgermq.node.broker.parts.pulls.freshness import Freshness
from ledgermq.node.broker.parts.pulls.reads import Assured, Reads
from ledgermq.node.broker.plan import NEVER_NS, Plan
from ledgermq.node.broker.ports import PeerPacket, Replicator, SyncTicket
from ledgermq.node.broker.recent import Recent
from ledgermq.node.broker.turn import Turn
from ledgermq.proto.entries.entry_encoding import encode_entries, entry_bytes
from ledgermq.proto.entries.ranges import cut
from ledgermq.proto.records import control
from ledgermq.proto.types import Draft, ReplicaStatus, Role
from ledgermq.raft.config import Members, Rule
from ledgermq.raft.ha_control import HaRequest
from ledgermq.storage.files.errors import NoSpace

_PASSES_PER_TURN = 16
# A turn runs on the event loop: heartbeats, peers and clients wait while it applies. 1 MiB of small
# messages takes some 15 ms.
_APPLY_BYTES_PER_TURN = 1 << 20
_RETRY_NS = 100_000_000


@dataclass(slots=True)
class TurnOutput:
    """The work that a turn leaves for its caller: start `sync`, send `packets`, hand out `done`,
    and run the next turn by `wake_at_ns`. The hosts of the group may add packets and bring the next
    turn forward.

    `view` is None if nothing visible from outside has changed. `hold_calls`: calls that arrive
    during a sync can wait for its end, because none of them could be answered before the next sync.
    `open_batches`: how many batches that this replica appended as leader are not committed.
    """

    done: list[Done]
    packets: list[tuple[str, PeerPacket]]
    sync: SyncTicket | None
    wake_at_ns: int
    view: GroupView | None
    hold_calls: bool = True
    open_batches: int = 0
    ha_requests: tuple[HaRequest, ...] = ()
    """Requests to the controller; its answers arrive as `Appointed` calls."""
    hides_view: bool = False
    """The last view is no longer valid, because this replica does not run."""
    tier_fetches: tuple[TierFetch, ...] = ()
    """Messages to fetch from the object store; each fetch is answered by a `TierFetched` call, also
    if it fails."""


class Group:
    """One broker group. Not thread-safe: one caller owns it."""

    leader_type: type[Leader] = Leader
    member_records_type: type[MemberRecords] = MemberRecords

    def __init__(
        self,
        group: str,
        node: str,
        replicator: Replicator,
        machine: Machine,
        settings: LeaderSettings,
    ) -> None:
        self.group = group
        self.node = node
        self.replicator = replicator
        self.machine = machine
        self.leader = self.leader_type(machine, settings)
        self._handovers = Handovers(node, replicator, settings.preferred)
        self.freshness = Freshness()
        """How old this replica's state is while another replica leads."""
        self._reads = Reads(replicator, machine, settings.budget, self.freshness)
        self.memberships = Memberships(replicator, machine)
        self.log = LeaderLog(replicator, machine)
        self.member_records = self.member_records_type(
            group,
            node,
            replicator,
            machine,
            self.memberships,
            log=self.log,
            await_entry=self.leader.await_entry,
        )
        self.in_sync = InSyncSet(group, replicator, machine, settings.ha)
        self._frames = FrameAppending(
            leader=self.leader,
            log=self.log,
            replicator=replicator,
            machine=machine,
            in_sync=self.in_sync,
            policy=settings.policy,
            assure=self._assure,
        )
        self._takers = handlers((self._handovers, self._reads, self.memberships), "ARRIVALS")
        self._policy = settings.policy
        self._due_ns = 0
        """Before this time the decisions have nothing to do, unless a call is taken, an entry
        applied, or the role changes."""
        self._wake_ns = NEVER_NS
        """When the decisions need the next turn."""
        self._holds_calls = True
        """See `_may_hold_calls`."""
        self._term_start: int | None = None
        """Index of this term's term-start record once it is in the log."""
        self._standing: tuple[Role, int, str | None, Members] | None = None
        """Role, term, leader and members at the end of the last turn."""
        self._commit_index = -1
        """At the end of the last turn."""
        self._seen: tuple[object, ...] = ()
        """The view last published to outsiders, except what applied entries change."""
        self.dispatch_stalled = 0
        """How often the consume queues were out of space."""
        self.left_behind: tuple[str, int] | None = None
        """As reported by the leader in the last turn; see `ReplicaOutput`."""
        self.recent: Recent | None = None
        """The entries applied last, kept while a reader follows the end of the log."""
        self._followers = 0
        self._policies_of: object = None
        """The topics for which it is known whether every one waits for the commit; and whether that
        is so."""
        self._all_durable = True
        self._writes_refused = False

    def turn(
        self,
        now_ns: int,
        now_ms: int,
        calls: Sequence[Call] = (),
        packets: Sequence[tuple[str, PeerPacket]] = (),
        synced: Sequence[tuple[SyncTicket, OSError | None]] = (),
    ) -> TurnOutput:
        """Run one turn: take in the inputs, decide, replicate, apply. Raises Fenced, storage errors
        and UnknownControlRecord, on which the node must stop."""
        replicator, leader = self.replicator, self.leader
        self.left_behind = None
        for ticket, error in synced:
            replicator.synced(now_ns, ticket, error)
        for sender, packet in packets:
            replicator.step(now_ns, sender, packet)
        replicator.tick(now_ns)
        # Without any input, the turn is for the time alone.
        decides = bool(calls) or not (packets or synced) or now_ns >= self._due_ns
        if not decides and (wake_ns := self._calm_until(now_ns)) is not None:
            return TurnOutput(
                done=[],
                packets=[],
                sync=None,
                wake_at_ns=wake_ns,
                view=None,
                hold_calls=self._holds_calls,
                open_batches=len(self.log.batches),
            )
        turn = Turn(now_ns, now_ms, decides=decides)
        if self._standing != replicator.standing or (
            leader.term is not None and self._term_start is None
        ):
            self._follow_role(turn)
        if self.in_sync.missing or (
            self._standing is not None and self._standing[3].rule is Rule.IN_SYNC
        ):
            self.in_sync.look(turn)
        if leader.term is not None:
            # Nothing but an input has moved it since the last turn.
            moved = packets or synced
            turn.commit_index = replicator.commit_index if moved else self._commit_index
            if turn.commit_index != self.machine.applied_index:
                # A leader already has every committed entry in its log: apply first, and decide
                # against the newest state.
                self._apply(turn)
        if turn.decides:
            if now_ns >= self._due_ns or turn.touched:
                # Leases that have ended stay ended, even if signs of life arrive with this turn.
                leader.expire(now_ns)
            if calls and self._take_calls(turn, calls):
                leader.expire(now_ns)
            if (
                leader.timer_firing.waits
                or self.machine.timers.arrived
                or leader.looks.left < LOOKS_PER_TURN
            ):
                leader.begin_turn(now_ns, now_ms)
            self._reads.pulls.looks.left = LOOKS_PER_TURN
        if not self._pass(turn, first=True) or (
            leader.term is None and not self._reads.pulls.waiting
        ):
            return self._finish(turn, heard=bool(packets))
        for _ in range(1, _PASSES_PER_TURN):
            leader.expire(now_ns)
            if not self._pass(turn, first=False):
                break
        else:
            turn.wake(now_ns)
        return self._finish(turn, heard=bool(packets))

    def _calm_until(self, now_ns: int) -> int | None:
        """When the next turn is needed, if the inputs changed nothing that a further stage of this
        turn depends on; otherwise None.

        Invariant: if this returns a time, the other stages would send, start, answer and publish
        nothing, and ask for this time. This is a statement about the whole turn, and each condition
        below covers the stages that its absence would let change something:

          decides           (the caller) no call came, and `_due_ns` is ahead. By the invariant of
                            the module, the decisions then change nothing.
          term start        a leader whose log took no term-start record yet (a full disk, a
                            handover) tries again in every turn; before it, it serves no call.
          calm replicator   `take` would return nothing: no write, packet or sync, no answered read,
                            and leadership has nothing due. It also says that its commit index,
                            role, term, leader and members are those of the last turn. Whatever
                            changes one of these sets `Core.stirred` or shows in `Core.calm_until`.
          applied index     nothing that was committed then is lacking in the machine. A slice of a
                            large apply leaves such a rest, and applied entries answer calls and
                            wake Receives.
          rule, shortness   in an HA group time alone changes how many replicas are missing in sync,
                            which refuses sends, so its turns are never cut short.

        What breaks without one of them: not safety, because a turn left out writes, sends and
        answers nothing, and this replica's log and promises stay as they are. But an output would
        be late until the next event or `_wake_ns`: a commit that is not applied, a Receive that is
        not woken, a vote reply that is not sent before the candidate gives up. Such a delay looks
        like a slow disk and would never be found, so `tests/replica/test_calm_turns.py` plays the
        same run with and without early ends, and asks every calm replica for its output. The gain
        is the reason: most events (the leader's own sync, the answers of slower followers,
        answers to heartbeats) leave a group calm.
        """
        standing = self._standing
        if (
            (self.leader.term is not None and self._term_start is None)
            or self._commit_index != self.machine.applied_index
            or standing is None
            or standing[3].rule is Rule.IN_SYNC
            or self.in_sync.missing
        ):
            return None
        wake_ns = self.replicator.calm_until(now_ns)
        return None if wake_ns is None else min(wake_ns, self._wake_ns)

    def _pass(self, turn: Turn, *, first: bool) -> bool:
        """Decide, replicate and apply once. Returns whether another pass may find work: something
        was applied, was appended but not given to the replicator yet, or could not be decided
        together with what was appended. A replica that became leader in this pass appended its term
        start.

        Between two passes nothing but an append, a request or a handover gives the replicator
        something to do, so only then it is asked again for its output.
        """
        replicator, leader, reads, members = (
            self.replicator,
            self.leader,
            self._reads,
            self.memberships,
        )
        appended, asked = False, first
        if turn.decides:
            if self.in_sync.missing:
                self._refuse_when_short(turn)
            appended = leader.has_work() and self._propose(turn)
            if members.asked or members.owed or turn.now_ns >= members.due_ns:
                appended = (
                    self.member_records.append(
                        turn, serving=leader.serving, full=self._writes_refused
                    )
                    or appended
                )
            if leader.uncommitted_topics and leader.wants_commit():
                replicator.request_flush()
                asked = True
            if reads.fresh:
                reads.ask(turn.now_ns)
                asked = True
        if asked or turn.appended or replicator.handover is not None:
            self._take_output(turn)
        if leader.early and leader.term is not None:
            turn.done += certified(
                leader.replicated(replicator.replicated_index, alone=self.in_sync.acks_alone),
                replicator.durable_indexes,
            )
        applied = turn.commit_index != self.machine.applied_index and self._apply(turn)
        if turn.decides and (reads.indexed or reads.pulls.woken or reads.pulls.turned_away):
            turn.done += reads.answer()
        return (
            applied
            or turn.appended
            or (appended and (leader.has_work() or replicator.handover is not None))
        )

    def _take_calls(self, turn: Turn, calls: Sequence[Call]) -> bool:
        """Returns whether there were others than `DECIDED`, which change no time at which something
        ends."""
        others: list[Call] = []
        decided = 0
        for call in calls:
            take = self._takers.get(type(call))
            if take is not None:
                turn.done += take(call, turn.now_ns, serving=self.leader.serving)
                continue
            if type(call) in DECIDED:
                decided += 1
                if self.leader.serving:
                    self.leader.inbox.append(call)
                    continue
            elif isinstance(call, CancelReceive):
                turn.done += self._reads.pulls.cancel(call.receive)
            others.append(call)
        if others:
            turn.done += self.leader.take(others, self.replicator.leader, turn.now_ns)
        return decided < len(calls)

    def _take_output(self, turn: Turn) -> None:
        output = self.replicator.take(turn.now_ns)
        turn.appended = False
        turn.packets += output.packets
        if output.sync is not None:
            assert turn.sync is None, "at most one sync of a group is under way"
            turn.sync = output.sync
        if output.reads:
            turn.done += self._reads.confirmed(output.reads)
            turn.decides = True
        turn.replica_wake_at_ns, turn.commit_index = output.wake_at_ns, output.commit_index
        if output.ha_requests:
            turn.ha_requests += output.ha_requests
        self.left_behind = output.left_behind or self.left_behind
        if output.role_changed or (self.leader.term is not None and self._term_start is None):
            self._follow_role(turn)

    def keep_recent(self) -> Recent:
        """From now on, keep applied entries in memory for one more reader outside the turns, until
        that reader releases them."""
        if self.recent is None:
            self.recent = Recent(self.machine.applied_index + 1)
            self.replicator.watch(True)
        self._followers += 1
        return self.recent

    def release_recent(self, recent: Recent) -> None:
        """One reader less; without readers nothing is kept."""
        if recent is self.recent:
            self._followers -= 1
            if not self._followers:
                self.recent = None
                self.replicator.watch(False)

    # Leadership

    def _follow_role(self, turn: Turn) -> None:
        """Notice won and lost leadership. A new leader opens its term with a term-start record, and
        records if its election was forced."""
        self._standing = standing = self.replicator.standing
        role, term, _, _ = standing
        leads = term if role is Role.LEADER else None
        if leads == self.leader.term and (leads is None or self._term_start is not None):
            return
        turn.decides = True
        if self.leader.term is not None and self.leader.term != leads:
            turn.done += self.leader.resign(self.replicator.leader, self.replicator.commit_index)
            turn.done += self._reads.resign() + self.memberships.resign()
            self.member_records.resign()
            self._term_start = self.in_sync.led_since_ns = None
        if leads is None:
            return
        if self.leader.term is None:
            self.leader.lead(leads)
            self.in_sync.led_since_ns = turn.now_ns
            self.log.rebuild()
        if self._term_start is None and not turn.full and self.replicator.accepting:
            index = self.replicator.end_index + 1
            records: list[control.ControlRecord] = [control.TermStart(leads, self.node)]
            appointment = self.replicator.appointment
            if appointment is not None and appointment.forced and appointment.epoch == leads:
                records.append(control.ForcedRecord(leads, self.node, index - 1))
            if self.log.append(turn, records):
                self._term_start, self.memberships.term_begun = index, True

    def _refuse_when_short(self, turn: Turn) -> None:
        """Refuse calls that cannot commit until more replicas are in sync. Receives keep
        waiting."""
        if why := self.in_sync.why_short():
            turn.done += self.leader.refuse_all("in-sync-short", why)

    # Proposing

    def _propose(self, turn: Turn) -> bool:
        """Plan the waiting work and append it; True if something was appended."""
        # What is decided by time or by the timers' watermark is decided by those of the new epoch.
        accepting, turning = (
            self.replicator.accepting,
            self.member_records.time_epoch_index > self.machine.applied_index,
        )
        if turn.full or turn.stalled or turning or not accepting:
            # Due timers must not trigger one turn after another while nothing can be appended.
            self.leader.timer_firing.hold(turn.now_ns)
        if turn.full or turning or not accepting:
            # In the last moments of a handover calls wait: for the next leader, or for this one if
            # it keeps leadership.
            return False
        if turn.stalled:
            # Entries appended now could not be applied, so their callers would wait in vain.
            turn.done += self.leader.refuse_all("disk-full")
            return False
        first_index, next_offset = self.replicator.end_index + 1, self.log.sequencer.next_offset
        alone = self.in_sync.acks_async and self.in_sync.acks_alone
        plan = self.leader.plan(
            turn.now_ns,
            turn.now_ms,
            first_index,
            next_offset,
            full=self._writes_refused,
            alone=alone,
        )
        columns = self._append_plan(turn, plan, control_only=False)
        if columns is None and self.replicator.role is Role.LEADER:
            # The disk is full: refuse clients' messages; everything else may use the reserve.
            self.leader.withdraw()
            plan = self.leader.plan(
                turn.now_ns, turn.now_ms, first_index, next_offset, full=True, alone=alone
            )
            self.log.reserve_left -= sum(
                _entry_bytes(draft) for draft in plan.drafts if draft is not None
            )
            columns = (
                self._append_plan(turn, plan, control_only=True)
                if self.log.reserve_left > 0
                else None
            )
        if columns is None:
            self.leader.withdraw()
            return self.replicator.role is Role.LEADER and self._propose_trims(turn)
        queue_offsets, store_ms = columns
        turn.done += self.leader.appended(plan, queue_offsets, store_ms)
        for told in plan.assured:
            self._assure(turn, told)
        return (bool(plan.frames) and self._frames.append(turn, plan.frames)) or bool(plan.drafts)

    def _assure(self, turn: Turn, told: Done) -> None:
        """Give this answer once it is known that this replica still led."""
        turn.done += self._reads.take(
            Assured(told.token, told.outcome), turn.now_ns, serving=self.leader.serving
        )

    def _propose_trims(self, turn: Turn) -> bool:
        """Refuse everything but trims: only they free space, so they may also use what deliveries
        left of the reserve."""
        turn.full = True
        plan = self.leader.plan_trims(turn.now_ns, turn.now_ms, self.replicator.end_index + 1)
        columns = self._append_plan(turn, plan, control_only=True)
        if columns is None:
            self.leader.withdraw()
            turn.done += self.leader.refuse_all("disk-full")
            return False
        queue_offsets, store_ms = columns
        turn.done += self.leader.appended(plan, queue_offsets, store_ms)
        return bool(plan.drafts)

    def _append_plan(
        self, turn: Turn, plan: Plan, *, control_only: bool
    ) -> tuple[list[int], int] | None:
        if not plan.drafts:
            return [], 0
        drafts = [draft for draft in plan.drafts if draft is not None]
        assert len(drafts) == len(plan.drafts), "a reserved place was not filled"
        # Someone waits for the commit of every draft but a message of the class `memory`, such as
        # leases and acknowledgements.
        urgent, early = len(drafts) > plan.memory_drafts, plan.memory_drafts > 0
        found = self.log.append_batch(
            turn, encode_entries(drafts), control_only=control_only, urgent=urgent, early=early
        )
        return None if found is None else (found[0].queue_offsets.tolist(), found[0].store_ms)

    # Applying

    def _apply(self, turn: Turn) -> bool:
        """Apply committed entries; True if there were any."""
        applied = False
        machine, commit_index = self.machine, turn.commit_index
        while machine.applied_index < commit_index and not turn.stalled:
            if turn.applied_bytes >= _APPLY_BYTES_PER_TURN:
                turn.wake(turn.now_ns)
                break
            entries = self.replicator.read(machine.applied_index + 1, READ_BYTES)
            if entries.last_index > commit_index:
                entries = cut(entries, commit_index)
            try:
                effects = machine.apply(entries)
            except NoSpace:
                self.dispatch_stalled += 1
                turn.stalled = turn.decides = True
                break
            applied = turn.changed = turn.decides = True
            turn.applied_bytes += len(effects.entries.data)
            if self.recent is not None:
                self.recent.add(effects.entries, effects.columns)
            if self._reads.pulls.waiting:
                self._reads.pulls.wake(effects.topics)
            if effects.vanished:
                self.log.sequencer.forget(effects.vanished)
            if self.leader.serving:
                if effects.time_epoch:
                    self.leader.timer_firing.time_epoch_began(turn.now_ns)
                if effects.touched:
                    turn.touched = True
                    self.leader.lease_server.touched(turn.now_ns, effects.touched)
                for offset in effects.halves:
                    self.leader.checks.touched(turn.now_ns, offset)
                self.leader.arrived(effects)
                if machine.lite.count or effects.lite:
                    self.leader.lite.follow(effects, turn.now_ns)
            if done := self.leader.applied(effects.entries):
                turn.done += certified(done, self.replicator.durable_indexes)
            if (
                self._term_start is not None
                and not self.leader.serving
                and machine.applied_index >= self._term_start
            ):
                self.leader.serve(turn.now_ns)
                turn.touched = True
        return applied

    # What outsiders see

    def _finish(self, turn: Turn, *, heard: bool) -> TurnOutput:
        self._standing = standing = self.replicator.standing
        self._commit_index = turn.commit_index
        if turn.decides:
            self._end_decisions(turn)
        if self.leader.term is None and (heard or turn.decides):
            self.freshness.note(
                self.replicator.last_contact, self.machine.applied_index, self.machine.applied_term
            )
        if self.log.batches and (
            self.log.batches[0] <= turn.commit_index
            or self.in_sync.acks_async
            or self.leader.term is None
        ):
            self._forget_batches(turn.commit_index)
        agreed = self.replicator.appointment if standing[3].rule is Rule.IN_SYNC else None
        if self.machine.topics is not self._policies_of or standing[3].rule is Rule.IN_SYNC:
            self._holds_calls = self._may_hold_calls()
        seen = (
            *standing[1:],
            self.leader.serving,
            None if agreed is None else agreed.order,
            self.in_sync.missing,
        )
        view = self._view(standing) if turn.changed or seen != self._seen else None
        self._seen = seen
        fetches = self.leader.tier.fetches() if turn.decides and self.leader.tier.queued else ()
        return TurnOutput(
            done=turn.done,
            packets=turn.packets,
            sync=turn.sync,
            wake_at_ns=min(turn.wake_at_ns, self._wake_ns, turn.replica_wake_at_ns),
            view=view,
            hold_calls=self._holds_calls,
            open_batches=len(self.log.batches),
            ha_requests=tuple(turn.ha_requests),
            tier_fetches=fetches,
        )

    def _forget_batches(self, commit_index: int) -> None:
        """Drop the batches whose sends are answered."""
        acknowledged = (
            self.replicator.replicated_index
            if self.in_sync.acks_async and self.in_sync.acks_alone
            else commit_index
        )
        while self.log.batches and (
            self.log.batches[0] <= acknowledged or self.leader.term is None
        ):
            self.log.batches.popleft()

    def _end_decisions(self, turn: Turn) -> None:
        """End what is due, and find out until when time alone gives the decisions no work."""
        now_ns, leader, pulls, handovers = (
            turn.now_ns,
            self.leader,
            self._reads.pulls,
            self._handovers,
        )
        if leader.term is None and not (turn.stalled or handovers.waiting or pulls.waiting):
            # A follower decides nothing, and no call waits here.
            self._wake_ns = self._due_ns = NEVER_NS
            return
        if leader.polls.deadlines:
            turn.done += leader.due(now_ns)
        if pulls.deadlines:
            turn.done += pulls.due(now_ns)
        if leader.serving and handovers.looks:
            handovers.look_for_leader(now_ns)
        if handovers.waiting:
            turn.done += handovers.look(now_ns)
        if turn.stalled:
            turn.done += self._reads.stalled()
        busy = turn.full or turn.stalled or bool(handovers.waiting or pulls.turned_away)
        if turn.full or turn.stalled:
            turn.wake(now_ns + _RETRY_NS)
        elif leader.polls.woken and leader.wants_turn():
            turn.wake(now_ns)
        wake_ns, quiet_ns = leader.next_times_ns(now_ns)
        pulled_ns = pulls.wake_at_ns(now_ns) if pulls.waiting or pulls.deadlines else NEVER_NS
        wake_ns = min(wake_ns, pulled_ns)
        if handovers.waiting:
            wake_ns = min(wake_ns, handovers.wake_at_ns())
        if leader.serving or self.memberships.master_begins:
            assert self._standing is not None
            members = self._standing[3]
            retries = self.memberships.returned or members.returning or members.towards is not None
            if not (turn.full or turn.stalled):
                # Without space no change of members is tried, so its time would stay in the past.
                wake_ns = min(wake_ns, self.memberships.due_ns if retries else NEVER_NS)
            quiet_ns = (
                0
                if self.memberships.asked or self.memberships.owed
                else min(quiet_ns, self.memberships.due_ns)
            )
        if leader.serving and handovers.looks:
            quiet_ns = min(quiet_ns, handovers.again_ns)
        self._wake_ns = wake_ns
        self._due_ns = 0 if busy or pulled_ns == now_ns else min(quiet_ns, pulled_ns)

    def _may_hold_calls(self) -> bool:
        """Holding calls back costs nothing only if every send waits for a sync anyway. While too
        few replicas are in sync, or a majority's disks are full, calls must reach the group to be
        refused: the open batch may stay open."""
        if self.in_sync.missing or self._writes_refused:
            return False
        if self.in_sync.acks_async and (self.in_sync.is_far_ahead or self.in_sync.acks_alone):
            return True
        topics = self.machine.topics
        if self._policies_of is not topics:
            self._policies_of = topics
            self._all_durable = {
                policy_of(self._policy, topic.durability) for topic in topics.values()
            } <= {FlushPolicy.DURABLE}
        return self._all_durable

    @property
    def writes_refused(self) -> bool:
        """Set by retention when this disk, or those of a majority, are too full for clients'
        messages. A leader then refuses those, and continues with everything else."""
        return self._writes_refused

    @writes_refused.setter
    def writes_refused(self, refused: bool) -> None:
        self._writes_refused = refused
        self._holds_calls = self._may_hold_calls()

    @property
    def full_nodes(self) -> frozenset[str]:
        """As `note_full` was told."""
        return self._handovers.full

    def note_full(self, nodes: frozenset[str]) -> None:
        """The nodes, possibly this one, whose disks take no messages, as far as is known here:
        another replica should lead."""
        self._handovers.note_full(nodes)

    def view(self) -> GroupView:
        """What outsiders may know of this group now."""
        return self._view(self.replicator.standing)

    def _view(self, standing: tuple[Role, int, str | None, Members]) -> GroupView:
        _, term, leader, members = standing
        return GroupView(
            leader=leader,
            term=term,
            serving=self.leader.serving,
            topics=self.machine.topics,
            groups=self.machine.groups,
            queue_ends=self.machine.queue_ends(),
            members=self.machine.members,
            incarnations=members.incarnations,
            in_effect=members.nodes,
            level=self.machine.level,
            ha=self.in_sync.view() if members.rule is Rule.IN_SYNC else None,
            store_ms=self.machine.store_ms,
            undecided=len(self.machine.transactions.halves),
        )

    def statistics(self) -> dict[str, Any]:
        """Counters and gauges of this replica, collected when they are asked for."""
        return {
            **self.leader.counters,
            "producers": len(self.machine.producers),
            "frames_astray": self.machine.producers.astray,
            "message_ids": self.machine.ids.count,
            "message_ids_forgotten_early": self.machine.ids.forgotten_early,
            "polls_waiting": len(self.leader.polls),
            "pulls_waiting": len(self._reads.pulls),
            "in_flight": self.machine.delivery.in_flight,
            "visible_again": self.leader.clock.ready_count,
            **self._tier_statistics(),
            "transactions_undecided": len(self.machine.transactions.halves),
            "store_ms": self.machine.store_ms,
            "time_epochs": len(self.machine.time_epochs.begins),
            "timers_pending": self.machine.timers.pending,
            **{f"timers_{name}": count for name, count in self.machine.timers.counts.items()},
            "log_full": self.log.full,
            "dispatch_stalled": self.dispatch_stalled,
            "writes_refused": int(self._writes_refused and self.leader.term is not None),
            **self.in_sync.statistics(),
        }

    def _tier_statistics(self) -> dict[str, int]:
        tier = self.leader.tier
        return {
            "tier_waiting": tier.waiting,
            "tier_bytes": tier.size,
            "tier_failures": tier.failures,
        }

    @property
    def log_full(self) -> int:
        """How often the log of this leader had no room."""
        return self.log.full

    def status(self) -> ReplicaStatus:
        """The replica's own status with the applied index filled in."""
        return self.machine.fill_status(self.replicator.status())


_TAKEN = [
    *handlers(PARTS, "CALLS"),
    *handlers((*PARTS, Leader, Handovers, Reads, Memberships), "ARRIVALS"),
]
# A call that no part takes, or two, is found here and not by a client whose call is never answered.
assert len(_TAKEN) == len(set(_TAKEN)) and set(_TAKEN) == kinds_of_calls(), (
    set(_TAKEN) ^ kinds_of_calls()
)


def _entry_bytes(draft: Draft) -> int:
    return entry_bytes(draft.stored_topic, len(draft.body), len(draft.properties))
