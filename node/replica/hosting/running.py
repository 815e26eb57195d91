"""A broker group that is open and runs: its turns, and the files that are written beside its log.

Turns and housekeeping are separate: a turn runs whenever something happened, housekeeping at most
20 times a second. Everything here runs on the loop, except the slow part of writing: an executor,
one job at a time, writes and syncs snapshots and the two checkpoint files. A snapshot is taken of
the state between two turns. Entries that are applied while it is being written lie above it, and
are applied again after a crash. It is written after the log up to it is durable here: after a power
failure no snapshot covers entries that the log beside it lacks. `opening.py` opens a group, and
`hosting.py` decides when to open it again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from dataclasses import replace
from typing import Any

from ledgermq.node.broker.calls.member_calls import GroupMembers
from ledgermq.node.broker.calls.outcome import Call
from ledgermq.node.broker.group import Group, TurnOutput
from ledgermq.node.broker.machine import Machine
from ledgermq.node.broker.ports import Fenced, PeerPacket, SyncTicket, Unreadable
from ledgermq.node.broker.queries.leadership_history import LeadershipEvent, Ring, restored, words
from ledgermq.node.replica.background.indexing import Indexer, MeasuredLookup
from ledgermq.node.replica.background.ports import Worker
from ledgermq.node.replica.background.scrubbing import Plan, Scrub
from ledgermq.node.replica.background.trim_reports import Trimming
from ledgermq.node.replica.consensus.catch_up import CatchUp
from ledgermq.node.replica.retention.pins import PinBook
from ledgermq.node.replica.retention.retention_facts import FileBook
from ledgermq.node.runtime import metrics
from ledgermq.node.runtime.logs import get_logger
from ledgermq.proto.status import ExitCode
from ledgermq.proto.types import ReplicaStatus
from ledgermq.raft.config import MS
from ledgermq.raft.transfer import LeaderChange
from ledgermq.storage.files import sealed_json
from ledgermq.storage.files.errors import (
    LIMIT_REMEDY,
    Damaged,
    NoSpace,
    is_no_space,
    lacks_descriptors,
)
from ledgermq.storage.files.reserve import Reserve
from ledgermq.storage.group.store import GroupStore
from ledgermq.storage.keys.key_index import KeyIndex
from ledgermq.storage.log.log_reader import Limits, LogReader
from ledgermq.storage.log.phases import Phases
from ledgermq.storage.queues.consume_queue import QueueSync
from ledgermq.storage.state.checkpoints import StoreCheckpoint
from ledgermq.storage.state.heard import HEARD_FILE, LastHeard, heard_value

CHECKPOINT_EVERY_NS = 3_000 * MS
SNAPSHOT_EVERY_NS = 60_000 * MS
# After this many applied bytes without a snapshot, a restart after a crash takes noticeably longer.
SNAPSHOT_EVERY_BYTES = 64 << 20
# A large state is exported rarely: at the earliest after this many times the duration of the last
# export.
EXPORT_REST_FACTOR = 100
RESERVE_FILE = "reserve"
LEADERSHIP_FILE = "leadership"
CLEAN_RETRY_NS = 1_000 * MS
HEARD_EVERY_NS = 1_000 * MS
HOUSEKEEPING_NS = 50 * MS

log = get_logger()


class OpenReplica:
    """An open group as the engine runs it: its turns, and from time to time a checkpoint or a
    snapshot."""

    housekeeping_ns = HOUSEKEEPING_NS
    checkpoint_every_ns = CHECKPOINT_EVERY_NS
    snapshot_every_ns = SNAPSHOT_EVERY_NS
    trimming_type = Trimming
    indexer_type = Indexer
    scrub_type = Scrub

    def __init__(
        self,
        store: GroupStore,
        machine: Machine,
        group: Group,
        key_index: KeyIndex,
        *,
        executor: Executor,
        clock_ns: Callable[[], int],
        worker: Callable[[str], Worker],
        reserve_bytes: int = 0,
        scrub: Plan = Plan(),  # noqa: B008 (frozen)
    ) -> None:
        """`executor` runs one job at a time, beside the turns, and belongs to this object;
        `clock_ns` is the clock of the turns; `worker` makes a worker of this name for work in
        steps, beside the turns and the executor."""
        self.store = store
        self.machine = machine
        self.group = group
        self.key_index = key_index
        reader = LogReader(
            store.disk,
            store.log_directory,
            store.identity.data_file_bytes,
            store.identity.index_file_bytes,
        )
        self.reader = reader
        self.lookup = MeasuredLookup(group.group, reader, key_index)
        """For queries on any thread except the loop's."""
        self.indexer = self.indexer_type(
            group.group, key_index, reader, worker(f"index-{group.group}")
        )
        # The snapshot's seals were restored before this, and later changes replace the mapping, so
        # other threads may read it.
        self.scrub = self.scrub_type(
            group.group,
            store.disk,
            store.root,
            found=self.fail,
            seals=lambda: machine.seals,
            plan=scrub,
            worker=worker(f"scrub-{group.group}"),
        )
        self._executor = executor
        self._clock_ns = clock_ns
        now_ns = clock_ns()
        self._keeping: Future[None] | None = None
        self._exported: tuple[int, dict[str, Any], QueueSync | None, int] | None = None
        """A snapshot that must not be written before the log up to its index is durable."""
        self._housekeeping_ns = now_ns
        """When housekeeping is due."""
        self._house_waits = True
        """A turn since the last housekeeping may have changed something that housekeeping looks
        at."""
        self._readable_index = -1
        """The last entry that lookups may read."""
        self._next_checkpoint_ns = now_ns + self.checkpoint_every_ns
        self._next_snapshot_ns = now_ns + self.snapshot_every_ns
        self._checkpointed = -1
        self._snapshot_index = machine.applied_index
        self._snapshot_pos = machine.applied_end_pos
        self._rest_ns = 0
        self.replicator = group.replicator
        file_bytes = store.identity.data_file_bytes
        self.files = FileBook(store.log, machine, file_bytes)
        self._now_ms = 0
        """Cluster time as of the last turn."""
        self.catch_up = CatchUp(
            self.files.pos_after, lambda index: max(0, self._now_ms - self.files.store_ms(index))
        )
        self.pins = PinBook()
        self.reserve = Reserve(store.disk, f"{store.state_directory}/{RESERVE_FILE}", reserve_bytes)
        self.trimming = self.trimming_type(
            group.group,
            machine,
            store.log,
            store.queues,
            self.indexer,
            pins=self.pins,
            file_bytes=file_bytes,
        )
        self._fenced: Fenced | None = None
        self._damage: Unreadable | None = None
        """Failures reported by other threads. Two fields, so that neither report overwrites the
        other."""
        self._leaders = _read_leaders(store)
        self._leader: tuple[int, str | None] = (-1, None)
        """Term and leader of the last view."""
        self._leaders_noted = False
        """Whether the ring has changes that its file lacks."""
        self._heard: LastHeard | None = None
        """An observer's last contact with its leader, if its file lacks it."""
        self._heard_ns = -1
        self._next_heard_ns = now_ns
        self._members: GroupMembers | None = None
        """The members that were logged last."""
        self._objected: set[str] = set()
        self._snapshot_wanted = False
        self._stalls = 0
        self._refusals, self._lacks_room = 0, False
        self._clean_again_ns = 0
        self._replay: tuple[Phases, int, int] | None = None
        """The phases of this start, the index up to which the log is replayed, and the time when
        the replay began."""

    def start(self) -> None:
        """Start the key index and the scrub. A replica works without them, but neither indexes keys
        nor finds rot."""
        self.indexer.start()
        self.scrub.start()

    def expect_replay(self, phases: Phases, commit_index: int) -> None:
        """Announce that committed entries above the snapshot will be applied in the coming turns:
        the last phase of a start."""
        self._replay = phases, commit_index, self._clock_ns()
        self._note_replay()

    def _note_replay(self) -> None:
        if self._replay is None or self.machine.applied_index < self._replay[1]:
            return
        (phases, _, began_ns), self._replay = self._replay, None
        phases.spent_ns["replay"] = self._clock_ns() - began_ns
        for name, spent_ns in phases.spent_ns.items():
            metrics.RECOVERY_SECONDS.labels(self.group.group, name).set(spent_ns / 1e9)
        log.info(
            "broker group recovered",
            group=self.group.group,
            applied_index=self.machine.applied_index,
            phases=phases.seconds,
        )

    def turn(
        self,
        now_ns: int,
        now_ms: int,
        calls: Sequence[Call],
        packets: Sequence[tuple[str, PeerPacket]],
        synced: Sequence[tuple[SyncTicket, OSError | None]],
    ) -> TurnOutput:
        """Give the group one turn, and keep house if that is due. Raises Fenced, Unreadable,
        Diverged."""
        if self._fenced is not None:
            raise self._fenced
        if self._damage is not None:
            raise self._damage
        self._now_ms = now_ms
        output = self.group.turn(now_ns, now_ms, calls, packets, synced)
        if self._keeping is not None and self._keeping.done():
            # A failed sync raises here, before anything of this turn is acknowledged (invariant
            # I9).
            done, self._keeping = self._keeping, None
            done.result()
        if self.machine.applied_index != self._readable_index or self.indexer.failure is not None:
            # A lookup that follows an acknowledgement must find the message.
            self._advance_indexer()
        if (view := output.view) is not None and (
            view.term != self._leader[0] or view.leader != self._leader[1]
        ):
            # Whoever was answered by a new leader and asks why leadership moved must get this
            # change.
            self._leader = view.term, view.leader
            self._note_leaders(now_ms)
        if (
            synced
            or output.done
            or output.packets
            or output.sync is not None
            or output.view is not None
        ):
            self._house_waits = True
        if now_ns >= self._housekeeping_ns or self.trimming.steps is not None:
            self._keep_house(now_ns, now_ms)
        elif self._house_waits:
            output.wake_at_ns = min(output.wake_at_ns, self._housekeeping_ns)
        if self._heard is not None:
            # Only housekeeping writes it: a turn before that would change nothing.
            output.wake_at_ns = min(
                output.wake_at_ns, max(self._next_heard_ns, self._housekeeping_ns)
            )
        return output

    def _keep_house(self, now_ns: int, now_ms: int) -> None:
        """What no caller waits for: reports, files beside the log, trims. Runs at most every
        `HOUSEKEEPING_NS`, after a turn. If a turn changed something and ended without it, the
        engine wakes the group when it is due. Heartbeats alone wake an idle group."""
        self._housekeeping_ns = now_ns + self.housekeeping_ns
        self._house_waits = False
        self._note_leaders(now_ms)
        self._note_heard(now_ns, now_ms)
        self._watch_followers(now_ns)
        self._note_members()
        self._note_replay()
        if self._keeping is None:
            self._keep(now_ns)
        self._clean(now_ns)
        self._advance_indexer()

    def _note_heard(self, now_ns: int, now_ms: int) -> None:
        """An observer may be the only replica left one day, so it stores what it knows of its
        leader."""
        contact = self.replicator.last_contact
        if (
            contact is None
            or contact.at_ns <= self._heard_ns
            or self.group.node not in self.replicator.members.observers
        ):
            return
        self._heard_ns = contact.at_ns
        at_ms = now_ms - (now_ns - contact.at_ns) // MS
        self._heard = LastHeard(
            contact.leader, contact.term, contact.end_index, contact.commit_index, at_ms
        )

    def leader_changed(self, change: LeaderChange) -> None:
        """Hook for the host of the replica: it noticed a change of leadership."""

    def _note_leaders(self, now_ms: int) -> None:
        for change in self.group.replicator.take_changes():
            self.leader_changed(change)
            self._leaders.add(change, now_ms)
            self._leaders_noted = True
            names = {
                "group": self.group.group,
                "term": change.term,
                "former": change.former,
                "leader": change.leader,
            }
            log.info("leadership changed", **names, reason=words(change.reason))

    def _watch_followers(self, now_ns: int) -> None:
        if not self.catch_up.due(now_ns):
            return
        for node in self.catch_up.look(
            self.group.replicator.status().peers, self.store.log.end_pos, now_ns
        ):
            name = self.group.group
            metrics.FOLLOWER_RESTARTS.labels(name, node).inc()
            reason = (
                "it replied but accepted none of the entries it lacks: the leader searches for its"
                " position in the log again"
            )
            log.warning("follower makes no progress", group=name, follower=node, reason=reason)

    def _note_members(self) -> None:
        """Log the members in force, and each node that cannot return by itself, once."""
        members, objections = self.machine.members, self.group.memberships.objections
        if members is not self._members:
            self._members = members
            if members is not None:
                described = {
                    "voters": list(members.voters),
                    "learners": sorted(members.learners),
                    "returning": sorted(members.returning),
                }
                log.info(
                    "members in force", group=self.group.group, index=members.index, **described
                )
        for node in sorted(objections.keys() - self._objected):
            log.warning(
                "a node returned without its directory and is not admitted yet",
                node=node,
                reason=objections[node],
            )
        self._objected = set(objections)

    def leaders(self) -> tuple[LeadershipEvent, ...]:
        """The last changes of leadership that this replica noticed, in earlier runs too."""
        return self._leaders.events

    def _advance_indexer(self) -> None:
        """Tell the indexer which entries it may read beside this thread: applied and durable here.
        Those do not change any more."""
        machine, entries = self.machine, self.store.log
        durable_index = entries.durability.index
        self._readable_index = min(machine.applied_index, durable_index)
        if machine.applied_index <= durable_index:
            end_index, end_pos = machine.applied_index + 1, machine.applied_end_pos
        else:
            end_index = durable_index + 1
            end_pos = entries.pos_of(end_index)
        self.indexer.advance(
            Limits(entries.begin_index, end_index, end_pos, entries.begin_pos),
            machine.applied_index,
            machine.store_ms,
        )

    def _clean(self, now_ns: int) -> None:
        """Carry out trims. If a full disk keeps messages from being dispatched, release the reserve
        until the next snapshot."""
        if now_ns >= self._clean_again_ns:
            try:
                self.trimming.step(self.store.durable_snapshot_index, now_ns)
            except NoSpace as full:
                self._clean_again_ns = now_ns + CLEAN_RETRY_NS
                log.warning(
                    "trim waits for space",
                    group=self.group.group,
                    reason=str(full),
                    reserve_released=self.reserve.release(),
                )
            except OSError as error:
                if not is_no_space(error) and not lacks_descriptors(error):
                    raise Fenced(f"trimmed files could not be removed: {error}") from error
                self._clean_again_ns = now_ns + CLEAN_RETRY_NS
                log.warning(
                    "trim waits",
                    group=self.group.group,
                    reason=str(error),
                    reserve_released=self.reserve.release(),
                )
        stalls = self.group.dispatch_stalled
        if stalls != self._stalls and self.reserve.release():
            log.warning(
                "reserve released",
                group=self.group.group,
                reason="the disk is full and messages could not be dispatched",
            )
        self._stalls = stalls

    def lacks_room(self, status: ReplicaStatus) -> bool:
        """Whether the log was refused room since the last call or, if it was before, still has none
        for another file. `status` is the present one."""
        refusals = self.group.log_full + status.extra.get("refused-disk-full", 0)
        self._lacks_room = refusals != self._refusals or (
            self._lacks_room and not self.store.log.has_room
        )
        self._refusals = refusals
        return self._lacks_room

    def take_disks(self, full: frozenset[str], *, refused: bool) -> bool:
        """Set which nodes say that their disks take no messages, and whether clients' messages are
        `refused` for that. Returns whether either changed."""
        group = self.group
        if (former := group.full_nodes) != full:
            group.note_full(full)
        refused, group.writes_refused = group.writes_refused is not refused, refused
        return refused or former != full

    def write_units(self, pos: int) -> bool:
        """Write some of the consume queue units in memory that belong to messages before `pos` of
        the log; True if none is left. Called between two turns. Raises NoSpace; any other error is
        final for the group, as in a turn."""
        try:
            return self.store.queues.write_below(pos)
        except OSError as error:
            self.fail(Fenced(f"consume queues could not be written: {error}"))
            raise

    def fail(self, failure: Fenced | Unreadable) -> None:
        """Report a failure from another thread; the next turn raises it. `Fenced`: a disk failure
        outside the turns is final (invariant I9), and `abandon` and `close` raise it too.
        `Unreadable`: damage that needs a repair. May be called from any thread."""
        if isinstance(failure, Fenced):
            self._fenced = failure
        else:
            self._damage = failure

    def _raise_fenced(self) -> None:
        if self._fenced is not None:
            raise self._fenced

    def snapshot_soon(self) -> None:
        """Take a snapshot earlier than planned, because retention waits for one."""
        self._snapshot_wanted = True

    def admit(self) -> None:
        self.replicator.admit()

    def status(self) -> ReplicaStatus:
        status = self.group.status()
        memory = {
            "mapped-bytes": self.store.log.mapped_bytes,
            "locked-bytes": self.store.log.locked_bytes,
        }
        peers = self.catch_up.annotated(
            status.peers, status.end_index, self.group.memberships.objections, self._clock_ns()
        )
        return replace(
            status, peers=peers, extra={**status.extra, **memory, **self.group.statistics()}
        )

    def abandon(self) -> None:
        """Close without writing anything more, on any thread, after the last turn: the abort file
        stays, and the next opening recovers. Raises Fenced if a background write, or anything else
        outside the turns, failed (invariant I9)."""
        self.scrub.stop()
        self._executor.shutdown()
        self.indexer.abandon()
        if self._keeping is not None:
            self._keeping.result()
        if isinstance(self.indexer.failure, Fenced):
            raise self.indexer.failure
        self._raise_fenced()
        self.store.log.give_up()
        self.store.abandon()

    def close(self) -> None:
        """Write the last snapshot and checkpoint, sync everything, and remove the abort file. A
        full disk does not make this fail. Raises Fenced for a failure outside the turns since the
        last one."""
        self._raise_fenced()
        self.scrub.stop()
        self._executor.shutdown()
        if self._keeping is not None:
            self._keeping.result()
        self.indexer.close()
        self._note_leaders(self._now_ms)
        if self._leaders_noted:
            self._write_leaders(self._leaders.export(self.store.identity.log_id))
        if self._heard is not None:
            self._write_heard(self._heard)
        self.store.log.flush_mark()
        if self._exported is not None:
            _, value, sync, copies = self._exported
            self._write_snapshot(value, sync, copies)
        if self.machine.settled:
            with contextlib.suppress(NoSpace):
                self._write_snapshot(self._export(), self.store.queues.begin_sync())
        self._write_checkpoints(self._safe_commit(), self._stamps())
        self.store.close()

    def _keep(self, now_ns: int) -> None:
        if self._exported is None and self._snapshot_due(now_ns):
            self._begin_snapshot(now_ns)
        if self._exported is not None and self._may_be_kept(self._exported[0]):
            _, value, sync, copies = self._exported
            self._exported = None
            self._keeping = self._executor.submit(self._write_snapshot, value, sync, copies)
        elif self._leaders_noted:
            self._leaders_noted = False
            self._keeping = self._executor.submit(
                self._write_leaders, self._leaders.export(self.store.identity.log_id)
            )
        elif self._heard is not None and now_ns >= self._next_heard_ns:
            heard, self._heard, self._next_heard_ns = self._heard, None, now_ns + HEARD_EVERY_NS
            self._keeping = self._executor.submit(self._write_heard, heard)
        elif now_ns >= self._next_checkpoint_ns:
            self._next_checkpoint_ns = now_ns + self.checkpoint_every_ns
            commit_index = self._safe_commit()
            if commit_index != self._checkpointed:
                self._checkpointed = commit_index
                self._keeping = self._executor.submit(
                    self._write_checkpoints, commit_index, self._stamps()
                )

    def _may_be_kept(self, index: int) -> bool:
        """Whether a snapshot of the state at this index may be written: no more than the durable
        log says."""
        return index <= self.replicator.durable_index

    def _begin_snapshot(self, now_ns: int) -> None:
        began_ns = self._clock_ns()
        try:
            sync = self.store.queues.begin_sync()
        except NoSpace as full:
            log.warning(
                "no snapshot, the disk is full",
                group=self.group.group,
                reason=str(full),
                reserve_released=self.reserve.release(),
            )
            self._rest_ns = self._next_snapshot_ns = now_ns + self.checkpoint_every_ns
            return
        # Retention needs both generations of the snapshot: writing one state twice is faster than
        # waiting for a second one.
        copies = 2 if self._retention_waits() else 1
        value = self._export()
        self._rest_ns = now_ns + (self._clock_ns() - began_ns) * EXPORT_REST_FACTOR
        self._next_snapshot_ns = now_ns + self.snapshot_every_ns
        self._snapshot_wanted = False
        self._snapshot_index, self._snapshot_pos = (
            self.machine.applied_index,
            self.machine.applied_end_pos,
        )
        self._exported = self._snapshot_index, value, sync, copies

    def _retention_waits(self) -> bool:
        """Whether a trim, decided or wanted, waits until both snapshots reach further."""
        older = self.store.durable_snapshot_index
        return self.trimming.wants_snapshot(older) or (
            self._snapshot_wanted and older < self.machine.applied_index
        )

    def _snapshot_due(self, now_ns: int) -> bool:
        grown = self.machine.applied_end_pos - self._snapshot_pos
        if self._retention_waits():
            return self.machine.settled and now_ns >= self._rest_ns
        due = now_ns >= self._next_snapshot_ns or (
            grown >= SNAPSHOT_EVERY_BYTES and now_ns >= self._rest_ns
        )
        return due and self.machine.settled and self.machine.applied_index > self._snapshot_index

    def _safe_commit(self) -> int:
        """The commit index that the next start may rely on. It must be durable *here* too: after a
        power failure an older tail could come back above the durable index, and a higher checkpoint
        would declare it committed."""
        return min(self.replicator.commit_index, self.replicator.durable_index)

    def _export(self) -> dict[str, Any]:
        return self.machine.export(self.store.identity.log_id)

    def _stamps(self) -> StoreCheckpoint:
        return StoreCheckpoint(
            self.machine.store_ms, self.machine.store_ms, self.key_index.durable_store_ms
        )

    # -- in jobs of the executor

    def _write_snapshot(
        self, value: dict[str, Any], sync: QueueSync | None, copies: int = 1
    ) -> None:
        """Sync the consume queues and write a snapshot; two `copies` replace both generations.

        A queue that could not be synced stays lost to every later snapshot, so that failure ends
        the replica (invariant I9)."""
        if sync is not None:
            try:
                sync.run()
            except OSError as error:
                exit_code = ExitCode.LIMIT if lacks_descriptors(error) else ExitCode.SYNC_FAILED
                raise Fenced(
                    f"the consume queues could not be synced: {error}", exit_code
                ) from error
        for _ in range(copies):
            self._hint("snapshot", lambda: self.store.write_snapshot(value))

    def _write_checkpoints(self, commit_index: int, stamps: StoreCheckpoint) -> None:
        self._hint("checkpoint", lambda: self.store.write_checkpoints(commit_index, stamps))

    def _write_leaders(self, value: dict[str, Any]) -> None:
        path = f"{self.store.state_directory}/{LEADERSHIP_FILE}"
        self._hint("history of leadership", lambda: sealed_json.write(self.store.disk, path, value))

    def _write_heard(self, heard: LastHeard) -> None:
        path, value = (
            f"{self.store.state_directory}/{HEARD_FILE}",
            heard_value(self.store.identity.log_id, heard),
        )
        self._hint(
            "last contact with the leader", lambda: sealed_json.write(self.store.disk, path, value)
        )

    def _hint(self, what: str, write: Any) -> None:
        """Write a file that may be missing or old. A full disk, or a process without free
        descriptors, does not stop the group."""
        try:
            try:
                write()
            except OSError as error:
                if not is_no_space(error) or not self.reserve.release():
                    raise
                log.warning(
                    "reserve released",
                    group=self.group.group,
                    reason=f"the disk is full and the {what} could not be written",
                )
                write()
        except OSError as error:
            if not is_no_space(error) and not lacks_descriptors(error):
                raise Fenced(f"the {what} could not be written: {error}") from error
            reason = (
                "the disk is full"
                if is_no_space(error)
                else f"no more files can be open: {LIMIT_REMEDY}"
            )
            log.warning(f"not written, {reason}", what=what, group=self.group.group)


def _read_leaders(store: GroupStore) -> Ring:
    """The history that earlier runs stored. If the file is damaged, the history starts again;
    nothing else is lost."""
    path = f"{store.state_directory}/{LEADERSHIP_FILE}"
    if not store.disk.exists(path):
        return Ring()
    try:
        return restored(sealed_json.read(store.disk, path), store.identity.log_id)
    except Damaged as damage:
        log.warning(
            "the history of leadership begins anew", group=store.identity.group, reason=str(damage)
        )
        return Ring()
