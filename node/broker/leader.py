"""The leader's side of a broker group: decides client calls against the state as of the log's end,
while this node leads.

Synchronous and deterministic. `take` accepts calls; `plan` lets the part to which a call belongs
(`PARTS`) turn it into drafts of one batch, and then serves the waiting Receives; `appended`
confirms the plan once the log took the batch, `withdraw` undoes it if the log refused. A call is
answered when the entry that carries its effect is applied (`applied`); only sends of the classes
`memory` and `master` are answered earlier, when the entry is replicated (`replicated`). Losing
leadership ends every call: `unknown-outcome` for appended ones, `not-leader` for the others.

A part that has no call and nothing due is not asked in a turn.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from typing import ClassVar

from ledgermq.node.broker.calls import Token
from ledgermq.node.broker.calls.consumer_calls import ClientGone, ClientsAlive, Receive
from ledgermq.node.broker.calls.operator_calls import Trim
from ledgermq.node.broker.calls.outcome import Call, Done, Refused, Result, Sign
from ledgermq.node.broker.calls.send_calls import (
    FrameProduced,
    Produced,
    ProduceFrame,
    ProducerOpened,
)
from ledgermq.node.broker.filters.filters import LOOKS_PER_TURN
from ledgermq.node.broker.flush import Durability, FlushPolicy
from ledgermq.node.broker.machine import Machine
from ledgermq.node.broker.part import Effects, LeaderPart, Takers, handlers
from ledgermq.node.broker.parts.config.configuring import Configuring
from ledgermq.node.broker.parts.dead_letters.dead_lettering import DeadLettering
from ledgermq.node.broker.parts.delivery.broadcasting import Members
from ledgermq.node.broker.parts.delivery.fifo import MessageGroups
from ledgermq.node.broker.parts.delivery.lease_serving import LeaseServer
from ledgermq.node.broker.parts.delivery.leases import LeaseClock, LeaseTimes
from ledgermq.node.broker.parts.delivery.picker import Picker
from ledgermq.node.broker.parts.delivery.polls import END_GRID_NS, Polls
from ledgermq.node.broker.parts.delivery.tier_messages import TierMessages
from ledgermq.node.broker.parts.lite.lite_serving import LiteServer
from ledgermq.node.broker.parts.producers.producer_sequencing import (
    PRODUCERS_MAX,
    InLog,
    ProducerSequencing,
    Told,
)
from ledgermq.node.broker.parts.pulls.offset_commits import OffsetCommits
from ledgermq.node.broker.parts.retention.retention_records import RetentionRecords
from ledgermq.node.broker.parts.sends.deduplication import with_known
from ledgermq.node.broker.parts.sends.send_admission import SendAdmission
from ledgermq.node.broker.parts.timers.timer_firing import TimerFiring, fire_times
from ledgermq.node.broker.parts.transactions.transaction_checks import CheckClock, TransactionRules
from ledgermq.node.broker.parts.transactions.transaction_resolution import TransactionResolver
from ledgermq.node.broker.plan import NEVER_NS, PLAN_BYTES, Awaited, Plan
from ledgermq.node.broker.ports import ReadBudget, Unlimited
from ledgermq.node.broker.queries.traffic import Traffic
from ledgermq.node.broker.uncommitted import UncommittedState
from ledgermq.proto.names import CONFIG_TOPIC, STORAGE_TOPIC, TIMER_TOPIC
from ledgermq.proto.types import Range
from ledgermq.raft.config import HaRules

PARTS: tuple[type[LeaderPart], ...] = (
    *(
        TimerFiring,
        SendAdmission,
        ProducerSequencing,
        TransactionResolver,
        DeadLettering,
        Configuring,
        OffsetCommits,
        RetentionRecords,
    ),
    *(LiteServer, Members, LeaseServer),
)
DECIDED = handlers(PARTS, "CALLS").keys()
"""Calls that a plan decides; they concern nothing before it."""
_ROW_BYTES_MAX = 1024
"""The most bytes of a shared record that one handle takes: names and a client id at their
longest."""
_CLASS_NAMES = {durability: durability.value for durability in Durability}


@dataclass(frozen=True, slots=True)
class LeaderSettings:
    """The leader's settings for one broker group."""

    times: LeaseTimes = field(default_factory=LeaseTimes)
    receive_bytes_max: int = 16 << 20
    lite_topics_max: int = 20_000
    """How many lite topics of one topic may have messages here."""
    entry_bytes_max: int = (64 << 20) - 8
    policy: FlushPolicy = FlushPolicy.DURABLE
    """The flush policy for topics without a durability of their own."""
    max_attempts: int = 17
    """Deliveries of a message to a consumer group without a configuration."""
    ha: HaRules = field(default_factory=HaRules)
    """The rules in force while the group has the rule IN_SYNC."""
    preferred: str | None = None
    """The replica that should lead whenever it can."""
    producers_max: int = PRODUCERS_MAX
    """How many producers of native frames a broker group keeps."""
    transactions: TransactionRules = field(default_factory=TransactionRules)
    budget: ReadBudget = field(default_factory=Unlimited)


