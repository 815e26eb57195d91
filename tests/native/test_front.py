"""The native gRPC front against gRPC's own client, and against connections that break the rules of
HTTP/2."""

from __future__ import annotations

import ast
import asyncio
import functools
import gzip
import itertools
import os
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
import grpc.aio
import pytest
from cryptography import x509

pytest.importorskip(
    "ledgermq_native", reason="the package ledgermq-native is not built (make native)"
)

from ledgermq_native import front as native

from tests.native import http2_by_hand as by_hand
from tests.native.front_driver import PIECE, SERVICE, Ca, Driver, request_headers, running
from tests.native.http2_by_hand import WITHIN_S, Raw, acknowledged, frame, message

Code = grpc.StatusCode
OPTIONS = (
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.enable_retries", 0),
)


def in_loop(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    @functools.wraps(test)
    def run(**arguments: Any) -> None:
        async def bounded() -> None:
            async with asyncio.timeout(120):
                await test(**arguments)

        asyncio.run(bounded())

    return run


def unary(channel: grpc.aio.Channel, name: str = "Unary") -> Any:
    return channel.unary_unary(SERVICE + name)


def plain(port: int, **options: int) -> grpc.aio.Channel:
    return grpc.aio.insecure_channel(
        f"127.0.0.1:{port}",
        options=OPTIONS + tuple((f"grpc.{name}", value) for name, value in options.items()),
    )


async def failure(call: Awaitable[Any]) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await call
    return raised.value


# -- calls


@in_loop
async def test_unknown_method_is_unimplemented_without_an_event() -> None:
    async with running() as (driver, listener), plain(listener.port) as channel:
        error = await failure(unary(channel, "Missing")(b"", timeout=WITHIN_S))
        assert (error.code(), error.details()) == (Code.UNIMPLEMENTED, "Method not found!")
        assert driver.events == []
        assert driver.front.stats()["calls_unknown"] == 1


@in_loop
async def test_python_gets_metadata_deadline_and_peer_of_a_call() -> None:
    async with running() as (_, listener), plain(listener.port) as channel:
        sent = (("a", "1"), ("a", "2"), ("b-bin", b"\0\xff\x80"))
        call = unary(channel, "About")(b"", timeout=WITHIN_S, metadata=sent)
        about = ast.literal_eval((await call).decode())
        assert dict(await call.initial_metadata())["early"] == "1"
        assert [pair for pair in about["metadata"] if pair[0] != "user-agent"] == list(sent)
        assert dict(about["metadata"])["user-agent"].startswith("grpc-python")
        # gRPC's C library rounds a time-out up to tenths of a second.
        assert WITHIN_S - 5 < about["left"] <= WITHIN_S + 0.1
        assert about["peer"].startswith("ipv4:127.0.0.1:")
        assert about["auth"] == {}
        assert ast.literal_eval((await unary(channel, "About")(b"")).decode())["left"] is None


@in_loop
async def test_peers_of_ipv6_and_unix_sockets(tmp_path: Any) -> None:
    async with running() as (driver, _):
        six = driver.front.listen("::1")
        driver.front.listen(f"unix:{tmp_path}/calls")
        for target, peer in (
            (f"[::1]:{six.port}", "ipv6:%5B::1%5D:"),
            (f"unix:{tmp_path}/calls", "unix:"),
        ):
            # By default the authority of a Unix socket is its path in percent-encoding, which the
            # HTTP/2 library refuses.
            async with grpc.aio.insecure_channel(
                target, options=(("grpc.default_authority", "localhost"),)
            ) as channel:
                about = ast.literal_eval(
                    (await unary(channel, "About")(b"", timeout=WITHIN_S)).decode()
                )
                assert about["peer"].startswith(peer)


@in_loop
async def test_clients_that_send_a_list_of_addresses_or_a_path_as_authority(tmp_path: Any) -> None:
    """gRPC's C library does so for a target with several addresses and for a Unix socket, with
    every call of the connection."""
    async with running() as (driver, listener):
        driver.front.listen(f"unix:{tmp_path}/front")
        address = f"127.0.0.1:{listener.port}"
        for target in (f"ipv4:{address},{address},127.0.0.1:1", f"unix:{tmp_path}/front"):
            async with grpc.aio.insecure_channel(target) as channel:
                for _ in range(3):
                    assert (
                        await unary(channel)(
                            b"x", timeout=WITHIN_S, metadata=(("authority", "127.0.0.1:1,a"),)
                        )
                        == b"x"
                    )


@in_loop
async def test_deadline_is_answered_while_python_is_silent() -> None:
    async with running() as (driver, listener):
        raw = await Raw.open(listener.port)
        raw.write(
            frame(
                by_hand.HEADERS,
                by_hand.END_HEADERS,
                1,
                request_headers("Hold", [("grpc-timeout", "50m")]),
            )
        )
        raw.write(frame(by_hand.DATA, by_hand.END_STREAM, 1, message(b"")))
        _, flags, _, payload = await raw.until(by_hand.HEADERS, 1)
        assert flags & by_hand.END_STREAM
        assert by_hand.coded("grpc-status", "4") in payload
        (event,) = await driver.until(native.CANCELLED)
        assert event[2] == "deadline"
        # The late answer of Python is dropped.
        driver.give([(native.FINISH, event[1], 0, "", (), b"")])
        raw.close()
        await driver.until_stats(calls=0, connections=0, buffered_bytes=0)
    async with running() as (driver, listener), plain(listener.port) as channel:
        error = await failure(unary(channel, "Hold")(b"", timeout=0.05))
        assert error.code() == Code.DEADLINE_EXCEEDED
        assert (await driver.until(native.CANCELLED))[0][2] in ("deadline", "reset")


@in_loop
async def test_cancel() -> None:
    async with running() as (driver, listener), plain(listener.port) as channel:
        call = unary(channel, "Hold")(b"", timeout=WITHIN_S)
        started = asyncio.ensure_future(call.code())
        ((_, number, *_),) = await driver.until(native.CALL)
        call.cancel()
        assert await started == Code.CANCELLED
        assert await driver.until(native.CANCELLED) == [(native.CANCELLED, number, "reset")]
        assert await unary(channel)(b"next", timeout=WITHIN_S) == b"next"


@in_loop
async def test_lost_connection_cancels_its_calls() -> None:
    async with running() as (driver, listener):
        raw = await Raw.open(listener.port)
        for stream in (1, 3):
            raw.write(frame(by_hand.HEADERS, by_hand.END_HEADERS, stream, request_headers("Hold")))
            raw.write(frame(by_hand.DATA, by_hand.END_STREAM, stream, message(b"")))
        await driver.until(native.CALL, 2)
        raw.close()
        assert [event[2] for event in await driver.until(native.CANCELLED, 2)] == ["connection"] * 2


@in_loop
async def test_streams() -> None:
    async with running() as (driver, listener), plain(listener.port) as channel:
        counted = channel.unary_stream(SERVICE + "Count")(b"100", timeout=WITHIN_S)
        assert [int(one) async for one in counted] == list(range(100))
        assert dict(await counted.trailing_metadata()) == {"end": "1"}
        assert [
            one async for one in channel.unary_stream(SERVICE + "Count")(b"0", timeout=WITHIN_S)
        ] == []

        async def parts() -> AsyncIterator[bytes]:
            for _ in range(30):
                yield b"x" * 100_000

        assert (
            await channel.stream_unary(SERVICE + "Collect")(parts(), timeout=WITHIN_S) == b"3000000"
        )
        both = channel.stream_stream(SERVICE + "Bidi")(timeout=WITHIN_S)
        for number in range(50):
            await both.write(b"%d" % number)
            assert await both.read() == b"%d" % number
        await both.done_writing()
        assert await both.read() == grpc.aio.EOF
        assert await both.code() == Code.OK
        assert driver.front.stats()["calls"] == 0


@in_loop
async def test_a_stream_without_credit_holds_at_most_its_window() -> None:
    window = 1 << 17
    async with (
        running(stream_window_bytes=window) as (driver, listener),
        plain(listener.port) as channel,
    ):
        mute = channel.stream_stream(SERVICE + "Mute")()
        written = 0

        async def write() -> None:
            nonlocal written
            while written < 200:
                await mute.write(PIECE)
                written += 1

        writing = asyncio.ensure_future(write())
        ((_, call, *_),) = await driver.until(native.CALL)
        async with asyncio.timeout(WITHIN_S):
            while driver.front.stats()["buffered_bytes"] < window - 20_000:
                await asyncio.sleep(0)
        # Other calls on the connection are not held up.
        assert await unary(channel)(b"beside", timeout=WITHIN_S) == b"beside"
        assert driver.kinds(native.MESSAGE) == []
        assert driver.front.stats()["buffered_bytes"] <= window + 20_000
        driver.give([(native.READ, call, 3)])
        await driver.until(native.MESSAGE, 3)
        assert len(driver.kinds(native.MESSAGE)) == 3
        driver.give([(native.READ, call, 1000)])
        await writing
        assert len(await driver.until(native.MESSAGE, 200)) == 200
        mute.cancel()
        await driver.until(native.CANCELLED)


@in_loop
async def test_a_slow_reader_of_a_stream_stops_its_writer() -> None:
    # Without its probes, the client keeps to a window of 64 KiB.
    still = {"http2.bdp_probe": 0, "http2.lookahead_bytes": 65_535}
    async with (
        running(stream_send_bytes=300_000) as (driver, listener),
        plain(listener.port, **still) as channel,
    ):
        flood = channel.unary_stream(SERVICE + "Flood")(b"400")
        assert await flood.read() == PIECE
        before = -1
        async with asyncio.timeout(WITHIN_S):
            while driver.given != before or driver.front.stats()["buffered_bytes"] == 0:
                before = driver.given
                assert await unary(channel)(b"", timeout=WITHIN_S) == b""
        assert driver.given < 20
        assert driver.front.stats()["buffered_bytes"] < 600_000
        rest = [await flood.read() for _ in range(399)]
        assert await flood.read() == grpc.aio.EOF
        assert set(rest) == {PIECE}
        assert driver.front.stats()["buffered_bytes"] == 0


@in_loop
async def test_calls_that_arrive_together_make_one_batch_and_their_answers_one_flush() -> None:
    async with running() as (driver, listener):
        raw = await Raw.open(listener.port)
        await raw.until(by_hand.SETTINGS)
        raw.write(
            b"".join(
                frame(by_hand.HEADERS, by_hand.END_HEADERS, stream, request_headers())
                + frame(by_hand.DATA, by_hand.END_STREAM, stream, message(b"x"))
                for stream in range(1, 41, 2)
            )
        )
        for stream in range(1, 41, 2):
            await raw.until(by_hand.DATA, stream)
        assert driver.batches == [20]
        assert driver.front.stats()["wakeups"] == 1
        raw.close()


@in_loop
async def test_take_leaves_the_rest_and_the_descriptor_readable() -> None:
    async with running() as (driver, listener), plain(listener.port) as channel:
        asyncio.get_running_loop().remove_reader(driver.front.fileno())
        calls = [
            asyncio.ensure_future(unary(channel, "Hold")(b"", timeout=WITHIN_S).code())
            for _ in range(3)
        ]
        await driver.until_stats(waiting_events=3)
        assert len(driver.front.take(2)) == 2
        assert os.read(driver.front.fileno(), 8) == (1).to_bytes(8, "little")
        assert len(driver.front.take(2)) == 1
        with pytest.raises(BlockingIOError):
            os.read(driver.front.fileno(), 8)
        assert driver.front.take() == []
        for one in calls:
            one.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        asyncio.get_running_loop().add_reader(driver.front.fileno(), lambda: None)


@in_loop
async def test_several_threads() -> None:
    async with running(threads=3) as (driver, listener):
        channels = [plain(listener.port) for _ in range(7)]
        calls = [
            unary(channel)(b"%d" % number, timeout=WITHIN_S)
            for number, channel in enumerate(channels * 20)
        ]
        assert await asyncio.gather(*calls) == [b"%d" % number for number in range(140)]
        assert driver.front.stats()["connections"] == 7
        for channel in channels:
            await channel.close()
        driver.front.drain(WITHIN_S)
        await driver.until(native.DRAINED)


# -- limits and malformed requests


@pytest.mark.parametrize("algorithm", [grpc.Compression.Gzip, grpc.Compression.Deflate])
async def test_compressed_requests(algorithm: grpc.Compression) -> None:
    async with (
        running(max_message_bytes=1 << 20) as (driver, listener),
        plain(listener.port) as channel,
    ):
        text = b"compressible " * 5000
        assert await unary(channel)(text, timeout=WITHIN_S, compression=algorithm) == text
        bomb = await failure(
            unary(channel)(b"\0" * ((1 << 20) + 1), timeout=WITHIN_S, compression=algorithm)
        )
        assert bomb.code() == Code.RESOURCE_EXHAUSTED
        most = b"\0" * (1 << 20)
        assert await unary(channel)(most, timeout=WITHIN_S, compression=algorithm) == most
        assert driver.front.stats()["refused"] == {"too-large": 1}
        assert driver.front.stats()["buffered_bytes"] == 0


@in_loop
async def test_message_limit() -> None:
    async with (
        running(max_message_bytes=1000) as (driver, listener),
        plain(listener.port) as channel,
    ):
        assert len(await unary(channel)(b"x" * 1000, timeout=WITHIN_S)) == 1000
        error = await failure(unary(channel)(b"x" * 1001, timeout=WITHIN_S))
        assert (error.code(), error.details()) == (
            Code.RESOURCE_EXHAUSTED,
            "Received message larger than max (1001 vs. 1000)",
        )
        both = channel.stream_stream(SERVICE + "Bidi")(timeout=WITHIN_S)
        await both.write(b"fits")
        assert await both.read() == b"fits"
        await both.write(b"x" * 1001)
        assert await both.code() == Code.RESOURCE_EXHAUSTED
        assert (await driver.until(native.CANCELLED))[0][2] == "too-large"
        assert len(await unary(channel, "Big")(b"5000", timeout=WITHIN_S)) == 5000


MALFORMED = {
    "flag without encoding": (message(b"x", 1), (), 13),
    "unknown flag": (message(b"x", 2), (), 13),
    "unknown encoding": (message(b"x", 1), [("grpc-encoding", "snappy")], 12),
    "not gzip": (message(b"x", 1), [("grpc-encoding", "gzip")], 13),
    "cut gzip": (message(gzip.compress(b"x" * 100)[:-10], 1), [("grpc-encoding", "gzip")], 13),
    "no request": (b"", (), 13),
    "cut request": (message(b"xx")[:-1], (), 13),
    "cut prefix": (b"\0\0", (), 13),
    "two requests": (message(b"x") * 2, (), 13),
    "bad timeout": (message(b"x"), [("grpc-timeout", "soon")], 13),
    "bad base64": (message(b"x"), [("a-bin", "!!")], 13),
}


@pytest.mark.parametrize("case", MALFORMED)
async def test_malformed_calls(case: str) -> None:
    data, fields, status = MALFORMED[case]

    async with running() as (driver, listener):
        raw = await Raw.open(listener.port)
        raw.write(frame(by_hand.HEADERS, by_hand.END_HEADERS, 1, request_headers("Unary", fields)))
        raw.write(frame(by_hand.DATA, by_hand.END_STREAM, 1, data))
        _, flags, _, payload = await raw.until(by_hand.HEADERS, 1)
        assert flags & by_hand.END_STREAM
        assert by_hand.coded("grpc-status", str(status)) in payload
        # The connection goes on.
        raw.write(frame(by_hand.HEADERS, by_hand.END_HEADERS, 3, request_headers()))
        raw.write(frame(by_hand.DATA, by_hand.END_STREAM, 3, message(b"next")))
        assert (await raw.until(by_hand.DATA, 3))[3] == message(b"next")
        assert len(driver.events) == 1
        raw.close()
        await driver.until_stats(connections=0, buffered_bytes=0)


@in_loop
async def test_requests_that_are_not_grpc() -> None:
    async with running() as (driver, listener):
        raw = await Raw.open(listener.port)
        no_grpc = request_headers("Unary", [("content-type", "application/json")])
        raw.write(frame(by_hand.HEADERS, by_hand.END_HEADERS | by_hand.END_STREAM, 1, no_grpc))
        assert by_hand.huffman("415") in (await raw.until(by_hand.HEADERS, 1))[3]
        raw.write(
            frame(
                by_hand.HEADERS,
                by_hand.END_HEADERS | by_hand.END_STREAM,
                3,
                request_headers("Unary", verb="GET"),
            )
        )
        assert by_hand.huffman("405") in (await raw.until(by_hand.HEADERS, 3))[3]
        large = request_headers("Unary", [(f"field-{number}", "x" * 1000) for number in range(16)])
        raw.write(frame(by_hand.HEADERS, by_hand.END_STREAM, 5, large[:16_000]))
        raw.write(frame(by_hand.CONTINUATION, by_hand.END_HEADERS, 5, large[16_000:]))
        assert by_hand.huffman("431") in (await raw.until(by_hand.HEADERS, 5))[3]
        assert driver.events == []
        raw.close()


@in_loop
async def test_buffers_are_bounded() -> None:
    async with (
        running(max_buffered_bytes=1 << 20) as (driver, listener),
        plain(listener.port) as channel,
    ):
        error = await failure(unary(channel)(b"x" * (2 << 20), timeout=WITHIN_S))
        assert error.code() == Code.RESOURCE_EXHAUSTED
        error = await failure(unary(channel, "Big")(b"%d" % (2 << 20), timeout=WITHIN_S))
        assert error.code() == Code.RESOURCE_EXHAUSTED
        assert await unary(channel)(b"fits", timeout=WITHIN_S) == b"fits"
        stats = await driver.until_stats(buffered_bytes=0)
        assert stats["refused"]["buffers"] == 2
        assert driver.kinds(native.CANCELLED) == []


@in_loop
async def test_open_calls_count_as_buffered() -> None:
    async with (
        running(max_buffered_bytes=64 << 10) as (driver, listener),
        plain(listener.port) as channel,
    ):
        calls = [
            asyncio.ensure_future(unary(channel, "Hold")(b"", timeout=WITHIN_S).code())
            for _ in range(100)
        ]
        done, _ = await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
        assert done.pop().result() == Code.RESOURCE_EXHAUSTED
        assert 0 < driver.front.stats()["buffered_bytes"] <= 64 << 10
        for one in calls:
            one.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
    # Closing the channel and the front together is tested here as well: nothing waits for the
    # other.


@in_loop
async def test_unread_answer_is_dropped() -> None:
    async with running(unread_answer_s=0.05) as (driver, listener):
        # SETTINGS_INITIAL_WINDOW_SIZE = 0: the client never allows any data.
        raw = await Raw.open(listener.port, bytes([0, 4, 0, 0, 0, 0]))
        raw.write(frame(by_hand.HEADERS, by_hand.END_HEADERS, 1, request_headers()))
        raw.write(frame(by_hand.DATA, by_hand.END_STREAM, 1, message(b"x" * 5000)))
        assert (await raw.until(by_hand.RST_STREAM))[2] == 1
        await driver.until_stats(calls=0, buffered_bytes=0)
        assert driver.front.stats()["refused"] == {"unread": 1}
        assert driver.kinds(native.CANCELLED) == []
        raw.close()


@in_loop
async def test_a_request_counts_as_buffered_until_its_call_has_ended() -> None:
    async with running() as (driver, listener), plain(listener.port) as channel:
        call = unary(channel, "Hold")(b"x" * 500_000, timeout=WITHIN_S)
        (began,) = await driver.until(native.CALL)
        assert len(began[7]) == 500_000 and driver.front.stats()["buffered_bytes"] > 500_000
        driver.give([(native.FINISH, began[1], 0, "", (), b"done")])
        assert await call == b"done"
        await driver.until_stats(buffered_bytes=0)


@in_loop
async def test_bytes_behind_the_one_request_are_refused_before_they_fill_the_buffers() -> None:
    """The client announces five bytes, sends far more, and does not end its side."""
    async with running() as (driver, listener):
        raw = await Raw.open(listener.port)
        raw.write(frame(by_hand.HEADERS, by_hand.END_HEADERS, 1, request_headers()))
        raw.write(frame(by_hand.DATA, 0, 1, message(b"12345")))
        for _ in range(8):
            raw.write(frame(by_hand.DATA, 0, 1, bytes(8000)))
        assert (await raw.until(by_hand.HEADERS, 1))[1] & by_hand.END_STREAM
        await driver.until_stats(calls=0, buffered_bytes=0)
        assert driver.events == []
        raw.close()


NO_WINDOW = bytes([0, 4, 0, 0, 0, 0])
"""SETTINGS_INITIAL_WINDOW_SIZE = 0: the client takes no data."""


def call_by_hand(stream: int, method: str, data: bytes = b"", *extra: tuple[str, str]) -> bytes:
    head = frame(by_hand.HEADERS, by_hand.END_HEADERS, stream, request_headers(method, extra))
    return head + frame(by_hand.DATA, by_hand.END_STREAM, stream, message(data))


def window(stream: int, size: int) -> bytes:
    return frame(by_hand.WINDOW_UPDATE, 0, stream, size.to_bytes(4, "big"))


@in_loop
async def test_a_client_that_takes_no_answers_gets_no_further_calls() -> None:
    """Until it has taken half of what it may leave; their deadlines pass meanwhile. Other
    connections go on."""
    async with (
        running(max_unsent_bytes=100_000) as (driver, listener),
        plain(listener.port) as channel,
    ):
        raw = await Raw.open(listener.port, NO_WINDOW)
        raw.write(call_by_hand(1, "Big", b"90000") + call_by_hand(3, "Big", b"90000"))
        await driver.until(native.CALL, 2)
        await driver.until_stats(unsent_bytes=2 * 90_005)
        raw.write(
            call_by_hand(5, "Unary")
            + call_by_hand(7, "Mute")
            + call_by_hand(9, "Unary", b"", ("grpc-timeout", "50m"))
        )
        await raw.until(by_hand.HEADERS, 9)
        await driver.until_stats(calls=4)
        assert await unary(channel)(b"other", timeout=WITHIN_S) == b"other"
        assert len(driver.kinds(native.CALL)) == 3
        stats = driver.front.stats()
        assert (
            180_000 < stats["unsent_bytes"] < 190_000
            and stats["unsent_bytes"] < stats["buffered_bytes"]
        )
        raw.write(window(0, 1 << 20) + window(1, 1 << 20))
        await raw.until(by_hand.HEADERS, 1)
        await driver.until_stats(calls=3)
        assert len(driver.kinds(native.CALL)) == 3, "more than half is left"
        raw.write(window(3, 1 << 20))
        assert [event[2] for event in (await driver.until(native.CALL, 5))[3:]] == [
            SERVICE + "Unary",
            SERVICE + "Mute",
        ]
        raw.close()


@in_loop
async def test_answers_count_until_the_socket_has_taken_them() -> None:
    """Also what HTTP/2 holds, and the calls that have ended."""
    async with running() as (driver, listener):
        raw = await Raw.open(listener.port, bytes([0, 4, 0x7F, 0xFF, 0xFF, 0xFF]))
        await ended_before_a_full_socket(driver, raw)
        before = driver.front.stats()
        assert before["unsent_bytes"] > 200_000
        first = 4001
        raw.write(b"".join(call_by_hand(first + 2 * at, "Missing") for at in range(500)))
        async with asyncio.timeout(WITHIN_S):
            while driver.front.stats()["calls_unknown"] < 500:
                await asyncio.sleep(0.001)
        assert driver.front.stats()["unsent_bytes"] >= before["unsent_bytes"] + 500 * 1024
        raw.writer.transport.resume_reading()
        await raw.until(by_hand.HEADERS, first + 998)
        await driver.until_stats(unsent_bytes=0, buffered_bytes=0)
        raw.close()


@in_loop
async def test_client_that_reads_no_answer_loses_its_connection() -> None:
    """While an answer waits for it; one for which nothing waits does not."""
    async with running(unread_answer_s=0.2) as (driver, listener):
        raw, idle = (
            await Raw.open(listener.port, NO_WINDOW),
            await Raw.open(listener.port, NO_WINDOW),
        )
        idle.write(call_by_hand(1, "Hold"))
        (held,) = await driver.until(native.CALL)
        raw.write(call_by_hand(1, "Mute"))
        number = (await driver.until(native.CALL, 2))[1][1]
        driver.give([(native.SEND, number, b"x" * 1000)])
        await raw.to_the_end()
        (refused,) = await driver.until(native.REFUSED)
        assert refused[1] == "stalled" and driver.front.stats()["refused"] == {"stalled": 1}
        assert await driver.until(native.CANCELLED) == [(native.CANCELLED, number, "connection")]
        await driver.until_stats(calls=1, unsent_bytes=0)
        driver.give([(native.FINISH, held[1], 0, "", (), b"")])
        idle.write(window(1, 100))
        assert (await idle.until(by_hand.DATA, 1))[3] == message(b"")
        idle.close()


@in_loop
async def test_a_client_that_does_not_even_take_refusals_loses_its_connection() -> None:
    """When the budget of the node is full."""
    async with running(max_buffered_bytes=4 << 20, max_streams_per_connection=20_000) as (
        driver,
        listener,
    ):
        raw, other = (
            await Raw.open(listener.port, bytes([0, 4, 0x7F, 0xFF, 0xFF, 0xFF])),
            await Raw.open(listener.port),
        )
        _, stream = await ended_before_a_full_socket(driver, raw)
        streams = itertools.count(1, 2)
        while "buffers" not in driver.front.stats()["refused"]:
            other.write(call_by_hand(next(streams), "Hold"))
            await asyncio.sleep(0)
        await other.until(by_hand.HEADERS)
        raw.write(call_by_hand(stream + 2, "Hold", b"", ("field", "x" * 5000)))
        (refused,) = await driver.until(native.REFUSED)
        assert refused[1] == "stalled"
        other.close()
        raw.close()


# -- what becomes of an answer


async def ended_with(driver: Driver, raw: Raw, size: int, stream: int = 1) -> int:
    """Let the client call a method, and end the call with one answer of this size. Returns the
    call."""
    before = len(driver.kinds(native.CALL))
    raw.write(frame(by_hand.HEADERS, by_hand.END_HEADERS, stream, request_headers("Hold")))
    raw.write(frame(by_hand.DATA, by_hand.END_STREAM, stream, message(b"")))
    number: int = (await driver.until(native.CALL, before + 1))[before][1]
    driver.give([(native.SEND, number, b"x" * size), (native.END, number, [("end", "1")])])
    return number


async def no_byte_more(driver: Driver, raw: Raw, call: int | None = None) -> None:
    """Wait until the socket of a client that does not read takes no more, or until this call was
    sent whole.

    Another client measures the turns of the thread that serves both: while two calls of it, one
    after the other, are answered, no bytes go out but those that it reads. A byte that the full
    socket could take would have gone out in these turns, however slow the machine is.
    """
    connections = driver.front.stats()["connections"]
    other, still, before = await Raw.open(raw.writer.get_extra_info("peername")[1]), 0, -1
    async with asyncio.timeout(WITHIN_S):
        for stream in itertools.count(1, 2):
            other.write(
                frame(
                    by_hand.HEADERS,
                    by_hand.END_HEADERS | by_hand.END_STREAM,
                    stream,
                    request_headers("Missing"),
                )
            )
            kind = read = 0
            while kind != by_hand.HEADERS:
                kind, _, _, payload = await other.read() or (by_hand.HEADERS, 0, 0, b"")
                read += 9 + len(payload)
            sent = driver.front.stats()["sent_bytes"]
            still, before = (still + 1 if sent - before == read else 0), sent
            if still == 2 or any(event[1] == call for event in driver.kinds(native.SENT)):
                break
    other.close()
    await driver.until_stats(connections=connections)


async def ended_before_a_full_socket(driver: Driver, raw: Raw) -> tuple[int, int]:
    """Answer calls of a client that does not read, until HTTP/2 has the whole of an answer and the
    socket only a part. Returns the call and the stream of that answer."""
    raw.write(frame(by_hand.WINDOW_UPDATE, 0, 0, (1 << 30).to_bytes(4, "big")))
    raw.writer.transport.pause_reading()
    size = 200_000
    for stream in range(1, 2001, 2):
        call = await ended_with(driver, raw, size, stream)
        sent = len(driver.kinds(native.SENT))
        await no_byte_more(driver, raw, call)
        assert len(driver.kinds(native.SENT)) * size <= driver.front.stats()["sent_bytes"], (
            "told before the socket had it"
        )
        if len(driver.kinds(native.SENT)) == sent:
            return call, stream
    raise AssertionError("the socket took 200 MB")


@in_loop
async def test_python_is_told_when_the_windows_have_let_an_answer_out() -> None:
    async with running() as (driver, listener):
        raw = await Raw.open(listener.port)
        call = await ended_with(driver, raw, 100_000)
        received = 0
        while received < 65_535:
            received += len((await raw.until(by_hand.DATA))[3])
        assert driver.kinds(native.SENT) == []
        for stream in (0, 1):
            raw.write(frame(by_hand.WINDOW_UPDATE, 0, stream, (1 << 20).to_bytes(4, "big")))
        assert await driver.until(native.SENT) == [(native.SENT, call)]
        while received < 100_005:
            received += len((await raw.until(by_hand.DATA))[3])
        assert (await raw.until(by_hand.HEADERS))[1] & by_hand.END_STREAM
        assert driver.kinds(native.CANCELLED) == []
        raw.close()


@pytest.mark.one_in(3)
@in_loop
@pytest.mark.parametrize("blocked", [False, True], ids=["window", "socket"])
@pytest.mark.parametrize("how", ["cancels", "closes", "closes its side", "waits"])
async def test_python_is_told_that_a_client_left_before_the_answer(how: str, blocked: bool) -> None:
    """While the window of the client holds the answer back, and while the socket does although
    HTTP/2 has the whole answer."""
    async with running(unread_answer_s=2.0 if how == "waits" else 60.0) as (driver, listener):
        raw = await Raw.open(
            listener.port, bytes([0, 4, 0x7F, 0xFF, 0xFF, 0xFF]) if blocked else b""
        )
        if blocked:
            call, stream = await ended_before_a_full_socket(driver, raw)
        else:
            call, stream = await ended_with(driver, raw, 100_000), 1
            await raw.until(by_hand.DATA)
        sent = driver.kinds(native.SENT)
        if how == "cancels":
            raw.write(frame(by_hand.RST_STREAM, 0, stream, b"\0\0\0\x08"))
        elif how == "closes":
            raw.writer.transport.abort()
        elif how == "closes its side":
            raw.writer.write_eof()
            if blocked:
                raw.writer.transport.resume_reading()
            await raw.to_the_end()
        reason = {"cancels": "reset", "waits": "unread"}.get(how, "connection")
        assert await driver.until(native.CANCELLED) == [(native.CANCELLED, call, reason)]
        await driver.until_stats(calls=0)
        assert driver.kinds(native.SENT) == sent
        # What HTTP/2 has begun to send is there until the socket has taken it.
        raw.writer.transport.abort()
        await driver.until_stats(connections=0, buffered_bytes=0)


@in_loop
async def test_an_answer_during_a_drain_was_sent() -> None:
    """The last answer of a connection ends the connection too: it was sent even so."""
    async with running() as (driver, listener), plain(listener.port) as channel:
        calls = [channel.stream_stream(SERVICE + "Mute")(timeout=WITHIN_S) for _ in range(2)]
        waiting = [asyncio.ensure_future(call.read()) for call in calls]
        numbers = [event[1] for event in await driver.until(native.CALL, 2)]
        driver.front.drain(WITHIN_S)
        for number in numbers:
            driver.give([(native.SEND, number, b"answer"), (native.END, number, ())])
        assert await asyncio.gather(*waiting) == [b"answer"] * 2
        assert [await call.code() for call in calls] == [Code.OK] * 2
        await driver.until(native.DRAINED)
        assert sorted(driver.kinds(native.SENT)) == sorted(
            (native.SENT, number) for number in numbers
        )
        assert driver.kinds(native.CANCELLED) == []


async def kept_answer(
    driver: Driver, raw: Raw, *, size: int = 10, stream: int = 1, timeout: str = ""
) -> int:
    """Let the client call a method, and end the call with an answer that Python keeps until it is
    taken. Returns the call."""
    before = len(driver.kinds(native.CALL))
    extra = [("grpc-timeout", timeout)] if timeout else []
    raw.write(frame(by_hand.HEADERS, by_hand.END_HEADERS, stream, request_headers("Hold", extra)))
    raw.write(frame(by_hand.DATA, by_hand.END_STREAM, stream, message(b"")))
    number: int = (await driver.until(native.CALL, before + 1))[before][1]
    driver.give([(native.SEND, number, b"x" * size), (native.END_TAKEN, number, ())])
    return number


async def ping_behind(raw: Raw, stream: int | None = 1) -> bytes:
    """Read up to the first ping behind the end of the stream (None: of any), and return the frame
    that acknowledges it."""
    while not (await raw.until(by_hand.HEADERS, stream))[1] & by_hand.END_STREAM:
        pass
    return acknowledged(await raw.until(by_hand.PING))


@in_loop
async def test_an_answer_is_taken_once_the_ping_behind_it_is_acknowledged() -> None:
    async with running() as (driver, listener):
        raw = await Raw.open(listener.port)
        for stream in (1, 3):
            call = await kept_answer(driver, raw, size=1000, stream=stream, timeout="20S")
            answer = await ping_behind(raw, stream)
            assert len(driver.kinds(native.SENT)) == stream // 2
            assert driver.front.stats()["buffered_bytes"] > 1000
            raw.write(answer)
            assert (await driver.until(native.SENT, stream // 2 + 1))[-1] == (native.SENT, call)
            await driver.until_stats(calls=0, buffered_bytes=0)
        assert driver.kinds(native.CANCELLED) == []
        raw.close()


@in_loop
@pytest.mark.parametrize(
    "how", ["is silent", "is late", "resets", "closes", "says goodbye", "has no deadline"]
)
async def test_an_answer_that_its_client_has_not_provably_taken(how: str) -> None:
    """The socket took all of it, and a ping was behind it."""
    async with running(unread_answer_s=0.2 if how == "has no deadline" else 60.0) as (
        driver,
        listener,
    ):
        raw = await Raw.open(listener.port)
        call = await kept_answer(
            driver,
            raw,
            timeout={"has no deadline": "", "is silent": "300m", "is late": "300m"}.get(how, "20S"),
        )
        answer = await ping_behind(raw)
        if how == "resets":
            # Its acknowledgement proves only that the reset was not too late.
            raw.write(frame(by_hand.RST_STREAM, 0, 1, b"\0\0\0\x08") + answer)
        elif how == "closes":
            raw.writer.transport.abort()
        elif how == "says goodbye":
            raw.write(frame(by_hand.GOAWAY, 0, 0, bytes(8)))
            raw.writer.write_eof()
        reason = {
            "resets": "reset",
            "closes": "connection",
            "says goodbye": "connection",
            "has no deadline": "unread",
        }.get(how, "deadline")
        assert await driver.until(native.CANCELLED) == [(native.CANCELLED, call, reason)]
        if how == "is late":
            raw.write(answer)
            # The connection goes on, and the late acknowledgement counts for no later answer.
            later = await kept_answer(driver, raw, stream=3)
            raw.write(await ping_behind(raw, 3))
            assert await driver.until(native.SENT) == [(native.SENT, later)]
        assert len(driver.kinds(native.SENT)) == (how == "is late")
        await driver.until_stats(calls=0, buffered_bytes=0)
        assert driver.front.stats()["refused"] == (
            {"unread": 1} if how == "has no deadline" else {}
        )
        raw.close()


@in_loop
async def test_one_ping_stands_behind_all_answers_that_the_socket_has() -> None:
    async with running() as (driver, listener):
        raw = await Raw.open(listener.port)
        for stream in range(1, 201, 2):
            raw.write(frame(by_hand.HEADERS, by_hand.END_HEADERS, stream, request_headers("Hold")))
            raw.write(frame(by_hand.DATA, by_hand.END_STREAM, stream, message(b"")))
        calls = [event[1] for event in await driver.until(native.CALL, 100)]
        first, others = calls[:1], calls[1:]
        driver.give(
            [
                answer
                for call in first
                for answer in ((native.SEND, call, b"x"), (native.END_TAKEN, call, ()))
            ]
        )
        # Calls are told in the order in which their requests were complete, which need not be the
        # order of the streams.
        ping = await ping_behind(raw, stream=None)
        # These come behind that ping, so they wait for the next one.
        driver.give(
            [
                answer
                for call in others
                for answer in ((native.SEND, call, b"x"), (native.END_TAKEN, call, ()))
            ]
        )
        ended = 0
        while ended < len(others):
            ended += bool((await raw.until(by_hand.HEADERS))[1] & by_hand.END_STREAM)
        assert driver.kinds(native.SENT) == []
        raw.write(ping)
        assert await driver.until(native.SENT) == [(native.SENT, first[0])]
        raw.write(acknowledged(await raw.until(by_hand.PING)))
        assert sorted(await driver.until(native.SENT, 100)) == sorted(
            (native.SENT, call) for call in calls
        )
        # No other ping was sent: the next one is the client's, answered at once.
        raw.write(frame(by_hand.PING, 0, 0, b"12345678"))
        assert (await raw.until(by_hand.PING))[1:] == (by_hand.ACK, 0, b"12345678")
        raw.close()


@in_loop
@pytest.mark.parametrize("blocked", [False, True], ids=["window", "socket"])
async def test_a_ping_stands_behind_every_byte_of_an_answer(blocked: bool) -> None:
    """Also while the windows of the client, or its socket, hold a part of the answer back."""
    async with running() as (driver, listener):
        raw = await Raw.open(
            listener.port, bytes([0, 4, 0x7F, 0xFF, 0xFF, 0xFF]) if blocked else b""
        )
        size = 20_000_000 if blocked else 100_000
        if blocked:
            raw.write(frame(by_hand.WINDOW_UPDATE, 0, 0, (1 << 30).to_bytes(4, "big")))
            raw.writer.transport.pause_reading()
        call = await kept_answer(driver, raw, size=size)
        received = 0
        if blocked:
            await no_byte_more(driver, raw)
            assert driver.front.stats()["sent_bytes"] < size
            raw.writer.transport.resume_reading()
        while received < size + 5:
            kind, _, _, payload = await raw.read() or (0, 0, 0, b"")
            assert kind != by_hand.PING
            received += len(payload) if kind == by_hand.DATA else 0
            if not blocked and received == 65_535:
                for stream in (0, 1):
                    raw.write(frame(by_hand.WINDOW_UPDATE, 0, stream, (1 << 20).to_bytes(4, "big")))
        raw.write(await ping_behind(raw))
        assert await driver.until(native.SENT) == [(native.SENT, call)]
        raw.close()


@in_loop
async def test_idle_ping_does_not_confirm_a_later_answer() -> None:
    async with running(keepalive_s=0.05, keepalive_timeout_s=WITHIN_S) as (driver, listener):
        raw = await Raw.open(listener.port)
        idle = acknowledged(await raw.until(by_hand.PING))
        call = await kept_answer(driver, raw)
        while not (await raw.until(by_hand.HEADERS, 1))[1] & by_hand.END_STREAM:
            pass
        raw.write(idle)
        raw.write(acknowledged(await raw.until(by_hand.PING)))
        assert await driver.until(native.SENT) == [(native.SENT, call)]
        raw.close()


@in_loop
async def test_answers_that_are_not_taken_are_bounded() -> None:
    """Python keeps them, so they count as buffered though the socket has them."""
    async with running(max_buffered_bytes=1 << 20) as (driver, listener):
        raw = await Raw.open(listener.port, bytes([0, 4, 0x7F, 0xFF, 0xFF, 0xFF]))
        raw.write(frame(by_hand.WINDOW_UPDATE, 0, 0, (1 << 30).to_bytes(4, "big")))
        calls = []
        for stream in range(1, 11, 2):
            # While the socket takes an answer, it counts twice.
            calls.append(await kept_answer(driver, raw, size=230_000, stream=stream))
            while not (await raw.until(by_hand.HEADERS, stream))[1] & by_hand.END_STREAM:
                pass
        assert 600_000 < driver.front.stats()["buffered_bytes"] <= 1 << 20
        assert driver.kinds(native.SENT) == []
        assert await driver.until(native.CANCELLED, 2) == [
            (native.CANCELLED, call, "buffers") for call in calls[3:]
        ]
        raw.close()


@in_loop
async def test_clients_of_the_library_take_their_answers() -> None:
    async with running() as (driver, listener), plain(listener.port) as channel:
        for count in range(1, 21):
            call = channel.unary_stream(SERVICE + "Hold")(b"", timeout=WITHIN_S)
            waiting = asyncio.ensure_future(call.read())
            number = (await driver.until(native.CALL, count))[-1][1]
            driver.give([(native.SEND, number, b"answer"), (native.END_TAKEN, number, ())])
            assert await waiting == b"answer"
            assert await call.code() == Code.OK
            assert (await driver.until(native.SENT, count))[-1] == (native.SENT, number)
        assert driver.kinds(native.CANCELLED) == []


@in_loop
async def test_messages_behind_the_end_of_a_call_are_ignored() -> None:
    """If a part of the answer did not fit into the buffers, the call has ended with that."""
    async with (
        running(max_buffered_bytes=100_000) as (driver, listener),
        plain(listener.port) as channel,
    ):
        call = channel.stream_stream(SERVICE + "Mute")(timeout=WITHIN_S)
        (began,) = await driver.until(native.CALL)
        number = began[1]
        driver.give([(native.SEND, number, b"one"), (native.END, number, ())])
        driver.give([(native.SEND, number, b"two"), (native.FINISH, number, 2, "", (), None)])
        assert await call.read() == b"one"
        assert await call.code() == Code.OK
        assert await driver.until(native.SENT) == [(native.SENT, number)]
        full = channel.stream_stream(SERVICE + "Mute")(timeout=WITHIN_S)
        number = (await driver.until(native.CALL, 2))[1][1]
        driver.give([(native.SEND, number, bytes(200_000)), (native.END, number, ())])
        assert await full.code() == Code.RESOURCE_EXHAUSTED
        assert await driver.until(native.CANCELLED) == [(native.CANCELLED, number, "buffers")]
        assert len(driver.kinds(native.SENT)) == 1


@in_loop
async def test_answers_that_cannot_be_sent() -> None:
    async with running() as (driver, listener), plain(listener.port) as channel:
        call = asyncio.ensure_future(failure(unary(channel, "Hold")(b"", timeout=WITHIN_S)))
        number = (await driver.until(native.CALL))[-1][1]
        driver.events.clear()
        driver.give([(native.FINISH, number, 5, "a surrogate \ud800", (), None)])
        assert (await call).details().startswith("a surrogate \ufffd")
        for trailing in (
            [("grpc-status", "0")],
            [("umlaut", "ä")],
            [("a b", "c")],
            [(":path", "x")],
        ):
            call = asyncio.ensure_future(failure(unary(channel, "Hold")(b"", timeout=WITHIN_S)))
            number = (await driver.until(native.CALL))[-1][1]
            driver.events.clear()
            driver.give([(native.FINISH, number, 0, "", trailing, b"")])
            assert (await call).code() == Code.INTERNAL
        assert driver.front.stats()["bad_answers"] == 4
        call = asyncio.ensure_future(unary(channel, "Hold")(b"", timeout=WITHIN_S).code())
        number = (await driver.until(native.CALL))[-1][1]
        good = (native.FINISH, number, 0, "", (), b"good")
        for wrong in (
            (9, number, 0),
            (native.FINISH, number),
            (native.SEND, number, "text"),
            (native.READ, number, -1),
            (),
            5,
        ):
            with pytest.raises((TypeError, ValueError, OverflowError)):
                driver.front.give([good, wrong])
        assert not call.done()
        driver.give(
            [
                good,
                (native.FINISH, 12345 << 32, 0, "", (), b""),
                (native.FINISH, number, 3, "late", (), None),
            ]
        )
        assert await call == Code.OK


# -- life of connections


@in_loop
async def test_a_silent_connection_is_pinged_and_closed() -> None:
    async with running(keepalive_s=0.05, keepalive_timeout_s=0.05) as (driver, listener):
        raw = await Raw.open(listener.port)
        _, flags, _, payload = await raw.until(by_hand.PING)
        assert not flags & by_hand.ACK
        raw.write(frame(by_hand.PING, by_hand.ACK, 0, payload))
        await raw.until(by_hand.PING)
        await raw.to_the_end()
        await driver.until_refused("keepalive")
    async with (
        running(keepalive_s=0.02, keepalive_timeout_s=WITHIN_S) as (driver, listener),
        plain(listener.port) as channel,
    ):
        await unary(channel)(b"", timeout=WITHIN_S)
        before = driver.front.stats()["received_bytes"]
        async with asyncio.timeout(WITHIN_S):
            while driver.front.stats()["received_bytes"] < before + 5 * 17:
                await asyncio.sleep(0.001)
        assert driver.front.stats()["connections"] == 1


@in_loop
async def test_drain_lets_calls_end() -> None:
    async with running() as (driver, listener), plain(listener.port) as channel:
        call = asyncio.ensure_future(unary(channel, "Hold")(b"", timeout=WITHIN_S))
        both = channel.stream_stream(SERVICE + "Bidi")(timeout=WITHIN_S)
        await both.write(b"1")
        assert await both.read() == b"1"
        number = next(
            event[1] for event in await driver.until(native.CALL, 2) if event[2].endswith("Hold")
        )
        driver.front.drain(WITHIN_S)
        async with asyncio.timeout(WITHIN_S):
            with pytest.raises(ConnectionError):
                while True:
                    (await Raw.open(listener.port)).close()
        await both.write(b"2")
        assert await both.read() == b"2"
        driver.give([(native.FINISH, number, 0, "", (), b"late")])
        assert await call == b"late"
        assert driver.kinds(native.DRAINED) == []
        await both.done_writing()
        assert await both.code() == Code.OK
        await driver.until(native.DRAINED)
        assert driver.front.stats()["connections"] == 0


@in_loop
async def test_drain_ends_remaining_calls_and_connections() -> None:
    async with running() as (driver, listener), plain(listener.port) as channel:
        call = unary(channel, "Hold")(b"", timeout=WITHIN_S)
        waiting = asyncio.ensure_future(call.code())
        idle = await Raw.open(listener.port)
        half_open = await Raw.open(listener.port, greet=False)
        await driver.until(native.CALL)
        await driver.until_stats(connections=3)
        driver.front.drain(0.05)
        assert await waiting == Code.UNAVAILABLE
        assert by_hand.GOAWAY in [kind for kind, *_ in await idle.to_the_end()]
        assert await half_open.to_the_end() == []
        assert (await driver.until(native.CANCELLED))[0][2] == "drained"
        await driver.until(native.DRAINED)
        for raw in (idle, half_open):
            raw.close()


def test_close_twice_and_without_listeners() -> None:
    front = native.Front(threads=2)
    front.close()
    front.close()
    assert front.take() == []
    assert front.give([(native.FINISH, 1, 0, "", (), None)]) == []
    for wrong in (
        {"threads": 0},
        {"keepalive_s": -1},
        {"stream_window_bytes": 1},
        {"max_streams_per_connection": 0},
    ):
        with pytest.raises(ValueError, match=r"must|not a time"):
            native.Front(**wrong)


@in_loop
async def test_listening_on_a_descriptor_and_with_several_on_a_port() -> None:
    async with running() as (driver, _):
        with socket.create_server(("127.0.0.1", 0)) as bound:
            port = bound.getsockname()[1]
            assert driver.front.listen("", fd=bound.fileno()).port == port
        async with plain(port) as channel:
            assert await unary(channel)(b"given", timeout=WITHIN_S) == b"given"
        shared = driver.front.listen("127.0.0.1", reuse_port=True)
        assert driver.front.listen("127.0.0.1", shared.port, reuse_port=True).port == shared.port
        with pytest.raises(OSError, match="in use"):
            driver.front.listen("127.0.0.1", port)


# -- TLS


def secure(port: int, roots: bytes, own: tuple[bytes, bytes] | None = None) -> grpc.aio.Channel:
    certificate, key = own or (None, None)
    credentials = grpc.ssl_channel_credentials(roots, key, certificate)
    return grpc.aio.secure_channel(f"localhost:{port}", credentials, options=OPTIONS)


@in_loop
async def test_tls_and_plaintext_on_one_port() -> None:
    ca = Ca()
    async with running() as (driver, _):
        both = driver.front.listen("127.0.0.1", tls=native.TlsConfig(*ca.issue("server")))
        async with plain(both.port) as channel:
            assert await unary(channel)(b"plain", timeout=WITHIN_S) == b"plain"
        async with secure(both.port, ca.pem) as channel:
            assert await unary(channel)(b"tls" * 100_000, timeout=WITHIN_S) == b"tls" * 100_000
            big = [unary(channel, "Big")(b"%d" % (10 << 20), timeout=WITHIN_S) for _ in range(3)]
            assert [len(one) for one in await asyncio.gather(*big)] == [10 << 20] * 3
            about = ast.literal_eval((await unary(channel, "About")(b"")).decode())
            assert about["auth"]["transport_security_type"] == [b"ssl"]
            assert "x509_common_name" not in about["auth"]
        only = driver.front.listen(
            "127.0.0.1", plain=False, tls=native.TlsConfig(*ca.issue("server"))
        )
        plainly = await Raw.open(only.port)
        assert await plainly.to_the_end() == []
        await driver.until_refused("plaintext-on-tls")
        clear = driver.front.listen("127.0.0.1")
        raw = await Raw.open(clear.port, greet=False)
        raw.write(b"\x16\x03\x01\0\x05hello")
        assert await raw.to_the_end() == []
        await driver.until_refused("tls-on-plaintext")
        raw = await Raw.open(clear.port, greet=False)
        raw.write(b"GET / HTTP/1.1\r\n\r\n")
        assert await raw.to_the_end() == []
        refused = {event[1]: event[3] for event in await driver.until(native.REFUSED, 3)}
        assert refused.keys() == {"plaintext-on-tls", "tls-on-plaintext", "garbage"}
        assert "switch TLS on in the client" in refused["plaintext-on-tls"]


@in_loop
async def test_names_of_client_certificates() -> None:
    ca, other = Ca(), Ca("other")
    names = [
        x509.DNSName("client.test"),
        x509.UniformResourceIdentifier("spiffe://test/client"),
        x509.RFC822Name("a@client.test"),
    ]
    own = ca.issue("the client", names)
    async with running() as (driver, _):
        config = native.TlsConfig(*ca.issue("server"), client_ca=ca.pem, require_client=True)
        listener = driver.front.listen("127.0.0.1", plain=False, tls=config)
        async with secure(listener.port, ca.pem, own) as channel:
            auth = ast.literal_eval(
                (await unary(channel, "About")(b"", timeout=WITHIN_S)).decode()
            )["auth"]
            assert auth["x509_common_name"] == [b"the client"]
            assert auth["x509_subject_alternative_name"] == [
                b"client.test",
                b"spiffe://test/client",
                b"a@client.test",
            ]
            assert auth["x509_pem_cert"] == [own[0]]
        for stranger in (None, other.issue("the client")):
            async with secure(listener.port, ca.pem, stranger) as channel:
                assert (
                    await failure(unary(channel)(b"", timeout=WITHIN_S))
                ).code() == Code.UNAVAILABLE
        await driver.until_refused("tls")
        optional = driver.front.listen(
            "127.0.0.1", tls=native.TlsConfig(*ca.issue("server"), client_ca=ca.pem)
        )
        async with secure(optional.port, ca.pem) as channel:
            assert await unary(channel)(b"anonymous", timeout=WITHIN_S) == b"anonymous"


@in_loop
async def test_certificates_are_reloaded_for_new_connections() -> None:
    old, new = Ca("old"), Ca("new")
    async with running() as (driver, plaintext):
        listener = driver.front.listen("127.0.0.1", tls=native.TlsConfig(*old.issue("server")))
        async with (
            secure(listener.port, old.pem) as before,
            secure(listener.port, new.pem) as after,
            secure(listener.port, old.pem) as late,
        ):
            assert await unary(before)(b"1", timeout=WITHIN_S) == b"1"
            listener.reload_tls(native.TlsConfig(*new.issue("server")))
            assert await unary(before)(b"2", timeout=WITHIN_S) == b"2"
            assert await unary(after)(b"3", timeout=WITHIN_S) == b"3"
            assert (await failure(unary(late)(b"", timeout=WITHIN_S))).code() == Code.UNAVAILABLE
        with pytest.raises(ValueError, match="no TLS"):
            plaintext.reload_tls(native.TlsConfig(*new.issue("server")))
        with pytest.raises(ValueError, match="certificate or key"):
            native.TlsConfig(new.issue("server")[0], new.issue("server")[1])
        with pytest.raises(ValueError, match="no certificate"):
            native.TlsConfig(b"", new.issue("server")[1])


# -- quotas


@in_loop
async def test_connection_quotas() -> None:
    async with running(max_connections=3, max_connections_per_address=2) as (driver, listener):
        raws = [await Raw.open(listener.port) for _ in range(2)]
        for raw in raws:
            await raw.until(by_hand.SETTINGS)
        third = await Raw.open(listener.port)
        assert await third.to_the_end() == []
        await driver.until_refused("address")
        raws[0].close()
        await driver.until_stats(connections=1)
        again = await Raw.open(listener.port)
        await again.until(by_hand.SETTINGS)
        for raw in (raws[1], again):
            raw.close()
        await driver.until_stats(connections=0)


@in_loop
async def test_new_connections_wait_for_their_turn() -> None:
    async with running(new_connections_per_s=0.1) as (driver, listener):
        first = await Raw.open(listener.port)
        await first.until(by_hand.SETTINGS)
        waits = await Raw.open(listener.port)
        await driver.until_stats(connections=2)
        crowd = await Raw.open(listener.port)
        assert await crowd.to_the_end() == []
        await driver.until_refused("crowd")
        assert driver.front.stats()["connections_total"] == 1
        for raw in (first, waits, crowd):
            raw.close()


@pytest.mark.parametrize("begin", [b"", b"PRI * HTTP/2.0\r\n", b"\x16\x03\x01"])
async def test_slow_handshakes_end(begin: bytes) -> None:
    async with running(handshake_s=0.05) as (driver, _):
        listener = driver.front.listen("127.0.0.1", tls=native.TlsConfig(*Ca().issue("server")))
        raw = await Raw.open(listener.port, greet=False)
        raw.write(begin)
        # The server may have sent its SETTINGS before the preface was complete.
        assert {kind for kind, *_ in await raw.to_the_end()} <= {by_hand.SETTINGS}
        await driver.until_refused("slow")
        await driver.until_stats(connections=0)


async def test_silence_ends_before_a_slow_handshake() -> None:
    """A client that has said what it speaks has more time, and the time until its turn counts for
    neither."""
    async with running(first_byte_s=0.05, handshake_s=0.2, new_connections_per_s=2.5) as (
        driver,
        listener,
    ):
        first = await Raw.open(listener.port)
        await first.until(by_hand.SETTINGS)
        late = await Raw.open(listener.port)
        await late.until(by_hand.SETTINGS)
        assert "slow" not in driver.front.stats()["refused"], "its turn came after 400 ms"
        silent = await Raw.open(listener.port, greet=False)
        assert await silent.to_the_end() == []
        await driver.until_refused("slow")
        for raw in (first, late):
            raw.close()


@in_loop
async def test_calls_beyond_the_advertised_number_are_refused() -> None:
    """The client may repeat such a call (REFUSED_STREAM), and the connection goes on."""
    async with running(max_streams_per_connection=2) as (driver, listener):
        raw = await Raw.open(listener.port)
        settings = (await raw.until(by_hand.SETTINGS))[3]
        assert b"\0\3\0\0\0\2" in [settings[at : at + 6] for at in range(0, len(settings), 6)]
        for stream in (1, 3, 5):
            raw.write(frame(by_hand.HEADERS, by_hand.END_HEADERS, stream, request_headers("Hold")))
            raw.write(frame(by_hand.DATA, by_hand.END_STREAM, stream, message(b"")))
        _, _, stream, reason = await raw.until(by_hand.RST_STREAM)
        assert (stream, int.from_bytes(reason, "big")) == (5, 7)
        raw.write(frame(by_hand.RST_STREAM, 0, 1, bytes(4)))
        await driver.until(native.CANCELLED)
        raw.write(frame(by_hand.HEADERS, by_hand.END_HEADERS, 7, request_headers()))
        raw.write(frame(by_hand.DATA, by_hand.END_STREAM, 7, message(b"x")))
        assert (await raw.until(by_hand.DATA))[2] == 7
        raw.close()


# -- hostile HTTP/2


async def goodbye(raw: Raw) -> tuple[int, bytes]:
    """Error code and text of the last GOAWAY before the end of the connection; the code is -1 if
    the end came without one."""
    found = (-1, b"")
    for kind, _, _, payload in await raw.to_the_end():
        if kind == by_hand.GOAWAY:
            found = int.from_bytes(payload[4:8], "big"), payload[8:]
    return found


async def flooded(
    reason: str,
    flood: Callable[[int], bytes],
    *,
    repeats: int = 100_000,
    limits: dict[str, Any] | None = None,
) -> Driver:
    """Send up to this many parts of a flood; the connection must end before, for this reason, and
    others must be served."""
    async with running(**(limits or {})) as (driver, listener):
        raw = await Raw.open(listener.port)
        await raw.until(by_hand.SETTINGS)

        async def write() -> int:
            sent = 0
            try:
                for number in range(repeats):
                    raw.write(flood(number))
                    sent += 1
                    if number % 64 == 63:
                        await raw.writer.drain()
            except ConnectionError:
                pass
            return sent

        started = time.process_time()
        async with asyncio.timeout(WITHIN_S):
            writing = asyncio.ensure_future(write())
            code, _ = await goodbye(raw)
            assert await writing < repeats
        assert code in (-1, by_hand.ENHANCE_YOUR_CALM)
        await driver.until_refused(reason)
        await driver.until_stats(connections=0, calls=0, panics=0)
        assert time.process_time() - started < 10
        raw.close()
        async with plain(listener.port) as channel:
            assert await unary(channel)(b"others", timeout=WITHIN_S) == b"others"
        return driver


@in_loop
async def test_ping_flood() -> None:
    await flooded("pings", lambda _: frame(by_hand.PING, 0, 0, b"12345678"))


@in_loop
async def test_too_many_pings_are_answered_with_the_text_that_grpc_understands() -> None:
    async with running(max_ping_strikes=2) as (_, listener):
        raw = await Raw.open(listener.port)
        await raw.until(by_hand.SETTINGS)
        for _ in range(3):
            raw.write(frame(by_hand.PING, 0, 0, b"12345678"))
            while (await raw.until(by_hand.PING))[1] != by_hand.ACK:
                pass
        raw.write(frame(by_hand.PING, 0, 0, b"12345678"))
        assert await goodbye(raw) == (by_hand.ENHANCE_YOUR_CALM, b"too_many_pings")


@in_loop
async def test_settings_flood() -> None:
    await flooded("settings", lambda _: frame(by_hand.SETTINGS, 0, 0, bytes([0, 3, 0, 0, 0, 100])))


@in_loop
async def test_rapid_reset() -> None:
    def one(number: int) -> bytes:
        stream = 2 * number + 1
        opened = frame(by_hand.HEADERS, by_hand.END_HEADERS, stream, request_headers("Hold"))
        return (
            opened
            + frame(by_hand.DATA, by_hand.END_STREAM, stream, message(b""))
            + frame(by_hand.RST_STREAM, 0, stream, b"\0\0\0\x08")
        )

    await flooded("resets", one, limits={"max_streams_per_connection": 100})


@in_loop
async def test_continuation_flood() -> None:
    def one(number: int) -> bytes:
        if number == 0:
            return frame(by_hand.HEADERS, 0, 1, request_headers())
        return frame(by_hand.CONTINUATION, 0, 1, by_hand.literal("x", "y" * 1000))

    await flooded("protocol", one)


@in_loop
async def test_empty_frames() -> None:
    def one(number: int) -> bytes:
        if number == 0:
            return frame(by_hand.HEADERS, by_hand.END_HEADERS, 1, request_headers("Bidi"))
        return frame(by_hand.PRIORITY, 0, 1, b"\0\0\0\x03\0")

    await flooded("frames", one)


@in_loop
async def test_protocol_errors_end_the_connection_only() -> None:
    async with running() as (driver, listener):
        for bad in (
            frame(by_hand.DATA, 0, 1, b"x"),
            frame(by_hand.HEADERS, by_hand.END_HEADERS, 2, request_headers()),
            frame(by_hand.HEADERS, by_hand.END_HEADERS, 1, b"\xff\xff\xff\xff\xff\xff"),
            frame(by_hand.SETTINGS, 0, 0, b"12345"),
            frame(by_hand.WINDOW_UPDATE, 0, 0, b"\0\0\0\0"),
            b"\xff" * 100,
        ):
            raw = await Raw.open(listener.port)
            raw.write(bad)
            code, _ = await goodbye(raw)
            assert code > 0
            raw.close()
        await driver.until_stats(connections=0, panics=0)
        assert driver.front.stats()["refused"]["protocol"] == 6


@in_loop
async def test_frames_up_to_the_advertised_size() -> None:
    """Larger ones end the connection with FRAME_SIZE_ERROR, whatever their kind."""
    async with running() as (driver, listener):
        raw = await Raw.open(listener.port)
        settings = (await raw.until(by_hand.SETTINGS))[3]
        parts = [settings[at : at + 6] for at in range(0, len(settings), 6)]
        (most,) = (int.from_bytes(part[2:]) for part in parts if part[:2] == b"\0\5")
        # Until this comes the connection's window is 65,535 bytes, one less than the frame.
        await raw.until(by_hand.WINDOW_UPDATE, 0)
        raw.write(
            frame(by_hand.SETTINGS, by_hand.ACK, 0)
            + frame(by_hand.HEADERS, by_hand.END_HEADERS, 1, request_headers())
        )
        raw.write(frame(by_hand.DATA, by_hand.END_STREAM, 1, message(b"x" * (most - 5))))
        assert (await driver.until(native.CALL))[0][7] == b"x" * (most - 5)
        raw.close()
        for kind in (by_hand.DATA, by_hand.HEADERS, by_hand.CONTINUATION):
            raw = await Raw.open(listener.port)
            ends = 0 if kind == by_hand.CONTINUATION else by_hand.END_HEADERS
            if kind != by_hand.HEADERS:
                raw.write(frame(by_hand.HEADERS, ends, 1, request_headers()))
            raw.write(frame(kind, by_hand.END_HEADERS, 1, bytes(most + 1)))
            assert (await goodbye(raw))[0] == 6
            raw.close()
        await driver.until_stats(connections=0, panics=0)


@in_loop
async def test_a_client_that_does_not_read_its_socket_bounds_its_own_stream() -> None:
    limits = {"stream_send_bytes": 300_000, "keepalive_s": 0.2, "keepalive_timeout_s": 0.2}
    async with running(**limits) as (driver, listener):
        # Huge windows: only the socket holds the server back.
        raw = await Raw.open(listener.port, bytes([0, 4, 0x7F, 0xFF, 0xFF, 0xFF]))
        raw.write(frame(by_hand.WINDOW_UPDATE, 0, 0, (1 << 30).to_bytes(4, "big")))
        raw.writer.transport.pause_reading()
        raw.write(frame(by_hand.HEADERS, by_hand.END_HEADERS, 1, request_headers("Flood")))
        raw.write(frame(by_hand.DATA, by_hand.END_STREAM, 1, message(b"100000")))
        # Its ping is never answered, so the connection is closed.
        assert (await driver.until(native.CANCELLED))[0][2] == "connection"
        assert driver.given < 1000
        await driver.until_stats(connections=0, calls=0, buffered_bytes=0)
        raw.close()
