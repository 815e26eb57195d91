"""The keys that a verifier trusts, and how many of them must have signed.

A key file is text: one verifier key of C2SP on a line, of nodes (type 1) and of witnesses (type 4),
and lines `replicas CLUSTER/GROUP NODE…` that say which nodes hold a broker group. Empty lines, and
lines that begin with #, do not count. Whoever wrote the file decides whom to trust; a cluster's own
word (`ledgermq checkpoint keys`) is where to begin, once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from ledgermq.client.errors import BadArgument
from ledgermq.client.proofs import ed25519
from ledgermq.proto.proofs.signed_notes import (
    COSIGNATURE,
    ED25519,
    Checkpoint,
    LogName,
    Note,
    Verified,
    VerifierKey,
    verify,
)

_REPLICAS = "replicas"


@dataclass(frozen=True, slots=True)
class TrustedKeys:
    """Verifier keys, and how many nodes must have signed a checkpoint.

    `quorum`: the number that was asked for; None: a majority of the replicas of the broker group
    whose checkpoint it is. `replicas`: the nodes that hold a broker group, by (cluster, broker
    group). Of a group that is not named, all known nodes of its cluster count as replicas: that may
    ask for more signatures than there can be, and never for fewer than a majority of the known
    nodes.
    """

    keys: tuple[VerifierKey, ...]
    quorum: int | None = None
    replicas: Mapping[tuple[str, str], frozenset[str]] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        keys: Iterable[VerifierKey],
        quorum: int | None = None,
        replicas: Mapping[tuple[str, str], frozenset[str]] | None = None,
    ) -> TrustedKeys:
        """Trust these keys. By default a majority of a group's replicas must have signed. Raises
        BadArgument if `quorum` nodes cannot."""
        distinct = tuple(dict.fromkeys(keys))
        nodes = {key.name for key in distinct if key.kind == ED25519}
        if not nodes:
            raise BadArgument(
                "there is no key of a node among the trusted keys",
                "write one with: ledgermq checkpoint keys",
            )
        if quorum is not None and not 1 <= quorum <= len(nodes):
            raise BadArgument(
                f"{quorum} nodes cannot sign: there are keys of {len(nodes)}",
                f"give 1 to {len(nodes)}",
            )
        return cls(distinct, quorum, replicas or {})

    @classmethod
    def parse(cls, text: str, quorum: int | None = None) -> TrustedKeys:
        """The keys of a key file. Raises ValueError with the line for anything else, and
        BadArgument as `of` does."""
        keys: list[VerifierKey] = []
        replicas: dict[tuple[str, str], frozenset[str]] = {}
        for number, line in enumerate(text.splitlines(), 1):
            words = line.split()
            try:
                if not words or line.startswith("#"):
                    continue
                if words[0] == _REPLICAS:
                    group, nodes = _replicas(words)
                    if replicas.setdefault(group, nodes) != nodes:
                        raise ValueError(f"the replicas of {'/'.join(group)} are named twice")
                else:
                    keys.append(VerifierKey.parse(line.strip()))
            except ValueError as error:
                raise ValueError(f"line {number}: {error}") from None
        return cls.of(keys, quorum, replicas)

    def needed(self, log: LogName) -> int:
        """How many nodes must have signed a checkpoint of this log."""
        return len(self._replicas_of(log)) // 2 + 1 if self.quorum is None else self.quorum

    def counted(self, signers: Iterable[Verified], checkpoint: Checkpoint) -> set[str]:
        """The nodes among the signers that are replicas of the group. The others, whoever they are,
        say nothing about its log."""
        return {
            node for each in signers if (node := node_of(each.key, checkpoint)) is not None
        } & self._replicas_of(checkpoint.log)

    def names(self, log: LogName) -> bool:
        """Whether the replicas of the broker group are known, and not only the nodes of its
        cluster."""
        return (log.cluster_id, log.broker_group) in self.replicas

    def _replicas_of(self, log: LogName) -> frozenset[str]:
        known = self.replicas.get((log.cluster_id, log.broker_group))
        return known or frozenset(
            node for key in self.keys if (node := _node_in(key, log.cluster_id)) is not None
        )

    def signers(self, note: Note, checkpoint: Checkpoint) -> list[Verified]:
        """The verified signatures that count for this checkpoint: those of witnesses, and those of
        nodes of its own cluster. Raises ValueError if a signature of a known key is false."""
        verified = verify(note, self.keys, ed25519.verified)
        return [
            each
            for each in verified
            if each.key.kind == COSIGNATURE or node_of(each.key, checkpoint) is not None
        ]


def node_of(key: VerifierKey, checkpoint: Checkpoint) -> str | None:
    """The node whose key it is; None for a key of another cluster or of a witness. The name of a
    node's key is NODE.CLUSTER."""
    return _node_in(key, checkpoint.log.cluster_id)


def replicas_line(cluster_id: str, broker_group: str, nodes: Iterable[str]) -> str:
    """The line of a key file that names the replicas of a broker group."""
    return " ".join((_REPLICAS, f"{cluster_id}/{broker_group}", *nodes))


def _node_in(key: VerifierKey, cluster_id: str) -> str | None:
    node, dot, cluster = key.name.rpartition(".")
    return node if key.kind == ED25519 and dot and node and cluster == cluster_id else None


def _replicas(words: list[str]) -> tuple[tuple[str, str], frozenset[str]]:
    """The inverse of `replicas_line`. Raises ValueError."""
    cluster, _, group = words[1].partition("/") if len(words) > 2 else ("", "", "")
    if not cluster or not group or "/" in group or len(set(words[2:])) != len(words) - 2:
        raise ValueError(
            f"expected {_REPLICAS} CLUSTER/GROUP and different nodes, got {' '.join(words)!r}"
        )
    return (cluster, group), frozenset(words[2:])
