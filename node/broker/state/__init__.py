"""The state of a broker group, a pure function of the committed log (invariant I8).

`machine.py` is the only writer: it applies ranges and dispatches records to one module per capability. Every table has a bound (invariant
I11), is exported to snapshots, and is derived a second time, independently, by `audit/state/`. A new control record needs its effect here
and the same effect there. Leader rules and clocks do not belong here. `decisions` and `group` import this package, as do the modules that
rebuild or prune a replica.
"""
