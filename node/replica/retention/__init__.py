"""What must be kept and what may go: rules over facts of a replica, pins, and trims.

`retention_rules.py` decides from values, `retention_facts.py` collects them, `pins.py` holds back what somebody needs, `trimming.py`
carries a committed trim out, `why_kept.py` explains it; `scrub.py` plans the search for rot. Pure: the simulator runs it. A new reason to
keep files is a pin. `background`, `hosting`, `maintenance` and the simulator import this package.
"""
