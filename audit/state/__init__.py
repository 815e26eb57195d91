"""Derived state, derived again: what `state/snapshot` says of topics, groups, delivery and all the rest, worked out from the log alone
(invariant I8) and held against the file.

A second implementation of docs/format.md §4 and §11: nothing here is shared with the node that wrote the snapshot, nor with its record
classes. `reader` turns a log into stretches in log order, `part` is what every part of the state looks like, `derive` drives the parts and
`compare` tells where two values differ. A part is a pure function of the entries it was given; no part opens a file.
"""
