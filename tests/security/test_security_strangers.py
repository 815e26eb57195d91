"""What one user's client can do to another's, and what hostile sizes can do to a node: nothing,
each in one test."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from ledgermq.node.frontend.rocketmq.checking import TRIES
from ledgermq.node.frontend.rocketmq.wire.validation import MESSAGE_ID_MAX, MESSAGES_MAX
from ledgermq.node.frontend.security import minting
from ledgermq.node.frontend.security.front import Front
from ledgermq.node.runtime.certificates import CertificateFiles
from ledgermq.node.runtime.config_sections import Delivery
from ledgermq.node.runtime.errors import ConfigError
from ledgermq.proto import messaging_pb2 as pb
from tests.contract.backend import Backend, contract, message, signed
from tests.security.test_security_users import Scene

EVERYTHING = "admin:cluster:*"
SETTINGS = pb.Settings(
    client_type=pb.PUSH_CONSUMER, subscription=pb.Subscription(group=pb.Resource(name="G"))
)


@contract(authentication=True, delivery=Delivery(liveness_ms=60_000))
async def test_a_client_id_belongs_to_its_user(server: Backend) -> None:
    """A user with the client id of another user's client can neither end its leases nor take over
    its Telemetry stream."""
    server.user("alice", "secret of alice", EVERYTHING)
    server.user("mallory", "secret of mallory")
    alice, mallory = (
        signed(name, f"secret of {name}", client_id="c1") for name in ("alice", "mallory")
    )
    stream = server.raw.telemetry(metadata=alice)
    await stream.write(pb.TelemetryCommand(settings=SETTINGS))
    assert (await stream.read()).status.code == pb.OK
    assert (await server.raw.send(message(), metadata=alice)).status.code == pb.OK
    assert len((await server.raw.receive(invisible=None, metadata=alice)).messages) == 1
    other = server.raw.telemetry(metadata=mallory)
    await other.write(
        pb.TelemetryCommand(
            settings=pb.Settings(client_type=pb.PRODUCER, publishing=pb.Publishing())
        )
    )
    assert (await other.read()).status.code == pb.OK
    goodbye = pb.NotifyClientTerminationRequest()
    assert (
        await server.raw.unary("NotifyClientTermination", goodbye, metadata=mallory)
    ).status.code == pb.OK
    server.pass_time(server.delivery.gone_grace_ms / 1000 + 1)
    assert server.engine.in_flight() == 1
    assert (await server.raw.receive(metadata=alice)).status.code == pb.MESSAGE_NOT_FOUND, (
        "still leased"
    )
    assert [found.settings.client_type for found in server.service.streams.of_group("G")] == [
        pb.PUSH_CONSUMER
    ]
    assert (
        await server.raw.unary("NotifyClientTermination", goodbye, metadata=alice)
    ).status.code == pb.OK
    server.pass_time(server.delivery.gone_grace_ms / 1000 + 1)
    assert len((await server.raw.receive(metadata=alice)).messages) == 1, (
        "the client's own goodbye counts"
    )


@contract({"T": "normal", "X": "transaction"})
async def test_message_id_of_maximum_length_fits_a_transaction_id(server: Backend) -> None:
    """The longest id of a half message gives a transaction id that ends the transaction; a longer
    one is refused before it is stored."""
    longest = "é" * (MESSAGE_ID_MAX // 2)
    half = message(topic="X", message_id=longest)
    half.system_properties.message_type = pb.TRANSACTION
    entry = (await server.raw.send(half)).entries[0]
    end = pb.EndTransactionRequest(
        topic=pb.Resource(name="X"), transaction_id=entry.transaction_id, resolution=pb.COMMIT
    )
    assert (await server.raw.unary("EndTransaction", end)).status.code == pb.OK
    half.system_properties.message_id = "x" * (MESSAGE_ID_MAX + 1)
    assert (await server.raw.send(half)).status.code == pb.ILLEGAL_MESSAGE_ID


def test_absent_certificate_maps_to_no_user() -> None:
    """A user that the configuration maps to the empty name does not apply to clients without a
    certificate."""
    scene = Scene(common_names={"": "alice", "service": "alice"})
    scene.put(scene.user("alice", "secret of alice"))
    assert (scene.who("", "", ""), scene.who("", "", "service")) == (40100, "alice")


@contract()
async def test_the_messages_of_a_request_are_counted(server: Backend) -> None:
    """Small ones by the hundred thousand would stop the node for seconds; as many as there may be
    are stored."""
    request = pb.SendMessageRequest(messages=[message(b"x", message_id="m")] * MESSAGES_MAX)
    assert (await server.raw.unary("SendMessage", request)).status.code == pb.OK
    request.messages.append(request.messages[0])
    assert (await server.raw.unary("SendMessage", request)).status.code == pb.BAD_REQUEST


@contract()
async def test_settings_are_kept_and_so_are_bounded(server: Backend) -> None:
    """Megabytes of topics end the stream, and nothing of them is remembered."""
    settings = pb.Settings(client_type=pb.PRODUCER)
    settings.publishing.topics.extend(pb.Resource(name=f"{at:0100}") for at in range(12_000))
    stream = server.raw.telemetry()
    await stream.write(pb.TelemetryCommand(settings=settings))
    assert [answer async for answer in _until_end(stream)] == []
    assert "the limit is" in await stream.details()
    assert len(server.service.streams) == 0 and server.service.clients.settings("t1") is None


async def _until_end(stream: object):  # type: ignore[no-untyped-def]
    import grpc

    try:
        async for answer in stream:  # type: ignore[attr-defined]
            yield answer
    except grpc.aio.AioRpcError:
        return


@contract({"L": "lite"})
async def test_a_set_of_lite_topics_is_bounded_before_it_is_read(server: Backend) -> None:
    """Whatever is to be done with them: more names than a set can have are refused at once."""
    await server.group("LG", lite_topic="L")
    names = [f"n{at}" for at in range(200_000)]
    for action in (pb.PARTIAL_ADD, pb.PARTIAL_REMOVE, pb.COMPLETE_ADD):
        request = pb.SyncLiteSubscriptionRequest(
            action=action,
            topic=pb.Resource(name="L"),
            group=pb.Resource(name="LG"),
            lite_topic_set=names,
        )
        answer = await server.raw.unary("SyncLiteSubscription", request)
        assert answer.status.code == pb.LITE_SUBSCRIPTION_QUOTA_EXCEEDED


@contract({"X": "transaction"}, delivery=Delivery(transaction_check_ms=1000))
async def test_a_producer_that_does_not_read_is_waited_for_once(server: Backend) -> None:
    """Of many overdue half messages only the first waits for its producer's stream."""
    for _ in range(20):
        half = message(topic="X")
        half.system_properties.message_type = pb.TRANSACTION
        assert (await server.raw.send(half)).status.code == pb.OK
    tried: list[str] = []

    async def to_producer(node: str, topic: str, command: pb.TelemetryCommand) -> bool:
        tried.append(command.recover_orphaned_transaction_command.transaction_id)
        return False

    async def find_producer(topic: str, *, here_last: bool = False) -> str:
        return "n1"

    server.service.commander.to_producer = to_producer  # type: ignore[method-assign]
    server.service.commander.find_producer = find_producer  # type: ignore[method-assign]
    server.pass_time(2)
    await server.service.checker.send_due_checks("g1")
    assert len(set(tried)) == 20 and len(tried) == TRIES + 19


