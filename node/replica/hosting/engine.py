"""The one thread that owns every broker group of this node.

Theory of operation. The event loop never touches a group. It puts inputs (client calls, peer packets) into the inbox. The engine thread
takes all inputs, gives each group one `turn`, and hands all outputs back to the loop in one callback. fdatasync runs on one further thread
per group; its outcome is an input like any other. The calls of a group wait while a batch is in progress (`batch_gate.py`), unless the
group says that some could be answered sooner; the calls that arrived by then form the next batch. So a batch costs one append, one push to
each follower and one sync, however many calls it has. The engine makes no decision about logs, roles or deliveries, and it does not know
gRPC.

Groups can be added and removed while the engine runs (`take_in`, `take_out`). The tables by group are replaced as a whole on the engine's
thread, so that the loop always reads a complete table. A group that is being removed gets no calls, and turns only until its last sync has
ended.

Failure: any exception from a turn ends the engine for good. `on_fatal` is called on the engine thread before any later output of any group
could leave (invariant I9), and must not return control to the groups.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

from ledgermq.node.broker.calls import Token
from ledgermq.node.broker.calls.consumer_calls import CancelReceive, ClientGone, ClientsAlive
from ledgermq.node.broker.calls.group_view import GroupView
from ledgermq.node.broker.calls.member_calls import Appointed, Prefer, Returned
from ledgermq.node.broker.calls.outcome import Call, Refused, Result
from ledgermq.node.broker.group.group import TurnOutput
from ledgermq.node.broker.ports import Fenced, PeerPacket, SyncTicket
from ledgermq.node.replica.hosting.batch_gate import OPEN_BATCHES
from ledgermq.node.replica.hosting.ports import EngineGroup
from ledgermq.node.replica.hosting.range_repairs import RangePut
from ledgermq.node.replica.hosting.syncer import Synced, Syncer
from ledgermq.node.runtime import metrics
from ledgermq.node.runtime.errors import FatalError
from ledgermq.proto.status import ExitCode, refused
from ledgermq.proto.types import ReplicaStatus
from ledgermq.raft.ha_control import HaRequest
from ledgermq.storage.errors import LIMIT_REMEDY, is_exhausted, is_no_space

T = TypeVar("T")
Outcome = Result | Refused

# A turn takes at most this many inputs, so that heartbeats and timers of all groups are never far apart.
INPUTS_PER_TURN = 2048
# The engine is woken for calls after this many passes of the loop without a new call, and after DRAIN_PASSES at the latest.
QUIET_PASSES = 2
DRAIN_PASSES = 32
_SILENT = (CancelReceive, ClientsAlive, ClientGone, Prefer, Returned, Appointed)
_STOPPING = Refused("not-leader", detail="the node is stopping")


@dataclass(slots=True)
class _Inputs:
    calls: list[Call] = field(default_factory=list)
    packets: list[tuple[str, PeerPacket]] = field(default_factory=list)
    synced: list[tuple[SyncTicket, OSError | None]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Packets:
    items: Sequence[tuple[str, str, PeerPacket]]


@dataclass(frozen=True, slots=True)
class _Urgent:
    group: str
    call: Call


@dataclass(frozen=True, slots=True)
class _Wake:
    group: str


@dataclass(frozen=True, slots=True)
class _Run:
    work: Callable[[], None]


@dataclass(frozen=True, slots=True)
class _Admit:
    group: str


class _Stop:
    pass


class _Look:
    """Wakes the engine because calls wait for a group whose gate is open."""


class Engine:
    """Owns the groups. Public methods must be called on the loop's thread unless they say otherwise."""

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
        self._groups = dict(groups)
        self._open_batches = open_batches
        self._leaving: dict[str, Callable[[], None]] = {}
        """Groups that are being removed, with a callback for the end of the removal. Owned by the engine's thread."""
        self._gone: frozenset[str] = frozenset()
        """Groups that take no more calls. Owned by the loop."""
        self._send_packets = send_packets
        self._on_fatal = on_fatal
        self._max_calls = max_calls
        self._now_ns = now_ns
        self._now_ms = now_ms
        self._inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._syncers = {name: Syncer(name, self._inbox, open_batches) for name in self._groups}
        self._wake_at_ns = dict.fromkeys(self._groups, 0)
        # The loop appends and the engine removes; both are atomic list operations.
        self._held: dict[str, list[Call]] = {name: [] for name in self._groups}
        self._turn_seconds = {name: metrics.TURN_SECONDS.labels(name) for name in self._groups}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._stopped: asyncio.Future[None] | None = None
        self._next_token: Token = 1
        self._waiting: dict[Token, asyncio.Future[Outcome]] = {}
        self._notified = 0
        """Number of calls that the loop has put."""
        self._draining = False
        self._seen, self._quiet, self._passes = 0, 0, 0
        """While draining: calls put up to the last pass, consecutive passes without a new call, and passes."""
        self._stopping = False
        self._listeners: list[Callable[[str, GroupView], None]] = []
        self._hidden_listeners: list[Callable[[str], None]] = []
        self._wish_listeners: list[Callable[[str, Sequence[HaRequest]], None]] = []
        self.views: dict[str, GroupView] = {}

    # -- the loop's side

    def start(self) -> None:
        """Start the threads. Called once, from inside the running loop."""
        self._loop = asyncio.get_running_loop()
        self._stopped = self._loop.create_future()
        for syncer in self._syncers.values():
            syncer.start()
        self._thread = threading.Thread(target=self._work, name="engine", daemon=True)
        self._thread.start()

    async def stop(self, drain_s: float = 0.0) -> None:
        """Give open calls `drain_s` seconds to finish, then close every group and end the threads.

        New calls are refused with `not-leader` (nothing was done, so the client may try another node), and so are calls that no group has
        taken yet. Calls that a group has taken end with `unknown-outcome`.
        """
        assert self._stopped is not None
        self._stopping = True
        limit = asyncio.get_running_loop().time() + drain_s
        while self._waiting and asyncio.get_running_loop().time() < limit:
            await asyncio.sleep(0.01)
        self._drained()
        self._inbox.put(_Stop())
        await self._stopped
        untaken = {call.token for calls in self._held.values() for call in calls if not isinstance(call, _SILENT)}
        for token, future in self._waiting.items():
            if not future.done():
                future.set_result(_STOPPING if token in untaken else Refused("unknown-outcome", detail=_STOPPING.detail))
        self._waiting.clear()

    @property
    def groups(self) -> tuple[str, ...]:
        return tuple(self._groups)

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
        if group in self._gone or group not in self._held:
            future.set_result(Refused("not-leader", detail=f"broker group {group} has no replica on this node"))
            return future
        if len(self._waiting) >= self._max_calls:
            future.set_result(Refused("busy", detail=f"more than {self._max_calls} calls are open on this node"))
            return future
        self._waiting[call.token] = future  # type: ignore[union-attr]  # calls without a token go through `notify`
        self.notify(group, call)
        return future

    def notify(self, group: str, call: Call) -> None:
        """Put a call that has no answer. While the group's gate is closed this only queues it: the engine takes it when the gate opens."""
        if group in self._gone or group not in self._held:
            return
        self._notified += 1
        # Append first: a thread that opens the gate at this moment then sees either the call or the wake-up.
        self._held[group].append(call)
        if not self._syncers[group].gate.shut:
            self._drain()

    def notify_at_once(self, group: str, call: Call) -> None:
        """Like `notify`, but past the gate, because the call may be what opens it."""
        self._inbox.put(_Urgent(group, call))

    def packets(self, items: Sequence[tuple[str, str, PeerPacket]]) -> None:
        """Put peer packets, each as (group, sender, packet). Packets of groups that are not hosted here are dropped."""
        self._inbox.put(_Packets(items))

    def admit(self, group: str) -> None:
        """Let the replica take part, because all other voters know its directory; a turn follows at once."""
        self._inbox.put(_Admit(group))

    def wake(self, group: str) -> None:
        """Give the group a turn, because work on another thread ended. May be called from any thread."""
        self._inbox.put(_Wake(group))

    def run(self, group: str, work: Callable[[Any], T]) -> asyncio.Future[T]:
        """Run `work(open group)` between two turns, for status queries. It must be quick and must not change the group. An exception of
        `work` goes to the caller and not to the engine, and so does the LedgerError of a group that does not run."""
        target = self._hosted(group)
        return self._between_turns(lambda: work(target.running))

    def _hosted(self, group: str) -> EngineGroup:
        found = self._groups.get(group)
        if found is None:
            raise refused("not-leader", f"broker group {group} has no replica on this node")
        return found

    def _between_turns(self, work: Callable[[], T]) -> asyncio.Future[T]:
        loop = self._loop
        assert loop is not None
        future: asyncio.Future[T] = loop.create_future()

        def settle(value: T | None, error: Exception | None) -> None:
            if future.done():
                return
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(cast(T, value))

        def on_engine() -> None:
            try:
                value = work()
            except Exception as error:  # a failed query must not end the node
                loop.call_soon_threadsafe(settle, None, error)
            else:
                loop.call_soon_threadsafe(settle, value, None)

        self._inbox.put(_Run(on_engine))
        return future

    def status(self, group: str) -> asyncio.Future[ReplicaStatus]:
        return self._between_turns(self._hosted(group).status)

    async def put_back(self, group: str, first_index: int, last_index: int) -> RangePut:
        """Restore a range of this replica's entries from its peers while the group runs. Raises LedgerError."""
        target = self._hosted(group)
        put = await self._between_turns(lambda: target.put_back(first_index, last_index))
        self.wake(group)
        return await asyncio.wrap_future(put)

    async def mend_all(self, group: str, reason: str) -> None:
        """Stop the group, and verify and repair its whole log from peers; its status shows the progress. Raises LedgerError."""
        target = self._hosted(group)
        await self._between_turns(lambda: target.mend_all(reason))
        self.wake(group)

    async def take_in(self, name: str, group: EngineGroup) -> None:
        """Add a group."""
        syncer = Syncer(name, self._inbox, self._open_batches)
        syncer.start()

        def on_engine() -> None:
            self._syncers = {**self._syncers, name: syncer}
            self._held = {**self._held, name: []}
            self._turn_seconds = {**self._turn_seconds, name: metrics.TURN_SECONDS.labels(name)}
            self._wake_at_ns = {**self._wake_at_ns, name: 0}
            self._groups = {**self._groups, name: group}

        await self._between_turns(on_engine)
        self._gone -= {name}
        self.wake(name)

    async def take_out(self, name: str) -> EngineGroup:
        """Remove a group and return it for the caller to close. It gets no more calls or packets, and no turns after its last sync."""
        loop, group = self._loop, self._groups[name]
        assert loop is not None
        gone: asyncio.Future[None] = loop.create_future()
        self._gone |= {name}

        def ended() -> None:
            loop.call_soon_threadsafe(lambda: None if gone.done() else gone.set_result(None))

        await self._between_turns(lambda: self._leaving.__setitem__(name, ended))
        self.wake(name)
        await gone
        untaken = [call.token for call in self._held[name] if not isinstance(call, _SILENT)]
        self._held[name].clear()
        self.give_up(untaken, Refused("not-leader", detail=f"broker group {name} has no replica on this node any more"))
        self._syncers[name].stop()
        if self.views.pop(name, None) is not None:
            for hidden in self._hidden_listeners:
                hidden(name)
        return group

    def give_up(self, tokens: Iterable[Token], outcome: Refused) -> None:
        """End calls that will not be answered with this outcome."""
        for token in tokens:
            future = self._waiting.pop(token, None)
            if future is not None and not future.done():
                future.set_result(outcome)

    def on_view(self, listener: Callable[[str, GroupView], None]) -> None:
        """Call `listener(group, view)` on the loop whenever a group publishes a new view."""
        self._listeners.append(listener)

    def on_wishes(self, listener: Callable[[str, Sequence[HaRequest]], None]) -> None:
        """Call `listener(group, requests)` on the loop whenever a group has requests to the controller quorum."""
        self._wish_listeners.append(listener)

    def on_hidden(self, listener: Callable[[str], None]) -> None:
        """Call `listener(group)` on the loop whenever a group's view is withdrawn because the group stopped running here."""
        self._hidden_listeners.append(listener)

    def _drain(self) -> None:
        """Wake the engine after the loop stops bringing calls, so that all queued calls form one batch."""
        assert self._loop is not None
        if not self._draining:
            self._draining = True
            self._seen, self._quiet, self._passes = self._notified, 0, 0
            self._loop.call_soon(self._drain_pass)

    def _drain_pass(self) -> None:
        assert self._loop is not None
        self._quiet = self._quiet + 1 if self._notified == self._seen else 0
        self._seen, self._passes = self._notified, self._passes + 1
        if self._quiet >= QUIET_PASSES or self._passes >= DRAIN_PASSES:
            self._drained()
        else:
            self._loop.call_soon(self._drain_pass)

    def _drained(self) -> None:
        self._draining = False
        for syncer in self._syncers.values():
            syncer.gate.rested()
        if any(held and not self._syncers[group].gate.shut for group, held in self._held.items()):
            self._inbox.put(_Look())

    def _deliver(self, outputs: Sequence[tuple[str, TurnOutput]]) -> None:
        """Runs on the loop: deliver the outputs of one pass of the engine."""
        for group, output in outputs:
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
            for done in output.done:
                future = self._waiting.pop(done.token, None)
                if future is not None and not future.done():
                    future.set_result(done.outcome)
            if output.done:
                self._drain()

    # -- the engine's thread

    def _work(self) -> None:
        try:
            while self._pass():
                pass
            self._close()
        except Exception as error:  # any exception of a group ends the process: fenced, damaged, or a bug
            self._on_fatal(as_fatal(error))
        finally:
            loop, stopped = self._loop, self._stopped
            assert loop is not None and stopped is not None
            with contextlib.suppress(RuntimeError):  # after a fatal end the loop may be closed, and then nothing waits
                loop.call_soon_threadsafe(lambda: None if stopped.done() else stopped.set_result(None))

    def _pass(self) -> bool:
        """Wait for inputs or a timer, give each group concerned one turn, hand over the outputs. Returns False after a stop."""
        inputs: dict[str, _Inputs] = {}
        running = self._collect(inputs)
        outputs: list[tuple[str, TurnOutput]] = []
        for name in self._groups:
            given, gate = inputs.get(name), self._syncers[name].gate
            if name in self._leaving:
                if given is not None and given.synced:
                    outputs.append((name, self._turn(name, given)))
                continue
            if self._held[name] and not gate.shut:
                given, waited = given or _Inputs(), self._held[name][:]
                given.calls += waited
                del self._held[name][: len(waited)]
            if given is not None or self._wake_at_ns[name] <= self._now_ns():
                outputs.append((name, self._turn(name, given or _Inputs())))
        self._hand_over(outputs)
        if self._leaving:
            self._let_go()
        return running

    def _let_go(self) -> None:
        """Remove those leaving groups that have no sync in progress."""
        for name in [name for name in self._leaving if not self._syncers[name].gate.under_way]:
            self._groups = {other: group for other, group in self._groups.items() if other != name}
            self._wake_at_ns = {other: at_ns for other, at_ns in self._wake_at_ns.items() if other != name}
            self._leaving.pop(name)()

    def _turn(self, name: str, given: _Inputs) -> TurnOutput:
        began = time.perf_counter()
        output = self._groups[name].turn(self._now_ns(), self._now_ms(), given.calls, given.packets, given.synced)
        self._wake_at_ns[name] = output.wake_at_ns
        self._syncers[name].gate.turned(output, answers=bool(output.done))
        if output.sync is not None:
            self._syncers[name].submit(output.sync)
        self._turn_seconds[name].observe(time.perf_counter() - began)
        return output

    def _hand_over(self, outputs: list[tuple[str, TurnOutput]]) -> None:
        if any(made.done or made.packets or made.view is not None or made.hides_view or made.ha_requests for _, made in outputs):
            assert self._loop is not None
            self._loop.call_soon_threadsafe(self._deliver, outputs)

    def _collect(self, inputs: dict[str, _Inputs]) -> bool:
        """Take everything from the inbox, sorted by group; waits until there is an input or a timer is due. Returns False after a stop."""
        wake_at_ns = min(self._wake_at_ns.values(), default=0)
        # A gate may have opened in the last turn, and nothing else wakes the engine for the calls behind it.
        ready = any(held and not self._syncers[name].gate.shut for name, held in self._held.items())
        wait_ns = 0 if ready else wake_at_ns - self._now_ns()
        try:
            item = self._inbox.get(timeout=wait_ns / 1e9) if wait_ns > 0 else self._inbox.get_nowait()
            for left in reversed(range(INPUTS_PER_TURN)):
                if isinstance(item, _Stop):
                    return False
                self._sort_in(item, inputs)
                if left:
                    item = self._inbox.get_nowait()
        except queue.Empty:
            pass
        return True

    def _sort_in(self, item: _Look | _Packets | Synced | _Admit | _Wake | _Urgent | _Run, inputs: dict[str, _Inputs]) -> None:
        if isinstance(item, _Packets):
            for group, sender, packet in item.items:
                if group in self._groups and group not in self._leaving:
                    inputs.setdefault(group, _Inputs()).packets.append((sender, packet))
        elif isinstance(item, Synced):
            self._syncers[item.group].gate.sync_ended()
            inputs.setdefault(item.group, _Inputs()).synced.append((item.ticket, item.error))
        elif isinstance(item, _Admit):
            if item.group in self._groups:
                self._groups[item.group].admit()
                inputs.setdefault(item.group, _Inputs())
        elif isinstance(item, _Wake):
            inputs.setdefault(item.group, _Inputs())
        elif isinstance(item, _Urgent):
            inputs.setdefault(item.group, _Inputs()).calls.append(item.call)
        elif isinstance(item, _Run):
            item.work()

    def _close(self) -> None:
        """Wait for syncs in progress (their outcome must not be lost to a closed file), then close every group."""
        while any(syncer.gate.under_way for syncer in self._syncers.values()):
            item = self._inbox.get()
            if isinstance(item, Synced):
                inputs: dict[str, _Inputs] = {}
                self._sort_in(item, inputs)
                self._hand_over([(name, self._turn(name, given)) for name, given in inputs.items()])
        for syncer in self._syncers.values():
            syncer.stop()
        for group in self._groups.values():
            group.close()


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
