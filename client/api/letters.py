"""Dead letters as a client lists and settles them: pages, batches and a rate. No argument parsing,
and no output.

A job is a list whose letters are settled batch by batch. It may be interrupted and repeated at any
point: the cluster settles each letter once, and the list ends where the letters ended when the job
began.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from ledgermq.client.api.admin_calls import PAGE, AdminCalls
from ledgermq.proto import admin_pb2 as pb
from ledgermq.proto.token_bucket import TokenBucket

BATCH = 100
"""The most letters of one call that settles."""


@dataclass(frozen=True, slots=True)
class Selection:
    """Which dead letters are meant: all that meet every condition given."""

    message_ids: tuple[str, ...] = ()
    begin_ms: int | None = None
    end_ms: int | None = None

    def request(
        self, group: pb.Name, *, settled: bool = False, bodies: bool = False
    ) -> pb.ListDeadLettersRequest:
        return pb.ListDeadLettersRequest(
            group=group,
            message_ids=self.message_ids,
            begin_ms=self.begin_ms,
            end_ms=self.end_ms,
            settled=settled,
            bodies=bodies,
            max=PAGE,
        )


class Letters:
    """The dead letters of one consumer group. `lagging`: broker groups whose key index did not have
    all ids yet."""

    def __init__(self, admin: AdminCalls, group: pb.Name) -> None:
        self._admin = admin
        self._group = group
        self.lagging: set[str] = set()

    def listed(
        self, selection: Selection, *, settled: bool = False, bodies: bool = False
    ) -> Iterator[pb.DeadLetter]:
        """The letters, page by page."""
        request = selection.request(self._group, settled=settled, bodies=bodies)
        while True:
            page = self._admin.list_dead_letters(request)
            self.lagging |= {progress.broker_group for progress in page.lagging}
            yield from page.letters
            if not page.next:
                return
            request.after = page.next

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
        which state."""
        size = BATCH if rate is None else max(1, min(BATCH, int(rate)))
        bucket = None if rate is None else TokenBucket(rate, size)
        remaining = iter(letters)
        while batch := list(islice(remaining, size)):
            if bucket is not None:
                sleep(bucket.wait(now(), len(batch)))
                bucket.take(len(batch), now())
            yield Counter(self._settle(batch, how))

    def _settle(self, batch: Sequence[pb.DeadLetter], how: str) -> list[str]:
        places = [
            pb.DeadLetterPlace(
                broker_group=letter.message.broker_group, offset=letter.message.offset
            )
            for letter in batch
        ]
        return list(
            self._admin.settle_dead_letters(
                pb.SettleDeadLettersRequest(group=self._group, how=how, letters=places)
            ).states
        )
