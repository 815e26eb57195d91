"""The peer port: the cluster secret is required, identities must match, and calls end as sent, not
sent, or lost."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import os
import random
import socket
import struct
import weakref
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import uvloop
from google.protobuf.message import DecodeError
from hypothesis import example, given
from hypothesis import strategies as st

from ledgermq.node.broker.ports import PeerPacket
from ledgermq.node.frontend.security import minting
from ledgermq.node.replica.consensus.replica_wire import encode
from ledgermq.node.replica.peers import peer_server, peer_stream
from ledgermq.node.replica.peers.greeting import Greeter
from ledgermq.node.replica.peers.peer_frames import SIGN_OF_LIFE, BadFrame, packet_head, packet_in
from ledgermq.node.replica.peers.peer_frames import encode as encode_frame
from ledgermq.node.replica.peers.peer_identities import PeerIdentities, Refused
from ledgermq.node.replica.peers.peer_stream import Outbox, PeerStream
from ledgermq.node.replica.peers.peer_wire import PeerWire
from ledgermq.node.replica.peers.peers import Peers
from ledgermq.node.replica.ports import Lost, NotSent
from ledgermq.node.runtime import metrics
from ledgermq.node.runtime.certificates import CertificateFiles
from ledgermq.node.runtime.errors import FatalError
from ledgermq.proto import peer_pb2
from ledgermq.proto.types import Identity
from ledgermq.raft.messages import LeftBehind, VoteReply
from ledgermq.storage.files.real_disk import RealDisk
from ledgermq.storage.state.identity import mint, read_met_by, read_peers

CLUSTER = "6b1d6a3c-6a0e-4f2b-9a59-0d4c6e1f7a10"
SECRET = b"0123456789abcdef"
NAMES = ("n1", "n2")


def identity(node: str, incarnation: int = 1, data_file_bytes: int = 1 << 20) -> Identity:
    text = f"00000000-0000-4000-8000-{int(node[-1]):04d}{incarnation:08d}"
    return mint(CLUSTER, "g1", node, text, 1, data_file_bytes=data_file_bytes)


@dataclass
class Recorder:
    """What reached a node's handler."""

    packets_seen: list[tuple[str, str, PeerPacket]] = field(default_factory=list)
    calls: list[peer_pb2.ForwardCall] = field(default_factory=list)
    signs_seen: list[str] = field(default_factory=list)
    gone_seen: list[str] = field(default_factory=list)
    links: list[tuple[str, bool]] = field(default_factory=list)
    clocks: list[tuple[str, int | None, int]] = field(default_factory=list)
    wall: int = 1
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    on_packets: Callable[[], None] = lambda: None
    execute_with: Callable[[peer_pb2.ForwardCall], Awaitable[Any]] | None = None

    def packets(self, items: Sequence[tuple[str, str, PeerPacket]]) -> None:
        self.on_packets()
        self.packets_seen += items
        self.changed.set()

    async def execute(self, sender: str, call: peer_pb2.ForwardCall) -> peer_pb2.ForwardResult:
        self.calls.append(call)
        self.changed.set()
        if self.execute_with is not None:
            await self.execute_with(call)
        return peer_pb2.ForwardResult(responses=[call.method.encode(), call.request])

    async def status(self, *, queues: bool) -> peer_pb2.NodeStatusReply:
        reply = peer_pb2.NodeStatusReply()
        reply.node.node = "here"
        return reply

    def signs(self, client_ids: Sequence[str]) -> None:
        self.signs_seen += client_ids
        self.changed.set()

    def gone(self, client_id: str) -> None:
        self.gone_seen.append(client_id)
        self.changed.set()

    def link_changed(self, peer: str, up: bool) -> None:
        self.links.append((peer, up))
        self.changed.set()

    def wall_ns(self) -> int:
        return self.wall

    def heard_clock(self, peer: str, wall_ns: int | None, asked_ns: int) -> None:
        self.clocks.append((peer, wall_ns, asked_ns))
        self.changed.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(20):
            while not condition():
                self.changed.clear()
                await self.changed.wait()


def _fail(error: FatalError) -> None:
    raise error


Run = Callable[[Coroutine[Any, Any, Any]], Any]


@pytest.fixture(autouse=True)
def run() -> Iterator[Run]:
    """On the loop the product runs on."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        yield runner.run


class FailingDisk(RealDisk):
    """Replaces no file."""

    def __init__(self, number: int) -> None:
        self.number = number

    def replace_file(self, path: str, data: bytes) -> None:
        raise OSError(self.number, os.strerror(self.number), path)


@dataclass(frozen=True)
class FixedRoll:
    """Which nodes there are."""

    peers: frozenset[str]
    gone: frozenset[str] = frozenset()

    def knows(self, node: str) -> bool:
        return node in self.peers

    def removed(self, node: str) -> bool:
        return node in self.gone


def greeter(directory: Path, name: str, **changes: Any) -> Greeter:
    path = directory / name / "state"
    book = PeerIdentities(RealDisk(), {"g1": str(path)}, _fail)
    book.load()
    roll = FixedRoll(frozenset(NAMES) - {name})
    return replace(
        Greeter(
            cluster_id=CLUSTER,
            node=name,
            boot_id=f"boot-{name}",
            version="1",
            secret=SECRET,
            roll=roll,
            identities={"g1": identity(name)},
            peer_identities=book,
        ),
        **changes,
    )


@asynccontextmanager
async def pair(
    directory: Path,
    one: Greeter | None = None,
    two: Greeter | None = None,
    wires: Sequence[PeerWire | None] = (None, None),
    limit_bytes: int = 1 << 20,
) -> Any:
    """n2 listens; n1 dials it. Both nodes' handlers are recorders."""
    there, here = Recorder(), Recorder()
    accepting = Peers({}, two or greeter(directory, "n2"), there, limit_bytes, wires[1])
    port = await accepting.listen("127.0.0.1:0")
    dialling = Peers(
        {"n2": [f"127.0.0.1:{port}"]}, one or greeter(directory, "n1"), here, limit_bytes, wires[0]
    )
    dialling.dial()
    try:
        yield dialling.links["n2"], here, there, accepting, port
    finally:
        await dialling.stop()
        await accepting.stop()


