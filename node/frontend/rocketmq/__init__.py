"""The RocketMQ 5 client contract: one module for each method, with its checks, its route and its execution.

`messaging.py` registers the methods, `wire/` turns requests into values and values into responses, `access_control.py` asks who may do
what. What the contract demands, and which test shows it, is in docs/conformance.md. A new method is a module here and a row there. `native`
shares topics, streams and limits with this package; `admin` and `process` import it as well.
"""
