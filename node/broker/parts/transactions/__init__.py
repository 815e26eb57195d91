"""Transactions: half messages wait unseen until they are committed, rolled back, or given up after
checks.

`transactions.py` is the state, `transaction_resolution.py` decides, `transaction_checks.py` is the
clock of checks.
"""
