"""Decoding of bytes into columns: the access to files, and the auditor's own decoder of
docs/format.md.

This package reads and does not judge. All access to bytes, on this machine or on a running node, is
through `files`. `decode` and `columns` implement the byte tables, `walk` finds the entries of a log
file, `begin` reads where a trimmed log begins, `bytewise` compares bytes of two replicas. No code
is shared with the writer (`storage/`, the layout modules of `proto/`).
"""
