"""Configuration: topics and consumer groups, put into force by control records.

What a configuration changes in the state concerns all parts, so `machine.py` applies it.
"""
