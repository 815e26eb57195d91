"""The bottom layer: everything on which two packages must agree.

It holds the `.proto` sources and their generated code, value types that cross package borders, the
layout and encoding of entries and records, naming rules, control records, and the error table.
Nothing here opens a file, reads a clock or knows a role; this package imports no other package of
LedgerMQ.
"""
