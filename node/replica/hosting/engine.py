"""Gives every broker group of this node its turns, on the event loop.

Theory of operation. One Python thread decides: the event loop reads packets and calls, runs the
turns, queues the packets and sets the answers. The scheduler (`scheduler.py`) says which group gets
a turn; this module is its driver. A pass is always a callback of its own, so sockets are read
between two passes. fdatasync runs on one further thread per group. This module does not know gRPC.

A timer that is due leads to a pass only after the sockets were read once more, so that a process
that stood still hears its leader before it notices that an election timeout has passed.

Failure: any exception from a turn ends the engine for good. `on_fatal` is called before any later
output of any group could leave (invariant I9), and must not return control to the groups.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
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
from ledgermq.node.replica.hosting.scheduler import Scheduler
from ledgermq.node.replica.hosting.syncer import Syncer
from ledgermq.node.replica.ports import RangePut
from ledgermq.node.runtime.errors import FatalError
from ledgermq.proto.status import ExitCode, refused
from ledgermq.proto.types import ReplicaStatus
from ledgermq.raft.config import MS
from ledgermq.raft.ha_control import HaRequest
from ledgermq.storage.files.errors import LIMIT_REMEDY, is_exhausted, is_no_space

T = TypeVar("T")
Outcome = Result | Refused

# Held calls form a batch after this many passes of the loop without a new call, and after
# DRAIN_PASSES at the latest. gRPC's library needs four to five passes for a call, so fewer quiet
# passes do not mean that none is coming.
QUIET_PASSES = 10
DRAIN_PASSES = 256
# If the last turn that answered left at most one caller, there is no second call to form a batch
# with.
LONE_QUIET_PASSES = 1
# The loop's timers have a resolution of one millisecond, and none needs to be set further ahead
# than this.
LONGEST_WAIT_MS = 3_600_000
_SILENT = (CancelReceive, ClientsAlive, ClientGone, Prefer, Returned, Appointed, TierFetched)
_STOPPING = Refused("not-leader", detail="the node is stopping")


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
        self.now_ns = now_ns
        self.now_ms = now_ms
        self._send_packets = send_packets
        self._on_fatal = on_fatal
        self._max_calls = max_calls
        self._scheduler = Scheduler(self, open_batches)
        self.notify_at_once = self._scheduler.put_at_once
        self.packets = self._scheduler.packets
        self.admit = self._scheduler.admit
        self._syncers: dict[str, Syncer] = {}
        for name, group in groups.items():
            self._add(name, group)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._next_token: Token = 1
        self._waiting: dict[Token, asyncio.Future[Outcome]] = {}
        self._notified = 0
        """Number of calls that were put."""
        self._callers = 0
        """Number of callers when answers were delivered last."""
        self._seen, self._quiet, self._passes = 0, 0, 0
        """While calls are waited for: calls put up to the last pass of the loop, consecutive passes
        without a new call, and passes."""
        self._timer: asyncio.TimerHandle | None = None
        self._stopping = False
        self._idle: asyncio.Future[None] | None = None
        """Set by `stop`; done when no sync runs any more."""
        self._ended = False
        """No more turns at all: the groups are closed, or one of them failed."""
        self._listeners: list[Callable[[str, GroupView], None]] = []
        self._hidden_listeners: list[Callable[[str], None]] = []
        self._wish_listeners: list[Callable[[str, Sequence[HaRequest]], None]] = []
        self._fetch: Callable[[str, Sequence[TierFetch]], None] = self._without_store
        self.views: dict[str, GroupView] = {}

    def _add(self, name: str, group: EngineGroup) -> None:
        self._scheduler.add(name, group)
        self._syncers[name] = Syncer(name, self._report)

    # -- the node's side

    def start(self) -> None:
        """Begin with the turns. Called once, from inside the running loop."""
        self._loop = asyncio.get_running_loop()
        for syncer in self._syncers.values():
            syncer.start()
        # Inputs may have come before there was a loop.
        self.pass_soon()

    async def stop(self, drain_s: float = 0.0) -> None:
        """Give open calls `drain_s` seconds to finish, then close every group and end the threads.

        New calls are refused with `not-leader` (nothing was done, so the client may try another
        node), and so are calls that no group has taken yet. Calls that a group has taken end with
        `unknown-outcome`.
        """
        assert self._loop is not None
        self._stopping = True
        limit = self._loop.time() + drain_s
        while self._waiting and self._loop.time() < limit:
            await asyncio.sleep(0.01)
        self._scheduler.rested()
        self._pass()
        await self._close()
        untaken = {
            call.token
            for seat in self._scheduler.seats.values()
            for call in seat.held
            if not isinstance(call, _SILENT)
        }
        for token, future in self._waiting.items():
            if not future.done():
                future.set_result(
                    _STOPPING
                    if token in untaken
                    else Refused("unknown-outcome", detail=_STOPPING.detail)
                )
        self._waiting.clear()

    async def _close(self) -> None:
        """Wait for syncs in progress (their outcome must not be lost to a closed file), then close
        every group on a thread."""
        assert self._loop is not None
        if not self._ended:
            self._idle = self._loop.create_future()
            self._scheduler.finish(partial(_settle, self._idle))
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
        for syncer in self._syncers.values():
            syncer.stop()
        for seat in self._scheduler.seats.values():
            seat.group.close()

    @property
    def groups(self) -> tuple[str, ...]:
        return tuple(self._scheduler.seats)

    @property
    def open_calls(self) -> int:
        return len(self._waiting)

    def new_token(self) -> Token:
        """A token for the next call; unique in this process."""
        token = self._next_token
        self._next_token += 1
        return token

    def call(self, group: str, call: Call) -> asyncio.Future[Outcome]:
        """Put a call that is answered. Its future always gets a result, never an exception:
        Refused('busy') if too many calls are open, Refused('not-leader') if this node has no
        replica of the group."""
        assert self._loop is not None
        future: asyncio.Future[Outcome] = self._loop.create_future()
        if self._stopping:
            future.set_result(_STOPPING)
            return future
        seat = self._scheduler.seats.get(group)
        if seat is None or seat.gone is not None:
            future.set_result(
                Refused("not-leader", detail=f"broker group {group} has no replica on this node")
            )
            return future
        if len(self._waiting) >= self._max_calls:
            future.set_result(
                Refused("busy", detail=f"more than {self._max_calls} calls are open on this node")
            )
            return future
        self._waiting[call.token] = future
        self.notify(group, call)
        return future

    def notify(self, group: str, call: Call) -> None:
        """Put a call that has no answer. While the group's gate is closed this only queues it: a
        pass takes it when the gate is open."""
        seat = self._scheduler.seats.get(group)
        if seat is None or seat.gone is not None:
            return
        self._notified += 1
        self._scheduler.put(seat, call)

    def turn_all(self) -> None:
        """Give every group a turn soon."""
        for group in self._scheduler.seats:
            self._scheduler.want(group)

    def wake(self, group: str) -> None:
        """Give the group a turn, because work on another thread ended. May be called from any
        thread."""
        self._from_thread(self._scheduler.want, group)

    def run(self, group: str, work: Callable[[Any], T]) -> asyncio.Future[T]:
        """Run `work(open group)` between two turns, for status queries. It must be quick and must
        not change the group. An exception of `work` goes to the caller and not to the engine, and
        so does the LedgerError of a group that does not run."""
        target = self._hosted(group)
        return self._between_turns(lambda: work(target.running))

    def _hosted(self, group: str) -> EngineGroup:
        seat = self._scheduler.seats.get(group)
        if seat is None:
            raise refused("not-leader", f"broker group {group} has no replica on this node")
        return seat.group

    def _between_turns(self, work: Callable[[], T]) -> asyncio.Future[T]:
        """Each work is a callback of its own: a caller that repeats it delays neither turns nor
        sockets. Ends with TimeoutError after the groups were closed."""
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
        """Restore a range of this replica's entries from its peers while the group runs. Raises
        LedgerError."""
        target = self._hosted(group)
        put = await self._between_turns(lambda: target.put_back(first_index, last_index))
        self._scheduler.want(group)
        return await asyncio.wrap_future(put)

    async def mend_all(self, group: str, reason: str) -> None:
        """Stop the group, and verify and repair its whole log from peers; its status shows the
        progress. Raises LedgerError."""
        target = self._hosted(group)
        await self._between_turns(lambda: target.mend_all(reason))
        self._scheduler.want(group)

    def take_in(self, name: str, group: EngineGroup) -> None:
        """Add a group."""
        self._add(name, group)
        self._syncers[name].start()
        self._scheduler.want(name)

    async def take_out(self, name: str) -> EngineGroup:
        """Remove a group and return it for the caller to close. It gets no more calls or packets,
        and no turns after its last sync."""
        assert self._loop is not None
        gone: asyncio.Future[None] = self._loop.create_future()
        seat = self._scheduler.remove(name, partial(_settle, gone))
        await gone
        untaken = [call.token for call in seat.held if not isinstance(call, _SILENT)]
        self.give_up(
            untaken,
            Refused(
                "not-leader", detail=f"broker group {name} has no replica on this node any more"
            ),
        )
        self._syncers.pop(name).stop()
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
        """Call `listener(group, requests)` whenever a group has requests to the controller
        quorum."""
        self._wish_listeners.append(listener)

    def on_fetches(self, fetch: Callable[[str, Sequence[TierFetch]], None]) -> None:
        """Call `fetch(group, fetches)` whenever a group needs messages from the object store; each
        fetch ends with a `TierFetched`. Without it they end at once."""
        self._fetch = fetch

    def _without_store(self, group: str, fetches: Sequence[TierFetch]) -> None:
        for fetch in fetches:
            self.notify(
                group, TierFetched(fetch, failure="tiered storage is not configured on this node")
            )

    def on_hidden(self, listener: Callable[[str], None]) -> None:
        """Call `listener(group)` whenever a group's view is withdrawn because the group stopped
        running here."""
        self._hidden_listeners.append(listener)

    # -- batches of calls

    def rest(self) -> None:
        """Let a pass take the held calls after the loop stops bringing new ones, so that all of
        them form one batch."""
        assert self._loop is not None
        self._seen, self._quiet, self._passes = self._notified, 0, 0
        self._loop.call_soon(self._drain_pass)

    def _drain_pass(self) -> None:
        assert self._loop is not None
        self._quiet = self._quiet + 1 if self._notified == self._seen else 0
        self._seen, self._passes = self._notified, self._passes + 1
        quiet = QUIET_PASSES if max(self._callers, len(self._waiting)) > 1 else LONE_QUIET_PASSES
        if self._quiet >= quiet or self._passes >= DRAIN_PASSES:
            self._scheduler.rested()
        else:
            self._loop.call_soon(self._drain_pass)

    # -- what threads report

    def _from_thread(self, callback: Callable[..., None], *arguments: Any) -> None:
        assert self._loop is not None
        # after a fatal end the loop may be closed, and then nothing waits
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(callback, *arguments)

    def _report(self, group: str, ticket: SyncTicket, error: OSError | None) -> None:
        """Called by the sync thread."""
        self._from_thread(self._scheduler.sync_ended, group, ticket, error)

    # -- turns

    def sync(self, group: str, ticket: SyncTicket) -> None:
        self._syncers[group].submit(ticket)

    def pass_soon(self) -> None:
        if self._loop is not None:
            self._loop.call_soon(self._pass)

    def pass_at(self, at_ns: int) -> None:
        assert self._loop is not None
        if self._timer is not None:
            self._timer.cancel()
        # Rounded up: a timer that comes early would lead to one empty pass after the other.
        wait_ms = min(LONGEST_WAIT_MS, -((self.now_ns() - at_ns) // MS))
        self._timer = self._loop.call_later(wait_ms / 1000, self._time_is_up)

    def _time_is_up(self) -> None:
        """A timer may be served late, and before the sockets were read: the pass comes after the
        next reading."""
        assert self._loop is not None
        self._timer = None
        self._loop.call_soon(self._scheduler.time_is_up)

    def _pass(self) -> None:
        if self._ended:
            return
        try:
            self._scheduler.run()
        # any exception of a group ends the process: fenced, damaged, or a bug
        except Exception as error:
            self._ended = True
            if self._idle is not None:
                _settle(self._idle)
            self._on_fatal(as_fatal(error))

    def deliver(self, group: str, output: TurnOutput) -> None:
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
            self._fetch(group, output.tier_fetches)
        for done in output.done:
            future = self._waiting.pop(done.token, None)
            if future is not None and not future.done():
                future.set_result(done.outcome)
        if output.done:
            self._callers = len(output.done) + len(self._waiting)


def _settle(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _of_the_disk(error: OSError) -> FatalError:
    """The error for a file of this node that could not be read, opened or written outside of a
    group commit."""
    if is_exhausted(error):
        what = f"the operating system gives this node no more files, maps or memory ({error})"
        return FatalError(ExitCode.LIMIT, what, f"{LIMIT_REMEDY}, then start the node again")
    if is_no_space(error):
        return FatalError(
            ExitCode.NO_SPACE, f"no space ({error})", "free disk space, then start the node again"
        )
    what = f"a file of this node cannot be used ({error})"
    return FatalError(
        ExitCode.SYNC_FAILED, what, "check the disk, then start the node again; it verifies its log"
    )


def as_fatal(error: Exception) -> FatalError:
    """The exit code and message for an exception that ended the engine."""
    if isinstance(error, FatalError):
        return error
    if isinstance(error, Fenced):
        remedy = LIMIT_REMEDY if error.exit_code == ExitCode.LIMIT else "check the disk"
        return FatalError(
            error.exit_code,
            f"the replica is fenced: {error}",
            f"{remedy}, then start the node again; it verifies its log",
        )
    if isinstance(error, OSError):
        return _of_the_disk(error)
    exit_code = getattr(error, "exit_code", None)
    if isinstance(exit_code, int):
        return FatalError(exit_code, str(error), "see the node's log for details")
    fatal = FatalError(
        ExitCode.BUG,
        f"internal error, {type(error).__name__}: {error}",
        "this is a bug: report it with the node's log",
    )
    fatal.__cause__ = error
    return fatal
