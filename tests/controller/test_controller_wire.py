"""The controller's port among strangers: nothing of theirs is decoded, kept or unpickled, and
nothing of ours leaves too early (I12)."""

from __future__ import annotations

import asyncio
import builtins
import json
import os
import pickle
import random
import struct
import zlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cryptography.fernet import Fernet
from pysyncobj.encryptor import getEncryptor
from pysyncobj.tcp_connection import CONNECTION_STATE
from pysyncobj.transport import TCPTransport

from ledgermq.node.controller import wire
from ledgermq.node.controller.controller import quorum_secret
from ledgermq.node.controller.quorum import Quorum
from ledgermq.node.controller.wire import JsonCodec, QuorumTransport
from tests.controller.controller_cluster import SECRET, Cluster, running_cluster


class Bomb:
    """Unpickling one of these leaves a file behind."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return builtins.open, (str(self.path), "w")


def framed(data: bytes) -> bytes:
    return struct.pack("i", len(data)) + data


def cluster_key() -> Any:
    return getEncryptor(quorum_secret(SECRET, "6f9619ff-8b86-4d01-b42d-00cf4fc964ff"))


async def closed_by_peer(cluster: Cluster, data: bytes) -> bool:
    """Send bytes to the controller's port; whether it hangs up on its own account."""
    host, port = cluster.addresses["n1"].split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(data)
        await writer.drain()
        async with asyncio.timeout(10):
            while await reader.read(4096):
                pass
        return True
    except ConnectionError:
        return True
    finally:
        writer.close()


def transport(cluster: Cluster) -> Any:
    return cluster.running["n1"]._quorum._SyncObj__transport  # type: ignore[union-attr]


async def test_pickle_bombs_and_noise_are_shut_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bare, framed, compressed, sealed with a wrong key and even with the right one, a pickle is
    never loaded; the node continues."""
    marker = tmp_path / "exploded"
    bomb = pickle.dumps(Bomb(marker))
    loaded: list[str] = []
    monkeypatch.setattr(wire, "UNPROVEN_SECONDS", 1000.0)
    for name in ("load", "loads", "_load", "_loads"):
        monkeypatch.setattr(
            f"pysyncobj.pickle.pickle.{name}", lambda *_, name=name, **__: loaded.append(name)
        )
    chance = random.Random(1)
    # Each is followed by what ends it: a bad frame, or, where the length field promises more than
    # was sent, by too many bytes.
    last, flood = framed(b"noise"), chance.randbytes(wire.UNPROVEN_BYTES + 1)
    attacks = [
        bomb + flood,
        b"GET / HTTP/1.1\r\n\r\n" + flood,
        framed(bomb),
        framed(zlib.compress(bomb)),
        framed(Fernet(Fernet.generate_key()).encrypt(zlib.compress(bomb))),
        framed(cluster_key().encrypt(zlib.compress(bomb))),
        framed(cluster_key().encrypt(bomb)),
        framed(b""),
        struct.pack("i", -1) + bomb,
        struct.pack("i", -(1 << 31)) + bomb,
        *(framed(chance.randbytes(chance.randrange(1, 4000))) for _ in range(40)),
    ]

    async with running_cluster(tmp_path, 1, described=False) as cluster:
        for attack in attacks:
            assert await closed_by_peer(cluster, attack + last)
        await cluster.describe()
        assert (await cluster.running["n1"].create_topic("", "after"))[1]
        assert not transport(cluster)._unknownConnections
    assert not marker.exists()
    assert not loaded


async def test_a_flood_before_the_first_frame_is_cut_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A length field of two gigabytes does not make the node keep what follows."""
    monkeypatch.setattr(wire, "UNPROVEN_SECONDS", 1000.0)

    async with running_cluster(tmp_path, 1, described=False) as cluster:
        assert await closed_by_peer(cluster, struct.pack("i", (1 << 31) - 1) + bytes(1 << 20))


