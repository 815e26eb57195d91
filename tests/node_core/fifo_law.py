"""The law of a FIFO consumer group, as a model that knows nothing of the core: what a Receive may
return.

In a message group, the messages that were handed out and are not done come again, in order, up to
the first one that is still leased. While there is one, no message comes that was never handed out.
The model keeps one word for each message; the tests compare it with what the core hands out
(`test_core_fifo_law.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum


class At(Enum):
    """Where a message is, for the consumer group."""

    NEW = "never handed out"
    SHORT = "leased until time passes"
    LONG = "leased for longer than any test"
    LAPSED = "its lease has ended, and begins again under a new leader"
    BACK = "given back"
    DONE = "acknowledged, or in the dead-letter topic, or below the group's position"


LEASED = (At.SHORT, At.LONG)
VISIBLE = (At.LAPSED, At.BACK)


@dataclass
class Law:
    """One queue and one FIFO group."""

    names: list[str] = field(default_factory=list)
    """The message group of each message, by offset."""
    at: list[At] = field(default_factory=list)

    def sent(self, name: str) -> None:
        self.names.append(name)
        self.at.append(At.NEW)

    def due(self, name: str) -> list[int]:
        """The messages of one message group that Receives get next, in this order."""
        mine = [
            offset
            for offset, other in enumerate(self.names)
            if other == name and self.at[offset] is not At.DONE
        ]
        handed_out = [offset for offset in mine if self.at[offset] is not At.NEW]
        if not handed_out:
            return mine
        leased = next(
            (place for place, offset in enumerate(handed_out) if self.at[offset] in LEASED),
            len(handed_out),
        )
        return handed_out[:leased]

    def received(self, offsets: Sequence[int], most: int) -> None:
        """A Receive returned these messages. It may begin with any message group, and must be as
        full as it can."""
        due = {name: self.due(name) for name in dict.fromkeys(self.names)}
        for name, expected in due.items():
            mine = [offset for offset in offsets if self.names[offset] == name]
            assert mine == expected[: len(mine)], (
                f"{mine} of {name} came, and {expected} were due: {self}"
            )
        assert len(offsets) == min(most, sum(map(len, due.values()))), f"{offsets} came of {due}"
        for offset in offsets:
            self.at[offset] = At.SHORT

    def time_passes(self) -> None:
        self.at = [At.LAPSED if at is At.SHORT else at for at in self.at]

    def new_leader(self) -> None:
        """Every lease begins again. What was given back has no time left."""
        self.at = [At.SHORT if at is At.LAPSED else at for at in self.at]

    def reset(self, position: int) -> None:
        self.at = [At.DONE if offset < position else At.NEW for offset in range(len(self.at))]
