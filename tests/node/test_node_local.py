"""The directory of a local cluster: minted once, resumed, refused when it does not fit."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from ledgermq.node.process.local import LocalCluster, config_of, free_ports, ports_from_base
from ledgermq.node.runtime.errors import FatalError
from ledgermq.storage.files.real_disk import DirectoryLock


def test_ports_follow_the_rule_of_the_command_line() -> None:
    """Node k: client P+k−1, peer P+1000+k−1, controller P+2000+k−1, HTTP P+3000+k−1."""
    second = ports_from_base(3, 8081)[1]
    assert (second.client_port, second.peer_port, second.controller_port, second.http_port) == (
        8082,
        9082,
        10082,
        11082,
    )


def test_free_ports_are_distinct() -> None:
    """Twelve different ports for three nodes."""
    ports = [
        port
        for a in free_ports(3)
        for port in (a.client_port, a.peer_port, a.controller_port, a.http_port)
    ]
    assert len(set(ports)) == 12


def test_cluster_is_minted_once_and_resumed_with_new_ports(tmp_path: Path) -> None:
    """Id, creation time and secret stay; the secret file is private; ports follow the base port of
    each start."""
    first = LocalCluster.prepare(tmp_path / "data", nodes=3, base_port=8081)
    secret = tmp_path / "data" / "secret"
    text = secret.read_text()
    assert secret.stat().st_mode & 0o777 == 0o600 and len(text.strip()) == 64
    again = LocalCluster.prepare(tmp_path / "data", base_port=18081)
    assert again.cluster_id == first.cluster_id and secret.read_text() == text
    assert again.endpoints == "127.0.0.1:18081;127.0.0.1:18082;127.0.0.1:18083"
    one = config_of(again, "n2")
    assert (one.node, one.data, one.address.client_port) == ("n2", tmp_path / "data" / "n2", 18082)
    assert one.secret() == text.strip().encode()
    assert one.cluster.created_ms == config_of(first, "n1").cluster.created_ms
    assert one.cluster.groups[0].data_file_bytes == 64 << 20


def test_moved_directory_still_works(tmp_path: Path) -> None:
    """Nothing in the directory depends on its path."""
    LocalCluster.prepare(tmp_path / "a", nodes=1, base_port=8081)
    (tmp_path / "a").rename(tmp_path / "b")
    moved = LocalCluster.prepare(tmp_path / "b", base_port=8081)
    assert len(config_of(moved, "n1").secret()) == 64


def test_directory_of_a_running_node_is_refused_unchanged(tmp_path: Path) -> None:
    """Its nodes answer for the same cluster, so a second start would take them for its own and call
    itself ready."""
    LocalCluster.prepare(tmp_path, nodes=3, base_port=8081)
    described = (tmp_path / "cluster.yaml").read_text()
    (tmp_path / "n2").mkdir()
    running = DirectoryLock(str(tmp_path / "n2"))
    with pytest.raises(FatalError, match=r"node n2 of .* is running") as refused:
        LocalCluster.prepare(tmp_path, base_port=18081)
    assert refused.value.exit_code == 71 and (tmp_path / "cluster.yaml").read_text() == described
    running.close()
    assert LocalCluster.prepare(tmp_path, base_port=18081).nodes["n1"].client_port == 18081


@pytest.mark.parametrize(
    ("options", "exit_code", "said"),
    [
        ({"nodes": 5}, 4, "cluster of 3 nodes, not 5"),
        ({"log_file_bytes": 1 << 20}, 4, "log files of 67108864 bytes, not 1048576"),
    ],
)
def test_other_shape_than_the_existing_one_is_refused(
    tmp_path: Path, options: dict[str, int], exit_code: int, said: str
) -> None:
    """Number of nodes and file size belong to the cluster."""
    LocalCluster.prepare(tmp_path, nodes=3, base_port=8081)
    with pytest.raises(FatalError, match=said) as caught:
        LocalCluster.prepare(tmp_path, base_port=8081, **options)  # type: ignore[arg-type]
    assert caught.value.exit_code == exit_code
    LocalCluster.prepare(tmp_path, nodes=3, base_port=8081, log_file_bytes=64 << 20)


@pytest.mark.parametrize("text", ["", "a: b", "[", "nodes: {}\ncluster: {groups: []}"])
def test_damaged_description_is_refused(tmp_path: Path, text: str) -> None:
    """An invalid cluster.yaml is not overwritten."""
    path = tmp_path / "cluster.yaml"
    path.write_text(text)
    with pytest.raises(FatalError, match="not the description of a cluster") as caught:
        LocalCluster.prepare(tmp_path, base_port=8081)
    assert caught.value.exit_code == 71 and path.read_text() == text


def test_directory_that_is_a_file_is_refused(tmp_path: Path) -> None:
    """Exit 71 with a sentence."""
    (tmp_path / "file").write_text("")
    with pytest.raises(FatalError, match="cannot be used") as caught:
        LocalCluster.prepare(tmp_path / "file", base_port=8081)
    assert caught.value.exit_code == 71


def test_extra_sections_become_part_of_the_configuration(tmp_path: Path) -> None:
    """Tests and demos may shorten periods."""
    cluster = LocalCluster.prepare(
        tmp_path, nodes=1, groups=("g1", "g2"), extra={"delivery": {"liveness_ms": "2s"}}
    )
    loaded = config_of(cluster, "n1")
    assert loaded.delivery.liveness_ms == 2000 and [
        group.name for group in loaded.hosted_groups
    ] == ["g1", "g2"]
    assert "delivery" in yaml.safe_load(cluster.config_file.read_text())


@contextmanager
def answering(body: bytes) -> Iterator[int]:
    """The port of something that answers 200 with these bytes to everything."""

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Discards the message."""

    with HTTPServer(("127.0.0.1", 0), Answer) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize(
    ("changed", "ready"),
    [
        ({}, True),
        ({"cluster": "another"}, False),
        ({"node": "n2"}, False),
        ({"cluster": None}, False),
    ],
)
def test_only_its_own_answer_makes_a_node_ready(
    tmp_path: Path, changed: dict[str, Any], ready: bool
) -> None:
    """Of two clusters started on the same ports at once, one would take the other's nodes for its
    own (track record 2026-11-22)."""
    cluster = LocalCluster.prepare(tmp_path, nodes=1)
    answer = {
        "status": "ready",
        "reasons": [],
        "cluster": cluster.cluster_id,
        "node": "n1",
        **changed,
    }
    with answering(json.dumps(answer).encode()) as port:
        cluster.nodes["n1"] = cluster.nodes["n1"].model_copy(update={"http_port": port})
        assert cluster.ready("n1") is ready


@pytest.mark.parametrize("body", [b"ok", b"[]", b"\xff"])
def test_answer_of_another_program_is_not_ready(tmp_path: Path, body: bytes) -> None:
    """Another program on the port."""
    cluster = LocalCluster.prepare(tmp_path, nodes=1)
    with answering(body) as port:
        cluster.nodes["n1"] = cluster.nodes["n1"].model_copy(update={"http_port": port})
        assert not cluster.ready("n1")


@pytest.mark.parametrize(
    "line", [b"SSH-2.0-OpenSSH_9.2\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nshort", b""]
)
def test_another_protocol_on_the_port_is_not_ready(tmp_path: Path, line: bytes) -> None:
    """A listener that does not speak HTTP, or ends in the middle of an answer, is another program;
    the node itself says that its port is taken."""
    cluster = LocalCluster.prepare(tmp_path, nodes=1)
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(line)

        thread = threading.Thread(target=answer)
        thread.start()
        cluster.nodes["n1"] = cluster.nodes["n1"].model_copy(
            update={"http_port": server.getsockname()[1]}
        )
        assert not cluster.ready("n1")
        thread.join()
