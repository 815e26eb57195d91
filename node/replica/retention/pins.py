"""Pins on the files of one replica: leases of external clients (a reader, an audit, a backup), each
with a reason, and the node's own one.

A pin keeps the files of *this* replica from a position on. While it is held, this node, as leader,
does not decide to trim them, and does not remove them after another leader's trim. A pin ends when
it is dropped, when its time is over, and with the process. A client that needs one for longer
renews it, and the reply says whether it is still held. Number and duration are limited, so that a
forgotten pin does little harm. The node's own pin keeps what is not verified in the object store
yet, without a time limit. Time is monotonic.
"""

from __future__ import annotations

from dataclasses import dataclass

from ledgermq.node.replica.retention.retention_rules import Pin

PINS_MAX = 64
TTL_MS_MAX = 3_600_000
REASON_MAX = 200
_MS = 1_000_000


class TooManyPins(Exception):
    """The maximum number of pins is held."""


@dataclass(frozen=True, slots=True)
class _Held:
    pos: int
    reason: str
    until_ns: int


class PinBook:
    """The pins of one replica. Not thread-safe: the owner of the group calls it."""

    def __init__(self) -> None:
        self._held: dict[str, _Held] = {}
        self.store: Pin | None = None
        """What the object store does not hold yet, as this node has verified; None if files go
        nowhere but to this disk."""

    def take(self, pin: str, pos: int, reason: str, ttl_ms: int, now_ns: int) -> None:
        """Keep everything from `pos` on for `ttl_ms` (at most an hour). The name `pin` must be
        unique. Raises TooManyPins."""
        self._forget(now_ns)
        if len(self._held) >= PINS_MAX:
            raise TooManyPins(
                f"{PINS_MAX} pins are held already: drop one, or wait until one runs out"
            )
        self._held[pin] = _Held(pos, reason[:REASON_MAX], now_ns + min(ttl_ms, TTL_MS_MAX) * _MS)

    def renew(self, pin: str, ttl_ms: int, now_ns: int) -> bool:
        """Extend a pin to `ttl_ms` from now. Returns False if it has ended; the files that it kept
        may be gone."""
        self._forget(now_ns)
        held = self._held.get(pin)
        if held is None:
            return False
        self._held[pin] = _Held(held.pos, held.reason, now_ns + min(ttl_ms, TTL_MS_MAX) * _MS)
        return True

    def drop(self, pin: str) -> bool:
        """Remove a pin. Returns False if it had ended already."""
        return self._held.pop(pin, None) is not None

    def pins(self, now_ns: int) -> list[Pin]:
        """The held pins, as input of the retention decision."""
        self._forget(now_ns)
        own = [] if self.store is None else [self.store]
        return own + [
            Pin(
                "reader",
                held.pos,
                f"{held.reason} (pin {pin}, for {(held.until_ns - now_ns) // (1000 * _MS)} s more"
                " unless renewed)",
                pin,
            )
            for pin, held in self._held.items()
        ]

    def lowest(self, now_ns: int) -> int | None:
        """The first position that a pin keeps; None if none is held."""
        self._forget(now_ns)
        own = [] if self.store is None else [self.store.pos]
        return min(own + [held.pos for held in self._held.values()], default=None)

    def held(self) -> list[int]:
        """The positions from which external clients hold the log; a pin may have run out since."""
        return [held.pos for held in self._held.values()]

    def _forget(self, now_ns: int) -> None:
        for pin in [pin for pin, held in self._held.items() if held.until_ns <= now_ns]:
            del self._held[pin]
