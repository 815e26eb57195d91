"""Pulls: reads that lease nothing, and the offsets that consumer groups commit.

`reads.py` waits until this replica is known to lead and to have applied everything acknowledged
before; `pulls.py` waits for messages.
"""
