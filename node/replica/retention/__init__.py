"""Decides which log files must be kept and which may go: rules over facts of a replica, pins, and
trims.

`retention_rules.py` decides from values, `retention_facts.py` collects them, `pins.py` keeps files
for external readers, `trimming.py` carries a committed trim out, and `why_kept.py` explains a
decision. `scrub.py` plans the search for bit rot. All of it is pure, and the simulator runs it. A
new reason to keep files is a pin. `background`, `hosting`, `maintenance` and the simulator import
this package.
"""
