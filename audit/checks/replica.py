"""One replica of one broker group: finding it in a node directory, its small files, and what its log files say when put in a row.

Everything here is about a replica on its own. Flaws are collected, not judged: what a flaw means depends on the peers (`compare`).
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from ledgermq.audit.checks.backups import MANIFEST, SUFFIX, manifest_of
from ledgermq.audit.checks.derived import QueueRun, TailReport
from ledgermq.audit.checks.order import check_row
from ledgermq.audit.checks.rules import Flaw
from ledgermq.audit.checks.scan import LogReport
from ledgermq.audit.reading.begin import KEYS, LITE, WHOLE, Begin, Low, lows, may_begin, read_begin
from ledgermq.audit.reading.decode import (
    HARD_STATE,
    MARK,
    PAGE,
    SLOT_FILE_BYTES,
    crc,
    current,
    find_stain,
    log_checkpoint,
    numbered_files,
    read_slots,
    sealed_json,
    slot_bytes,
)
from ledgermq.audit.reading.files import absolute, exists, names_in, open_file, read_if_there, size_of, stat_of
from ledgermq.audit.reading.walk import LogFile
from ledgermq.audit.state.derive import StateReport

SIZE_KEYS = ("data_file_bytes", "index_file_bytes", "consume_queue_file_bytes")
IDENTITY_KEYS = {"format_version", "cluster_id", "group", "log_id", "replica", "incarnation", "created_ms", *SIZE_KEYS}
NAME_KEYS = ("cluster_id", "group", "log_id", "replica", "incarnation", "node")
NODE_KEYS = {"format_version", "cluster_id", "node", "created_ms"}
INDEX_FILE_BYTES = 167_772_160
QUEUE_FILE_BYTES = 6_000_000
SLOT_LOOKS = 5
FOUND_FOLDER = "lost+found"
"""Of a volume that is a file system of its own; only root may look into it."""


@dataclass(frozen=True, slots=True)
class Mark:
    """The synced mark that counts."""

    term: int
    index: int
    end_pos: int
    chain: int
    log_id: str


@dataclass(frozen=True, slots=True)
class Point:
    """The entry up to which a running replica is looked at: its node has applied it, and everything derived from it stands in its files."""

    index: int
    end_pos: int
    term: int
    chain: int


@dataclass(slots=True)
class Replica:
    """One broker group in one node directory."""

    directory: str
    """The node directory as the caller named it."""
    root: str
    group: str
    name: str
    log_folder: str
    node: dict[str, Any] | None = None
    identity: dict[str, Any] | None = None
    mark: Mark | None = None
    hard_term: int | None = None
    end_hint: int | None = None
    commit: int | None = None
    """The commit index its checkpoint recorded."""
    snapshot: dict[str, Any] | None = None
    """The newest one that is whole."""
    begin: Begin = WHOLE
    peers: dict[str, str] = field(default_factory=dict)
    store_stamps: tuple[int, ...] = ()
    clean: bool = True
    flaws: list[Flaw] = field(default_factory=list)
    reports: list[LogReport] = field(default_factory=list)
    tails: list[TailReport] = field(default_factory=list)
    state: StateReport | None = None
    """Its state as derived from its log, once that was tried."""
    log_id: str | None = None
    sizes: tuple[int, int, int] = (0, INDEX_FILE_BYTES, QUEUE_FILE_BYTES)
    fingerprint: tuple[object, ...] = ()
    stale_from: int | None = None
    """From this index on it holds entries that the majority replaced before they were committed."""
    point: Point | None = None
    """Of a running replica. What lies behind it is nobody's business yet."""
    awaited: int | None = None
    """The marker that its running node had not reached when it was described."""
    lost: str = ""
    """Why its node could not be asked any more."""

    @property
    def is_backup(self) -> bool:
        return self.name.endswith(SUFFIX)

    def shown(self, path: str) -> str:
        return f"{os.path.basename(self.root)}/{path}"

    def flaw(self, rule: str, path: str, proof: str, start: int = 0, end: int = 0, index: int | None = None, torn: bool = False) -> None:
        self.flaws.append(Flaw(rule, self.shown(path), index, start, end, proof, torn))

    @property
    def log(self) -> str:
        return f"{self.root}/{self.log_folder}"

    def task(self, name: str, deep: bool = False) -> LogFile:
        seed = None if self.log_id is None else crc(self.log_id.encode("ascii", "replace"))
        seed, begin = (seed if self.begin.chain is None else self.begin.chain), self.begin.pos
        end = None if self.point is None else self.point.end_pos
        return LogFile(self.root, self.group, self.name, self.log_id or "", self.log_folder, name, *self.sizes, deep, seed, begin, end)

    def tasks(self, deep: bool = False) -> list[LogFile]:
        """Its log files; those that an interrupted trim has still to remove are none of them any more."""
        return [self.task(name, deep) for base, name in self.log_files if base % self.sizes[0] == 0 and base >= self.begin.pos]

    @property
    def log_files(self) -> list[tuple[int, str]]:
        """Base and name of the files of its log; of a running replica of those that hold what is looked at."""
        end = None if self.point is None else self.point.end_pos
        return [(base, name) for base, name in numbered_files(f"{self.log}/data") if end is None or base < end]

    @property
    def lows(self) -> dict[tuple[str, int], Low]:
        """What its snapshot says of queues that were trimmed."""
        return lows(self.snapshot) if self.begin.index else {}

    @property
    def lows_are_exact(self) -> bool:
        """The snapshot speaks of the very begin that the files have; else a trim was decided that is not carried out yet."""
        retained = self.snapshot.get("retained") if self.snapshot is not None else None
        return isinstance(retained, dict) and retained.get("begin_index") == self.begin.index

    # What the log says, after the scan; reports are in order of position.

    @property
    def filled(self) -> list[LogReport]:
        return [report for report in self.reports if report.entries]

    @property
    def entries(self) -> int:
        return sum(report.entries for report in self.reports)

    @property
    def last_index(self) -> int:
        return max((report.last_index for report in self.filled if report.last_index is not None), default=-1)

    @property
    def end_pos(self) -> int:
        filled = self.filled
        return filled[-1].base + filled[-1].end if filled else 0

    @property
    def broken(self) -> list[int]:
        """Indexes at which the log is damaged, as far as they are known."""
        lost = [
            flaw.index for report in self.reports for flaw in report.flaws if flaw.rule == "entry.unreadable" and flaw.index is not None
        ]
        lost += [flaw.index for flaw in self.flaws if flaw.rule == "entry.gap" and flaw.index is not None]
        return sorted({*(index for report in self.reports for index in report.damaged), *lost})

    def has_gap_in(self, report: LogReport) -> bool:
        """Whether it is told already that entries are missing in a file."""
        return any(flaw.rule == "entry.gap" and flaw.file == report.file and flaw.byte_from == report.end for flaw in self.flaws)

    @property
    def cut_short(self) -> bool:
        """The log ends before what was on stable storage, or is known to its running node."""
        known = max(-1 if self.mark is None else self.mark.index, -1 if self.point is None else self.point.index)
        return known > self.last_index

    @property
    def ends_whole(self) -> bool:
        """Stopped in good order, and the log is there up to its own mark: nothing that its directory says of later entries can be true."""
        stopped = self.clean and self.point is None
        return stopped and self.mark is not None and self.mark.index == self.last_index and self.last_index not in self.broken

    @property
    def lost_entries(self) -> int:
        """How many entries before the last one cannot be read or are not what was written, as far as is known."""
        intact = self.entries - sum(len(report.damaged) for report in self.reports)
        return max(len(self.broken), self.last_index + 1 - self.begin.index - intact)

    @property
    def held(self) -> int:
        """The last index this replica can be said to hold: after an unclean stop nothing counts from the first damage above its mark on."""
        intact = max((report.last_intact_index for report in self.reports), default=-1)
        if self.stale_from is not None:
            intact = min(intact, self.stale_from - 1)
        if self.clean:
            return intact
        marked = -1 if self.mark is None else self.mark.index
        return min([intact, *(index - 1 for index in self.broken if index > marked)])

    @property
    def known_commit(self) -> int:
        """The highest index that anything in its directory says was committed."""
        filed = [run.filed_index for report in self.reports for run in report.queues if run.filed_index is not None]
        return max([-1 if self.commit is None else self.commit, -1 if self.applied is None else self.applied, *filed])

    @property
    def applied(self) -> int | None:
        """What its snapshot covers of the part of the log that is looked at."""
        applied = self.snapshot.get("applied_index") if self.snapshot is not None else None
        if not isinstance(applied, int):
            return None
        return applied if self.point is None else min(applied, self.point.index)


