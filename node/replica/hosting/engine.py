"""Gives every broker group of this node its turns, on the event loop.

Theory of operation. One Python thread decides: the event loop reads packets and calls, runs the turns, queues the packets and sets the
answers. Inputs are collected until the next *pass*, which gives each group concerned one `turn` and delivers its output at once. A pass is
always a callback of its own, so sockets are read between two passes, and what arrives together shares a turn. fdatasync runs on one further
thread per group; its outcome is an input like any other. The calls of a group wait while a batch is in progress (`batch_gate.py`), unless
the group says that some could be answered sooner; the calls that arrived by then form the next batch. So a batch costs one append, one push
to each follower and one sync, however many calls it has. The engine makes no decision about logs, roles or deliveries, and it does not know
gRPC.

A turn is bounded, and a pass that took `SLICE_NS` leaves the groups that it has not reached to the next one: clients, peers and groups get
their turns in between. A timer that is due leads to a pass only after the sockets were read once more, so that a process that stood still
hears its leader before it notices that an election timeout has passed.

Groups can be added and removed while the engine runs (`take_in`, `take_out`). A group that is being removed gets no calls, and turns only
until its last sync has ended.

Failure: any exception from a turn ends the engine for good. `on_fatal` is called before any later output of any group could leave
(invariant I9), and must not return control to the groups.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from ledgermq.node.broker.calls import Token
from ledgermq.node.broker.calls.consumer_calls import CancelReceive, ClientGone, ClientsAlive
from ledgermq.node.broker.calls.group_view import GroupView
from ledgermq.node.broker.calls.member_calls import Appointed, Prefer, Returned
from ledgermq.node.broker.calls.outcome import Call, Refused, Result
from ledgermq.node.broker.calls.tier_calls import TierFetch, TierFetched
from ledgermq.node.broker.group import TurnOutput
from ledgermq.node.broker.ports import Fenced, PeerPacket, SyncTicket
from ledgermq.node.replica.hosting.batch_gate import OPEN_BATCHES
from ledgermq.node.replica.hosting.ports import EngineGroup
from ledgermq.node.replica.hosting.range_repairs import RangePut
from ledgermq.node.replica.hosting.syncer import Syncer
from ledgermq.node.runtime import metrics
from ledgermq.node.runtime.errors import FatalError
from ledgermq.proto.status import ExitCode, refused
from ledgermq.proto.types import ReplicaStatus
from ledgermq.raft.config import MS
from ledgermq.raft.ha_control import HaRequest
from ledgermq.storage.errors import LIMIT_REMEDY, is_exhausted, is_no_space

T = TypeVar("T")
Outcome = Result | Refused

# A pass that took this long leaves the groups that it has not reached to the next pass.
SLICE_NS = 10 * MS
# Held calls form a batch after this many passes of the loop without a new call, and after DRAIN_PASSES at the latest. gRPC's library needs
# four to five passes for a call, so fewer quiet passes do not mean that none is coming.
QUIET_PASSES = 10
DRAIN_PASSES = 256
# If the last turn that answered left at most one caller, there is no second call to form a batch with.
LONE_QUIET_PASSES = 1
# The loop's timers have a resolution of one millisecond, and none needs to be set further ahead than this.
LONGEST_WAIT_MS = 3_600_000
_SILENT = (CancelReceive, ClientsAlive, ClientGone, Prefer, Returned, Appointed, TierFetched)
_STOPPING = Refused("not-leader", detail="the node is stopping")


@dataclass(slots=True, eq=False)
class _Seat:
    """One group with its inputs since its last turn."""

    name: str
    group: EngineGroup
    syncer: Syncer
    seconds: Any
    wake_at_ns: int = 0
    wanted: bool = False
    """Whether an input other than held calls came, or somebody asked for a turn."""
    admitted: bool = False
    held: list[Call] = field(default_factory=list)
    """Calls that wait until the gate is open."""
    urgent: list[Call] = field(default_factory=list)
    packets: list[tuple[str, PeerPacket]] = field(default_factory=list)
    synced: list[tuple[SyncTicket, OSError | None]] = field(default_factory=list)
    gone: asyncio.Future[None] | None = None
    """Set while the group is being removed."""

    @property
    def has_calls(self) -> bool:
        """Whether calls may go to the group now."""
        return bool(self.held) and not self.syncer.gate.shut


class Engine:
    """Owns the groups. Every method must be called on the loop's thread, except `wake`."""

    def __init__(
        self,
        groups: Mapping[str, EngineGroup],
        *,
        send_packets: Callable[[str, Sequence[tuple[str, PeerPacket]]], None],
        on_fatal: Callable[[FatalError], None],
        max_calls: int = 20_000,
        open_batches: int = OPEN_BATCHES,
        now_ns: Callable[[], int] = time.monotonic_ns,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self._open_batches = open_batches
        self._send_packets = send_packets
        self._on_fatal = on_fatal
        self._max_calls = max_calls
        self._now_ns = now_ns
        self._now_ms = now_ms
        self._seats = {name: self._seat(name, group) for name, group in groups.items()}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._next_token: Token = 1
        self._waiting: dict[Token, asyncio.Future[Outcome]] = {}
        self._notified = 0
        self._callers = 0
        """Number of calls that were put."""
        self._draining = False
        self._seen, self._quiet, self._passes = 0, 0, 0
        """While draining: calls put up to the last pass of the loop, consecutive passes without a new call, and passes."""
        self._scheduled = False
        """Whether the loop will run a pass in any case."""
        self._unreached: list[str] = []
        """Groups that the last pass left to the next one."""
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ns = 0
        """The time for which the timer is set; a group may have asked for a later turn since."""
        self._stopping = False
        self._idle: asyncio.Future[None] | None = None
        """Set by `stop`: no more turns except for ended syncs; done when no sync runs."""
        self._ended = False
        """No more turns at all: the groups are closed, or one of them failed."""
        self._listeners: list[Callable[[str, GroupView], None]] = []
        self._hidden_listeners: list[Callable[[str], None]] = []
        self._wish_listeners: list[Callable[[str, Sequence[HaRequest]], None]] = []
        self.fetch: Callable[[str, Sequence[TierFetch]], None] = self._without_store
        """Starts fetches of messages from the object store; each ends with a `TierFetched`."""
        self.views: dict[str, GroupView] = {}

    def _seat(self, name: str, group: EngineGroup) -> _Seat:
        return _Seat(name, group, Syncer(name, self._report, self._open_batches), metrics.TURN_SECONDS.labels(name))

    # -- the node's side

    def start(self) -> None:
        """Begin with the turns. Called once, from inside the running loop."""
        self._loop = asyncio.get_running_loop()
        for seat in self._seats.values():
            seat.syncer.start()
        self._pass_soon()

    async def stop(self, drain_s: float = 0.0) -> None:
        """Give open calls `drain_s` seconds to finish, then close every group and end the threads.

        New calls are refused with `not-leader` (nothing was done, so the client may try another node), and so are calls that no group has
        taken yet. Calls that a group has taken end with `unknown-outcome`.
        """
        assert self._loop is not None
        self._stopping = True
        limit = self._loop.time() + drain_s
        while self._waiting and self._loop.time() < limit:
            await asyncio.sleep(0.01)
        self._drained()
        self._pass()
        await self._close()
        untaken = {call.token for seat in self._seats.values() for call in seat.held if not isinstance(call, _SILENT)}
        for token, future in self._waiting.items():
            if not future.done():
                future.set_result(_STOPPING if token in untaken else Refused("unknown-outcome", detail=_STOPPING.detail))
        self._waiting.clear()

    async def _close(self) -> None:
        """Wait for syncs in progress (their outcome must not be lost to a closed file), then close every group on a thread."""
        assert self._loop is not None
        if not self._ended:
            self._idle = self._loop.create_future()
            for seat in self._seats.values():
                seat.packets.clear()
                seat.urgent.clear()
            self._pass_soon()
            await self._idle
        if self._ended:  # one of the groups failed, perhaps with its last sync
            return
        self._ended = True
        if self._timer is not None:
            self._timer.cancel()
        try:
            await asyncio.to_thread(self._close_groups)
        except Exception as error:  # as an exception of a turn
            self._on_fatal(as_fatal(error))

    def _close_groups(self) -> None:
        for seat in self._seats.values():
            seat.syncer.stop()
        for seat in self._seats.values():
            seat.group.close()

    @property
    def groups(self) -> tuple[str, ...]:
        return tuple(self._seats)

    @property
    def open_calls(self) -> int:
        return len(self._waiting)

    def new_token(self) -> Token:
        """A token for the next call; unique in this process."""
        token = self._next_token
        self._next_token += 1
        return token

    def call(self, group: str, call: Call) -> asyncio.Future[Outcome]:
        """Put a call that is answered. Its future always gets a result, never an exception: Refused('busy') if too many calls are open,
        Refused('not-leader') if this node has no replica of the group."""
        assert self._loop is not None
        future: asyncio.Future[Outcome] = self._loop.create_future()
        if self._stopping:
            future.set_result(_STOPPING)
            return future
        seat = self._seats.get(group)
        if seat is None or seat.gone is not None:
            future.set_result(Refused("not-leader", detail=f"broker group {group} has no replica on this node"))
            return future
        if len(self._waiting) >= self._max_calls:
            future.set_result(Refused("busy", detail=f"more than {self._max_calls} calls are open on this node"))
            return future
        self._waiting[call.token] = future
        self.notify(group, call)
        return future

    def notify(self, group: str, call: Call) -> None:
        """Put a call that has no answer. While the group's gate is closed this only queues it: a pass takes it when the gate is open."""
        seat = self._seats.get(group)
        if seat is None or seat.gone is not None:
            return
        self._notified += 1
        seat.held.append(call)
        if not seat.syncer.gate.shut:
            self._drain()

    def notify_at_once(self, group: str, call: Call) -> None:
        """Like `notify`, but past the gate, because the call may be what opens it."""
        seat = self._seats.get(group)
        if seat is not None and self._takes_inputs(seat):
            seat.urgent.append(call)
            self._want(seat)

    def packets(self, items: Sequence[tuple[str, str, PeerPacket]]) -> None:
        """Put peer packets, each as (group, sender, packet). Packets of groups that are not hosted here are dropped."""
        for group, sender, packet in items:
            seat = self._seats.get(group)
            if seat is not None and self._takes_inputs(seat):
                seat.packets.append((sender, packet))
                self._want(seat)

    def _takes_inputs(self, seat: _Seat) -> bool:
        """Not while the group waits for its last sync: a packet could begin another one, so that a follower under load never ended."""
        return seat.gone is None and self._idle is None

    def admit(self, group: str) -> None:
        """Let the replica take part, because all other voters know its directory; a turn follows at once."""
        seat = self._seats.get(group)
        if seat is not None:
            seat.admitted = True
            self._want(seat)

    def turn_all(self) -> None:
        """Give every group a turn soon."""
        for seat in self._seats.values():
            self._want(seat)

    def wake(self, group: str) -> None:
        """Give the group a turn, because work on another thread ended. May be called from any thread."""
        self._from_thread(self._woken, group)

    def _woken(self, group: str) -> None:
        seat = self._seats.get(group)
        if seat is not None:
            self._want(seat)

    def run(self, group: str, work: Callable[[Any], T]) -> asyncio.Future[T]:
        """Run `work(open group)` between two turns, for status queries. It must be quick and must not change the group. An exception of
        `work` goes to the caller and not to the engine, and so does the LedgerError of a group that does not run."""
        target = self._hosted(group)
        return self._between_turns(lambda: work(target.running))

    def _hosted(self, group: str) -> EngineGroup:
        seat = self._seats.get(group)
        if seat is None:
            raise refused("not-leader", f"broker group {group} has no replica on this node")
        return seat.group

    def _between_turns(self, work: Callable[[], T]) -> asyncio.Future[T]:
        """Each work is a callback of its own: a caller that repeats it delays neither turns nor sockets. Ends with TimeoutError after the
        groups were closed."""
        loop = self._loop
        assert loop is not None
        future: asyncio.Future[T] = loop.create_future()

        def settle() -> None:
            if future.done():
                return
            try:
                if self._ended:
                    raise TimeoutError("the broker groups of this node have ended")
                future.set_result(work())
            except Exception as error:  # a failed query must not end the node
                future.set_exception(error)

        loop.call_soon(settle)
        return future

    def status(self, group: str) -> asyncio.Future[ReplicaStatus]:
        return self._between_turns(self._hosted(group).status)

    async def put_back(self, group: str, first_index: int, last_index: int) -> RangePut:
        """Restore a range of this replica's entries from its peers while the group runs. Raises LedgerError."""
        target = self._hosted(group)
        put = await self._between_turns(lambda: target.put_back(first_index, last_index))
        self._woken(group)
        return await asyncio.wrap_future(put)

    async def mend_all(self, group: str, reason: str) -> None:
        """Stop the group, and verify and repair its whole log from peers; its status shows the progress. Raises LedgerError."""
        target = self._hosted(group)
        await self._between_turns(lambda: target.mend_all(reason))
        self._woken(group)

    def take_in(self, name: str, group: EngineGroup) -> None:
        """Add a group."""
        seat = self._seats[name] = self._seat(name, group)
        seat.syncer.start()
        self._want(seat)

    async def take_out(self, name: str) -> EngineGroup:
        """Remove a group and return it for the caller to close. It gets no more calls or packets, and no turns after its last sync."""
        assert self._loop is not None
        seat = self._seats[name]
        gone = seat.gone = self._loop.create_future()
        seat.packets.clear()
        self._pass_soon()
        await gone
        untaken = [call.token for call in seat.held if not isinstance(call, _SILENT)]
        self.give_up(untaken, Refused("not-leader", detail=f"broker group {name} has no replica on this node any more"))
        seat.syncer.stop()
        if self.views.pop(name, None) is not None:
            for hidden in self._hidden_listeners:
                hidden(name)
        return seat.group

    def give_up(self, tokens: Iterable[Token], outcome: Refused) -> None:
        """End calls that will not be answered with this outcome."""
        for token in tokens:
            future = self._waiting.pop(token, None)
            if future is not None and not future.done():
                future.set_result(outcome)

    def on_view(self, listener: Callable[[str, GroupView], None]) -> None:
        """Call `listener(group, view)` whenever a group publishes a new view."""
        self._listeners.append(listener)

    def on_wishes(self, listener: Callable[[str, Sequence[HaRequest]], None]) -> None:
        """Call `listener(group, requests)` whenever a group has requests to the controller quorum."""
        self._wish_listeners.append(listener)

    def _without_store(self, group: str, fetches: Sequence[TierFetch]) -> None:
        for fetch in fetches:
            self.notify(group, TierFetched(fetch, failure="tiered storage is not configured on this node"))

    def on_hidden(self, listener: Callable[[str], None]) -> None:
        """Call `listener(group)` whenever a group's view is withdrawn because the group stopped running here."""
        self._hidden_listeners.append(listener)

    # -- batches of calls

    def _drain(self) -> None:
        """Let a pass take the held calls after the loop stops bringing new ones, so that all of them form one batch."""
        assert self._loop is not None
        if not self._draining:
            self._draining = True
            self._seen, self._quiet, self._passes = self._notified, 0, 0
            self._loop.call_soon(self._drain_pass)

    def _drain_pass(self) -> None:
        assert self._loop is not None
        self._quiet = self._quiet + 1 if self._notified == self._seen else 0
        self._seen, self._passes = self._notified, self._passes + 1
        quiet = QUIET_PASSES if max(self._callers, len(self._waiting)) > 1 else LONE_QUIET_PASSES
        if self._quiet >= quiet or self._passes >= DRAIN_PASSES:
            self._drained()
        else:
            self._loop.call_soon(self._drain_pass)

    def _drained(self) -> None:
        self._draining = False
        for seat in self._seats.values():
            seat.syncer.gate.rested()
        if any(seat.has_calls for seat in self._seats.values()):
            self._pass_soon()

    # -- what threads report

    def _from_thread(self, callback: Callable[..., None], *arguments: Any) -> None:
        assert self._loop is not None
        with contextlib.suppress(RuntimeError):  # after a fatal end the loop may be closed, and then nothing waits
            self._loop.call_soon_threadsafe(callback, *arguments)

    def _report(self, group: str, ticket: SyncTicket, error: OSError | None) -> None:
        """Called by the sync thread."""
        self._from_thread(self._sync_ended, group, ticket, error)

    def _sync_ended(self, group: str, ticket: SyncTicket, error: OSError | None) -> None:
        seat = self._seats[group]
        seat.syncer.gate.sync_ended()
        seat.synced.append((ticket, error))
        self._want(seat)

    # -- turns

    def _want(self, seat: _Seat) -> None:
        seat.wanted = True
        self._pass_soon()

    def _pass_soon(self) -> None:
        if not self._scheduled and self._loop is not None:
            self._scheduled = True
            self._loop.call_soon(self._scheduled_pass)

    def _scheduled_pass(self) -> None:
        self._scheduled = False
        self._pass()

    def _pass(self) -> None:
        """Give each group with inputs, or a timer that is due, one turn, and deliver the outputs."""
        if self._ended:
            return
        try:
            began_ns = self._now_ns()
            names, self._unreached = self._unreached or list(self._seats), []
            for at, name in enumerate(names, 1):
                seat = self._seats.get(name)
                if seat is None or not self._is_due(seat, self._now_ns()):
                    continue
                self._deliver(name, self._turn(seat))
                if self._now_ns() - began_ns >= SLICE_NS:
                    self._unreached = names[at:]
                    break
            self._let_go()
            self._set_timer()
        except Exception as error:  # any exception of a group ends the process: fenced, damaged, or a bug
            self._ended = True
            if self._idle is not None and not self._idle.done():
                self._idle.set_result(None)
            self._on_fatal(as_fatal(error))

    def _is_due(self, seat: _Seat, now_ns: int) -> bool:
        if seat.gone is not None or self._idle is not None:
            return bool(seat.synced)
        return seat.wanted or seat.wake_at_ns <= now_ns or seat.has_calls

    def _turn(self, seat: _Seat) -> TurnOutput:
        began = time.perf_counter()
        calls, seat.urgent = seat.urgent, []
        if seat.has_calls and seat.gone is None and self._idle is None:
            calls, seat.held = calls + seat.held, []
        packets, seat.packets = seat.packets, []
        synced, seat.synced = seat.synced, []
        seat.wanted = False
        if seat.admitted:
            seat.admitted = False
            seat.group.admit()
        output = seat.group.turn(self._now_ns(), self._now_ms(), calls, packets, synced)
        seat.wake_at_ns = output.wake_at_ns
        seat.syncer.gate.turned(output, answers=bool(output.done))
        if output.sync is not None:
            seat.syncer.submit(output.sync)
        seat.seconds.observe(time.perf_counter() - began)
        return output

    def _deliver(self, group: str, output: TurnOutput) -> None:
        """Deliver the output of a turn."""
        if output.packets:
            self._send_packets(group, output.packets)
        if output.hides_view and self.views.pop(group, None) is not None:
            for hidden in self._hidden_listeners:
                hidden(group)
        if output.view is not None:
            self.views[group] = output.view
            for listener in self._listeners:
                listener(group, output.view)
        if output.ha_requests:
            for wished in self._wish_listeners:
                wished(group, output.ha_requests)
        if output.tier_fetches:
            self.fetch(group, output.tier_fetches)
        for done in output.done:
            future = self._waiting.pop(done.token, None)
            if future is not None and not future.done():
                future.set_result(done.outcome)
        if output.done:
            self._callers = len(output.done) + len(self._waiting)
            self._drain()

    def _let_go(self) -> None:
        """Remove those leaving groups that have no sync in progress, and note when the last sync of a stopping node has ended."""
        for seat in [seat for seat in self._seats.values() if seat.gone is not None and not self._syncs(seat)]:
            del self._seats[seat.name]
            assert seat.gone is not None
            if not seat.gone.done():
                seat.gone.set_result(None)
        if self._idle is not None and not self._idle.done() and not any(map(self._syncs, self._seats.values())):
            self._idle.set_result(None)

    @staticmethod
    def _syncs(seat: _Seat) -> bool:
        """Whether a sync is in progress, or its outcome has not reached the group."""
        return seat.syncer.gate.under_way > 0 or bool(seat.synced)

    def _set_timer(self) -> None:
        """See to the next pass: at once if there is something to do, or when the first timer is due."""
        assert self._loop is not None
        now_ns = self._now_ns()
        if self._unreached or any(self._is_due(seat, now_ns) for seat in self._seats.values()):
            self._pass_soon()
            return
        if self._idle is not None:
            return
        far_ns = now_ns + LONGEST_WAIT_MS * MS
        at_ns = min((seat.wake_at_ns for seat in self._seats.values() if seat.gone is None), default=far_ns)
        if self._timer is not None:
            if self._timer_ns <= at_ns:
                # Setting a timer costs more than a pass that finds nothing to do now and then.
                return
            self._timer.cancel()
        self._timer_ns = at_ns
        # Rounded up: a timer that comes early would lead to one empty pass after the other.
        wait_ms = -((now_ns - min(at_ns, far_ns)) // MS)
        self._timer = self._loop.call_later(wait_ms / 1000, self._time_is_up)

    def _time_is_up(self) -> None:
        """A timer may be served late, and before the sockets were read: the pass comes after the next reading."""
        assert self._loop is not None
        self._timer = None
        self._loop.call_soon(self._pass_soon)


def _of_the_disk(error: OSError) -> FatalError:
    """The error for a file of this node that could not be read, opened or written outside of a group commit."""
    if is_exhausted(error):
        what = f"the operating system gives this node no more files, maps or memory ({error})"
        return FatalError(ExitCode.LIMIT, what, f"{LIMIT_REMEDY}, then start the node again")
    if is_no_space(error):
        return FatalError(ExitCode.NO_SPACE, f"no space ({error})", "free disk space, then start the node again")
    what = f"a file of this node cannot be used ({error})"
    return FatalError(ExitCode.SYNC_FAILED, what, "check the disk, then start the node again; it verifies its log")


def as_fatal(error: Exception) -> FatalError:
    """The exit code and message for an exception that ended the engine."""
    if isinstance(error, FatalError):
        return error
    if isinstance(error, Fenced):
        remedy = LIMIT_REMEDY if error.exit_code == ExitCode.LIMIT else "check the disk"
        return FatalError(error.exit_code, f"the replica is fenced: {error}", f"{remedy}, then start the node again; it verifies its log")
    if isinstance(error, OSError):
        return _of_the_disk(error)
    exit_code = getattr(error, "exit_code", None)
    if isinstance(exit_code, int):
        return FatalError(exit_code, str(error), "see the node's log for details")
    fatal = FatalError(ExitCode.BUG, f"internal error, {type(error).__name__}: {error}", "this is a bug: report it with the node's log")
    fatal.__cause__ = error
    return fatal
