"""Finding the replicas of a node directory, and reading their small files: identities, marks, hard
state, checkpoints, snapshots, peers.

Their content is stored in the `Replica`; errors become flaws. Log files and derived files are not
read here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from ledgermq.audit.checks.backups import MANIFEST, SUFFIX, manifest_of
from ledgermq.audit.checks.replica import (
    INDEX_FILE_BYTES,
    QUEUE_FILE_BYTES,
    SIZE_KEYS,
    Mark,
    Point,
    Replica,
)
from ledgermq.audit.reading.begin import KEYS, Begin, read_begin
from ledgermq.audit.reading.decode import (
    HARD_STATE,
    MARK,
    PAGE,
    SLOT_FILE_BYTES,
    SNAPSHOTS_AS_READ,
    crc,
    current,
    log_checkpoint,
    numbered_files,
    read_slots,
    sealed_json,
    slot_bytes,
)
from ledgermq.audit.reading.files import absolute, exists, names_in, read_if_there, size_of, stat_of
from ledgermq.audit.rules import Flaw

IDENTITY_KEYS = {
    "format_version",
    "cluster_id",
    "group",
    "log_id",
    "replica",
    "incarnation",
    "created_ms",
    *SIZE_KEYS,
}
NAME_KEYS = ("cluster_id", "group", "log_id", "replica", "incarnation", "node")
NODE_KEYS = {"format_version", "cluster_id", "node", "created_ms"}
SLOT_LOOKS = 5
FOUND_FOLDER = "lost+found"
"""The directory of a volume that is a file system of its own; only root may read it."""


def find_replicas(directory: str) -> list[Replica]:
    """The broker groups of a node directory: every folder that contains an identity or an entry
    log."""
    replicas = []
    for name in names_in(directory):
        if name == FOUND_FOLDER:
            continue
        root = f"{absolute(directory)}/{name}"
        logs = [entry for entry in names_in(root) if entry.startswith("dledger-")]
        if logs or exists(f"{root}/identity.json"):
            replica = _open(directory, root, name, logs, running=False)
            _read_promises(replica)
            replica.fingerprint = fingerprint(replica)
            replicas.append(replica)
    if replicas:
        _check_node(directory, replicas)
    return replicas


def open_running(directory: str, group: str) -> Replica:
    """A replica of a running node, before its limit is known: call it before the marker is
    appended, and `limit` behind that. Raises OSError."""
    root = f"{directory}/{group}"
    replica = _open(
        directory,
        root,
        group,
        [entry for entry in names_in(root) if entry.startswith("dledger-")],
        running=True,
    )
    _check_node(directory, [replica])
    return replica


def limit(replica: Replica, point: Point) -> None:
    """Limit the check of a running replica to the point that its node described, and read what the
    node must have noted before it wrote the entries up to there. Raises OSError."""
    replica.point = point
    if replica.commit is not None:
        # A replica that lags may know of commits that it has not applied.
        replica.commit = min(replica.commit, point.index)
    _read_promises(replica)


def _open(directory: str, root: str, group: str, logs: list[str], *, running: bool) -> Replica:
    replica = Replica(directory, root, group, "", "")
    replica.identity = _json(
        replica,
        path=f"{root}/identity.json",
        rule="identity.json",
        shown="identity.json",
        missing="identity.missing",
        keys=[IDENTITY_KEYS],
    )
    if replica.identity is not None:
        replica.name, replica.log_id = (
            str(replica.identity["replica"]),
            str(replica.identity["log_id"]),
        )
        data, index, queue = (int(replica.identity[key]) for key in SIZE_KEYS)
        replica.sizes = data, index, queue
        if replica.identity["group"] != group:
            replica.flaw(
                "identity.agree",
                "identity.json",
                f"it belongs to group {replica.identity['group']}, its folder is {group}",
            )
    folder = f"dledger-{replica.name}"
    replica.log_folder = folder if folder in logs or not logs else logs[0]
    if folder != replica.log_folder and replica.identity is not None:
        replica.flaw(
            "identity.agree",
            "identity.json",
            f"it belongs to replica {replica.name}, the log folder is {replica.log_folder}",
        )
    # Whatever the identity says, the log belongs to the node in the name of its folder.
    replica.name = replica.log_folder.removeprefix("dledger-")
    if not running and exists(f"{directory}/{MANIFEST}"):
        replica.name += SUFFIX
    # Everything before the point of a running replica is committed, so it must exist.
    replica.clean = running or not exists(f"{root}/abort")
    if replica.identity is None:
        lengths = Counter(
            size_of(f"{replica.log}/data/{name}")
            for _, name in numbered_files(f"{replica.log}/data")
        )
        replica.sizes = (
            max(lengths, key=lengths.__getitem__, default=0),
            INDEX_FILE_BYTES,
            QUEUE_FILE_BYTES,
        )
    _read_small_files(replica)
    return replica


def fingerprint(replica: Replica) -> tuple[object, ...]:
    """Values that change whenever a node works on the directory, to notice that during the
    audit."""
    names = [f"{replica.log}/{name}" for name in ("syncedmark", "hardstate", "checkpoint", "begin")]
    names += [f"{replica.log}/data/{name}" for _, name in numbered_files(f"{replica.log}/data")]
    return tuple(stat_of(name) for name in names)


def _has_types(value: dict[str, Any]) -> bool:
    """Whether the names and sizes in an object have their types."""
    sizes = [value[key] for key in SIZE_KEYS if key in value]
    names = [value[key] for key in NAME_KEYS if key in value]
    return all(type(size) is int and size > 0 for size in sizes) and all(
        isinstance(name, str) for name in names
    )


def _json(
    replica: Replica,
    path: str,
    rule: str,
    shown: str,
    missing: str | None,
    keys: Sequence[set[str]] = (),
    is_valid: Callable[[dict[str, Any]], bool] = _has_types,
) -> dict[str, Any] | None:
    """Read a sealed JSON file. `keys`: the permitted sets of keys; empty for any content.
    `is_valid` is asked of those with such keys."""
    raw = _read(replica, path, shown, missing)
    if raw is None:
        return None
    value = sealed_json(raw)
    if value is None or (keys and (set(value) not in keys or not is_valid(value))):
        replica.flaw(
            rule,
            shown,
            "the text does not have the checksum or the content it should have",
            0,
            len(raw),
        )
        return None
    return value


def _read(replica: Replica, path: str, shown: str, missing: str | None = None) -> bytes | None:
    """Read a small file; None if it does not exist, which breaks rule `missing`, or is unreadable.
    Raises PermissionError, NodeLost."""
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


def _check_node(directory: str, replicas: list[Replica]) -> None:
    """node.json concerns all groups of the directory; its flaws are reported once, with the first
    group."""
    first = replicas[0]
    if first.is_backup and manifest_of(directory) is None:
        proof = "the text does not have the checksum or the content it should have"
        first.flaws.append(
            Flaw(
                "backup.json",
                MANIFEST,
                index=None,
                byte_from=0,
                byte_to=size_of(f"{directory}/{MANIFEST}"),
                proof=proof,
            )
        )
    before = len(first.flaws)
    node = _json(
        replica=first,
        path=f"{directory}/node.json",
        rule="identity.json",
        shown="node.json",
        missing="identity.missing",
        keys=[NODE_KEYS],
    )
    first.flaws[before:] = [
        Flaw(
            flaw.rule,
            "node.json",
            index=None,
            byte_from=flaw.byte_from,
            byte_to=flaw.byte_to,
            proof=flaw.proof,
        )
        for flaw in first.flaws[before:]
    ]
    for replica in replicas:
        replica.node = node
        if node is None or replica.identity is None:
            continue
        if node["node"] != replica.identity["replica"]:
            proof = (
                f"node.json says {node['node']}, identity.json {replica.identity['replica']}, the"
                f" log folder is {replica.log_folder}"
            )
            # The log's folder decides between the two, also in a backup, whose name is not that of
            # its node.
            if replica.log_folder == f"dledger-{node['node']}":
                replica.flaw("identity.agree", "identity.json", proof)
            else:
                replica.flaws.append(
                    Flaw(
                        "identity.agree",
                        "node.json",
                        index=None,
                        byte_from=0,
                        byte_to=0,
                        proof=proof,
                    )
                )


def _read_promises(replica: Replica) -> None:
    """What a node notes before, and not after, it relies on entries: the synced mark and the hard
    state. In a running replica the mark may be ahead of the point, and its term only grows."""
    folder = replica.log_folder
    for number, (log_id, _, term, index, end_pos, chain) in enumerate(
        _slots(replica, f"{folder}/syncedmark", MARK, "mark")
    ):
        if replica.point is None or index <= replica.point.index:
            mark = Mark(term, index, end_pos, chain, log_id.decode("ascii", "replace"))
            replica.mark, replica.older_mark = (mark, None) if number == 0 else (replica.mark, mark)
    replica.hard_term = next(
        (term for term, *_ in _slots(replica, f"{folder}/hardstate", HARD_STATE, "hardstate")), None
    )


def _read_small_files(replica: Replica) -> None:
    """What a node notes of entries that it has applied."""
    folder = replica.log_folder
    raw = _read(replica, f"{replica.log}/checkpoint", f"{folder}/checkpoint")
    if raw is not None:
        hints = log_checkpoint(raw)
        if hints is None or hints[1] > hints[0] or hints[1] < -1:
            replica.flaw(
                "checkpoint.text",
                f"{folder}/checkpoint",
                "not endIndex and committedIndex",
                0,
                len(raw),
            )
        else:
            replica.end_hint, replica.commit = hints
    begin = _json(
        replica,
        path=f"{replica.log}/begin",
        rule="begin.json",
        shown=f"{folder}/begin",
        missing=None,
        keys=[{"v", "log_id", *KEYS}],
        is_valid=_is_begin,
    )
    if begin is not None:
        replica.begin = Begin(*(begin[key] for key in KEYS))
        if replica.log_id is not None and begin["log_id"] != replica.log_id:
            replica.flaw(
                "identity.agree",
                f"{folder}/begin",
                f"it belongs to log {begin['log_id']}, the replica to {replica.log_id}",
            )
        if replica.begin.chain is not None and not replica.begin.index:
            _check_seed(replica, f"{folder}/begin", replica.begin.chain)
    snapshots_read = {
        name: _json(replica, f"{replica.root}/{name}", "snapshot.json", name, None)
        for name in SNAPSHOTS_AS_READ
    }
    replica.snapshots = {
        name: value for name, value in reversed(snapshots_read.items()) if value is not None
    }
    replica.upgraded = len({str(value.get("v")) for value in replica.snapshots.values()}) > 1
    replica.snapshot = next(iter(replica.snapshots.values()), None)
    if begin is None:
        _find_begin(replica, f"{folder}/begin")
    elif replica.begin.index:
        _check_begin(replica, f"{folder}/begin")
    if replica.begin.index and replica.snapshot is None:
        replica.flaw(
            "snapshot.needed",
            "state/snapshot",
            f"the log begins with entry {replica.begin.index}, and no snapshot is whole",
        )
    shapes = [
        {"peers"},
        *(
            {"peers", "met_by", *more}
            for more in ((), ("boots",), ("vouched",), ("boots", "vouched"))
        ),
    ]
    peers = _json(
        replica,
        path=f"{replica.root}/state/peers.json",
        rule="peers.json",
        shown="state/peers.json",
        missing=None,
        keys=shapes,
        is_valid=_is_peers,
    )
    if peers is not None:
        replica.peers = peers["peers"]
        # Older directories do not have this key.
        replica.vouched = peers.get("vouched") is True if "met_by" in peers else None
        if replica.name in replica.peers:
            replica.flaw(
                "peers.incarnation",
                "state/peers.json",
                f"{replica.name} is listed as a peer of its own",
            )
    _json(
        replica,
        path=f"{replica.root}/state/boots.json",
        rule="boots.json",
        shown="state/boots.json",
        missing=None,
        keys=[{"generation", "boots"}],
    )
    _store_checkpoint(replica)


def _is_begin(value: dict[str, Any]) -> bool:
    return _has_types(value) and read_begin(value) is not None


def _is_peers(value: dict[str, Any]) -> bool:
    return isinstance(value["peers"], dict)


def _check_begin(replica: Replica, path: str) -> None:
    """The snapshot repeats the decided begin, once it contains it."""
    retained = replica.snapshot.get("retained") if replica.snapshot is not None else None
    if not isinstance(retained, dict) or retained.get("begin_index") != replica.begin.index:
        return
    begin = replica.begin
    own = {"pos": begin.pos, "term": begin.term, "chain": begin.chain}
    for name, value in own.items():
        claimed = retained.get(f"begin_{name}")
        if isinstance(claimed, int) and claimed != value:
            replica.flaw(
                "begin.snapshot",
                path,
                f"its {name} is {value}, the snapshot has {claimed} for the same begin",
            )


def _find_begin(replica: Replica, path: str) -> None:
    """A trimmed log without an intact begin file: the snapshot also knows the begin, if the
    remaining files confirm it."""
    retained = replica.snapshot.get("retained") if replica.snapshot is not None else None
    fields = (
        {name: retained.get(f"begin_{name}") for name in KEYS} if isinstance(retained, dict) else {}
    )
    begin = read_begin({"v": 1, **fields})
    files = numbered_files(f"{replica.log}/data")
    if begin is None or not begin.index or not files or files[0][0] != begin.pos:
        return
    replica.begin = begin
    if not exists(f"{replica.root}/{path}"):
        replica.flaw(
            "begin.missing",
            path,
            f"the log begins with entry {begin.index}, as the snapshot knows, and no file says so",
        )


def _check_seed(replica: Replica, path: str, chain: int) -> None:
    """If the chain of an untrimmed log does not start with its own log id, the record of a recovery
    must name the former log."""
    record = _json(replica, f"{replica.root}/recovery.json", "identity.json", "recovery.json", None)
    former = None if record is None else record.get("former")
    if (
        not isinstance(former, list)
        or not former
        or crc(str(former[0]).encode("ascii", "replace")) != chain
    ):
        replica.flaw(
            "identity.agree",
            path,
            f"the chain begins with {chain:08x}, which no log id in recovery.json explains",
        )


def _slots(
    replica: Replica, name: str, kind: tuple[bytes, Any], rule: str
) -> list[tuple[Any, ...]]:
    """The content of the intact slots, the current one first."""
    data = _read_slots(replica, name, kind, f"{rule}.missing")
    if data is None:
        return []
    if len(data) != SLOT_FILE_BYTES:
        bounds = sorted((len(data), SLOT_FILE_BYTES))
        replica.flaw(
            "file.length",
            name,
            f"{len(data)} bytes instead of {SLOT_FILE_BYTES}",
            bounds[0],
            bounds[1],
        )
    slots = read_slots(data, kind)
    newest = current(slots)
    for slot in slots:
        start, used = slot.number * PAGE, slot.number * PAGE + slot_bytes(kind)
        if slot.state == "damaged":
            replica.flaw(
                f"{rule}.slot", name, f"slot {slot.number} is neither intact nor empty", start, used
            )
        elif slot.state == "empty" and newest is not None and newest.sequence > 1:
            replica.flaw(
                f"{rule}.slot",
                name,
                f"slot {slot.number} is empty, but value {newest.sequence} was not the first",
                start,
                used,
            )
        rest = data[used : start + PAGE]
        if any(rest):
            places = [used + at for at, byte in enumerate(rest) if byte]
            replica.flaw(
                f"{rule}.fill",
                name,
                "bytes outside the slots are not zero",
                places[0],
                places[-1] + 1,
            )
    if newest is not None and all(
        slot.state == "intact" and slot.sequence == newest.sequence for slot in slots
    ):
        # Whether the newer or the older value was lost cannot be determined.
        proof = (
            f"both slots hold value {newest.sequence}, so one of them lies where another value was"
            " written"
        )
        replica.flaw(f"{rule}.slot", name, proof, 0, PAGE + slot_bytes(kind))
    if newest is None:
        replica.flaw(f"{rule}.missing", name, "no slot is intact", 0, len(data))
    return [
        slot.fields
        for slot in sorted(slots, key=lambda slot: -slot.sequence)
        if slot.state == "intact"
    ]


def _read_slots(replica: Replica, name: str, kind: tuple[bytes, Any], missing: str) -> bytes | None:
    """Read a file of two slots. A running node may be writing one during the read, so a slot counts
    as damaged only if it stays so."""
    path = f"{replica.root}/{name}"
    data = _read(replica, path, name, missing)
    for _ in range(SLOT_LOOKS if replica.point is not None else 0):
        if data is not None and any(slot.state == "damaged" for slot in read_slots(data, kind)):
            data = read_if_there(path)
    return data


def _store_checkpoint(replica: Replica) -> None:
    data = _read(replica, f"{replica.root}/checkpoint", "checkpoint")
    if data is None:
        return
    if len(data) != PAGE or any(data[24:]):
        places = [24 + at for at, byte in enumerate(data[24:]) if byte] or [min(len(data), PAGE)]
        replica.flaw(
            "checkpoint.store",
            "checkpoint",
            "not 4096 bytes, zero behind the stamps",
            places[0],
            places[-1] + 1,
        )
    replica.store_stamps = (
        tuple(int.from_bytes(data[at : at + 8], "big", signed=True) for at in (0, 8, 16))
        if len(data) >= 24
        else ()
    )
