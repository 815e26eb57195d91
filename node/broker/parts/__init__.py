"""The capabilities of a broker group, a folder each: its records and state, its decisions, clock
and answers.

A capability implements `StatePart` or `LeaderPart` of `part.py`, or both; `machine.py`, `leader.py`
and `group.py` drive it by tables. A new capability adds a folder here, its calls to `calls`, its
control records to `proto/records/control.py`, and the same state to `audit/state/`.
"""
