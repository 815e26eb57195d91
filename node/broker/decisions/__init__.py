"""Decisions of a broker group's leader, made against the state as of the log's end: committed state plus what is not committed yet.

Only a leader holds what lives here. It is rebuilt from the log after an election, and never replicated.
"""
