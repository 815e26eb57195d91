"""Every class of clients against every misuse: whatever is wrong with an argument or comes at a
wrong time, the error is a ClusterError, nothing waits for ever, and no thread, task or file is left
behind."""

from __future__ import annotations

import asyncio
import inspect
import math
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ledgermq.client import (
    Admin,
    AsyncAdmin,
    AsyncConnection,
    AsyncConsumer,
    AsyncProducer,
    Connection,
    Consumer,
    DeliveryLog,
    Producer,
    ReceiptLog,
)
from ledgermq.client.api.arguments import LONGEST_S
from ledgermq.client.api.talks import Call as Step
from ledgermq.client.api.talks import Pause
from ledgermq.client.errors import BadArgument, ClusterError, Unreachable
from ledgermq.client.native.background import Background
from ledgermq.client.native.log_connection import LogConnection
from ledgermq.client.native.once.tasks import TaskConnection
from ledgermq.proto import admin_pb2, log_pb2
from ledgermq.proto.signature import Credentials
from tests.client.fake_cluster import FakeNode, admin_status, fake_nodes
from tests.client.fake_log import fake_log
from tests.client.fake_reading import FakeLog, served

SOON_S = 30.0
NOWHERE = "127.0.0.1:1"
CLASSES: dict[type[Any], tuple[Any, ...]] = {
    Connection: (),
    AsyncConnection: (),
    LogConnection: (),
    TaskConnection: (),
    Producer: ("t",),
    AsyncProducer: ("t",),
    Consumer: ("t",),
    AsyncConsumer: ("t",),
}
"""All classes, with their arguments behind the endpoints."""
PRODUCERS, CONSUMERS = [Producer, AsyncProducer], [Consumer, AsyncConsumer]
NO_NUMBER: tuple[Any, ...] = ("5", math.nan, True, b"1", [1])
NO_TEXT: tuple[Any, ...] = (5, b"t", ["t"], "\ud800")
WRONG: dict[str, tuple[Any, ...]] = {
    "endpoints": (None, "", "a", "a:0", "\ud800:1", *NO_TEXT),
    "timeout_s": (*NO_NUMBER, None, 0, -1, -math.inf),
    "credentials": (
        ("a", "b"),
        "a",
        Credentials("\ud800", "s"),
        Credentials("a", "\ud800"),
        Credentials("ключ", "s"),
        Credentials(5, "s"),
    ),  # type: ignore[arg-type]
    "ca": ("ca.pem", b"nonsense", 5),
    "certificate": ("own.pem", (b"k", b"c"), (b"-----BEGIN A-----",), 5, ("k", "c")),
}
PRODUCER_WRONG: dict[str, tuple[Any, ...]] = {
    "topic": (None, "", " ", "a b", "тема", "x" * 300, "TBW102", *NO_TEXT),
    "namespace": (None, "a b", "x" * 300, *NO_TEXT),
    "name": (None, *NO_TEXT),
    "linger_ms": (*NO_NUMBER, None, -1),
    "batch_bytes": (*NO_NUMBER, None, 0, 1.5),
    "window_bytes": (*NO_NUMBER, None, 0, 1.5),
    "buffer_bytes": (*NO_NUMBER, None, -1, 1.5),
    "compress_over": (*NO_NUMBER, None, -1),
    "compression": ("gzip", 5),
    "on_progress": (5, "print"),
    "receipt_log": (5, b"r.parquet"),
}
CONSUMER_WRONG: dict[str, tuple[Any, ...]] = {
    "topic": (None, *NO_TEXT),
    "namespace": (None, *NO_TEXT),
    "group": NO_TEXT,
    "start": (None, 5, "soon", b"latest", {0: -1}, {0: "1"}),
    "queues": (5, "01", ["0"], [-1]),
    "tags": (5, "vip", [5], ["\ud800"]),
    "read_from": ("follower", 5),
    "read_ahead_bytes": (*NO_NUMBER, None, 0),
    "response_bytes": (*NO_NUMBER, None, 0),
    "commit_interval_s": (*NO_NUMBER, None, 0, -1),
    "on_assigned": (5,),
    "on_revoked": ("f",),
    "on_progress": (5,),
    "delivery_log": (5, b"d.parquet"),
}


