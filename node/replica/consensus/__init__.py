"""A replica behind the replication port: Raft core, entry log and hard state, and its messages as packets. Pure: the simulator runs it.
"""
