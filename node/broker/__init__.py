"""What one broker group decides, isolated from its surroundings: plain functions and values over
ports.

No asyncio, threads, sockets, clock or randomness: time, packets and calls are arguments, and the
work left for the caller is a return value, so that the simulator and the tests run exactly the code
that a node runs.

`filters` and `calls` are the inputs and answers. `parts` has a folder for each capability.
`group.py` is the turn: input, decisions, replication, application, answers. It drives the state
(`machine.py`, a pure function of the committed log, invariant I8) and, on a leader, the decisions
(`leader.py`). What several capabilities need stands beside them: `part.py` their interface,
`queues.py` topics and queues, `plan.py` the decisions of a turn, `uncommitted.py` what is appended
but not applied yet. `queries` only answers questions. `ports.py` declares what the room needs from
outside, `flush.py` the flush policies. Every other room but `runtime` may import this one; services
of the frontend import `calls` and `filters` only.
"""
