"""Replicas of broker groups on this node, from their directories to their turns: opening, the engine's thread, syncs, and which
groups are here.
"""
