"""The thresholds above which a medium counts as slow or full, shared by the doctor and the warnings
of a running node.

Constants only; the callers measure and compare.
"""

from __future__ import annotations

SYNC_WARN_S = 0.05
"""A sync of this duration noticeably delays every durable acknowledgement that waits for it …"""
SYNC_ALARM_S = 0.1
"""… and one of this duration comes near the heartbeat interval of elections."""

DISK_WARN_PERCENT = 80
"""Used space of a file system, in percent: from here on, add space or keep fewer messages …"""
DISK_ALARM_PERCENT = 90
"""… and from here on a node is about to refuse writes."""

SCRUB_BYTES_PER_S = 16 << 20
"""The default rate at which a node rereads its logs (scrub). If this is more than …"""
SCRUB_PART_OF_DISK = 0.05
"""… this part of the disk's rate, a lower rate is better; if one pass over the log takes longer
than …"""
SCRUB_PASS_S = 7 * 86_400
"""… this, a higher one."""
