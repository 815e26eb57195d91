"""Feature levels: which records and snapshots a broker group may write
(docs/decisions/2026-11-23-negotiated-versions.md).

A group has a level, decided in its log: 1 until a committed `level` record raises it by one.
Everything that a release adds to records and snapshots gets one new level in the tables here.
Encoders assert that nothing is written above the group's level. Records, snapshots and levels that
these tables do not contain were written by a newer program.
"""

from __future__ import annotations

from typing import Final

FIRST_LEVEL: Final = 1
"""Everything up to 0.1.0, and what 0.2.0 writes before its level is raised."""
LEVEL_MAX: Final = 3
"""The highest level that this program reads."""
TREE_LEVEL: Final = 2
"""From this level on seals carry roots, and a group has a log tree
(docs/decisions/2026-11-27-log-tree.md)."""
STORED_TRIM_LEVEL: Final = 2
"""From this level on a trim record can say that the object store has what it removes
(docs/decisions/2026-11-28-leases-below-the-local-begin.md)."""
MINIMUM_LEVEL: Final = 3
"""From this level on a membership record can say how many replicas of an HA group must be in sync
(docs/decisions/2026-11-29-lost-disks-of-ha-groups.md)."""

CONTENT_LEVEL: Final = 3
"""From this level on a deduplication window compares the content of messages, not their ids alone
(docs/decisions/2026-11-21-deduplication.md)."""

DIGEST_LEVEL: Final = 3
"""From this level on a native producer can have a digest of its messages
(docs/decisions/2026-11-21-spark-writes.md)."""
TIME_EPOCH_LEVEL: Final = 3
"""From this level on a time epoch can begin (docs/decisions/2026-11-29-time-epochs.md)."""
EARLY_END_LEVEL: Final = 3
"""From this level on a log file can end before it is full (docs/format.md §2)."""

RECORDS: dict[tuple[str, int], int] = {
    ("membership", 1): 1,
    ("membership", 2): 1,
    ("membership", 3): 1,
    ("membership", 4): 3,
    ("term-start", 1): 1,
    ("forced", 1): 1,
    ("level", 1): 1,
    ("topic", 1): 1,
    ("group", 1): 1,
    ("producer", 1): 1,
    ("producer", 2): 3,
    ("lease", 1): 1,
    ("ack", 1): 1,
    ("change", 1): 1,
    ("reset", 1): 1,
    ("transaction", 1): 1,
    ("offset", 1): 1,
    ("letters", 1): 1,
    ("recall", 1): 1,
    ("timers", 1): 1,
    ("lite", 1): 1,
    ("seal", 1): 1,
    ("seal", 2): 2,
    ("trim", 1): 1,
    ("trim", 2): 2,
    ("audit", 1): 1,
    ("time-epoch", 1): TIME_EPOCH_LEVEL,
}
"""(kind, version) of a control record → its level."""
SNAPSHOTS: dict[int, int] = {2: 1, 3: 1, 4: 1, 5: 1, 6: 1, 7: 2, 8: 3}
"""Version of a snapshot → its level."""

LACKS: dict[int, tuple[str, ...]] = {
    3: (
        "a deduplication window drops another sender's message with an equal id",
        "a Spark write that is repeated with other rows in its partitions loses rows in silence",
        "neither a time epoch nor another min_in_sync of an HA group can be recorded",
        "no log file can be sealed before it is full",
    ),
}
"""Level → what operators of a group below it have to know."""


def snapshot_version(level: int) -> int:
    """The version in which a group of this level writes its snapshots: the newest one that all of
    its members can read."""
    return max(version for version, at in SNAPSHOTS.items() if at <= level)
