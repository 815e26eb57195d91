"""The bottom layer: everything two packages must agree on.

Here live the `.proto` sources and their generated code, value types that cross package borders, the entry and record layout with its
encoder, naming rules, control records, and the one error table. Nothing here opens a file, reads a clock or knows a role; this package
imports no other package of LedgerMQ.
"""
