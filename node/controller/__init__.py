"""The controller quorum: cluster metadata as intent, kept by a PySyncObj state machine on every node.

See docs/architecture.md, The controller.

`metadata`, `voters` and the modules of one subject each (topics, users, broker groups, HA) decide and are pure; `journal` and `snapshot`
keep; `wire`, `resolving` and `quorum` tame the library; `controller` is what the node talks to. `reconcile` and `ha_control` bring what was
agreed to the broker groups, over the port in `ports.py`. No data path waits for anything in here, and no safety of a broker group's log
rests on it. New metadata is a table of `state`, its commands, and their form in `command_fields`. `replica`, `frontend` and `process`
import this room.
"""
