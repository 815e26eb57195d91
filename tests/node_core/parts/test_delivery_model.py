"""Hypothesis against the delivery state machine: whatever consumers, clocks and leaders do, the log
never breaks a rule of the reference.

Four consumer groups (ordinary and FIFO, each with and without a filter) of few attempts read two
queues. Leaders change with the tail of the log kept or lost, from a snapshot or from the first
entry.
"""

from __future__ import annotations

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from ledgermq.node.broker.calls.consumer_calls import (
    Ack,
    Change,
    ClientGone,
    ClientsAlive,
    Forward,
    Handle,
    Received,
)
from ledgermq.node.broker.calls.operator_calls import Configure
from ledgermq.node.broker.calls.send_calls import Produce
from ledgermq.proto.entries.ranges import cut
from ledgermq.proto.types import GroupConfig
from tests.example_counts import examples
from tests.node_core.core_fakes import SECOND, Bench, draft
from tests.node_core.delivery_reference import Place, Reference, Rules

QUEUES = 2
GROUPS = {
    "plain": Rules(2),
    "filtered": Rules(3, tags=frozenset({"X"})),
    "fifo": Rules(2, fifo=True),
    "fifo_filtered": Rules(3, fifo=True, tags=frozenset({"X"})),
}
groups = st.sampled_from([None, None, None, *GROUPS])
"""None: the group that this run looks at most."""
clients = st.sampled_from(["c1", "c2"])