def find_replicas(directory: str) -> list[Replica]:
    """The broker groups of a node directory: every folder that holds an identity or an entry log."""
    replicas = []
    for name in names_in(directory):
        if name == FOUND_FOLDER:
            continue
        root = f"{absolute(directory)}/{name}"
        logs = [entry for entry in names_in(root) if entry.startswith("dledger-")]
        if logs or exists(f"{root}/identity.json"):
            replicas.append(_open(directory, root, name, logs))
    if replicas:
        _check_node(directory, replicas)
    return replicas


def open_running(directory: str, group: str, point: Point) -> Replica:
    """A replica of a running node, as far as the point that its node has described. Raises OSError."""
    root = f"{directory}/{group}"
    replica = _open(directory, root, group, [entry for entry in names_in(root) if entry.startswith("dledger-")], point)
    _check_node(directory, [replica])
    return replica


def _open(directory: str, root: str, group: str, logs: list[str], point: Point | None = None) -> Replica:
    replica = Replica(directory, root, group, "", "", point=point)
    replica.identity = _json(replica, f"{root}/identity.json", "identity.json", "identity.json", "identity.missing", [IDENTITY_KEYS])
    if replica.identity is not None:
        replica.name, replica.log_id = str(replica.identity["replica"]), str(replica.identity["log_id"])
        data, index, queue = (int(replica.identity[key]) for key in SIZE_KEYS)
        replica.sizes = data, index, queue
        if replica.identity["group"] != group:
            replica.flaw("identity.agree", "identity.json", f"it belongs to group {replica.identity['group']}, its folder is {group}")
    folder = f"dledger-{replica.name}"
    replica.log_folder = folder if folder in logs or not logs else logs[0]
    if folder != replica.log_folder and replica.identity is not None:
        replica.flaw("identity.agree", "identity.json", f"it belongs to replica {replica.name}, the log folder is {replica.log_folder}")
    # Whatever the identity says, the log is that of the node whose name it has.
    replica.name = replica.log_folder.removeprefix("dledger-")
    if point is None and exists(f"{directory}/{MANIFEST}"):
        replica.name += SUFFIX
    # Whatever lies before the point is committed, and has to be there.
    replica.clean = point is not None or not exists(f"{root}/abort")
    if replica.identity is None:
        lengths = Counter(size_of(f"{replica.log}/data/{name}") for _, name in numbered_files(f"{replica.log}/data"))
        replica.sizes = (lengths.most_common(1)[0][0] if lengths else 0, INDEX_FILE_BYTES, QUEUE_FILE_BYTES)
    _read_small_files(replica)
    replica.fingerprint = fingerprint(replica)
    return replica


