"""Answers to questions about a broker group: how far consumers are, what happened to a message and
why, who led, how much was stored.

Nothing here decides anything or changes the state. Only `group.py`, `leader.py` and the rooms above
import this package.
"""
