"""Comparing the objects of tiered storage with their manifests, with what replicas recorded of
their files, and with their own files.

The store decides nothing in a cluster, so it counts for no majority here. The measure is what a
majority recorded of a file: its seal in the log or in a snapshot, the digests in the trim records,
and the leaf in the log tree, which outlives the file on every replica. The objects were read and
scanned before (`works.STORED`); no object is read here.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import TypeVar

from ledgermq.audit.checks.group import GroupResult, Spans, StoredResult
from ledgermq.audit.checks.replica import Replica
from ledgermq.audit.checks.scan import LogReport
from ledgermq.audit.checks.seals import Seal, seal_in, seals_of
from ledgermq.audit.checks.witnesses import LEAF, tree_of
from ledgermq.audit.reading.begin import former_logs
from ledgermq.audit.reading.decode import NOT_JSON, read_sealed_json
from ledgermq.audit.reading.objects import StoreAccess
from ledgermq.audit.reading.stored_logs import NAME, Manifest, StoredLog
from ledgermq.audit.reading.stored_parts import DEFINITIONS, Definitions
from ledgermq.audit.rules import RULES, Finding, Flaw

NOTE = "state/tiered"
Told = TypeVar("Told")


def notes_of(replicas: Iterable[Replica], access: StoreAccess) -> dict[str, int]:
    """Replica → the position before which it noted that it had verified everything in this store,
    whatever address it reaches it by. Read them before the store is listed. Raises NodeLost."""
    positions = {}
    for one in replicas:
        try:
            value = read_sealed_json(f"{one.root}/{NOTE}")
        except OSError as error:
            one.flaw("file.read", NOTE, str(error.strerror))
            continue
        url = str((value or {}).get("place")).partition(" at ")[0]
        if (
            value is not None
            and (value.get("log_id"), url) == (one.log_id, access.url.rstrip("/"))
            and isinstance(value.get("verified_pos"), int)
        ):
            positions[one.name] = int(value["verified_pos"])
    return positions


def check_store(
    result: GroupResult,
    logs: Sequence[StoredLog],
    reports: Mapping[str, LogReport],
    notes: Mapping[str, int],
    place: str,
) -> None:
    """Compare what the store holds of one judged broker group. `logs`: all logs of the store;
    `reports`: the scan of each object that was read, by its key. `notes` as in `notes_of`."""
    ids = {one.log_id for one in result.replicas if one.log_id is not None}
    clusters = {one.identity["cluster_id"] for one in result.replicas if one.identity is not None}
    former = {log_id for one in result.replicas for log_id in former_logs(one.root)}
    own: list[StoredLog] = []
    for log in logs:
        if log.group != result.group:
            continue
        if log.log_id in ids:
            own.append(log)
        elif log.log_id in former:
            result.notes.append(
                f"group {result.group}: the store also holds the log {log.log_id} from before a"
                " recovery; it was not compared"
            )
        else:
            size = sum(log.objects.values())
            known = ", ".join(sorted(ids)) or "unknown"
            proof = (
                f"{log.folder} holds {len(log.objects)} objects of a log that no replica has; their"
                f" log is {known}"
            )
            _tell(
                result, "stored.foreign", key=log.folder, index=None, start=0, end=size, proof=proof
            )
    for log in own:
        stored = StoredResult(place, log.log_id)
        result.stored.append(stored)
        _check_log(result, log, reports, notes, clusters, stored=stored)
    if not own:
        lost = max(notes.values(), default=0)
        if lost:
            proof = (
                f"replicas found their log up to position {lost} at {place}, and nothing of it is"
                " there any more"
            )
            _tell(
                result,
                "stored.older",
                key=f"{result.group}/{min(ids, default='')}",
                index=None,
                start=0,
                end=lost,
                proof=proof,
            )
        result.reasons.append(f"group {result.group}: the store holds nothing of its log")


def check_parts(
    result: GroupResult, parts: Iterable[Flaw], definitions: Sequence[Definitions]
) -> None:
    """Tell what is wrong with index parts of the group, and with what nodes stored of their
    definitions. A group needs intact ones of its cluster. A damaged object names no cluster, so it
    is told of every group for which it is among `definitions`."""
    result.findings += [Finding(RULES[flaw.rule].klass, NAME, result.group, flaw) for flaw in parts]
    for each in definitions:
        if each.cluster_id is None:
            _tell(
                result,
                "stored.definitions",
                each.key,
                index=None,
                start=0,
                end=each.size,
                proof="it does not have its checksum, or not its fields",
            )
    clusters = {one.identity["cluster_id"] for one in result.replicas if one.identity is not None}
    if any(stored.files for stored in result.stored) and not clusters & {
        each.cluster_id for each in definitions
    }:
        proof = (
            "no node of the cluster has definitions of topics, consumer groups and users there: a"
            " lost cluster cannot be restored"
        )
        _tell(
            result, "stored.definitions", key=DEFINITIONS, index=None, start=0, end=0, proof=proof
        )


def _tell(
    result: GroupResult, rule: str, key: str, index: int | None, start: int, end: int, proof: str
) -> None:
    result.findings.append(
        Finding(
            RULES[rule].klass,
            NAME,
            result.group,
            Flaw(rule, key, index=index, byte_from=start, byte_to=end, proof=proof),
        )
    )


def _check_log(
    result: GroupResult,
    log: StoredLog,
    reports: Mapping[str, LogReport],
    notes: Mapping[str, int],
    clusters: set[str],
    stored: StoredResult,
) -> None:
    for key in log.damaged:
        _tell(
            result,
            "stored.manifest",
            key,
            index=None,
            start=0,
            end=log.objects[key],
            proof="it does not have its checksum, or not its fields",
        )
    about = log.about
    if about is None and f"{log.folder}/log.json" not in log.objects:
        _tell(
            result,
            "stored.missing",
            key=f"{log.folder}/log.json",
            index=None,
            start=0,
            end=0,
            proof="the description of the log is not there",
        )
    # A replica with another cluster than its peers has a finding of its own.
    if about is not None and (
        (about["group"], about["log_id"]) != (log.group, log.log_id)
        or about["cluster_id"] not in clusters
    ):
        proof = (
            f"it describes log {about['log_id']} of {about['group']} in cluster"
            f" {about['cluster_id']}"
        )
        _tell(
            result,
            "stored.foreign",
            key=f"{log.folder}/log.json",
            index=None,
            start=0,
            end=log.objects[f"{log.folder}/log.json"],
            proof=proof,
        )
    if log.begin and not log.has_snapshot():
        proof = (
            f"the stored log begins at position {log.begin}, and the snapshot of what was before is"
            " not there"
        )
        _tell(
            result,
            "stored.missing",
            key=f"{log.folder}/snapshot",
            index=None,
            start=0,
            end=0,
            proof=proof,
        )
    _check_objects(result, log)
    _check_order(result, log, notes)
    seals, digests = seals_of(result), _trimmed_digests(result)
    leaves = _leaves(result, log, seals)
    later_seals = {
        seal[0]: seal[1]
        for file in reversed(log.files)
        for seal in _seals_in(reports.get(file.object))
    }
    stored.files = len(log.files)
    for file in log.files:
        report = reports.get(file.object)
        if report is None or any(flaw.rule == "file.read" for flaw in report.flaws):
            stored.unread.append((file.base, file.next_base))
            continue
        stored.read.append((file.base, file.next_base))
        stored.entries += report.entries
        if not _check_file(result, file, report):
            continue
        known = seals.get(file.base)
        recorded = known.sha256 if known is not None else digests.get(file.base)
        leaf = leaves.get(file.base)
        if recorded is not None and recorded != file.sha256:
            older = recorded in log.former(file.base)
            rule = (
                "stored.older" if older or file.sha256 in log.former(file.base) else "stored.seal"
            )
            proof = f"the file has SHA-256 {file.sha256[:16]}…, a majority sealed {recorded[:16]}…"
            _tell(
                result, rule, key=file.object, index=file.first, start=0, end=file.size, proof=proof
            )
        elif known is not None and (known.first, known.last, known.end) != (
            file.first,
            file.last,
            file.end,
        ):
            proof = (
                f"sealed with entries {known.first} to {known.last} up to position {known.end}; "
            )
            proof += f"stored {file.first} to {file.last} up to {file.end}"
            _tell(
                result,
                "stored.seal",
                key=file.object,
                index=file.first,
                start=0,
                end=file.size,
                proof=proof,
            )
        elif leaf is not None and leaf != _leaf(report):
            entries = (
                f"{report.entries} entries from {file.first} on with the root {report.root[:16]}…"
            )
            proof = (
                f"in the replicas' log tree another leaf stands there than that of its {entries}"
            )
            _tell(
                result,
                "stored.seal",
                key=file.object,
                index=file.first,
                start=0,
                end=file.size,
                proof=proof,
            )
        if recorded is not None or leaf is not None:
            stored.sealed.append((file.base, file.next_base))
        elif file.base in later_seals:
            stored.sealed_there.append((file.base, file.next_base))
            if later_seals[file.base].sha256 != file.sha256:
                proof = (
                    f"the file has SHA-256 {file.sha256[:16]}…, a seal behind it in the store says"
                    f" {later_seals[file.base].sha256[:16]}…"
                )
                _tell(
                    result,
                    "stored.seal",
                    key=file.object,
                    index=file.first,
                    start=0,
                    end=file.size,
                    proof=proof,
                )
        else:
            stored.unsealed.append((file.base, file.next_base))
        if not _compare_with_replicas(result, file, report, stored):
            stored.alone.append((file.base, file.next_base))
    # What else is wrong with a record was so when a majority sealed it, and is the same on every
    # replica.
    named = {
        finding.flaw.file for finding in result.findings if finding.flaw.rule.startswith("stored.")
    }
    readable = [
        file
        for file in log.files
        if (file.base, file.next_base) in stored.read and not named & {file.key, file.object}
    ]
    stored.sound = [(log.task(file), reports[file.object]) for file in readable]
    stored.begins_with = log.begin_index
    stored.begin_index = log.files[0].first if log.files else None
    stored.last_index = log.files[-1].last if log.files else None
    reach = max(one.end_pos for one in result.replicas)
    low = min(one.begin.pos for one in result.replicas)
    stored.not_stored = list(
        _missing_spans(low, reach, [(file.base, file.next_base) for file in log.files])
    )
    for spans in (
        stored.read,
        stored.sealed,
        stored.sealed_there,
        stored.unread,
        stored.unsealed,
        stored.alone,
        stored.not_stored,
    ):
        spans[:] = _joined(spans)
    stored.replicas = {name: _joined(spans) for name, spans in sorted(stored.replicas.items())}
    if stored.unsealed:
        positions = spans_text(stored.unsealed)
        result.reasons.append(
            f"group {result.group}: no seal is known of the stored positions {positions}; audit the"
            " replicas up to their present end"
        )


def _check_objects(result: GroupResult, log: StoredLog) -> None:
    """Every manifest has its object in its length, which is that of all files; every log file has
    its manifest, or waits for it behind the last one."""
    for file in log.files:
        size = log.objects.get(file.object)
        if size is None:
            proof = f"its manifest names it, with entries {file.first} to {file.last}"
            _tell(
                result,
                "stored.missing",
                key=file.object,
                index=file.first,
                start=0,
                end=file.size,
                proof=proof,
            )
        elif size != file.size:
            bounds = sorted((size, file.size))
            _tell(
                result,
                "stored.digest",
                key=file.object,
                index=file.first,
                start=bounds[0],
                end=bounds[1],
                proof=f"{size} bytes instead of {file.size}",
            )
        if log.about is not None and file.size != log.about["data_file_bytes"]:
            proof = (
                f"it describes {file.size} bytes, the files of the log have"
                f" {log.about['data_file_bytes']}"
            )
            _tell(
                result,
                "stored.entries",
                file.key,
                index=file.first,
                start=0,
                end=log.objects[file.key],
                proof=proof,
            )
        if file.log_id != log.log_id:
            _tell(
                result,
                "stored.foreign",
                file.key,
                index=file.first,
                start=0,
                end=log.objects[file.key],
                proof=f"it describes a file of the log {file.log_id}",
            )
    known, bases = {file.object for file in log.files}, {file.base for file in log.files}
    for ending, base, sha256 in log.names():
        key = f"{log.folder}/{f'{base:020d}-{sha256}'.removesuffix('-')}.log"
        if (
            ending == "log"
            and base in bases
            and key not in known
            and sha256 not in log.former(base)
        ):
            proof = f"no manifest names it; the one of position {base} names another digest"
            _tell(
                result,
                "stored.foreign",
                key,
                index=None,
                start=0,
                end=log.objects[key],
                proof=proof,
            )


def _check_order(result: GroupResult, log: StoredLog, notes: Mapping[str, int]) -> None:
    """The manifests are one history without a gap, as far as the replicas found it there, or need
    it."""
    if log.files and log.files[0].base > log.begin:
        first = log.files[0]
        _gap(
            result,
            log,
            log.begin,
            first.base,
            f"the stored log begins there, and the first manifest is that of entry {first.first}",
        )
    elif log.files and log.moved is not None:
        first, moved = log.files[0], log.moved
        if (first.first, first.term, first.chain) != (
            moved["index"],
            moved["term"],
            moved["chain"],
        ):
            proof = (
                f"it begins with entry {first.first}; by total retention the log begins with entry"
                f" {moved['index']} of another history"
            )
            _tell(
                result,
                "stored.entries",
                first.key,
                index=first.first,
                start=0,
                end=log.objects[first.key],
                proof=proof,
            )
    for before, after in pairwise(log.files):
        if after.base != before.next_base:
            _gap(
                result,
                log,
                before.next_base,
                after.base,
                f"the manifests on both sides end with entry {before.last} and begin with"
                f" {after.first}",
            )
        elif (after.first, after.term, after.chain) != (
            before.last + 1,
            before.last_term,
            before.last_chain,
        ):
            proof = (
                f"it continues entry {after.first - 1} of term {after.term} and chain"
                f" {after.chain:08x}; the file before ends with entry "
            )
            proof += f"{before.last} of term {before.last_term} and chain {before.last_chain:08x}"
            _tell(
                result,
                "stored.entries",
                after.key,
                index=after.first,
                start=0,
                end=log.objects[after.key],
                proof=proof,
            )
    noted = max(notes.values(), default=0)
    if noted > log.end:
        names = ", ".join(name for name, pos in sorted(notes.items()) if pos == noted)
        proof = (
            f"{names} found the log up to position {noted} in the store; now it ends at {log.end}"
        )
        _tell(
            result,
            "stored.older",
            key=f"{log.folder}/{log.end:020d}.json",
            index=None,
            start=log.end,
            end=noted,
            proof=proof,
        )
    begin = min(one.begin.pos for one in result.replicas)
    if begin > max(log.end, noted):
        _gap(
            result,
            log,
            log.end,
            begin,
            f"no replica has it any more: their logs begin at position {begin}",
        )


def _gap(result: GroupResult, log: StoredLog, start: int, end: int, proof: str) -> None:
    if f"{log.folder}/{start:020d}.json" not in log.damaged:
        _tell(
            result,
            "stored.gap",
            key=f"{log.folder}/{start:020d}.json",
            index=None,
            start=start,
            end=end,
            proof=f"positions {start} to {end} are missing; {proof}",
        )


def _check_file(result: GroupResult, file: Manifest, report: LogReport) -> bool:
    """Compare one object with its manifest. Returns whether its bytes are those that the manifest
    names."""
    known = {(f.flaw.rule, f.flaw.file) for f in result.findings}
    if report.sha256 != file.sha256:
        # The entries say where, if the change is in one of them.
        places = [flaw for flaw in report.flaws if flaw.rule != "file.length"]
        start = min((flaw.byte_from for flaw in places), default=0)
        end = max((flaw.byte_to for flaw in places), default=report.length)
        index = next((flaw.index for flaw in places if flaw.index is not None), file.first)
        reason = f"; {places[0].rule}: {places[0].proof}" if places else ""
        proof = f"SHA-256 {report.sha256[:16]}…, the manifest says {file.sha256[:16]}…{reason}"
        if ("stored.digest", file.object) not in known:
            _tell(
                result,
                "stored.digest",
                key=file.object,
                index=index,
                start=start,
                end=end,
                proof=proof,
            )
        return False
    for flaw in report.flaws:
        if flaw.rule in ("chain.seed", "entry.chain") and flaw.index == file.first:
            # The bytes are the sealed ones, so the manifest names a wrong chain CRC before them.
            if ("stored.entries", file.key) not in known:
                _tell(
                    result,
                    "stored.entries",
                    file.key,
                    index=file.first,
                    start=0,
                    end=0,
                    proof=f"its first entry does not continue chain CRC {file.chain:08x}",
                )
        else:
            result.findings.append(Finding(RULES[flaw.rule].klass, NAME, result.group, flaw))
    has = (
        report.first_index,
        report.last_index,
        report.base + report.end,
        report.last_term,
        report.last_chain,
        report.last_store_ms,
    )
    wants = file.first, file.last, file.end, file.last_term, file.last_chain, file.last_store_ms
    if has != wants:
        proof = (
            f"first and last entry, end, last term, chain CRC and store time are {has}; the"
            f" manifest says {wants}"
        )
        _tell(result, "stored.entries", file.key, index=file.first, start=0, end=0, proof=proof)
    return True


def _seals_in(report: LogReport | None) -> Iterator[tuple[int, Seal]]:
    """Base and seal of the seal records in a stored file, the last first: the first record of a
    file counts."""
    for _, body in reversed(report.seals if report is not None else []):
        try:
            value = json.loads(body)
        except NOT_JSON:
            continue
        seal = seal_in(value) if isinstance(value, dict) else None
        if seal is not None:
            yield seal


def _trimmed_digests(result: GroupResult) -> dict[int, str]:
    """The digests in the trim records of the replicas' logs up to the compared index, and in their
    snapshots: those that most replicas have."""
    limit = -1 if result.compared is None else result.compared
    votes: dict[int, Counter[str]] = {}
    for one in result.replicas:
        for base, digest in _digests_in(_trims(one, limit)).items():
            votes.setdefault(base, Counter()).update([digest])
    return _usual(votes)


def _trims(one: Replica, limit: int) -> Iterator[object]:
    """The trim records of one replica."""
    for index, body in (trim for report in one.reports for trim in report.trims):
        with contextlib.suppress(*NOT_JSON):
            yield json.loads(body) if index <= limit else None
    retained = (one.snapshot or {}).get("retained")
    trims = retained.get("trims") if isinstance(retained, dict) else None
    yield from (
        (trim[2] for trim in trims if isinstance(trim, list) and len(trim) == 3)
        if isinstance(trims, list)
        else ()
    )


def _digests_in(records: Iterable[object]) -> dict[int, str]:
    """By the base of the file. The first record counts."""
    digests: dict[int, str] = {}
    for record in records:
        files = record.get("files") if isinstance(record, dict) else None
        for pair in files if isinstance(files, list) else ():
            if (
                isinstance(pair, list)
                and len(pair) == 2
                and isinstance(pair[0], int)
                and isinstance(pair[1], str)
            ):
                digests.setdefault(pair[0], pair[1])
    return digests


def _usual(votes: Mapping[int, Counter[Told]]) -> dict[int, Told]:
    """What most said of each file; nothing of one where two values are equally frequent."""
    ranked = {base: counts.most_common() for base, counts in votes.items()}
    return {
        base: counts[0][0]
        for base, counts in ranked.items()
        if len(counts) == 1 or counts[0][1] > counts[1][1]
    }


def _leaves(result: GroupResult, log: StoredLog, seals: Mapping[int, Seal]) -> dict[int, bytes]:
    """The leaf that most replicas' log trees have for each stored file, by its base. A tree has one
    leaf for each file from where it began to its end. With a gap in the store, or behind it in the
    known seals, the files cannot be counted, and nothing is told."""
    votes: dict[int, Counter[bytes]] = {}
    if not log.files or log.gap(log.end) is not None:
        return {}
    for one in result.replicas:
        leaves, following = tree_of(one)
        behind = _sealed_between(log.files[-1].last + 1, following, seals)
        if behind is None:
            continue
        inside = leaves[: max(len(leaves) - behind, 0)]
        files = [file for file in log.files if file.last < following]
        for file, leaf in zip(reversed(files), reversed(inside), strict=False):
            votes.setdefault(file.base, Counter()).update([leaf])
    return _usual(votes)


def _sealed_between(start: int, end: int, seals: Mapping[int, Seal]) -> int | None:
    """The number of files with the entries from `start` to before `end`; None if the seal of one of
    them is not known."""
    following = {seal.first: seal.last + 1 for seal in seals.values() if seal.first <= seal.last}
    count = 0
    while start < end:
        if start not in following:
            return None
        start, count = following[start], count + 1
    return count


def _leaf(report: LogReport) -> bytes:
    """The leaf of a stored file's entries (docs/format.md §11)."""
    root, first = bytes.fromhex(report.root), report.first_index or 0
    body = LEAF.pack(
        b"LMQTREE1", report.base, first, report.entries, report.base + report.end, root
    )
    return hashlib.sha256(b"\0" + body).digest()


