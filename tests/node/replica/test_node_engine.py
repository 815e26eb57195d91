"""The engine over fake groups: batching, timers, fairness, syncs, answers, fatal ends, clean
stops."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, cast

import pytest
import uvloop

from ledgermq.node.broker.calls.consumer_calls import ClientGone
from ledgermq.node.broker.calls.group_view import GroupView
from ledgermq.node.broker.calls.member_calls import Appointed
from ledgermq.node.broker.calls.outcome import Call, Done, Refused
from ledgermq.node.broker.calls.read_calls import Peek, Peeked
from ledgermq.node.broker.calls.tier_calls import TierFetch, TierFetched
from ledgermq.node.broker.ports import Fenced, PeerPacket, SyncTicket
from ledgermq.node.replica.hosting.engine import LONE_QUIET_PASSES, QUIET_PASSES, Engine
from ledgermq.node.replica.hosting.scheduler import SLICE_NS, Scheduler
from ledgermq.node.runtime.errors import FatalError
from ledgermq.proto.types import ReplicaStatus, Role
from ledgermq.raft.ha_control import Appointment

FAR_NS = 1 << 62
PEEKED = Peeked((), 0, 0)


@dataclass(slots=True)
class Output:
    done: Sequence[Done] = ()
    packets: Sequence[tuple[str, PeerPacket]] = ()
    sync: SyncTicket | None = None
    wake_at_ns: int = FAR_NS
    view: GroupView | None = None
    hold_calls: bool = True
    open_batches: int = 0
    hides_view: bool = False
    ha_requests: Sequence[Any] = ()
    tier_fetches: Sequence[TierFetch] = ()


@dataclass(slots=True)
class FakeGroup:
    """Answers every Peek at once; everything else is up to `react`."""

    react: Callable[[FakeGroup, Output], None] = lambda group, output: None
    calls: list[Call] = field(default_factory=list)
    batches: list[int] = field(default_factory=list)
    packets: list[tuple[str, PeerPacket]] = field(default_factory=list)
    synced: list[tuple[SyncTicket, OSError | None]] = field(default_factory=list)
    turns: int = 0
    threads: set[str] = field(default_factory=set)
    closed: bool = False

    def turn(
        self,
        now_ns: int,
        now_ms: int,
        calls: Sequence[Call],
        packets: Sequence[tuple[str, PeerPacket]],
        synced: Sequence[tuple[SyncTicket, OSError | None]],
    ) -> Output:
        self.turns += 1
        self.threads.add(threading.current_thread().name)
        self.calls += calls
        self.batches.append(len(calls))
        self.packets += packets
        self.synced += synced
        output = Output(done=[Done(call.token, PEEKED) for call in calls if isinstance(call, Peek)])
        self.react(self, output)
        return output

    admitted_before_turn: int | None = None

    @property
    def running(self) -> FakeGroup:
        return self

    def admit(self) -> None:
        self.admitted_before_turn = self.turns + 1

    def status(self) -> ReplicaStatus:
        return ReplicaStatus("g", "n1", Role.FOLLOWER, 0, None, 0, -1, -1, -1, -1)

    def close(self) -> None:
        self.closed = True
        self.threads.add(threading.current_thread().name)


class Bench:
    """An engine with its callbacks recorded."""

    def __init__(
        self,
        *groups: FakeGroup,
        max_calls: int = 1000,
        now_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self.fatal: asyncio.Future[FatalError] = asyncio.get_running_loop().create_future()
        self.sent: list[tuple[str, Any]] = []
        loop = asyncio.get_running_loop()
        self.engine = Engine(
            {f"g{k + 1}": group for k, group in enumerate(groups)},
            send_packets=lambda group, packets: self.sent.extend(
                (group, packet) for packet in packets
            ),
            on_fatal=lambda error: loop.call_soon_threadsafe(self.fatal.set_result, error) and None,
            max_calls=max_calls,
            now_ns=now_ns,
        )
        self.engine.start()

    def peek(self, group: str = "g1") -> asyncio.Future[Any]:
        return self.engine.call(group, Peek(self.engine.new_token(), "t", 0, 0, 1))


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def loop_factory(request: pytest.FixtureRequest) -> Callable[[], asyncio.AbstractEventLoop]:
    """The order of timers, sockets and callbacks differs between the two."""
    return cast("Callable[[], asyncio.AbstractEventLoop]", request.param)


def run(
    main: Callable[[], Coroutine[Any, Any, None]],
    loop_factory: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(main())


def view(term: int) -> GroupView:
    return GroupView("n1", term, True, {}, {}, {})


async def test_calls_of_one_pass_of_the_loop_are_one_batch_and_all_are_answered() -> None:
    """64 calls made at once reach the group in one turn, on the loop's thread, and every future
    gets its own answer."""
    group = FakeGroup()
    bench = Bench(group)
    answers = await asyncio.gather(*(bench.peek() for _ in range(64)))
    assert answers == [PEEKED] * 64
    assert 64 in group.batches
    assert group.threads == {"MainThread"}
    assert bench.engine.open_calls == 0
    await bench.engine.stop()
    assert group.closed and len(group.threads) == 2, (
        "closing writes and syncs files, so it runs on a thread"
    )


async def test_a_lone_call_does_not_wait_for_others_and_one_of_two_callers_does() -> None:
    """A call waits for calls that may share its batch only while there is another caller. Passes of
    the loop are counted."""
    group = FakeGroup()
    bench = Bench(group)

    async def passes_of(call: asyncio.Future[Any]) -> int:
        passes = 0
        while not call.done():
            await asyncio.sleep(0)
            passes += 1
        return passes

    await bench.peek()
    for _ in range(3):
        assert await passes_of(bench.peek()) <= LONE_QUIET_PASSES + 4
    await asyncio.gather(bench.peek(), bench.peek())
    first, taken = bench.peek(), len(group.batches)
    for _ in range(QUIET_PASSES // 2):
        await asyncio.sleep(0)
    await asyncio.gather(first, bench.peek())
    assert 2 in group.batches[taken:], (
        "the second of two callers came a few passes later and shares the batch"
    )
    await bench.engine.stop()


async def test_admission_is_followed_by_a_turn_at_once() -> None:
    """A group that waits for nothing learns of its admission and gets a turn, so that an overdue
    election begins; others sleep on."""
    turned = asyncio.Event()
    loop = asyncio.get_running_loop()

    def react(group: FakeGroup, output: Output) -> None:
        if group.admitted_before_turn is not None:
            loop.call_soon_threadsafe(turned.set)

    group, other = FakeGroup(react), FakeGroup()
    bench = Bench(group, other)
    await asyncio.gather(bench.peek("g1"), bench.peek("g2"))
    before = other.turns
    bench.engine.admit("g1")
    async with asyncio.timeout(20):
        await turned.wait()
    assert (
        group.admitted_before_turn == group.turns
        and other.admitted_before_turn is None
        and other.turns == before
    )
    await bench.engine.stop()


async def test_room_for_reads_gives_every_group_a_turn() -> None:
    groups = FakeGroup(), FakeGroup()
    bench = Bench(*groups)
    await asyncio.gather(bench.peek("g1"), bench.peek("g2"))
    before = [group.turns for group in groups]
    bench.engine.turn_all()
    async with asyncio.timeout(20):
        while any(group.turns == was for group, was in zip(groups, before, strict=True)):
            await asyncio.sleep(0)
    assert [group.batches[-1] for group in groups] == [0, 0]
    await bench.engine.stop()


async def test_appointment_passes_calls_held_for_a_sync() -> None:
    """An appointment may be what ends the waiting: the gate does not hold it back."""
    release = threading.Event()
    wished: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def react(group: FakeGroup, output: Output) -> None:
        if group.turns == 1:
            output.sync = SyncTicket(1, release.wait)
        if any(isinstance(call, Appointed) for call in group.calls) and not group.synced:
            output.ha_requests = ("a wish",)

    group = FakeGroup(react)
    bench = Bench(group)
    bench.engine.on_wishes(lambda name, wishes: wished.done() or wished.set_result((name, wishes)))
    while not group.turns:
        await asyncio.sleep(0)
    held = bench.peek()
    bench.engine.notify_at_once(
        "g1", Appointed(Appointment(generation=0, version=1, epoch=1, master="n1"))
    )
    async with asyncio.timeout(20):
        assert await wished == ("g1", ("a wish",))
    assert [type(call) for call in group.calls] == [Appointed] and not held.done()
    release.set()
    assert await held == PEEKED
    await bench.engine.stop()


async def test_fetches_of_a_node_without_an_object_store_fail() -> None:
    """The leader gets an answer in any case, and can ask again."""
    fetch = TierFetch(7, "t", 0, 0, 5, 100, 1000, 10)

    answered = asyncio.Event()

    def react(group: FakeGroup, output: Output) -> None:
        if group.turns == 1:
            output.tier_fetches = (fetch,)
        if group.calls:
            answered.set()

    group = FakeGroup(react)
    bench = Bench(group)
    async with asyncio.timeout(20):
        await answered.wait()
    failure = "tiered storage is not configured on this node"
    assert group.calls == [TierFetched(fetch, failure=failure)]
    await bench.engine.stop()


async def test_timer_wakes_a_group_without_any_input() -> None:
    """A group that asks to be woken gets a turn although nothing happens; the other group does
    not."""
    third = asyncio.Event()
    loop = asyncio.get_running_loop()

    def react(group: FakeGroup, output: Output) -> None:
        output.wake_at_ns = 0 if group.turns < 3 else FAR_NS
        if group.turns == 3:
            loop.call_soon_threadsafe(third.set)

    timed, idle = FakeGroup(react), FakeGroup()
    bench = Bench(timed, idle)
    await third.wait()
    assert idle.turns == 1, "only the first turn of all"
    await bench.engine.stop()


async def test_sync_runs_on_its_own_thread_while_packets_flow_and_calls_gather() -> None:
    """During a sync the engine continues to turn for packets; calls wait for the end of the sync
    and then form one batch."""
    release = threading.Event()
    ran: list[str] = []
    stepped = asyncio.Event()
    loop = asyncio.get_running_loop()

    def sync() -> None:
        release.wait()
        ran.append(threading.current_thread().name)

    ticket = SyncTicket(1, sync)

    def react(group: FakeGroup, output: Output) -> None:
        if group.turns == 1:
            output.sync = ticket
        if group.packets:
            loop.call_soon_threadsafe(stepped.set)

    group = FakeGroup(react)
    bench = Bench(group)
    while not group.turns:
        await asyncio.sleep(0)
    calls = [bench.peek() for _ in range(3)]
    await asyncio.sleep(0)
    bench.engine.packets([("g1", "n2", PeerPacket(b"h"))])
    await stepped.wait()
    assert not group.calls and not group.synced and not ran
    release.set()
    assert await asyncio.gather(*calls) == [PEEKED] * 3
    assert group.synced == [(ticket, None)] and ran == ["sync-g1"] and 3 in group.batches
    await bench.engine.stop()


async def test_calls_that_could_be_answered_sooner_do_not_wait_for_a_sync() -> None:
    """A group that does not want its calls held gets them while its disk is busy, and answers
    them."""
    release = threading.Event()

    def react(group: FakeGroup, output: Output) -> None:
        output.hold_calls = False
        if group.turns == 1:
            output.sync = SyncTicket(1, lambda: release.wait() and None)

    group = FakeGroup(react)
    bench = Bench(group)
    while not group.turns:
        await asyncio.sleep(0)
    async with asyncio.timeout(20):
        assert await bench.peek() == PEEKED
    assert not group.synced
    release.set()
    await bench.engine.stop()


@pytest.mark.parametrize(
    "failure", [OSError(5, "Input/output error"), ValueError("a bug in the sync itself")]
)
async def test_failed_sync_reaches_the_group_and_a_fence_ends_the_engine_with_73(
    failure: Exception,
) -> None:
    """The group decides; Fenced is fatal with the exit code for a failed sync, and no call is
    answered afterwards."""

    def sync() -> None:
        raise failure

    def react(group: FakeGroup, output: Output) -> None:
        if group.turns == 1:
            output.sync = SyncTicket(1, sync)
        if group.synced:
            error = group.synced[0][1]
            assert isinstance(error, OSError) and str(failure) in str(error)
            raise Fenced("the log could not be synced")

    bench = Bench(FakeGroup(react))
    fatal = await bench.fatal
    assert fatal.exit_code == 73 and "could not be synced" in str(fatal)
    late = bench.peek()
    await asyncio.sleep(0)
    assert not late.done()


class UnknownFormatLike(Exception):
    exit_code = 76


@pytest.mark.parametrize(
    ("error", "exit_code"),
    [
        (AssertionError("invariant"), 70),
        (KeyError("x"), 70),
        (FatalError(75, "damaged", "restore"), 75),
        (UnknownFormatLike("old"), 76),
    ],
)
async def test_any_exception_of_a_turn_is_fatal_with_its_exit_code(
    error: Exception, exit_code: int
) -> None:
    """A bug is 70; errors that carry an exit code keep it."""

    def react(group: FakeGroup, output: Output) -> None:
        raise error

    bench = Bench(FakeGroup(react))
    assert (await bench.fatal).exit_code == exit_code


@pytest.mark.parametrize("what", ["_let_go", "_order_next"])
async def test_a_failure_behind_the_turns_of_a_pass_is_fatal(
    monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """The loop would only log it, and no group would get another turn."""

    def fail(_: Scheduler) -> None:
        raise AssertionError("invariant")

    monkeypatch.setattr(Scheduler, what, fail)
    assert (await asyncio.wait_for(Bench(FakeGroup(lambda *_: None)).fatal, 10)).exit_code == 70


async def test_stop_answers_open_calls_and_waits_for_the_sync_under_way() -> None:
    """No future is left hanging, and no group is closed while its files are being synced."""
    release = threading.Event()
    order: list[str] = []

    def sync() -> None:
        release.wait()
        order.append("synced")

    def react(group: FakeGroup, output: Output) -> None:
        output.done = ()
        if group.calls and not order and not group.synced:
            output.sync = SyncTicket(1, sync)

    group = FakeGroup(react)
    bench = Bench(group)
    taken = bench.peek()
    while not group.calls:
        await asyncio.sleep(0)
    waiting = bench.peek()
    stopping = asyncio.create_task(bench.engine.stop())
    await asyncio.sleep(0)
    assert not group.closed
    release.set()
    await stopping
    assert order == ["synced"] and group.closed and len(group.synced) == 1
    assert taken.result() == Refused("unknown-outcome", detail="the node is stopping")
    assert waiting.result() == Refused("not-leader", detail="the node is stopping"), (
        "no group ever saw it"
    )
    assert bench.peek().result() == waiting.result()


async def test_too_many_open_calls_are_refused_at_once() -> None:
    """The bound on open calls is a refusal, not a queue."""

    def react(group: FakeGroup, output: Output) -> None:
        output.done = ()

    bench = Bench(FakeGroup(react), max_calls=2)
    first, second, third = bench.peek(), bench.peek(), bench.peek()
    assert third.result().reason == "busy"
    assert not first.done() and not second.done()
    await bench.engine.stop()


async def test_a_call_for_a_group_without_a_replica_here_is_refused_as_led_elsewhere() -> None:
    """A stream that reached a node, or a worker, without the group is sent on to where it is
    led."""
    bench = Bench(FakeGroup(lambda group, output: None))
    assert (await bench.peek("elsewhere")).reason == "not-leader"
    assert bench.engine.open_calls == 0
    await bench.engine.stop()


async def test_packets_go_to_their_group_and_strangers_are_dropped() -> None:
    """Packets of a group that is not hosted here have no effect; calls without an answer leave
    nothing behind."""
    one, two = FakeGroup(), FakeGroup()
    bench = Bench(one, two)
    packet = PeerPacket(b"h", b"p")
    bench.engine.packets([("g2", "n2", packet), ("g9", "n2", packet)])
    bench.engine.notify("g2", ClientGone("c", 1))
    await bench.peek("g2")
    assert two.packets == [("n2", packet)] and not one.packets
    assert isinstance(two.calls[0], ClientGone)
    await bench.engine.stop()


async def test_views_are_published_and_packets_sent_from_the_loop() -> None:
    """A new view reaches listeners and `views`; packets leave through the callback."""

    def react(group: FakeGroup, output: Output) -> None:
        output.view = view(group.turns)
        output.packets = [("n2", PeerPacket(b"h"))]

    bench = Bench(FakeGroup(react))
    seen: list[tuple[str, int]] = []
    bench.engine.on_view(lambda group, new: seen.append((group, new.term)))
    await bench.peek()
    await bench.engine.stop()
    assert bench.engine.views["g1"].term == seen[-1][1]
    assert bench.sent and all(group == "g1" and packet[0] == "n2" for group, packet in bench.sent)


async def test_run_sees_the_group_between_two_turns() -> None:
    """`run` and `status` execute on the loop's thread."""
    bench = Bench(FakeGroup())
    assert (
        await bench.engine.run("g1", lambda group: threading.current_thread().name) == "MainThread"
    )
    assert (await bench.engine.status("g1")).role is Role.FOLLOWER
    with pytest.raises(ZeroDivisionError):
        await bench.engine.run("g1", lambda group: 1 // 0)
    assert await bench.peek() == PEEKED, "a failing question does not end the engine"
    await bench.engine.stop()


class Clock:
    """A clock that only the turns of the groups move."""

    def __init__(self) -> None:
        self.now_ns = 0

    def __call__(self) -> int:
        return self.now_ns


def test_long_turns_leave_the_loop_and_other_groups_their_share(
    loop_factory: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    """Two groups apply a long log and turn again and again. After each of these turns the loop runs
    other work. The third group, whose heartbeats are due all the time, waits for one turn of each,
    and what it sends leaves at once."""
    clock, events, turns = Clock(), [], 30

    async def main() -> None:
        loop = asyncio.get_running_loop()
        finished = asyncio.Event()

        def applies(name: str) -> Callable[[FakeGroup, Output], None]:
            def react(group: FakeGroup, output: Output) -> None:
                events.append(name)
                clock.now_ns += SLICE_NS
                output.wake_at_ns = clock.now_ns if group.turns < turns else FAR_NS
                if name == "second" and group.turns == turns:
                    finished.set()

            return react

        def beats(group: FakeGroup, output: Output) -> None:
            events.append("beat")
            output.wake_at_ns = clock.now_ns
            output.packets = [("n2", PeerPacket(b"h"))]

        def works() -> None:
            events.append("loop")
            assert len(bench.sent) == events.count("beat")
            if not finished.is_set():
                loop.call_soon(works)

        bench = Bench(
            FakeGroup(applies("first")),
            FakeGroup(applies("second")),
            FakeGroup(beats),
            now_ns=clock,
        )
        works()
        await finished.wait()
        await bench.engine.stop()

    run(main, loop_factory)
    long = [at for at, event in enumerate(events) if event in ("first", "second")]
    assert [events[at] for at in long] == ["first", "second"] * turns
    assert all("loop" in events[begin:end] for begin, end in pairwise(long))
    assert all("beat" in events[begin:end] for begin, end in pairwise(long[::2]))


def test_overdue_timer_runs_after_the_sockets_were_read(
    loop_factory: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    """The process stood still while a heartbeat arrived. The group hears it before, or together
    with, the timer that is overdue. uvloop serves timers first after it stood still in the callback
    of a socket."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        heartbeats, stalls = socket.socketpair(), socket.socketpair()
        due, turned = asyncio.Event(), asyncio.Event()
        first_heard: list[bool] = []

        def react(group: FakeGroup, output: Output) -> None:
            output.wake_at_ns = time.monotonic_ns() + 5_000_000 if group.turns == 1 else FAR_NS
            if group.turns == 1:
                due.set()
            else:
                first_heard.append(bool(group.packets))
                turned.set()

        bench = Bench(FakeGroup(react))

        def heard() -> None:
            heartbeats[0].recv(1)
            bench.engine.packets([("g1", "n2", PeerPacket(b"heartbeat"))])

        def stands_still() -> None:
            stalls[0].recv(1)
            heartbeats[1].send(b"h")
            until = time.monotonic() + 0.05
            while time.monotonic() < until:
                pass

        loop.add_reader(heartbeats[0].fileno(), heard)
        loop.add_reader(stalls[0].fileno(), stands_still)
        async with asyncio.timeout(20):
            await due.wait()
            stalls[1].send(b"s")
            await turned.wait()
        assert first_heard[0]
        for pair in (heartbeats, stalls):
            loop.remove_reader(pair[0].fileno())
            pair[0].close()
            pair[1].close()
        await bench.engine.stop()

    run(main, loop_factory)


async def test_repeated_questions_do_not_starve_turns() -> None:
    """Whoever repeats a question until its answer changes lets the turn happen that changes it."""
    bench = Bench(FakeGroup())
    peeked = bench.peek()
    async with asyncio.timeout(20):
        while not await bench.engine.run("g1", lambda group: len(group.calls)):
            pass
    assert await peeked == PEEKED
    await bench.engine.stop()


async def test_after_a_fatal_failure_no_group_turns_and_no_question_is_answered() -> None:
    """The pass ends where it failed, and neither timers, syncs nor calls begin another one
    (invariant I9)."""
    release, reported = threading.Event(), asyncio.Event()

    def first(group: FakeGroup, output: Output) -> None:
        output.wake_at_ns = 0
        if group.turns == 1:
            output.sync = SyncTicket(1, lambda: release.wait() and None)

    def second(group: FakeGroup, output: Output) -> None:
        raise AssertionError("invariant")

    groups = FakeGroup(first), FakeGroup(second), FakeGroup()
    bench = Bench(*groups)
    assert (await bench.fatal).exit_code == 70
    before = [group.turns for group in groups]
    assert before == [1, 1, 0]
    scheduler = bench.engine._scheduler
    sync_ended = scheduler.sync_ended
    scheduler.sync_ended = lambda *outcome: (sync_ended(*outcome), reported.set())[0]  # type: ignore[method-assign]
    release.set()
    bench.peek("g3")
    async with asyncio.timeout(20):
        await reported.wait()
        with pytest.raises(TimeoutError, match="have ended"):
            await bench.engine.status("g1")
    assert [group.turns for group in groups] == before
    await bench.engine.stop()
    assert not any(group.closed for group in groups)


async def test_leaving_group_turns_only_for_its_last_sync() -> None:
    """Its calls are refused, packets and timers do not reach it, and another group of the same name
    may come."""
    release, began = threading.Event(), asyncio.Event()

    def react(group: FakeGroup, output: Output) -> None:
        output.wake_at_ns = 0
        if group.turns == 1:
            output.sync = SyncTicket(1, lambda: release.wait() and None)
            began.set()

    group = FakeGroup(react)
    bench = Bench(group)
    async with asyncio.timeout(20):
        await began.wait()
        held = bench.peek()
        leaving = asyncio.create_task(bench.engine.take_out("g1"))
        await asyncio.sleep(0)
        turns = group.turns
        bench.engine.packets([("g1", "n2", PeerPacket(b"h"))])
        assert (await bench.peek()).reason == "not-leader"
        assert not leaving.done() and group.turns == turns
        release.set()
        assert await leaving is group
    assert (
        group.turns == turns + 1
        and len(group.synced) == 1
        and not group.packets
        and not group.closed
    )
    assert (await held).reason == "not-leader"
    bench.engine.take_in("g1", again := FakeGroup())
    assert await bench.peek() == PEEKED
    await bench.engine.stop()
    assert again.closed


async def test_a_stopping_group_turns_for_its_syncs_and_takes_no_more_packets() -> None:
    """A leader that goes on pushing would otherwise give a follower another sync with every sync
    that ends, and the stop no end."""
    release, began = threading.Event(), asyncio.Event()
    packet = ("g1", "n2", PeerPacket(b"h"))

    def react(group: FakeGroup, output: Output) -> None:
        if group.turns == 1 or group.turns <= len(group.packets) + 1 <= 100:
            output.sync = SyncTicket(group.turns, lambda: release.wait() and None)
            bench.engine.packets([packet])
            began.set()

    group = FakeGroup(react)
    bench = Bench(group)
    async with asyncio.timeout(20):
        await began.wait()
        stopping = asyncio.create_task(bench.engine.stop())
        await asyncio.sleep(0)
        taken = len(group.packets)
        bench.engine.packets([packet])
        release.set()
        await stopping
    assert len(group.packets) == taken and group.closed
