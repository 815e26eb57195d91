"""From bytes to columns: where files come from, and the auditor's own decoder of docs/format.md.

Everything here reads, nothing judges. `files` is the only door to bytes, whether they lie on this machine or come from a running node;
`decode` and `columns` know the byte tables, `walk` finds the entries of a log file, `begin` reads where a trimmed log begins, `bytewise`
holds bytes of two replicas side by side. Nothing is shared with the writer (`storage/`, the layout modules of `proto/`).
"""
