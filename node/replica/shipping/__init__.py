"""Bytes from peers: serving log files, asking for them, repairing damage and installing a log.

Pure: time and packets come in, packets and disk writes go out, and the simulator runs it as it is. `shipping.py` serves, `peer_fetch.py`
and `windowed_fetch.py` ask, `repair.py`, `range_repair.py` and `installation.py` decide what is put back; all three have the shape of
`ports.py`. Nothing is written before it was verified. `hosting` and the simulator import this package.
"""
