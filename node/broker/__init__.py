"""What one broker group decides, without the world around it: plain functions and values over ports.

No asyncio, threads, sockets, clock or randomness: time, packets and calls come in as values, and what is left to do goes out as values, so
that the simulator and the tests run exactly what a node runs. `filters` and `calls` are the inputs and answers, `state` is a function of
the committed log, `decisions` are what a leader adds to it, `group` is the turn that drives all of them; each imports only those named
before it. `ports.py` holds what the room needs from outside, `flush.py` the flush policies. A new capability adds a call, its decision and
its effect, one module in each. Every other room but `runtime` may import this one; services of the frontend import `calls` and `filters`
only.
"""
