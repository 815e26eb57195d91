"""Checks the deliveries to a consumer group against the sent messages; used by suites that run
clients while nodes fail.

The checker is independent of the recording clients. `audit/clients` checks receipts and delivery
files of users against the log itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ledgermq.audit.history import Violation


def check_deliveries(
    acknowledged: Mapping[str, Sequence[str]],
    sent: Iterable[str],
    delivered: Mapping[str, Sequence[str]],
    *,
    complete: bool,
) -> list[Violation]:
    """Check the deliveries to a consumer group against the sent messages.

    `acknowledged`: per ordering key (a queue of one producer, a message group) the values in the
    order of their acknowledgements. `sent`: all sent values, also with unknown outcome.
    `delivered`: per ordering key the values in the order of delivery. The first deliveries of a key
    must be in the order of its acknowledgements; repeats are allowed (at least once). With
    `complete` (the consumer saw an empty queue at the end), every acknowledged value must have been
    delivered.
    """
    found: list[Violation] = []
    known = set(sent)
    for key, values in delivered.items():
        first = list(dict.fromkeys(values))
        found += [
            Violation("unknown", f"{value!r} of {key} was delivered, but never sent")
            for value in first
            if value not in known
        ]
        rank = {value: number for number, value in enumerate(acknowledged.get(key, ()))}
        newest = ""
        for value in (value for value in first if value in rank):
            if newest and rank[value] < rank[newest]:
                found.append(
                    Violation(
                        "reordered", f"{value!r} of {key} was first delivered after {newest!r}"
                    )
                )
            else:
                newest = value
    if complete:
        for key, values in acknowledged.items():
            seen = set(delivered.get(key, ()))
            found += [
                Violation("missing", f"{value!r} of {key} was acknowledged, but not delivered")
                for value in values
                if value not in seen
            ]
    return found
