"""The Raft replica of a broker group: a consensus core, an entry log and a hard state behind the
`Replicator` port.

This is the driver: it decodes packets into messages, the core decides, and the driver executes the
effects in the order that `raft.effects.Effects` requires: make the hard state durable, cut and
write the log, then send packets. It decides nothing itself and has no clock, threads or randomness:
time is passed in, and the one blocking call of a group commit is returned as a `SyncTicket`. Each
duty that safety depends on has its own method.

A group commit covers everything that arrived while the previous one ran: a ticket is issued when
something urgent is unsynced and no sync is in progress. Entries that are not urgent, messages of
the class `memory`, wait so that one sync covers more of them (`flush.py`). The first failed write
or sync fences the replica for good (invariant I9), whatever class it was for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import NoReturn

from ledgermq.node.broker.flush import NEVER_NS, LazySync, Unsynced
from ledgermq.node.broker.ports import (
    Diverged,
    Fenced,
    LogFull,
    NotLeader,
    PeerPacket,
    ReplicaOutput,
    SyncTicket,
    reading,
)
from ledgermq.node.replica.consensus.replica_boot import (
    CHANNEL_AT,
    MEMBERSHIP_INDEX,
    alone,
    configurations,
    members_of,
    membership_entries,
    read_verified,
    record_in,
    record_of,
)
from ledgermq.node.replica.consensus.replica_wire import (
    Arrived,
    BadPacket,
    decode,
    encode,
    encode_append,
)
from ledgermq.proto.entries.entry_checking import BadEntry, verify_range
from ledgermq.proto.entries.entry_encoding import encode_entries
from ledgermq.proto.entries.entry_sealing import chain_crc_at
from ledgermq.proto.entries.ranges import tail_of
from ledgermq.proto.levels import FIRST_LEVEL, MINIMUM_LEVEL
from ledgermq.proto.records.control import UnknownControlRecord, draft
from ledgermq.proto.status import ExitCode
from ledgermq.proto.types import I64, HardState, Range, ReplicaStatus, Role, UnsealedBatch
from ledgermq.raft.config import MS, Chance, Members, RaftConfig
from ledgermq.raft.core import Core
from ledgermq.raft.effects import NO_WRITES, Push, Writes
from ledgermq.raft.follower import chain_question
from ledgermq.raft.ha_control import Appointment
from ledgermq.raft.log_view import LogView
from ledgermq.raft.membership import MemberChange
from ledgermq.raft.messages import NO_INDEX, Append, Extent, LeaderContact, Message
from ledgermq.raft.transfer import Cause, Handover, LeaderChange
from ledgermq.storage.files.errors import BadRange, LogFenced, NoSpace, is_exhausted
from ledgermq.storage.log.durability import SyncJob
from ledgermq.storage.log.entry_log import EntryLog
from ledgermq.storage.log.hot_tail import HotTail
from ledgermq.storage.state.hard_state import HardStateFile

CHECK_EVERY_NS = 50 * MS
"""The invariants of the whole core are checked this often; a few cheap ones are checked with every
output."""
DISK_FAILURES = (OSError, LogFenced, BadRange)
"""What fences a replica; `NoSpace` does not."""
IDLE_NS = 100 * MS
"""After this time without a write, a sync of its own updates the synced mark."""


class RaftReplica:
    """`Replicator` over Raft; see `node/broker/ports.py` for the contract of every public
    method."""

    core_type: type[Core] = Core
    check_every_ns: int = CHECK_EVERY_NS
    """Zero in tests and in the simulator: there every `take` checks all invariants."""

    def __init__(
        self,
        group: str,
        config: RaftConfig,
        log: EntryLog,
        hard_state: HardStateFile,
        chance: Chance,
        now_ns: int,
        *,
        store_host: bytes,
        commit_index: int = MEMBERSHIP_INDEX,
        admitted: bool = True,
        lazy: LazySync | None = None,
        members: tuple[int, Members] | None = None,
    ) -> None:
        """`log` is recovered, and everything in it is durable. `commit_index` was committed and
        durable here when it was recorded (by a snapshot that agrees with the log, or by the log's
        checkpoint limited to the synced mark). The replica is not `admitted` until every other
        voter knows this directory. `members`: the members at an applied index, from the snapshot;
        later records are read from the log, or all records if it is None. A joining replica has an
        empty log and a `config` without voters. Raises Fenced if recovery found damage, ValueError
        if a member's log is empty or a membership entry cannot be read."""
        if log.fenced is not None:
            raise Fenced(str(log.fenced)) from log.fenced
        if log.end_index < MEMBERSHIP_INDEX and config.voters:
            raise ValueError(f"group {group} has an empty log: bootstrap it first")
        self.group = group
        self.config = config
        self.log = log
        self.fenced: str | None = None
        view = LogView(log.term_runs(), log.end_index, log.begin_term)
        known_commit = min(max(commit_index, MEMBERSHIP_INDEX), log.end_index)
        known = tuple(configurations(log, members or (NO_INDEX, config.members)))
        core = self.core = self.core_type(
            config,
            view,
            hard_state.value,
            chance,
            now_ns=now_ns,
            commit_index=known_commit,
            admitted=admitted,
            configurations=known,
        )
        # The parts live as long as the core; each of their indexes and roles is read several times
        # in a turn.
        self._election, self._membership, self._indexes, self._handovers = (
            core.election,
            core.membership,
            core.log_state,
            core.handovers,
        )
        self.standing = core.role, core.term, core.leader, core.members
        """After the last `tick` or `take`."""
        self._durability = log.durability
        self._hard_state = hard_state
        self._store_host = store_host
        self._underway: tuple[SyncTicket, SyncJob, int, int] | None = None
        self._last_write_ns = now_ns
        self._check_at_ns = now_ns
        self._unsynced = Unsynced(lazy or LazySync())
        self._cut_unsynced = False
        """The log was cut and no sync has begun since, so the cut entries could come back after a
        crash."""
        self._packets: list[tuple[str, PeerPacket]] = []
        self._hot_tail = HotTail()
        self._travelling: dict[int, tuple[Range, Extent]] = {}
        """First index → a range that was appended or read for a push in this turn, as it travels,
        and its extent: all peers are pushed the same ones. Bounded by what a turn appends and by
        the windows of the peers."""
        self._counts: Counter[str] = Counter()

    # The port's view of the replica

    @property
    def role(self) -> Role:
        return self._election.role

    @property
    def term(self) -> int:
        return self._election.term

    @property
    def leader(self) -> str | None:
        return self._election.leader

    @property
    def begin_index(self) -> int:
        return self.log.begin_index

    @property
    def end_index(self) -> int:
        return self._indexes.view.end_index

    @property
    def durable_index(self) -> int:
        return self._indexes.durable_index

    @property
    def commit_index(self) -> int:
        return self._indexes.commit_index

    @property
    def replicated_index(self) -> int:
        return self.core.replicated_index

    @property
    def accepting(self) -> bool:
        return self.core.accepting

    @property
    def handover(self) -> Handover | None:
        return self._handovers.current

    @property
    def handover_failure(self) -> str:
        return self.core.handover_failure

    @property
    def appointment(self) -> Appointment | None:
        return self._membership.policy.agreed

    def missing_isr(self, now_ns: int) -> int:
        return self.core.missing_isr(now_ns)

    def appointed(self, now_ns: int, appointment: Appointment) -> None:
        self._refuse_when_fenced()
        self.core.appointed(appointment, now_ns)

    @property
    def last_contact(self) -> LeaderContact | None:
        following = self._election.following
        return None if following is None else following.last_contact

    def keeps_up(self, node: str, now_ns: int) -> bool:
        return self.core.keeps_up(node, now_ns)

    def lag_of(self, node: str) -> int:
        peer = self.core.peers.get(node)
        return self.end_index - (NO_INDEX if peer is None else peer.durable)

    def durable_indexes(self) -> dict[str, int]:
        voters = self.core.members.voters
        known = {
            node: peer.durable
            for node, peer in self.core.peers.items()
            if node in voters and not peer.provisional
        }
        return known | (
            {self.config.node: self.durable_index} if self.config.node in voters else {}
        )

    def status(self) -> ReplicaStatus:
        """`applied_index` is −1: the caller applies entries and fills it in."""
        return ReplicaStatus(
            group=self.group,
            node=self.config.node,
            role=self.role,
            term=self.term,
            leader=self.leader,
            begin_index=self.begin_index,
            end_index=self.end_index,
            durable_index=self.durable_index,
            commit_index=self.commit_index,
            applied_index=NO_INDEX,
            peers=self.core.peer_progress(),
            fenced=self.fenced,
            extra={**self._counts, **self._refusals(), **self._peer_facts(), **self._standing()},
        )

    def _standing(self) -> dict[str, int]:
        return {"admitted": int(self.core.admitted), "election-slack-ms": self.core.slack_ms}

    def _refusals(self) -> dict[str, int]:
        return {f"refused-{reason}": count for reason, count in self.core.refused.items()}

    def _peer_facts(self) -> dict[str, int]:
        """Peers that lack entries which this leader trimmed (they need a snapshot and files), and
        how often the comparison with a peer without progress was restarted."""
        restarted = {
            f"restarted-from-compare:{node}": count for node, count in self.core.restarts.items()
        }
        return restarted | {
            f"needs-snapshot:{peer.node}": 1
            for peer in self.core.peers.values()
            if peer.needs_snapshot
        }

    def read(self, first_index: int, max_bytes: int) -> Range:
        kept = self._hot_tail.read(first_index, max_bytes)
        if kept is not None:
            return kept
        with reading():
            return read_verified(self.log, first_index, max_bytes)

    # Inputs

    def tick(self, now_ns: int) -> None:
        if self.fenced is not None:
            raise Fenced(self.fenced)
        if self.log.begin_index > self._indexes.view.begin_index:
            self.core.trimmed(self.log.begin_index)
        self.core.tick(now_ns)
        election = self._election
        self.standing = election.role, election.term, election.leader, self._membership.members

    def admit(self) -> None:
        self.core.admit()

    def step(self, now_ns: int, sender: str, packet: PeerPacket) -> None:
        if self.fenced is not None:
            raise Fenced(self.fenced)
        if self.log.begin_index > self._indexes.view.begin_index:
            self.core.trimmed(self.log.begin_index)
        try:
            arrived = decode(packet, sender)
            message = arrived.message
            if not self.core.concerns(message):
                raise BadPacket(
                    "stranger",
                    f"{sender} sent {message.to} a packet that does not concern {self.config.node}",
                )
            if message.term < self._election.term:
                self._counts["stale-term"] += 1
            if isinstance(message, Append):
                self._step_append(message, arrived, now_ns)
            else:
                self.core.handle(message, now_ns)
        except BadPacket as bad:
            self._counts[f"dropped-{bad.kind}"] += 1
        except BadEntry:
            self._counts["dropped-bytes"] += 1

    def _step_append(self, message: Append, arrived: Arrived, now_ns: int) -> None:
        """Verify a pushed range once, compare the chain CRCs where both logs meet, let the core
        decide, and write what it accepts."""
        question = chain_question(self._indexes.view, message)
        entries, members = None, None
        if message.prev_index == NO_INDEX and not self._same_begin(arrived):
            raise BadPacket("foreign", f"{message.sender} sent the begin of another log")
        if message.extent is not None and (question is not None or message.prev_index == NO_INDEX):
            entries = self._verified(arrived, message.extent)
            members = self._pushed_members(entries)
            if members is not None:
                message = replace(message, extent=_extent(entries))
        agree = question is None or self._chains_agree(question, arrived.prev_chain, entries)
        self.core.handle(message, now_ns, chains_agree=agree, members=members)
        writes = self.core.take_writes()
        if writes.append is not None:
            self._last_write_ns = now_ns
        before = self.log.end_index
        self._carry_out(writes, entries)
        if writes.append is not None and entries is not None and self.log.end_index > before:
            self._unsynced.wrote(
                now_ns, entries.last_index - writes.append[0] + 1, len(entries.data)
            )

    def synced(self, now_ns: int, ticket: SyncTicket, error: OSError | None) -> None:
        if self.fenced is not None:
            raise Fenced(self.fenced)
        assert self._underway is not None and self._underway[0] is ticket, (
            "a ticket comes back once"
        )
        _, job, term, index = self._underway
        self._underway = None
        try:
            self.log.finish_sync(job, error)
        except DISK_FAILURES as failure:
            self._fence_for("the log could not be synced", failure)
        self.core.synced(term, index)

    def propose(
        self,
        now_ns: int,
        batch: UnsealedBatch,
        queue_offsets: I64,
        store_ms: int,
        *,
        control: bool = False,
        urgent: bool = True,
        early: bool = False,
        new_file: bool = False,
    ) -> Sequence[Range]:
        if self.fenced is not None:
            raise Fenced(self.fenced)
        if not self.core.accepting:
            raise NotLeader(self.leader if self.handover is None else self.handover.to)
        return self._append_own(
            now_ns,
            batch,
            queue_offsets,
            store_ms,
            control=control,
            urgent=urgent,
            early=early,
            new_file=new_file,
        )

    def _append_own(
        self,
        now_ns: int,
        batch: UnsealedBatch,
        queue_offsets: I64,
        store_ms: int,
        *,
        control: bool,
        urgent: bool = True,
        early: bool = False,
        new_file: bool = False,
        members: Members | None = None,
    ) -> Sequence[Range]:
        writes = self.core.take_writes()
        if writes is not NO_WRITES:
            self._carry_out(writes, None)
        try:
            ranges = self.log.append_leader(
                self._election.term,
                batch,
                queue_offsets,
                store_ms,
                self._store_host,
                control=control,
                new_file=new_file,
            )
        except NoSpace as error:
            raise LogFull(str(error)) from error
        except DISK_FAILURES as failure:
            self._fence_for("the log could not be written", failure)
        self._last_write_ns = now_ns
        for entries in ranges:
            extent = _extent(entries)
            self.core.appended(extent, urgent=urgent, early=early, members=members)
            self._unsynced.wrote(now_ns, extent.last_index - extent.first_index + 1, extent.size)
            self._hot_tail.appended(entries)
            self._travelling[entries.first_index] = entries, extent
        return ranges

    def is_in_last_file(self, index: int) -> bool:
        with reading():
            return self.log.is_in_last_file(index)

    def prepare_file(self) -> bool:
        self._refuse_when_fenced()
        try:
            return self.log.prepare_next()
        except DISK_FAILURES as failure:
            self._fence_for("the next log file could not be made", failure)

    @property
    def members(self) -> Members:
        return self._membership.members

    @property
    def members_index(self) -> int:
        return self._membership.configurations.latest_index

    def propose_members(
        self, now_ns: int, change: MemberChange, queue_offsets: I64, store_ms: int
    ) -> Sequence[Range] | str:
        self._refuse_when_fenced()
        if self.role is not Role.LEADER:
            raise NotLeader(self.leader)
        members = self.core.propose_members(change, now_ns)
        if isinstance(members, str):
            return members
        record = record_of(members, change.reason or f"{change.kind.value} {change.node}")
        # Members get a minimum only at its level (`Group._objection_to`), and levels never fall.
        batch = encode_entries(
            [draft(record, store_ms, MINIMUM_LEVEL if members.minimum else FIRST_LEVEL)]
        )
        return self._append_own(
            now_ns, batch, queue_offsets, store_ms, control=True, members=members
        )

    def due_change(self, now_ns: int) -> MemberChange | None:
        return self.core.due_change(now_ns)

    def read_index(self, token: int, now_ns: int) -> None:
        self._refuse_when_fenced()
        self.core.read(token, now_ns)

    def watch(self, watched: bool) -> None:
        self.core.watch(watched)

    def request_flush(self) -> None:
        self.core.request_flush()

    def transfer(self, now_ns: int, to: str | None, cause: Cause, patience_ns: int) -> str | None:
        self._refuse_when_fenced()
        successor = to or (
            self.core.handover.to
            if self.core.handover is not None
            else self.core.best_successor(now_ns)
        )
        if successor is None:
            return "no other voter of this group is there to take over"
        return self.core.transfer(successor, cause, now_ns, patience_ns)

    def note_full(self, nodes: frozenset[str]) -> None:
        self.core.note_full(nodes)

    def leave(self) -> None:
        self.core.leave()

    def take_changes(self) -> tuple[LeaderChange, ...]:
        return self.core.take_changes()

    def take(self, now_ns: int) -> ReplicaOutput:
        if self.fenced is not None:
            raise Fenced(self.fenced)
        dirty = self._underway is None and self._durability.is_dirty
        sync_due_ns = self._sync_due_ns(dirty=dirty)
        effects = self.core.take(now_ns, syncs=dirty and now_ns >= sync_due_ns)
        if effects.fence is not None:
            self.fenced = effects.fence
            raise Diverged(effects.fence)
        if effects.writes is not NO_WRITES:
            self._carry_out(effects.writes, None)
            dirty = self._underway is None and self._durability.is_dirty
            sync_due_ns = self._sync_due_ns(dirty=dirty)
        for message in effects.messages:
            self._post(message)
        for push in effects.pushes:
            self._push(push)
        self._hot_tail.end_turn(effects.commit_index)
        self._travelling.clear()
        ticket, wake_at_ns = None, effects.wake_at_ns
        if now_ns >= sync_due_ns:
            ticket = self._begin_sync(now_ns)
        else:
            wake_at_ns = min(wake_at_ns, sync_due_ns)
        log, indexes = self.log, self._indexes
        assert log.end_index == indexes.view.end_index >= indexes.commit_index, (log, self.core)
        assert indexes.durable_index <= self._durability.index, (log.durable_index, self.core)
        if now_ns >= self._check_at_ns:
            self._check_at_ns = now_ns + self.check_every_ns
            self.check_invariants()
        packets, self._packets = tuple(self._packets), []
        election = self._election
        self.standing = election.role, election.term, election.leader, self._membership.members
        return ReplicaOutput(
            packets=packets,
            sync=ticket,
            commit_index=effects.commit_index,
            role_changed=effects.role_changed,
            wake_at_ns=wake_at_ns,
            reads=effects.reads,
            left_behind=effects.left_behind,
            ha_requests=effects.requests,
        )

    def calm_until(self, now_ns: int) -> int | None:
        """Invariant: if this returns a time, `take` would return an output without content and this
        time to wake, and commit index and `standing` have not changed since it was called last."""
        if self.core.stirred or self._packets:
            return None
        if (wake_at_ns := self.core.calm_until(now_ns)) is None:
            return None
        dirty = self._underway is None and self._durability.is_dirty
        sync_due_ns = self._sync_due_ns(dirty=dirty)
        if now_ns >= sync_due_ns:
            return None
        if now_ns >= self._check_at_ns:
            self._check_at_ns = now_ns + self.check_every_ns
            self.check_invariants()
        return min(wake_at_ns, sync_due_ns)

    def check_invariants(self) -> None:
        """Check every invariant of the core, and that its view of the log matches the log."""
        log, core, view = self.log, self.core, self.core.log
        core.check_invariants()
        assert (
            log.end_index == view.end_index
            and log.end_term == view.end_term
            and log.begin_index == view.begin_index
        ), (log, core)
        assert core.log_state.durable_index <= log.durable_index, (log.durable_index, core)

    # Duties that safety depends on, one method each

    def _persist(self, hard_state: HardState) -> None:
        """Make term and vote durable, before anything that depends on them."""
        try:
            self._hard_state.save(hard_state)
        except DISK_FAILURES as failure:
            self._fence_for("term and vote could not be stored", failure)

    def _verified(self, arrived: Arrived, extent: Extent) -> Range:
        """Recompute a pushed range's structure, positions, both checksums and chain. Raises
        BadEntry, BadPacket."""
        entries = verify_range(
            arrived.payload, extent.first_index, extent.term, arrived.pos, arrived.prev_chain
        )
        if entries.last_index != extent.last_index:
            raise BadPacket(
                "shape", f"range ends at {entries.last_index}, not at {extent.last_index}"
            )
        return entries

    def _same_begin(self, arrived: Arrived) -> bool:
        """Whether a message about the beginning of the log fits this log; an empty log has nothing
        else to compare."""
        if self.log.begin_index > 0:
            return True
        return arrived.prev_chain == self.log.begin_chain and arrived.pos <= 0

    def _pushed_members(self, entries: Range) -> Members | None:
        """The members that a pushed membership entry names; None for other entries. Raises
        BadPacket unless it is alone and readable."""
        if not membership_entries(entries):
            return None
        if len(entries) > 1:
            raise BadPacket(
                "membership", f"range {entries.first_index} holds a membership entry and others"
            )
        try:
            return members_of(record_in(entries))
        except (ValueError, UnknownControlRecord) as error:
            raise BadPacket("membership", str(error)) from error

    def _chains_agree(self, index: int, prev_chain: int, entries: Range | None) -> bool:
        """Whether the leader has the same history up to `index`: compares the chain CRC before its
        range, or inside it."""
        if entries is None or index < entries.first_index:
            theirs = prev_chain
        else:
            theirs = chain_crc_at(entries.data, int(entries.starts[index - entries.first_index]))
        return theirs == self._chain_at(index)

    def _truncate(self, index: int) -> None:
        """Cut the log before `index`. Once the next sync has ended, no byte behind the new end can
        come back."""
        self._hot_tail.cut()
        self._travelling.clear()
        try:
            self.log.truncate_from(index)
        except DISK_FAILURES as failure:
            self._fence_for("the log could not be cut", failure)
        self._cut_unsynced = True

    def _sync_due_ns(self, *, dirty: bool) -> int:
        """When the next sync is to begin; NEVER_NS while one is under way, or if nothing is to be
        synced. `dirty`: something was written since the last sync began, and none is in progress.

        The log is synced at once if something unsynced is urgent. Only appended entries may wait: a
        cut, and new file names without an entry, are synced at once. The synced mark alone is
        synced behind the end of a file, and when idle."""
        durability, indexes = self._durability, self._indexes
        if dirty:
            waited_for = (
                indexes.durable_index < indexes.urgent_index
                or self._cut_unsynced
                or not self._unsynced.entries
            )
            return 0 if waited_for else self._unsynced.due_ns()
        if self._underway is not None or not durability.mark_pending:
            return NEVER_NS
        return 0 if durability.mark_due else self._last_write_ns + IDLE_NS

    def _begin_sync(self, now_ns: int) -> SyncTicket | None:
        """Begin a group commit over everything written so far. No sync is in progress. None if
        there is nothing to sync."""
        try:
            job = self.log.begin_sync(idle=now_ns >= self._last_write_ns + IDLE_NS)
        except DISK_FAILURES as failure:
            self._fence_for("the synced mark could not be written", failure)
        if job is None:
            return None
        term, index = self.core.sync_begins()
        assert (term, index) == (job.term, job.index), (job, self.core)
        self._cut_unsynced = False
        entries, size = self._unsynced.sync_begins()
        ticket = SyncTicket(job.number, job.run, entries, size)
        self._underway = (ticket, job, term, index)
        return ticket

    def _chain_at(self, index: int) -> int:
        """The chain CRC of an entry, most often the last one. Raises Unreadable."""
        if index == self.log.end_index:
            return self.log.end_chain
        with reading():
            return self.log.chain_at(index)

    # Executing effects

    def _carry_out(self, writes: Writes, entries: Range | None) -> None:
        if writes.hard_state is not None:
            self._persist(writes.hard_state)
        if writes.truncate_from is not None:
            self._truncate(writes.truncate_from)
            self._counts["truncations"] += 1
        if writes.append is not None:
            assert entries is not None
            self._append(entries, writes.append[0])

    def _append(self, entries: Range, first_index: int) -> None:
        try:
            written = self.log.append_range(
                entries if entries.first_index == first_index else tail_of(entries, first_index)
            )
        except NoSpace:
            self._counts["refused-disk-full"] += 1
            self.core.append_refused()
        except DISK_FAILURES as failure:
            self._fence_for("a pushed range could not be written", failure)
        else:
            self._hot_tail.appended(written)
            self.core.append_written()

    def _post(self, message: Message) -> None:
        if isinstance(message, Append):
            self._packets.append(
                (message.to, encode_append(message, self._chain_at(message.prev_index), None))
            )
        else:
            self._packets.append((message.to, encode(message)))

    def _push(self, push: Push) -> None:
        """Fill a peer's window with ranges from the log; the newest may still be in the hot
        tail."""
        first, size, most, end_index = (
            push.first_index,
            push.size,
            self.config.timing.range_bytes_max,
            self._indexes.view.end_index,
        )
        for _ in range(push.ranges):
            if size <= 0 or first > end_index:
                return
            entries, extent = self._to_push(first, min(size, most))
            message = self.core.pushed(push.to, extent)
            self._packets.append((push.to, encode_append(message, entries.prev_chain, entries)))
            first, size = entries.last_index + 1, size - len(entries.data)

    def _to_push(self, first_index: int, max_bytes: int) -> tuple[Range, Extent]:
        """A range that begins with this entry and has at most `max_bytes`, or one entry."""
        known = self._travelling.get(first_index)
        if known is not None and (len(known[0].data) <= max_bytes or len(known[0]) == 1):
            return known
        found = self._hot_tail.read(first_index, max_bytes)
        if found is None:
            with reading():
                found = self.log.read(first_index, max_bytes)
        entries = alone(found)
        self._travelling[first_index] = ready = entries, _extent(entries)
        return ready

    # Fencing

    def _fence_for(self, what: str, error: Exception) -> NoReturn:
        """Fence the replica after a disk error (invariant I9): the state of what was being written
        is unknown."""
        self.fenced = reason = f"{what}: {error}"
        exit_code = (
            ExitCode.LIMIT
            if isinstance(error, OSError) and is_exhausted(error)
            else getattr(error, "exit_code", None)
        )
        raise Fenced(reason, exit_code or ExitCode.SYNC_FAILED) from error

    def _refuse_when_fenced(self) -> None:
        if self.fenced is not None:
            raise Fenced(self.fenced)


def _extent(entries: Range) -> Extent:
    marked = entries.first_index == entries.last_index and entries.data[CHANNEL_AT] != 0
    return Extent(
        first_index=entries.first_index,
        last_index=entries.last_index,
        term=entries.term,
        size=len(entries.data),
        membership=marked,
    )
