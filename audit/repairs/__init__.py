"""Planning a repair from findings: what is wrong on which replica, whose bytes are right, and what
proves them.

Reads through `reading/files.py` like the rest of the audit, judges with the tables of the checks,
and writes nothing: a plan is plain values (`proto/records/repair_plan.py`) that `storage` or a
running node carry out.
"""