async def test_packets_calls_and_signs_travel_between_two_nodes_that_share_the_secret(
    tmp_path: Path,
) -> None:
    """Everything queued before one write arrives in order, results come back to their calls, and
    the incarnation is durable first."""
    async with pair(tmp_path) as (link, here, there, _, _):
        known: list[dict[str, str]] = []
        there.on_packets = lambda: known.append(
            read_peers(RealDisk(), str(tmp_path / "n2" / "state"))
        )
        await here.until(lambda: link.up)
        for k in range(3):
            link.send_packet("g1", PeerPacket(b"h%d" % k, memoryview(b"payload")))
        link.post(peer_pb2.PeerMessage(client_signs=peer_pb2.ClientSigns(client_id=["a", "b"])))
        link.post(peer_pb2.PeerMessage(client_gone=peer_pb2.ClientGone(client_id="c")))
        results = await asyncio.gather(
            *(link.call(peer_pb2.ForwardCall(method=f"M{k}", request=b"r")) for k in range(5))
        )
        assert [list(result.responses) for result in results] == [
            [b"M%d" % k, b"r"] for k in range(5)
        ]
        assert [(group, sender, packet.header) for group, sender, packet in there.packets_seen] == [
            ("g1", "n1", b"h0"),
            ("g1", "n1", b"h1"),
            ("g1", "n1", b"h2"),
        ]
        assert bytes(there.packets_seen[0][2].payload) == b"payload"
        assert there.signs_seen == ["a", "b"] and there.gone_seen == ["c"]
        assert known[0] == {"n1": identity("n1").incarnation}, "remembered before the first packet"
        assert read_peers(RealDisk(), str(tmp_path / "n1" / "state")) == {
            "n2": identity("n2").incarnation
        }
        assert read_met_by(RealDisk(), str(tmp_path / "n1" / "state")) == {"n2"}, (
            "it let us in, so it has recorded us"
        )
        assert read_met_by(RealDisk(), str(tmp_path / "n2" / "state")) == frozenset(), (
            "that n1 records n2 is not known there yet"
        )
        assert (await link.status(queues=False)).node.node == "here"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"secret": b"another secret!!"}, "secret differs"),
        ({"cluster_id": "00000000-0000-4000-8000-000000000000"}, "belongs to cluster"),
        ({"node": "n7"}, "is not among the peers"),
        ({"identities": {"g1": replace(identity("n1"), log_id="another")}}, "has log another"),
        ({"identities": {"g1": replace(identity("n1"), format_version=2)}}, "format version 2"),
        (
            {"identities": {"g1": identity("n1", data_file_bytes=2 << 20)}},
            "log files of 2097152 bytes",
        ),
        ({"identities": {"g1": identity("n2")}}, "data directory of n2"),
        ({"wire_version": 0}, "sends packets of version 1, n2 (LedgerMQ 1) of version 2"),
    ],
)
async def test_unfitting_greeting_is_refused_and_passes_no_message(
    tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    """The accepting side says why; the dialling side stays down, remembers the reason, and no
    message reaches a handler."""
    async with pair(tmp_path, one=greeter(tmp_path, "n1", **changes)) as (link, _, there, _, _):
        async with asyncio.timeout(20):
            while link.refusal is None:
                await asyncio.sleep(0.01)
        assert said in link.refusal and not link.up
        with pytest.raises(NotSent):
            await link.call(peer_pb2.ForwardCall(method="M"))
        link.send_packet("g1", PeerPacket(b"h"))
        assert not there.packets_seen and not there.calls
        assert read_peers(RealDisk(), str(tmp_path / "n2" / "state")) == {}, (
            "a refused peer is not remembered"
        )


def wire_of(directory: Path, node: str, authority: str = "tls") -> PeerWire:
    at = directory / authority
    minting.ensure(at, {node: ("127.0.0.1",)})
    return PeerWire(CertificateFiles(at / f"{node}.pem", at / f"{node}.key", at / "ca.pem"))


async def test_mutual_tls_between_peers(tmp_path: Path) -> None:
    """With certificates for their names two nodes talk; a node with another's certificate is
    refused by name, whatever it knows."""
    async with pair(tmp_path, wires=(wire_of(tmp_path, "n1"), wire_of(tmp_path, "n2"))) as (
        link,
        here,
        _,
        _,
        _,
    ):
        await here.until(lambda: link.up)
        assert list(
            (await link.call(peer_pb2.ForwardCall(method="M", request=b"r"))).responses
        ) == [b"M", b"r"]
    async with pair(tmp_path, wires=(wire_of(tmp_path, "n3"), wire_of(tmp_path, "n2"))) as (
        link,
        _,
        there,
        _,
        _,
    ):
        async with asyncio.timeout(20):
            while link.refusal is None:
                await asyncio.sleep(0.01)
        assert "names 127.0.0.1, n3" in link.refusal and not link.up and not there.links


@pytest.mark.parametrize("who", ["plaintext", "another authority", "plaintext server"])
async def test_without_the_right_wire_no_greeting_begins(tmp_path: Path, who: str) -> None:
    """Plaintext on either side or a certificate of another authority ends the connection before any
    data is sent."""
    mine, theirs = wire_of(tmp_path, "n1"), wire_of(tmp_path, "n2")
    wires = {
        "plaintext": (None, theirs),
        "another authority": (wire_of(tmp_path, "n1", "elsewhere"), theirs),
        "plaintext server": (mine, None),
    }

    async with pair(tmp_path, wires=wires[who]) as (link, here, there, _, _):
        async with asyncio.timeout(20):
            while link._failures < 2:
                await asyncio.sleep(0.01)
        assert not link.up and not here.links and not there.links
        assert (link.refusal is None) is (who == "plaintext"), (
            "only who uses TLS can say that it fails"
        )


async def test_the_dialling_side_checks_the_accepting_side_as_well(tmp_path: Path) -> None:
    """A server without the secret, or another node than the dialled one, gets no packet."""
    for two, said in (
        (greeter(tmp_path, "n2", secret=b"another secret!!"), "secret differs"),
        (greeter(tmp_path, "n2", node="n3", identities={}), "leads to node n3"),
    ):
        async with pair(tmp_path, two=two) as (link, _, there, _, _):
            async with asyncio.timeout(20):
                while link.refusal is None:
                    await asyncio.sleep(0.01)
            assert said in link.refusal and not link.up and not there.packets_seen


async def test_a_replaced_data_directory_may_call_but_its_packets_are_not_taken(
    tmp_path: Path,
) -> None:
    """A peer that returns with another incarnation has lost its promises: its packets do not reach
    the group, but its calls reach the node."""
    async with pair(tmp_path) as (link, here, _, _, _):
        await here.until(lambda: link.up)
    replaced = greeter(tmp_path / "wiped", "n1", identities={"g1": identity("n1", incarnation=2)})
    two = greeter(tmp_path, "n2")
    async with pair(tmp_path, one=replaced, two=two) as (link, here, there, _, _):
        await here.until(lambda: link.up)
        dropped = metrics.PEER_PACKETS_BARRED.labels("n1", "g1")._value.get()
        link.send_packet("g1", PeerPacket(b"h"))
        assert (await link.call(peer_pb2.ForwardCall(method="M"))).responses
        assert not there.packets_seen
        assert metrics.PEER_PACKETS_BARRED.labels("n1", "g1")._value.get() == dropped + 1
        assert "data directory replaced" in replaced.peer_identities.objections["g1", "n2"], (
            "it is told why"
        )
        assert two.peer_identities.returned("g1") == {
            "n1": identity("n1", incarnation=2).incarnation
        }
        assert replaced.peer_identities.met_by["g1"] == frozenset(), (
            "no peer has recorded this directory"
        )
        # It may have been elected by those who know it by now: what it sends as a leader is
        # heard, its votes and answers are not.
        behind = encode(LeftBehind(sender="n1", to="n2", term=3, begin_index=5))
        link.send_packet(
            "g1", encode(VoteReply(sender="n1", to="n2", term=3, pre=False, granted=True))
        )
        link.send_packet("g1", behind)
        await there.until(lambda: bool(there.packets_seen))
        assert [packet.header for _, _, packet in there.packets_seen] == [behind.header]
        two.peer_identities.name(
            "g1", ("n1", "n2"), {"n1": identity("n1", incarnation=2).incarnation}
        )
        link.send_packet("g1", PeerPacket(b"again"))
        await there.until(lambda: len(there.packets_seen) > 1)
        assert there.packets_seen[1][2].header == b"again" and not two.peer_identities.returned(
            "g1"
        )


async def test_a_stream_from_a_former_directory_is_not_heard_for_the_one_that_counts(
    tmp_path: Path,
) -> None:
    """Both are alive: the old one dialled us, and the one that the group has taken in answers where
    we dial."""
    two = greeter(tmp_path, "n2")
    async with pair(tmp_path, two=two) as (link, here, there, _, _):
        await here.until(lambda: link.up)
        new = greeter(tmp_path / "new", "n1", identities={"g1": identity("n1", incarnation=2)})
        two.peer_identities.name(
            "g1", ("n1", "n2"), {"n1": identity("n1", incarnation=2).incarnation}
        )
        two.check_reply(b"n" * 32, new.reply(asked("n2")), "n1")
        assert not two.peer_identities.barred
        link.send_packet("g1", PeerPacket(b"h"))
        assert (await link.call(peer_pb2.ForwardCall(method="M"))).responses
        assert not there.packets_seen


def test_peer_that_knows_another_directory_has_not_met_a_fresh_one(
    tmp_path: Path,
) -> None:
    """The peer proves its identity to the new directory and reports which one it has recorded: we
    know the peer, but it does not know our directory."""
    one, two = greeter(tmp_path, "n1"), greeter(tmp_path, "n2")
    two.check_hello(b"c" * 32, one.hello(b"c" * 32, b"n" * 32))
    one.check_reply(b"n" * 32, two.reply(asked("n1")), "n2")
    assert one.peer_identities.met_by == {"g1": {"n2"}}
    fresh = greeter(tmp_path / "wiped", "n1", identities={"g1": identity("n1", incarnation=2)})
    fresh.check_hello(b"c" * 32, two.hello(b"c" * 32, b"n" * 32))
    two.check_reply(b"n" * 32, fresh.reply(asked("n2")), "n1")
    two.check_hello(b"c" * 32, fresh.hello(b"c" * 32, b"n" * 32))
    fresh.check_reply(b"n" * 32, two.reply(asked("n1")), "n2")
    assert set(two.peer_identities.barred) == {("g1", "n1")}
    assert two.peer_identities.met_by["g1"] == frozenset(), "nor does the fresh one's word count"
    assert fresh.peer_identities.known == {
        "g1": {"n2": identity("n2").incarnation}
    } and fresh.peer_identities.met_by == {"g1": frozenset()}
    # Even once the group's record names the fresh directory, only the fresh one's own log may tell
    # it so.
    two.peer_identities.name("g1", ("n1", "n2"), {"n1": identity("n1", incarnation=2).incarnation})
    fresh.check_reply(b"n" * 32, two.reply(asked("n1")), "n2")
    assert not two.peer_identities.barred and fresh.peer_identities.met_by == {"g1": frozenset()}


def asked(node: str) -> peer_pb2.Hello:
    """A hello as far as the answer depends on it."""
    return peer_pb2.Hello(node=node, nonce=b"n" * 32)


def test_of_two_directories_that_greet_at_once_the_first_is_remembered(tmp_path: Path) -> None:
    """Both found no recorded directory; the second must not replace the result of the first."""
    book = greeter(tmp_path, "n2").peer_identities
    for incarnation in ("one", "two", "one", "two"):
        book.greeted("g1", "n1", incarnation, None)
        assert (("g1", "n1") in book.barred) == (incarnation == "two")
    assert read_peers(RealDisk(), book.directories["g1"]) == {"n1": "one"}
    book.note_met_by("g1", "n1")
    again = PeerIdentities(RealDisk(), book.directories, _fail)
    again.load()
    assert (again.known, again.met_by) == ({"g1": {"n1": "one"}}, {"g1": {"n1"}}), (
        "once met is met for ever"
    )


def test_unstored_incarnation_refuses_the_peer_and_a_failed_sync_is_fatal(
    tmp_path: Path,
) -> None:
    """A full disk leads to a refusal with this reason; a failed sync ends the node (I9). In neither
    case does the peer count as known."""
    fatal: list[FatalError] = []
    full = PeerIdentities(
        FailingDisk(errno.ENOSPC), {"g1": str(tmp_path)}, fatal.append, {"g1": {}}
    )
    with pytest.raises(Refused, match="free disk space"):
        full.greeted("g1", "n1", "one", None)
    assert not fatal and full.known == {"g1": {}}
    broken = PeerIdentities(FailingDisk(errno.EIO), {"g1": str(tmp_path)}, fatal.append, {"g1": {}})
    with pytest.raises(OSError):
        broken.greeted("g1", "n1", "one", None)
    assert [error.exit_code for error in fatal] == [73] and broken.known == {"g1": {}}


def test_proof_cannot_be_reflected_or_replayed(tmp_path: Path) -> None:
    """A MAC is bound to its direction, its nonce and its content."""
    one, two = greeter(tmp_path, "n1"), greeter(tmp_path, "n2")
    hello = one.hello(b"c" * 32, b"n" * 32)
    two.check_hello(b"c" * 32, hello)
    with pytest.raises(Refused, match="secret"):
        two.check_hello(b"d" * 32, hello)
    tampered = peer_pb2.Hello.FromString(hello.SerializeToString())
    tampered.node = "n9"
    with pytest.raises(Refused, match="secret"):
        two.check_hello(b"c" * 32, tampered)
    reply = two.reply(peer_pb2.Hello(node="n1", nonce=b"c" * 32))
    # Byte for byte what the other side said: only the label in the proof tells the directions
    # apart.
    mirrored = peer_pb2.Hello.FromString(reply.SerializeToString())
    with pytest.raises(Refused, match="secret"):
        one.check_hello(b"c" * 32, mirrored)


def greeting_frames() -> list[bytes]:
    """Frames that are no greeting: other messages, garbage, a payload, a sign of life, lengths that
    promise too much."""
    rng = random.Random(7)
    call = peer_pb2.PeerMessage(
        forward_call=peer_pb2.ForwardCall(sequence=1, method="SendMessage", request=b"x")
    ).SerializeToString()
    hello = peer_pb2.PeerMessage(
        hello=peer_pb2.Hello(node="n1", nonce=b"n" * 32, mac=b"m" * 32)
    ).SerializeToString()
    long = peer_pb2.PeerMessage(hello=peer_pb2.Hello(node="n" * 100_000)).SerializeToString()
    frames = [
        (call, b""),
        (packet_head("g1", b"h"), b""),
        (packet_head("g1", b"h"), bytes(100)),
        (hello, b"p"),
        (b"", b""),
        (long, b""),
    ]
    whole = [b"".join(encode_frame(*frame)) for frame in frames]
    return [
        *whole,
        whole[-1][:8],
        *(b"".join(encode_frame(rng.randbytes(size))) for size in (1, 10, 1000)),
    ]


@pytest.mark.parametrize("frame", greeting_frames(), ids=lambda frame: f"{len(frame)}-bytes")
async def test_frame_before_the_greeting_ends_the_stream(tmp_path: Path, frame: bytes) -> None:
    """Before the proof, a frame that is no hello is the end: nothing of it reaches the handler, and
    it is counted."""
    async with pair(tmp_path) as (link, here, there, _, port):
        await here.until(lambda: link.up)
        counted = metrics.PEER_REFUSALS.labels("garbage")._value.get()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(frame)
        async with asyncio.timeout(20):
            with contextlib.suppress(ConnectionResetError):
                while await reader.read(4096):
                    pass
        writer.close()
        assert metrics.PEER_REFUSALS.labels("garbage")._value.get() == counted + 1
        assert not there.calls and not there.packets_seen
        assert list((await link.call(peer_pb2.ForwardCall(method="M"))).responses) == [
            b"M",
            b"",
        ], "others are not disturbed"


async def test_random_bytes_on_the_port_close_the_connection_only(tmp_path: Path) -> None:
    """What is no frame is answered by closing; a peer that is connected does not notice."""
    async with pair(tmp_path) as (link, here, _, _, port):
        await here.until(lambda: link.up)
        rng = random.Random(3)
        for _ in range(20):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(rng.randbytes(rng.randrange(1, 5000)))
            with contextlib.suppress(OSError):
                writer.write_eof()
                async with asyncio.timeout(20):
                    while await reader.read(4096):
                        pass
            writer.close()
        assert list((await link.call(peer_pb2.ForwardCall(method="M"))).responses) == [
            b"M",
            b"",
        ]


def test_a_caller_that_hangs_up_while_its_greeting_is_looked_at_is_no_failure(
    tmp_path: Path, run: Run
) -> None:
    """A caller without the secret must not fill the log with tracebacks: an answer to a closed
    connection is dropped."""
    failures: list[dict[str, Any]] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: failures.append(context))
        accepting = Peers({}, greeter(tmp_path, "n2"), Recorder(), 1 << 20)
        port = await accepting.listen("127.0.0.1:0")
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        await reader.read(8)
        (serving,) = accepting._server._serving
        gone = asyncio.Event()
        looked_at = asyncio.to_thread

        async def slowly(*work: Any) -> Any:
            try:
                return await looked_at(*work)
            finally:
                await gone.wait()

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(peer_server.asyncio, "to_thread", slowly)
            writer.write(
                b"".join(
                    bytes(part)
                    for part in encode_frame(
                        peer_pb2.PeerMessage(hello=asked("n1")).SerializeToString()
                    )
                )
            )
            await writer.drain()
            writer.transport.abort()
            await asyncio.sleep(0.1)
            gone.set()
            await asyncio.wait([serving], timeout=20)
        assert serving.done() and serving.exception() is None
        await accepting.stop()

    run(main())
    assert not failures