def fingerprint(replica: Replica) -> tuple[object, ...]:
    """What changes whenever a node works on the directory: to notice that it did so during the audit. Of a running replica, nothing."""
    if replica.point is not None:
        return ()
    names = [f"{replica.log}/{name}" for name in ("syncedmark", "hardstate", "checkpoint", "begin")]
    names += [f"{replica.log}/data/{name}" for _, name in numbered_files(f"{replica.log}/data")]
    return tuple(stat_of(name) for name in names)


def _json(replica: Replica, path: str, rule: str, shown: str, missing: str | None, keys: Sequence[set[str]] = ()) -> dict[str, Any] | None:
    """`keys`: the sets of keys it may have; none for any."""
    raw = _read(replica, path, shown, missing)
    if raw is None:
        return None
    value = sealed_json(raw)
    if value is None or (keys and (set(value) not in keys or not _has_types(value))):
        replica.flaw(rule, shown, "the text does not have the checksum or the keys it should have", 0, len(raw))
        return None
    return value


def _read(replica: Replica, path: str, shown: str, missing: str | None = None) -> bytes | None:
    """A small file; None where there is none, which breaks rule `missing`, or where it cannot be read. Raises PermissionError, NodeLost."""
    try:
        raw = read_if_there(path)
    except PermissionError:
        raise
    except OSError as error:
        replica.flaw("file.read", shown, str(error.strerror))
        return None
    if raw is None and missing is not None:
        replica.flaw(missing, shown, "the file is missing")
    return raw


def _has_types(value: dict[str, Any]) -> bool:
    """Whether what an identity file names are names and sizes."""
    sizes = [value[key] for key in SIZE_KEYS if key in value]
    names = [value[key] for key in NAME_KEYS if key in value]
    return all(type(size) is int and size > 0 for size in sizes) and all(isinstance(name, str) for name in names)


