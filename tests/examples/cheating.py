"""An operator who cheats, on a cluster of fake nodes that serve logs from memory: what `docs/proof.md` is tried against."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ledgermq.client.proofs import Proof
from ledgermq.proto import log_pb2
from ledgermq.proto.receipts import row_of
from tests.client.fake_log_tree import LOG, NODES, FakeLog, FakeReplica, FakeTreeCluster, log_of, proof_fields, signed

KEPT, SEEN, NOW = 5, 7, 9
"""Sealed files when the sceptic keeps a checkpoint, when the witness looks for the last time, and in all."""
MESSAGE = 13
"""The entry of which the sceptic has a receipt: in the fourth file."""


def receipt(log: FakeLog, index: int) -> log_pb2.Receipt:
    """The receipt of one message, as its producer keeps it."""
    offset = index // 2
    found = log_pb2.Receipt(cluster_id=LOG.cluster_id, broker_group=LOG.broker_group, log_id=LOG.log_id, topic="orders", count=1, term=1)
    found.first_index, found.store_ms, found.durability = index, 1_700_000_000_000 + index, log_pb2.DURABLE
    entries = [entry for file in log.files for entry in file]
    found.chain_crc = int.from_bytes(entries[index][36:40], "big") if index < len(entries) else 0
    found.ranges.add(queue=index % 2, first_offset=offset, count=1)
    found.key_id, found.mac = "k1", bytes(32)
    found.replicas.add(node="n1", durable_index=index)
    return found


def write_receipt(path: Path, found: log_pb2.Receipt) -> None:
    path.write_text(json.dumps({**row_of(found), "mac": found.mac.hex()}) + "\n")


@dataclass
class Operator:
    """The operator of a fake cluster; `work` is the directory of the sceptic."""

    cluster: FakeTreeCluster
    work: Path

    def shows(self, log: FakeLog, size: int, *nodes: str) -> None:
        for node in nodes or NODES:
            self.cluster.replicas[node] = FakeReplica(log, size)

    def is_honest(self) -> None:
        """The log when the page begins."""
        self.shows(log_of(NOW), KEPT)
        write_receipt(self.work / "receipts.jsonl", receipt(log_of(NOW), MESSAGE))
        write_receipt(self.work / "newest.jsonl", receipt(log_of(NOW), 10_000))

    def goes_on(self) -> None:
        """More messages come; the witness sees them on all nodes."""
        self.shows(log_of(NOW), SEEN)

    def rewrites(self) -> None:
        self.shows(log_of(NOW, changed=(3,)), NOW)

    def shows_two_histories(self) -> None:
        self.shows(log_of(NOW, changed=(5,)), NOW)

    def withholds(self) -> None:
        """Two hours pass, as the witness reckons."""
        self.shows(log_of(NOW), SEEN)
        self.cluster.commit_index += 5_000
        path = self.work / "witness/groups/g1/nodes.json"
        value = json.loads(path.read_text())
        value["newest"]["since"] -= 7_200
        path.write_text(json.dumps(value))

    def rolls_back(self) -> None:
        self.shows(log_of(NOW), SEEN)
        self.shows(log_of(NOW), 2, "n3")

    def loses_a_key(self) -> None:
        """The thief signs a log of his own in the name of one node."""
        forged = log_of(NOW, changed=(3,))
        proof = Proof(**proof_fields(forged, MESSAGE, NOW), checkpoint=signed(forged.checkpoint(NOW), "n1"))
        (self.work / "forged.proof").write_text(proof.to_json())


SECTIONS: dict[str, Callable[[Operator], None]] = {
    "Before you need it": Operator.is_honest,
    "A message is in the log": Operator.goes_on,
    "The operator rewrites a message": Operator.rewrites,
    "The operator shows two histories": Operator.shows_two_histories,
    "The operator withholds the tail": Operator.withholds,
    "The operator rolls a replica back": Operator.rolls_back,
    "A node's key is stolen": Operator.loses_a_key,
}
"""Heading of the page → what the operator does before the reader runs its blocks."""