async def test_unresolvable_address_does_not_end_a_link(tmp_path: Path) -> None:
    """An address that cannot be resolved counts as unreachable, like an unknown name; the other
    addresses are still tried."""
    accepting = Peers({}, greeter(tmp_path, "n2"), Recorder(), 1 << 20)
    port = await accepting.listen("127.0.0.1:0")
    dialling = Peers(
        {"n2": [f"node..example:{port}", f"127.0.0.1:{port}"]},
        greeter(tmp_path, "n1"),
        here := Recorder(),
        1 << 20,
    )
    dialling.dial()
    await here.until(lambda: dialling.links["n2"].up)
    await dialling.stop()
    await accepting.stop()


async def test_no_more_greetings_at_once_than_are_allowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A silent caller occupies a slot until its timeout; callers without a free slot are closed at
    once, and slots are released."""
    monkeypatch.setattr(peer_server, "GREETINGS_AT_ONCE", 3)
    monkeypatch.setattr(peer_server, "GREETING_TIMEOUT_S", 0.3)

    accepting = Peers({}, greeter(tmp_path, "n2"), Recorder(), 1 << 20)
    port = await accepting.listen("127.0.0.1:0")
    counted = metrics.PEER_REFUSALS.labels("crowd")._value.get()
    silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
    for reader, _ in silent:
        assert await reader.read(8), "its challenge"
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    assert (
        await reader.read() == b""
        and metrics.PEER_REFUSALS.labels("crowd")._value.get() == counted + 1
    )
    for waiting, _ in silent:
        while await waiting.read(4096):
            pass
    for _, out in [*silent, (reader, writer)]:
        out.close()
    dialling = Peers(
        {"n2": [f"127.0.0.1:{port}"]}, greeter(tmp_path, "n1"), here := Recorder(), 1 << 20
    )
    dialling.dial()
    await here.until(lambda: dialling.links["n2"].up)
    await dialling.stop()
    await accepting.stop()


@pytest.mark.parametrize("tls", [False, True])
async def test_ranges_of_any_size_arrive_unchanged_and_in_order(tmp_path: Path, tls: bool) -> None:
    """Beyond every buffer on the way; what is handed on does not change when more arrives."""
    wires = (wire_of(tmp_path, "n1"), wire_of(tmp_path, "n2")) if tls else (None, None)
    rng = random.Random(5)
    payloads = [
        rng.randbytes(size)
        for size in (0, 1, 16 << 10, (16 << 10) + 1, 40_000, 1 << 20, 3, (4 << 20) + 7, 100)
    ]

    async with pair(tmp_path, wires=wires, limit_bytes=64 << 20) as (link, here, there, _, _):
        await here.until(lambda: link.up)
        for _ in range(3):
            for k, payload in enumerate(payloads):
                link.send_packet(
                    "g1",
                    PeerPacket(b"h%d" % k, memoryview(bytearray(payload)) if k % 2 else payload),
                )
        await there.until(lambda: len(there.packets_seen) == 3 * len(payloads))
        assert [(packet.header, bytes(packet.payload)) for _, _, packet in there.packets_seen] == [
            (b"h%d" % k, payload) for k, payload in enumerate(payloads)
        ] * 3
        assert link.queued_bytes == 0


async def test_a_peer_that_does_not_read_costs_old_packets_and_no_memory(tmp_path: Path) -> None:
    """What the kernel does not take waits in the queue, which has its bound; calls are kept, and
    refused once it is full."""
    async with pair(tmp_path) as (link, here, there, accepting, _):
        await here.until(lambda: link.up)
        far = accepting._server._speakers["n1"].stream.transport
        far.pause_reading()
        for k in range(400):
            link.send_packet("g1", PeerPacket(b"%d" % k, bytes(100_000)))
            assert link.queued_bytes <= (1 << 20) + 200_000
            await asyncio.sleep(0)
        far.resume_reading()
        await there.until(
            lambda: bool(there.packets_seen) and there.packets_seen[-1][2].header == b"399"
        )
        assert 10 < len(there.packets_seen) < 400
        heard = [int(packet.header) for _, _, packet in there.packets_seen]
        assert heard == sorted(heard)


async def test_a_silent_peer_is_given_up_and_a_quiet_one_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An idle stream stays open by keep-alive messages; a stream whose bytes no longer arrive is
    ended by each side independently."""
    monkeypatch.setattr(peer_stream, "SILENCE_S", 0.1)
    monkeypatch.setattr(peer_stream, "DEAF_S", 0.6)
    monkeypatch.setattr(peer_stream, "LATE_S", 0.05)

    async with pair(tmp_path) as (link, here, _, accepting, _):
        await here.until(lambda: link.up)
        far = accepting._server._speakers["n1"].stream
        heard = far.heard_s
        async with asyncio.timeout(20):
            while far.heard_s < heard + 0.5:
                await asyncio.sleep(0.01)
        assert here.links == [("n2", True)], "several silences long"
        asking: PeerStream = link._outbox._wake.__self__
        asking._timer.cancel()
        async with asyncio.timeout(20):
            assert isinstance(await far.ended, TimeoutError)
        await here.until(lambda: len(here.links) == 3)
        accepting._server._speakers["n1"].stream.transport.pause_reading()
        await here.until(lambda: len(here.links) == 5)
        assert here.links == [("n2", True), ("n2", False)] * 2 + [("n2", True)]


