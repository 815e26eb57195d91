"""A broker group begun anew from one survivor, a voter or an observer, after its majority was lost (format §17): offline, and for good.

The survivor's log goes on under a new log id, with a membership entry that names the survivor alone; replicas that are given up keep the
old id and are refused by it ever after. Whatever they alone held is lost, and that is written down: in the entry, and in the file
`recovery.json`, which also says which log ids led here. Until that file says `done`, nothing opens the directory; the same command finishes
what a crash interrupted. What members may do, and how others join again, is not decided here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import Any

import numpy as np

from ledgermq.proto import control
from ledgermq.proto.entry_encoding import encode_entries
from ledgermq.proto.layout import HEADER_BYTES, record_columns
from ledgermq.proto.message_record import decode_record
from ledgermq.proto.names import RAFT_TOPIC
from ledgermq.proto.types import HardState, Identity, SyncedMark
from ledgermq.storage import identity as identities
from ledgermq.storage import sealed_json
from ledgermq.storage.backup_manifest import Refused
from ledgermq.storage.begin import Begin, write_begin
from ledgermq.storage.disk import Disk
from ledgermq.storage.errors import LogDamaged
from ledgermq.storage.heard import read_heard
from ledgermq.storage.recovered import RECOVERY_FILE, VERSION, read_recovery
from ledgermq.storage.snapshot import GENERATIONS, read_generation
from ledgermq.storage.store import GroupStore
from ledgermq.storage.synced_mark import SyncedMarkFile

NO_STORE_HOST = bytes(8)
READ_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Loss:
    """What is known of one group when it is begun anew: the survivor's last entry, what of it was noted as committed, who is given up."""

    group: str
    node: str
    former_log_id: str
    begin_index: int
    index: int
    term: int
    chain_crc: int
    committed_index: int
    next_term: int
    """Behind every term that this replica has heard of."""
    given_up: tuple[str, ...]
    observer: bool = False
    """The survivor was an observer: a learner that never voted."""
    last_store_ms: int | None = None
    """When its last entry was stored, by the clock of the leader that took it."""
    heard: Mapping[str, Any] | None = None
    """Of an observer: what it last heard of its leader (`heard.py`); None: nothing is known of that."""

    @property
    def lost_entries(self) -> int | None:
        """So many the leader had when it was heard last, which are not here; None: not known."""
        return None if self.heard is None else max(0, int(self.heard["end_index"]) - self.index)

    @property
    def lost_committed(self) -> int | None:
        """So many of them were committed by then."""
        return None if self.heard is None else max(0, int(self.heard["commit_index"]) - self.index)

    @property
    def lost_ms(self) -> int | None:
        """The time from the last entry that is here to that word of the leader, if anything between is lost."""
        if self.heard is None or self.last_store_ms is None:
            return None
        return max(0, int(self.heard["heard_ms"]) - self.last_store_ms) if self.lost_entries else 0

    def as_json(self) -> dict[str, Any]:
        """As in `recovery.json`."""
        told = {**asdict(self), "given_up": list(self.given_up), "heard": None if self.heard is None else dict(self.heard)}
        return {**told, "lost": {"entries": self.lost_entries, "committed": self.lost_committed, "ms": self.lost_ms}}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Loss:
        """Also one that was written before there were observers."""
        known = {name: found for name, found in value.items() if name in cls.__dataclass_fields__}
        return cls(**{**known, "given_up": tuple(value["given_up"])})


def survey(disk: Disk, root: str, *, observer: bool = False) -> tuple[Loss, str | None]:
    """What a recovery of this directory would go on from, and the new log id of one that was interrupted. Opens the log as a node would,
    and stops it in good order. `observer`: the directory must be an observer's. Raises Refused, StorageError, OSError."""
    found = identities.read_identity(disk, root)
    if found is None:
        raise Refused(f"{root} holds no replica", "name the node directory of the survivor")
    begun = read_recovery(disk, root)
    if begun is not None and begun["state"] != "done":
        return Loss.from_json(begun["loss"]), begun["log_id"]
    store = _opened(disk, root, found)
    log = store.log
    if log.end_index < 0:
        store.close()
        raise Refused(f"{root} has an empty log: it is no survivor", "name the node directory of a replica that has the messages")
    noted = store.read_checkpoint()
    snapshot = store.read_snapshot()
    members, observers = _members(store, snapshot)
    if observer and found.replica not in observers:
        store.close()
        what = f"{found.replica} is no observer of broker group {found.group}: its log does not name it one"
        raise Refused(what, "begin anew from a replica that votes with: ledgermq recover --force-new-cluster")
    heard = read_heard(disk, root, found.log_id) if observer else None
    committed = max(-1 if noted is None else noted.committed_index, -1 if snapshot is None else snapshot["applied_index"])
    loss = Loss(
        group=found.group,
        node=found.replica,
        former_log_id=found.log_id,
        begin_index=log.begin_index,
        index=log.end_index,
        term=log.end_term,
        chain_crc=log.end_chain,
        committed_index=min(committed, log.end_index),
        next_term=max(store.hard_state.value.term, log.end_term) + 1,
        given_up=tuple(sorted(members - {found.replica})),
        observer=observer,
        last_store_ms=_last_store_ms(store),
        heard=None if heard is None else asdict(heard),
    )
    # Only here: after a failure nothing may be called a good stop, and the process ends anyway.
    store.close()
    return loss, None


