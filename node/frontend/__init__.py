"""The services that clients and operators call: the RocketMQ contract, native streams,
administration, and the security in front of them.

A service sees only calls and published views of broker groups; `ports.py` declares what it needs of
the engine and the quorum. Import arrows: `security` and `routing`, then `rocketmq`, then `native`,
then `admin`. Add a new client method as a module of its contract's package, with its checks, its
route and its execution. Only `process` imports this room.
"""
