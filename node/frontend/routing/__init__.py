"""From any node to the leader of a broker group, and from any worker of a node to another.

`forwarder.py` sends a call to the leader, at most once where it must not be repeated; `local_reads.py` says what a follower may serve;
`worker_proxy.py` and `worker_registry.py` connect the workers of one node. Bytes go in and out: what a call means is the executor's affair.
The services of the frontend and `process` import this package.
"""
