"""What the application does in a callback: every callback of the clients × every call of theirs
that it may make, and what it may raise.

A call works or raises BadArgument at once. None blocks for ever, none costs another message its
outcome, and no exception passes over a message.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from ledgermq.client import AsyncConsumer, AsyncProducer, BadArgument, Consumer, Producer, Refused
from ledgermq.client.native.consumers import consumer as module
from tests.client.fake_log import FakeLogNode, Trouble, endpoints, fake_log
from tests.client.fake_reading import FakeConnection, FakeLog, served
from tests.client.virtual_time import VirtualLoop

SOON_S = 20.0
WORKS, REFUSED = "works", "BadArgument"
Calls = dict[str, Callable[[], Any]]


async def threaded(work: Callable[[], Any]) -> Any:
    """The result of a function in a thread of its own, soon. A thread that hangs does not keep the
    tests from ending."""
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[Any] = loop.create_future()

    def run() -> None:
        try:
            settle, value = outcome.set_result, work()
        except BaseException as error:
            settle, value = outcome.set_exception, error
        loop.call_soon_threadsafe(settle, value)

    threading.Thread(target=run, daemon=True).start()
    async with asyncio.timeout(2 * SOON_S):
        return await outcome


def outcome_of(call: Callable[[], Any]) -> str:
    try:
        call()
    except Exception as error:
        return type(error).__name__
    return WORKS


# -- the producer for threads


def fill(sending: Producer) -> None:
    while True:
        sending.send(bytes(400))


def calls_of(sending: Producer) -> Calls:
    return {
        "statistics": lambda: sending.statistics.waiting,
        "send": lambda: sending.send(b"from a callback"),
        "result": lambda: sending.send(b"from a callback").result(),
        "result in time": lambda: sending.send(b"from a callback").result(5),
        "exception": lambda: sending.send(b"from a callback").exception(),
        "send_batch": lambda: sending.send_batch([b"from a callback"]),
        "send_arrow": lambda: sending.send_arrow(Table()),
        "flush": sending.flush,
        "next_sequences": sending.next_sequences,
        "refresh": sending.refresh,
        "close": sending.close,
        "close at once": lambda: sending.close(0),
        "end of the block": lambda: sending.__exit__(None),
        "send without room": lambda: fill(sending),
    }


class Table:
    """No table: the call is refused before it is looked at."""


OPEN = {
    name: WORKS if name in ("statistics", "send") else REFUSED
    for name in calls_of(Producer(topic="t"))
}
CLOSED = OPEN | {"send": REFUSED}
"""While the producer is being closed, a second close would wait for the first."""


def acknowledged(sending: Producer, node: FakeLogNode, callback: Callable[[object], None]) -> None:
    sending.send(b"1").add_done_callback(callback)


def batch_acknowledged(
    sending: Producer, node: FakeLogNode, callback: Callable[[object], None]
) -> None:
    sending.send_batch([b"1", b"2"]).add_done_callback(callback)


def refused(sending: Producer, node: FakeLogNode, callback: Callable[[object], None]) -> None:
    node.troubles = [Trouble.REFUSE]
    sending.send(b"1").add_done_callback(callback)


def wrong(sending: Producer, node: FakeLogNode, callback: Callable[[object], None]) -> None:
    number: Any = "1"
    sending.send(b"1", queue=number).add_done_callback(callback)


def out_of_time(sending: Producer, node: FakeLogNode, callback: Callable[[object], None]) -> None:
    sending.send(b"1").add_done_callback(callback)


def given_up(sending: Producer, node: FakeLogNode, callback: Callable[[object], None]) -> None:
    sending.send(b"1").add_done_callback(callback)
    sending.close(0)


def progress(sending: Producer, node: FakeLogNode, callback: Callable[[object], None]) -> None:
    sending._producer._on_progress = callback
    sending.send(b"1")


CALLBACKS = (acknowledged, batch_acknowledged, refused, wrong, out_of_time, given_up, progress)
UNANSWERED = (out_of_time, given_up)
WAITS_FOR_THE_LOOP = (batch_acknowledged, given_up)


@contextmanager
def unanswered(
    sending: Producer,
    node: FakeLogNode,
    loop: asyncio.AbstractEventLoop,
    begin: Callable[..., None],
) -> Iterator[None]:
    """Nothing has an outcome meanwhile, so a callback is there before it: that of a future which is
    done runs in the caller's thread.

    `loop` is that of the node. The loop of the client stands still, so that all messages are in one
    frame, unless `begin` waits for it.
    """
    assert sending._background is not None
    over = threading.Event()
    node.hold.clear()
    if begin not in WAITS_FOR_THE_LOOP:
        sending._background.soon(over.wait)
    try:
        yield
    finally:
        over.set()
        if begin not in UNANSWERED:
            loop.call_soon_threadsafe(node.hold.set)


@pytest.mark.parametrize("begin", CALLBACKS)
async def test_a_producers_callback_may_send_while_there_is_room_and_never_waits(
    begin: Callable[..., None],
) -> None:
    """Whatever the outcome that called it. Every message, also those of the callback, has an
    outcome, and `close` returns."""
    found: dict[str, str] = {}

    async with fake_log() as (nodes, _):
        loop = asyncio.get_running_loop()

        def work() -> None:
            called = threading.Event()
            timeout_s = 0.3 if begin is out_of_time else 20.0
            with Producer(
                endpoints(nodes), "t", buffer_bytes=8_000, timeout_s=timeout_s
            ) as sending:
                calls = calls_of(sending)

                def callback(_: object) -> None:
                    sending._producer._on_progress = None
                    for name, call in calls.items():
                        found[name] = "blocks"
                        found[name] = outcome_of(call)
                    called.set()

                with unanswered(sending, nodes[0], loop, begin):
                    begin(sending, nodes[0], callback)
                assert called.wait(SOON_S), found
                loop.call_soon_threadsafe(nodes[0].hold.set)
            assert sending.statistics.waiting == 0

        await threaded(work)
    assert found == (CLOSED if begin is given_up else OPEN)


@pytest.mark.parametrize(
    "error", [ValueError, SystemExit, KeyboardInterrupt, asyncio.CancelledError, GeneratorExit]
)
@pytest.mark.parametrize("begin", CALLBACKS)
async def test_error_in_a_producer_callback_leaves_other_messages_unaffected(
    begin: Callable[..., None], error: type[BaseException]
) -> None:
    """Those of the same frame, those behind it, and other callbacks of the same future. The thread
    that serves them all lives on."""
    async with fake_log() as (nodes, _):
        loop = asyncio.get_running_loop()

        def work() -> None:
            called = threading.Event()
            timeout_s = 0.3 if begin is out_of_time else 20.0
            with Producer(endpoints(nodes), "t", timeout_s=timeout_s) as sending:

                def callback(_: object) -> None:
                    sending._producer._on_progress = None
                    called.set()
                    raise error

                with unanswered(sending, nodes[0], loop, begin):
                    others = (
                        [sending.send(b"before") for _ in range(3)] if begin is not refused else []
                    )
                    begin(sending, nodes[0], callback)
                    if begin is not given_up:
                        others += [sending.send(b"behind") for _ in range(3)]
                assert called.wait(SOON_S)
                loop.call_soon_threadsafe(nodes[0].hold.set)
                if begin is not given_up:
                    others.append(sending.send(b"later"))
                for future in others:
                    second = threading.Event()
                    future.add_done_callback(lambda _, second=second: second.set())  # type: ignore[misc]
                    future.exception(SOON_S)
                    assert second.wait(SOON_S)
            assert sending.statistics.waiting == 0 and sending.statistics.waiting_bytes == 0

        await threaded(work)


async def test_a_callback_of_a_wrong_message_may_wait_for_a_thread_that_sends() -> None:
    """The producer calls it without holding what `send` takes."""
    async with fake_log() as (nodes, _):
        loop = asyncio.get_running_loop()

        def work() -> None:
            with Producer(endpoints(nodes), "t") as sending:
                sent = threading.Event()

                def callback(_: object) -> None:
                    other = threading.Thread(
                        target=lambda: (sending.send(b"x"), sent.set()), daemon=True
                    )
                    other.start()
                    other.join(SOON_S)

                with unanswered(sending, nodes[0], loop, wrong):
                    wrong(sending, nodes[0], callback)
                assert sent.wait(SOON_S / 2)

        await threaded(work)


async def test_the_room_of_a_frame_is_free_when_its_callbacks_run() -> None:
    """A callback that sends one message for each that was acknowledged always finds room."""
    async with fake_log() as (nodes, _groups):
        loop = asyncio.get_running_loop()

        def work() -> None:
            errors: list[BaseException] = []
            with Producer(endpoints(nodes), "t", buffer_bytes=3_000) as sending:

                def again(_: object) -> None:
                    try:
                        sending.send(bytes(400))
                    except BaseException as error:
                        errors.append(error)

                with unanswered(sending, nodes[0], loop, acknowledged):
                    for _ in range(5):
                        sending.send(bytes(400)).add_done_callback(again)
            assert not [error for error in errors if "is closed" not in str(error)]

        await threaded(work)


# -- the producer for event loops


@pytest.mark.parametrize("begin", ["future", "progress"])
async def test_a_callback_in_an_event_loop_may_begin_every_call(begin: str) -> None:
    """It cannot wait, but tasks that it begins can."""
    async with fake_log() as (nodes, groups), asyncio.timeout(SOON_S):
        sending = AsyncProducer(endpoints(nodes), "t", buffer_bytes=1_000)
        await sending.start()
        tasks: list[asyncio.Future[Any]] = []

        def callback(_: object) -> None:
            if not tasks:
                calls = [sending.send(bytes(400)) for _ in range(5)]
                others = [
                    sending.send_batch([b"2"]),
                    sending.flush(),
                    sending.next_sequences(),
                    sending.refresh(),
                ]
                tasks.extend(map(asyncio.ensure_future, [*calls, *others]))

        if begin == "progress":
            sending._on_progress = callback
        (await sending.send(b"1")).add_done_callback(callback)
        while not tasks:
            await asyncio.sleep(0)
        await asyncio.gather(*tasks)
        await asyncio.ensure_future(sending.close())
        assert len(groups[0].log) == 7 == sending.statistics.acknowledged


# -- consumers


def filled(groups: dict[str, int] | None = None, count: int = 20) -> FakeLog:
    log = FakeLog(groups or {"g1": 2})
    for name, group in log.groups.items():
        for queue in group.queues:
            queue.append(
                [b"%s/%d/%d" % (name.encode(), queue.queue, k) for k in range(count)], store_ms=1
            )
    return log


FREE = ("commit", "commit one", "seek", "seek_time", "assigned", "caught_up", "statistics")
BOUND = ("next_batch", "next_batch in time", "batches", "close")
CONSUMERS = {name: WORKS for name in FREE} | {name: REFUSED for name in BOUND}
IN_THE_LOOP = CONSUMERS | {"commit": REFUSED, "commit one": REFUSED}
"""A coroutine function of the threads' consumer runs in its loop, where nothing can wait for that
loop."""
NAMES = ("on_assigned", "on_revoked", "on_progress")


def reading_calls(reading: Any, queue: int) -> Calls:
    """The calls of either kind of consumer, for a queue that it reads."""
    blocking = isinstance(reading, Consumer)
    return {
        "commit": reading.commit,
        "commit one": lambda: reading.commit({queue: 0}),
        "seek": lambda: reading.seek(queue, 0),
        "seek_time": lambda: reading.seek_time(1),
        "assigned": reading.assigned,
        "caught_up": reading.caught_up,
        "statistics": reading.statistics,
        "next_batch": reading.next_batch,
        "next_batch in time": lambda: reading.next_batch(1.0),
        "batches": lambda: next(reading.batches()) if blocking else anext(reading.batches()),
        "close": (lambda: reading.__exit__(None)) if blocking else reading.close,
    }


def queue_of(reading: Any, told: Any) -> int:
    queues: tuple[int, ...] = told if isinstance(told, tuple) else reading.assigned()
    return queues[0]


@pytest.mark.parametrize("coroutine", [False, True])
@pytest.mark.parametrize("name", NAMES)
async def test_callbacks_of_the_threads_consumer_may_commit_and_seek(
    name: str, coroutine: bool
) -> None:
    """They never wait for batches, which may wait for them. Members share the queues when the
    callbacks are over."""
    found: dict[str, str] = {}

    log = filled()
    async with served(log) as addresses:

        def work() -> None:
            def callback(told: Any) -> None:
                if not found:
                    for call, made in reading_calls(first, queue_of(first, told)).items():
                        found[call] = "blocks"
                        found[call] = outcome_of(made)

            async def as_coroutine(told: Any) -> None:
                callback(told)

            options: dict[str, Any] = {name: as_coroutine if coroutine else callback}
            first = Consumer(addresses, "t", group="x", timeout_s=5.0, **options)
            with first:
                assert first.next_batch(SOON_S) is not None and first.next_batch(SOON_S) is not None
                with Consumer(addresses, "t", group="x") as second:
                    while not second.assigned():
                        first.next_batch(0.1)
                    assert len(first.assigned()) == len(second.assigned()) == 1
                    assert second.next_batch(SOON_S) is not None

        await threaded(work)
    assert found == (IN_THE_LOOP if coroutine else CONSUMERS)


@pytest.fixture
def run() -> Iterator[Callable[[Awaitable[Any]], Any]]:
    loop = VirtualLoop()
    yield loop.run_until_complete
    loop.run_until_complete(loop.shutdown_asyncgens())
    assert not asyncio.all_tasks(loop), "a consumer leaves nothing running"
    loop.close()


def consumer_of(log: FakeLog, **options: Any) -> AsyncConsumer:
    consumer = AsyncConsumer(";".join(log.endpoints), "t", **options)
    consumer._connection = FakeConnection(log)
    return consumer


@pytest.mark.parametrize("waited", ["directly", "in a task", "with a limit"])
@pytest.mark.parametrize("name", NAMES)
def test_callbacks_of_the_event_loops_consumer_may_commit_and_seek(
    run: Callable[[Awaitable[Any]], Any], name: str, waited: str
) -> None:
    """However the callback waits for its calls. A task that outlives the callback may ask for
    batches."""
    found: dict[str, str] = {}
    later: list[asyncio.Task[Any]] = []

    async def work() -> None:
        log = filled()

        async def called(call: Callable[[], Any]) -> str:
            try:
                answer = call()
                if (
                    asyncio.iscoroutine(answer)
                    or hasattr(answer, "__anext__")
                    or hasattr(answer, "__await__")
                ):
                    if waited == "in a task":
                        await asyncio.ensure_future(answer)
                    else:
                        await (
                            asyncio.wait_for(answer, 100.0) if waited == "with a limit" else answer
                        )
            except Exception as error:
                return type(error).__name__
            return WORKS

        async def callback(told: Any) -> None:
            if not found:
                for one, made in reading_calls(first, queue_of(first, told)).items():
                    found[one] = await called(made)
                later.append(asyncio.ensure_future(after()))

        async def after() -> Any:
            await asyncio.sleep(1.0)
            return await first.next_batch()

        first = consumer_of(log, group="x", **{name: callback})
        async with first:
            assert await first.next_batch() is not None
            async with consumer_of(log, group="x") as second:
                while not second.assigned() or not later:
                    await first.next_batch(0.1)
                assert len(first.assigned()) == len(second.assigned()) == 1
                log.store("g1", first.assigned()[0], [b"later"] * 50)
                assert await later[0] is not None

    run(work())
    assert found == CONSUMERS


@pytest.mark.parametrize("name", NAMES)
def test_a_plain_function_of_the_event_loops_consumer_may_seek(
    run: Callable[[Awaitable[Any]], Any], name: str
) -> None:
    """It cannot wait; what it may call answers at once."""
    found: dict[str, str] = {}

    async def work() -> None:
        log = filled()

        def callback(told: Any) -> None:
            if not found:
                calls = reading_calls(first, queue_of(first, told))
                found.update(
                    (call, outcome_of(calls[call]))
                    for call in ("seek", "seek_time", "assigned", "caught_up", "statistics")
                )

        first = consumer_of(log, group="x", **{name: callback})
        async with first:
            assert await first.next_batch() is not None
            async with consumer_of(log, group="x") as second:
                while not second.assigned():
                    await first.next_batch(0.1)

    run(work())
    assert set(found.values()) == {WORKS}


ERRORS = (ValueError, asyncio.CancelledError, StopIteration, SystemExit, KeyboardInterrupt)


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("name", NAMES)
async def test_error_in_a_threaded_consumer_callback_reaches_the_application(
    name: str, error: type[BaseException]
) -> None:
    """Instead of ending its thread, or one of its tasks, without a word: then no batch would come,
    for ever."""
    expected = RuntimeError if error in (asyncio.CancelledError, StopIteration) else error

    async with served(filled()) as addresses:

        def work() -> None:
            def callback(_: Any) -> None:
                raise error

            first = Consumer(addresses, "t", group="x", **{name: callback})  # type: ignore[arg-type]
            with first, Consumer(addresses, "t", group="x"), pytest.raises(expected):
                while True:
                    assert first.next_batch(SOON_S) is not None

        await threaded(work)


@pytest.mark.parametrize("error", [ValueError, asyncio.CancelledError, StopIteration])
@pytest.mark.parametrize("name", NAMES)
def test_error_in_an_async_consumer_callback_reaches_the_application(
    run: Callable[[Awaitable[Any]], Any], name: str, error: type[BaseException]
) -> None:
    """Such as the CancelledError of a task that `on_revoked` has cancelled and waits for."""

    async def work() -> None:
        async def callback(_: Any) -> None:
            raise error

        log = filled()
        async with (
            consumer_of(log, group="x", **{name: callback}) as first,
            consumer_of(log, group="x"),
        ):
            while True:
                assert await first.next_batch(100.0) is not None

    with pytest.raises(ValueError if error is ValueError else RuntimeError):
        run(work())


def test_reads_begin_after_on_assigned_returned(run: Callable[[Awaitable[Any]], Any]) -> None:
    """A callback that takes its time, and then seeks, is not overtaken by a stream that begins anew
    meanwhile."""

    async def work() -> None:
        log = filled()

        async def assigned(queues: tuple[int, ...]) -> None:
            for _ in range(3):
                await asyncio.sleep(1.0)
                consumer._restart(consumer._places)
            for queue in queues:
                consumer.seek(queue, 15)

        consumer = consumer_of(log, group="x", on_assigned=assigned)
        async with consumer:
            offsets = [offset for _ in range(4) for offset in (await first_offsets(consumer))]
        assert min(offsets) == 15

    async def first_offsets(consumer: AsyncConsumer) -> list[int]:
        batch = await consumer.next_batch(20.0)
        return [] if batch is None else batch.offsets.tolist()

    run(work())


# -- an exception passes over no message


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("commits", ["by itself", "after the error", "never"])
def test_an_error_of_on_progress_costs_no_batch(
    run: Callable[[Awaitable[Any]], Any], monkeypatch: pytest.MonkeyPatch, times: int, commits: str
) -> None:
    """At every report, once or twice. What the application has not got is not committed."""
    monkeypatch.setattr(module, "PROGRESS_S", 0.0)

    async def work() -> None:
        log = filled()
        failed: dict[int, int] = {}

        def report(statistics: Any) -> None:
            failed[statistics.messages] = failed.get(statistics.messages, 0) + 1
            if failed[statistics.messages] <= times:
                raise ZeroDivisionError

        got: dict[int, int] = {0: 0, 1: 0}
        consumer = consumer_of(
            log, group="x", auto_commit=commits == "by itself", until_end=True, on_progress=report
        )
        errors = 0
        async with consumer:
            while True:
                try:
                    batch = await consumer.next_batch()
                except ZeroDivisionError:
                    errors += 1
                    if commits == "after the error":
                        await consumer.commit()
                    await asyncio.sleep(2.0)
                    for (_, queue), offset in log.committed.items():
                        assert offset <= got[queue]
                    continue
                if batch is None:
                    break
                assert batch.offsets[0] == got[batch.queue]
                got[batch.queue] = batch.next_offset
        assert got == {0: 20, 1: 20} and errors > 4
        assert log.committed == {"by itself": {("g1", 0): 20, ("g1", 1): 20}}.get(
            commits, log.committed
        )

    run(work())


@pytest.mark.parametrize("blocking", [False, True])
def test_an_arrow_batch_that_cannot_be_built_comes_again(
    monkeypatch: pytest.MonkeyPatch, blocking: bool
) -> None:
    """The application has seen nothing of it, so asking again must not pass over it, and with
    `auto_commit` not commit it."""
    log = filled({"g1": 1})
    tried: list[int] = []

    def to_arrow(batch: Any, columns: object = None) -> list[int]:
        first = int(batch.offsets[0])
        tried.append(first)
        if tried.count(first) == 1:
            raise MemoryError
        found: list[int] = batch.offsets.tolist()
        return found

    monkeypatch.setattr("ledgermq.client.native.consumers.received.Batch.to_arrow", to_arrow)
    got: list[int] = []
    options: dict[str, Any] = {"group": "x", "auto_commit": True, "until_end": True}
    if blocking:
        reading = Consumer(";".join(log.endpoints), "t", **options)
        reading._consumer._connection = FakeConnection(log)
        with reading:
            again = True
            while again:
                try:
                    for rows in reading.arrow_batches():
                        got += rows  # type: ignore[arg-type]
                    again = False
                except MemoryError:
                    continue
    else:

        async def work() -> None:
            async with consumer_of(log, **options) as consumer:
                again = True
                while again:
                    try:
                        async for rows in consumer.arrow_batches():
                            got.extend(rows)  # type: ignore[arg-type]
                        again = False
                    except MemoryError:
                        continue

        asyncio.run(work())
    assert got == list(range(20)) and len(tried) > 2


def test_a_wait_that_is_interrupted_costs_no_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C, or the exception of another signal handler, that meets the thread when its batch is
    there already."""
    log = filled({"g1": 1})
    reading = Consumer(";".join(log.endpoints), "t", group="x", auto_commit=True, until_end=True)
    reading._consumer._connection = FakeConnection(log)
    got: list[int] = []
    with reading:
        assert reading._background is not None
        wait = reading._background.wait
        turn = 0

        def interrupted(work: Any) -> Any:
            nonlocal turn
            turn += 1
            found = wait(work)
            if turn % 2:
                raise KeyboardInterrupt
            return found

        monkeypatch.setattr(reading._background, "wait", interrupted)
        while True:
            try:
                batch = reading.next_batch()
            except KeyboardInterrupt:
                continue
            if batch is None:
                break
            got += batch.offsets.tolist()
        monkeypatch.undo()
    assert got == list(range(20)) and turn > 4


