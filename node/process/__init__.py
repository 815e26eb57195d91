"""A node as a process: it is composed of the other rooms, started, supervised, watched over HTTP, and stopped.

Nothing imports this room but the command line.
"""