def _check_node(directory: str, replicas: list[Replica]) -> None:
    """node.json concerns all groups of the directory; its flaws are told once, with the first."""
    first = replicas[0]
    if first.is_backup and manifest_of(directory) is None:
        first.flaws.append(Flaw("backup.json", MANIFEST, None, 0, size_of(f"{directory}/{MANIFEST}"), "it does not have its checksum"))
    before = len(first.flaws)
    node = _json(first, f"{directory}/node.json", "identity.json", "node.json", "identity.missing", [NODE_KEYS])
    first.flaws[before:] = [Flaw(flaw.rule, "node.json", None, flaw.byte_from, flaw.byte_to, flaw.proof) for flaw in first.flaws[before:]]
    for replica in replicas:
        replica.node = node
        if node is None or replica.identity is None:
            continue
        if node["node"] != replica.identity["replica"]:
            proof = f"node.json says {node['node']}, identity.json {replica.identity['replica']}, the log is that of {replica.name}"
            # The log's folder decides between the two.
            if node["node"] == replica.name:
                replica.flaw("identity.agree", "identity.json", proof)
            else:
                replica.flaws.append(Flaw("identity.agree", "node.json", None, 0, 0, proof))


def _read_small_files(replica: Replica) -> None:
    folder = replica.log_folder
    mark = _slots(replica, f"{folder}/syncedmark", MARK, "mark")
    if mark is not None:
        log_id, _, term, index, end_pos, chain = mark
        if replica.point is None or index <= replica.point.index:
            replica.mark = Mark(term, index, end_pos, chain, log_id.decode("ascii", "replace"))
    hard = _slots(replica, f"{folder}/hardstate", HARD_STATE, "hardstate")
    replica.hard_term = None if hard is None else hard[0]
    raw = _read(replica, f"{replica.log}/checkpoint", f"{folder}/checkpoint")
    if raw is not None:
        hints = log_checkpoint(raw)
        if hints is None or hints[1] > hints[0] or hints[1] < -1:
            replica.flaw("checkpoint.text", f"{folder}/checkpoint", "not endIndex and committedIndex", 0, len(raw))
        else:
            replica.end_hint, replica.commit = hints
            if replica.point is not None:
                replica.commit = min(replica.commit, replica.point.index)
    begin = _json(
        replica, f"{replica.log}/begin", "begin.json", f"{folder}/begin", None, [{"v", "log_id", "index", "pos", "term", "chain"}]
    )
    if begin is not None:
        replica.begin = read_begin(begin) or WHOLE
        if replica.log_id is not None and begin["log_id"] != replica.log_id:
            replica.flaw("identity.agree", f"{folder}/begin", f"it belongs to log {begin['log_id']}, the replica to {replica.log_id}")
        if replica.begin.chain is not None and not replica.begin.index:
            _check_seed(replica, f"{folder}/begin", replica.begin.chain)
    names = ("state/snapshot", "state/snapshot.previous")
    snapshots = [_json(replica, f"{replica.root}/{name}", "snapshot.json", name, None) for name in names]
    whole = [value for value in snapshots if value is not None]
    replica.snapshot = next((value for value in whole if _is_within(replica, value)), whole[0] if whole else None)
    if begin is None:
        _find_begin(replica, f"{folder}/begin")
    elif replica.begin.index:
        _check_begin(replica, f"{folder}/begin")
    if replica.begin.index and replica.snapshot is None:
        replica.flaw("snapshot.needed", "state/snapshot", f"the log begins with entry {replica.begin.index}, and no snapshot is whole")
    shapes = [{"peers"}, *({"peers", "met_by", *more} for more in ((), ("boots",), ("vouched",), ("boots", "vouched")))]
    peers = _json(replica, f"{replica.root}/state/peers.json", "peers.json", "state/peers.json", None, shapes)
    if peers is not None and isinstance(peers["peers"], dict):
        replica.peers = peers["peers"]
        if replica.name in replica.peers:
            replica.flaw("peers.incarnation", "state/peers.json", f"{replica.name} is listed as a peer of its own")
    _json(replica, f"{replica.root}/state/boots.json", "boots.json", "state/boots.json", None, [{"generation", "boots"}])
    _store_checkpoint(replica)


