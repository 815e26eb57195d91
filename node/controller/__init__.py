"""The controller quorum: cluster metadata as intent, kept by a PySyncObj state machine on every node.

See docs/architecture.md, The controller.

`metadata` and `voters` decide (pure), `journal` and `snapshot` keep, `wire`, `resolving` and `quorum` tame the library, `controller` is
what the node talks to. No data path waits for anything in here, and no safety of a broker group's log rests on it.
"""
