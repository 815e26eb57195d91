"""The wanted part of a view: replicas, topics and ranges, from options and pushed filters.

A filter only reduces what is read; Spark checks every row again. Options decide: rows outside them
are not in the table.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from ledgermq.audit.reading.ranges import ALL, Span
from ledgermq.audit.spark.cluster.cluster_options import option, time_ms

REPLICA, GROUP, TOPIC = "replica", "group", "topic"
INDEX, MS, TIME, POS, OFFSET = "index", "ms", "time", "pos", "offset"


@dataclass(frozen=True, slots=True)
class Wanted:
    """The selection. Sets: None for all. `spans` by kind of number: log index, store time in ms,
    position, queue offset."""

    replicas: frozenset[str] | None = None
    groups: frozenset[str] | None = None
    topics: frozenset[str] | None = None
    spans: tuple[tuple[str, Span], ...] = ()
    verify: bool = True

    def span(self, kind: str) -> Span:
        return dict(self.spans).get(kind, ALL)

    def has_replica(self, name: str, group: str) -> bool:
        return (self.replicas is None or name in self.replicas) and (
            self.groups is None or group in self.groups
        )

    def has_topic(self, topic: str) -> bool:
        return self.topics is None or topic in self.topics

    def narrowed(self, filters: Iterable[Filter], bounds: Mapping[str, str]) -> Wanted:
        """Narrowed by the filters as well. `bounds` maps a column to what its values bound."""
        wanted = self
        for one in filters:
            column = (
                one.attribute[0] if hasattr(one, "attribute") and len(one.attribute) == 1 else ""
            )
            kind = bounds.get(column)
            if kind in (REPLICA, GROUP, TOPIC):
                wanted = wanted._among(kind, _texts(one))
            elif kind is not None:
                span = _span(one, _ms if kind == TIME else _whole)
                wanted = wanted.bounded(MS if kind == TIME else kind, span)
        return wanted

    def bounded(self, kind: str, span: Span) -> Wanted:
        """Also bounded by this span."""
        both = self.span(kind).within(span)
        return (
            replace(self, spans=tuple({**dict(self.spans), kind: both}.items())) if both else self
        )

    def _among(self, kind: str, names: frozenset[str] | None) -> Wanted:
        if names is None:
            return self
        if kind == REPLICA:
            return replace(self, replicas=_both(self.replicas, names))
        if kind == GROUP:
            return replace(self, groups=_both(self.groups, names))
        return replace(self, topics=_both(self.topics, names))


def _both(one: frozenset[str] | None, other: frozenset[str]) -> frozenset[str]:
    return other if one is None else one & other


def _texts(one: Filter) -> frozenset[str] | None:
    """The texts that a filter selects; None if it is about something else."""
    if isinstance(one, EqualTo | EqualNullSafe) and isinstance(one.value, str):
        return frozenset([one.value])
    if isinstance(one, In) and all(isinstance(value, str) for value in one.value):
        return frozenset(one.value)
    return None


def _whole(value: Any) -> tuple[int, int] | None:
    """The integers below and above a value of a filter."""
    return (value, value) if isinstance(value, int) and not isinstance(value, bool) else None


def _ms(value: Any) -> tuple[int, int] | None:
    """The milliseconds below and above a moment; None for a time without a zone."""
    if not isinstance(value, datetime) or value.tzinfo is None:
        return None
    exact = value.timestamp() * 1000
    return math.floor(exact) - 1, math.ceil(exact) + 1


def _span(one: Filter, number: Any) -> Span:
    """A span that contains everything a filter selects."""
    if isinstance(one, In):
        spans = [number(value) for value in one.value]
        return (
            ALL
            if not spans or None in spans
            else Span(min(low for low, _ in spans), max(high for _, high in spans))
        )
    if not isinstance(
        one, EqualTo | EqualNullSafe | GreaterThan | GreaterThanOrEqual | LessThan | LessThanOrEqual
    ):
        return ALL
    value = number(one.value)
    if value is None:
        return ALL
    low, high = value
    if isinstance(one, GreaterThan | GreaterThanOrEqual):
        return Span(low + isinstance(one, GreaterThan) * (low == high), None)
    if isinstance(one, LessThan | LessThanOrEqual):
        return Span(None, high - isinstance(one, LessThan) * (low == high))
    return Span(low, high)


# -------------------------------------------------------------------------------------------------------------- options

SPAN_OPTIONS = {INDEX: ("from_index", "to_index"), MS: ("from_ms", "to_ms")}


def wanted_of(options: Mapping[str, str], view: str, kinds: frozenset[str]) -> Wanted:
    """The selection in the options. Raises ValueError for an option that does not apply to the
    view's `kinds`, and for an invalid one."""
    wanted = Wanted(
        replicas=_names(options, "replicas"),
        groups=_names(options, "group"),
        topics=_names(options, "topic"),
        verify=_verify(options),
    )
    for kind, names in SPAN_OPTIONS.items():
        low, high = (_bound(options, name, kind) for name in names)
        wanted = wanted.bounded(kind, Span(low, high))
    useless = [
        name
        for kind, names in SPAN_OPTIONS.items()
        if kind not in kinds
        for name in names
        if option(options, name)
    ]
    useless += ["topic"] if TOPIC not in kinds and wanted.topics is not None else []
    if useless:
        raise ValueError(f"option {useless[0]}: it does not apply to view {view}; remove it")
    return wanted


def _names(options: Mapping[str, str], name: str) -> frozenset[str] | None:
    names = frozenset(part.strip() for part in option(options, name).split(",") if part.strip())
    return names or None


def _bound(options: Mapping[str, str], name: str, kind: str) -> int | None:
    text = option(options, name)
    if not text:
        return None
    if kind == MS:
        try:
            return time_ms(text)
        except ValueError as error:
            raise ValueError(f"option {name}: {error}") from None
    if not text.isdigit():
        raise ValueError(f"option {name} is {text!r}; use a log index, such as 1000")
    return int(text)


def _verify(options: Mapping[str, str]) -> bool:
    text = option(options, "verify", "true").lower()
    if text not in ("true", "false"):
        raise ValueError(f"option verify is {text!r}; use true or false")
    return text == "true"