def _is_within(replica: Replica, snapshot: dict[str, Any]) -> bool:
    """Whether a snapshot is of an entry that is looked at."""
    applied = snapshot.get("applied_index")
    return replica.point is None or (isinstance(applied, int) and applied <= replica.point.index)


def _check_begin(replica: Replica, path: str) -> None:
    """The snapshot repeats the begin that was decided, once it knows of it."""
    retained = replica.snapshot.get("retained") if replica.snapshot is not None else None
    if not isinstance(retained, dict) or retained.get("begin_index") != replica.begin.index:
        return
    begin = replica.begin
    own = {"pos": begin.pos, "term": begin.term, "chain": begin.chain}
    for name, value in own.items():
        told = retained.get(f"begin_{name}")
        if isinstance(told, int) and told != value:
            replica.flaw("begin.snapshot", path, f"its {name} is {value}, the snapshot has {told} for the same begin")


def _find_begin(replica: Replica, path: str) -> None:
    """A trimmed log without a whole begin file: where it begins, the snapshot knows as well, if the files that are left bear it out."""
    retained = replica.snapshot.get("retained") if replica.snapshot is not None else None
    told = {name: retained.get(f"begin_{name}") for name in KEYS} if isinstance(retained, dict) else {}
    found = read_begin({"v": 1, **told})
    files = numbered_files(f"{replica.log}/data")
    if found is None or not found.index or not files or files[0][0] != found.pos:
        return
    replica.begin = found
    if not exists(f"{replica.root}/{path}"):
        replica.flaw("begin.missing", path, f"the log begins with entry {found.index}, as the snapshot knows, and no file says so")


def _check_seed(replica: Replica, path: str, chain: int) -> None:
    """A whole log whose chain does not begin with its own log id goes on from another one: the record of a recovery has to name it."""
    record = _json(replica, f"{replica.root}/recovery.json", "identity.json", "recovery.json", None)
    former = None if record is None else record.get("former")
    if not isinstance(former, list) or not former or crc(str(former[0]).encode("ascii", "replace")) != chain:
        replica.flaw("identity.agree", path, f"the chain begins with {chain:08x}, which no log id in recovery.json explains")


def _slots(replica: Replica, name: str, kind: tuple[bytes, Any], rule: str) -> tuple[Any, ...] | None:
    data = _read_slots(replica, name, kind, f"{rule}.missing")
    if data is None:
        return None
    if len(data) != SLOT_FILE_BYTES:
        bounds = sorted((len(data), SLOT_FILE_BYTES))
        replica.flaw("file.length", name, f"{len(data)} bytes instead of {SLOT_FILE_BYTES}", bounds[0], bounds[1])
    slots = read_slots(data, kind)
    newest = current(slots)
    for slot in slots:
        start, used = slot.number * PAGE, slot.number * PAGE + slot_bytes(kind)
        if slot.state == "damaged":
            replica.flaw(f"{rule}.slot", name, f"slot {slot.number} is neither intact nor empty", start, used)
        elif slot.state == "empty" and newest is not None and newest.sequence > 1:
            replica.flaw(f"{rule}.slot", name, f"slot {slot.number} is empty, but value {newest.sequence} was not the first", start, used)
        rest = data[used : start + PAGE]
        if any(rest):
            places = [used + at for at, byte in enumerate(rest) if byte]
            replica.flaw(f"{rule}.fill", name, "bytes outside the slots are not zero", places[0], places[-1] + 1)
    if newest is None:
        replica.flaw(f"{rule}.missing", name, "no slot is intact", 0, len(data))
        return None
    return newest.fields


def _read_slots(replica: Replica, name: str, kind: tuple[bytes, Any], missing: str) -> bytes | None:
    """A file of two slots. A running node may be writing one while it is read: a slot that stays damaged is damaged."""
    path = f"{replica.root}/{name}"
    data = _read(replica, path, name, missing)
    for _ in range(SLOT_LOOKS if replica.point is not None else 0):
        if data is None or all(slot.state != "damaged" for slot in read_slots(data, kind)):
            break
        data = read_if_there(path)
    return data


def _store_checkpoint(replica: Replica) -> None:
    data = _read(replica, f"{replica.root}/checkpoint", "checkpoint")
    if data is None:
        return
    if len(data) != PAGE or any(data[24:]):
        places = [24 + at for at, byte in enumerate(data[24:]) if byte] or [min(len(data), PAGE)]
        replica.flaw("checkpoint.store", "checkpoint", "not 4096 bytes, zero behind the stamps", places[0], places[-1] + 1)
    replica.store_stamps = tuple(int.from_bytes(data[at : at + 8], "big", signed=True) for at in (0, 8, 16)) if len(data) >= 24 else ()