class DeliveryMachine(RuleBasedStateMachine):
    """One broker group and its consumers."""

    def __init__(self) -> None:
        super().__init__()
        self.bench = Bench()
        self.bench.lead(1)
        self.bench.configure("t", QUEUES)
        configs = [
            GroupConfig("", name, rules.max_attempts, rules.fifo) for name, rules in GROUPS.items()
        ]
        self.bench.ask(Configure(next(self.bench.tokens), groups=configs))
        self.model = Reference(GROUPS, self.bench.settings.times.liveness_ns)
        self.sent = 0
        self.focus = "fifo"
        self.follow()

    def follow(self) -> None:
        """Read what was committed, at the time at which it was applied."""
        machine = self.bench.machine
        while self.model.next_index <= machine.applied_index:
            entries = self.bench.log.read(self.model.next_index)
            self.model.read(cut(entries, machine.applied_index), self.bench.now_ns)

    def turn(self, *calls: object) -> None:
        self.bench.turn(*calls)  # type: ignore[arg-type]
        self.follow()

    def lease_of(self, group: str, number: int) -> Handle | None:
        """A handle of something in flight, by its place among them."""
        rows = [(place, row) for place, row in sorted(self.model.rows[group].items()) if row.lease]
        if not rows:
            return None
        (queue, offset), row = rows[number % len(rows)]
        return Handle(group, "t", queue, offset, row.lease, row.attempt)

    @initialize(focus=st.sampled_from(["fifo", "fifo", "fifo_filtered", "plain", "filtered"]))
    def begin(self, focus: str) -> None:
        self.focus = focus
        for message_group in ("a", "b", "a", None, "a"):
            self.send(0, message_group, "X", 2)

    @rule(
        queue=st.sampled_from([0, 0, 1]),
        message_group=st.sampled_from(["a", "a", "b", None]),
        tag=st.sampled_from(["X", "X", "Y"]),
        count=st.integers(1, 4),
    )
    def send(self, queue: int, message_group: str | None, tag: str, count: int) -> None:
        drafts = [draft(f"m{self.sent + i}", "t", queue, tag, message_group) for i in range(count)]
        self.sent += count
        self.turn(Produce(next(self.bench.tokens), drafts))

    @rule(
        group=groups,
        most=st.sampled_from([1, 2, 3, 32]),
        invisible_ms=st.sampled_from([1000, 20_000, 20_000, None]),
        attempt_id=st.sampled_from(["", "", "x", "y"]),
        client=clients,
    )
    def receive(
        self, group: str | None, most: int, invisible_ms: int | None, attempt_id: str, client: str
    ) -> None:
        group = group or self.focus
        tags = tuple(GROUPS[group].tags)
        options = {
            "group": group,
            "n": most,
            "invisible_ms": invisible_ms,
            "tags": tags,
            "client": client,
            "attempt_id": attempt_id,
        }
        repeated = {
            place
            for place, row in self.model.rows[group].items()
            if GROUPS[group].fifo and attempt_id and row.attempt_id == attempt_id and not row.ended
        }
        # In a FIFO group, what follows a message that becomes a dead letter now may come with the
        # next Receive.
        given_up = {
            (place[0], self.model.messages[place].message_group)
            for place, row in self.model.rows[group].items()
            if GROUPS[group].fifo
            and row.ended
            and row.attempt >= self.model.rules[group].max_attempts
        }
        call = self.bench.poll(wait_ns=0, **options)  # type: ignore[arg-type]
        self.model.seen_ns[client] = self.bench.now_ns
        self.turn(call)
        outcome = self.bench.done[call.token]
        assert isinstance(outcome, Received) and len(outcome.leases) <= most
        for lease in outcome.leases:
            row = self.model.rows[group][lease.queue, lease.queue_offset]
            assert (row.lease, row.attempt) == (lease.lease_number, lease.attempt), (
                "an answer that the log does not know"
            )
        if len(outcome.leases) < most and not repeated:
            assert not [
                place
                for place in self.model.deliverable(group)
                if (place[0], self.model.messages[place].message_group) not in given_up
            ], "there was more to deliver"

    @rule(most=st.sampled_from([1, 2, 32]), invisible_ms=st.sampled_from([5000, 20_000]))
    def receive_more(self, most: int, invisible_ms: int) -> None:
        self.receive(None, most, invisible_ms, "", "c1")

    @rule(attempt_id=st.sampled_from(["x", "y"]), most=st.sampled_from([2, 4]))
    def receive_and_ask_again(self, attempt_id: str, most: int) -> None:
        for _ in range(2):
            self.receive(None, most, None, attempt_id, "c2")

    @rule(
        group=groups,
        number=st.integers(0, 4),
        what=st.sampled_from(
            ["ack", "ack several", "visible", "visible", "prolong", "forward", "forward twice"]
        ),
        client=clients,
    )
    def use(self, group: str | None, number: int, what: str, client: str) -> None:
        """What a consumer does with something it holds."""
        group = group or self.focus
        handle = self.lease_of(group, number)
        if handle is None:
            return
        if what.startswith("ack"):
            handles = (
                [handle] if what == "ack" else [self.lease_of(group, number + i) for i in range(3)]
            )
            self.turn(
                Ack(
                    next(self.bench.tokens),
                    list(dict.fromkeys(handle for handle in handles if handle is not None)),
                )
            )
        elif what.startswith("forward"):
            self.model.given_up[group].add((handle.queue, handle.queue_offset))
            self.turn(*[Forward(next(self.bench.tokens), handle) for _ in range(len(what.split()))])
            self.turn()
        else:
            self.turn(
                Change(next(self.bench.tokens), handle, 0 if what == "visible" else 60_000, client)
            )

    @rule(client=clients, alive=st.booleans())
    def sign(self, client: str, alive: bool) -> None:
        if alive:
            self.model.seen_ns[client] = self.bench.now_ns
            self.turn(ClientsAlive(frozenset({client}), self.bench.now_ns))
        else:
            self.turn(ClientGone(client, self.bench.now_ns))
            self.model.gone(client, self.bench.now_ns)

    @rule(seconds=st.sampled_from([1, 1, 5, 20, 70]))
    def wait(self, seconds: int) -> None:
        self.model.advance(self.bench.now_ns + seconds * SECOND)
        self.bench.now_ns += seconds * SECOND
        self.turn()

    @rule(
        group=groups,
        number=st.integers(0, 9),
        what=st.sampled_from(["receive", "ack", "forward"]),
        keep=st.booleans(),
        snapshot=st.booleans(),
    )
    def fail_over(
        self, group: str | None, number: int, what: str, keep: bool, snapshot: bool
    ) -> None:
        """Something is decided and not committed when the leader is lost; the next one finds it in
        the log, or not."""
        group, old = group or self.focus, self.bench
        old.replicator.commit_at_once = False
        commit = old.replicator.commit_index
        handle = self.lease_of(group, number)
        if what == "receive":
            old.turn(old.poll(group=group, tags=tuple(GROUPS[group].tags)))
        elif handle is not None and what == "ack":
            old.turn(Ack(next(old.tokens), [handle]))
        elif handle is not None:
            self.model.given_up[group].add((handle.queue, handle.queue_offset))
            old.turn(Forward(next(old.tokens), handle))
        new = self.bench = old.successor(end=None if keep else commit, snapshot=snapshot)
        self.follow()
        self.model.new_leader(new.now_ns)

    @invariant()
    def replicas_know_what_the_model_knows(self) -> None:
        """Rows in flight are the model's; nothing else has one."""
        delivery = self.bench.machine.delivery
        assert delivery.in_flight == sum(map(len, self.model.rows.values()))
        for group, rows in self.model.rows.items():
            for (queue, offset), row in rows.items():
                found = delivery.row((group, "t", queue), offset)
                assert found is not None and (found.lease, found.attempt) == (
                    row.lease,
                    row.attempt,
                )

    def teardown(self) -> None:
        """Consumed to the end, every message ended once in every group: acknowledged, passed over,
        or in the dead-letter topic."""
        self.model.advance(self.bench.now_ns + 3600 * SECOND)
        self.bench.now_ns += 3600 * SECOND
        self.turn()
        for group, rules in GROUPS.items():
            for _ in range(1000):
                call = self.bench.poll(group=group, tags=tuple(rules.tags), wait_ns=0)
                self.turn(call)
                outcome = self.bench.done[call.token]
                assert isinstance(outcome, Received)
                handles = [
                    Handle(group, "t", x.queue, x.queue_offset, x.lease_number, x.attempt)
                    for x in outcome.leases
                ]
                if not handles:
                    break
                self.turn(Ack(next(self.bench.tokens), handles))
            assert not self.model.rows[group] and set(self.model.done[group]) == set(
                self.model.messages
            )
            assert self.letters(group) == sorted(
                place for place, how in self.model.done[group].items() if how == "dead"
            )

    def letters(self, group: str) -> list[Place]:
        """Where the messages in a dead-letter topic came from."""
        ends = self.bench.queues.next_offset(f"%DLQ%{group}", 0)
        by_body = {message.body: place for place, message in self.model.messages.items()}
        bodies = []
        for offset in range(ends):
            positions, sizes, _ = self.bench.machine.units(f"%DLQ%{group}", 0, offset, 1)
            record = self.bench.machine.record(int(positions[0]), int(sizes[0]))
            bodies.append(next(body for body in by_body if f"id-{body}\x02".encode() in record))
        return sorted(by_body[body] for body in bodies)


TestDelivery = DeliveryMachine.TestCase
TestDelivery.settings = settings(
    max_examples=examples(30),
    stateful_step_count=40,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
