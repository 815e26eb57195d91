"""What the leader of a broker group decides: rules over the state as of the log's end.

`leader.py` owns the parts, `planner.py` and `plan.py` collect the decisions of one turn, `uncommitted.py` holds what was appended and not
applied yet. The other modules have the rules of one capability each: delivery, timers, transactions, producers, dead letters, lite topics.
A new rule goes to the module of its capability. Everything here is lost without harm when leadership ends; what must survive is a record in
the log. Only `group` and the simulator import this package.
"""
