"""Slow work beside the turns of one replica, each on a thread that yields to them: indexing, scrubbing, digests.

A module here reads files of one group, keeps a pace, and hands results to the engine. It decides nothing about the log; a failure of the
disk is reported to the group (invariant I9). New slow work on one group's files goes here. `hosting` and `maintenance` import this package.
"""