def test_names_of_inner_connections_cannot_be_foretold() -> None:
    """Every user of the host sees abstract socket names; a user who could predict the next ones
    could bind them first."""
    front = Front(plain=True, tls=False)
    try:
        ends = [_entered(front).rpartition("-")[2] for _ in range(8)]
        assert len(set(ends)) == 8 and all(len(end) >= 24 for end in ends)
    finally:
        front.stop()


def _entered(front: Front) -> str:
    class Outer:
        host, address = "h", "h:1"

        def abort(self) -> None:
            """Nothing is open."""

    name = front.entered(Outer())  # type: ignore[arg-type]
    assert name is not None
    return name


def test_a_key_of_an_unknown_kind_is_said_in_words(tmp_path: Path) -> None:
    """As any other file that cannot serve: at the start a sentence, while the node runs the one
    before stays in force."""
    minting.ensure(tmp_path, {"n1": ("localhost",)})
    files = CertificateFiles(tmp_path / "n1.pem", tmp_path / "n1.key", None)
    before = files.current()
    unknown = base64.b64encode(bytes.fromhex("300d020100300506032a0304040178")).decode()
    (tmp_path / "n1.key").write_text(
        f"-----BEGIN PRIVATE KEY-----\n{unknown}\n-----END PRIVATE KEY-----\n"
    )
    with pytest.raises(ConfigError, match="not PEM"):
        CertificateFiles(tmp_path / "n1.pem", tmp_path / "n1.key", None)
    files._look_at = 0.0
    assert files.current() is before
