"""Restarting a broker group from one surviving replica, a voter or an observer, after its majority
was lost (format §17): offline, and irreversible.

The survivor's log continues under a new log id, with a membership entry that names only the
survivor. Abandoned replicas keep the old id and are refused from then on. Entries that only they
held are lost, and the loss is recorded: in the entry, and in the file `recovery.json`, which also
lists the former log ids. Until that file says `done`, the directory cannot be opened; the same
command finishes an interrupted recovery. What members may do, and how others join again, is decided
elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import Any

import numpy as np

from ledgermq.proto.entries.entry_encoding import encode_entries
from ledgermq.proto.entries.layout import HEADER_BYTES, record_columns
from ledgermq.proto.entries.message_record import decode_record
from ledgermq.proto.names import RAFT_TOPIC
from ledgermq.proto.records import control
from ledgermq.proto.types import HardState, Identity, SyncedMark
from ledgermq.storage.backups.backup_manifest import Refused
from ledgermq.storage.files import sealed_json
from ledgermq.storage.files.errors import LogDamaged
from ledgermq.storage.files.ports import Disk
from ledgermq.storage.group.store import GroupStore
from ledgermq.storage.log.begin import Begin, write_begin
from ledgermq.storage.log.synced_mark import SyncedMarkFile
from ledgermq.storage.state import identity as identities
from ledgermq.storage.state.heard import read_heard
from ledgermq.storage.state.recovered import RECOVERY_FILE, VERSION, read_recovery
from ledgermq.storage.state.snapshot import GENERATIONS, read_generation

NO_STORE_HOST = bytes(8)
READ_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Loss:
    """What is known about one group at its recovery: the survivor's last entry, its noted commit
    index, the abandoned replicas."""

    group: str
    node: str
    former_log_id: str
    begin_index: int
    index: int
    term: int
    chain_crc: int
    committed_index: int
    next_term: int
    """A term above every term that this replica has seen."""
    given_up: tuple[str, ...]
    observer: bool = False
    """Whether the survivor was an observer: a learner that never voted."""
    last_store_ms: int | None = None
    """The store time of its last entry, by the clock of the leader that accepted it."""
    heard: Mapping[str, Any] | None = None
    """For an observer: the last report from its leader (`heard.py`); None: unknown."""

    @property
    def lost_entries(self) -> int | None:
        """The number of entries that the leader had at its last report and that are not here; None:
        unknown."""
        return None if self.heard is None else max(0, int(self.heard["end_index"]) - self.index)

    @property
    def lost_committed(self) -> int | None:
        """The number of them that were committed by then."""
        return None if self.heard is None else max(0, int(self.heard["commit_index"]) - self.index)

    @property
    def lost_ms(self) -> int | None:
        """The time from the last entry here to that report of the leader, if entries in between are
        lost."""
        if self.heard is None or self.last_store_ms is None:
            return None
        return max(0, int(self.heard["heard_ms"]) - self.last_store_ms) if self.lost_entries else 0

    def as_json(self) -> dict[str, Any]:
        """The form in `recovery.json`."""
        fields = {
            **asdict(self),
            "given_up": list(self.given_up),
            "heard": None if self.heard is None else dict(self.heard),
        }
        return {
            **fields,
            "lost": {
                "entries": self.lost_entries,
                "committed": self.lost_committed,
                "ms": self.lost_ms,
            },
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Loss:
        """Also reads records written before observers existed."""
        known = {
            name: content for name, content in value.items() if name in cls.__dataclass_fields__
        }
        return cls(**{**known, "given_up": tuple(value["given_up"])})


def survey(disk: Disk, root: str, *, observer: bool = False) -> tuple[Loss, str | None]:
    """What a recovery of this directory would continue from, and the new log id of an interrupted
    one. Opens the log as a node would, and closes it cleanly. `observer`: the directory must be an
    observer's. Raises Refused, StorageError, OSError."""
    own_identity = identities.read_identity(disk, root)
    if own_identity is None:
        raise Refused(f"{root} holds no replica", "give the node directory of the survivor")
    begun = read_recovery(disk, root)
    if begun is not None and begun["state"] != "done":
        return Loss.from_json(begun["loss"]), begun["log_id"]
    store = _opened(disk, root, own_identity)
    log = store.log
    if log.end_index < 0:
        store.close()
        raise Refused(
            f"{root} has an empty log and cannot be the survivor",
            "give the node directory of a replica that has the messages",
        )
    noted = store.read_checkpoint()
    snapshot = store.read_snapshot()
    members, observers = _members(store, snapshot)
    if observer and own_identity.replica not in observers:
        store.close()
        problem = (
            f"{own_identity.replica} is not an observer of broker group {own_identity.group}"
            " according to its log"
        )
        raise Refused(
            problem, "recover from a voting replica with: ledgermq recover --force-new-cluster"
        )
    heard = read_heard(disk, root, own_identity.log_id) if observer else None
    committed = max(
        -1 if noted is None else noted.committed_index,
        -1 if snapshot is None else snapshot["applied_index"],
    )
    loss = Loss(
        group=own_identity.group,
        node=own_identity.replica,
        former_log_id=own_identity.log_id,
        begin_index=log.begin_index,
        index=log.end_index,
        term=log.end_term,
        chain_crc=log.end_chain,
        committed_index=min(committed, log.end_index),
        next_term=max(store.hard_state.value.term, log.end_term) + 1,
        given_up=tuple(sorted(members - {own_identity.replica})),
        observer=observer,
        last_store_ms=_last_store_ms(store),
        heard=None if heard is None else asdict(heard),
    )
    # Not in a `finally`: after a failure the stop must not count as clean, and the process ends
    # anyway.
    store.close()
    return loss, None


