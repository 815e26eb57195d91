"""Three real nodes with TLS and authentication: the first user, permissions, both wires on one
port, official clients, rotation."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import grpc
import pytest

from ledgermq.client.api.admin import Admin
from ledgermq.client.api.connection import Connection
from ledgermq.client.errors import Refused
from ledgermq.node.frontend.security import minting
from ledgermq.node.process.local import LocalCluster
from ledgermq.proto import messaging_pb2 as pb
from ledgermq.proto.signature import Credentials, operator_of
from tests import cluster as real
from tests.contract.backend import message, receive_request, signed
from tests.contract.official import ClientError, Official, receive_some, send, simple, text
from tests.e2e.command_line import CommandLine

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

PATH = "/apache.rocketmq.v2.MessagingService/"
ROOT = ("root", "the secret of the first administrator")
ALICE = ("alice", "the secret of alice, a producer")
BOB = ("bob", "the secret of bob, a consumer")
LIMITS = {"delivery": {"min_invisible_ms": 100}, "access": {"authentication": "required"}}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Three nodes with authentication and certificates of their own authority; the first
    administrator is created with the secret file."""
    with real.running(
        tmp_path_factory.mktemp("security"), log_file_bytes=16 << 20, extra=LIMITS, tls=True
    ) as found:
        file = found.directory / "root.secret"
        file.write_text(ROOT[1])
        first = CommandLine.of(found)
        first.ok(
            "user",
            "create",
            ROOT[0],
            "--admin",
            "--secret-file",
            file,
            "--cluster-secret",
            found.directory / "secret",
        )
        file.unlink()
        with admin(found, ROOT) as root:
            root.create_topic("T")
            root.create_user(*ALICE, grants=["publish:topic:T"])
            root.create_user("readers", None, grants=["subscribe:topic:T"])
            root.create_user(*BOB, grants=["subscribe:group:g*"], roles=["readers"])
        yield found


@contextmanager
def admin(cluster: LocalCluster, keys: tuple[str, str], *, tls: bool = True) -> Iterator[Admin]:
    """The admin service with the access of a user."""
    assert cluster.ca_file is not None
    ca = cluster.ca_file.read_bytes() if tls else None
    with Connection(
        cluster.endpoints, credentials=Credentials(*keys), tls=tls, ca=ca, timeout_s=20
    ) as connection:
        yield Admin(connection)


def of(cluster: LocalCluster, keys: tuple[str, str] | None, *, tls: bool = True) -> CommandLine:
    assert cluster.ca_file is not None
    return CommandLine(
        cluster.endpoints, *(("--tls", "--ca", cluster.ca_file) if tls else ()), keys=keys
    )


def test_commands_need_credentials(cluster: LocalCluster) -> None:
    """Without credentials exit 4 and what to do; with them a producer produces and a consumer
    consumes, over either wire."""
    refused = of(cluster, None).run("status")
    assert refused.status == 4 and "LEDGERMQ_ACCESS_KEY" in refused.error
    denied = of(cluster, ALICE, tls=False).run("topic", "create", "T2")
    assert denied.status == 4 and "admin on topic T2" in denied.error
    for tls in (True, False):
        of(cluster, ALICE, tls=tls).ok("send", "--topic", "T", "--body", f"tls {tls}")
    # Other tests may have sent to this topic before.
    assert {"tls False", "tls True"} <= set(of(cluster, BOB).consume_all("T", "g1"))


def test_admin_service_is_for_administrators_only(cluster: LocalCluster) -> None:
    """Only the administrator may use the admin service; wrong secrets and unknown users get 40100,
    all others 40300."""
    for keys, code in (
        (ALICE, 40300),
        (BOB, 40300),
        (("root", "wrong"), 40100),
        (("nobody", ALICE[1]), 40100),
    ):
        for tls in (True, False):
            with admin(cluster, keys, tls=tls) as who, pytest.raises(Refused) as caught:
                who.topics()
            assert caught.value.code == code
    operator = operator_of((cluster.directory / "secret").read_bytes().strip())
    with admin(cluster, (operator.access_key, operator.secret_key)) as who:
        assert [user.name for user in who.users()] == ["alice", "bob", "readers", "root"]
        with pytest.raises(Refused):
            who.topics()


def sent(cluster: LocalCluster, node: str, keys: tuple[str, str]) -> int:
    """The code of sending one message to a node."""
    request = pb.SendMessageRequest(messages=[message()])
    with grpc.insecure_channel(
        real.target(cluster, node), [("grpc.enable_http_proxy", 0)]
    ) as channel:
        call = channel.unary_unary(
            PATH + "SendMessage",
            pb.SendMessageRequest.SerializeToString,
            pb.SendMessageResponse.FromString,
        )
        return int(call(request, metadata=signed(*keys), timeout=20).status.code)


