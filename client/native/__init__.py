"""The native client: producers and consumers on the batch streams of `ledgermq.v1.Log` (proto/log.proto), for event loops and for threads.

`connection.py` finds the leader of a broker group and goes there again when it moved. A producer decides in `lane.py`, which does no I/O,
and waits in `stream.py`. A consumer decides in `positions.py`, and waits in `fetching.py` and `joining.py`. Applications use what
`ledgermq.client` exports (docs/client.md); nothing else here is promised to stay.
"""
