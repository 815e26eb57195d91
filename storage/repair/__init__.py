"""The files of a damaged or missing log: found, mended in place, or replaced by those of other
replicas.

Which bytes are right is decided by the callers; this room writes them so that a cut at any point
leaves a state that a start recognises.
"""
