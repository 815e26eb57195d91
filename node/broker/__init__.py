"""What one broker group decides, isolated from its surroundings: plain functions and values over ports.

No asyncio, threads, sockets, clock or randomness: time, packets and calls are arguments, and the work left for the caller is a return
value, so that the simulator and the tests run exactly the code that a node runs. `filters` and `calls` are the inputs and answers, `state`
is a function of the committed log, `decisions` are what a leader adds to it, and `group` is the turn that drives all of them. `part.py` is
the interface of a capability. `ports.py` declares what the room needs from outside, `flush.py` the flush policies. A new capability adds a
call, its decision and its effect, one module in each. Every other room but `runtime` may import this one; services of the frontend import
`calls` and `filters` only.
"""
