"""Transaction checks: asks producers about half messages that are not yet decided (§5.6).

The leader of the broker group knows which halves are due and how often each was checked. For each
topic with overdue halves a producer is found first; without one no check is counted. The checks are
then counted in the log, and sent only after that, so that a change of leaders cannot exceed their
maximum. A check that is lost on its way still counts.
"""

from __future__ import annotations

import asyncio

from ledgermq.node.broker.calls.transaction_calls import (
    ChecksCounted,
    CountChecks,
    Overdue,
    OverdueHalves,
    UndecidedHalf,
)
from ledgermq.node.frontend.ports import Engine
from ledgermq.node.frontend.rocketmq.commanding import Commander
from ledgermq.node.frontend.rocketmq.transacting import Transaction, TransactionIds
from ledgermq.node.frontend.rocketmq.wire import delivering
from ledgermq.node.runtime import metrics
from ledgermq.node.runtime.config_sections import Delivery
from ledgermq.node.runtime.logs import get_logger
from ledgermq.proto import messaging_pb2 as pb
from ledgermq.proto.entries.message_record import decode_record

EVERY_S = 1.0
BATCH = 256
BATCHES = 16
"""Batches in one round, so that halves without a producer cannot block the others."""
TRIES, PAUSE_S = 40, 0.05
"""How often, and at which interval in seconds, a check is offered to the stream of its producer."""

log = get_logger()


class Checker:
    """Checks the transactions of the broker groups that this node leads."""

    def __init__(
        self, engine: Engine, commander: Commander, ids: TransactionIds, delivery: Delivery
    ) -> None:
        self._engine = engine
        self._commander = commander
        self._ids = ids
        self._turns: dict[str, int] = {}
        """Topic → how often a producer of it was looked up."""
        self._every_s = min(EVERY_S, delivery.transaction_check_ms / 2000)

    async def run(self) -> None:
        """Check periodically, until cancelled."""
        while True:
            await asyncio.sleep(self._every_s)
            for broker_group, view in list(self._engine.views.items()):
                if view.serving and view.undecided:
                    try:
                        await self.send_due_checks(broker_group)
                    except Exception:  # whatever happened in this round, the next one starts anew
                        log.exception("transactions were not checked", group=broker_group)

    async def send_due_checks(self, broker_group: str) -> None:
        """Send checks for the halves that are due."""
        absent: set[str] = set()
        for _ in range(BATCHES):
            overdue = await self._engine.call(
                broker_group, Overdue(self._engine.new_token(), BATCH)
            )
            if not isinstance(overdue, OverdueHalves):
                return
            for offset, topic, how in overdue.dropped:
                metrics.TRANSACTIONS_DROPPED.labels(broker_group, how).inc()
                log.warning(
                    "undecided transaction dropped",
                    group=broker_group,
                    topic=topic,
                    half=offset,
                    reason=how,
                )
            by_topic: dict[str, list[int]] = {}
            for offset, topic in overdue.halves:
                by_topic.setdefault(topic, []).append(offset)
            for topic, offsets in by_topic.items():
                if topic in absent or not await self._ask_about(broker_group, topic, offsets):
                    absent.add(topic)
                    metrics.TRANSACTION_CHECKS.labels(broker_group, "no-producer").inc(len(offsets))
            if len(overdue.halves) + len(overdue.dropped) < BATCH:
                return

    async def _ask_about(self, broker_group: str, topic: str, offsets: list[int]) -> bool:
        """Check these halves with one producer of the topic. False if no producer is connected."""
        # A producer that lists a topic may not answer checks, so successive rounds ask different
        # nodes.
        self._turns[topic] = turn = self._turns.get(topic, 0) + 1
        node = await self._commander.find_producer(topic, here_last=turn % 2 == 0)
        if node is None:
            return False
        counted = await self._engine.call(
            broker_group, CountChecks(self._engine.new_token(), offsets)
        )
        if isinstance(counted, ChecksCounted):
            patient = True
            for half in counted.halves:
                # A producer that does not read delays the other checks once, not once for each half
                # message.
                taken = patient = await self._send(
                    node, topic, self._command(broker_group, half), TRIES if patient else 1
                )
                metrics.TRANSACTION_CHECKS.labels(broker_group, "sent" if taken else "lost").inc()
        return True

    async def _send(self, node: str, topic: str, command: pb.TelemetryCommand, tries: int) -> bool:
        """Send a check, which is already counted. If the producer's stream is full, try again
        `tries` times."""
        for left in reversed(range(tries)):
            if await self._commander.to_producer(node, topic, command):
                return True
            if left:
                await asyncio.sleep(PAUSE_S)
        return False

    def _command(self, broker_group: str, half: UndecidedHalf) -> pb.TelemetryCommand:
        message = delivering.undecided(half.topic, decode_record(half.record))
        transaction = Transaction(
            broker_group, half.topic, half.offset, message.system_properties.message_id
        )
        command = pb.TelemetryCommand()
        command.recover_orphaned_transaction_command.message.CopyFrom(message)
        command.recover_orphaned_transaction_command.transaction_id = self._ids.make(transaction)
        return command
