"""The law of a FIFO consumer group, checked on what its consumers saw.

In a message group, no message comes for the first time while another one was handed out and is not
done; and of what was handed out, none comes again before an earlier one that is not done. Leases
order everything: their numbers are the places of their records in the log.

Judged from outside, without the log. A message that came again under a later lease was certainly
not done before. Any other one may be done from the moment when a consumer sent its acknowledgement,
whatever was answered.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ledgermq.sim.checks.checkers import Violation


@dataclass(frozen=True, slots=True)
class Given:
    """What one Receive got of one message group: (offset, attempt) each, in the order of the
    answer."""

    lease: int
    at_ns: int
    messages: tuple[tuple[int, int], ...]


@dataclass
class MessageGroup:
    """One message group of one queue, for one consumer group."""

    given: list[Given] = field(default_factory=list)
    ended_ns: dict[int, int] = field(default_factory=dict)
    """Offset → when a consumer first sent its acknowledgement."""

    def received(self, lease: int, messages: Sequence[tuple[int, int]], now_ns: int) -> None:
        self.given.append(Given(lease, now_ns, tuple(messages)))

    def acknowledging(self, offset: int, now_ns: int) -> None:
        """A consumer sends an acknowledgement: from now on the message may be done."""
        self.ended_ns.setdefault(offset, now_ns)

    def check(self) -> None:
        """Raises Violation."""
        last = {
            offset: given.lease
            for given in sorted(self.given, key=lambda given: given.lease)
            for offset, _ in given.messages
        }
        handed_out: set[int] = set()
        for given in sorted(self.given, key=lambda given: given.lease):
            mine = [offset for offset, _ in given.messages]
            if mine != sorted(mine):
                raise Violation(
                    "I7",
                    f"messages {mine} of a message group came in this order under lease"
                    f" {given.lease}",
                )
            left = {
                offset
                for offset in handed_out
                if last[offset] >= given.lease
                or self.ended_ns.get(offset, given.at_ns + 1) > given.at_ns
            }
            new = [offset for offset, attempt in given.messages if attempt == 1]
            if new and left:
                why = f"while message {min(left)}, which was handed out before, was not done"
                raise Violation(
                    "I7",
                    f"message {new[0]} of a message group came for the first time, under lease"
                    f" {given.lease}, {why}",
                )
            if mine and (
                passed := [offset for offset in left if offset < mine[-1] and offset not in mine]
            ):
                raise Violation(
                    "I7",
                    f"message {mine[-1]} of a message group came before message {min(passed)},"
                    " which was not done",
                )
            handed_out.update(mine)
