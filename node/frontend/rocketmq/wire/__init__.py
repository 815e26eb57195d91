"""Messages of the RocketMQ contract as values: validation, statuses, receipt handles, bodies, and
the permissions a request needs.

No module here waits, routes or knows a broker group. The texts of all refusals that clients see are
in `validation.py` and `statuses.py`. Read and check a new field of the contract here. `rocketmq`
and `native` import this package.
"""
