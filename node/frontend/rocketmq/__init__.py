"""The client contract of RocketMQ 5 (gRPC v2): what official clients ask of a node, and the exact form of the answers.

Here live the service's methods. Checks of requests, and the translation between messages of the contract and values, are in `wire`.
Nothing here decides about logs, leases or leadership.
"""
