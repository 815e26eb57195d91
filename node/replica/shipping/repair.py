"""Repairs a log that is damaged at or below its synced mark, entry by entry from the peers.

See docs/architecture.md, I10, and FAST'18, protocol-aware recovery.

The repair walks the log from its begin and computes all CRCs. Where the walk stops, it fetches
entries from a peer that continues the last good entry, verifies them, and writes them into the same
place, until a valid local entry continues them, or the synced mark is reached with its term and
chain CRC. So replicas with different damage repair each other, and none of them needs to be open.

What may be overwritten:
* A damaged stretch without any valid entry may be overwritten by whatever continues the chain:
  nothing is lost.
* A valid entry that does not fit (an old one that came back, or another history) is replaced only
  from an *anchored* peer. A peer is anchored if its history has the very entry of our synced mark.
  It is also anchored if its history contradicts ours and is committed up to there, or up to an
  entry of a later term than the mark's: then our entries from the contradiction on were never
  committed, because our log has another term at the index of that committed entry (terms never fall
  along a log).
Only entries that a committed entry contradicts are cut, and no entry is ever renumbered. Identity
and votes stay; the term is raised to that of a committed history that is taken over. An interrupted
repair leaves a log with less damage; the next repair begins again.
"""

from __future__ import annotations

import errno
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from ledgermq.node.broker.ports import PeerPacket
from ledgermq.node.replica.shipping.peer_fetch import AGAIN_NS, NEVER_NS, PeerFetch
from ledgermq.node.replica.shipping.ports import Progress, RebuildOutput
from ledgermq.node.replica.shipping.windowed_fetch import EntryStream, SnapshotStream
from ledgermq.proto.entries.entry_checking import BadEntry, verify_range
from ledgermq.proto.status import ExitCode
from ledgermq.proto.types import Identity, Range, SyncedMark
from ledgermq.raft.config import MS
from ledgermq.storage.files import sealed_json
from ledgermq.storage.files.errors import Damaged, LogDamaged, LogFenced, PromisesLost
from ledgermq.storage.files.ports import Disk
from ledgermq.storage.log.begin import read_begin
from ledgermq.storage.log.log_scan import Point
from ledgermq.storage.log.synced_mark import SyncedMarkFile, read_mark
from ledgermq.storage.repair.log_source import Facts, LogSource, Missing, Why
from ledgermq.storage.repair.mending import Good, Mending
from ledgermq.storage.state import identity as identities
from ledgermq.storage.state.hard_state import raise_term
from ledgermq.storage.state.recovered import as_recovered
from ledgermq.storage.state.snapshot import read_snapshots, write_snapshot

TURN_BYTES = 8 << 20
"""About how much one turn walks or writes."""
SILENCE_NS = 2_000 * MS
"""A peer that has not answered for this long cannot help now."""


def repair_needed(
    disk: Disk,
    root: str,
    wanted: Identity,
    failure: BaseException,
    *,
    others: Sequence[str],
    session: int,
    now_ns: int,
) -> Repair | None:
    """The repair for a group directory whose opening or reading failed with `failure`; nothing of
    the directory may be open. None if no repair can help: lost promises, a failed sync, another
    fault. `others`: the group's other members; `session`: a random number for this attempt. Raises
    the errors of reading the small files."""
    fixable = isinstance(failure, LogDamaged) or (
        isinstance(failure, LogFenced) and failure.exit_code == ExitCode.DAMAGED
    )
    unread = isinstance(failure, OSError) and failure.errno == errno.EIO
    if isinstance(failure, PromisesLost) or not (fixable or unread):
        return None
    found = identities.read_identity(disk, root)
    if found is None:
        return None
    identities.compare(root, found, as_recovered(disk, root, wanted))
    return Repair(disk, root, found, str(failure), others=others, session=session, now_ns=now_ns)


class _Phase(Enum):
    FILES = "looking at the files"
    WALK = "verifying"
    FETCH = "fetching"
    SYNC = "making it durable"
    SNAPSHOT = "fetching the snapshot"
    DONE = "done"


@dataclass(slots=True)
class _Stretch:
    """The stretch under repair: from `origin`, before which everything is valid, to `end_pos`,
    where `good` lies, or the mark if None."""

    origin: Point
    good: Good | None
    end_pos: int
    name: str
    since_ns: int
    tried: dict[str, Missing] = field(default_factory=dict)
    """Peers that cannot give the next entries, and why."""
    helped: set[str] = field(default_factory=set)
    anchor: str | None = None
    """The anchored peer, used when no other peer's entries lead on; then only it is asked."""
    anchors: set[str] = field(default_factory=set)
    """Peers that were used as anchors."""
    committed: bool = False
    """The anchor's history is proven by its commit index. It ends at `end_pos`, and the mark moves
    there if that entry overrules it."""


