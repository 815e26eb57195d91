"""Checkpoints and proofs of a running cluster: what a node answers is checked with the pure
modules, not believed."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from ledgermq.client.api.admin import Admin
from ledgermq.client.api.admin_requests import ask
from ledgermq.client.api.connection import Connection
from ledgermq.client.errors import Refused
from ledgermq.client.proofs.ed25519 import verified as verifier
from ledgermq.client.proofs.proof_fetching import checkpoint_of, consistency
from ledgermq.node.process.local import LocalCluster
from ledgermq.proto import admin_pb2 as pb
from ledgermq.proto.levels import LEVEL_MAX
from ledgermq.proto.proofs.log_tree import FileLeaf, check_consistency, leaf_hash, root_of_inclusion
from ledgermq.proto.proofs.signed_notes import Checkpoint, VerifierKey, parse_note, verify
from tests.cluster import create_topic, full_files, full_files_sealed, running, wait_for
from tests.e2e.audit.test_e2e_repair import passes
from tests.e2e.command_line import CommandLine
from tests.e2e.test_e2e_backup import wait_until_noted

pytestmark = pytest.mark.slow

FILE_BYTES = 64 << 10
TRIMMING = {
    "retention": {"hours": 0.0003, "follower_hours": 0.0003, "check_ms": 200, "reserve_bytes": 0}
}


def fill(cli: CommandLine, cluster: LocalCluster, first: int, count: int) -> None:
    """Send enough for some files of the log, and wait until they are sealed."""
    cli.send_lines(
        "t", [f"{number:06d}".ljust(2000, ".") for number in range(first, first + count)]
    )
    wait_for(lambda: full_files_sealed(cluster), 60, "the seals of the full log files")


def checked(connection: Connection, node: str, keys: list[VerifierKey]) -> Checkpoint:
    """The checkpoint of a node, signed by this node."""
    note = parse_note(checkpoint_of(connection, "g1", node))
    assert [found.key.name.split(".")[0] for found in verify(note, keys, verifier)] == [node]
    return Checkpoint.parse(note.text)


def proven(
    connection: Connection, index: int, keys: list[VerifierKey]
) -> tuple[pb.ProveEntryResponse, Checkpoint]:
    found = prove_entry(connection, index)
    leaf = FileLeaf(
        found.leaf.base,
        found.leaf.first_index,
        found.leaf.entries,
        found.leaf.end_pos,
        found.leaf.entries_root,
    )
    assert int.from_bytes(found.entry[8:16], "big") == index
    number = index - leaf.first
    assert (
        root_of_inclusion(leaf_hash(found.entry), number, leaf.entries, list(found.entry_path))
        == leaf.root
    )
    note = parse_note(found.note)
    checkpoint = Checkpoint.parse(note.text)
    assert len(verify(note, keys, verifier)) == 1
    assert (
        root_of_inclusion(leaf.hash(), found.file_number, checkpoint.size, list(found.log_path))
        == checkpoint.root
    )
    return found, checkpoint


def prove_entry(connection: Connection, index: int) -> pb.ProveEntryResponse:
    request = pb.ProveEntryRequest(broker_group="g1", index=index)
    return ask(connection, request, pb.ProveEntryResponse)


def keys_of(connection: Connection) -> tuple[list[VerifierKey], list[VerifierKey]]:
    """The keys in use, and the retired ones."""
    found = ask(connection, pb.ListCheckpointKeysRequest(), pb.ListCheckpointKeysResponse).keys
    used, retired = (
        [VerifierKey.parse(key.verifier_key) for key in found if key.retired is which]
        for which in (False, True)
    )
    return used, retired


def test_a_new_cluster_proves_its_log_and_its_growth(tmp_path: Path) -> None:
    """From the first file on, on every node alike; after a restart; with a lost key; and behind a
    trim."""
    with running(tmp_path, log_file_bytes=FILE_BYTES) as cluster:
        cli = CommandLine.of(cluster)
        create_topic(cluster, "t", queues=1)
        fill(cli, cluster, 0, 130)
        status = cli.ok("upgrade", "status", "--json").json
        assert status["level"] == LEVEL_MAX and [
            group["level"] for group in status["broker_groups"]
        ] == [LEVEL_MAX]
        with Connection(cluster.endpoints, timeout_s=30) as connection:
            wait_for(lambda: len(keys_of(connection)[0]) == 3, 30, "the keys of all nodes")
            keys, _ = keys_of(connection)
            wait_for(
                lambda: len({checked(connection, node, keys) for node in cluster.nodes}) == 1,
                30,
                "the same checkpoint on all nodes",
            )
            old = checked(connection, "n1", keys)
            assert old.size >= 3 and old.log.broker_group == "g1"
            first, checkpoint = proven(connection, 0, keys)
            assert (first.file_number, first.leaf.base, first.leaf.first_index) == (
                0,
                0,
                0,
            ) and checkpoint.size >= old.size
            for index in (
                1,
                int(first.leaf.entries) - 1,
                int(first.leaf.entries),
                int(first.leaf.entries) + 7,
            ):
                proven(connection, index, keys)
            with pytest.raises(Refused, match="is not in the log of this node"):
                prove_entry(connection, 10**9)
            with pytest.raises(Refused, match="is in no sealed log file yet"):
                prove_entry(
                    connection, int(Admin(connection).status().groups[0].commit_index or 0) - 1
                )
            file = cluster.data("n1") / "checkpoint-key.json"
            assert stat.S_IMODE(file.stat().st_mode) == 0o600
            assert cluster.terminate("n1") == 0
            file.unlink()
            cluster.start("n1")
            assert cli.ok("status", "--wait", "40s", "--strict")
            fill(cli, cluster, 130, 100)
            wait_for(lambda: len(keys_of(connection)[1]) == 1, 30, "the retired key of n1")
            used, retired = keys_of(connection)
            assert {key.name for key in retired} < {key.name for key in used} and set(
                used + retired
            ) > set(keys)
            new = checked(connection, "n1", used)
            assert new.size > old.size
            path = list(consistency(connection, "g1", old.size, new.size))
            check_consistency(old.size, old.root, new.size, new.root, path)
    passes(cli, cluster)


def test_a_trimmed_log_keeps_its_tree(tmp_path: Path) -> None:
    """Trimmed entries cannot be proven any more, what is left can, and the tree still continues the
    one from before; so does that of a replica which was installed from a peer's snapshot."""
    with running(tmp_path, log_file_bytes=FILE_BYTES, extra=TRIMMING) as cluster:
        cli = CommandLine.of(cluster)
        create_topic(cluster, "t", queues=1)
        with Connection(cluster.endpoints, timeout_s=30) as connection:
            cli.send_lines("t", [f"{number:06d}".ljust(2000, ".") for number in range(130)])
            wait_for(lambda: len(keys_of(connection)[0]) == 3, 30, "the keys of all nodes")
            keys, _ = keys_of(connection)
            node = next(
                name
                for name in cluster.nodes
                if name != Admin(connection).status().groups[0].leader
            )

            def grown() -> bool:
                try:
                    return checked(connection, node, keys).size >= 3
                except Refused:
                    return False

            wait_for(grown, 60, "a tree of three files")
            old = checked(connection, node, keys)
            assert cluster.terminate(node) == 0
            cli.send_lines("t", [f"{number:06d}".ljust(2000, ".") for number in range(130, 400)])
            other = next(name for name in cluster.nodes if name != node)
            folder = cluster.data(other) / "g1" / f"dledger-{other}" / "data"
            wait_for(
                lambda: min(folder.glob("0*")).name > f"{old.size * FILE_BYTES:020d}",
                90,
                "a trim beyond the stopped node",
            )
            cluster.start(node)
            assert cli.ok("status", "--wait", "60s", "--strict")
            wait_for(
                lambda: len({checked(connection, name, keys) for name in cluster.nodes}) == 1,
                60,
                "the same checkpoint on all nodes",
            )
            new = checked(connection, node, keys)
            check_consistency(
                old.size,
                old.root,
                new.size,
                new.root,
                list(consistency(connection, "g1", old.size, new.size)),
            )
            with pytest.raises(Refused, match="entry 0 was trimmed"):
                prove_entry(connection, 0)
            wait_for(lambda: full_files_sealed(cluster), 60, "the seals of the full log files")
    passes(cli, cluster)


