"""Comparing what witnesses kept with the logs: the checkpoints that they accepted against the trees
of the audited replicas.

A witness saw the log at a time when nobody knew what would be changed later. Its checkpoints are
evidence that no node can alter, so they find what all replicas have in common: a rewritten history,
and a tail that is gone. The trees are computed here, from docs/format.md, without the code of nodes
and clients.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ledgermq.audit.checks.group import GroupResult
from ledgermq.audit.checks.replica import Replica
from ledgermq.audit.reading.decode import NOT_JSON
from ledgermq.audit.rules import RULES, Finding, Flaw
from ledgermq.client.errors import ClusterError
from ledgermq.client.proofs import ed25519
from ledgermq.client.proofs.witness_files import accepted_of, groups_in, public_key
from ledgermq.proto.proofs.signed_notes import Checkpoint, verify

LEAF = struct.Struct(">8sQQQQ32s")
"""A leaf of the log tree: magic, base, first index, number of entries, end position, root."""
_HASH = 32


class BadWitness(ValueError):
    """A directory is not that of a witness, or is damaged."""


@dataclass(frozen=True, slots=True)
class Witnessed:
    """What one witness cosigned of each broker group, by size."""

    name: str
    directory: str
    groups: dict[str, dict[int, Checkpoint]]


def read_witness(directory: str) -> Witnessed:
    """The checkpoints that a witness cosigned. Raises BadWitness if a file is damaged, or a
    cosignature is false."""
    place = Path(directory)
    try:
        key = public_key(place)
        groups: dict[str, dict[int, Checkpoint]] = {}
        for group in groups_in(place):
            notes = accepted_of(place, group)
            groups[group] = {
                size: Checkpoint.parse(note.text)
                for size, note in notes.items()
                if verify(note, [key], ed25519.verified)
            }
    except (ClusterError, ValueError) as error:
        raise BadWitness(f"the witness {directory} cannot be used: {error}") from None
    return Witnessed(key.name, directory, groups)


def check_witnesses(result: GroupResult, witnesses: Sequence[Witnessed]) -> None:
    """Compare the tree of every replica with what the witnesses cosigned of its group."""
    trees = {one.name: leaves_of(one) for one in result.replicas}
    for witness in witnesses:
        cosigned = witness.groups.get(result.group, {})
        for one in result.replicas:
            _check_replica(result, one, trees[one.name], witness, cosigned)
        _check_length(result, trees, witness, cosigned)
    _check_each_other(result, witnesses)


def _check_replica(
    result: GroupResult,
    one: Replica,
    leaves: Sequence[bytes],
    witness: Witnessed,
    cosigned: dict[int, Checkpoint],
) -> None:
    """The smallest cosigned tree that is not the replica's."""
    same = 0
    for size, checkpoint in sorted(cosigned.items()):
        if checkpoint.log.log_id != one.log_id:
            proof = (
                f"{witness.name} cosigned a tree of {size} files of the log"
                f" {checkpoint.log.log_id}; the replica has the log {one.log_id}"
            )
            _tell(result, "witness.log", one, proof)
            return
        if size > len(leaves):
            return
        root = root_of(leaves[:size])
        if root != checkpoint.root:
            proof = (
                f"of the first {size} sealed files the root is {root.hex()[:16]}…, {witness.name}"
                f" cosigned {checkpoint.root.hex()[:16]}…"
            )
            _tell(result, "witness.fork", one, f"{proof}; up to {same} files they are the same")
            return
        same = size


def _check_length(
    result: GroupResult,
    trees: dict[str, list[bytes]],
    witness: Witnessed,
    cosigned: dict[int, Checkpoint],
) -> None:
    """Whether some replica has as many sealed files as the witness cosigned."""
    most = max(map(len, trees.values()), default=0)
    last = max(cosigned, default=0)
    if last <= most:
        return
    proof = (
        f"{witness.name} cosigned {last} sealed files, and no audited replica has more than {most}"
    )
    present = [one for one in result.replicas if one.name in result.proving]
    if len(present) < (result.majority if result.proven_by is None else 1):
        result.reasons.append(f"group {result.group}: {proof}; audit all replicas")
        return
    _tell(
        result, "witness.missing", max(result.replicas, key=lambda one: len(trees[one.name])), proof
    )


