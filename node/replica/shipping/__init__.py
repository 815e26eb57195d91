"""Bytes from peers: serving log files, asking for them, repairing damage and installing a log. Pure: the simulator runs it.
"""
