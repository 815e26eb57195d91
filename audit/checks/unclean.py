"""What a node that was not stopped in good order may leave behind, told from damage: the one place that excuses a flaw.

A kill leaves what had been written; a power cut leaves, of everything that was not synced, any subset of 512-byte sectors, the others as
they were before: zero. Each kind of file has its own point up to which all of it had to be on the disk. What is wrong below that point is
damage, and so is a byte that no unwritten sector explains. Nothing here looks at replicas that were stopped in good order, or that run.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ledgermq.audit.checks.after_scan import required_dispatch
from ledgermq.audit.checks.replica import Replica
from ledgermq.audit.checks.rules import RULES, Flaw
from ledgermq.audit.reading import bytewise
from ledgermq.audit.reading.decode import SECTOR

QUEUE_PREFIX, INDEX_PREFIX = "queue.", "index."
KEY_INDEX_RULES = tuple(rule for rule in RULES if rule.startswith("keyindex."))


def excuse(one: Replica, flaw: Flaw, compared: int | None, peers: Sequence[Replica]) -> str | None:
    """Why a flaw is what ordinary recovery removes; None when it is damage. `peers`: replicas that hold the place intact."""
    if one.clean:
        return None
    marked = -1 if one.mark is None else one.mark.index
    if flaw.rule.startswith(INDEX_PREFIX):
        honest = flaw.torn and (flaw.index is None or flaw.index > marked or _in_file_of_mark(one, flaw.index))
        what = "index units of the log file that its synced mark stands in need not be on the disk yet"
        return f"the node was killed, and {what}" if honest else None
    if flaw.rule.startswith(QUEUE_PREFIX):
        applied = required_dispatch(one)
        honest = flaw.torn and (flaw.index is None or flaw.index > applied)
        return f"the node was killed, and units above its snapshot ({applied}) need not be on the disk yet" if honest else None
    if flaw.index is not None and flaw.index <= marked:
        return None
    nothing = f"the node was killed, and nothing above its synced mark ({marked}) counts"
    promised = flaw.index is not None and compared is not None and flaw.index <= compared
    if flaw.torn and (not promised or flaw.rule in ("blank.alone", *KEY_INDEX_RULES)):
        return nothing
    if flaw.rule == "entry.gap" and not promised and _is_zero(one, flaw):
        return f"{nothing}: where the entries should stand nothing was written"
    return f"{nothing}: sectors that were never written are zero here" if _unwritten(one, flaw, peers) else None


def _in_file_of_mark(one: Replica, index: int) -> bool:
    """Index units are synced with the first sync after the log went on to its next file, and the mark follows in a later one."""
    if one.mark is None or one.mark.index < 0 or not one.sizes[0]:
        return True
    last = one.mark.end_pos - 1
    base = last - last % one.sizes[0]
    firsts = [report.first_index for report in one.reports if report.base >= base and report.first_index is not None]
    return bool(firsts) and index >= min(firsts)


def _is_zero(one: Replica, flaw: Flaw) -> bool:
    own = bytewise.read(f"{one.log}/data/{flaw.file.rpartition('/')[2]}", flaw.byte_from, flaw.byte_to)
    return own is not None and not any(own)


def _unwritten(one: Replica, flaw: Flaw, peers: Sequence[Replica]) -> bool:
    """Whether a damaged place of the log differs from an intact peer in nothing but sectors that are zero, or zero from the first different
    byte on: that is how the log left the sector when it ended there."""
    if not peers or not flaw.file.startswith(one.shown(f"{one.log_folder}/data/")):
        return False
    name = flaw.file.rpartition("/")[2]
    # Of what stands behind the end only the bytes that are not zero are named.
    rests = [(report.end, report.length) for report in one.reports if report.file == flaw.file and flaw.rule == "tail.zero"]
    start, end = (*rests, (flaw.byte_from, flaw.byte_to))[0]
    differ = False
    while start < end:
        stop = min(start - start % bytewise.CHUNK + bytewise.CHUNK, end)
        own, theirs = (bytewise.read(f"{replica.log}/data/{name}", start, stop) for replica in (one, peers[0]))
        if own is None or theirs is None or len(own) != len(theirs):
            return False
        here, there = np.frombuffer(own, np.uint8), np.frombuffer(theirs, np.uint8)
        places = np.flatnonzero(here != there)
        sectors, first = np.unique((places + start) // SECTOR, return_index=True)
        if any(here[low : (at + 1) * SECTOR - start].any() for at, low in zip(sectors.tolist(), places[first].tolist(), strict=True)):
            return False
        differ = differ or bool(len(places))
        start = stop
    return differ