@pytest.mark.parametrize("end", ["here", "there", "for a reason"])
def test_ended_stream_leaves_no_cycle_for_the_collector(tmp_path: Path, run: Run, end: str) -> None:
    """Neither side keeps it, with all that was queued for the other one, until a collection comes:
    that one counts objects, not bytes."""

    async def main() -> None:
        async with pair(tmp_path) as (link, here, _, accepting, _):
            await here.until(lambda: link.up and "n1" in accepting._server._speakers)
            near, far = link._outbox._wake.__self__, accepting._server._speakers["n1"].stream
            left = [weakref.ref(one) for one in (near, far, near._outbox, far._outbox)]
            attempt = weakref.ref(link._attempt)
            link.send_packet("g1", PeerPacket(b"h", bytes(1000)))
            (far if end == "there" else near).end(
                TimeoutError("nothing was heard") if end == "for a reason" else None
            )
            del near, far
            await here.until(lambda: len(here.links) > 1)
            async with asyncio.timeout(20):
                while attempt() is not None or any(one() is not None for one in left):
                    await asyncio.sleep(0.01)

    gc.collect()
    gc.disable()
    try:
        run(main())
    finally:
        gc.enable()


class SlowTransport:
    """Takes whatever it is given; what has not left yet is for the test to say."""

    def __init__(self) -> None:
        self.unsent = 0
        self.asked = 0

    def write(self, data: bytes) -> None:
        self.asked += data == SIGN_OF_LIFE
        self.unsent += len(data)

    def writelines(self, buffers: Sequence[bytes]) -> None:
        for data in buffers:
            self.write(data)

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def set_write_buffer_limits(self, high: int) -> None: ...
    def get_extra_info(self, name: str) -> None: ...
    def abort(self) -> None: ...


