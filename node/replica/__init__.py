"""One replica of a broker group on this machine: the driver over Raft core and log, repair, retention, the engine's thread, and peers.

`consensus`, `shipping` and `retention` are pure and run in the simulator as they are. `background`, `peers`, `hosting` and `maintenance`
act with threads and streams. `ports.py` holds what the room needs of the rooms above it. What drives a log, a Raft core or a peer stream
belongs here. `frontend/admin` and `process` import this room, `frontend/routing` its streams to peers.
"""