# ------------------------------------------------------------------------------------------------------ after the scan


def check_log(replica: Replica, decided: int) -> None:
    """Put the log files of a replica in a row: names, continuity, blanks, the zero space behind the end. `decided`: how far trims were
    decided in its group."""
    check_names(replica)
    begin = replica.begin
    if begin.index > decided:
        proof = f"the log is said to begin with entry {begin.index}, trim records and snapshots of all replicas go up to {decided}"
        replica.flaw("begin.decided", f"{replica.log_folder}/begin", proof)
    filled = replica.filled
    last = filled[-1] if filled else None
    for before, after in pairwise(filled):
        _check_join(replica, before, after)
    _check_empty(replica)
    for report in replica.reports:
        replica.flaws += report.flaws
        if report.entries and report is not last and report.ending != "blank" and not replica.has_gap_in(report):
            proof = "entries stand in the next file, but no blank ends this one"
            replica.flaws.append(Flaw("blank.missing", report.file, report.last_index, report.end, report.length, proof))
        if report.ending == "blank" and (report is last or not report.entries) and not (report is last and replica.cut_short):
            proof = "a blank ends this file, but no entry follows"
            replica.flaws.append(Flaw("blank.alone", report.file, replica.last_index + 1, report.end, report.length, proof, torn=True))
    if filled and filled[0].base == begin.pos and filled[0].first_index not in (begin.index, None):
        proof = f"the log begins with index {filled[0].first_index}"
        replica.flaws.append(Flaw("entry.gap", filled[0].file, begin.index, 0, 48, proof))
    unknown = bool(replica.broken) or any(flaw.rule == "record.native" for flaw in replica.flaws)
    replica.flaws += check_row(((report.file, report.producers) for report in filled), unknown)
    _check_small_files(replica, last)


def check_names(replica: Replica) -> None:
    size = replica.sizes[0]
    expected = replica.begin.pos
    for base, name in replica.log_files:
        path = f"{replica.log_folder}/data/{name}"
        if size and base % size:
            replica.flaw("file.name", path, f"the offset is no multiple of {size}")
            continue
        if base < replica.begin.pos:
            continue
        if base != expected:
            proof = f"the next file is {name}"
            replica.flaw("file.missing", f"{replica.log_folder}/data/{expected:020d}", proof, 0, min(base - expected, size))
        expected = base + size
    if replica.point is not None and expected < replica.point.end_pos and size:
        proof = f"its node has applied entries up to position {replica.point.end_pos}"
        replica.flaw("file.missing", f"{replica.log_folder}/data/{expected:020d}", proof, 0, size)


def _check_join(replica: Replica, before: LogReport, after: LogReport) -> None:
    """The first entry of a file continues the last one of the file before: index, term, store time, chain, and it did not fit there."""
    if after.base != before.base + replica.sizes[0] or before.last_index is None or after.first_index is None:
        return
    place, index = after.file, after.first_index
    if index > before.last_index + 1 and before.ending != "blank":
        # They stood where the file before ends without a blank.
        proof = f"index {index} in the next file follows index {before.last_index}"
        replica.flaws.append(Flaw("entry.gap", before.file, before.last_index + 1, before.end, before.length, proof))
        return
    if index != before.last_index + 1:
        rule = "entry.gap" if index > before.last_index + 1 else "entry.repeat"
        replica.flaws.append(Flaw(rule, place, index, 8, 16, f"index {index} follows index {before.last_index}"))
        return
    damaged = {*before.damaged, *after.damaged}
    if after.first_term < before.last_term and index not in damaged and before.last_index not in damaged:
        replica.flaws.append(Flaw("entry.term-order", place, index, 16, 24, f"term {after.first_term} follows term {before.last_term}"))
    if after.first_store_ms < before.last_store_ms and index not in damaged and before.last_index not in damaged:
        replica.flaws.append(
            Flaw("record.store-time", place, index, 104, 112, f"store time {after.first_store_ms} follows {before.last_store_ms}")
        )
    expected = crc(bytes.fromhex(after.first_input), before.last_chain)
    if after.prev_chain != before.last_chain and expected != after.first_chain and index not in damaged:
        proof = f"the chain CRC is {after.first_chain:08x}, recomputed across files {expected:08x}"
        replica.flaws.append(Flaw("entry.chain", place, index, 0, 40, proof))
    rest = replica.sizes[0] - before.end
    if before.ending == "blank" and after.first_size + 8 <= rest:
        proof = f"{rest} bytes were left, the entry behind the blank needs {after.first_size} and 8"
        replica.flaws.append(Flaw("blank.needless", before.file, index, before.end, before.length, proof))


