"""Random interleavings of transactions, checks, topic deletions and leader changes, compared with a
naive model of the log.

The model does not use the core's classes: it reads committed entries one by one, and records the
requests of callers and their answers.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test

from ledgermq.node.broker.calls.operator_calls import Configure
from ledgermq.node.broker.calls.outcome import Refused
from ledgermq.node.broker.calls.send_calls import Produced
from ledgermq.node.broker.calls.transaction_calls import (
    CountChecks,
    Overdue,
    OverdueHalves,
    Prepare,
    Resolve,
    Resolved,
)
from ledgermq.node.broker.leader import LeaderSettings
from ledgermq.node.broker.parts.delivery.leases import LeaseTimes
from ledgermq.node.broker.parts.transactions import transaction_resolution
from ledgermq.node.broker.parts.transactions.transaction_checks import TransactionRules
from ledgermq.proto.entries.message_record import decode_record
from ledgermq.proto.entries.properties import parse
from ledgermq.proto.names import HALF_TOPIC
from tests.node_core.core_fakes import LOG_ID, SECOND, Bench, draft

RULES = TransactionRules(
    check_ns=SECOND, interval_ns=5 * SECOND, checks_max=2, retry_ns=SECOND, undecided_max=40
)
SETTINGS = LeaderSettings(times=LeaseTimes(handover_ns=0), transactions=RULES)


class Transactions(RuleBasedStateMachine):
    """One broker group that changes leaders; the bodies of messages are their names."""

    def __init__(self) -> None:
        super().__init__()
        self.bench = Bench(settings=SETTINGS)
        self.bench.lead(1)
        self.incarnation = 1
        self.bench.configure("t", 2)
        self.names = 0
        self.calls: dict[int, object] = {}
        self.known: dict[str, int] = {}
        """What producers were told: body → half offset."""
        self.decided: set[str] = set()
        """Whose half was decided at the end."""
        self.asked: dict[str, set[bool]] = {}
        self.told: dict[str, set[bool]] = {}
        """body → the decisions that were answered with ok"""
        self.checks: dict[str, int] = {}
        self.next_index = 0
        self.halves: dict[str, int] = {}
        self.copies: dict[str, int] = {}
        """body → how often it is visible, as the committed log says"""

    # What may happen

    @rule(count=st.integers(1, 3), queue=st.integers(0, 1))
    def prepare(self, count: int, queue: int) -> None:
        bodies = [f"m{self.names + i}" for i in range(count)]
        self.names += count
        self.turn(
            Prepare(
                next(self.bench.tokens),
                [draft(body, "t", queue) for body in bodies],
                [None] * count,
            )
        )

    @precondition(lambda self: self.known)
    @rule(data=st.data(), commit=st.booleans(), times=st.integers(1, 2), both=st.booleans())
    def resolve(self, data: st.DataObject, commit: bool, times: int, both: bool) -> None:
        """Once or twice, and sometimes the opposite in the same turn: the producer and the checked
        one."""
        body = data.draw(st.sampled_from(sorted(self.known)))
        wanted = [commit] * times + [not commit] * both
        self.asked.setdefault(body, set()).update(wanted)
        self.turn(
            *[
                Resolve(next(self.bench.tokens), self.known[body], "t", f"id-{body}", how)
                for how in wanted
            ]
        )

    @rule(seconds=st.integers(1, 6))
    def check(self, seconds: int) -> None:
        self.bench.now_ns += seconds * SECOND
        overdue = Overdue(next(self.bench.tokens), 10)
        self.turn(overdue)
        found = self.bench.done.get(overdue.token)
        if isinstance(found, OverdueHalves) and found.halves:
            self.turn(CountChecks(next(self.bench.tokens), [offset for offset, _ in found.halves]))

    @rule(some=st.booleans())
    def commit_entries(self, some: bool) -> None:
        replicator = self.bench.replicator
        ahead = self.bench.log.end_index - replicator.commit_index
        replicator.commit_index += (ahead + 1) // 2 if some else ahead
        self.turn()

    @rule(lagging=st.booleans())
    def lag(self, lagging: bool) -> None:
        self.bench.replicator.commit_at_once = not lagging

    @rule(again=st.booleans())
    def delete_topic(self, again: bool) -> None:
        if not again:
            self.turn(Configure(next(self.bench.tokens), deleted_topics=("t",)))
        self.incarnation += 1
        self.turn()
        config = (
            replace(self.bench.machine.topics["t"], incarnation=self.incarnation)
            if "t" in self.bench.machine.topics
            else None
        )
        if config is not None:
            self.turn(Configure(next(self.bench.tokens), topics=(config,)))
        else:
            self.bench.configure("t", 2, self.incarnation)

    @rule(keep=st.integers(0, 3), snapshot=st.booleans())
    def change_leader(self, keep: int, snapshot: bool) -> None:
        old = self.bench
        term = old.replicator.term + 1
        old.replicator.follow(term, None)
        self.turn()
        assert not self.calls, "every call is answered when leadership is lost"
        borders = [
            r.last_index for r in old.log.ranges if r.last_index >= old.replicator.commit_index
        ]
        old.log.cut(borders[min(keep, len(borders) - 1)])
        new = self.bench = Bench(
            old.log, SETTINGS, node="n2" if old.replicator.node == "n1" else "n1"
        )
        new.now_ns, new.tokens, new.done = old.now_ns, old.tokens, old.done
        if snapshot:
            exported = old.machine.export(LOG_ID)
            new.queues.rows = {key: list(rows) for key, rows in old.queues.rows.items()}
            new.queues.truncate(
                {
                    t: {int(q): end for q, end in ends.items()}
                    for t, ends in exported["queues"].items()
                }
            )
            new.machine.restore(exported)
        new.replicator.commit_at_once = False
        new.replicator.commit_index = old.replicator.commit_index
        self.turn()
        assert new.machine.export(LOG_ID) == old.machine.export(LOG_ID), "I8"
        new.lead(term)
        new.replicator.commit_index = new.log.end_index
        self.turn()
        new.replicator.commit_at_once = True

    # Following what happened

    def turn(self, *calls: object) -> None:
        self.calls.update({call.token: call for call in calls})  # type: ignore[attr-defined]
        self.bench.turn(*calls)  # type: ignore[arg-type]
        self.read_log()
        for token in [token for token in self.calls if token in self.bench.done]:
            self.judge(self.calls.pop(token), self.bench.done[token])

    def read_log(self) -> None:
        while self.next_index <= self.bench.machine.applied_index:
            entries = self.bench.log.read(self.next_index)
            for at, start in enumerate(entries.starts.tolist()):
                if entries.first_index + at > self.bench.machine.applied_index:
                    break
                self.read_entry(
                    entries.first_index + at,
                    bytes(entries.data[start + 48 : start + int(entries.sizes[at])]),
                )
                self.next_index += 1

    def read_entry(self, index: int, data: bytes) -> None:
        record, origin = decode_record(data), int.from_bytes(data[76:84], "big")
        body = record.body.decode()
        if record.topic == HALF_TOPIC:
            self.halves[body] = index
        elif record.topic == "t":
            assert origin == self.halves[body], "made from its half"
            assert parse(record.properties)["UNIQ_KEY"] == f"id-{body}"
            assert True in self.asked.get(body, ()), f"{body} is visible without a request"
            self.copies[body] = self.copies.get(body, 0) + 1
            assert self.copies[body] == 1, f"{body} is visible twice"
            assert False not in self.told.get(body, ()), (
                f"{body} is visible after it was rolled back"
            )

    def judge(self, call: object, outcome: object) -> None:
        if isinstance(outcome, Refused):
            assert outcome.reason in (
                "unknown-outcome",
                "not-leader",
                "too-many-transactions",
                "unknown-topic",
            ), outcome
        elif isinstance(outcome, Produced):
            assert isinstance(call, Prepare)
            for made, offset in zip(call.drafts, outcome.queue_offsets, strict=True):
                self.known[made.body.decode()] = offset
        elif isinstance(outcome, Resolved):
            assert isinstance(call, Resolve)
            body = call.message_id.removeprefix("id-")
            if outcome.ok:
                self.told.setdefault(body, set()).add(call.commit)
                assert self.told[body] == {call.commit}, (
                    f"{body} was both committed and rolled back"
                )
                assert (body in self.copies) == call.commit, (
                    "the answer comes when the end is committed"
                )
        elif isinstance(call, CountChecks):
            for half in outcome.halves:  # type: ignore[attr-defined]
                body = decode_record(half.record).body.decode()
                self.checks[body] = self.checks.get(body, 0) + 1
                assert self.checks[body] == half.checks <= RULES.checks_max

    def teardown(self) -> None:
        """Commit and decide everything; check that all answers are true, and that a replica that
        reads the log agrees."""
        self.bench.replicator.commit_at_once = True
        self.turn()
        # Halves that were on their way become known while others are decided.
        while undecided := self.known.keys() - self.decided:
            body = min(undecided)
            self.decided.add(body)
            offset = self.known[body]
            self.asked.setdefault(body, set()).add(True)
            self.turn(Resolve(next(self.bench.tokens), offset, "t", f"id-{body}", True))
        assert not self.calls
        assert all(
            (body in self.copies) == (True in self.told.get(body, ())) for body in self.known
        )
        follower = Bench(self.bench.log, SETTINGS, node="n3")
        follower.replicator.commit_index = self.bench.replicator.commit_index
        follower.turn()
        assert follower.machine.export(LOG_ID) == self.bench.machine.export(LOG_ID), "I8"


OPTIONS = settings(
    stateful_step_count=40, suppress_health_check=list(HealthCheck), derandomize=True
)


def test_transactions_agree_with_the_model() -> None:
    """Visible once if and only if committed, whatever is repeated, contradicted, cut off, deleted
    or led by another."""
    run_state_machine_as_test(Transactions, settings=OPTIONS)


@pytest.mark.parametrize("bug", ["forgetful", "deaf"])
def test_the_model_finds_planted_bugs(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A leader that forgets what it has appended commits twice; one that takes any end for
    agreement says what is not so."""
    if bug == "forgetful":
        monkeypatch.setattr(
            transaction_resolution.TransactionResolver, "_pending", lambda self, offset: None
        )
    else:
        monkeypatch.setattr(transaction_resolution, "_agrees", lambda ended, wanted: True)
    with pytest.raises(AssertionError):
        # A failure that is wanted needs no smaller example.
        run_state_machine_as_test(
            Transactions, settings=settings(OPTIONS, max_examples=200, phases=[Phase.generate])
        )
