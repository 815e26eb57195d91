"""How many examples hypothesis tries where a test is slower than most: `make verify` multiplies the
number as it does for all tests."""

from __future__ import annotations

from hypothesis import settings

GATE = 50
"""Examples of a test in `make test`, unless it asks for another number."""


def examples(count: int) -> int:
    """`count` in `make test`; more in `make verify`."""
    return count * settings.default.max_examples // GATE
