"""Proofs that a message is in a log, and that a log continues an older one, without trusting a node
(docs/proof.md).

`Proof.parse` and `verify` check a proof offline; `fetch` gets one from a cluster; `Witness` follows
the checkpoints of a cluster. Trees and signed notes themselves are in `proto/proofs/log_tree.py`
and `proto/proofs/signed_notes.py`.
"""

from __future__ import annotations

from ledgermq.client.proofs.keys import TrustedKeys
from ledgermq.client.proofs.proof import Proof, Proven, Refuted, Unreadable
from ledgermq.client.proofs.proof_fetching import fetch
from ledgermq.client.proofs.verifying import verify

__all__ = ["Proof", "Proven", "Refuted", "TrustedKeys", "Unreadable", "fetch", "verify"]
