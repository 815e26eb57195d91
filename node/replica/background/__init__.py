"""Slow work beside the turns of a replica, each on a thread of its own that yields to them: key index, scrub, digests, disk usage.
"""
