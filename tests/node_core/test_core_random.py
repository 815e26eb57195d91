"""Random interleavings of everything a broker group does, against a naive model
(tests/node_core/delivery_model.py)."""

from __future__ import annotations

from random import Random

import pytest

from ledgermq.node.broker.calls.consumer_calls import (
    Ack,
    Acked,
    CancelReceive,
    Change,
    Changed,
    ClientGone,
    ClientsAlive,
    Handle,
    Receive,
    Received,
)
from ledgermq.node.broker.calls.operator_calls import Reset, ResetDone
from ledgermq.node.broker.calls.outcome import Refused
from ledgermq.node.broker.calls.send_calls import Produced
from ledgermq.node.broker.parts.delivery.tier_messages import NOT_YET
from ledgermq.proto.entries.message_record import decode_record
from ledgermq.proto.entries.ranges import cut
from tests.node_core.core_fakes import LOG_ID, MS, SECOND, Bench
from tests.node_core.delivery_model import Clients, LoggedState, Message

QUEUES = 2
# "Aa" and "BB" have the same Java hash: only the exact comparison tells them apart.
TAGS = ("Aa", "BB", "C", None)
FILTERS = {"g1": (), "g2": ("Aa",), "g3": ("BB", "C")}
CLIENTS = ("c1", "c2", "c3")


