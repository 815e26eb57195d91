"""The figures above which a medium is called slow or full: one place for the doctor and for the warnings of a running node.

Constants only; whoever measures compares.
"""

from __future__ import annotations

SYNC_WARN_S = 0.05
"""A sync this long makes every durable acknowledgement that waits for it late …"""
SYNC_ALARM_S = 0.1
"""… and one this long comes near the heartbeats of an election."""

DISK_WARN_PERCENT = 80
"""Used space of a file system, in percent of it: the time to add space or to keep less …"""
DISK_ALARM_PERCENT = 90
"""… and the point beyond which a node is about to refuse writes."""

SCRUB_BYTES_PER_S = 16 << 20
"""How fast a node reads its logs again by default. A disk of which this is more than …"""
SCRUB_PART_OF_DISK = 0.05
"""… such a part is better given less, and a log of which one pass takes longer than …"""
SCRUB_PASS_S = 7 * 86_400
"""… so long, more."""
