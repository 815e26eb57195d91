"""A node as a process: it is composed of the other rooms, started, supervised, watched over HTTP, and stopped.

`server.py` builds a node in four steps (replica, controller, maintenance, frontend), `serving.py` runs it, `supervisor.py` runs its
workers, `local.py` starts whole clusters on one machine. HTTP pages, traces and the command line's node commands are here, too. A part that
composes other rooms belongs here, and no rule of its own. Nothing imports this room but the command line.
"""
