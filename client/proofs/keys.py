"""The keys that a verifier trusts, and how many of them must have signed.

A key file is text: one verifier key of C2SP on a line, of nodes (type 1) and of witnesses (type 4). Empty lines, and lines that begin with
#, do not count. Whoever wrote the file decides whom to trust; a cluster's own word (`ledgermq checkpoint keys`) is where to begin, once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from ledgermq.client.errors import BadArgument
from ledgermq.client.proofs import ed25519
from ledgermq.proto.signed_notes import COSIGNATURE, ED25519, Checkpoint, Note, Verified, VerifierKey, verify

_Check = Callable[[bytes, bytes, bytes], bool]


@dataclass(frozen=True, slots=True)
class TrustedKeys:
    """Verifier keys, and the number of nodes that must have signed a checkpoint."""

    keys: tuple[VerifierKey, ...]
    quorum: int

    @classmethod
    def of(cls, keys: Iterable[VerifierKey], quorum: int | None = None) -> TrustedKeys:
        """Trust these keys. By default a majority of the nodes must have signed. Raises BadArgument if so many cannot."""
        found = tuple(dict.fromkeys(keys))
        nodes = {key.name for key in found if key.kind == ED25519}
        if not nodes:
            raise BadArgument("there is no key of a node among the trusted keys", "write one with: ledgermq checkpoint keys")
        needed = len(nodes) // 2 + 1 if quorum is None else quorum
        if not 1 <= needed <= len(nodes):
            raise BadArgument(f"{needed} nodes cannot sign: there are keys of {len(nodes)}", f"give 1 to {len(nodes)}")
        return cls(found, needed)

    @classmethod
    def parse(cls, text: str, quorum: int | None = None) -> TrustedKeys:
        """The keys of a key file. Raises ValueError with the line for anything else, and BadArgument as `of` does."""
        keys = []
        for number, line in enumerate(text.splitlines(), 1):
            if line.strip() and not line.startswith("#"):
                try:
                    keys.append(VerifierKey.parse(line.strip()))
                except ValueError as error:
                    raise ValueError(f"line {number}: {error}") from None
        return cls.of(keys, quorum)

    def signers(self, note: Note, checkpoint: Checkpoint, check: _Check = ed25519.verified) -> list[Verified]:
        """The verified signatures that count for this checkpoint: those of witnesses, and those of nodes of its own cluster. Raises
        ValueError if a signature of a known key is false."""
        found = verify(note, self.keys, check)
        return [each for each in found if each.key.kind == COSIGNATURE or node_of(each.key, checkpoint) is not None]


def node_of(key: VerifierKey, checkpoint: Checkpoint) -> str | None:
    """The node whose key it is; None for a key of another cluster or of a witness. The name of a node's key is NODE.CLUSTER."""
    node, dot, cluster = key.name.rpartition(".")
    return node if key.kind == ED25519 and dot and node and cluster == checkpoint.log.cluster_id else None
