"""What delivery may cost in turns, planning passes, examined queues and batches, and that saving
them changes no decision."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ledgermq.node.broker.calls.consumer_calls import Ack, CancelReceive, ClientGone, Received
from ledgermq.node.broker.calls.operator_calls import Configure, Reset
from ledgermq.node.broker.calls.outcome import Refused
from ledgermq.node.broker.calls.send_calls import Produce
from ledgermq.node.broker.parts.delivery.polls import Polls
from ledgermq.node.broker.plan import Plan, Sent
from ledgermq.node.broker.queues import Pair
from ledgermq.proto.entries.message_record import decode_record
from ledgermq.proto.types import GroupConfig, Permission, TopicConfig, TopicKind
from tests.node_core.core_fakes import SECOND, Bench, draft, handle
from tests.node_core.delivery_costs import MS, QUEUES, Counted

SETTLED_NS = 100 * MS


def cost(cluster: Counted, for_ns: int = SETTLED_NS) -> dict[str, int]:
    """What the leader does from now on."""
    cluster.run(cluster.now_ns + for_ns)
    return cluster.take()


@pytest.fixture
def cluster() -> Counted:
    found = Counted()
    cost(found)
    return found


# Counts


def test_a_send_and_the_lease_for_a_waiting_receive_share_a_batch(cluster: Counted) -> None:
    """One planning pass looks at the one queue with a message; the answer comes with the commit of
    that batch."""
    poll = cluster.receive()
    cost(cluster)
    began = cluster.now_ns
    done: dict[int, int] = {}
    cluster.answered = lambda token, outcome: done.update({token: cluster.now_ns - began})
    sent = cluster.send(queue=3)
    counts = cost(cluster)
    assert done[sent] == done[poll]
    assert (
        counts["batches"],
        counts["entries"],
        counts["plans"],
        counts["picks"],
        counts["queues"],
    ) == (1, 2, 1, 1, 1)
    assert counts["turns"] <= 10 and counts["packets"] <= 6
    received = cluster.outcomes[poll]
    assert isinstance(received, Received)
    assert [(lease.queue, decode_record(lease.record).body) for lease in received.leases] == [
        (3, b"m0")
    ]


def test_acknowledgements_in_calls_of_their_own_share_a_record(cluster: Counted) -> None:
    """32 calls with one handle each: one batch with one entry."""
    for _ in range(32):
        cluster.send()
    cost(cluster)
    poll = cluster.receive()
    cost(cluster)
    received = cluster.outcomes[poll]
    assert isinstance(received, Received) and len(received.leases) == 32
    tokens = cluster.ack(received)
    counts = cost(cluster)
    assert all(cluster.outcomes[token].ok == (True,) for token in tokens)  # type: ignore[union-attr]
    assert (counts["batches"], counts["entries"], counts["plans"]) == (
        1,
        1,
        1,
    ) and "picks" not in counts
    assert counts["turns"] <= 10


def test_acknowledgements_sends_and_leases_share_a_batch(cluster: Counted) -> None:
    """Calls that arrive together are one batch: two messages, an acknowledgement, and a lease for
    both messages."""
    first = cluster.receive()
    cost(cluster)
    cluster.send()
    cost(cluster)
    received = cluster.outcomes[first]
    assert isinstance(received, Received)
    tokens = [
        cluster.send(queue=1),
        *cluster.ack(received),
        cluster.send(queue=2),
        cluster.receive(),
    ]
    counts = cost(cluster)
    assert all(token in cluster.outcomes for token in tokens)
    assert (counts["batches"], counts["entries"], counts["plans"]) == (1, 4, 1)
    last = cluster.outcomes[tokens[-1]]
    assert isinstance(last, Received) and sorted(lease.queue for lease in last.leases) == [1, 2]


def test_receive_on_known_empty_queues_makes_no_plan(cluster: Counted) -> None:
    """The first one examines every queue. A later one, and a long poll that ends and comes again,
    examines none and writes nothing."""
    cluster.receive(wait_ns=0)
    first = cost(cluster)
    assert (first["plans"], first["picks"], first["queues"]) == (1, 1, QUEUES)
    for wait_ns in (0, 200 * MS, 200 * MS):
        poll = cluster.receive(wait_ns=wait_ns)
        counts = cost(cluster, 500 * MS)
        assert cluster.outcomes[poll] == Received(())
        assert not counts.keys() & {"plans", "picks", "queues", "batches"}, counts


def test_many_long_polls_that_end_and_come_again(cluster: Counted) -> None:
    """A thousand of as many consumer groups: one turn when they come, one when they end, besides
    those of the heartbeats."""

    def polls() -> dict[str, int]:
        for number in range(1000):
            cluster.receive(group=f"g{number}", wait_ns=200 * MS)
        return cost(cluster, 300 * MS)

    polls()
    idle = cost(cluster, 300 * MS)
    again = polls()
    assert not again.keys() & {"plans", "picks", "queues", "batches"}, again
    assert again["turns"] <= idle.get("turns", 0) + 3


def test_a_message_wakes_only_the_receives_of_its_topic_and_queue(cluster: Counted) -> None:
    """Other consumer groups that wait for the topic get it too, each by its own record in the same
    batch; none examines another queue. A consumer group that does not wait costs nothing."""
    cluster.receive(group="absent", wait_ns=0)
    polls = [cluster.receive(group=group) for group in ("a", "b")]
    cost(cluster)
    cluster.send(queue=5)
    counts = cost(cluster)
    assert (counts["batches"], counts["entries"], counts["picks"], counts["queues"]) == (1, 3, 2, 2)
    assert all(len(cluster.outcomes[token].leases) == 1 for token in polls)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("rate", "batches", "entries", "latest_ns"), [(50, 2.0, 3.0, 2 * MS), (500, 1.25, 3.0, 4 * MS)]
)
def test_a_stream_to_waiting_receives(
    cluster: Counted, rate: int, batches: float, entries: float, latest_ns: int
) -> None:
    """Every message reaches a consumer that acknowledges it and asks again within two commits of
    its send (1.5 ms each), however many calls are under way."""
    sent: dict[tuple[int, int], int] = {}
    waited: list[int] = []

    def answered(token: int, outcome: Any) -> None:
        if isinstance(outcome, Received):
            waited.extend(
                cluster.now_ns - sent[lease.queue, lease.queue_offset] for lease in outcome.leases
            )
            cluster.ack(outcome)
            cluster.receive()

    cluster.answered = answered
    cluster.receive()
    cost(cluster)
    count, began = 400, cluster.now_ns
    for number in range(count):
        cluster.run(began + number * SECOND // rate)
        queue = number % QUEUES
        sent[queue, number // QUEUES] = cluster.now_ns
        cluster.send(queue=queue)
    counts = cost(cluster)
    assert len(waited) == count and max(waited) <= latest_ns
    assert counts["batches"] <= batches * count + 2 and counts["entries"] <= entries * count + 2
    assert counts["plans"] <= counts["batches"] + 2


# Failures


@pytest.mark.parametrize("kept", [0, 1, 2])
def test_a_batch_cut_between_a_message_and_its_lease(kept: int) -> None:
    """Nothing of the batch is handed out before it is committed. A new leader that has none of it,
    the message, or both: a message without its lease is delivered as a first attempt, a leased one
    when its lease has ended, and no queue is stuck."""
    b = Bench()
    b.lead(1)
    b.configure("t")
    poll = b.poll()
    b.turn(poll)
    b.replicator.commit_at_once = False
    before = b.log.end_index
    send = b.produce("m")
    b.turn(send)
    assert b.log.end_index == before + 2 and not {poll.token, send.token} & b.done.keys()
    b.replicator.follow(2, None)
    b.turn()
    assert b.done[poll.token] == b.done[send.token] == Refused("unknown-outcome")
    b.log.cut(before + kept)
    b.replicator.commit_at_once = True
    b.lead(3)
    again = b.receive()
    assert [(lease.queue_offset, lease.attempt) for lease in again] == [(0, 1)] * (kept == 1)
    b.pass_time(20 * SECOND)
    assert [(lease.queue_offset, lease.attempt) for lease in b.receive()] == [(0, 2)] * (kept > 0)
    b.send("next")
    assert [lease.queue_offset for lease in b.receive()] == [min(kept, 1)]


def test_cancelled_receive_returns_leases_of_the_same_turn() -> None:
    """Its caller left before the batch was committed: the message is visible again at once, to the
    next in line."""
    b = Bench()
    b.lead(1)
    b.configure("t")
    first = b.poll()
    b.turn(first)
    b.replicator.commit_at_once = False
    b.turn(b.produce("m"))
    second = b.poll()
    b.turn(CancelReceive(first.token), second)
    b.replicator.commit_at_once = True
    b.turn()
    received = b.done[second.token]
    assert b.done[first.token] == Received(())
    assert isinstance(received, Received) and [
        (x.attempt, decode_record(x.record).body) for x in received.leases
    ] == [(2, b"m")]


def test_no_message_is_jumped_over() -> None:
    """While earlier messages of a queue are in the log and not applied, those of a later batch are
    not leased with their sends: the leader has not examined the earlier ones, which here the filter
    rejects."""
    b = Bench()
    b.lead(1)
    b.configure("t")
    b.replicator.commit_at_once = False
    b.turn(b.produce("a", tag="X"))
    poll = b.poll(tags=("Y",))
    b.turn(poll)
    b.turn(b.produce("b", tag="Y"))
    b.replicator.commit_at_once = True
    b.turn()
    received = b.done[poll.token]
    assert isinstance(received, Received) and [
        decode_record(lease.record).body for lease in received.leases
    ] == [b"b"]


def test_a_full_log_takes_back_leases_with_their_sends() -> None:
    """The send is refused, and the Receive waits on: it gets the next message."""
    b = Bench()
    b.lead(1)
    b.configure("t")
    poll = b.poll()
    b.turn(poll)
    b.replicator.full = True
    assert b.send("m") == Refused("disk-full")
    assert poll.token not in b.done
    b.replicator.full = False
    b.send("n")
    received = b.done[poll.token]
    assert isinstance(received, Received) and [
        (x.queue_offset, decode_record(x.record).body) for x in received.leases
    ] == [(0, b"n")]


# Wake-ups


@pytest.mark.parametrize("waits", [True, False])
@pytest.mark.parametrize(
    "what",
    [
        "send",
        "lease ends",
        "change",
        "client gone",
        "reset",
        "deleted",
        "queue added",
        "new incarnation",
    ],
)
def test_newly_visible_message_ends_the_knowledge_of_empty_queues(
    what: str, *, waits: bool
) -> None:
    """A consumer group found nothing, so its queues are known to be empty. Then a Receive that
    waits, or the next one, gets what comes. `deleted`: the consumer group."""
    b = Bench()
    b.lead(1)
    b.ask(Configure(next(b.tokens), (config(1),), (GroupConfig("", "g"),)))
    b.send("m")
    (lease,) = b.receive(invisible_ms=None if what == "client gone" else 5000)
    assert b.receive() == () and b.group.leader.polls.known(("g", "t")) == {}
    poll = b.poll(wait_ns=60 * SECOND, client="d")
    if waits:
        b.turn(poll)
    token = next(b.tokens)
    if what == "send":
        b.send("n")
    elif what == "lease ends":
        b.pass_time(6 * SECOND)
    elif what == "change":
        b.change(lease, 0)
    elif what == "client gone":
        b.turn(ClientGone("c", b.now_ns))
        b.pass_time(2 * SECOND)
    elif what == "reset":
        b.turn(Reset(token, "g", "t", ((0, 0),)))
    elif what == "deleted":
        b.turn(Configure(token, deleted_groups=("g",)))
    else:
        b.turn(Configure(token, (config(2, 1 if what == "queue added" else 2),)))
        b.send("n", queue=1)
    if not waits:
        b.turn(poll)
    received = b.done[poll.token]
    assert isinstance(received, Received) and len(received.leases) == 1


def test_a_reset_beside_a_new_message_of_another_queue() -> None:
    """Both are applied in one range: the new message tells nothing about the queue that was
    reset."""
    b = Bench()
    b.lead(1)
    b.ask(Configure(next(b.tokens), (config(2),)))
    b.send("m")
    b.receive()
    assert b.receive() == () and b.group.leader.polls.known(("g", "t")) == {}
    poll = b.poll()
    b.turn(poll)
    b.turn(Reset(next(b.tokens), "g", "t", ((0, 0),)), b.produce("n", queue=1))
    received = b.done[poll.token]
    assert isinstance(received, Received) and sorted(
        decode_record(lease.record).body for lease in received.leases
    ) == [b"m", b"n"]


def test_a_message_that_waits_for_room_in_the_dead_letter_topic_stays_known() -> None:
    """It used up its attempts while the disk is too full for its copy: a Receive finds nothing, but
    its queue is not empty."""
    b = Bench()
    b.lead(1)
    b.ask(Configure(next(b.tokens), (config(1),), (GroupConfig("", "g", max_attempts=1),)))
    b.send("m")
    b.receive(invisible_ms=1000)
    b.pass_time(2 * SECOND)
    b.group.writes_refused = True
    assert b.receive() == ()
    b.group.writes_refused = False
    assert b.receive() == () and b.machine.end("%DLQ%g", 0) == 1


# The same decisions


class Plain(Plan):
    """A plan whose Receives see only what is applied."""

    def sent(self) -> Mapping[str, Mapping[int, Sent]]:
        return {}


class Forgetful(Polls):
    """Examines every queue again whenever a Receive comes or is woken."""

    def settled(self, pair: Pair, *, empty: bool) -> None:
        super().settled(pair, empty=False)


def plainly(
    monkeypatch: pytest.MonkeyPatch,
    topic: TopicConfig,
    groups: tuple[GroupConfig, ...],
    *,
    plain: bool,
) -> Bench:
    with monkeypatch.context() as patch:
        if plain:
            patch.setattr("ledgermq.node.broker.leader.Polls", Forgetful)
        bench = Bench()
    bench.lead(1)
    bench.ask(Configure(next(bench.tokens), (topic,), groups))
    return bench


steps = st.lists(
    st.tuples(
        st.sampled_from(
            [
                "send",
                "send",
                "send",
                "receive",
                "receive",
                "receive",
                "ack",
                "cancel",
                "reset",
                "wait",
                "topic",
            ]
        ),
        st.integers(0, 5),
        st.integers(0, 5),
    ),
    max_size=40,
)
GROUPS = (("g", ()), ("g", ()), ("g", ()), ("h", ("X",)), ("h", ("X",)), ("f", ()))


class Script:
    """One run of the steps. `told`: every Receive's messages, in the order of the answers."""

    def __init__(self, bench: Bench, queues: int) -> None:
        self.bench = bench
        self.queues = queues
        self.told: list[tuple[int, list[tuple[int, int, int, bytes]]]] = []
        self.leases: list[tuple[str, Any]] = []
        self.calls: dict[int, str] = {}
        self.bodies = 0
        self.incarnation = 1

    def turn(self, *calls: Any) -> None:
        self.bench.turn(*calls)
        for token in sorted(self.calls.keys() & self.bench.done.keys()):
            group, outcome = self.calls.pop(token), self.bench.done[token]
            if isinstance(outcome, Refused):
                continue
            assert isinstance(outcome, Received)
            found = [
                (x.queue, x.queue_offset, x.attempt, decode_record(x.record).body)
                for x in outcome.leases
            ]
            self.told.append((token, sorted(found)))
            self.leases += [
                (group, lease)
                for lease in sorted(
                    outcome.leases, key=lambda lease: (lease.queue, lease.queue_offset)
                )
            ]

    def step(self, what: str, a: int, b: int) -> None:
        token = next(self.bench.tokens)
        group, tags = GROUPS[a % len(GROUPS)]
        if what == "send":
            drafts = []
            for _ in range(1 + b):
                self.bodies += 1
                drafts.append(
                    draft(
                        f"m{self.bodies}",
                        "t",
                        (a + self.bodies) % self.queues,
                        "XY"[b % 2],
                        "ab"[a % 2],
                    )
                )
            self.turn(Produce(token, drafts))
        elif what == "receive":
            # In several queues a Receive takes all there is: which queue is first is not
            # determined.
            most = (1, 3, 32)[b % 3] if self.queues == 1 else 32
            call = self.bench.poll(
                group, n=most, invisible_ms=5000, wait_ns=(0, 20, 60)[a // 2] * SECOND, tags=tags
            )
            self.calls[call.token] = group
            self.turn(call)
        elif what == "ack" and self.leases:
            mine, lease = self.leases.pop(a % len(self.leases))
            self.turn(Ack(token, [handle(lease, mine)]))
        elif what == "cancel" and self.calls:
            self.turn(CancelReceive(sorted(self.calls)[a % len(self.calls)]))
        elif what == "reset":
            self.turn(Reset(token, group, "t", ((a % self.queues, b),)))
        elif what == "wait":
            self.bench.now_ns += (b + 1) * SECOND
            self.turn()
        elif what == "topic" and a == 0:
            self.incarnation += 1
            self.turn(Configure(token, (config(self.queues, self.incarnation),)))


def config(queues: int, incarnation: int = 1) -> TopicConfig:
    return TopicConfig("", "t", TopicKind.NORMAL, queues, Permission.READ_WRITE, incarnation)


@given(todo=steps, queues=st.sampled_from([1, 3]), lag=st.booleans())
@example(
    todo=[
        *[("receive", 0, 0)] * 2,
        *[("send", 0, 0)] * 2,
        ("receive", 0, 0),
        ("wait", 0, 4),
        ("receive", 0, 0),
    ],
    queues=1,
    lag=False,
)
def test_the_same_receives_get_the_same_messages(
    todo: list[tuple[str, int, int]], queues: int, lag: bool
) -> None:
    """A leader that leases with the sends and examines only known queues tells every Receive what
    one tells that waits for the commit and examines everything: the same messages, attempts and
    contents, in the same turn. With `lag` commits come a turn later."""
    told = []
    for plain in (True, False):
        with pytest.MonkeyPatch.context() as patch:
            bench = plainly(
                patch,
                config(queues),
                (GroupConfig("", "f", max_attempts=3, fifo=True),),
                plain=plain,
            )
            if plain:
                patch.setattr("ledgermq.node.broker.leader.Plan", Plain)
            script = Script(bench, queues)
            for step in todo:
                script.step(*step)
                if lag:
                    script.turn()
            told.append(script.told)
    assert told[0] == told[1]
