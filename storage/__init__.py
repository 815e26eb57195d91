"""What keeps: files and maps behind one disk port, the entry log, derived indexes, recovery.

Knows no roles and no peers, reads no clock, draws no random number and starts no thread: given the disk, everything here is deterministic.
Imports only `proto`. The way in is `store.GroupStore`.
"""
