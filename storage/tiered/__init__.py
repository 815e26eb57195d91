"""Sealed log files in an object store: the port to the store, what lies in it (format §21), how a
file gets there and a log comes back.

Everything here blocks and belongs on a thread of its own. Nothing here decides which file is
uploaded or removed.
"""