def _compare_with_replicas(
    result: GroupResult, file: Manifest, report: LogReport, stored: StoredResult
) -> bool:
    """Compare with the same file of every replica that has it whole. Returns whether there is
    one."""
    compared = False
    edges = report.first_index, report.last_index, report.last_chain, report.end
    for one in result.replicas:
        own = next(
            (own for own in one.filled if own.base == file.base and own.ending == "blank"), None
        )
        if own is None or any(
            f.replica == one.name and f.flaw.file == own.file for f in result.findings
        ):
            continue
        # What a deposed leader has, or another history, is not the log that was stored.
        if own.last_intact_index >= result.divergent.get(one.name, one.held + 1):
            continue
        compared = True
        stored.replicas.setdefault(one.name, []).append((file.base, file.next_base))
        theirs = own.first_index, own.last_index, own.last_chain, own.end
        if theirs != edges or (own.sha256 and own.sha256 != report.sha256):
            proof = (
                f"it ends with chain CRC {report.last_chain:08x} and SHA-256"
                f" {report.sha256[:16]}…, "
            )
            proof += f"that of {one.name} with {own.last_chain:08x}"
            _tell(
                result,
                "stored.replica",
                key=file.object,
                index=file.first,
                start=0,
                end=file.size,
                proof=proof + (f" and {own.sha256[:16]}…" if own.sha256 else ""),
            )
    return compared


