"""Slow work beside the turns of one replica, in steps that yield to them: indexing, scrubbing,
digests.

A module here reads files of one group at a limited rate and hands results to the engine. It makes
no decision about the log, and reports a disk failure to the group (invariant I9). Further slow work
on one group's files belongs here. `hosting` and `maintenance` import this package.
"""
