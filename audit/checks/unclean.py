"""What a node that was not stopped cleanly may leave behind, as opposed to damage: the only module
that excuses a flaw.

A kill leaves everything written so far. A power cut leaves, of the unsynced bytes, any subset of
512-byte sectors; the others keep their former content, zero. For each kind of file there is a point
up to which all bytes had to be on disk. A flaw below that point is damage, and so is any byte that
no unwritten sector explains. Replicas that were stopped cleanly, or that are running, are not
considered here.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ledgermq.audit.checks.after_scan import required_dispatch
from ledgermq.audit.checks.replica import Replica
from ledgermq.audit.reading import bytewise
from ledgermq.audit.reading.decode import SECTOR
from ledgermq.audit.rules import RULES, Flaw

QUEUE_PREFIX, INDEX_PREFIX = "queue.", "index."
KEY_INDEX_RULES = tuple(rule for rule in RULES if rule.startswith("keyindex."))


def excuse(one: Replica, flaw: Flaw, compared: int | None, peers: Sequence[Replica]) -> str | None:
    """Why ordinary recovery removes a flaw; None if it is damage. `peers`: replicas that hold the
    place intact."""
    if one.clean:
        return None
    marked = -1 if one.mark is None else one.mark.index
    if flaw.rule.startswith(INDEX_PREFIX):
        honest = flaw.torn and (
            flaw.index is None or flaw.index > marked or _in_file_of_mark(one, flaw.index)
        )
        explanation = (
            "index units of the log file that its synced mark stands in need not be on the disk yet"
        )
        return f"the node was killed, and {explanation}" if honest else None
    if flaw.rule.startswith(QUEUE_PREFIX):
        applied = required_dispatch(one)
        honest = flaw.torn and (flaw.index is None or flaw.index > applied)
        return (
            f"the node was killed, and units above its snapshot ({applied}) need not be on the"
            " disk yet"
            if honest
            else None
        )
    if flaw.index is not None and flaw.index <= marked:
        return None
    nothing = f"the node was killed, and nothing above its synced mark ({marked}) counts"
    promised = flaw.index is not None and compared is not None and flaw.index <= compared
    if flaw.torn and (not promised or flaw.rule in ("blank.alone", *KEY_INDEX_RULES)):
        return nothing
    if flaw.rule == "entry.gap" and not promised and _is_zero(one, flaw):
        return f"{nothing}: where the entries should stand nothing was written"
    return (
        f"{nothing}: sectors that were never written are zero here"
        if _unwritten(one, flaw, peers)
        else None
    )


def _in_file_of_mark(one: Replica, index: int) -> bool:
    """Index units are synced with the first sync after the log continued in its next file; the mark
    follows in a later sync."""
    if one.mark is None or one.mark.index < 0 or not one.sizes[0]:
        return True
    last = one.mark.end_pos - 1
    base = last - last % one.sizes[0]
    firsts = [
        report.first_index
        for report in one.reports
        if report.base >= base and report.first_index is not None
    ]
    return bool(firsts) and index >= min(firsts)


def _is_zero(one: Replica, flaw: Flaw) -> bool:
    own = bytewise.read(
        f"{one.log}/data/{flaw.file.rpartition('/')[2]}", flaw.byte_from, flaw.byte_to
    )
    return own is not None and not any(own)


def _unwritten(one: Replica, flaw: Flaw, peers: Sequence[Replica]) -> bool:
    """Whether a damaged place of the log differs from an intact peer only in sectors that are zero,
    or zero from the first different byte on: this is a sector as it was when the log ended
    there."""
    if not peers or not flaw.file.startswith(one.shown(f"{one.log_folder}/data/")):
        return False
    name = flaw.file.rpartition("/")[2]
    # For bytes behind the end, a flaw names only the nonzero ones.
    rests = [
        (report.end, report.length)
        for report in one.reports
        if report.file == flaw.file and flaw.rule == "tail.zero"
    ]
    start, end = (*rests, (flaw.byte_from, flaw.byte_to))[0]
    differ = False
    while start < end:
        stop = min(start - start % bytewise.CHUNK + bytewise.CHUNK, end)
        own, theirs = (
            bytewise.read(f"{replica.log}/data/{name}", start, stop) for replica in (one, peers[0])
        )
        if own is None or theirs is None or len(own) != len(theirs):
            return False
        own_bytes, peer_bytes = np.frombuffer(own, np.uint8), np.frombuffer(theirs, np.uint8)
        places = np.flatnonzero(own_bytes != peer_bytes)
        sectors, first = np.unique((places + start) // SECTOR, return_index=True)
        if any(
            own_bytes[low : (at + 1) * SECTOR - start].any()
            for at, low in zip(sectors.tolist(), places[first].tolist(), strict=True)
        ):
            return False
        differ = differ or bool(len(places))
        start = stop
    return differ
