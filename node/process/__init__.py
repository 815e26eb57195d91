"""A node as a process: composes the other rooms, and starts, supervises, monitors and stops the
node.

`server.py` builds a node of four sides (`replica_side.py`, `controller_side.py`,
`maintenance_side.py`, `frontend_side.py`), `serving.py` runs it, `supervisor.py` runs its workers,
and `local.py` starts whole clusters on one machine. HTTP pages and traces (`telemetry/`) and the
command line's node commands are here too. Code that composes other rooms belongs here; rules of its
own do not. Only the command line imports this room.
"""