class World:
    """One broker group that changes leaders, its clients, and the model beside them."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.bench = Bench()
        self.bench.lead(1)
        self.bench.configure("t", QUEUES)
        self.bench.raise_level()
        self.lagging = self.rng.random() < 0.7
        self.bench.replicator.commit_at_once = not self.lagging
        self.logged = LoggedState()
        self.clients = Clients(self.bench.settings.times.liveness_ns)
        self.calls: dict[int, object] = {}
        self.expected: dict[int, tuple[list[tuple[bool, bool]], bool]] = {}
        """Of every handle of a call whether it may be valid, and whether it must be"""
        self.acked: list[Handle] = []
        """Handles of which an acknowledgement was asked for"""
        self.confirmed = 0
        """Acknowledgements that were repeated, and confirmed again"""
        self.answered: set[int] = set(self.bench.done)
        self.answered_receives: list[int] = []
        self.bodies = 0
        self.read_log()

    # Following what happened

    def read_log(self) -> None:
        log = self.bench.log
        while self.logged.next_index <= self.bench.machine.applied_index:
            entries = cut(log.read(self.logged.next_index), self.bench.machine.applied_index)
            known = dict(self.logged.resets)
            self.logged.read(entries)
            for queue, (index, cursor) in self.logged.resets.items():
                if known.get(queue) != (index, cursor):
                    self.clients.reset(queue, cursor)

    def was_reset(self, message: Message, lease_number: int) -> bool:
        """Does the log say that the queue was reset after this lease? Its answer may come later in
        the same turn."""
        return self.logged.resets.get(message[:3], (-1, 0))[0] > lease_number

    def turn(self, *calls: object) -> None:
        for call in calls:
            if not isinstance(call, CancelReceive | ClientsAlive | ClientGone):
                self.calls[call.token] = call  # type: ignore[attr-defined]
        self.bench.turn(*calls)  # type: ignore[arg-type]
        assert self.bench.machine.applied_index <= self.bench.replicator.commit_index, "I4"
        self.read_log()
        for token in [token for token in self.bench.done if token not in self.answered]:
            self.answered.add(token)
            self.judge(self.calls.pop(token), self.bench.done[token])

    def judge(self, call: object, outcome: object) -> None:
        now = self.bench.now_ns
        if isinstance(outcome, Refused):
            away = outcome.reason == "store-away" and isinstance(call, Receive)
            assert away or outcome.reason in ("unknown-outcome", "not-leader"), outcome
            return
        if isinstance(outcome, Produced):
            for draft, offset in zip(call.drafts, outcome.queue_offsets, strict=True):  # type: ignore[attr-defined]
                assert self.logged.bodies["t", draft.queue, offset][0] == draft.body.decode()
        elif isinstance(outcome, Received):
            assert isinstance(call, Receive)
            assert len(outcome.leases) <= call.max_messages
            for lease in outcome.leases:
                message = (call.group, call.topic, lease.queue, lease.queue_offset)
                body, tag = self.logged.bodies[message[1:]]
                assert decode_record(lease.record).body.decode() == body
                assert not call.filter.tags or tag in call.filter.tags, (
                    "a message the filter does not want"
                )
                if self.was_reset(message, lease.lease_number):
                    continue
                self.clients.leased(
                    message,
                    lease.lease_number,
                    lease.attempt,
                    now,
                    call.invisible_ms,
                    call.client_id,
                )
            if outcome.leases:
                self.answered_receives.append(call.token)
        elif isinstance(outcome, Acked):
            self.judge_handles(call.token, call.handles, outcome.ok)  # type: ignore[attr-defined]
        elif isinstance(outcome, ResetDone):
            assert isinstance(call, Reset)
            assert all(
                0 <= cursor <= len(self.bench.queues.rows.get(("t", queue), ()))
                for queue, cursor in outcome.queues
            )
        elif isinstance(outcome, Changed):
            ok = outcome.lease_number is not None
            self.judge_handles(
                call.token, [call.handle], (ok,), change=(outcome.lease_number, call.invisible_ms)
            )  # type: ignore[attr-defined]

    def judge_handles(
        self,
        token: int,
        handles: list[Handle],
        ok: tuple[bool, ...],
        change: tuple[int | None, int] | None = None,
    ) -> None:
        expected, exact = self.expected.pop(token)
        for handle, good, (could, must) in zip(handles, ok, expected, strict=True):
            assert could or not good, f"{handle} was not valid"
            assert good or not must or not exact, f"{handle} was valid"
            message = (handle.group, handle.topic, handle.queue, handle.queue_offset)
            self.confirmed += good and message in self.clients.acked
            if self.was_reset(message, handle.lease_number):
                continue
            if good and change is not None:
                assert change[0] is not None
                self.clients.changed(message, change[0], self.bench.now_ns, change[1])
            elif good:
                self.clients.held.pop(message, None)
                self.clients.acked.add(message)

    # What may happen

    def send(self) -> None:
        bodies = [f"m{self.bodies + i}" for i in range(self.rng.choice((1, 1, 3, 70)))]
        self.bodies += len(bodies)
        self.turn(
            self.bench.produce(*bodies, queue=self.rng.randrange(QUEUES), tag=self.rng.choice(TAGS))
        )

    def receive(self) -> None:
        group = self.rng.choice(list(FILTERS))
        client = self.rng.choice(CLIENTS)
        call = self.bench.poll(
            group=group,
            tags=FILTERS[group],
            n=self.rng.choice((1, 4, 32)),
            invisible_ms=self.rng.choice((1000, 5000, 30_000, None)),
            wait_ns=self.rng.choice((0, SECOND, 20 * SECOND)),
            client=client,
        )
        # Leases that are over stay over; for the others a Receive is a sign of life.
        self.clients.alive(client, self.bench.now_ns)
        self.turn(call)

    def stale(self, handle: Handle) -> Handle:
        """Occasionally use another lease of the message. Handles of leases that never existed
        cannot occur."""
        numbers = self.logged.history.get(
            (handle.group, handle.topic, handle.queue, handle.queue_offset), []
        )
        return (
            handle._replace(lease_number=self.rng.choice(numbers))
            if numbers and self.rng.random() < 0.2
            else handle
        )

    def some_handles(self, most: int) -> list[Handle]:
        held = list(self.clients.held.items())
        chosen = self.rng.sample(held, min(len(held), self.rng.randint(1, most)))
        out = []
        for (group, topic, queue, offset), lease in chosen:
            out.append(self.stale(Handle(group, topic, queue, offset, lease.number, lease.attempt)))
        if out and self.rng.random() < 0.1:
            out.append(out[0])
        return out

    def expect(self, token: int, handles: list[Handle], *, ack: bool = True) -> None:
        flags = []
        for handle in handles:
            message = (handle.group, handle.topic, handle.queue, handle.queue_offset)
            in_log = self.logged.leases.get(message, (-1, 0))[0] == handle.lease_number
            live = self.clients.live(message, handle.lease_number, self.bench.now_ns) and in_log
            # An acknowledgement before may be in the log, and not applied yet.
            again = ack and (
                handle in self.acked or handle.lease_number in self.logged.acked.get(message, ())
            )
            flags.append(
                (
                    live or again,
                    live or (ack and self.logged.acknowledged(message, handle.lease_number)),
                )
            )
        self.expected[token] = flags, self.bench.machine.applied_index == self.bench.log.end_index
        if ack:
            self.acked += [
                handle for handle, (could, _) in zip(handles, flags, strict=True) if could
            ]

    def ack(self) -> None:
        handles = self.some_handles(12)
        if self.acked and self.rng.random() < 0.3:
            # The answer was lost, or the lease is another's by now: the same acknowledgements once
            # more.
            again = self.rng.sample(self.acked[-40:], min(len(self.acked), 3))
            handles += [self.stale(one) for one in again]
        if handles:
            call = Ack(next(self.bench.tokens), handles)
            self.expect(call.token, handles)
            self.turn(call)

    def change(self) -> None:
        handles = self.some_handles(1)
        if handles:
            call = Change(
                next(self.bench.tokens),
                handles[0],
                self.rng.choice((0, 1000, 20_000)),
                self.rng.choice(CLIENTS),
            )
            self.expect(call.token, handles[:1], ack=False)
            self.turn(call)

    def reset(self) -> None:
        group, queue = self.rng.choice(list(FILTERS)), self.rng.randrange(QUEUES)
        offset = self.rng.choice((0, 5, self.rng.randrange(100), 10**9))
        queues = (
            [(queue, offset)]
            if self.rng.random() < 0.7
            else [(queue, offset) for queue in range(QUEUES)]
        )
        self.turn(Reset(next(self.bench.tokens), group, "t", queues))

    def signs(self) -> None:
        client = self.rng.choice(CLIENTS)
        if self.rng.random() < 0.8:
            self.clients.alive(client, self.bench.now_ns)
            self.turn(ClientsAlive(frozenset({client}), self.bench.now_ns))
        else:
            self.turn(ClientGone(client, self.bench.now_ns))
            self.clients.gone(client, self.bench.now_ns)

    def cancel(self) -> None:
        waiting = [token for token, call in self.calls.items() if isinstance(call, Receive)]
        if waiting and self.rng.random() < 0.7:
            self.turn(CancelReceive(self.rng.choice(waiting)))
            return
        if self.answered_receives:
            token = self.answered_receives[-1]
            outcome = self.bench.done[token]
            assert isinstance(outcome, Received)
            numbers = {lease.lease_number for lease in outcome.leases}
            for message in [m for m, held in self.clients.held.items() if held.number in numbers]:
                del self.clients.held[message]
            self.turn(CancelReceive(token))

    def wait(self) -> None:
        if self.rng.random() < 0.5 and self.bench.output is not None:
            # Exactly when the group asked to be woken, or a nanosecond before.
            self.bench.now_ns = max(
                self.bench.now_ns, self.bench.output.wake_at_ns - self.rng.randint(0, 1)
            )
        else:
            self.bench.now_ns += self.rng.choice(
                (MS, SECOND, 10 * SECOND, 40 * SECOND, 70 * SECOND)
            )
        self.turn()

    def commit(self) -> None:
        replicator = self.bench.replicator
        ahead = self.bench.log.end_index - replicator.commit_index
        replicator.commit_index += self.rng.randint(0, ahead) if self.rng.random() < 0.5 else ahead
        self.turn()

    def change_leader(self) -> None:
        old = self.bench
        term = old.replicator.term + 1
        old.replicator.follow(term, None)
        self.turn()
        assert not self.calls, "every call is answered when leadership is lost"
        self.expected.clear()
        borders = [
            r.last_index for r in old.log.ranges if r.last_index >= old.replicator.commit_index
        ]
        old.log.cut(self.rng.choice(borders))
        new = Bench(old.log, node="n2" if old.replicator.node == "n1" else "n1")
        if self.rng.random() < 0.5:
            exported = old.machine.export(LOG_ID)
            new.queues.rows = {key: list(rows) for key, rows in old.queues.rows.items()}
            new.queues.low, new.queues.lasts = dict(old.queues.low), dict(old.queues.lasts)
            new.queues.truncate(
                {
                    t: {int(q): end for q, end in ends.items()}
                    for t, ends in exported["queues"].items()
                }
            )
            new.machine.restore(exported)
        new.now_ns = old.now_ns + self.rng.choice((0, SECOND, 100 * SECOND))
        new.tokens, new.done = old.tokens, old.done
        new.replicator.commit_at_once = False
        new.replicator.commit_index = old.replicator.commit_index
        self.bench = new
        self.turn()
        assert new.machine.export(LOG_ID) == old.machine.export(LOG_ID), "I8"
        self.answered_receives.clear()
        new.lead(term)
        self.read_log()
        new.replicator.commit_index = new.log.end_index
        new.now_ns += self.rng.choice((0, SECOND))
        self.turn()
        new.replicator.commit_at_once = not self.lagging
        self.clients.held = {
            m: held
            for m, held in self.clients.held.items()
            if self.logged.leases.get(m, (-1, 0))[0] == held.number
        }
        self.clients.new_leader(new.now_ns)

    def trim(self) -> None:
        """Only the object store has what was before this entry; to clients that makes no
        difference."""
        low, high = self.bench.machine.begin_index + 1, self.bench.machine.applied_index
        if low <= high:
            self.turn(self.bench.trimming(self.rng.randint(low, high), stored=True))

    def store(self) -> None:
        """The object store goes away, is slow, or is there again."""
        tier = self.bench.tier
        tier.away, tier.held = self.rng.choice(
            ((False, False), (False, False), (True, False), (False, True))
        )
        self.turn()

    def step(self) -> None:
        actions = [
            self.send,
            self.receive,
            self.receive,
            self.ack,
            self.ack,
            self.change,
            self.signs,
            self.cancel,
            self.wait,
            self.reset,
        ]
        actions += [self.trim, self.store]
        weights = [3, 6, 6, 5, 5, 2, 2, 1, 5, 0.3, 0.5, 1]
        if self.lagging:
            actions.append(self.commit)
            weights.append(12)
        if self.rng.random() < 0.02:
            self.change_leader()
        else:
            self.rng.choices(actions, weights)[0]()

    # The end

    def settle(self) -> None:
        """Let time pass, commit everything, and consume what is left: every message must come to
        every group that wants it."""
        self.bench.replicator.commit_at_once = True
        self.bench.tier.away = self.bench.tier.held = False
        # Twice: a Receive that still waits may lease once more.
        for _ in range(2):
            self.bench.now_ns += 4 * 3600 * SECOND
            self.turn()
        for group, tags in FILTERS.items():
            for _ in range(10_000):
                call = self.bench.poll(
                    group=group, tags=tags, n=32, invisible_ms=1000, wait_ns=0, client="settle"
                )
                self.turn(call)
                outcome = self.bench.done[call.token]
                if outcome == Refused("store-away", detail=NOT_YET):
                    continue
                assert isinstance(outcome, Received)
                if not outcome.leases:
                    break
                handles = [
                    Handle(group, "t", x.queue, x.queue_offset, x.lease_number, x.attempt)
                    for x in outcome.leases
                ]
                ack = Ack(next(self.bench.tokens), handles)
                self.expect(ack.token, handles)
                self.turn(ack)
            for (topic, queue, offset), (body, tag) in self.logged.bodies.items():
                message = (group, topic, queue, offset)
                if message in self.logged.skipped:
                    assert offset < self.logged.resets[group, topic, queue][1], (
                        f"{body} was skipped by no reset"
                    )
                elif not tags or tag in tags:
                    assert message in self.logged.done, f"{body} never came to {group}"
                else:
                    assert message in self.logged.passed, f"{body} came to {group}"
        assert self.bench.machine.delivery.in_flight == 0
        assert len(self.bench.group.leader.polls) == 0


@pytest.mark.one_in(7)
@pytest.mark.parametrize("seed", range(60))
def test_random_interleavings_agree_with_the_model(seed: int) -> None:
    """Leases, answers and the log never contradict the model, replicas agree, and every message is
    delivered to all its groups."""
    world = World(seed)
    for _ in range(150):
        world.step()
    world.settle()
    follower = Bench(world.bench.log)
    follower.replicator.commit_index = world.bench.replicator.commit_index
    follower.turn()
    assert follower.machine.export(LOG_ID) == world.bench.machine.export(LOG_ID), "I8"
