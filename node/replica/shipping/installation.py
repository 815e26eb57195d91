"""Installs a log from peers: for a follower that needs trimmed entries, and for a replica with an
empty directory.

An installation fetches a peer's newest snapshot and its log, from its begin to a committed entry,
into files beside the old ones (`storage/repair/installing.py`). It verifies every entry as it
arrives, and again what an earlier attempt had fetched. Then it exchanges all files at once. Entries
may come from any peer that knows them to be committed; that entries continue each other is not
enough, since it holds for a former leader's tail too. Files that the snapshot names as sealed come
from the object store, if there is one (`stored_files.py`). A log that ends before entries which
this replica may have acknowledged (`floor_pos`) is not installed: so every entry that others
counted as stored here is in the installed log, or contradicts what is committed. Term, vote,
identity and incarnation stay. The group is not open meanwhile; the next opening builds consume
queues and key index.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from ledgermq.node.broker.ports import PeerPacket
from ledgermq.node.replica.shipping.peer_fetch import AGAIN_NS, NEVER_NS, PeerFetch
from ledgermq.node.replica.shipping.ports import Progress, RebuildOutput
from ledgermq.node.replica.shipping.stored_files import StoredFiles
from ledgermq.node.replica.shipping.windowed_fetch import WINDOW_BYTES, EntryStream, SnapshotStream
from ledgermq.proto.entries.entry_checking import BadEntry, verify_range
from ledgermq.proto.records.control import SealRecord
from ledgermq.proto.types import Identity
from ledgermq.storage.files import sealed_json
from ledgermq.storage.files.errors import Damaged, Unusable
from ledgermq.storage.files.ports import Disk
from ledgermq.storage.log.log_scan import Point
from ledgermq.storage.repair.installing import Staging
from ledgermq.storage.repair.log_source import Facts
from ledgermq.storage.state import identity as identities
from ledgermq.storage.state.recovered import as_recovered
from ledgermq.storage.tiered.ports import ObjectStore

TURN_BYTES = 8 << 20
FURTHER_BYTES = 32 << 20
"""If the source has committed this much more meanwhile, that is fetched too before the files are
exchanged."""


class _Phase(Enum):
    FACTS = "looking for a source"
    SNAPSHOT = "fetching the snapshot"
    RESUME = "verifying what was fetched before"
    LOG = "fetching the log"
    DONE = "done"


class Install(PeerFetch):
    """One installation into one group directory (a `Rebuild`). Created by `begin`."""

    def __init__(
        self,
        disk: Disk,
        root: str,
        found: Identity,
        *,
        others: Sequence[str],
        source: str | None,
        floor_pos: int,
        session: int,
        now_ns: int,
        store: ObjectStore | None = None,
    ) -> None:
        self.received_bytes = 0
        """From peers."""
        self.reused_bytes = 0
        """Bytes of the log that an earlier attempt had fetched."""
        super().__init__(found, others, session, now_ns)
        self._preferred = source
        self._floor_pos = floor_pos
        self._staging = Staging(disk, root, found)
        self._phase = _Phase.FACTS
        self._tried: dict[str, str] = {}
        """Peers that cannot be used, and why."""
        self._source = ""
        self._begin = self._point = Point(pos=0, index=0, term=-1, chain=0)
        self._end_index, self._end_pos = -1, 0
        """The last entry to be installed, and the position of its end."""
        self._snapshot_data: bytes | None = None
        self._applied: tuple[int, int, int] | None = None
        """Index, term and chain CRC in the snapshot."""
        self._asked_ns = now_ns
        self._store = store
        self._stored: StoredFiles | None = None
        """The files that the store may give; None without a store, and until the snapshot is
        there."""
        self._adopted: tuple[SealRecord, Point] | None = None
        """A file from the store whose entries are being verified, and the point before it."""

    @classmethod
    def begin(
        cls,
        disk: Disk,
        root: str,
        wanted: Identity,
        *,
        others: Sequence[str],
        source: str | None,
        floor_pos: int,
        session: int,
        now_ns: int,
        store: ObjectStore | None = None,
    ) -> Install:
        """Begin, or continue an earlier attempt. The group directory exists and is not open.
        `source` is preferred; `others` are the group's other members; `session` is a random number
        for this attempt; `store`: the object store of tiered storage. Raises Unusable, Damaged,
        OSError."""
        found = identities.read_identity(disk, root)
        if found is None:
            raise Unusable(f"{root} holds no replica: nothing can be installed into it")
        identities.compare(root, found, as_recovered(disk, root, wanted))
        return cls(
            disk,
            root,
            found,
            others=others,
            source=source,
            floor_pos=floor_pos,
            session=session,
            now_ns=now_ns,
            store=store,
        )

    def turn(self, now_ns: int, packets: Sequence[tuple[str, PeerPacket]]) -> RebuildOutput:
        """As `Rebuild.turn`."""
        self._hear(packets, now_ns)
        busy = self._act(now_ns)
        wake = now_ns if busy else self._wake_at_ns(now_ns)
        return RebuildOutput(
            self._sent(), wake, self._phase is _Phase.DONE, self._refused, self._progress()
        )

    def close(self) -> None:
        self._staging.close()

    def _wake_at_ns(self, now_ns: int) -> int:
        if self._phase is _Phase.DONE:
            return NEVER_NS
        return self._ask_again_at_ns(now_ns)

    def _progress(self) -> Progress:
        facts = self._facts.get(self._source)
        snapshot_bytes = 0 if facts is None else facts.snapshot_bytes
        fetched = (
            snapshot_bytes
            if self._snapshot_data is not None
            else 0
            if self._snapshot is None
            else self._snapshot.done_bytes
        )
        source = self._source if self._stream is None else self._stream.source
        log_bytes = max(0, self._end_pos - self._begin.pos)
        done = fetched + max(0, self._point.pos - self._begin.pos)
        what = (
            f"{self._identity.group}: {self._phase.value}, entries {self._begin.index} to"
            f" {self._end_index}"
        )
        stored, problem = (
            (0, "") if self._stored is None else (self._stored.received_bytes, self._stored.problem)
        )
        return Progress(
            done_bytes=done,
            total_bytes=snapshot_bytes + log_bytes,
            source=source,
            what=what,
            peer_bytes=self.received_bytes,
            store_bytes=stored,
            store_problem=problem,
        )

    # Steps

    def _act(self, now_ns: int) -> bool:
        """Do one step. Returns True if there is more to do without waiting for a peer."""
        if now_ns >= self._again_ns:
            self._tried.clear()
            self._again_ns = NEVER_NS
        if self._phase is not _Phase.DONE:
            self._ask_facts(now_ns)
        if self._phase is _Phase.FACTS:
            return self._find_source(now_ns)
        if self._phase is _Phase.SNAPSHOT:
            return self._fetch_snapshot(now_ns)
        if self._phase is _Phase.RESUME:
            return self._resume()
        if self._phase is _Phase.LOG:
            return self._fetch_log(now_ns)
        return False

    def _find_source(self, now_ns: int) -> bool:
        order = sorted(
            self._facts,
            key=lambda peer: (peer != self._preferred, -self._facts[peer].committed_index),
        )
        waits = (
            self._preferred is not None
            and self._preferred not in self._facts
            and now_ns < self._asked_ns + AGAIN_NS
        )
        for peer in order if not waits else ():
            if peer in self._tried:
                continue
            problem = self._unfit(self._facts[peer])
            if problem is not None:
                self._tried[peer] = problem
                continue
            self._use(peer, now_ns)
            return True
        silent = any(peer not in self._tried for peer in self._others)
        if self._again_ns == NEVER_NS and not (silent and now_ns < self._asked_ns + 2 * AGAIN_NS):
            said = "; ".join(
                f"{peer}: {self._tried.get(peer, 'no answer')}" for peer in self._others
            )
            self._refused = f"{self._identity.group}: no replica can give its log ({said})"
            self._again_ns = now_ns + AGAIN_NS
        return False

    def _unfit(self, facts: Facts) -> str | None:
        """Why this peer's log cannot be installed now; None if it can."""
        if facts.data_file_bytes != self._identity.data_file_bytes:
            return (
                f"its log files have {facts.data_file_bytes} bytes, those here"
                f" {self._identity.data_file_bytes}"
            )
        if facts.committed_index < facts.begin.index or facts.committed_pos < 0:
            return "it has nothing noted as committed"
        if facts.committed_pos < self._floor_pos:
            return (
                f"it knows entries up to {facts.committed_index} to be committed, and this replica"
                " may have acknowledged more"
            )
        if (
            facts.begin.index > 0
            and not facts.begin.index - 1 <= facts.snapshot_index <= facts.committed_index
        ):
            return (
                f"its log begins with entry {facts.begin.index}, its snapshot is of entry"
                f" {facts.snapshot_index}"
            )
        return None

    def _use(self, peer: str, now_ns: int) -> None:
        facts = self._facts[peer]
        self._source, self._begin = peer, facts.begin
        self._point = facts.begin
        self._end_index, self._end_pos = facts.committed_index, facts.committed_pos
        self._snapshot_data, self._applied, self._stream = None, None, None
        wanted = facts.begin.index > 0 or 0 <= facts.snapshot_index <= facts.committed_index
        self._snapshot = SnapshotStream(self._requester, peer, now_ns) if wanted else None
        self._phase = _Phase.SNAPSHOT
        if not wanted:
            self._stage(-2)

    def _fetch_snapshot(self, now_ns: int) -> bool:
        stream = self._snapshot
        assert stream is not None, "no snapshot is being fetched"
        self._out += stream.ask(now_ns)
        if stream.missing is not None:
            return self._drop(f"its snapshot: {stream.missing.text}")
        if stream.data is None:
            return False
        try:
            value = sealed_json.decode(stream.data, f"the snapshot of {self._source}")
            applied = (
                int(value["applied_index"]),
                int(value["applied_term"]),
                int(value["chain_crc"]),
            )
        except (Damaged, KeyError, TypeError, ValueError) as error:
            return self._drop(f"its snapshot: {error}")
        if value.get("log_id") != self._identity.log_id:
            return self._drop("its snapshot is of another log")
        if not self._begin.index - 1 <= applied[0] <= self._end_index:
            # The snapshot is newer than the facts said, so ask for the facts again.
            self._facts.pop(self._source, None)
            self._phase, self._snapshot, self._asked_ns, self._facts_due_ns = (
                _Phase.FACTS,
                None,
                now_ns,
                now_ns,
            )
            return True
        self._snapshot, self._snapshot_data, self._applied = None, stream.data, applied
        self.received_bytes += len(stream.data)
        if self._store is not None and self._stored is None:
            self._stored = StoredFiles(self._store, self._identity, value)
        self._stage(applied[0])
        return True

    def _stage(self, watch: int) -> None:
        self._point = self._staging.begin(self._begin, watch)
        self._phase = _Phase.RESUME

    def _resume(self) -> bool:
        began = self._point.pos
        for point in self._staging.resume(self._point, self._end_pos):
            if point.pos > self._end_pos:
                break
            self.reused_bytes += point.pos - self._point.pos
            self._point = point
            if point.pos - began >= TURN_BYTES:
                return True
        self._phase = _Phase.LOG
        return True

    def _fetch_log(self, now_ns: int) -> bool:
        if self._adopted is not None:
            adopted, before = self._adopted
            return self._verify_adopted(adopted, before)
        if self._point.pos >= self._end_pos:
            return self._finish(now_ns)
        if self._stream is None and self._stored is not None:
            file = self._stored.file_at(self._point)
            if file is not None:
                if self._stored.fetch(file, self._staging):
                    self._staging.adopt(self._point, file.base)
                    self._adopted = file, self._point
                return True
        if self._stream is None and not self._choose(now_ns):
            return False
        stream, took = self._stream, 0
        assert stream is not None, "a source was chosen"
        while took < TURN_BYTES and self._stream is stream and (piece := stream.next()) is not None:
            sent, payload = piece
            took += len(payload)
            try:
                entries = verify_range(
                    payload, self._point.index, sent.term, sent.pos, self._point.chain
                )
            except BadEntry as bad:
                self._drop_stream(f"sent what does not verify ({bad})")
                continue
            if entries.end_pos > stream.end_pos or not self._staging.fits(self._point, entries):
                self._drop_stream("its entries do not lie where they belong")
                continue
            self._point = self._staging.put(self._point, entries)
            self.received_bytes += len(payload)
            stream.advance(self._point)
        if self._stream is stream and self._point.pos >= stream.end_pos:
            # The source knows no further committed entries; another peer may.
            self._stream = None
        elif self._stream is stream:
            self._out += stream.ask(now_ns)
            if stream.missing is not None:
                self._drop_stream(stream.missing.text)
        return took > 0 or self._stream is not stream

    def _verify_adopted(self, file: SealRecord, before: Point) -> bool:
        """Verify the entries of a file from the store, one after the other. The file has the sealed
        digest, so a fault here is one of the seal, or of the disk: then the file is fetched from
        peers."""
        began = self._point.pos
        for point in self._staging.resume(self._point, file.end_pos, synced=True):
            self._point = point
            if point.pos - began >= TURN_BYTES:
                return True
        self._adopted = None
        if (self._point.pos, self._point.index) != (file.end_pos, file.last_index + 1):
            self._staging.give_up(file.base)
            self._point = before
            assert self._stored is not None, "the file came from the store"
            self._stored.leave(
                f"the entries of the stored file at {file.base} do not continue the log"
            )
        return True

    def _choose(self, now_ns: int) -> bool:
        """Choose a peer to fetch entries from. Any peer will do up to its commit index, because
        committed entries are the same on all."""
        for peer in sorted(self._facts, key=lambda peer: peer != self._source):
            facts = self._facts[peer]
            if peer not in self._tried and facts.begin.pos <= self._point.pos < facts.committed_pos:
                self._refused = None
                end_pos = min(self._end_pos, facts.committed_pos)
                if self._stored is not None:
                    end_pos = min(end_pos, self._stored.peers_until(self._point, self._end_pos))
                self._stream = EntryStream(
                    self._requester, peer, self._point, end_pos, now_ns, window=WINDOW_BYTES
                )
                return True
        # All peers have trimmed or damaged it, or cannot be reached: start over with the facts.
        # What was verified stays staged.
        self._phase, self._asked_ns, self._facts_due_ns = _Phase.FACTS, now_ns, now_ns
        self._facts.clear()
        return False

    def _drop_stream(self, why: str) -> None:
        assert self._stream is not None, "no source is being asked"
        self._tried[self._stream.source] = why
        self._stream = None

    def _drop(self, why: str) -> bool:
        """Give up this source completely."""
        self._tried[self._source] = why
        self._phase, self._snapshot, self._stream = _Phase.FACTS, None, None
        return True

    def _finish(self, now_ns: int) -> bool:
        """Everything up to the chosen end is here: continue if the source is far ahead by now, else
        exchange the files."""
        self._stream = None
        if self._point.index != self._end_index + 1:
            return self._drop(
                f"it said that entry {self._end_index} ends where entry {self._point.index - 1}"
                " does"
            )
        if self._applied is not None and self._staging.watched != self._applied[1:]:
            return self._drop("its snapshot does not agree with its log")
        facts = self._facts.get(self._source)
        if facts is not None and facts.committed_pos > self._end_pos + FURTHER_BYTES:
            self._end_index, self._end_pos = facts.committed_index, facts.committed_pos
            return True
        self._staging.complete(self._point, self._snapshot_data)
        self._phase, self._refused = _Phase.DONE, None
        return False