def _check_empty(replica: Replica) -> None:
    """Files that hold no entry, although entries stand in a later one."""
    index, filled = replica.begin.index, replica.filled
    for report in replica.reports:
        if report.entries:
            index = (report.last_index or 0) + 1
        elif filled and report.base < filled[-1].base:
            proof = "no entry can be read in this file, and entries stand in a later one"
            replica.flaws.append(Flaw("entry.gap", report.file, index, 0, max(report.length, 1), proof))


def _check_small_files(replica: Replica, last: LogReport | None) -> None:
    folder = replica.log_folder
    if replica.hard_term is not None and last is not None and replica.hard_term < last.last_term and replica.last_index not in last.damaged:
        proof = f"term {replica.hard_term} is below term {last.last_term} of the last entry"
        replica.flaw("hardstate.term", f"{folder}/hardstate", proof, 0, SLOT_FILE_BYTES)
    ahead = [number for number in (replica.end_hint, replica.commit) if number is not None and number > replica.last_index]
    if ahead and replica.ends_whole:
        proof = f"it names entry {ahead[-1]}, log and synced mark end with {replica.last_index}"
        replica.flaw("checkpoint.ahead", f"{folder}/checkpoint", proof, 0, size_of(f"{replica.log}/checkpoint"))
    latest = last.last_store_ms if last else 0
    late = [stamp for stamp in replica.store_stamps if stamp < 0 or stamp > latest]
    # Of a log that lost its end, or cannot be read there, it is not known how late it went.
    cut = replica.cut_short or (last is not None and (replica.last_index in last.damaged or last.ending == "tail"))
    if late and replica.clean and replica.point is None and not cut:
        replica.flaw("checkpoint.store", "checkpoint", f"stamp {late[0]} is later than the log's last {latest}", 0, 24)


def required_dispatch(replica: Replica) -> int:
    """Up to this index every message must be in its consume queue: what the snapshot covers; without one, a clean stop's commit. A running
    node has written the units of everything that is looked at; a backup has none."""
    if replica.point is not None:
        return replica.point.index
    if replica.is_backup:
        return -1
    if replica.snapshot is not None and isinstance(replica.snapshot.get("applied_index"), int):
        return int(replica.snapshot["applied_index"])
    return replica.commit if replica.clean and replica.commit is not None else -1


def check_queues(replica: Replica) -> None:
    """Put the consume queues of all log files in a row: density across files, units that are due, holes, and what lies behind the end."""
    runs: dict[tuple[str, int], list[QueueRun]] = {}
    for report in replica.reports:
        for run in report.queues:
            runs.setdefault((run.topic, run.queue), []).append(run)
    damage = replica.lost_entries
    for (topic, queue), parts in runs.items():
        _check_density(replica, topic, queue, parts, damage)
        _check_dispatch(replica, parts)
    if damage:
        # An entry that cannot be read takes its queue offset with it: the gap it leaves is not a second finding.
        replica.flaws = [flaw for flaw in replica.flaws if flaw.rule != "record.queue-offset"]
    # Of a queue that has no entry in the log any more, the snapshot tells the end.
    ends = {f"consumequeue/{topic}/{queue}": low.offset for (topic, queue), low in replica.lows.items()}
    ends |= {f"consumequeue/{topic}/{queue}": max(part.last for part in parts) + 1 for (topic, queue), parts in runs.items()}
    floors = {f"consumequeue/{topic}/{queue}": low.floor for (topic, queue), low in replica.lows.items()}
    for tail in replica.tails:
        if LITE in tail.folder and tail.folder not in ends:
            # A lite topic that has vanished: its files go with the next trim, and nothing of the log tells where they ended.
            continue
        _check_front(replica, tail, floors.get(tail.folder, 0))
        index = tail.folder == f"{replica.log_folder}/index"
        unit, end = (32, replica.last_index + 1) if index else (20, ends.get(tail.folder, 0))
        _check_tail(replica, tail, "index.tail" if index else "queue.tail", unit, (end if index else end + damage) * unit)


