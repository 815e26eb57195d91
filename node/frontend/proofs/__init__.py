"""Checkpoints of the log tree, signed by this node, and proofs that lead to them
(docs/proof.md)."""