async def test_silent_and_too_many_connections_are_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connection that never greets is closed after a while, and the oldest of them at once when
    there are too many."""
    async with running_cluster(tmp_path, 1, described=False) as cluster:
        monkeypatch.setattr(wire, "UNPROVEN_CONNECTIONS", 3)
        host, port = cluster.addresses["n1"].split(":")
        waiting = [await asyncio.open_connection(host, int(port)) for _ in range(5)]
        await asyncio.gather(waiting[0][0].read(1), waiting[1][0].read(1))
        await cluster.until(lambda: len(transport(cluster)._unknownConnections) == 3)
        monkeypatch.setattr(wire, "UNPROVEN_SECONDS", 0.0)
        await asyncio.gather(*(reader.read(1) for reader, _ in waiting))
        await cluster.until(
            lambda: not transport(cluster)._unknownConnections and not transport(cluster)._arrived
        )
        for _, writer in waiting:
            writer.close()


async def test_the_port_comes_back_after_a_failed_accept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library stops listening when an accept fails (no descriptors left); the node listens
    again."""
    monkeypatch.setattr(wire, "REBIND_SECONDS", 0.0)

    async with running_cluster(tmp_path, 1, described=False) as cluster:
        server = transport(cluster)._server
        quorum = cluster.running["n1"]._quorum
        assert quorum is not None
        fallen = asyncio.Event()
        loop = asyncio.get_running_loop()

        def fall() -> None:
            quorum.removeOnTickCallback(fall)
            server.unbind()
            loop.call_soon_threadsafe(fallen.set)

        # The library holds its callback lock while it calls back, so the removal has to wait
        # for the next tick.
        quorum._SyncObj__onTickCallbacksLock = __import__("threading").RLock()
        quorum.addOnTickCallback(fall)
        await fallen.wait()
        await cluster.until(lambda: server._TcpServer__fileno is not None)
        assert await closed_by_peer(cluster, framed(b"noise"))


async def test_a_stranger_with_the_secret_but_no_name_is_closed(tmp_path: Path) -> None:
    """The library would admit observers and administrators; this quorum admits only its nodes and
    known listeners."""

    async def greet(cluster: Cluster, name: Any) -> bytes:
        key = cluster_key()
        host, port = cluster.addresses["n1"].split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        try:
            writer.write(
                framed(key.encrypt_at_time(zlib.compress(JsonCodec.dumps(b"my random key")), 1))
            )
            (length,) = struct.unpack("i", await reader.readexactly(4))
            theirs = JsonCodec.loads(zlib.decompress(key.decrypt(await reader.readexactly(length))))
            writer.write(
                framed(key.encrypt_at_time(zlib.compress(JsonCodec.dumps([theirs[1], name])), 1))
            )
            async with asyncio.timeout(10):
                return await reader.read(4096)
        finally:
            writer.close()

    async with running_cluster(tmp_path, 1, described=False) as cluster:
        for name in (
            "readonly",
            "listener n9",
            "10.0.0.1:1",
            ["status"],
            ["add", "10.0.0.1:1"],
            {"type": "x"},
            7,
        ):
            assert await greet(cluster, name) == b""