def _joined(spans: Spans) -> Spans:
    """Adjacent ranges as one."""
    joined: Spans = []
    for start, end in sorted(spans):
        if joined and joined[-1][1] == start:
            joined[-1] = joined[-1][0], end
        else:
            joined.append((start, end))
    return joined


def _missing_spans(start: int, end: int, spans: Spans) -> Iterator[tuple[int, int]]:
    """What `spans` leave of start … end."""
    for first, last in sorted(spans):
        if first > start and start < end:
            yield start, min(first, end)
        start = max(start, last)
    if start < end:
        yield start, end


def spans_text(spans: Spans) -> str:
    """Positions for people."""
    return ", ".join(f"{start:,} to {end:,}" for start, end in spans)


def lines_of(stored: StoredResult) -> list[str]:
    """What was compared and what was not, for people."""
    entries = (
        "no entry"
        if stored.begin_index is None
        else f"entries {stored.begin_index:,} to {stored.last_index:,}"
    )
    lines = [f"{stored.files:,} file{'s' * (stored.files != 1)}, {entries}"]
    if stored.read:
        lines.append(
            "read to the last byte, compared with the manifests, every entry verified: positions"
            f" {spans_text(stored.read)}"
        )
    parts = [
        ("compared with what the replicas recorded of the files", stored.sealed),
        ("compared only with seals in the stored log itself", stored.sealed_there),
        *((f"compared with the files of {name}", spans) for name, spans in stored.replicas.items()),
        ("never compared, because it is missing or could not be read", stored.unread),
        ("never compared with a seal: none is known", stored.unsealed),
        ("never compared with a replica, because none has it any more", stored.alone),
        ("not in the store, of what the replicas have", stored.not_stored),
    ]
    return [
        *lines,
        *(f"{subject}: positions {spans_text(spans)}" for subject, spans in parts if spans),
    ]


def as_object(group: str, stored: StoredResult) -> dict[str, object]:
    """The same for the JSON object."""
    return {
        "group": group,
        "place": stored.place,
        "log_id": stored.log_id,
        "files": stored.files,
        "entries": stored.entries,
        "begin_index": stored.begin_index,
        "last_index": stored.last_index,
        "compared": {
            "manifests": stored.read,
            "recorded_by_replicas": stored.sealed,
            "seals_in_store": stored.sealed_there,
            "replicas": stored.replicas,
        },
        "never_compared": {
            "unread": stored.unread,
            "without_seal": stored.unsealed,
            "without_replica": stored.alone,
        },
        "not_stored": stored.not_stored,
    }
