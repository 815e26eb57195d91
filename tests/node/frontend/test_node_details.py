"""One node in detail: what it tells, how much at most, who is asked, and that no secret is in
it."""

from __future__ import annotations

import asyncio
import json
import os
from collections import deque
from types import SimpleNamespace
from typing import Any

import pytest

from ledgermq.node.broker.calls.outcome import CallRefused, Refused
from ledgermq.node.frontend.admin.cluster.node_details import METHOD, NodeDetails
from ledgermq.node.runtime import logs
from ledgermq.node.runtime.config_loading import masked, validate
from ledgermq.proto import admin_pb2 as pb
from ledgermq.proto.status import Code, LedgerError

SECRET = "correct horse battery staple"
TREE: dict[str, Any] = {
    "node": "n1",
    "data": "/data",
    "cluster": {
        "id": "6f9619ff-8b86-4d01-b42d-00cf4fc964ff",
        "created_ms": 1,
        "secret": SECRET,
        "groups": [{"name": "g1", "replicas": ["n1"]}],
    },
    "nodes": {
        "n1": {
            "host": "127.0.0.1",
            "client_port": 1,
            "peer_port": 2,
            "controller_port": 3,
            "http_port": 4,
        }
    },
    "tracing": {"otlp_endpoint": f"http://user:{SECRET.replace(' ', '-')}@collector:4317"},
    "metrics": {"otlp_endpoint": "https://collector:4317"},
}


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> deque[str]:
    """The lines that are kept, without those of other tests and without a line on stderr."""
    lines: deque[str] = deque(maxlen=logs.KEPT_LINES)
    monkeypatch.setattr(logs, "_kept", lines)
    monkeypatch.setattr(logs, "_hidden", ())
    monkeypatch.setattr(logs, "say", lambda text: None)
    return lines


class Forwarder:
    """Answers for n2 with its name; n3 is not reached."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []

    async def ask(self, node: str, method: str, request: bytes, deadline: float) -> list[bytes]:
        self.asked.append((node, method))
        if node == "n3":
            raise CallRefused(Refused("unknown-outcome"))
        return [
            pb.DescribeNodeResponse(
                node=node, log=["x"] * pb.DescribeNodeRequest.FromString(request).log_lines
            ).SerializeToString()
        ]


def details(forwarder: Any = None, connections: int | None = 7) -> NodeDetails:
    links: Any = {"n2": SimpleNamespace(up=True), "n3": SimpleNamespace(up=False)}
    return NodeDetails(validate(TREE), forwarder, links, lambda: connections, [1, 2], [3])


def test_a_node_describes_itself(kept: deque[str]) -> None:
    """Its process, its connections, and its configuration, if asked for."""
    found = asyncio.run(details().of(pb.DescribeNodeRequest(configuration=True)))
    assert (
        found.node,
        found.pid,
        found.client_connections,
        found.telemetry_streams,
        found.native_streams,
    ) == ("n1", os.getpid(), 7, 2, 1)
    assert (list(found.peers), list(found.connected_peers)) == (["n2", "n3"], ["n2"])
    assert (
        found.resident_bytes > 1 << 20
        and 0 < found.open_files < found.open_files_max
        and found.started_ms > 1 << 40
    )
    assert json.loads(found.configuration)["raft"] and not found.log
    bare = details(connections=None).here(pb.DescribeNodeRequest())
    assert not bare.HasField("client_connections") and not bare.HasField("configuration")


def test_no_secret_is_shown(kept: deque[str]) -> None:
    """The cluster secret and the credentials of a collector in the configuration; known secrets in
    lines of the log, cut ones too."""
    logs.hide(SECRET.encode(), b"", b"\xff" * 16, b'quoted "secret" of a user')
    stderr = logs._Stderr()
    stderr.write(json.dumps({"event": f"wrong: {SECRET}"}) + "\n")
    stderr.write(json.dumps({"event": 'wrong: quoted "secret" of a user'}) + "\n")
    stderr.write("x" * (logs.KEPT_CHARACTERS - 10) + SECRET + "\n")
    found = details().here(pb.DescribeNodeRequest(configuration=True, log_lines=10))
    assert [json.loads(line)["event"] for line in found.log[:2]] == [f"wrong: {logs.MASK}"] * 2
    assert "horse" not in str(found) and "correct" not in str(found) and "quoted" not in str(found)
    shown = masked(validate(TREE))
    assert (shown["tracing"]["otlp_endpoint"], shown["metrics"]["otlp_endpoint"]) == (
        f"http://{logs.MASK}@collector:4317",
        "https://collector:4317",
    )


def test_lines_are_bounded(kept: deque[str]) -> None:
    """The last ones, the oldest first; never more than are kept, and none is long."""
    stderr = logs._Stderr()
    for number in range(logs.KEPT_LINES + 50):
        stderr.write(f"{number} {'x' * 5000}\n")
    for asked, got in ((3, 3), (10_000, logs.KEPT_LINES), (0, 0), (-1, 0)):
        lines = details().here(pb.DescribeNodeRequest(log_lines=asked)).log
        assert len(lines) == got and all(len(line) == logs.KEPT_CHARACTERS + 1 for line in lines)
        assert not got or lines[-1].startswith(f"{logs.KEPT_LINES + 49} ")


def test_the_node_that_is_meant_answers(kept: deque[str]) -> None:
    """Another node is asked through its link; one that is not reached, or does not exist, is a
    refusal that no client repeats."""
    forwarder = Forwarder()
    asked = details(forwarder)
    found = asyncio.run(asked.of(pb.DescribeNodeRequest(node="n2", log_lines=3)))
    assert found.node == "n2" and len(found.log) == 3 and forwarder.asked == [("n2", METHOD)]
    with pytest.raises(LedgerError, match="node n3 does not answer n1") as refused:
        asyncio.run(asked.of(pb.DescribeNodeRequest(node="n3")))
    assert refused.value.code == Code.PRECONDITION_FAILED
    with pytest.raises(LedgerError, match="no node 'n9'; known: n1, n2, n3"):
        asyncio.run(asked.of(pb.DescribeNodeRequest(node="n9")))