async def test_slowly_reading_peer_stays_connected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """While the connection is full, no keep-alive request gets through, so progress of the written
    bytes counts as a sign of life. Without it the stream ends."""
    monkeypatch.setattr(peer_stream, "SILENCE_S", 0.05)
    monkeypatch.setattr(peer_stream, "LATE_S", 5.0)

    stream, transport = PeerStream(), SlowTransport()
    stream.connection_made(transport)  # type: ignore[arg-type]
    outbox = stream.open("n2", 1 << 20, lambda frames: None, dialled=True)
    outbox.put_packet("g1", PeerPacket(b"h", bytes(900_000)))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    stream.pause_writing()
    loop = asyncio.get_running_loop()
    until = loop.time() + 0.5
    while loop.time() < until:
        assert not stream.ended.done(), "it takes bytes all the time"
        transport.unsent -= 100
        await asyncio.sleep(0.005)
    async with asyncio.timeout(20):
        assert isinstance(await stream.ended, TimeoutError)


WHERE = (
    ("[::]", ("127.0.0.1", "[::1]")),
    ("[::1]", ("[::1]",)),
    ("localhost", ("127.0.0.1",)),
    ("0.0.0.0", ("127.0.0.1",)),
)


@pytest.mark.parametrize(("listens", "reached"), WHERE)
async def test_the_port_is_where_the_configuration_says(
    listens: str, reached: tuple[str, ...]
) -> None:
    """For `::` all addresses of both families; a port in use is an error, and no other port is
    chosen."""
    if "[::1]" in reached and not socket.has_dualstack_ipv6():
        pytest.skip("no IPv6 here")
    listener = await PeerWire().listen(f"{listens}:0")
    port = listener.getsockname()[1]
    for host in reached:
        (await PeerWire().connect(f"{host}:{port}", "n2", PeerStream)).end()
    with pytest.raises(OSError):
        await PeerWire().listen(f"{listens}:{port}")
    listener.close()