def test_permissions_and_secrets_change_on_every_node(cluster: LocalCluster) -> None:
    """A new user counts everywhere at once; during a rotation both secrets do, after its end the
    new one only; what is revoked is gone."""
    old, new = ("carol", "the first secret of carol"), ("carol", "the second secret of carol")

    def everywhere(keys: tuple[str, str], code: int) -> None:
        # Another node hears of a change a moment later.
        assert real.wait_for(
            lambda: {sent(cluster, node, keys) for node in cluster.nodes} == {code} or None,
            20,
            f"{keys}: {code}",
        )

    with admin(cluster, ROOT) as root:
        root.create_user(*old, grants=["publish:topic:T"])
        assert {sent(cluster, node, old) for node in cluster.nodes} == {pb.OK}
        assert root.change_user("carol", secret_key=new[1]).secrets == 2
        everywhere(new, pb.OK)
        everywhere(old, pb.OK)
        root.change_user("carol", end_former_secret=True)
        everywhere(old, pb.UNAUTHORIZED)
        everywhere(new, pb.OK)
        root.change_user("carol", revoke=["publish:topic:T"])
        everywhere(new, pb.FORBIDDEN)
        root.delete_user("carol")
        everywhere(new, pb.UNAUTHORIZED)


@contextmanager
def official_of(
    cluster: LocalCluster, home: Path, keys: tuple[str, str], *, tls: bool
) -> Iterator[Official]:
    """Clients that know one node, by name: they check that its certificate is for this name."""
    own = {
        "CLIENT_ACCESS_KEY": keys[0],
        "CLIENT_SECRET_KEY": keys[1],
        "CLIENT_TLS": "yes" if tls else "no",
    }
    own["GRPC_DEFAULT_SSL_ROOTS_FILE_PATH"] = str(cluster.ca_file)
    client = Official(f"localhost:{cluster.nodes['n2'].client_port}", home, own)
    try:
        yield client
    finally:
        client.close()


@pytest.mark.parametrize("tls", [True, False])
def test_statement_099_official_client_over_both_wires(
    cluster: LocalCluster, tmp_path: Path, tls: bool
) -> None:
    """`tls_enable=True` with the authority's file works, and plaintext on the same port; both sign
    their calls."""
    with official_of(cluster, tmp_path / "a", ALICE, tls=tls) as producer:
        producer.do("producer", name="p", topics=["T"])
        send(producer, "T", f"official, tls {tls}")
    with official_of(cluster, tmp_path / "b", BOB, tls=tls) as consumer:
        simple(consumer, "T", group=f"g-official-{tls}")
        bodies: list[str] = []
        while f"official, tls {tls}" not in bodies:
            got = receive_some(consumer)
            bodies += [text(found) for found in got]
            for found in got:
                consumer.do("ack", name="c", id=found["id"])


