"""The native contract (`ledgermq.v1.Log`): streams of frames for producers, and streams of ranges for readers.

`service.py` has the methods. Producing, fetching, joining a consumer group, committing offsets and verifying receipts are a module each,
with their helpers beside them. Streams stay on the node where they were opened. A new method is one module and a line in `service.py`.
`admin` and `process` import this package.
"""
