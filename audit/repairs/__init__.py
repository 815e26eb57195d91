"""Planning a repair from findings: what is wrong with whom, whose bytes are right, and what proves them.

Reads through `reading/files.py` like every witness, judges with the tables of the checks, and writes nothing: a plan is values
(`proto/repair_plan.py`) that `storage` or a running node carry out.
"""
