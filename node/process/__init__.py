"""A node as a process: composes the other rooms, and starts, supervises, monitors and stops the
node.

`server.py` builds a node in four steps (replica, controller, maintenance, frontend), `serving.py`
runs it, `supervisor.py` runs its workers, and `local.py` starts whole clusters on one machine. The
HTTP pages, traces and the command line's node commands are here too. Code that composes other rooms
belongs here; rules of its own do not. Only the command line imports this room.
"""
