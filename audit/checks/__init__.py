"""What must be true of replicas: every rule by name, the checks of one file, of one replica, and of the replicas of one broker group.

`rules` is the table; `scan` and `derived` check one log file and what was made of it, `opening`, `after_scan` and `evidence` one replica,
`compare` all of them against each other. Checks collect flaws; only `compare` says what a flaw means. Nothing here opens a file but through
`reading`.
"""