@pytest.mark.parametrize(
    "address", ["", "n2", "n2:x", "::1:9081", f"{'n' * 300}:1", "fe80::1%lo:1"]
)
async def test_a_peer_without_a_possible_address_is_only_out_of_reach(address: str) -> None:
    """Any other error would end the link for good."""
    with pytest.raises(OSError):
        await PeerWire().connect(address, "n2", PeerStream)


async def test_garbage_behind_a_good_greeting_ends_that_stream(tmp_path: Path) -> None:
    """A frame that is too long or invalid: the stream ends, the link reconnects, and the node
    continues."""
    async with pair(tmp_path) as (link, here, there, _, _):
        for bad in (
            b"\xff" * 8,
            b"".join(encode_frame(b"\xff\xff\xff")),
            SIGN_OF_LIFE + b"\x00\x00\x00\x01\x00\x00\x00\x00\x0f",
        ):
            await here.until(lambda: link.up)
            here.links.clear()
            outgoing: PeerStream = link._outbox._wake.__self__
            outgoing.transport.write(bad)
            await here.until(lambda: ("n2", False) in here.links)
        await here.until(lambda: link.up)
        assert list((await link.call(peer_pb2.ForwardCall(method="M"))).responses) == [
            b"M",
            b"",
        ]
        assert not there.packets_seen


