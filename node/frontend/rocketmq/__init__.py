"""The RocketMQ 5 client contract: one module for each method, with its checks, its route and its
execution.

`messaging.py` registers the methods, `wire/` converts between messages and values,
`access_control.py` authenticates callers and checks their permissions. docs/conformance.md lists
what the contract demands, and the test for each demand. To add a method, add a module here and a
row there. `native` shares topics, streams and limits with this package; `admin` and `process`
import it too.
"""
