"""Limits what each client, user, topic and group may do on this node: rates, concurrent calls, open
Receives.

A rate is a token bucket that holds one second's worth and fills steadily. A call is admitted while
its buckets are not empty, and then takes what it costs, below zero if necessary: a batch larger
than a second's worth passes once and delays later calls, and the cost of a Receive is known only
when it is answered. Memory is bounded: the bucket unused for the longest time is dropped first,
because a full bucket limits nothing; counters of calls exist only during the calls. Each node
counts only its own calls; there is no limit across nodes.
"""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import NoReturn

from ledgermq.node.runtime import metrics
from ledgermq.node.runtime.security_sections import Quota
from ledgermq.node.runtime.security_sections import Quotas as QuotaSettings
from ledgermq.proto.status import Code, Overloaded, fail
from ledgermq.proto.token_bucket import TokenBucket

BUCKETS_MAX = 65_536
PRESUMED_MAX = 16_384
"""The number of names whose quota is cached."""
CALLS_AGAIN_MS = 100
RECEIVES_AGAIN_MS = 1_000
_NONE = Quota()

Scope = tuple[str, str]
"""(kind, name): a client, user, topic or group."""


class TooMuch(Overloaded):
    """TOO_MANY_REQUESTS with the time in ms after which a retry can succeed."""

    def __init__(self, message: str, retry_after_ms: int) -> None:
        known = fail(Code.TOO_MANY_REQUESTS, message)
        super().__init__(known.code, message, retryable=known.retryable, at_fault=known.at_fault)
        self.retry_after_ms = retry_after_ms


class Quotas:
    """The counters of one node. Belongs to the loop's thread."""

    def __init__(self, settings: QuotaSettings, now: Callable[[], float] = time.monotonic) -> None:
        self.limit_calls = settings.limit_calls
        self._each: Mapping[str, Quota] = {
            "client": settings.client,
            "user": settings.user,
            "topic": settings.topic,
            "group": settings.group,
        }
        self._named: Mapping[str, Mapping[str, Quota]] = {
            "client": {},
            "user": settings.users,
            "topic": settings.topics,
            "group": settings.groups,
        }
        self._now = now
        self._buckets: OrderedDict[tuple[str, str, str], TokenBucket] = OrderedDict()
        self._open: dict[tuple[str, str, str], int] = {}
        self._found: dict[Scope, Quota] = {}

    def __len__(self) -> int:
        return len(self._buckets) + len(self._open) + len(self._found)

    def enter(self, scopes: list[Scope], *, receive: bool, messages: int, size: int) -> Hold:
        """Admit a call, or raise TooMuch without counting anything. The call costs `messages` and
        `size` bytes now, and more by `Hold.cost`."""
        now = self._now()
        limited = [
            (scope, quota) for scope in scopes if not (quota := self._quota(scope)).limits_nothing
        ]
        kind_of_call = "receives" if receive else "calls"
        for scope, quota in limited:
            most = quota.receives if receive else quota.calls
            if most and self._open.get((*scope, kind_of_call), 0) >= most:
                again = RECEIVES_AGAIN_MS if receive else CALLS_AGAIN_MS
                self._refuse(scope, "open Receives" if receive else "calls at once", most, again)
            for rate, per_s in (
                ("messages", quota.messages_per_s),
                ("bytes", float(quota.bytes_per_s)),
            ):
                if per_s and (bucket := self._bucket(scope, rate, per_s)).available(now) <= 0:
                    self._refuse(
                        scope, f"{rate} a second", per_s, math.ceil(bucket.wait(now) * 1000) + 1
                    )
        hold = Hold(self, limited, kind_of_call)
        hold.cost(messages, size)
        for scope, _ in limited:
            key = (*scope, kind_of_call)
            self._open[key] = self._open.get(key, 0) + 1
        return hold

    def leave(self, limited: list[tuple[Scope, Quota]], kind_of_call: str) -> None:
        for scope, _ in limited:
            key = (*scope, kind_of_call)
            self._open[key] -= 1
            if not self._open[key]:
                del self._open[key]

    def charge(self, limited: list[tuple[Scope, Quota]], messages: int, size: int) -> None:
        now = self._now()
        for scope, quota in limited:
            if quota.messages_per_s and messages:
                self._bucket(scope, "messages", quota.messages_per_s).take(messages, now)
            if quota.bytes_per_s and size:
                self._bucket(scope, "bytes", float(quota.bytes_per_s)).take(size, now)

    def owed_s(self, limited: list[tuple[Scope, Quota]]) -> float:
        """Seconds until none of these buckets is below zero."""
        now = self._now()
        rates = [
            (scope, name, per_s)
            for scope, q in limited
            for name, per_s in (("messages", q.messages_per_s), ("bytes", q.bytes_per_s))
        ]
        return max(
            (
                self._bucket(scope, name, float(per_s)).wait(now)
                for scope, name, per_s in rates
                if per_s
            ),
            default=0.0,
        )

    def _bucket(self, scope: Scope, rate: str, per_s: float) -> TokenBucket:
        key = (*scope, rate)
        bucket = self._buckets.get(key)
        if bucket is None:
            if len(self._buckets) >= BUCKETS_MAX:
                self._buckets.popitem(last=False)
            # A rate below one message a second still admits one now and then.
            bucket = self._buckets[key] = TokenBucket(per_s, max(per_s, 1.0))
        else:
            self._buckets.move_to_end(key)
        return bucket

    def _quota(self, scope: Scope) -> Quota:
        quota = self._found.get(scope)
        if quota is None:
            if len(self._found) >= PRESUMED_MAX:
                self._found.clear()
            quota = self._found[scope] = self._chosen(*scope)
        return quota

    def _chosen(self, kind: str, name: str) -> Quota:
        named = self._named[kind]
        if name in named:
            return named[name]
        fitting = [
            pattern for pattern in named if pattern.endswith("*") and name.startswith(pattern[:-1])
        ]
        return named[max(fitting, key=len)] if fitting else self._each.get(kind, _NONE)

    def _refuse(self, scope: Scope, what: str, most: float, again_ms: int) -> NoReturn:
        kind, name = scope
        metrics.OVER_QUOTA.labels(kind).inc()
        raise TooMuch(
            f"{kind} {name} has reached its quota of {most:g} {what}; try again in {again_ms} ms",
            again_ms,
        )


class Hold:
    """One admitted call, until it ends."""

    def __init__(self, quotas: Quotas, limited: list[tuple[Scope, Quota]], what: str) -> None:
        self._quotas = quotas
        self._limited = limited
        self._what = what

    def cost(self, messages: int, size: int) -> None:
        """Charge what the call turned out to cost."""
        self._quotas.charge(self._limited, messages, size)

    def owed_s(self) -> float:
        """Seconds until everything taken is paid for; a stream pauses for that long."""
        return self._quotas.owed_s(self._limited)

    def __enter__(self) -> Hold:
        return self

    def __exit__(self, *_: object) -> None:
        self._quotas.leave(self._limited, self._what)
