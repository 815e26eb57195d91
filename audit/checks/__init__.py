"""The checks: every rule by name, and the checks of one file, of one replica, and of the replicas of one broker group.

`rules` is the table; `scan` and `derived` check one log file and its derived files, `opening`, `after_scan` and `evidence` one replica,
`compare` all replicas against each other. Checks collect flaws; only `compare` decides what a flaw means. Files are opened only through
`reading`.
"""
