"""Repairs a range of entries while the group runs: fetches the entries that an audit named from a
peer, and writes them in place.

The proof for the bytes is that both ends are proven, the entry before the range and its last entry,
by index, position, term and chain CRC. A chain CRC is a function of the whole history, so the
entries between are the right ones from any sender; each is verified as the continuation of the
previous one. No byte is written before the last entry has led to the proven end, so a wrong source
changes nothing. Outside the range only the entry behind it is read, so the duration does not depend
on the length of the log.

The proof for an end: the range was known to be committed here, and the local entry behind it
continues the last one (or that one is the synced mark). In addition:
* Rule `majority`: a majority of the voters holds the same entry at both ends.
* Rules `in-sync` and `all`, where masters are appointed: fewer replicas may hold what is confirmed,
  such as one of five, or the master alone. There this replica's own history is the proof: it knew
  the range to be confirmed, and the entry behind the range continues exactly one last entry. A peer
  that has this entry has this history. If the master, or a peer that recorded the range as
  confirmed, reports another entry there, two confirmed histories contradict each other, and a
  repair in place is not allowed. So all peers are asked first.

What cannot be proven or restored like this is refused with a reason. Then a repair of the whole log
(`repair.py`) decides, for which the group has to stop. Units derived from the entries are compared
and restored as well. Sans-IO, and driven like a `Rebuild`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from enum import Enum

from ledgermq.node.broker.ports import PeerPacket
from ledgermq.node.replica.shipping.peer_fetch import NEVER_NS, PeerFetch
from ledgermq.node.replica.shipping.ports import Progress, RebuildOutput
from ledgermq.node.replica.shipping.windowed_fetch import WINDOW_BYTES, EntryStream
from ledgermq.proto.entries.entry_checking import BadEntry, verify_range
from ledgermq.proto.entries.layout import HEADER_BYTES
from ledgermq.proto.types import Identity, Range
from ledgermq.raft.config import MS, Rule
from ledgermq.storage.files.errors import StorageError
from ledgermq.storage.files.ports import Disk
from ledgermq.storage.log.log_scan import Point, is_place
from ledgermq.storage.log.placing import whole_blank
from ledgermq.storage.repair.log_source import Facts, LogSource, Missing, Why
from ledgermq.storage.repair.repair_log import note
from ledgermq.storage.repair.stretch import Stretch

BYTES_MAX = 64 << 20
"""Longer ranges would need too much memory; a repair of the whole log restores them."""
SILENCE_NS = 2_000 * MS
"""A peer that has not answered for this long cannot help now."""
GIVE_UP_NS = 10_000 * MS
"""After this time a peer that does not answer is not asked again."""
READ_BYTES = 4 << 20


class _Phase(Enum):
    PROVE = "asking the other replicas"
    CHECK = "verifying"
    FETCH = "fetching"
    CHECK_AGAIN = "verifying what was put back"
    DONE = "done"
    REFUSED = "refused"


class RangeRepair(PeerFetch):
    """One repair of the entries `first_index` … `last_index` in the group directory `root` (a
    `Rebuild` whose `refused` is final). `rule`, `voters`: the commit rule of the group, and the
    nodes that count for a majority. `master`: the leader that this replica followed, if any.
    `committed_index`: the commit index known here at the beginning. `session`: a random number for
    this attempt. `now_ms`: the time for the repair log."""

    def __init__(
        self,
        disk: Disk,
        root: str,
        found: Identity,
        first_index: int,
        last_index: int,
        *,
        others: Sequence[str],
        rule: Rule,
        voters: Collection[str],
        master: str | None,
        committed_index: int,
        session: int,
        now_ns: int,
        now_ms: int,
    ) -> None:
        super().__init__(found, others, session, now_ns)
        self._disk, self._root, self._now_ms = disk, root, now_ms
        self._name = f"{session:x}"
        self.repaired: list[str] = []
        """For operators: what was restored."""
        self.source = ""
        """The peer that sent the bytes."""
        self._first, self._last = first_index, last_index
        self._rule, self._voters, self._master = rule, frozenset(voters), master
        self._committed = committed_index
        self._files = LogSource(disk, root)
        self._files.identity()
        self._stretch = Stretch(disk, root, found)
        self._since_ns = now_ns
        self._phase = _Phase.PROVE
        self._own: Facts | None = None
        """The facts about the local log, once read."""
        self._start = self._end = Point(pos=0, index=0, term=-1, chain=0)
        """Both ends, once they are proven."""
        self._asked: set[str] = set()
        """Peers that are not asked for the entries again."""
        self._order = [*self._others]
        """The order of the next requests; a peer that did not answer goes to the end."""
        self._pieces: list[Range] = []
        """Verified ranges, from the start on without a gap."""

    @property
    def written_bytes(self) -> int:
        return self._stretch.written_bytes

    def turn(self, now_ns: int, packets: Sequence[tuple[str, PeerPacket]]) -> RebuildOutput:
        """As `Rebuild.turn`. Raises OSError: a failed write or sync ends the process (I9)."""
        self._hear(packets, now_ns)
        busy = True
        while busy:
            busy = self._act(now_ns)
        ended = self._phase in (_Phase.DONE, _Phase.REFUSED)
        wake = NEVER_NS if ended else self._wake_at_ns(now_ns)
        done = self._at.pos - self._start.pos if self._phase is _Phase.FETCH else 0
        what = f"{self._identity.group}: entries {self._first} to {self._last}, {self._phase.value}"
        progress = Progress(done, self._end.pos - self._start.pos, self.source, what)
        return RebuildOutput(
            self._sent(), wake, self._phase is _Phase.DONE, self._refused, progress
        )

    def close(self) -> None:
        self._files.close()
        self._stretch.close()

    def _wake_at_ns(self, now_ns: int) -> int:
        if self._stream is not None:
            return max(now_ns, self._stream.wake_at_ns)
        return max(now_ns, min(self._facts_due_ns, self._since_ns + SILENCE_NS))

    def _act(self, now_ns: int) -> bool:
        """Do one step. Returns True if there is more to do without waiting for a peer."""
        try:
            if self._phase is _Phase.PROVE:
                return self._proved(now_ns)
            if self._phase is _Phase.CHECK:
                damage = self._check()
                if damage is not None:
                    self._phase = _Phase.FETCH
                else:
                    self._finish()
                return True
            if self._phase is _Phase.FETCH:
                return self._fetch(now_ns)
            if self._phase is _Phase.CHECK_AGAIN:
                damage = self._check()
                if damage is not None:
                    return self._refuse(
                        f"what was put back does not read as it was written ({damage})"
                    )
                self._finish()
        except StorageError as error:
            return self._refuse(str(error))
        return False

    def _refuse(self, reason: str) -> bool:
        self._refused = (
            f"{self._identity.group}: entries {self._first} to {self._last} cannot be put back"
            f" alone: {reason}"
        )
        self._phase, self._stream = _Phase.REFUSED, None
        return False

    # Proof of both ends

    def _proved(self, now_ns: int) -> bool:
        try:
            return self._prove(now_ns)
        except OSError as error:
            # Nothing was written yet, so a read error is damage and does not end the process (I9).
            return self._refuse(str(error))

    def _prove(self, now_ns: int) -> bool:
        if self._own is None:
            self._own = own = self._files.facts(self._places)
            self._first = max(self._first, own.begin.index)
            if self._last > self._committed:
                # A leader may still replace uncommitted entries, and this replica would write them
                # at the same time.
                return self._refuse(
                    f"the log is known to be committed here up to entry {self._committed}"
                )
            if self._last >= own.synced.index:
                return self._refuse(f"the log is synced here up to entry {own.synced.index - 1}")
            if self._first > self._last:
                # The range was trimmed.
                self._phase = _Phase.DONE
                return False
        self._ask_facts(now_ns, self._places)
        majority, waits = self._rule is Rule.MAJORITY, self._waits(now_ns)
        if waits and not majority:
            return False
        ends = self._by_majority() if majority else self._by_own_history()
        if isinstance(ends, str):
            return False if waits else self._refuse(ends)
        start, end = ends
        if end.pos - start.pos > BYTES_MAX:
            return self._refuse(f"{end.pos - start.pos} bytes are more than {BYTES_MAX}")
        self._start, self._end = start, end
        reason = self._stretch.missing(start.pos, end.pos) or self._contradiction(end)
        if reason is not None:
            return self._refuse(reason)
        self._phase = _Phase.CHECK
        return True

    @property
    def _places(self) -> tuple[tuple[int, int], ...]:
        """The last entry before the range, if there is one, and the last entry of the range."""
        return ((self._first - 1, -1), (self._last, -1)) if self._first > 0 else ((self._last, -1),)

    def _waits(self, now_ns: int) -> bool:
        """Whether a peer that has not answered yet may still answer."""
        return now_ns < self._since_ns + SILENCE_NS and any(
            peer not in self._facts for peer in self._others
        )

    def _unheard(self) -> str:
        silent = [peer for peer in self._others if peer in self._voters and peer not in self._facts]
        return f"; no answer from {', '.join(silent)}" if silent else ""

    def _by_majority(self) -> tuple[Point, Point] | str:
        """Both ends as a majority of the voters has them; or, for operators, which end has no
        majority."""
        assert self._own is not None, "the local facts were not read"
        start = (
            self._own.begin if self._first == self._own.begin.index else self._agreed(self._first)
        )
        end = self._agreed(self._last + 1)
        if start is not None and end is not None:
            return start, end
        where = f"in front of entry {self._first}" if start is None else f"of entry {self._last}"
        return (
            f"no majority of {', '.join(sorted(self._voters))} holds the same history"
            f" {where}{self._unheard()}"
        )

    def _by_own_history(self) -> tuple[Point, Point] | str:
        """Both ends as reported by peers with the last entry that this replica's log continues; or,
        for operators, why there are none."""
        assert self._own is not None, "the local facts were not read"
        told = {
            peer: point
            for peer, facts in self._facts.items()
            for point in facts.points
            if point.index == self._last + 1
        }
        if not told:
            return f"no other replica that answers holds entry {self._last}{self._unheard()}"
        ends = dict.fromkeys(told.values())
        end = next(
            (point for point in ends if self._contradiction(point) is None), next(iter(ends))
        )
        others = sorted(
            peer for peer, point in told.items() if point != end and self._is_confirmed_at(peer)
        )
        if others:
            return f"{', '.join(others)} tells of another entry {self._last} as confirmed"
        if self._first == self._own.begin.index:
            return self._own.begin, end
        holders = [facts for peer, facts in self._facts.items() if told.get(peer) == end]
        starts = Counter(
            point
            for facts in (*holders, self._own)
            for point in facts.points
            if point.index == self._first
        )
        if not starts:
            return (
                f"no replica that holds entry {self._last} tells where entry {self._first} begins"
            )
        return starts.most_common(1)[0][0], end

    def _is_confirmed_at(self, peer: str) -> bool:
        """Whether a peer's last entry of the range is confirmed: all entries of the master are,
        other peers report what they recorded."""
        return peer == self._master or self._facts[peer].committed_index >= self._last

    def _agreed(self, index: int) -> Point | None:
        """The point before entry `index` that a majority of the voters has; None if there is
        none."""
        told = {peer: facts.points for peer, facts in self._facts.items()}
        if self._own is not None:
            told[self._identity.replica] = self._own.points
        votes = Counter(
            point
            for node, points in told.items()
            if node in self._voters
            for point in points
            if point.index == index
        )
        found = votes.most_common(1)
        return found[0][0] if found and found[0][1] > len(self._voters) // 2 else None

    def _serves(self, facts: Facts) -> bool:
        """Whether a peer holds the whole proven range."""
        return self._end in facts.points and facts.begin.pos <= self._start.pos

    def _contradiction(self, end: Point) -> str | None:
        """Why the local entry behind the range does not continue `end`, which then belongs to
        another history; None if it does."""
        assert self._own is not None, "the local facts were not read"
        synced = self._own.synced
        if end.index == synced.index:
            same = (synced.pos, synced.term, synced.chain) == (end.pos, end.term, end.chain)
            return None if same else f"the synced mark here speaks of another entry {self._last}"
        found = self._files.entries(end, synced.pos, HEADER_BYTES)
        return f"the entry behind it: {found.text}" if isinstance(found, Missing) else None

    # Check of the local range

    def _check(self) -> str | None:
        """Read and verify the range; returns what is wrong with its entries. Restores their units
        on the way."""
        assert self._own is not None, "the local facts were not read"
        point, changed = self._start, dict[str, None]()
        while point.index < self._end.index:
            try:
                found = self._files.entries(point, self._end.pos, READ_BYTES)
            except OSError as error:
                return str(error)
            if isinstance(found, Missing):
                return found.text
            if found.end_pos > self._end.pos:
                return f"entry {found.first_index} and those behind it end at {found.end_pos}"
            changed.update(
                dict.fromkeys(
                    self._stretch.put_units(found, committed_index=self._own.committed_index)
                )
            )
            point = Point(
                pos=found.end_pos,
                index=found.last_index + 1,
                term=found.term,
                chain=found.last_chain,
            )
        if point != self._end:
            return f"entry {self._last} has another chain CRC"
        self.repaired += [f"units in {path}" for path in changed]
        return None

    def _finish(self) -> None:
        self._stretch.sync()
        self._phase = _Phase.DONE

    # Fetching

    @property
    def _at(self) -> Point:
        if not self._pieces:
            return self._start
        last = self._pieces[-1]
        return Point(
            pos=last.end_pos, index=last.last_index + 1, term=last.term, chain=last.last_chain
        )

    def _fetch(self, now_ns: int) -> bool:
        if self._stream is None:
            able = [
                peer
                for peer in self._order
                if peer in self._facts
                and peer not in self._asked
                and self._serves(self._facts[peer])
            ]
            if not able and self._waits(now_ns):
                self._ask_facts(now_ns, self._places)
                return False
            if not able:
                return self._refuse(
                    "every replica that holds it was asked, and none could give all of it"
                )
            self.source = able[0]
            self._asked.add(self.source)
            self._stream = EntryStream(
                self._requester, self.source, self._at, self._end.pos, now_ns, window=WINDOW_BYTES
            )
        stream = self._stream
        while (piece := stream.next()) is not None:
            sent, payload = piece
            at = self._at
            try:
                entries = verify_range(bytes(payload), at.index, sent.term, sent.pos, at.chain)
            except BadEntry:
                return self._drop_source()
            if (
                not is_place(at, entries, self._identity.data_file_bytes)
                or entries.end_pos > self._end.pos
            ):
                return self._drop_source()
            self._pieces.append(entries)
            stream.advance(self._at)
        if self._at.pos >= self._end.pos:
            if self._at != self._end:
                return self._drop_source()
            self._write()
            return True
        self._out += stream.ask(now_ns)
        if stream.missing is not None:
            # What this peer gave is verified, so the next peer continues there.
            if stream.missing.why is Why.UNKNOWN and now_ns < self._since_ns + GIVE_UP_NS:
                self._asked.discard(self.source)
                self._order = [*(peer for peer in self._order if peer != self.source), self.source]
            self._stream = None
            return True
        return False

    def _drop_source(self) -> bool:
        """This peer's entries lead elsewhere, or do not verify: the next peer begins at the
        start."""
        self._pieces.clear()
        self._stream = None
        return True

    def _write(self) -> None:
        at = self._start
        for entries in self._pieces:
            if entries.pos != at.pos:
                for pos, data in whole_blank(at.pos, entries.pos - at.pos):
                    self._stretch.put(pos, data)
            self._stretch.put(entries.pos, entries.data)
            at = Point(
                pos=entries.end_pos,
                index=entries.last_index + 1,
                term=entries.term,
                chain=entries.last_chain,
            )
        self._stretch.sync()
        facts = {
            "first": self._first,
            "last": self._last,
            "bytes": self._end.pos - self._start.pos,
            "source": self.source,
        }
        chains = {"start_chain": self._start.chain, "end_chain": self._end.chain}
        note(self._disk, self._root, self._name, self._now_ms, "range", **facts, **chains)
        what = (
            f"entries {self._first} to {self._last} ({self._end.pos - self._start.pos} bytes) from"
            f" {self.source}"
        )
        self.repaired.append(what)
        self._pieces.clear()
        self._stream = None
        self._phase = _Phase.CHECK_AGAIN
