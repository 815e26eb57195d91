"""What a node with several workers answers over HTTP."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from ledgermq.node.frontend.routing.worker_registry import WorkerRegistry
from ledgermq.node.process.telemetry import http
from ledgermq.node.process.telemetry.http import HttpServer
from ledgermq.node.process.telemetry.node_pages import WorkerPages, merged_metrics
from ledgermq.node.runtime import metrics
from ledgermq.proto.host_port import joined

NAMES = ("n1", "n1.2")


def page(count: int) -> str:
    registry = CollectorRegistry()
    calls = Counter("calls", "Calls, by method.", ["method"], registry=registry)
    calls.labels('S"en{d}').inc(count)
    calls.labels("Ack").inc(1)
    Histogram("seconds", "How long.", registry=registry, buckets=(1.0, 2.0)).observe(count)
    Counter("plain", "No label.", registry=registry).inc(count)
    return generate_latest(registry).decode()


def values(text: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    families = list(text_string_to_metric_families(text))
    assert len({family.name for family in families}) == len(families), (
        "every family stands there once"
    )
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in families
        for sample in family.samples
    }


def test_metrics_of_all_workers_are_one_page_that_names_the_worker() -> None:
    merged = values(merged_metrics({"n1": page(3), "n1.2": page(5)}))
    for worker, count in (("n1", 3), ("n1.2", 5)):
        alone = values(page(count))
        own = {key: value for key, value in merged.items() if ("worker", worker) in key[1]}
        without = {
            (name, tuple(label for label in labels if label[0] != "worker")): value
            for (name, labels), value in own.items()
        }
        assert without.keys() == alone.keys()
        assert all(
            without[key] == value for key, value in alone.items() if not key[0].endswith("_created")
        )
    assert merged["calls_total", (("method", 'S"en{d}'), ("worker", "n1.2"))] == 5


class FixedHealth:
    """A worker's health as the test sets it."""

    def __init__(self, reasons: list[str], *, stalled: bool = False) -> None:
        self.reasons = reasons
        self.stalled = stalled

    async def statuses(self) -> dict[str, Any]:
        if self.stalled:
            raise TimeoutError
        return {}

    async def why_not_ready(self) -> list[str]:
        return self.reasons

    def warnings(self) -> list[str]:
        return ["peer n2: its certificate has ended"]


class NoCollector:
    async def refresh(self, health: Any) -> None:
        """There is nothing to read."""

    def collect(self) -> list[Any]:
        return []

    def page(self) -> bytes:
        return generate_latest(metrics.REGISTRY)


