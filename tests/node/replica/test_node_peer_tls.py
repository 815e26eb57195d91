"""Connections between nodes that fail by TLS: each says why, at both ends, and goes on when the
fault has gone."""

from __future__ import annotations

import asyncio
import shutil
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import uvloop
from structlog.testing import capture_logs

from ledgermq.node.frontend.security import minting
from ledgermq.node.replica.peers import links, peer_server
from ledgermq.node.replica.peers.peer_wire import TLS_REASONS, PeerWire, tls_failure
from ledgermq.node.runtime import certificates, metrics
from ledgermq.node.runtime.certificates import CertificateFiles
from tests.node.replica.test_node_peers import pair

HOURS_AGO = -0.01
"""Days: a certificate that ended some minutes ago."""

CASES = {
    "the other's has ended": (
        "n2",
        "expired",
        "the certificate of node n2 is refused (certificate has expired); renew",
    ),
    "ours has ended": (
        "n1",
        "expired",
        "node n2 refuses the certificate of this node (it has ended); renew",
    ),
    "the other's authority is foreign": (
        "n2",
        "authority",
        "the certificate of node n2 is refused (",
    ),
    "our authority is foreign": (
        "n1",
        "refused",
        "node n2 refuses the certificate of this node (it ends the connection",
    ),
    "the other's is another node's": ("n2", "name", "not valid for 'n2'"),
    "the other speaks plaintext": ("n2", "protocol", "TLS with node n2 fails"),
}
SEEN_BY_THE_OTHER = {"ours has ended": "expired", "our authority is foreign": "authority"}
"""A caller that refuses a certificate only goes away."""


@pytest.mark.parametrize("case", CASES)
def test_a_failure_of_tls_is_told_until_it_is_mended(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One line for any number of attempts, a reason with a remedy for readiness and check, and a
    number by reason. The files may be replaced while the nodes run."""
    faulty, reason, words = CASES[case]
    monkeypatch.setattr(links, "REFUSED_RETRY_S", 0.01)
    monkeypatch.setattr(certificates, "LOOK_EVERY_S", 0.0)
    wires: dict[str, PeerWire | None] = {
        name: PeerWire(files(tmp_path, name)) for name in ("n1", "n2")
    }
    spoil(case, tmp_path, faulty, monkeypatch)
    if reason == "protocol":
        wires["n2"] = None
    before = {peer: count(peer) for peer in ("n2", "")}

    async def main() -> None:
        async with pair(tmp_path, wires=(wires["n1"], wires["n2"])) as (link, heard, _, _, _):
            await until(lambda: count("n2")[reason] >= before["n2"][reason] + 5)
            assert words in link.refusal and "; " in link.refusal and not link.up
            if reason == "protocol":
                return
            assert {name for name, now in count("").items() if now > before[""][name]} == {
                *filter(None, [SEEN_BY_THE_OTHER.get(case)])
            }
            for name in ("n1", "n2"):
                shutil.copy(tmp_path / "kept" / f"{name}.key", tmp_path / f"{name}.key")
                shutil.copy(tmp_path / "kept" / f"{name}.pem", tmp_path / f"{name}.pem")
            await heard.until(lambda: link.up)
            assert link.refusal is None

    with capture_logs() as lines:
        uvloop.run(main())
    said = [line for line in lines if line["event"] == "peer connection failed by TLS"]
    dialled = [line for line in said if line.get("peer") == "n2"]
    assert (
        len(dialled) == 1 and words in dialled[0]["reason"] and dialled[0]["log_level"] == "error"
    )
    told = [
        (line["cause"], line["caller"].partition(":")[0]) for line in said if "peer" not in line
    ]
    assert told == [
        (cause, "127.0.0.1") for name, cause in SEEN_BY_THE_OTHER.items() if name == case
    ]
    assert {name for name, now in count("n2").items() if now > before["n2"][name]} == {reason}


def files(directory: Path, name: str) -> CertificateFiles:
    """Certificates of one authority; copies are kept."""
    minting.ensure(directory, {name: ("127.0.0.1",)})
    (directory / "kept").mkdir(exist_ok=True)
    for kind in ("key", "pem"):
        shutil.copy(directory / f"{name}.{kind}", directory / "kept" / f"{name}.{kind}")
    return CertificateFiles(
        directory / f"{name}.pem", directory / f"{name}.key", directory / "ca.pem"
    )


def spoil(case: str, directory: Path, node: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the certificate of a node by one that the other refuses."""
    other, name = directory / "other", node
    if "ended" in case:
        other.mkdir()
        for kind in ("pem", "key"):
            shutil.copy(directory / f"ca.{kind}", other / f"ca.{kind}")
        monkeypatch.setattr(minting, "NODE_DAYS", HOURS_AGO)
    if "another node" in case:
        other, name = directory, "n3"
    minting.ensure(other, {name: ("127.0.0.1",)})
    for kind in ("key", "pem"):
        shutil.copy(other / f"{name}.{kind}", directory / f"{node}.{kind}")


def count(peer: str) -> dict[str, float]:
    return {
        reason: metrics.PEER_TLS_FAILURES.labels(peer, reason)._value.get()
        for reason in TLS_REASONS
    }


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.005)


def test_strangers_fill_no_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Callers without a certificate are counted; a line a minute and reason tells of them, whoever
    they say they are."""
    wire = PeerWire(files(tmp_path, "n2"))
    stranger = ssl.create_default_context(cafile=str(tmp_path / "ca.pem"))
    monkeypatch.setattr(peer_server, "GREETINGS_AT_ONCE", 1000)

    async def main() -> None:
        async with pair(tmp_path, wires=(None, wire)) as (_, _, _, _, port):
            for _ in range(20):
                reader, writer = await asyncio.open_connection(
                    "127.0.0.1", port, ssl=stranger, server_hostname="n2"
                )
                with pytest.raises((EOFError, OSError)):
                    await reader.readexactly(1)
                writer.close()
            await until(lambda: count("")["missing"] >= 20)

    with capture_logs() as lines:
        uvloop.run(main())
    said = [
        line
        for line in lines
        if line["event"] == "peer connection failed by TLS" and line.get("cause") == "missing"
    ]
    assert len(said) == 1


def test_connection_errors_are_no_tls_failures() -> None:
    """A node that stops, or is not there, is no matter of certificates."""
    for error in (
        ConnectionResetError(),
        TimeoutError(),
        ssl.SSLEOFError(),
        ssl.SSLZeroReturnError(),
        EOFError(),
    ):
        assert tls_failure(error) is None