def test_a_seek_after_an_error_drops_the_batch_that_was_kept(
    run: Callable[[Awaitable[Any]], Any],
) -> None:
    """The application goes on where it said, not with what it did not get."""

    async def work() -> None:
        def report(_: Any) -> None:
            raise ZeroDivisionError

        async with consumer_of(filled({"g1": 1}), on_progress=report) as consumer:
            with pytest.raises(ZeroDivisionError):
                await consumer.next_batch()
            consumer.seek(0, 17)
            batch = await consumer.next_batch()
            assert batch is not None and batch.offsets[0] == 17

    run(work())


@pytest.mark.parametrize("commits", [False, True])
def test_damage_is_told_until_the_application_goes_past_it(
    run: Callable[[Awaitable[Any]], Any], commits: bool
) -> None:
    """Asking again does not hand out what is behind it, which a commit would pass over with it."""

    async def work() -> None:
        log = filled({"g1": 1})
        log.corrupt = 1_000
        async with consumer_of(log, group="x", auto_commit=commits) as consumer:
            for _ in range(3):
                with pytest.raises(Refused, match="queue 0 is damaged from offset 0 on"):
                    await consumer.next_batch()
            await asyncio.sleep(5.0)
            assert not log.committed.get(("g1", 0))
            log.corrupt = 0
            consumer.seek(0, 3)
            batch = await consumer.next_batch()
            assert batch is not None and batch.offsets[0] == 3

    run(work())


