"""Import of a RocketMQ store root into the log of a new broker group: first everything is read and
decided, then everything is written.

The same source, cluster id, creation time, replicas and file sizes give the same bytes on every
machine: nothing here reads the clock.
"""
