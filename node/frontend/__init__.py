"""What clients and operators reach: the RocketMQ contract, native streams, administration, and what stands in front of them.

A service sees calls and published views of broker groups only. Arrows: `security` and `routing`, then `rocketmq`, then `native`, then
`admin`.
"""
