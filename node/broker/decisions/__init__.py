"""The decisions of a broker group's leader: rules over the state as of the log's end.

`leader.py` drives the parts, `plan.py` collects the decisions of one turn, `uncommitted.py` holds what was appended but is not applied
yet. Each other module has the rules of one capability: delivery, timers, transactions, producers, dead letters, lite topics. A
new rule belongs in the module of its capability. Nothing here has to survive the end of leadership; what must survive is a record in the
log. Only `group` and the simulator import this package.
"""
