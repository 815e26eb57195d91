"""Replication of one broker group: the driver that feeds packets to the Raft core and executes its
decisions on the log.

`raft_replica.py` implements the `Replicator` port, `replica_wire.py` encodes packets,
`replica_boot.py` reads memberships from the log, and `catch_up.py` estimates the followers'
progress. All decisions are made in `raft/`. No thread, clock or socket is allowed here. The other
packages of `replica`, and the simulator, import this package.
"""