def cases() -> Iterator[tuple[type[Any], str, Any]]:
    for kind in CLASSES:
        own = PRODUCER_WRONG if kind in PRODUCERS else CONSUMER_WRONG if kind in CONSUMERS else {}
        for name, values in {**WRONG, **own}.items():
            yield from ((kind, name, value) for value in values)


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    list(cases()),
    ids=lambda it: it.__name__ if isinstance(it, type) else ascii(it)[:40],
)
def test_a_wrong_argument_is_told_where_it_is_given(
    kind: type[Any], name: str, value: Any, tmp_path: Path
) -> None:
    """Before any call, and before a file is begun."""
    threads = threading.active_count()
    options = {"endpoints": NOWHERE, **({"topic": "t"} if CLASSES[kind] else {})}
    log = "receipt_log" if kind in PRODUCERS else "delivery_log"
    if kind in PRODUCERS + CONSUMERS:
        options[log] = str(tmp_path / "log.parquet")
    with pytest.raises(BadArgument):
        kind(**{**options, name: value})
    assert threading.active_count() <= threads and not list(tmp_path.iterdir())


@pytest.mark.parametrize("kind", list(CLASSES))
@pytest.mark.parametrize("timeout_s", [math.inf, 1e12, 10**400])
def test_a_very_long_time_is_a_long_time(kind: type[Any], timeout_s: float) -> None:
    """The library's deadlines wrap around some centuries from now: a longer one had passed at once,
    or never came."""
    client = kind(NOWHERE, *CLASSES[kind], timeout_s=timeout_s)
    for holder in (
        client,
        *(
            getattr(client, name, None)
            for name in ("_producer", "_consumer", "_connection", "connection")
        ),
    ):
        if isinstance(holder, Connection | AsyncConnection):
            assert 0 < holder.timeout_s <= LONGEST_S


ADMIN_CALLS: list[Callable[[Any], Any]] = [
    lambda admin: admin.topic("\ud800"),
    lambda admin: admin.topic(5),
    lambda admin: admin.create_topic(None),
    lambda admin: admin.create_topic("t", queues="many"),
    lambda admin: admin.create_topic("t", queues=1 << 40),
    lambda admin: admin.lag(b"g"),
    lambda admin: admin.query("t", key=5),
    lambda admin: admin.reset("g", "t", "soon"),
    lambda admin: admin.peek("t", queue="0"),
    lambda admin: admin.add_member(5, "127.0.0.1:1"),
]


@pytest.mark.parametrize("call", ADMIN_CALLS)
async def test_unencodable_argument_is_refused_without_a_call(call: Callable[[Any], Any]) -> None:
    """Of both kinds of administration; no node is asked."""
    with Connection(NOWHERE, timeout_s=0.5) as connection, pytest.raises(BadArgument):
        call(Admin(connection))

    async with AsyncConnection(NOWHERE, timeout_s=0.5) as connection:
        with pytest.raises(BadArgument):
            await call(AsyncAdmin(connection))


@pytest.mark.parametrize("connection", [None, NOWHERE, Connection])
@pytest.mark.parametrize("kind", [Admin, AsyncAdmin])
def test_an_administration_needs_a_connection_of_its_kind(kind: type[Any], connection: Any) -> None:
    with pytest.raises(BadArgument):
        kind(connection)
    with Connection(NOWHERE) as blocking, pytest.raises(BadArgument):
        AsyncAdmin(blocking)  # type: ignore[arg-type]


