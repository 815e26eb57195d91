"""What delivery costs, counted: three replicas on virtual time, whose leader gets its calls through
the gate as in the engine.

Nothing here measures time. Every number depends only on the decisions of the core, so a change that
adds a batch or a planning pass shows as another number.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import count
from typing import Any

from ledgermq.node.broker.calls.consumer_calls import Ack, Handle, Receive, Received
from ledgermq.node.broker.calls.operator_calls import Configure, Configured
from ledgermq.node.broker.calls.outcome import Call
from ledgermq.node.broker.calls.send_calls import Produce
from ledgermq.node.broker.filters.filters import TagFilter
from ledgermq.node.broker.ports import PeerPacket, SyncTicket
from ledgermq.node.replica.hosting.batch_gate import BatchGate
from ledgermq.proto.types import Permission, TopicConfig, TopicKind
from tests.node_core.core_cluster import MS, Cluster, Node
from tests.node_core.core_fakes import draft

QUEUES = 8
TOPIC = TopicConfig("", "t", TopicKind.NORMAL, QUEUES, Permission.READ_WRITE, 1)
PACKET_NS = 500_000
SYNC_NS = 500_000
DELIVER_NS = 200_000
"""From a turn to the moment when the event loop has delivered its answers."""
POLL_NS = 20_000 * MS


class Counted(Cluster):
    """A cluster without faults whose leader is `here`. `counts`: its turns, plans, picks, queues
    examined, batches, entries and packets."""

    def __init__(self, topic: TopicConfig = TOPIC) -> None:
        super().__init__(1)
        self.counts: Counter[str] = Counter()
        self.tokens = count(1)
        self.bodies = count()
        self.gate = BatchGate()
        self.held: list[Call] = []
        self.here: Node | None = None
        self.answered: Callable[[int, Any], None] = lambda token, outcome: None
        while (leads := self.leader()) is None:
            self.run(self.now_ns + 100 * MS)
        self.here = leads
        self._count(leads)
        token = self.put(Configure(next(self.tokens), topics=(topic,)))
        self.run(self.now_ns + 1000 * MS)
        assert self.outcomes[token] == Configured()
        self.counts.clear()

    def _count(self, node: Node) -> None:
        leader, replicator = node.group.leader, node.group.replicator

        def counting(owner: Any, method: str, name: str) -> None:
            inner = getattr(owner, method)

            def counted(*args: Any, **named: Any) -> Any:
                self.counts[name] += 1
                return inner(*args, **named)

            setattr(owner, method, counted)

        counting(leader, "plan", "plans")
        counting(leader._picker, "pick", "picks")
        counting(leader._picker, "start", "queues")
        propose = replicator.propose

        def proposing(now_ns: int, batch: Any, *args: Any, **named: Any) -> Any:
            self.counts["batches"] += 1
            self.counts["entries"] += len(batch)
            return propose(now_ns, batch, *args, **named)

        replicator.propose = proposing  # type: ignore[method-assign]

    # Calls

    def put(self, call: Any) -> int:
        """As `Engine.notify`: the call waits while the gate is shut."""
        self.held.append(call)
        if not self.gate.shut:
            self.later(0, "calls", self._leads.name, None)
        return int(call.token)

    @property
    def _leads(self) -> Node:
        assert self.here is not None
        return self.here

    def send(self, *, tag: str | None = None, queue: int | None = None) -> int:
        number = next(self.bodies)
        return self.put(
            Produce(
                next(self.tokens),
                [draft(f"m{number}", "t", number % QUEUES if queue is None else queue, tag)],
            )
        )

    def receive(
        self,
        group: str = "g",
        n: int = 32,
        wait_ns: int = POLL_NS,
        tags: frozenset[str] = frozenset(),
    ) -> int:
        return self.put(
            Receive(
                next(self.tokens),
                group,
                "t",
                "c",
                TagFilter(tags),
                n,
                60_000,
                self.now_ns + wait_ns,
            )
        )

    def ack(self, received: Received, group: str = "g") -> list[int]:
        """One call a handle, as the official push consumers do."""
        handles = [
            Handle(group, "t", at.queue, at.queue_offset, at.lease_number, at.attempt)
            for at in received.leases
        ]
        return [self.put(Ack(next(self.tokens), [handle])) for handle in handles]

    def take(self) -> dict[str, int]:
        """The counts since the last time."""
        counts, self.counts = self.counts, Counter()
        return dict(counts)

    # Events

    def later(self, delay_ns: int, what: str, node: str, value: Any) -> None:
        fixed = {"packet": PACKET_NS, "sync": SYNC_NS}.get(what, delay_ns)
        super().later(fixed, what, node, value)

    def happen(self, what: str, node: Node, value: Any) -> None:
        if what == "rested":
            self.gate.rested()
        if what not in ("rested", "calls"):
            super().happen(what, node, value)
        elif self.held and not self.gate.shut:
            self.turn(node)

    def turn(
        self,
        node: Node,
        calls: list[Call] | None = None,
        packets: list[tuple[str, PeerPacket]] | None = None,
        synced: list[tuple[SyncTicket, OSError | None]] | None = None,
    ) -> None:
        if node is not self.here:
            super().turn(node, calls, packets, synced)
            return
        if synced:
            self.gate.sync_ended()
        if self.held and not self.gate.shut:
            calls, self.held = self.held, []
        self.counts["turns"] += 1
        group = node.group
        inner = group.turn
        outputs: list[Any] = []

        def turn(*args: Any) -> Any:
            outputs.append(inner(*args))
            return outputs[-1]

        group.turn = turn  # type: ignore[method-assign]
        try:
            super().turn(node, calls, packets, synced)
        finally:
            del group.turn  # type: ignore[method-assign]
        (output,) = outputs
        self.counts["packets"] += len(output.packets)
        self.gate.turned(output, answers=bool(output.done))
        if output.sync is not None:
            self.gate.sync_begins()
        for done in output.done:
            self.answered(done.token, done.outcome)
        if output.done:
            self.later(DELIVER_NS, "rested", node.name, None)
        elif self.held and not self.gate.shut:
            self.later(0, "calls", node.name, None)