async def test_renewed_certificates_count_from_the_next_connection_on(tmp_path: Path) -> None:
    """Both nodes get certificates of another authority: the existing stream stays, and the next one
    uses the new certificates."""
    wires = {name: wire_of(tmp_path, name) for name in ("n1", "n2")}

    async with pair(tmp_path, wires=(wires["n1"], wires["n2"])) as (
        link,
        here,
        _,
        accepting,
        _,
    ):
        await here.until(lambda: link.up)
        for name in wires:
            wire_of(tmp_path, name, "elsewhere")
        for file in (tmp_path / "elsewhere").iterdir():
            file.replace(tmp_path / "tls" / file.name)
        for wire in wires.values():
            wire._files._look_at = 0.0
        assert list((await link.call(peer_pb2.ForwardCall(method="M"))).responses) == [
            b"M",
            b"",
        ]
        old = wires["n1"]._made[0]
        accepting._server.end("n1")
        await here.until(lambda: not link.up)
        await here.until(lambda: link.up)
        assert (
            wires["n1"]._made[0] is not old is not None
            and wires["n2"]._made[0].authority == wires["n1"]._made[0].authority
        )


async def test_call_on_an_ended_stream_is_lost_and_the_link_reconnects(
    tmp_path: Path,
) -> None:
    """The result of a call that reached the other node cannot be known when the stream ends;
    afterwards the link reconnects."""
    async with pair(tmp_path) as (link, here, there, accepting, port):
        await here.until(lambda: link.up)
        there.execute_with = lambda call: asyncio.Event().wait()
        call = asyncio.create_task(link.call(peer_pb2.ForwardCall(method="M")))
        await there.until(lambda: len(there.calls) == 1)
        await accepting.stop()
        with pytest.raises(Lost):
            await call
        await here.until(lambda: not link.up)
        with pytest.raises(NotSent):
            await link.call(peer_pb2.ForwardCall(method="M"))
        again = Peers({}, greeter(tmp_path, "n2"), there, 1 << 20)
        await again.listen(f"127.0.0.1:{port}")
        await here.until(lambda: link.up)
        await again.stop()


async def test_cancelled_call_is_cancelled_at_the_other_node(tmp_path: Path) -> None:
    """A client that disconnects must not leave its long poll waiting at the leader."""
    async with pair(tmp_path) as (link, here, there, _, _):
        await here.until(lambda: link.up)
        cancelled = asyncio.Event()

        async def wait(call: peer_pb2.ForwardCall) -> None:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancelled.set()
                raise

        there.execute_with = wait
        call = asyncio.create_task(link.call(peer_pb2.ForwardCall(method="M")))
        await there.until(lambda: len(there.calls) == 1)
        call.cancel()
        async with asyncio.timeout(20):
            await cancelled.wait()


def sent(messages: Sequence[peer_pb2.PeerMessage]) -> bytes:
    return b"".join(b"".join(encode_frame(message.SerializeToString())) for message in messages)


