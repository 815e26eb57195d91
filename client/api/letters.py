"""Dead letters as a client lists and settles them: pages, batches and a rate. No argument parsing,
and no output.

A job is a list whose letters are settled batch by batch. It may be interrupted and repeated at any
point: the cluster settles each letter once, and the list ends where the letters ended when the job
began.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

from ledgermq.client import results
from ledgermq.client.api.admin import Admin
from ledgermq.client.api.admin_requests import BATCH, PAGE, pages
from ledgermq.client.api.reading import name_of, read_all
from ledgermq.proto import admin_pb2 as pb
from ledgermq.proto.token_bucket import TokenBucket


@dataclass(frozen=True, slots=True)
class Selection:
    """Which dead letters are meant: all that meet every condition given."""

    message_ids: tuple[str, ...] = ()
    begin_ms: int | None = None
    end_ms: int | None = None


class Letters:
    """The dead letters of one consumer group, `name` or `namespace@name`. `lagging`: broker groups
    whose key index did not have all ids yet."""

    def __init__(self, admin: Admin, group: str) -> None:
        self._admin = admin
        self._group = group
        self.lagging: set[str] = set()

    def listed(
        self, selection: Selection, *, settled: bool = False, bodies: bool = False
    ) -> Iterator[pb.DeadLetter]:
        """The letters, page by page."""
        request = pb.ListDeadLettersRequest(
            group=name_of(self._group),
            message_ids=selection.message_ids,
            begin_ms=selection.begin_ms,
            end_ms=selection.end_ms,
            settled=settled,
            bodies=bodies,
            max=PAGE,
        )
        for page in pages(self._admin.connection, request, pb.ListDeadLettersResponse):
            self.lagging |= {progress.broker_group for progress in page.lagging}
            yield from page.letters

    def settled(
        self,
        letters: Iterable[pb.DeadLetter],
        how: str,
        rate: float | None = None,
        *,
        sleep: Callable[[float], None] = time.sleep,
        now: Callable[[], float] = time.monotonic,
    ) -> Iterator[Counter[str]]:
        """Settle letters, at most `rate` in a second, and yield after each batch how many are in
        which state. `how`: resent or purged."""
        settle = (
            self._admin.resend_dead_letters if how == "resent" else self._admin.purge_dead_letters
        )
        size = BATCH if rate is None else max(1, min(BATCH, int(rate)))
        bucket = None if rate is None else TokenBucket(rate, size)
        remaining = iter(letters)
        while batch := read_all(results.DeadLetter, islice(remaining, size)):
            if bucket is not None:
                sleep(bucket.wait(now(), len(batch)))
                bucket.take(len(batch), now())
            yield Counter(settle(self._group, batch))
