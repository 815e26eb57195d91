"""The broker groups that run on this node: their files, their life cycle, and the engine that gives
them turns.

`engine.py` is the thread, `hosting.py` the life cycle of one group (running, repairing, installing,
refused), `running.py` an open replica, and `opening.py` opens a directory. `batch_gate.py` and
`syncer.py` determine when a batch and its sync begin. `assignment_watcher.py` opens and closes
replicas as the quorum assigns them. `maintenance`, `frontend/admin` and `process` import this
package.
"""
