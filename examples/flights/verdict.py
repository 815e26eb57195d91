"""The recorded events of the demo, and the conclusions from them. Pure bookkeeping: no process, no
socket, no clock."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass
class Ledger:
    """Every event of one run. A message is identified by (id, body digest), because counts alone
    prove nothing."""

    sent: int = 0
    resends: int = 0
    acknowledged: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)
    consumed: dict[tuple[str, str], int] = field(default_factory=dict)
    killed_at: float | None = None
    first_ack_after_kill: float | None = None
    producer_done: bool = False

    def record(self, fact: dict[str, Any]) -> None:
        """Record one line of the traffic processes."""
        kind = fact["fact"]
        if kind == "ack":
            self.acknowledged[fact["id"], fact["digest"]] = fact
            after = self.killed_at is not None and fact["started"] > self.killed_at
            if after and (
                self.first_ack_after_kill is None or fact["acked"] < self.first_ack_after_kill
            ):
                self.first_ack_after_kill = fact["acked"]
        elif kind == "got":
            key = (fact["id"], fact["digest"])
            self.consumed[key] = self.consumed.get(key, 0) + 1
        elif kind == "resend":
            self.resends += 1
        elif kind == "sent-all":
            self.producer_done = True

    @property
    def lost(self) -> list[tuple[str, str]]:
        """Messages acknowledged but never consumed, by message id and body digest."""
        return [key for key in self.acknowledged if key not in self.consumed]

    @property
    def duplicates(self) -> int:
        """Deliveries beyond the first of a message, plus additional stored copies of sends that
        were repeated after an error."""
        again = sum(times - 1 for times in self.consumed.values())
        return again + sum(1 for key in self.consumed if key not in self.acknowledged)

    @property
    def seconds_without_leader(self) -> float | None:
        if self.killed_at is None or self.first_ack_after_kill is None:
            return None
        return self.first_ack_after_kill - self.killed_at


def order_violations(stored: list[dict[str, Any]], ledger: Ledger, topic: str) -> list[str]:
    """Message groups of the FIFO topic that are in more than one queue or out of send order.

    `stored` is the output of `ledgermq peek`, queue by queue in offset order. A repeated send may
    follow its first copy, but never precede an earlier flight: the first copies of each group must
    be in ascending order.
    """
    wrong = []
    queues: dict[str, set[int]] = {}
    seen: dict[str, list[int]] = {}
    for message in stored:
        group = message["message_group"]
        queues.setdefault(group, set()).add(message["queue"])
        number = int(message["properties"]["flight"])
        numbers = seen.setdefault(group, [])
        if number not in numbers:
            numbers.append(number)
    for group, used in queues.items():
        if len(used) > 1:
            wrong.append(f"{group} is in queues {sorted(used)}")
        if seen[group] != sorted(seen[group]):
            wrong.append(f"{group} is out of order: {seen[group]}")
    wanted: dict[str, set[int]] = {}
    for fact in ledger.acknowledged.values():
        if fact["topic"] == topic:
            wanted.setdefault(fact["group"], set()).add(fact["number"])
    wrong += [
        f"{group} lacks flights {sorted(numbers - set(seen.get(group, [])))}"
        for group, numbers in wanted.items()
        if not numbers <= set(seen.get(group, []))
    ]
    return wrong
