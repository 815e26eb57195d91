"""Fetches bytes from peers: serving log files, requesting them, repairing damage and installing a
log.

Pure: time and packets come in, packets and disk writes go out, and the simulator runs it unchanged.
`shipping.py` serves, `peer_fetch.py` and `windowed_fetch.py` request, and `repair.py`,
`range_repair.py` and `installation.py` decide what is written; all three implement `ports.py`.
Nothing is written before it was verified. `hosting` and the simulator import this package.
"""
