"""One replica of a broker group on this machine: Raft core and log, repair, retention, the engine,
and the connections to peers.

`consensus`, `shipping` and `retention` are pure, and the simulator runs them unchanged.
`background`, `peers`, `hosting` and `maintenance` use threads and streams. `ports.py` has what this
package needs from the packages above it. Code that drives a log, a Raft core or a peer stream
belongs here. `frontend/admin` and `process` import this package; `frontend/routing` imports its
peer streams.
"""
