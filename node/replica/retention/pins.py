"""Pins that somebody outside took on the files of one replica: a reader, an audit, a backup. Each is a lease with a reason.

A pin keeps the files of *this* replica from a position on: while it lives, this node neither decides, as leader, that they go, nor removes
them when another leader decided it. A pin ends when it is dropped or its time is over, and with the process: whoever needs one for long
renews it and learns then that it is gone. Bounded in number and in time, so that a forgotten one is a small matter. Time is monotonic.
"""

from __future__ import annotations

from dataclasses import dataclass

from ledgermq.node.replica.retention.retention_rules import Pin

PINS_MAX = 64
TTL_MS_MAX = 3_600_000
REASON_MAX = 200
_MS = 1_000_000


class TooManyPins(Exception):
    """No further pin before another one ends."""


@dataclass(frozen=True, slots=True)
class _Held:
    pos: int
    reason: str
    until_ns: int


class PinBook:
    """The pins of one replica. Not thread-safe: the owner of the group calls it."""

    def __init__(self) -> None:
        self._held: dict[str, _Held] = {}

    def take(self, pin: str, pos: int, reason: str, ttl_ms: int, now_ns: int) -> None:
        """Keep everything from `pos` on for `ttl_ms` (at most an hour). `pin` is a name nobody else uses. Raises TooManyPins."""
        self._forget(now_ns)
        if len(self._held) >= PINS_MAX:
            raise TooManyPins(f"{PINS_MAX} pins are held already: drop one, or wait until one runs out")
        self._held[pin] = _Held(pos, reason[:REASON_MAX], now_ns + min(ttl_ms, TTL_MS_MAX) * _MS)

    def renew(self, pin: str, ttl_ms: int, now_ns: int) -> bool:
        """From now on for `ttl_ms` again. False: the pin is gone, and what it kept may be, too."""
        self._forget(now_ns)
        held = self._held.get(pin)
        if held is None:
            return False
        self._held[pin] = _Held(held.pos, held.reason, now_ns + min(ttl_ms, TTL_MS_MAX) * _MS)
        return True

    def drop(self, pin: str) -> bool:
        """False: it was gone already."""
        return self._held.pop(pin, None) is not None

    def pins(self, now_ns: int) -> list[Pin]:
        """As the decision takes them."""
        self._forget(now_ns)
        return [
            Pin("reader", held.pos, f"{held.reason} (pin {pin}, for {(held.until_ns - now_ns) // (1000 * _MS)} s more unless renewed)", pin)
            for pin, held in self._held.items()
        ]

    def lowest(self, now_ns: int) -> int | None:
        """The first position any pin keeps; None without a pin."""
        self._forget(now_ns)
        return min((held.pos for held in self._held.values()), default=None)

    def _forget(self, now_ns: int) -> None:
        for pin in [pin for pin, held in self._held.items() if held.until_ns <= now_ns]:
            del self._held[pin]