def test_deliveries_that_cannot_be_recorded_end_the_consumer(
    run: Callable[[Awaitable[Any]], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The batch was not handed out, so it is not committed; nor is one behind it, of which the file
    would say nothing."""
    pytest.importorskip("pyarrow")

    async def work() -> None:
        log = filled({"g1": 1})
        async with consumer_of(log, group="x", auto_commit=True) as consumer:
            first = await consumer.next_batch()
            assert first is not None
            delivered = consumer._log.delivered

            def full(*_: object) -> None:
                raise BadArgument("deliveries cannot be written", "free disk space")

            monkeypatch.setattr(consumer._log, "delivered", full)
            for _ in range(2):
                with pytest.raises(BadArgument, match="cannot be written"):
                    await consumer.next_batch()
                monkeypatch.setattr(consumer._log, "delivered", delivered)
            await asyncio.sleep(5.0)
        assert log.committed[("g1", 0)] == first.next_offset

    run(work())


@pytest.mark.parametrize("blocking", [False, True])
def test_closing_a_consumer_ends_a_waiting_next_batch(blocking: bool) -> None:
    """Of a consumer that another task, or thread, closes meanwhile; and who asks afterwards is told
    at once."""
    log = filled(count=0)

    async def scenario() -> None:
        consumer = consumer_of(log)
        async with consumer:
            waiting = asyncio.ensure_future(consumer.next_batch())
            await asyncio.sleep(0.05)
        for call in (waiting, consumer.next_batch()):
            with pytest.raises(BadArgument, match="closed"):
                await asyncio.wait_for(call, SOON_S)

    def threads() -> None:
        reading = Consumer(";".join(log.endpoints), "t")
        reading._consumer._connection = FakeConnection(log)
        told: list[str] = []
        with reading:
            waiting = threading.Thread(
                target=lambda: told.append(outcome_of(reading.next_batch)), daemon=True
            )
            waiting.start()
            assert reading.caught_up() in (False, True), "a call behind that one"
        waiting.join(SOON_S)
        assert told == [REFUSED]

    if blocking:
        threads()
    else:
        asyncio.run(scenario())