async def test_results_wait_while_the_queue_to_their_node_is_full() -> None:
    """A caller that leaves meanwhile leaves alone."""
    box = Outbox("n2", 1000, lambda: None)
    await box.room()
    box.put(peer_pb2.PeerMessage(forward_cancel=peer_pb2.ForwardCancel(sequence=1)), 1001)
    waiting = [asyncio.create_task(box.room()) for _ in range(3)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    await asyncio.sleep(0)
    assert not waiting[1].done() and not waiting[2].done()
    box.take()
    await asyncio.gather(*waiting[1:])


def test_message_is_withdrawn_only_before_a_write_took_it() -> None:
    """What a write took may have left this node; what is still queued has not, and can be taken
    back."""
    box = Outbox("n2", 1000, lambda: None)
    first, second = (
        peer_pb2.PeerMessage(forward_call=peer_pb2.ForwardCall(sequence=k)) for k in (1, 2)
    )
    box.put(first, 10)
    box.put(second, 10)
    assert box.withdraw(first)
    assert b"".join(box.take()) == sent([second])
    assert not box.withdraw(second) and box.bytes == 0


def test_outbox_drops_the_oldest_packets_and_never_a_call() -> None:
    """Past its bound the queue gives up replication packets, oldest first; everything else stays; a
    write is bounded too."""
    box = Outbox("n2", 1000, lambda: None)
    urgent = peer_pb2.PeerMessage(client_gone=peer_pb2.ClientGone(client_id="c"))
    box.put(urgent, 400)
    packets = [PeerPacket(b"%d" % k, bytes(180)) for k in range(10)]
    for packet in packets:
        box.put_packet("g", packet)
    assert b"".join(box.take()) == b"".join(map(framed, packets[-3:])) + sent([urgent])
    assert box.bytes == 0 and not len(box)
    wide = Outbox("n2", 1 << 40, lambda: None)
    for _ in packets[:3]:
        wide.put(urgent, peer_stream.WRITE_BYTES // 2 + 1)
    assert [b"".join(wide.take()) for _ in range(4)] == [sent([urgent])] * 3 + [b""]


def framed(packet: PeerPacket) -> bytes:
    """A packet of the broker group `g` as docs/format.md §19 lays it out."""
    sizes = struct.pack(">II", 3 + len(packet.header), len(packet.payload))
    return sizes + b"\x00\x01g" + packet.header + bytes(packet.payload)


@given(group=st.text(max_size=63), header=st.binary(max_size=300))
@example(group="", header=b"")
@example(group="g" * 255, header=b"h" * 20_000)
def test_a_packet_comes_back_from_its_head_and_no_message_does(group: str, header: bytes) -> None:
    """The first byte tells packets from messages: no field of a protobuf message has the number
    0."""
    head = packet_head(group, header)
    assert packet_in(head) == (group, header)
    with pytest.raises(DecodeError):
        peer_pb2.PeerMessage.FromString(head)
    for kind in peer_pb2.PeerMessage.DESCRIPTOR.oneofs_by_name["content"].fields:
        message = peer_pb2.PeerMessage()
        getattr(message, kind.name).SetInParent()
        assert packet_in(message.SerializeToString()) is None


@pytest.mark.parametrize("head", [b"\0", b"\0\1", b"\0\xff" + b"g" * 254, b"\0\2\xff\xfeheader"])
async def test_a_packet_without_the_name_of_a_group_ends_the_stream(
    tmp_path: Path, head: bytes
) -> None:
    """Cut off before the name ends, or no text: the stream ends with the reason, and nothing of it
    reaches the handler."""
    with pytest.raises(BadFrame, match="broker group"):
        packet_in(head)

    async with pair(tmp_path) as (link, here, there, _, _):
        await here.until(lambda: link.up)
        link._outbox._packets.append((encode_frame(head), 0))
        link.send_packet("g1", PeerPacket(b"behind"))
        await here.until(lambda: ("n2", False) in here.links)
        assert there.packets_seen == []


async def test_clock_of_the_accepting_side_comes_with_greeting_and_request(
    tmp_path: Path,
) -> None:
    """It is known before the first packet leaves, and each answer repeats when it was asked."""
    async with pair(tmp_path, two=greeter(tmp_path, "n2", wall_ns=lambda: 77)) as (
        link,
        here,
        there,
        _,
        _,
    ):
        await here.until(lambda: len(here.clocks) == 2)
        (greeted, asked), there.wall = here.clocks, 78
        assert (greeted[:2], asked[:2]) == (("n2", 77), ("n2", 1))
        assert here.links == [("n2", True)] and greeted[2] <= asked[2]
        link.ask_clock(5)
        await here.until(lambda: len(here.clocks) == 3)
        assert here.clocks[-1] == ("n2", 78, 5)


async def test_objections_come_with_each_answer_about_the_clock(tmp_path: Path) -> None:
    """A peer's judgement may change on an open stream: by the record that admits a directory, or by
    one that names another. A program that tells objections in greetings only does not lift them by
    its silence."""
    one, two = greeter(tmp_path, "n1"), greeter(tmp_path, "n2")
    async with pair(tmp_path, one=one, two=two) as (link, here, _, _, _):

        async def asked_again() -> None:
            known = len(here.clocks)
            link.ask_clock(5)
            await here.until(lambda: len(here.clocks) > known)

        await here.until(lambda: len(here.clocks) == 2)
        assert one.peer_identities.unheard("g1") == []
        two.peer_identities.name("g1", ("n1", "n2"), {"n1": "another"})
        await asked_again()
        (reason,) = one.peer_identities.unheard("g1")
        assert "not heard by n2: broker group g1: node n1: data directory replaced" in reason
        link._take(peer_pb2.PeerMessage(clock_reply=peer_pb2.ClockReply(asked_ns=5, wall_ns=1)))
        assert one.peer_identities.unheard("g1") == [reason]
        two.peer_identities.name("g1", ("n1", "n2"), {"n1": identity("n1").incarnation})
        await asked_again()
        assert one.peer_identities.unheard("g1") == []


async def test_a_program_that_does_not_tell_its_clock(tmp_path: Path) -> None:
    """Its greeting says so."""
    async with pair(tmp_path) as (_, here, _, _, _):
        await here.until(lambda: bool(here.clocks))
        assert here.clocks[0][:2] == ("n2", None)
