"""Delivery: consumers lease messages, acknowledge them, or get them again.

`delivery.py` is the state. `lease_serving.py` decides about Receives and handles; `picker.py` and
`fifo_picker.py` find messages, `leases.py` is the clock of leases, `polls.py` has the waiting
Receives, `tier_messages.py` what only the object store has.
"""
