"""The leader's side of a broker group: decides client calls against the state as of the log's end, while this node leads.

Synchronous and deterministic. `take` accepts calls; `plan` turns them and the waiting Receives into the drafts of one batch; `appended`
confirms the plan once the log took the batch, `withdraw` undoes it if the log refused. A call is answered when the entry that carries its
effect is applied (`applied`); only sends of the classes `memory` and `master` are answered earlier, when the entry is replicated
(`replicated`). Losing leadership ends every call: `unknown-outcome` for appended ones, `not-leader` for the others.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush

from ledgermq.node.broker.calls import Token
from ledgermq.node.broker.calls.consumer_calls import Ack, CancelReceive, Change, ClientGone, ClientsAlive, Lease, Receive, Received
from ledgermq.node.broker.calls.member_calls import Appointed, Prefer, Returned
from ledgermq.node.broker.calls.operator_calls import Trim
from ledgermq.node.broker.calls.outcome import UNREAD, Call, Done, Refused, Result
from ledgermq.node.broker.calls.send_calls import FrameProduced, Produce, Produced, ProduceFrame, ProducerOpened
from ledgermq.node.broker.calls.tier_calls import TierFetched
from ledgermq.node.broker.decisions.broadcasting import Members
from ledgermq.node.broker.decisions.dead_lettering import DeadLettering
from ledgermq.node.broker.decisions.deduplication import with_known
from ledgermq.node.broker.decisions.fifo import MessageGroups
from ledgermq.node.broker.decisions.leases import LeaseClock, LeaseTimes
from ledgermq.node.broker.decisions.lite_serving import LiteServer
from ledgermq.node.broker.decisions.picker import Picker
from ledgermq.node.broker.decisions.polls import END_GRID_NS, Poll, Polls
from ledgermq.node.broker.decisions.producer_sequencing import PRODUCERS_MAX, InLog, ProducerSequencing, Told
from ledgermq.node.broker.decisions.tier_messages import TierMessages
from ledgermq.node.broker.decisions.timer_firing import TimerFiring, fire_times
from ledgermq.node.broker.decisions.traffic import Traffic
from ledgermq.node.broker.decisions.transaction_checks import CheckClock, TransactionRules
from ledgermq.node.broker.decisions.transaction_resolution import TransactionResolver
from ledgermq.node.broker.flush import Durability, FlushPolicy
from ledgermq.node.broker.machine import Effects, Machine
from ledgermq.node.broker.plan import Awaited, Plan
from ledgermq.node.broker.planner import Planner
from ledgermq.node.broker.ports import ReadBudget, Unlimited
from ledgermq.node.broker.queues import Pair, QueueKey, Touched
from ledgermq.node.broker.uncommitted import UncommittedState
from ledgermq.proto.names import CONFIG_TOPIC, STORAGE_TOPIC, TIMER_TOPIC
from ledgermq.proto.types import Range
from ledgermq.raft.config import HaRules

DECIDED = frozenset({Produce, ProduceFrame, Ack, Change})
"""Nearly all calls; they concern nothing but the next plan."""
_CLASS_NAMES = {durability: durability.value for durability in Durability}
_REMEMBERED_RECEIVES = 1024
NEVER_NS = 1 << 62
Given = tuple[str, int, int, int]
"""A lease without its message: lite topic (else empty), queue, queue offset, lease number."""


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
    planner_type: type[Planner] = Planner

    def __init__(self, machine: Machine, settings: LeaderSettings) -> None:
        self.term: int | None = None
        """The term that this node leads; None on a follower."""
        self.serving = False
        self._machine = machine
        self._budget = settings.budget
        self._uncommitted = UncommittedState()
        self.clock = LeaseClock(machine.delivery, settings.times)
        self.polls = Polls()
        self.tier = self.tier_type(machine)
        self._groups = MessageGroups(machine.delivery, self._uncommitted, self.tier.message_group_of)
        self._touched: Touched = []
        """Rows that the current range touched, collected for FIFO groups."""
        self._picker = Picker(self.tier, machine.delivery, self.clock, self._uncommitted, self._groups, settings.receive_bytes_max)
        self.checks = CheckClock(machine.transactions, settings.transactions)
        room = settings.entry_bytes_max
        self.timer_firing = TimerFiring(machine, self._uncommitted)
        transaction_resolver = self.transaction_resolver_type(machine, self.checks, self._uncommitted, room, settings.transactions)
        dead_lettering = DeadLettering(machine, self.tier, self._uncommitted, room, settings.max_attempts)
        liveness_ns = settings.times.liveness_ns
        self.lite = LiteServer(
            machine,
            self.clock,
            self._uncommitted,
            self.polls,
            dead_lettering,
            liveness_ns,
            settings.receive_bytes_max,
            settings.lite_topics_max,
            settings.budget,
        )
        self.members = Members(machine, self._uncommitted, liveness_ns)
        self.producer_sequencing = self.producer_sequencing_type(machine.producers, self._uncommitted, settings.producers_max)
        givers = transaction_resolver, self.timer_firing, self.lite, self.members, dead_lettering, self.producer_sequencing, self._groups
        self._planner = self.planner_type(
            machine, self.clock, self._uncommitted, self._picker, *givers, room, settings.policy, settings.budget
        )
        self._inbox: list[Call] = []
        self._awaited: list[tuple[int, int, Awaited]] = []
        self._early: deque[Awaited] = deque()
        """Sends that wait for replication, by index. Each call waits either here or in `_awaited`, so that it is answered once."""
        self._uncommitted_topics: dict[str, int] = {}
        """Stored topic → its last unapplied entry of the class `memory`."""
        self._serial = 0
        self._releases: dict[tuple[QueueKey, int], int] = {}
        """Leases of cancelled Receives, to be made visible again: (queue, offset) → lease number."""
        self._answered: OrderedDict[Token, tuple[Pair, tuple[Given, ...]]] = OrderedDict()
        """Leases of the last Receives, without their messages, to be given back if an answer does not reach its caller."""
        self.traffic = Traffic(machine.delivery)
        self.counters: dict[str, int] = dict.fromkeys(
            ("produced", "leased", "leased_again", "dead_lettered", "acked", "changed", "handles_refused", "passed_over"), 0
        )
        self.counters |= dict.fromkeys(("lite_sets_changed", "lite_sets_dropped", "members_dropped"), 0)
        self.counters |= dict.fromkeys(("released", "reset", "duplicates", "messages_recalled", "offsets_committed"), 0)
        self.counters |= dict.fromkeys(("letters_resent", "letters_purged", "letters_ended", "gone"), 0)
        self.counters |= dict.fromkeys(("half_messages", "transactions_committed", "transactions_rolled_back"), 0)
        self.counters |= dict.fromkeys(("transaction_checks", "transactions_dropped"), 0)
        self.counters |= dict.fromkeys(("producers_opened", "producers_resumed", "producers_dropped"), 0)
        self.counters |= dict.fromkeys(("frames", "frame_messages", "frame_duplicates", "frames_refused"), 0)

    # Leadership

    def lead(self, term: int) -> None:
        """This node won `term`. It serves once its term-start record is applied."""
        assert self.term is None, "resign before leading again"
        self.term = term

    def serve(self, now_ns: int) -> None:
        """The term-start record is applied, so the applied state covers every earlier term."""
        self.serving = True
        self.clock.lead(now_ns)
        self.lite.lead(now_ns)
        self.members.lead(now_ns)
        self.checks.lead(now_ns)
        self.timer_firing.lead()
        self.polls.wake_all()
        early, self._inbox = self._inbox, []
        for call in early:
            self._accept(call)

    def resign(self, leader: str | None, commit_index: int) -> list[Done]:
        """Leadership is lost. Answers that wait for an entry up to `commit_index` may still be given when it is applied."""
        self.term = None
        self.serving = False
        done = [Done(call.token, Refused("not-leader", leader)) for call in self._inbox if not isinstance(call, _SIGNS)]
        for early in self._early:
            self._await(early)
        self._early.clear()
        self._uncommitted_topics.clear()
        kept: list[tuple[int, int, Awaited]] = []
        for index, serial, awaited in sorted(self._awaited, key=lambda item: item[:2]):
            if awaited.poll is not None and self.polls.get(awaited.token) is None:
                continue
            if index > commit_index:
                done.append(Done(awaited.token, Refused("unknown-outcome", leader)))
            else:
                kept.append((index, serial, replace(awaited, poll=None)))
        self._awaited = kept
        done += [Done(poll.call.token, Refused("not-leader", leader)) for poll in self.polls.clear() if not poll.leasing]
        self._inbox = []
        self._releases.clear()
        self._answered.clear()
        self._uncommitted.clear()
        self.producer_sequencing.clear()
        self.clock.resign()
        self.lite.resign()
        self.members.resign()
        self.checks.resign()
        self.timer_firing.resign()
        self._groups.clear()
        self._touched = []
        self._picker.forget()
        self.tier.resign()
        return done

    # Calls

    def take(self, calls: Sequence[Call], leader: str | None, now_ns: int) -> list[Done]:
        """Accept calls. Returns the answers that need no decision."""
        done: list[Done] = []
        for call in calls:
            if self.serving and type(call) in DECIDED:
                self._inbox.append(call)
            elif isinstance(call, CancelReceive):
                done += self._cancel(call.receive)
            elif isinstance(call, TierFetched):
                for pair in self.tier.take(call, now_ns):
                    self.polls.wake(pair)
            elif self.term is None:
                if not isinstance(call, _SIGNS):
                    done.append(Done(call.token, Refused("not-leader", leader)))
            elif isinstance(call, ClientGone):
                for poll in self.polls.of_client(call.client_id):
                    done += self._cancel(poll.call.token)
                self._accept(call)
            elif isinstance(call, Receive):
                self.polls.add(call)
                self.clock.alive((call.client_id,), now_ns)
                self.lite.alive((call.client_id,), now_ns)
                self.members.alive((call.client_id,), now_ns)
            else:
                self._accept(call)
        return done

    def _accept(self, call: Call) -> None:
        if not self.serving:
            self._inbox.append(call)
        elif isinstance(call, ClientsAlive):
            self.clock.alive(sorted(call.client_ids), call.at_ns)
            self.lite.alive(sorted(call.client_ids), call.at_ns)
            self.members.alive(sorted(call.client_ids), call.at_ns)
        elif isinstance(call, ClientGone):
            self.clock.gone(call.client_id, call.at_ns)
            self.lite.gone(call.client_id)
            self.members.gone(call.client_id)
        else:
            self._inbox.append(call)

    def _cancel(self, token: Token) -> list[Done]:
        """The caller of a Receive is gone, so none of its leased messages may stay invisible."""
        if self.polls.remove(token) is not None:
            return [Done(token, Received(()))]
        pair, leases = self._answered.pop(token, (("", ""), ()))
        self._release(pair, leases)
        return []

    def _release(self, pair: Pair, leases: Sequence[Given]) -> None:
        for topic, queue, offset, number in leases:
            self._releases[(pair[0], topic or pair[1], queue), offset] = number

    def expire(self, now_ns: int) -> None:
        """End leases whose time is over, so that their messages are visible again."""
        if not self.serving:
            return
        clock, lite, members = self.clock, self.lite, self.members
        for pair in self.tier.expire(now_ns) if now_ns >= self.tier.retry_ns else ():
            self.polls.wake(pair)
        if clock.ends and now_ns >= clock.ends[0][0]:
            for group, topic in clock.expire(now_ns):
                self.polls.wake((group, topic))
                lite.unlocked(group, topic)
        if now_ns >= lite.look_ns:
            lite.expire(now_ns)
        if members.seen and now_ns >= members.look_ns:
            members.expire(now_ns)

    def due(self, now_ns: int) -> list[Done]:
        """Answer long polls whose time is over. Each was examined at least once, however short its deadline. An empty answer says that
        nothing was left, so a poll is refused if its messages have not come from the object store, or may not be read now."""
        deadlines = self.polls.deadlines
        if not deadlines or now_ns < deadlines[0][0]:
            return []
        done: list[Done] = []
        for poll in self.polls.due(now_ns, self._is_turned_away):
            why = "" if poll.leasing else self.tier.lacks(poll.pair)
            if not why and self._is_turned_away(poll):
                done.append(Done(poll.call.token, UNREAD))
            else:
                done.append(Done(poll.call.token, Refused("store-away", detail=why) if why else Received(())))
            self.polls.remove(poll.call.token)
        return done

    def _is_turned_away(self, poll: Poll) -> bool:
        """Whether there may be messages for a Receive that may not be read now."""
        return not poll.leasing and poll.pair in self.polls.woken and not self._budget.admits(poll.call.token)

    def has_work(self) -> bool:
        """Whether there is anything to plan."""
        if not self.serving:
            return False
        waiting = self._inbox or self._releases or self.polls.woken or self.lite.silent or self.members.silent
        return bool(waiting) or self.timer_firing.ready()

    def next_times_ns(self, now_ns: int) -> tuple[int, int]:
        """When this leader needs the next turn; and until when `expire`, `due` and `look` find nothing to do, unless a call is taken or an
        entry is applied. Ended leases need a turn only while a Receive waits for messages."""
        polls, lite, members = self.polls, self.lite, self.members
        wake_ns = quiet_ns = NEVER_NS
        if polls.deadlines:
            wake_ns = polls.wake_at_ns()
            quiet_ns = wake_ns - END_GRID_NS
        if not self.serving:
            return wake_ns, quiet_ns
        firing_ns = self.timer_firing.wake_at_ns(now_ns)
        if firing_ns is not None:
            # Delayed messages wait for the wall clock, and its rate is not known.
            wake_ns, quiet_ns = min(wake_ns, firing_ns), now_ns
        retry_ns = self.tier.retry_ns
        wake_ns, quiet_ns = min(wake_ns, retry_ns), min(quiet_ns, retry_ns)
        if lite.seen:
            wake_ns = min(wake_ns, lite.look_ns)
        if members.seen:
            wake_ns, quiet_ns = min(wake_ns, members.look_ns), min(quiet_ns, members.look_ns)
        if self.clock.ends:
            ended_ns = self.clock.ends[0][0]
            quiet_ns = min(quiet_ns, ended_ns)
            if len(polls):
                wake_ns = min(wake_ns, ended_ns)
        return wake_ns, min(quiet_ns, lite.look_ns)

    # Planning

    def begin_turn(self, now_ns: int, now_ms: int) -> None:
        """Refill the work budget of a turn, and look for due delayed messages."""
        self._picker.looks.refill()
        if self.serving:
            self.timer_firing.look(now_ns, now_ms)

    def wants_turn(self) -> bool:
        """Whether this turn's budget for filters ran out before every waiting Receive was examined."""
        return self.serving and self._picker.looks.left <= 0 and bool(self.polls.woken)

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
        """Decide all waiting work. With `full`, client messages are refused; `next_offset`, `alone`: see `Plan`."""
        assert self.serving, "a leader serves only after its term-start record is applied"
        plan = Plan(first_index, now_ns, now_ms, full, alone, next_offset)
        return self._planner.plan(plan, self._inbox, self._releases, self.polls)

    def plan_trims(self, now_ns: int, now_ms: int, first_index: int) -> Plan:
        """On a full disk, decide the trims, which can free space, and refuse every other call. Receives and releases keep waiting."""
        plan = Plan(first_index, now_ns, now_ms, full=True, releases=dict(self._releases))
        trims = [call for call in self._inbox if isinstance(call, Trim)]
        plan.done += [Done(call.token, Refused("disk-full")) for call in self._inbox if not isinstance(call, (Trim, *_SIGNS))]
        return self._planner.plan(plan, trims, {}, Polls())

    def withdraw(self) -> None:
        """The log refused the plan; none of it takes effect."""
        self._uncommitted.rollback()
        self.timer_firing.rollback()

    def refuse_all(self, reason: str, detail: str = "") -> list[Done]:
        """Refuse every call, because not even control records fit, or none could be committed. Receives keep waiting."""
        done = [Done(call.token, Refused(reason, detail=detail)) for call in self._inbox if not isinstance(call, _SIGNS)]
        self._inbox = []
        return done

    def appended(self, plan: Plan, queue_offsets: Sequence[int], store_ms: int) -> list[Done]:
        """The batch of `plan` is in the log, or the plan had no drafts."""
        assert self.term is not None, "only a leader appends"
        self._uncommitted.keep()
        self.timer_firing.keep(plan)
        self._inbox = plan.deferred
        self._releases = plan.releases
        self.lite.appended(plan)
        self.members.appended(plan)
        for name, by in plan.counts.items():
            self.counters[name] += by
        if plan.traffic:
            self.traffic.leased(plan.traffic)
        some_delayed = any([draft is not None and draft.stored_topic == TIMER_TOPIC for draft in plan.drafts])
        for call, place, durability in plan.produced:
            end = place + len(call.drafts)
            offsets, fire_ms = tuple(queue_offsets[place:end]), fire_times(plan.drafts[place:end]) if some_delayed else ()
            if call.token in plan.known:
                offsets, fire_ms = with_known(plan.known[call.token], offsets, fire_ms)
            produced = Produced(plan.first_index + place, self.term, offsets, store_ms, _CLASS_NAMES[durability], fire_ms)
            awaited = Awaited(plan.first_index + end - 1, self.term, call.token, produced)
            if durability is Durability.DURABLE:
                self._serial += 1
                heappush(self._awaited, (awaited.index, self._serial, awaited))
                continue
            self._early.append(awaited)
            if durability is Durability.MEMORY:
                self._uncommitted_topics.update((draft.stored_topic, awaited.index) for draft in call.drafts)
        for index, token, result in plan.awaited:
            self._await(Awaited(index, self.term, token, result))
        for pair, empty in plan.settled:
            self.polls.settled(pair, empty=empty)
        for poll in plan.unserved:
            self.polls.remove(poll.call.token)
            plan.refuse(poll.call.token, "unknown-topic", poll.call.topic)
        for index, poll, leases in plan.leased:
            self.polls.leasing(poll)
            self._await(Awaited(index, self.term, poll.call.token, None, poll, leases, poll.call.topic))
        return plan.done

    def put_back(self, calls: Sequence[Call]) -> None:
        """Calls of a plan that were not decided after all are first in the next one."""
        self._inbox = [*calls, *self._inbox]

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
        self._early.append(awaited)
        if durability is Durability.MEMORY:
            self._uncommitted_topics[call.topic] = answer.last_index

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
        """A majority holds the entries of this term up to `index` in memory or, with `alone`, the master of an HA group has them on stable
        storage. Answer the sends that wait for no more than that. If the group's rule has changed meanwhile, sends that wait for the other
        of the two now wait for the commit."""
        done: list[Done] = []
        if self._early and alone is not (_class_of(self._early[0]) == Durability.MASTER.value):
            for early in self._early:
                self._await(early)
            self._early.clear()
        while self._early and self._early[0].index <= index:
            awaited = self._early.popleft()
            assert awaited.term == self.term and awaited.result is not None, awaited
            done.append(Done(awaited.token, awaited.result))
        return done

    @property
    def answers_early(self) -> bool:
        """Whether a send waits for its replication and not for the commit."""
        return bool(self._early)

    def wants_commit(self) -> bool:
        """Whether a Receive waits for messages whose commit is not urgent for any other caller. Only committed messages are delivered."""
        return bool(self._uncommitted_topics) and any([self.polls.waits_for(topic) for topic in self._uncommitted_topics])

    def arrived(self, effects: Effects) -> None:
        """These entries were applied: wake the Receives that may find messages now."""
        columns = effects.columns
        self.traffic.applied(effects.entries, columns, self._machine.topics)
        if CONFIG_TOPIC in columns.topics:
            self.polls.forget_all()
            self.traffic.forget(self._machine.topics)
        if STORAGE_TOPIC in columns.topics:
            # After a trim whose files the object store has, a group that is new to a queue begins lower than before.
            self.polls.wake_all()
        for topic in effects.topics:
            if topic not in columns.topics:
                self.polls.wake_topic(topic)
            else:
                queues = columns.queues[columns.topic_of == columns.topics.index(topic)]
                self.polls.arrived(topic, dict.fromkeys(queues.tolist()), self._picker.is_new)

    def touched(self, now_ns: int, touched: Touched) -> None:
        """Rows that applying a range may have changed."""
        self.clock.touched(now_ns, touched)
        if len(self._groups):
            self._touched += touched

    def applied(self, entries: Range) -> list[Done]:
        """The machine applied these entries: answer the calls that waited for them."""
        if self.term is not None:
            self._uncommitted.applied(entries.last_index)
            self.producer_sequencing.applied(entries.last_index)
            self.timer_firing.applied(entries.last_index)
        for key, offsets in self._touched:
            for offset in offsets:
                if self._groups.touched(key, offset):
                    # Messages behind this one may be unlocked now, whatever the record changed.
                    self.polls.wake(key[:2])
        self._touched = []
        if self._uncommitted_topics:
            self._uncommitted_topics = {topic: last for topic, last in self._uncommitted_topics.items() if last > entries.last_index}
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
                done += self._hand_out(awaited)
        return done

    def _with_digest(self, opened: ProducerOpened) -> ProducerOpened:
        """With the digest of what was stored before its record. A producer that was resumed may have more messages by now."""
        producer = self._machine.producers.get(opened.producer_id)
        if producer is None or producer.next_sequence != opened.next_sequence:
            return opened
        return replace(opened, digest=producer.digest)

    def _hand_out(self, awaited: Awaited) -> list[Done]:
        """The lease of a Receive is committed: hand out its messages, or make them visible again if the Receive no longer waits."""
        if awaited.poll is None:
            return [Done(awaited.token, Received(self._with_records(awaited)))]
        pair = awaited.poll.call.group, awaited.poll.call.topic
        given = tuple([(lease.topic, lease.queue, lease.queue_offset, lease.lease_number) for lease in awaited.leases])
        if self.polls.remove(awaited.token) is None:
            self._release(pair, given)
            return []
        self._answered[awaited.token] = (pair, given)
        if len(self._answered) > _REMEMBERED_RECEIVES:
            self._answered.popitem(last=False)
        return [Done(awaited.token, Received(self._with_records(awaited)))]

    def _with_records(self, awaited: Awaited) -> tuple[Lease, ...]:
        """The leases with their messages. Those that the lease's own batch appended could not be read before now."""
        if all([lease.record for lease in awaited.leases]):
            return awaited.leases
        return tuple([lease if lease.record else self._read(awaited.topic, lease) for lease in awaited.leases])

    def _read(self, topic: str, lease: Lease) -> Lease:
        positions, sizes, _ = self._machine.units(topic, lease.queue, lease.queue_offset, 1)
        return lease._replace(record=self._machine.record(int(positions[0]), int(sizes[0])))


def _class_of(awaited: Awaited) -> str:
    assert isinstance(awaited.result, Produced | FrameProduced), awaited
    return awaited.result.durability


_SIGNS = (ClientsAlive, ClientGone, CancelReceive, Prefer, Returned, Appointed, TierFetched)