def test_a_node_with_another_secret_stays_outside(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It finds no quorum, the others keep theirs, and the log says what is wrong."""

    async def run() -> None:
        cluster = Cluster(tmp_path)
        try:
            await cluster.start(["n1", "n2"])
            await cluster.leader()
            await cluster.describe()
            await cluster.start(["n3"], secret=b"another secret, another secret 32")
            await cluster.until(lambda: "does not know the cluster secret" in caplog.text)
            assert (await cluster.running["n1"].create_topic("", "t", timeout=20))[1]
            outsider = cluster.running["n3"]
            assert not outsider.health.has_quorum and not outsider.state.topics
        finally:
            await cluster.stop()

    with caplog.at_level("WARNING"):
        asyncio.run(run())


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        7,
        "text",
        b"",
        b"\x00\xff",
        [b"a", [1, b"b"]],
        {"entries": [[b"J{}", 3, 1]], "x": None},
    ],
)
def test_the_codec_is_its_own_inverse(value: Any) -> None:
    """What the library sends arrives equal (tuples as lists) and is JSON on the way."""
    sent = JsonCodec.dumps(value)
    json.loads(sent)
    assert JsonCodec.loads(sent) == value


def test_the_codec_takes_no_objects() -> None:
    """Anything but JSON values and bytes is a bug of ours, found on the sending side."""
    with pytest.raises(TypeError):
        JsonCodec.dumps({"x": os})


class Replies(list[Any]):
    """Collects what a transport without a network sends and hands on."""


def bare(
    journal: list[tuple[bytes, int, int]], term: int, monkeypatch: pytest.MonkeyPatch
) -> tuple[Any, Replies, Replies]:
    """A transport over nothing: (it, what the library would get, what would be sent)."""
    bent = object.__new__(QuorumTransport)
    bent._quorum = SimpleNamespace(journal=journal, raftCurrentTerm=term, make_durable=lambda: None)
    bent._nodes = {"leader", "peer"}
    received, sent = Replies(), Replies()
    monkeypatch.setattr(
        TCPTransport, "_onMessageReceived", lambda self, node, message: received.append(message)
    )
    monkeypatch.setattr(TCPTransport, "send", lambda self, node, message: sent.append(message))
    return bent, received, sent


# indices 2 to 7; term 1 up to 3, then 2
LOG = [(b"J", index, 1 + (index > 3)) for index in range(2, 8)]


def append(previous: int, term: int, entries: list[list[Any]], commit: int = 2) -> dict[str, Any]:
    return {
        "type": "append_entries",
        "term": 2,
        "commit_index": commit,
        "entries": entries,
        "prevLogIdx": previous,
        "prevLogTerm": term,
    }


def test_known_entries_are_not_cut_off_and_appended_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A repeated push that ends before this log does leaves the log alone and is acknowledged for
    what it contains."""
    bent, received, sent = bare(LOG, 2, monkeypatch)
    bent._onMessageReceived("leader", append(3, 1, [[b"J", 4, 2], [b"J", 5, 2]], commit=7))
    assert received == [{"type": "append_entries", "term": 2, "commit_index": 5, "entries": []}]
    assert sent == [
        {"type": "next_node_idx", "next_node_idx": 6, "reset": False, "success": True, "term": 2}
    ]


@pytest.mark.parametrize(
    ("message", "handed_on"),
    [
        (append(7, 2, [[b"J", 8, 2]]), append(7, 2, [[b"J", 8, 2]])),
        (append(6, 2, [[b"J", 7, 2], [b"J", 8, 2]]), append(7, 2, [[b"J", 8, 2]])),
        (append(3, 1, [[b"J", 4, 2], [b"J", 5, 3]]), append(4, 2, [[b"J", 5, 3]])),
        (append(6, 2, [[b"J", 7, 2]]), append(7, 2, [])),
        (append(6, 1, [[b"J", 7, 2]]), append(6, 1, [[b"J", 7, 2]])),
        (append(1, 1, [[b"J", 2, 1]]), append(1, 1, [[b"J", 2, 1]])),
        (append(9, 2, [[b"J", 10, 2]]), append(9, 2, [[b"J", 10, 2]])),
        (append(7, 2, []), append(7, 2, [])),
    ],
    ids=[
        "new",
        "half known",
        "conflict",
        "all known to the end",
        "wrong previous",
        "before the log",
        "gap",
        "heartbeat",
    ],
)
def test_other_pushes_reach_the_library(
    message: dict[str, Any], handed_on: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """New, conflicting and misplaced entries are the library's to judge; a known front is taken
    off."""
    bent, received, sent = bare(LOG, 2, monkeypatch)
    bent._onMessageReceived("leader", message)
    assert (received, sent) == ([handed_on], [])


def test_answers_of_another_term_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """An acknowledgement given to an earlier leadership says nothing about the follower's log of
    today."""
    bent, received, _ = bare(LOG, 5, monkeypatch)
    answer = {"type": "next_node_idx", "next_node_idx": 6, "reset": False, "success": True}
    bent._onMessageReceived("peer", {**answer, "term": 4})
    assert received == []
    bent._onMessageReceived("peer", {**answer, "term": 5})
    assert len(received) == 1


def test_library_is_bent_where_it_matters() -> None:
    """The names this package overrides exist in the pinned version; a renamed one would silently
    bring pickle back."""
    import pysyncobj.syncobj as library
    import pysyncobj.tcp_connection as connection

    from ledgermq.node.controller.quorum import install

    install()
    assert library.pickle is JsonCodec and connection.pickle is JsonCodec
    for name in ("_SyncObj__doApplyCommand", "_SyncObj__loadDumpFile"):
        assert name in library.SyncObj.__dict__ and name in Quorum.__dict__
    for name in (
        "send",
        "_onMessageReceived",
        "_onNewIncomingConnection",
        "_onIncomingMessageReceived",
        "_maybeBind",
        "_onTick",
    ):
        assert hasattr(TCPTransport, name) and name in QuorumTransport.__dict__


def test_a_line_to_a_listener_that_ends_under_a_message_is_no_error() -> None:
    """The library ends a silent connection when it sends, and a listener is forgotten with its
    connection."""
    transport = QuorumTransport.__new__(QuorumTransport)
    transport._quorum = SimpleNamespace(make_durable=lambda: None)
    lines: dict[str, Any] = {}

    def ended(message: Any) -> None:
        lines.pop("0").state = CONNECTION_STATE.DISCONNECTED

    lines["0"] = SimpleNamespace(state=CONNECTION_STATE.CONNECTED, send=ended)
    transport._connections, transport._send_random_sleep_duration = lines, 0
    assert transport.send("0", {"type": "alive"}) is False and not lines
    assert transport.send("0", {"type": "alive"}) is False
