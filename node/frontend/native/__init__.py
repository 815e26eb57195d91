"""The native contract (`ledgermq.v1.Log`): streams of frames for producers, and streams of ranges
for readers.

`service.py` has the methods. Producing, fetching, joining a consumer group, committing offsets and
verifying receipts are one module each, with their helpers beside them. A stream stays on the node
where it was opened. To add a method, add a module and a line in `service.py`. `admin` and `process`
import this package.
"""
