"""The delay levels of RocketMQ 4: eighteen fixed delays by number. The cluster itself only knows
delivery times."""

from __future__ import annotations

_SECOND, _MINUTE, _HOUR = 1_000, 60_000, 3_600_000
DELAY_LEVELS_MS = (
    *(1 * _SECOND, 5 * _SECOND, 10 * _SECOND, 30 * _SECOND),
    *(minutes * _MINUTE for minutes in range(1, 11)),
    *(20 * _MINUTE, 30 * _MINUTE, 1 * _HOUR, 2 * _HOUR),
)
"""By level, which counts from 1."""
assert len(DELAY_LEVELS_MS) == 18


def level_ms(level: int) -> int:
    """The delay of a level; a level beyond the last counts as the last. Raises ValueError below
    1."""
    if level < 1:
        raise ValueError(f"{level} is not a delay level: levels are 1 to {len(DELAY_LEVELS_MS)}")
    return DELAY_LEVELS_MS[min(level, len(DELAY_LEVELS_MS)) - 1]
