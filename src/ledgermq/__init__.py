"""LedgerMQ: a replicated message log and queue.

This package only names its version. What it is made of lives in the top-level folders linked beside
this file.
"""

__version__ = "0.2.0"
