"""The client contract of RocketMQ 5 (gRPC v2): what official clients ask of a node, and the exact form of what they get back.

Here live the service's methods, the checks of their requests, and the translation between their messages and the calls of a broker group
(`node/core/calls/`). Nothing here decides about logs, leases or leadership.
"""
