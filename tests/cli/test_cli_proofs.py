"""`ledgermq prove`, `verify-proof` and `checkpoint` against a fake cluster: what they write and
print, and their exit statuses."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ledgermq.client.proofs import Proof, TrustedKeys
from ledgermq.proto import admin_pb2 as pb
from ledgermq.proto.proofs.receipts import row_of
from ledgermq.proto.proofs.signed_notes import Checkpoint, format_note, parse_note
from tests.client.fake_cluster import FakeNode, admin_status
from tests.client.fake_log_tree import FakeTreeCluster, cluster_of, key_file, log_of, signed
from tests.client.test_client_proofs import FILES, HONEST, receipt

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def cluster(node: FakeNode) -> FakeTreeCluster:
    return cluster_of(node, HONEST)


@pytest.fixture
def keys(tmp_path: Path) -> str:
    (tmp_path / "keys").write_text(key_file())
    return str(tmp_path / "keys")


def kept(tmp_path: Path, size: int, log: Any = HONEST, *nodes: str) -> str:
    path = tmp_path / f"{size}.checkpoint"
    path.write_text(format_note(signed(log.checkpoint(size), *nodes)))
    return str(path)


def test_prove_and_verify(
    cluster: FakeTreeCluster, ledgermq: Run, keys: str, tmp_path: Path
) -> None:
    proof, old = str(tmp_path / "p"), kept(tmp_path, 5)
    code, out, _ = ledgermq(
        "prove", "--broker-group", "g1", "--index", "13", "--since", old, "--to", proof
    )
    assert (code, out) == (
        0,
        f"wrote {proof}: entry 13 of ledgermq/7d444840/g1/19c2e7d0, signed by n1, n2, n3\n",
    )
    (tmp_path / "body").write_bytes(b"body 3.1")
    arguments = (
        "verify-proof",
        proof,
        "--keys",
        keys,
        "--since",
        old,
        "--id",
        "id-13",
        "--body",
        str(tmp_path / "body"),
    )
    code, out, _ = ledgermq(*arguments)
    assert (code, out) == (
        0,
        (
            "PROVEN: message id-13 is entry 13 of ledgermq/7d444840/g1/19c2e7d0\ntopic orders,"
            " queue 1 of g1, offset 6\nbody of 8 bytes, SHA-256"
            " 26906ec0908fd4d1551aff67c55832a797d862e659791f653fdd2f01416749ed, stored"
            " 2023-11-14T22:13:20Z\nfile 4 of 7 in the tree, signed by n1.7d444840, n2.7d444840,"
            " n3.7d444840\nthe log continues the older checkpoint of 5 files\n"
        ),
    )
    found = json.loads(ledgermq(*arguments, "--json")[1])
    assert (found["result"], found["index"], found["size"], found["since_size"]) == (
        "proven",
        13,
        FILES,
        5,
    )


def test_prove_by_id_and_by_place(
    cluster: FakeTreeCluster, node: FakeNode, ledgermq: Run, tmp_path: Path
) -> None:
    message = pb.PeekedMessage(
        message_id="id-13",
        topic=pb.Name(name="orders"),
        queue=1,
        offset=6,
        broker_group="g1",
        group_queue=1,
    )
    node.answers("Query", pb.QueryResponse(status=admin_status(), messages=[message]))
    node.answers("Peek", pb.PeekResponse(status=admin_status(), messages=[message]))
    copies = [pb.ReplicaCopy(node="n1"), pb.ReplicaCopy(node="n2", state="present", index=13)]
    node.answers("MessageDetail", pb.MessageDetailResponse(status=admin_status(), copies=copies))
    for number, named in enumerate((("--id", "id-13"), ("--queue", "1", "--offset", "6"))):
        path = tmp_path / str(number)
        assert ledgermq("prove", "--topic", "orders", *named, "--to", str(path))[0] == 0
        assert b"id-13" in Proof.parse(path.read_text()).entry
    node.answers("Query", pb.QueryResponse(status=admin_status()))
    code, _, err = ledgermq(
        "prove", "--topic", "orders", "--id", "id-99", "--to", str(tmp_path / "x")
    )
    assert code == 4 and "topic orders has no message with the id id-99" in err
    code, _, err = ledgermq(
        "prove", "--topic", "orders", "--queue", "1", "--offset", "7", "--to", str(tmp_path / "x")
    )
    assert code == 4 and "no message at offset 7 of queue 1" in err


def test_prove_a_message_of_a_receipt(
    cluster: FakeTreeCluster, ledgermq: Run, keys: str, tmp_path: Path
) -> None:
    """The receipt that a producer kept is enough, and the proof can be held against it offline."""
    row = row_of(receipt())
    path, proof = tmp_path / "receipts.jsonl", str(tmp_path / "p")
    path.write_text("{}\n" + json.dumps({**row, "mac": row["mac"].hex()}) + "\n")
    of_row = ("--receipt", str(path), "--row", "2")
    assert ledgermq("prove", *of_row, "--message", "2", "--to", proof)[0] == 0
    assert ledgermq("verify-proof", proof, "--keys", keys, *of_row)[0] == 0
    assert ledgermq("prove", *of_row, "--message", "4", "--to", str(tmp_path / "x"))[0] == 64
    assert (
        ledgermq("prove", "--receipt", str(path), "--row", "3", "--to", str(tmp_path / "x"))[0]
        == 64
    )
    assert ledgermq("prove", "--receipt", str(path), "--to", str(tmp_path / "x"))[0] == 65
    path.write_text(json.dumps({**row, "log_id": "another", "mac": ""}) + "\n")
    code, _, err = ledgermq("prove", "--receipt", str(path), "--to", str(tmp_path / "x"))
    assert code == 1 and "the group has the log 19c2e7d0 now" in err
    assert ledgermq("verify-proof", proof, "--keys", keys, "--receipt", str(path))[0] == 1


@pytest.mark.parametrize(
    "options",
    [
        (),
        ("--topic", "t"),
        ("--topic", "t", "--id", "x", "--index", "1"),
        ("--topic", "t", "--queue", "1"),
        ("--index", "1"),
        ("--broker-group", "g1", "--index", "1", "--topic", "t"),
    ],
)
def test_options_that_name_no_message(
    cluster: FakeTreeCluster, ledgermq: Run, tmp_path: Path, options: tuple[str, ...]
) -> None:
    code, _, err = ledgermq("prove", *options, "--to", str(tmp_path / "p"))
    assert code == 64 and "do not name one message" in err


def test_a_proof_never_overwrites_a_file(
    cluster: FakeTreeCluster, ledgermq: Run, tmp_path: Path
) -> None:
    path = tmp_path / "p"
    path.write_text("mine")
    code, _, err = ledgermq("prove", "--broker-group", "g1", "--index", "13", "--to", str(path))
    assert (code, path.read_text()) == (64, "mine") and "exists" in err
    assert (
        ledgermq(
            "prove", "--broker-group", "g1", "--index", "13", "--to", str(tmp_path / "no" / "p")
        )[0]
        == 64
    )


def test_exit_statuses_of_verify_proof(
    cluster: FakeTreeCluster, ledgermq: Run, keys: str, tmp_path: Path
) -> None:
    """1 something is false, 2 nothing is false but not proven, 64 a file cannot be opened, 65 a
    file is something else."""
    proof = tmp_path / "p"
    assert ledgermq("prove", "--broker-group", "g1", "--index", "13", "--to", str(proof))[0] == 0
    check = ("verify-proof", str(proof), "--keys", keys)
    assert ledgermq(*check)[0] == 0
    assert ledgermq(*check, "--id", "id-12")[0] == 1
    (tmp_path / "body").write_bytes(b"another")
    assert ledgermq(*check, "--body", str(tmp_path / "body"))[0] == 1
    assert ledgermq(*check, "--since", kept(tmp_path, 5))[0] == 2
    (tmp_path / "few").write_text(key_file("n8", "n9"))
    code, _, err = ledgermq("verify-proof", str(proof), "--keys", str(tmp_path / "few"))
    assert code == 2 and "signed by no known node" in err
    assert ledgermq("verify-proof", str(tmp_path / "missing"), "--keys", keys)[0] == 64
    assert ledgermq(*check, "--quorum", "4")[0] == 64
    for text in ("", "{}", "\0", proof.read_text() + "x"):
        (tmp_path / "bad").write_text(text)
        assert ledgermq("verify-proof", str(tmp_path / "bad"), "--keys", keys)[0] == 65
        assert ledgermq(*check, "--since", str(tmp_path / "bad"))[0] == 65
    (tmp_path / "bad").write_bytes(b"\xff")
    assert ledgermq("verify-proof", str(proof), "--keys", str(tmp_path / "bad"))[0] == 65


def test_checkpoints_and_keys(
    cluster: FakeTreeCluster, ledgermq: Run, keys: str, tmp_path: Path
) -> None:
    code, out, _ = ledgermq("checkpoint", "keys")
    assert (
        code == 0
        and out.splitlines()[:3] == key_file().splitlines()[1:]
        and out.splitlines()[3].startswith("# retired: old.")
    )
    assert out.splitlines()[4:] == ["replicas 7d444840/g1 n1 n2 n3"]
    assert TrustedKeys.parse(out).replicas == {("7d444840", "g1"): frozenset({"n1", "n2", "n3"})}
    assert json.loads(ledgermq("checkpoint", "keys", "--json")[1].splitlines()[0])[
        "broker_groups"
    ] == ["g1"]
    assert [
        json.loads(line)["retired"]
        for line in ledgermq("checkpoint", "keys", "--json")[1].splitlines()
    ] == [False, False, False, True]
    code, out, _ = ledgermq("checkpoint", "show", "--broker-group", "g1")
    assert code == 0 and Checkpoint.parse(parse_note(out).text) == HONEST.checkpoint(FILES)
    show = ("checkpoint", "show", "--broker-group", "g1", "--keys", keys)
    assert ledgermq(*show, "--since", kept(tmp_path, 5), "--to", str(tmp_path / "today"))[0] == 0
    assert parse_note((tmp_path / "today").read_text()).text == HONEST.checkpoint(FILES).text()
    assert (
        ledgermq("checkpoint", "show", "--broker-group", "g1", "--since", kept(tmp_path, 5))[0]
        == 64
    )
    assert ledgermq("checkpoint", "show", "--broker-group", "g9")[0] == 4


def test_a_checkpoint_that_does_not_continue_the_kept_one(
    cluster: FakeTreeCluster, ledgermq: Run, keys: str, tmp_path: Path
) -> None:
    """A rewritten file, a rolled-back log, a node of its own opinion."""
    show = ("checkpoint", "show", "--broker-group", "g1", "--keys", keys)
    for replica in cluster.replicas.values():
        replica.log = log_of(FILES, changed=(2,))
    code, _, err = ledgermq(*show, "--since", kept(tmp_path, 5))
    assert code == 1 and "leads to another root" in err
    code, _, err = ledgermq(*show, "--since", kept(tmp_path, 9, log_of(9)))
    assert code == 1 and "withheld, or it was rolled back" in err
    cluster.replicas["n2"].log = HONEST
    code, _, err = ledgermq("checkpoint", "show", "--broker-group", "g1")
    assert code == 1 and "FORK: n1 and n2 show different trees of 7 files" in err


def test_witness(cluster: FakeTreeCluster, ledgermq: Run, keys: str, tmp_path: Path) -> None:
    """Rounds for cron: 0 while everything continues, 2 while a node does not answer, 1 with
    evidence after a fork, 3 without a cluster."""
    once = (
        "witness",
        "--dir",
        str(tmp_path / "w"),
        "--keys",
        keys,
        "--name",
        "w",
        "--once",
        "--patience",
        "1ms",
        "--timeout",
        "1s",
    )
    for replica in cluster.replicas.values():
        replica.size = 5
    code, out, err = ledgermq(*once)
    assert (code, out, err) == (0, "ledgermq/7d444840/g1/19c2e7d0: 5 sealed files, cosigned\n", "")
    old = str(tmp_path / f"w/groups/g1/{5:020d}.checkpoint")
    proof = str(tmp_path / "p")
    assert (
        ledgermq("prove", "--broker-group", "g1", "--index", "13", "--since", old, "--to", proof)[0]
        == 0
    )
    (tmp_path / "keys").write_text(key_file() + (tmp_path / "w/key.pub").read_text())
    code, out, _ = ledgermq("verify-proof", proof, "--keys", keys, "--since", old)
    assert code == 0 and "continues the older checkpoint of 5 files" in out
    replica = cluster.replicas.pop("n3")
    cluster.replicas["n3"] = type(replica)(log_of(FILES, changed=(2,)), 6)
    code, _, err = ledgermq(*once)
    assert (
        code == 1
        and err.startswith(
            "FORK: g1: the tree of 6 files of node n3 contradicts the accepted one of 5"
        )
        and err.count("\n") == 1
    )
    place = Path(err.strip().rpartition("evidence: ")[2])
    assert sorted(path.name for path in place.iterdir()) == [
        "accepted.checkpoint",
        "paths.hex",
        "shown.checkpoint",
    ]
    assert (
        parse_note((place / "shown.checkpoint").read_text()).text
        == log_of(FILES, changed=(2,)).checkpoint(6).text()
    )
    cluster.replicas["n3"] = type(replica)(HONEST, 0)
    cluster.node.answers(
        "GetCheckpoint",
        lambda request: pb.GetCheckpointResponse(status=admin_status(42800, "no; start the node")),
    )
    code, _, err = ledgermq(*once)
    assert code == 2 and err.count("UNPROVEN: g1: node n") == 3
    cluster.node.stop()
    assert ledgermq(*once)[0] == 3


def test_a_witness_without_its_files(
    cluster: FakeTreeCluster, ledgermq: Run, keys: str, tmp_path: Path
) -> None:
    once = ("witness", "--dir", str(tmp_path / "w"), "--once", "--keys")
    assert ledgermq(*once, str(tmp_path / "missing"))[0] == 64
    (tmp_path / "bad").write_text("bad\n")
    assert ledgermq(*once, str(tmp_path / "bad"))[0] == 65
    assert ledgermq(*once, keys, "--name", "a name")[0] == 64
    (tmp_path / "w/key").write_text("PRIVATE+KEY+")
    assert ledgermq(*once, keys)[0] == 65
