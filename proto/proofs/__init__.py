"""Trees over the log, signed notes about them, and receipts: what a proof is made of
(docs/format.md)."""
