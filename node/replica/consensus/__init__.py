"""Replication of one broker group: the driver that feeds the Raft core with packets and carries out what it decides on the log.

`raft_replica.py` implements the `Replicator` port, `replica_wire.py` has the packets, `replica_boot.py` what a start reads from the log,
`catch_up.py` how far followers are. What is decided is decided in `raft/`. No thread, clock or socket may enter. The other packages of
`replica`, and the simulator, import this package.
"""
