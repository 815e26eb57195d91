"""What one broker group decides, without the world around it: plain functions and values over ports.

No asyncio, threads, sockets, clock or randomness: time, packets and calls come in as values, and what is left to do goes out as values, so
that the simulator and the tests run exactly what a node runs. `calls` are the inputs and answers, `state` is a function of the
committed log,
`decisions` are what a leader adds to it, `group` is the turn that drives all of them. Each imports only those named before it. The modules
beside them (the replication port, arithmetic on ranges, flush policies) import no other part of the room.
"""