def _check_each_other(result: GroupResult, witnesses: Sequence[Witnessed]) -> None:
    """Whether two witnesses cosigned different trees of one size: the nodes showed a fork."""
    first: dict[int, tuple[Witnessed, Checkpoint]] = {}
    for witness in witnesses:
        for size, checkpoint in sorted(witness.groups.get(result.group, {}).items()):
            other, known = first.setdefault(size, (witness, checkpoint))
            if known != checkpoint and result.replicas:
                proof = f"{other.name} and {witness.name} cosigned different trees of {size} files"
                _tell(result, "witness.agree", result.replicas[0], proof)
                return


def _tell(result: GroupResult, rule: str, one: Replica, proof: str) -> None:
    file = f"{os.path.basename(one.root)}/{one.log_folder}"
    result.findings.append(
        Finding(
            RULES[rule].klass,
            one.name,
            result.group,
            Flaw(rule, file, index=None, byte_from=0, byte_to=0, proof=proof),
        )
    )


def leaves_of(one: Replica) -> list[bytes]:
    """The leaf hashes of a replica's log tree: those in its newest snapshot, and behind them the
    files that its log sealed since."""
    return tree_of(one)[0]


def tree_of(one: Replica) -> tuple[list[bytes], int]:
    """The leaf hashes as `leaves_of`, and the index of the first entry behind the last leaf."""
    records = [
        seal
        for _, body in sorted(record for report in one.reports for record in report.seals)
        if (seal := _seal(body)) is not None
    ]
    retained = (one.snapshot or {}).get("retained")
    stored = retained.get("tree") if isinstance(retained, dict) else None
    leaves: list[bytes] = []
    following = max((seal["last"] + 1 for seal in records if "tree" not in seal), default=0)
    if (
        isinstance(stored, dict)
        and isinstance(stored.get("leaves"), str)
        and isinstance(stored.get("next"), int)
    ):
        try:
            whole = base64.b64decode(stored["leaves"], validate=True)
        except ValueError:
            return [], 0
        leaves, following = (
            [whole[at : at + _HASH] for at in range(0, len(whole), _HASH)],
            stored["next"],
        )
    waiting = {seal["first"]: seal for seal in reversed(records) if "tree" in seal}
    while (seal := waiting.pop(following, None)) is not None:
        root = bytes.fromhex(seal["tree"]["root"])
        first, following = following, seal["last"] + 1
        leaf = LEAF.pack(b"LMQTREE1", seal["base"], first, following - first, seal["end"], root)
        leaves.append(hashlib.sha256(b"\0" + leaf).digest())
    return leaves, following


def _seal(body: str) -> dict[str, Any] | None:
    """The fields of a seal record; None for one that is damaged, which other checks report."""
    try:
        value = json.loads(body)
        root = bytes.fromhex(value["tree"]["root"]) if "tree" in value else bytes(_HASH)
        numbers = [value[name] for name in ("base", "first", "last", "end")]
        # A file has at least one entry.
        numbers.append(numbers[2] - numbers[1])
    except (*NOT_JSON, KeyError, TypeError):
        return None
    return (
        value
        if len(root) == _HASH
        and all(type(number) is int and 0 <= number < 1 << 63 for number in numbers)
        else None
    )


def root_of(leaves: Sequence[bytes]) -> bytes:
    """The root of RFC 6962's tree over these leaf hashes."""
    if len(leaves) < 2:
        return leaves[0] if leaves else hashlib.sha256().digest()
    split = 1 << ((len(leaves) - 1).bit_length() - 1)
    return hashlib.sha256(b"\1" + root_of(leaves[:split]) + root_of(leaves[split:])).digest()
