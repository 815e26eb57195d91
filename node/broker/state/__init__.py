"""Replicated state of a broker group: a pure function of the snapshot and the committed log behind it (invariant I8).

Every replica computes it in the same way. Leader-local decisions and clocks belong to `decisions`.
"""