@pytest.mark.parametrize("path", [None, 5, b"r.parquet", "a\0b", ""])
@pytest.mark.parametrize("kind", [ReceiptLog, DeliveryLog])
def test_a_log_needs_a_path_where_it_may_write(
    kind: type[Any], path: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pyarrow")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadArgument):
        kind(path)
    assert not list(tmp_path.iterdir())


# -- the life of a client

Call = Callable[[Any], Any]
CALLS: dict[type[Any], list[Call]] = {
    Connection: [lambda it: Admin(it).topics()],
    AsyncConnection: [lambda it: AsyncAdmin(it).topics()],
    LogConnection: [lambda it: it.locate("t")],
    TaskConnection: [
        lambda it: it.locate("t"),
        lambda it: it.writer("g", "t", "", "n"),
        lambda it: it.find_offsets(None, "t", "", None),
    ],
    Producer: [
        lambda it: it.send(b"a"),
        lambda it: it.send(b"a", queue=0),
        lambda it: it.send_batch([b"a"]),
        lambda it: it.flush(),
        lambda it: it.next_sequences(),
        lambda it: it.refresh(),
    ],
    Consumer: [
        lambda it: it.next_batch(),
        lambda it: it.next_batch(1),
        lambda it: next(it.batches()),
        lambda it: it.commit(),
        lambda it: it.seek(0, 0),
        lambda it: it.seek_time(0),
        lambda it: it.statistics(),
        lambda it: it.assigned(),
        lambda it: it.caught_up(),
    ],
}
CALLS[AsyncProducer] = CALLS[Producer]
CALLS[AsyncConsumer] = [*CALLS[Consumer][:2], lambda it: anext(it.batches()), *CALLS[Consumer][3:6]]
OPEN_AT_ONCE = (Connection, AsyncConnection, LogConnection)


@contextmanager
def node() -> Iterator[FakeNode]:
    """One that knows topic `t`, whose only queue nobody leads, so that streams find nobody."""
    with fake_nodes() as (started,):
        started.answers("ListTopics", admin_pb2.ListTopicsResponse(status=admin_status()))
        located = log_pb2.LocateResponse(cluster_id="c", kind="normal")
        located.broker_groups.add(name="g1", queues=[0], log_id="l")
        started.answers("Locate", located)
        yield started


async def outcome(call: Callable[[], Any]) -> Any:
    """The result of a call that blocks or is awaited."""
    found = call()
    return (
        await asyncio.wait_for(found, SOON_S)
        if asyncio.iscoroutine(found) or hasattr(found, "__await__")
        else found
    )


class Driver:
    """A client, of threads or of a loop, driven in one way."""

    def __init__(self, client: Any) -> None:
        self.client, self._asynchronous = client, hasattr(client, "__aenter__")

    async def enter(self) -> None:
        await (
            self.client.__aenter__()
            if self._asynchronous
            else asyncio.to_thread(self.client.__enter__)
        )

    async def leave(self) -> None:
        ends = (None, None, None)
        await (
            self.client.__aexit__(*ends)
            if self._asynchronous
            else asyncio.to_thread(self.client.__exit__, *ends)
        )

    async def call(self, call: Call) -> Any:
        if self._asynchronous:
            return await outcome(lambda: call(self.client))
        return await asyncio.wait_for(asyncio.to_thread(call, self.client), SOON_S)


def drive(kind: type[Any], scenario: Callable[[Driver], Any], **options: Any) -> None:
    """Run a scenario; nothing of the client is left at its end."""
    before = threading.active_count()
    with node() as started:
        threads = threading.active_count()

        async def main() -> None:
            asyncio.get_running_loop().set_default_executor(executor)
            async with asyncio.timeout(SOON_S):
                await scenario(
                    Driver(kind(started.endpoint, *CLASSES[kind], timeout_s=2, **options))
                )
            assert asyncio.all_tasks() == {asyncio.current_task()}

        with ThreadPoolExecutor(4) as executor:
            asyncio.run(main())
        names = sorted(
            thread.name for thread in threading.enumerate() if thread.name.startswith("ledgermq")
        )
        # the fake node has eight threads
        assert not names and threading.active_count() <= max(threads, before) + 8


@pytest.mark.parametrize("kind", [kind for kind in CLASSES if kind not in OPEN_AT_ONCE])
def test_a_call_before_the_opening_says_how_to_open(kind: type[Any]) -> None:
    async def scenario(driver: Driver) -> None:
        for call in CALLS[kind]:
            with pytest.raises(BadArgument, match="not open in this process; use it within its"):
                await driver.call(call)
        await driver.enter()
        await driver.leave()

    drive(kind, scenario)


@pytest.mark.parametrize("kind", list(CLASSES))
def test_a_closed_client_stays_closed(kind: type[Any]) -> None:
    """Every call, and another opening, say so; another close is none."""

    async def scenario(driver: Driver) -> None:
        await driver.enter()
        await driver.leave()
        for call in CALLS[kind]:
            with pytest.raises(BadArgument, match="is closed; open another one"):
                await driver.call(call)
        for _ in range(3):
            with pytest.raises(BadArgument, match="is closed; open another one"):
                await driver.enter()
        await driver.leave()

    drive(kind, scenario)


@pytest.mark.parametrize("kind", list(CLASSES))
def test_a_client_that_was_never_opened_can_be_closed(kind: type[Any]) -> None:
    async def scenario(driver: Driver) -> None:
        await driver.leave()
        with pytest.raises(BadArgument, match="is closed; open another one"):
            await driver.enter()

    drive(kind, scenario)


@pytest.mark.parametrize("kind", [kind for kind in CLASSES if kind not in OPEN_AT_ONCE])
def test_second_opening_is_refused_and_the_client_works_on(kind: type[Any]) -> None:
    async def scenario(driver: Driver) -> None:
        await driver.enter()
        with pytest.raises(BadArgument, match="is open already"):
            await driver.enter()
        if kind in PRODUCERS:
            await driver.call(lambda it: it.refresh())
        await driver.leave()

    drive(kind, scenario)


@pytest.mark.parametrize("kind", list(CLASSES))
def test_of_closes_at_once_each_returns_at_the_end(kind: type[Any]) -> None:
    """A signal handler and the end of the block, for example."""

    async def scenario(driver: Driver) -> None:
        await driver.enter()
        await asyncio.gather(driver.leave(), driver.leave(), driver.leave())
        life = driver.client._life
        assert life.stage.name == "CLOSED"

    drive(kind, scenario)


@pytest.mark.parametrize("kind", [kind for kind in CLASSES if kind not in CONSUMERS])
def test_waiting_call_of_a_closed_client_ends_with_a_client_error(kind: type[Any]) -> None:
    """Each call that waits for an answer. It ends soon after the close, not by its own time."""

    async def scenario(driver: Driver) -> None:
        await driver.enter()
        began, go_on = threading.Event(), threading.Event()

        def held(_: Any) -> Any:
            began.set()
            go_on.wait(SOON_S)
            return admin_pb2.ListTopicsResponse(status=admin_status())

        for method in ("ListTopics", "Locate"):
            nodes[0].answers(method, held)
        try:
            running = asyncio.create_task(driver.call(CALLS[kind][-1 if kind in PRODUCERS else 0]))
            assert await asyncio.to_thread(began.wait, SOON_S)
            await driver.leave()
            with pytest.raises(Unreachable, match="closed before the answer came"):
                await asyncio.wait_for(running, SOON_S)
        finally:
            go_on.set()

    with node() as started:
        nodes = [started]

        async def main() -> None:
            async with asyncio.timeout(SOON_S):
                await scenario(Driver(kind(started.endpoint, *CLASSES[kind], timeout_s=600)))

        asyncio.run(main())


@pytest.mark.parametrize("kind", CONSUMERS)
@pytest.mark.parametrize("wait_s", [None, math.inf, 3600])
async def test_a_reader_that_waits_hears_of_the_close(
    kind: type[Any], wait_s: float | None
) -> None:
    async with served(FakeLog({"g1": 1})) as endpoints, asyncio.timeout(SOON_S):
        driver = Driver(kind(endpoints, "t"))
        await driver.enter()
        waiting = asyncio.create_task(driver.call(lambda it: it.next_batch(wait_s)))
        consumer = getattr(driver.client, "_consumer", driver.client)
        while not consumer.caught_up():
            await asyncio.sleep(0.01)
        await driver.leave()
        with pytest.raises(BadArgument, match="closed"):
            await waiting


@pytest.mark.parametrize("kind", [Connection, AsyncConnection])
def test_a_call_that_meets_a_channel_closed_a_moment_ago(
    kind: type[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread or task closed the connection between two steps of the call: the library
    raises an error of its own."""

    async def scenario(driver: Driver) -> None:
        async def stale() -> Any:
            return driver.client.channel()

        channel = await stale()
        step = Step(
            "/ledgermq.v1.Admin/ListTopics",
            admin_pb2.ListTopicsRequest(),
            admin_pb2.ListTopicsResponse,
            5.0,
        )
        await driver.leave()
        monkeypatch.setattr(driver.client, "channel", lambda: channel)
        monkeypatch.setattr(driver.client, "channel_to", lambda _: channel)
        with pytest.raises(Unreachable, match="closed before the answer came"):
            await driver.call(lambda it: it._do(step))

    drive(kind, scenario)


@pytest.mark.parametrize("kind", [Connection, AsyncConnection])
def test_a_call_that_is_closed_between_two_tries(
    kind: type[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is no BadArgument, which would say that nothing was sent."""

    async def scenario(driver: Driver) -> None:
        client = driver.client
        do = client._do

        def blocking(step: Any) -> Any:
            return client.close() if isinstance(step, Pause) else do(step)

        async def awaited(step: Any) -> Any:
            return await (client.close() if isinstance(step, Pause) else do(step))

        monkeypatch.setattr(client, "_do", blocking if kind is Connection else awaited)
        with pytest.raises(Unreachable, match="closed before the answer came"):
            await driver.call(lambda it: (Admin if kind is Connection else AsyncAdmin)(it).groups())

    with fake_nodes() as (started,):
        started.answers(
            "ListGroups", admin_pb2.ListGroupsResponse(status=admin_status(50002, "no quorum"))
        )

        async def main() -> None:
            async with asyncio.timeout(SOON_S):
                await scenario(Driver(kind(started.endpoint, timeout_s=600)))

        asyncio.run(main())


async def test_the_caller_s_own_cancellation_stays_one() -> None:
    """Also when the connection is closed as well."""
    with node() as started:
        go_on = threading.Event()
        started.answers(
            "ListTopics",
            lambda _: go_on.wait(SOON_S) and admin_pb2.ListTopicsResponse(status=admin_status()),
        )
        connection = AsyncConnection(started.endpoint, timeout_s=600)
        running = asyncio.create_task(AsyncAdmin(connection).topics())
        while not started.requests["ListTopics"]:
            await asyncio.sleep(0.01)
        running.cancel()
        await connection.close()
        go_on.set()
        await asyncio.wait([running])
        assert running.cancelled()


@pytest.mark.parametrize("kind", [AsyncConnection, LogConnection, AsyncProducer, AsyncConsumer])
def test_a_client_of_one_event_loop_is_refused_in_another(kind: type[Any]) -> None:
    """Its streams belong to the first one, and nobody would wake the second."""
    with node() as started:
        client = kind(started.endpoint, *CLASSES[kind], timeout_s=2)

        async def first() -> None:
            if kind in OPEN_AT_ONCE:
                await CALLS[kind][0](client)
            else:
                await client.__aenter__()

        loop = asyncio.new_event_loop()
        loop.run_until_complete(first())

        async def other() -> None:
            for call in CALLS[kind]:
                with pytest.raises(BadArgument, match="another event loop"):
                    await outcome(lambda call=call: call(client))
            with pytest.raises(BadArgument, match="another event loop"):
                await client.close()

        asyncio.run(other())
        loop.run_until_complete(client.close())
        loop.close()


def unanswered(kind: type[Any], scenario: Callable[[Driver, Any], Any]) -> None:
    """Run a scenario with an open producer and the future of a message that is not answered; its
    own time is an hour."""

    async def main() -> None:
        async with fake_log() as (nodes, _), asyncio.timeout(SOON_S):
            nodes[0].hold.clear()
            driver = Driver(kind(nodes[0].endpoint, "t", timeout_s=3600))
            await driver.enter()
            future = await driver.call(lambda it: it.send(b"a"))
            while not nodes[0].frames:
                await asyncio.sleep(0.01)
            await scenario(driver, future)
            nodes[0].hold.set()

    asyncio.run(main())


def test_a_loop_that_ends_leaves_no_thread_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call that takes longer than the end of the loop is cancelled, and one that comes behind it
    is not begun."""
    monkeypatch.setattr("ledgermq.client.native.background.DRAIN_S", 0.05)
    background = Background("ledgermq-test")
    long = background.begin(asyncio.sleep(3600))
    background.close()
    with (
        ThreadPoolExecutor(1) as executor,
        pytest.raises(Unreachable, match="closed before the call had ended"),
    ):
        executor.submit(long).result(SOON_S)
    late = asyncio.sleep(0)
    with pytest.raises(BadArgument, match="closed"):
        background.begin(late)
    assert inspect.getcoroutinestate(late) == inspect.CORO_CLOSED and not background.alive
    background.close()


async def test_another_thread_is_told_to_use_the_loop() -> None:
    """Of the calls that do not wait: they would change what the loop is using."""
    async with (
        served(FakeLog({"g1": 1})) as endpoints,
        AsyncConsumer(endpoints, "t") as consumer,
    ):
        with pytest.raises(BadArgument, match="another event loop"):
            await asyncio.to_thread(consumer.seek, 0, 0)
        consumer.seek(0, 0)


@pytest.mark.parametrize("kind", PRODUCERS)
def test_a_second_close_returns_when_the_messages_have_outcomes(kind: type[Any]) -> None:
    """Both wait for the message, and the less patient one decides for how long."""

    async def scenario(driver: Driver, future: Any) -> None:
        async def close(timeout_s: float | None) -> None:
            await driver.call(lambda it: it.close(timeout_s))
            assert future.done() and isinstance(future.exception(), ClusterError)

        patient = [asyncio.create_task(close(None)) for _ in range(2)]
        await asyncio.sleep(0.05)
        assert not future.done() and not any(task.done() for task in patient)
        await asyncio.gather(*patient, close(0.05))

    unanswered(kind, scenario)


@pytest.mark.parametrize("kind", PRODUCERS)
def test_a_second_close_without_patience_shortens_the_first(kind: type[Any]) -> None:
    async def scenario(driver: Driver, future: Any) -> None:
        patient = asyncio.create_task(driver.leave())
        await asyncio.sleep(0.05)
        await driver.call(lambda it: it.close(0))
        assert future.done() and isinstance(future.exception(), ClusterError)
        await patient

    unanswered(kind, scenario)


@pytest.mark.parametrize("patience", [*NO_NUMBER, "soon"])
@pytest.mark.parametrize("kind", PRODUCERS)
def test_invalid_close_patience_leaves_the_client_open(kind: type[Any], patience: Any) -> None:
    async def scenario(driver: Driver) -> None:
        await driver.enter()
        with pytest.raises(BadArgument):
            await driver.call(lambda it: it.close(patience))
        await driver.call(lambda it: it.refresh())
        await driver.leave()

    drive(kind, scenario)


def test_a_close_within_the_thread_that_closes_does_not_wait_for_itself() -> None:
    """As by a signal handler."""
    with node() as started:
        connection = Connection(started.endpoint)
        Admin(connection).topics()
        (channel,) = connection._channels.values()
        close, again = channel.close, []

        def interrupted() -> None:
            connection.close()
            again.append(True)
            close()

        channel.close = interrupted  # type: ignore[method-assign]
        connection.close()
        assert again


async def test_close_of_a_failed_producer_raises_for_every_waiter(tmp_path: Path) -> None:
    """Otherwise the block would end as if all were well."""
    with node() as started:
        sending = AsyncProducer(started.endpoint, "t")
        await sending.start()
        sending._fail(Unreachable("the disk is full", "free space"))
        outcomes = await asyncio.gather(sending.close(), sending.close(), return_exceptions=True)
        assert [str(error) for error in outcomes] == ["the disk is full; free space"] * 2
        await sending.close()