def begin_anew(disk: Disk, root: str, loss: Loss, *, log_id: str, now_ms: int) -> dict[str, Any]:
    """Carry it out, or finish it; returns what `recovery.json` says in the end. `log_id` is a new random UUID, or that of the interrupted
    attempt. Durable step by step: the intent, the entry, the new id in every file, the identity, the word `done`."""
    found = identities.read_identity(disk, root)
    assert found is not None, f"{root} lost its identity"
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
        note = {**note, "state": "appended", **_append(disk, root, found, loss, note)}
        sealed_json.write(disk, f"{root}/{RECOVERY_FILE}", note)
    if note["state"] == "appended":
        _rename_log(disk, root, found, note)
        note = {**note, "state": "done"}
        sealed_json.write(disk, f"{root}/{RECOVERY_FILE}", note)
    return note


def _opened(disk: Disk, root: str, found: Identity) -> GroupStore:
    store = GroupStore.open(disk, root, found, recovering=True)
    if store.log.fenced is not None:
        fenced = store.log.fenced
        store.abandon()
        raise LogDamaged(f"{fenced}; a damaged log cannot be begun anew: use another survivor, or restore a backup")
    return store


def _members(store: GroupStore, snapshot: dict[str, Any] | None) -> tuple[set[str], set[str]]:
    """Everybody whom the last membership record that is here names, and the observers among them."""
    told: set[str] = set()
    observers: set[str] = set()
    index = store.log.begin_index
    if snapshot is not None:
        members = snapshot.get("members", [])
        told = set(members) if isinstance(members, list) else {*members.get("voters", {}), *members.get("learners", {})}
        if isinstance(members, dict):
            observers = {node for node, known in members.get("learners", {}).items() if known.get("observer")}
        index = max(index, int(snapshot["applied_index"]) + 1)
    while index <= store.log.end_index:
        entries = store.log.read(index, READ_BYTES)
        for start, size in zip(entries.starts.tolist(), entries.sizes.tolist(), strict=True):
            if int.from_bytes(entries.data[start + 32 : start + 36], "big") == control.MEMBERSHIP_CHANNEL:
                body = decode_record(entries.data[start + HEADER_BYTES : start + size]).body
                record = control.decode(control.Membership.TAG, body)
                assert isinstance(record, control.Membership)
                told, observers = {*record.voters, *record.learners}, set(record.observers)
        index = entries.last_index + 1
    return told, observers


def _append(disk: Disk, root: str, found: Identity, loss: Loss, note: dict[str, Any]) -> dict[str, Any]:
    """The entry that names the survivor alone, in a term that nobody led. Returns the log's new end and its begin."""
    store = _opened(disk, root, found)
    log = store.log
    if log.end_index == loss.index:
        store.hard_state.save(HardState(loss.next_term, found.replica))
        batch = encode_entries([control.draft(_record(found, loss, note), note["when_ms"])])
        offset = _next_offset(store)
        store_ms = max(note["when_ms"], _last_store_ms(store))
        log.append_leader(loss.next_term, batch, np.array([offset], np.int64), store_ms, NO_STORE_HOST, control=True)
    log.flush_mark()
    end = SyncedMark(log.end_term, log.end_index, log.end_pos, log.end_chain)
    begin = Begin(log.begin_index, log.begin_pos, log.begin_term, log.begin_chain)
    store.close()
    return {"end": asdict(end), "begin": asdict(begin)}


def _record(found: Identity, loss: Loss, note: dict[str, Any]) -> control.Membership:
    gone = ", ".join(loss.given_up) or "nobody"
    command = f"promote-observer, {lost_words(loss)}" if loss.observer else "recover --force-new-cluster"
    reason = (
        f"{command}: log {note['log_id']} goes on from log {loss.former_log_id} behind entry {loss.index} "
        f"of term {loss.term} (chain {loss.chain_crc:08x}, known committed up to {loss.committed_index}); given up: {gone}"
    )
    return control.Membership((found.replica,), incarnations={found.replica: found.incarnation}, reason=reason)


def lost_words(loss: Loss) -> str:
    """What an observer knows to be lost, for people."""
    if loss.heard is None:
        return "nothing is known of what its leader had"
    heard = loss.heard
    at = iso(int(heard["heard_ms"]))
    if not loss.lost_entries:
        return f"nothing is lost of what leader {heard['leader']} had at {at}, when it was heard last"
    spans = "" if loss.lost_ms is None else f", taken in the {loss.lost_ms} ms before"
    lost = f"lost for certain: {loss.lost_entries} entries ({loss.lost_committed} of them committed)"
    return f"{lost} that leader {heard['leader']} had at {at}, when it was heard last{spans}"


def iso(ms: int) -> str:
    """A time in milliseconds as people read it, in UTC."""
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _next_offset(store: GroupStore) -> int:
    """The next queue offset of the topic of membership records: dense like every other (invariant I6)."""
    snapshot, log = store.read_snapshot(), store.log
    offset, index = 0, log.begin_index
    if snapshot is not None:
        offset, index = int(snapshot["queues"].get(RAFT_TOPIC, {}).get("0", 0)), int(snapshot["applied_index"]) + 1
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


def _rename_log(disk: Disk, root: str, found: Identity, note: dict[str, Any]) -> None:
    """The new log id in every file that carries one; the identity last. The chain keeps its beginning: the begin file says what it is."""
    log_id, directory = note["log_id"], f"{root}/dledger-{found.replica}"
    for name in GENERATIONS:
        value = read_generation(disk, f"{root}/state", name)
        if value is not None and value.get("log_id") in note["former"]:
            sealed_json.write(disk, f"{root}/state/{name}", {**value, "log_id": log_id})
    write_begin(disk, directory, log_id, Begin(**note["begin"]))
    path = f"{directory}/syncedmark"
    if disk.exists(path):
        disk.unlink(path)
    SyncedMarkFile.create(disk, path, log_id, SyncedMark(**note["end"])).close()
    identities.write_identity(disk, root, replace(found, log_id=log_id))
