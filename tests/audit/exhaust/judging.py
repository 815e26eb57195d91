"""What an audit must say of a case: never PASS, unless a row of a table says why the bytes are no
content; and nobody else is accused.

`ALLOWED` is that table.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from bench.audit_scan import NODES
from ledgermq.audit.run.jobs import FAIL, INCOMPLETE, PASS, Audit
from tests.audit.exhaust.cases import Atlas, Case
from tests.audit.exhaust.cluster import SEALED
from tests.audit.exhaust.consistent import packed_texts, resealed, with_packed
from tests.audit.exhaust.ground import AGREEMENT, DEEP, WHOLE

HEADER_BYTES = 48
"""Of an entry, before its record."""
READ = (WHOLE, DEEP)
"""Modes that read every byte of the log."""


@dataclass(frozen=True)
class Row:
    """Cases, and what an audit may say of them besides FAIL. `place`: a pattern of what the byte
    is, as `Atlas.label` says it."""

    place: str
    reason: str
    kinds: str = ".*"
    levels: str = ".*"
    modes: Sequence[str] = (*READ, AGREEMENT)
    verdicts: frozenset[str] = frozenset({PASS})
    fits: Callable[[Atlas, Case], bool] = lambda atlas, case: True

    def covers(self, atlas: Atlas, case: Case) -> bool:
        return (
            case.mode in self.modes
            and re.fullmatch(self.kinds, case.kind) is not None
            and re.fullmatch(self.levels, "+".join(case.levels)) is not None
            and re.fullmatch(self.place, atlas.label_of(case)) is not None
            and self.fits(atlas, case)
        )


def complaint(atlas: Atlas, case: Case, result: Audit) -> str:
    """What is wrong with this audit of this case; nothing if it is right."""
    fails = [finding for finding in result.findings if finding.fails]
    others = sorted(
        {finding.replica for finding in fails} - ({*NODES} if case.kind == "root" else {case.node})
    )
    covering = [row for row in ALLOWED if row.covers(atlas, case)] if result.verdict != FAIL else []
    if others:
        text = next(finding for finding in fails if finding.replica in others)
        return f"accuses {', '.join(others)}: {text.text}: {text.flaw.proof}"
    if result.verdict != FAIL and not any(result.verdict in row.verdicts for row in covering):
        return f"{result.verdict}: {'; '.join(result.reasons) or 'without a word'}"
    return ""


def _below(atlas: Atlas, case: Case) -> bool:
    """Units of what was trimmed, in the first file that is left."""
    one = atlas.owner(case.path)
    if one is None or not one.entries[0].index or re.fullmatch(r".*/\d{20}", case.path) is None:
        return False
    first, unit = one.entries[0].index, 32
    if "/consumequeue/" in case.path:
        topic, queue = case.path.split("/")[-3:-1]
        minimums = json.loads(atlas.image[f"{one.root}/state/snapshot"])["minimums"]
        first, last = minimums.get(topic, {}).get(queue, (0, None))
        first, unit = first - (last is not None), 20
    changed, was = (atlas.changes(case) or {}).get(case.path) or b"", atlas.image[case.path]
    start = first * unit - int(case.path[-20:])
    return len(changed) == len(was) and changed[max(start, 0) :] == was[max(start, 0) :]


def _met_fewer(atlas: Atlas, case: Case) -> bool:
    was, now = (
        json.loads(raw or b"{}")
        for raw in (atlas.image[case.path], (atlas.changes(case) or {}).get(case.path))
    )
    peers = now.get("peers")
    return isinstance(peers, dict) and all(
        was["peers"].get(node, told) == told for node, told in peers.items()
    )


def _is_gone(atlas: Atlas, case: Case) -> bool:
    """The file is missing; of the index files one that is allocated ahead."""
    ahead = "/bloom/" in case.path or not any(atlas.image[case.path])
    return ahead and atlas.changes(case) == {case.path: None}


def _is_lower_hint(atlas: Atlas, case: Case) -> bool:
    """Still a checkpoint of the log, which names no entry behind the last one."""
    data, one = (atlas.changes(case) or {}).get(case.path), atlas.owner(case.path)
    found = re.fullmatch(
        rb"endIndex=(-?\d+)\ncommittedIndex=(-?\d+)\n", data or b"endIndex=0\ncommittedIndex=0\n"
    )
    return (
        found is not None
        and one is not None
        and -1 <= int(found[2]) <= int(found[1]) <= one.entries[-1].index
    )


def _is_lower_stamp(atlas: Atlas, case: Case) -> bool:
    data, was = (atlas.changes(case) or {}).get(case.path), atlas.image[case.path]
    if data is None:
        return True
    stamps = [
        (int.from_bytes(data[at : at + 8], "big"), int.from_bytes(was[:8], "big"))
        for at in (0, 8, 16)
    ]
    return (
        len(data) == len(was)
        and data[24:] == was[24:]
        and all(stamp <= latest for stamp, latest in stamps)
    )


def _is_ahead(atlas: Atlas, case: Case) -> bool:
    """A log file without an entry behind the last one."""
    one = atlas.owner(case.path)
    return one is not None and case.path > one.end[0]


FIRST_READ = ((0, 16), (24, 32), (44, 48))
"""Magic, size, index, position and body size."""
LAST_READ = ((8, 16), (24, 32), (36, 40))
"""Index, position and chain word; the size, too, where a seal says where the entry ends."""


def _unread(atlas: Atlas, case: Case) -> bool:
    """No byte is changed that `--agreement` reads of a log file: of the headers of its first and of
    its last entry."""
    one = atlas.owner(case.path)
    for path, data in (atlas.changes(case) or {}).items():
        inside = [entry for entry in one.entries if entry.path == path] if one is not None else []
        sealed = ((4, 8),) if inside and int(path[-20:]) in SEALED else ()
        ranges = [
            (entry.at + start, entry.at + stop)
            for entry in inside[:1]
            for start, stop in FIRST_READ
        ]
        ranges += [
            (entry.at + start, entry.at + stop)
            for entry in inside[-1:]
            for start, stop in (*LAST_READ, *sealed)
        ]
        if data is None or any(
            data[start:stop] != atlas.image[path][start:stop] for start, stop in ranges
        ):
            return False
    return True


def _unsealed(atlas: Atlas, case: Case) -> bool:
    """What is noted of files that no record seals, or a note without its checksum."""
    changed = (atlas.changes(case) or {}).get(case.path)
    text = resealed(changed) if changed is not None else None
    if changed is None or text is None or text != changed:
        return True
    was, now = (json.loads(raw) for raw in (atlas.image[case.path], changed))
    if now.get("log_id") != was["log_id"]:
        return True
    sealed = [
        (kind, base, value)
        for kind in ("digests", "roots")
        for base, value in was.get(kind, {}).items()
        if int(base) in SEALED
    ]
    return all(
        not isinstance(now.get(kind), dict) or now[kind].get(base, value) == value
        for kind, base, value in sealed
    )


def _begins_at_keyless(atlas: Atlas, case: Case) -> bool:
    """Of a file of the key index only its first entry is another one, and the entries between both
    have no units."""
    one, data = atlas.owner(case.path), (atlas.changes(case) or {}).get(case.path)
    if one is None or data is None:
        return False
    was, now = (json.loads(raw).get("files", []) for raw in (atlas.image[case.path], data))
    positions: set[int] = set()
    for name, slots, *_ in was:
        units = atlas.image[f"{one.root}/index/{name}"][40 + 4 * slots :]
        positions |= {
            int.from_bytes(units[at + 4 : at + 12], "big") for at in range(20, len(units), 20)
        }
    keyed = {
        entry.index
        for entry in one.entries
        if int(entry.path[-20:]) + entry.at + HEADER_BYTES in positions
    }
    return [row[:3] + row[4:] for row in was] == [row[:3] + row[4:] for row in now] and not any(
        keyed & set(range(min(old[3], new[3]), max(old[3], new[3])))
        for old, new in zip(was, now, strict=True)
    )


def _inflates_alike(atlas: Atlas, case: Case) -> bool:
    """Of a snapshot only the deflated form of a column is another one, not its bytes, and each
    column is base64 as writers encode it."""
    changed = (atlas.changes(case) or {}).get(case.path) or b"{}"
    texts = re.findall(rb'"([A-Za-z0-9+/]{4,}={0,2})"', changed)
    canonical = all(
        len(text) % 4 or base64.b64encode(base64.b64decode(text)) == text for text in texts
    )
    return canonical and _deflated_anew(changed) == _deflated_anew(atlas.image[case.path])


def _deflated_anew(raw: bytes) -> Any:
    value = json.loads(raw)
    value.pop("crc32c", None)
    for path, column in list(packed_texts(value)):
        value = with_packed(value, path, column)
    return value


HINTS = (
    "nothing rests on it (docs/format.md, sections 1 and 9): a start makes it again, or goes on"
    " without"
)
OWN = "only this replica knows it: nothing else says what it should be, and its checksum is right"
BLIND = "`--agreement` does not read it, or not so closely"

ALLOWED: Sequence[Row] = (
    Row(r"state/(scrub|leadership|reserve): .*", HINTS),
    Row(
        r"state/digests: .*",
        "a hint, which `--agreement` alone holds against the seals",
        modes=READ,
    ),
    Row(
        r"state/digests: .*",
        "a hint, which counts with its checksum and for files that are sealed",
        modes=(AGREEMENT,),
        fits=_unsealed,
    ),
    Row(
        r"checkpoint: log checkpoint",
        "a hint; it may be missing, and a lower number is as true",
        fits=_is_lower_hint,
    ),
    Row(
        r"checkpoint: .*",
        "stamps up to which something is durable; a lower one is as true",
        fits=_is_lower_stamp,
    ),
    Row(
        r"index: |consumequeue: ",
        "units below the begin of a trimmed log mean nothing",
        kinds="flip|swap|old",
        fits=_below,
    ),
    Row(r"(node|identity)\.json: created_ms", OWN, kinds="flip", levels="crc"),
    Row(r"state/boots\.json: .*", OWN, kinds="flip", levels="crc"),
    Row(r"state/peers\.json: (boots|met_by|vouched)", OWN, kinds="flip", levels="crc"),
    Row(
        r"state/peers\.json: peers",
        "a peer may not have been met yet, and a former member have been met",
        kinds="flip",
        levels="crc",
        fits=_met_fewer,
    ),
    Row(r"state/boots\.json: .*", OWN, kinds="peer"),
    Row(
        r"state/(peers|boots)\.json: .*",
        "it may be missing, and an older one is as true",
        kinds="gone|old",
    ),
    Row(
        r"syncedmark: mark slot",
        OWN,
        kinds="flip",
        levels="crc.*",
        fits=lambda a, c: 8 <= c.at % 4096 < 16,
    ),
    Row(
        r"syncedmark: mark slot",
        "the older slot may name a later entry: the node was killed while it lowered the mark",
        levels="crc",
        fits=lambda a, c: 64 <= c.at % 4096 < 72,
    ),
    Row(
        r"hardstate: hardstate slot",
        OWN,
        kinds="flip",
        levels="crc.*",
        fits=lambda a, c: 8 <= c.at % 4096 < 30,
    ),
    Row(r"data: .*", BLIND, modes=(AGREEMENT,), fits=_unread),
    Row(
        r"checkpoint: ",
        BLIND,
        kinds="flip|swap",
        modes=(AGREEMENT,),
        fits=lambda atlas, case: case.at < 24,
    ),
    Row(
        r"data: log tail|data: ",
        "a file allocated ahead may be missing",
        kinds="gone|old",
        fits=_is_ahead,
    ),
    Row(r"(consumequeue|index|state/bloom|state/keyindex): .*", BLIND, modes=(AGREEMENT,)),
    Row(r"state/snapshot(\.previous)?: .*", BLIND, levels="crc", modes=(AGREEMENT,)),
    Row(r"state/snapshot(\.previous)?: packed", BLIND, modes=(AGREEMENT,)),
    Row(r"state/snapshot\.previous: ", "it may be missing", kinds="gone|old"),
    Row(
        r"state/snapshot(\.previous)?: .*",
        "deflate has many forms of the same bytes, and writers differ",
        kinds="flip",
        levels="crc",
        modes=READ,
        fits=_inflates_alike,
    ),
    Row(
        r"state/keyindex: files",
        "a file may as well begin at an entry before it that has no keys",
        kinds="flip",
        levels="crc",
        modes=READ,
        fits=_begins_at_keyless,
    ),
    Row(
        r"state/bloom: .*",
        "a missing filter is made again (section 14.2)",
        kinds="gone|old",
        fits=_is_gone,
    ),
    Row(r"index: index tail", "no unit is in it yet", kinds="gone|old", fits=_is_gone),
    Row(
        r"state/snapshot: ",
        "an earlier one is as true: a start derives the rest",
        kinds="old|gone|exchange",
    ),
    Row(r"syncedmark: mark slot", BLIND, levels="crc.*", modes=(AGREEMENT,)),
    Row(
        r"index: index .*|data: .*|state/snapshot: applied_index",
        "entries that cannot be found by their edges, units or words are said not to be compared",
        modes=(AGREEMENT,),
        verdicts=frozenset({INCOMPLETE}),
    ),
    Row(
        r"state/snapshot: members",
        "`--agreement` learns the members from snapshots, and says which of them it did not"
        " compare",
        kinds="flip",
        levels="crc",
        modes=(AGREEMENT,),
        verdicts=frozenset({INCOMPLETE}),
    ),
    Row(
        r"state/snapshot(\.previous)?: v",
        "a snapshot of another version is not derived, and that is said",
        levels="crc",
        verdicts=frozenset({INCOMPLETE}),
    ),
    Row(
        r"(node|identity)\.json: format_version",
        "a directory of another version is left out, and that is said",
        levels="crc",
        verdicts=frozenset({INCOMPLETE}),
    ),
)
"""What docs/format.md calls no content, or nobody else can know."""
