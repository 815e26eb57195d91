"""The checks of one file, of one replica, and of the replicas of one broker group.

`scan` and `derived` check one log file and its derived files, `opening`, `after_scan` and
`evidence` one replica, `group_comparison` all replicas against each other. Checks collect flaws;
only `group_comparison` decides what a flaw means. Files are opened only through `reading`.
"""