class Leader:
    """The decisions of one broker group's leader. Idle and empty on a follower."""

    transaction_resolver_type: type[TransactionResolver] = TransactionResolver
    producer_sequencing_type: type[ProducerSequencing] = ProducerSequencing
    tier_type: type[TierMessages] = TierMessages
    lease_server_type: type[LeaseServer] = LeaseServer

    def __init__(self, machine: Machine, settings: LeaderSettings) -> None:
        self.term: int | None = None
        """The term that this node leads; None on a follower."""
        self.serving = False
        self._machine = machine
        self._uncommitted = uncommitted = UncommittedState()
        self.clock = LeaseClock(machine.delivery, settings.times)
        self.polls = Polls()
        self.tier = self.tier_type(machine)
        self._groups = MessageGroups(machine.delivery, uncommitted, self.tier.message_group_of)
        self._picker = Picker(
            messages=self.tier,
            delivery=machine.delivery,
            clock=self.clock,
            uncommitted=uncommitted,
            groups=self._groups,
            max_bytes=settings.receive_bytes_max,
        )
        self.looks = self._picker.looks
        self.checks = CheckClock(machine.transactions, settings.transactions)
        room, liveness_ns, budget = (
            settings.entry_bytes_max,
            settings.times.liveness_ns,
            settings.budget,
        )
        self._rows_max = room // (2 * _ROW_BYTES_MAX)
        """How many rows a plan may have: its shared records must fit into a log file. Further calls
        go into the next batch."""
        self.timer_firing = TimerFiring(machine, uncommitted)
        self.dead_lettering = DeadLettering(
            machine, self.tier, uncommitted, room, settings.max_attempts
        )
        self.lite = LiteServer(
            machine,
            self.clock.ready,
            uncommitted,
            self.polls,
            self.dead_lettering,
            liveness_ns=liveness_ns,
            max_bytes=settings.receive_bytes_max,
            topics_max=settings.lite_topics_max,
            budget=budget,
        )
        self.members = Members(machine, uncommitted, liveness_ns)
        self.producer_sequencing = self.producer_sequencing_type(
            machine, machine.producers, uncommitted, room, settings.producers_max
        )
        self.lease_server = self.lease_server_type(
            machine=machine,
            clock=self.clock,
            uncommitted=uncommitted,
            polls=self.polls,
            tier=self.tier,
            groups=self._groups,
            picker=self._picker,
            lite=self.lite,
            members=self.members,
            letters=self.dead_lettering,
            budget=budget,
        )
        self._parts: tuple[LeaderPart, ...] = (
            self.timer_firing,
            SendAdmission(
                machine,
                uncommitted,
                self.timer_firing,
                self.lite,
                entry_bytes_max=room,
                policy=settings.policy,
            ),
            self.producer_sequencing,
            self.transaction_resolver_type(
                machine, self.checks, uncommitted, room, settings.transactions
            ),
            self.dead_lettering,
            Configuring(machine, uncommitted, self.polls.wake_group),
            OffsetCommits(machine, uncommitted),
            RetentionRecords(machine, uncommitted),
            self.lite,
            self.members,
            self.lease_server,
        )
        self._deciders = handlers(self._parts, "CALLS")
        self._takers = handlers((self, *self._parts), "ARRIVALS")
        self._watching = [part for part in self._parts if type(part).alive is not LeaderPart.alive]
        """Parts that want to know which clients are there."""
        self.inbox: list[Call] = []
        """Calls for the next plan."""
        self._awaited: list[tuple[int, int, Awaited]] = []
        self.early: deque[Awaited] = deque()
        """Sends that wait for replication, by index. Each call waits either here or in `_awaited`,
        so that it is answered once."""
        self.uncommitted_topics: dict[str, int] = {}
        """Stored topic → its last unapplied entry of the class `memory`."""
        self._serial = 0
        self.traffic = Traffic(machine.delivery)
        self.counters: dict[str, int] = dict.fromkeys(
            (
                "produced",
                "leased",
                "leased_again",
                "dead_lettered",
                "acked",
                "changed",
                "handles_refused",
                "passed_over",
            ),
            0,
        )
        self.counters |= dict.fromkeys(
            ("lite_sets_changed", "lite_sets_dropped", "members_dropped"), 0
        )
        self.counters |= dict.fromkeys(
            ("released", "reset", "duplicates", "messages_recalled", "offsets_committed"), 0
        )
        self.counters |= dict.fromkeys(
            ("letters_resent", "letters_purged", "letters_ended", "gone"), 0
        )
        self.counters |= dict.fromkeys(
            ("half_messages", "transactions_committed", "transactions_rolled_back"), 0
        )
        self.counters |= dict.fromkeys(("transaction_checks", "transactions_dropped"), 0)
        self.counters |= dict.fromkeys(
            ("producers_opened", "producers_resumed", "producers_dropped"), 0
        )
        self.counters |= dict.fromkeys(
            ("frames", "frame_messages", "frame_duplicates", "frames_refused"), 0
        )

    # Leadership

    def lead(self, term: int) -> None:
        """This node won `term`. It serves once its term-start record is applied."""
        assert self.term is None, "resign before leading again"
        self.term = term

    def serve(self, now_ns: int) -> None:
        """The term-start record is applied, so the applied state covers every earlier term."""
        self.serving = True
        for part in self._parts:
            part.lead(now_ns)
        early, self.inbox = self.inbox, []
        for call in early:
            if isinstance(call, ClientGone):
                self._note_gone(call)
            else:
                self.inbox.append(call)

    def resign(self, leader: str | None, commit_index: int) -> list[Done]:
        """Leadership is lost. Answers that wait for an entry up to `commit_index` may still be
        given when it is applied."""
        self.term = None
        self.serving = False
        done = [
            Done(call.token, Refused("not-leader", leader))
            for call in self.inbox
            if not isinstance(call, Sign)
        ]
        for early in self.early:
            self._await(early)
        self.early.clear()
        self.uncommitted_topics.clear()
        kept: list[tuple[int, int, Awaited]] = []
        for index, serial, awaited in sorted(self._awaited, key=lambda item: item[:2]):
            if awaited.poll is not None and self.polls.get(awaited.token) is None:
                continue
            if index > commit_index:
                done.append(Done(awaited.token, Refused("unknown-outcome", leader)))
            else:
                kept.append((index, serial, replace(awaited, poll=None)))
        self._awaited = kept
        done += [
            Done(poll.call.token, Refused("not-leader", leader))
            for poll in self.polls.clear()
            if not poll.leasing
        ]
        self.inbox = []
        self._uncommitted.clear()
        for part in self._parts:
            part.resign()
        return done

    # Calls

    def take(self, calls: Sequence[Call], leader: str | None, now_ns: int) -> list[Done]:
        """Accept calls. Returns the answers that need no decision."""
        done: list[Done] = []
        for call in calls:
            if self.serving and type(call) in DECIDED:
                self.inbox.append(call)
            elif self.term is None:
                if not isinstance(call, Sign):
                    done.append(Done(call.token, Refused("not-leader", leader)))
            elif (take := self._takers.get(type(call))) is not None:
                done += take(call, now_ns)
            else:
                self.inbox.append(call)
        return done

    def _take_receive(self, call: Receive, now_ns: int) -> list[Done]:
        self.polls.add(call)
        self._note_alive((call.client_id,), now_ns)
        return []

    def _take_alive(self, call: ClientsAlive, now_ns: int) -> list[Done]:
        """Before this leader serves, every client counts as alive."""
        if self.serving:
            self._note_alive(sorted(call.client_ids), call.at_ns)
        return []

    def _take_gone(self, call: ClientGone, now_ns: int) -> list[Done]:
        done = [
            done
            for poll in self.polls.of_client(call.client_id)
            for done in self.lease_server.cancel(poll.call.token)
        ]
        if self.serving:
            self._note_gone(call)
        else:
            self.inbox.append(call)
        return done

    def _note_alive(self, clients: Sequence[str], at_ns: int) -> None:
        for part in self._watching:
            part.alive(clients, at_ns)

    def _note_gone(self, call: ClientGone) -> None:
        for part in self._watching:
            part.gone(call.client_id, call.at_ns)

    ARRIVALS: ClassVar[Takers] = {
        Receive: _take_receive,
        ClientsAlive: _take_alive,
        ClientGone: _take_gone,
    }
    """Calls that concern several parts."""

    def expire(self, now_ns: int) -> None:
        """End what is due: leases whose time is over, and what clients had that show no sign of
        life."""
        if not self.serving:
            return
        ends = self.clock.ends
        if now_ns >= self.tier.retry_ns or (ends and now_ns >= ends[0][0]):
            self.lease_server.expire(now_ns)
        for part in self._parts:
            if now_ns >= part.due_ns:
                part.expire(now_ns)

    def due(self, now_ns: int) -> list[Done]:
        """Answer long polls whose time is over. Called while `polls.deadlines` has some."""
        return self.lease_server.due(now_ns) if now_ns >= self.polls.deadlines[0][0] else []

    def has_work(self) -> bool:
        """Whether there is anything to plan."""
        if not self.serving:
            return False
        return bool(self.inbox or self.lease_server.releases) or any(
            [part.ready() for part in self._parts if part.pending]
        )

    def next_times_ns(self, now_ns: int) -> tuple[int, int]:
        """When this leader needs the next turn; and until when `expire`, `due` and `look` find
        nothing to do, unless a call is taken or an entry is applied. Ended leases need a turn only
        while a Receive waits for messages."""
        wake_ns = quiet_ns = NEVER_NS
        if self.polls.deadlines:
            wake_ns = self.polls.wake_at_ns()
            quiet_ns = wake_ns - END_GRID_NS
        if not self.serving:
            return wake_ns, quiet_ns
        if self.timer_firing.waits or self._machine.timers.arrived:
            firing_ns = self.timer_firing.wake_at_ns(now_ns)
            if firing_ns is not None:
                # Delayed messages wait for the wall clock, and its rate is not known.
                wake_ns, quiet_ns = min(wake_ns, firing_ns), now_ns
        due_ns = min(self.tier.retry_ns, self.lite.due_ns, self.members.due_ns)
        wake_ns, quiet_ns = min(wake_ns, due_ns), min(quiet_ns, due_ns)
        if self.clock.ends:
            ended_ns = self.clock.ends[0][0]
            quiet_ns = min(quiet_ns, ended_ns)
            if len(self.polls):
                wake_ns = min(wake_ns, ended_ns)
        if (
            self.inbox
            or self.lease_server.releases
            or any([part.ready() for part in self._parts if part.pending])
        ):
            quiet_ns = 0
        return wake_ns, quiet_ns

    # Planning

    def begin_turn(self, now_ns: int, now_ms: int) -> None:
        """Refill the work budget of a turn, and look for due delayed messages."""
        self.looks.left = LOOKS_PER_TURN
        if self.serving and (self.timer_firing.waits or self._machine.timers.arrived):
            self.timer_firing.look(now_ns, now_ms)

    def wants_turn(self) -> bool:
        """Whether this turn's budget for filters ran out. Called while `polls.woken` has Receives
        that were not examined."""
        return self.serving and self.looks.left <= 0

    def plan(
        self,
        now_ns: int,
        now_ms: int,
        first_index: int,
        next_offset: Callable[[str, int], int],
        *,
        full: bool = False,
        alone: bool = False,
    ) -> Plan:
        """Decide all waiting work. With `full`, client messages are refused; `next_offset`,
        `alone`: see `Plan`."""
        assert self.serving, "a leader serves only after its term-start record is applied"
        plan = Plan(
            first_index=first_index,
            now_ns=now_ns,
            now_ms=now_ms,
            full=full,
            alone=alone,
            next_offset=next_offset,
        )
        for part in self._parts:
            if part.pending:
                part.begin_plan(plan)
        for call in self.inbox:
            if plan.size >= PLAN_BYTES or plan.rows > self._rows_max:
                plan.deferred.append(call)
            else:
                self._deciders[type(call)](plan, call)
        if self.lease_server.releases:
            self.lease_server.give_back(plan, self._rows_max)
        for part in self._parts:
            if part.pending:
                part.end_plan(plan)
        if self.polls.waiting_for:
            self.lease_server.serve(plan)
        if plan.shared:
            plan.finish()
        return plan

    def plan_trims(self, now_ns: int, now_ms: int, first_index: int) -> Plan:
        """On a full disk, decide the trims, which can free space, and refuse every other call.
        Receives and releases keep waiting."""
        plan = Plan(first_index, now_ns, now_ms, full=True)
        plan.done += [
            Done(call.token, Refused("disk-full"))
            for call in self.inbox
            if not isinstance(call, (Trim, Sign))
        ]
        self.timer_firing.begin_plan(plan)
        for call in self.inbox:
            if isinstance(call, Trim):
                self._deciders[Trim](plan, call)
        return plan

    def withdraw(self) -> None:
        """The log refused the plan; none of it takes effect."""
        self._uncommitted.rollback()
        for part in self._parts:
            part.withdrawn()

    def refuse_all(self, reason: str, detail: str = "") -> list[Done]:
        """Refuse every call, because not even control records fit, or none could be committed.
        Receives keep waiting."""
        done = [
            Done(call.token, Refused(reason, detail=detail))
            for call in self.inbox
            if not isinstance(call, Sign)
        ]
        self.inbox = []
        return done

    def appended(self, plan: Plan, queue_offsets: Sequence[int], store_ms: int) -> list[Done]:
        """The batch of `plan` is in the log, or the plan had no drafts."""
        assert self.term is not None, "only a leader appends"
        if self._uncommitted.undo:
            self._uncommitted.keep()
        self.inbox = plan.deferred
        for keep in plan.kept:
            keep(plan)
        for name, by in plan.counts.items():
            self.counters[name] += by
        if plan.traffic:
            self.traffic.leased(plan.traffic)
        some_delayed = any(
            [draft is not None and draft.stored_topic == TIMER_TOPIC for draft in plan.drafts]
        )
        for call, place, durability in plan.produced:
            end = place + len(call.drafts)
            offsets, fire_ms = (
                tuple(queue_offsets[place:end]),
                fire_times(plan.drafts[place:end]) if some_delayed else (),
            )
            if call.token in plan.known:
                offsets, fire_ms = with_known(plan.known[call.token], offsets, fire_ms)
            produced = Produced(
                first_index=plan.first_index + place,
                term=self.term,
                queue_offsets=offsets,
                store_ms=store_ms,
                durability=_CLASS_NAMES[durability],
                fire_ms=fire_ms,
            )
            awaited = Awaited(plan.first_index + end - 1, self.term, call.token, produced)
            if durability is Durability.DURABLE:
                self._serial += 1
                heappush(self._awaited, (awaited.index, self._serial, awaited))
                continue
            self.early.append(awaited)
            if durability is Durability.MEMORY:
                self.uncommitted_topics.update(
                    (draft.stored_topic, awaited.index) for draft in call.drafts
                )
        for index, token, result in plan.awaited:
            self._await(Awaited(index, self.term, token, result))
        if plan.settled or plan.unserved:
            self.lease_server.settle(plan)
        for index, poll, leases in plan.leased:
            self.polls.leasing(poll)
            self._await(
                Awaited(
                    index=index,
                    term=self.term,
                    token=poll.call.token,
                    result=None,
                    poll=poll,
                    leases=leases,
                    topic=poll.call.topic,
                )
            )
        return plan.done

    def put_back(self, calls: Sequence[Call]) -> None:
        """Calls of a plan that were not decided after all are first in the next one."""
        self.inbox = [*calls, *self.inbox]

    def frame_appended(self, call: ProduceFrame, answer: FrameProduced) -> None:
        """The frame is in the log."""
        assert self.term is not None, "only a leader appends"
        self.producer_sequencing.appended(call.frame, answer)
        self.counters["frames"] += 1
        self.counters["frame_messages"] += answer.count
        awaited = Awaited(answer.last_index, self.term, call.token, answer)
        durability = Durability(answer.durability)
        if not durability.early:
            self._await(awaited)
            return
        self.early.append(awaited)
        if durability is Durability.MEMORY:
            self.uncommitted_topics[call.topic] = answer.last_index

    def frame_judged(self, verdict: Told) -> None:
        """A frame was not appended: count the reason."""
        stored = isinstance(verdict, InLog) or not isinstance(verdict.outcome, Refused)
        self.counters["frame_duplicates" if stored else "frames_refused"] += 1

    def await_entry(self, index: int, token: Token, result: Result | Refused) -> None:
        """Answer a call when an entry that was appended for it outside of a plan is applied."""
        assert self.term is not None, "only a leader appends"
        self._await(Awaited(index, self.term, token, result))

    def _await(self, awaited: Awaited) -> None:
        self._serial += 1
        heappush(self._awaited, (awaited.index, self._serial, awaited))

    # Replicated, and applied

    def replicated(self, index: int, *, alone: bool = False) -> list[Done]:
        """A majority holds the entries of this term up to `index` in memory or, with `alone`, the
        master of an HA group has them on stable storage. Answer the sends that wait for no more
        than that. If the group's rule has changed meanwhile, sends that wait for the other of the
        two now wait for the commit."""
        done: list[Done] = []
        if self.early and alone is not (_class_of(self.early[0]) == Durability.MASTER.value):
            for early in self.early:
                self._await(early)
            self.early.clear()
        while self.early and self.early[0].index <= index:
            awaited = self.early.popleft()
            assert awaited.term == self.term and awaited.result is not None, awaited
            done.append(Done(awaited.token, awaited.result))
        return done

    def wants_commit(self) -> bool:
        """Whether a Receive waits for messages whose commit is not urgent for any other caller.
        Only committed messages are delivered."""
        return any([self.polls.waits_for(topic) for topic in self.uncommitted_topics])

    def arrived(self, effects: Effects) -> None:
        """These entries were applied: wake the Receives that may find messages now."""
        columns = effects.columns
        self.traffic.applied(effects.entries, columns, self._machine.topics)
        if CONFIG_TOPIC in columns.topics:
            self.polls.forget_all()
            self.traffic.forget(self._machine.topics)
        if STORAGE_TOPIC in columns.topics:
            # After a trim whose files the object store has, a group that is new to a queue begins
            # lower than before.
            self.polls.wake_all()
        for topic in effects.topics if self.polls.waiting_for or self.polls.known_of else ():
            if topic not in columns.topics:
                self.polls.wake_topic(topic)
            else:
                queues = columns.queues[columns.topic_of == columns.topics.index(topic)]
                self.polls.arrived(topic, dict.fromkeys(queues.tolist()), self._picker.is_new)

    def applied(self, entries: Range) -> list[Done]:
        """The machine applied these entries: answer the calls that waited for them."""
        if self.term is not None:
            if self._uncommitted.by_index:
                self._uncommitted.applied(entries.last_index)
            for part in self._parts:
                if part.unapplied_index <= entries.last_index:
                    part.applied(entries.last_index)
        if self.lease_server.touched_rows:
            self.lease_server.follow()
        if self.uncommitted_topics:
            self.uncommitted_topics = {
                topic: last
                for topic, last in self.uncommitted_topics.items()
                if last > entries.last_index
            }
        done: list[Done] = []
        while self._awaited and self._awaited[0][0] <= entries.last_index:
            _, _, awaited = heappop(self._awaited)
            if awaited.term != entries.term:
                # Another leader's entry is at this index.
                done.append(Done(awaited.token, Refused("unknown-outcome")))
            elif isinstance(awaited.result, ProducerOpened):
                done.append(Done(awaited.token, self._with_digest(awaited.result)))
            elif awaited.result is not None:
                done.append(Done(awaited.token, awaited.result))
            else:
                done += self.lease_server.hand_out(awaited)
        return done

    def _with_digest(self, opened: ProducerOpened) -> ProducerOpened:
        """With the digest of what was stored before its record. A producer that was resumed may
        have more messages by now."""
        producer = self._machine.producers.get(opened.producer_id)
        if producer is None or producer.next_sequence != opened.next_sequence:
            return opened
        return replace(opened, digest=producer.digest)


def _class_of(awaited: Awaited) -> str:
    assert isinstance(awaited.result, Produced | FrameProduced), awaited
    return awaited.result.durability
