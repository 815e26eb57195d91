"""A node: replicas of broker groups, the services in front of them, the metadata quorum beside them, and the process around all of it.

The rooms, and which of them may import which: docs/architecture.md. Nothing here decides about consensus (`raft/`) or knows a byte layout
(`proto/`, `storage/`).
"""