def begin_anew(disk: Disk, root: str, loss: Loss, *, log_id: str, now_ms: int) -> dict[str, Any]:
    """Carry out a recovery, or finish an interrupted one; returns the final content of
    `recovery.json`. `log_id` is a new random UUID, or that of the interrupted attempt. Each step is
    durable: the intent, the entry, the new id in every file, the identity, the state `done`."""
    own_identity = identities.read_identity(disk, root)
    assert own_identity is not None, f"{root} lost its identity"
    note = read_recovery(disk, root)
    if note is None or note["state"] == "done":
        chain = [] if note is None else [*note["former"]]
        note = {
            "v": VERSION,
            "state": "begun",
            "log_id": log_id,
            "former": [*chain, loss.former_log_id],
            "loss": loss.as_json(),
            "when_ms": now_ms,
        }
        sealed_json.write(disk, f"{root}/{RECOVERY_FILE}", note)
    if note["state"] == "begun":
        note = {**note, "state": "appended", **_append(disk, root, own_identity, loss, note)}
        sealed_json.write(disk, f"{root}/{RECOVERY_FILE}", note)
    if note["state"] == "appended":
        _rename_log(disk, root, own_identity, note)
        note = {**note, "state": "done"}
        sealed_json.write(disk, f"{root}/{RECOVERY_FILE}", note)
    return note


def _opened(disk: Disk, root: str, own_identity: Identity) -> GroupStore:
    store = GroupStore.open(disk, root, own_identity, recovering=True)
    if store.log.fenced is not None:
        fenced = store.log.fenced
        store.abandon()
        raise LogDamaged(
            f"{fenced}; a group cannot be recovered from a damaged log: use another survivor, or"
            " restore a backup"
        )
    return store


def _members(store: GroupStore, snapshot: dict[str, Any] | None) -> tuple[set[str], set[str]]:
    """Every member that the last membership record in this log names, and the observers among
    them."""
    voters: set[str] = set()
    observers: set[str] = set()
    index = store.log.begin_index
    if snapshot is not None:
        members = snapshot.get("members", [])
        voters = (
            set(members)
            if isinstance(members, list)
            else {*members.get("voters", {}), *members.get("learners", {})}
        )
        if isinstance(members, dict):
            observers = {
                node for node, known in members.get("learners", {}).items() if known.get("observer")
            }
        index = max(index, int(snapshot["applied_index"]) + 1)
    while index <= store.log.end_index:
        entries = store.log.read(index, READ_BYTES)
        for start, size in zip(entries.starts.tolist(), entries.sizes.tolist(), strict=True):
            if (
                int.from_bytes(entries.data[start + 32 : start + 36], "big")
                == control.MEMBERSHIP_CHANNEL
            ):
                body = decode_record(entries.data[start + HEADER_BYTES : start + size]).body
                record = control.decode(control.Membership.TAG, body)
                assert isinstance(record, control.Membership)
                voters, observers = {*record.voters, *record.learners}, set(record.observers)
        index = entries.last_index + 1
    return voters, observers


