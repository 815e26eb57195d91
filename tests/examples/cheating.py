"""An operator who cheats, on a real cluster: what `docs/proof.md` is tried against. Written from
docs/format.md, without code of nodes."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import struct
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import crc32c
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from ledgermq.client.proofs import Proof
from ledgermq.node.process.local import LocalCluster
from ledgermq.proto.json_checksum import opened, sealed
from ledgermq.proto.proofs.signed_notes import ED25519, Checkpoint, Note, VerifierKey, sign
from tests.audit.fuzz.rewriting import slot
from tests.client.fake_log_tree import log_of, proof_fields
from tests.cluster import create_topic, full_files_sealed, wait_for
from tests.e2e.command_line import CommandLine
from tests.proto.naive_tree import naive_root

FILE_BYTES = 64 << 10
"""The smallest log file that tests use."""
BODY = 600
CHUNK = 1 << 20


def entries_of(space: bytes) -> Iterator[tuple[int, int, int]]:
    """Position, size and index of every entry."""
    at = 0
    while at + 48 < len(space):
        magic, size, index = struct.unpack_from(">iiq", space, at)
        if magic == 1:
            yield at, size, index
        elif magic != -1:
            return
        at += size


def rewrite(root: Path, index: int) -> None:
    """Alter the body of one entry in the directory of a stopped replica, and make right all that
    follows from it: CRCs, chain, the digests and roots in later seals, the synced mark. What is
    derived from the log goes; the node makes it again."""
    (log,) = root.glob("dledger-*")
    files = sorted((log / "data").iterdir())
    log_id = json.loads((root / "identity.json").read_bytes())["log_id"].encode()
    space = bytearray(b"".join(path.read_bytes() for path in files))
    chain, last = crc32c.crc32c(log_id), (0, 0, 0, 0)
    for at, size, number in list(entries_of(space)):
        length = struct.unpack_from(">i", space, at + 132)[0]
        body = bytes(space[at + 136 : at + 136 + length])
        if number == index:
            space[at + 136 + length - 1] ^= 1
        elif body.startswith(b"{") and b'"sha256"' in body and b'"replicas"' in body:
            space[at + 136 : at + 136 + length] = resealed(body, space)
        struct.pack_into(
            ">i", space, at + 56, zlib.crc32(space[at + 136 : at + 136 + length]) & 0x7FFFFFFF
        )
        body_crc = crc32c.crc32c(bytes(space[at + 48 : at + size]))
        chain = crc32c.crc32c(bytes(space[at : at + 36]) + struct.pack(">I", body_crc), chain)
        struct.pack_into(">II", space, at + 36, chain, body_crc)
        last = struct.unpack_from(">q", space, at + 16)[0], number, at + size, chain
    for path in files:
        path.write_bytes(space[int(path.name) : int(path.name) + FILE_BYTES])
    (log / "syncedmark").write_bytes(slot(b"LMSM", log_id + struct.pack(">iqqqI", 0, *last)))
    for path in (*root.glob("state/snapshot*"), *root.glob("state/digests"), *root.glob("index/*")):
        path.unlink()


def resealed(body: bytes, space: bytes) -> bytes:
    """The body of a seal with the digest and the root that its file has now."""
    base = json.loads(body)["base"]
    file = bytes(space[base : base + FILE_BYTES])
    digest = hashlib.sha256(
        b"".join(
            hashlib.sha256(file[at : at + CHUNK]).digest() for at in range(0, len(file), CHUNK)
        )
    ).hexdigest()
    root = naive_root(
        [hashlib.sha256(b"\0" + file[at : at + size]).digest() for at, size, _ in entries_of(file)]
    ).hex()
    body = re.sub(rb'("sha256":\s*")[0-9a-f]{64}', rb"\g<1>" + digest.encode(), body)
    return re.sub(rb'("root":\s*")[0-9a-f]{64}', rb"\g<1>" + root.encode(), body)


@dataclass
class Operator:
    """The operator of a cluster. `work` is the directory of the sceptic, `copies` that of the
    operator."""

    cluster: LocalCluster
    work: Path
    copies: Path
    sent: int = 0

    @property
    def cli(self) -> CommandLine:
        return CommandLine.of(self.cluster)

    def send(self, count: int, receipts: Path) -> None:
        """Messages of a producer that keeps its receipts."""
        rows = (
            json.dumps({"body": f"order {self.sent + row} ".ljust(BODY, ".")})
            for row in range(count)
        )
        self.cli.ok(
            "send",
            "--topic",
            "orders",
            "--file",
            "-",
            "--receipts",
            receipts,
            stdin="\n".join(rows).encode(),
        )
        self.sent += count

    def sizes(self) -> set[int]:
        """The numbers of sealed files that the nodes show."""
        shown = [self.cli.run("checkpoint", "show", "--broker-group", "g1").out.splitlines()]
        return {
            int(lines[1])
            for lines in shown
            if len(lines) > 1
            and sum(line.startswith("\u2014") for line in lines) == len(self.cluster.nodes)
        }

    def settle(self) -> None:
        """Wait until every full file is sealed, and all nodes show the same tree."""
        wait_for(
            lambda: full_files_sealed(self.cluster) and self.sizes(),
            90,
            "the seals of all full files",
        )

    def stop(self) -> None:
        codes = self.cluster.stop()
        assert set(codes.values()) == {0}, codes

    def start(self) -> None:
        self.cluster.start_all()
        self.cluster.wait_ready()
        self.settle()

    def keep(self, name: str) -> None:
        for node in self.cluster.nodes:
            shutil.copytree(self.cluster.data(node), self.copies / name / node)

    def put_back(self, name: str, *nodes: str) -> None:
        for node in nodes or self.cluster.nodes:
            shutil.rmtree(self.cluster.data(node))
            shutil.copytree(self.copies / name / node, self.cluster.data(node))

    def rewrite(self, index: int) -> None:
        for node in self.cluster.nodes:
            rewrite(self.cluster.data(node) / "g1", index)

    # What the operator does before the reader runs the blocks of a section

    def is_honest(self) -> None:
        create_topic(self.cluster, "orders")
        self.send(300, self.work / "receipts.parquet")
        self.settle()
        told = lambda: self.cli.ok("checkpoint", "keys").out.splitlines()  # noqa: E731
        keys = lambda: (  # noqa: E731
            sum(not line.startswith("replicas ") for line in told()) == len(self.cluster.nodes)
        )
        wait_for(keys, 60, "the keys of all nodes")

    def goes_on(self) -> None:
        """More messages come. A copy of the directories from before stays with the operator."""
        self.stop()
        self.keep("monday")
        self.start()
        self.send(300, self.copies / "tuesday.parquet")
        self.settle()

    def rewrites(self) -> None:
        """The message of the first receipt, in the first file."""
        self.stop()
        self.keep("honest")
        self.rewrite(self.first_index(self.work / "receipts.parquet"))
        self.start()

    def shows_two_histories(self) -> None:
        """A copy in which a message that came after monday differs."""
        self.stop()
        self.put_back("honest")
        self.rewrite(self.first_index(self.copies / "tuesday.parquet") + 100)
        self.start()

    def withholds(self) -> None:
        """The honest log again. Messages are acknowledged, no file is sealed any more, and two
        hours pass, as the witness reckons."""
        self.stop()
        self.put_back("honest")
        self.start()
        self.send(1, self.work / "newest.parquet")
        path = self.work / "witness/groups/g1/nodes.json"
        value = opened(json.loads(path.read_text()))
        value["newest"]["since"] -= 7_200
        path.write_text(json.dumps(sealed(value)))

    def rolls_back(self) -> None:
        """One node has monday's directory again, and its peers are down, so that it cannot catch
        up."""
        self.stop()
        self.put_back("monday", "n3")
        self.cluster.start("n3")
        wait_for(lambda: self.cli.run("status").out, 60, "an answer of n3")

    def loses_a_key(self) -> None:
        """The thief of one node's key signs a log of his own in its name."""
        value = json.loads((self.cluster.data("n1") / "checkpoint-key.json").read_bytes())
        private = Ed25519PrivateKey.from_private_bytes(bytes.fromhex(value["private"]))
        key = VerifierKey(
            f"n1.{value['cluster_id']}", ED25519, private.public_key().public_bytes_raw()
        )
        honest = Proof.parse((self.work / "order.proof").read_text())
        forged = log_of(9)
        checkpoint = replace(forged.checkpoint(9), log=Checkpoint.parse(honest.checkpoint.text).log)
        note = Note(checkpoint.text(), (sign(checkpoint.text(), key, private.sign),))
        (self.work / "forged.proof").write_text(
            Proof(**proof_fields(forged, 13, 9), checkpoint=note).to_json()
        )

    def first_index(self, receipts: Path) -> int:
        import pyarrow.parquet as pq

        return int(pq.read_table(receipts).to_pylist()[0]["first_index"])


SECTIONS: Mapping[str, Callable[[Operator], None]] = {
    "Before you need it": Operator.is_honest,
    "A message is in the log": Operator.goes_on,
    "The operator rewrites a message": Operator.rewrites,
    "The operator shows two histories": Operator.shows_two_histories,
    "The operator withholds the tail": Operator.withholds,
    "The operator rolls a replica back": Operator.rolls_back,
    "A node's key is stolen": Operator.loses_a_key,
}
"""Heading of the page → what the operator does before the reader runs its blocks."""
