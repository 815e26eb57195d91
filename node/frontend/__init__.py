"""What clients and operators reach: the RocketMQ contract, native streams, administration, and what stands in front of them.

A service sees calls and published views of broker groups only; `ports.py` holds what it needs of the engine and the quorum. Arrows:
`security` and `routing`, then `rocketmq`, then `native`, then `admin`. A new client method is a module of its contract's package, with its
checks, its route and its execution. Only `process` imports this room.
"""