@pytest.mark.parametrize(
    ("other", "healthz", "readyz"),
    [
        (FixedHealth([]), 200, []),
        (FixedHealth(["g2 has no leader"]), 200, ["worker n1.2: g2 has no leader"]),
        (FixedHealth([], stalled=True), 503, []),
        (None, 503, ["worker n1.2: it does not answer yet"]),
    ],
)
async def test_a_node_is_as_ready_and_as_healthy_as_the_least_of_its_workers(
    tmp_path: Path,
    other: FixedHealth | None,
    healthz: int,
    readyz: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(metrics, "REGISTRY", CollectorRegistry())

    workers = [WorkerRegistry(name, NAMES, tmp_path) for name in NAMES]
    first: Any = HttpServer("c", "n1", FixedHealth([]), NoCollector(), WorkerPages(workers[0]))  # type: ignore[arg-type]
    runner = await first._prepared()
    await web.UnixSite(runner, str(tmp_path / "first")).start()
    second: Any = HttpServer("c", "n1.2", other, NoCollector()) if other is not None else None  # type: ignore[arg-type]
    if second is not None:
        await second.listen_for_siblings(workers[1].pages("n1.2"))
    connector = aiohttp.UnixConnector(str(tmp_path / "first"))
    async with aiohttp.ClientSession(connector=connector) as session:
        async with session.get("http://n/healthz") as response:
            assert response.status == healthz
        async with session.get("http://n/readyz") as response:
            answer = json.loads(await response.text())
            assert (response.status, answer["node"]) == (503 if readyz else 200, "n1")
            assert answer["reasons"] == readyz
        async with session.get("http://n/metrics") as response:
            assert response.status == 200
    for server in (first, second):
        if server is not None:
            await server.stop()


@pytest.mark.parametrize(
    ("remote", "opened", "told"),
    [
        ("10.1.2.3", False, False),
        ("fd00::7", False, False),
        ("::ffff:10.1.2.3", False, False),
        ("", False, False),
        ("127.0.0.1", False, True),
        ("::1", False, True),
        ("::ffff:127.0.0.1", False, True),
        ("10.1.2.3", True, True),
    ],
)
async def test_other_machines_get_only_probe_verdicts(
    remote: str, opened: bool, told: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reasons and metrics name nodes, broker groups and topics: they are for this machine, unless
    the configuration opens them."""
    monkeypatch.setattr(metrics, "REGISTRY", CollectorRegistry())
    monkeypatch.setattr(web.Request, "remote", remote)
    sibling = {
        "status": "stalled",
        "reasons": ["g2 has no leader"],
        "warnings": ["peer n3: it is strange"],
    }
    stalled = SimpleNamespace(json=answers({"n1.2": sibling}), text=answers({}))

    server: Any = HttpServer("c", "n1", FixedHealth([]), NoCollector(), stalled, opened=opened)  # type: ignore[arg-type]
    async with TestClient(TestServer((await server._prepared()).app)) as client:
        health, ready, page = [
            await client.get(path) for path in ("/healthz", "/readyz", "/metrics")
        ]
        assert (health.status, ready.status) == (503, 503)
        warnings = ["peer n2: its certificate has ended", "worker n1.2: peer n3: it is strange"]
        reasons = {"reasons": ["worker n1.2: g2 has no leader"], "warnings": warnings}
        full = {"workers": ["n1.2"]}, {**reasons, "cluster": "c", "node": "n1"}
        of_health, of_ready = full if told else ({}, {})
        assert await health.json() == {"status": "stalled", **of_health}
        assert await ready.json() == {"status": "not ready", **of_ready}
        assert page.status == (200 if told else 403)
        assert told or "access.allow_open_http" in await page.text()
    await server.stop()


@pytest.mark.parametrize(
    ("host", "told"),
    [
        *(
            (name, True)
            for name in (
                "127.0.0.1:11081",
                "[::1]:11081",
                "LocalHost:11081",
                "localhost",
                "10.1.2.3:1",
                "N1.Example:11081",
            )
        ),
        *(
            (name, False)
            for name in (
                "evil.example:11081",
                "evil.example",
                "n1.example.evil:1",
                "[",
                "[::1",
                "",
                "n1.example:x",
                "a b",
            )
        ),
    ],
)
async def test_request_with_a_foreign_host_name_gets_only_verdicts(
    host: str, told: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A browser on this machine may be sent here by a name that resolves to this machine, but not
    by an address, nor by a name of the configuration. Probes get their verdict by any name."""
    monkeypatch.setattr(metrics, "REGISTRY", CollectorRegistry())

    server: Any = HttpServer(
        "c", "n1", FixedHealth([]), NoCollector(), opened=False, names=("N1.example",)
    )  # type: ignore[arg-type]
    await server.listen(["127.0.0.1"], 0)
    for path, answer in (
        ("/metrics", b"200" if told else b"403"),
        ("/readyz", b"200"),
        ("/healthz", b"200"),
    ):
        head, body = await ask(
            server.port,
            f"GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode(),
        )
        assert head.split()[1] == answer, (path, head)
        assert path != "/readyz" or (b"reasons" in body) is told
    head, _ = await ask(server.port, b"GET /metrics HTTP/1.0\r\n\r\n")
    assert head.split()[1] == b"200", "a collector that names nothing is no browser"
    await server.stop()


async def ask(port: int, request: bytes) -> tuple[bytes, bytes]:
    """The status line, and what follows it."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    head, _, rest = (await reader.read()).partition(b"\r\n")
    writer.close()
    return head, rest


HALVES = (
    b"",
    b"GET /met",
    b"GET /readyz HTTP/1.1\r\nHost: n1\r\n",
    b"POST /readyz HTTP/1.1\r\nContent-Length: 9\r\n",
)


@pytest.mark.parametrize("sent", HALVES)
async def test_a_request_that_is_never_sent_whole_ends(
    sent: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one that follows another, and also if it goes on byte by byte."""
    monkeypatch.setattr(metrics, "REGISTRY", CollectorRegistry())
    monkeypatch.setattr(http, "IDLE_S", 0.2)

    server: Any = HttpServer("c", "n1", FixedHealth([]), NoCollector())  # type: ignore[arg-type]
    await server.listen(["127.0.0.1"], 0)
    for before in (b"", b"GET /healthz HTTP/1.1\r\nHost: n\r\n\r\n"):
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(before + sent)
        ended = asyncio.create_task(reader.read())
        async with asyncio.timeout(20):
            while not ended.done():
                if sent and not writer.is_closing():
                    writer.write(b"a")
                await asyncio.sleep(0.01)
        answer = ended.exception() or ended.result()
        assert isinstance(answer, ConnectionError) or answer.count(b"HTTP/1.1 200") == bool(
            before
        ), answer
        writer.close()
    await server.stop()


async def test_idle_connections_make_room_for_probes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The oldest idle connections make room, those with a request in hand stay, and the closed ones
    are counted."""
    monkeypatch.setattr(metrics, "REGISTRY", CollectorRegistry())
    monkeypatch.setattr(http, "CONNECTIONS_MAX", 4)
    may_answer = asyncio.Event()

    class Slow(FixedHealth):
        async def statuses(self) -> dict[str, Any]:
            await may_answer.wait()
            return {}

    server: Any = HttpServer("c", "n1", Slow([]), NoCollector())  # type: ignore[arg-type]
    await server.listen(["127.0.0.1"], 0)
    crowded_out = metrics.HTTP_CROWDED_OUT._value.get()
    asking = asyncio.create_task(
        ask(server.port, b"GET /healthz HTTP/1.1\r\nHost: n\r\nConnection: close\r\n\r\n")
    )
    async with asyncio.timeout(60):
        while not server._answering:
            await asyncio.sleep(0.001)
        held = []
        for number in range(10):
            held.append(await asyncio.open_connection("127.0.0.1", server.port))
            while len(server._runner.server.connections) < min(number + 2, 4):
                await asyncio.sleep(0.001)
            assert len(server._runner.server.connections) <= 4 + 1, "one may be on its way out"
            if number >= 3:
                assert await held[number - 3][0].read() == b"", "the oldest has made room"
        assert not asking.done()
        may_answer.set()
        assert b"200" in (await asking)[0]
    assert metrics.HTTP_CROWDED_OUT._value.get() == crowded_out + 7
    for _, writer in held:
        writer.close()
    await server.stop()


@pytest.mark.parametrize(
    ("held", "closed"),
    [
        *(("", ""), ("ab", ""), ("abc", ""), ("abcd", "a"), ("abcde", "ab")),
        *(("aBcd", "a"), ("ABcd", "c"), ("ABCD", "A"), ("xabc", ""), ("xabcyd", "a")),
    ],
)
def test_oldest_idle_connection_makes_room(
    held: str, closed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One connection more fits after that. The oldest goes that has no request in hand (small
    letters), else the oldest. What is closed already (x, y) is still in the list for a moment, and
    takes no room."""
    monkeypatch.setattr(http, "CONNECTIONS_MAX", 4)
    server: Any = HttpServer("c", "n1", FixedHealth([]), NoCollector())  # type: ignore[arg-type]
    ended: list[str] = []

    class Connection:
        def __init__(self, name: str) -> None:
            self.name = name
            self.transport = None if name in "xy" else object()

        def force_close(self) -> None:
            ended.append(self.name)

    connections = [Connection(name) for name in held]
    server._answering.update(connection for connection in connections if connection.name.isupper())
    before = metrics.HTTP_CROWDED_OUT._value.get()
    server._make_room(SimpleNamespace(connections=connections))
    assert "".join(ended) == closed and metrics.HTTP_CROWDED_OUT._value.get() == before + len(
        closed
    )


async def test_answered_connection_is_idle_and_a_stopped_server_refuses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A body is neither wanted nor decompressed."""
    monkeypatch.setattr(metrics, "REGISTRY", CollectorRegistry())

    server: Any = HttpServer("c", "n1", FixedHealth([]), NoCollector())  # type: ignore[arg-type]
    await server.listen(["127.0.0.1"], 0)
    port = server.port
    body = b"Content-Encoding: deflate\r\nContent-Length: 4\r\n\r\nabcd"
    head, _ = await ask(port, b"GET /healthz HTTP/1.1\r\nHost: n\r\nConnection: close\r\n" + body)
    assert head.split()[1] == b"200" and not server._answering
    await server.stop()
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", port)


async def test_workers_of_a_node_get_full_pages_on_a_closed_port(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However closed the HTTP port of the node is; it is the worker that answers for the node who
    decides what a caller may read."""
    monkeypatch.setattr(metrics, "REGISTRY", CollectorRegistry())

    server: Any = HttpServer(
        "c", "n1", FixedHealth(["g1 has no leader"]), NoCollector(), opened=False
    )  # type: ignore[arg-type]
    await server.listen_for_siblings(str(tmp_path / "s"))
    async with aiohttp.ClientSession(
        connector=aiohttp.UnixConnector(str(tmp_path / "s"))
    ) as session:
        async with session.get("http://worker/readyz") as response:
            assert (await response.json())["reasons"] == ["g1 has no leader"]
        async with session.get("http://worker/metrics") as response:
            assert response.status == 200
    await server.stop()


def test_connection_limits_are_those_of_the_security_page() -> None:
    """As docs/security.md says."""
    assert (http.IDLE_S, http.CONNECTIONS_MAX) == (20.0, 256)


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="no IPv6 here")
@pytest.mark.parametrize(
    ("listens", "reached"),
    [("::", ("127.0.0.1", "::1")), ("::1", ("::1",)), ("0.0.0.0", ("127.0.0.1",))],
)
async def test_the_pages_are_where_the_configuration_says(
    listens: str, reached: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`::` is both families, as on the other ports, although the loop's own servers make it one."""
    monkeypatch.setattr(metrics, "REGISTRY", CollectorRegistry())

    server: Any = HttpServer("c", "n1", FixedHealth([]), NoCollector())  # type: ignore[arg-type]
    await server.listen([listens], 0)
    async with aiohttp.ClientSession() as session:
        for host in reached:
            async with session.get(f"http://{joined(host, server.port)}/healthz") as response:
                assert response.status == 200
    await server.stop()


class LargePages(NoCollector):
    """Pages that no socket takes at once."""

    SIZE = 32 << 20

    def __init__(self) -> None:
        self.made = 0

    def page(self) -> bytes:
        self.made += 1
        return bytes(self.SIZE)


async def test_readers_that_do_not_take_their_page_hold_few_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Others wait, and get theirs when those have gone; one that takes nothing for too long is cut
    off. HEAD has no body."""
    monkeypatch.setattr(metrics, "REGISTRY", CollectorRegistry())
    monkeypatch.setattr(http, "PAGES_AT_ONCE", 2)

    pages = LargePages()
    server: Any = HttpServer("c", "n1", FixedHealth([]), pages)  # type: ignore[arg-type]
    await server.listen(["127.0.0.1"], 0)
    host, port = "127.0.0.1", server.port
    idle = [await asyncio.open_connection(host, port) for _ in range(10)]
    for _, writer in idle:
        writer.write(b"GET /metrics HTTP/1.1\r\nHost: n\r\n\r\n")
    async with aiohttp.ClientSession() as session, asyncio.timeout(60):
        while pages.made < 2:
            await asyncio.sleep(0.001)
        for _ in range(20):
            async with session.get(f"http://{host}:{port}/healthz") as response:
                assert response.status == 200
        assert pages.made == 2
        monkeypatch.setattr(http, "PAGE_WITHIN_S", 0.1)
        for _, writer in idle[:2]:
            writer.close()
        async with session.head(f"http://{host}:{port}/metrics") as response:
            assert (response.status, await response.read()) == (200, b"")
        async with session.get(f"http://{host}:{port}/metrics") as response:
            assert response.content_length == pages.SIZE
        assert pages.made == 12
    await server.stop()


def answers(value: dict[str, Any]) -> Callable[[str], Awaitable[dict[str, Any]]]:
    """What the other workers answer."""

    async def answer(path: str) -> dict[str, Any]:
        return value

    return answer