def _check_front(replica: Replica, tail: TailReport, floor: int) -> None:
    """Files of a derived space may be missing in front only below what the log still needs; older ones may be there still, or some."""
    index = tail.folder == f"{replica.log_folder}/index"
    size, needed = (replica.sizes[1], replica.begin.index * 32) if index else (replica.sizes[2], floor * 20)
    needed -= needed % size
    if tail.first_base > needed:
        proof = f"the next file is {tail.first_base:020d}"
        replica.flaw("file.missing", f"{tail.folder}/{needed:020d}", proof, 0, tail.first_base - needed)
    trimmed = {replica.shown(f"{tail.folder}/{base:020d}") for base in range(tail.first_base, needed, size)} if tail.flaws else set()
    replica.flaws += [flaw for flaw in tail.flaws if flaw.rule != "file.missing" or flaw.file not in trimmed]


def _check_density(replica: Replica, topic: str, queue: int, parts: list[QueueRun], damage: int) -> None:
    expected = 0
    if replica.begin.index:
        low = replica.lows.get((topic, queue))
        expected = (low.offset if low is not None else 0) if replica.lows_are_exact else parts[0].first
    for part in parts:
        if may_begin(topic, part.first, expected):
            expected = part.first
        if part.first != expected and not damage and not any(flaw.rule == "file.missing" for flaw in replica.flaws):
            rule = "record.queue-offset" if part.first > expected else "record.queue-repeat"
            found = next(report for report in replica.reports if part in report.queues)
            proof = f"queue offset {part.first} of {topic}/{queue} follows {expected - 1}"
            replica.flaws.append(Flaw(rule, found.file, part.first_index, 0, found.end, proof))
        expected = part.last + 1


def _check_dispatch(replica: Replica, parts: Iterable[QueueRun]) -> None:
    parts = list(parts)
    waiting = next((part for part in parts if part.waiting_offset is not None), None)
    if waiting is None or waiting.waiting_offset is None or waiting.waiting_index is None:
        return
    place = waiting.waiting_offset * 20
    base = place - place % replica.sizes[2]
    path = f"consumequeue/{waiting.topic}/{waiting.queue}/{base:020d}"
    filed = max((part.filed_offset for part in parts if part.filed_offset is not None), default=-1)
    bounds = place - base, place - base + 20
    required = required_dispatch(replica)
    if waiting.waiting_index <= required:
        replica.flaw("queue.missing", path, f"entries up to {required} are applied, this unit is empty", *bounds, waiting.waiting_index)
    elif filed > waiting.waiting_offset:
        proof = f"the unit is empty, but unit {filed} is written"
        replica.flaw("queue.hole", path, proof, *bounds, waiting.waiting_index, torn=True)


def _check_tail(replica: Replica, tail: TailReport, rule: str, unit: int, end: int) -> None:
    if tail.used <= end:
        return
    base = int(tail.last_file)
    start = max(end - base, 0)
    path = f"{replica.root}/{tail.folder}/{tail.last_file}"
    with open_file(path) as file:
        stain = find_stain(file, start, file.size)
    beyond = stain is not None and _is_unit_beyond(replica, rule, base + start, path)
    if beyond and replica.cut_short:
        # The units are right: it is the log that lost what they speak of, and that is told.
        return
    torn = beyond and not replica.clean
    first, last = (stain.first, stain.last + 1) if stain else (start, tail.used - base)
    proof = f"written up to byte {tail.used - base}, the log accounts for {start}"
    replica.flaw(rule, f"{tail.folder}/{tail.last_file}", proof, first, last, torn=torn)


def _is_unit_beyond(replica: Replica, rule: str, place: int, path: str) -> bool:
    """Whether a whole unit stands at `place` (absolute) that describes an entry behind the log's end: one the log lost with the power."""
    with open_file(path) as file:
        raw = file.pread(32 if rule == "index.tail" else 20, place - int(os.path.basename(path)))
    if rule == "index.tail":
        return len(raw) == 32 and raw[:4] == b"\0\0\0\1" and int.from_bytes(raw[16:24], "big") == place // 32
    return int.from_bytes(raw[:8], "big", signed=True) >= replica.end_pos and int.from_bytes(raw[8:12], "big", signed=True) >= 91