class Repair(PeerFetch):
    """One repair of one group directory (a `Rebuild`). Created by `repair_needed`."""

    def __init__(
        self,
        disk: Disk,
        root: str,
        found: Identity,
        reason: str,
        *,
        others: Sequence[str],
        session: int,
        now_ns: int,
    ) -> None:
        super().__init__(found, others, session, now_ns)
        self.reason = reason
        """For operators: the damage that began this repair."""
        self.repaired: list[str] = []
        """For operators: what was restored."""
        self.floor_pos = 0
        """This replica never acknowledged anything behind this position; known after the first
        step."""
        self._disk, self._root = disk, root
        self._directory = f"{root}/dledger-{found.replica}"
        self._mark = read_mark(disk, f"{self._directory}/syncedmark", found.log_id)
        begin = read_begin(disk, self._directory, found.log_id)
        if self._mark.index < begin.index:
            self._mark = SyncedMark(begin.term, begin.index - 1, begin.pos, begin.chain)
        self._noted_mark = self._mark
        self._mending = Mending(disk, self._directory, found, begin, self._mark)
        self._point = self._mending.start
        self._visited = [self._point]
        """One point in every file that the walk passed, to go back to."""
        self._phase = _Phase.FILES
        self._unfit: dict[str, str] = {}
        """Peers whose snapshot cannot be used, and why."""
        self._stretch: _Stretch | None = None

    def turn(self, now_ns: int, packets: Sequence[tuple[str, PeerPacket]]) -> RebuildOutput:
        """As `Rebuild.turn`."""
        self._hear(packets, now_ns)
        busy = self._act(now_ns)
        wake = now_ns if busy else self._wake_at_ns(now_ns)
        return RebuildOutput(
            packets=self._sent(),
            wake_at_ns=wake,
            finished=self._phase is _Phase.DONE,
            refused=self._refused,
            progress=self._progress(),
            install_wanted=self._install_wanted(),
        )

    def close(self) -> None:
        self._mending.close()

    # Status

    def _wake_at_ns(self, now_ns: int) -> int:
        if self._phase is _Phase.DONE:
            return NEVER_NS
        return self._ask_again_at_ns(now_ns)

    def _progress(self) -> Progress:
        begin = self._mending.start.pos
        source = (
            self._stream.source
            if self._stream is not None
            else self._snapshot.source
            if self._snapshot is not None
            else ""
        )
        what = self._stretch.name if self._stretch is not None else self._phase.value
        return Progress(
            self._point.pos - begin,
            self._mark.end_pos - begin,
            source,
            f"{self._identity.group}: {what}",
        )

    def _install_wanted(self) -> tuple[str, int] | None:
        if self._refused is None:
            return None
        if self._phase is _Phase.SNAPSHOT:
            gone = [
                peer for peer in self._unfit if self._facts[peer].snapshot_index > self._mark.index
            ]
        else:
            tried = {} if self._stretch is None else self._stretch.tried
            gone = [
                peer
                for peer, missing in tried.items()
                if missing.why is Why.TRIMMED and peer in self._facts
            ]
        return (gone[0], self._facts[gone[0]].begin.index) if gone else None

    # Steps

    def _act(self, now_ns: int) -> bool:
        """Do one step. Returns True if there is more to do without waiting for a peer."""
        if self._phase is _Phase.FILES:
            self.repaired += [f"{path} was made anew" for path in self._mending.mend_files()]
            self.floor_pos = self._mending.used_end()
            self._phase = _Phase.WALK
            return True
        if self._phase is _Phase.WALK:
            self._walk(now_ns)
            return True
        if self._phase is _Phase.FETCH:
            self._ask_peers(now_ns)
            return self._fetch(now_ns)
        if self._phase is _Phase.SYNC:
            return self._settle()
        if self._phase is _Phase.SNAPSHOT:
            self._ask_peers(now_ns)
            return self._fetch_snapshot(now_ns)
        return False

    def _walk(self, now_ns: int) -> None:
        began = self._point.pos
        for point in self._mending.walk(self._point):
            self._move(point)
            if point.pos - began >= TURN_BYTES:
                return
        mark, point, stretch = self._mark, self._point, self._stretch
        if (point.pos, point.index, point.chain) == (mark.end_pos, mark.index + 1, mark.chain_crc):
            self._close_stretch()
            self._refused = None
            self._phase = _Phase.SYNC
        elif stretch is None or stretch.origin != point:
            self._open_stretch(now_ns)
        else:
            self._phase = _Phase.FETCH

    def _move(self, point: Point) -> None:
        if self._mending.base_of(point.pos) > self._mending.base_of(self._visited[-1].pos):
            self._visited.append(point)
        self._point = point

    def _open_stretch(self, now_ns: int) -> None:
        """The walk stopped: determine the damaged stretch, up to the next valid local entry or the
        mark."""
        point, tried = self._point, {} if self._stretch is None else self._stretch.tried
        self._close_stretch()
        good = self._mending.next_good(point) if point.pos < self._mark.end_pos else None
        if good is not None and self._mending.close_gap(point, good):
            self.repaired.append(f"the blank in {self._mending.name(point.pos)}")
            return
        end_pos, last = (
            (self._mark.end_pos, self._mark.index) if good is None else (good.pos, good.index - 1)
        )
        what = (
            f"entries {point.index} to {max(point.index, last)} ({max(0, end_pos - point.pos)}"
            f" bytes in {self._mending.name(point.pos)})"
        )
        still = {peer: missing for peer, missing in tried.items() if missing.index == point.index}
        self._stretch = _Stretch(
            origin=point, good=good, end_pos=end_pos, name=what, since_ns=now_ns, tried=still
        )
        self._phase = _Phase.FETCH

    def _close_stretch(self) -> None:
        stretch = self._stretch
        if stretch is not None and self._point.pos > stretch.origin.pos:
            self.repaired.append(f"{stretch.name} from {', '.join(sorted(stretch.helped))}")
            self._refused = None
        self._stretch, self._stream, self._again_ns = None, None, NEVER_NS

    def _ask_peers(self, now_ns: int) -> None:
        self._ask_facts(
            now_ns, ((self._noted_mark.index, -1),) if self._noted_mark.index >= 0 else ()
        )

    # Fetching a stretch

    def _fetch(self, now_ns: int) -> bool:
        stretch = self._stretch
        assert stretch is not None, "nothing is being fetched"
        if now_ns >= self._again_ns:
            # Ask all peers again.
            stretch.tried.clear()
            stretch.anchors.clear()
            self._again_ns = NEVER_NS
        if self._stream is None and not self._choose(stretch, now_ns):
            return False
        stream, took = self._stream, 0
        assert stream is not None, "a source was chosen"
        while took < TURN_BYTES and self._stream is stream and (piece := stream.next()) is not None:
            sent, payload = piece
            took += len(payload)
            try:
                self._use(
                    stretch,
                    stream,
                    verify_range(
                        bytes(payload), self._point.index, sent.term, sent.pos, self._point.chain
                    ),
                )
            except BadEntry as bad:
                self._drop_source(stretch, Why.UNKNOWN, f"sent what does not verify ({bad})")
        if self._stream is stream:
            self._out += stream.ask(now_ns)
            if stream.missing is not None:
                self._missed(stretch, stream.missing)
        return took > 0 or self._stream is not stream

    def _choose(self, stretch: _Stretch, now_ns: int) -> bool:
        """Choose the next peer that may have the entries. Returns False if none can be asked
        now."""
        asked = self._others if stretch.anchor is None else (stretch.anchor,)
        for peer in asked:
            facts = self._facts.get(peer)
            if facts is None or peer in stretch.tried:
                continue
            missing = self._cannot(facts)
            if missing is not None:
                stretch.tried[peer] = missing
                continue
            self._stream = EntryStream(self._requester, peer, self._point, stretch.end_pos, now_ns)
            return True
        if self._anchor(stretch):
            return self._choose(stretch, now_ns)
        silent = any(peer not in stretch.tried for peer in self._others)
        if self._again_ns == NEVER_NS and not (silent and now_ns < stretch.since_ns + SILENCE_NS):
            said = [
                f"{peer}: {stretch.tried[peer].text if peer in stretch.tried else 'no answer'}"
                for peer in self._others
            ]
            self._refused = (
                f"{self._identity.group}: {stretch.name} cannot be restored ({'; '.join(said)})"
            )
            self._again_ns = now_ns + AGAIN_NS
        return False

    def _cannot(self, facts: Facts) -> Missing | None:
        point = self._point
        if facts.data_file_bytes != self._identity.data_file_bytes:
            return Missing(
                why=Why.OTHER_LOG,
                index=point.index,
                pos=point.pos,
                text=f"its log files have {facts.data_file_bytes} bytes",
            )
        if point.pos < facts.begin.pos:
            return Missing(
                why=Why.TRIMMED,
                index=point.index,
                pos=point.pos,
                text=f"its log begins with entry {facts.begin.index}",
            )
        if point.pos >= facts.synced.pos:
            return Missing(
                why=Why.BEYOND,
                index=point.index,
                pos=point.pos,
                text=f"its log is synced up to entry {facts.synced.index - 1}",
            )
        return None

    def _use(self, stretch: _Stretch, stream: EntryStream, entries: Range) -> None:
        """Write verified entries that continue the valid part of the log."""
        overlaps = entries.end_pos > stretch.end_pos
        if overlaps or not self._mending.fits(self._point, entries, further=stretch.committed):
            self._drop_source(stretch, Why.DIFFERS, "its entries do not fit what is here")
            return
        self._move(self._mending.put(self._point, entries))
        self._refused = None
        stretch.helped.add(stream.source)
        stream.advance(self._point)
        point = self._point
        if stretch.good is not None and stretch.good.continues(point):
            self._phase, self._stream = _Phase.WALK, None
        elif point.pos >= stretch.end_pos:
            if stretch.committed and self._overruled(point.index - 1, point.term):
                self._mark = self._mending.mark = SyncedMark(
                    point.term, point.index - 1, point.pos, point.chain
                )
            if stretch.good is None and (point.index, point.chain) == (
                self._mark.index + 1,
                self._mark.chain_crc,
            ):
                self._phase, self._stream = _Phase.WALK, None
            else:
                self._drop_source(
                    stretch, Why.DIFFERS, "its entries do not lead to those that are here"
                )

    def _missed(self, stretch: _Stretch, missing: Missing) -> None:
        """The peer has no more entries. The local log, or another peer, may continue what it
        gave."""
        if stretch.anchor is not None and missing.why is Why.DIFFERS and self._go_back(stretch):
            self._stream = None
            return
        progress = self._point.index > stretch.origin.index
        stretch.tried[self._source()] = Missing(
            why=missing.why, index=self._point.index, pos=self._point.pos, text=missing.text
        )
        self._stream = None
        if progress:
            self._phase = _Phase.WALK

    def _drop_source(self, stretch: _Stretch, why: Why, text: str) -> None:
        """This peer's entries lead nowhere. The next peer begins at the stretch's origin: only
        damaged bytes were overwritten."""
        self._point = stretch.origin
        while self._visited[-1].pos > self._point.pos:
            self._visited.pop()
        stretch.tried[self._source()] = Missing(
            why=why, index=stretch.origin.index, pos=stretch.origin.pos, text=text
        )
        self._stream = None

    def _source(self) -> str:
        assert self._stream is not None, "no source is being asked"
        return self._stream.source

    # Valid entries that do not fit

    def _anchor(self, stretch: _Stretch) -> bool:
        """No peer's entries lead to the next valid local entry or to the mark: choose a peer with a
        proven history, and overwrite valid local entries too. Returns False if there is no such
        peer, or no contradiction to settle."""
        contradiction = self._point.pos >= self._noted_mark.end_pos or any(
            missing.why is Why.DIFFERS for missing in stretch.tried.values()
        )
        for peer in self._others:
            facts = self._facts.get(peer)
            if (
                facts is None
                or peer in stretch.anchors
                or not (contradiction or self._contradicts(facts))
            ):
                continue
            mark = self._noted_mark
            same = any(
                (point.index, point.term, point.chain)
                == (mark.index + 1, mark.term, mark.chain_crc)
                for point in facts.points
            )
            if not same and not (
                facts.committed_pos >= 0
                and self._overruled(facts.committed_index, facts.committed_term)
            ):
                continue
            stretch.anchors.add(peer)
            stretch.tried.pop(peer, None)
            stretch.anchor, stretch.good, stretch.committed = peer, None, not same
            stretch.end_pos = mark.end_pos if same else facts.committed_pos
            self._point = stretch.origin
            while self._point.pos >= stretch.end_pos and self._go_back(stretch):
                pass
            if self._point.pos < stretch.end_pos:
                return True
        return False

    def _overruled(self, index: int, term: int) -> bool:
        """Whether a committed entry overrules the local entries that contradict it up to the mark,
        so that the mark may follow it: it has at least the mark's index, or a later term than every
        entry up to the mark."""
        return index >= self._noted_mark.index or term > self._noted_mark.term

    def _contradicts(self, facts: Facts) -> bool:
        """Whether a peer's committed history neither begins nor continues this log; decided by the
        mark alone."""
        mark = self._noted_mark
        if facts.committed_index < mark.index:
            return facts.committed_term > mark.term
        there = [point for point in facts.points if point.index == mark.index + 1]
        return any(point.term != mark.term and point.chain != mark.chain_crc for point in there)

    def _go_back(self, stretch: _Stretch) -> bool:
        """Go back to a point in the previous file, or to the begin. Returns False if the repair is
        there already."""
        while len(self._visited) > 1 and self._visited[-1].pos >= stretch.origin.pos:
            self._visited.pop()
        if self._visited[-1].pos >= stretch.origin.pos:
            return False
        self._point = stretch.origin = self._visited[-1]
        return True

    # Completion

    def _settle(self) -> bool:
        """Everything up to the mark is valid: sync it, and then the mark, if another one is proven.
        Returns True if a snapshot is missing."""
        if self._mark != self._noted_mark:
            raise_term(self._disk, f"{self._directory}/hardstate", self._mark.term)
        self._mending.sync()
        if self._mark != self._noted_mark:
            file = SyncedMarkFile.open(
                self._disk, f"{self._directory}/syncedmark", self._identity.log_id
            )
            try:
                file.lower(self._mark)
            finally:
                file.close()
        self._mending.close()
        if not self.repaired:
            # The entries are valid, and yet something could not be read.
            self.repaired += [
                f"{path} is made again" for path in self._mending.drop_unreadable_units()
            ]
        needs = self._mending.start.index > 0 and not any(
            self._fits(value) for _, value in read_snapshots(self._disk, self._state)
        )
        self._phase = _Phase.SNAPSHOT if needs else _Phase.DONE
        return needs

    @property
    def _state(self) -> str:
        return f"{self._root}/state"

    def _fits(self, value: Mapping[str, Any]) -> bool:
        """Whether a snapshot belongs to this log and lies within it."""
        index = value.get("applied_index")
        if value.get("log_id") != self._identity.log_id or not isinstance(index, int):
            return False
        if not self._mending.start.index - 1 <= index <= self._mark.index:
            return False
        source = LogSource(self._disk, self._root)
        try:
            point = source.point_behind(index)
        finally:
            source.close()
        # Without the index unit this cannot be checked here; the next opening rebuilds the units
        # and checks it.
        return point is None or (point.term, point.chain) == (
            value.get("applied_term"),
            value.get("chain_crc"),
        )

    def _fetch_snapshot(self, now_ns: int) -> bool:
        """Fetch the snapshot of a trimmed log. A snapshot is a function of the log, so any peer's
        will do whose index lies in this log."""
        if now_ns >= self._again_ns:
            self._unfit.clear()
            self._again_ns, self._refused = NEVER_NS, None
        if self._snapshot is None:
            for peer in self._others:
                facts = self._facts.get(peer)
                if facts is None or peer in self._unfit:
                    continue
                if not self._mending.start.index - 1 <= facts.snapshot_index <= self._mark.index:
                    self._unfit[peer] = f"its snapshot is of entry {facts.snapshot_index}"
                    continue
                self._snapshot = SnapshotStream(self._requester, peer, now_ns)
                break
        stream = self._snapshot
        if stream is None:
            if self._unfit and self._again_ns == NEVER_NS:
                said = [f"{peer}: {self._unfit.get(peer, 'no answer')}" for peer in self._others]
                self._refused = (
                    f"{self._identity.group}: no snapshot for the trimmed log is to be had"
                    f" ({'; '.join(said)})"
                )
                self._again_ns = now_ns + AGAIN_NS
            return False
        self._out += stream.ask(now_ns)
        if stream.missing is not None:
            self._unfit[stream.source], self._snapshot = stream.missing.text, None
            return True
        if stream.data is None:
            return False
        self._snapshot = None
        try:
            value = sealed_json.decode(stream.data, f"the snapshot of {stream.source}")
        except Damaged as damage:
            self._unfit[stream.source] = str(damage)
            return True
        if not self._fits(value):
            self._unfit[stream.source] = "its snapshot does not agree with the log here"
            return True
        write_snapshot(self._disk, self._state, value, rotate=False)
        self.repaired.append(f"the snapshot from {stream.source}")
        self._phase = _Phase.DONE
        return False
