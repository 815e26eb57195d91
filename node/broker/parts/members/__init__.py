"""Members: changes of who replicates the group, handovers of leadership, and raises of the feature
level.

The Raft core decides what is allowed; these modules keep the requests and answer the callers.
"""
