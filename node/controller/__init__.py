"""The controller quorum: each node keeps the intended cluster metadata in a PySyncObj state
machine.

See docs/architecture.md, The controller.

`metadata`, `voters` and one module per subject (topics, users, broker groups, HA) decide and are
pure. `journal` and `snapshot` store the state. `wire`, `resolving` and `quorum` adapt the library.
The node uses `controller`. `reconcile` and `ha_control` bring the agreed metadata to the broker
groups through the port in `ports.py`. The data path never waits for this package, and the safety of
a broker group's log does not depend on it. A new kind of metadata needs a table in `state`, its
commands, and their parsing in `command_fields`. `replica`, `frontend` and `process` import this
package.
"""
