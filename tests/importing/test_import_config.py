"""Importing into the directories that configurations of `ledgermq serve` name: together or one by
one, the logs are the same bytes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from ledgermq.cli import run
from ledgermq.node.process.local import ports_from_base
from tests.importing.store_root import StoreRoot

NODES = ("n1", "n2", "n3")


def configured(directory: Path, node: str, **group: Any) -> str:
    """A configuration file of one node; its data lie beside it."""
    directory.mkdir(exist_ok=True)
    addresses = {
        name: at.model_dump() for name, at in zip(NODES, ports_from_base(3, 20_000), strict=True)
    }
    groups = [
        {"name": "orders-group", "replicas": list(NODES), "data_file_bytes": 128 << 10, **group}
    ]
    cluster = {
        "id": "8d3f2a10-5c44-5e0b-9f61-0d2b7f3c9a55",
        "created_ms": 1_790_000_000_000,
        "secret_file": "secret",
        "groups": groups,
    }
    path = directory / f"{node}.yaml"
    path.write_text(
        yaml.safe_dump(
            {"node": node, "data": str(directory / node), "nodes": addresses, "cluster": cluster}
        )
    )
    return str(path)


def store(path: Path) -> str:
    root = StoreRoot(path)
    root.begin_queue("orders", 0, 77)
    for number in range(40):
        root.send("orders", b"x" * 100, number % 2, properties={"UNIQ_KEY": f"U{number}"})
    return str(root.write())


def log_of(node: Path) -> bytes:
    return b"".join(
        path.read_bytes()
        for path in sorted((node / f"orders-group/dledger-{node.name}/data").iterdir())
    )


def test_together_or_one_by_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Three directories at once; and on another machine only the third one: its log and its
    quorum's journal are those of the first run."""
    source = store(tmp_path / "store")
    files = [configured(tmp_path / "all", node) for node in NODES]
    assert (
        run(
            [
                "import",
                "--from",
                source,
                *(part for file in files for part in ("--config", file)),
                "--json",
            ]
        )
        == 0
    )
    assert json.loads(capsys.readouterr().out)["audit"] == "PASS"
    assert run(["import", "--from", source, "--config", configured(tmp_path / "one", "n3")]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "import: PASS"
    logs = {log_of(tmp_path / "all" / node) for node in NODES} | {log_of(tmp_path / "one/n3")}
    assert len(logs) == 1 and any(logs.pop())
    journals = {
        (directory / "controller/journal").read_bytes()
        for directory in (tmp_path / "all/n1", tmp_path / "one/n3")
    }
    assert len(journals) == 1
    assert sorted(path.name for path in (tmp_path / "one").iterdir()) == ["n3", "n3.yaml"]


def test_configurations_that_do_not_fit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Another cluster's, one node twice, a group that is not there, an HA group, both ways at once:
    each is refused in a sentence."""
    source = store(tmp_path / "store")
    one, other = (
        configured(tmp_path / "a", "n1"),
        configured(tmp_path / "b", "n2", data_file_bytes=256 << 10),
    )
    ha = configured(tmp_path / "c", "n1", replication="ha")
    cases = {
        "configure different clusters": ["--config", one, "--config", other],
        "name the same node": ["--config", one, "--config", one],
        "choose one of them with --group": ["--config", one, "--group", "g9"],
        "is an HA group": ["--config", ha],
        "'rmq_sys_x' is reserved": ["--config", configured(tmp_path / "e", "n1", name="rmq_sys_x")],
    }
    for words, arguments in cases.items():
        assert run(["import", "--from", source, *arguments]) == 4
        assert words in capsys.readouterr().err
    for arguments in (["--config", one, "--data", str(tmp_path / "d")], []):
        assert run(["import", "--from", source, *arguments]) == 64
        assert capsys.readouterr().err.splitlines()[-1].startswith("error: ")
    assert not [path for path in tmp_path.rglob("*") if path.name.endswith(".importing")]