def test_statement_096_official_client_with_a_wrong_secret(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    """The producer does not start: the route is refused."""
    with (
        official_of(cluster, tmp_path, ("alice", "wrong"), tls=False) as client,
        pytest.raises(ClientError),
    ):
        client.do("producer", name="p", topics=["T"])
        send(client, "T")
    assert any(
        "does not match" in line for node in cluster.nodes for line in real.log_lines(cluster, node)
    )


def test_statement_100_the_largest_message_over_tls(cluster: LocalCluster) -> None:
    """A body of 4 MiB with 16 KiB of properties, both ways, through the front and gRPC's TLS."""
    assert cluster.ca_file is not None
    limits = [
        ("grpc.max_receive_message_length", -1),
        ("grpc.max_send_message_length", -1),
        ("grpc.enable_http_proxy", 0),
    ]
    credentials = grpc.ssl_channel_credentials(cluster.ca_file.read_bytes())
    large = message(os.urandom(4 << 20))
    large.user_properties["k"] = "v" * ((16 << 10) - 1)
    with grpc.secure_channel(real.target(cluster, "n1"), credentials, limits) as channel:
        send_it = channel.unary_unary(
            PATH + "SendMessage",
            pb.SendMessageRequest.SerializeToString,
            pb.SendMessageResponse.FromString,
        )
        sent = send_it(pb.SendMessageRequest(messages=[large]), metadata=signed(*ALICE), timeout=20)
        assert sent.status.code == pb.OK
        path, read = PATH + "ReceiveMessage", pb.ReceiveMessageResponse.FromString
        receive = channel.unary_stream(path, pb.ReceiveMessageRequest.SerializeToString, read)

        def largest() -> pb.Message | None:
            got = receive(
                receive_request("T", "g-large", polling=1), metadata=signed(*BOB), timeout=20
            )
            return next((r.message for r in got if len(r.message.body) == 4 << 20), None)

        found = real.wait_for(largest, 20, "the large message")
        assert found.body == large.body and found.user_properties == large.user_properties


def test_no_secret_lies_anywhere(cluster: LocalCluster) -> None:
    """Not in a log, not in the quorum's journal or snapshot, not in what commands show."""
    secrets = [keys[1].encode() for keys in (ROOT, ALICE, BOB)]
    everything = [
        path for path in cluster.directory.rglob("*") if path.is_file() and "g1" not in path.parts
    ]
    assert {"node.log", "cluster.yaml"} <= {path.name for path in everything} and any(
        "controller" in path.parts for path in everything
    )
    for path in everything:
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            # A running node replaced or removed it meanwhile.
            continue
        assert not [secret for secret in secrets if secret in data], path
    shown = of(cluster, ROOT).ok("user", "describe", "bob").out
    assert "subscribe:topic:T (by a role)" in shown and BOB[1] not in shown


def test_a_certificate_is_renewed_while_the_node_runs(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    """Its file is replaced; the next connection sees the new one. Clients without the right
    authority cannot connect."""
    assert cluster.ca_file is not None
    tls = cluster.ca_file.parent
    before = (tls / "n1.pem").read_bytes()
    (tls / "n1.pem").unlink()
    minting.ensure(tls, {"n1": ("127.0.0.1", "localhost")})
    assert (tls / "n1.pem").read_bytes() != before

    def renewed() -> bool | None:
        port = cluster.nodes["n1"].client_port
        shown = subprocess.run(
            ["openssl", "s_client", "-connect", f"127.0.0.1:{port}", "-alpn", "h2"],
            input=b"",
            capture_output=True,
        )
        return (tls / "n1.pem").read_text().split("-----")[
            2
        ].strip().encode() in shown.stdout or None

    real.wait_for(renewed, 20, "the new certificate")
    minting.ensure(tmp_path, {"n1": ()})
    stranger = CommandLine(
        cluster.endpoints, "--tls", "--ca", tmp_path / "ca.pem", "--timeout", "3s", keys=ROOT
    )
    assert stranger.run("status").status == 3
    with admin(cluster, ROOT) as root:
        root.topics()


@pytest.mark.verify
def test_half_open_handshakes_end(cluster: LocalCluster) -> None:
    """A client that starts TLS or HTTP/2 and then stays silent is disconnected by the front or by
    gRPC; other clients are not affected."""
    where = (cluster.nodes["n3"].host, cluster.nodes["n3"].client_port)
    begun = [
        b"",
        b"\x16",
        b"\x16\x03\x01\x02\x00\x01",
        b"PRI * HT",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ]
    with ExitStack() as closing:
        silent = [closing.enter_context(socket.create_connection(where, timeout=90)) for _ in begun]
        for one, data in zip(silent, begun, strict=True):
            one.sendall(data)
        assert sent(cluster, "n3", ALICE) == pb.OK
        for one in silent:
            with suppress(ConnectionResetError):
                while one.recv(1024):
                    pass


def test_clients_with_certificates(tmp_path: Path) -> None:
    """A node that accepts only TLS and requires certificates: a client whose certificate is mapped
    to a user needs no signature, others are refused."""
    found = real.prepare(
        tmp_path, nodes=1, extra={"access": {"authentication": "required"}}, tls=True
    )
    assert found.ca_file is not None
    tls = found.ca_file.parent
    minting.ensure(tls, {"ops": (), "nobody": ()})
    users = "{ops: root}"
    found.settings = (
        "tls.mode=required",
        f"tls.client_ca_file={found.ca_file}",
        f"tls.users={users}",
    )
    found.start_all()
    try:
        found.wait_ready()
        wire = ("--tls", "--ca", found.ca_file)
        ops, nobody = (
            ("--certificate", tls / f"{name}.pem", "--certificate-key", tls / f"{name}.key")
            for name in ("ops", "nobody")
        )
        first = CommandLine(found.endpoints, *wire, *nobody)
        first.ok(
            "user", "create", "root", "--admin", "--cluster-secret", found.directory / "secret"
        )
        CommandLine(found.endpoints, *wire, *ops).ok("topic", "list")
        refused = first.run("topic", "list")
        assert refused.status == 4 and "certificate of nobody stands for no user" in refused.error
        for without in (
            CommandLine(found.endpoints, *wire, "--timeout", "2s"),
            CommandLine(found.endpoints, "--timeout", "2s"),
        ):
            assert without.run("topic", "list").status == 3
    finally:
        assert set(found.stop().values()) == {0}
