"""Retention: the seals and trims of the log, its tree of files, and the markers of audits.

The records about the log itself and what is known from them; the host of the replica decides which
files may go, and deletes them.
"""
