"""Persistent state: files and maps behind one disk port, the entry log, derived indexes, recovery.

This package knows no roles and no peers, reads no clock, draws no random number and starts no
thread: on the same disk it behaves the same. It imports only `proto`. The entry point is
`group.store.GroupStore`.
"""
