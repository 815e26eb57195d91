"""Streams between nodes: frames, the mutual proof of the cluster secret, identities, and the dialling and accepting sides.
"""
