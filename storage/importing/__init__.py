"""A RocketMQ store root made into the log of a new broker group: first everything is read and decided, then everything is written.

The same source, cluster id, time of creation, replicas and file sizes give the same bytes on every machine: nothing here asks the clock.
"""
