"""The native client: producers and consumers on the batch streams of `ledgermq.v1.Log`
(proto/log.proto), for event loops and for threads.

`log_connection.py` finds the leader of a broker group, and finds it again after it changed. In
`producers/`, `producer_session.py` decides (without I/O) and `stream.py` waits. In `consumers/`,
`positions.py` decides, and `fetching.py` and `joining.py` wait. Applications use what
`ledgermq.client` exports (docs/client.md); everything else here may change without notice.
"""
