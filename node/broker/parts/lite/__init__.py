"""Lite topics: many small topics that share the queues of a parent, and the sets of them that
clients read.

`lite.py` is the state, `lite_serving.py` decides.
"""
