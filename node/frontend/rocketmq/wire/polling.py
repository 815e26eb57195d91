"""How long a long poll lasts (§2.6). Pure."""

from __future__ import annotations

ANSWER_BEFORE_S = 0.2
"""A poll ends this long before the call's deadline, or this part of it: gRPC rounds deadlines up on the wire, by one percent."""
ANSWER_BEFORE_PART = 0.02
AFTER_POLL_S = 2.0
"""How long after the end of a poll a forwarded call may still be answered."""


def polling_s(wanted_ms: int, longest_ms: int, remaining_s: float | None) -> float:
    """As long as wanted, no longer than allowed, and over a little before the call's deadline."""
    wanted = max(min(wanted_ms, longest_ms) / 1000, 0.0)
    if remaining_s is None:
        return wanted
    return max(min(wanted, remaining_s - max(ANSWER_BEFORE_S, ANSWER_BEFORE_PART * remaining_s)), 0.0)
