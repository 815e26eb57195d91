"""Deriving the state again: the content of `state/snapshot` about topics, groups, delivery and the
rest, computed from the log alone (invariant I8) and compared with the file.

A second implementation of docs/format.md §4 and §11, which shares no code with the node that wrote
the snapshot, nor its record classes. `reader` splits a log into stretches in log order, `part` is
the interface of a part of the state, `derive` drives the parts and `differences` compares two
values. A part is a pure function of the entries passed to it; no part opens a file.
"""
