"""Measurements that are not part of `python -m bench`: each takes its own options, and is run by
its own name."""
