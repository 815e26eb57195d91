"""The duration of a long poll (§2.6). Pure."""

from __future__ import annotations

ANSWER_BEFORE_S = 0.2
"""A poll ends this long before the call's deadline, or this fraction of the remaining time, because
gRPC rounds deadlines up on the wire, by one percent."""
ANSWER_BEFORE_PART = 0.02
AFTER_POLL_S = 2.0
"""How long after the end of a poll the answer to a forwarded call may still come."""


def polling_s(wanted_ms: int, longest_ms: int, remaining_s: float | None) -> float:
    """Seconds to poll: as wanted, at most `longest_ms`, and ending a little before the call's
    deadline."""
    wanted = max(min(wanted_ms, longest_ms) / 1000, 0.0)
    if remaining_s is None:
        return wanted
    return max(
        min(wanted, remaining_s - max(ANSWER_BEFORE_S, ANSWER_BEFORE_PART * remaining_s)), 0.0
    )
