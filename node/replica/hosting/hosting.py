"""The life cycle of one broker group on a node: it runs, or it is being repaired or installed so
that it can run.

Theory of operation. The engine owns a `ReplicaHost` and gives it turns on the loop in every state.
While the group is open, these are turns of an `OpenReplica`. Two events end that: a read of a
committed range fails or does not verify (`Unreadable`), or the leader has trimmed entries that this
replica lacks. Then the store is closed without any further write, and a rebuild fetches from peers
what is needed. After that the directory is opened again in the same process, under a new boot id.
Everything that may take long (closing, each step of a rebuild, recovery of the directory) is a job
of the group's executor, one job at a time. A turn only begins jobs and takes their results, so that
it never delays the heartbeats of other groups. A failed sync is different: it ends the process
(invariant I9). A log that is proven to differ from its leader's (`Diverged`) ends only its group.

    state        | what it does                                          | next
    -------------+-------------------------------------------------------+-----------------------------------------
    joining      | no directory, or an empty log: waits for its peers    | running, installing
    running      | turns of the group                                    | repairing, installing, refused
    repairing    | fetches the damaged parts from peers                  | running, refused, installing
    refused      | repairing, but every peer that answers lacks it too   | repairing, installing, running
                 | or entries here contradict those of the leader        | (none until the node starts again)
    installing   | fetches begin, snapshot and files from a leader       | running, refused

An operator may restore a range of entries while the group runs (`range_repairs.py`); a range that
cannot be restored alone needs a repair as above.

While a group does not run, client calls are refused with `not-leader` (nothing was done here, so
the client may try another node), its view is withdrawn, and it neither votes nor acknowledges.
Peers' requests for bytes are answered in every state, beside the turns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from dataclasses import replace
from typing import Any, TypeVar

from ledgermq.node.broker.calls import Token
from ledgermq.node.broker.calls.outcome import Call, Done, Refused
from ledgermq.node.broker.group import TurnOutput
from ledgermq.node.broker.ports import Diverged, Fenced, PeerPacket, SyncTicket, Unreadable
from ledgermq.node.replica.hosting.ports import Broken, ReplicaOpener, ShippingHandler, State
from ledgermq.node.replica.hosting.range_repairs import RangeRepairs
from ledgermq.node.replica.hosting.running import OpenReplica
from ledgermq.node.replica.ports import RangePut
from ledgermq.node.replica.shipping.ports import Progress, Rebuild, RebuildOutput
from ledgermq.node.replica.shipping.shipping_wire import SHIPPING, is_shipping
from ledgermq.node.runtime import metrics
from ledgermq.node.runtime.logs import get_logger
from ledgermq.proto.status import refused
from ledgermq.proto.types import RebuildStatus, ReplicaStatus, Role
from ledgermq.raft.config import MS
from ledgermq.storage.files.errors import Damaged, LogDamaged, NoSpace

PACKETS_MAX = 256
"""At most this many packets wait for the next step of a rebuild. Older ones are dropped, and the
rebuild requests them again."""
OPEN_AGAIN_NS = 1_000 * MS
"""Minimum delay before the next attempt if a rebuild finished and the directory still does not
open."""
TAKE_AWAY = (
    "its files are left as they are: copy what is needed from them, stop the node, move the"
    " directory of this group away, and start the node again; the replica then gets the log from"
    " its peers"
)
"""The remedy for a replica whose entries contradict those of its leader."""
_NEVER_NS = 1 << 62

T = TypeVar("T")

log = get_logger()


class ReplicaHost:
    """A group as the engine runs it, in any state. Owned by the loop; only `fail` and `age_ns` are
    thread-safe."""

    def __init__(
        self,
        group: str,
        node: str,
        opener: ReplicaOpener,
        shipping_handler: ShippingHandler,
        executor: Executor,
    ) -> None:
        """`executor` runs one job at a time, beside the turns, and belongs to this object."""
        self.name = group
        self.node = node
        self.wake: Callable[[], None] = lambda: None
        self._opener = opener
        self._shipping_handler = shipping_handler
        self._executor = executor
        self._job: Future[Any] | None = None
        self._then: Callable[[Any, int], None] = lambda result, now_ns: None
        """Handles the result of the job."""
        self._state = State.JOINING
        self._reason = ""
        self._running: OpenReplica | None = None
        self._leaving: Callable[[], Broken] | None = None
        """Set while the open store is being closed: creates the state that follows."""
        self._ticket: SyncTicket | None = None
        """The sync in progress on another thread; its files must stay open."""
        self._rebuild: Rebuild | None = None
        self._task: tuple[State, str] = State.REPAIRING, ""
        """The purpose and the reason of the rebuild; kept while no peer can help it (`refused`)."""
        self._floor_pos: Callable[[], int] = int
        self._now_ns = 0
        self._began_ns = 0
        self._step_at_ns = 0
        self._progress = Progress()
        self._packets: list[tuple[str, PeerPacket]] = []
        self._answered: list[tuple[str, PeerPacket]] = []
        self._calls: set[Token] = set()
        """Calls taken and not answered yet, which must be answered if the group ends suddenly."""
        self._seen_view = False
        self._last: ReplicaStatus | None = None
        self.boots = 0
        """How often the group was opened in this process."""
        self._ranges = RangeRepairs(group, self._executor.submit, lambda: self.wake())

    def connect(
        self, wake: Callable[[], None], send: Callable[[Sequence[tuple[str, PeerPacket]]], None]
    ) -> None:
        """Set how to request a turn, and how to send packets beside the turns; both work from any
        thread. Call before the first turn."""
        self.wake = wake
        self._shipping_handler.send = send

    def open_first(self, now_ns: int) -> None:
        """Open the group before the engine runs; the start of the node waits for this. Raises
        FatalError, StorageError."""
        self._now_ns = now_ns
        self._opened(self._opener.open(), now_ns)

    # -- queries

    @property
    def state(self) -> State:
        if (
            self._running is not None
            and self._leaving is None
            and self._state is State.RUNNING
            and self._running.store.log.end_index < 0
        ):
            return State.JOINING
        return self._state

    @property
    def running(self) -> OpenReplica:
        """The open group. Raises LedgerError if it is not open (retryable: another node may serve
        the call)."""
        return self._require_running()

    def age_ns(self, now_ns: int) -> int | None:
        """The maximum age of what this replica knows (`freshness.py`); None if that is unknown, or
        if it leads. May be called from any thread."""
        running = self._running
        return (
            None
            if running is None or self._leaving is not None
            else running.group.freshness.age_ns(now_ns)
        )

    def _require_running(self) -> OpenReplica:
        if self._running is None or self._leaving is not None:
            raise refused(
                "not-leader",
                f"broker group {self.name} does not run on node {self.node}: {self._state},"
                f" {self._reason}",
            )
        return self._running

    @property
    def open_calls(self) -> tuple[Token, ...]:
        """Calls taken and not answered, for the caller that removed the group from the engine."""
        return tuple(sorted(self._calls))

    @property
    def mended(self) -> int:
        """How often a range was restored while the group ran; results computed from its files
        before that are outdated."""
        return self._ranges.mended

    def status(self) -> ReplicaStatus:
        if self._running is not None and self._leaving is None:
            return replace(self._running.status(), state=self.state.value)
        last = self._last or ReplicaStatus(
            group=self.name,
            node=self.node,
            role=Role.LEARNER,
            term=0,
            leader=None,
            begin_index=0,
            end_index=-1,
            durable_index=-1,
            commit_index=-1,
            applied_index=-1,
        )
        return replace(
            last,
            role=Role.LEARNER,
            leader=None,
            peers=(),
            state=self._state.value,
            rebuild=self._how_far(),
            extra={},
        )

    def _how_far(self) -> RebuildStatus:
        found = self._progress
        if not found.total_bytes:
            return RebuildStatus(self._reason, found.source or None)
        spent_ns, left = self._now_ns - self._began_ns, found.total_bytes - found.done_bytes
        remaining_ms = None if found.done_bytes <= 0 else spent_ns * left // found.done_bytes // MS
        return RebuildStatus(
            reason=self._reason,
            source=found.source or None,
            done_bytes=found.done_bytes,
            total_bytes=found.total_bytes,
            remaining_ms=remaining_ms,
        )

    def admit(self) -> None:
        if self._running is not None and self._leaving is None:
            self._running.admit()

    def fail(self, failure: Fenced) -> None:
        """Report a failure; see `OpenReplica.fail`. Ignored if no store is open. May be called from
        any thread."""
        running = self._running
        if running is not None:
            running.fail(failure)

    def put_back(self, first_index: int, last_index: int) -> Future[RangePut]:
        """Restore a range from peers while the group runs. Called on the loop. Raises LedgerError
        if the group does not run or another range is being restored."""
        if self._ranges.busy:
            raise refused(
                "busy",
                f"broker group {self.name}: another range is being put back on node {self.node}",
            )
        self._require_running()
        return self._ranges.begin(self._opener.range_repair(first_index, last_index), self._now_ns)

    def mend_all(self, reason: str) -> None:
        """Stop the group, and verify and repair its whole log from peers. Called on the loop.
        Raises LedgerError if the group does not run: then it is being repaired already, or cannot
        be."""
        self._require_running().fail(Unreadable(LogDamaged(reason)))

    # -- turns

    def turn(
        self,
        now_ns: int,
        now_ms: int,
        calls: Sequence[Call],
        packets: Sequence[tuple[str, PeerPacket]],
        synced: Sequence[tuple[SyncTicket, OSError | None]],
    ) -> TurnOutput:
        """Give the group one turn. Raises an exception that ends the process."""
        self._now_ns = now_ns
        if packets and any([packet.header[:1] == SHIPPING for _, packet in packets]):
            packets = self._sort_out(packets)
        running, ranges = self._running, self._ranges
        repairs = ranges.repair is not None or ranges.step is not None
        sent = ranges.turn(now_ns) if repairs else ()
        if running is None or self._leaving is not None:
            output = self._turn_without(now_ns, calls, synced)
        else:
            if calls:
                self._calls.update(_tokens(calls))
            try:
                output = running.turn(now_ns, now_ms, calls, packets, synced)
            except (Unreadable, Damaged, Diverged) as failure:
                self._end_for(failure)
                # The interrupted turn may not have seen these results, and a failed sync must end
                # the process (invariant I9).
                output = self._turn_without(now_ns, (), synced)
            else:
                if synced:
                    self._note_syncs(synced)
                self._ticket = output.sync or self._ticket
                if output.done:
                    self._calls.difference_update([done.token for done in output.done])
                self._seen_view = self._seen_view or output.view is not None
                if (left := running.group.left_behind) is not None:
                    leader, begin_index = left
                    output = self._after_left_behind(output, leader, begin_index)
        if repairs:
            output.packets += sent
            output.wake_at_ns = min(output.wake_at_ns, ranges.wake_at_ns)
        return output

    def _end_for(self, failure: Unreadable | Damaged | Diverged) -> None:
        """End the open group, which met this in its turn."""
        if isinstance(failure, Diverged):
            reason = f"{failure}; {TAKE_AWAY}"
            self._end_running(State.REFUSED, reason, lambda: Broken(State.REFUSED, reason, None))
        else:
            damage: Unreadable | Damaged = failure
            self._end_running(State.REPAIRING, str(damage), lambda: self._opener.repair(damage))

    def _after_left_behind(self, output: TurnOutput, leader: str, begin_index: int) -> TurnOutput:
        """The leader's log begins with this entry: if this replica lacks entries before it, install
        the rest from the leader."""
        entries = self.running.store.log
        if begin_index <= entries.end_index + 1:
            return output
        floor_pos = entries.end_pos
        reason = (
            f"the log of {leader} begins with entry {begin_index}, this one ends with"
            f" {entries.end_index}"
        )
        self._end_running(
            State.INSTALLING, reason, lambda: self._opener.install(leader, floor_pos, reason)
        )
        after = self._turn_without(self._now_ns, (), ())
        return replace(
            after,
            done=output.done + after.done,
            packets=output.packets + after.packets,
            sync=output.sync,
        )

    def _sort_out(
        self, packets: Sequence[tuple[str, PeerPacket]]
    ) -> Sequence[tuple[str, PeerPacket]]:
        """Pass shipping packets to the shipping handler and the rebuild, which each ignore those of
        the other; returns the rest."""
        self._ranges.offer([found for found in packets if is_shipping(found[1])])
        rest = []
        for sender, packet in packets:
            if not is_shipping(packet):
                rest.append((sender, packet))
                continue
            if self._rebuild is not None:
                self._packets.append((sender, packet))
            if not len(packet.payload):
                # Requests have no payload.
                self._shipping_handler.offer(sender, packet)
        del self._packets[:-PACKETS_MAX]
        return rest

    def _note_syncs(self, synced: Sequence[tuple[SyncTicket, OSError | None]]) -> None:
        for ticket, _ in synced:
            if ticket is self._ticket:
                self._ticket = None

    def _turn_without(
        self,
        now_ns: int,
        calls: Sequence[Call],
        synced: Sequence[tuple[SyncTicket, OSError | None]],
    ) -> TurnOutput:
        """One turn of a group that does not run."""
        for ticket, error in synced:
            if error is not None:
                raise Fenced(f"the log could not be synced: {error}") from error
            self._note_syncs([(ticket, error)])
        if self._job is not None and self._job.done():
            self._take_result(now_ns)
        if self._job is None:
            self._go_on(now_ns)
        detail = f"broker group {self.name} does not run on node {self.node}: {self._state}"
        done = [Done(token, Refused("not-leader", detail=detail)) for token in _tokens(calls)]
        done += [
            Done(token, Refused("unknown-outcome", detail=detail)) for token in sorted(self._calls)
        ]
        self._calls.clear()
        packets, self._answered = self._answered, []
        hides, self._seen_view = (
            self._seen_view and not self.is_open,
            self._seen_view and self.is_open,
        )
        # The end of the job, or of the sync that must end first, wakes the engine.
        waits = self._job is not None or self._leaving is not None
        wake_at_ns = now_ns if self.is_open else _NEVER_NS if waits else self._step_at_ns
        return TurnOutput(done, packets, None, wake_at_ns, None, hides_view=hides)

    def _take_result(self, now_ns: int) -> None:
        """Handle the result of the finished job. A full disk does not end the process: the work
        begins again a little later."""
        assert self._job is not None
        job, self._job = self._job, None
        try:
            result = job.result()
        except NoSpace as full:
            if self._rebuild is not None:
                self._rebuild.close()
            self._running = self._leaving = self._rebuild = None
            self._step_at_ns = now_ns + OPEN_AGAIN_NS
            self._change(self._state, f"it waits for space: {full}")
        else:
            self._then(result, now_ns)

    @property
    def is_open(self) -> bool:
        """Whether `running` may be asked for."""
        return self._running is not None and self._leaving is None

    def _go_on(self, now_ns: int) -> None:
        """Begin the next job, if there is one."""
        if self._leaving is not None:
            if self._ticket is None:
                assert self._running is not None
                self._begin(_after(self._running.abandon, self._leaving), self._left)
        elif self._rebuild is not None:
            if self._packets or now_ns >= self._step_at_ns:
                rebuild, packets = self._rebuild, self._packets
                self._packets = []
                self._begin(lambda: rebuild.turn(now_ns, packets), self._stepped)
        elif self._running is None and now_ns >= self._step_at_ns:
            self._begin(self._opener.open, self._opened)

    def _begin(self, work: Callable[[], Any], then: Callable[[Any, int], None]) -> None:
        self._then = then
        self._job = self._executor.submit(work)
        self._job.add_done_callback(lambda _: self.wake())

    # -- transitions

    def _end_running(self, state: State, reason: str, make: Callable[[], Broken]) -> None:
        assert self._running is not None
        self._last = self._running.status()
        self._ranges.end(f"broker group {self.name} stopped meanwhile: {reason}")
        self._leaving = make
        self._change(state, reason)

    def _left(self, broken: Broken, now_ns: int) -> None:
        self._running, self._leaving = None, None
        self._break(broken, now_ns)

    def _opened(self, found: OpenReplica | Broken, now_ns: int) -> None:
        if isinstance(found, Broken):
            self._break(found, now_ns)
            # The rebuild that just finished did not help, or nothing can be done yet, so do not
            # retry at once.
            self._step_at_ns = (
                now_ns + OPEN_AGAIN_NS if self.boots or found.rebuild is None else now_ns
            )
            return
        self._running = found
        self.boots += 1
        self._change(State.RUNNING, "")

    def _break(self, broken: Broken, now_ns: int) -> None:
        self._rebuild, self._progress, self._packets = broken.rebuild, Progress(), []
        self._task = broken.state, broken.reason
        self._floor_pos = broken.floor_pos
        self._began_ns = self._step_at_ns = now_ns
        if broken.state is State.REFUSED:
            self._step_at_ns = _NEVER_NS
        if broken.state is State.REPAIRING:
            metrics.DAMAGED_RANGES.labels(self.name).inc()
        self._change(broken.state, broken.reason)

    def _stepped(self, output: RebuildOutput, now_ns: int) -> None:
        self._answered += output.packets
        former, self._progress = self._progress, output.progress
        self._step_at_ns = output.wake_at_ns
        metrics.REBUILT_BYTES.labels(self.name, self._kind).inc(
            max(0, output.progress.done_bytes - former.done_bytes)
        )
        if self._kind == "install":
            self._note_sources(former, output.progress)
        rebuild = self._rebuild
        assert rebuild is not None
        if output.finished:
            metrics.REBUILDS.labels(self.name, self._kind).inc()
            done = output.progress
            log.info(
                "rebuilt",
                group=self.name,
                kind=self._kind,
                bytes=done.done_bytes,
                source=done.source,
                what=done.what,
            )
            self._rebuild = None
            self._begin(_after(rebuild.close, self._opener.open), self._opened)
        elif output.install_wanted is not None:
            source, begin_index = output.install_wanted
            reason = (
                f"its peers have trimmed what is damaged here: the log of {source} begins with"
                f" entry {begin_index}"
            )
            self._rebuild = None
            floor_pos = self._floor_pos()
            self._begin(
                _after(rebuild.close, lambda: self._opener.install(source, floor_pos, reason)),
                self._break,
            )
        elif output.refused is not None:
            self._change(State.REFUSED, output.refused)
        elif self._state is State.REFUSED:
            state, reason = self._task
            self._change(state, reason)

    def _note_sources(self, former: Progress, progress: Progress) -> None:
        metrics.INSTALLED_BYTES.labels(self.name, "peers").inc(
            max(0, progress.peer_bytes - former.peer_bytes)
        )
        metrics.INSTALLED_BYTES.labels(self.name, "store").inc(
            max(0, progress.store_bytes - former.store_bytes)
        )
        if progress.store_problem and not former.store_problem:
            log.warning(
                "the installation goes on from peers",
                group=self.name,
                reason=progress.store_problem,
            )

    @property
    def _kind(self) -> str:
        return "install" if self._task[0] is State.INSTALLING else "repair"

    def _change(self, state: State, reason: str) -> None:
        if (state, reason) == (self._state, self._reason) and self.boots:
            return
        former, self._state, self._reason = self._state, state, reason
        for each in State:
            metrics.GROUP_STATE.labels(self.name, each.value).set(each is state)
        say = (
            log.info
            if state in (State.RUNNING, State.JOINING)
            else log.error
            if state is State.REFUSED
            else log.warning
        )
        say(
            "broker group changed state",
            group=self.name,
            former=former.value,
            state=state.value,
            reason=reason,
            boot=self.boots,
        )

    # -- closing

    def close(self) -> None:
        """Close a running group cleanly. A rebuild is left as it is, and the next start continues
        it."""
        self._shipping_handler.close()
        while self._job is not None:
            # The handler of the result may begin another job.
            self._take_result(self._now_ns)
        self._ranges.end("the node is stopping")
        self._executor.shutdown()
        self._ranges.turn(self._now_ns)
        if self.is_open:
            assert self._running is not None
            self._running.close()
        elif self._running is not None:
            self._running.abandon()
        if self._rebuild is not None:
            self._rebuild.close()


def _tokens(calls: Sequence[Call]) -> list[Token]:
    """The tokens of the calls that expect an answer."""
    found = [getattr(call, "token", None) for call in calls]
    return [token for token in found if token is not None]


def _after(first: Callable[[], None], work: Callable[[], T]) -> Callable[[], T]:
    """Combine two functions into one job."""

    def both() -> T:
        first()
        return work()

    return both