@pytest.mark.verify
@pytest.mark.parametrize(
    "own", [True, False], ids=["each from its own backup", "all from one backup of a trimmed log"]
)
def test_a_restored_cluster_continues_the_tree(tmp_path: Path, own: bool) -> None:
    """A checkpoint from before the backup is a beginning of the restored log, which proves its
    entries and grows."""
    with running(tmp_path, log_file_bytes=FILE_BYTES, extra={} if own else TRIMMING) as cluster:
        cli = CommandLine.of(cluster)
        create_topic(cluster, "t", queues=1)
        fill(cli, cluster, 0, 130)
        with Connection(cluster.endpoints, timeout_s=30) as connection:
            wait_for(lambda: len(keys_of(connection)[0]) == 3, 30, "the keys of all nodes")
            keys, _ = keys_of(connection)
            wait_for(
                lambda: len({checked(connection, node, keys) for node in cluster.nodes}) == 1,
                30,
                "the same checkpoint on all nodes",
            )
            old = checked(connection, "n1", keys)
        if not own:
            folder = cluster.data("n1") / "g1/dledger-n1/data"
            wait_for(lambda: not (folder / f"{0:020d}").exists(), 60, "the first trim")
        wait_until_noted(cluster)
        backups = {node: tmp_path / f"backup-{node}" for node in (cluster.nodes if own else ["n1"])}
        for node, backup in backups.items():
            cli.ok("backup", "--data", cluster.data(node), "--to", backup)
        assert set(cluster.stop().values()) <= {0}
        (tmp_path / "lost").mkdir()
        for node in cluster.nodes:
            cluster.data(node).rename(tmp_path / "lost" / node)
            cli.ok(
                "restore",
                "--from",
                backups.get(node, backups["n1"]),
                "--data",
                cluster.data(node),
                "--node",
                node,
            )
        cluster.settings = ["retention.hours=72", "retention.follower_hours=72"]
        cluster.start_all()
        cluster.wait_ready()
        cli.send_lines("t", [f"{number:06d}".ljust(2000, ".") for number in range(130, 230)])
        full = full_files(cluster, "n1")[-1]
        with Connection(cluster.endpoints, timeout_s=30) as connection:
            # The quorum was restored with the keys of the lost directories.
            lost = set(keys)
            wait_for(
                lambda: len({*keys_of(connection)[0]} - lost) == 3, 30, "the new keys of all nodes"
            )
            keys, _ = keys_of(connection)

            def sealed() -> bool:
                """Every full file is in the tree of every node: `full_files_sealed` knows the seals
                of this life alone."""
                return {checked(connection, node, keys).size for node in cluster.nodes} == {
                    full // FILE_BYTES + 1
                }

            wait_for(sealed, 60, "the same tree of all full files on all nodes")
            new = checked(connection, "n2", keys)
            assert new.size > old.size and new.log == old.log
            check_consistency(
                old.size,
                old.root,
                new.size,
                new.root,
                list(consistency(connection, "g1", old.size, new.size)),
            )
            proven(connection, 150, keys)
    passes(cli, cluster)
