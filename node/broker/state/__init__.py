"""The state of a broker group, a pure function of the committed log (invariant I8).

`machine.py` is the only writer: it applies ranges and dispatches records to one module for each capability. Every table has a bound
(invariant I11), is exported to snapshots, and is derived a second time by `audit/state/`. A new control record gets its effect here, and
the same effect there. No rule of the leader and no clock may enter. `decisions` and `group` import this package, and so does what rebuilds
or prunes a replica.
"""
