"""What the benchmark of workers makes of its rounds."""

from __future__ import annotations

from typing import Any

from bench import workers


def rounds(*found: tuple[int, float, float, float]) -> list[dict[str, Any]]:
    names = ("passed", "messages_per_s", "node_cpu_us_a_message", "node_cores")
    return [dict(zip(names, each, strict=True)) for each in found]


def test_rounds_are_told_apart_by_how_many_streams_were_passed_on() -> None:
    """The kernel deals connections as it likes: a median over all rounds would be of nothing in
    particular."""
    one = workers._summary(
        rounds((0, 100_000, 2.0, 0.9), (0, 120_000, 2.2, 1.0), (0, 110_000, 2.1, 0.95))
    )
    two = workers._summary(
        rounds(
            (0, 150_000, 2.0, 1.2),
            (1, 130_000, 3.0, 1.3),
            (1, 120_000, 3.2, 1.4),
            (2, 99_000, 4.0, 1.5),
        )
    )
    lines = workers.table({"producers": 2, "workers_1": one, "workers_2": two}).splitlines()
    assert lines[2:] == [
        "| 1 | 0 of 2 | 3 | 110,000 | 2.10 | 0.95 |",
        "| 2 | 0 of 2 | 1 | 150,000 | 2.00 | 1.20 |",
        "| 2 | 1 of 2 | 2 | 125,000 | 3.10 | 1.35 |",
        "| 2 | 2 of 2 | 1 | 99,000 | 4.00 | 1.50 |",
        "",
        "two workers to one: 1.14",
    ]
