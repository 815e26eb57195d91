"""The broker groups that run on this node: their files, their lives, and the engine that turns them.

`engine.py` is the thread, `hosting.py` the life of one group (running, repairing, installing, refused), `running.py` an open replica,
`opening.py` how a directory is opened. `batch_gate.py` and `syncer.py` say when a batch and its sync begin. `assignment_watcher.py` opens
and closes replicas as the quorum assigns them. What acts on one hosted group's life belongs here. `maintenance`, `frontend/admin` and
`process` import this package.
"""