def _append(
    disk: Disk, root: str, own_identity: Identity, loss: Loss, note: dict[str, Any]
) -> dict[str, Any]:
    """Append the entry that names only the survivor, in a term that no leader used. Returns the
    log's new end and its begin."""
    store = _opened(disk, root, own_identity)
    log = store.log
    if log.end_index == loss.index:
        store.hard_state.save(HardState(loss.next_term, own_identity.replica))
        batch = encode_entries([control.draft(_record(own_identity, loss, note), note["when_ms"])])
        offset = _next_offset(store)
        store_ms = max(note["when_ms"], _last_store_ms(store))
        log.append_leader(
            loss.next_term,
            batch,
            np.array([offset], np.int64),
            store_ms,
            NO_STORE_HOST,
            control=True,
        )
    log.flush_mark()
    end = SyncedMark(log.end_term, log.end_index, log.end_pos, log.end_chain)
    begin = Begin(log.begin_index, log.begin_pos, log.begin_term, log.begin_chain)
    store.close()
    return {"end": asdict(end), "begin": asdict(begin)}


def _record(own_identity: Identity, loss: Loss, note: dict[str, Any]) -> control.Membership:
    gone = ", ".join(loss.given_up) or "nobody"
    command = (
        f"promote-observer, {lost_words(loss)}" if loss.observer else "recover --force-new-cluster"
    )
    reason = (
        f"{command}: log {note['log_id']} goes on from log {loss.former_log_id} behind entry"
        f" {loss.index} of term {loss.term} (chain {loss.chain_crc:08x}, known committed up to"
        f" {loss.committed_index}); given up: {gone}"
    )
    return control.Membership(
        (own_identity.replica,),
        incarnations={own_identity.replica: own_identity.incarnation},
        reason=reason,
    )


def kept_words(loss: Loss) -> str:
    """A sentence about what is known to be committed, and what becomes of the rest. A replica may
    have stopped before it noted anything."""
    known, rest = f"Entries up to {loss.committed_index} are", "later ones"
    if loss.committed_index < 0:
        known, rest = "No entry is", "all"
    return f"{known} known to be committed; {rest} are kept, and count as committed from now on."


def lost_words(loss: Loss) -> str:
    """A sentence about what an observer knows to be lost."""
    if loss.heard is None:
        return "it is not known what its leader had"
    heard = loss.heard
    at = iso(int(heard["heard_ms"]))
    if not loss.lost_entries:
        return f"nothing is lost that leader {heard['leader']} had at {at}, its last report"
    spans = "" if loss.lost_ms is None else f", taken in the {loss.lost_ms} ms before"
    lost = (
        f"lost for certain: {loss.lost_entries} entries ({loss.lost_committed} of them committed)"
    )
    return f"{lost} that leader {heard['leader']} had at {at}, its last report{spans}"


def iso(ms: int) -> str:
    """A time in milliseconds as UTC text."""
    return (
        datetime.fromtimestamp(ms / 1000, UTC)
        .isoformat(timespec="milliseconds")
        .replace("+00:00", "Z")
    )


def _next_offset(store: GroupStore) -> int:
    """The next queue offset of the topic of membership records; queue offsets are dense (invariant
    I6)."""
    snapshot, log = store.read_snapshot(), store.log
    offset, index = 0, log.begin_index
    if snapshot is not None:
        offset, index = (
            int(snapshot["queues"].get(RAFT_TOPIC, {}).get("0", 0)),
            int(snapshot["applied_index"]) + 1,
        )
    while index <= log.end_index:
        entries = log.read(index, READ_BYTES)
        columns = record_columns(entries)
        if RAFT_TOPIC in columns.topics:
            at = np.flatnonzero(columns.topic_of == columns.topics.index(RAFT_TOPIC))
            offset = int(columns.queue_offsets[at[-1]]) + 1
        index = entries.last_index + 1
    return offset


def _last_store_ms(store: GroupStore) -> int:
    entries = store.log.read(store.log.end_index, 1)
    return decode_record(entries.data[HEADER_BYTES : int(entries.sizes[0])]).store_ms


def _rename_log(disk: Disk, root: str, own_identity: Identity, note: dict[str, Any]) -> None:
    """Write the new log id to every file that contains one, the identity last. The chain keeps its
    seed, which the begin file records."""
    log_id, directory = note["log_id"], f"{root}/dledger-{own_identity.replica}"
    for name in GENERATIONS:
        value = read_generation(disk, f"{root}/state", name)
        if value is not None and value.get("log_id") in note["former"]:
            sealed_json.write(disk, f"{root}/state/{name}", {**value, "log_id": log_id})
    write_begin(disk, directory, log_id, Begin(**note["begin"]))
    path = f"{directory}/syncedmark"
    if disk.exists(path):
        disk.unlink(path)
    SyncedMarkFile.create(disk, path, log_id, SyncedMark(**note["end"])).close()
    identities.write_identity(disk, root, replace(own_identity, log_id=log_id))
