"""Timers: delayed messages wait in slots, fire when their time has come, and may be recalled until
then.

`timers.py` is the state, `timer_firing.py` decides what fires, `timer_window.py` reads the next
timers of one slot.
"""
