"""A consumer group's configuration as JSON values: the form in `group` records, snapshots and
controller commands (docs/format.md §11).

Pure functions. Settings with their default value are omitted, except the two oldest ones: a body
written before a setting existed means the same as one that omits it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ledgermq.proto.types import Backoff, GroupConfig
from ledgermq.proto.units import duration_ms

BACKOFF_FORM = "1s,5s,30s or exponential:5s..2h*2"
STEPS_MAX = 100
WAIT_MAX_MS = 12 * 3_600_000
"""The longest invisible duration (contract §2.8)."""
MULTIPLIER_MAX = 100.0


def group_fields(group: GroupConfig) -> dict[str, Any]:
    """The configuration in the form of records, snapshots and commands."""
    fields: dict[str, Any] = {
        "ns": group.namespace,
        "name": group.name,
        "max_attempts": group.max_attempts,
        "fifo": group.fifo,
    }
    if group.backoff is not None:
        fields["backoff"] = backoff_fields(group.backoff)
    if group.lite_topic:
        fields["lite_topic"] = group.lite_topic
    if group.broadcast:
        fields["broadcast"] = True
    return fields


def read_group(fields: Mapping[str, Any]) -> GroupConfig:
    """The inverse of `group_fields`."""
    return GroupConfig(
        namespace=fields["ns"],
        name=fields["name"],
        max_attempts=fields["max_attempts"],
        fifo=fields["fifo"],
        backoff=read_backoff(fields.get("backoff", {})),
        lite_topic=fields.get("lite_topic", ""),
        broadcast=fields.get("broadcast", False),
    )


def backoff_fields(backoff: Backoff) -> dict[str, Any]:
    if backoff.steps_ms:
        return {"steps_ms": list(backoff.steps_ms)}
    return {
        "initial_ms": backoff.initial_ms,
        "max_ms": backoff.max_ms,
        "multiplier": backoff.multiplier,
    }


def read_backoff(fields: Mapping[str, Any]) -> Backoff | None:
    """The inverse of `backoff_fields`; None for no fields. Raises ValueError with a text for the
    user."""
    if not fields:
        return None
    if "steps_ms" in fields:
        steps = fields["steps_ms"]
        if (
            not isinstance(steps, list)
            or not 1 <= len(steps) <= STEPS_MAX
            or not all(_is_wait(step) for step in steps)
        ):
            raise ValueError(f"a backoff has 1 to {STEPS_MAX} steps, each a wait of 1 ms to 12 h")
        return Backoff(steps_ms=tuple(steps))
    initial, most, multiplier = fields["initial_ms"], fields["max_ms"], fields["multiplier"]
    if not _is_wait(initial) or not _is_wait(most) or initial > most:
        raise ValueError(
            "an exponential backoff grows from a first wait to a longest one, both of 1 ms to 12 h"
        )
    if type(multiplier) not in (int, float) or not 1 <= multiplier <= MULTIPLIER_MAX:
        raise ValueError(
            f"the multiplier of an exponential backoff is a number from 1 to {MULTIPLIER_MAX:.0f}"
        )
    return Backoff(initial_ms=initial, max_ms=most, multiplier=float(multiplier))


def _is_wait(value: Any) -> bool:
    return type(value) is int and 0 < value <= WAIT_MAX_MS


def group_words(group: GroupConfig) -> str:
    """The settings as text, without those that have the default value."""
    words = [f"max attempts {group.max_attempts}"]
    words += ["fifo"] if group.fifo else []
    words += ["broadcast"] if group.broadcast else []
    words += [f"lite topic {group.lite_topic}"] if group.lite_topic else []
    if group.backoff is not None:
        words.append(f"backoff {backoff_words(group.backoff)}")
    return ", ".join(words)


def backoff_words(backoff: Backoff) -> str:
    """The form that `ledgermq group create --backoff` takes."""
    if backoff.steps_ms:
        return ",".join(_wait_words(step) for step in backoff.steps_ms)
    return f"exponential:{_wait_words(backoff.initial_ms)}..{_wait_words(backoff.max_ms)}*{backoff.multiplier:g}"


def parse_backoff(text: str) -> Backoff:
    """The inverse of `backoff_words`. Raises ValueError with a text for the user."""
    head, _, form = text.strip().partition(":")
    if head == "exponential":
        first, _, rest = form.partition("..")
        most, _, multiplier = rest.partition("*")
        try:
            fields: dict[str, Any] = {
                "initial_ms": duration_ms(first),
                "max_ms": duration_ms(most),
                "multiplier": float(multiplier or 2),
            }
        except ValueError:
            fields = {"steps_ms": []}
    else:
        fields = {"steps_ms": [duration_ms(step) for step in text.split(",")]}
    try:
        backoff = read_backoff(fields)
    except ValueError as error:
        raise ValueError(f"{text!r} is not a backoff ({error}); give {BACKOFF_FORM}") from None
    assert backoff is not None
    return backoff


def _wait_words(wait_ms: int) -> str:
    for unit, size in (("h", 3_600_000), ("m", 60_000), ("s", 1000)):
        if wait_ms % size == 0:
            return f"{wait_ms // size}{unit}"
    return f"{wait_ms}ms"
