"""A node: replicas of broker groups, the services in front of them, the metadata quorum beside
them, and the process around all of it.

Each room below opens with a tour: what it holds, what may be added to it, and who may import it.
docs/architecture.md draws the arrows between the rooms, and tests/test_tidy.py holds them. Nothing
here decides about consensus (`raft/`) or knows a byte layout (`proto/`, `storage/`). A module
belongs to the lowest room that has everything it needs.
"""
